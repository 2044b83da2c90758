"""What is imported when: nothing before it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import click
import pytest

import retrace_sde as rt
from retrace_sde.cli.main import COMMANDS, main

HEAVY = ("numba", "sklearn", "pandas", "scipy", "matplotlib", "numpy", "narwhals", "rich", "jinja2")


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has after some code."""
    program = f"{code}\nimport sys; print('\\n', *sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import retrace_sde",
        "from retrace_sde.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(code):
    assert imported(code).isdisjoint(HEAVY)


def test_a_fit_of_few_slices_compiles_nothing():
    fit = "import retrace_sde as rt; rt.ReTrace(dt=0.1, random_state=0).fit(rt.LinearSDE([[-1.0]], [[1.0]]).simulate(30, 8, 0.1, x0=2.0, random_state=0))"
    assert "numba" not in imported(fit)


def test_a_fit_with_missing_values_imports_no_scipy_stats_and_no_library_of_tables():
    fit = """
import numpy as np, retrace_sde as rt
X = rt.LinearSDE(-np.eye(2), np.eye(2)).simulate(20, 8, 0.1, x0=2.0, random_state=0)
X[::3, 4] = np.nan
rt.ReTrace(dt=0.1, random_state=0, n_jobs=1).fit(X)
"""
    assert imported(fit).isdisjoint({"scipy.stats", "pandas", "narwhals"})


def test_the_names_for_readers_and_the_names_that_are_imported_are_the_same():
    tree = ast.parse(inspect.getsource(rt))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    read = {
        alias.asname or alias.name
        for node in block.body
        for alias in node.names  # type: ignore[attr-defined]
    }
    assert read == set(rt.__all__) == {*rt._MODULES, *rt._HOMES}
    assert set(rt.__all__) <= set(dir(rt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rt.nothing


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_help_says(name):
    command = main.get_command(click.Context(main), name)
    assert command.name == name
    assert command.help
