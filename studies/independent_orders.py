"""Independent orders against the known order: accuracy, MAE ratios, calibration, speed.

    python studies/independent_orders.py [--seeds 500:505] [--jobs 2] [--from-truth]

Prints one line per setting: means over seeds, ratios of mean errors to those of the fit with the true
order ("oracle"), and the accuracy of the same search given the oracle's parameters ("limit"). With
--from-truth also the ratios of a Monte-Carlo EM started at the true orders: the limit of averaging.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

import retrace_sde as rt
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


def run(setting: Setting, seed: int, jobs: int | None, from_truth: bool) -> dict[str, object]:
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
            mean_absolute_error(sde.drift, oracle.step.coefficients),
            mean_absolute_error(sde.diffusion, oracle.step.diffusion),
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
    print(
        "d,T,n,x0 sd        used   accuracy (limit)   MAE-A  MAE-H / oracle   0.7–0.9 right (given)  s"
    )
    for setting in SETTINGS:
        rows = [
            run(setting, seed, arguments.jobs, arguments.from_truth) for seed in range(first, last)
        ]
        errors = np.mean([row["errors"] for row in rows], axis=0)
        bins = [each for row in rows for each in row["bins"]]
        weight = sum(count for *_, count in bins) or np.nan
        given = sum(given * count for given, _, count in bins) / weight
        came = sum(came * count for _, came, count in bins) / weight
        print(
            f"{setting.d:2d},{setting.T:3d},{setting.n:3d},{setting.start:3.1f}  "
            f"{'/'.join(sorted({str(row['estimator']) for row in rows})):>9}   "
            f"{np.mean([row['accuracy'] for row in rows]):.4f} "
            f"({np.mean([row['limit'] for row in rows]):.4f})     "
            f"{errors[0] / errors[2]:5.3f}  {errors[1] / errors[3]:5.3f}            "
            f"{came:.3f} ({given:.3f}, {weight:.0f})   "
            f"{np.mean([row['seconds'] for row in rows]):.1f}  "
            f"identified {sum(bool(row['identified']) for row in rows)}/{len(rows)}  "
            f"converged {sum(bool(row['converged']) for row in rows)}/{len(rows)}",
            flush=True,
        )
        if arguments.from_truth and setting.estimator == "mcem":
            ratios = errors[4:] / errors[2:4]
            print(f"    started at the true orders: {ratios[0]:.3f}  {ratios[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
