"""Signals at every moment of a command: the right exit code, no traceback, and results whole or not at all.

A command is run once undisturbed, and its CPU time is measured. Then it is run again and gets a signal when it has used a share of
that time: while modules are imported, while it reads, works and writes. Required:

- an exit code of 0 (it was done, or wrote what it had) or 128 + the signal, and no traceback or warning on stderr;
- every file of its results, each readable, or none; no temporary file, also not in the system's folder for them;
- no process left behind.

SIGKILL cannot be answered: then nothing may lie where results are expected, and the next run must succeed. SIGSTOP and
SIGCONT, SIGPIPE and SIGWINCH must change nothing.

    python studies/signals.py [--seed 0] [--only fit,app]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SECONDS = 300
"""After so long a command has hung."""

HARMLESS = ("SIGPIPE", "SIGWINCH", "SIGSTOP")
"""Signals after which a command goes on; SIGSTOP is followed by SIGCONT."""

OF_TERMINALS = ("SIGINT", "SIGHUP", "SIGSTOP")
"""Ctrl-C, a window that is closed, Ctrl-Z."""

COLUMNS = ["t.csv", "--subject", "id", "--slice", "visit", "--variables", "a,b"]
COMMANDS = {
    "fit": (["fit", *COLUMNS, "--covariates", "dose", "--out", "out"], ("ordered.csv", "parameters.json", "report.html", "result.npz")),
    "effect": (["effect", *COLUMNS, "--treatment", "dose", "--draws", "50", "--out", "out/effect.csv"], ("effect.csv",)),
    "forecast": (["forecast", *COLUMNS, "--covariates", "dose", "--steps", "2", "--out", "out/next.xlsx"], ("next.xlsx",)),
    "audit": (["audit", "t.csv", "--subject", "id", "--time", "day", "--variables", "a,b", "--out", "out/audit.csv"], ("audit.csv",)),
    "simulate": (["simulate", "--subjects", "4000", "--slices", "30", "--out", "out/made.csv"], ("made.csv", "made.csv.truth.json")),
}  # fmt: skip
"""What is typed, and the files that it writes into the folder `out`."""

PLAN: dict[str, Any] = {
    "fit": [("SIGINT", (0.1, 0.4, 0.7, 0.95)), ("SIGTERM", (0.1, 0.4, 0.7, 0.95)), ("SIGHUP", (0.4, 0.95)),
            ("SIGKILL", (0.95,)), ("SIGSTOP", (0.5,)), ("SIGPIPE", (0.5,)), ("SIGWINCH", (0.5,))],
    "effect": [("SIGINT", (0.5, 0.9)), ("SIGTERM", (0.5, 0.9)), ("SIGHUP", (0.9,))],
    "forecast": [("SIGINT", (0.9,)), ("SIGTERM", (0.5, 0.9)), ("SIGHUP", (0.9,))],
    "audit": [("SIGINT", (0.9,)), ("SIGTERM", (0.9,))],
    "simulate": [("SIGINT", (0.8,)), ("SIGTERM", (0.9,))],
    "app": [("SIGINT", (0, 1)), ("SIGTERM", (0, 1)), ("SIGHUP", (0, 1))],
}  # fmt: skip
"""Signals and moments: shares of the CPU time; of `app` 0, with an empty page, and 1, while it fits."""


@dataclass
class Run:
    """A command with a signal, and what was wrong with its end."""

    command: str
    signal: str
    moment: float
    code: int = 0
    said: str = ""
    wrong: list[str] = field(default_factory=list)


def table(seed: int) -> pd.DataFrame:
    """Subjects with visits in no order, and a dose that varies."""
    rng = np.random.default_rng(seed)
    n, T = 40, 7
    dose = rng.integers(0, 2, (n, T)).astype(float)
    x = np.zeros((n, T, 2))
    x[:, 0] = 3 + 0.3 * rng.standard_normal((n, 2))
    for t in range(T - 1):
        shock = 0.2 * rng.standard_normal((n, 2))
        x[:, t + 1] = 0.8 * x[:, t] + 0.4 * dose[:, t, None] * [1, -0.5] + shock
    labels = np.array([f"v{k}" for k in rng.permutation(T)])
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), T), "visit": np.tile(labels, n), "dose": dose.ravel(),
                          "a": x[..., 0].ravel(), "b": x[..., 1].ravel(), "day": np.tile(np.arange(T), n)})  # fmt: skip
    return frame.sample(frac=1, random_state=seed)


def started(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """The command in a folder of its own, with a folder for temporary files, and heeding signals as in a terminal."""
    spare = folder / "tmp"
    spare.mkdir(exist_ok=True)

    def heed() -> None:
        os.setsid()
        for each in (signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)

    return subprocess.Popen([sys.executable, "-m", "retrace_sde", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(spare)}, preexec_fn=heed)  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of the children that it waited for; infinite once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return float("inf")
    ended = fields[0] == "Z"
    return float("inf") if ended else sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def left_of_group(pid: int) -> list[str]:
    """Processes of the command's session that still run."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = each.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(fields.split()[3]) == pid and fields.split()[0] != "Z":
            found.append(name.split("(", 1)[1])
    return found


def send(process: subprocess.Popen[str], name: str) -> None:
    """To the process alone; signals of a terminal to its children too, as a terminal does."""
    whole = name in OF_TERMINALS
    tell = partial(os.killpg, process.pid) if whole else process.send_signal
    tell(getattr(signal, name))
    if name == "SIGSTOP":
        time.sleep(0.5)
        tell(signal.SIGCONT)


def check_end(
    run: Run, process: subprocess.Popen[str], folder: Path, files: tuple[str, ...]
) -> None:
    """Wait for the end, and note what is wrong."""
    number = getattr(signal, run.signal)
    try:
        _, run.said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        run.wrong.append(f"it had not ended after {SECONDS} s")
    run.code = 128 - process.returncode if process.returncode < 0 else process.returncode
    allowed = {0} if run.signal in HARMLESS else {0, 128 + number}
    if run.code not in allowed:
        run.wrong.append(f"exit code {run.code}")
    if re.search(r"Traceback|Warning|Error|Exception", run.said) or run.said.count("\n") > 2:
        run.wrong.append(f"said {run.said[-400:]!r}")
    time.sleep(0.2)
    if left := left_of_group(process.pid):
        run.wrong.append(f"processes left: {left}")
    if run.signal == "SIGKILL":
        return
    there = (
        {each.name for each in (folder / "out").iterdir()} if (folder / "out").exists() else set()
    )
    there.discard(".retrace.json")
    if there not in (set(), set(files)):
        run.wrong.append(f"half-written: {sorted(there)}")
    if run.code == 0 and there != set(files):
        run.wrong.append("exit code 0 without results")
    spare = [each.name for each in (folder / "tmp").iterdir() if not each.name.startswith("__")]
    others = {each.name for each in folder.iterdir()} - {"out", "tmp", "t.csv"}
    if spare or others:
        run.wrong.append(f"temporary files left: {sorted([*spare, *others])}")


def batch_runs(command: str, frame: pd.DataFrame) -> Iterator[Run]:
    """A command that reads a table, works and writes."""
    arguments, files = COMMANDS[command]

    def prepared() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="signals-"))
        frame.to_csv(folder / "t.csv", index=False)
        if command != "fit":  # which makes its folder
            (folder / "out").mkdir()
        return folder

    reference = 0.0
    for _ in range(2):  # the first compiles
        process = started(arguments, prepared())
        while (used := cpu_seconds(process.pid)) < float("inf"):
            reference_now, _ = used, time.sleep(0.02)
        _, said = process.communicate()
        if process.returncode:
            raise SystemExit(f"{command} fails undisturbed: {said}")
        reference = reference_now
    for name, moments in PLAN[command]:
        for moment in moments:
            run, ended = Run(command, name, moment), True
            while ended:  # on a busy machine it may be done before: again, a little earlier
                folder = prepared()
                process = started(arguments, folder)
                while cpu_seconds(process.pid) < run.moment * reference:
                    time.sleep(0.01)
                if ended := process.poll() is not None:
                    run.moment = round(0.85 * run.moment, 2)
            send(process, name)
            check_end(run, process, folder, files)
            if name == "SIGKILL":
                there = all((folder / "out" / each).exists() for each in files)
                again = started([*arguments, *(["--force"] if there else [])], folder)
                _, said = again.communicate()
                if again.returncode:
                    run.wrong.append(f"the next run failed: {said}")
            yield run


def app_runs(frame: pd.DataFrame) -> Iterator[Run]:
    """The page, empty and while it fits."""
    for name, moments in PLAN["app"]:
        for moment in moments:
            run, folder = Run("app", name, moment), Path(tempfile.mkdtemp(prefix="signals-"))
            frame.to_csv(folder / "t.csv", index=False)
            process = started(["app", *(["t.csv"] if moment else []), "--no-browser"], folder)
            assert process.stdout is not None
            link = process.stdout.readline().split()[-1]
            if moment:
                stage(link, "table")
                token = link.split("token=")[1]
                roles = {"subject": "id", "slice": "visit", "variables": ["a", "b"]}
                asked = urllib.request.Request(link.split("?")[0] + "do/fit", json.dumps({"roles": roles}).encode(),
                                               {"X-Retrace-Token": token})  # fmt: skip
                urllib.request.urlopen(asked, timeout=60).read()
                time.sleep(1)
            else:
                stage(link, "empty")
            send(process, name)
            check_end(run, process, folder, ())
            yield run


def stage(link: str, wanted: str) -> None:
    """Wait until the page is at a stage."""
    with urllib.request.urlopen(link.replace("/?", "/events?"), timeout=SECONDS) as watching:
        for line in watching:
            if f'"stage": "{wanted}"'.encode() in line:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(PLAN), help="commands, with commas")
    asked = parser.parse_args()
    frame, runs = table(asked.seed), []
    for command in asked.only.split(","):
        for run in app_runs(frame) if command == "app" else batch_runs(command, frame):
            runs.append(run)
            found = "; ".join(run.wrong) or f"right {run.said.strip()}"
            print(f"{run.command:<9} {run.signal:<9} {run.moment:<5} exit {run.code:<4} {found}", flush=True)  # fmt: skip
    wrong = sum(bool(run.wrong) for run in runs)
    print(f"{len(runs)} signals, {wrong} wrong.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
