"""Orders from distances between slices alone: spanning tree and diffusion pseudotime.

Both look at how near slices are, so neither can tell an order from its reverse, and neither
estimates an SDE. They are here to be compared with.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csgraph, csr_array

from retrace_sde.io.arrays import Array
from retrace_sde.orders.costs import distances
from retrace_sde.orders.paths import spanning_tree, walk_tree
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.parameters import checked

Seed = int | np.random.Generator | None

SCALE_NEIGHBOUR = 10
"""Neighbour whose distance sets the kernel's local scale where every slice is a neighbour."""


@checked
def mst_order(
    X: ArrayLike, *, root: int | str | None = None, random_state: Seed = None
) -> NDArray[np.intp]:
    """Depth-first walk of the minimum spanning tree of `||X[:, s] - X[:, t]||`.

    Cannot find the direction of time, nor an SDE. From an arbitrary root even a perfect chain
    scores anywhere between 0 and 98 %.

    Parameters
    ----------
    X : array (n, T, d)
        Trajectories whose slices are shuffled.
    root : int, "end" or "arbitrary"
        A slice index, "arbitrary" (slice 0 as stored, children by index: the paper's
        baseline), or "end" (default), an end of the tree's longest path. From an index or "end" the
        child with the longest way down comes last: side branches are visited in passing, and a chain
        comes out as that chain.
    random_state : int, Generator or None
        Draws the "arbitrary" root, or which end; without it, the end farther from all slices together.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(10, random_state=0).simulate(50, 30, 0.01, random_state=1)
    >>> X, truth = rt.simulate.shuffle(Y, random_state=2)
    >>> rt.metrics.order_accuracy(truth, rt.baselines.mst_order(X), up_to_reversal=True)
    1.0
    """
    squared = slice_distances(X) ** 2
    tree, ends = spanning_tree(squared)
    start = _root(root, "end", ends, len(squared), random_state)
    return walk_tree(tree, start, by_index=root == "arbitrary")


@checked
def dpt_order(
    X: ArrayLike,
    *,
    root: int | str | None = None,
    n_neighbors: int | None = None,
    transition: Literal["symmetric", "random-walk"] = "symmetric",
    random_state: Seed = None,
) -> NDArray[np.intp]:
    """Slices sorted by diffusion pseudotime dpt(root, .) (Haghverdi et al. 2016).

    With (lambda_i, psi_i) the eigenpairs of the density-normalised transition matrix,
    `M = sum_{i>0} lambda_i / (1 - lambda_i) psi_i psi_i'`, `dpt(x, y) = ||M(x, .) - M(y, .)||`.
    All pairs but the stationary one count.

    Cannot find the direction of time, nor an SDE. From an arbitrary root even a perfect chain
    scores anywhere between 0 and 98 %.

    Parameters
    ----------
    X : array (n, T, d)
        Trajectories whose slices are shuffled.
    root : int, "extreme" or "arbitrary"
        A slice index, "arbitrary" (slice 0 as stored), or "extreme" (default), where `|psi_1 / psi_0|` is largest.
    n_neighbors : int, optional
        A slice's kernel scale is half the distance to this neighbour, and
        slices beyond are cut off; None keeps all, with the scale of the 10th. Under noise 5 to 15
        neighbours do better than all.
    transition : {"symmetric", "random-walk"}
        "random-walk" takes psi_i / psi_0, the
        eigenvectors of the row-stochastic matrix: the ends of a chain, which have fewer neighbours,
        are then not bent inwards.
    random_state : int, Generator or None
        Draws the "arbitrary" root, or which of the two extremes.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(10, random_state=0).simulate(50, 30, 0.01, random_state=1)
    >>> X, truth = rt.simulate.shuffle(Y, random_state=2)
    >>> rt.metrics.order_accuracy(truth, rt.baselines.dpt_order(X), up_to_reversal=True) > 0.5
    True
    """
    lengths = slice_distances(X)
    transitions, stationary = _transitions(lengths, n_neighbors)
    coordinates, component = _diffusion(transitions, stationary, transition == "random-walk")
    extremes = [int(np.argmax(component)), int(np.argmin(component))]
    extremes.sort(key=lambda end: -abs(component[end]))
    start = _root(root, "extreme", extremes, len(lengths), random_state)
    pseudotime = np.linalg.norm(coordinates - coordinates[start], axis=1)
    return np.argsort(pseudotime, kind="stable")


def slice_distances(X: ArrayLike) -> Array:
    """Euclidean distances (T, T) between slices, each the n d values of one time.

    Parameters
    ----------
    X : array (n, T, d)
        Trajectories.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> rt.baselines.slice_distances(np.array([[[0.0], [3.0]], [[0.0], [4.0]]]))
    array([[0., 5.],
           [5., 0.]])
    """
    values = np.asarray(X)
    if values.ndim != 3 or values.size == 0 or values.dtype.kind not in "biuf":
        raise ValueError(
            "X must be numbers of shape (n trajectories, T slices, d variables), "
            f"got {values.dtype} of shape {values.shape}"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, in plain words
        squared = distances(Data(values.astype(float, copy=False)), scale=np.ones(values.shape[2]))
    if not np.isfinite(squared).all():
        raise ValueError("X holds missing, infinite or overflowing values")
    return np.sqrt(squared)


def _root(root: int | str | None, named: str, ends: list[int], T: int, random_state: Seed) -> int:
    """The slice to start from; `ends` holds the method's own two choices, the preferred first."""
    rng = None if random_state is None else np.random.default_rng(random_state)
    if root is None or root == named:
        return ends[0 if rng is None else int(rng.integers(2))]
    if root == "arbitrary":
        return 0 if rng is None else int(rng.integers(T))
    if isinstance(root, int | np.integer) and not isinstance(root, bool) and 0 <= root < T:
        return int(root)
    raise ValueError(f'root must be 0 to {T - 1}, "arbitrary" or "{named}", got {root!r}')


def _transitions(lengths: Array, n_neighbors: int | None) -> tuple[Array, Array]:
    """Symmetric transition matrix of the locally scaled kernel, and its stationary eigenvector.

    K(x, y) = sqrt(2 s_x s_y / (s_x^2 + s_y^2)) exp(-||x - y||^2 / (s_x^2 + s_y^2)), then
    W = K / (q q') with q = K 1 takes the density out, and T = W / sqrt(z z') with z = W 1.
    """
    T = len(lengths)
    k = min(SCALE_NEIGHBOUR if n_neighbors is None else n_neighbors, T - 1)
    kth = np.partition(lengths, k, axis=1)[:, k]
    # Equal slices have no scale of their own: take the nearest different one.
    nearest = np.min(lengths, axis=1, initial=np.inf, where=lengths > 0)
    nearest[np.isinf(nearest)] = 1.0
    scale = 0.5 * np.where(kth > 0, kth, nearest)
    spread = scale[:, None] ** 2 + scale**2
    kernel = np.sqrt(2 * np.outer(scale, scale) / spread) * np.exp(-(lengths**2) / spread)
    if n_neighbors is not None:
        near = lengths <= kth[:, None]
        kernel *= near | near.T
    parts = int(csgraph.connected_components(csr_array(kernel), directed=False)[0])
    if parts > 1:
        raise ValueError(
            f"the slices fall into {parts} groups that the kernel does not connect, so "
            "pseudotime between them is infinite; raise n_neighbors, or use mst_order"
        )
    density = kernel.sum(axis=0)
    kernel /= np.outer(density, density)
    root_degree = np.sqrt(kernel.sum(axis=0))
    return kernel / np.outer(root_degree, root_degree), root_degree / np.linalg.norm(root_degree)


def _diffusion(transitions: Array, stationary: Array, random_walk: bool) -> tuple[Array, Array]:
    """Coordinates whose Euclidean distance is dpt, and the first non-trivial component.

    The psi_i are orthonormal, so rows of M and rows of lambda_i / (1 - lambda_i) psi_i are
    equally far apart, and M itself is not needed.
    """
    eigenvalues, psi = scipy.linalg.eigh(transitions)
    eigenvalues, psi = eigenvalues[:-1], psi[:, :-1]  # ascending: the last pair is stationary
    component = psi[:, -1] / stationary if len(stationary) > 1 else np.zeros(1)
    if random_walk:
        psi = psi / stationary[:, None]
    gap = np.maximum(1.0 - eigenvalues, np.finfo(np.float64).eps)  # positive, but for rounding
    return psi * (eigenvalues / gap), component
