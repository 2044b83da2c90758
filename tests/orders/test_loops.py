"""Closed loops are seen, and nothing else is called one; unequal steps, and folds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import invgamma, norm

import retrace_sde as rt
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import fit_directions
from retrace_sde.fit.unequal_steps import dispersion, gradual_gain
from retrace_sde.orders.loops import closes
from retrace_sde.panel.blocks import Data


def loop(n, T, seed, *, share=1.0):
    """Two variables that go round an ellipse, each subject with its own levels and noise; or part of the way."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * share * np.arange(T) / T
    mean = np.stack([30 * np.cos(angle), 20 * np.sin(angle)], axis=1)
    level = 4 * rng.standard_normal((n, 1, 2))
    return mean + level + rng.standard_normal((n, T, 2))


@pytest.mark.parametrize("spacing", ["regular", "estimate"])
def test_a_loop_is_reported_with_its_cyclic_order(spacing):
    X = loop(40, 20, 0)
    shuffled, truth = rt.simulate.shuffle(X, random_state=1)
    model = rt.ReTrace(drift="affine", spacing=spacing, n_jobs=1).fit(shuffled)
    assert model.result_.cycle
    assert not model.direction_.identified
    assert "closed loop" in model.direction_.verdict
    assert "closed loop" in model.summary()
    assert model.alternative_ is not None
    place = np.argsort(truth)[model.order_]
    step = np.abs(place - np.roll(place, 1))
    assert np.all((step == 1) | (step == 19))


def test_part_of_a_loop_is_a_path():
    model = rt.ReTrace(drift="affine", n_jobs=1).fit(loop(40, 20, 0, share=0.8))
    assert not model.result_.cycle


@pytest.mark.parametrize(
    ("d", "T", "n", "setting", "x0", "dt"),
    [
        (2, 20, 40, "stable", None, 0.1),
        (2, 30, 50, "rotation", "stationary", 0.3),
        (2, 10, 100, "stable", "stationary", 1.0),
        (3, 12, 10, "stable", "stationary", 3.0),
        (4, 7, 15, "growing", None, 0.5),
    ],
)
def test_simulated_paths_are_not_called_loops(d, T, n, setting, x0, dt):
    """Not even where slices hardly depend on one another; 300 such panels gave none."""
    for seed in range(4):
        sde = rt.simulate.random_irreversible_sde(d, setting=setting, random_state=seed)
        X = sde.simulate(n, T, dt, x0=x0, scheme="exact", random_state=seed)
        assert not closes(Data(X, n_jobs=1), np.arange(T))


def test_slices_with_offsets_of_their_own_do_not_close():
    """Not even where the offsets of the first and the last slice are the same."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = [rng.standard_normal((30, 3))]
        for _ in range(11):
            x.append(0.9 * x[-1] + np.sqrt(0.19) * rng.standard_normal((30, 3)))
        plates = rng.standard_normal((1, 12, 3))
        plates[:, -1] = plates[:, 0]
        assert not closes(Data(np.stack(x, axis=1) + plates, n_jobs=1), np.arange(12))


def test_costs_of_unequal_steps_are_those_of_the_mixture():
    """`∫ v^{−N/2} e^{−s/v} IG(v; α, β) dv` by quadrature, as a ratio of two steps."""
    rng = np.random.default_rng(0)
    alpha, beta, N = 3.0, 2.5, 8
    v = invgamma(alpha, scale=beta).rvs(400, random_state=rng)
    s = v * rng.gamma(N / 2, 1, 400)
    found = dispersion(s, N)
    assert found is not None
    # 400 variances known to 8 numbers each: α to about a tenth.
    assert abs(np.log(found.alpha / alpha)) < 0.4
    law = invgamma(found.alpha, scale=found.beta)
    each = [
        quad(lambda v, s=s: v ** (-N / 2) * np.exp(-s / v) * law.pdf(v), 0, 200, limit=200)[0]
        for s in (2.0, 9.0)
    ]
    costs = found.costs(np.array([2.0, 9.0, np.inf]))
    assert costs[1] - costs[0] == pytest.approx(np.log(each[0] / each[1]), rel=1e-4)
    assert costs[2] == np.inf


def test_gradual_variances_are_those_of_the_neighbouring_steps():
    """By densities of single numbers: each step's variance is the mean square of the steps beside it, against one of 1."""
    rng = np.random.default_rng(3)
    x = np.linspace(0.5, 2, 12)[:, None] * rng.standard_normal((12, 50))
    squares = (x**2).mean(axis=1)
    near = [squares[[k for k in (t - 1, t + 1) if 0 <= k < 12]].mean() for t in range(12)]
    gain = norm.logpdf(x, scale=np.sqrt(near)[:, None]) - norm.logpdf(x)
    rising = gradual_gain((x**2).sum(axis=1) / 2, 50.0)
    assert rising == pytest.approx(gain.sum())
    # The same steps in another order differ as much, but not gradually.
    assert gradual_gain((x[rng.permutation(12)] ** 2).sum(axis=1) / 2, 50.0) < rising - 50


def test_equal_steps_have_no_dispersion():
    rng = np.random.default_rng(1)
    assert sum(dispersion(rng.gamma(N / 2, 1, 40), N) is not None for N in [4] * 100) <= 2


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.statistics)])
def test_heavy_steps_do_not_decide_on_the_order(seeds):
    """Random walks whose volatility varies from step to step, as currencies have it: four neighbours of five are found."""
    shares = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        size = np.sqrt(invgamma(1.5, scale=1.0).rvs(39, random_state=rng))
        walk = np.cumsum(rng.standard_normal((10, 39)) * size, axis=1)
        X = np.concatenate([np.zeros((10, 1)), walk], axis=1)[..., None]
        X = X + rng.standard_normal((10, 1, 1))
        shuffled, truth = rt.simulate.shuffle(X, random_state=seed)
        model = rt.ReTrace(drift="affine", n_jobs=1).fit(shuffled)
        shares.append(rt.metrics.neighbour_share(truth, model.order_))
    assert np.mean(shares) > 0.75


def test_one_variable_that_rises_and_falls_is_warned_about_and_helped_by_knowledge():
    """A dose taken up and cleared: with the first and one later slice known the fold opens."""
    t = np.array([0, 0.3, 0.6, 1.1, 2.0, 3.8, 5.1, 7.0, 9.0, 12.0, 24.0])
    rng = np.random.default_rng(0)
    up, down = 1.5 * np.exp(0.3 * rng.standard_normal((2, 12, 1)))
    curve = np.exp(-0.08 * down * t) - np.exp(-1.2 * up * t)
    X = 8 * curve[..., None] + 0.2 * rng.standard_normal((12, 11, 1))
    shuffled, truth = rt.simulate.shuffle(X, random_state=0)
    with pytest.warns(rt.ReTraceWarning, match="rises and falls"):
        alone = rt.ReTrace(drift="affine", n_jobs=1).fit(shuffled)
    assert not alone.direction_.identified
    known = rt.Knowledge(first=int(truth[0]), blocks=np.argsort(truth) // 4)
    helped = rt.ReTrace(drift="affine", n_jobs=1).fit(shuffled, knowledge=known)
    gain = rt.metrics.kendall_tau(truth, helped.order_)
    assert gain > abs(rt.metrics.kendall_tau(truth, alone.order_)) + 0.2


def decaying(seed):
    """A decay that is looked at ever more rarely: each gap is 1.4 times the one before."""
    rng = np.random.default_rng(seed)
    A = -0.5 * np.eye(2) + 0.15 * rng.standard_normal((2, 2)) / np.sqrt(2)
    gaps = 1.4 ** np.arange(11)
    x = 3 + 0.5 * rng.standard_normal((40, 2))
    path = [x]
    for g in 0.5 * gaps / gaps.mean():
        step = rt.LinearSDE(A, 0.3 * np.eye(2)).transition(g, scheme="exact")
        x = x @ step.matrix.T
        x = x + rng.standard_normal((40, 2)) @ np.linalg.cholesky(step.covariance).T
        path.append(x)
    return rt.simulate.shuffle(np.stack(path, axis=1), random_state=seed)


def test_a_direction_that_unequal_gaps_turn_round_is_not_called():
    """Taken for equal, such gaps favour the wrong way round; what is called, and estimated gaps, are not wrong."""
    misled = 0
    for seed in range(4):
        X, truth = decaying(seed)
        model = rt.ReTrace(drift="affine", n_jobs=1).fit(X)
        forward = rt.metrics.kendall_tau(truth, model.order_) > 0
        assert not model.direction_.identified or forward
        x = X[:, truth]
        one, two = fit_directions(Panels(((x - x.mean((0, 1))) / x.std((0, 1)))[None]), Form())
        misled += bool(one.total[0] < two.total[0])
        spaced = rt.ReTrace(drift="affine", spacing="estimate", n_jobs=1).fit(X)
        assert not spaced.direction_.identified or rt.metrics.kendall_tau(truth, spaced.order_) > 0
    assert misled >= 2
