"""From costs to an order, and to draws from its posterior. Nothing here knows a model: a path is judged by a matrix and a start cost.

The problem is an open travelling-salesman path. Along one SDE it is nearly a chain, so a spanning tree or a
spectral start is close, and local search closes the rest; neither promises the global optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, count, pairwise, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csgraph, csr_array

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.proposals import SHARES, SHARPNESS, Proposals, length_table
from retrace_sde.orders.moves.rules import cold_starts
from retrace_sde.orders.moves.uncompiled import improve_few
from retrace_sde.orders.path_chains import Records, sample_path
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import (
    LONG_SEGMENT,
    SHORT_SEGMENT,
    best_path,
    improve_path,
    padded_costs,
    padded_path,
    rounded,
)

NEAR_ENDS = 4
"""Positions at either end of an order whose slices are judged as first ones before a search: one that comes from farther inside costs a long step."""


FEW_SLICES, SEARCHES_BEFORE_COMPILING = 24, 100
"""Slices up to which the first searches of a process do without numba: they take .3 to 4 ms each, a few microseconds compiled, but importing numba
takes .3 s of CPU and its first kernel .2."""

_SEARCHES = count()


def path_cost(costs: Array, start: Array, order: Indices) -> float:
    """`start[o_0] + Σ_i C[o_i, o_{i+1}]`."""
    return float(start[order[0]] + costs[order[:-1], order[1:]].sum())


def shortest_path(squared_distances: Array) -> Indices:
    """A short Hamiltonian path through all slices: the best of two starts, each improved locally.

    The path has no direction: its reverse is as short.
    """
    squared_distances = rounded(squared_distances)
    nothing = np.zeros(len(squared_distances))
    first = improve(squared_distances, nothing, tree_path(squared_distances))
    start = spectral_path(squared_distances)
    if np.array_equal(start, first) or np.array_equal(start[::-1], first):
        return first
    second = improve(squared_distances, nothing, start)
    return min(first, second, key=lambda order: path_cost(squared_distances, nothing, order))


MAX_STRIDE = 3
"""Strides of an order that are undone: from four on their pieces have hundreds of arrangements."""


def interleaved(order: Indices) -> list[Indices]:
    """Orders of which this one is every second, or third, slice after the other.

    Where the process jumps across in one step (an eigenvalue of F that is negative, or turns by more than a quarter), slices two or three
    steps apart are nearer than neighbours, and a short path visits those first: it is a piece for each remainder, either way
    round. Each arrangement of the pieces is undone; of an order and its reverse one is returned.
    """
    found = []
    for stride in range(2, min(MAX_STRIDE, len(order) // 3) + 1):
        for longer in combinations(range(stride), len(order) % stride):
            sizes = [len(order) // stride + (k in longer) for k in range(stride)]
            pieces = np.split(order, np.cumsum(sizes)[:-1])
            for way in product((1, -1), repeat=stride - 1):
                turned = [pieces[0], *(p[::w] for p, w in zip(pieces[1:], way, strict=True))]
                found += [
                    np.array([row[k] for k in range(max(sizes)) for row in each if k < len(row)])
                    for each in permutations(turned)
                    if all(len(a) >= len(b) for a, b in pairwise(each))
                ]
    return found


def strided(order: Indices) -> list[Indices]:
    """Every second, or third, slice of an order after the other, each remainder forwards or by turns back and forth."""
    found = []
    for stride in range(2, min(MAX_STRIDE, len(order) // 3) + 1):
        pieces = [order[k::stride] for k in range(stride)]
        turned = [p[:: -1 if k % 2 else 1] for k, p in enumerate(pieces)]
        found += [np.concatenate(pieces), np.concatenate(turned)]
    return found


def guided_paths(squared_distances: Array, numbers: int, prior: Prior) -> list[Indices]:
    """Short paths that satisfy what is known: one from each direction of the shortest, one from the prior alone.

    `numbers` is the length of a slice: with the shortest path's mean step as variance the distances become
    nats, comparable to the prior.
    """
    chain = shortest_path(squared_distances)
    nothing = np.zeros(len(chain))
    step = path_cost(squared_distances, nothing, chain) / (numbers * max(len(chain) - 1, 1))
    costs = squared_distances / (2 * step) if step > 0 else squared_distances
    starts = cold_starts(prior.single(), chain)
    paths = [improve(costs, nothing, order, prior) for order in starts]
    return list({path.tobytes(): path for path in paths}.values())


def tree_path(squared_distances: Array) -> Indices:
    """Walk the minimum spanning tree from one end of its longest path, side branches on the way."""
    tree, ends = spanning_tree(squared_distances)
    return walk_tree(tree, ends[0])


def spanning_tree(squared_distances: Array) -> tuple[Any, list[int]]:
    """The minimum spanning tree and the two ends of its longest path, the remoter from all first."""
    lengths = np.sqrt(squared_distances)
    # csgraph reads 0 as "no edge", yet equal slices are the nearest of all neighbours.
    weights = np.maximum(lengths, np.finfo(np.float64).tiny)
    tree = csgraph.minimum_spanning_tree(csr_array(np.triu(weights, 1)))
    return tree, sorted(longest_path_ends(tree), key=lambda end: -lengths[end].sum())


def longest_path_ends(tree: Any) -> list[int]:
    """The two ends of the longest path in a tree."""
    ends = [int(np.argmax(csgraph.dijkstra(tree, directed=False, indices=0)))]
    ends.append(int(np.argmax(csgraph.dijkstra(tree, directed=False, indices=ends[0]))))
    return ends


def walk_tree(tree: Any, root: int, *, by_index: bool = False) -> Indices:
    """Depth-first order of a tree; children by index, or by the longest way down, longest last."""
    outwards, parents = csgraph.breadth_first_order(tree, root, directed=False)
    distance = csgraph.dijkstra(tree, directed=False, indices=root)
    children: list[list[int]] = [[] for _ in outwards]
    reach = np.zeros(len(outwards))  # from a slice's parent through it to the farthest leaf
    for node in outwards[:0:-1].tolist():
        parent = int(parents[node])
        below = max((reach[child] for child in children[node]), default=0.0)
        reach[node] = below + distance[node] - distance[parent]
        children[parent].append(node)
    rank = np.arange(len(reach)) if by_index else reach
    order, stack = [], [root]
    while stack:
        order.append(node := stack.pop())
        stack.extend(sorted(children[node], key=lambda child: -rank[child]))
    return np.array(order, dtype=np.intp)


def spectral_path(squared_distances: Array) -> Indices:
    """Sort by the Fiedler vector of a Gaussian similarity whose scale is the nearest-neighbour distance."""
    D = squared_distances + np.diag(np.full(len(squared_distances), np.inf))
    scale = np.median(D.min(axis=1))
    similarity = np.exp(-D / (2 * scale)) if scale > 0 else (D == 0).astype(float)
    # A floor keeps the graph connected when some slices are far from all others.
    similarity = np.maximum(similarity, 1e-12)
    np.fill_diagonal(similarity, 0.0)
    root = 1 / np.sqrt(similarity.sum(axis=1))
    _, vectors = np.linalg.eigh(similarity * np.outer(root, root))
    return np.argsort(vectors[:, -2] * root, kind="stable")


def exact_path(costs: Array, start: Array, prior: Prior | None = None) -> Indices:
    """The path of least cost that breaks no rule, by dynamic programming over subsets (Held and Karp 1962): of few slices only."""
    path = padded_path(np.arange(len(start), dtype=np.intp))
    best_path(padded_costs(costs, start), None if prior is None else prior.single(), path)
    return path[1:-1]


def improve(costs: Array, start: Array, order: Indices, prior: Prior | None = None) -> Indices:
    """Local search: reversals and moves of segments, until none lowers the path cost.

    With a prior its cost is added, and the order given must break none of its rules.
    """
    T = len(order)
    padded, path = padded_costs(costs, start), np.concatenate([[T], order, [T]]).astype(np.intp)
    rules = None if prior is None else prior.single()
    last = np.inf
    while True:
        edges = padded[path[:-1], path[1:]]
        # Gains below the rounding of the sums are none; a forbidden (infinite) step does not count.
        tolerance = 1e-9 * np.abs(edges[np.isfinite(edges)]).sum() + 1e-300
        if tolerance > last / 2:  # the search ended where it would end again
            return path[1:-1]
        if (
            rules is None
            and T <= FEW_SLICES
            and not _compiling_pays()
            and np.isfinite(padded).all()
        ):
            improve_few(padded, path, tolerance, SHORT_SEGMENT, LONG_SEGMENT)
        else:
            improve_path(padded, rules, path, tolerance, True)
        last = tolerance


def _compiling_pays() -> bool:
    """The compiled search is there, or so many searches were made that it should be: it finds the same."""
    return improve_path.compiled_before or next(_SEARCHES) >= SEARCHES_BEFORE_COMPILING


@dataclass(frozen=True, eq=False)
class PathCosts:
    """`start[o_0] + Σ_i C[o_i, o_{i+1}]`, and what is known of time."""

    costs: Array
    start: Array
    prior: Prior | None = None

    def cost(self, order: Indices) -> float:
        """−log p of an order, prior included, up to a constant."""
        known = 0.0 if self.prior is None else float(self.prior.cost(order)[0])
        return path_cost(self.costs, self.start, order) + known

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        return improve(self.costs, self.start, order, self.prior)

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """How often each slice stood where, (T, T), in `samples` records of one chain, and `keep` of them."""
        T = len(order)
        thin = max(T // 2, 5)
        rules = None if self.prior is None else self.prior.single()
        proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
        seen = Records.none(T=T, keep=keep, positions=True)
        padded, schedule = padded_costs(self.costs, self.start), Schedule(50 * thin, samples, thin)
        sample_path(padded, rules, order.copy(), state, schedule, proposals, seen)
        return seen.positions, seen.kept


@dataclass(frozen=True, eq=False)
class BoundedStarts:
    """`PathCosts` of which start costs are computed where they may decide; `least` (T,) are lower bounds on them.

    A search that ends with a first slice whose cost is known ends where no move pays under bounds, nor then under the costs themselves.
    """

    costs: Array
    least: Array
    start_costs: Callable[[Indices], Array]

    @cached_property
    def _known(self) -> PathCosts:
        return PathCosts(self.costs, self.start_costs(np.arange(len(self.least))))

    def cost(self, order: Indices) -> float:
        """−log p of an order, up to a constant."""
        return self._known.cost(order)

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        start, near = self.least.copy(), np.unique(np.r_[order[:NEAR_ENDS], order[-NEAR_ENDS:]])
        known = np.zeros(len(start), dtype=bool)
        while True:
            start[near], known[near] = self.start_costs(near), True
            found = improve(self.costs, start, order)
            if known[found[0]]:
                return found
            near = found[:1]

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """As of `PathCosts`."""
        return self._known.sample(order, state, samples, keep)
