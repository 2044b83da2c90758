"""Figure 3 of the paper: tumour growth with and without treatment, and all permutations of short sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.metrics import kendall_tau, order_accuracy
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.panel import Panel
from retrace_sde.process.drift import TumourGrowth
from retrace_sde.process.tumour import ARMS, Arm, Cohort
from retrace_sde.reproduce.cases import shuffled_cohort
from retrace_sde.reproduce.experiment import Experiment, Record, Task, every
from retrace_sde.reproduce.files import markdown_table
from retrace_sde.reproduce.summary import distinct, mean, panels, percent, where
from retrace_sde.retrace import ReTrace
from retrace_sde.search.enumerated import enumerate_orders

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """Subjects of each arm, those drawn, noise levels, visits of the short sequences, and how many seeds."""

    n: int
    drawn: int
    sigmas: tuple[float, ...]
    visits: int
    seeds: int


def tasks(settings: Settings) -> Iterator[Task]:
    """One for each arm, noise and seed."""
    for key in every(sigma_tumour=settings.sigmas, arm=ARMS, seed=range(settings.seeds)):
        yield Task(key, partial(records_of, settings, **key))


def records_of(settings: Settings, arm: Arm, sigma_tumour: float, seed: int) -> list[Record]:
    """A cohort's growth, and how the true order of a few visits fares among all their permutations."""
    cohort = shuffled_cohort(settings.n, arm, sigma_tumour, seed).cohort
    panel, truth = _short(cohort, settings.visits, seed)
    model = ReTrace(
        permutation="independent",
        drift=TumourGrowth(),
        estimator="mle",
        random_state=seed,
        n_jobs=1,
    ).fit(panel)
    steps = model.order_law_.costs(Data(panel.values, panel.covariates), slice(None))
    exact = enumerate_orders(steps)
    reverse = truth[:, ::-1]
    last = cohort.states[:, -1, 0]
    every = max(1, settings.n // settings.drawn)
    return [
        {
            "arm": arm,
            "sigma_tumour": sigma_tumour,
            "seed": seed,
            "mean": float(last.mean()),
            "sd": float(last.std()),
            "floor_hits": cohort.floor_hits,
            "permutations": len(exact.orders),
            "accuracy": order_accuracy(truth, exact.best),
            "kendall_tau": kendall_tau(truth, exact.best),
            "whole_order_right": float((exact.best == truth).all(axis=1).mean()),
            "probability_of_truth": float(exact.probability(truth).mean()),
            "probability_of_reverse": float(exact.probability(reverse).mean()),
            "direction_identified": bool(model.direction_.identified),
            "paths": cohort.observed[::every, :, 0][: settings.drawn].round(4).tolist(),
        }
    ]


def _short(cohort: Cohort, visits: int, seed: int) -> tuple[Panel, Indices]:
    """A few visits of each subject, evenly spaced and shuffled, and their true order."""
    n, T, _ = cohort.observed.shape
    chosen = np.linspace(0, T - 1, visits).round().astype(np.intp)
    moved = np.random.default_rng([seed, 3]).permuted(np.tile(np.arange(visits), (n, 1)), axis=1)
    panel = cohort.shuffled(np.concatenate([chosen, np.setdiff1d(np.arange(T), chosen)]))
    take = moved[:, :, None]
    short = replace(
        panel,
        values=np.take_along_axis(panel.values[:, :visits], take, axis=1),
        # Between visits that are days apart the treatment of the first says little; size alone then tells.
        covariates=None,
        covariate_names=(),
        dt=cohort.dt * float(chosen[1] - chosen[0]),
    )
    return short, np.argsort(moved, axis=1)


def text(records: Sequence[Record], settings: Settings) -> str:
    """Growth of each arm, and the exact enumeration."""
    rows = []
    for sigma in distinct(records, "sigma_tumour"):
        for arm in distinct(records, "arm"):
            some = where(records, arm=arm, sigma_tumour=sigma)
            called = [each["direction_identified"] for each in some]
            rows.append([
                arm, f"{sigma:g}",
                f"{mean(some, 'mean'):.2f} ± {mean(some, 'sd'):.2f}",
                str(sum(each["floor_hits"] for each in some)),
                percent(mean(some, "accuracy")), f"{mean(some, 'kendall_tau'):.3f}",
                percent(mean(some, "probability_of_truth")), percent(mean(some, "probability_of_reverse")),
                f"{sum(called)}/{len(called)}",
            ])  # fmt: skip
    header = ["arm", "σ", "volume after 15 days, cm³", "floor hits", "accuracy, %", "τ",
              "probability of the true order, %", "of its reverse, %", "direction identified"]  # fmt: skip
    count = records[0]["permutations"]
    return "\n\n".join(
        [
            f"{settings.n} simulated subjects of each arm. Of each subject {settings.visits} visits are kept, their order is "
            f"withheld, and all {count} permutations are weighted by the likelihood of the SDE fitted without it (each "
            "subject's own order, start included). The direction is that of the whole cohort.",
            markdown_table(header, rows),
        ]
    )


ARM_COLOURS = {"treated": "#0072B2", "untreated": "#D55E00", "observational": "#009E73"}


def figure(records: Sequence[Record], settings: Settings) -> Figure:
    """Sample trajectories, one row for each arm, one column for each noise level."""
    arms, sigmas = distinct(records, "arm"), distinct(records, "sigma_tumour")
    size = (4.6 * len(sigmas) + 0.6, 2.7 * len(arms))
    drawing, axes = panels(len(arms), len(sigmas), size, sharex=True)
    for row, arm in zip(axes, arms, strict=True):
        row[0].set_ylabel("volume, cm³")
        for ax, sigma in zip(row, sigmas, strict=True):
            paths = np.array(where(records, arm=arm, sigma_tumour=sigma)[0]["paths"])
            days = np.linspace(0, 15, paths.shape[1])
            ax.plot(days, paths.T, color=ARM_COLOURS[arm], linewidth=0.7, alpha=0.6)
            ax.plot(days, paths.mean(axis=0), color="black", linewidth=1.6)
            ax.set_title(f"{arm}, σ = {sigma:g}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("days")
    return drawing


EXPERIMENT = Experiment(
    name="figure3",
    title="Figure 3: tumour growth, and all permutations of short sequences",
    columns=(
        "arm", "sigma_tumour", "seed", "mean", "sd", "floor_hits", "permutations", "accuracy", "kendall_tau",
        "whole_order_right", "probability_of_truth", "probability_of_reverse", "direction_identified",
    ),
    full=Settings(n=1000, drawn=40, sigmas=(0.015, 0.05, 0.1), visits=7, seeds=3),
    quick=Settings(n=200, drawn=30, sigmas=(0.015, 0.05), visits=6, seeds=1),
    tiny=Settings(n=20, drawn=5, sigmas=(0.05,), visits=4, seeds=1),
    tasks=tasks,
    text=text,
    figure=figure,
)  # fmt: skip
