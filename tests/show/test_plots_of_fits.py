"""Every plot takes a fitted model, a recovery or, where no data are needed, a result; notebooks show verdicts."""

from __future__ import annotations

import inspect

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import retrace_sde as rt
from retrace_sde.show import plots

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")

EVERY = [
    name
    for name, function in inspect.getmembers(plots, inspect.isfunction)
    if function.__module__ == plots.__name__ and not name.startswith("_")
]
EVERY = [name for name in EVERY if name not in ("comparable", "calibration")]
WITHOUT_DATA = [
    "matrix", "drift_graph", "effects", "eigenvalues", "parameter_intervals", "gaps", "direction_evidence",
    "residual_quantiles", "residual_positions", "autocorrelation", "simulated_fan",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def found():
    table, _ = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    table["slice"] = "box " + table["slice"].astype(str)
    options = {"subjects": "alike", "observation_noise": None, "dt": 4.0, "random_state": 0}
    return rt.recover(table, subject="patient", slice="slice", **options)


@pytest.fixture(scope="module")
def own():
    X = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    return rt.ReTrace(dt=0.05, permutation="independent", random_state=0).fit(X)


@pytest.mark.parametrize("name", EVERY)
def test_a_plot_takes_a_fit(found, name):
    for source in (found, found.model, *([found.model.result_] if name in WITHOUT_DATA else [])):
        ax = np.ravel(getattr(rt.plots, name)(source))[0]
        assert ax.get_title() or name == "both_ways"


OF_OWN_ORDERS = [
    name for name in EVERY if not name.startswith(("cost", "resid", "autoc", "simulated"))
]


@pytest.mark.parametrize("name", OF_OWN_ORDERS)
def test_orders_of_single_trajectories_are_drawn_too(own, name):
    getattr(rt.plots, name)(own)


@pytest.mark.parametrize("name", ["cost_matrix", "position_probabilities", "order_certainty", "trajectories"])  # fmt: skip
def test_slices_have_their_labels(found, name):
    ax = getattr(rt.plots, name)(found)
    ax.figure.canvas.draw()
    axis = ax.yaxis if name == "position_probabilities" else ax.xaxis
    shown = [each.get_text() for each in axis.get_ticklabels()]
    assert shown == [str(found.panel.slices[k]) for k in found.model.order_]


def test_options_go_before_what_the_fit_says(found):
    ax = rt.plots.matrix(found, title="My title")
    assert ax.get_title() == "My title"
    ax = rt.plots.simulated_fan(found.model, 1)
    assert ax.get_title().startswith(found.panel.names[1])
    rt.plots.calibration(np.arange(12), found.model)


def test_what_cannot_be_drawn_is_said(found, own):
    with pytest.raises(NotFittedError):
        rt.plots.gaps(rt.ReTrace())
    with pytest.raises(ValueError, match="needs the data"):
        rt.plots.trajectories(found.model.result_)
    with pytest.raises(ValueError, match="its own order"):
        rt.plots.cost_matrix(own)
    with pytest.raises(ValueError, match="no residuals"):
        rt.plots.autocorrelation(own)


def test_notebooks_show_the_verdict(found):
    verdict = found.model.direction_.verdict
    for each in (found.model, found, found.model.result_):
        assert verdict in each._repr_html_()
    bundle = found.model._repr_mimebundle_()
    assert verdict in bundle["text/html"]
    assert "ReTrace" in rt.ReTrace()._repr_html_()
