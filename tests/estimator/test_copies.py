"""Trajectories that are nearly copies are noticed, named and counted once; independent ones are not, however alike they look."""

import warnings

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.estimator.copies import near_copies
from retrace_sde.panel.blocks import Data


def at_rest(rng, n, T, d):
    sde = rt.simulate.random_irreversible_sde(d, random_state=int(rng.integers(1 << 30)))
    return sde.simulate(n, T, 0.1, x0="stationary", random_state=int(rng.integers(1 << 30)))


def copies(noise, seed=0, n=10, T=16):
    rng = np.random.default_rng(seed)
    X = np.repeat(at_rest(rng, n, T, 3), 3, axis=0)
    return X + noise * X.std(axis=(0, 1)) * rng.normal(size=X.shape)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_copies_are_found_and_nothing_else(noise):
    for seed in range(5):
        found = near_copies(Data(copies(noise, seed)), shared=True)
        np.testing.assert_array_equal(found, np.repeat(np.arange(10), 3))


def test_copies_are_found_in_orders_of_their_own():
    rng = np.random.default_rng(0)
    X = copies(0.01)[np.arange(30)[:, None], rng.permuted(np.tile(np.arange(16), (30, 1)), axis=1)]
    found = near_copies(Data(X), shared=False)
    np.testing.assert_array_equal(found, np.repeat(np.arange(10), 3))


def test_copies_up_to_an_offset_are_none():
    X = copies(0.0)
    X += np.tile([-0.5, 0.0, 0.5], 10)[:, None, None] * X.std(axis=(0, 1))
    assert near_copies(Data(X), shared=True) is None


def independent(kind, rng):
    X = at_rest(rng, 60, 8, 2)
    if kind == "0/1":
        return (rng.random((60, 8, 2)) < 0.1).astype(float)
    if kind == "counts":
        return rng.poisson(2.0 * np.exp(0.3 * X))
    if kind == "one start, low noise":
        return 1e-3 * (X - X[:, :1]) + 5 * np.arange(8.0)[None, :, None]
    if kind == "five levels":
        return 0.1 * X + 10.0 * rng.integers(5, size=(60, 1, 1))
    if kind == "mostly missing":
        return np.where(rng.random(X.shape) < 0.6, np.nan, X)
    return {"few visits": X[:, :3], "one variable": X[:, :, :1], "rounded": np.round(X)}[kind]


@pytest.mark.parametrize("kind", ["few visits", "one variable", "0/1", "counts", "rounded", "five levels",
                                  "one start, low noise", "mostly missing"])  # fmt: skip
def test_independent_trajectories_are_not_taken_for_copies(kind):
    with np.errstate(all="ignore"):
        for seed in range(10):
            X = np.asarray(independent(kind, np.random.default_rng(seed)), dtype=float)
            for shared in (True, False):
                assert near_copies(Data(X), shared=shared) is None, (seed, shared)


def test_a_fit_names_copies_and_counts_them_once():
    X = copies(0.02)
    shuffled = np.random.default_rng(1).permutation(30)
    with pytest.warns(rt.ReTraceWarning, match="nearly copies of one another"):
        model = rt.ReTrace(dt=0.1, subjects="alike", random_state=0).fit(X[shuffled])
    assert model.result_.n_groups == 10
    pairs = set(zip(model.result_.groups, shuffled // 3, strict=True))
    assert len(pairs) == 10
    assert model.standard_errors_.kind == "sandwich by group"
    assert "30 trajectories are nearly copies of others (10 sets)" in model.summary()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing new is noticed
        given = rt.ReTrace(dt=0.1, subjects="alike", random_state=0).fit(
            X[shuffled], groups=shuffled // 3
        )
    np.testing.assert_array_equal(given.standard_errors_.drift, model.standard_errors_.drift)


def test_copies_join_the_groups_that_are_given():
    X = copies(0.02, n=12)[:-2]  # eleven sets of three, and one alone
    groups = np.arange(34)
    groups[[0, 3]] = 99
    with pytest.warns(
        rt.ReTraceWarning, match="Trajectories 0, 1 and 2; 3, 4 and 5; 6, 7 and 8, and 8"
    ):
        model = rt.ReTrace(dt=0.1, subjects="alike", random_state=0).fit(X, groups=groups)
    assert model.result_.n_groups == 11
    assert len(set(model.result_.groups[:6])) == 1


def test_subjects_of_a_table_are_named():
    X = copies(0.02)[:28]
    table = pd.DataFrame(X.reshape(-1, 3), columns=list("xyz"))
    table["who"] = np.repeat([f"p{j:02d}" for j in range(28)], 16)
    table["when"] = np.tile(np.arange(16), 28)
    with pytest.warns(rt.ReTraceWarning, match="Subjects 'p00', 'p01' and 'p02'"):
        found = rt.recover(table, subject="who", slice="when", dt=0.1, random_state=0,
                           subjects="alike", observation_noise=None)  # fmt: skip
    assert not any("p00" in note for note in found.model.result_.notes)  # a report may be shared
