"""Tables in other units: the answer changes exactly as the units demand, and in nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrace_sde as rt
from retrace_sde.io.formats import frame_of_array

DT = 0.01
FITS = [("shared", "mle"), ("shared", "exact"), ("independent", "mle"), ("independent", "mcem")]


@pytest.fixture(autouse=True, scope="module")
def brief():
    """Fits that average over orders, at their shortest (tests/conftest.py): units are what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrace_sde.evidence.direction.marginal_test.RESTARTS", 1)
        patch.setattr("retrace_sde.search.gibbs.MAX_OWN_STAGES", 1)
        yield


def fit(X, permutation, estimator, drift="affine"):
    return rt.recover(
        frame_of_array(X),
        subject="subject",
        slice="slice" if permutation == "shared" else None,
        variables=[f"x{k}" for k in range(X.shape[2])],
        dt=DT,
        drift=drift,
        estimator=estimator,
        random_state=0,
        n_jobs=1,
    ).model


def data(seed, permutation, n, T):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, random_state=rng)
    X = sde.simulate(n, T, DT, x0=0.3, random_state=rng)
    scale = 10.0 ** rng.uniform(-6, 6, 3)
    return rng, rt.simulate.shuffle(X, permutation=permutation, random_state=rng)[0], scale


def check(one, other, scale, shift, exact):
    ratio, square = np.divide.outer(scale, scale), np.outer(scale, scale)
    np.testing.assert_array_equal(other.order_, one.order_)
    A = one.drift_ * ratio
    offset = one.offset_ * scale - A @ shift
    # An offset is a difference of large numbers: its error is relative to them.
    size = np.abs(one.offset_ * scale) + np.abs(A) @ np.abs(shift) + 1e-300
    np.testing.assert_allclose(other.drift_ / ratio, one.drift_, rtol=exact, atol=exact)
    np.testing.assert_allclose(other.offset_ / size, offset / size, rtol=0, atol=exact)
    np.testing.assert_allclose(other.diffusion_ / square, one.diffusion_, rtol=exact, atol=exact)
    mine, theirs = one.standard_errors_, other.standard_errors_
    np.testing.assert_allclose(theirs.drift / ratio, mine.drift, rtol=exact)
    np.testing.assert_allclose(theirs.diffusion / square, mine.diffusion, rtol=exact)
    np.testing.assert_allclose(
        other.result_.initial.mean, one.result_.initial.mean * scale + shift, rtol=exact
    )
    start = one.result_.initial.covariance
    np.testing.assert_allclose(other.result_.initial.covariance / square, start, atol=exact)
    assert np.isclose(other.direction_.z, one.direction_.z, rtol=exact, atol=exact)
    values = one._memory.model.data.observed.sum()
    expected = one.log_likelihood_ - values * np.log(scale).sum()
    assert np.isclose(other.log_likelihood_, expected, rtol=exact, atol=exact)
    if one.alternative_ is not None:
        np.testing.assert_allclose(
            other.alternative_.drift / ratio, one.alternative_.drift, rtol=exact, atol=exact
        )


@pytest.mark.parametrize(("permutation", "estimator"), FITS)
@given(seed=st.integers(0, 2**32 - 1))
def test_scaling_and_shifting_columns(permutation, estimator, seed):
    n, T = (40, 12) if permutation == "shared" else (8, 6)
    rng, X, scale = data(seed, permutation, n, T)
    shift = rng.normal(0, 1e3, 3) * scale
    if permutation == "independent":
        # The search settles ties by rounding, so only a change that rounds nothing leaves it alone.
        scale, shift = 2.0 ** rng.integers(-20, 20, 3), np.zeros(3)
    one, other = (fit(each, permutation, estimator) for each in (X, X * scale + shift))
    check(one, other, scale, shift, 1e-6)


@given(seed=st.integers(0, 2**32 - 1))
def test_scaling_columns_of_a_drift_without_an_offset(seed):
    _, X, scale = data(seed, "shared", 40, 12)
    one, other = (fit(each, "shared", "mle", "linear") for each in (X, X * scale))
    check(one, other, scale, np.zeros(3), 1e-8)


@pytest.mark.parametrize("estimator", ["mle", "ols", "exact"])
def test_the_offsets_error_is_that_of_a_fit_in_the_users_units(estimator):
    _, X, scale = data(1, "shared", 40, 12)
    moved = X * scale + 20 * scale
    ours = fit(moved, "shared", estimator)
    plain = rt.ReTrace(dt=DT, drift="affine", estimator=estimator).fit(moved)
    np.testing.assert_allclose(
        ours.standard_errors_.offset, plain.standard_errors_.offset, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("permutation", "noise"),
    [("shared", "estimate"), ("shared", "given"), ("independent", "estimate")],
)
def test_noise_and_missing_values_in_other_units(permutation, noise):
    """EM stops by a rise in nats, which no unit changes; powers of two round nothing."""
    rng, X, _ = data(5, permutation, 15, 7)
    X = X + 0.05 * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < 0.1] = np.nan
    scale = 2.0 ** rng.integers(-20, 20, 3)
    R = np.diag([0.05, 0.04, 0.06]) ** 2
    models = []
    for values, square in ((X, 1.0), (X * scale, np.outer(scale, scale))):
        given = noise if noise == "estimate" else R * square
        table = frame_of_array(values)
        label = "slice" if permutation == "shared" else None
        models.append(
            rt.recover(
                table, subject="subject", slice=label, variables=["x0", "x1", "x2"], dt=DT,
                estimator="em", observation_noise=given, random_state=0, n_jobs=1,
            ).model
        )  # fmt: skip
    one, other = models
    ratio, square = np.divide.outer(scale, scale), np.outer(scale, scale)
    np.testing.assert_array_equal(other.order_, one.order_)
    np.testing.assert_allclose(other.drift_ / ratio, one.drift_, rtol=1e-6)
    np.testing.assert_allclose(other.diffusion_ / square, one.diffusion_, rtol=1e-6)
    np.testing.assert_allclose(other.observation_noise_ / square, one.observation_noise_, rtol=1e-6)
    np.testing.assert_allclose(
        other.standard_errors_.offset / scale, one.standard_errors_.offset, rtol=1e-6
    )
    np.testing.assert_allclose(other.states_ / scale, one.states_, rtol=1e-6, atol=1e-9)
    if noise == "given":
        np.testing.assert_allclose(one.observation_noise_, R, rtol=1e-9)
