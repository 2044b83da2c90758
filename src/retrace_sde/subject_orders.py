"""Subjects that differ and orders that are uncertain, together: Monte-Carlo EM for the mixed model.

E-step: orders of each subject drawn under its own drift Θ + B_j; M-step: the mixed model from the Gram
matrices averaged over the draws. One best order is a biased place to estimate from (see `independent`); the
average also tells how much of the uncertainty is the order's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.blocks import Array, Order, to_numpy
from retrace_sde.costs import Model
from retrace_sde.drift import Drift
from retrace_sde.independent import Law
from retrace_sde.mcem import Chains, draw
from retrace_sde.problem import Problem
from retrace_sde.start import start_law
from retrace_sde.subjects import SubjectFit, fit_subjects, subject_grams

ROUNDS, KEPT = 20, 5
"""Rounds of Monte-Carlo EM, and the orders of each subject that each of them averages over."""

STRIDE = 1.6
"""Early rounds step further than EM would, which is slow where orders are uncertain."""


@dataclass(frozen=True, eq=False)
class OrderDraws:
    """The mixed model averaged over orders, and each subject's orders and Gram matrices, draw by draw."""

    fit: SubjectFit
    orders: Order
    grams: Array


class _Own(Drift):
    """A drift whose last d·s covariates are the subject's deviations: features (φ, B_j φ_S)."""

    def __init__(self, drift: Drift, columns: Sequence[int], d: int) -> None:
        self.drift, self.columns, self.d = drift, list(columns), d

    def features(self, x: Any, u: Any | None) -> Any:
        s = len(self.columns)
        assert u is not None  # the deviations
        whole = u.shape[-1] - self.d * s
        phi = self.drift.features(x, u[..., :whole] if whole else None)
        own = u[..., whole:].reshape(*u.shape[:-1], self.d, s)
        return np.concatenate([phi, (own @ phi[..., self.columns, None])[..., 0]], axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        names = self.drift.feature_names(variables, covariates[: -self.d * len(self.columns)])
        return [*names, *(f"own {v}" for v in variables)]


def own_law(problem: Problem, fit: SubjectFit, orders: Order) -> tuple[Problem, Law]:
    """The problem and the law in which each subject has its own drift."""
    n, T, d = problem.data.shape
    model = Model(problem.drift, fit.coefficients, fit.diffusion, problem.dt)
    start = start_law(problem.data.states(orders), model, problem.variances)
    if not fit.columns:
        return problem, Law(model, start)
    own = np.repeat(fit.deviations.reshape(n, 1, -1), T, axis=1)
    u = problem.data.covariates
    u = own if u is None else np.concatenate([to_numpy(u), own], axis=2)
    drift = _Own(problem.drift, fit.columns, d)
    model = Model(drift, np.hstack([fit.coefficients, np.eye(d)]), fit.diffusion, problem.dt)
    return Problem(replace(problem.data, covariates=u), problem.dt, drift), Law(model, start)


def average_orders(
    problem: Problem,
    orders: Order,
    rng: np.random.Generator,
    *,
    columns: Sequence[int] = (0,),
    rounds: int = ROUNDS,
    report: Callable[[str], None] = lambda line: None,
) -> OrderDraws:
    """From best orders (n, T), their direction known, to the mixed model averaged over orders.

    The answer is the fit to the averages of the last half of the rounds.
    """
    T, count, p = (
        problem.data.shape[1],
        float((problem.data.observed - 1).sum()),
        problem.n_features,
    )
    fit = fit_subjects(subject_grams(problem, orders), count, p, columns=columns)
    chains = Chains.start(orders, rng, chains=1)
    kept: list[Order] = []
    grams: list[Array] = []
    for k in range(rounds):
        there, law = own_law(problem, fit, chains.orders[0])
        draws = draw(there, law, chains, KEPT, burn=2 * T, keep=KEPT)
        drawn = draws.kept[0].transpose(1, 0, 2).astype(np.intp)
        found = [subject_grams(problem, each) for each in drawn]
        if 2 * k >= rounds:
            kept.append(drawn[-1])
            grams.append(found[-1])
        before, fit = (
            fit,
            fit_subjects(np.mean(found, axis=0), count, p, columns=columns, begin=fit),
        )
        if 2 * k < rounds:
            ahead = fit.coefficients + (STRIDE - 1) * (fit.coefficients - before.coefficients)
            fit = replace(fit, coefficients=ahead)
        report(f"orders averaged, round {k + 1} of {rounds}")
    whole = np.stack(grams)
    fit = fit_subjects(whole.mean(axis=0), count, p, columns=columns, begin=fit)
    return OrderDraws(fit, np.stack(kept), whole)
