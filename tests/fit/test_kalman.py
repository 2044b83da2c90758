"""Kalman smoother and EM against a dense joint Gaussian, numerical derivatives and known truths."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.fit.exact import exact
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.statespace import observations as statespace_observations
from retrace_sde.fit.statespace import riccati as statespace_riccati
from retrace_sde.fit.statespace.em import Known
from retrace_sde.fit.statespace.em import em as plain_em
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.riccati import riccati
from retrace_sde.fit.statespace.smoother import StateSpace, kalman
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian, LinearSDE, Transition

Array = NDArray[np.float64]


def em(Y, dt, **options):
    """`em` with what is known of the model among the other options."""
    names = ("drift", "diffusion", "drift_mask", "initial")
    known = {name: options.pop(name) for name in names if name in options}
    return plain_em(Y, dt, known=Known(**known), **options)


def covariance(d: int, rng: np.random.Generator, scale: float = 1.0) -> Array:
    B = rng.normal(size=(d, d))
    return scale * (B @ B.T / d + 0.1 * np.eye(d))


def random_model(d: int, seed: int) -> StateSpace:
    rng = np.random.default_rng(seed)
    F = 0.6 * np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d)
    step = Transition(F, rng.normal(size=d), covariance(d, rng))
    return StateSpace(
        step, covariance(d, rng, 0.5), Gaussian(rng.normal(size=d), covariance(d, rng))
    )


def dense(model: StateSpace, T: int) -> tuple[Array, Array, Array]:
    """Mean and covariance of all T·d states, and of all observations: X = M (first, steps), no recursion."""
    d, F = len(model.noise), model.transition.matrix
    M = np.zeros((T * d, T * d))
    for i in range(T):
        for j in range(i + 1):
            M[i * d : (i + 1) * d, j * d : (j + 1) * d] = np.linalg.matrix_power(F, i - j)
    source = np.kron(np.diag(np.arange(T) > 0), model.transition.covariance)
    source[:d, :d] = model.initial.covariance
    mean = M @ np.concatenate([model.initial.mean, *[model.transition.shift] * (T - 1)])
    states = M @ source @ M.T
    return mean, states, states + np.kron(np.eye(T), model.noise)


def noisy(seed: int, *, d: int = 3, n: int = 60, T: int = 40, dt: float = 0.05, sigma: float = 0.3,
          start: float = 1.0) -> tuple[LinearSDE, Array, Array]:  # fmt: skip
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, dt, x0=start, scheme="exact", random_state=seed + 1000)
    return sde, X, rt.simulate.add_noise(X, sigma, random_state=seed + 2000)


def with_holes(Y: Array, share: float, seed: int) -> Array:
    return np.where(np.random.default_rng(seed).random(Y.shape) < share, np.nan, Y)


HOLES = {
    "complete": lambda Y: Y,
    "at random": lambda Y: with_holes(Y, 0.3, 5),
    "ends and a shared gap": lambda Y: np.where(
        (np.arange(Y.shape[1])[:, None] >= np.array([Y.shape[1], 4, 4, 3, 0, 6])[: len(Y), None, None])
        | (np.arange(Y.shape[1]) == 2)[:, None], np.nan, Y
    ),
}  # fmt: skip


@pytest.mark.parametrize("holes", HOLES.values(), ids=HOLES.keys())
def test_smoother_is_the_dense_gaussian(holes):
    n, T, d = 6, 7, 3
    model = random_model(d, 0)
    Y = holes(2 * np.random.default_rng(1).normal(size=(n, T, d)))
    found = kalman(Y, model)
    mean, states, observations = dense(model, T)
    for j, y in enumerate(Y.reshape(n, -1)):
        o = ~np.isnan(y)
        expected, rest = mean, states
        if o.any():
            law = multivariate_normal(mean[o], observations[np.ix_(o, o)])
            np.testing.assert_allclose(
                found.log_likelihood[j], law.logpdf(y[o]), rtol=0, atol=1e-10
            )
            K = np.linalg.solve(observations[np.ix_(o, o)], states[o]).T
            expected, rest = mean + K @ (y[o] - mean[o]), states - K @ states[o]
        else:
            assert found.log_likelihood[j] == 0
        np.testing.assert_allclose(found.means[j].ravel(), expected, rtol=0, atol=1e-10)
        blocks = rest.reshape(T, d, T, d)
        g = found.pattern[j]
        for t in range(T):
            np.testing.assert_allclose(found.covariances[g, t], blocks[t, :, t], atol=1e-10)
            if t + 1 < T:
                np.testing.assert_allclose(
                    found.lag_covariances[g, t], blocks[t + 1, :, t], atol=1e-10
                )


def test_stacks_and_blocks_do_not_change_the_numbers(monkeypatch):
    """Each trajectory alone, all together, many patterns at once, and in small blocks."""
    rng = np.random.default_rng(3)
    model = random_model(4, 1)
    Y = rng.normal(size=(40, 9, 4))
    Y[:30] = with_holes(
        Y[:30], 0.3, 4
    )  # 30 patterns of one, more than MIN_JOINT_INVERSES; one of ten
    together = kalman(Y, model)
    assert len(together.covariances) == 31
    alone = [kalman(y[None], model) for y in Y]
    monkeypatch.setattr(statespace_observations, "STACK_ELEMENTS", 9 * 4 * 4 * 8)
    assert [
        len(list(stack.portions(9 * 4 * 4))) for stack in Observations.regular(Y, 1.0).stacks
    ] == [2, 1]
    small = kalman(Y, model)
    for j, one in enumerate(alone):
        for other, g in ((together, together.pattern[j]), (small, small.pattern[j])):
            np.testing.assert_allclose(other.log_likelihood[j], one.log_likelihood[0], rtol=1e-12)
            np.testing.assert_allclose(other.means[j], one.means[0], rtol=0, atol=1e-12)
            np.testing.assert_allclose(other.covariances[g], one.covariances[0], atol=1e-12)


def test_steady_state_stops_the_recursion_and_changes_nothing(monkeypatch):
    T, d = 400, 3
    model = random_model(d, 2)
    Y = np.random.default_rng(0).normal(size=(4, T, d))
    Y[:, 200] = np.nan
    calls = []
    cholesky = statespace_riccati._cholesky
    monkeypatch.setattr(
        statespace_riccati, "_cholesky", lambda S: calls.extend(S.reshape(-1, d, d)) or cholesky(S)
    )
    fast = kalman(Y, model)
    count = len(calls)
    monkeypatch.setattr(statespace_riccati, "STEADY_CHANGE", -1.0)
    calls.clear()
    slow = kalman(Y, model)
    assert len(calls) == 2 * T - 1
    assert count < T / 2
    np.testing.assert_allclose(fast.log_likelihood, slow.log_likelihood, rtol=1e-11)
    np.testing.assert_allclose(fast.means, slow.means, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fast.covariances, slow.covariances, rtol=0, atol=1e-11)


def test_covariances_stay_positive_where_precision_is_extreme():
    """A vague start and a variable measured 1e5 times better than the other: P − K P would turn negative."""
    F = np.array([[1.0, 1.0], [0.0, 1.0]])
    step = Transition(F, np.zeros(2), 1e-10 * np.eye(2))
    model = StateSpace(step, np.diag([1e-10, 1e4]), Gaussian(np.zeros(2), 1e8 * np.eye(2)))
    covariances = riccati(
        np.ones((60, 1, 2), dtype=bool), np.zeros((59, 1), dtype=int), model.steps
    ).covariance[:, 0]
    assert np.linalg.eigvalsh(covariances).min() > 0


@pytest.mark.parametrize("affine", [False, True])
def test_without_noise_em_is_the_regression(affine):
    _, X, _ = noisy(0, n=500, T=20)
    X = X + affine
    found = em(X, 0.05, noise=0.0, affine=affine, scheme="exact")
    data = moments(Data(X), np.arange(X.shape[1]), 0.05, Affine() if affine else Linear())
    expected = exact(data, 0.05, affine=affine)
    coefficients = np.c_[found.drift, found.offset] if affine else found.drift
    np.testing.assert_allclose(coefficients, expected.coefficients, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.diffusion, expected.diffusion, rtol=1e-6)
    errors = found.standard_errors(random_state=0)
    np.testing.assert_allclose(errors.drift, expected.errors.drift[:, :3], rtol=0.12)
    np.testing.assert_allclose(errors.diffusion, expected.errors.diffusion, rtol=0.12)
    np.testing.assert_allclose(found.states.means, X, atol=1e-8)
    euler = em(X, 0.05, noise=0.0, affine=affine)
    np.testing.assert_allclose(euler.diffusion, mle(data).diffusion, rtol=1e-6)


CASES = {
    "noise": {"noise": "estimate"},
    "diagonal, affine": {"noise": "diagonal", "affine": True},
    "one unknown noise": {"noise": [0.3, np.nan, 0.3]},
    "known R": {"noise": 0.09 * np.eye(3) + 0.01},
    "known H": {"diffusion": "true"},
    "known A, affine": {"drift": "true", "affine": True},
    "known A, exact": {"drift": "true", "scheme": "exact"},
    "known zeros": {"drift_mask": ~np.eye(3, dtype=bool)[[1, 2, 0]]},
    "known zeros and H": {"drift_mask": np.tri(3, dtype=bool), "diffusion": "true"},
    "known start": {"initial": Gaussian(np.zeros(3), np.eye(3))},
}


def parameters(found, case):
    """The maximum as a vector with the map back to a model, for the parameters that `case` leaves free."""
    affine, d = case.get("affine", False), 3
    dt, scheme = 0.05, case.get("scheme", "euler")
    mask = np.asarray(case.get("drift_mask", np.ones((d, d))), dtype=bool)
    if "drift" in case:
        mask = np.zeros((d, d), dtype=bool)
    noise = case.get("noise", "estimate")
    unknown = np.isnan(noise) if isinstance(noise, list) else np.full(d, isinstance(noise, str))
    sizes = [mask.sum(), d * affine, 0 if "diffusion" in case else d * d, unknown.sum()]

    def model(shift: Array) -> StateSpace:
        a, c, h, r = np.split(shift, np.cumsum(sizes)[:-1])
        A, H, R = found.drift.copy(), found.diffusion.copy(), found.noise.copy()
        A[mask] += a
        if len(h):
            H = H + (h.reshape(d, d) + h.reshape(d, d).T) / 2
        R[unknown, unknown] += r.mean() if isinstance(noise, str) and noise == "estimate" else r
        offset = found.offset + (c if affine else 0)
        return StateSpace(
            LinearSDE(A, H, offset=offset).transition(dt, scheme=scheme), R, found.initial
        )

    return model, int(sum(sizes))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_em_climbs_to_a_stationary_point(case):
    """Never a lower likelihood; at the end its numerical gradient by every free parameter is zero."""
    sde, _, Y = noisy(4)
    truth = {"diffusion": sde.diffusion, "drift": sde.drift}
    options = {k: truth[k] if isinstance(v, str) and v == "true" else v for k, v in case.items()}
    Y = with_holes(Y, 0.05, 0)[:25]
    found = em(Y, 0.05, **options, tolerance=1e-8, max_iter=500)
    assert found.converged
    assert np.all(np.diff(found.log_likelihood) >= 0)
    assert len(found.log_likelihood) > 5
    model, size = parameters(found, case)
    value = kalman(Y, model(np.zeros(size))).log_likelihood.sum()
    np.testing.assert_allclose(value, found.log_likelihood[-1], rtol=1e-10)
    np.testing.assert_allclose(found.states.log_likelihood.sum(), value, rtol=1e-10)
    for unit in np.eye(size):
        up, down = (kalman(Y, model(s * 1e-4 * unit)).log_likelihood.sum() for s in (1, -1))
        slope, curvature = (up - down) / 2e-4, (2 * value - up - down) / 1e-8
        assert curvature > 0
        assert slope**2 / curvature < 1e-4  # twice the nats still to be gained along this parameter
    for name, value in options.items():
        if name in truth:
            np.testing.assert_array_equal(getattr(found, name), value)
    if "drift_mask" in case:
        assert np.all(found.drift[~np.asarray(case["drift_mask"])] == 0)
    if isinstance(case.get("noise"), list):
        np.testing.assert_allclose(np.diag(found.noise)[[0, 2]], 0.09)


@pytest.mark.parametrize(("sigma", "ratio_A", "ratio_H"), [(0.1, 1.09, 2.5), (0.5, 1.39, 5.8)])
def test_ten_variables_are_estimated_almost_as_without_noise(sigma, ratio_A, ratio_H):
    """Errors of (A, H): .101/.012 without noise, ≤ .11/.03 at σ = .1 and ≤ .14/.07 at σ = .5."""
    sde, X, Y = noisy(7, d=10, n=200, T=100, dt=0.01, sigma=sigma)
    oracle = exact(moments(Data(X), np.arange(100), 0.01, Linear()), 0.01)
    found = em(Y, 0.01, scheme="exact")
    assert found.converged
    assert found.evaluations < 120
    errors = [np.abs(a - b).mean() for a, b in ((found.drift, sde.drift), (oracle.coefficients, sde.drift),
              (found.diffusion, sde.diffusion), (oracle.diffusion, sde.diffusion))]  # fmt: skip
    assert errors[0] < ratio_A * errors[1]
    assert errors[2] < ratio_H * errors[3]
    np.testing.assert_allclose(np.sqrt(np.diag(found.noise)), sigma, rtol=0.01)


def test_missing_entries_cost_little():
    sde, _, Y = noisy(9, d=4, n=150, T=50, dt=0.02, sigma=0.2)
    errors = []
    for values in (Y, with_holes(Y, 0.2, 1)):
        found = em(values, 0.02, scheme="exact")
        errors.append(
            [np.abs(found.drift - sde.drift).mean(), np.abs(found.diffusion - sde.diffusion).mean()]
        )
    assert np.all(np.array(errors[1]) < 1.3 * np.array(errors[0]) + 0.01)


def test_rows_of_nan_at_the_end_are_shorter_trajectories():
    """Padding more of them changes nothing."""
    _, _, Y = noisy(2, n=30, T=20)
    Y[:10, 12:] = np.nan
    padded = np.concatenate([Y, np.full((30, 7, 3), np.nan)], axis=1)
    short, long = (em(v, 0.05) for v in (Y, padded))
    np.testing.assert_allclose(long.log_likelihood, short.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(long.drift, short.drift, rtol=1e-6, atol=1e-8)


def test_standard_errors_are_those_of_repetitions():
    """60 panels from one SDE: the spread of the estimates, and the share of errors beyond two of their own."""
    sde = LinearSDE([[-1.0, 0.8], [-0.6, -0.5]], [[1.0, 0.3], [0.3, 0.5]])
    drifts, diffusions, errors = [], [], []
    for seed in range(60):
        X = sde.simulate(40, 30, 0.1, scheme="exact", random_state=seed)
        Y = with_holes(rt.simulate.add_noise(X, 0.3, random_state=seed + 99), 0.1, 0)
        found = em(Y, 0.1, scheme="exact")
        drifts.append(found.drift)
        diffusions.append(found.diffusion)
        if seed < 5:
            own = found.standard_errors(random_state=0)
            errors.append((own.drift, own.diffusion))
    for estimates, mean in zip((drifts, diffusions), np.mean(errors, axis=0), strict=True):
        ratio = np.std(estimates, axis=0) / mean
        assert np.all((ratio > 0.7) & (ratio < 1.35))


def test_exact_scheme_has_no_bias_of_the_step():
    sde = LinearSDE([[-2.0, 1.0], [-1.0, -1.5]], [[1.0, 0.4], [0.4, 0.8]])
    X = sde.simulate(400, 30, 0.4, scheme="exact", random_state=0)
    Y = rt.simulate.add_noise(X, 0.2, random_state=1)
    found, euler = (em(Y, 0.4, scheme=s, noise=0.2) for s in ("exact", "euler"))
    errors = found.standard_errors(random_state=0)
    assert np.all(np.abs(found.drift - sde.drift) < 4 * errors.drift)
    assert np.abs(found.diffusion - sde.diffusion).max() < 0.1
    assert np.abs(euler.diffusion - sde.diffusion).max() > 0.3
    np.testing.assert_allclose(np.eye(2) + euler.drift * 0.4, expm(found.drift * 0.4), atol=1e-3)


def test_moments_are_those_of_the_states():
    """Exact observations: the moments of the data. Noise: a fixed point of the regression on them."""
    _, X, Y = noisy(0, n=100, T=20)
    known = moments(Data(X), np.arange(20), 0.05, Affine())
    found = em(X, 0.05, noise=0.0, affine=True)
    np.testing.assert_allclose(found.moments.factor, known.factor, rtol=1e-6, atol=1e-6)
    assert (found.moments.count, found.moments.n_features) == (known.count, known.n_features)
    found = em(with_holes(Y, 0.2, 0), 0.05, tolerance=1e-6)
    again = mle(found.moments)
    np.testing.assert_allclose(again.coefficients, found.drift, atol=1e-3)
    np.testing.assert_allclose(again.diffusion, found.diffusion, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scheme", ["euler", "exact"])
def test_a_fit_goes_on_from_another(scheme):
    """From its own end at once, at the same likelihood; from a fit to an order with two slices exchanged, sooner."""
    _, _, Y = noisy(3, n=100, T=30)
    fit = partial(em, dt=0.05, scheme=scheme)
    cold = fit(Y)
    same = fit(Y, start=cold)
    np.testing.assert_allclose(same.log_likelihood[0], cold.log_likelihood[-1], rtol=1e-12)
    assert same.evaluations <= 6
    order = np.arange(30)
    order[[14, 15]] = 15, 14
    other = fit(Y[:, order])
    warm = fit(Y, start=other)
    assert warm.evaluations < cold.evaluations
    assert abs(warm.log_likelihood[-1] - cold.log_likelihood[-1]) < 0.1


def test_a_start_keeps_what_is_known_now():
    sde, X, Y = noisy(4)
    quiet = em(X, 0.05, noise=0.0, max_iter=3)
    found = em(Y, 0.05, start=quiet, diffusion=sde.diffusion)
    np.testing.assert_array_equal(found.diffusion, sde.diffusion)
    np.testing.assert_allclose(np.sqrt(np.diag(found.noise)), 0.3, rtol=0.05)
    with pytest.raises(ValueError, match="start is a fit"):
        em(Y, 0.05, affine=True, start=quiet)


def test_data_without_noise_say_so():
    _, X, _ = noisy(1, n=200, T=30)
    found = em(X, 0.05, max_iter=400)
    assert np.sqrt(found.noise[0, 0]) < 0.02
    np.testing.assert_allclose(found.diffusion, em(X, 0.05, noise=0.0).diffusion, rtol=0.05)


def test_an_unfinished_search_says_so():
    _, _, Y = noisy(1)
    found = em(Y, 0.05, max_iter=2)
    assert not found.converged
    assert "still rising" in found.notes[0]
    assert len(found.log_likelihood) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "loud"}, "noise must be"),
        ({"noise": -0.1}, "standard deviation"),
        ({"noise": [0.1, 0.2]}, "standard deviation"),
        ({"noise": -np.eye(3)}, "negative eigenvalues"),
        ({"drift": np.eye(2)}, "drift must be"),
        ({"diffusion": -np.eye(3)}, "positive definite"),
        ({"drift_mask": np.ones(3)}, "drift_mask"),
        ({"scheme": "exact", "diffusion": np.eye(3)}, "no closed form"),
        ({"scheme": "exact", "drift_mask": np.tri(3)}, "no closed form"),
        ({"scheme": "milstein"}, "scheme"),
        ({"dt": 0.0}, "dt must"),
        ({"max_iter": 0}, "max_iter"),
        ({"Y": np.zeros((4, 5))}, "trajectory, time, variable"),
        ({"Y": np.zeros((4, 2, 3))}, "three observations"),
        ({"Y": np.full((4, 5, 3), np.nan)}, "missing"),
        ({"Y": np.full((4, 5, 3), np.inf)}, "infinite"),
    ],
)
def test_wrong_input_is_refused_in_words(options, message):
    options = {"Y": np.random.default_rng(0).normal(size=(4, 5, 3)), "dt": 0.1, **options}
    with pytest.raises(ValueError, match=message):
        em(options.pop("Y"), options.pop("dt"), **options)


def test_a_model_of_another_size_is_refused():
    with pytest.raises(ValueError, match="transition must be"):
        kalman(np.zeros((2, 3, 4)), random_model(3, 0))
    model = random_model(3, 0)
    point = StateSpace(model.transition, np.zeros((3, 3)), Gaussian(np.zeros(3), np.zeros((3, 3))))
    with pytest.raises(ValueError, match="positive definite"):
        kalman(np.zeros((2, 3, 3)), point)


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e200])
def test_what_cannot_be_squared_is_no_observation(scale):
    Y = np.random.default_rng(0).standard_normal((6, 5, 2)) * np.array([1.0, scale])
    with pytest.raises(ValueError, match="variable 1 "):
        rt.statespace.em(Y, 0.1)
