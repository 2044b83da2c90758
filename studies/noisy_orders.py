"""Orders of noisy and incomplete observations compared with the limit: the same search with the true parameters.

    python studies/noisy_orders.py shared --seeds 100:116
    python studies/noisy_orders.py shared --cell 2000,0.3,1.0,0.2 --seeds 100:103
    python studies/noisy_orders.py independent --cell 200,0.03,0.1 --size 5,30 --seeds 100:103

A cell is n, the noise's standard deviation, the variance of X₀ and, if any, the share of missing entries. `--jobs` runs seeds in parallel.
"""

import argparse
import warnings
from itertools import product

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.evidence.outcome import best_order
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.lost_time.table import lines
from retrace_sde.orders.draws import random_states
from retrace_sde.panel.blocks import Data, one_blas_thread
from retrace_sde.process.drift import Linear
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

DT = 0.01
CELLS = [
    "20,0.3,0.1",
    "50,0.3,0.1",
    "50,0.5,0.1",
    "200,0.5,0.1",
    "2000,0.3,0.1",
    "2000,0.3,0.1,0.2",
]


def panel(seed, n, T, d, noise, variance, missing, permutation):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    start = rng.standard_normal((n, d)) * variance**0.5
    X = sde.simulate(n, T, DT, x0=start, random_state=rng)
    Y = rt.simulate.add_noise(X, noise, random_state=rng)
    shuffled, truth = rt.simulate.shuffle(Y, permutation=permutation, random_state=rng)
    shuffled = np.ascontiguousarray(shuffled)
    shuffled[rng.random(shuffled.shape) < missing] = np.nan
    initial = rt.Gaussian(np.zeros(d), variance * np.eye(d))
    law = Parameters(sde.drift, sde.diffusion, noise**2 * np.eye(d), initial)
    return sde, shuffled, truth, law


def hidden(Y, noise):
    return HiddenModel.of(EulerModel(Data(Y, n_jobs=1), DT, Linear()), noise=noise)


def up_to_reversal(truth, order):
    return max(rt.metrics.order_accuracy(truth, way) for way in (order, order[..., ::-1]))


def error(found, truth):
    return float(np.abs(found - truth).mean())


def shared(seed, n, noise, variance, d, T, missing):
    sde, Y, truth, law = panel(seed, n, T, d, noise, variance, missing, "shared")
    model = rt.ReTrace(
        dt=DT, observation_noise="estimate", random_state=seed, n_jobs=1, drift="linear"
    ).fit(Y)
    problem = hidden(Y, noise)
    limit = best_order(problem, problem.orders_under(law), np.random.default_rng(seed))
    oracle = rt.statespace.em(Y[:, truth], DT, n_jobs=1)
    right = rt.metrics.kendall_tau(truth, model.order_) > 0
    return {
        "up to reversal": up_to_reversal(truth, model.order_),
        "limit": up_to_reversal(truth, limit),
        "identified": float(model.direction_.identified),
        "confidently wrong": float(model.direction_.identified and not right),
        "A / oracle": error(model.drift_, sde.drift) / error(oracle.drift, sde.drift),
        "H / oracle": error(model.diffusion_, sde.diffusion)
        / error(oracle.diffusion, sde.diffusion),
    }


def independent(seed, n, noise, variance, d, T, missing):
    sde, Y, truth, law = panel(seed, n, T, d, noise, variance, missing, "independent")
    model = rt.ReTrace(
        dt=DT,
        permutation="independent",
        observation_noise="estimate",
        random_state=seed,
        n_jobs=1,
        drift="linear",
    ).fit(Y)
    problem, states = hidden(Y, noise), random_states(np.random.default_rng(seed), n)
    limit, _ = problem.own_orders(law).improve(truth, states)
    oracle = problem.fit(truth, final=True).step
    right = rt.metrics.kendall_tau(truth, model.order_) > 0
    low = model.drift_ - 1.96 * model.standard_errors_.drift
    high = model.drift_ + 1.96 * model.standard_errors_.drift
    return {
        "accuracy": rt.metrics.order_accuracy(truth, model.order_),
        "limit from truth": rt.metrics.order_accuracy(truth, limit),
        "tau": rt.metrics.kendall_tau(truth, model.order_),
        "averaged": float(model.result_.settings["estimator"] == "mcem"),
        "converged": float(model.converged_),
        "identified": float(model.direction_.identified),
        "confidently wrong": float(model.direction_.identified and not right),
        "z for the truth": model.direction_.z * (1 if right else -1),
        "A / oracle": error(model.drift_, sde.drift) / error(oracle.coefficients, sde.drift),
        "H / oracle": error(model.diffusion_, sde.diffusion)
        / error(oracle.diffusion, sde.diffusion),
        "noise / truth": float(np.sqrt(np.diag(model.observation_noise_).mean())) / noise,
        "A covered": float(((low < sde.drift) & (sde.drift < high)).mean()),
    }


def quietly(work, *arguments):
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        return work(*arguments)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=["shared", "independent"])
    parser.add_argument(
        "--cell", action="append", default=[], help="n, noise, variance of X0[, missing]"
    )
    parser.add_argument("--size", default="10,50", help="d, T")
    parser.add_argument("--seeds", default="100:103")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    d, T = (int(each) for each in asked.size.split(","))
    cells = asked.cell or CELLS
    seeds = range(*(int(each) for each in asked.seeds.split(":")))
    work = {"shared": shared, "independent": independent}[asked.part]
    runs = [
        (cell, seed, (int(n), float(noise), float(variance), d, T, *map(float, missing or ["0"])))
        for cell, seed in product(cells, seeds)
        for n, noise, variance, *missing in [cell.split(",")]
    ]
    found = Parallel(n_jobs=asked.jobs)(
        delayed(quietly)(work, seed, *numbers) for _, seed, numbers in runs
    )
    table = []
    for cell in cells:
        rows = [row for (name, _, _), row in zip(runs, found, strict=True) if name == cell]
        means = [f"{np.mean([row[key] for row in rows]):.3g}" for key in rows[0]]
        table.append([cell.replace(",", ", "), len(rows), *means])
    columns = [f"d = {d}, T = {T}: n, σ, var X₀, missing", "panels", *found[0]]
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
