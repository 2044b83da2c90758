"""Own orders under noise and with missing values, against brute force over all orders (`oracle`).

Samplers, search, the likelihood ratio between twins and standard errors, each under parameters that are given.
"""

from __future__ import annotations

import numpy as np
import pytest
from oracle import (
    Free,
    Law,
    enumerated,
    expected_information,
    informations,
    log_likelihoods,
    log_ratios,
    order_scores,
    standard_errors,
)
from scipy import stats

import retrace_sde as rt
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.orders.draws import Chains, Draws, Stretch, random_states
from retrace_sde.orders.prior import Prior, compiled
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.mcem import Run, bridge, louis_covariance
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

# All contact with the engine -----------------------------------------------------------------------


def engine_parameters(law):
    return Parameters(law.theta, law.H, law.R, rt.Gaussian(law.mean, law.covariance))


def engine_model(Y, law, lengths=None, costs=None, before=None, noise=None):
    prior = None if costs is None and before is None else Prior(costs, before)
    drift = Affine() if law.theta.shape[1] > law.theta.shape[0] else Linear()
    plain = EulerModel(Data(Y, n_jobs=1, counts=lengths), law.dt, drift, prior)
    return HiddenModel.of(plain, noise=law.R if noise is None else noise)


def engine_prior(knowledge, n, T, dt, lengths=None):
    """Costs (n, T, T) and rules (n, T, T) of what a user knows, None for none."""
    prior = compiled(knowledge, n, T, shared=False, dt=dt, lengths=lengths)
    return {"costs": prior.unary, "before": prior.before}


def engine_likelihoods(Y, law, orders):
    """Log-likelihood of each trajectory (n, T, d) in its order (n, T); shorter ones end in NaN."""
    return engine_model(Y, law).log_joint(orders, engine_parameters(law))


def engine_draws(Y, law, starts, seed, *, burn, samples, thin, **known):
    """Orders (C, n, samples, T) that chains (C, n, T) go through."""
    model = engine_model(Y, law, **known)
    C, n, T = starts.shape
    chains = Chains(starts.copy(), random_states(np.random.default_rng(seed), C, n))
    each = -(-thin // max(T // 2, 5))  # records that are so many moves apart
    stretch = Stretch(samples * each, burn, samples)
    return model.draw(engine_parameters(law), chains, stretch).kept


def engine_search(Y, law, starts=None, **known):
    """The best order found of each trajectory, (n, T), from given orders or from the engine's own."""
    model, rng = engine_model(Y, law, **known), np.random.default_rng(0)
    if starts is None:
        starts = model.repaired(model._short_paths(rng))
    return model.own_orders(engine_parameters(law)).improve(starts, random_states(rng, len(Y)))[0]


def engine_ratios(Y, one, two, starts, seed, **known):
    """`log p(Y_j; one) − log p(Y_j; two)` as the engine has it; starts: chains (C, n, T) under each."""
    rng = np.random.default_rng(seed)
    C, n, _ = starts[0].shape
    runs = []
    for law, begin in zip((one, two), starts, strict=True):
        chains = Chains(begin.copy(), random_states(rng, C, n))
        runs.append(Run(engine_parameters(law), None, chains, (), 0.0, True))
    return bridge(engine_model(Y, one, **known), *runs)


def engine_errors(Y, law, kept, noise):
    """Standard errors of Θ and H from orders (C, n, R, T) drawn from their posterior."""
    model, rng = engine_model(Y, law, noise=noise), np.random.default_rng(0)
    draws = Draws(kept.astype(np.int16), np.empty((0, 0, 0), dtype=np.int32))
    parameters = engine_parameters(law)
    covariance, _, floored = louis_covariance(model, model, parameters, None, draws, rng)
    assert not floored
    found = model.scoring(parameters, None).errors(covariance)
    return found.drift, found.diffusion


# Panels --------------------------------------------------------------------------------------------

PLANE = Law(
    theta=np.array([[-1.0, 0.8, 0.3], [-0.6, -1.5, 0.0]]),
    H=np.array([[0.5, 0.1], [0.1, 0.4]]),
    R=0.2**2 * np.eye(2),
    mean=np.array([1.0, -0.8]),
    covariance=np.array([[0.2, 0.05], [0.05, 0.3]]),
    dt=0.3,
)
LINE = Law(
    theta=np.array([[-1.0]]),
    H=np.array([[0.3]]),
    R=np.array([[0.04]]),
    mean=np.array([2.0]),
    covariance=np.array([[0.2]]),
    dt=0.4,
)


def without_noise(law):
    return Law(law.theta, law.H, 0 * law.R, law.mean, law.covariance, law.dt)


def panel(law, n, T, seed, *, missing=0.2, lengths=None):
    """Shuffled observations with some missing, and the orders that restore them."""
    rng = np.random.default_rng(seed)
    lengths = np.full(n, T) if lengths is None else lengths
    X, truth = law.simulate(n, T, rng), np.tile(np.arange(T), (n, 1))
    Y = np.full(X.shape, np.nan)
    for j, t in enumerate(lengths):
        order = rng.permutation(t)
        truth[j, :t] = order
        Y[j, order] = X[j, :t]
    Y[rng.random(Y.shape) < missing] = np.nan
    Y[:, 0, 0] = np.where(np.isnan(Y[:, 0, 0]), X[:, 0, 0], Y[:, 0, 0])  # of each something is seen
    return Y, truth


def known_first(truth, dt):
    return rt.Knowledge(first=truth[:, 0])


def known_pairs(truth, dt):
    """Two precedences that share no observation."""
    pairs = [(j, int(o[0]), int(o[2])) for j, o in enumerate(truth)]
    return rt.Knowledge(
        precedences=pairs + [(j, int(o[1]), int(o[-1])) for j, o in enumerate(truth)]
    )


def noisy_stamps(truth, dt):
    place = np.argsort(truth, axis=1)
    stamps = (place + 1.5 * np.random.default_rng(7).standard_normal(place.shape)) * dt
    return rt.Knowledge(timestamps=stamps, timestamp_error=1.5 * dt)


def known_middle(truth, dt):
    """What stands at the two middle positions: the others can only pass over both."""
    middle = truth.shape[1] // 2
    return rt.Knowledge(
        positions={(j, int(o[k])): k for j, o in enumerate(truth) for k in (middle - 1, middle)}
    )


def obedient(every, rng, chains, T):
    """Starts (C, n, T) that break no rule, scattered over all orders."""
    starts = np.tile(np.arange(T), (chains, len(every), 1))
    for j, each in enumerate(every):
        orders = each.possible(rng, chains)
        starts[:, j, : orders.shape[1]] = orders
    return starts


# Likelihood ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("noise", ["tied", "none", "full"])
@pytest.mark.parametrize("n", [3, 60])
def test_the_likelihood_of_given_orders_is_the_dense_one(n, noise, missing):
    """Few and many patterns of missing entries take different ways through the smoother."""
    law = {"tied": PLANE, "none": without_noise(PLANE)}.get(noise)
    if law is None:
        R = np.array([[0.05, 0.02], [0.02, 0.03]])
        law = Law(PLANE.theta, PLANE.H, R, PLANE.mean, PLANE.covariance, PLANE.dt)
    lengths = np.r_[6, np.random.default_rng(0).integers(1, 7, n - 1)]
    Y, truth = panel(law, n, 6, 1, missing=missing, lengths=lengths)
    found = engine_likelihoods(Y, law, truth)
    for j, t in enumerate(lengths):
        exact = log_likelihoods(Y[j, :t], law, truth[j : j + 1, :t])[0]
        assert found[j] == pytest.approx(exact, abs=1e-8)


# Sampler -------------------------------------------------------------------------------------------

CHAINS, SAMPLES = 16, 1000


def assert_sampled(Y, law, seed, **known):
    """Position probabilities of independent chains from scattered starts, beside the enumerated ones.

    The spread of the chains' own means gives the error, whatever their autocorrelation: for each trajectory the
    effective size that makes p (1 − p) / size their variance, on average over its positions.
    """
    n, T, _ = Y.shape
    every = enumerated(Y, law, **known)
    starts = obedient(every, np.random.default_rng(seed), CHAINS, T)
    kept = engine_draws(Y, law, starts, seed, burn=200 * T, samples=SAMPLES, thin=2 * T, **known)
    sizes, squares, worst = [], [], 0.0
    for j, each in enumerate(every):
        t, exact = each.orders.shape[1], each.positions
        open_to = (exact > 1e-3) & (exact < 1 - 1e-3)
        if not open_to.any():
            continue
        at = kept[:, j, :, :t, None] == np.arange(t)
        means = at.mean(axis=1).transpose(0, 2, 1)  # (chain, observation, position)
        assert np.all(means[:, exact == 0] == 0)
        own = means.var(axis=0, ddof=1)
        spread = exact * (1 - exact)
        size = spread[open_to].sum() / own[open_to].sum()  # of one chain
        error = np.sqrt(np.maximum(own, spread / min(size, SAMPLES)) / CHAINS)
        z = (means.mean(axis=0) - exact)[open_to] / error[open_to]
        sizes.append(CHAINS * size)
        squares.append(np.mean(z**2))
        worst = max(worst, np.abs(z).max())
    # The test must be able to see something: errors of at most .05 in any probability.
    assert min(sizes) > 100, f"effective sizes {np.round(sizes)}"
    # Student's t with 15 degrees of freedom, n T² of them.
    assert worst < stats.t.isf(1e-3 / (n * T * T), CHAINS - 1)
    # Mean squares over cells are near 1, each trajectory's with the error of T − 1 or more free cells.
    assert np.mean(squares) < 1 + 4 * np.std(squares, ddof=1) / np.sqrt(len(squares))
    # and orders are open, or agreement would show nothing
    assert np.mean([each.probabilities.max() for each in every]) < 0.8


@pytest.mark.parametrize("law", [PLANE, LINE], ids=["two", "one"])
@pytest.mark.parametrize("n", [8, pytest.param(16, marks=pytest.mark.statistics)])
def test_sampled_positions_under_noise_with_missing_values(law, n):
    Y, _ = panel(law, n, 5, 2)
    assert_sampled(Y, law, 0)


@pytest.mark.parametrize("n", [8, pytest.param(16, marks=pytest.mark.statistics)])
def test_sampled_positions_without_noise_with_missing_values(n):
    law = without_noise(PLANE)
    Y, _ = panel(law, n, 5, 3)
    assert_sampled(Y, law, 1)


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("n", [8, pytest.param(12, marks=pytest.mark.statistics)])
@pytest.mark.parametrize(
    "know",
    [
        known_first,
        known_pairs,
        *(pytest.param(f, marks=pytest.mark.statistics) for f in (noisy_stamps, known_middle)),
    ],
)
def test_sampled_positions_under_knowledge(know, n, noise):
    law = PLANE if noise else without_noise(PLANE)
    Y, truth = panel(law, n, 6, 4, missing=0.2 if noise else 0.1)
    assert_sampled(Y, law, 2, **engine_prior(know(truth, law.dt), n, 6, law.dt))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("times", [2, pytest.param(3, marks=pytest.mark.statistics)])
def test_sampled_positions_of_different_lengths(known, times):
    lengths = np.array([1, 2, 3, 4, 5, 6] * times)
    n = len(lengths)
    Y, truth = panel(PLANE, n, 6, 5, lengths=lengths)
    prior = {}
    if known:
        first = rt.Knowledge(first=truth[:, 0])
        prior = engine_prior(first, n, 6, PLANE.dt, lengths)
    assert_sampled(Y, PLANE, 3, lengths=lengths, **prior)


# Search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("know", [None, known_first, known_pairs, noisy_stamps, known_middle])
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("noise", [True, False])
def test_search_finds_the_most_probable_order(noise, missing, know):
    law = PLANE if noise else without_noise(PLANE)
    Y, truth = panel(law, 40, 6, 6, missing=missing)
    prior = {} if know is None else engine_prior(know(truth, law.dt), 40, 6, law.dt)
    found = engine_search(Y, law, **prior)
    every = enumerated(Y, law, **prior)
    short = [each.objective.max() - each.worth(o) for each, o in zip(every, found, strict=True)]
    assert max(short) < 1e-6, (
        f"{sum(s > 1e-6 for s in short)} of 40 missed, by up to {max(short):.2f}"
    )


# The ratio between twins ---------------------------------------------------------------------------

NEAR_REST = Law(
    theta=PLANE.theta[:, :2],
    H=PLANE.H,
    R=PLANE.R,
    mean=np.array([0.4, -0.3]),
    covariance=0.1 * np.eye(2),
    dt=PLANE.dt,
)
"""Close enough to rest for its mirror image to be nearly as good."""


def twin(law, T):
    """The law that the mirror image of another looks like: regression on reversed states, many of them."""
    X = without_noise(law).simulate(20_000, T, np.random.default_rng(0))[:, ::-1]
    d = len(law.H)
    x, dx = X[:, :-1].reshape(-1, d), np.diff(X, axis=1).reshape(-1, d)
    theta = np.linalg.lstsq(x, dx / law.dt, rcond=None)[0].T
    e = dx - x @ theta.T * law.dt
    first = X[:, 0]
    return Law(theta, e.T @ e / len(e) / law.dt, law.R, first.mean(axis=0), np.cov(first.T), law.dt)


def every_second(know, truth, dt, n, T):
    """What is known, of every second trajectory only."""
    prior = engine_prior(know(truth, dt), n, T, dt)
    for name, nothing in (("costs", 0.0), ("before", False)):
        if prior[name] is not None:
            prior[name][1::2] = nothing
    return prior


KNOWN_IN_PART = {
    "nothing": None,
    "first": known_first,
    "pairs": known_pairs,
    "stamps": noisy_stamps,
}
TWINS = [
    pytest.param(noise, know, id=f"{'noise' if noise else 'exact'}-{name}", marks=marks)
    for noise in (True, False)
    for name, know in KNOWN_IN_PART.items()
    for marks in (
        [] if (noise, name) in ((True, "pairs"), (False, "stamps")) else [pytest.mark.statistics],
    )
]
"""Six seconds each: with noise and without, and two of the four kinds of knowledge, stand for the others."""


@pytest.mark.parametrize(("noise", "know"), TWINS)
def test_the_ratio_between_twins_is_the_enumerated_one(noise, know):
    n, T = 24, 5
    law = NEAR_REST if noise else without_noise(NEAR_REST)
    other = twin(law, T)
    Y, truth = panel(law, n, T, 8, missing=0.1)
    prior = {} if know is None else every_second(know, truth, law.dt, n, T)
    exact = log_ratios(Y, law, other, **prior)
    posteriors, found = [enumerated(Y, each, **prior) for each in (law, other)], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        # chains that have settled: exact draws from each law's own posterior
        starts = [np.stack([each.draw(rng, 2) for each in every], axis=1) for every in posteriors]
        found.append(engine_ratios(Y, law, other, starts, seed, **prior))
    found = np.array(found)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    gap = found.mean(axis=0) - exact
    total, spread = gap.sum(), found.sum(axis=1).std(ddof=1) / np.sqrt(len(found))
    said = f"ratio {found.mean(axis=0).sum():.2f}, enumerated {exact.sum():.2f}"
    # Student's t with 7 degrees of freedom; the mean of both sides is unbiased to first order.
    assert abs(total) < 5 * spread + 0.2, said
    assert np.all(np.abs(gap) < 8 * error + 0.05), said
    # knowledge says something, which a ratio without it would miss
    assert know is None or abs(exact.sum() - log_ratios(Y, law, other).sum()) > 2
    assert np.abs(exact).max() > 0.3


# Standard errors -----------------------------------------------------------------------------------


UNSURE = Law(LINE.theta, np.array([[0.5]]), LINE.R, np.array([1.5]), LINE.covariance, LINE.dt)
"""Steps as large as the way to rest: not knowing the order costs H a fifth of its accuracy."""


@pytest.mark.parametrize("noise", ["tied", None], ids=["noise free", "noise known"])
@pytest.mark.parametrize(
    ("law", "n"),
    [
        pytest.param(UNSURE, 150, id="one"),
        pytest.param(NEAR_REST, 200, id="two", marks=pytest.mark.statistics),
    ],
)
def test_louis_errors_are_those_of_the_enumerated_likelihood(law, n, noise):
    """At the true parameters: observed information = E[that of known orders | Y] − Var[score | Y].

    That of known orders may be observed, or expected of what was seen: over n trajectories they differ by a sum
    of n independent terms, whose spread is the margin; one of the two must be met much more closely.
    """
    T, R = 4, 25
    Y, _ = panel(law, n, T, 9, missing=0.15)
    free, every = Free(noise), enumerated(Y, law)
    observed = informations(Y, law, free)
    expected, known = np.zeros_like(observed), observed.copy()
    for j, each in enumerate(every):
        p, s = each.probabilities, order_scores(Y[j], law, free, each.orders)
        expected[j] = np.tensordot(p, expected_information(Y[j], law, free, each.orders), 1)
        known[j] += ((s - p @ s) * p[:, None]).T @ (s - p @ s)
    information, other = observed.sum(axis=0), (observed + expected - known).sum(axis=0)
    alone = logs(standard_errors(known.sum(axis=0), law))
    exact, second = (logs(standard_errors(each, law)) for each in (information, other))
    rng = np.random.default_rng(0)
    moved = [
        information + np.tensordot(rng.standard_normal(n), known - known.mean(axis=0), 1)
        for _ in range(200)
    ]
    margin = np.std([logs(standard_errors(each, law)) for each in moved], axis=0)
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kept = np.stack([np.stack([each.draw(rng, R) for each in every]) for _ in range(2)])
        found.append(logs(engine_errors(Y, law, kept, "estimate" if noise else law.R)))
    drawn, found = np.std(found, axis=0, ddof=1) / 2, np.mean(found, axis=0)
    assert np.all(np.abs(found - exact) < 3.5 * np.hypot(margin, drawn) + 0.03)
    # .05: the information of known orders may be simulated, to a few per cent.
    close = [np.abs(found - each).max() for each in (exact, second)]
    assert min(close) < 0.05 + 3.5 * drawn.max(), close
    # Not knowing the order costs something, or the test would show nothing.
    assert np.max(exact - alone) > 0.05 + 3.5 * drawn.max() + 0.05


def logs(errors):
    """Of the errors of Θ and H, in a row."""
    return np.concatenate([np.log(each).ravel() for each in errors])
