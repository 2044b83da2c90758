"""From costs to an order. Nothing here knows a model: a path is judged by a matrix and a start cost.

The problem is an open travelling-salesman path. Along one SDE it is nearly a chain, so a spanning tree or a
spectral start is close, and local search closes the rest; neither promises the global optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csgraph, csr_array

from retrace_sde.blocks import Array, Order


def path_cost(costs: Array, start: Array, order: Order) -> float:
    """`start[o_0] + Σ_i C[o_i, o_{i+1}]`."""
    return float(start[order[0]] + costs[order[:-1], order[1:]].sum())


def shortest_path(squared_distances: Array) -> Order:
    """A short Hamiltonian path through all slices: the best of two starts, each improved locally.

    The path has no direction: its reverse is as short.
    """
    nothing = np.zeros(len(squared_distances))
    starts = (tree_path(squared_distances), spectral_path(squared_distances))
    paths = [improve(squared_distances, nothing, order) for order in starts]
    return min(paths, key=lambda order: path_cost(squared_distances, nothing, order))


def tree_path(squared_distances: Array) -> Order:
    """Walk the minimum spanning tree from one end of its longest path, side branches on the way."""
    tree, ends = spanning_tree(squared_distances)
    return walk_tree(tree, squared_distances, ends[0])


def spanning_tree(squared_distances: Array) -> tuple[Any, list[int]]:
    """The minimum spanning tree and the two ends of its longest path, the remoter from all first."""
    lengths = np.sqrt(squared_distances)
    # csgraph reads 0 as "no edge", yet equal slices are the nearest of all neighbours.
    weights = np.maximum(lengths, np.finfo(np.float64).tiny)
    tree = csgraph.minimum_spanning_tree(csr_array(np.triu(weights, 1)))
    ends = [int(np.argmax(csgraph.dijkstra(tree, directed=False, indices=0)))]
    ends.append(int(np.argmax(csgraph.dijkstra(tree, directed=False, indices=ends[0]))))
    return tree, sorted(ends, key=lambda end: -lengths[end].sum())


def walk_tree(tree: Any, squared_distances: Array, root: int, *, by_index: bool = False) -> Order:
    """Depth-first order of a tree; children by index, or by the longest way down, longest last."""
    outwards, parents = csgraph.breadth_first_order(tree, root, directed=False)
    children: list[list[int]] = [[] for _ in outwards]
    reach = np.zeros(len(outwards))  # from a slice's parent through it to the farthest leaf
    for node in outwards[:0:-1].tolist():
        parent = int(parents[node])
        below = max((reach[child] for child in children[node]), default=0.0)
        reach[node] = below + np.sqrt(squared_distances[node, parent])
        children[parent].append(node)
    rank = np.arange(len(reach)) if by_index else reach
    order, stack = [], [root]
    while stack:
        order.append(node := stack.pop())
        stack.extend(sorted(children[node], key=lambda child: -rank[child]))
    return np.array(order, dtype=np.intp)


def spectral_path(squared_distances: Array) -> Order:
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


def improve(costs: Array, start: Array, order: Order) -> Order:
    """Local search: segment reversals and moves of up to three slices, until none lowers the path cost."""
    T = len(costs)
    # One more node, before the first and after the last slice, turns start costs into an ordinary edge.
    padded = np.zeros((T + 1, T + 1))
    padded[:T, :T], padded[T, :T] = costs, start
    path = np.concatenate([[T], order, [T]]).astype(np.intp)
    before = path[:0]
    while not np.array_equal(path, before):
        before = path.copy()
        edges = padded[path[:-1], path[1:]]
        # Gains below the rounding of the sums are none; a forbidden (infinite) step does not count.
        tolerance = 1e-9 * np.abs(edges[np.isfinite(edges)]).sum() + 1e-300
        _improve(padded, path, tolerance)
    return path[1:-1]


@njit(cache=True)
def _improve(costs: Array, path: Order, tolerance: float) -> None:  # pragma: no cover - compiled
    """Sweep over all moves in place, taking each that helps, until a whole sweep finds none."""
    improved = True
    while improved:
        improved = _reversals(costs, path, tolerance)
        improved = _insertions(costs, path, tolerance) or improved


@njit(cache=True)
def _reversals(costs: Array, path: Order, tolerance: float) -> bool:  # pragma: no cover - compiled
    """Reverse path[i … j]: O(1) each by running sums of the costs along the path and against it."""
    last = len(path) - 1
    found = False
    for i in range(1, last - 1):
        before = path[i - 1]
        along = 0.0
        against = 0.0
        best, best_j = -tolerance, -1
        for j in range(i + 1, last):
            along += costs[path[j - 1], path[j]]
            against += costs[path[j], path[j - 1]]
            after = path[j + 1]
            change = (
                costs[before, path[j]]
                + against
                + costs[path[i], after]
                - costs[before, path[i]]
                - along
                - costs[path[j], after]
            )
            if change < best:
                best, best_j = change, j
        if best_j >= 0:
            path[i : best_j + 1] = path[i : best_j + 1][::-1].copy()
            found = True
    return found


@njit(cache=True)
def _insertions(costs: Array, path: Order, tolerance: float) -> bool:  # pragma: no cover - compiled
    """Move a segment of one to three slices, either way round, to where it costs least."""
    last = len(path) - 1
    found = False
    for length in range(1, 4):
        for i in range(1, last - length + 1):
            head, tail = path[i], path[i + length - 1]
            before, after = path[i - 1], path[i + length]
            along = 0.0
            against = 0.0
            for k in range(i, i + length - 1):
                along += costs[path[k], path[k + 1]]
                against += costs[path[k + 1], path[k]]
            gain = costs[before, head] + along + costs[tail, after] - costs[before, after]
            best, best_k, best_flip = -tolerance, -1, False
            for k in range(last):
                if i - 1 <= k < i + length:
                    continue
                left, right = path[k], path[k + 1]
                gap = costs[left, right]
                plain = costs[left, head] + along + costs[tail, right] - gap - gain
                flipped = costs[left, tail] + against + costs[head, right] - gap - gain
                if plain < best:
                    best, best_k, best_flip = plain, k, False
                if flipped < best:
                    best, best_k, best_flip = flipped, k, True
            if best_k >= 0:
                segment = path[i : i + length].copy()
                if best_flip:
                    segment = segment[::-1].copy()
                if best_k < i:
                    path[best_k + 1 + length : i + length] = path[best_k + 1 : i].copy()
                    path[best_k + 1 : best_k + 1 + length] = segment
                else:
                    path[i : best_k + 1 - length] = path[i + length : best_k + 1].copy()
                    path[best_k + 1 - length : best_k + 1] = segment
                found = True
    return found
