"""Partial knowledge of time: noisy timestamps on simulated panels, and three known visits of real patients.

    python studies/partial_time.py [--seeds 5] [--panels FOLDER]

Timestamps have a Gaussian error of 1 or 3 slots. Printed is Kendall's τ of sorting by them, of the fit that uses
them, and of the fit without them (up to reversal for a shared order). With --panels the visits of the patients of
pbcseq_raw_irregular.csv are shuffled within each patient, and recovered with and without the
first three visits known; "unknown visits" counts only pairs of which neither is known.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np

import retrace_sde as rt

CASES = [
    ("shared", 2, 30, 5),
    ("shared", 2, 50, 10),
    ("independent", 2, 20, 100),
    ("independent", 5, 20, 100),
]


def timestamps(permutation: str, d: int, T: int, n: int, slots: float, seed: int) -> list[float]:
    """τ of sorting, of the fit with timestamps, and of the fit without."""
    rng = np.random.default_rng(1000 + seed)
    dt = 0.05
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, dt, x0="stationary", random_state=seed + 50)
    shuffled, truth = rt.simulate.shuffle(X, permutation=permutation, random_state=seed)
    place = np.argsort(truth, axis=-1)
    stamps = (place + slots * rng.standard_normal(place.shape)) * dt
    knowledge = rt.Knowledge(timestamps=stamps, timestamp_error=slots * dt)
    found = [np.argsort(stamps, axis=-1)]
    for known in (knowledge, None):
        estimator = "mle" if permutation == "independent" else "auto"
        model = rt.ReTrace(
            dt=dt,
            permutation=permutation,
            estimator=estimator,
            random_state=0,
            n_jobs=1,
            drift="linear",
        )
        found.append(model.fit(shuffled, knowledge=known).order_)
    taus = [float(rt.metrics.kendall_tau(truth, each)) for each in found]
    return [*taus[:2], abs(taus[2])]


def visits(path: Path, seed: int) -> list[str]:
    """One line for each of: nothing known, the first three visits known, and those with the rest at random."""
    variables = ["bili", "albumin", "ast", "protime"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    patients: dict[str, list[list[float]]] = {}
    for row in rows:
        values = [float(row[name]) for name in variables]
        values = [values[0], *values[1:]]
        logs = [np.log(values[0]), values[1], np.log(values[2]), np.log(values[3])]
        patients.setdefault(row["subject"], []).append(logs)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(each)) for each in patients.values()]
    panel = rt.Panel.from_trajectories(
        [np.array(each)[moved] for each, moved in zip(patients.values(), orders, strict=True)],
        names=variables,
    )
    first = {
        (j, int(np.flatnonzero(moved == k)[0])): k
        for j, moved in enumerate(orders)
        for k in range(min(3, len(moved)))
    }
    lines = []
    for name, knowledge in (
        ("nothing", None),
        ("the first three", rt.Knowledge(positions=first)),
    ):
        model = rt.ReTrace(
            drift="affine", permutation="independent", random_state=seed, n_jobs=1
        ).fit(panel, knowledge=knowledge)
        all_pairs, unknown = scores(model.order_, orders)
        called = "called" if model.direction_.identified else "open"
        lines.append(f"| {name} | {all_pairs:+.2f} | {unknown:+.2f} | {called} |")
    rest = [
        np.concatenate([np.argsort(moved)[:3], rng.permutation(np.argsort(moved)[3:])])
        for moved in orders
    ]
    all_pairs, unknown = scores(rest, orders)
    lines.append(f"| the first three, the rest at random | {all_pairs:+.2f} | {unknown:+.2f} | |")
    return lines


def scores(found: object, orders: list[np.ndarray]) -> tuple[float, float]:
    """Mean τ over patients with five visits or more: of all visits, and of all but the first three."""
    every, late = [], []
    for row, moved in zip(found, orders, strict=True):  # type: ignore[call-overload]
        if len(moved) < 5:
            continue
        time = moved[np.asarray(row)[: len(moved)]]
        every.append(_tau(time))
        late.append(_tau(time[time >= 3]))
    return float(np.mean(every)), float(np.mean(late))


def _tau(time: np.ndarray) -> float:
    i, j = np.triu_indices(len(time), 1)
    return float(np.mean(np.sign(time[j] - time[i])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--panels", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| permutation, d, T, n | error (slots) | sorted by timestamps | with them | without |")
    print("|---|---|---|---|---|")
    for permutation, d, T, n in CASES:
        for slots in (1.0, 3.0):
            runs = [timestamps(permutation, d, T, n, slots, seed) for seed in range(options.seeds)]
            sort, fit, none = np.mean(runs, axis=0)
            print(
                f"| {permutation}, {d}, {T}, {n} | {slots:g} | {sort:.3f} | {fit:.3f} | {none:.3f} |",
                flush=True,
            )
    if options.panels is not None:
        print("\n| known | τ, all visits | τ, visits of which nothing is known | direction |")
        print("|---|---|---|---|")
        print("\n".join(visits(options.panels / "pbcseq_raw_irregular.csv", 0)))


if __name__ == "__main__":
    main()
