"""`retrace app` as a command: the link it prints, how it ends, and what it says where something is missing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request

from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.io import formats


def test_the_link_works_and_ctrl_c_ends_it(heeding):
    command = [sys.executable, "-m", "retrace_sde", "app", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding
    ) as app:
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}", app.stdout.readline())[0]
        with urllib.request.urlopen(link, timeout=60) as answer:
            assert b"ReTrace" in answer.read()
        with urllib.request.urlopen(link.replace("/?", "/events?"), timeout=60) as watching:
            assert b'"stage": "empty"' in watching.readline()
            app.send_signal(signal.SIGINT)
            _, said = app.communicate(timeout=60)
    assert said == ""
    assert app.returncode == 0


def test_a_missing_library_or_file_is_one_line(monkeypatch):
    said = CliRunner().invoke(main, ["app", "nothing.csv", "--no-browser"])
    assert said.exit_code == 2
    assert "nothing.csv does not exist" in said.output

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(formats, "import_module", missing)
    said = CliRunner().invoke(main, ["app", "--no-browser"])
    assert said.exit_code == 2
    assert "pip install 'retrace-sde[app]'" in said.output
