"""Figures of the README and the docs that are cheap to make: the commands that print them are run, and what they print compared.

A line that a command prints must stand in its page with the same words; its numbers may differ by the tolerance, since sums depend on
the machine in their last digits. Figures of long studies stand beside their commands, and are not run here.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
NOTHING = 1e-9
"""Differences that are rounding: any number below is as good as another."""


@dataclass(frozen=True)
class Check:
    """Commands run one after the other in an empty folder; lines of theirs that match stand in the page."""

    page: str
    commands: tuple[str, ...]
    lines: str = "."
    tolerance: float = 0.03
    timed: bool = False


START = re.findall(
    r"^\$ (retrace .*?)(?: +#.*)?$", (ROOT / "docs/start.md").read_text("utf-8"), re.MULTILINE
)
RECORDED = {
    "docs/after.md": ("effects.py --seeds 50000:50150", "forecasts.py --seeds 50000:50012"),
    "docs/time.md": ("partial_time.py",),
}
"""Tables that `.ci/results.py --record` made in a few minutes each."""
CHECKS = (
    Check(
        "docs/start.md",
        tuple(START),
        r"^(Data|Order|Direction|Assuming|Dependence|Drift|Noise|Subjects|Effects|Note|\+ )",
    ),
    Check(
        "README.md", ("retrace demo --force",), r"^(ReTrace|Algorithm|MST|DPT|oracle)", timed=True
    ),
    Check("docs/theory.md", (f"python {ROOT}/studies/theory.py --seeds 100:140",)),
    *(
        Check(page, (f"python {ROOT}/studies/{each}",), r"^\| \w.*\d")
        for page, studies in RECORDED.items()
        for each in studies
    ),
)


def printed(check: Check) -> list[str]:
    """What the commands print, as far as it is compared."""
    with tempfile.TemporaryDirectory() as folder:
        out = ""
        for command in check.commands:
            name, *rest = shlex.split(command)
            run = subprocess.run(
                [BIN / name, *rest], cwd=folder, capture_output=True, text=True, check=False
            )
            if run.returncode:
                return [f"FAILED: {command}: {run.stderr.strip()[-300:]}"]
            out += run.stdout
    return [line for line in out.splitlines() if re.search(check.lines, line)]


def words(line: str) -> str:
    """A line without its numbers, spaces made one."""
    return " ".join(NUMBER.sub("#", line.replace("`", "")).split())


def numbers(line: str, check: Check) -> list[float]:
    """The numbers of a line; of a timed one without the seconds, which come last."""
    found = [float(each.replace(",", "").replace("−", "-")) for each in NUMBER.findall(line)]
    return found[:-1] if check.timed else found


def near(a: float, b: float, tolerance: float) -> bool:
    """Two figures that are the same."""
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), NOTHING)


def main() -> int:
    """Compare every line, tell those that differ; 1 if there are any."""
    wrong = compared = 0
    for check in CHECKS:
        page = (ROOT / check.page).read_text("utf-8").splitlines()
        for line in printed(check):
            alike = [each for each in page if words(each) == words(line)]
            here = numbers(line, check)
            same = any(
                all(
                    near(a, b, check.tolerance)
                    for a, b in zip(numbers(each, check), here, strict=True)
                )
                for each in alike
            )
            compared += 1
            if not same:
                wrong += 1
                print(f"{check.page}\n  stands:  {alike}\n  printed: {line}")
    print(f"{compared} lines compared, {wrong} differ.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
