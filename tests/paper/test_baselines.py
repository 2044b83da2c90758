from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from retrace_sde.panel import blocks
from retrace_sde.paper import baselines
from retrace_sde.paper.baselines import dpt_order, mst_order, slice_distances

Floats = NDArray[np.float64]


def simulate(n: int, T: int, d: int, *, noise: float = 0.0, seed: int = 0) -> Floats:
    """Euler steps of dX = A X dt + dW with A = -I/2 + a rotation, from a narrow start."""
    rng = np.random.default_rng(seed)
    skew = rng.normal(size=(d, d))
    A = -0.5 * np.eye(d) + skew - skew.T
    X = np.empty((n, T, d))
    X[:, 0] = 0.1 * rng.normal(size=(n, d))
    for t in range(1, T):
        X[:, t] = X[:, t - 1] + 0.01 * X[:, t - 1] @ A.T + 0.1 * rng.normal(size=(n, d))
    return X + noise * rng.normal(size=X.shape)


def points(positions: list[tuple[float, float]]) -> Floats:
    """One trajectory in the plane whose slices are the given points."""
    return np.array(positions, dtype=float)[None]


def same_up_to_reversal(order: NDArray[np.intp], expected: NDArray[np.intp]) -> bool:
    return np.array_equal(order, expected) or np.array_equal(order, expected[::-1])


# Distances


def test_distances_equal_scipy_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X = simulate(11, 9, 3)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 4 * 9 * 3)  # blocks of 4, 4 and 3 trajectories
    flat = X.transpose(1, 0, 2).reshape(9, -1)
    distances = slice_distances(X)
    np.testing.assert_allclose(distances, squareform(pdist(flat)), rtol=1e-10)
    assert distances.dtype == np.float64
    assert not np.diag(distances).any()


def test_distances_of_other_dtypes_and_layouts() -> None:
    X = np.round(100 * simulate(6, 8, 2))
    expected = slice_distances(X)
    before = X.copy()
    for other in (
        X.astype(np.int16),
        X.astype(np.float32),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        np.ascontiguousarray(X[::-1, :, ::-1])[::-1, :, ::-1],
    ):
        np.testing.assert_allclose(slice_distances(other), expected, rtol=1e-12)
    np.testing.assert_array_equal(X, before)


def test_a_large_common_offset_costs_no_digits() -> None:
    X = np.round(simulate(5, 8, 2) * 2**10) / 2**10  # exact in float64 after the offset
    np.testing.assert_allclose(slice_distances(X + 2.0**30), slice_distances(X), rtol=1e-6)


@pytest.mark.filterwarnings("error")  # one clear message, no numpy warnings before it
@pytest.mark.parametrize("method", [slice_distances, mst_order, dpt_order])
def test_unusable_data_are_refused(method) -> None:  # type: ignore[no-untyped-def]
    X = simulate(3, 5, 2)
    for bad in (X[0], X[:0], X[:, :0], X.astype(complex), X.astype(str)):
        with pytest.raises(ValueError, match="X must be numbers of shape"):
            method(bad)
    for value in (np.nan, np.inf, 1e200):
        X[1, 2, 0] = value
        with pytest.raises(ValueError, match="missing, infinite or overflowing"):
            method(X)


# Spanning tree


def prim(X: Floats) -> set[frozenset[int]]:
    """Minimum spanning tree by Prim's algorithm, one edge at a time."""
    T = X.shape[1]
    inside, edges = {0}, set()
    while len(inside) < T:
        _, a, b = min(
            (float(np.sum((X[:, a] - X[:, b]) ** 2)), a, b)
            for a in inside
            for b in set(range(T)) - inside
        )
        inside.add(b)
        edges.add(frozenset((a, b)))
    return edges


def tree_path(edges: set[frozenset[int]], a: int, b: int) -> list[int]:
    """The one path between two nodes of a tree, by exhaustive search."""
    paths = [[a]]
    while True:
        path = paths.pop()
        if path[-1] == b:
            return path
        for edge in edges:
            if path[-1] in edge and not edge & set(path) - {path[-1]}:
                paths.append([*path, *(edge - {path[-1]})])


@pytest.mark.parametrize("seed", range(5))
def test_mst_walks_the_longest_path_of_prims_tree_depth_first(seed: int) -> None:
    X = simulate(2, 14, 2, noise=0.2, seed=seed)  # noisy enough for side branches
    edges = prim(X)
    order = mst_order(X).tolist()
    assert sorted(order) == list(range(14))

    def length(path: list[int]) -> float:
        return sum(math.dist(X[:, a].ravel(), X[:, b].ravel()) for a, b in pairwise(path))

    longest = max((tree_path(edges, a, b) for a, b in combinations(range(14), 2)), key=length)
    assert len(longest) < 14  # else this seed tests no branch
    assert order[0] in (longest[0], longest[-1])
    assert order[-1] in (longest[0], longest[-1])
    walked = [node for node in order if node in longest]
    assert walked in (longest, longest[::-1])
    # Depth-first: whatever lies below a node follows it without a gap.
    for i, node in enumerate(order):
        below = {other for other in order if node in tree_path(edges, order[0], other)}
        assert set(order[i : i + len(below)]) == below


def test_mst_visits_a_side_branch_before_moving_on() -> None:
    # A line 0-1-2-3-4 with a twig 5-6 on slice 2, and 7 beyond the far end.
    X = points([(0, 0), (1, 0), (2, 0), (3.2, 0), (4.5, 0), (2, 0.9), (2, 1.7), (5.9, 0)])
    line = [0, 1, 2, 5, 6, 3, 4, 7]
    assert mst_order(X, root=0).tolist() == line
    assert mst_order(X, root=7).tolist() == [7, 4, 3, 2, 5, 6, 1, 0]
    assert mst_order(X).tolist() == [7, 4, 3, 2, 5, 6, 1, 0]  # 7 is the remoter end
    # "arbitrary" starts at slice 0 as stored and takes children by index, not by length.
    assert mst_order(X[:, [2, 3, 1, 0, 4, 5, 6, 7]], root="arbitrary").tolist() == [
        *(0, 1, 4, 7),
        *(2, 3),
        *(5, 6),
    ]


def test_mst_recovers_a_shuffled_sde_up_to_reversal_from_an_end_only() -> None:
    X = simulate(40, 60, 5)
    shuffled = np.random.default_rng(1).permutation(60)
    truth = np.argsort(shuffled)
    Xs = X[:, shuffled]
    assert same_up_to_reversal(mst_order(Xs), truth)
    assert mst_order(Xs, root=int(truth[0])).tolist() == truth.tolist()
    assert mst_order(Xs, root=int(truth[-1])).tolist() == truth[::-1].tolist()
    assert not same_up_to_reversal(mst_order(Xs, root="arbitrary"), truth)


def test_mst_keeps_equal_slices_together() -> None:
    X = points([(0, 0), (1, 0), (2, 0), (3, 0)])
    doubled = np.repeat(X, 2, axis=1)  # distance 0 must not read as "no edge"
    order = mst_order(doubled)
    assert same_up_to_reversal(order // 2, np.repeat(np.arange(4), 2))


# Diffusion pseudotime


def pseudotime_by_definition(X: Floats, root: int, n_neighbors: int | None) -> Floats:
    """Entry by entry, with M = (I - T + psi0 psi0')^-1 - I instead of an eigen-sum."""
    T = X.shape[1]
    D = [[math.dist(X[:, a].ravel(), X[:, b].ravel()) for b in range(T)] for a in range(T)]
    k = 10 if n_neighbors is None else n_neighbors
    s = [0.5 * sorted(row)[k] for row in D]
    K = np.zeros((T, T))
    for a in range(T):
        for b in range(T):
            linked = D[a][b] <= 2 * s[a] or D[a][b] <= 2 * s[b]
            if n_neighbors is None or linked:
                both = s[a] ** 2 + s[b] ** 2
                K[a, b] = math.sqrt(2 * s[a] * s[b] / both) * math.exp(-(D[a][b] ** 2) / both)
    W = np.diag(1 / K.sum(1)) @ K @ np.diag(1 / K.sum(1))
    z = W.sum(1)
    transitions = np.diag(z**-0.5) @ W @ np.diag(z**-0.5)
    psi0 = np.sqrt(z / z.sum())
    M = np.linalg.inv(np.eye(T) - transitions + np.outer(psi0, psi0)) - np.eye(T)
    return np.asarray(np.linalg.norm(M - M[root], axis=1))


@pytest.mark.parametrize("n_neighbors", [None, 4])
def test_dpt_equals_the_dense_inverse(n_neighbors: int | None) -> None:
    X = simulate(8, 30, 4, noise=0.05)
    for root in (0, 7, 29):
        expected = pseudotime_by_definition(X, root, n_neighbors)
        order = dpt_order(X, root=root, n_neighbors=n_neighbors)
        assert order.tolist() == np.argsort(expected).tolist()
        distances = slice_distances(X)
        coordinates, _ = baselines._diffusion(
            *baselines._transitions(distances, n_neighbors), random_walk=False
        )
        np.testing.assert_allclose(
            np.linalg.norm(coordinates - coordinates[root], axis=1), expected, rtol=1e-7, atol=1e-9
        )


def test_random_walk_dpt_equals_the_row_stochastic_matrix() -> None:
    distances = slice_distances(simulate(8, 25, 4))
    transitions, psi0 = baselines._transitions(distances, None)
    rows = transitions * psi0 / psi0[:, None]
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-12)
    stationary = psi0**2
    M = np.linalg.inv(np.eye(25) - rows + stationary) - np.eye(25) - stationary
    # the diffusion-map norm, weighted by 1 / stationary probability
    expected = np.sqrt(np.sum((M[:, None] - M) ** 2 / stationary, axis=-1))
    coordinates, _ = baselines._diffusion(transitions, psi0, random_walk=True)
    actual = squareform(pdist(coordinates))
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("transition", ["symmetric", "random-walk"])
@pytest.mark.parametrize("n_neighbors", [None, 6])
def test_dpt_recovers_a_noisy_line(transition, n_neighbors: int | None) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    line = rng.permutation(40)
    X = line[None, :, None] * np.array([1.0, 2.0, -1.0]) + 0.05 * rng.normal(size=(5, 40, 3))
    order = dpt_order(X, n_neighbors=n_neighbors, transition=transition)
    assert same_up_to_reversal(line[order], np.arange(40))
    first = int(np.argmin(line))
    from_first = dpt_order(X, root=first, n_neighbors=n_neighbors, transition=transition)
    assert line[from_first].tolist() == list(range(40))
    middle = dpt_order(X, root=int(line.tolist().index(20)), transition=transition)
    assert not same_up_to_reversal(line[middle], np.arange(40))


def test_dpt_extreme_is_an_end_where_few_neighbours_bend_the_symmetric_eigenvector() -> None:
    X = (np.arange(40.0) ** 2)[None, :, None]
    transitions, _ = baselines._transitions(slice_distances(X), 2)
    psi_1 = np.linalg.eigh(transitions)[1][:, -2]
    assert np.argmax(np.abs(psi_1)) not in (0, 39)  # hence psi_1 / psi_0
    assert dpt_order(X, n_neighbors=2)[0] in (0, 39)


def test_dpt_has_no_eigenvalue_cut_on_a_long_chain() -> None:
    T = 400  # second eigenvalue above 0.9994, where scanpy's cut begins
    X = np.arange(T, dtype=float)[None, :, None]
    transitions, _ = baselines._transitions(slice_distances(X), None)
    assert np.linalg.eigvalsh(transitions)[-2] > 0.9994
    assert same_up_to_reversal(dpt_order(X, transition="random-walk"), np.arange(T))


def test_dpt_of_equal_slices_is_finite_and_keeps_them_together() -> None:
    X = np.repeat(np.arange(6.0)[None, :, None], 3, axis=1)
    order = dpt_order(X, n_neighbors=4)
    assert same_up_to_reversal(order // 3, np.repeat(np.arange(6), 3))
    tight = dpt_order(
        np.repeat(X, 5, axis=1), transition="random-walk"
    )  # scale 0 but for the floor
    assert same_up_to_reversal(tight // 15, np.repeat(np.arange(6), 15))


def test_dpt_refuses_groups_it_cannot_connect() -> None:
    X = np.array([0.0, 1, 2, 3, 1000, 1001, 1002, 1003])[None, :, None]
    with pytest.raises(ValueError, match="fall into 2 groups"):
        dpt_order(X, n_neighbors=2)
    assert set(dpt_order(X, root=0)[:4]) == {0, 1, 2, 3}


# Both


@pytest.mark.parametrize("method", [mst_order, dpt_order])
def test_permuting_the_slices_permutes_the_answer(method) -> None:  # type: ignore[no-untyped-def]
    X = simulate(10, 30, 3, noise=0.1)
    rng = np.random.default_rng(2)
    for _ in range(5):
        p = rng.permutation(30)
        assert p[method(X[:, p])].tolist() == method(X).tolist()
        root = int(np.argmax(p == 4))
        assert p[method(X[:, p], root=root)].tolist() == method(X, root=4).tolist()


@pytest.mark.parametrize("method", [mst_order, dpt_order])
def test_rotation_scale_shift_and_trajectories_order_do_not_matter(method) -> None:  # type: ignore[no-untyped-def]
    X = simulate(10, 25, 3, noise=0.1)
    rng = np.random.default_rng(3)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    other = 7.0 * (X[rng.permutation(10)] @ rotation) + rng.normal(size=3)
    assert method(other).tolist() == method(X).tolist()


@pytest.mark.parametrize(("method", "named"), [(mst_order, "end"), (dpt_order, "extreme")])
def test_roots(method, named: str) -> None:  # type: ignore[no-untyped-def]
    X = simulate(10, 20, 3)
    for root in (0, 13, np.int64(19)):
        assert method(X, root=root)[0] == root
    assert method(X, root="arbitrary")[0] == 0
    assert method(X).tolist() == method(X, root=named).tolist()
    drawn = {int(method(X, random_state=seed)[0]) for seed in range(20)}
    assert len(drawn) == 2
    assert int(method(X)[0]) in drawn
    assert len({int(method(X, root="arbitrary", random_state=s)[0]) for s in range(20)}) > 5
    for bad in (-1, 20, 1.0, True, "start"):
        with pytest.raises(ValueError, match="root must be"):
            method(X, root=bad)


@pytest.mark.parametrize("method", [mst_order, dpt_order])
def test_one_and_two_slices(method) -> None:  # type: ignore[no-untyped-def]
    X = simulate(4, 2, 3)
    assert method(X[:, :1]).tolist() == [0]
    assert sorted(method(X).tolist()) == [0, 1]
    assert method(X, root=1).tolist() == [1, 0]


def test_dpt_options_are_checked() -> None:
    X = simulate(3, 5, 2)
    with pytest.raises(ValueError, match="n_neighbors"):
        dpt_order(X, n_neighbors=0)
    with pytest.raises(ValueError, match="transition"):
        dpt_order(X, transition="lazy")  # type: ignore[arg-type]
