"""The identities and counterexamples of docs/theory.md, each computed from exact moments: nothing is estimated here."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement, pairwise, permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import expm, logm, solve_continuous_lyapunov, solve_discrete_lyapunov

from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.evidence.closed_form.reversibility import antisymmetric_features
from retrace_sde.panel.blocks import Data
from retrace_sde.paper.score import score_preference

Floats = NDArray[np.float64]
VORTEX, CHAIN = np.array([[-1.0, 2.0], [-2.0, -1.0]]), np.array([[-1.0, 0.0], [2.0, -1.0]])


def exact_step(A: Floats, H: Floats, dt: float) -> tuple[Floats, Floats]:
    """F and Q of an SDE (Van Loan)."""
    d = len(A)
    M = expm(np.block([[-A, H], [np.zeros((d, d)), A.T]]) * dt)
    F = M[d:, d:].T
    return F, F @ M[:d, d:]


def random_step(d: int, seed: int) -> tuple[Floats, Floats]:
    """A stable invertible F, and Q ≻ 0."""
    rng = np.random.default_rng(seed)
    F, L = rng.standard_normal((d, d)), rng.standard_normal((d, d))
    return 0.8 * F / np.abs(np.linalg.eigvals(F)).max(), L @ L.T + 0.3 * np.eye(d)


def spreads(F: Floats, Q: Floats, first: Floats, T: int) -> list[Floats]:
    """Covariances of the slices."""
    found = [first]
    for _ in range(T - 1):
        found.append(F @ found[-1] @ F.T + Q)
    return found


def covariance(F: Floats, Q: Floats, first: Floats, T: int) -> Floats:
    """Blocks (T, T, d, d) of the covariance of all slices: `Cov(X_i, X_k)`."""
    S, d = spreads(F, Q, first, T), len(F)
    C = np.empty((T, T, d, d))
    for i, k in combinations_with_replacement(range(T), 2):
        C[k, i] = np.linalg.matrix_power(F, k - i) @ S[i]
        C[i, k] = C[k, i].T
    return C


def dense(C: Floats) -> Floats:
    T, _, d, _ = C.shape
    return C.transpose(0, 2, 1, 3).reshape(T * d, T * d)


def blocks(V: Floats, d: int) -> Floats:
    T = len(V) // d
    return V.reshape(T, d, T, d).transpose(0, 2, 1, 3)


def backward(C: Floats, i: int, after: int = 1) -> tuple[Floats, Floats]:
    """Regression of slice i on the next ones: coefficients, and the residual covariance."""
    rest = slice(i + 1, i + 1 + after)
    cross = np.concatenate(list(C[i, rest]), axis=1)
    B = cross @ np.linalg.inv(dense(C[rest, rest]))
    return B, C[i, i] - B @ cross.T


@pytest.mark.parametrize("rank", [1, 3])
def test_statement_1_neighbours_are_the_non_zero_blocks_of_the_precision(rank: int) -> None:
    F, Q = random_step(3, 0)
    F[rank:] = 0  # F need not be invertible
    P = blocks(np.linalg.inv(dense(covariance(F, Q, np.eye(3), 6))), 3)
    size = np.abs(P).max(axis=(2, 3))
    apart = np.abs(np.subtract.outer(range(6), range(6)))
    assert size[apart > 1].max() < 1e-10 < size[apart == 1].min()
    assert P[0, 1] == pytest.approx(-F.T @ np.linalg.inv(Q))


def test_statement_2_a_reversible_process_has_symmetric_autocovariances() -> None:
    H = np.array([[1.0, 0.4], [0.4, 0.5]])
    M = np.array([[-1.0, 0.3], [0.3, -0.6]])
    for A, reversible in ((H @ M, True), (M, False)):  # H M H is symmetric
        assert np.allclose(A @ H, H @ A.T) is reversible
        S = solve_continuous_lyapunov(A, -H)
        assert np.allclose(S, -0.5 * np.linalg.solve(A, H)) is reversible
        for lag in (0.1, 1.0):
            assert np.allclose(expm(A * lag) @ S, (expm(A * lag) @ S).T) is reversible


def test_statement_3_half_a_turn_per_step_hides_the_direction() -> None:
    for turn, hidden in ((3.0, False), (np.pi, True)):
        A = np.array([[-1.0, turn], [-turn, -1.0]])
        C = expm(A) @ solve_continuous_lyapunov(A, -np.eye(2))
        assert np.allclose(C, C.T) is hidden


def test_statement_3_the_ratio_grows_at_the_rate_of_entropy_production() -> None:
    A, H = np.array([[-1.0, 2.0], [-0.5, -0.3]]), np.array([[1.0, 0.3], [0.3, 0.5]])
    S = solve_continuous_lyapunov(A, -H)
    K = A + 0.5 * H @ np.linalg.inv(S)
    rate = 2 * np.trace(np.linalg.inv(H) @ K @ S @ K.T)
    twin, rates = S @ A.T @ np.linalg.inv(S), []
    for dt in (1.0, 0.3, 0.1, 0.001):
        (F, Q), (F_rev, Q_rev) = exact_step(A, H, dt), exact_step(twin, H, dt)
        miss = Q + (F - F_rev) @ S @ (F - F_rev).T  # |Q| = |Q_rev|
        rates.append((np.trace(np.linalg.solve(Q_rev, miss)) - 2) / 2 / dt)
    assert (np.diff([*rates, rate]) > 0).all()  # never faster than continuously observed
    assert rates[-1] == pytest.approx(rate, rel=2e-3)


def test_statement_4_the_twin_of_an_sde_has_the_same_h_and_of_steps_another_q() -> None:
    F, Q = exact_step(CHAIN, np.eye(2), 0.3)
    S = solve_continuous_lyapunov(CHAIN, -np.eye(2))
    twin = S @ CHAIN.T @ np.linalg.inv(S)
    F_rev, Q_rev = exact_step(twin, np.eye(2), 0.3)
    assert F_rev == pytest.approx(S @ F.T @ np.linalg.inv(S))
    assert Q_rev == pytest.approx(S - F_rev @ S @ F_rev.T)
    for dt, apart in ((0.1, 0.12), (0.3, 0.51)):  # Euler's steps
        F, Q = np.eye(2) + CHAIN * dt, dt * np.eye(2)
        S = solve_discrete_lyapunov(F, Q)
        F_rev, K = backward(covariance(F, Q, S, 2), 0)
        assert F_rev == pytest.approx(S @ F.T @ np.linalg.inv(S))
        assert np.abs(K / dt - np.eye(2)).max() == pytest.approx(apart, abs=0.005)
        assert np.linalg.det(K) == pytest.approx(np.linalg.det(Q))


def test_statement_5_the_backward_step_is_constant_only_at_rest() -> None:
    F, Q = random_step(2, 1)
    rest = solve_discrete_lyapunov(F, Q)
    for first, constant in ((rest, True), (2 * rest, False)):
        C = covariance(F, Q, first, 3)
        (B, K), (B_next, K_next) = backward(C, 0), backward(C, 1)
        assert (np.allclose(B, B_next) and np.allclose(K, K_next)) is constant


def test_statement_5_a_mean_that_moves_shows_the_direction_alone() -> None:
    F, Q = random_step(2, 1)
    C = covariance(F, Q, solve_discrete_lyapunov(F, Q), 3)  # covariances at rest
    for away, constant in ((0.0, True), (1.0, False)):
        m = [np.linalg.matrix_power(F, i) @ np.array([away, 0.0]) for i in range(3)]
        offsets = [m[i] - backward(C, i)[0] @ m[i + 1] for i in range(2)]
        assert np.allclose(*offsets) is constant


def test_statement_5_two_slices_are_a_step_in_either_direction() -> None:
    F, Q = random_step(2, 1)
    C = covariance(F, Q, 3 * np.eye(2), 2)
    B, K = backward(C, 0)
    assert np.linalg.eigvalsh(K)[0] > 0
    assert covariance(B, K, C[1, 1], 2) == pytest.approx(C[::-1, ::-1])


def test_statement_5_two_slices_of_an_sde_whose_reverse_is_not_embeddable() -> None:
    A, H = np.array([[-1.11, -3.09], [2.58, -0.24]]), np.array([[0.39, 0.34], [0.34, 0.49]])
    first = np.array([[3.92, -1.19], [-1.19, 0.45]])
    B, K = backward(covariance(*exact_step(A, H, 1.0), first, 2), 0)
    assert min(np.linalg.eigvalsh(each)[0] for each in (H, first, K)) > 0
    assert sorted(np.linalg.eigvals(B)) == pytest.approx([-1.54, -0.16], abs=0.005)
    assert np.abs(logm(B).imag).max() > 1  # no real logarithm


def test_statement_6_skewed_noise_leaves_a_backward_residual_that_depends_on_the_next_value() -> (
    None
):
    """Covariance and the third moment E[r y²] of residual r = (1 − f²) x − f ε and next value y = f x + ε, ε of variance and skewness 1."""
    for f in np.array([-0.9, -0.5, -0.1, 0.1, 0.5, 0.9]):
        variance, third = 1 / (1 - f**2), 1 / (1 - f**3)  # of x
        assert (1 - f**2) * f * variance - f == pytest.approx(0)
        assert abs((1 - f**2) * f**2 * third - f) > 0.05


def test_statement_7_the_twin_has_the_same_rates() -> None:
    S = solve_continuous_lyapunov(CHAIN, -np.eye(2))
    twin = S @ CHAIN.T @ np.linalg.inv(S)
    assert twin == pytest.approx(np.array([[-2.0, 1.0], [-1.0, 0.0]]))
    assert np.poly(twin) == pytest.approx(np.poly(CHAIN))


def test_statement_8_the_reverse_of_some_variables_is_that_part_of_the_twin() -> None:
    A, _ = random_step(4, 9)
    A = A - 1.5 * np.eye(4)
    S = solve_continuous_lyapunov(A, -np.eye(4))
    twin = S @ A.T @ np.linalg.inv(S)
    for lag in (0.2, 1.0):
        C, C_twin = expm(A * lag) @ S, expm(twin * lag) @ S
        assert C_twin[:2, :2] == pytest.approx(C[:2, :2].T)
        assert (
            np.abs(C[:2, :2] - C[:2, :2].T).max() > 1e-3
        )  # two variables show a direction, one does not


def test_statement_9_one_more_turn_per_step_is_not_seen() -> None:
    turn, dt = np.array([[0.0, 1.0], [-1.0, 0.0]]), 0.5
    one, two = (-np.eye(2) + w * turn for w in (1.0, 1.0 + 2 * np.pi / dt))
    for a, b in zip(exact_step(one, np.eye(2), dt), exact_step(two, np.eye(2), dt), strict=True):
        assert a == pytest.approx(b)


@pytest.mark.parametrize(("turn", "found"), [(3.1, True), (3.2, False)])
def test_statement_9_parameters_follow_from_a_step_of_less_than_half_a_turn(turn, found) -> None:
    A, c = np.array([[-0.5, turn], [-turn, -0.2]]), np.array([1.0, -2.0])
    H = np.array([[1.0, 0.3], [0.3, 0.5]])
    F, Q = exact_step(A, H, 1.0)
    s = np.linalg.solve(A, (F - np.eye(2)) @ c)
    log = logm(F).real
    assert np.allclose(log, A) is found
    if found:
        pairs = np.kron(log, np.eye(2)) + np.kron(np.eye(2), log)
        step = np.linalg.solve(pairs, expm(pairs) - np.eye(4))
        assert np.linalg.solve(step, Q.ravel()) == pytest.approx(H.ravel())
        assert log @ np.linalg.solve(F - np.eye(2), s) == pytest.approx(c)


def test_statement_10_the_errors_of_algorithm_1_compare_spreads() -> None:
    """Trajectories and their negatives: the distribution is symmetric, so the middle term vanishes."""
    rng, T = np.random.default_rng(10), 4
    half = rng.standard_normal((50, T, 2)) * np.array([1.0, 3.0, 0.5, 2.0])[:, None]
    x = np.concatenate([half, -half])
    precision = [np.linalg.inv(x[:, t].T @ x[:, t] / len(x)) for t in range(T)]
    H = np.array([[1.0, 0.3], [0.3, 0.5]])
    errors = score_preference(
        Data(x),
        lambda x: np.stack([-x[:, t] @ precision[t] for t in range(T)], axis=1),
        H,
        0.1,
    )
    spread = len(x) * np.array([np.trace(H @ each @ H) for each in precision])
    assert errors == pytest.approx(spread[:, None] - spread[None, :])


def test_statement_11_deviations_from_slice_means_do_not_contain_common_shocks() -> None:
    n, Q, U = 5, np.diag([1.0, 2.0]), np.array([[3.0, 1.0], [1.0, 4.0]])
    rows = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0].T
    V = np.kron(rows, np.eye(2)) @ (np.kron(np.eye(n), Q) + np.kron(np.ones((n, n)), U))
    V = blocks(V @ np.kron(rows, np.eye(2)).T, 2)
    assert V[0, 0] == pytest.approx(Q + n * U)
    assert V[1:, 1:] == pytest.approx(blocks(np.kron(np.eye(n - 1), Q), 2))
    assert np.abs(V[0, 1:]).max() < 1e-12


def test_statement_12_noise_of_any_size_leaves_the_splits_of_four_slices() -> None:
    F, Q = random_step(3, 2)
    C = covariance(F, Q, 3 * np.eye(3), 7)
    size = np.abs(np.linalg.det(C))  # the diagonal, which noise changes, is not used
    for i, j, k, m in combinations(range(7), 4):
        split, other, third = (
            size[a, b] * size[c, e] for a, b, c, e in ((i, j, k, m), (i, k, j, m), (i, m, j, k))
        )
        assert split > other * (1 + 1e-9)
        assert other == pytest.approx(third)


def test_statement_12_the_noise_is_determined_by_three_slices() -> None:
    F, Q = random_step(2, 3)
    R = np.diag([0.5, 2.0])
    Y = covariance(F, Q, np.eye(2), 3)
    step = Y[2, 0] @ np.linalg.inv(Y[1, 0])
    assert step == pytest.approx(F)
    assert (Y[0, 0] + R) - np.linalg.inv(step) @ Y[1, 0] == pytest.approx(R)


def test_statement_12_noise_cannot_stand_in_for_a_direction() -> None:
    """A reverse with another noise R' would need `G D = 0`; with the same, a constant backward step."""
    F, Q = random_step(2, 3)
    rest = solve_discrete_lyapunov(F, Q)
    for first, constant in ((rest, True), (3 * rest, False)):
        C = covariance(F, Q, first, 3)
        G = C[0, 2] @ np.linalg.inv(
            C[1, 2]
        )  # the only step that all three slices allow, whatever R' is
        seen = C[0, 1] - G @ C[1, 1]  # G D
        assert np.abs(seen).max() < 1e-10  # so D = 0
        assert np.allclose(G, C[1, 2] @ np.linalg.inv(C[2, 2])) is constant


def test_statement_13_snapshots_do_not_show_rotation() -> None:
    calm, turning = (exact_step(A, np.eye(2), 0.4) for A in (-np.eye(2), VORTEX))
    one, two = (np.array(spreads(*each, 3 * np.eye(2), 4)) for each in (calm, turning))
    assert one == pytest.approx(two)
    assert np.abs(np.diff(one, axis=0)).max() > 0.1  # off rest
    assert np.abs(calm[0] - turning[0]).max() > 0.1  # pairs of slices show it


def test_statement_14_hidden_variables_imitate_every_order() -> None:
    T, delta = 4, 0.01
    V = np.fromfunction(lambda i, k: 0.7 ** abs(i - k), (T, T))
    shift = np.roll(np.eye(T), 1, axis=1)
    for order in permutations(range(T)):
        wanted = V[np.ix_(order, order)]
        first = wanted - delta * np.diag(np.arange(T))
        assert np.linalg.eigvalsh(first)[0] > 0
        found = covariance(shift, delta * np.eye(T), first, T)[:, :, 0, 0]
        assert found == pytest.approx(wanted)


def test_statement_14_a_reversible_whole_has_distances_that_grow() -> None:
    rng = np.random.default_rng(4)
    L = rng.standard_normal((5, 5))
    A = -(L @ L.T) - 0.1 * np.eye(5)  # symmetric, H = I: reversible
    S = solve_continuous_lyapunov(A, -np.eye(5))
    kept = [np.trace((expm(A * t) @ S)[:2, :2]) for t in np.linspace(0, 3, 12)]
    assert (np.diff(kept) < 0).all()


def test_statement_14_at_rest_only_neighbours_are_t_minus_one_pairs_of_one_covariance() -> None:
    """Stationary along an order: neighbours have one covariance, transposed or not. With random intercepts."""
    T, (F, Q), intercepts = 5, random_step(2, 11), np.array([[2.0, 0.5], [0.5, 1.0]])
    C = covariance(F, Q, solve_discrete_lyapunov(F, Q), T) + intercepts
    for order in permutations(range(T)):
        first = C[order[1], order[0]]
        alike = [
            any(np.allclose(first, each) for each in (C[b, a], C[a, b])) for a, b in pairwise(order)
        ]
        assert all(alike) is (order in (tuple(range(T)), tuple(range(T))[::-1]))


def test_statement_15_gaps_explain_the_reverse_only_at_rest() -> None:
    f = np.exp(-np.array([0.3, 0.7, 0.2]))
    for first, constant in ((1.0, True), (2.0, False)):  # the stationary variance is 1
        S = [first]
        for each in f:
            S.append(1 + each**2 * (S[-1] - 1))
        v = np.array(S)
        asked = v[:-1] * v[1:] * (1 - f**2) / (v[1:] ** 2 - f**2 * v[:-1] ** 2)
        assert np.allclose(asked, asked[0]) is constant


def test_statement_15_free_variances_explain_the_reverse_of_one_variable() -> None:
    f, Q = np.exp(-np.array([0.3, 0.7, 0.2])), np.array([1.0, 1.4, 2.0])
    C = np.diag([2.0, 0, 0, 0])
    for i in range(3):
        C[i + 1, : i + 1] = C[: i + 1, i + 1] = f[i] * C[i, : i + 1]
        C[i + 1, i + 1] = f[i] ** 2 * C[i, i] + Q[i]
    b = (f * np.diag(C)[:-1] / np.diag(C)[1:])[::-1]
    assert (b < 1).all()
    gaps, found = -np.log(b), np.diag([C[3, 3], 0, 0, 0])  # of a' = −1
    for i, gap in enumerate(gaps):
        before = found[i, i]
        factor = (C[2 - i, 2 - i] - b[i] ** 2 * before) / (1 - np.exp(-2 * gap))
        assert factor > 0
        found[i + 1, : i + 1] = found[: i + 1, i + 1] = np.exp(-gap) * found[i, : i + 1]
        found[i + 1, i + 1] = np.exp(-2 * gap) * before + factor * (1 - np.exp(-2 * gap))
    assert found == pytest.approx(C[::-1, ::-1])


def test_statement_16_memory_has_a_direction_only_off_rest() -> None:
    F1, F2, Q = np.array([[0.5, 0.2], [-0.3, 0.6]]), 0.2 * np.eye(2), np.eye(2)
    F = np.block([[np.zeros((2, 2)), np.eye(2)], [F2, F1]])  # of pairs (X_i, X_{i+1})
    noise = np.zeros((4, 4))
    noise[2:, 2:] = Q
    rest = solve_discrete_lyapunov(F, noise)
    for first, constant in ((rest, True), (rest + np.eye(4), False)):
        C = covariance(F, noise, first, 5)[:, :, :2, :2]
        B = [backward(C, i, after=2) for i in range(3)]
        same = all(np.allclose(a, b) for each in B[1:] for a, b in zip(each, B[0], strict=True))
        assert same is constant


@pytest.mark.parametrize("first", [1.0, 0.4, 3.0])
def test_statement_16_random_intercepts_cannot_stand_in_for_a_direction(first: float) -> None:
    """One variable, three slices: the only step g and intercepts' variance that their variances allow in reverse, put into the last equation."""
    f, intercepts = 0.6, 0.8  # at rest, Z has variance 1
    S = spreads(np.array([[f]]), np.array([[1 - f**2]]), np.array([[first]]), 3)
    C = covariance(np.array([[f]]), np.array([[1 - f**2]]), S[0], 3)[..., 0, 0] + intercepts
    if first == 1:  # variances are equal: the twin, with the same intercepts
        g, other = f, intercepts
        assert C[0, 1] == pytest.approx(other + g * (C[1, 1] - other))
    else:
        g = (C[1, 2] - C[0, 1]) / (C[2, 2] - C[1, 1])
        other = (C[0, 1] - g * C[1, 1]) / (1 - g)
    assert C[1, 2] == pytest.approx(other + g * (C[2, 2] - other))
    last = C[0, 2] - other - g**2 * (C[2, 2] - other)
    assert (abs(last) < 1e-12) == (first == 1)


@pytest.mark.parametrize(("T", "orders"), [(4, 4), (5, 2), (6, 2)])
def test_statement_16_the_precision_with_memory_shows_the_order(T: int, orders: int) -> None:
    """Orders of T slices along which a process with memory of two steps may have the same zeros; with four slices there are more."""
    rng = np.random.default_rng(16)
    F = np.block([[np.zeros((2, 2)), np.eye(2)], [rng.uniform(-0.4, 0.4, (2, 4))]])
    noise = np.diag([0.0, 0.0, 1.0, 1.0])
    C = covariance(F, noise, np.eye(4) + 0.3, T)[:, :, :2, :2]
    P = np.abs(blocks(np.linalg.inv(dense(C)), 2)).max(axis=(2, 3))
    apart = np.abs(np.subtract.outer(range(T), range(T)))
    assert P[apart > 2].max() < 1e-9 < P[apart <= 2].min()
    fits = [q for q in permutations(range(T)) if P[np.ix_(q, q)][apart > 2].max() < 1e-9]
    assert len(fits) == orders


def test_statement_17_low_rank_noise_reaches_all_variables_under_kalmans_condition() -> None:
    H = np.diag([0.0, 1.0])
    reached = exact_step(np.array([[0.0, 1.0], [-4.0, -0.4]]), H, 0.1)[1]
    assert np.linalg.eigvalsh(reached)[0] > 0
    apart = exact_step(np.array([[-1.0, 0.0], [1.0, -1.0]]), H, 0.1)[1]
    assert np.linalg.eigvalsh(apart)[0] == pytest.approx(0, abs=1e-15)


def test_statement_17_without_noise_the_reverse_is_linear_but_not_stable() -> None:
    A, nothing = np.array([[-1.0, 2.0], [-2.0, -1.0]]), np.zeros((2, 2))
    F, T = exact_step(A, nothing, 0.1)[0], 4
    C = covariance(F, nothing, np.eye(2), T)
    back, _ = exact_step(-A, nothing, 0.1)
    assert np.allclose(C[::-1, ::-1], covariance(back, nothing, C[-1, -1], T))
    assert np.abs(np.linalg.eigvals(F)).max() < 1 < np.abs(np.linalg.eigvals(back)).min()


def test_statement_18_divergence_from_wrong_orders_is_positive() -> None:
    F, Q = random_step(2, 5)
    C = covariance(F, Q, np.eye(2), 5)

    def entropy(*slices: int) -> float:
        return 0.5 * float(np.linalg.slogdet(dense(C[np.ix_(slices, slices)]))[1])

    for order in permutations(range(5)):
        chain = sum(entropy(a, b) for a, b in pairwise(order))
        divergence = chain - sum(entropy(a) for a in order[1:-1]) - entropy(*range(5))
        true = order in (tuple(range(5)), tuple(range(5))[::-1])
        assert abs(divergence) < 1e-10 if true else divergence > 1e-4


def test_statement_18_exchanges_follow_students_distribution() -> None:
    N, rng = 6, np.random.default_rng(6)
    u, v, w = rng.standard_normal((3, 40_000, N))
    ends = 2 * (u * v).sum(1) < -(u**2).sum(1)
    inner = (v * (u + w)).sum(1) < -(v**2).sum(1)
    for seen, below, bound in ((ends, N / 4, 4 / 5), (inner, N / 2, 2 / 3)):
        chance = stats.t.sf(np.sqrt(below), N)
        assert abs(seen.mean() - chance) < 4 * np.sqrt(chance / len(seen))
        assert chance <= 0.5 * bound ** (N / 2)


def test_statement_19_features_change_sign_with_the_direction() -> None:
    """So that random signs are random reversals; the p-value is then a rank among exchangeable numbers."""
    rng = np.random.default_rng(7)
    panels = Panels(rng.standard_normal((1, 6, 5, 2)), np.array([5, 5, 4, 3, 5, 5]))
    back = panels.reverse
    for one, two in zip(
        antisymmetric_features(panels.x[0], panels.visits.mask),
        antisymmetric_features(back.x[0], back.visits.mask),
        strict=True,
    ):
        assert one == pytest.approx(-two)


def test_statement_19_the_level_holds_exactly() -> None:
    """Given the 2ⁿ reversals of a panel, the chance of p ≤ α over all draws: a statistic with ties and outliers, and every α."""
    rng, B = np.random.default_rng(17), 19
    x = rng.standard_cauchy((10, 5)).round(1)
    signs = 1 - 2 * np.array(list(product((0, 1), repeat=10)))
    S = np.abs(signs @ (x[:, -1] - x[:, 0])).round(6)
    reached = (S[None, :] >= S[:, None]).mean(axis=1)  # by one random reversal
    for count in range(1, B + 2):  # p ≤ count / (B + 1): fewer than count draws reach S
        level = stats.binom.cdf(count - 1, B, reached).mean()
        assert level <= count / (B + 1) + 1e-12
        assert level > 0.5 * count / (B + 1)  # and it is not empty


def test_statement_20_vuongs_limit_at_rest_is_nearer_to_zero_than_a_normal_variable() -> None:
    rng = np.random.default_rng(8)
    F, G = (np.linalg.qr(rng.standard_normal((12, 5)))[0] for _ in range(2))
    D = F @ F.T - G @ G.T  # two projections of equal rank
    values = np.linalg.eigvalsh(D)
    assert values == pytest.approx(-values[::-1])
    g = rng.standard_normal((40_000, 12))
    z = 0.5 * np.einsum("bi,ij,bj->b", g, D, g) / np.linalg.norm(g @ D, axis=1)
    assert 0.5 < z.std() < np.sqrt(0.5)
    for x in (0.5, 1.0, 1.96):
        assert (np.abs(z) > x).mean() < min(2 * stats.norm.sf(x), 4 * stats.norm.sf(np.sqrt(2) * x))


@pytest.mark.parametrize("s", [[1.0], [1.0, 0.1], [1.0] * 30])
def test_statement_20_the_limit_is_bounded_by_two_normal_variables(s: list[float]) -> None:
    P, Q = np.random.default_rng(20).standard_normal((2, 20_000, len(s)))
    top, a, b = (P * Q) @ s, P**2 @ np.square(s), Q**2 @ np.square(s)
    z, one, two = top / np.sqrt(a + b), top / np.sqrt(a), top / np.sqrt(b)
    assert (np.abs(z) <= np.minimum(np.abs(one), np.abs(two))).all()
    assert (z**2 <= 0.5 * np.abs(one * two) + 1e-12).all()
    assert stats.kstest(one, "norm").pvalue > 0.001
    if len(s) == 1:
        assert stats.kstest(2 * z, "norm").pvalue > 0.001


def test_statement_21_of_all_permuted_slices_only_the_process_and_its_reverse_are_in_the_class() -> (
    None
):
    """The components of a shuffled trajectory's distribution: along which orders they are Markov with the same step throughout."""
    T, (F, Q) = 4, random_step(2, 21)
    rest = solve_discrete_lyapunov(F, Q)
    for first, orders in ((rest, {(0, 1, 2, 3), (3, 2, 1, 0)}), (3 * rest, {(0, 1, 2, 3)})):
        C, found = covariance(F, Q, first, T), set()
        for order in permutations(range(T)):
            own = C[np.ix_(order, order)]
            step = own[1, 0] @ np.linalg.inv(own[0, 0])
            noise = own[1, 1] - step @ own[0, 1]
            if np.allclose(own, covariance(step, noise, own[0, 0], T)):
                found.add(order)
        assert found == orders


@pytest.mark.parametrize(("shape", "open_"), [("geometric", True), ("relaxing", False)])
def test_statement_22_with_free_variances_only_geometric_covariances_hide_the_direction(
    shape: str, open_: bool
) -> None:
    """The backward step is constant, and its noise too up to a factor, only if covariances are a geometric sequence."""
    T, (F, Q) = 4, random_step(2, 22)
    rest = solve_discrete_lyapunov(F, Q)
    S = [0.9**i * rest for i in range(T)] if shape == "geometric" else spreads(F, Q, 3 * rest, T)
    noise = [S[i + 1] - F @ S[i] @ F.T for i in range(T - 1)]
    shapes = [each / np.trace(each) for each in noise]
    found = []
    for i in range(T - 1):
        B = S[i] @ F.T @ np.linalg.inv(S[i + 1])
        K = S[i] - B @ S[i + 1] @ B.T
        found.append((B, K / np.trace(K)))
    assert min(np.linalg.eigvalsh(each)[0] for each in noise) > 0
    assert all(np.allclose(each, shapes[0]) for each in shapes)  # forwards it is in the class
    constant = all(np.allclose(a, b) for each in found for a, b in zip(each, found[0], strict=True))
    assert constant is open_
