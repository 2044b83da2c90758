"""Subjects that differ and orders that are uncertain, together: Monte-Carlo EM for the mixed model.

E-step: orders of each subject drawn under its own drift Θ + B_j; M-step: the mixed model from the Gram
matrices averaged over the draws. One best order is a biased place to estimate from (`search.mcem`); the
average also tells how much of the uncertainty is the order's.

One variable may be measured with error, of a variance that is estimated too. With `y = x + ε`, `x' = f(x) + w` the residuals
`r = y_b − f(y_a)` of neighbours are correlated (each ε is in two of them), and a chain of first order misjudges orders as soon as the error
rivals the noise. Kalman's innovations `e_{t+1} = r_{t+1} + c_t e_t` are independent, N(0, S_t), up to the curvature of f over one error: the
cost of an order is `Σ ½ e_t²/S_t`, with c_t and S_t known beforehand. O(T) for each proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.effects.missing_values import with_missing_drawn
from retrace_sde.effects.subject_model import Rows, SubjectModel, fit_model
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.start_law import start_law
from retrace_sde.fit.subjects import SubjectFit
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.orders.moves import judges, metropolis
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Kept, Schedule
from retrace_sde.orders.moves.moves import Move, make
from retrace_sde.orders.moves.proposals import Windows
from retrace_sde.orders.own import BLOCK, EulerLaw
from retrace_sde.orders.search import BlockCosts
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.process.drift import Drift
from retrace_sde.search.models.euler import EulerModel

SAME_INNOVATION = 1e-9
"""Innovations that differ by less are those of the order before: all later ones are then the same, too."""


class Innovations(NamedTuple):
    """c_t and S_t of the step from position t to t + 1, (T − 1,)."""

    c: Array
    S: Array


def innovation_gains(T: int, noise: float, error: float) -> Innovations:
    """c_t and S_t of the step from position t to t + 1, for the variances of noise and of error.

    f' is taken as 1: its difference, the drift's slope times Δt, is of no account beside the gain. The first
    state is known by its own observation alone.
    """
    c, S = np.zeros(T - 1), np.empty(T - 1)
    P = error  # variance of the state given the observations so far
    for t in range(T - 1):
        S[t] = P + noise + error
        gain = (P + noise) / S[t]
        P = (1 - gain) * (P + noise)
        if t + 1 < T - 1:
            c[t + 1] = 1 - gain
    return Innovations(c, S)


class InnovationJudge(NamedTuple):
    """States, predictions and start costs of one trajectory, c_t and ½/S_t, innovations of the order and of a trial, the trial, and
    where its innovations end to differ."""

    target: Array
    source: Array
    start: Array
    c: Array
    weight: Array
    old: Array
    new: Array
    trial: Indices
    end: Indices


@implements(judges.change, InnovationJudge)
def _change(judge: InnovationJudge, rules: Any, order: Indices, move: Move) -> float:
    """By the innovations from the first position that moves to where they are the old ones again."""
    y, f, c, e, g, trial = judge.target, judge.source, judge.c, judge.old, judge.new, judge.trial
    make(trial, move)
    change = judge.start[trial[0]] - judge.start[order[0]]
    judge.end[0] = len(order)
    if move.i > 0:
        g[move.i - 1] = e[move.i - 1]
    for t in range(max(move.i, 1), len(order)):
        g[t] = y[trial[t]] - f[trial[t - 1]] + c[t - 1] * g[t - 1]
        change += judge.weight[t - 1] * (g[t] * g[t] - e[t] * e[t])
        if t > move.q and abs(g[t] - e[t]) < SAME_INNOVATION:
            judge.end[0] = t + 1
            break
    return change


@implements(judges.take, InnovationJudge)
def _take(judge: InnovationJudge, order: Indices, move: Move) -> None:
    for t in range(move.i, move.q):
        order[t] = judge.trial[t]
    for t in range(max(move.i, 1), judge.end[0]):
        judge.old[t] = judge.new[t]


@implements(judges.leave, InnovationJudge)
def _leave(judge: InnovationJudge, order: Indices, move: Move) -> None:
    for t in range(move.i, move.q):
        judge.trial[t] = order[t]


@njit(cache=True, nogil=True)
def sample_noisy_block(
    costs: BlockCosts,
    innovations: Innovations,
    lengths: Indices,
    orders: Indices,
    states: State,
    burn: int,
    thin: int,
    reach: int,
    kept: Indices,
) -> None:
    """Advance each trajectory's order in place and keep `kept.shape[1]` of them, `thin` proposals apart.

    States and predictions are of one variable, (n, T). Proposals: reverse a segment, or exchange two
    neighbouring ones, of up to `reach` positions; symmetric.
    """
    c, weight = innovations.c, 0.5 / innovations.S
    schedule = Schedule(burn, kept.shape[1], thin)
    for j in range(len(orders)):
        T = lengths[j]
        y, f, order = costs.target[j], costs.source[j], orders[j, :T]
        e = np.zeros(T)
        for t in range(1, T):
            e[t] = y[order[t]] - f[order[t - 1]] + c[t - 1] * e[t - 1]
        room = np.zeros(T), order.copy(), np.zeros(1, np.intp)
        judge = InnovationJudge(y, f, costs.start[j], c, weight, e, *room)
        state, records = states[j : j + 1], Kept(kept[j, :, :T])
        metropolis.sample(judge, None, order, Windows(reach), state, schedule, records)


AVERAGING_ROUNDS, ORDERS_PER_ROUND = 40, 2
"""Rounds of Monte-Carlo EM, and the orders of each subject that each of them averages over."""

OVERRELAXATION = 1.6
"""Early rounds step further than EM would, which is slow where orders are uncertain."""

MAX_SEGMENT = 12
"""Longest segment that a proposal moves, where the search has found nearly the right order."""


class OrderDraws(NamedTuple):
    """The mixed model averaged over orders, each subject's orders and what it is fitted to, draw by draw, and the
    variance of the measurement error (one variable only; else zero)."""

    model: SubjectModel
    orders: Indices
    rows: Rows
    error: float


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


def own_law(problem: EulerModel, fit: SubjectFit, orders: Indices) -> tuple[EulerModel, EulerLaw]:
    """The problem and the model in which each subject has its own drift."""
    n, T, d = problem.data.shape
    model = Euler(problem.drift, fit.coefficients, fit.diffusion, problem.dt)
    start = start_law(problem.data.states(orders), model, problem.variances)
    if not fit.columns:
        return problem, EulerLaw(model, start)
    own = np.repeat(fit.deviations.reshape(n, 1, -1), T, axis=1)
    u = problem.data.covariates
    u = own if u is None else np.concatenate([to_numpy(u), own], axis=2)
    drift = _Own(problem.drift, fit.columns, d)
    model = Euler(drift, np.hstack([fit.coefficients, np.eye(d)]), fit.diffusion, problem.dt)
    return EulerModel(replace(problem.data, covariates=u), problem.dt, drift), EulerLaw(
        model, start
    )


def measurement_error(problem: EulerModel, fit: SubjectFit, orders: Indices) -> float:
    """Variance of the error of one variable, 0 of several: neighbouring residuals share one error, of opposite sign.

    Minus their lag-one covariance, or zero where that is negative; at most what leaves the process a tenth
    of the residuals' variance.
    """
    n, T, d = problem.data.shape
    if d > 1 or T < 3:
        return 0.0
    orders = np.broadcast_to(orders, (n, T))
    y, f = (np.take_along_axis(each, orders, axis=1) for each in _predictions(problem, fit))
    residual = y[:, 1:] - f[:, :-1]
    live = problem.data.lengths.steps.mask
    pairs = live[:, 1:]
    lagged = (residual[:, 1:] * residual[:, :-1] * pairs).sum() / max(pairs.sum(), 1)
    variance = (residual**2 * live).sum() / live.sum()
    return float(np.clip(-lagged, 0.0, 0.45 * variance))


def _predictions(problem: EulerModel, fit: SubjectFit) -> tuple[Array, Array]:
    """States and each subject's own predictions of the next, (n, T), of one variable."""
    x, u = problem.data.values, problem.data.covariates
    y = to_numpy(x)
    phi = to_numpy(problem.drift.features(y, None if u is None else to_numpy(u)))
    step = problem.dt * (phi @ fit.subject_coefficients.transpose(0, 2, 1))
    return y[:, :, 0], (y + step)[:, :, 0]


def _draw_noisy(
    problem: EulerModel, fit: SubjectFit, error: float, orders: Indices, states: State
) -> Indices:
    """Advance orders in place and return ORDERS_PER_ROUND of each subject's, (ORDERS_PER_ROUND, n, T): one variable with error."""
    n, T, _ = problem.data.shape
    y, f = _predictions(problem, fit)
    model = Euler(problem.drift, fit.coefficients, fit.diffusion, problem.dt)
    law = start_law(problem.data.states(orders), model, problem.variances)
    start = -law.log_density(y[:, :, None])
    variance = float(fit.diffusion[0, 0]) * problem.dt
    innovations = innovation_gains(T, variance - 2 * error, error)
    kept = np.tile(np.arange(T, dtype=np.intp), (n, ORDERS_PER_ROUND, 1))

    def work(rows: slice) -> None:
        costs, lengths = BlockCosts(y[rows], f[rows], start[rows]), problem.data.observed[rows]
        sample_noisy_block(
            costs,
            innovations,
            lengths,
            orders[rows],
            states[rows],
            4 * T,
            2 * T,
            MAX_SEGMENT,
            kept[rows],
        )

    list(problem.data.map_rows(work, size=BLOCK))
    return kept.transpose(1, 0, 2)


def average_orders(
    problem: EulerModel,
    orders: Indices,
    rng: np.random.Generator,
    *,
    columns: Sequence[int] = (0,),
    treatments: Sequence[int] = (),
    fixed: bool = False,
    rounds: int = AVERAGING_ROUNDS,
    given: Indices | None = None,
    missing: Mask | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> OrderDraws:
    """From best orders (n, T), their direction known, to the mixed model averaged over orders and missing values.

    One variable: measurement error is part of the model, its variance estimated. Several: there is none. `given` (K, n, T):
    orders that were drawn before, or the one that is known. `missing` (n, T, d): values to be drawn, too.
    The answer is the fit to the averages of the last half of the rounds.
    """
    _, T, d = problem.data.shape
    p = problem.n_features
    model = fit_model(Rows.along(problem, orders, treatments, columns), p, columns, fixed=fixed)
    error = measurement_error(problem, model.base, orders)
    chains = Chains.start(orders, rng, chains=1)
    kept: list[Indices] = []
    rows: list[Rows] = []
    errors: list[float] = []
    for k in range(rounds):
        if given is not None:
            drawn = np.repeat(given[k % len(given)][None], ORDERS_PER_ROUND, axis=0)
        elif d == 1:
            drawn = _draw_noisy(problem, model.base, error, chains.orders[0], chains.states[0])
        else:
            there, law = own_law(problem, model.base, chains.orders[0])
            draws = there.draw(law, chains, Stretch(ORDERS_PER_ROUND, 2 * T, ORDERS_PER_ROUND))
            drawn = draws.kept[0].transpose(1, 0, 2).astype(np.intp)
        found = []
        for each in drawn:
            if missing is not None:
                problem = with_missing_drawn(problem, model.base, each, missing, rng)
            found.append(Rows.along(problem, each, treatments, columns))
        if 2 * k >= rounds:
            kept.append(drawn[-1])
            rows.append(found[-1])
        before, both = model.whole.coefficients, Rows.joined(found)
        model = fit_model(both, p, columns, fixed=fixed, begin=model, alternations=1)
        error = float(np.mean([measurement_error(problem, model.base, e) for e in drawn]))
        errors.append(error)
        after = model.whole.coefficients
        if 2 * k < rounds and after.shape == before.shape:
            model = model.moved(after + (OVERRELAXATION - 1) * (after - before), both)
        report(f"orders averaged, round {k + 1} of {rounds}")
    whole = Rows.joined(rows)
    model = fit_model(whole, p, columns, fixed=fixed, begin=model)
    return OrderDraws(model, np.stack(kept), whole, float(np.mean(errors[rounds // 2 :])))
