"""Compiled kernels: numba is imported, and a kernel made known to it, when the first one is called.

A fit of few slices calls none, and importing numba takes as long as such a fit.

The cached code of a kernel is read by the version of the package that wrote it, and by no other. numba unpickles the index of a cache
before it looks whether the source has changed since. An index that a former version wrote may name modules that are gone, so that after
an upgrade in place the first call raised ModuleNotFoundError. What another version of numba wrote is not unpickled: so the version that
an index is compared by includes ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any

from retrace_sde import __version__
from retrace_sde.progress import telling_what_is_compiled

_LOCK = threading.RLock()
_WAITING: list[tuple[Callable[..., Any], dict[str, Any], Callable[..., Any]]] = []
"""Overloads that numba does not know of yet."""


class Kernel:
    """A function that numba compiles when it is called, or when a kernel that calls it is compiled."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.options = function, options

    def __call__(self, *args: Any) -> Any:
        return self.compiled(*args)

    @cached_property
    def compiled(self) -> Any:
        """The function as numba has it."""
        import numba

        with _LOCK:
            if self.compiled_before:  # by another thread meanwhile
                return self.__dict__["compiled"]
            _make_known()
            kernel = numba.njit(**self.options)(self.py_func)
            # There is none where compilation is switched off, or nothing is cached.
            index = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
            if index is not None:
                index._version = f"{index._version}, retrace-sde {__version__}"
            self.__dict__["compiled"] = kernel
            return kernel

    @property
    def compiled_before(self) -> bool:
        """It was called already, or compiled for another kernel."""
        return "compiled" in self.__dict__

    @property
    def _numba_type_(self) -> Any:
        """What kernels that call this one are compiled with."""
        return self.compiled._numba_type_

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache of this version's own."""
    return lambda function: Kernel(function, options)


def overload(function: Callable[..., Any], **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.extending.overload`, for kernels that are compiled from now on."""

    def registered(chosen: Callable[..., Any]) -> Callable[..., Any]:
        _WAITING.append((function, options, chosen))
        return chosen

    return registered


def _make_known() -> None:
    """Tell numba of the overloads of all modules imported so far, and listeners that there may be something to compile."""
    from numba import extending

    telling_what_is_compiled()
    while _WAITING:
        function, options, chosen = _WAITING.pop(0)
        extending.overload(function, **options)(chosen)


def _borrowed(typing_context: Any, value: Any) -> Any:
    """The same tuple or array without an owner, so that numba counts no references to its arrays: of the 173 ns of a sampler's move that was 133.

    Only within a call, for whose time the caller owns them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _disowned(context, builder, value, args[0])

    return value(value), generate


class _Borrowed:
    """`_borrowed` as kernels call it."""

    @cached_property
    def _intrinsic(self) -> Any:
        from numba import extending

        return extending.intrinsic(_borrowed)

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        context = cpu_target.typing_context
        found = self._intrinsic  # which registers it
        context.refresh()
        return context.resolve_value_type(found)


borrowed: Any = _Borrowed()


def _disowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The code of `borrowed`, also for what a tuple holds."""
    from numba import types

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
