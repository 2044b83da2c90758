"""The server without a browser: who is let in, what is kept, what is deleted."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from served import TOKEN, site

import retrace_sde as rt
from retrace_sde.app.examples import EXAMPLES
from retrace_sde.app.work import FILES, script
from retrace_sde.cli.app import _private_page


@pytest.fixture(scope="module")
def client():
    with site() as found:
        yield found


def kept(client):
    return sorted(path.name for path in client.session.folder.iterdir())


@pytest.mark.parametrize("path", ["/", "/events", "/files/ordered.csv", "/upload", "/nothing"])
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"])
def test_nothing_is_said_without_the_token(client, path, token):
    status, _, text = client.get(path, quote(token))
    assert status == 403
    assert b"retrace app" in text


def test_the_token_in_the_link_opens_the_page_but_changes_nothing(client):
    assert client.get("/")[0] == 200
    assert client.ask("POST", f"/do/forget?token={TOKEN}")[0] == 403
    assert client.post("/do/forget")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}"]
)
def test_another_name_for_this_server_is_refused(client, host):
    """DNS rebinding: a page of evil.example, whose name now points here."""
    assert client.get("/", Host=host.format(port=client.port))[0] == 403
    assert client.get("/", Host=f"localhost:{client.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}"])
def test_other_sites_may_not_ask(client, origin):
    origin = origin.format(port=client.port)
    assert client.post("/do/forget", Origin=origin)[0] == 403
    assert client.get("/", Origin=origin)[0] == 403
    assert client.post("/do/forget", Origin=f"http://127.0.0.1:{client.port}")[0] == 200


def test_every_answer_closes_the_door(client):
    for answer in (client.get("/"), client.get("/", "wrong"), client.get("/app.js", "")):
        headers = answer[1]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["access-control-allow-origin"] is None


def test_it_listens_on_this_machine_only(client):
    try:
        here = socket.gethostbyname(socket.gethostname())
    except OSError:  # a name that nobody knows
        here = "127.0.0.1"
    if here.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(OSError), socket.create_connection((here, client.port), timeout=2):
        pass


@pytest.mark.parametrize(
    "path",
    ["/files/..%2f..%2fetc%2fpasswd", "/files/../app.js", "/files/upload.csv", "/files/", "/files/%00",
     "/app.html", "/static/app.js", "//etc/passwd"],
)  # fmt: skip
def test_only_results_are_served_by_name(client, path):
    assert client.get(path)[0] == 404


def test_large_files_are_refused_and_not_kept(client):
    status, _, text = client.post("/upload", b"x" * (1 << 20) + b"y", X_File_Name="a.csv")
    assert status == 413
    assert b"--max-upload" in text
    assert kept(client) == []


def test_a_file_that_hides_its_length_is_cut_off_at_the_limit(client):
    def chunks():
        for _ in range(40):
            yield b"x" * (1 << 16)

    with suppress(BrokenPipeError, ConnectionResetError):  # it may not want the rest
        answer = client.post("/upload", chunks(), X_File_Name="a.csv")
        assert answer[0] == 413
    assert kept(client) == []


def test_a_broken_upload_is_deleted(client):
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(
            f"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nX-Retrace-Token: {TOKEN}\r\n"
            "X-File-Name: a.csv\r\nContent-Length: 1000\r\n\r\nhalf".encode()
        )
        wait(lambda: kept(client) != [])
    wait(lambda: kept(client) == [])


def wait(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def test_other_kinds_of_files_are_refused(client):
    for name in ("a.exe", "a", "a.zarr", "../../a.pkl", "csv"):
        assert client.post("/upload", b"x", X_File_Name=name)[0] == 415
    assert kept(client) == []


def test_a_name_with_a_path_is_only_shown_and_the_table_is_deleted_in_the_end(client):
    table = EXAMPLES["resting"]().to_csv(index=False).encode()
    status, _, _ = client.post("/upload", table, X_File_Name="..%2F..%2Fetc%2F%3Cb%3Ename.csv")
    assert status == 200
    state = client.until("table")
    assert state["table"]["name"] == "<b>name.csv"
    (name,) = kept(client)
    assert name.startswith("upload-")
    assert client.post("/do/forget")[0] == 200
    assert kept(client) == []
    assert client.session.state == {"stage": "empty"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/do/fit", b"not json"), ("/do/fit", b"[1]"), ("/do/fit", b'{"roles": {"subject": 3}}'), ("/example", b'{"name": "x"}'),
     ("/do/diagnose", b"{}"), ("/do/fit", b'{"options": {"dt": "much"}}'), ("/do/fit", b"1" * (2 << 20))],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_a_sentence(client, path, body):
    status, _, text = client.post(path, body)
    assert status == 400
    assert b"Traceback" not in text
    assert client.post("/do/anything")[0] == 404


def test_a_file_that_is_no_table_is_said_in_the_users_words(client):
    client.post("/upload", b"\0\1\2", X_File_Name="holiday.parquet")
    state = client.until("failed")
    assert "holiday.parquet" in state["error"] or "Holiday.parquet" in state["error"]
    assert str(client.session.folder) not in state["error"]
    assert kept(client) == []


def test_a_fit_its_files_and_the_python_that_does_the_same(client, tmp_path):
    table = EXAMPLES["resting"]()
    client.post("/upload", table.to_csv(index=False).encode(), X_File_Name="resting.csv")
    roles = client.until("table")["roles"]
    assert roles["subject"] == "patient"
    assert roles["slice"] == "visit"
    assert client.post("/do/fit", {"roles": roles, "options": {"first": "visit C"}})[0] == 200
    busy = client.post("/do/diagnose", {"roles": roles})
    assert busy[0] == 400
    assert b"stop it first" in busy[2]
    state = client.until("done", "failed")
    assert state["error"] is None
    found = {name: client.get(f"/files/{name}") for name in FILES}
    for name, (status, headers, _) in found.items():
        assert status == 200
        assert headers["content-disposition"] == f'attachment; filename="{name}"'
        assert "sandbox" in headers["content-security-policy"]
    (tmp_path / "resting.csv").write_bytes(table.to_csv(index=False).encode())
    (tmp_path / "retrace_fit.py").write_bytes(found["retrace_fit.py"][2])
    done = subprocess.run([sys.executable, "retrace_fit.py"], cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ordered.csv").read_bytes() == found["ordered.csv"][2]
    assert (tmp_path / "forecast.csv").read_bytes() == found["forecast.csv"][2]
    assert set(pd.read_csv(tmp_path / "forecast.csv")["step"]) == {1, 2, 3}
    result = tmp_path / "served.npz"
    result.write_bytes(found["result.npz"][2])
    np.testing.assert_array_equal(
        rt.ReTraceResult.load(result).order, rt.ReTraceResult.load(tmp_path / "result.npz").order
    )
    assert (tmp_path / "ordered.csv").exists()
    assert "p07" in found["report.html"][2].decode()
    assert "p07" not in found["share.html"][2].decode()
    client.post("/do/forget")
    assert kept(client) == []
    assert client.get("/files/ordered.csv")[0] == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/do/fit", b'{"a":' * 3000),
        ("/example", b'{"name": ["resting"]}'),
        ("/do/fit", b'{"options": {"steps": "' + b"9" * 5000 + b'"}}'),
    ],
)
def test_odd_requests_are_refused_and_not_failed_on(client, path, body):
    assert client.post(path, body)[0] == 400


def workbook():
    """Notes, then a table, then a sheet that is none."""
    file = io.BytesIO()
    with pd.ExcelWriter(file) as book:
        pd.DataFrame({"about": ["exported in May"]}).to_excel(book, sheet_name="Info", index=False)
        EXAMPLES["resting"]().to_excel(book, sheet_name="Visits", index=False)
        EXAMPLES["resting"]().head(80).to_excel(book, sheet_name="Pilot", index=False)
        pd.DataFrame().to_excel(book, sheet_name="Empty", index=False)
    return file.getvalue()


def test_sheets_of_a_workbook_are_chosen(client):
    client.post("/upload", workbook(), X_File_Name="study.xlsx")
    state = client.until("table", "failed")
    names = ["Info", "Visits", "Pilot", "Empty"]
    assert state["table"]["sheets"] == {"names": names, "read": "Visits"}
    assert state["table"]["rows"] == 800
    client.post("/do/sheet", {"sheet": "Pilot"})
    assert client.until("table")["table"]["rows"] == 80
    client.post("/do/sheet", {"sheet": "Empty"})  # the one before stays
    state = client.until("table", "failed")
    assert "'Empty' is empty" in state["error"]
    assert state["table"]["sheets"]["read"] == "Pilot"
    assert kept(client)
    client.post("/do/diagnose", {"roles": state["roles"]})
    assert client.until("diagnosed", "failed")["diagnosis"]["observations"] == 80
    assert "sheet='Pilot'" in script("study.xlsx", state["roles"], {}, sheet="Pilot")
    client.post("/do/forget")
    assert kept(client) == []


def test_a_table_is_written_as_it_was_read_and_forecast_as_far_as_asked(client):
    text = EXAMPLES["resting"]().head(200).to_csv(index=False, sep=";", decimal=",")
    client.post("/upload", text.encode(), X_File_Name="resting.csv")
    state = client.until("table")
    assert "decimal commas" in state["table"]["notes"][0]
    for wrong in (0, 101, "x", 1.5):
        status, _, said = client.post("/do/fit", {"roles": state["roles"], "options": {"steps": wrong}})  # fmt: skip
        assert status == 400
        assert b"whole number from 1 to 100" in said
    client.post("/do/fit", {"roles": state["roles"], "options": {"steps": "5", "first": "visit C"}})
    state = client.until("done", "failed")
    assert state["result"]["steps"] == 5
    ahead = pd.read_csv(io.BytesIO(client.get("/files/forecast.csv")[2]), sep=";", decimal=",")
    assert set(ahead["step"]) == {1, 2, 3, 4, 5}
    assert ahead["mean"].dtype == float
    python = client.get("/files/retrace_fit.py")[2].decode()
    assert "forecast(5).to_csv(\"forecast.csv\", index=False, sep=';', decimal=',')" in python
    report = client.get("/files/report.html")[2].decode()
    assert "The next 5 observations" in report
    client.post("/do/forget")


def test_a_fit_can_be_stopped_and_the_table_stays(client):
    client.post("/example", {"name": "recovering"})
    roles = client.until("table")["roles"]
    client.post("/do/fit", {"roles": roles})
    process = client.session._process
    client.post("/do/stop")
    assert client.session.state["stage"] == "table"
    assert client.session.state["stopped"]
    assert not process.is_alive()
    client.post("/do/diagnose", {"roles": roles})
    assert client.until("diagnosed")["diagnosis"]["usable"]
    client.post("/do/forget")


def test_the_end_leaves_nothing_behind_and_a_file_given_stays(tmp_path):
    path = tmp_path / "mine.csv"
    EXAMPLES["resting"]().to_csv(path, index=False)
    with site(file=path) as client:
        assert client.until("table")["table"]["rows"] == 800
        folder, process = client.session.folder, client.session._process
        assert (folder.stat().st_mode & 0o777) == 0o700
    assert not folder.exists()
    assert not process.is_alive()
    assert len(pd.read_csv(path)) == 800


def test_a_full_disk_is_said_and_leaves_nothing(client, monkeypatch):
    """Whatever is written to /dev/full fails as on a full disk."""
    link = client.session.folder / "upload-full.csv"
    link.symlink_to("/dev/full")
    monkeypatch.setattr(client.session, "new_upload", lambda suffix: link)
    status, _, said = client.post("/upload", b"a,b\n" * 100_000, X_File_Name="t.csv")
    assert status == 507
    assert b"cannot be stored: No space left on device" in said
    assert kept(client) == []


def test_a_second_fit_leaves_the_results_of_the_first(client):
    client.post("/example", {"name": "recovering"})
    roles = client.until("table")["roles"]
    client.post("/do/fit", {"roles": roles})
    written = client.session.folder / "ordered.csv"
    written.write_text("half")
    status, _, said = client.post("/do/fit", {"roles": roles})
    assert status == 400
    assert b"stop it first" in said
    assert written.exists()
    client.post("/do/stop")
    client.post("/do/forget")


@pytest.mark.parametrize("what", ["stop", "forget"])
def test_a_process_that_is_starting_can_be_ended(client, what):
    client.post("/do/forget")
    if client.session._process is not None:
        client.session._process.kill()
        client.session._process.join()
    with ThreadPoolExecutor() as pool:
        begun = pool.submit(client.post, "/example", {"name": "resting"})
        wait(lambda: client.session.busy or begun.done())
        assert client.post(f"/do/{what}")[0] == 200
        assert begun.result()[0] == 200
    assert client.session.state["stage"] in ("empty", "table")
    client.post("/example", {"name": "resting"})
    client.until("table")
    client.post("/do/forget")


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
def test_the_browser_is_given_a_file_that_only_its_user_can_read():
    with _private_page("http://127.0.0.1:1/?token=secret") as page:
        assert page.stat().st_mode & 0o777 == 0o600
        assert page.parent.stat().st_mode & 0o777 == 0o700
        assert "token=secret" in page.read_text()
        assert "secret" not in page.as_uri()
    assert not page.exists()
