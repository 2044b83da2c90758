"""Which files may be replaced: what a command writes is recorded beside it, and nothing else is ever replaced.

A folder of results holds `.retrace.json`: the name and the SHA-256 of every file that a command wrote there. A file is ours
if it is listed and still the same. One rule for all commands: never the input, never a file that is not ours, and ours only
when asked to (`--force`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

RECORD_FILE = ".retrace.json"
"""The file with the record."""

MAKER = "retrace-sde"


def check_outputs(
    paths: Iterable[Path], *, source: Path | None = None, force: bool = False
) -> bool:
    """Whether results of ours will be replaced; raises ValueError where that must not be."""
    paths = list(paths)
    there = [each for each in paths if os.path.lexists(each)]
    if source is not None and source.exists():
        for each in paths:
            if _same(each, source) or source.resolve() in each.resolve().parents:
                raise ValueError(
                    f"the results would replace the input {source}: name another place with --out."
                )
    for each in there:
        if not is_ours(each):
            raise ValueError(
                f"{each} was not written by retrace, or was changed since, so it is not replaced: move it, or name "
                "another place with --out."
            )
    for folder in {each.parent for each in paths}:
        record = folder / RECORD_FILE
        if os.path.lexists(record) and not _is_record(record):
            raise ValueError(f"{record} was not written by retrace: name another place with --out.")
    if there and not force:
        raise ValueError(
            f"{there[0]} holds an earlier result: replace it with --force, or name another place with --out."
        )
    return bool(there)


def is_ours(path: Path) -> bool:
    """A command wrote it, and nobody changed it since."""
    if path.is_symlink() or not path.is_file():
        return False
    return written(path.parent).get(path.name) == _digest(path)


def written(folder: Path) -> dict[str, str]:
    """Names and digests of the files that commands wrote in a folder."""
    try:
        found = json.loads((folder / RECORD_FILE).read_bytes())
        files = found["files"] if found["made_by"] == MAKER else {}
        return {str(name): str(digest) for name, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def record(folder: Path, files: Iterable[Path]) -> str:
    """What the record of a folder says when these files have come to it."""
    known = {**written(folder), **{each.name: _digest(each) for each in files}}
    return json.dumps({"made_by": MAKER, "files": known}, indent=1) + "\n"


def _is_record(path: Path) -> bool:
    return not path.is_symlink() and bool(written(path.parent))


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
