"""What an experiment is, and how its tasks are run: a task's records are kept when it is finished, and a second run resumes there.

The log is one JSON line per finished task. A run that was killed leaves at worst a broken last line, which is
dropped. Records, with the seconds they took, are never measured again, so the files written from the
log are those of a run without interruption.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrace_sde import __version__
from retrace_sde.panel.blocks import one_blas_thread
from retrace_sde.panel.validation import ReTraceWarning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
"""One line of a result: names to numbers, words, booleans, None, or lists of these."""


@dataclass(frozen=True)
class Task:
    """A piece of work that runs alone and gives the same records wherever and whenever it runs.

    key: what identifies it (setting, method, seed), beside the experiment's settings. work: a function of
    no arguments that can be pickled (`functools.partial` of a module's function). weight: its expected
    cost relative to the others, for the time left.
    """

    key: Mapping[str, Any]
    work: Callable[[], list[Record]]
    weight: float = 1.0


@dataclass(frozen=True)
class Experiment:
    """A table or figure. The settings are a frozen dataclass with a field `seeds`, how many to run.

    tasks(settings): all tasks, in the order in which their records are listed.
    full, quick, tiny: settings for the paper's figures, for a look in minutes, and to see in seconds that it runs.
    text(records, settings): the section in Markdown, without a heading: tables, and what the numbers say.
    figure(records, settings): the picture. columns: the keys of a published record, in order.
    extras(records): further tables by file name, in long form; () where there are none.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    full: Any
    quick: Any
    tiny: Any
    tasks: Callable[[Any], Iterable[Task]]
    text: Callable[[Sequence[Record], Any], str]
    figure: Callable[[Sequence[Record], Any], Figure]
    extras: Callable[[Sequence[Record]], Mapping[str, list[Record]]] = lambda records: {}


def every(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of some names, as the keys of tasks; the last name's values change fastest."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def identity(name: str, settings: Any, version: str, key: Mapping[str, Any]) -> str:
    """A digest of all that a task's records depend on: version, settings and key, but not how many seeds."""
    fixed = {k: v for k, v in vars(settings).items() if k != "seeds"}
    whole = {"experiment": name, "version": version, "settings": fixed, "key": dict(key)}
    text = json.dumps(whole, sort_keys=True, default=vars)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


Progress = Callable[[str, float, float], None]
"""Called with what was finished, the weight done so far (resumed tasks included) and the weight in all."""


def run(
    experiment: Experiment,
    settings: Any,
    folder: Path,
    *,
    jobs: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> list[Record]:
    """All records of an experiment, in the order of its tasks: from the folder's log, or run now."""
    tasks = list(experiment.tasks(settings))
    names = [identity(experiment.name, settings, __version__, task.key) for task in tasks]
    log = Log(folder / f"{experiment.name}.records.jsonl")
    finished = log.read()
    waiting = {name: task for name, task in zip(names, tasks, strict=True) if name not in finished}
    total = sum(task.weight for task in tasks)
    done = total - sum(task.weight for task in waiting.values())
    progress("resumed" if done else "started", done, total)
    for name, records in _each(waiting, jobs):
        log.append(name, records)
        finished[name] = records
        done += waiting[name].weight
        progress(", ".join(str(part) for part in waiting[name].key.values()), done, total)
    return [record for name in names for record in finished[name]]


class Log:
    """Finished tasks in a file that only grows: a line holds a task's identity and its records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, list[Record]]:
        """Records by identity; lines that are none of ours are left as they are, and said.

        A last line that was cut short by a kill is removed from the file.
        """
        if not self.path.exists():
            return {}
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        found, foreign = _parsed(whole)
        if content and not found and foreign:
            raise ValueError(
                f"{self.path} is not a log of retrace: name another folder with --out."
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
            _note(
                f"{self.path} ended in half a line, as after a kill: it is dropped, and its task runs again."
            )
        if foreign:
            _note(
                f"{self.path} holds {foreign} lines that are no records of retrace: they are passed over."
            )
        return found

    def append(self, name: str, records: list[Record]) -> None:
        """One line, flushed to the disk: a task is either in the file or not, also where the disk is full."""
        line = json.dumps({"task": name, "records": records}, allow_nan=False) + "\n"
        rest = memoryview(line.encode())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while rest:  # a write may be short
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(before)
                raise


def _parsed(content: bytes) -> tuple[dict[str, list[Record]], int]:
    """The records of a log, and how many lines hold something else; blank ones hold nothing."""
    found: dict[str, list[Record]] = {}
    foreign = 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            name, records = entry["task"], entry["records"]
            if not isinstance(name, str) or not all(isinstance(each, dict) for each in records):
                raise TypeError
            found[name] = list(records)
        except (ValueError, KeyError, TypeError, RecursionError):
            foreign += 1
    return found, foreign


def _note(text: str) -> None:
    warnings.warn(text, ReTraceWarning, stacklevel=4)


def _each(waiting: dict[str, Task], jobs: int) -> Iterator[tuple[str, list[Record]]]:
    """Tasks as they finish, here or in `jobs` processes."""
    if jobs == 1 or len(waiting) < 2:
        for name, task in waiting.items():
            yield name, _work(task)
        return
    # Spawned, not forked: the parent's threads and compiled code do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(waiting)), context, initializer=_end_with_parent)
    with pool:
        running: dict[Future[list[Record]], str] = {}
        queue = iter(waiting.items())
        try:
            while True:
                # Few in flight: neighbours in the list share their data, and a worker keeps the last data.
                for name, task in queue:
                    running[pool.submit(_work, task)] = name
                    if len(running) >= jobs:
                        break
                if not running:
                    return
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield running.pop(future), future.result()
        except BaseException:  # interrupted, or a task failed: the others need not be waited for
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent was killed ends too, instead of waiting for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # workers have one

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(task: Task) -> list[Record]:
    # Some settings are hard on purpose.
    with one_blas_thread(), warnings.catch_warnings(action="ignore", category=ReTraceWarning):
        return task.work()
