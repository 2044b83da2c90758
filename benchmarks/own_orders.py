"""An average over the orders of single trajectories: CPU seconds of a fit, and its Monte-Carlo error.

`python benchmarks/own_orders.py` fits the same panels with several seeds after a fit that compiles. The spread is the standard deviation of A
and of H over the seeds in units of their standard errors, root mean square over the entries: what the draws add to the errors of the data.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

PANELS = [(200, 10, 3, 0.05), (200, 40, 3, 0.01), (200, 30, 5, 0.05)]
"""n, T, d and Δt: few steps, whose parameters are drawn with the orders; the demonstration's; and more variables."""


def panel(n, T, d, dt, seed=7):
    """A stable SDE from a start of sd .1 about zero, each trajectory shuffled on its own."""
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=rng)
    X = sde.simulate(n, T, dt, x0=0.1, random_state=rng)
    return rt.simulate.shuffle(X, permutation="independent", random_state=rng)[0]


def measured(size, seeds):
    """Median CPU seconds, and the spreads of A and H."""
    X, seconds, fits = panel(*size), [], []
    own = {"permutation": "independent", "estimator": "mcem", "drift": "linear"}
    for seed in [0, *range(seeds)]:  # the first compiles
        model = rt.ReTrace(dt=size[3], n_jobs=1, random_state=seed, **own)
        begin = time.process_time()
        model.fit(X)
        seconds.append(time.process_time() - begin)
        fits.append((model.drift_, model.diffusion_))
    errors = model.standard_errors_.drift, model.standard_errors_.diffusion
    spreads = [np.std(each[1:], axis=0, ddof=1) for each in map(np.array, zip(*fits, strict=True))]
    shares = zip(spreads, errors, strict=True)
    return np.median(seconds[1:]), *(np.sqrt(np.mean((s / e) ** 2)) for s, e in shares)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    columns = ["n, T, d", "Δt", "CPU seconds", "spread of A", "spread of H"]
    rows = []
    for size in PANELS:
        cpu, A, H = measured(size, seeds)
        rows.append(
            [", ".join(map(str, size[:3])), f"{size[3]:g}", f"{cpu:.2f}", f"{A:.2f}", f"{H:.2f}"]
        )
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
