"""A file that is read first by a process of its own: a library that a damaged file makes crash, or loop for ever, takes only that one along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAX_SECONDS, BYTES_PER_SECOND = 60.0, 5e6
"""Time that reading may take, and bytes that it takes another second for."""

WINDOWS_CRASH_CODE = 0xC0000000
"""Exit codes from here on are crashes there; elsewhere those below 0 are."""

READ_SCRIPT = """
import sys
from pathlib import Path
from retrace_sde.io.untrusted.sizes import Budget, walk_h5
path, large = Path(sys.argv[1]), sys.argv[2] == "large"
walk_h5(path, Budget.of(path, large=large))
import anndata
anndata.read_h5ad(path)
"""
"""What Python itself refuses here it will refuse again, in words, where the file is wanted."""


def tried(path: Path, *, large: bool) -> None:
    """Refuse an HDF5 file that its library cannot read without harm."""
    limit = MAX_SECONDS + path.stat().st_size / BYTES_PER_SECOND
    # -P: nothing is imported from the folder in which the user happens to be.
    command = [
        sys.executable,
        "-P",
        "-c",
        READ_SCRIPT,
        str(path.resolve()),
        "large" if large else "",
    ]
    nothing = subprocess.DEVNULL
    try:
        code = subprocess.run(
            command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=limit, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"reading it did not end in {limit:.0f} s: it is damaged, or too large. Save it again."
        ) from None
    if code < 0 or code >= WINDOWS_CRASH_CODE:
        raise ValueError("it is damaged so that its library (HDF5) crashes: save it again.")
