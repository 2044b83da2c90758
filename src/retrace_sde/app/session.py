"""What the server remembers: one table, the process that works on it, and who watches.

A session has a folder of its own, which only its user can read and which vanishes with it. An uploaded table is deleted
when another takes its place, when it is forgotten, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import secrets
import signal
import tempfile
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from retrace_sde.app.work import FILES, Message, serve


class Session:
    """The state that every watcher sees, and the one process behind it."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="retrace-app-")
        self.folder = Path(self._home.name)
        self.state: Message = {"stage": "empty"}
        self._source: tuple[Path, str] | None = None
        self._ours = False
        self._sheet: str | None = None
        self._process: Any = None
        self._end: Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._starting = asyncio.Lock()
        self._version = 0
        self._asked: object | None = None

    # ---- what watchers see -------------------------------------------------------------------------------------

    async def _say(self, **changes: Any) -> None:
        async with self._changed:
            self.state = {**self.state, **changes}
            self._version += 1
            self._changed.notify_all()

    async def watch(self, seen: int = -1) -> tuple[int, Message]:
        """The state, once it differs from the version seen."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version != seen)
            return self._version, self.state

    # ---- the table ---------------------------------------------------------------------------------------------

    def new_upload(self, suffix: str) -> Path:
        """Where an upload goes, whatever it is called."""
        return self.folder / f"upload-{secrets.token_hex(8)}{suffix}"

    async def take(self, path: Path, name: str, *, ours: bool) -> None:
        """Work on a table; `ours`: it was uploaded, and is deleted when it is not needed any more."""
        await self.forget(keep=path if ours else None)
        self._source, self._ours, self._sheet = (path, name), ours, None
        await self._begin("reading", {"task": "read"}, table={"name": name})

    async def sheet(self, name: str) -> None:
        """Work on another sheet of the workbook; where it cannot be read, on the one before."""
        self._check_idle()
        self._drop_results()
        task = {"task": "read", "sheet": name}
        await self._begin("reading", task, result=None, diagnosis=None)

    async def forget(self, *, keep: Path | None = None) -> None:
        """No table and no results; a process that computes ends, an idle one drops the table."""
        if self.busy:
            await self._kill()
        elif self._end is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                self._end.send({"forget": True})
        self._drop_table(keep)
        self._drop_results()
        self.state = {"stage": "empty"}
        await self._say()

    def _drop_table(self, keep: Path | None = None) -> None:
        if self._source is not None and self._ours and self._source[0] != keep:
            self._source[0].unlink(missing_ok=True)
        self._source = None

    def _drop_results(self) -> None:
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)

    # ---- tasks -------------------------------------------------------------------------------------------------

    async def diagnose(self, roles: Message) -> None:
        """Ask what can be learned."""
        await self._begin("diagnosing", {"task": "diagnose", "roles": roles}, roles=roles)

    async def fit(self, roles: Message, options: Message) -> None:
        """Ask for the order."""
        self._check_idle()  # results that are being written must stay
        self._drop_results()
        task = {"task": "fit", "roles": roles, "options": options}
        await self._begin("fitting", task, roles=roles, options=options, result=None)

    async def _begin(self, stage: str, task: Message, **changes: Any) -> None:
        path, name = self._check_idle()
        asked = self._asked = object()
        await self._say(stage=stage, progress=None, error=None, stopped=False, **changes)
        await self.ready()
        if self._end is None or self._asked is not asked:  # stopped before it began
            return
        self._end.send({"sheet": self._sheet, **task, "path": str(path), "name": name})
        self._listening = asyncio.create_task(self._listen(self._end))

    def _check_idle(self) -> tuple[Path, str]:
        """The table and its name, where there is one and nothing is being computed."""
        if self._source is None:
            raise ValueError("There is no table yet.")
        if self.busy:
            raise ValueError("Something is being computed: stop it first.")
        return self._source

    async def ready(self) -> None:
        """A process that waits for tasks; starting one takes seconds, so it is best asked for ahead."""
        async with self._starting:
            if self._process is None or not self._process.is_alive():
                await self._start()

    async def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, str(self.folder)), daemon=True)
        await asyncio.to_thread(_start_deaf_to_interrupts, self._process)
        other.close()

    async def _listen(self, end: Connection) -> None:
        """Pass on what the process says until its task is done."""
        while True:
            try:
                message = await asyncio.to_thread(end.recv)
            except (EOFError, OSError):
                if end is self._end and self.busy:
                    text = "The computation ended by itself; the table may be too large for this machine."
                    await self._say(stage="failed", error=text, progress=None)
                return
            if end is not self._end:  # stopped meanwhile
                return
            if message["kind"] == "progress":
                await self._say(progress=message)
                continue
            if message["kind"] == "failed":
                stage = "failed"
                if self.state["stage"] == "reading":
                    stage = "table" if self._was_read else "failed"
                    if not self._was_read:
                        self._drop_table()
                await self._say(stage=stage, error=message["text"], progress=None)
                return
            await self._done(message["task"], message["answer"])
            return

    async def _done(self, task: str, answer: Message) -> None:
        changes: Message = {"stage": "done", "result": answer}
        if task == "read":
            table = {**self.state["table"], **answer}
            self._sheet = (answer["sheets"] or {}).get("read")
            changes = {"stage": "table", "table": table, "roles": answer["roles"]}
        elif task == "diagnose":
            changes = {"stage": "diagnosed", "diagnosis": answer}
        await self._say(**changes, progress=None)

    @property
    def _was_read(self) -> bool:
        """The columns of the table, or of another sheet of it, are known."""
        return "columns" in self.state.get("table", {})

    @property
    def busy(self) -> bool:
        """Something is being computed."""
        return self.state["stage"] in ("reading", "diagnosing", "fitting")

    async def enough(self) -> None:
        """The computation is to end with what there is."""
        if self.busy and self._end is not None:
            self._end.send({"enough": True})

    async def stop(self) -> None:
        """End the computation now; the table stays."""
        if not self.busy:
            return
        read = self._was_read
        await self._kill()
        if not read:
            await self.forget()
            await self._say(stopped=True)
        else:
            await self._say(stage="table", progress=None, stopped=True)
        await self.ready()

    async def _kill(self) -> None:
        async with self._starting:  # a process that is not yet started cannot be ended
            process, end = self._process, self._end
            self._process = self._end = self._asked = None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.join)
        if self._listening is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None
        if end is not None:
            end.close()

    async def close(self) -> None:
        """Nothing stays behind."""
        await self._kill()
        self._home.cleanup()


def _start_deaf_to_interrupts(process: Any) -> None:
    """Ctrl-C in a terminal reaches all of its processes: it is meant for the server, which ends this one without a traceback.

    A new process has the blocked signals of the thread that starts it, from its first instruction on.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        process.start()
        return
    resource_tracker.ensure_running()  # which would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
