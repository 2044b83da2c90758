"""Compiled kernels, whose cached code is read by the version of the package that wrote it, and by no other.

numba unpickles the index of a cache before it looks whether the source has changed since. An index that a former version wrote may name
modules that are gone, so that after an upgrade in place the first call raised ModuleNotFoundError. What another version of numba wrote is
not unpickled: so the version that an index is compared by includes ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

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


def _borrowed(typing_context: Any, value: Any) -> Any:
    """The same tuple or array without an owner, so that numba counts no references to its arrays: of the 173 ns of a sampler's move that was 133.

    Only within a call, for whose time the caller owns them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _disowned(context, builder, value, args[0])

    return value(value), generate


borrowed: Any = intrinsic(_borrowed)


def _disowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The code of `borrowed`, also for what a tuple holds."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value=value)
        array.meminfo = array.meminfo.type(None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        members: Any = kind
        for k, each in enumerate(members.types):
            part = _disowned(context, builder, each, builder.extract_value(value, k))
            value = builder.insert_value(value, part, k)
    return value
