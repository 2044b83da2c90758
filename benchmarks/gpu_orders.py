"""A round of Monte-Carlo EM on a GPU: draws of each trajectory's order and their statistics, compared with the compiled sampler.

    taskset -c 0,1 python -m benchmarks.gpu_orders [--sizes 1000,10000,100000] [--T 10 --d 3] [--together] [--whole]

With `--together` the device moves all chains at once however few they are, else from `MANY_CHAINS` on (`orders/own`). Both make the same number of moves of two chains a trajectory; seconds are those of one stretch, the second of two.
`--whole`: seconds of a whole fit that averages over the orders instead, with its search and posterior, the first of a process.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import retrace_sde as rt
from benchmarks.gpu import backends
from retrace_sde.fit.euler import Euler
from retrace_sde.lost_time.table import lines
from retrace_sde.orders import own
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.orders.own import EulerLaw
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import EulerModel

RECORDS, DT = 40, 0.3


def seconds(model: EulerModel, law: EulerLaw, orders: np.ndarray) -> tuple[float, np.ndarray]:
    """Of one stretch, and Θ of its M-step."""
    chains = Chains.start(orders, np.random.default_rng(0))
    for _ in range(2):  # the first compiles, and settles the chains
        begin = time.perf_counter()
        draws = model.draw(law, chains, Stretch(RECORDS, 2 * orders.shape[1], expected=True))
        spent = time.perf_counter() - begin
    sums = draws.counted[0] + draws.counted[1]
    return spent, model.maximise(sums.scaled(0.5)).step.coefficients


def whole(X: Any) -> float:
    """Seconds of a fit."""
    begin = time.perf_counter()
    rt.ReTrace(dt=DT, permutation="independent", estimator="mcem", random_state=0).fit(X)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--T", type=int, default=10)
    parser.add_argument("--d", type=int, default=3)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    if asked.together:
        own.MANY_CHAINS = 0
    sde = rt.simulate.random_irreversible_sde(asked.d, setting="stable", random_state=0)
    theta = np.column_stack([sde.drift, np.zeros(asked.d)])
    table: list[list[str | float]] = []
    for n in map(int, asked.sizes.split(",")):
        X = sde.simulate(n, asked.T, DT, x0=np.full(asked.d, 2.0), random_state=1)
        X, truth = rt.simulate.shuffle(X, permutation="independent", random_state=2)
        if asked.whole:
            for name, put, _ in backends():
                print(f"{n}, {name}: whole fit {whole(put(X)):.1f} s", flush=True)
            continue
        step = Euler(Affine(), theta, sde.diffusion, DT)
        law = EulerLaw(step, rt.Gaussian(np.full(asked.d, 2.0), 0.01 * np.eye(asked.d)))
        base, here = seconds(EulerModel(Data(X, n_jobs=2), DT, Affine()), law, truth)
        table.append([f"{n:,}", base])
        for name, put, _ in backends():
            spent, there = seconds(EulerModel(Data(put(X)), DT, Affine()), law, truth)
            apart = np.abs(there - here).max()
            table[-1] += [spent, f"{base / spent:.1f}"]
            print(f"{n}, {name}: Θ apart by {apart:.1e}", flush=True)
    names = [each for name, *_ in backends() for each in (f"{name}, s", "speed-up")]
    columns = ["n", "two cores, s", *names]
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
