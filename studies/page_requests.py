"""Requests to the page that no browser sends: wrong tokens, hosts and methods, bodies that are no JSON or of odd shapes, damaged files.

Each round sends one request, drawn at random, to a running `retrace app`, while tables come and go. Required: an answer within a
minute, never a status of 500 or more (507, a full disk, aside), nothing but 403 without the token, no traceback on stderr, and a
page that still fits a table in the end.

    python studies/page_requests.py --seeds 20000:20100
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import KINDS, damage, odd_cells, table, write

PATHS = (
    "/", "/events", "/upload", "/example", "/do/fit", "/do/diagnose", "/do/sheet", "/do/stop", "/do/forget", "/do/enough",
    "/do/__class__", "/files/ordered.csv", "/files/report.html", "/files/..%2f..%2fetc%2fpasswd", "/app.js", "/app.js/..", "/%00",
)  # fmt: skip
ODD = (
    None, True, -1, 0, 1.5, 1e308, "", "x", "\x00", "<b>", "a" * 10_000, [], [[]], {}, {"a": {"b": []}}, ["subject"] * 50, "NaN",
)  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A running page."""

    port: int
    token: str

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        """The status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            if path != "/events":  # which never ends
                answer.read()
            return answer.status
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> int:
        """A lawful request."""
        return self.ask("POST", path, json.dumps(body).encode(), {"X-Retrace-Token": self.token})

    def state(self) -> dict[str, Any]:
        """What the page shows."""
        link = f"http://127.0.0.1:{self.port}/events?token={self.token}"
        with urllib.request.urlopen(link, timeout=60) as events:
            found: dict[str, Any] = json.loads(events.readline().removeprefix(b"data:"))
        return found


def odd_body(path: str, rng: np.random.Generator, folder: Path) -> tuple[bytes, dict[str, str]]:
    """What is sent, and headers that go with it."""
    if path == "/upload":
        kind = KINDS[int(rng.integers(len(KINDS)))]
        kind = "csv" if kind in ("zarr", "array") else kind
        frame = table(rng)
        file = write(odd_cells(frame, rng) if kind == "csv" else frame, kind, folder, rng)
        damage(file, rng)
        name = ["t." + kind, "../t." + kind, "%00." + kind, "t.exe", "", "a" * 5000 + ".csv"]
        return file.read_bytes(), {"X-File-Name": name[int(rng.integers(6))]}
    pick = lambda: ODD[int(rng.integers(len(ODD)))]  # noqa: E731
    roles = {
        key: pick() for key in ("subject", "slice", "time", "group", "variables", "covariates")
    }
    if rng.random() < 0.5:
        roles |= {"subject": "subject", "slice": "slice", "variables": [], "covariates": []}
    options = {key: pick() for key in ("dt", "steps", "first", "last", "common_shocks", "missing_covariates")}  # fmt: skip
    body = {"roles": roles, "options": options, "name": pick(), "sheet": pick()}
    text = json.dumps(body if rng.random() < 0.8 else pick()).encode()
    if rng.random() < 0.2:
        text = text[: int(rng.integers(len(text) + 1))] + rng.bytes(3)
    return text, {}


def one(page: Page, seed: int, folder: Path) -> tuple[str, int, list[str]]:
    """A request, its status, and what was wrong."""
    rng = np.random.default_rng(seed)
    path = PATHS[int(rng.integers(len(PATHS)))]
    method = "POST" if path.startswith(("/do/", "/upload", "/example")) else "GET"
    if rng.random() < 0.2:
        method = str(rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]))
    body, headers = odd_body(path, rng, folder)
    let_in = rng.random() < 0.8
    headers |= {"X-Retrace-Token": page.token if let_in else page.token[:-1]}
    if rng.random() < 0.1:
        headers["Host"], let_in = "evil.example", False
    if rng.random() < 0.1:
        headers["Origin"], let_in = "null", False
    status = page.ask(method, path, body, headers)
    wrong = []
    if status >= 500 and status != 507:
        wrong.append(f"status {status}")
    if not let_in and status != 403 and not path.startswith("/app.js"):
        wrong.append(f"let in with {status}")
    return f"{method} {path}", status, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seeds", default="20000:20100")
    begin, end = map(int, parser.parse_args().seeds.split(":"))
    app = subprocess.Popen([sys.executable, "-m", "retrace_sde", "app", "--no-browser"], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)  # fmt: skip
    assert app.stdout is not None
    link = app.stdout.readline().split()[-1]
    page = Page(int(link.split(":")[2].split("/")[0]), link.split("token=")[1])
    found, slowest, bad = Counter[int](), 0.0, 0
    try:
        for seed in range(begin, end):
            with tempfile.TemporaryDirectory(prefix="requests-") as folder:
                begun = time.perf_counter()
                what, status, wrong = one(page, seed, Path(folder))
                slowest = max(slowest, time.perf_counter() - begun)
            found[status] += 1
            if wrong:
                bad += 1
                print(f"seed {seed}: {what}: {'; '.join(wrong)}", flush=True)
        page.post("/do/forget", {})
        page.post("/example", {"name": "recovering"})
        until = time.monotonic() + 120
        while (state := page.state())["stage"] == "reading" and time.monotonic() < until:
            time.sleep(0.2)
        page.post("/do/fit", {"roles": state["roles"]})
        while (state := page.state())["stage"] == "fitting" and time.monotonic() < until:
            time.sleep(0.2)
        if state["stage"] != "done":
            bad += 1
            print(f"the page does not fit any more: {state.get('error')}")
    finally:
        app.terminate()
        _, said = app.communicate(timeout=60)
    if said:
        bad += 1
        print(f"stderr: {said[-1000:]}")
    print(f"{end - begin} requests, statuses {dict(found)}; {bad} wrong; slowest {slowest:.1f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
