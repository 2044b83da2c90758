"""Moves as chains of exchanges of two positions, for costs in which every pair of positions matters.

Such a judge has a second order `now`, which differs from the one it judges between two positions only, and tells what
an exchange of two positions of it changes. A reversal is a chain of exchanges from the inside out, an insertion one of
neighbours: the best of T insertions, or of all reversals about one centre, costs one chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves.judges import by_type
from retrace_sde.orders.moves.moves import FIRST, Move, insertion, nothing, reversal, swap
from retrace_sde.orders.moves.rules import broken, crossed, rule_change, transposed


@by_type
def transpose(judge: Any, order: Indices, low: int, high: int, p: int, q: int) -> float:
    """Exchange positions p and q of `now`, which differs from the order within low … high − 1; the change of the cost."""
    raise NotImplementedError


@by_type
def forget(judge: Any, order: Indices, low: int, high: int) -> None:
    """Make `now` the order again, from which it differs within low … high − 1."""
    raise NotImplementedError


@njit(cache=True, nogil=True)
def chain(judge: Any, order: Indices, move: Move) -> float:
    """Make a reversal, a swap of two or an insertion in `now`; the change of the cost."""
    i, j, k, q, backwards = move
    total = 0.0
    if backwards == FIRST:
        for left in range((i + j - 2) // 2, i - 1, -1):
            right = i + j - 1 - left
            total += transpose(judge, order, left + 1, right, left, right)
    elif j - i == 1 and q - k == 1:
        total = transpose(judge, order, i + 1, q - 1, i, q - 1)
    elif j - i == 1:
        for p in range(i, q - 1):
            total += transpose(judge, order, i, p + 1, p, p + 1)
    else:
        for p in range(q - 1, i, -1):
            total += transpose(judge, order, p, q, p - 1, p)
    return total


@njit(cache=True, nogil=True)
def chain_change(judge: Any, rules: Any, order: Indices, move: Move) -> float:
    """`driver.change`."""
    known = rule_change(rules, order, move)
    return known + chain(judge, order, move) if known < np.inf else known


@njit(cache=True, nogil=True)
def best_insertion(judge: Any, rules: Any, order: Indices, p: int) -> tuple[float, Move]:
    """The best place for what stands at p: one chain to the end, one to the beginning."""
    least, where, now = 0.0, p, judge.now
    for step in (1, -1):
        total, impossible, k = 0.0, 0, p
        while 0 <= k + step < len(order):
            low, high = min(k, k + step), max(k, k + step)
            if rules is not None:
                if broken(rules.before, now, low, high, high + 1):
                    break
                known, more = transposed(rules, now, low, high)
                total += known
                impossible += more
            total += transpose(judge, order, min(p, k), max(p, k) + 1, low, high)
            k += step
            if impossible == 0 and total < least:
                least, where = total, k
        forget(judge, order, min(p, k), max(p, k) + 1)
    if where == p:
        return 0.0, nothing()
    move = insertion(p, where)
    chain(judge, order, move)
    return least, move


@njit(cache=True, nogil=True)
def best_reversal(judge: Any, rules: Any, order: Indices, middle: int) -> tuple[float, Move]:
    """The best segment to reverse about `middle` / 2: a chain of exchanges outwards."""
    least, first, last = 0.0, 0, 0
    left = (middle - 1) // 2
    right, total, impossible = middle - left, 0.0, 0
    while left >= 0 and right < len(order):
        if rules is not None:
            if crossed(rules.before, order, left, left + 1, right, right + 1):
                break
            known, more = transposed(rules, judge.now, left, right)
            total += known
            impossible += more
        total += transpose(judge, order, left + 1, right, left, right)
        if impossible == 0 and total < least:
            least, first, last = total, left, right + 1
        left, right = left - 1, right + 1
    forget(judge, order, left + 1, right)
    if last == 0:
        return 0.0, nothing()
    move = reversal(first, last)
    chain(judge, order, move)
    return least, move


@njit(cache=True, nogil=True)
def best_swap(judge: Any, rules: Any, order: Indices, p: int) -> tuple[float, Move]:
    """The best observation beyond its neighbour to change places with what stands at p."""
    least, where = 0.0, p
    for q in range(p + 2, len(order)):
        found = chain_change(judge, rules, order, swap(p, q))
        forget(judge, order, p, q + 1)
        if found < least:
            least, where = found, q
    if where == p:
        return 0.0, nothing()
    move = swap(p, where)
    chain(judge, order, move)
    return least, move
