"""Tables of the docs that are made from files: a page never holds a number that no command wrote.

A page says `<!-- table: NAME -->`, and what stands there up to `<!-- end of table -->` is made from docs/results/NAME.json, which a
command wrote: {"command": ..., "columns": [...], "rows": [[...]]}. `python .ci/results.py` fills all pages in; with --check it says which differ.
"""

import json
import re
import sys
from pathlib import Path

from retrace_sde.lost_time.table import lines

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its tables as their files say."""

    def table(found: re.Match[str]) -> str:
        name = found.group(2)
        made = json.loads((ROOT / "docs/results" / f"{name}.json").read_text("utf-8"))
        return "\n".join([found.group(1), f"`{made['command']}`", "", *lines(made), "", ""])

    return BLOCK.sub(table, text)


def main() -> int:
    """Fill in all pages, or only say which differ."""
    wrong = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text("utf-8")
        if filled(text) != text:
            wrong += 1
            print(f"{page.relative_to(ROOT)} differs from its files.")
            if "--check" not in sys.argv:
                page.write_text(filled(text), "utf-8")
    return int(wrong > 0 and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
