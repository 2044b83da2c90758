"""Compiled kernels, whose cached code is read by the version of the package that wrote it, and by no other.

numba unpickles the index of a cache before it looks whether the source has changed since. An index that a former version wrote may name
modules that are gone, so that after an upgrade in place the first call raised ModuleNotFoundError. What another version of numba wrote is
not unpickled: so the version that an index is compared by includes ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from retrace_sde import __version__


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache of this version's own."""

    def compiled(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(**options)(function)
        # There is none where compilation is switched off, or nothing is cached.
        index = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
        if index is not None:
            index._version = f"{index._version}, retrace-sde {__version__}"
        return kernel

    return compiled
