"""The methods that are compared, each from a shuffled panel to an order, its SDE and a verdict."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

import numpy as np

from retrace_sde.evidence.outcome import best_order
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.regression import ols
from retrace_sde.fit.statespace.em import em
from retrace_sde.fit.statespace.parameters import Noise, Parameters
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.metrics import kendall_tau, mean_absolute_error, neighbour_share, order_accuracy
from retrace_sde.orders.costs import transition_costs
from retrace_sde.orders.hidden.pair_moments import seen_distances
from retrace_sde.orders.paths import PathCosts, shortest_path
from retrace_sde.panel.blocks import Data, evenly
from retrace_sde.paper.algorithm1 import ScoreOrder, score_order
from retrace_sde.paper.baselines import dpt_order, mst_order
from retrace_sde.paper.score import GaussianScore
from retrace_sde.process.drift import Linear
from retrace_sde.process.sde import LinearSDE
from retrace_sde.reproduce.cases import Case, Regime, Size, case, simulate_case
from retrace_sde.reproduce.experiment import Record
from retrace_sde.retrace import ReTrace
from retrace_sde.search.model import Fit, Round
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

ALGORITHM1_ROUNDS = 10
"""K of Algorithm 1, the paper's default."""

SEARCH_SEED = 0
"""Of the searches, the same for every panel: panels differ by their own seeds."""

EM_STEPS, EM_TRAJECTORIES = 5, 200
"""Algorithm 1 with EM: steps in each round (the paper does not say how many), and how many trajectories
a round's EM looks at; the parameters that are reported come from all of them."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a method returns; `identified` is None where it does not test the direction of time."""

    order: Indices
    drift: Array
    diffusion: Array
    identified: bool | None = None
    rounds: tuple[Round, ...] = field(default=())


Method = Callable[[Case], Found]
Estimator = Callable[[Fit], tuple[Array, Array]]


def likelihood(case: Case, *, noise: Literal["estimate"] | None = None) -> Found:
    """Maximum likelihood over the order, the direction and the parameters; the level of the observation noise too."""
    # Euler's step, as in the paper and of the oracle, where states are observed.
    estimator: Literal["auto", "mle"] = "auto" if noise or case.incomplete else "mle"
    model = ReTrace(
        dt=case.dt,
        observation_noise=noise,
        estimator=estimator,
        n_jobs=1,
        random_state=0,
        drift="linear",
    ).fit(case.values)
    return Found(
        model.order_, model.drift_, model.diffusion_, model.direction_.identified, model.history_
    )


def algorithm1(case: Case, *, estimator: str = "mle") -> Found:
    """The paper's Algorithm 1 as printed: the last round's order, and the estimator in every round.

    With observation noise the paper takes R as known and corrects each slice's covariance for it.
    """
    problem = EulerModel(Data(case.values, n_jobs=1), case.dt, Linear())
    estimators: dict[str, Estimator] = {
        "mle": _mle,
        "ols": _ols,
        "em": partial(_em, case.values, case.dt),
    }
    estimate = estimators[estimator]
    few = evenly(len(case.values), EM_TRAJECTORIES)
    in_round = partial(_em, case.values[few], case.dt) if estimator == "em" else estimate
    known = case.noise**2 * np.eye(case.values.shape[2]) if case.noise else None
    kept, rounds, _ = score_order(
        problem.data,
        problem.dt,
        problem.fit,
        ScoreOrder(keep="last", score=GaussianScore(known)),
        max_iter=ALGORITHM1_ROUNDS,
        diffusion=lambda fit: in_round(fit)[1],
    )
    A, H = estimate(kept)
    return Found(kept.order, A, H, rounds=tuple(each.as_round() for each in rounds))


def _mle(fit: Fit) -> tuple[Array, Array]:
    return fit.step.coefficients, fit.step.diffusion


def _ols(fit: Fit) -> tuple[Array, Array]:
    found = ols(fit.moments)
    return found.coefficients, found.diffusion


def _em(values: Array, dt: float, fit: Fit) -> tuple[Array, Array]:
    """A few EM steps in the state-space model with observation noise of unknown level."""
    ordered = values[:, fit.order]
    found = em(ordered, dt, noise="estimate", max_iter=EM_STEPS)
    return found.drift, found.diffusion


def along(order_of: Callable[[Array], Indices], case: Case) -> Found:
    """The order of a method that knows no SDE, and maximum likelihood along it."""
    return at(order_of(case.values), case)


def at(order: Indices, case: Case) -> Found:
    """Maximum likelihood along an order."""
    fit = EulerModel(Data(case.values, n_jobs=1), case.dt, Linear()).fit(order)
    return Found(order, *_mle(fit))


def oracle(case: Case) -> Found:
    """The true order is given; observation noise is ignored, as by the methods that know none."""
    if case.incomplete:
        return _em_along(case.truth, case, 0.0)
    return at(case.truth, case)


def oracle_with_noise(case: Case) -> Found:
    """The true order is given; EM in the state-space model with noise of unknown level."""
    return _em_along(case.truth, case, "estimate")


def _em_along(order: Indices, case: Case, noise: Noise) -> Found:
    found = em(case.values[:, order], case.dt, noise=noise, scheme="exact")
    return Found(order, found.drift, found.diffusion)


def seen_path(case: Case) -> Found:
    """The shortest path through the slices by the mean squared difference of the values seen in both."""
    near = seen_distances(case.values, np.ones(case.values.shape[2]))
    return oracle(replace(case, truth=shortest_path(near)))


def limit(case: Case) -> Found:
    """The same search with the true parameters and the true distribution of the start given."""
    order = _order_under_the_truth(case)
    known = replace(case, truth=order)
    return oracle_with_noise(known) if case.noise else oracle(known)


def _order_under_the_truth(case: Case) -> Indices:
    data, rng = Data(case.values, n_jobs=1), np.random.default_rng(SEARCH_SEED)
    model = EulerModel(data, case.dt, Linear())
    if case.noise or case.incomplete:
        R = case.noise**2 * np.eye(data.shape[2])
        law = Parameters(case.sde.drift, case.sde.diffusion, R, case.initial)
        hidden = HiddenModel.of(model, noise=case.noise)
        return best_order(hidden, hidden.orders_under(law), rng)
    costs = transition_costs(data, Euler(Linear(), case.sde.drift, case.sde.diffusion, case.dt))
    start = -case.initial.log_density(data.slices(np.arange(data.shape[1]))).sum(axis=1)
    return best_order(model, PathCosts(costs, start), rng)


def scanpy_order(values: Array) -> Indices:
    """scanpy's diffusion pseudotime on slices, rooted at an extreme of its first component."""
    import anndata
    import scanpy

    n, T, d = values.shape
    table = anndata.AnnData(np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(T, n * d))
    scanpy.pp.neighbors(table, n_neighbors=min(15, T - 1), use_rep="X", random_state=0)
    scanpy.tl.diffmap(table, n_comps=min(15, T - 2), random_state=0)
    table.uns["iroot"] = int(np.argmax(np.abs(table.obsm["X_diffmap"][:, 1])))
    scanpy.tl.dpt(table)
    return np.argsort(table.obs["dpt_pseudotime"].to_numpy(), kind="stable")


METHOD_BY_NAME: dict[str, Method] = {
    "Algorithm 1-MLE": algorithm1,
    "Algorithm 1-OLS": partial(algorithm1, estimator="ols"),
    "Algorithm 1-EM": partial(algorithm1, estimator="em"),
    "MST-MLE": partial(along, partial(mst_order, root="arbitrary")),
    "DPT-MLE": partial(along, partial(dpt_order, root="arbitrary")),
    "ReTrace-likelihood": likelihood,
    "MST, proper root": partial(along, partial(mst_order, root="end")),
    "DPT, proper root": partial(along, partial(dpt_order, root="extreme")),
    "scanpy DPT": partial(along, scanpy_order),
    "distances of values seen": seen_path,
    "limit": limit,
    "oracle": oracle,
    "ReTrace, noise estimated": partial(likelihood, noise="estimate"),
    "oracle, noise estimated": oracle_with_noise,
}
"""By the name under which they are listed."""


def available(*names: str) -> tuple[str, ...]:
    """Those of the named methods that can run here: scanpy's needs scanpy."""
    missing = {"scanpy DPT"} if importlib.util.find_spec("scanpy") is None else set()
    return tuple(name for name in names if name not in missing)


def records_of(key: Record, regime: Regime, size: Size, **varied: float) -> list[Record]:
    """The line of a method (`key["method"]`) for one panel (of `key["seed"]`)."""
    panel = case(regime, size, key["seed"], **varied)
    return [{**key, **score(key["method"], panel)}]


def score(method: str, panel: Case) -> Record:
    """Run a method and compare what it finds with the truth."""
    _compile(method)
    begin = time.perf_counter()
    found = METHOD_BY_NAME[method](panel)
    seconds = time.perf_counter() - begin
    return {
        **accuracies(found, panel.sde, panel.truth),
        "seconds": round(seconds, 3),
        "direction_identified": found.identified,
        "rounds": [order_accuracy(panel.truth, each.order) for each in found.rounds],
    }


def accuracies(found: Found, sde: LinearSDE, truth: Indices) -> dict[str, float]:
    """How far an order, A and H are from the true ones."""
    return {
        "accuracy": order_accuracy(truth, found.order),
        "accuracy_up_to_reversal": order_accuracy(truth, found.order, up_to_reversal=True),
        "kendall_tau": kendall_tau(truth, found.order),
        "neighbour_share": neighbour_share(truth, found.order),
        "mae_drift": mean_absolute_error(sde.drift, found.drift),
        "mae_diffusion": mean_absolute_error(sde.diffusion, found.diffusion),
    }


@cache
def _compile(method: str) -> None:
    """Once per process on a small panel, so that neither imports nor compilation are timed."""
    METHOD_BY_NAME[method](simulate_case(Regime("small", "stable", 1.0), Size(d=2, n=30, T=20), 0))


SCORE_COLUMNS = (
    "accuracy", "accuracy_up_to_reversal", "kendall_tau", "neighbour_share",
    "mae_drift", "mae_diffusion", "seconds", "direction_identified",
)  # fmt: skip
"""What a published record holds beside setting, method and seed."""
