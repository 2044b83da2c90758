"""One trajectory whose order is lost: how much of it is found, and how much the fit claims.

    python studies/one_series.py [--seeds 50000:50020]

Random stable SDEs at rest, steps of .05, one series each. Printed, as means over the series: the share of neighbours that are right, the share of
positions that are right up to reversal, and what the position probabilities claim for these (either direction). `to and fro`: series of
whose neighbours less than a third are right although more than nine tenths of the positions are claimed.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import retrace_sde as rt

SIZES = ((6, 80), (10, 80), (20, 50), (20, 80), (20, 200))
"""Variables and observations."""


def one(d: int, T: int, seed: int) -> tuple[float, float, float]:
    """Neighbours and positions that are right, and positions as claimed."""
    machine = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=seed)
    X = machine.simulate(1, T, 0.05, x0="stationary", random_state=seed + 1)
    lost, truth = rt.simulate.shuffle(X, random_state=seed + 2)
    model = rt.ReTrace(dt=0.05, random_state=0, n_jobs=1).fit(lost)
    claimed = 2 * model.position_probabilities_[model.order_, np.arange(T)].mean()
    right = rt.metrics.order_accuracy(truth, model.order_, up_to_reversal=True)
    return rt.metrics.neighbour_share(truth, model.order_), right, min(float(claimed), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="50000:50020")
    seeds = range(*map(int, parser.parse_args().seeds.split(":")))
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    print(
        "| variables | observations | neighbours right | positions right | claimed | to and fro |"
    )
    print("|---|---|---|---|---|---|")
    for d, T in SIZES:
        rows = np.array([one(d, T, seed) for seed in seeds])
        lost = ((rows[:, 0] < 1 / 3) & (rows[:, 2] > 0.9)).sum()
        shares = " | ".join(f"{each:.2f}" for each in rows.mean(axis=0))
        print(f"| {d} | {T} | {shares} | {lost} of {len(rows)} |", flush=True)


if __name__ == "__main__":
    main()
