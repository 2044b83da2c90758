"""The package's layout: imports point one way, public functions take keywords, docstrings exist."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import retrace_sde as rt

LAYERS = """
metrics answers formats columns frames files panel sde blocks constraints knowledge drift simulate tumour moments
estimation discretisation statespace_kernels statespace_model statespace_riccati statespace_alone statespace
statespace_steps statespace_errors statespace_em costs start kernels guided ordering score score_density
score_network dispersion cycles direction identifiability problem irregular subjects process arrangement
noisy_kernels noisy noisy_shared bootstrap shared spacing algorithm1 flips independent noisy_orders
noisy_independent noisy_rules sampling mcem innovations subject_orders posterior noisy_posterior fitting
noisy_fitting result units fitted validation settings retrace counterfactual regime interventions treatment
enumeration baselines plots verdicts figures report labels recovery diagnosis demo experiments cli_common cli_fit
cli_diagnose cli_simulate cli_reproduce cli_effect cli
""".split()  # noqa: SIM905 - a list to read, not to parse
SOURCE = Path(rt.__file__).parent
FILES = {
    **{path.stem: [path] for path in SOURCE.glob("*.py") if not path.stem.startswith("__")},
    **{path.parent.name: sorted(path.parent.glob("*.py")) for path in SOURCE.glob("*/__init__.py")},
}
MODULES = sorted(FILES)


def test_every_module_has_its_place():
    assert sorted(LAYERS) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way_along_the_data(name):
    nodes = [node for path in FILES[name] for node in ast.walk(ast.parse(path.read_text()))]
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            "retrace_sde"
        ):
            continue
        parts = node.module.split(".")
        used = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        for other in set(used) - {
            name,
            "__version__",
        }:  # a package's own modules may use one another
            assert LAYERS.index(other) < LAYERS.index(name), f"{name} imports {other}"


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


def test_modules_are_short():
    for path in (path for paths in FILES.values() for path in paths):
        assert len(path.read_text().splitlines()) <= 400, path
