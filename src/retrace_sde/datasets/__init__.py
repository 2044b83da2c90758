"""A real panel to try things on, and how to lose its time. Sources and licences: README.md beside this file."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

SOURCE = "PhysioNet/Computing in Cardiology Challenge 2012, ODC-BY 1.0; Silva et al. 2012, Goldberger et al. 2000"
"""Where `load_icu` is from, to be cited."""


def load_icu() -> pd.DataFrame:
    """120 patients in intensive care, 12 bins of 4 hours, 5 variables, in true time order: `patient`, `hour`, ….

    From the PhysioNet Challenge 2012 (ODC-BY 1.0); `attrs["source"]` says what to cite.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> icu = rt.datasets.load_icu()
    >>> icu.shape, icu["patient"].nunique(), icu["hour"].nunique()
    ((1440, 7), 120, 12)
    """
    with (files(__name__) / "icu.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype={"patient": str})
    table.attrs["source"] = SOURCE
    return table


def lose_time(
    df: pd.DataFrame, *, time: str, random_state: int | np.random.Generator | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table whose `time` column, shared by the subjects, is replaced by a meaningless `slice`; rows are shuffled.

    Parameters
    ----------
    df : DataFrame
        One row per observation, in true time.
    time : str
        The column to lose.
    random_state : int, Generator or None
        Seed.

    Returns
    -------
    tuple
        The table and the truth, {label: time} in time order.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    >>> list(table.columns[:2]), list(truth.values())[:3]
    (['patient', 'slice'], [0, 4, 8])
    """
    rng = np.random.default_rng(random_state)
    times = np.sort(df[time].unique())
    width = len(str(len(times)))
    labels = [f"S{k:0{width}d}" for k in rng.permutation(len(times)) + 1]
    truth = dict(zip(labels, times.tolist(), strict=True))
    of_time = {when: label for label, when in truth.items()}
    lost = df.assign(**{time: df[time].map(of_time)}).rename(columns={time: "slice"})
    return lost.iloc[rng.permutation(len(lost))].reset_index(drop=True), truth
