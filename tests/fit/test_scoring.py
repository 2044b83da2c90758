"""Steps by the information of what was observed: their shares are a random walk's, and they end where EM ends, in fewer passes."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import retrace_sde as rt
from retrace_sde.fit.statespace.ascent.climb import Ascent, climb
from retrace_sde.fit.statespace.ascent.scoring import FAINT, Scoring
from retrace_sde.fit.statespace.em import em
from retrace_sde.fit.statespace.em_steps import expect
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.parameters import (
    Parameters,
    Setup,
    as_noise,
    first_guess,
    spread,
)

DT = 0.05


def setup_of(d, noise="estimate", values=None, affine=False):
    _, free, tied = as_noise(noise, d)
    mask = np.ones((d, d + affine), dtype=bool)
    unit = np.ones(d) if values is None else spread(values)
    return Setup(DT, mask, np.zeros(mask.shape), None, free, tied, None, unit)


def panel(seed, sigma, *, n=60, T=40, d=3):
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0=1.0, scheme="exact", random_state=seed + 1)
    return sde, rt.simulate.add_noise(X, sigma, random_state=seed + 2)


@pytest.mark.parametrize("share", [0.01, 1.0, 30.0])
def test_shares_are_the_information_of_a_random_walk(share):
    """Beside the dense Gaussian of its increments."""
    T, d = 30, 2
    H = np.array([[1.0, 0.4], [0.4, 0.7]])
    R = np.diag([1.0, 1.0]) * share * DT
    now = Parameters(np.zeros((d, d)), H, R, rt.Gaussian(np.zeros(d), np.eye(d)))
    y = np.random.default_rng(0).standard_normal((3, T + 1, d))
    setup = setup_of(d)
    seen = Observations.regular(y, DT)
    scoring = Scoring.of(setup, seen)
    shares = scoring._shares(expect(seen, now), now)
    band = 2 * np.eye(T) - np.eye(T, k=1) - np.eye(T, k=-1)
    K = np.kron(np.eye(T), H * DT) + np.kron(band, R)
    inverse = np.linalg.inv(K)
    W = shares.inverse.T  # dQ of unit size along pairs of directions
    units = [np.outer(W[:, 0], W[:, 0]), np.outer(W[:, 0], W[:, 1]) + np.outer(W[:, 1], W[:, 0])]
    changes = [inverse @ block_diag(*[unit] * T) for unit in units]
    changes.append(inverse @ np.kron(band, np.eye(d)))
    exact = np.array([[np.sum(a * b.T) / (2 * T) for a in changes] for b in changes])
    m0, m1, m2 = shares.moments
    turned = shares.W.T @ shares.W
    found = [m0[0, 0] / 2, m0[0, 1], (m1 * turned)[0, 0] / 2, (m2 * turned**2).sum() / 2]
    wanted = [exact[0, 0], exact[1, 1], exact[0, 2], exact[2, 2]]
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


@pytest.mark.parametrize(
    ("sigma", "options"),
    [(0.1, {}), (0.5, {}), (0.5, {"noise": "diagonal"}), (0.3, {"affine": True})],
)
def test_it_ends_where_em_ends_in_fewer_passes(sigma, options):
    _, Y = panel(11, sigma)
    Y[np.random.default_rng(5).random(Y.shape) < 0.02] = np.nan
    noise = options.get("noise", "estimate")
    setup = setup_of(3, noise, Y, options.get("affine", False))
    seen, start = Observations.regular(Y, DT), first_guess(Y, setup, as_noise(noise, 3)[0])
    plain, scored = (
        climb(lambda x: expect(seen, x), ascent, start, 400, 1e-3)
        for ascent in (Ascent(setup), Scoring.of(setup, seen))
    )
    assert scored.converged
    assert scored.trace[-1] > plain.trace[-1] - 0.01
    assert np.all(np.diff(scored.trace) >= 0)
    assert scored.evaluations <= min(plain.evaluations, 25)


def test_promises_are_kept_near_the_end():
    """What a step says that it will raise the likelihood by, beside what is still to be had: within a factor of two."""
    _, Y = panel(3, 0.3)
    setup = setup_of(3, values=Y)
    seen, start = Observations.regular(Y, DT), first_guess(Y, setup, as_noise("estimate", 3)[0])
    scoring = Scoring.of(setup, seen)
    found = climb(lambda x: expect(seen, x), scoring, start, 400, 1e-8)
    rng, end = np.random.default_rng(1), scoring.pack(found.parameters)
    weight = scoring.weights(found.parameters, found.expected)
    for _ in range(5):
        away = scoring.unpack(end + rng.standard_normal(len(end)) / weight / 2, found.parameters)
        there = expect(seen, away)
        _, promise = scoring.advance(there, away)
        assert 0.5 < promise / (found.trace[-1] - there.likelihood) < 2


def test_a_direction_lost_in_noise_keeps_an_sde():
    """A variable that hardly diffuses, behind noise: H stays positive, so that the exact step has a logarithm, and ends a small part of its error from 0."""
    A = np.array([[-1.0, 0.5], [-0.5, -1.0]])
    sde = rt.LinearSDE(A, np.diag([1.0, 1e-9]))
    X = sde.simulate(100, 60, 0.01, x0=1.0, scheme="exact", random_state=0)
    Y = rt.simulate.add_noise(X, 0.5, random_state=1)
    found = em(Y, 0.01, scheme="exact")
    assert not found.notes
    assert np.linalg.eigvalsh(found.diffusion)[0] > 0
    rough = 4 * np.sin(np.pi * np.arange(1, 60) / 120) ** 2
    least = FAINT * 0.25 * np.sqrt(2 / (100 * 59 * np.mean(rough**-2))) / 0.01
    assert 0.9 * least < np.linalg.eigvalsh(found.parameters.H)[0] < 30 * least


def test_a_trial_step_too_far_out_to_be_a_covariance_is_no_error():
    """The covariance overflows: such a trial has no likelihood, and a shorter step is tried."""
    _, y = panel(3, 0.1, n=10, T=10, d=2)
    setup, seen = setup_of(2, values=y), Observations.regular(y, DT)
    scoring, now = Scoring.of(setup, seen), first_guess(y, setup, np.eye(2))
    trial = np.full_like(scoring.pack(now), 1e200)
    with np.errstate(all="ignore"), pytest.raises(np.linalg.LinAlgError):
        scoring.unpack(trial, now)
