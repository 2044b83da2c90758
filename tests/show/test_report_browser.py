"""The report in a real browser: Debian's Chromium, headless, driven by Playwright."""

from __future__ import annotations

from dataclasses import replace

import pytest

import retrace_sde as rt

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'></script><img src=x onerror=alert(2)>",
    "<!-- & {{ 7*7 }}",
)


def shuffled(n, T, d, *, permutation, x0=0.1):
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=0)
    X = sde.simulate(n, T, dt=0.01, x0=x0, random_state=1)
    return rt.simulate.shuffle(X, permutation=permutation, random_state=2)[0]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Algorithm 1 (whose rounds differ), own orders without a direction, and one variable with gaps."""
    folder = tmp_path_factory.mktemp("pages")
    panel = rt.Panel.from_array(
        shuffled(40, 15, 3, permutation="shared"),
        names=HOSTILE, ids=[f"<img src=x onerror=alert({j})>" for j in range(40)], dt=0.01,
    )  # fmt: skip
    model = rt.ReTrace(order="score", drift="linear", n_jobs=1).fit(panel)
    model.sample_orders(draws=200)
    X = shuffled(20, 10, 4, permutation="independent", x0="stationary")
    own = rt.ReTrace(permutation="independent", estimator="mle", dt=0.01, random_state=0, n_jobs=1)
    own.fit(X).sample_orders(draws=100)
    assert not own.direction_.identified
    irregular = rt.Panel.from_array(
        shuffled(30, 24, 1, permutation="shared")[:, [0, 1, 2, 4, 7, 11, 16, 23]],
        names=["VOLUME_MM3"], dt=0.03,
    )  # fmt: skip
    spaced = rt.ReTrace(dt=0.03, spacing="estimate", drift="affine", n_jobs=1)
    with pytest.warns(rt.ReTraceWarning, match="folds onto itself"):
        spaced.fit(irregular)
    named = replace(irregular, slices=[f"V{k}" for k in range(8)])
    return {
        "named": rt.write_report(spaced, named, folder / "named.html").as_uri(),
        "gaps": rt.write_report(spaced, irregular, folder / "gaps.html").as_uri(),
        "shared": rt.write_report(model, panel, folder / "shared.html", title=HOSTILE[0]).as_uri(),
        "own": rt.write_report(own, X, folder / "own.html").as_uri(),
        "sent": rt.write_report(own, X, folder / "sent.html", share=True).as_uri(),
    }


@pytest.fixture
def visit(browser, pages):
    """Open a page; at the end nothing was printed, thrown, asked of the network or of the reader."""
    troubles, opened = [], []

    def go(name="shared", *, width=1200, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        opened.append(page)
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "dialog", lambda dialog: (troubles.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        page.on(
            "request",
            lambda request: request.url == pages[name] or troubles.append(f"request {request.url}"),
        )
        page.goto(pages[name])
        return page

    yield go
    for page in opened:
        page.close()
    assert troubles == []


def picture(page, id):
    return page.locator(f"#{id} svg").inner_html()


@pytest.mark.parametrize("name", ["shared", "own", "gaps"])
def test_every_figure_is_drawn(visit, name):
    page = visit(name)
    plots = page.locator(".plot")
    assert plots.count() >= 8
    for k in range(plots.count()):
        figure = plots.nth(k).locator("svg")
        assert figure.get_attribute("aria-label")
        assert figure.bounding_box()["height"] > 100
        assert figure.locator("path, circle").count() >= 1
    assert "NaN" not in page.locator("main").inner_html()


def test_a_report_to_be_sent_draws_what_it_has(visit):
    page = visit("sent")
    assert page.locator("#order, #paths, #certainty").count() == 0
    assert page.locator(".plot svg path").count() > 20


def test_slices_are_called_by_their_short_labels(visit):
    text = visit("named").locator("#cost-after svg").text_content()
    assert all(f"V{k}" in text for k in range(8))
    assert "slice 1" not in visit("gaps").locator("#cost-after svg").text_content()


def test_the_slider_walks_through_the_rounds(visit):
    page = visit()
    slider = page.locator("#step")
    assert page.locator("#step-text").inner_text().endswith("the result")
    last, stored = picture(page, "cost-after"), picture(page, "cost-before")
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator("#step-text").inner_text() == "as stored"
    assert picture(page, "cost-after") == stored != last
    page.keyboard.press("ArrowRight")
    assert page.locator("#step-text").inner_text().startswith("round 1")
    assert "nats" in page.locator("#step-detail").inner_text()
    page.keyboard.press("End")
    assert picture(page, "cost-after") == last


def test_selectors_change_the_pictures(visit):
    page = visit("own")
    before = {
        each: picture(page, each) for each in ("cost-after", "paths-after", "positions", "graph")
    }
    page.locator("#trajectory").select_option(index=2)
    assert page.locator("#unit").input_value() == "2"
    for each in ("cost-after", "paths-after", "positions"):
        assert picture(page, each) != before[each]
    lines = picture(page, "paths-before")
    page.locator("#variable").select_option(index=1)
    assert picture(page, "paths-before") != lines
    assert picture(page, "graph") == before["graph"]
    page.locator("[data-filter=table-drift]").fill("x3")
    rows = page.locator("#table-drift tbody tr:visible")
    assert 0 < rows.count() <= 7
    assert all("x3" in text for text in rows.all_inner_texts())


def test_hostile_names_stay_text(visit):
    page = visit()
    assert page.title() == HOSTILE[0]
    assert page.locator("h1").inner_text() == HOSTILE[0]
    assert page.locator("#variable option").all_inner_texts() == list(HOSTILE)
    assert page.locator("main script, main img, svg script, svg img").count() == 0
    assert "{{ 7*7 }}" in page.locator("#table-drift").inner_text()
    page.locator("#drift-map svg").hover()
    assert page.locator("#tip img, #tip script").count() == 0


def test_tooltips_by_pointer_and_by_key(visit):
    page = visit("own")
    tip = page.locator("#tip")
    assert tip.is_hidden()
    page.locator("#drift-map svg").hover()
    assert "95 % interval" in tip.inner_text()
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    page.locator("#eigen-plot svg").focus()
    page.keyboard.press("ArrowRight")
    assert "half-life" in tip.inner_text() or "doubles" in tip.inner_text()
    assert page.locator("#said").text_content() == tip.text_content()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", ["shared", "own", "gaps"])
def test_no_label_is_cut_off(visit, name, width):
    """A row called VOLUME_MM3 was read as OLUME_MM3: letters are not all as wide as the mean one."""
    cut = """[...document.querySelectorAll(".plot svg")].flatMap((svg) => {
        const box = svg.getBoundingClientRect();
        const out = (r) => r.width && (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1);
        return [...svg.querySelectorAll("text")].filter((each) => out(each.getBoundingClientRect()))
            .map((each) => `${svg.parentElement.id}: ${each.textContent}`);
    })"""
    assert visit(name, width=width).evaluate(cut) == []


@pytest.mark.parametrize("name", ["shared", "own", "gaps"])
def test_a_phone_needs_no_sideways_scrolling(visit, name):
    page = visit(name, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#cost-after svg").bounding_box()["width"] <= 360


def test_dark_and_print_have_their_own_colours(visit):
    page = visit(color_scheme="dark")
    body = "getComputedStyle(document.body)"

    def light(colour):
        return sum(map(int, colour[4:-1].split(","))) / 3

    assert light(page.evaluate(f"{body}.backgroundColor")) < 60
    assert light(page.evaluate(f"{body}.color")) > 200
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(f"{body}.backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(f"{body}.color") == "rgb(0, 0, 0)"
    assert page.locator(".controls").first.is_hidden()
    assert len(page.pdf(format="A4")) > 10_000


def test_residuals_and_effects_follow_their_selectors(visit):
    page = visit()
    figures = ("residual-qq", "residual-fan", "residual-position", "residual-auto")
    before = {each: picture(page, each) for each in figures}
    page.locator("#residual-variable").select_option(index=1)
    for each in figures:
        assert picture(page, each) != before[each]
    assert page.locator("#residuals .checks li").count() == 7
    rates = picture(page, "graph")
    page.locator("#graph-kind").select_option(index=1)
    assert picture(page, "graph") != rates
    page.locator("#graph-kind").select_option(index=0)
    assert picture(page, "graph") == rates


def test_a_value_that_is_probably_wrong_sets_no_scale(browser, tmp_path):
    """It is circled at the edge, and the lines of the others keep their shape."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(30, 8, 0.1, x0=2.0, random_state=1)
    X[4, 3, 0] *= 1000
    model = rt.ReTrace(dt=0.1, random_state=0, n_jobs=1)
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        model.fit(X)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(rt.write_report(model, X, tmp_path / "report.html").as_uri())
    page.locator("#paths-after svg path.chosen").wait_for()
    box = page.locator("#paths-after svg").bounding_box()
    lines = page.locator("#paths-after svg path.path").evaluate_all(
        "each => each.map(line => line.getBBox().height)"
    )
    (circle,) = page.locator("#paths-after svg circle.suspect").all()
    assert sum(height > 20 for height in lines) > 20
    at = circle.bounding_box()["y"] - box["y"]
    assert 0 <= at <= box["height"]
    page.close()
