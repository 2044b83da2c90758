"""Search that obeys what is known of the order, against brute force over all permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from retrace_sde.orders.guided import (
    exact_guided,
    guided_cost,
    improve_guided,
    improve_guided_block,
)
from retrace_sde.orders.prior import Prior


def random_costs(T, rng):
    C = np.zeros((T + 1, T + 1))
    C[:, :T] = rng.gamma(1.0, 2.0, (T + 1, T))
    return C


def random_prior(T, rng, *, share=0.15):
    """Soft costs, one known position and random precedences that do not contradict."""
    U = rng.gamma(1.0, 1.0, (T, T)) if rng.random() < 0.7 else np.zeros((T, T))
    hidden = rng.permutation(T)
    place = np.argsort(hidden)
    if rng.random() < 0.7:
        a = int(rng.integers(T))
        U[a, np.arange(T) != place[a]] = np.inf
        U[np.arange(T) != a, place[a]] = np.inf
    B = (place[:, None] < place[None]) & (rng.random((T, T)) < share)
    for k in range(T):
        B |= B[:, [k]] & B[[k], :]
    return Prior(U, B)


def padded(order):
    T = len(order)
    return np.concatenate([[T], order, [T]]).astype(np.intp)


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_search_finds_the_best_order_that_obeys(seed):
    rng = np.random.default_rng(seed)
    T = 6
    C, prior = random_costs(T, rng), random_prior(T, rng)
    U, B = prior.single()
    path = padded(np.arange(T))
    exact_guided(C, U, B, path)
    orders = (np.array(each) for each in permutations(range(T)))
    best = min(guided_cost(C, U, B, padded(order)) for order in orders)
    assert guided_cost(C, U, B, path) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(6))
def test_local_search_never_breaks_a_rule_and_stops_where_no_move_helps(seed):
    """Every reversal, insertion of up to three, and swap is tried by hand at the end."""
    rng = np.random.default_rng(seed)
    T = 12
    C, prior = random_costs(T, rng), random_prior(T, rng)
    U, B = prior.single()
    path = padded(prior.repair(rng.permutation(T)))
    begin = guided_cost(C, U, B, path)
    improve_guided(C, U, B, path, 1e-9, False)
    end = guided_cost(C, U, B, path)
    assert np.isfinite(end)
    assert end <= begin
    order = path[1:-1].tolist()
    near = [order[:i] + order[i:j][::-1] + order[j:] for i in range(T) for j in range(i + 2, T + 1)]
    for size in (1, 2, 3):
        for i in range(T - size + 1):
            rest, segment = order[:i] + order[i + size :], order[i : i + size]
            for k in range(len(rest) + 1):
                near += [rest[:k] + each + rest[k:] for each in (segment, segment[::-1])]
    for p in range(T):
        for q in range(p + 1, T):
            swapped = order.copy()
            swapped[p], swapped[q] = order[q], order[p]
            near.append(swapped)
    costs = [guided_cost(C, U, B, padded(np.array(each))) for each in near]
    assert min(costs) >= end - 1e-8


def test_a_block_of_trajectories_is_searched_each_under_its_own_knowledge():
    """T = 11 (beyond the exact search) on chains that are easy but for their direction, which is known."""
    rng = np.random.default_rng(3)
    n, T = 20, 11
    lengths = np.where(np.arange(n) % 3 == 0, 7, T).astype(np.intp)
    target = np.cumsum(rng.uniform(0.5, 1.5, (n, T, 1)), axis=1)
    orders = np.tile(np.arange(T), (n, 1))
    hidden = orders.copy()
    unary = np.zeros((n, T, T))
    for j, t in enumerate(lengths):
        hidden[j, :t] = rng.permutation(t)
        target[j, hidden[j, :t]] = target[j, :t].copy()
        first = hidden[j, 0]
        unary[j, first, 1:] = np.inf
        unary[j, np.arange(T) != first, 0] = np.inf
    before = np.zeros((0, 0, 0), dtype=bool)
    states = rng.integers(0, 2**64, n, dtype=np.uint64)
    improve_guided_block(
        target, target, np.zeros((n, T)), unary, before, lengths, orders, states, True, True, 5
    )
    np.testing.assert_array_equal(orders, hidden)
