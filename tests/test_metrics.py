from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from retrace_sde import metrics
from retrace_sde.metrics import kendall_tau, mean_absolute_error, neighbour_share, order_accuracy


def random_orders(n: int, T: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rng = np.random.default_rng(seed)
    return np.argsort(rng.random((n, T)), axis=1), np.argsort(rng.random((n, T)), axis=1)


def test_figures_of_a_hand_worked_example() -> None:
    true, estimated = [3, 0, 2, 1], [0, 3, 2, 1]  # the first two slices exchanged
    assert order_accuracy(true, estimated) == 0.5
    assert kendall_tau(true, estimated) == pytest.approx(1 - 2 * 1 / 6)
    assert neighbour_share(true, estimated) == pytest.approx(2 / 3)  # 3-0 and 2-1, not 0-2
    assert neighbour_share(true, estimated, directed=True) == pytest.approx(1 / 3)


@pytest.mark.parametrize("T", [2, 3, 5, 8, 9, 33])
def test_tau_equals_scipy_on_the_positions_of_each_slice(T: int) -> None:
    true, estimated = random_orders(40, T, seed=T)
    # tau compares when slices happen, i.e. the inverse permutations, not the orders themselves
    expected = [
        kendalltau(np.argsort(a), np.argsort(b)).statistic
        for a, b in zip(true, estimated, strict=True)
    ]
    assert kendall_tau(true, estimated) == pytest.approx(np.mean(expected))
    assert kendall_tau(true, estimated, up_to_reversal=True) == pytest.approx(
        np.mean(np.abs(expected))
    )
    assert kendall_tau(true[0], estimated[0]) == pytest.approx(expected[0])


def test_tau_over_all_permutations_counts_the_pairs_in_the_wrong_order() -> None:
    T = 5
    for p in permutations(range(T)):
        wrong = sum(p.index(i) > p.index(j) for i, j in combinations(range(T), 2))
        assert kendall_tau(range(T), p) == pytest.approx(1 - 2 * wrong / (T * (T - 1) / 2))


def test_blocks_do_not_change_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    true, estimated = random_orders(23, 12, seed=0)
    whole = kendall_tau(true, estimated)
    monkeypatch.setattr(metrics, "_BLOCK", 60)  # five trajectories at once, three left over
    assert kendall_tau(true, estimated) == pytest.approx(whole, abs=1e-15)


def test_neighbour_share_equals_brute_force() -> None:
    true, estimated = random_orders(50, 7, seed=1)
    undirected, directed = [], []
    for a, b in zip(true.tolist(), estimated.tolist(), strict=True):
        follows = set(pairwise(b))
        pairs = list(pairwise(a))
        directed.append(sum(pair in follows for pair in pairs) / 6)
        undirected.append(sum(pair in follows or pair[::-1] in follows for pair in pairs) / 6)
    assert neighbour_share(true, estimated) == pytest.approx(np.mean(undirected))
    assert neighbour_share(true, estimated, directed=True) == pytest.approx(np.mean(directed))


def test_reversal_is_forgiven_per_trajectory_and_only_on_request() -> None:
    true, _ = random_orders(4, 6, seed=2)
    estimated = true.copy()
    estimated[1] = true[1, ::-1]
    assert order_accuracy(true, estimated) == pytest.approx(3 / 4)
    assert kendall_tau(true, estimated) == pytest.approx((3 - 1) / 4)
    assert neighbour_share(true, estimated, directed=True) == pytest.approx(3 / 4)
    assert order_accuracy(true, estimated, up_to_reversal=True) == 1.0
    assert kendall_tau(true, estimated, up_to_reversal=True) == 1.0
    assert neighbour_share(true, estimated) == 1.0


def test_relabelling_the_slices_changes_no_figure() -> None:
    true, estimated = random_orders(10, 9, seed=3)
    labels = np.random.default_rng(4).permutation(9)
    for metric in (order_accuracy, kendall_tau, neighbour_share):
        assert metric(labels[true], labels[estimated]) == pytest.approx(metric(true, estimated))


def test_mean_absolute_error_is_over_all_entries() -> None:
    assert mean_absolute_error([[1, 2], [3, 4]], [[1.5, 2.0], [3.0, 2.0]]) == pytest.approx(2.5 / 4)
    # unsigned integers must not wrap around
    assert mean_absolute_error(np.array([2], np.uint8), np.array([1], np.uint8)) == 1.0


@pytest.mark.parametrize("metric", [order_accuracy, kendall_tau, neighbour_share])
@pytest.mark.parametrize(
    ("true", "estimated", "message"),
    [
        ([0, 1, 2], [0, 1], "differ in shape"),
        ([0, 1, 2], [[0, 1, 2]], "differ in shape"),
        ([0, 1, 2], [0, 1, 1], "estimated order is not a permutation"),
        ([1, 2, 3], [0, 1, 2], "true order is not a permutation"),
        ([-1, 0, 1], [0, 1, 2], "true order is not a permutation"),
        ([[0, 1], [1, 1]], [[0, 1], [1, 0]], "true order is not a permutation"),
        ([0.0, 1.0], [0, 1], "must be integers"),
        ([], [], "must be integers"),
        ([[[0, 1]]], [[[0, 1]]], "must be integers"),
    ],
)
def test_unusable_orders_are_refused(metric, true, estimated, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        metric(true, estimated)


def test_pairs_need_two_slices_and_matrices_one_shape() -> None:
    assert order_accuracy([0], [0]) == 1.0
    for metric in (kendall_tau, neighbour_share):
        with pytest.raises(ValueError, match="at least two slices"):
            metric([0], [0])
    with pytest.raises(ValueError, match="same shape"):
        mean_absolute_error(np.eye(2), np.ones(2))  # would broadcast silently
    with pytest.raises(ValueError, match="same shape"):
        mean_absolute_error([], [])


def test_calibration_counts_what_came_true_in_each_bin() -> None:
    rng = np.random.default_rng(0)
    n, T = 400, 6
    true = np.argsort(rng.random((n, T)), axis=1)
    P = rng.dirichlet(np.ones(T), size=(n, T))
    rows = metrics.position_calibration(true, P, edges=(0.0, 0.4, 1.0))
    ((given, *_),) = metrics.position_calibration(true, P, edges=(0.4, 0.6))
    assert 0.4 <= given <= 0.6
    assert sum(count for *_, count in rows) == n * T * T
    for (given, came, count), (low, high) in zip(rows, [(0.0, 0.4), (0.4, 1.01)], strict=True):
        hits = [
            (P[j, a, k], true[j, k] == a)
            for j in range(n)
            for a in range(T)
            for k in range(T)
            if low <= P[j, a, k] < high
        ]
        assert count == len(hits)
        assert given == pytest.approx(np.mean([p for p, _ in hits]))
        assert came == pytest.approx(np.mean([right for _, right in hits]))


def test_certain_and_right_is_perfectly_calibrated() -> None:
    order = np.array([2, 0, 1])
    P = np.zeros((3, 3))
    P[order, np.arange(3)] = 1
    assert metrics.position_calibration(order, P) == [(1.0, 1.0, 3)]
    with pytest.raises(ValueError, match="shape"):
        metrics.position_calibration(order, P[:2])


def test_tau_of_many_orders_at_once_is_that_of_each():
    rng = np.random.default_rng(0)
    one, many = (
        rng.permuted(np.tile(np.arange(6), (3, 1)), axis=1),
        np.tile(np.arange(6), (5, 3, 1)),
    )
    many = rng.permuted(many, axis=2)
    each = [kendall_tau(one, order) for order in many]
    np.testing.assert_allclose(metrics.kendall_taus(one, many.astype(np.int16)), each)
