"""Beyond the paper: what the accuracy depends on, one small panel for each knob, beside what is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from retrace_sde.reproduce.cases import Regime, Size
from retrace_sde.reproduce.experiment import Experiment, Record, Task, every
from retrace_sde.reproduce.methods import SCORE_COLUMNS, available, records_of
from retrace_sde.reproduce.summary import METRICS, by_method, curve_grid, percent, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (
    "Algorithm 1-MLE", "MST-MLE", "MST, proper root", "DPT, proper root", "ReTrace-likelihood", "limit", "oracle",
)  # fmt: skip
INCOMPLETE = ("distances of values seen", "ReTrace-likelihood", "limit", "oracle")
"""The methods that take values that are missing."""

LABELS = {
    "shuffled": "share of slices shuffled",
    "missing": "share of values missing",
    "n": "trajectories n",
    "d": "variables d",
    "T": "slices T",
    "dt": "time step Δt",
}


@dataclass(frozen=True)
class Knob:
    """What is varied, through which values, for which methods; all else stays at the base."""

    name: str
    values: tuple[float, ...]
    methods: tuple[str, ...] = METHODS


@dataclass(frozen=True)
class Settings:
    """The base, small enough for the order to be hard, the knobs turned from there, and how many seeds."""

    base: Size
    knobs: tuple[Knob, ...]
    seeds: int
    regime: Regime = Regime("stable", "stable", 0.1**0.5)  # noqa: RUF009 - frozen


def tasks(settings: Settings) -> Iterator[Task]:
    """Every method at every value of every knob."""
    for knob in settings.knobs:
        of_size = knob.name in {field.name for field in fields(Size)}
        for key in every(
            knob=[knob.name],
            value=knob.values,
            seed=range(settings.seeds),
            method=available(*knob.methods),
        ):
            varied: dict[str, Any] = {knob.name: key["value"]}
            size = replace(settings.base, **varied) if of_size else settings.base
            work = partial(records_of, key, settings.regime, size, **({} if of_size else varied))
            yield Task(key, work)


def text(records: Sequence[Record], settings: Settings) -> str:
    """Directed accuracy at every value, and up to reversal in brackets."""
    base = settings.base
    lines = [
        f"From a panel that is small enough to be hard (d = {base.d}, n = {base.n}, T = {base.T}, Δt = {base.dt:g}, start "
        f"from N(0, 0.1 I), no noise) one thing is varied at a time; {settings.seeds} seeds. Directed accuracy in per cent, "
        "mean ± sd, and up to reversal in brackets. The *limit* is the same search with the true parameters given: with "
        "complete data, where it falls below the oracle's 100 the order is not in the data. Distances know no direction."
    ]
    for knob in settings.knobs:
        mine = where(records, knob=knob.name)
        header = [LABELS[knob.name], *(f"{value:g}" for value in knob.values)]
        lines.append(by_method(mine, "value", knob.values, header))
    return "\n\n".join([*lines, closing(records)])


def closing(records: Sequence[Record]) -> str:
    """How often the direction was called and right, and how far the search stays below its limit."""
    ours, best = where(records, method="ReTrace-likelihood"), where(records, method="limit")
    called = [each for each in ours if each["direction_identified"]]
    right = [each for each in called if each["kendall_tau"] > 0]
    silent = [each for each in ours if not each["direction_identified"]]
    gap = fmean(
        limit["accuracy_up_to_reversal"] - mine["accuracy_up_to_reversal"]
        for mine, limit in zip(ours, best, strict=True)
    )
    return (
        f"Over all panels ReTrace-likelihood calls the direction in {len(called)} of {len(ours)} and is right in "
        f"{len(right)} of them; it abstains in {len(silent)}, of which {sum(each['kendall_tau'] > 0 for each in silent)} "
        f"run the right way. Up to reversal the limit is {percent(gap)} points better on average."
    )


def figure(records: Sequence[Record], settings: Settings) -> Figure:
    """Directed accuracy above, up to reversal below, with standard errors; one column for each knob."""
    knobs = settings.knobs
    drawing, axes = curve_grid(
        [(where(records, knob=knob.name), "value") for knob in knobs],
        METRICS[:2],
        (2.9 * len(knobs) + 0.8, 6.6),
        sharex="col",
    )
    for below, knob in zip(axes[1], knobs, strict=True):
        below.set_xlabel(LABELS[knob.name])
        if knob.values[0] != 0:
            below.set_xscale("log")
            below.set_xticks(knob.values, [f"{value:g}" for value in knob.values])
            below.minorticks_off()
    return drawing


KNOBS = (
    Knob("shuffled", (0.0, 0.25, 0.5, 0.75, 1.0)),
    Knob("missing", (0.0, 0.02, 0.1, 0.3, 0.5), INCOMPLETE),
    Knob("n", (1, 2, 5, 10, 20, 50, 100)),
    Knob("d", (1, 2, 3, 5, 10)),
    Knob("T", (10, 20, 50, 100, 200)),
    Knob("dt", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)),
)

EXPERIMENT = Experiment(
    name="figure5",
    title="Figure 5: beyond the paper",
    columns=("knob", "value", "method", "seed", *SCORE_COLUMNS),
    full=Settings(Size(d=5, n=10, T=50), KNOBS, seeds=20),
    quick=Settings(
        Size(d=5, n=10, T=50),
        (
            Knob("shuffled", (0.0, 0.5, 1.0)),
            Knob("missing", (0.0, 0.1, 0.3), INCOMPLETE),
            Knob("n", (1, 2, 5, 10, 50)),
            Knob("d", (1, 3, 10)),
            Knob("T", (10, 50, 100)),
            Knob("dt", (0.001, 0.01, 0.1)),
        ),
        seeds=4,
    ),
    tiny=Settings(
        Size(d=2, n=10, T=10),
        (
            Knob("shuffled", (0.0, 1.0)),
            Knob("missing", (0.0, 0.1), INCOMPLETE),
            Knob("n", (5, 10)),
        ),
        seeds=1,
    ),
    tasks=tasks,
    text=text,
    figure=figure,
)
