"""A hospital table with everything known: irregular visits, missing values, the treatment as an input.

    python studies/pbcseq.py FOLDER [--times all|three]

FOLDER holds pbcseq_raw_irregular.csv (312 patients, 1 to 16 visits). Rows are shuffled first. `--times all`: every visit's time is
known, so the order is given; `three`: the times of each patient's first three visits, but not that they are the first.
Prints the mean Kendall's τ over patients with three visits or more (in brackets among visits whose time is not known), the
direction, and the effects of treatment, with standard errors.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

import retrace_sde as rt

LOGARITHMS = ["bili", "alk.phos", "ast", "protime"]
VARIABLES = [*LOGARITHMS, "albumin", "platelet"]


def table(folder: Path) -> pd.DataFrame:
    """The visits in years, four variables as logarithms, in an order that says nothing."""
    found = pd.read_csv(folder / "pbcseq_raw_irregular.csv")
    found[LOGARITHMS] = np.log(found[LOGARITHMS])
    found["years"] = found["time"] / 365.25
    found["treated"] = (found["trt"] == 1).astype(float)
    found["visit"] = found.groupby("subject")["years"].rank(method="first")
    return found.sample(frac=1, random_state=0).reset_index(drop=True)


def mean_tau(ordered: pd.DataFrame, first: float) -> float:
    """Kendall's τ of the positions found with the true times, over patients with enough visits after the first few."""
    later = ordered[ordered["visit"] > first]
    each = [
        kendalltau(rows["position"], rows["years"]).statistic
        for _, rows in later.groupby("subject")
        if len(rows) >= (3 if first == 0 else 2)
    ]
    return float(np.nanmean(each))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", choices=["all", "three"], default="all")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    visits = table(given.folder)
    known = visits["years"] if given.times == "all" else visits["years"].where(visits["visit"] <= 3)
    begin = time.perf_counter()
    found = rt.recover(
        visits.assign(known=known), subject="subject", time="known", variables=VARIABLES,
        covariates=["treated"], observation_noise=None, random_state=0,
    )  # fmt: skip
    model = found.model
    print(
        f"τ {mean_tau(found.ordered, 0):+.2f} ({mean_tau(found.ordered, 3):+.2f}), {time.perf_counter() - begin:.0f} s"
    )
    print(model.direction_.verdict)
    for k, name in enumerate(VARIABLES):
        effect, error = model.inputs_[k, 0], model.standard_errors_.inputs[k, 0]
        print(
            f"treatment on {name}: {effect:+.3f} ± {error:.3f} a year; rate {model.drift_[k, k]:+.2f}"
        )


if __name__ == "__main__":
    main()
