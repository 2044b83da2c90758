"""A hospital table with everything known: irregular visits, missing values, the treatment as an input.

    python studies/pbcseq.py FOLDER

FOLDER holds pbcseq_raw_irregular.csv (312 patients, 1 to 16 visits). Rows are shuffled first. Every visit's time is known, so the order
is given. Prints the effect of treatment on the drift of each variable and the diagonal of A, both a year.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

LOGARITHMS = ["bili", "alk.phos", "ast", "protime"]
VARIABLES = [*LOGARITHMS, "albumin", "platelet"]


def table(folder: Path) -> pd.DataFrame:
    """The visits in years, four variables as logarithms, in an order that says nothing."""
    found = pd.read_csv(folder / "pbcseq_raw_irregular.csv")
    found[LOGARITHMS] = np.log(found[LOGARITHMS])
    found["years"] = found["time"] / 365.25
    found["treated"] = (found["trt"] == 1).astype(float)
    return found.sample(frac=1, random_state=0).reset_index(drop=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    visits = table(parser.parse_args().folder)
    warnings.simplefilter("ignore")
    found = rt.recover(
        visits, subject="subject", time="years", variables=VARIABLES,
        covariates=["treated"], observation_noise=None, random_state=0,
    )  # fmt: skip
    model, rows = found.model, []
    errors = model.standard_errors_
    for k, name in enumerate(VARIABLES):
        effect = [f"{model.inputs_[k, 0]:.3g}", f"{errors.inputs[k, 0]:.3g}"]
        rate = [f"{model.drift_[k, k]:.3g}", f"{errors.drift[k, k]:.3g}"]
        rows.append([f"log {name}" if name in LOGARITHMS else name, *effect, *rate])
    kind = "alike" if model.subject_effects_ is None else model.subject_effects_.kind
    columns = [
        f"variable (subjects: {kind})",
        "effect of treatment",
        "± (effect)",
        "diagonal of A",
        "± (diagonal)",
    ]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
