"""`retrace app` as a command: the link it prints, how it ends, and what it says where something is missing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.io import formats


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 0), ("SIGHUP", 129)])
def test_the_link_works_and_a_signal_ends_it_without_a_word(name, code, heeding):
    """Ctrl-C and a closed window reach every process of a terminal: the worker, still starting, must be silent too."""
    command = [sys.executable, "-m", "retrace_sde", "app", "--no-browser"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeding,
        start_new_session=True,
    ) as app:
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}", app.stdout.readline())[0]
        with urllib.request.urlopen(link, timeout=60) as answer:
            assert b"ReTrace" in answer.read()
        with urllib.request.urlopen(link.replace("/?", "/events?"), timeout=60) as watching:
            assert b'"stage": "empty"' in watching.readline()
            os.killpg(app.pid, getattr(signal, name))
            _, said = app.communicate(timeout=60)
    assert said == ""
    assert app.returncode == code


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
