"""Missing values and measurement noise: CPU seconds of a fit beside those of the same panel, complete and without noise.

    OMP_NUM_THREADS=1 python benchmarks/missing.py [--panels 7]

Medians over panels, whose fits take turns, after one that compiles. Processes: from the stationary law, and displaced from it by three.
Dropout: two of five trajectories end at a random time in their second half. Own orders are averaged over.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

SHARED, OWN = (30, 16, 3, 0.1), (60, 10, 4, 0.05)
"""n, T, d and Δt."""

FIRST_SEED, DROPOUT, NOISE = 99_000, 0.4, 0.2


def panel(size, seed, *, displaced, own=False):
    """A shuffled panel."""
    n, T, d, dt = size
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=rng)
    x0 = 3 + 0.5 * rng.standard_normal((n, d)) if displaced else None
    X = sde.simulate(n, T, dt, x0=0.1 if own else x0, random_state=rng)
    permutation = "independent" if own else "shared"
    return rt.simulate.shuffle(X, permutation=permutation, random_state=rng)


def with_holes(X, order, missing, seed):
    """Values missing at random, and the last slices of some trajectories."""
    rng, Y = np.random.default_rng(seed), X.copy()
    Y[rng.random(X.shape) < missing] = np.nan
    if order.ndim == 1:
        n, T, _ = X.shape
        for j in np.flatnonzero(rng.random(n) < DROPOUT):
            Y[j, order[rng.integers(T // 2, T) :]] = np.nan
    return Y


def seconds(X, dt, **settings):
    """Of a fit, on one core."""
    begin = time.process_time()
    rt.ReTrace(dt=dt, random_state=0, n_jobs=1, **settings).fit(X)
    return time.process_time() - begin


def row(name, size, panels, *, displaced, own):
    """Medians of the complete fit, of that with missing values and of that with noise, and the medians of their ratios to the first."""
    taken, asked = [], {"permutation": "independent"} if own else {}
    for seed in range(FIRST_SEED - 1, FIRST_SEED + panels):
        X, order = panel(size, seed, displaced=displaced, own=own)
        Y = with_holes(X, order, 0.15 if own else 0.1, seed)
        noisy = rt.simulate.add_noise(X, NOISE * X.std(), random_state=seed)
        taken.append([seconds(X, size[3], **asked), seconds(Y, size[3], **asked), seconds(noisy, size[3], observation_noise="estimate", **asked)])  # fmt: skip
    found = np.array(taken[1:])
    medians, ratios = np.median(found, axis=0), np.median(found / found[:, :1], axis=0)
    said = [f"{each:.2f}" for each in medians], [f"{each:.1f}" for each in ratios[1:]]
    return [name, ", ".join(map(str, size[:3])), *said[0], *said[1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--panels", type=int, default=7)
    panels = parser.parse_args().panels
    warnings.simplefilter("ignore")
    columns = ["", "n, T, d", "complete, s", "missing, s", "noise, s", "missing / complete", "noise / complete"]  # fmt: skip
    rows = [
        row("at rest", SHARED, panels, displaced=False, own=False),
        row("displaced", SHARED, panels, displaced=True, own=False),
        row("own orders", OWN, panels, displaced=False, own=True),
    ]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
