"""Scores of slices against densities whose score is known, and their use in Algorithm 1."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.panel.blocks import Data
from retrace_sde.paper.algorithm1 import SCORES
from retrace_sde.paper.score import GaussianScore
from retrace_sde.paper.score_estimators import KernelScore, MixtureScore, NetworkScore, _loss

FAR = np.array([2.0, 0.0])


def two_hills(n, rng):
    """An even mixture of N(±FAR, I)."""
    return rng.choice([-1.0, 1.0], size=(n, 1)) * FAR + rng.standard_normal((n, 2))


def two_hills_score(x):
    return np.tanh(x @ FAR)[..., None] * FAR - x


def banana(n, rng):
    """(u, v + 0.7 u²) of a standard normal (u, v): bent, and no mixture of Gaussians."""
    u, v = rng.standard_normal((2, n))
    return np.c_[u, v + 0.7 * u**2]


def banana_score(x):
    rest = x[..., 1] - 0.7 * x[..., 0] ** 2
    return np.stack([1.4 * x[..., 0] * rest - x[..., 0], -rest], axis=-1)


DENSITIES = {"two hills": (two_hills, two_hills_score), "banana": (banana, banana_score)}


def relative_error(score, density, n, *, slices=1, seed=0):
    """Root mean square error at the data, relative to the size of the true score."""
    draw, truth = DENSITIES[density]
    X = draw(n * slices, np.random.default_rng(seed)).reshape(n, slices, 2)
    error = score.fit(Data(X))(X) - truth(X)
    return np.sqrt((error**2).sum() / (truth(X) ** 2).sum())


# The margins are 1.2 to 1.5 times the largest of seeds 0 to 4; one Gaussian is at 0.55 and 0.80.
@pytest.mark.parametrize(
    ("score", "density", "bound"),
    [
        (MixtureScore(), "two hills", 0.15),
        (MixtureScore(), "banana", 0.45),
        (KernelScore(), "two hills", 0.42),
        (KernelScore(), "banana", 0.6),
    ],
)
def test_the_score_of_a_known_density_is_found_where_a_gaussian_misses_it(score, density, bound):
    assert relative_error(score, density, 2000) < bound
    assert relative_error(GaussianScore(), density, 2000) > 1.2 * bound


@pytest.mark.parametrize(
    "score", [MixtureScore(restarts=1), KernelScore()], ids=["mixture", "kernel"]
)
def test_more_trajectories_bring_the_score_nearer_to_the_truth(score):
    few, many = (
        np.mean([relative_error(score, "two hills", n, seed=seed) for seed in range(2)])
        for n in (200, 2000)
    )
    assert many < 0.75 * few


def test_denoising_score_matching_finds_the_score():
    pytest.importorskip("torch")
    assert relative_error(NetworkScore(steps=800, batch=256), "banana", 2000) < 0.4
    short = NetworkScore(steps=30)
    first, second = (relative_error(short, "two hills", 200) for _ in range(2))
    assert first == second  # its own seed, whatever was drawn before


def test_without_torch_the_network_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"retrace-sde\[score\]"):
        NetworkScore().fit(Data(np.random.default_rng(0).standard_normal((30, 2, 2))))


@pytest.mark.parametrize(
    "score", [MixtureScore(restarts=1), KernelScore()], ids=["mixture", "kernel"]
)
def test_gaussian_slices_get_the_gaussian_score_in_the_units_of_the_data(score):
    rng = np.random.default_rng(1)
    mix = np.array([[2.0, 0.5], [0.0, 0.1]])
    X = 5 + (rng.standard_normal((1000, 2, 2)) * [[[1.0], [3.0]]]) @ mix.T
    expected = GaussianScore().fit(Data(X))(X)
    found = score.fit(Data(X))(X)
    assert np.abs(found - expected).mean() < 0.25 * np.abs(expected).mean()


def test_scores_follow_a_change_of_units():
    """∇ log p of y = L x is L⁻ᵀ ∇ log p of x: both estimators see standardised states only."""
    rng = np.random.default_rng(2)
    X = two_hills(300, rng).reshape(150, 2, 2)
    scale = np.array([10.0, 0.01])
    for score in (MixtureScore(), KernelScore()):
        plain, scaled = score.fit(Data(X))(X), score.fit(Data(X * scale))(X * scale)
        np.testing.assert_allclose(scaled * scale, plain, rtol=1e-6, atol=1e-6)


def test_the_kernel_score_is_the_gradient_of_its_density():
    """Finite differences of the log density at states that are not in the data."""
    rng = np.random.default_rng(3)
    X = two_hills(150, rng)[:, None, :]
    h = 0.4
    fitted = KernelScore(h).fit(Data(X))
    z = fitted.base.standardise(X)[0]

    def log_density(x):
        at = fitted.base.standardise(x[None, None, :])[0, 0]
        squares = ((at - np.sqrt(1 - h * h) * z) ** 2).sum(axis=1)
        return np.log(np.exp(-squares / (2 * h * h)).mean())

    for x in rng.standard_normal((4, 2)):
        steps = 1e-5 * np.eye(2)
        slope = [(log_density(x + e) - log_density(x - e)) / 2e-5 for e in steps]
        np.testing.assert_allclose(fitted(x[None, None, :])[0, 0], slope, rtol=1e-5, atol=1e-6)


def test_score_matching_chooses_a_width_near_the_best():
    X = two_hills(1500, np.random.default_rng(4))[:, None, :]
    truth = two_hills_score(X)
    widths = (0.15, 0.3, 0.5, 0.9)
    z = GaussianScore().fit(Data(X)).standardise(X)[0]
    losses = [_loss(z, h, z) for h in widths]
    errors = [((KernelScore(h).fit(Data(X))(X) - truth) ** 2).sum() for h in widths]
    assert np.argmin(losses) == np.argmin(errors)


def test_noise_of_known_size_is_taken_out_of_the_covariance():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((40_000, 1, 2)) @ np.diag([1.0, 2.0])
    noise = np.diag([0.5, 0.25])
    Y = X + rng.standard_normal(X.shape) @ np.sqrt(noise)
    at = np.array([[[1.0, 1.0]]])
    found = GaussianScore(noise).fit(Data(Y))(at)[0, 0]
    np.testing.assert_allclose(
        found, [-1.0, -0.25], rtol=0.06
    )  # −Σ⁻¹ x of the states without noise


@pytest.mark.parametrize("name", [name for name in SCORES if name != "network"])
def test_algorithm1_takes_any_score(name):
    """Slices of growing spread, so that every consistent score sorts them."""
    rng = np.random.default_rng(6)
    base = two_hills(250, rng)[:, None, :]
    X = base * np.linspace(1, 3, 4)[None, :, None] + 0.01 * rng.standard_normal((250, 4, 2))
    how = rt.paper.ScoreOrder(drift="mean", score=name)
    model = rt.ReTrace(order=how, max_iter=1, drift="linear")
    np.testing.assert_array_equal(model.fit(X[:, [3, 0, 2, 1]]).order_, [1, 3, 2, 0])
    assert model.result_.settings["order"] == str(how)


def test_an_own_score_is_used_and_anything_else_refused():
    class Backwards:
        """Says that the widest slice has the largest score."""

        def fit(self, data):
            inverse = GaussianScore().fit(data)
            return lambda x: 1.0 / inverse(x)

    rng = np.random.default_rng(7)
    X = rng.standard_normal((300, 1, 2)) * np.linspace(1, 3, 5)[None, :, None]
    X = X + 0.001 * rng.standard_normal((300, 5, 2))
    how = rt.paper.ScoreOrder(drift="mean", score=Backwards())
    model = rt.ReTrace(order=how, max_iter=1, drift="linear")
    assert model.fit(X).order_[0] != 0
    for wrong in ("spline", 3, None):
        with pytest.raises(ValueError, match="score must be"):
            rt.paper.ScoreOrder(score=wrong)
    with pytest.raises(ValueError, match="bandwidth"):
        KernelScore(1.5).fit(Data(X))
    mixture = rt.paper.ScoreOrder(score="mixture")
    with pytest.raises(ValueError, match="only S − R"):
        rt.ReTrace(order=mixture, observation_noise=0.1, drift="linear").fit(X)
