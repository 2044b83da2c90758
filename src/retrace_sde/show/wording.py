"""Sentences in the words of the interface that their reader is in: arguments in Python, flags in a command, choices on the page.

What was found is said in the words of Python, `outliers='keep'`. An interface that shows it says how it calls the same
(`speaking`); like the listener of `progress` that waits in a context variable, so that no signature carries it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Wording = Callable[[str], str]

_wording: ContextVar[Wording] = ContextVar("retrace_wording", default=str)

SETTING = re.compile(
    r"\b([a-z][a-z_]*)=(?:'([^']*)'|(True|False|None)\b|\[('[^\]]*')\]|(?=[\s,.;:)]|$))"
)
"""A setting as Python writes it: a name with a text, a truth value, None or a list of texts; or the name alone, `time=`."""

OUTSIDE_PYTHON = {
    "result_.suspects": "suspects.csv",
    "max_iter": "max_iter (in Python)",
    "sample_orders()": "sample_orders() (in Python)",
    "bootstrap_errors()": "bootstrap_errors() (in Python)",
}
"""What every other interface calls otherwise, or has not."""

SENTENCES = {"advice", "assumptions", "can", "cannot", "cautions", "findings", "notes", "sentence", "verdict", "warnings"}  # fmt: skip
"""Keys of an answer under which there are sentences; under all others are the user's own names and numbers."""


@contextmanager
def speaking(words: Wording) -> Iterator[None]:
    """What is shown inside is said in these words."""
    token = _wording.set(words)
    try:
        yield
    finally:
        _wording.reset(token)


def worded(text: str) -> str:
    """A sentence in the words of the interface."""
    return _wording.get()(text)


def in_words(setting: Callable[[str, str | None], str | None], others: dict[str, str]) -> Wording:
    """A wording: how a setting with its value (None: its name alone) is called, None where it has no name; and other words, its own."""

    def each(found: re.Match[str]) -> str:
        name, text, truth, several = found.groups()
        value = several.replace("'", "").replace(", ", ",") if several else text or truth
        return setting(name, value) or found[0]

    def words(text: str) -> str:
        for python, here in {**OUTSIDE_PYTHON, **others}.items():
            text = text.replace(python, here)
        return SETTING.sub(each, text)

    return words


def reworded(answer: Any, *, sentences: bool = False) -> Any:
    """An answer whose sentences are in the words of the interface."""
    if isinstance(answer, dict):
        return {key: reworded(each, sentences=key in SENTENCES) for key, each in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [reworded(each, sentences=sentences) for each in answer]
    return worded(answer) if sentences and isinstance(answer, str) else answer
