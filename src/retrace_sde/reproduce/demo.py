"""The main job on simulated data: lose the order, recover it, compare with the peers and the oracle."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from sklearn.base import clone

from retrace_sde.datasets import SOURCE, load_icu, lose_time
from retrace_sde.fit.intervals import half_widths
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.costs import transition_costs
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.process.drift import Linear
from retrace_sde.process.sde import LinearSDE
from retrace_sde.process.simulate import random_irreversible_sde, shuffle
from retrace_sde.reproduce.cases import Case
from retrace_sde.reproduce.experiment import Record
from retrace_sde.reproduce.methods import METHOD_BY_NAME, Found, accuracies, at
from retrace_sde.retrace import ReTrace
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.show import plots
from retrace_sde.show.report import render, write_report, write_whole

Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """The size of the demonstration, of its panel of single orders (n, T), and the spread of the common start."""

    n: int = 300
    T: int = 80
    d: int = 10
    own: tuple[int, int] = (200, 40)
    dt: float = 0.01
    start: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Demonstration:
    """The data, the truth, the fits to transient and to stationary data, and the tables."""

    settings: Settings
    sde: LinearSDE
    shuffled: Array
    truth: Indices
    model: ReTrace
    steady: Array
    stationary: ReTrace
    rows: tuple[Record, ...]
    own_orders: OwnOrders
    real: RealPanel


@dataclass(frozen=True)
class RealPanel:
    """Patients in intensive care, their hours lost and found again."""

    table: pd.DataFrame
    panel: Panel
    truth: dict[str, float]
    model: ReTrace

    @property
    def restored(self) -> list[tuple[str, float, float]]:
        """Each slice as it was put in order: its label, its true hour, and the time given to it."""
        labels = [str(self.panel.slices[k]) for k in self.model.order_]  # type: ignore[index]
        return [
            (label, self.truth[label], float(at))
            for label, at in zip(labels, self.model.times_, strict=True)
        ]

    @property
    def right(self) -> int:
        """Slices that stand at their place."""
        return sum(
            label == true for (label, _, _), true in zip(self.restored, self.truth, strict=True)
        )


@dataclass(frozen=True)
class OwnOrders:
    """Few variables, each trajectory shuffled on its own.

    The order cannot be known, the SDE can.
    """

    shuffled: Array
    truth: Indices
    averaged: ReTrace
    rows: tuple[Record, ...]


def run(
    settings: Settings, *, progress: Callable[[str], None] = lambda step: None
) -> Demonstration:
    """Simulate, shuffle, recover with each method, and score against the truth."""
    progress("simulating")
    rng = np.random.default_rng(settings.seed)
    sde = random_irreversible_sde(settings.d, setting="stable", random_state=rng)
    size = (settings.n, settings.T, settings.dt)
    X = sde.simulate(*size, x0=settings.start, random_state=rng)
    shuffled, truth = shuffle(X, random_state=rng)
    case = Case(sde, sde.initial or sde.stationary(), shuffled, truth, settings.dt)

    def score(method: str, order: Indices, seconds: float, direction: str = "arbitrary") -> Record:
        return _row(method, case, at(order, case), seconds, direction)

    linear = partial(ReTrace, dt=settings.dt, drift="linear", random_state=settings.seed)
    progress("compiling, once per installation")
    for how in ("likelihood", "score"):
        linear(order=how, max_iter=1).fit(shuffled[:20])
    # So few short trajectories say nothing, which is not the point.
    with warnings.catch_warnings(action="ignore", category=ReTraceWarning):
        own = linear(permutation="independent", estimator="mcem")
        own.fit(shuffled[:10, :6])
    rows = []
    progress("ReTrace, likelihood")
    model, seconds = _timed(lambda: linear().fit(shuffled))
    rows.append(score("ReTrace (likelihood)", model.order_, seconds, _called(model)))
    progress("the paper's Algorithm 1")
    printed, seconds = _timed(lambda: linear(order="score").fit(shuffled))
    rounds = {"best round": printed.order_, "as printed": printed.history_[-1].order}
    for name, order in rounds.items():
        rows.append(score(f"Algorithm 1, {name}", order, seconds, "by spread"))
    progress("spanning tree and pseudotime")
    for name, listed in BASELINES.items():
        found, seconds = _timed(partial(METHOD_BY_NAME[listed], case))
        rows.append(_row(name, case, found, seconds, "arbitrary"))
    rows.append(score("oracle (true order)", truth, 0.0, "known"))
    progress("the same from stationary data")
    steady = sde.simulate(*size, x0="stationary", random_state=rng)
    steady = shuffle(steady, random_state=rng)[0]
    stationary = linear().fit(steady)
    progress("each trajectory on its own")
    own_orders = _own_orders(settings, rng)
    progress("a real panel")
    fits = (model, steady, stationary, tuple(rows), own_orders, _real(settings))
    return Demonstration(settings, sde, shuffled, truth, *fits)


BASELINES = {
    "MST, arbitrary root": "MST-MLE",
    "MST, from an end": "MST, proper root",
    "DPT, arbitrary root": "DPT-MLE",
    "DPT, from an extreme": "DPT, proper root",
}
"""The peers by the name they have here, and the one they have among the methods of the paper's tables."""


def _real(settings: Settings) -> RealPanel:
    """The panel that comes with the package, without its hours."""
    table, truth = lose_time(load_icu(), time="hour", random_state=settings.seed)
    panel = Panel.from_frame(table, subject="patient", slice="slice", dt=4.0)
    # Its cautions are on its own page.
    with warnings.catch_warnings(action="ignore", category=ReTraceWarning):
        model = ReTrace(observation_noise="auto", random_state=settings.seed).fit(panel)
    return RealPanel(table, panel, truth, model)


def _own_orders(settings: Settings, rng: np.random.Generator) -> OwnOrders:
    sde = random_irreversible_sde(3, setting="stable", random_state=rng)
    X = sde.simulate(*settings.own, settings.dt, x0=settings.start, random_state=rng)
    shuffled, truth = shuffle(X, permutation="independent", random_state=rng)
    case = Case(sde, sde.initial or sde.stationary(), shuffled, truth, settings.dt)
    model = ReTrace(
        dt=settings.dt, permutation="independent", random_state=settings.seed, drift="linear"
    )
    rows = []
    for name, estimator in (("one best order", "mle"), ("all orders", "mcem")):
        fit = partial(clone(model).set_params(estimator=estimator).fit, shuffled)
        found, took = _timed(fit)
        own = Found(found.order_, found.drift_, found.diffusion_)
        rows.append(_row(f"ReTrace, {name}", case, own, took, _called(found)))
    rows.append(_row("oracle (true order)", case, at(truth, case), 0.0, "known"))
    return OwnOrders(shuffled, truth, found, tuple(rows))


def _row(method: str, case: Case, found: Found, seconds: float, direction: str) -> Record:
    """A method's order, A and H against the truth."""
    scores = accuracies(found, case.sde, case.truth)
    return {"method": method, **scores, "seconds": seconds, "direction": direction}


def _called(model: ReTrace) -> str:
    return "identified" if model.direction_.identified else "undetermined"


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    begin = time.perf_counter()
    # The pages that are written hold the cautions of each fit.
    with warnings.catch_warnings(action="ignore", category=ReTraceWarning):
        result = work()
    return result, time.perf_counter() - begin


def save_plots(demo: Demonstration, folder: Path) -> list[Path]:
    """Costs before and after, A true and estimated, evidence for the direction, uncertainty of orders."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    model = demo.model
    fitted = EulerModel(Data(demo.shuffled), demo.settings.dt, Linear()).fit(model.order_).step
    costs = transition_costs(Data(demo.shuffled), fitted)

    shapes = {"order": (11, 8, 2, 2), "drift": (13, 4, 1, 3), "direction": (11, 4, 1, 2), "own": (11, 4.5, 1, 2)}  # fmt: skip
    drawn = {name: Figure(figsize=size[:2], layout="constrained") for name, size in shapes.items()}
    axes = {name: drawn[name].subplots(*size[2:]).ravel() for name, size in shapes.items()}

    stored, restored, before, after = axes["order"]
    plots.trajectories(demo.shuffled, ax=stored).set_title("One variable, as stored")
    plots.trajectories(demo.shuffled, model.order_, ax=restored)
    restored.set_title("One variable, in recovered order")
    plots.cost_matrix(costs, ax=before)
    plots.cost_matrix(costs, model.order_, ax=after)

    true, estimated, entries = axes["drift"]
    limit = float(np.abs(demo.sde.drift).max())
    plots.matrix(demo.sde.drift, title="Drift A, true", limit=limit, ax=true)
    plots.matrix(model.drift_, title="Drift A, estimated", limit=limit, ax=estimated)
    errors = half_widths(model.standard_errors_.drift.ravel(), demo.settings.n)
    entries.errorbar(
        demo.sde.drift.ravel(), model.drift_.ravel(), errors,
        fmt="o", markersize=3, linewidth=0.8, color=plots.FORWARD, ecolor="#AAAAAA",
    )  # fmt: skip
    entries.axline((0, 0), slope=1, color="black", linewidth=0.8)
    entries.set(title="Entries with 95 % intervals", xlabel="true", ylabel="estimated")

    started = {"close together": model, "stationary": demo.stationary}
    for ax, (how, each) in zip(axes["direction"], started.items(), strict=True):
        plots.direction_evidence(each.direction_, ax=ax)
        ax.set_title(f"Started {how}. {ax.get_title()}")

    own = demo.own_orders
    where, calibrated = axes["own"]
    probabilities = own.averaged.position_probabilities_
    plots.position_probabilities(probabilities[0], own.averaged.order_[0], ax=where)
    where.set_title("Where the visits of one trajectory may stand")
    plots.calibration(own.truth, probabilities, ax=calibrated)
    calibrated.set_title("How often the probabilities came true")

    paths = [folder / f"{name}.png" for name in drawn]
    for path, figure in zip(paths, drawn.values(), strict=True):
        figure.savefig(path, dpi=120)
    return paths


def save_pages(demo: Demonstration, folder: Path) -> list[Path]:
    """The report of each fit, and `index.html`, which compares the methods and links to them."""
    folder.mkdir(parents=True, exist_ok=True)
    own = demo.own_orders
    fits = {
        "report.html": (demo.model, demo.shuffled, "One order lost for all"),
        "stationary.html": (demo.stationary, demo.steady, "The same SDE, stationary"),
        "own-orders.html": (own.averaged, own.shuffled, "Each trajectory shuffled on its own"),
        "intensive-care.html": (demo.real.model, demo.real.panel, "A real panel: intensive care"),
    }
    for model, _, _ in fits.values():
        if not hasattr(model, "posterior_"):
            model.sample_orders()
    reports = [
        write_report(model, X, folder / name, title=title)
        for name, (model, X, title) in fits.items()
    ]
    page = render(
        "demo.html",
        title="Shuffled data, put back in time",
        settings=demo.settings,
        rows=demo.rows,
        own_rows=own.rows,
        real=demo.real,
        source=SOURCE,
        cards=[
            {"question": title, "link": name, "answer": answer, "text": text, "standing": standing}
            for (name, (_, _, title)), (answer, text, standing) in zip(
                fits.items(), _cards(demo), strict=True
            )
        ],
    )
    return [write_whole(page, folder / "index.html"), *reports]


def _cards(demo: Demonstration) -> list[tuple[str, str, str]]:
    """What happened in each experiment: the answer, a sentence with the figures of this run, and its standing."""
    ours, oracle = demo.rows[0], demo.rows[-1]
    best, averaged, known = demo.own_orders.rows
    identified = demo.stationary.direction_.identified
    real, slices = demo.real, len(demo.real.truth)
    return [
        (
            f"{ours['accuracy']:.1%} of the slices are back at their place",
            f"In {ours['seconds']:.2f} seconds; A is estimated with an error of {ours['mae_drift']:.3g}, and "
            f"{oracle['mae_drift']:.3g} with the true order. {demo.model.direction_.verdict}",
            "good" if ours["accuracy"] > 0.99 else "mixed",
        ),
        (
            "A direction is claimed" if identified else "No direction is claimed",
            demo.stationary.direction_.verdict,
            "open" if identified else "good",
        ),
        (
            "The order cannot be known, the SDE can",
            f"Only {averaged['accuracy']:.0%} of the positions are right. Yet averaging over orders estimates H "
            f"with an error of {averaged['mae_diffusion']:.2g}, against {best['mae_diffusion']:.2g} from one best order "
            f"and {known['mae_diffusion']:.2g} from the true ones.",
            "mixed",
        ),
        (
            f"{real.right} of {slices} time slices are back at their place",
            f"{len(real.panel)} patients, five variables. {real.model.direction_.verdict}",
            "good" if real.right == slices else "mixed",
        ),
    ]
