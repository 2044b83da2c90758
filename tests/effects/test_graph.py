"""The graph of effects: values by definition, errors against simulation, edges that chance seldom draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

import retrace_sde as rt
from retrace_sde.effects.graph import Effect, _covariance, _turned
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear

A = np.array([[-1.0, 0.5, 0.0], [0.0, -1.2, 0.4], [0.0, 0.0, -0.8]])
H = np.array([[0.3, 0.1, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.2]])
DT = 0.2
TRUTH = {"rates": A, "over time": expm(A), "for good": -np.linalg.inv(A)}


def fit(seed, n=100, T=20, x0=1.0):
    X = rt.LinearSDE(A, H).simulate(n, T, DT, x0=x0, scheme="exact", random_state=seed)
    known = None if x0 == "stationary" else rt.Knowledge(positions={k: k for k in range(T)})
    return rt.ReTrace(dt=DT, estimator="exact", n_jobs=1).fit(X, knowledge=known)


@pytest.mark.parametrize("kind", [Effect.OVER_TIME, Effect.FOR_GOOD])
def test_slopes_are_those_of_finite_differences(kind):
    _, slopes = _turned(A, kind, 0.7)
    for k in range(9):
        step = np.zeros(9)
        step[k] = 1e-5
        ends = [_turned(A + sign * step.reshape(3, 3), kind, 0.7)[0] for sign in (1, -1)]
        np.testing.assert_allclose(slopes[:, k], (ends[0] - ends[1]).ravel() / 2e-5, atol=1e-6)


def test_covariances_of_maximum_likelihood_are_exact():
    """`Cov(vec Θ) = H ⊗ C`, row by row, C the inverse Gram matrix."""
    X = rt.LinearSDE(A, H).simulate(100, 20, DT, x0=1.0, random_state=0)
    found = mle(moments(Data(X), np.arange(20), DT, Linear()))
    C = found.errors.covariances[0] / found.diffusion[0, 0]
    np.testing.assert_allclose(
        _covariance(found.coefficients, found.diffusion, found.errors),
        np.kron(found.diffusion, C),
        rtol=1e-6,
    )


# Of many clean panels a few may have a false alarm of the screening.
@pytest.mark.filterwarnings("ignore:.*look(s)? wrong:retrace_sde.ReTraceWarning")
@pytest.mark.parametrize(
    "kind",
    [*[*TRUTH][:1], *(pytest.param(each, marks=pytest.mark.statistics) for each in [*TRUTH][1:])],
)
@pytest.mark.parametrize(
    ("runs", "covered", "wrong"),
    [(6, 0.83, 3), pytest.param(30, 0.90, 5, marks=pytest.mark.statistics)],
)
def test_intervals_hold_the_truth_and_false_edges_are_rare(kind, runs, covered, wrong):
    """Panels of 9: .90 of 30, and .83 of 6, is four standard errors below .95; false edges in five of 30, or three of 6, have probability .02
    or less at 5 %, and Bonferroni's is less."""
    inside, false = [], 0
    for seed in range(runs):
        graph = rt.effect_graph(fit(seed), kind=kind, span=1.0)
        inside.append(np.abs(graph.values - TRUTH[kind]) < 1.96 * graph.errors)
        false += bool((graph.told & (np.abs(TRUTH[kind]) < 1e-12)).any())
        assert len(graph.edges) == graph.told.sum()
    assert np.mean(inside) > covered
    assert false < wrong


def test_edges_are_named_and_the_clearest_first():
    graph = rt.effect_graph(fit(3, n=400))
    told = {(edge.cause, edge.effect) for edge in graph.edges}
    assert {("x1", "x0"), ("x2", "x1"), ("x0", "x0")} <= told
    assert ("x0", "x1") not in told
    for edge in graph.edges:
        assert edge.low * edge.high > 0
        assert f"{edge.cause} → {edge.effect}" in str(graph)


def test_an_open_direction_gives_both_graphs():
    model = fit(5, x0="stationary")
    if model.direction_.identified:
        pytest.skip("called by chance")
    graph = rt.effect_graph(model)
    np.testing.assert_array_equal(graph.twin.values, model.alternative_.drift)
    assert np.isfinite(graph.twin.errors).all()
    assert "in the reversed order, which is as likely" in str(graph)


def test_what_has_no_graph_is_refused():
    model = fit(1, n=30)
    with pytest.raises(ValueError, match="kind must be one of"):
        rt.effect_graph(model, kind="causal")
    with pytest.raises(ValueError, match="fitted ReTrace"):
        rt.effect_graph(A)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 8, 1)).cumsum(axis=1)
    other = rt.ReTrace(drift=rt.drift.Polynomial(2), n_jobs=1)
    other.fit(X, knowledge=rt.Knowledge(positions={k: k for k in range(8)}))
    assert rt.effect_graph(other).values.shape == (1, 3)
    with pytest.raises(ValueError, match="linear or affine"):
        rt.effect_graph(other, kind="for good")


@pytest.mark.parametrize("kind", list(Effect))
def test_effects_and_intervals_scale_with_the_units_of_variables(kind):
    X = rt.LinearSDE(A, H).simulate(60, 15, DT, x0=1.0, random_state=0)
    known = rt.Knowledge(positions={k: k for k in range(15)})

    def found(units):
        graph = rt.effect_graph(rt.ReTrace(dt=DT).fit(X * units, knowledge=known), kind=kind)
        values = np.stack([graph.values, graph.low, graph.high])[:, :, :3]
        return values / (np.array(units)[:, None] / units)

    np.testing.assert_allclose(found([1e9, 1e-9, 1.0]), found([1.0, 1.0, 1.0]), rtol=1e-6)
