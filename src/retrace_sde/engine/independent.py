"""Each trajectory has its own permutation: the most likely order of each, and the parameters they share.

Per trajectory a shortest path in the metric of H (H itself from the paths' increments), then directions that
agree across trajectories, then local search under (A, H, p₀) in turn with the closed-form fit. The best
order is a biased place to estimate from where orders are uncertain: a shortest path is shorter than
the truth, so H shrinks. `mcem` averages over orders instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, State, to_numpy
from retrace_sde.engine.problem import Directed, Problem, Round
from retrace_sde.estimate.euler import Model
from retrace_sde.estimate.start import start_law
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import Steps, improve_block
from retrace_sde.process.sde import Gaussian

BLOCK = 128
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

KICKS = 10
"""Random exchanges after which the search of each trajectory is repaired; more change little."""


DECISIVE = 10.0
"""Nats by which knowledge must favour an order over its reverse to leave no question of direction."""


@dataclass(frozen=True, eq=False)
class Law:
    """All that an order is judged by: the transition and the law of the first observation."""

    model: Model
    start: Gaussian | None

    @classmethod
    def of(cls, problem: Problem, found: Directed) -> Law:
        return cls(
            found.model, start_law(problem.data.states(found.order), found.model, problem.variances)
        )

    def costs(self, data: Data, rows: slice) -> tuple[Array, Array, Array]:
        """Whitened states, whitened predictions and start costs of a block, as the kernels want them."""
        x, u = data.block(rows)
        x, u = to_numpy(x), None if u is None else to_numpy(u)
        Wt = self.model.whitening.T
        start = np.zeros(x.shape[:2]) if self.start is None else -self.start.log_density(x)
        target, source = x @ Wt, self.model.predict(x, u) @ Wt
        return np.ascontiguousarray(target), np.ascontiguousarray(source), start


def random_states(rng: np.random.Generator, n: int) -> State:
    """One random state for each trajectory, so that no draw depends on the blocks."""
    return rng.integers(0, 2**64, size=n, dtype=np.uint64)


def search(
    data: Data,
    law: Law,
    orders: Order,
    states: State,
    *,
    cold: bool = False,
    deep: bool = False,
    kicks: int = 0,
    prior: Prior | None = None,
) -> tuple[Order, int]:
    """Improve each trajectory's order under a law; the new orders, and how many of them changed.

    With a prior, orders that break none of its rules come out, and (unless `cold`) must go in.
    """
    orders = orders.copy()

    def work(rows: slice) -> int:
        steps = Steps(*law.costs(data, rows))
        rules = None if prior is None else prior.arrays(rows)
        lengths = data.observed[rows]
        return int(
            improve_block(steps, rules, lengths, orders[rows], states[rows], cold, deep, kicks)
        )

    changed = sum(data.map_rows(work, size=BLOCK))
    return orders, changed


def recover_orders(
    problem: Problem, rng: np.random.Generator, *, max_iter: int
) -> tuple[Directed, Directed, list[Round], bool]:
    """The orders found and their twin (the better first), the rounds, and whether the orders settled."""
    states = random_states(rng, problem.data.shape[0])
    orders = first_orders(problem, rng, states)
    rounds: list[Round] = []
    start, _ = _alternate(problem, orders, states, rounds, max_iter=min(max_iter, 4))
    one, settled = _alternate(
        problem, start.order, states, rounds, max_iter=3 * max_iter, kicks=KICKS
    )
    if problem.prior is not None and one_way(problem, one.order):
        return one, problem.reversed_fit(one), [*rounds, one.as_round()], settled
    # The twin gets the same effort: orders searched for less would lose by that alone.
    back = problem.repaired(problem.data.reversed(one.order))
    two, _ = _alternate(problem, back, states, [], max_iter=3 * max_iter, kicks=KICKS)
    better, worse = (one, two) if one.objective >= two.objective else (two, one)
    return better, worse, [*rounds, better.as_round()], settled


def one_way(problem: Problem, orders: Order) -> bool:
    """What is known rules out the reverse of most orders: the direction of time is no question then."""
    back = problem.prior_costs(problem.data.reversed(orders))
    return bool(np.mean(back - problem.prior_costs(orders) > DECISIVE) >= 0.5)


def first_orders(problem: Problem, rng: np.random.Generator, states: State) -> Order:
    """Short paths in the metric of H, turned to run the same way."""
    n, T, d = problem.data.shape
    orders = np.tile(np.arange(T, dtype=np.intp), (n, 1))
    H = _within_covariance(problem.data)
    zero = np.zeros((d, problem.n_features))
    for k in range(4):
        law = Law(Model(problem.drift, zero, H, problem.dt), None)
        orders, changed = search(
            problem.data, law, orders, states, cold=k == 0, deep=k == 0, prior=problem.prior
        )
        if changed == 0:
            break
        H = _increment_covariance(problem.data, orders)
    return problem.aligned(orders, rng)


def _alternate(
    problem: Problem,
    orders: Order,
    states: State,
    rounds: list[Round],
    *,
    max_iter: int,
    kicks: int = 0,
) -> tuple[Directed, bool]:
    """Search under the fit and fit again until all but one in a thousand orders stand."""
    n = problem.data.shape[0]
    current = problem.fit(orders)
    for k in range(max_iter):
        rounds.append(current.as_round())
        kicked = kicks if k == 0 else 0
        orders, changed = search(
            problem.data,
            Law.of(problem, current),
            current.order,
            states,
            deep=kicked > 0,
            kicks=kicked,
            prior=problem.prior,
        )
        current = problem.fit(orders)
        if changed <= n // 1000:
            return current, True
    return current, False


def _within_covariance(data: Data) -> Array:
    """Covariance about each trajectory's own mean: proportional to H for paths without drift."""

    def of_block(rows: slice) -> Array:
        x = to_numpy(data.block(rows)[0])
        inside = (np.arange(x.shape[1])[None] < data.observed[rows, None])[:, :, None]
        mean = (x * inside).sum(axis=1, keepdims=True) / data.observed[rows, None, None]
        z = ((x - mean) * inside).reshape(-1, x.shape[2])
        return z.T @ z

    total = np.sum(list(data.map_rows(of_block, size=BLOCK)), axis=0)
    S = total / max(data.observed.sum() - data.shape[0], 1)
    return S + 1e-9 * np.trace(S) / len(S) * np.eye(len(S))


def _increment_covariance(data: Data, orders: Order) -> Array:
    def of_block(rows: slice) -> Array:
        x = to_numpy(data.block(rows, orders)[0])
        live = data.live(rows)
        step = np.diff(x, axis=1) if live is None else np.diff(x, axis=1) * live
        z = step.reshape(-1, x.shape[2])
        return z.T @ z

    total = np.sum(list(data.map_rows(of_block, size=BLOCK)), axis=0)
    return total / (data.observed - 1).sum()
