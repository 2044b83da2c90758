"""What must not change an answer: the stored order, units, a rotation, the names of the trajectories."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import retrace_sde as rt

DT = 0.01
seeds = st.integers(0, 2**32 - 1)


def panel(seed: int, n: int = 60):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 6))
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    X = sde.simulate(n, 20, DT, x0=0.1, random_state=rng)
    return rng, X


def fit(X, **parameters):
    return rt.ReTrace(dt=DT, n_jobs=1, **{"drift": "linear", **parameters}).fit(X)


@given(seeds)
def test_permuting_the_input_slices_permutes_the_answer(seed):
    rng, X = panel(seed)
    moved = rng.permutation(X.shape[1])
    one, other = fit(X), fit(X[:, moved])
    np.testing.assert_array_equal(moved[other.order_], one.order_)
    np.testing.assert_allclose(other.drift_, one.drift_, rtol=1e-6, atol=1e-8)
    assert np.isclose(other.direction_.z, one.direction_.z, rtol=1e-6)


@given(seeds)
def test_units_of_the_variables_and_of_time_only_rescale_the_parameters(seed):
    rng, X = panel(seed)
    unit = 10.0 ** rng.integers(-4, 5, X.shape[2])
    one, other = fit(X), rt.ReTrace(dt=60 * DT, drift="linear", n_jobs=1).fit(X * unit)
    np.testing.assert_array_equal(other.order_, one.order_)
    ratio = unit[:, None] / unit[None, :]
    np.testing.assert_allclose(other.drift_ * 60 / ratio, one.drift_, rtol=1e-6, atol=1e-8)
    product = np.outer(unit, unit)
    np.testing.assert_allclose(
        other.diffusion_ * 60 / product, one.diffusion_, rtol=1e-6, atol=1e-9
    )
    assert np.isclose(other.direction_.log_likelihood_ratio, one.direction_.log_likelihood_ratio)


@given(seeds)
def test_a_rotation_of_the_variables_rotates_the_parameters(seed):
    rng, X = panel(seed, n=200)
    R = np.linalg.qr(rng.standard_normal((X.shape[2],) * 2))[0]
    one, other = fit(X), fit(X @ R.T)
    np.testing.assert_array_equal(other.order_, one.order_)
    np.testing.assert_allclose(R.T @ other.drift_ @ R, one.drift_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(R.T @ other.diffusion_ @ R, one.diffusion_, rtol=1e-6, atol=1e-9)
    # The law of the start is also compared with the variables' own variances, which a rotation mixes.
    assert np.sign(other.direction_.z) == np.sign(one.direction_.z)
    assert np.isclose(other.direction_.z, one.direction_.z, rtol=0.25)


@given(seeds)
def test_relabelling_trajectories_and_variables_changes_nothing_else(seed):
    rng, X = panel(seed)
    rows, columns = rng.permutation(X.shape[0]), rng.permutation(X.shape[2])
    one, other = fit(X), fit(X[rows][:, :, columns])
    np.testing.assert_array_equal(other.order_, one.order_)
    np.testing.assert_allclose(
        other.drift_, one.drift_[np.ix_(columns, columns)], rtol=1e-6, atol=1e-8
    )


@given(seeds)
def test_a_constant_level_is_absorbed_by_an_affine_drift(seed):
    rng, X = panel(seed)
    level = rng.uniform(-100, 100, X.shape[2])
    one, other = fit(X, drift="affine"), fit(X + level, drift="affine")
    np.testing.assert_array_equal(other.order_, one.order_)
    np.testing.assert_allclose(other.drift_, one.drift_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        other.offset_, one.offset_ - one.drift_ @ level, rtol=1e-4, atol=1e-3
    )


@given(seeds)
def test_running_the_clock_backwards_turns_the_direction_around(seed):
    """The reversed panel has the reversed order, and the same evidence for it."""
    _, X = panel(seed)
    one, other = fit(X), fit(X[:, ::-1])
    np.testing.assert_array_equal(X.shape[1] - 1 - other.order_, one.order_)
    assert np.isclose(other.direction_.z, one.direction_.z, rtol=1e-6)
