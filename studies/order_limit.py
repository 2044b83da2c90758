"""Whether the true order is the most likely one: what no search, and no estimate, can exceed.

For the linear panels of `dependence.py`. An order is judged under the parameters that made the panel, by the joint Gaussian likelihood of all
trajectories, their common shocks, plates and measurement noise among it. The true order is the most likely one if no order is more likely that insertions,
reversals and rotations lead to, from it and from the order that a fit found: a search that stops too early can only call it so where it is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov

from retrace_sde.process.simulate import random_irreversible_sde

Floats = NDArray[np.float64]
Orders = NDArray[np.intp]
DT = 0.1


def likeliest(X: Floats, seed: int, orders: list[Orders], made: dict[str, Any]) -> Orders:
    """The most likely order of a panel that single moves lead to from those given, under the parameters that made it."""
    copies = made.get("copies", 1)
    if copies > 1:  # their means: 2 % noise hardly counts
        X = X.reshape(len(X) // copies, copies, *X.shape[1:]).mean(axis=1)
    truth = Gaussian(X.shape[1], X.shape[2], seed, made)
    judge = Missing(truth, X) if np.isnan(X).any() else Complete(truth, X)
    return max((_climbed(judge, each) for each in orders), key=lambda way: way[0])[1]


def _climbed(judge: Complete | Missing, order: Orders) -> tuple[float, Orders]:
    value = float(judge.log_likelihoods(order[None])[0])
    while True:
        moved = _moved(order)
        values = judge.log_likelihoods(moved)
        k = int(values.argmax())
        if values[k] <= value + 1e-9:
            return value, order
        value, order = float(values[k]), moved[k]


class Gaussian:
    """Covariances (T, d, T, d) of what is a trajectory's own and of what all share, and the expected path: `dependence.linear`."""

    def __init__(self, T: int, d: int, seed: int, made: dict[str, Any]) -> None:
        sde, transient = random_irreversible_sde(d, random_state=seed), made.get("transient", False)
        A = sde.drift
        if made.get("reversible", True):
            A = -0.5 * sde.diffusion @ np.linalg.inv(sde.stationary().covariance)
        F, S = expm(A * DT), solve_continuous_lyapunov(A, -sde.diffusion)
        V, deviation = (0.09 * S if transient else S), np.sqrt(np.diag(S))
        K, path = np.zeros((T, d, T, d)), np.zeros((T, d))
        mean = 1.5 * deviation * transient
        for a in range(T):
            path[a], W = mean, V
            for b in range(a, T):
                K[a, :, b], K[b, :, a] = W, W.T
                W = W @ F.T
            V, mean = F @ V @ F.T + S - F @ S @ F.T, F @ mean
        white = np.einsum("ab,ij->aibj", np.eye(T), np.diag(deviation**2))
        common = made.get("common", 0.0)
        self.own = (1 - common) * K + made.get("noise", 0.0) ** 2 * white
        self.shared = common * K + made.get("plates", 0.0) ** 2 * white
        self.path = path


class Complete:
    """Without missing values: deviations from the slice means and the mean path are independent, and all orders share their determinants."""

    def __init__(self, truth: Gaussian, X: Floats) -> None:
        n, self.T, d = X.shape
        m = X.mean(axis=0)
        z = X - m
        P, R = (
            np.linalg.inv(each.reshape(self.T * d, -1)).reshape(each.shape)
            for each in (truth.own, truth.own / n + truth.shared)
        )
        S = np.einsum("nsi,ntj->sitj", z, z)
        self.pairs = np.einsum("aibj,sitj->abst", P, S, optimize=True)
        self.pairs += np.einsum("aibj,si,tj->abst", R, m, m, optimize=True)
        self.single = np.einsum("aibj,bj,si->as", R, truth.path, m, optimize=True)

    def log_likelihoods(self, orders: Orders) -> Floats:
        """Of orders (k, T), up to a constant."""
        a = np.arange(self.T)
        found = np.zeros(len(orders))
        for i in a:
            found += self.pairs[i, a, orders[:, i, None], orders].sum(axis=1)
        return np.asarray(self.single[a, orders].sum(axis=1) - 0.5 * found)


class Missing:
    """With missing values: each trajectory by itself given what all share, whose values are then integrated out."""

    def __init__(self, truth: Gaussian, X: Floats) -> None:
        self.T, self.d = X.shape[1:]
        size = self.T * self.d
        self.own, self.path = truth.own.reshape(size, size), truth.path.ravel()
        values, vectors = np.linalg.eigh(truth.shared.reshape(size, size))
        self.root = vectors * np.sqrt(np.maximum(values, 0.0))
        self.X = X

    def log_likelihoods(self, orders: Orders) -> Floats:
        """Of orders (k, T), up to a constant."""
        return np.array([self._log_likelihood(order) for order in orders])

    def _log_likelihood(self, order: Orders) -> float:
        x = self.X[:, order].reshape(len(self.X), -1)
        seen = ~np.isnan(x)
        r = np.where(seen, x - self.path, 0.0)
        both = seen[:, :, None] & seen[:, None, :]
        K = np.where(both, self.own, np.eye(len(self.path)))
        lower = np.linalg.cholesky(K)
        P = np.where(both, np.linalg.inv(K), 0.0)
        weighted = np.einsum("nab,nb->na", P, r)
        given = np.eye(len(self.path)) + self.root.T @ P.sum(axis=0) @ self.root
        v = self.root.T @ weighted.sum(axis=0)
        logs = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum() + np.linalg.slogdet(given)[1]
        return float(-0.5 * (logs + np.sum(r * weighted) - v @ np.linalg.solve(given, v)))


def _moved(order: Orders) -> Orders:
    """Every insertion, reversal and rotation of an order."""
    T = len(order)
    found = [np.roll(order, k) for k in range(1, T)]
    for i in range(T):
        rest = np.delete(order, i)
        found += [np.insert(rest, j, order[i]) for j in range(T) if j != i]
        for j in range(i + 2, T + 1):
            found.append(np.concatenate([order[:i], order[i:j][::-1], order[j:]]))
    return np.array(found)
