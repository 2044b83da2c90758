"""The direction on the order found: closed forms beside dense Gaussians, checks, the simulated test, candidates, residuals."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.linear_step import form_penalty
from retrace_sde.evidence.closed_form import null_simulation, reversibility
from retrace_sde.evidence.closed_form.checks import (
    CHECK_LEVEL,
    _bias,
    _regressor_moments,
    checked,
    free_nuisances,
)
from retrace_sde.evidence.closed_form.missing_draws import MissingDraws
from retrace_sde.evidence.closed_form.null_simulation import NullSimulator, simulated_test
from retrace_sde.evidence.closed_form.panels import Form, Ground, Panels
from retrace_sde.evidence.closed_form.rest import departures
from retrace_sde.evidence.closed_form.reversibility import (
    _squares,
    reversibility_p,
)
from retrace_sde.evidence.closed_form.steps import (
    StepFit,
    centred_rows,
    contributions,
    fit_directions,
    most_log_likelihood,
    ratios,
    residuals,
    rows_of,
)
from retrace_sde.evidence.closed_form.sums import StepSums
from retrace_sde.evidence.direction import marginal_test as summed
from retrace_sde.evidence.direction.independence import Independence, independence
from retrace_sde.evidence.direction.marginal_test import (
    OwnOrderSimulator,
    marginal_test,
    stationary_law,
)
from retrace_sde.evidence.direction.verdict import (
    DirectionTest,
    ModelEvidence,
    Reason,
    direction_test,
)
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.random_intercepts import fit_levels
from retrace_sde.fit.start_law import _shrink, starts
from retrace_sde.orders.draws import Chains
from retrace_sde.orders.own import EulerLaw
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.mcem import Averaged, both_ways
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

Floats = NDArray[np.float64]
DYNAMICS = [Form(), Form(affine=False), Form(2), Form(1, True), Form(2, True), Form(degree=3)]
FORMS = [
    *DYNAMICS,
    *(each._replace(means=True) for each in DYNAMICS),
    *(each._replace(means=True, spreads=True) for each in DYNAMICS),
]
DT = 0.1


def panel(d: int, n: int, T: int, seed: int, start: str = "stationary") -> Floats:
    """A stable SDE from its stationary law, from 1.5 deviations off it, or from a small start."""
    sde = random_irreversible_sde(d, random_state=seed)
    law, rng = sde.stationary(), np.random.default_rng(1000 + seed)
    away = law.mean + 1.5 * np.sqrt(np.diag(law.covariance))
    x0 = {
        "stationary": law,
        "shifted": Gaussian(away, law.covariance),
        "small": Gaussian(law.mean, 0.01 * law.covariance),
    }[start]
    return sde.simulate(n, T, DT, x0=x0, scheme="exact", random_state=rng)


def levelled(seed: int, *, n: int = 25, T: int = 12, d: int = 2) -> Floats:
    """Subjects with levels of their own."""
    rng = np.random.default_rng(seed)
    level, x, found = rng.standard_normal((n, d)), rng.standard_normal((n, d)), []
    for _ in range(T):
        found.append(x)
        x = 0.7 * x + 0.3 * level + 0.3 * rng.standard_normal((n, d))
    return np.stack(found, axis=1)


def momentum(seed: int, *, n: int = 40, T: int = 20) -> Floats:
    """Positions of damped oscillators from rest; their velocities are not seen."""
    rng = np.random.default_rng(seed)
    x, v, found = rng.standard_normal((n, 2)) + 2.0, np.zeros((n, 2)), []
    for _ in range(T):
        found.append(x)
        for _ in range(10):
            push = -x - 0.4 * v
            x, v = x + 0.012 * v, v + 0.012 * push + 0.02 * rng.standard_normal((n, 2))
    return np.stack(found, axis=1)


def each_trajectory(panels: Panels, form: Form) -> list[tuple[StepFit, Floats]]:
    """The fits of both directions, with each trajectory's log-likelihood."""
    both = zip((panels, panels.reverse), fit_directions(panels, form), strict=True)
    return [(way, contributions(along, way)[0]) for along, way in both]


def in_units(X: Floats) -> Panels:
    return Panels(((X - X.mean(axis=(0, 1))) / X.std(axis=(0, 1)))[None])


# Closed forms


@pytest.mark.parametrize("form", FORMS)
def test_trajectories_add_up_to_the_total_both_ways_round(form: Form) -> None:
    panels = in_units(levelled(0))
    for way, each in each_trajectory(panels, form):
        assert each.sum() == pytest.approx(way.total[0], abs=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_backwards_is_the_reversed_panel_forwards(form: Form) -> None:
    panels = in_units(levelled(1))
    _, back = fit_directions(panels, form)
    ahead, _ = fit_directions(Panels(panels.x[:, :, ::-1]), form)
    assert_allclose(back.total, ahead.total, rtol=1e-6)
    assert_allclose(back.step, ahead.step, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_without_memory_and_levels_it_is_the_engines_own_fit(affine: bool) -> None:
    panels = in_units(panel(3, 20, 12, 0, "shifted"))
    X, order = panels.x[0], np.arange(12)
    model = EulerModel(Data(X, n_jobs=1), DT, Affine() if affine else Linear())
    found = each_trajectory(panels, Form(affine=affine))
    for (_, each), along in zip(found, (order, order[::-1]), strict=True):
        fit = model.fit(along.copy())
        assert_allclose(each, fit.log_likelihoods, rtol=1e-4, atol=1e-4)


def test_levels_are_those_of_a_dense_gaussian() -> None:
    panels = in_units(levelled(2))
    way, each = each_trajectory(panels, Form(1, True))[0]
    x, (n, T, d) = panels.x[0], panels.x.shape[1:]
    assert way.intercepts is not None
    F, c, S = way.step[0], way.intercepts.of_start, T - 1
    cov = np.kron(np.eye(S), way.H[0]) + np.kron(np.ones((S, S)), way.intercepts.omega[0])
    for j in range(n):
        mean = x[j, :-1] @ F + np.r_[1.0, x[j, 0]] @ c[0]
        steps = multivariate_normal(np.zeros(S * d), cov).logpdf((x[j, 1:] - mean).ravel())
        expected = steps + way.start.log_densities[0, j]
        assert each[j] == pytest.approx(expected, abs=1e-6)


def test_levels_reach_the_likelihood_of_an_independent_maximiser() -> None:
    for seed in range(4):
        panels = in_units(levelled(seed))
        T = panels.x.shape[2]
        other = fit_levels(Data(panels.x[0], n_jobs=1), np.arange(T), 1.0)
        way, _ = fit_directions(panels, Form(1, True))
        mine = way.total[0] - way.start.log_densities.sum()
        assert other is not None
        assert mine == pytest.approx(other.log_likelihood, abs=0.05)


def test_shorter_trajectories_are_those_cut_off() -> None:
    X = panel(2, 9, 10, 3)
    lengths = np.where(np.arange(9) < 4, 6, 10)
    panels = Panels(X[None], lengths)
    for way, back in zip(fit_directions(panels, Form()), (False, True), strict=True):
        rows, targets = [], []
        for x, length in zip(X, lengths, strict=True):
            y = x[:length][::-1] if back else x[:length]
            rows.append(np.c_[y[:-1], np.ones(length - 1)])
            targets.append(y[1:])
        theta = np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets), rcond=None)[0]
        assert_allclose(way.step[0], theta[:2], atol=1e-5)


@pytest.mark.parametrize("short", [False, True])
def test_memory_is_the_regression_on_two_slices(short: bool) -> None:
    """Beside least squares on the rows themselves, of which the closed form sees sums only."""
    X = panel(3, 15, 10, 5)
    lengths = np.where(np.arange(15) < 6, 7, 10) if short else np.full(15, 10)
    X = np.where(np.arange(10)[None, :, None] < lengths[:, None, None], X, 0.0)
    panels = Panels(X[None], lengths if short else None)
    for way, back in zip(fit_directions(panels, Form(2)), (False, True), strict=True):
        rows, targets = [], []
        for x, length in zip(X, lengths, strict=True):
            y = x[:length][::-1] if back else x[:length]
            rows.append(np.c_[y[1:-1], y[:-2], np.ones(length - 2)])
            targets.append(y[2:])
        past, next_ = np.concatenate(rows), np.concatenate(targets)
        theta = np.linalg.lstsq(past, next_, rcond=None)[0]
        e = next_ - past @ theta
        assert_allclose(way.step[0], theta[:6], atol=1e-5)
        assert_allclose(way.H[0], e.T @ e / len(e), rtol=1e-5)


@pytest.mark.parametrize("first", ["panel", "reverse", "reverse with memory"])
def test_moments_of_memory_are_those_of_its_rows(first: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 7, 3)).cumsum(axis=2)
    panels = Panels(x)
    if first != "panel":
        StepSums.of(panels.reverse, Form(2 if first.endswith("memory") else 1))
    sums = StepSums.of(panels, Form(2))
    for k, way in enumerate((x, x[:, :, ::-1])):
        rows = np.concatenate([way[:, :, 1:-1], way[:, :, :-2], np.diff(way[:, :, 1:], axis=2)], 3)
        apart = (rows - rows.mean(axis=1, keepdims=True)).reshape(2, -1, 9)
        at = slice(2 * k, 2 * k + 2)
        assert_allclose(sums.mean[at], rows.mean(axis=1), atol=1e-12)
        assert_allclose(sums.about_slices(None)[at], apart.transpose(0, 2, 1) @ apart, atol=1e-9)
        assert_allclose(sums.trajectory_means[at], rows.mean(axis=2), atol=1e-12)


@pytest.mark.parametrize("lags", [1, 2])
@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("means", [False, True])
@pytest.mark.parametrize("spreads", [False, True])
def test_some_steps_are_those_of_all(lags: int, levels: bool, means: bool, spreads: bool) -> None:
    form = Form(lags, levels, means=means, spreads=spreads)
    panels = in_units(panel(2, 30, 9, 0))
    for along, fit in zip((panels, panels.reverse), fit_directions(panels, form), strict=True):
        e, z = residuals(along, fit)[0], centred_rows(along, fit)
        some = np.array([0, 3, 29]), np.array([0, 9 - lags - 1, 2])
        for found, every in zip(rows_of(along, fit, some), (e, z), strict=True):
            assert levels or np.allclose(found, every[some], atol=1e-12)
        gram, lagged = _regressor_moments(along, fit)
        assert_allclose(gram, np.einsum("nsp,nsq->pq", z, z), rtol=1e-9, atol=1e-9)
        assert_allclose(lagged, np.einsum("nsp,nsq->pq", z[:, :-1], z[:, 1:]), rtol=1e-9, atol=1e-9)


def test_random_signs_of_many_features_through_their_gram_matrix() -> None:
    rng = np.random.default_rng(0)
    signs, features = rng.choice([-1.0, 1.0], (40, 9)), rng.standard_normal((9, 30))
    assert_allclose(_squares(signs, features), ((signs @ features) ** 2).sum(axis=1))


@pytest.mark.parametrize("start", ["small", "stationary"])
def test_a_thinned_part_says_what_the_whole_panel_does(start: str, monkeypatch) -> None:
    panels = in_units(panel(3, 400, 90, 1, start))
    part = null_simulation._part(panels, Form())
    assert part is not None
    assert part.x.shape[1:] == (60, 30, 3)
    assert_allclose(np.diff(part.x[0], axis=1)[0, 0], panels.x[0, 0, 3] - panels.x[0, 0, 0])
    one = simulated_test(panels, Form(), np.random.default_rng(0), alpha=0.05)
    monkeypatch.setattr(null_simulation, "_part", lambda *_: None)
    two = simulated_test(replace(panels), Form(), np.random.default_rng(0), alpha=0.05)
    assert (one.p_value < 0.05) == (two.p_value < 0.05) == (start == "small")


def test_simulated_panels_do_not_outlive_their_statistic(monkeypatch) -> None:
    """Fits of a panel and of its reverse refer to each other: their moments stayed until Python looked for such rings."""
    like, kept = in_units(panel(2, 20, 12, 0, "small")), []
    simulator = NullSimulator.of(like, Form(), backwards=False)
    monkeypatch.setattr(null_simulation, "LARGE_NUMBERS", 2 * like.x.size)

    def statistic(some: Panels) -> Floats:
        found = ratios(some, Form(spreads=True), frozenset(Ground))
        kept.extend(weakref.ref(each) for each in (some, some.reverse, StepSums.of(some, Form())))
        return found

    gc.disable()
    try:
        rng = np.random.default_rng(0)
        found = null_simulation._of_simulated(simulator, statistic, like, 5, rng)
        assert found.shape == (5,)
        assert len(kept) == 3 * 3
        assert not any(each() for each in kept)
    finally:
        gc.enable()


def test_steps_of_unequal_variance_are_those_of_their_residuals() -> None:
    rng = np.random.default_rng(0)
    e = rng.standard_normal((40, 15, 2)) * np.where(np.arange(15) % 3 == 0, 3.0, 1.0)[:, None]
    way = fit_directions(in_units(np.cumsum(e, axis=1)), Form(spreads=True))[0]
    loud = (np.arange(1, 15) % 3) == 0
    v = way.variances[0]
    assert v[loud].mean() / v[~loud].mean() == pytest.approx(9, rel=0.3)
    assert np.log(v).sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("form", [Form(means=True), Form(2, means=True), Form(1, True, means=True)])
def test_free_offsets_forget_whatever_moves_all_trajectories(form: Form) -> None:
    """Beside a regression with an indicator of every slice; and adding any path to all trajectories changes nothing."""
    x = in_units(levelled(3)).x
    path = np.random.default_rng(4).standard_normal((1, 1, x.shape[2], x.shape[3]))
    for one, two in zip(
        fit_directions(Panels(x), form), fit_directions(Panels(x + 5 * path), form), strict=True
    ):
        assert_allclose(one.step, two.step, atol=1e-6)
        assert_allclose(one.H, two.H, atol=1e-6)
    if form == Form(means=True):
        (n, T, d), way = x.shape[1:], fit_directions(Panels(x), form)[0]
        past, step = x[0, :, :-1].reshape(-1, d), np.diff(x[0], axis=1).reshape(-1, d)
        rows = np.c_[past, np.tile(np.eye(T - 1), (n, 1))]
        theta = np.linalg.lstsq(rows, step, rcond=None)[0]
        assert_allclose(way.theta[0], theta[:d], atol=1e-6)
        assert_allclose(way.offsets[0], theta[d:], atol=1e-6)


def test_means_and_spreads_add_up_to_the_ratio() -> None:
    panels = in_units(panel(3, 40, 15, 2, "shifted"))
    parts = [float(ratios(panels, Form(), frozenset({each}))[0]) for each in ("means", "spreads")]
    assert sum(parts) == pytest.approx(float(ratios(panels, Form(), frozenset(Ground))[0]))
    assert parts[0] > 10 > abs(parts[1])  # a start off the equilibrium, of the stationary spread


# What a model must not leave over


def test_nuisances_are_freed_where_residuals_ask_for_them() -> None:
    X, T = panel(2, 40, 14, 6), 14
    trend = 3 * X.std() * (np.arange(T)[None, :, None] >= 7)
    loud = np.linspace(3, 0.5, T)[None, :, None] * np.random.default_rng(0).standard_normal(
        (40, T, 2)
    )
    for values, means, spreads in (
        (X, False, False),
        (X + trend, True, False),
        (loud, False, True),
    ):
        form, found, *_ = free_nuisances(in_units(values), Form(), form_penalty)
        assert (form.means, form.spreads) == (means, spreads)
        assert found.passed


def test_checks_reject_as_often_as_they_say() -> None:
    """Of each of the two nuisances two tests are made, the smaller p-value counts."""
    found = []
    for seed in range(60):
        panels = in_units(panel(2, 30, 12, 3000 + seed))
        found.append(checked(panels, fit_directions(panels, Form())[0]))
    for p in ([each.means for each in found], [each.spreads for each in found]):
        assert np.mean(np.array(p) < CHECK_LEVEL) <= 0.12  # 2 × .02: more than 7 of 60 once in 300


def at_rest(n: int, T: int, F: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """`x_{t+1} = F x_t + e`, about from its stationary distribution."""
    rng, d = np.random.default_rng(seed), len(F)
    x, found = np.zeros((n, d)), []
    for _ in range(T + 30):
        x = x @ F.T + rng.standard_normal((n, d))
        found.append(x)
    return np.stack(found[30:], axis=1)


def test_many_variables_at_rest_do_not_look_like_a_trend() -> None:
    """Dynamics of 50 variables estimated from past values are biased: 12 of these 20 panels were rejected before that was taken out."""
    found = []
    for seed in range(20):
        panels = Panels(at_rest(30, 25, 0.9 * np.eye(50), seed)[None])
        found.append(checked(panels, fit_directions(panels, Form())[0]).means)
    assert np.mean(np.array(found) < 0.05) <= 0.2


@pytest.mark.parametrize("levels", [False, True])
def test_the_bias_of_dynamics_is_that_of_repeated_panels(*, levels: bool) -> None:
    F, n, T = np.array([[0.7, 0.3, 0.0], [-0.2, 0.6, 0.1], [0.0, 0.2, 0.5]]), 12, 13
    found, said = [], []
    for seed in range(600):
        x = at_rest(n, T, F, seed)
        x = x - x.mean(axis=0)
        past, step = x[:, :-1], np.diff(x, axis=1)
        if levels:
            past, step = (each - each.mean(axis=1, keepdims=True) for each in (past, step))
        z, y = past.reshape(-1, 3), step.reshape(-1, 3)
        B = np.linalg.solve(z.T @ z, z.T @ y)
        found.append(B.T + np.eye(3) - F)
        said.append(_bias(B, z.T @ z, np.eye(3), n, T - 1, levels=levels).T)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    # Of the first order: up to a fifth is left.
    assert_allclose(np.mean(said, axis=0), mean, atol=4 * error.max() + 0.3 * np.abs(mean).max())
    assert np.abs(mean).max() > 5 * error.max()


def test_measurement_noise_is_seen_in_residuals() -> None:
    X = panel(2, 30, 15, 1)
    noisy = X + 0.5 * X.std(axis=(0, 1)) * np.random.default_rng(2).standard_normal(X.shape)
    for values, seen in ((X, False), (noisy, True)):
        panels = in_units(values)
        assert checked(panels, fit_directions(panels, Form())[0]).noisy is seen


def test_a_panel_and_its_reverse_are_told_apart_only_where_they_differ(monkeypatch) -> None:
    """Exact for reversible processes of any kind: here of two states with noise; a transient differs."""

    def telegraph(seed: int) -> Floats:
        rng = np.random.default_rng(seed)
        s, found = rng.integers(0, 2, (20, 2)), []
        for _ in range(12):
            s = np.where(rng.random(s.shape) < 0.15, 1 - s, s)
            found.append(s + 0.2 * rng.standard_normal(s.shape))
        return np.stack(found, axis=1)

    rng = np.random.default_rng(0)
    p = [reversibility_p(in_units(telegraph(k)), rng, means=False) for k in range(80)]
    assert np.mean(np.array(p) < 0.05) <= 0.14  # exact: more than 11 of 80 once in a thousand
    gone = in_units(panel(2, 20, 12, 3, "shifted"))
    assert reversibility_p(gone, rng, means=False) < 0.01
    asked = [reversibility_p(gone, np.random.default_rng(0), means=True)]
    monkeypatch.setattr(reversibility, "NUMBERS_AT_ONCE", 1)
    asked.append(reversibility_p(gone, np.random.default_rng(0), means=True))
    assert asked[0] == asked[1]  # features in pieces
    few = replace(gone, x=gone.x[:, :6])
    assert reversibility_p(few, rng, means=False) == 0  # of six trajectories nothing is asked


@pytest.mark.parametrize(
    ("seeds", "least", "most"), [(10, 8, 4), pytest.param(20, 18, 6, marks=pytest.mark.statistics)]
)
def test_a_small_transient_is_told_from_rest_by_its_start(
    seeds: int, least: int, most: int
) -> None:
    """Of eight trajectories the ratio of both directions is hardly larger than by chance at rest; the start is far off."""

    def p(seed: int, start: str) -> float:
        panels = in_units(panel(4, 8, 20, seed, start))
        return simulated_test(panels, Form(), np.random.default_rng(seed), alpha=0.05).p_value

    called = [p(seed, "shifted") < 0.05 for seed in range(seeds)]
    assert sum(called) >= least  # by the ratio, 14 of 20
    resting = [p(seed, "stationary") < 0.05 for seed in range(2 * seeds)]
    assert sum(resting) <= most  # more at level .05 less than once in a hundred


def test_departures_from_rest_are_mirrored_and_leave_the_means_out_where_these_are_free() -> None:
    panels = in_units(panel(2, 20, 12, 3, "shifted"))
    every, spreads = frozenset(Ground), frozenset({Ground.SPREADS})
    for grounds in (every, spreads):
        one, two = (departures(each, Form(), grounds) for each in (panels, panels.reverse))
        assert one == pytest.approx(two)
    plates = np.random.default_rng(0).standard_normal((1, 1, 12, 2))
    moved = replace(panels, x=panels.x + plates)
    plain = departures(panels, Form(means=True), every)
    assert departures(moved, Form(means=True), every) == pytest.approx(plain, rel=0.2)
    assert departures(panels, Form(), spreads) == pytest.approx(plain)
    assert departures(panels, Form(), every) > plain + 5


# The start law


def test_two_groups_are_the_gaussians_of_the_others_in_each() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, 2)) * 0.3 + np.where(np.arange(20) < 8, -3.0, 3.0)[:, None]
    noise, variances = 0.1 * np.eye(2), np.array([9.0, 9.0])
    found = starts(x[None], noise, variances)
    assert sorted(found.shares[0]) == pytest.approx([0.4, 0.6])
    one = _shrink(x[None], noise, variances)
    assert found.log_densities.sum() > one.log_densities.sum() + 20
    # Without trajectory 0: the mean of its group, and a covariance within groups shrunk as with all of them.
    others = x[1:8]
    z = np.concatenate([others - others.mean(axis=0), x[8:] - x[8:].mean(axis=0)])
    law = multivariate_normal(others.mean(axis=0), z.T @ z / 19 + 0.01 * noise)
    assert found.log_densities[0, 0] == pytest.approx(law.logpdf(x[0]) + np.log(7 / 19), abs=0.15)


def test_one_cloud_is_one_group() -> None:
    rng = np.random.default_rng(2)
    clouds = rng.standard_normal((50, 15, 3))
    found = starts(clouds, 0.1 * np.eye(3), np.ones(3))
    assert (found.shares[:, 1] > 0).mean() <= 0.02


# The simulated test


def test_it_calls_a_transient_that_vuongs_statistic_leaves_open() -> None:
    called = vuong = wrong = 0
    for seed in range(12):
        panels = in_units(panel(4, 8, 20, 300 + seed, "shifted"))
        one, two = (each for _, each in each_trajectory(panels, Form()))
        test = direction_test(one, two, dimension=4)
        found = simulated_test(panels, Form(), np.random.default_rng(seed), alpha=0.05)
        called += found.p_value < 0.05
        wrong += found.p_value < 0.05 and test.log_likelihood_ratio < 0
        vuong += test.identified
    assert called >= 6  # a power of .6 to .7 gives fewer in one of twenty runs
    assert called > vuong
    assert wrong == 0


@pytest.mark.parametrize(
    "form",
    [
        Form(),
        *(pytest.param(each, marks=pytest.mark.statistics) for each in (Form(2), Form(1, True))),
    ],
)
def test_stationary_panels_are_rarely_called(form: Form) -> None:
    called = 0
    for seed in range(30):
        panels = in_units(panel(2, 12, 12, 600 + seed))
        called += simulated_test(panels, form, np.random.default_rng(seed), alpha=0.05)[0] < 0.05
    assert called <= 5  # binomial(30, .05) exceeds it in three of a thousand


def test_it_is_seeded_and_tells_its_own_error() -> None:
    panels = in_units(panel(3, 10, 15, 0, "shifted"))
    one, two = (
        simulated_test(panels, Form(), np.random.default_rng(5), alpha=0.05) for _ in range(2)
    )
    assert one == two
    assert 0 < one.p_error < 0.15


# Values that are missing


def holes(X: Floats, share: float, seed: int) -> Floats:
    """The panel with values missing at random."""
    found = X.copy()
    found[np.random.default_rng(4000 + seed).random(X.shape) < share] = np.nan
    return found


def filled_panel(X: Floats, seed: int) -> tuple[Panels, DirectionTest]:
    """MissingDraws along the true order, and Vuong's test by Kalman's likelihoods."""
    model = HiddenModel.of(EulerModel(Data(X, n_jobs=1), DT, Affine()), noise=0.0)
    one = model.fit(np.arange(X.shape[1]), final=True)
    both = one, model.reversed_fit(one, final=True)
    test = direction_test(*(each.log_likelihoods for each in both), dimension=X.shape[2])
    found = CandidatesAlong(model, both, test.contributions, np.random.default_rng(seed)).panels
    assert found is not None
    return found, test


def test_filled_values_follow_the_law_given_what_was_seen() -> None:
    """Beside the dense Gaussian of a whole trajectory: the mean and the covariance of what is drawn, and its density."""
    T, d = 5, 2
    X = panel(d, 12, T, 0, "shifted")
    way = fit_directions(in_units(X), Form())[0]
    pool = np.random.default_rng(0).standard_normal((5000, d)) @ np.linalg.cholesky(way.H[0]).T
    law = NullSimulator(way, pool)
    seen = np.ones((2, T, d), dtype=bool)
    seen[0, [0, 2, 2, 4], [1, 0, 1, 0]] = False
    how, x = MissingDraws(seen, (law, law)), in_units(X).x[:, :2]
    drawn = how.fill(np.repeat(x, 6000, axis=0), np.random.default_rng(1))
    F, (m, P) = way.step[0].T, way.start.moments
    mean, cov = [m], np.zeros((T, T, d, d))
    cov[0, 0] = P
    for t in range(1, T):
        mean.append(F @ mean[-1] + way.offsets[0, 0])
        cov[t, t] = F @ cov[t - 1, t - 1] @ F.T + way.H[0]
        for s in range(t):
            cov[t, s] = F @ cov[t - 1, s]
            cov[s, t] = cov[t, s].T
    K, mu = cov.transpose(0, 2, 1, 3).reshape(T * d, T * d), np.concatenate(mean)
    a, b, y = ~seen[0].ravel(), seen[0].ravel(), x[0, 0].ravel()
    gain = K[np.ix_(a, b)] @ np.linalg.inv(K[np.ix_(b, b)])
    expected = mu[a] + gain @ (y[b] - mu[b])
    spread = K[np.ix_(a, a)] - gain @ K[np.ix_(b, a)]
    got = drawn[:, 0].reshape(len(drawn), -1)[:, a]
    error = np.sqrt(np.diag(spread) / len(got))
    assert_allclose(got.mean(axis=0), expected, atol=5 * error.max())
    assert_allclose(np.cov(got.T), spread, atol=0.1 * np.diag(spread).max())
    assert (drawn[:, seen] == x[:, seen]).all()
    density = multivariate_normal(expected, spread).logpdf(got[0])
    assert how.conditional(drawn[0]) == pytest.approx(density, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 15, 18])
def test_values_are_drawn_where_first_states_lie_in_a_plane_but_for_rounding(seed: int) -> None:
    """Such a covariance may have a Cholesky factor, and an eigenvalue below zero, or none."""
    X = panel(3, 12, 5, 0, "shifted")
    way = fit_directions(in_units(X), Form())[0]
    roots = np.random.default_rng(seed).standard_normal((3, 2))
    start = replace(way.start, covariance=(roots @ roots.T)[None], shares=np.array([[1.0, 0.0]]))
    law = NullSimulator(replace(way, start=start), way.H[0])
    seen = np.random.default_rng(0).random((2, 5, 3)) < 0.7
    how = MissingDraws(seen, (law, law))
    x = how.fill(in_units(X).x[:, :2], np.random.default_rng(1))
    assert np.isfinite(x).all()
    assert np.isfinite(how.conditional(x[0]))


def test_the_ratio_of_a_filled_panel_is_near_that_of_what_was_seen() -> None:
    found = []
    for seed in range(8):
        panels, test = filled_panel(holes(panel(3, 12, 12, seed, "shifted"), 0.15, seed), seed)
        one, two = fit_directions(panels, Form())
        found.append((float(one.total[0] - two.total[0]), test.log_likelihood_ratio))
    assert np.corrcoef(np.transpose(found))[0, 1] > 0.9


@pytest.mark.statistics
def test_with_values_missing_transients_are_called_and_stationary_panels_are_not() -> None:
    called = {"shifted": 0, "stationary": 0}
    vuong = 0
    for start in called:
        for seed in range(12):
            X = holes(panel(3, 10, 12, 700 + seed, start), 0.15, seed)
            panels, test = filled_panel(X, seed)
            found = simulated_test(panels, Form(), np.random.default_rng(seed), alpha=0.05)
            called[start] += found.p_value + found.p_error < 0.05
            vuong += start == "shifted" and test.identified
    assert called["shifted"] > vuong
    assert called["shifted"] >= 4
    assert called["stationary"] <= 2  # binomial(12, .05) exceeds it in two of a hundred


@pytest.mark.statistics
def test_a_hidden_velocity_is_not_called_the_wrong_way_where_values_are_missing() -> None:
    """A Markov model alone leans the wrong way by fifty nats: nothing else was asked of panels with holes."""
    for seed in range(2):
        X, truth = rt.simulate.shuffle(holes(momentum(seed), 0.1, seed), random_state=seed)
        model = rt.ReTrace(n_jobs=1, random_state=0).fit(X)
        test = model.direction_
        assert not test.identified or rt.metrics.kendall_tau(truth, model.order_) > 0
        assert test.preferred is not None
        assert test.preferred.name in (CandidateKind.MEMORY, CandidateKind.MEMORY_INTERCEPTS)


def test_the_evidence_of_a_filled_panel_is_that_of_what_was_seen() -> None:
    """Markov's closed form on values that were drawn, beside Kalman's likelihood without them."""
    for seed in range(3):
        X = holes(panel(3, 40, 12, seed), 0.15, seed)
        panels, _ = filled_panel(X, seed)
        model = HiddenModel.of(EulerModel(Data(X, n_jobs=1), DT, Affine()), noise=0.0)
        own = model.fit(np.arange(12), final=True).log_likelihood
        closed = float(fit_directions(panels, Form())[0].total[0]) - panels.log_volume
        assert closed == pytest.approx(own, abs=15)  # of 900: parameters fitted to what was drawn


# Orders that are single and uncertain


def own_problem(start: str, seed: int) -> tuple[EulerModel, NDArray[np.intp], Averaged]:
    """Trajectories in orders of their own, and Monte-Carlo EM both ways round from the true ones."""
    X = panel(2, 15, 6, seed, start)
    model = EulerModel(Data(X, n_jobs=1), DT, Affine())
    orders = np.tile(np.arange(6), (15, 1))
    chains = Chains.start(orders, np.random.default_rng(seed))
    one, two, ratios = both_ways(model, model.law(model.fit(orders)), chains, rounds=12)
    return model, orders, Averaged(one, two, ratios)


def test_panels_of_single_orders_are_simulated_along_them() -> None:
    model, orders, _ = own_problem("shifted", 0)
    rng = np.random.default_rng(0)
    orders = rng.permuted(orders, axis=1)
    theta = np.array([[-2.0, 1.0, 0.5], [-1.0, -3.0, 1.0]])
    start = Gaussian(np.full(2, 5.0), np.eye(2))
    law = EulerLaw(Euler(Affine(), theta, np.array([[1.0, 0.3], [0.3, 0.5]]), DT), start)
    still = stationary_law(law)
    assert still is not None
    F = np.eye(2) + law.step.coefficients[:, :2] * DT
    assert_allclose(still.covariance, F @ still.covariance @ F.T + law.step.diffusion * DT)
    assert_allclose(still.mean, F @ still.mean + law.step.coefficients[:, 2] * DT, atol=1e-12)
    drawn = [OwnOrderSimulator(law, True).panel(model, orders, rng).data.values for _ in range(300)]
    x = np.take_along_axis(np.concatenate(drawn), np.tile(orders, (300, 1))[:, :, None], axis=1)
    error = np.sqrt(np.diag(still.covariance) / len(x))
    for t in (0, 5):
        assert np.abs((x[:, t].mean(axis=0) - still.mean) / error).max() < 4.5
        assert_allclose(np.cov(x[:, t].T), still.covariance, rtol=0.15, atol=0.01)
    after = x[:, 1] - x[:, 0] @ F.T
    assert_allclose(np.cov(after.T), law.step.diffusion * DT, rtol=0.1, atol=0.003)


def test_only_doubt_is_simulated_and_the_answer_is_seeded(monkeypatch) -> None:
    monkeypatch.setattr(summed, "STAGES", (5,))
    model, orders, averaged = own_problem("stationary", 1)
    test = direction_test(np.full(15, 0.2), np.zeros(15), dimension=2)
    doubt = replace(test, p_value=0.2, identified=False)
    one, two = (
        marginal_test(model, averaged, orders, doubt, np.random.default_rng(3), alpha=0.05)
        for _ in range(2)
    )
    assert one.p_value == two.p_value
    assert one.p_error
    assert not one.identified
    for p in (0.01, 0.5):
        clear = replace(test, p_value=p)
        said = summed._tested(model, averaged, orders, clear, np.random.default_rng(0), alpha=0.05)
        assert said is clear


@pytest.mark.statistics
def test_single_orders_that_vuongs_statistic_leaves_open_are_called() -> None:
    """Of these two p was .07 and .16; a fit takes ten seconds."""
    for seed in (7, 9):
        sde = random_irreversible_sde(3, random_state=seed)
        law = sde.stationary()
        x0 = Gaussian(law.mean + 1.5 * np.sqrt(np.diag(law.covariance)), law.covariance)
        rng = np.random.default_rng(100_000 + seed)
        X = sde.simulate(40, 10, DT, x0=x0, scheme="exact", random_state=rng)
        X, truth = rt.simulate.shuffle(X, permutation="independent", random_state=seed)
        model = rt.ReTrace(dt=DT, permutation="independent", n_jobs=1, random_state=seed).fit(X)
        assert model.direction_.identified
        assert model.direction_.p_error
        assert np.mean(rt.metrics.kendall_tau(truth, model.order_)) > 0


# The ladder


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.statistics)])
def test_a_hidden_velocity_turns_the_order_of_a_markov_model_round(seeds: int) -> None:
    for seed in range(seeds):
        X, truth = rt.simulate.shuffle(momentum(seed), random_state=seed)
        model = rt.ReTrace(n_jobs=1, random_state=0).fit(X)
        test = model.direction_
        assert rt.metrics.kendall_tau(truth, model.order_) > 0.9
        assert test.identified
        assert test.preferred is not None
        assert test.preferred.name in (CandidateKind.MEMORY, CandidateKind.MEMORY_INTERCEPTS)
        assert "With memory" in test.verdict
        plain = next(each for each in test.models if each.name == CandidateKind.MARKOV)
        assert plain.log_likelihood_ratio < 0 < test.log_likelihood_ratio
        assert test.contributions.sum() == pytest.approx(test.log_likelihood_ratio, abs=0.01)
        evidence = [each.log_evidence for each in test.models]
        assert evidence == sorted(evidence, reverse=True)


def test_models_are_saved_and_loaded(tmp_path) -> None:
    X, _ = rt.simulate.shuffle(panel(2, 20, 12, 1, "small"), random_state=0)
    model = rt.ReTrace(n_jobs=1, random_state=0).fit(X)
    loaded = type(model.result_).load(model.result_.save(tmp_path / "result"))
    assert loaded.direction.models == model.direction_.models
    assert loaded.direction.verdict == model.direction_.verdict
    assert "models compared" in model.summary()


def test_the_answer_does_not_depend_on_jobs() -> None:
    X, _ = rt.simulate.shuffle(panel(3, 10, 15, 2, "shifted"), random_state=0)
    one, two = (rt.ReTrace(n_jobs=k, random_state=3).fit(X).direction_ for k in (1, 2))
    assert one.p_value == two.p_value
    assert one.models == two.models


def test_models_that_disagree_leave_the_direction_open() -> None:
    test = direction_test(np.arange(5.0), np.zeros(5), dimension=1)
    models = (
        ModelEvidence(CandidateKind.MEMORY, 10.0, 12.0, 0.01, 0.01, True),
        ModelEvidence(CandidateKind.GAPS, 9.0, -8.0, None, None, True),
    )
    said = type(test)(
        **{
            **vars(test),
            "reason": Reason.MODELS_DISAGREE,
            "models": models,
            "identified": False,
            "p_value": None,
        }
    ).verdict
    assert "disagree" in said
    assert "memory ratio +12.0, unequal gaps ratio -8.0" in said


def test_a_stretch_that_runs_the_wrong_way_is_turned() -> None:
    """Five trajectories from a small start: the search alone ends in an order of which a stretch is reversed."""
    for seed in (11, 20, 33):
        sde = random_irreversible_sde(4, random_state=seed)
        law = sde.stationary()
        x0 = Gaussian(law.mean, 0.01 * law.covariance)
        rng = np.random.default_rng(100_000 + seed)
        X = sde.simulate(5, 10, DT, x0=x0, scheme="exact", random_state=rng)
        shuffled, truth = rt.simulate.shuffle(X, random_state=seed)
        model = rt.ReTrace(dt=DT, n_jobs=1, random_state=0).fit(shuffled)
        assert rt.metrics.kendall_tau(truth, model.order_) > 0.9


def test_what_may_count_is_restricted_and_what_is_assumed_is_said() -> None:
    """A start off the equilibrium rests on means: without them, or aligned at the end, it is open."""
    X, truth = rt.simulate.shuffle(panel(3, 40, 15, 2, "shifted"), random_state=0)
    model = rt.ReTrace(dt=DT, n_jobs=1, random_state=0).fit(X)
    test = model.direction_
    assert test.identified
    assert rt.metrics.kendall_tau(truth, model.order_) > 0.9
    assert test.rests_on["means"] > 10
    assert sum(test.rests_on.values()) == pytest.approx(test.log_likelihood_ratio, abs=0.01)
    assert any("selected, aligned or normalised" in each for each in test.assumptions)
    assert any("Nothing outside moves the means" in each for each in test.assumptions)
    assert (
        test.assumptions[0] in model.summary().replace("\n", " ") or "assuming" in model.summary()
    )
    for options, known in (
        ({"evidence": ("spreads", "residuals")}, None),
        ({"evidence": ("means", "residuals")}, None),
        ({}, rt.Knowledge(aligned="end")),
    ):
        said = rt.ReTrace(dt=DT, n_jobs=1, random_state=0, **options).fit(X, knowledge=known)
        assert not said.direction_.identified
        assert said.direction_.assumptions == ()
    told = rt.ReTrace(dt=DT, n_jobs=1, random_state=0).fit(
        X, knowledge=rt.Knowledge(aligned="start")
    )
    assert told.direction_.identified
    assert any("as was stated" in each for each in told.direction_.assumptions)
    with pytest.raises(ValueError, match="evidence must be a sequence of"):
        rt.ReTrace(evidence=("means", "time")).fit(X)
    with pytest.raises(ValueError, match="aligned must be one of"):
        rt.ReTrace().fit(X, knowledge=rt.Knowledge(aligned="left"))


# Residuals


def stationary(seed: int, kind: str) -> Floats:
    rng = np.random.default_rng(seed)
    F = np.array([[0.85, 0.2, 0.0], [-0.2, 0.85, 0.1], [0.0, 0.1, 0.7]])
    x, found = np.zeros((40, 3)), []
    for t in range(80):
        e = rng.standard_normal(x.shape) if kind == "gaussian" else rng.exponential(size=x.shape)
        x = x @ F.T + e
        if t >= 50:
            found.append(x)
    return np.stack(found, axis=1)


def test_noise_that_is_not_gaussian_tells_the_direction_and_gaussian_noise_does_not() -> None:
    skewed = [
        independence(in_units(stationary(seed, "exponential")), Form(), np.random.default_rng(seed))
        for seed in range(6)
    ]
    assert sum(each is not None and each.favours == 1 for each in skewed) >= 4
    assert not any(each is not None and each.favours == -1 for each in skewed)
    normal = [
        independence(in_units(stationary(seed, "gaussian")), Form(), np.random.default_rng(seed))
        for seed in range(6)
    ]
    assert sum(each is not None and each.favours != 0 for each in normal) <= 1


def with_intercepts(seed: int, noise: str) -> Floats:
    """Two variables about subjects' own means: a transient if Gaussian, else stationary."""
    rng, F = np.random.default_rng([seed, 5]), np.array([[0.8, 0.2], [-0.2, 0.7]])
    gaussian = noise == "gaussian"
    x, found = np.full((60, 2), 5.0 * gaussian), []
    for t in range(60):
        if gaussian or t >= 40:
            found.append(x)
        e = rng.standard_normal(x.shape) if gaussian else rng.exponential(size=x.shape)
        x = x @ F.T + e
    return np.stack(found[:20], axis=1) + rng.standard_normal((60, 1, 2))


def test_own_intercepts_do_not_make_gaussian_residuals_depend_on_the_past() -> None:
    """About own means they do: these have later residuals in them."""

    def heard(noise: str) -> list[int]:
        every = (
            independence(
                in_units(with_intercepts(seed, noise)),
                Form(levels=True),
                np.random.default_rng(seed),
            )
            for seed in range(8)
        )
        return [0 if each is None else each.favours for each in every]

    assert heard("gaussian") == [0] * 8
    skewed = heard("skewed")
    assert sum(skewed) >= 3
    assert min(skewed) == 0


def subjects_over_a_short_time(seed: int) -> Floats:
    """A transient of subjects with random intercepts, seen for less than half of the time in which it relaxes."""
    rng, A = np.random.default_rng(seed), np.array([[-1.0, 0.5], [-0.3, -1.2]])
    own, x = rng.standard_normal((60, 2)), 2 + 0.3 * rng.standard_normal((60, 2))
    steps = [rt.LinearSDE(A, 0.25 * np.eye(2), offset=each).transition(0.02) for each in own]
    F, root = steps[0].matrix, np.linalg.cholesky(steps[0].covariance)
    shift, found = np.array([each.shift for each in steps]), [x]
    for _ in range(19):
        found.append(found[-1] @ F.T + shift + rng.standard_normal((60, 2)) @ root.T)
    return np.stack(found, axis=1)


@pytest.mark.parametrize("way", [1, -1])
def test_memory_calls_no_direction_against_markov_steps_that_are_preferred(way: int) -> None:
    """Markov steps fail a check here and are better by BIC all the same: they are right, memory is wrong."""
    model = rt.ReTrace(dt=0.02, n_jobs=1, random_state=0)
    test = model.fit(subjects_over_a_short_time(13)[:, ::way]).direction_
    markov = next(each for each in test.models if each.name == CandidateKind.MARKOV)
    assert markov.unexplained is not None
    assert markov.counted
    assert not test.identified


def heteroscedastic(seed: int) -> Floats:
    """An AR(1) whose shocks are a GARCH: large ones follow large ones, of either sign."""
    rng = np.random.default_rng([seed, 77])
    x, e, v = np.ones((40, 1)), np.ones((40, 1)), np.ones((40, 1))
    found = []
    for _ in range(140):
        found.append(x)
        v = 0.1 + 0.3 * e**2 + 0.6 * v
        e = np.sqrt(v) * rng.standard_normal((40, 1))
        x = 0.8 * x + e
    return np.stack(found[100:], axis=1)


@pytest.mark.parametrize("seed", [1, 7, 28])
def test_shocks_that_depend_on_one_another_tell_no_direction(seed: int) -> None:
    # Their reverse passes as independent of the past here, and would be called.
    seen = independence(in_units(heteroscedastic(seed)), Form(), np.random.default_rng(seed))
    assert seen is not None
    assert seen.favours == 0


@pytest.mark.parametrize(
    ("ahead", "back", "heard"),
    [(0.5, 0.002, 1), (0.002, 0.5, -1), (0.002, 0.002, 0), (0.5, 0.5, 0), (0.5, 0.01, 0)],
)
def test_it_speaks_only_where_one_is_accepted_and_the_other_rejected(
    ahead: float, back: float, heard: int
) -> None:
    assert Independence(ahead, back).favours == heard


def test_residuals_call_the_reverse_where_only_it_leaves_them_independent() -> None:
    X = stationary(1, "exponential")
    shuffled, truth = rt.simulate.shuffle(X[:, ::-1], random_state=0)
    model = rt.ReTrace(n_jobs=1, random_state=0).fit(shuffled)
    assert model.direction_.reason is Reason.RESIDUALS
    assert rt.metrics.kendall_tau(truth, model.order_) < -0.9
    assert "non-Gaussian" in model.direction_.verdict


def test_linear_memory_does_not_explain_curved_steps():
    """One coordinate of the Lorenz system looks like linear memory, whose direction is an accident: with curved steps little of it is left."""
    rng = np.random.default_rng(0)

    def share(x):
        panels = Panels(((x - x.mean()) / x.std())[None])
        return free_nuisances(panels, Form(lags=2), form_penalty).checks

    s, path = rng.normal([1, 1, 20], 1.0, (40, 3)), []
    for k in range(900):
        a, b, c = s.T
        s = s + 0.01 * np.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], axis=1)
        if k >= 500 and k % 10 == 0:
            path.append(s[:, :1])
    curved = share(np.stack(path, axis=1) + 0.2 * rng.standard_normal((40, 40, 1)))
    assert curved.share_when_curved < 0
    assert curved.unexplained == "steps are curved functions of the past"
    y = np.zeros((40, 40, 1))  # a transient: linear memory with a direction
    y[:, :2] = 5 + rng.standard_normal((40, 2, 1))
    for k in range(2, 40):
        y[:, k] = 1.2 * y[:, k - 1] - 0.5 * y[:, k - 2] + rng.standard_normal((40, 1))
    assert share(y).share_when_curved > 0.9


def test_the_direction_of_groups_with_missing_values_is_tested():
    """Null panels of grouped trajectories are filled trajectory by trajectory."""
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(30, 8, 0.1, x0=0.1, random_state=1)
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    groups = np.repeat(np.arange(15), 2)
    model = rt.ReTrace(dt=0.1, random_state=0, n_jobs=1).fit(X, groups=groups)
    assert model.direction_.n_groups == 15
    assert model.direction_.p_value is not None


def test_successive_residuals_of_many_variables_are_not_called_correlated():
    """Past values are no fixed regressors: with their correction alone z was 1.7 on average in these panels of 20 variables."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = [rng.standard_normal((40, 20)) / np.sqrt(1 - 0.9**2)]
        for _ in range(39):
            x.append(0.9 * x[-1] + rng.standard_normal((40, 20)))
        panels = Panels(np.stack(x, axis=1)[None])
        found.append(checked(panels, fit_directions(panels, Form())[0]).lag_one_z)
    assert abs(np.mean(found)) < 1
    noisy = Panels(panels.x + rng.standard_normal(panels.x.shape))
    assert checked(noisy, fit_directions(noisy, Form())[0]).noisy


@pytest.mark.parametrize("levels", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_form_explains_more_than_its_bound(seed, levels):
    rng = np.random.default_rng(seed)
    d, n, T = 1 + seed % 3, 12 + 9 * seed, 8 + 4 * seed
    X = rt.simulate.random_irreversible_sde(d, random_state=seed).simulate(
        n, T, 0.1, random_state=seed
    )
    X = X + levels * rng.standard_normal((n, 1, d))
    panels = Panels((X - X.mean(axis=(0, 1)))[None] / X.std(axis=(0, 1)))
    plain = Form(), Form(lags=2), Form(levels=True), Form(lags=2, levels=True)
    for form in (each._replace(means=means) for each in plain for means in (False, True)):
        most = most_log_likelihood(panels, form)
        assert most >= max(float(each.total[0]) for each in fit_directions(panels, form))
    if n >= 30:  # few may seem to start in two groups, of which there is no bound
        assert np.isfinite(most)
