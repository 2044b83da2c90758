"""Table 1 of the paper: irreversible linear SDEs, one shared permutation, no observation noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from retrace_sde.reproduce.cases import Regime, Size
from retrace_sde.reproduce.experiment import Experiment, Record, Task, every
from retrace_sde.reproduce.files import markdown_table
from retrace_sde.reproduce.methods import (
    EM_STEPS,
    EM_TRAJECTORIES,
    SCORE_COLUMNS,
    available,
    records_of,
)
from retrace_sde.reproduce.summary import (
    colour,
    column,
    compact,
    distinct,
    legend,
    mean,
    panels,
    percent,
    plus_minus,
    table_by,
    values,
    where,
)

PRINTED = {
    "Algorithm 1-MLE": 99.1,
    "Algorithm 1-OLS": 93.6,
    "Algorithm 1-EM": 98.3,
    "MST-MLE": 22.1,
    "DPT-MLE": 4.8,
}
"""The accuracies that the paper prints, in per cent."""

OUR_METHOD, PAPER_METHOD, MET_ACCURACY = "ReTrace-likelihood", "Algorithm 1-MLE", 0.99


ACCURACY = column("accuracy", percent)
"""Mean ± sd over some records."""


def opening(size: Size, seeds: int) -> str:
    """What was simulated, and how the columns read."""
    return (
        f"Linear SDEs in {size.d} dimensions, {size.n} trajectories, {size.T} slices, Δt = {size.dt:g}, "
        f"one permutation of the slices for all trajectories; {seeds} seeds, mean ± sd. Accuracy is the share of "
        "slices at the right place, in per cent. Algorithm 1 runs ten rounds and returns the last, as printed; "
        f"EM takes {EM_STEPS} steps a round, on {EM_TRAJECTORIES} trajectories at most."
    )


def closing(records: Sequence[Record]) -> str:
    """Where the paper's figures are met, where not, and why."""
    return " ".join(
        [_algorithm1(records), _estimators(records), _baselines(records), _ours(records)]
    )


def _algorithm1(records: Sequence[Record]) -> str:
    met: list[str] = []
    missed: list[str] = []
    for setting in distinct(records, "setting"):
        mine = where(records, setting=setting, method=PAPER_METHOD)
        best = fmean(max(each["rounds"]) for each in mine)
        last, either = mean(mine, "accuracy"), mean(mine, "accuracy_up_to_reversal")
        reverse = " (up to reversal " + percent(either) + " %)" if either > last + 0.01 else ""
        line = (
            f"{setting} {percent(best)} % in its best round, {percent(last)} % in its last{reverse}"
        )
        (met if best >= MET_ACCURACY else missed).append(line)
    sentences = []
    if met:
        sentences.append(
            f"The paper's {PRINTED[PAPER_METHOD]} % for Algorithm 1 is met, in some round, in: {'; '.join(met)}."
        )
    if missed:
        sentences.append(f"It is not met in: {'; '.join(missed)}.")
    sentences.append(
        "The reason: for centred slices the cross term of the drift–score errors vanishes on average, and the "
        "comparison sorts slices by growing spread. That is right where spread grows, wrong where it levels off, and "
        "reversed where it shrinks; the rounds after a good one can lose it again."
    )
    return " ".join(sentences)


def _estimators(records: Sequence[Record]) -> str:
    pairs = zip(
        *(where(records, method=f"Algorithm 1-{each}") for each in ("MLE", "OLS")), strict=True
    )
    gap = max(abs(mle["accuracy"] - ols["accuracy"]) for mle, ols in pairs)
    same = (
        f"orders whose accuracy differs by at most {percent(gap)} points"
        if gap
        else "the same orders"
    )
    em = where(records, method="Algorithm 1-EM")
    held = [
        f"{name} {ACCURACY(mine)} % with MAE-H {compact(mean(mine, 'mae_diffusion'))}"
        for name in distinct(em, "setting")
        if (mine := where(em, setting=name))
    ]
    return (
        f"OLS and MLE give {same}: their A is equal by algebra and their H differs by a factor N/(N − d), so the paper's "
        "large difference between the two cannot come from the estimator. EM estimates a noise level that is zero here "
        f"and can take the jumps of a wrong order for noise; its last round: {'; '.join(held)}."
    )


def _baselines(records: Sequence[Record]) -> str:
    parts = []
    for poor, proper in (("MST-MLE", "MST, proper root"), ("DPT-MLE", "DPT, proper root")):
        from_any = ACCURACY(where(records, method=poor))
        from_end = mean(records, "accuracy_up_to_reversal", method=proper)
        parts.append(
            f"{poor} {from_any} % over all settings (the paper: {PRINTED[poor]}), from a proper root "
            f"{percent(from_end)} % up to reversal"
        )
    return (
        "The baselines are weak in the paper because their root is arbitrary: "
        + "; ".join(parts)
        + ". Distances alone cannot give the direction of time."
    )


def _ours(records: Sequence[Record]) -> str:
    mine, known = where(records, method=OUR_METHOD), where(records, method="oracle")
    called = [each for each in mine if each["direction_identified"]]
    silent = [each for each in mine if not each["direction_identified"]]
    ratio = max(
        ours[key] / oracle[key]
        for ours, oracle in zip(mine, known, strict=True)
        if ours["accuracy"] == 1
        for key in ("mae_drift", "mae_diffusion")
    ) if any(each["accuracy"] == 1 for each in mine) else None  # fmt: skip
    names = ", ".join(distinct(called, "setting"))
    sentences = [
        f"{OUR_METHOD} calls the direction in {len(called)} of {len(mine)} panels ({names}), where its order is "
        f"{ACCURACY(called)} % right."
    ]
    if ratio is not None:
        sentences.append(
            f"Where the order is right, its errors of A and H are the oracle's (largest ratio {ratio:.4f})."
        )
    if silent:
        either = column("accuracy_up_to_reversal", percent)(silent)
        sentences.append(
            f"It abstains in the other {len(silent)} ({', '.join(distinct(silent, 'setting'))}): the order is {either} % "
            "right up to reversal, but a stationary linear SDE run backwards is again a linear SDE of equal "
            "likelihood, even where detailed balance is broken, so no method can tell; the paper's Theorem 2 "
            "needs A known or data that are not stationary."
        )
    return " ".join(sentences)


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REGIMES = (
    Regime("paper", "paper"),
    Regime("growing", "growing", 0.1),
    Regime("stable-small", "stable", 0.1),
    Regime("stable-large", "stable", 1.0),
    Regime("stationary", "stable", "stationary"),
)
METHODS = (
    "Algorithm 1-MLE", "Algorithm 1-OLS", "Algorithm 1-EM", "MST-MLE", "DPT-MLE",
    "ReTrace-likelihood", "MST, proper root", "DPT, proper root", "scanpy DPT", "oracle",
)  # fmt: skip
"""First the paper's rows."""


@dataclass(frozen=True)
class Settings:
    """The size of a panel, how many seeds, and the regimes."""

    size: Size
    seeds: int
    regimes: tuple[Regime, ...] = REGIMES


WEIGHTS = {"Algorithm 1-MLE": 20.0, "Algorithm 1-OLS": 20.0, "Algorithm 1-EM": 40.0, "ReTrace-likelihood": 4.0}  # fmt: skip
"""Cost of each method relative to the others', which is 1."""


def tasks(settings: Settings) -> Iterator[Task]:
    """Every method on every panel."""
    regimes = {regime.name: regime for regime in settings.regimes}
    for key in every(setting=regimes, seed=range(settings.seeds), method=available(*METHODS)):
        work = partial(records_of, key, regimes[key["setting"]], settings.size)
        yield Task(key, work, weight=WEIGHTS.get(key["method"], 1.0))


def rounds(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The accuracy of each round, for the methods that alternate."""
    return {
        "table1_rounds": [
            {
                **{key: each[key] for key in ("setting", "method", "seed")},
                "round": k,
                "accuracy": accuracy,
                "seconds": round(each["seconds"] / len(each["rounds"]), 3),
            }
            for each in records
            for k, accuracy in enumerate(each["rounds"], start=1)
        ]
    }


def text(records: Sequence[Record], settings: Settings) -> str:
    """Accuracy in all settings side by side, every column for each setting, and what they say."""
    lines = [opening(settings.size, settings.seeds), _side_by_side(records)]
    for regime in settings.regimes:
        mine = where(records, setting=regime.name)
        lines += [f"**{regime.name}**: {_describe(regime)}", table_by(mine, "method", CELLS)]
    return "\n\n".join([*lines, closing(records)])


def _describe(regime: Regime) -> str:
    drift = {
        "paper": "A and G with entries N(0, 1), all trajectories from one point; the spread explodes",
        "growing": "A = M − 0.5 I, M with entries N(0, 1/d)",
        "stable": "A shifted so that the largest real part is −0.5",
    }[regime.setting]
    if regime.start is None:
        return f"{drift}."
    start = (
        "the stationary distribution"
        if regime.start == "stationary"
        else f"N(0, {regime.start:g}² I)"
    )
    return f"{drift}; the start from {start}."


def _side_by_side(records: Sequence[Record]) -> str:
    regimes = distinct(records, "setting")
    rows = []
    for method in distinct(records, "method"):
        mine = [where(records, setting=name, method=method) for name in regimes]
        printed = f"{PRINTED[method]:.1f}" if method in PRINTED else "–"
        rows.append([method, printed, *map(column("accuracy", percent), mine)])
        if method.startswith("Algorithm 1"):
            best = [[max(each["rounds"]) for each in some] for some in mine]
            rows.append(["… in its best round", "", *(plus_minus(each, percent) for each in best)])
    return markdown_table(["accuracy, %", "the paper prints", *regimes], rows)


def _per_round(records: Sequence[Record]) -> str:
    each = [each["seconds"] / len(each["rounds"]) for each in records if each["rounds"]]
    return plus_minus(each, "{:.2f}".format)


def _called(records: Sequence[Record]) -> str:
    called = values(records, "direction_identified")
    return f"identified {sum(called)}/{len(called)}" if called else "not tested"


CELLS = {
    "accuracy, %": column("accuracy", percent),
    "up to reversal": column("accuracy_up_to_reversal", percent),
    "τ": column("kendall_tau", "{:.3f}".format),
    "neighbours, %": column("neighbour_share", percent),
    "MAE-A": column("mae_drift", compact),
    "MAE-H": column("mae_diffusion", compact),
    "s per round": _per_round,
    "s in all": column("seconds", "{:.2f}".format),
    "direction": _called,
}
"""The columns of a setting's table."""


def figure(records: Sequence[Record], settings: Settings) -> Figure:
    """Above, the accuracy of every method; below, that of Algorithm 1 round by round."""
    regimes, methods = distinct(records, "setting"), distinct(records, "method")
    size = (3.1 * len(regimes) + 1.6, 7.5)
    drawing, axes = panels(2, len(regimes), size, grid="y", height_ratios=(3, 2))
    for above, below, name in zip(*axes, regimes, strict=True):
        mine = where(records, setting=name)
        for row, method in enumerate(methods):
            _dots(above, row, where(mine, method=method), colour(method))
        above.set(title=name, xlim=(-4, 104), xlabel="accuracy, %")
        above.set_yticks(range(len(methods)), methods)
        above.grid(False)
        above.grid(axis="x", color="#DDDDDD")
        _by_round(below, mine)
    axes[0][0].invert_yaxis()
    axes[1][0].set_ylabel("accuracy of a round, %")
    legend(drawing, axes[0][:1], "outside upper right")
    legend(drawing, axes[1], "outside lower center")
    return drawing


def _dots(ax: Axes, row: int, records: Sequence[Record], shade: str) -> None:
    directed = [100 * each for each in values(records, "accuracy")]
    either = [100 * each for each in values(records, "accuracy_up_to_reversal")]
    rows = [row] * len(records)
    ax.plot(either, rows, "o", color=shade, fillstyle="none", markersize=10, label="up to reversal")
    ax.plot(directed, rows, "o", color=shade, markersize=5, label="directed")


ALGORITHM1_STYLES = {
    "Algorithm 1-MLE": ("o-", "#D55E00"),
    "Algorithm 1-OLS": ("s--", "#56B4E9"),
    "Algorithm 1-EM": ("^:", "#009E73"),
}


def _by_round(ax: Axes, records: Sequence[Record]) -> None:
    for method, (style, shade) in ALGORITHM1_STYLES.items():
        lines = [each["rounds"] for each in where(records, method=method)]
        longest = max(len(line) for line in lines)
        # A round without a swap ends the run, so its order stands from then on.
        held = [[*line, *[line[-1]] * (longest - len(line))] for line in lines]
        mean = [100 * sum(at) / len(lines) for at in zip(*held, strict=True)]
        ax.plot(range(1, longest + 1), mean, style, color=shade, markersize=4, label=method)
    ax.axhline(100, color=colour("oracle"), linewidth=1.5, label="oracle")
    ax.set(ylim=(-4, 106), xlabel="round")


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: irreversible SDEs",
    columns=("setting", "method", "seed", *SCORE_COLUMNS),
    full=Settings(Size(d=50, n=2000, T=250), seeds=10),
    quick=Settings(Size(d=20, n=300, T=100), seeds=2),
    tiny=Settings(Size(d=2, n=20, T=10), seeds=1),
    tasks=tasks,
    text=text,
    figure=figure,
    extras=rounds,
)
