"""What a move of an order is, and the random numbers that choose one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Indices, State
from retrace_sde.io.kernels import njit

FIRST, SECOND = 1, 2
"""Which of a move's two segments is reversed on the way; 0: neither."""


class Move(NamedTuple):
    """The segments [i, j) and [k, q) of an order change places around [j, k); one of them may be reversed.

    Every move is of this form: a reversal has no second segment (`reversal`), neighbouring segments have
    nothing in between, and an insertion moves a segment of one. Nothing moves where q = i.
    """

    i: int
    j: int
    k: int
    q: int
    reversed: int


@njit(cache=True, nogil=True)
def nothing() -> Move:
    """The move that moves nothing."""
    return Move(0, 0, 0, 0, 0)


@njit(cache=True, nogil=True)
def reversal(i: int, j: int) -> Move:
    """[i, j) backwards."""
    return Move(i, j, j, j, FIRST)


@njit(cache=True, nogil=True)
def exchange(i: int, j: int, k: int) -> Move:
    """The neighbouring segments [i, j) and [j, k) change places."""
    return Move(i, j, j, k, 0)


@njit(cache=True, nogil=True)
def swap(p: int, q: int) -> Move:
    """What stands at p and at q > p changes places."""
    return Move(p, p + 1, q, q + 1, 0)


@njit(cache=True, nogil=True)
def insertion(p: int, q: int) -> Move:
    """What stands at p moves to q, and what is between makes room."""
    return exchange(p, p + 1, q + 1) if q > p else exchange(q, p, p + 1)


@njit(cache=True, nogil=True)
def reverse(order: Indices, i: int, j: int) -> None:
    """Reverse [i, j) in place."""
    j -= 1
    while i < j:
        order[i], order[j] = order[j], order[i]
        i += 1
        j -= 1


@njit(cache=True, nogil=True)
def make(order: Indices, move: Move) -> None:
    """Make the move in place, as reversals of segments."""
    i, j, k, q, backwards = move
    if backwards == FIRST:
        reverse(order, i, j)
    elif backwards == SECOND:
        reverse(order, k, q)
    if q > k:
        reverse(order, i, q)
        reverse(order, i, i + q - k)
        reverse(order, i + q - k, i + q - j)
        reverse(order, i + q - j, q)


@njit(cache=True, nogil=True)
def position_of(order: Indices, a: int) -> int:
    """The position at which an observation stands."""
    p = 0
    while order[p] != a:
        p += 1
    return p


@njit(cache=True, nogil=True)
def random_bits(state: State) -> np.uint64:
    """splitmix64: one state per trajectory, so that no answer depends on threads or blocks."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def random_unit(state: State) -> float:
    """A number in [0, 1)."""
    return np.float64(random_bits(state) >> np.uint64(11)) * 1.1102230246251565e-16


@njit(cache=True, nogil=True)
def random_normal(state: State) -> float:
    """A standard normal number (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - random_unit(state)))
    return radius * np.cos(2.0 * np.pi * random_unit(state))
