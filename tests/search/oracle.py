"""Own orders by brute force: every order of every trajectory, its likelihood from one dense Gaussian.

    X' = F X + s + N(0, Q),   Y = X + N(0, R),   X_0 ~ N(m₀, P₀);   F = 1 + A dt, s = c dt, Q = H dt.

Written from the formulas alone, for T ≤ 6: nothing of the package is used. Values are (n, T, d), NaN where missing;
a trajectory of length t is its first t rows. `costs[j, a, k]` is −log prior of observation a at position k (∞:
impossible), `before[j, a, b]` says that a precedes b; either may be None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import permutations

import numpy as np


@dataclass(frozen=True, eq=False)
class Law:
    """Θ = (A, c) or A alone, H, R and the law of the first state, with the time between observations."""

    theta: np.ndarray
    H: np.ndarray
    R: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    dt: float

    @property
    def step(self):
        """F, s, Q."""
        d = len(self.H)
        shift = self.theta[:, d] if self.theta.shape[1] > d else np.zeros(d)
        return np.eye(d) + self.theta[:, :d] * self.dt, shift * self.dt, self.H * self.dt

    def simulate(self, n, T, rng):
        """Observations (n, T, d) in time order, none missing."""
        F, s, Q = self.step
        d = len(F)

        def normal(covariance):
            return rng.multivariate_normal(np.zeros(d), covariance, size=n)

        x, seen = self.mean + normal(self.covariance), []
        for _ in range(T):
            seen.append(x + normal(self.R))
            x = x @ F.T + s + normal(Q)
        return np.stack(seen, axis=1)


@lru_cache(maxsize=64)
def dense(law, T):
    """Mean (T d,) and covariance (T d, T d) of the observations at T times."""
    F, s, Q = law.step
    d = len(F)
    means, spreads = [law.mean], [law.covariance]
    for _ in range(T - 1):
        means.append(F @ means[-1] + s)
        spreads.append(F @ spreads[-1] @ F.T + Q)
    K = np.zeros((T, d, T, d))
    for i in range(T):
        block = spreads[i]  # Cov(X_k, X_i) = F^(k − i) Var X_i
        for k in range(i, T):
            K[k, :, i], K[i, :, k] = block, block.T
            block = F @ block
        K[i, :, i] += law.R
    return np.concatenate(means), K.reshape(T * d, T * d)


@cache
def every_order(T):
    """(T!, T): `o[k]` is the observation at position k."""
    return np.array(list(permutations(range(T))), dtype=np.intp)


def log_likelihoods(y, law, orders):
    """`log p` of what was seen of one trajectory y (t, d), along each of the orders (m, t)."""
    t, d = y.shape
    mean, K = dense(law, t)
    place = np.argsort(orders, axis=1)
    a, x = np.nonzero(~np.isnan(y))
    if len(a) == 0:
        return np.zeros(len(orders))
    at = place[:, a] * d + x
    gap = y[a, x] - mean[at]
    root = np.linalg.cholesky(K[at[:, :, None], at[:, None, :]])
    white = np.linalg.solve(root, gap[:, :, None])[:, :, 0]
    log_det = 2 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * ((white**2).sum(axis=1) + log_det + len(a) * np.log(2 * np.pi))


def log_priors(orders, costs=None, before=None):
    """log prior of each of the orders (m, t), up to a constant; −∞ where a rule is broken."""
    t = orders.shape[1]
    found = np.zeros(len(orders))
    if costs is not None:
        found -= costs[orders, np.arange(t)].sum(axis=1)
    if before is not None:
        place = np.argsort(orders, axis=1)
        for a, b in np.argwhere(before[:t, :t]):
            found[place[:, a] > place[:, b]] = -np.inf
    return found


@dataclass(frozen=True, eq=False)
class Orders:
    """All orders (t!, t) of one trajectory, the log-likelihood and the (unnormalised) log prior of each."""

    orders: np.ndarray
    likelihood: np.ndarray
    prior: np.ndarray

    @property
    def objective(self):
        """Log-likelihood and log prior together: what orders are compared by."""
        return self.likelihood + self.prior

    @property
    def log_marginal(self):
        """Orders summed out, the prior normalised."""
        return log_sum(self.objective) - log_sum(self.prior)

    @property
    def probabilities(self):
        return np.exp(self.objective - log_sum(self.objective))

    @property
    def positions(self):
        """`[a, k]`: the probability that observation a stands at position k."""
        t = self.orders.shape[1]
        found = np.zeros((t, t))
        for k in range(t):
            np.add.at(found[:, k], self.orders[:, k], self.probabilities)
        return found

    @property
    def neighbours(self):
        """`[a, b]`: the probability that b follows a."""
        t = self.orders.shape[1]
        found = np.zeros((t, t))
        for k in range(t - 1):
            np.add.at(found, (self.orders[:, k], self.orders[:, k + 1]), self.probabilities)
        return found

    def worth(self, order):
        """The objective of one order."""
        return self.objective[(self.orders == order).all(axis=1)][0]

    def draw(self, rng, size):
        """Orders from the posterior."""
        return self.orders[rng.choice(len(self.orders), size, p=self.probabilities)]

    def possible(self, rng, size):
        """Orders that break no rule, likely or not."""
        allowed = np.flatnonzero(np.isfinite(self.prior))
        return self.orders[rng.choice(allowed, size)]


def log_sum(values):
    """`log Σ exp`, −∞ allowed."""
    top = values.max()
    return top + np.log(np.exp(values - top).sum())


def enumerated(Y, law, *, lengths=None, costs=None, before=None):
    """`Orders` of each trajectory."""
    found = []
    for j, y in enumerate(Y):
        t = len(y) if lengths is None else int(lengths[j])
        orders = every_order(t)
        U = None if costs is None else costs[j]
        B = None if before is None else before[j]
        found.append(Orders(orders, log_likelihoods(y[:t], law, orders), log_priors(orders, U, B)))
    return found


def log_marginals(Y, law, **known):
    """Each trajectory's log-likelihood with its order summed out, (n,)."""
    return np.array([each.log_marginal for each in enumerated(Y, law, **known)])


def log_ratios(Y, one, two, **known):
    """`log p(Y_j; one) − log p(Y_j; two)`, orders summed out, (n,). The prior's normaliser cancels."""
    return log_marginals(Y, one, **known) - log_marginals(Y, two, **known)


# Derivatives by (Θ by rows, lower triangle of H, R), p₀ known


@dataclass(frozen=True)
class Free:
    """Which parameters are free besides Θ and H: noise "tied" (R = σ² 1), "diagonal" or None (R known)."""

    noise: str | None = None

    def pack(self, law):
        i, k = np.tril_indices(len(law.H))
        variances = {"tied": np.diag(law.R)[:1], "diagonal": np.diag(law.R), None: []}[self.noise]
        return np.concatenate([law.theta.ravel(), law.H[i, k], variances])

    def unpack(self, x, law):
        d, p = law.theta.shape
        i, k = np.tril_indices(d)
        H, R = np.empty((d, d)), law.R
        H[i, k] = H[k, i] = x[d * p : d * p + len(i)]
        if self.noise is not None:
            R = np.diag(np.broadcast_to(x[d * p + len(i) :], (d,)))
        return replace(law, theta=x[: d * p].reshape(d, p), H=H, R=R)


def scores(Y, law, free, **known):
    """First derivatives of each trajectory's marginal log-likelihood, (n, parameters)."""
    return _slopes(lambda each: log_marginals(Y, each, **known), law, free)


def order_scores(y, law, free, orders):
    """First derivatives of the log-likelihood of one trajectory in given orders, (orders, parameters)."""
    return _slopes(lambda each: log_likelihoods(y, each, orders), law, free)


def _slopes(value, law, free):
    x = free.pack(law)
    columns = []
    for e in np.eye(len(x)):
        h = 1e-5 * e * _unit(x)
        columns.append((value(free.unpack(x + h, law)) - value(free.unpack(x - h, law))) / 2)
    return np.array(columns).T / (1e-5 * _unit(x))


def _unit(x):
    return np.maximum(np.abs(x), 0.1)


def informations(Y, law, free, **known):
    """Observed information of each trajectory, orders summed out, (n, parameters, parameters).

    `−∂²` by differences, in steps of a two-hundredth of the error that all trajectories together leave.
    """
    x = free.pack(law)
    slopes = scores(Y, law, free, **known)
    h = 0.005 / np.sqrt((slopes**2).sum(axis=0))

    def value(step):
        return log_marginals(Y, free.unpack(x + h * step, law), **known)

    size = len(x)
    unit, centre = np.eye(size), value(np.zeros(size))
    alone = {(a, s): value(s * unit[a]) for a in range(size) for s in (1, -1)}
    found = np.empty((len(Y), size, size))
    for a in range(size):
        found[:, a, a] = 2 * centre - alone[a, 1] - alone[a, -1]
        for b in range(a):
            both = value(unit[a] + unit[b]) + value(-unit[a] - unit[b])
            ends = alone[a, 1] + alone[a, -1] + alone[b, 1] + alone[b, -1]
            found[:, a, b] = found[:, b, a] = -0.5 * (both + 2 * centre - ends)
    return found / np.outer(h, h)


def expected_information(y, law, free, orders):
    """Fisher's, of what was seen of one trajectory in given orders, (orders, parameters, parameters).

    `½ tr(K⁻¹ ∂K K⁻¹ ∂K) + ∂μᵀ K⁻¹ ∂μ`; depends on which entries were seen, not on their values.
    """
    t, d = y.shape
    x = free.pack(law)
    slopes = []
    for e, unit in zip(np.eye(len(x)), _unit(x), strict=True):
        up, down = (dense(free.unpack(x + sign * 1e-5 * unit * e, law), t) for sign in (1, -1))
        slopes.append([(one - two) / (2e-5 * unit) for one, two in zip(up, down, strict=True)])
    place = np.argsort(orders, axis=1)
    a, z = np.nonzero(~np.isnan(y))
    at = place[:, a] * d + z
    inverse = np.linalg.inv(dense(law, t)[1][at[:, :, None], at[:, None, :]])
    means = np.stack([slope[0][at] for slope in slopes], axis=1)
    turned = [inverse @ slope[1][at[:, :, None], at[:, None, :]] for slope in slopes]
    of_K = np.array([[np.einsum("mij,mji->m", one, two) for two in turned] for one in turned])
    return 0.5 * of_K.transpose(2, 0, 1) + means @ inverse @ means.transpose(0, 2, 1)


def standard_errors(information, law):
    """Those of Θ (d, p) and H (d, d) from an information matrix."""
    d, p = law.theta.shape
    i, k = np.tril_indices(d)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    H = np.empty((d, d))
    H[i, k] = H[k, i] = errors[d * p : d * p + len(i)]
    return errors[: d * p].reshape(d, p), H
