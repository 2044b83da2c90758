"""The page in a real browser: Debian's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import base64
import io
import time

import pandas as pd
import pytest
from served import site

from retrace_sde.app.examples import EXAMPLES

LONG = 120_000
"""Milliseconds that a fit may take on a busy machine."""

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def client():
    with site(max_upload=300 << 20) as found:
        yield found


@pytest.fixture
def visit(browser, client):
    """Open the page; at the end nothing was printed, thrown, or asked of anybody else."""
    client.post("/do/forget")
    troubles, opened = [], []

    def go(*, width=1100, **options):
        options = {"reduced_motion": "reduce", "accept_downloads": True, **options}
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(LONG)
        opened.append(page)
        refused = "status of 415"  # which the browser prints, and the page says
        page.on("console", lambda m: refused in m.text or troubles.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        ours = (f"http://127.0.0.1:{client.port}/", "data:,", "blob:")
        page.on("request", lambda r: r.url.startswith(ours) or troubles.append(f"request {r.url}"))
        page.goto(client.link)
        return page

    yield go
    for page in opened:
        page.close()
    assert troubles == []


def drop(page, name, content):
    """A file let go over the page, as a hand would."""
    data = page.evaluate_handle(
        """([name, text]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
            return data;
        }""",
        [name, base64.b64encode(content).decode()],
    )
    page.dispatch_event("#zone", "drop", {"dataTransfer": data})


def fitted(page, name):
    page.get_by_role("button", name=name).click()
    page.locator("#fit:enabled").click()
    page.locator("#result").wait_for()


def kept(client):
    return sorted(path.name for path in client.session.folder.iterdir())


def test_a_file_is_dropped_fitted_seen_in_order_and_taken_home(visit, client, tmp_path):
    table = EXAMPLES["recovering"]()
    page = visit()
    drop(page, "after operation.csv", table.to_csv(index=False).encode())
    page.locator("#table").wait_for()
    assert page.locator("#table-title").inner_text() == "after operation.csv"
    rows = page.locator("#columns tbody tr")
    assert [rows.nth(k).locator("select").input_value() for k in range(5)] == [
        "subject", "slice", "variable", "variable", "variable",
    ]  # fmt: skip
    page.locator("#diagnose").click()
    page.locator("#diagnosis").wait_for()
    assert "order to be found" in page.locator("#findings").inner_text()
    page.locator("#fit").click()
    page.locator("#result").wait_for()
    first = page.locator("#verdicts article").first.inner_text()
    assert "The order is certain" in first
    assert "visit L → visit H" in first
    assert page.locator("#verdicts article").nth(1).inner_text().count("In the order shown")
    beads = page.locator("#moving svg")
    assert beads.count() == 1
    assert "in the order visit L, visit H, visit J" in beads.get_attribute("aria-label")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="ordered.csv").click()
    waiting.value.save_as(tmp_path / "ordered.csv")
    ordered = pd.read_csv(tmp_path / "ordered.csv")
    assert len(ordered) == len(table)
    one = ordered[ordered["patient"] == "p01"]
    assert one["visit"].tolist()[:2] == ["visit L", "visit H"]
    assert one["position"].tolist() == list(range(12))
    figures = page.frame_locator("#report")
    figures.locator("#drift-map svg").wait_for()
    assert figures.locator("#drift-map svg").count() == 1
    assert figures.locator("#verdicts").is_hidden()
    page.locator("#forget").click()
    page.locator("#drop").wait_for()
    assert kept(client) == []


def test_beads_move_from_where_they_were_stored_to_their_places(visit):
    page = visit(reduced_motion="no-preference")
    fitted(page, "After an operation")
    at = "[...document.querySelectorAll('#moving .bead')].slice(0, 12).map((b) => +b.getAttribute('cx'))"
    page.locator("#moving").scroll_into_view_if_needed()  # it waits to be seen
    page.locator("#moment-text").filter(has_text="the result").wait_for()
    page.wait_for_timeout(1500)
    result = page.evaluate(at)
    page.locator("#moment").focus()
    page.keyboard.press("Home")
    assert page.locator("#moment-text").inner_text() == "as stored"
    page.wait_for_timeout(900)
    stored = page.evaluate(at)
    assert stored == sorted(stored)
    assert sorted(result) == pytest.approx(stored)
    assert result != stored
    page.locator("#play").click()
    page.wait_for_timeout(1600)
    between = page.evaluate(at)  # on the way: at neither end
    assert between not in (stored, result)


def test_an_open_direction_shows_the_twin_beside_it(visit):
    page = visit()
    fitted(page, "At rest")
    assert "It cannot be known" in page.locator("#verdicts").inner_text()
    assert "Everything" not in page.locator("#verdicts").inner_text()
    labels = page.locator("#moving svg").evaluate_all(
        "all => all.map((e) => e.getAttribute('aria-label'))"
    )
    assert len(labels) == 2
    orders = [label.split("in the order ")[1].rstrip(".").split(", ") for label in labels]
    assert orders[0] == orders[1][::-1]


def test_what_if_answers_and_follows_the_slider(visit):
    page = visit()
    fitted(page, "A drug")
    text = page.locator("#response-text")
    assert "receptor is moved by −" in text.inner_text()
    assert "95 %" in text.inner_text()
    page.locator("#change").focus()
    page.keyboard.press("Home")
    assert "receptor is moved by −" not in text.inner_text()
    page.locator("#outcome").select_option("target")
    assert "target is moved by" in text.inner_text()


def test_a_hostile_name_and_content_do_nothing(visit, client):
    table = EXAMPLES["recovering"]()
    table = table.rename(
        columns={"pulse": HOSTILE, "patient": "patient</script><script>alert(2)//"}
    )
    table["visit"] = table["visit"].str.replace("visit", HOSTILE)
    page = visit()
    drop(page, f"../../{HOSTILE}\"';.csv", table.to_csv(index=False).encode())
    page.locator("#table").wait_for()
    assert HOSTILE in page.locator("#columns").inner_text()
    page.locator("#diagnose").click()
    page.locator("#diagnosis").wait_for()
    page.locator("#fit").click()
    page.locator("#result").wait_for()
    assert HOSTILE in page.locator("#legend").inner_text()
    figures = page.frame_locator("#report")
    figures.locator("#drift-map svg").wait_for()
    assert figures.locator("#drift-map svg").count() == 1
    assert page.locator("main img, main script").count() == 0
    assert figures.locator("main img, main script").count() == 0
    assert all(name.startswith("upload-") or name in page.content() for name in kept(client))


def test_what_is_no_table_is_said(visit):
    page = visit()
    drop(page, "holiday.jpg", b"\xff\xd8\xff")
    page.locator("#trouble").wait_for()
    assert ".csv" in page.locator("#trouble-text").inner_text()
    drop(page, "broken.csv", b"a,b\n1,2\n3")
    page.locator("#table").wait_for()
    assert page.locator("#fit").is_disabled()
    assert "Which column says whose row it is?" in page.locator("#table-lead").inner_text()


@pytest.fixture
def large(tmp_path):
    """200 MB of rows, written in a second."""
    block = io.StringIO()
    EXAMPLES["recovering"]().to_csv(block, index=False)
    header, rows = block.getvalue().split("\n", 1)
    rows = rows.encode() * 50
    path = tmp_path / "large.csv"
    with path.open("wb") as out:
        out.write(header.encode() + b"\n")
        while out.tell() < 200 << 20:
            out.write(rows)
    return path


def test_a_file_of_200_mb_shows_progress_and_can_be_stopped(visit, client, large):
    page = visit()
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 20 << 20}
    network.send("Network.emulateNetworkConditions", slow)  # else it may be over before it is seen
    seen = """() => { const bar = document.getElementById("bar");
        return !document.getElementById("working").hidden && bar.hasAttribute("value") && bar.value > 0; }"""
    page.locator("#file").set_input_files(large)
    page.wait_for_function(seen, polling=10)
    assert page.locator("#doing").inner_text() == "Taking in the file"
    page.locator("#stop").click()
    page.locator("#stopped").wait_for()
    page.locator("#drop").wait_for()
    deadline = time.monotonic() + 10
    while kept(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kept(client) == []
    network.send("Network.emulateNetworkConditions", slow | {"uploadThroughput": -1})
    with client.held():
        page.locator("#file").set_input_files(large)
        page.locator("#doing").filter(has_text="Reading the table").wait_for()
    page.locator("#elapsed").filter(has_text="so far").wait_for()
    page.locator("#stop").click()
    page.locator("#drop").wait_for()
    assert "deleted" in page.locator("#stopped-text").inner_text()
    assert kept(client) == []


def test_keys_alone_are_enough_and_everything_has_a_name(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "At rest":
            break
    page.keyboard.press("Enter")
    page.locator("#table").wait_for()
    assert (
        page.evaluate("document.activeElement.id") == "table-title"
    )  # focus goes where things happen
    page.locator("#fit").focus()
    page.keyboard.press("Enter")
    page.locator("#result").wait_for()
    assert page.evaluate("document.activeElement.id") == "result-title"
    assert "Done" in page.locator("#said").text_content()
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, select, input, a, iframe, svg[role=img], progress")].filter((e) =>
            !(e.textContent.trim() && e.tagName !== "SELECT") && !e.labels?.length && !e.ariaLabel && !e.title
            && !e.getAttribute("aria-labelledby")).map((e) => e.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_in_light_and_dark(visit, scheme):
    page = visit(width=360, color_scheme=scheme)
    fitted(page, "A drug")
    page.locator("#roles summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#moving svg").bounding_box()["width"] <= 360
    small = page.evaluate(
        "[...document.querySelectorAll('button')].filter((b) => b.offsetHeight && b.offsetHeight < 40).length"
    )
    assert small == 0
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, paper[4:-1].split(","))) / 3
    assert (light > 200) == (scheme == "light")


def test_greyed_buttons_say_why(visit):
    page = visit()
    page.get_by_role("button", name="At rest").click()
    page.locator("#fit:enabled").wait_for()
    assert page.locator("#why").inner_text() == ""
    subject = page.get_by_label("What patient is")
    subject.select_option("none")
    assert page.locator("#fit").is_disabled()
    assert "which column is the subject" in page.locator("#why").inner_text()
    assert "which column is the subject" in page.locator("#fit").get_attribute("title")
    subject.select_option("subject")
    variables = page.locator("#columns tr.variable select")
    while variables.count():
        variables.first.select_option("none")
    assert "which columns are variables" in page.locator("#why").inner_text()
    assert page.locator("#diagnose").get_attribute("aria-describedby") == "why"


def test_two_browsers_see_one_session_and_neither_spoils_the_others_results(browser, client):
    client.post("/do/forget")
    pages = [browser.new_context(reduced_motion="reduce").new_page() for _ in range(2)]
    for page in pages:
        page.set_default_timeout(LONG)
        page.goto(client.link)
    one, two = pages
    one.get_by_role("button", name="At rest").click()
    for page in pages:
        page.locator("#fit:enabled").wait_for()
    with client.held():
        one.locator("#fit").click()
        two.locator("#working").wait_for()  # it is seen there too
        # clicked before it was seen
        assert two.evaluate("post('do/fit', { roles: chosen() })") is False
        assert "Something is being computed" in two.locator("#trouble").inner_text()
        assert two.locator("#forget").is_disabled()
        assert "being computed" in two.locator("#why").text_content()
    for page in pages:
        page.locator("#result").wait_for()
        assert page.locator("#files a").count() == 8
    assert client.get("/files/ordered.csv")[0] == 200
    two.locator("#forget").click()
    one.locator("#drop").wait_for()
    assert one.locator("#result").is_hidden()
    assert kept(client) == []
    for page in pages:
        page.context.close()


def test_a_sheet_and_the_steps_of_the_forecast_are_chosen(visit, client):
    file = io.BytesIO()
    with pd.ExcelWriter(file) as book:
        EXAMPLES["resting"]().to_excel(book, sheet_name="Visits", index=False)
        EXAMPLES["resting"]().head(200).to_excel(book, sheet_name=HOSTILE[:28].replace("/", ""), index=False)  # fmt: skip
    page = visit()
    drop(page, "study.xlsx", file.getvalue())
    page.locator("#table").wait_for()
    assert "800 rows" in page.locator("#table-lead").inner_text()
    page.locator("#sheet").select_option(index=1)
    page.get_by_text("200 rows").wait_for()
    assert page.locator("#sheet").input_value() == HOSTILE[:28]
    page.locator("#steps").fill("4")
    page.locator("#fit:enabled").click()
    page.locator("#result").wait_for()
    assert "next 4 observations" in page.locator("#files").inner_text()
    figures = page.frame_locator("#report")
    figures.locator("#forecast-plot svg").wait_for()
    assert figures.locator("#forecast-plot svg").count() == 1
    assert "The next 4 observations" in figures.locator("#forecast").inner_text()
