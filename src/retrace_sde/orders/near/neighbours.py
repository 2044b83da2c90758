"""Near pairs among thousands of slices, and short paths through them.

A slice is a vector of n·d numbers. Its nearest others are found in a random projection to `SKETCH_NUMBERS` numbers, which keeps
squared distances to a few tenths (Johnson and Lindenstrauss), then measured in full. Paths start from the spanning tree of the
graph of neighbours and from its Fiedler vector, as those of few slices do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array, csgraph, csr_array, diags_array

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import deferred
from retrace_sde.io.kernels import njit
from retrace_sde.orders.near.search import Lists, Near, improve, path_cost
from retrace_sde.orders.paths import longest_path_ends, walk_tree
from retrace_sde.panel.blocks import Data, to_numpy

sparse_linalg = deferred("scipy.sparse.linalg")

neighbors = deferred("sklearn.neighbors")

MAX_DENSE_SLICES = 600
"""Slices beyond which only near pairs are considered."""

NEIGHBOURS, NEIGHBOUR_CANDIDATES, SKETCH_NUMBERS = 16, 40, 64
"""Neighbours of each slice, candidates for them, and numbers of a slice by which candidates are found."""


def slice_vectors(data: Data, scale: Array) -> Array:
    """Slices (T, n·d), each variable divided by its scale."""
    x = to_numpy(data.values) / scale
    n, T, d = x.shape
    return np.ascontiguousarray(x.transpose(1, 0, 2).reshape(T, n * d))


def sketched(*vectors: Array) -> tuple[Array, ...]:
    """The same projection of vectors (T, width) to at most `SKETCH_NUMBERS` numbers, about the mean of the first."""
    width, mean = vectors[0].shape[1], vectors[0].mean(axis=0)
    if width <= SKETCH_NUMBERS:
        return tuple(each - mean for each in vectors)
    # The projection is part of the method, not of its chance: the same data give the same neighbours.
    P = np.random.default_rng(0).standard_normal((width, SKETCH_NUMBERS)) / np.sqrt(SKETCH_NUMBERS)
    return tuple((each - mean) @ P for each in vectors)


def nearest(vectors: Array) -> tuple[Lists, Array]:
    """The nearest others of each slice (T, K), nearest first, and their squared distances."""
    size = min(NEIGHBOUR_CANDIDATES, len(vectors) - 1)
    (sketch,) = sketched(vectors)
    found = (
        neighbors.NearestNeighbors(n_neighbors=size, algorithm="brute").fit(sketch).kneighbors()[1]
    )
    found = found.astype(np.int32)
    squares = squared_distances(vectors, vectors, found)
    closest = np.argsort(squares, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.take_along_axis(found, closest, axis=1), np.take_along_axis(squares, closest, axis=1)


@njit(cache=True, nogil=True)
def squared_distances(source: Array, target: Array, lists: Lists) -> Array:
    """|target_b − source_a|² for each b in a's list."""
    T, K = lists.shape
    found = np.empty((T, K))
    for a in range(T):
        for k in range(K):
            if lists[a, k] < 0:
                found[a, k] = np.inf
                continue
            one, two = source[a], target[lists[a, k]]
            total = 0.0
            for i in range(len(one)):
                total += (two[i] - one[i]) ** 2
            found[a, k] = total
    return found


def mutual(lists: Lists) -> Lists:
    """Lists (T, K') in which b is a neighbour of a whenever a is one of b, −1 where there are fewer; at most 4 K each: a hub has many."""
    T, K = lists.shape
    a, b = np.repeat(np.arange(T), K), lists.ravel()
    pairs = np.unique(np.concatenate([a * T + b, b * T + a]))
    a, b = pairs // T, pairs % T
    rank = np.arange(len(a)) - np.searchsorted(a, a)
    keep = rank < 4 * K
    found = np.full((T, int(rank[keep].max()) + 1), -1, dtype=np.int32)
    found[a[keep], rank[keep]] = b[keep]
    return found


def nearby(source: Array, target: Array, start: Array, order: Indices) -> Near:
    """Costs of whitened slices right after predictions from others: of the nearest, and of neighbours in an order."""
    T = len(order)
    along = np.full((T, 2), -1, dtype=np.int32)
    along[order[:-1], 0], along[order[1:], 1] = order[1:], order[:-1]
    along[order[-1], 0], along[order[0], 1] = order[-2], order[1]
    return near_costs(source, target, mutual(np.c_[nearest(target)[0], along]), start)


def along_band(costs: Array, start: Array) -> Near:
    """Costs of positions near each other (`costs.near_costs`) as lists."""
    width, _, T = costs.shape
    offsets = np.r_[np.arange(1, width + 1), -np.arange(1, width + 1)]
    lists = np.arange(T)[:, None] + offsets
    inside = (lists >= 0) & (lists < T)
    ahead = np.concatenate([costs[:, 0].T, np.zeros((T, width))], axis=1)
    for k in range(1, width + 1):
        ahead[k:, width + k - 1] = costs[k - 1, 1, : T - k]
    # A list ends at its first −1.
    first = np.argsort(~inside, axis=1, kind="stable")
    lists = np.take_along_axis(np.where(inside, lists, -1), first, axis=1).astype(np.int32)
    ahead = np.take_along_axis(ahead, first, axis=1)
    nothing = np.empty((T, 0))
    return Near(lists, ahead, np.where(np.isinf(start), 1e300, start), nothing, nothing, 1e300)


def near_costs(source: Array, target: Array, lists: Lists, start: Array) -> Near:
    """`½ |target_b − source_a|²` of near pairs, cheapest first, and sketches for the others."""
    costs = 0.5 * squared_distances(source, target, lists)
    first = np.argsort(costs, axis=1, kind="stable")
    costs = np.take_along_axis(costs, first, axis=1)
    lists = np.take_along_axis(lists, first, axis=1)
    rough_target, rough_source = sketched(target, source)
    return Near(lists, costs, start, rough_source, rough_target)


def short_path(vectors: Array) -> Indices:
    """A short path through all slices, the better of two starts."""
    lists, squares = nearest(vectors)
    tree = _connected(vectors, lists, np.sqrt(squares))
    root = longest_path_ends(tree)[0]
    starts = [walk_tree(tree, root), _spectral(lists, squares, tree)]
    near = near_costs(vectors, vectors, mutual(lists), np.zeros(len(lists)))
    paths = [improve(near, order) for order in starts]
    return min(paths, key=lambda order: path_cost(near, order))


def _connected(vectors: Array, lists: Lists, lengths: Array) -> Any:
    """The spanning tree of the graph of neighbours; parts without a common edge are joined where they are nearest."""
    T, K = lists.shape
    tiny = np.finfo(float).tiny  # csgraph reads 0 as "no edge"
    edges = np.maximum(lengths.ravel(), tiny), (np.repeat(np.arange(T), K), lists.ravel())
    graph = csr_array(coo_array(edges, shape=(T, T)))
    while True:
        count, part = csgraph.connected_components(graph, directed=False)
        if count == 1:
            return csgraph.minimum_spanning_tree(graph.maximum(graph.T))
        inside = np.flatnonzero(part == np.argmin(np.bincount(part)))
        outside = np.flatnonzero(part != part[inside[0]])
        search = neighbors.NearestNeighbors(n_neighbors=1, algorithm="brute").fit(vectors[outside])
        length, other = search.kneighbors(vectors[inside])
        k = int(np.argmin(length))
        bridge = [max(float(length[k, 0]), tiny)], ([inside[k]], [outside[other[k, 0]]])
        graph = csr_array(graph + coo_array(bridge, shape=(T, T)))


def _spectral(lists: Lists, squares: Array, tree: Any) -> Indices:
    """Sort by the Fiedler vector of a Gaussian similarity of neighbours, whose scale is the nearest's distance."""
    T, K = lists.shape
    scale = max(float(np.median(squares[:, 0])), np.finfo(float).tiny)
    weights = np.exp(-np.minimum(squares / (2 * scale), 500.0)).ravel()
    similarity = csr_array(
        coo_array((weights, (np.repeat(np.arange(T), K), lists.ravel())), shape=(T, T))
    )
    # The tree keeps the graph connected, however far apart some slices are.
    floor = csr_array((np.full(tree.nnz, 1e-12), tree.indices, tree.indptr), shape=(T, T))
    similarity = similarity.maximum(similarity.T).maximum(floor).maximum(floor.T)
    root = 1 / np.sqrt(similarity.sum(axis=1))
    half = diags_array(root)
    laplacian = diags_array(np.ones(T)) - half @ similarity @ half
    begin = np.random.default_rng(0).standard_normal(T)
    _, vectors = sparse_linalg.eigsh(laplacian.tocsc(), k=2, sigma=-1e-6, which="LM", v0=begin)
    return np.argsort(vectors[:, 1] * root, kind="stable").astype(np.intp)
