"""Figure 4 of the paper: counterfactual error and treatment-effect bias, by the order they are estimated from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retrace_sde.effects.treatment import TreatmentEffect
from retrace_sde.io.arrays import Array
from retrace_sde.metrics import (
    counterfactual_rmse,
    kendall_tau,
    order_accuracy,
    treatment_effect_bias,
)
from retrace_sde.process.tumour import volume
from retrace_sde.reproduce.cases import ORDERS, Shuffled, order_of, shuffled_cohort
from retrace_sde.reproduce.experiment import Experiment, Record, Task, every
from retrace_sde.reproduce.summary import (
    Cell,
    distinct,
    legend,
    mean,
    panels,
    percent,
    plus_minus,
    spread,
    table_by,
    values,
    where,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TreatedOrNot = Literal["untreated", "treated"]
COMPARED_ARMS: tuple[TreatedOrNot, ...] = ("untreated", "treated")
DESIGNS = ("two-arm", "observational")


@dataclass(frozen=True)
class Settings:
    """Subjects (of each arm), noise of the process, and how many seeds."""

    n: int
    sigmas: tuple[float, ...]
    seeds: int


WEIGHTS = {"recovered": 30.0, "mst": 4.0, "dpt": 8.0}
"""Cost of each order relative to the others', which is 1."""


def tasks(settings: Settings) -> Iterator[Task]:
    """One for each design, noise, seed and order."""
    seeds = range(settings.seeds)
    for key in every(design=DESIGNS, seed=seeds, sigma_tumour=settings.sigmas, order=ORDERS):
        yield Task(key, partial(records_of, settings, **key), WEIGHTS.get(key["order"], 1.0))


def records_of(
    settings: Settings, design: str, order: str, sigma_tumour: float, seed: int
) -> list[Record]:
    """Records of both arms."""
    names = COMPARED_ARMS if design == "two-arm" else ("observational",)
    data = {name: shuffled_cohort(settings.n, name, sigma_tumour, seed) for name in names}
    begin = perf_counter()
    if order == "recovered":
        fitted = _fit(data, None, seed, subjects="levels")
        found = fitted.order_ if isinstance(fitted.order_, dict) else {names[0]: fitted.order_}
    else:
        found = {name: order_of(order, each, seed) for name, each in data.items()}
        fitted = _fit(data, found, seed, subjects="levels")
    seconds = perf_counter() - begin
    # Intervals only where they can be right: elsewhere they are as narrow, around a wrong effect.
    low, high = fitted.ate_interval(draws=100) if order in ("true", "recovered") else (None, None)
    mine = _scores(fitted, data)
    # The same order with subjects taken to be alike, to show what their differences do.
    alike = _scores(_fit(data, found, seed, subjects="alike"), data)
    records = []
    for arm in COMPARED_ARMS:
        name = arm if arm in data else names[0]
        right = data[name].truth
        records.append({
            "design": design, "order": order, "arm": arm, "sigma_tumour": sigma_tumour, "seed": seed,
            "accuracy": order_accuracy(right, found[name]),
            "kendall_tau": kendall_tau(right, found[name]),
            "rmse": mine[arm], "bias": mine["bias"],
            "rmse_alike": alike[arm], "bias_alike": alike["bias"],
            "ate": mine["ate"], "true_ate": mine["true_ate"], "ate_low": low, "ate_high": high,
            "normalised_rmse": 100 * mine[arm] / float(volume(13.0)), "seconds": round(seconds, 2),
        })  # fmt: skip
    return records


def _scores(model: TreatmentEffect, data: dict[str, Shuffled]) -> dict[str, float]:
    """RMSE under each arm, and the effect, its truth and its bias."""
    outcomes = {arm: _outcomes(model, data, arm) for arm in COMPARED_ARMS}
    true, found = (outcomes["treated"][k] - outcomes["untreated"][k] for k in (0, 1))
    scores = {str(arm): counterfactual_rmse(*each) for arm, each in outcomes.items()}
    bias = treatment_effect_bias(true, found)
    return {**scores, "bias": bias, "ate": float(found.mean()), "true_ate": float(true.mean())}


def _fit(
    data: dict[str, Shuffled], order: Any, seed: int, *, subjects: Literal["levels", "alike"]
) -> TreatmentEffect:
    model = TreatmentEffect(drift="tumour", subjects=subjects, random_state=seed, n_jobs=1)
    if len(data) > 1:
        return model.fit({name: each.panel for name, each in data.items()}, order=order)
    name = next(iter(data))
    return model.fit(data[name].panel, order=None if order is None else order[name])


def _outcomes(
    model: TreatmentEffect, data: dict[str, Shuffled], arm: TreatedOrNot
) -> tuple[Array, Array]:
    """True and predicted volumes at the end of all subjects under one arm."""
    true = np.concatenate([each.cohort.expected(arm)[:, -1] for each in data.values()])
    T = arm if len(data) > 1 else next(iter(data.values())).cohort.treatment(arm)
    asked = model.interventions_
    steps = asked.steps(None)
    return true, asked.ends(asked.given(T, steps), steps)[:, 0]


def text(records: Sequence[Record], settings: Settings) -> str:
    """One table for each design and noise, and what they say."""
    lines = [
        f"{settings.n} simulated subjects (of each arm), 61 visits over 15 days, each subject's visits shuffled on their own, "
        "measured with error 0.01 cm³; parameters vary by 5 % between subjects. Each order is used to estimate tumour growth "
        "with a random intercept for each subject; predicted volumes after 15 days are compared with each subject's own "
        "expected ones (RMSE, cm³), and effects of treatment with the true ones (bias, cm³). Two-arm: one cohort under "
        "each treatment. Observational: treatment at each visit depends on the tumour's size."
    ]
    for design in distinct(records, "design"):
        for sigma in distinct(records, "sigma_tumour"):
            some = where(records, design=design, sigma_tumour=sigma)
            lines += [f"**{design}, σ = {sigma:g}**", table_by(some, "order", CELLS)]
    return "\n\n".join([*lines, closing(records)])


def _cell(key: str, form: Callable[[float], str], arms: Sequence[str] = COMPARED_ARMS) -> Cell:
    """A key in each arm: mean ± sd, or the number of a single seed."""

    def cell(records: Sequence[Record]) -> str:
        each = [values(where(records, arm=arm), key) for arm in arms]
        return " / ".join(plus_minus(v, form) if len(v) > 1 else form(v[0]) for v in each)

    return cell


CELLS = {
    "accuracy, %, untreated / treated": _cell("accuracy", percent),
    "τ": _cell("kendall_tau", "{:.3f}".format),
    "RMSE, cm³": _cell("rmse", "{:.3f}".format),
    "bias of the effect, cm³": _cell("bias", "{:+.3f}".format, ("treated",)),
}
"""The columns of the table."""


def closing(records: Sequence[Record]) -> str:
    """How far the recovered order is from the true one, and what the wrong ones do."""
    sentences = []
    for design in distinct(records, "design"):
        some = where(records, design=design, sigma_tumour=min(distinct(records, "sigma_tumour")))
        bias = {order: mean(some, "bias", order=order) for order in distinct(some, "order")}
        truth = mean(some, "true_ate")
        pooled = mean(some, "bias_alike", order="true")
        sentences.append(
            f"{design.capitalize()}: the true effect is {truth:.2f} cm³; its bias is {bias['true']:+.3f} with the true order and "
            f"{bias['recovered']:+.3f} with the recovered one ({pooled:+.3f} with the true order if subjects are taken to be "
            f"alike), against {bias['shuffled']:+.2f} shuffled and {bias['reversed']:+.2f} reversed."
        )
    sentences.append(
        "A reversed order reads growth as decay: the effect vanishes or changes its sign. Spanning trees and pseudotime sort each "
        "subject's visits by size and guess the direction, which is as bad as a coin for treatment effects."
    )
    return " ".join(sentences)


ARM_COLOURS = {"untreated": "#D55E00", "treated": "#0072B2"}


def figure(records: Sequence[Record], settings: Settings) -> Figure:
    """Above RMSE of each arm, below bias of the effect, by order; columns are designs and noise."""
    orders, designs = distinct(records, "order"), distinct(records, "design")
    columns = [(d, s) for d in designs for s in distinct(records, "sigma_tumour")]
    size = (3.4 * len(columns) + 1, 6.4)
    drawing, axes = panels(2, len(columns), size, grid="y", sharex=True)
    for above, below, (design, sigma) in zip(*axes, columns, strict=True):
        some = where(records, design=design, sigma_tumour=sigma)
        for arm, shift in zip(COMPARED_ARMS, (-0.2, 0.2), strict=True):
            look = {"color": ARM_COLOURS[arm], "label": arm}
            _bars(above, [values(where(some, order=o, arm=arm), "rmse") for o in orders], shift, 0.38, **look)  # fmt: skip
        biases = [values(where(some, order=o, arm="treated"), "bias") for o in orders]
        _bars(below, biases, 0.0, 0.6, color="#555555")
        for i, middle in enumerate(map(fmean, biases)):
            at = i, max(middle, 0)
            below.annotate(f"{middle:+.2f}", at, ha="center", va="bottom", fontsize=8)
        above.set(title=f"{design}, σ = {sigma:g}", yscale="log")
        below.axhline(0, color="black", linewidth=0.8)
        below.set_xticks(range(len(orders)), orders, rotation=45, ha="right")
    axes[0][0].set_ylabel("counterfactual RMSE, cm³")
    axes[1][0].set_ylabel("bias of the effect, cm³")
    axes[1][0].margins(y=0.15)
    legend(drawing, axes[0], "outside upper right")
    return drawing


def _bars(ax: Axes, each: list[list[float]], shift: float, width: float, **look: Any) -> None:
    """A bar for each group of numbers: their mean, and their standard deviation."""
    at = [i + shift for i in range(len(each))]
    ax.bar(at, [fmean(v) for v in each], width, yerr=[spread(v) for v in each], **look)


EXPERIMENT = Experiment(
    name="figure4",
    title="Figure 4: treatment effects",
    columns=(
        "design",
        "order",
        "arm",
        "sigma_tumour",
        "seed",
        "accuracy",
        "kendall_tau",
        "rmse",
        "bias",
    ),
    full=Settings(5000, (0.015, 0.05), seeds=1),
    quick=Settings(300, (0.015,), seeds=1),
    tiny=Settings(40, (0.015,), seeds=1),
    tasks=tasks,
    text=text,
    figure=figure,
    # Everything, also with subjects taken to be alike, and intervals of the average effect.
    extras=lambda records: {"figure4_details": [dict(each) for each in records]},
)
