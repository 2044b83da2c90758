"""Contents decide where things stand, and what is found there goes back to where it came from."""

from __future__ import annotations

import numpy as np
import pytest

from retrace_sde import Knowledge, Panel
from retrace_sde.orders.prior import compiled
from retrace_sde.panel.canonical import content_permutation

N, T, D = 7, 6, 2


def shuffled(X, rng, *, shared, lengths=None):
    """X with rows and columns permuted, and what went where."""
    rows = rng.permutation(len(X))
    if shared:
        columns = rng.permutation(X.shape[1])
        return X[rows][:, columns], rows, columns
    columns = np.tile(np.arange(X.shape[1]), (len(X), 1))
    for row, t in zip(columns, np.full(len(X), T) if lengths is None else lengths, strict=True):
        row[:t] = rng.permutation(t)
    return np.take_along_axis(X, columns[:, :, None], axis=1)[rows], rows, columns


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["continuous", "ties", "missing"])
def test_every_permutation_and_every_unit_comes_to_the_same_places(shared, kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, T, D))
    if kind == "ties":  # one variable alone does not tell observations apart, nor trajectories
        X[..., 0] = rng.integers(0, 2, (N, T))
    if kind == "missing":
        X[rng.random(X.shape) < 0.3] = np.nan
    one = content_permutation(Panel.from_array(X), shared=shared).panel(Panel.from_array(X)).values
    for _ in range(20):
        Y, _, _ = shuffled(X, rng, shared=shared)
        scale, shift = 10.0 ** rng.uniform(-3, 3, D), rng.normal(0, 10, D)
        panel = Panel.from_array(Y)
        np.testing.assert_array_equal(
            content_permutation(panel, shared=shared).panel(panel).values, one
        )
        other = Panel.from_array(Y * scale + shift)
        there = content_permutation(other, shared=shared).sorted(Y)
        np.testing.assert_array_equal(there, one)


@pytest.mark.parametrize("shared", [True, False])
def test_covariates_tell_apart_what_variables_do_not(shared):
    rng = np.random.default_rng(5)
    X, u = np.zeros((N, T, 1)), rng.standard_normal((N, T, 1))
    one = Panel.from_array(X, covariates=u)
    one = content_permutation(one, shared=shared).panel(one).covariates
    for _ in range(5):
        other = Panel.from_array(X, covariates=shuffled(u, rng, shared=shared)[0])
        found = content_permutation(other, shared=shared).panel(other).covariates
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_found_goes_back_to_where_it_came_from(shared):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, T, D))
    here = content_permutation(Panel.from_array(X), shared=shared)
    Z = here.sorted(X)
    order = rng.permutation(T) if shared else rng.permuted(np.tile(np.arange(T), (N, 1)), axis=1)
    back = here.given_orders(order)
    there = Z[:, order] if shared else np.take_along_axis(Z, order[:, :, None], axis=1)
    given = X[:, back] if shared else np.take_along_axis(X, back[:, :, None], axis=1)
    np.testing.assert_array_equal(here.given_rows(there), given)
    np.testing.assert_array_equal(here.sorted_orders(back), order)
    if not shared:  # draws of each trajectory's order, more or fewer than there are observations
        draws = np.stack([order, order[:, ::-1]], axis=1)
        found = here.given_orders(draws)
        for k in range(2):
            np.testing.assert_array_equal(found[:, k], here.given_orders(draws[:, k]))
    np.testing.assert_array_equal(here.given_observations(Z), X)


def test_shorter_trajectories_keep_their_padding_behind_them():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((N, T, D))
    lengths = rng.integers(2, T + 1, N)
    given = [x[:t] for x, t in zip(X, lengths, strict=True)]
    panel = Panel.from_trajectories(given)
    one = content_permutation(panel, shared=False).panel(panel)
    for _ in range(5):
        moved = [rng.permutation(each) for each in given]
        other = Panel.from_trajectories([moved[j] for j in rng.permutation(N)])
        found = content_permutation(other, shared=False).panel(other)
        np.testing.assert_array_equal(found.values, one.values)
        np.testing.assert_array_equal(found.lengths, one.lengths)


def test_what_is_known_of_a_shared_order_moves_with_its_slices():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, T, D))
    stamps = np.array([0.0, np.nan, 1.0, np.nan, 3.0, 2.0])
    known = Knowledge(
        positions={2: 1}, precedences=[(0, 1), (1, 4)], blocks=[0, 0, 0, 1, 1, 1], first=0,
        timestamps=stamps, timestamp_error=0.5,
    )  # fmt: skip
    here = content_permutation(Panel.from_array(X), shared=True)
    whole = compiled(known, N, T, shared=True)
    prior = whole.relabelled(here.columns, here.rows)
    for _ in range(50):
        order = rng.permutation(T)
        np.testing.assert_array_equal(prior.cost(here.sorted_orders(order)), whole.cost(order))


def test_what_is_known_of_own_orders_moves_with_its_observations():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((N, T, D))
    stamps = np.where(rng.random((N, T)) < 0.5, rng.random((N, T)), np.nan)
    pieces = [
        Knowledge(positions={(1, 2): 0, (4, 0): 5}, precedences=[(0, 1, 2), (6, 5, 0)]),
        Knowledge(first=3, last={2: 1, 5: 0}),
        Knowledge(first=np.array([-1, 2, 0, -1, 5, 1, -1])),
        Knowledge(timestamps=stamps, timestamp_error=0.5 + rng.random((N, T))),
        Knowledge(blocks=np.floor(3 * rng.random((N, T)))),
    ]
    here = content_permutation(Panel.from_array(X), shared=False)
    for known in pieces:
        whole = compiled(known, N, T, shared=False)
        prior = whole.relabelled(here.columns, here.rows)
        for _ in range(20):
            order = rng.permuted(np.tile(np.arange(T), (N, 1)), axis=1)
            costs = here.given_rows(prior.cost(here.sorted_orders(order)))
            np.testing.assert_allclose(costs, whole.cost(order), rtol=1e-12)


def test_mixed_observations_are_the_same_for_the_same_data_and_leave_padding_behind():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((N, T, D))
    lengths = rng.integers(2, T + 1, N)
    given = [x[:t] for x, t in zip(X, lengths, strict=True)]
    panel = Panel.from_trajectories(given)
    one = content_permutation(panel, shared=False).shuffled(panel.lengths).panel(panel)
    for row, t in zip(one.values, one.lengths, strict=True):
        assert any(np.array_equal(np.sort(row[:t], axis=0), np.sort(x, axis=0)) for x in given)
        np.testing.assert_array_equal(row[t:], np.broadcast_to(row[t - 1], row[t:].shape))
    where = rng.permutation(N)
    other = Panel.from_trajectories([rng.permutation(given[j]) for j in where])
    again = content_permutation(other, shared=False).shuffled(other.lengths).panel(other)
    np.testing.assert_array_equal(again.values, one.values)


def test_slices_are_mixed_too():
    X = np.random.default_rng(1).standard_normal((N, T, D))
    here = content_permutation(Panel.from_array(X), shared=True)
    mixed = here.shuffled()
    assert sorted(mixed.columns) == list(range(T))
    assert list(mixed.columns) != list(here.columns)
