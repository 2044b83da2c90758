"""Files are read in a process of their own, with limits on its memory and time.

What a file claims to hold can be checked before; what a library makes of it cannot. One that takes all memory, crashes or loops
for ever takes only that process along.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

MAX_SECONDS, BYTES_PER_SECOND = 60.0, 5e4
"""Time that reading may take, and bytes that it takes another second for: openpyxl, the slowest, reads four times as many."""

LIBRARY_BYTES, MEMORY_PER_BYTE = 1 << 27, 2.0
"""Bytes that libraries take, and those that reading takes at its peak for each that the table may take, since they copy.
Together with the 0.3 GB of a running command, a small file is read within 1 GB."""

READ_SCRIPT = """
import json, os, sys
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what libraries print is not part of the answer
from retrace_sde.io.files import load_library, read_untrusted
from retrace_sde.io.untrusted.trial import answer
job = json.loads(sys.argv[1])
load_library(job["path"])  # before memory is limited: what a library takes is not the file's
answer(out, read_untrusted, **job)
"""


class TooLargeError(ValueError):
    """A file holds, or claims to hold, more than its size on the disk makes likely."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} far more than its size on the disk makes likely, and is not read. If you know where "
            "it comes from, allow it (large=True)."
        )


def read_apart(read: Callable[..., Any], size: float, **job: Any) -> Any:
    """What `read(**job)` returns, from another process; ValueError where it refuses, crashes, or takes too much.

    A fork starts at once, but is safe only where no other thread holds a lock: else a new interpreter is started. Threads of
    compiled libraries cannot be seen; a fork that inherits a lock of theirs says nothing, and a new interpreter is asked instead.
    """
    limit = MAX_SECONDS + size / BYTES_PER_SECOND
    kind, found, code = LATE, None, None
    if forkable():
        kind, found, code = _answered(_Forked(read, job), limit / 3)
    if kind == LATE:
        kind, found, code = _answered(_interpreter(job), limit)
    if kind == "read":
        return found
    if kind == LATE:
        raise ValueError(
            f"reading it did not end in {limit:.0f} s: it is damaged, or too large. Save it again."
        )
    if kind == "memory" or (kind == "silent" and code == 1):
        raise TooLargeError("reading it takes")
    if kind == "silent":
        raise ValueError(
            "it makes its library run out of memory or crash: save it again, or, if you know where it comes from, "
            "allow it more memory (large=True)."
        )
    raise (ValueError if kind == "refused" else RuntimeError)(found)


LATE = "late"
"""What is said of a reader that did not answer in time."""


def _answered(
    reader: _Forked | subprocess.Popen[bytes], limit: float
) -> tuple[str, Any, int | None]:
    """What a reader answered within a time in seconds, and its exit code."""
    late = threading.Event()

    def end() -> None:
        late.set()
        reader.kill()

    timer = threading.Timer(limit, end)
    timer.start()
    assert reader.stdout is not None
    try:
        kind, found = pickle.load(reader.stdout)  # written by our own process, not by the file
    except (EOFError, pickle.UnpicklingError):
        kind, found = "silent", None
    finally:
        timer.cancel()
        reader.kill()
        code = reader.wait()
        reader.stdout.close()
    return (LATE if kind == "silent" and late.is_set() else kind), found, code


def forkable() -> bool:
    """No other thread runs but the one that draws the progress bar, whose streams a fork replaces."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    return sys.platform == "linux" and all(
        type(each).__name__ == "_RefreshThread" for each in others
    )


def answer(out: BinaryIO, read: Callable[..., Any], *, budget: float, **job: Any) -> None:
    """Read within the limits, and write what came of it."""
    found: tuple[str, Any]
    try:
        with warnings.catch_warnings(), _bounded(LIBRARY_BYTES + MEMORY_PER_BYTE * budget):
            warnings.simplefilter("ignore")
            found = "read", read(budget=budget, **job)
    except ValueError as error:
        found = "refused", str(error)
    except Exception as error:  # whatever a library makes of a damaged file
        # The limit may be met in the system first: a library imported late cannot even be opened.
        spent = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        found = ("memory", None) if spent else ("failed", str(error) or type(error).__name__)
    pickle.dump(found, out, protocol=5)
    out.close()


@contextmanager
def _bounded(allowed: float) -> Iterator[None]:
    """No more memory than there is now and what is allowed; other systems than Linux do not enforce such a limit."""
    if sys.platform != "linux" or math.isinf(allowed):
        yield
        return
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(used + int(allowed), *bounds, sys.maxsize), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _interpreter(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A new one; -P: nothing is imported from the folder in which the user happens to be."""
    command = [sys.executable, "-P", "-c", READ_SCRIPT, json.dumps(job)]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)


class _Forked:
    """A copy of this process that reads, and ends."""

    def __init__(self, read: Callable[..., Any], job: dict[str, Any]) -> None:
        ours, theirs = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads of libraries
            self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                for stream in range(3):
                    os.dup2(nothing, stream)
                os.closerange(3, theirs)  # nobody waits for us to hang up but who reads this pipe
                os.closerange(theirs + 1, os.sysconf("SC_OPEN_MAX"))
                sys.stdout = sys.stderr = os.fdopen(1, "w")  # with locks that nobody holds
                answer(os.fdopen(theirs, "wb"), read, **job)
                code = 0
            finally:
                os._exit(code)
        os.close(theirs)
        self.stdout = os.fdopen(ours, "rb")

    def kill(self) -> None:
        """End it; it is not yet waited for, so that its number is nobody else's."""
        os.kill(self._pid, 9)

    def wait(self) -> int:
        """Its exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
