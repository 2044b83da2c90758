"""The tests of independence: their level, their power, and what they cannot say."""

from __future__ import annotations

import numpy as np
import pytest

from retrace_sde.evidence.dependence import (
    Cleared,
    DependenceKind,
    cd_p_value,
    cleared,
    common_share,
    dependence_of,
    effective_number,
    lm_p_value,
)


def residuals(n, S, d, rng, *, common=0.0, serial=0.0):
    """Of unit variance; a share of it common, and correlated along each trajectory."""
    own = rng.standard_normal((n, S, d))
    for t in range(1, S):
        own[:, t] = serial * own[:, t - 1] + np.sqrt(1 - serial**2) * own[:, t]
    return np.sqrt(1 - common) * own + np.sqrt(common) * rng.standard_normal((1, S, d))


def rejected(n, S, d, seeds, p_value, **how):
    return np.mean(
        [p_value(residuals(n, S, d, np.random.default_rng(s), **how)) <= 0.05 for s in range(seeds)]
    )


@pytest.mark.parametrize("serial", [0.0, 0.6])
@pytest.mark.parametrize("p_value", [cd_p_value, lm_p_value])
def test_independent_trajectories_are_not_called_dependent(p_value, serial):
    # 100 panels at 5 %: more than 13 by chance with probability 5e-4
    assert rejected(12, 15, 2, 100, p_value, serial=serial) <= 0.13


@pytest.mark.statistics
@pytest.mark.parametrize("n", [8, 30, 200])
@pytest.mark.parametrize("S", [7, 15, 59])
@pytest.mark.parametrize("d", [1, 3, 6])
def test_the_level_holds_for_all_sizes(n, S, d):
    # 400 panels: a standard error of .011
    assert rejected(n, S, d, 400, cd_p_value) <= 0.085


@pytest.mark.parametrize(("n", "share"), [(8, 0.4), (30, 0.15), (200, 0.03)])
def test_common_shocks_are_found_and_measured(n, share):
    e = residuals(n, 15, 3, np.random.default_rng(1), common=share)
    found = dependence_of(Cleared(e, e), n)
    assert found.kind is DependenceKind.COMMON
    assert abs(found.common_share - share) < 0.6 * share
    assert found.effective_n < n / 2
    assert "share shocks" in found.verdict


def test_shocks_of_either_sign_are_seen_by_lm_alone():
    """A factor whose loadings have mean zero leaves no trace in the slice means."""
    rng = np.random.default_rng(4)
    loadings = np.repeat([1.0, -1.0], 10)[:, None, None]
    e = rng.standard_normal((20, 15, 2)) + loadings * rng.standard_normal((1, 15, 2))
    found = dependence_of(Cleared(e, e), 20)
    assert found.kind is DependenceKind.CORRELATED
    assert found.p_value > 0.01 >= found.correlation_p_value


def test_missing_residuals_do_not_count():
    rng = np.random.default_rng(5)
    e = residuals(30, 15, 3, rng, common=0.3)
    e[rng.random(e.shape) < 0.2] = np.nan
    assert abs(common_share(e) - 0.3) < 0.15
    assert dependence_of(cleared(e, np.full((30, 16, 3), np.nan)), 30).kind is DependenceKind.COMMON


def test_too_few_are_not_tested():
    nothing = np.zeros((2, 15, 1))
    found = dependence_of(Cleared(nothing, nothing), 2)
    assert found.kind is DependenceKind.NOT_TESTED
    assert found.p_value is None
    assert "2 trajectories are too few" in found.verdict
    many = np.zeros((30, 15, 1))
    found = dependence_of(Cleared(many, many), 30, np.arange(30) % 2)
    assert "2 groups are too few" in found.verdict


def test_the_effective_number_is_that_of_the_variance_of_a_mean():
    assert effective_number(30, 0.0) == 30
    np.testing.assert_allclose(effective_number(30, 1.0), 1)
    rng = np.random.default_rng(0)
    means = residuals(30, 20_000, 1, rng, common=0.2).mean(axis=0)
    np.testing.assert_allclose(1 / means.var(), effective_number(30, 0.2), rtol=0.05)


def steps(seed, *, n=30, T=8, plates=0.0, curved=0.0):
    """States of three variables, offsets of slices added, and residuals of their steps by one linear drift."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3)) + 2 * (curved > 0)
    found = []
    for _ in range(T):
        found.append(x)
        x = 0.8 * x - curved * x**2 + 0.5 * rng.standard_normal(x.shape)
    X = np.stack(found, axis=1) + plates * rng.standard_normal((1, T, 3))
    z = np.concatenate([X[:, :-1], np.ones((n, T - 1, 1))], axis=2).reshape(-1, 4)
    y = np.diff(X, axis=1).reshape(-1, 3)
    e = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
    return X, (e / e.std(axis=0)).reshape(n, T - 1, 3)


def test_scores_test_slice_effects_beside_the_regressors():
    """The squares of their sums are what indicators of slices explain, in a regression that has them beside all others."""
    X, e = steps(0, plates=0.3)
    now, i, j = X[:, 1:-1], *np.triu_indices(3)
    z = np.concatenate([np.ones((30, 6, 1)), now, X[:, :-2], now[:, :, i] * now[:, :, j]], axis=2)
    D = np.broadcast_to(np.eye(6), (30, 6, 6)).reshape(-1, 6)
    z, y = z.reshape(180, -1), e[:, 1:].reshape(180, 3)
    left = [y - a @ np.linalg.lstsq(a, y, rcond=None)[0] for a in (z, np.c_[z, D])]
    scores = cleared(e, X).scores
    explained = (left[0] ** 2).sum() - (left[1] ** 2).sum()
    np.testing.assert_allclose((scores.sum(axis=0) ** 2).sum() / 30, explained, rtol=1e-6)


def test_offsets_of_few_slices_are_found_and_curved_courses_are_not():
    def found(seed, **how):
        X, e = steps(seed, **how)
        return dependence_of(cleared(e, X), 30).kind is DependenceKind.COMMON

    assert np.mean([found(seed, plates=1.0) for seed in range(20)]) == 1
    assert np.mean([found(seed, curved=0.05) for seed in range(20)]) <= 0.1
    assert np.mean([found(seed) for seed in range(40)]) <= 0.05
