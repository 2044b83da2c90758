"""Where the time of a whole shared fit goes: CPU seconds of its stages, in closed forms with the order known.

    python -m benchmarks.fit_stages [--repeats 5]

Prints two tables, of n = 2000 and n = 1000 trajectories with T = 250 and d = 50, on one thread, for the three processes of `benchmarks/fit_shared`:
of each stage the median of the repeats, and of the closed form the median of as many, in turn. The time of a stage is without that of stages within it.
Passes, errors and search cannot be spared: what they take bounds the ratio of any whole fit from below.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

import retrace_sde as rt
from benchmarks.fit_shared import DT, PROCESSES, closed_form, panel

SIZES = 2000, 1000

STAGES: dict[str, tuple[str, ...]] = {
    "passes over all trajectories: values finite, means, scales": ("panel.survey:_sums",),
    "passes over all trajectories: second moments, likelihoods": ("search.alternate:_finished",),
    "errors of the parameters": (
        "search.models.euler:sandwich_of_grams",
        "search.models.euler:EulerModel.estimate",
    ),
    "other checks at the entry, copies": ("retrace:entered",),
    "screening of some trajectories for wrong values": ("retrace:screened",),
    "search on some trajectories, verified": (
        "search.alternate:_searched",
        "search.models.euler:EulerModel.verified",
    ),
    "candidate models": ("evidence.candidates.along:CandidatesAlong.every",),
    "tests of the direction": (
        "evidence.direction.comparison:_tested",
        "evidence.direction.comparison:_doubts",
        "evidence.direction.comparison:independence",
    ),
    "independence of trajectories": ("estimator.fitting:_tested",),
    "summaries of the result": ("retrace:assembled", "retrace:influence", "retrace:pending_check"),
    "the rest": ("retrace:ReTrace.fit",),
}
"""Functions, as `module:name` where they are looked up, whose time is a stage's."""

NEEDED = (*tuple(STAGES)[:3], "search on some trajectories, verified")
"""Stages that order and parameters with their errors need, without any check of the data, test of the direction or comparison of models."""


class Clock:
    """CPU seconds of stages: those of the innermost one that runs."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.running: list[str] = []
        self.since = 0.0

    def _charge(self) -> None:
        now = time.process_time()
        if self.running:
            self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def timed(self, stage: str, function: Any) -> Any:
        """The function, its time charged to a stage."""

        def run(*given: Any, **named: Any) -> Any:
            self._charge()
            self.running.append(stage)
            try:
                return function(*given, **named)
            finally:
                self._charge()
                self.running.pop()

        return run


def stages(X: np.ndarray) -> dict[str, float]:
    """CPU seconds of the stages of one fit."""
    clock = Clock()
    with ExitStack() as patches:
        for stage, names in STAGES.items():
            for each in names:
                module, name = each.split(":")
                owner: Any = import_module(f"retrace_sde.{module}")
                *inner, last = name.split(".")
                for part in inner:
                    owner = getattr(owner, part)
                patches.enter_context(
                    patch.object(owner, last, clock.timed(stage, getattr(owner, last)))
                )
        rt.ReTrace(dt=DT, n_jobs=1, random_state=0).fit(X)
    return clock.seconds


def measured(process: str, n: int, repeats: int) -> tuple[dict[str, float], float]:
    """Medians of the stages' seconds and of the closed form's."""
    asked = argparse.Namespace(process=process, n=n, T=250, d=50)
    X, truth = rt.simulate.shuffle(panel(asked), random_state=2)
    stages(X)  # compile
    fits, closed = [], []
    for _ in range(repeats):
        fits.append(stages(X))
        begin = time.process_time()
        closed_form(X, truth)
        closed.append(time.process_time() - begin)
    return {each: float(np.median([fit[each] for fit in fits])) for each in STAGES}, float(
        np.median(closed)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    for n in SIZES:
        with threadpool_limits(1):
            found = [measured(each, n, asked.repeats) for each in PROCESSES]
        print(f"\n| n = {n}: CPU seconds / closed form | {' | '.join(PROCESSES)} |")
        print("|---" * (1 + len(PROCESSES)) + "|")
        rows = {each: [fit[each] / closed for fit, closed in found] for each in STAGES}
        rows["whole fit"] = [sum(fit.values()) / closed for fit, closed in found]
        rows["order, parameters and errors alone: passes, errors, search"] = [
            sum(fit[each] for each in NEEDED) / closed for fit, closed in found
        ]
        for name, ratios in rows.items():
            print(f"| {name} | {' | '.join(f'{each:.2f}' for each in ratios)} |")
        print(f"| closed form, seconds | {' | '.join(f'{closed:.3f}' for _, closed in found)} |")


if __name__ == "__main__":
    main()
