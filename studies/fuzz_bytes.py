"""Coverage-guided fuzzing of the readers: any file gives a table or a one-line ValueError.

    python studies/fuzz_bytes.py [--minutes 5] [--kind csv|npz|parquet]

atheris (libFuzzer) changes good files and keeps what reaches new lines of `retrace_sde.io`; anything but a ValueError of one line,
or more than 2 GB, ends it with the offending bytes. Without atheris installed it says so and exits.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

try:
    import atheris
except ImportError:
    print("atheris is not installed (pip install atheris): nothing was tried.")
    sys.exit(0)

with atheris.instrument_imports(include=["retrace_sde.io"]):
    from retrace_sde.io.files import read_table
    from retrace_sde.panel.panel import Panel


def good(kind: str) -> list[bytes]:
    """Files to begin with."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((15, 2)).round(3), columns=["a", "b"])
    frame.insert(0, "s", np.repeat(["x", "y", "z"], 5))
    if kind == "csv":
        point, comma = frame.to_csv(index=False), frame.to_csv(index=False, sep=";", decimal=",")
        return [point.encode(), comma.encode(), ("Title\n\n" + point).encode("utf-16")]
    file = io.BytesIO()
    if kind == "npz":
        np.savez(file, values=rng.standard_normal((3, 5, 2)), names=["a", "b"])
    else:
        frame.to_parquet(file)
    return [file.getvalue()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kind", choices=["csv", "npz", "parquet"], default="csv")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (folder / "corpus").mkdir()
    for k, content in enumerate(good(asked.kind)):
        (folder / "corpus" / str(k)).write_bytes(content)
    path = folder / f"t.{asked.kind}"

    def one(data: bytes) -> None:
        path.write_bytes(data)
        try:
            Panel.from_frame(frame := read_table(path), subject=frame.columns[0])
        except ValueError as error:
            assert "\n" not in str(error), error  # noqa: PT017 - a table is as good

    options = [f"-max_total_time={60 * asked.minutes:.0f}", "-rss_limit_mb=2000", "-max_len=65536", "-verbosity=0", "-print_final_stats=1"]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
