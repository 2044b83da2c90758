from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from retrace_sde.process.simulate import add_noise, random_irreversible_sde, shuffle

SETTINGS: list[Any] = ["stable", "growing", "rotation", "paper"]


def restored(X: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    if order.ndim == 1:
        return X[:, order]
    return np.stack([x[o] for x, o in zip(X, order, strict=True)])


# Random SDEs


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("d", [2, 10])
def test_every_setting_violates_detailed_balance(setting: Any, d: int) -> None:
    for seed in range(5):
        sde = random_irreversible_sde(d, setting=setting, random_state=seed)
        AH = sde.drift @ sde.diffusion
        assert np.abs(AH - AH.T).max() > 1e-3 * np.abs(AH).max()
        assert not sde.is_reversible()


def test_each_setting_has_the_growth_it_is_named_for() -> None:
    d, growth = 40, {}
    for setting in SETTINGS:
        sde = random_irreversible_sde(d, setting=setting, random_state=0)
        growth[setting] = np.linalg.eigvals(sde.drift).real.max()
    assert growth["stable"] == pytest.approx(-0.5)
    assert growth["rotation"] == pytest.approx(-0.5)  # M − Mᵀ has imaginary eigenvalues only
    # Circular law: the largest real part of M is 1 and of √d M is √d, both up to O(d^-1/2).
    assert growth["growing"] == pytest.approx(0.5, abs=2 / np.sqrt(d))
    assert growth["paper"] == pytest.approx(np.sqrt(d), abs=2)


@pytest.mark.parametrize("setting", SETTINGS)
def test_starts_are_narrow_and_the_papers_is_one_point(setting: Any) -> None:
    for seed in range(5):
        sde = random_irreversible_sde(20, setting=setting, random_state=seed)
        start = sde.simulate(2000, 1, 0.01, random_state=seed)[:, 0]
        if setting == "paper":
            assert np.all(start == start[0])
            assert 2 <= np.linalg.norm(start[0]) <= 10
        else:
            # 40,000 draws: a relative error of 1/√80,000 in the deviation, here 4.5 times.
            assert start.std() == pytest.approx(0.1, rel=0.016)


def test_a_seed_fixes_the_process() -> None:
    one, same, other = (random_irreversible_sde(4, random_state=s) for s in (1, 1, 2))
    assert np.array_equal(one.drift, same.drift)
    assert np.array_equal(one.diffusion, same.diffusion)
    assert not np.array_equal(one.drift, other.drift)
    with pytest.raises(ValueError, match="setting must be"):
        random_irreversible_sde(4, setting="chaotic")  # type: ignore[arg-type]


# Noise


def test_noise_is_added_to_a_copy_with_the_asked_deviation() -> None:
    X = np.full((100, 20, 10), 7.0)
    Y = add_noise(X, 0.3, random_state=0)
    assert np.all(X == 7)
    # 20,000 draws: standard errors 0.3/√20,000 and 0.3/√40,000, here 4.5 times.
    assert (Y - X).mean() == pytest.approx(0, abs=0.0096)
    assert (Y - X).std() == pytest.approx(0.3, abs=0.0068)
    assert np.array_equal(Y, add_noise(X, 0.3, random_state=0))


# Shuffling


@pytest.mark.parametrize("permutation", ["shared", "independent"])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("keep_first", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
def test_the_order_returned_restores_the_data(
    permutation: Any, share: float, keep_first: bool, dtype: Any
) -> None:
    X = np.random.default_rng(0).normal(scale=100, size=(7, 12, 3)).astype(dtype)
    X.flags.writeable = False
    shuffled, order = shuffle(
        X, permutation=permutation, share=share, keep_first=keep_first, random_state=1
    )
    assert shuffled.dtype == dtype
    assert shuffled.flags.writeable
    assert not np.shares_memory(shuffled, X)
    assert order.shape == ((12,) if permutation == "shared" else (7, 12))
    assert np.array_equal(restored(shuffled, order), X)
    assert np.array_equal(shuffled, X) == (share == 0)
    if keep_first:
        assert np.array_equal(shuffled[:, 0], X[:, 0])
    if permutation == "independent" and share == 1:
        assert len({tuple(o) for o in order}) > 1
    moved = (order != np.arange(12)).sum(axis=-1)
    assert np.all(moved <= round(share * (12 - keep_first)))


def test_arrays_without_variables_are_shuffled_too() -> None:
    X = np.arange(12.0).reshape(3, 4)
    shuffled, order = shuffle(X, permutation="independent", random_state=0)
    assert np.array_equal(restored(shuffled, order), X)


def test_all_permutations_are_equally_likely() -> None:
    X = np.zeros((6000, 4, 1))
    for keep_first, possible in ((False, 24), (True, 6)):
        _, order = shuffle(X, permutation="independent", keep_first=keep_first, random_state=0)
        counts = Counter(map(tuple, order.tolist()))
        assert len(counts) == possible
        assert chisquare(list(counts.values())).pvalue > 1e-4


def test_a_share_moves_that_many_slices_anywhere() -> None:
    n, T = 4000, 10
    _, order = shuffle(np.zeros((n, T, 1)), permutation="independent", share=0.39, random_state=0)
    kept = order == np.arange(T)
    # 3.9 slices are 4. Of 4 permuted at random one stays on average (variance 1), beside the 6
    # left alone; every position is kept equally often. Both within 4.5 standard errors.
    assert kept.sum(axis=1).mean() == pytest.approx(7, abs=4.5 / np.sqrt(n))
    assert np.all(np.abs(kept.mean(axis=0) - 0.7) < 4.5 * np.sqrt(0.7 * 0.3 / n))


def test_a_seed_fixes_the_shuffle() -> None:
    X = np.random.default_rng(0).normal(size=(5, 20, 2))
    one, same, other = (shuffle(X, random_state=s)[1] for s in (3, np.random.default_rng(3), 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_what_shuffle_refuses() -> None:
    X = np.zeros((2, 3, 1))
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share must be"):
            shuffle(X, share=share)
    with pytest.raises(ValueError, match="permutation must be"):
        shuffle(X, permutation="both")  # type: ignore[arg-type]
