"""Cells that are equal for a reason: found where they were planted, and nowhere else."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.evidence.direction.verdict import Reason
from retrace_sde.evidence.tied_cells import carried_forward, changing, piles, tied

N, T, D = 30, 10, 2


def course(seed, *, shift=0.7):
    """A course towards equilibrium."""
    rng = np.random.default_rng(seed)
    x = np.empty((N, T, D))
    x[:, 0] = shift + rng.standard_normal((N, D))
    for t in range(1, T):
        x[:, t] = 0.85 * x[:, t - 1] + 0.53 * rng.standard_normal((N, D))
    return x


def with_copies(x, rng):
    """The last value of some subjects carried forward, and which rows are then equal."""
    planted = np.zeros(x.shape[:2], dtype=bool)
    for j in range(0, len(x), 3):
        last = rng.integers(2, T - 1)
        x[j, last:] = x[j, last]
        planted[j, last:] = True
    return x, planted


def shuffled(x, *others, seed):
    slices = np.random.default_rng(seed).permutation(x.shape[1])
    return tuple(each[:, slices] for each in (x, *others))


@pytest.mark.parametrize("unit", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_rows_carried_forward_are_found_where_they_were_planted(seed, unit):
    x, planted = with_copies(course(seed), np.random.default_rng(seed))
    x = np.round(x / unit) * unit if unit else x
    x, planted = shuffled(x, planted, seed=seed)
    found = carried_forward(x)
    assert found is not None
    assert (found & planted).sum() == planted.sum()
    assert (found & ~planted).sum() <= (0 if unit == 0 else 2)  # rounding makes its own


@pytest.mark.parametrize("make", [
    lambda x: x,
    lambda x: np.round(x, 2),
    lambda x: np.round(x),
    lambda x: np.round(x[:, :, :1], 1),
    lambda x: np.round(x / 0.3) * 0.3,
    lambda x: np.round(10 * x[:, :1] + 0.5 * x[:, :] - 0.5 * x[:, :1]),  # levels of their own, short steps
    lambda x: (x > 1.5) * 1.0,
    lambda x: np.maximum(x[:, :, :1], 0.0),  # a limit repeats, too
])  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_rounding_scores_and_limits_are_not_taken_for_carried_values(seed, make):
    assert carried_forward(make(course(seed))) is None


@pytest.mark.parametrize("side", ["lowest", "highest"])
@pytest.mark.parametrize("unit", [0.0, 0.01])
def test_a_limit_is_found_at_its_side_with_its_cells(side, unit):
    sign = 1.0 if side == "lowest" else -1.0
    x = course(1)
    x = np.round(x / unit) * unit if unit else x
    x[:, :, 1] = sign * np.maximum(sign * x[:, :, 1], -0.5)
    (found,) = piles(x)
    assert (found.variable, found.side, found.value) == (1, side, -0.5 * sign)
    np.testing.assert_array_equal(found.cells, x[:, :, 1] == -0.5 * sign)
    assert "detection limit" in found.sentence("b")
    assert "'b'" in found.sentence("b")


def test_a_limit_of_every_slice_is_found():
    limits = np.linspace(-1, 1, T)[None, :, None]
    x = np.maximum(course(2), limits)
    assert {each.variable for each in piles(x)} == {0, 1}
    for each in piles(x):
        late = np.arange(T) >= T // 2  # few cells are at the first limits
        np.testing.assert_array_equal(each.cells[:, late], (x == limits)[:, late, each.variable])


@pytest.mark.parametrize("make", [
    lambda x: x,
    lambda x: np.round(x, 2),
    lambda x: np.round(x),
    lambda x: (x > 1.0) * 1.0,
    lambda x: x - x[:, :1],  # all start at one value
    lambda x: np.random.default_rng(0).poisson(3.0, x.shape) * 1.0,
])  # fmt: skip
def test_what_is_no_limit(make):
    assert not any(piles(make(course(seed))) for seed in range(5))


def test_a_share_that_changes_and_one_that_does_not():
    rng = np.random.default_rng(3)
    steady = [changing(rng.random((N, T)) < 0.2) for _ in range(400)]
    assert 0.13 < np.mean(steady) < 0.27  # the level is a fifth
    assert changing(rng.random((N, T)) < np.linspace(0.05, 0.5, T))


def test_columns_of_few_values_are_named_with_the_probability_of_a_tie():
    rng = np.random.default_rng(4)
    x = np.stack([rng.normal(size=(N, T)), rng.random((N, T)) < 0.05, rng.poisson(1.0, (N, T))], 2)
    found = dict(tied(x))
    assert set(found) == {1, 2}
    same = [
        np.mean([a == b for i, a in enumerate(x[:, 0, k]) for b in x[:i, 1, k]]) for k in (1, 2)
    ]
    np.testing.assert_allclose([found[1], found[2]], same, atol=0.1)
    assert not tied(np.round(x[:, :, :1], 1))


def test_carried_rows_are_named_and_fitted_as_missing_ones():
    x, planted = with_copies(course(5), np.random.default_rng(5))
    x, planted = shuffled(x, planted, seed=5)
    with pytest.warns(rt.ReTraceWarning, match=r"rows of 10 subjects repeat .*trajectory 0"):
        model = rt.ReTrace(random_state=0).fit(x)
    by_hand = rt.ReTrace(random_state=0).fit(np.where(planted[:, :, None], np.nan, x))
    np.testing.assert_array_equal(model.order_, by_hand.order_)
    np.testing.assert_allclose(model.drift_, by_hand.drift_)


def test_a_direction_made_by_a_limit_is_not_called():
    x = course(6, shift=0.0)
    x = np.maximum(x, -2 + 0.25 * np.arange(T)[None, :, None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(random_state=0).fit(x)
    assert not model.direction_.identified
    assert model.direction_.reason is Reason.EQUAL_CELLS
    assert "cut off at a limit" in model.direction_.verdict
    assert any("detection limit" in each for each in model.result_.notes)
