"""What a long computation is doing, told to whoever listens, and how to end it early.

Loops name what they do (`steps`); the listener waits in a context variable, so that no signature carries it. One callback
serves all: `fit(…, progress=f)`, or `with reporting(f):` around anything. f gets a `Progress`. If it raises StopIteration,
loops end where they stand and the answer is what was found by then, with a caution that says so; any other exception
ends the computation, and leaves things as they were. Threads of the computation do not report.

The first use of an installation compiles; on a terminal or in a notebook one line says so.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # drawn only where a bar is asked for: a command's help need not wait for it
    from rich.console import Console

Item = TypeVar("Item")

REPORT_EVERY = 0.05
"""Seconds between two reports of the same step, at least."""

LINE_EVERY = 10.0
"""Seconds between two plain lines of the same step."""

MIN_SECONDS_OF_PACE = 1.0
"""Seconds into a step from which its pace says how long the rest will take."""

__all__ = ["Progress", "bar", "reporting"]


PREPARING = "preparing"
"""The step of a fit in which options and data are checked; what follows may be long."""

COMPILING = "retrace: compiling for this machine; what is compiled is kept, and the next run begins at once (`retrace warmup` compiles all of it)."


@dataclass(frozen=True)
class Progress:
    """What is being done, and how much of it.

    Attributes
    ----------
    doing : str
        The step, in words.
    fraction : float or None
        How much of that step is done; None: not known.
    elapsed : float
        Seconds that all of it has run.
    seconds_left : float or None
        Of this step, extrapolated from its own pace; None where that cannot be told yet.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> step = rt.progress.Progress("improving the order", 0.5, 2.0, 2.0)
    >>> f"{step.doing}: {step.fraction:.0%}"
    'improving the order: 50%'
    """

    doing: str
    fraction: float | None
    elapsed: float
    seconds_left: float | None


Callback = Callable[[Progress], object]


@dataclass(eq=False)
class Listener:
    """Who listens, where the steps stand, and whether the answer so far is enough."""

    tell: Callback
    began: float = field(default_factory=monotonic)
    doing: str = ""
    since: float = 0.0
    told: float = 0.0
    fraction: float | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)
    enough: bool = False
    cut: list[str] = field(default_factory=list)

    def report(self, doing: str, fraction: float | None) -> None:
        """Tell of a step; within another step its name stays, and the fraction is that of the part."""
        now, new = monotonic(), not self.spans and (doing != self.doing or fraction == 0)
        if new:
            self.doing, self.since, self.fraction = doing, now, None
        if fraction is not None:
            low, high = self.spans[-1] if self.spans else (0.0, 1.0)
            # An inner loop may run twice: a bar does not go backwards.
            self.fraction = max(self.fraction or 0.0, low + (high - low) * min(fraction, 1.0))
        if not new and now - self.told < REPORT_EVERY:
            return
        self.told = now
        run, left = now - self.since, None
        if self.fraction and run > MIN_SECONDS_OF_PACE:
            left = run * (1 - self.fraction) / self.fraction
        try:
            self.tell(Progress(self.doing, self.fraction, now - self.began, left))
        except StopIteration:
            self.enough = True


_listening: ContextVar[Listener | None] = ContextVar("retrace_progress", default=None)


@contextmanager
def reporting(callback: Callback | bool | None) -> Iterator[None]:
    """Whatever runs inside reports to `callback`, which may end it early by raising StopIteration.

    Parameters
    ----------
    callback : callable, bool or None
        Called with a `Progress`. True: a bar, and plain lines where there is no terminal; None or False: whoever listened before.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> heard = set()
    >>> with rt.progress.reporting(lambda step: heard.add(step.doing)):
    ...     model = rt.ReTrace(random_state=0).fit(rt.LinearSDE([[-1.0]], [[1.0]]).simulate(30, 8, 0.1, x0=0.1, random_state=0))
    >>> "preparing" in heard
    True
    """
    if callback is None or callback is False:
        with telling_of_compiling():
            yield
        return
    with (
        bar(lines=True) if callback is True else nullcontext(callback) as tell,
        telling_of_compiling(),
    ):
        token = _listening.set(Listener(tell))
        try:
            yield
        finally:
            _listening.reset(token)


_said = threading.Event()
"""Set once it has been said that there is something to compile."""


def _is_terminal(stream: Any) -> bool:
    """Programs replace a standard stream by nothing, by something that can only be written to, or close it."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


_UNHEARD: list[Callable[[], None]] = []
"""What begins to listen to numba once that is imported."""


@contextmanager
def telling_of_compiling() -> Iterator[None]:
    """Where someone looks on, one line as soon as something is compiled that no earlier run has left in the cache."""
    looks_on = _is_terminal(sys.stderr) or "ipykernel" in sys.modules
    if _said.is_set() or not looks_on:
        yield
        return
    with ExitStack() as listening:

        def listen() -> None:
            listening.enter_context(_said_once())

        if "numba" in sys.modules:
            listen()
        else:  # it is imported by the first that compiles
            _UNHEARD.append(listen)
        try:
            yield
        finally:
            _UNHEARD[:] = [each for each in _UNHEARD if each is not listen]


def telling_what_is_compiled() -> None:
    """numba has been imported: whoever waits to hear from it begins to listen."""
    while _UNHEARD:
        _UNHEARD.pop()()


def _said_once() -> Any:
    """While it lasts, the first thing that numba compiles is said."""
    from numba.core import event

    class Tell(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            if not _said.is_set():
                _said.set()
                print(COMPILING, file=sys.stderr, flush=True)

        def on_end(self, event: Any) -> None:
            """Nothing is said of the end."""

    return event.install_listener("numba:compile", Tell())


def report(doing: str, fraction: float | None = None) -> None:
    """Say what is being done; nothing happens where nobody listens."""
    listener = _listening.get()
    if listener is not None:
        listener.report(doing, fraction)


def enough(doing: str) -> bool:
    """Whether to end here with what there is; if so it is remembered what was cut short."""
    listener = _listening.get()
    if listener is None or not listener.enough:
        return False
    if doing not in listener.cut:
        listener.cut.append(doing)
    return True


def steps(
    items: Iterable[Item], doing: str, *, total: int | None = None, least: int = 1
) -> Iterator[Item]:
    """The items of a loop, each reported as it begins; at least `least` of them, even where less is asked for.

    Loops inside an item count as parts of it.
    """
    listener = _listening.get()
    if listener is None:
        yield from items
        return
    count = len(items) if isinstance(items, Sized) else total
    low, high = listener.spans[-1] if listener.spans else (0.0, 1.0)
    for k, item in enumerate(items):
        if k >= least and enough(doing):
            return
        listener.report(doing, None if count is None else k / count)
        size = (high - low) / (count or 1)
        listener.spans.append((low + k * size, low + (k + 1) * size))
        try:
            yield item
        finally:
            listener.spans.pop()


def cut_short() -> str | None:
    """What was ended early on request, in a sentence; None where nothing was."""
    listener = _listening.get()
    if listener is None or not listener.cut:
        return None
    return (
        f"Stopped on request: {', '.join(listener.cut)} ended early. This is the best that was found by then, not the "
        "answer of a whole fit."
    )


def told(step: Progress) -> str:
    """How much of a step is left, in words; empty where it is not known."""
    if step.seconds_left is None or step.seconds_left < 1:
        return ""
    seconds = round(step.seconds_left)
    text = f"{seconds} s" if seconds < 120 else f"{round(seconds / 60)} min"
    return f"about {text} left"


@contextmanager
def bar(
    *, shown: bool = True, lines: bool = False, console: Console | None = None
) -> Iterator[Callback]:
    """A bar in a terminal or a notebook, with what is being done and how long it will take.

    The first Ctrl-C asks for what there is, the second ends it.

    Parameters
    ----------
    shown : bool
        False for the Ctrl-C alone.
    lines : bool
        Where there is neither a terminal nor a notebook, a plain line for each step, and every few seconds of it.
    console : rich.console.Console, optional
        Where to draw.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> with rt.progress.bar(shown=False) as callback:
    ...     Y = rt.LinearSDE([[-1.0]], [[1.0]]).simulate(30, 8, 0.1, x0=0.1, random_state=0)
    ...     model = rt.ReTrace(dt=0.1, random_state=0).fit(Y, progress=callback)
    >>> model.order_.shape
    (8,)
    """
    live = _is_terminal(sys.stderr) or "ipykernel" in sys.modules
    if console is not None:
        live = console.is_terminal or console.is_jupyter
    say = _line if console is None else partial(console.print, markup=False, highlight=False, soft_wrap=True)  # fmt: skip
    with _drawn(console) if shown and live else nullcontext() as draw, polite_interrupts(say) as asked:  # fmt: skip
        said = ("", -LINE_EVERY)

        def tell(step: Progress) -> None:
            nonlocal said
            if lines and shown and not live and (step.doing != said[0] or step.elapsed >= said[1] + LINE_EVERY):  # fmt: skip
                said = step.doing, step.elapsed
                share = "" if not step.fraction else f" {step.fraction:.0%}"
                text = f"{step.elapsed:.0f} s: {step.doing}{share}, {told(step)}"
                say(text.removesuffix(", "))
            if draw is not None:
                draw(step)
            asked.begun = asked.begun or step.fraction is not None  # reading a file leaves nothing
            if asked.enough:
                raise StopIteration

        yield tell


@contextmanager
def _drawn(console: Console | None) -> Iterator[Callable[[Progress], None]]:
    """The bar itself: rich is imported only where there is something to draw on."""
    from rich.console import Console as Screen
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}")  # fmt: skip
    with Bar(*columns, console=console or Screen(stderr=True), transient=True) as drawn:
        task = drawn.add_task("starting", total=None, left="")

        def draw(step: Progress) -> None:
            done = None if step.fraction is None else 100 * step.fraction
            total = None if done is None else 100
            drawn.update(
                task, description=step.doing, total=total, completed=done or 0, left=told(step)
            )

        yield draw


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Asked:
    """Whether anything has begun, and whether what there is has been asked for."""

    begun: bool = False
    enough: bool = False


@contextmanager
def polite_interrupts(say: Callable[[str], None]) -> Iterator[Asked]:
    """The first Ctrl-C asks for what there is, said in a line; the second, or one before any step, interrupts."""
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def interrupted(number: int, frame: FrameType | None) -> Any:
        if asked.enough or not asked.begun:
            raise KeyboardInterrupt
        asked.enough = True
        say("stopping: finishing with what there is; Ctrl-C again drops it.")

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
