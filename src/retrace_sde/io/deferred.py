"""Modules that are imported when they are first used: a fit of an array needs no table library, and most fits no scipy.stats."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["deferred", "joblib", "nw", "optimize", "pd", "stats"]


class _Deferred:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def deferred(name: str) -> Any:
    """A module that is imported when one of its names is first asked for."""
    return _Deferred(name)


if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
else:
    nw, pd = deferred("narwhals"), deferred("pandas")

joblib, optimize, stats = (deferred(name) for name in ("joblib", "scipy.optimize", "scipy.stats"))
