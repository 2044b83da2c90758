"""Figure 2 of the paper: observation noise, with many trajectories as in the paper and with few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from retrace_sde.reproduce.cases import Regime, Size
from retrace_sde.reproduce.experiment import Experiment, Record, Task, every
from retrace_sde.reproduce.methods import SCORE_COLUMNS, available, records_of
from retrace_sde.reproduce.summary import (
    METRICS,
    by_method,
    column,
    compact,
    curve_grid,
    distinct,
    mean,
    percent,
    where,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (
    "Algorithm 1-MLE", "MST-MLE", "DPT-MLE", "MST, proper root", "DPT, proper root",
    "ReTrace-likelihood", "ReTrace, noise estimated", "limit", "oracle", "oracle, noise estimated",
)  # fmt: skip
WEIGHTS = {"Algorithm 1-MLE": 3.0, "ReTrace, noise estimated": 20.0, "oracle, noise estimated": 5.0}


@dataclass(frozen=True)
class Settings:
    """Numbers of trajectories, standard deviations of the noise, how many seeds; the paper's d and T."""

    trajectories: tuple[int, ...]
    sigmas: tuple[float, ...]
    seeds: int
    d: int = 10
    T: int = 50
    dt: float = 0.01
    regime: Regime = Regime("stable", "stable", 0.1**0.5)  # noqa: RUF009 - frozen


def tasks(settings: Settings) -> Iterator[Task]:
    """Every method at every noise level; the same paths and the same permutation under all levels."""
    for key in every(
        n=settings.trajectories,
        seed=range(settings.seeds),
        sigma=settings.sigmas,
        method=available(*METHODS),
    ):
        size = Size(settings.d, key["n"], settings.T, settings.dt)
        work = partial(records_of, key, settings.regime, size, noise=key["sigma"])
        yield Task(key, work, weight=WEIGHTS.get(key["method"], 1.0) * (1 + key["n"] / 200))


def text(records: Sequence[Record], settings: Settings) -> str:
    """Accuracy and MAE-A by method and noise level, one table for each number of trajectories."""
    lines = [
        f"Linear SDEs in {settings.d} dimensions, {settings.T} slices, Δt = {settings.dt:g}, started from N(0, 0.1 I), "
        f"observed with noise N(0, σ² I); {settings.seeds} seeds, mean ± sd. The paper has n = 2000; fewer trajectories "
        "are harder. Algorithm 1 is told σ (the paper's correction S − R), the limit everything but the order; the others "
        "are told nothing."
    ]
    sigmas = settings.sigmas
    header = ["method", *(f"σ = {sigma:g}" for sigma in sigmas)]
    for n in settings.trajectories:
        mine = where(records, n=n)
        lines += [
            f"**n = {n}**, accuracy in per cent (up to reversal in brackets):",
            by_method(mine, "sigma", sigmas, header),
            f"**n = {n}**, MAE-A:",
            by_method(mine, "sigma", sigmas, header, column("mae_drift", compact)),
        ]
    return "\n\n".join([*lines, closing(records)])


def closing(records: Sequence[Record]) -> str:
    """The best method without the true order at the strongest noise, and what ignoring the noise costs."""
    sigma = max(distinct(records, "sigma"))
    sentences = []
    for n in distinct(records, "n"):
        mine = where(records, n=n, sigma=sigma)
        reached = {
            name: mean(mine, "accuracy", method=name)
            for name in distinct(mine, "method")
            if not name.startswith(("oracle", "limit"))
        }
        best = max(reached, key=lambda name: reached[name])
        sentences.append(
            f"At n = {n} and σ = {sigma:g} the best directed accuracy is {percent(reached[best])} % ({best}); "
            f"Algorithm 1 has {percent(reached['Algorithm 1-MLE'])} %."
        )
    strongest = where(records, sigma=sigma, n=max(distinct(records, "n")))
    ignored = mean(strongest, "mae_drift", method="oracle")
    modelled = mean(strongest, "mae_drift", method="oracle, noise estimated")
    sentences.append(
        f"With the true order given and the noise ignored, MAE-A is {compact(ignored)} at σ = {sigma:g}; with the noise in "
        f"the model (EM) {compact(modelled)}: an order alone does not repair the parameters."
    )
    return " ".join(sentences)


def figure(records: Sequence[Record], settings: Settings) -> Figure:
    """Accuracy directed, up to reversal, and MAE-A against σ, with standard errors; one column for each n."""
    trajectories = settings.trajectories
    drawing, axes = curve_grid(
        [(where(records, n=n), "sigma") for n in trajectories],
        METRICS,
        (4.2 * len(trajectories) + 0.6, 9.6),
        sharex="all",
        styles=DASHED,
        legend_columns=len(trajectories) + 1,
    )
    for k, n in enumerate(trajectories):
        axes[0][k].set_title(f"n = {n}")
        axes[2][k].set(yscale="log", xlabel="standard deviation σ of the observation noise")
    return drawing


DASHED: dict[str, dict[str, Any]] = {
    "ReTrace-likelihood": {"linestyle": "--"},
    "oracle": {"linestyle": ":", "linewidth": 2.5},
}
"""Where the noise is ignored."""

EXPERIMENT = Experiment(
    name="figure2",
    title="Figure 2: observation noise",
    columns=("n", "sigma", "method", "seed", *SCORE_COLUMNS),
    full=Settings((2000, 200, 50), (0.1, 0.2, 0.3, 0.4, 0.5), seeds=10),
    quick=Settings((500, 50), (0.1, 0.3, 0.5), seeds=2),
    tiny=Settings((20,), (0.1,), seeds=1, d=2, T=10),
    tasks=tasks,
    text=text,
    figure=figure,
)
