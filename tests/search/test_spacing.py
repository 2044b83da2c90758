"""Unknown gaps: the likelihood against its definition, and gaps recovered with honest intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.fit.euler import Euler, step_log_likelihoods
from retrace_sde.fit.irregular_times import Spans, StepMoments, step_likelihood
from retrace_sde.fit.statespace.transitions import exponentials, transitions
from retrace_sde.fit.unequal_steps import Clocks, gap_clocks
from retrace_sde.orders.costs import best_gaps, gap_costs
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Clock, Gaps
from retrace_sde.process.drift import Affine, Drift
from retrace_sde.search.models.estimated_gaps import GapModel, _constrained_gaps
from retrace_sde.search.models.exact_gaps import spans

DT = 0.5


def irregular_panel(d, n, T, seed, *, spread=1.5):
    """A transient observed at irregular times, by exact transitions: X, gaps of mean DT, and the SDE."""
    rng = np.random.default_rng(seed)
    A = -0.5 * np.eye(d) + 0.3 * rng.standard_normal((d, d)) / np.sqrt(d)
    sde = rt.LinearSDE(A, 0.3 * np.eye(d))
    gaps = rng.gamma(spread, 1, T - 1) + 0.1
    gaps *= DT / gaps.mean()
    x = 2 + 0.2 * rng.standard_normal((n, d))
    path = [x]
    for g in gaps:
        step = sde.transition(g, scheme="exact")
        noise = rng.standard_normal((n, d)) @ np.linalg.cholesky(step.covariance).T
        x = x @ step.matrix.T + step.shift + noise
        path.append(x)
    return np.stack(path, axis=1), gaps, sde


def test_exponentials_and_transitions_are_those_of_scipy_and_of_the_sde():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((7, 6, 6)) * np.logspace(-3, 0.7, 7)[:, None, None]
    np.testing.assert_allclose(exponentials(M), [expm(m) for m in M], rtol=1e-9, atol=1e-11)
    A, H, c = rng.standard_normal((3, 3)), np.diag([1.0, 2.0, 0.5]), rng.standard_normal(3)
    gaps = np.array([0.01, 0.3, 2.0])
    F, s, Q = transitions(np.c_[A, c], H, gaps)
    for k, g in enumerate(gaps):
        step = rt.LinearSDE(A, H, offset=c).transition(g, scheme="exact")
        np.testing.assert_allclose(F[k], step.matrix, rtol=1e-9)
        np.testing.assert_allclose(s[k, :, 0], step.shift, rtol=1e-8)
        np.testing.assert_allclose(Q[k], step.covariance, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    "stretch",
    [
        Spans(np.array([0]), np.array([5]), np.array([5.0])),
        Spans(np.array([1, 2]), np.array([2, 4]), np.array([1.5, 3.0])),
    ],
    ids=["one", "two"],
)
def test_the_gradient_is_that_of_finite_differences_and_the_value_that_of_densities(
    affine, stretch
):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((9, 6, 2)).cumsum(axis=1)
    steps = StepMoments.of(Data(X, n_jobs=1), np.arange(6), np.ones(2), affine=affine)
    likelihood = step_likelihood(steps, np.ones(5), stretch, affine=affine)
    p = 0.3 * rng.standard_normal(4 + 2 * affine + 3 + 5)
    value, gradient = likelihood(p)
    h = 1e-6
    numeric = [
        (likelihood(p + h * e)[0] - likelihood(p - h * e)[0]) / (2 * h) for e in np.eye(len(p))
    ]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(gradient).max())
    theta, H, g = likelihood.split(p)
    for a, b, length in zip(stretch.begin, stretch.end, stretch.length, strict=True):
        assert g[a:b].sum() == pytest.approx(length)
    total, y = 0.0, X - steps.centre
    for i, gap in enumerate(g):
        step = rt.LinearSDE(theta[:, :2], H, offset=theta[:, 2]).transition(gap, scheme="exact")
        residual = y[:, i + 1] - y[:, i] @ step.matrix.T - step.shift
        total += multivariate_normal(np.zeros(2), step.covariance).logpdf(residual).sum()
    assert -value - 9 * 5 * np.log(2 * np.pi) == pytest.approx(total)


def test_a_pairs_best_gap_is_the_minimum_of_its_density():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((6, 4, 2)).cumsum(axis=1)
    theta = rng.standard_normal((2, 3))
    model = Euler(Affine(), theta, np.array([[1.0, 0.3], [0.3, 0.7]]), 0.4)
    C = gap_costs(Data(X, n_jobs=1), model)

    def density(a, b, g):
        phi = np.concatenate([X[:, a], np.ones((6, 1))], axis=1)
        residual = X[:, b] - X[:, a] - phi @ theta.T * g * 0.4
        law = multivariate_normal(np.zeros(2), model.diffusion * g * 0.4)
        return -law.logpdf(residual).sum()

    constant = 6 * (np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(model.diffusion * 0.4)[1])
    for a, b in [(0, 1), (1, 0), (2, 3), (3, 0)]:
        best = minimize_scalar(
            lambda u, a=a, b=b: density(a, b, np.exp(u)), bounds=(-8, 8), method="bounded"
        )
        assert C[a, b] == pytest.approx(best.fun - constant, rel=1e-6)
    assert best_gaps(np.array([3.0]), np.array([0.0]), 6.0) == pytest.approx(0.5)


def test_constrained_gaps_keep_their_lengths_and_are_best_among_those_that_do():
    X, _, _ = irregular_panel(2, 20, 9, 0)
    stamps = np.full(9, np.nan)
    stamps[[1, 4, 6]] = [10.0, 11.7, 12.0]
    problem = GapModel(Data(X, n_jobs=1), DT, Affine(), timing=Clock(stamps=stamps))
    order = np.arange(9)
    found = problem.fit(order)
    along = found.gaps.along(9)
    assert along[1:4].sum() == pytest.approx(1.7)
    assert along[4:6].sum() == pytest.approx(0.3)
    best = found.log_likelihood
    rng = np.random.default_rng(0)
    gaps = DT * _constrained_gaps(problem, found, spans(problem, order))
    model = found.step
    at = step_log_likelihoods(problem.data, order, model, Gaps.of(gaps)).sum()
    for _ in range(20):
        other = gaps * np.exp(0.05 * rng.standard_normal(8))
        other[1:4] *= 1.7 / other[1:4].sum()
        other[4:6] *= 0.3 / other[4:6].sum()
        assert step_log_likelihoods(problem.data, order, model, Gaps.of(other)).sum() < at
    assert np.isfinite(best)
    times = problem.timing.times(order, found.gaps)
    np.testing.assert_allclose(times[[1, 4, 6]], [10.0, 11.7, 12.0])


@pytest.mark.filterwarnings("ignore:The order may be folded")
@pytest.mark.parametrize("d", [1, 2])
def test_gaps_of_an_irregular_panel_are_recovered_with_its_order(d):
    X, gaps, sde = irregular_panel(d, 60, 12, 2)
    shuffled, truth = rt.simulate.shuffle(X, random_state=1)
    model = rt.ReTrace(drift="affine", dt=DT, spacing="estimate", n_jobs=1)
    model.fit(shuffled, knowledge=rt.Knowledge(first=int(truth[0])))
    np.testing.assert_array_equal(model.order_, truth)
    assert model.gaps_.mean() == pytest.approx(DT)
    assert np.corrcoef(np.log(model.gaps_), np.log(gaps))[0, 1] > 0.95
    low, high = model.result_.gap_intervals.T
    assert np.all((low < model.gaps_) & (model.gaps_ < high))
    # Eleven intervals of 95 %: fewer than eight hits have a probability below 1e-4.
    assert np.sum((low <= gaps) & (gaps <= high)) >= 8
    assert np.abs(model.drift_ - sde.drift).max() < 5 * model.standard_errors_.drift.max()
    np.testing.assert_allclose(np.diff(model.times_), model.gaps_)


def test_two_known_times_set_the_unit_and_the_origin():
    X, gaps, _ = irregular_panel(2, 60, 10, 3)
    times = 7 + 24 * np.concatenate([[0], np.cumsum(gaps)])
    stamps = np.full(10, np.nan)
    stamps[[2, 8]] = times[[2, 8]]
    model = rt.ReTrace(drift="affine", dt=24 * DT, spacing="estimate", n_jobs=1)
    model.fit(X, knowledge=rt.Knowledge(timestamps=stamps))
    np.testing.assert_array_equal(model.order_, np.arange(10))
    np.testing.assert_allclose(model.times_[[2, 8]], times[[2, 8]])
    assert np.corrcoef(model.times_, times)[0, 1] > 0.99


class Cubic(Drift):
    """A drift that is not linear in the state: x and x³."""

    def features(self, x, u):
        return np.concatenate([x, x**3], axis=-1)

    def feature_names(self, variables, covariates):
        return [*variables, *(f"{name}³" for name in variables)]


def test_other_drifts_alternate_between_parameters_and_gaps():
    X, gaps, _ = irregular_panel(2, 80, 10, 4, spread=3.0)
    model = rt.ReTrace(drift=Cubic(), dt=DT, spacing="estimate", n_jobs=1)
    model.fit(X, knowledge=rt.Knowledge(first=0))
    np.testing.assert_array_equal(model.order_, np.arange(10))
    assert np.corrcoef(np.log(model.gaps_), np.log(gaps))[0, 1] > 0.9
    assert model.result_.settings["estimator"] == "mle"
    assert model.result_.gap_intervals.shape == (9, 2)


def test_exact_transitions_with_known_irregular_times_have_no_bias_of_the_step():
    X, gaps, sde = irregular_panel(2, 2000, 8, 5)
    times = np.concatenate([[0], np.cumsum(2.5 * gaps)])
    slow = rt.LinearSDE(sde.drift / 2.5, sde.diffusion / 2.5)
    known = rt.Knowledge(timestamps=times)
    exact = rt.ReTrace(estimator="exact", n_jobs=1, drift="linear").fit(X, knowledge=known)
    euler = rt.ReTrace(estimator="mle", n_jobs=1, drift="linear").fit(X, knowledge=known)
    away = np.abs(exact.drift_ - slow.drift) / exact.standard_errors_.drift
    assert away.max() < 4
    assert np.abs(euler.drift_ - slow.drift).max() > 5 * exact.standard_errors_.drift.max()


@pytest.mark.filterwarnings("ignore:The order may be folded")
def test_the_result_with_gaps_is_saved_and_loaded(tmp_path):
    X, _, _ = irregular_panel(1, 20, 7, 6)
    model = rt.ReTrace(drift="affine", spacing="estimate", n_jobs=1)
    model.fit(X, knowledge=rt.Knowledge(first=0))
    loaded = rt.ReTraceResult.load(model.result_.save(tmp_path / "fit"))
    np.testing.assert_array_equal(loaded.gap_intervals, model.result_.gap_intervals)
    np.testing.assert_array_equal(loaded.times, model.times_)


def test_what_cannot_be_estimated_is_refused_with_the_reason():
    X = np.random.default_rng(0).standard_normal((10, 5, 1)).cumsum(axis=1)
    with pytest.raises(ValueError, match="order='likelihood'"):
        rt.ReTrace(spacing="estimate", order="score", drift="linear").fit(X)
    model = rt.ReTrace(spacing="estimate", permutation="independent", drift=rt.drift.Polynomial(2))
    with pytest.raises(ValueError, match="linear in the state only"):
        model.fit(X)


@pytest.mark.statistics
@pytest.mark.filterwarnings("ignore:The order may be folded")
def test_95_percent_intervals_of_gaps_cover_90_to_98_percent():
    hits = []
    for d, n, T in ((1, 60, 12), (2, 40, 15), (3, 30, 10)):
        for seed in range(20):
            X, gaps, _ = irregular_panel(d, n, T, seed)
            model = rt.ReTrace(drift="affine", spacing="estimate", dt=DT, n_jobs=1)
            model.fit(X, knowledge=rt.Knowledge(first=0))
            if np.array_equal(model.order_, np.arange(T)):
                low, high = model.result_.gap_intervals.T
                hits.append((low <= gaps) & (gaps <= high))
    share = np.concatenate(hits).mean()
    assert 0.90 < share < 0.98


def test_independent_orders_with_irregular_visits_are_not_called_backwards():
    """Decays that are looked at ever more rarely, each trajectory shuffled on its own.

    Taken for equal, such gaps favour the reverse; steps with variances of their own have to confirm it.
    """
    rng = np.random.default_rng(0)
    sde = rt.LinearSDE(np.diag([-0.5, -0.4, -0.6, -0.5]), 0.3 * np.eye(4))
    gaps = 1.4 ** np.arange(9)
    x = 3 + 0.5 * rng.standard_normal((120, 4))
    path = [x]
    for g in 0.5 * gaps / gaps.mean():
        step = sde.transition(g, scheme="exact")
        x = (
            x @ step.matrix.T
            + rng.standard_normal((120, 4)) @ np.linalg.cholesky(step.covariance).T
        )
        path.append(x)
    X, truth = rt.simulate.shuffle(
        np.stack(path, axis=1), permutation="independent", random_state=1
    )
    model = rt.ReTrace(
        drift="affine", permutation="independent", estimator="mle", random_state=0, n_jobs=1
    ).fit(X)
    wrong = rt.metrics.kendall_tau(truth, model.order_) < 0
    assert not (model.direction_.identified and wrong)
    assert model.direction_.log_likelihood_ratio > 0
    assert wrong  # as equal gaps would have it


def steps_of_gaps(rng, gaps, loud, n=60, d=2):
    """Whitened residuals and drifts of steps whose gaps are all taken for what `gaps` says, with volatilities `loud`."""
    push = rng.standard_normal((n, len(gaps), d)) + 2.0
    noise = rng.standard_normal(push.shape) * loud[:, None]
    return noise, push * np.sqrt(gaps)[:, None] / gaps[:, None]


def test_clocks_agree_on_gaps_and_disagree_on_volatility():
    rng = np.random.default_rng(11)
    gaps = rng.gamma(1.5, size=30)
    alike = gap_clocks(*steps_of_gaps(rng, gaps, np.ones(30)), gaps)
    assert alike.clocks is Clocks.AGREE
    assert alike.deviation < 0.1
    # Gaps as the spread alone would tell them, where volatility and not time was unequal: the drift disagrees.
    loud = np.exp(0.4 * rng.standard_normal(30))
    push = np.full((60, 30, 2), 3.0)
    noise = rng.standard_normal(push.shape)
    read = loud**2
    residuals, pushes = noise + push * (1 - read)[:, None] / loud[:, None], push / loud[:, None]
    unlike = gap_clocks(residuals, pushes, read)
    assert unlike.clocks is not Clocks.AGREE
    assert 0.3 < unlike.deviation <= np.log(read).std() + 1e-12


def test_equal_gaps_under_unequal_volatility_are_inside_their_intervals():
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(500 + seed)
        sde = rt.simulate.random_irreversible_sde(2, setting="stable", random_state=rng)
        step, x = sde.transition(0.1), 1.0 + 0.3 * rng.standard_normal((40, 2))
        path = [x]
        for _ in range(10):
            loud = np.exp(rng.standard_normal())
            x = x @ step.matrix.T + rng.multivariate_normal(np.zeros(2), loud * step.covariance, 40)
            path.append(x)
        known = rt.Knowledge(positions={k: k for k in range(11)})
        model = rt.ReTrace(dt=0.1, spacing="estimate", n_jobs=1)
        result = model.fit(np.stack(path, axis=1), knowledge=known).result_
        assert result.gap_clocks.clocks is not Clocks.AGREE
        assert str(result.gap_clocks) in result.summary()
        low, high = result.gap_intervals.T
        inside += list((low <= 0.1) & (high >= 0.1))
    assert np.mean(inside) > 0.85  # of 60; they were 40 % before intervals were widened


def test_what_was_searched_on_filled_values_is_fitted_on_those_seen():
    """A search model with as many trajectories was taken for the model itself: errors of A were 0, and gaps had none."""
    rng = np.random.default_rng(0)
    gaps = np.array([0.1, 0.3, 0.1, 0.2, 0.4, 0.1, 0.2])
    sde = rt.LinearSDE(-np.eye(2) + 0.5 * np.eye(2, k=1), 0.1 * np.eye(2))
    X = np.empty((30, 8, 2))
    X[:, 0] = 2 + 0.3 * rng.standard_normal((30, 2))
    for k, gap in enumerate(gaps):
        X[:, k + 1] = sde.simulate(30, 2, gap, x0=X[:, k], scheme="exact", random_state=rng)[:, 1]
    X[rng.random(X.shape) < 0.15] = np.nan
    model = rt.ReTrace(dt=0.2, spacing="estimate", random_state=0).fit(X)
    assert (model.standard_errors_.drift > 0).all()
    assert model.result_.gap_intervals is not None
    assert np.corrcoef(np.log(model.gaps_), np.log(gaps))[0, 1] > 0.9
