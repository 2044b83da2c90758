"""What an experiment is: settings in three sizes, tasks that give records, and how records are shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

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
