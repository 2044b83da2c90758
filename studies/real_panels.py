"""Real panels with their slices shuffled: what order, direction and loops are recovered.

    python studies/real_panels.py FOLDER [--seeds 3]

FOLDER holds long csv files `subject,time,<variables>` in true time order. Printed for every panel: position accuracy
up to reversal, Kendall's τ, the share of (cyclic) neighbours that are right, the direction with its p-value,
and what the fit warned of; then mavoglurant_pk with estimated gaps, and theoph with something known about time. Means over the seeds of
the shuffle, which also seed the simulations of the direction's test.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import retrace_sde as rt

PANELS = {
    "physionet2012_icu_4h": None,
    "pbcseq_visits": None,
    "mavoglurant_pk": None,
    "theoph": ["conc_mg_L"],
    "berkeley_growth": None,
    "chickweight": None,
    "tcell34": None,
    "ecb_fx_monthly": None,
    "grunfeld": None,
    "gait": None,
}
"""Names of the files, and the variables taken (None: all that are not subject or time)."""


def read_panel(path: Path, variables: list[str] | None = None) -> np.ndarray:
    """(subject, time, variable), as the rows stand; NaN where a cell is empty."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    variables = variables or [name for name in rows[0] if name not in ("subject", "time")]
    subjects: dict[str, list[list[float]]] = {}
    for row in rows:
        subjects.setdefault(row["subject"], []).append(
            [float(row[name] or "nan") for name in variables]
        )
    return np.array(list(subjects.values()))


def cyclic_neighbours(truth: np.ndarray, order: np.ndarray) -> float:
    """Share of the T cyclic neighbours in an order that are cyclic neighbours in time."""
    place = np.argsort(truth)[order]
    step = np.abs(place - np.roll(place, 1))
    return float(np.mean((step == 1) | (step == len(order) - 1)))


KNOWN = {
    "": lambda truth: None,
    " (first known)": lambda truth: rt.Knowledge(first=int(truth[0])),
    " (last known)": lambda truth: rt.Knowledge(last=int(truth[-1])),
    " (halves known)": lambda truth: rt.Knowledge(blocks=np.argsort(truth) // (len(truth) // 2)),
}
"""What is told of time."""


def recover(
    X: np.ndarray, seed: int, *, spacing: str = "regular", known: str = ""
) -> dict[str, object]:
    """Shuffle, fit with what is known, and compare with the truth."""
    shuffled, truth = rt.simulate.shuffle(X, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        model = rt.ReTrace(drift="affine", spacing=spacing, n_jobs=1, random_state=seed)
        model.fit(shuffled, knowledge=KNOWN[known](truth))
        seconds = time.perf_counter() - begin
    both = [rt.metrics.order_accuracy(truth, each) for each in (model.order_, model.order_[::-1])]
    tau = rt.metrics.kendall_tau(truth, model.order_)
    cycle = model.result_.cycle
    neighbours = rt.metrics.neighbour_share(truth, model.order_)
    return {
        "accuracy": max(both),
        "tau": tau,
        "neighbours": cyclic_neighbours(truth, model.order_) if cycle else neighbours,
        "cycle": cycle,
        "identified": model.direction_.identified,
        "p_value": model.direction_.p_value,
        "warned": any("folds" in str(each.message) for each in caught),
        "seconds": seconds,
    }


def said(run: dict[str, object], known: str) -> str:
    """What became of the direction."""
    if run["cycle"]:
        return "closed loop"
    if not run["identified"]:
        return "open"
    return "known" if known else "right" if run["tau"] > 0 else "WRONG"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        "| panel | n×T×d | accuracy up to reversal | τ | neighbours | direction | p | warned | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    cases = [(name, "regular", "") for name in PANELS] + [("mavoglurant_pk", "estimate", "")]
    cases += [("theoph", "regular", known) for known in KNOWN if known]
    for name, spacing, known in cases:
        X = read_panel(options.folder / f"{name}.csv", PANELS[name])
        runs = [recover(X, seed, spacing=spacing, known=known) for seed in range(options.seeds)]
        label = name + known + (", `spacing='estimate'`" if spacing == "estimate" else "")

        def mean(key: str, runs: list[dict[str, object]] = runs) -> float:
            values = [run[key] for run in runs if run[key] is not None]
            return float(np.mean(values)) if values else float("nan")

        words = Counter(said(run, known) for run in runs)
        told = ", ".join(w if len(words) == 1 else f"{w} {k}×" for w, k in sorted(words.items()))
        p = mean("p_value")
        print(
            f"| {label} | {'×'.join(map(str, X.shape))} | {mean('accuracy'):.2f} | {mean('tau'):+.2f} | "
            f"{mean('neighbours'):.2f} | {told} | {'–' if np.isnan(p) else f'{p:.2g}'} | "
            f"{'fold' if mean('warned') else ''} | {mean('seconds'):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
