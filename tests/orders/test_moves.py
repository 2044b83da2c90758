"""Moves and their judges, against the cost of the whole order before and after."""

from __future__ import annotations

import numpy as np
import pytest

from retrace_sde.orders.hidden import assignment, single
from retrace_sde.orders.hidden.exchanges import chain_change
from retrace_sde.orders.hidden.gaussian import Process
from retrace_sde.orders.moves.moves import (
    FIRST,
    SECOND,
    Move,
    insertion,
    make,
    nothing,
    reversal,
    swap,
)
from retrace_sde.orders.moves.rules import Rules, order_cost, rule_change
from retrace_sde.orders.search import PathJudge, _change, padded_cost, padded_costs, padded_path

T = 6


def every_move():
    """All that a move can be: of one segment, of two neighbours, and of two around a third."""
    cuts = [(i, j) for i in range(T) for j in range(i + 1, T + 1)]
    yield from (reversal(i, j) for i, j in cuts if j > i + 1)
    for i, j in cuts:
        for k, q in cuts:
            if k >= j:
                yield from (Move(i, j, k, q, which) for which in (0, FIRST, SECOND))


def moved(order, move):
    """By slices."""
    i, j, k, q, backwards = move
    first, middle, second = (list(order[a:b]) for a, b in ((i, j), (j, k), (k, q)))
    first = first[::-1] if backwards == FIRST else first
    second = second[::-1] if backwards == SECOND else second
    return [*order[:i], *second, *middle, *first, *order[q:]]


def some_rules(seed):
    """Costs of places, and two precedences that the order 0 … T − 1 obeys."""
    before = np.zeros((T, T), dtype=bool)
    before[1, 3] = before[0, 4] = True
    return Rules(np.random.default_rng(seed).gamma(1.0, 1.0, (T, T)), before)


def test_a_move_exchanges_two_segments_and_may_reverse_one():
    for move in (*every_move(), nothing()):
        order = np.arange(T)
        make(order, move)
        assert order.tolist() == moved(range(T), move)


@pytest.mark.parametrize("known", [False, True])
def test_a_path_costs_more_by_what_the_move_says(known):
    rng = np.random.default_rng(0)
    costs = padded_costs(rng.random((T, T)), rng.random(T))
    rules = some_rules(1) if known else None
    path = padded_path(np.arange(T))
    now = padded_cost(costs, rules, path)
    for move in every_move():
        change = _change(PathJudge(costs, path), rules, path[1:-1], move)
        after = padded_path(np.array(moved(range(T), move)))
        assert now + change == pytest.approx(padded_cost(costs, rules, after))


def test_rules_alone_say_what_a_move_changes():
    rules = some_rules(2)
    now = order_cost(rules, np.arange(T))
    for move in every_move():
        after = order_cost(rules, np.array(moved(range(T), move)))
        assert now + rule_change(rules, np.arange(T), move) == pytest.approx(after)


def near_moves():
    """What is proposed where every pair of positions matters."""
    for p in range(T):
        for q in range(T):
            if q != p:
                yield insertion(p, q)
            if q > p:
                yield swap(p, q)
                yield reversal(p, q + 1)


@pytest.mark.parametrize("which", ["one", "all"])
def test_a_chain_of_exchanges_costs_what_the_order_after_it_costs(which):
    """Of one trajectory, and of the moments of several."""
    rng, d = np.random.default_rng(3), 2
    half = rng.standard_normal((T * d, T * d))
    M = (half @ half.T).reshape(T, d, T, d).transpose(0, 2, 1, 3).copy()
    y, h = rng.standard_normal((4, T, d)), rng.standard_normal((T, d))
    order = np.arange(T)
    if which == "one":
        law, w = Process(M, h, 0.0), np.empty((T, d))
        judge = single._judge(law, y[0], np.ones((T, d), dtype=bool), order)

        def cost(o):
            return single.pulls(M, h, y[0], o, w)
    else:
        S = np.einsum("jax,jby->abxy", y, y)
        tables = assignment.Arrangement(M, S, -y.sum(axis=0) @ h.T)
        judge, cost = assignment._judge(tables._tables, order), tables.cost
    rules, now = some_rules(4), cost(order)
    for move in near_moves():
        after = np.array(moved(range(T), move))
        want = cost(after) + order_cost(rules, after)
        judge.now[:] = order
        if which == "one":
            judge.gaps[:] = 0.0
        found = now + order_cost(rules, order) + chain_change(judge, rules, order, move)
        assert found == pytest.approx(want)
