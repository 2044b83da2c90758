"""Every public name has an example that runs, and says what each of its parameters is."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import matplotlib.pyplot as plt
import pytest

import retrace_sde as rt

NOT_EXPLAINED = {"self", "cls", "y"}
"""Parameters that speak for themselves; y is ignored wherever it stands."""


def public() -> Iterator[tuple[str, Any, Any]]:
    """Each public name with its object and, of a method, its class; each object under its first name."""
    seen: set[int] = set()
    for name in rt.__all__:
        for path, found, owner in _below(f"rt.{name}", getattr(rt, name)):
            if id(found) not in seen:
                seen.add(id(found))
                yield path, found, owner


def _below(path: str, found: Any, owner: Any = None) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, ModuleType):
        own = [
            name
            for name, each in vars(found).items()
            if getattr(each, "__module__", "") == found.__name__ and not name.startswith("_")
        ]
        listed = getattr(found, "__all__", own)
        for name in listed:
            if isinstance(getattr(found, name), (type, FunctionType)):
                yield from _below(f"{path}.{name}", getattr(found, name))
        return
    yield path, found, owner
    if isinstance(found, type):
        for base in reversed([each for each in found.__mro__ if _ours(each)]):
            for name, member in vars(base).items():
                method = getattr(member, "__func__", member)
                if isinstance(method, FunctionType) and not name.startswith("_"):
                    yield f"{path}.{name}", getattr(found, name), found


def _ours(owner: type) -> bool:
    return owner.__module__.startswith("retrace_sde")


def sections(found: Any) -> dict[str, str]:
    """A numpydoc docstring's sections by their titles; what comes before them under ""."""
    parts = re.split(r"^(\w+)\n-{3,}\n", inspect.getdoc(found) or "", flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def explained(found: Any) -> set[str]:
    """Names at the margin of `Parameters` and `Attributes`."""
    text = sections(found)
    heads = re.findall(
        r"^(\S.*?) : |^(\*\*\w+)$",
        text.get("Parameters", "") + text.get("Attributes", ""),
        re.MULTILINE,
    )
    return {name.strip("*") for head in heads for name in re.split(r",\s*", head[0] or head[1])}


def parameters(found: Any) -> set[str]:
    builtin = isinstance(found, type) and "__init__" not in vars(found)
    if builtin and not any("__init__" in vars(each) for each in found.__mro__ if _ours(each)):
        return set()
    return set(inspect.signature(found).parameters) - NOT_EXPLAINED


NAMES = list(public())


@pytest.mark.parametrize(("path", "found", "owner"), NAMES, ids=[each[0] for each in NAMES])
def test_every_public_name_has_an_example(path, found, owner):
    """Its own, or, of a method, one of its class (or of the class that it is promised by) that calls it."""
    called = f".{path.rpartition('.')[2]}("
    own = ">>>" in (inspect.getdoc(found) or "")
    classes = [] if owner is None else [each for each in owner.__mro__ if _ours(each)]
    assert own or any(called in sections(each).get("Examples", "") for each in classes), path


@pytest.mark.parametrize(
    ("path", "found"), [each[:2] for each in NAMES], ids=[each[0] for each in NAMES]
)
def test_every_parameter_is_explained(path, found):
    assert not parameters(found) - explained(found), path


EXAMPLES = [each[:2] for each in NAMES if ">>>" in (inspect.getdoc(each[1]) or "")]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("path", "found"), EXAMPLES, ids=[each[0] for each in EXAMPLES])
def test_examples_run_as_shown(path, found, tmp_path, monkeypatch):
    text = inspect.getdoc(found)
    if "(extra `formats`)" in text:
        pytest.importorskip("anndata")
        pytest.importorskip("xarray")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {}, path, None, 0)
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    plt.close("all")
    assert not told, "".join(told)


API = Path(__file__).parents[1] / "docs" / "api.md"


@pytest.mark.skipif(not API.exists(), reason="the docs are in the repository, not in a wheel")
def test_every_public_name_is_in_the_reference():
    listed = set(API.read_text(encoding="utf-8").split())
    assert not [path for path, _, owner in NAMES if owner is None and path[3:] not in listed]
