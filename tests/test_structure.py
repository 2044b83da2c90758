"""The house: rooms along the data's way, imports that point down, few files in a room, short functions."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import retrace_sde as rt

WAY = """
metrics datasets progress io panel process fit orders search evidence paper after result estimator retrace effects show diagnosis
arrow audit recovery anndata reproduce lost_time app cli
""".split()  # noqa: SIM905 - a list to read, not to parse
"""Rooms and the faces in front of them; each uses only what comes before it."""

SOURCE = Path(rt.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def place(path: Path) -> str:
    """The room of a file, or the name of a face."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def test_every_file_is_in_a_room_or_a_face():
    assert {place(path) for path in FILES} - {"__init__", "__main__"} == set(WAY)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_the_way(path):
    here = place(path)
    if here in ("__init__", "__main__"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            "retrace_sde"
        ):
            continue
        parts = node.module.split(".")
        used = {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        for other in used - {here, "__version__"}:
            assert WAY.index(other) < WAY.index(here), f"{here} imports {other}"


def test_no_room_is_crowded():
    for folder in {path.parent for path in FILES}:
        most = 12 if folder == SOURCE else 16
        assert len(list(folder.glob("*.py"))) <= most, folder


FUNCTIONS = [
    (path, node)
    for path in FILES
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
]


def test_functions_are_short_and_take_few_arguments():
    """But for the estimators' own settings and the commands' own options; states and laws travel as named tuples.

    What explains a function does not make it long.
    """
    for path, node in FUNCTIONS:
        where = f"{path.relative_to(SOURCE)}: {node.name}"
        first = node.body[0]
        words = first.end_lineno - first.lineno if ast.get_docstring(node) else 0
        assert node.end_lineno - node.lineno - words <= 70, where
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        command = path.parent.name == "cli" and node.decorator_list
        assert len(given) <= 10 or node.name == "__init__" or command, where


PUBLIC = [
    *(
        function
        for module in (rt.simulate, rt.baselines, rt.metrics, rt.plots)
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not function.__name__.startswith("_")
    ),
    rt.ReTrace.__init__,
    rt.LinearSDE.__init__,
    rt.Panel.from_array,
    rt.Panel.from_frame,
    rt.recover,
    rt.write_report,
    rt.treatment.TreatmentEffect.__init__,
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f.__qualname__)
def test_options_are_keyword_only(function):
    """Beyond the data (at most two arguments without a default) everything is passed by name."""
    parameters = inspect.signature(function).parameters.values()
    optional = [
        p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty
    ]
    assert optional in ([], ["order"])


@pytest.mark.parametrize("name", rt.__all__)
def test_public_names_exist_and_are_documented(name):
    assert inspect.getdoc(getattr(rt, name))
