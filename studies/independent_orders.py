"""Independent orders against the known order: accuracy, MAE ratios, calibration, speed.

    python studies/independent_orders.py [--seeds 500:505] [--jobs 2] [--from-truth]

Prints one row per setting: means over seeds, ratios of mean errors to those of the fit with the true
order ("oracle"), and the accuracy of the same search given the oracle's parameters ("limit"). With
--from-truth also the ratios of a Monte-Carlo EM started at the true orders: the limit of averaging.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import retrace_sde as rt
from retrace_sde.fit.exact import NotEmbeddableError, embedded
from retrace_sde.lost_time.table import lines
from retrace_sde.metrics import mean_absolute_error, order_accuracy, position_calibration
from retrace_sde.orders.draws import Chains, random_states
from retrace_sde.orders.own import KICKS
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear
from retrace_sde.search import mcem as average
from retrace_sde.search.models.euler import EulerModel


@dataclass(frozen=True)
class Setting:
    d: int
    T: int
    n: int
    start: float
    estimator: str = "auto"
    dt: float = 0.01


SETTINGS = (
    Setting(30, 100, 100, 1.0),
    Setting(10, 50, 200, 0.1),
    Setting(10, 50, 200, 1.0),
    Setting(5, 50, 200, 0.1, "mcem"),
    Setting(3, 50, 200, 0.1, "mcem"),
    Setting(2, 20, 500, 0.1, "mcem"),
)


def of_sde(step: Any, dt: float) -> Any:
    """A step's parameters as a fit reports them: the SDE's, or Euler's where no SDE has that step."""
    try:
        return embedded(step.coefficients, step.diffusion, dt)
    except NotEmbeddableError:
        return step


def run(setting: Setting, seed: int, jobs: int | None, from_truth: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(setting.d, setting="stable", random_state=rng)
    X = sde.simulate(setting.n, setting.T, setting.dt, x0=setting.start, random_state=rng)
    shuffled, truth = rt.simulate.shuffle(X, permutation="independent", random_state=rng)
    model = rt.ReTrace(
        dt=setting.dt,
        permutation="independent",
        estimator=setting.estimator,
        random_state=seed,
        n_jobs=jobs,
        drift="linear",
    )
    begin = time.perf_counter()
    model.fit(shuffled)
    seconds = time.perf_counter() - begin
    problem = EulerModel(Data(shuffled, n_jobs=jobs), setting.dt, Linear())
    oracle = problem.fit(truth)
    any_order = np.tile(np.arange(setting.T), (setting.n, 1))
    judge, states = problem.own_orders(problem.law(oracle)), random_states(rng, setting.n)
    limit, _ = judge.improve(any_order, states, cold=True, kicks=2 * KICKS)
    best = oracle.step
    if from_truth and setting.estimator == "mcem":
        chains = Chains.start(truth, np.random.default_rng(seed))
        best = average.run(problem, problem.law(oracle), chains).law.step
    known, best = of_sde(oracle.step, setting.dt), of_sde(best, setting.dt)
    bins = []
    if hasattr(model, "posterior_"):
        bins = position_calibration(truth, model.position_probabilities_, edges=(0.7, 0.9))
    return {
        "estimator": model.result_.settings["estimator"],
        "accuracy": order_accuracy(truth, model.order_),
        "limit": order_accuracy(truth, limit),
        "errors": [
            mean_absolute_error(sde.drift, model.drift_),
            mean_absolute_error(sde.diffusion, model.diffusion_),
            mean_absolute_error(sde.drift, known.coefficients),
            mean_absolute_error(sde.diffusion, known.diffusion),
            mean_absolute_error(sde.drift, best.coefficients),
            mean_absolute_error(sde.diffusion, best.diffusion),
        ],
        "bins": bins,
        "identified": model.direction_.identified,
        "converged": model.converged_,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="500:505")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--from-truth", action="store_true")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split(":"))
    columns = [
        "d, T, n, X₀ sd",
        "panels",
        "estimator",
        "accuracy",
        "limit",
        "MAE-A / oracle",
        "MAE-H / oracle",
    ]
    columns += ["given .7 to .9: number", "mean", "right", "called"]
    columns += ["MAE-A from truth", "MAE-H from truth"] * arguments.from_truth
    table = []
    for setting in SETTINGS:
        rows = [
            run(setting, seed, arguments.jobs, arguments.from_truth) for seed in range(first, last)
        ]
        errors = np.mean([row["errors"] for row in rows], axis=0)
        bins = [each for row in rows for each in row["bins"]]
        number = sum(count for *_, count in bins)
        given = sum(given * count for given, _, count in bins) / max(number, 1)
        came = sum(came * count for _, came, count in bins) / max(number, 1)
        means = [np.mean([row[key] for row in rows]) for key in ("accuracy", "limit")]
        shares = [*means, *errors[:2] / errors[2:4]]
        from_truth: list[float | None] = [None, None] * arguments.from_truth
        if arguments.from_truth and setting.estimator == "mcem":
            from_truth = [float(each) for each in errors[4:] / errors[2:4]]
        table.append(
            [
                f"{setting.d}, {setting.T}, {setting.n}, {setting.start:g}",
                len(rows),
                "/".join(sorted({str(row["estimator"]) for row in rows})),
                *(f"{each:.3f}" for each in shares),
                int(number),
                *(float(each) if number else None for each in (given, came)),
                sum(bool(row["identified"]) for row in rows),
                *from_truth,
            ]
        )
        seconds = np.mean([row["seconds"] for row in rows])
        converged = sum(bool(row["converged"]) for row in rows)
        print(f"{table[-1][0]}: {seconds:.1f} s, {converged} converged", flush=True)
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
