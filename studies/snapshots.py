"""Fits along every path of the code, stored and compared: a refactoring must not change an answer.

    python studies/snapshots.py write FILE.json [--folder FOLDER] [--only PART]
    python studies/snapshots.py compare FILE.json [--folder FOLDER] [--only PART]

`write` stores order, parameters, errors, likelihood, direction and noise of each fit; `compare` fits again and prints one line
for each with the largest difference, relative to the largest number of its kind. It exits with 1 where one is above 1e-6, or an
order or a decision differs. Sentences are stored to be read, and not compared. FOLDER holds real panels, long csv files
`subject,time,<variables>`. Only the public interface is used, and panels are drawn by numpy alone, so that two versions of the code
meet the same data.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import retrace_sde as rt

TOLERANCE = 1e-6
"""Largest difference of two numbers, relative to the largest of their kind."""

DT = 0.1

Record = dict[str, Any]


class Lost(NamedTuple):
    """A panel whose order is lost: values, inputs and times as they stand, and the true order."""

    X: np.ndarray
    inputs: np.ndarray
    times: np.ndarray
    truth: np.ndarray


def lost(n: int = 30, T: int = 10, d: int = 2, *, own: bool = False, noise: float = 0.0, missing: float = 0.0,
         levels: float = 0.0, rates: float = 0.0, driven: float = 0.0, start: float = 3.0, uneven: bool = False,
         seed: int = 0) -> Lost:  # fmt: skip
    """A transient of an affine SDE, by Euler's steps in ten parts each, seen and shuffled as asked."""
    rng = np.random.default_rng([seed, n, T, d])
    A = rng.standard_normal((d, d)) * 0.4 - np.eye(d)
    G, c = 0.5 * np.eye(d) + 0.1 * rng.standard_normal((d, d)), 0.3 * rng.standard_normal(d)
    c_of = c + levels * rng.standard_normal((n, d))
    speed = np.exp(rates * rng.standard_normal((n, 1)))
    gaps = DT * rng.gamma(2.0, 0.5, T - 1) if uneven else np.full(T - 1, DT)
    inputs = rng.standard_normal((n, T, 1))
    x = start + 0.3 * rng.standard_normal((n, d))
    path = [x]
    for t in range(T - 1):
        h = gaps[t] / 10
        for _ in range(10):
            pushed = speed * (x @ A.T + c_of) + driven * inputs[:, t]
            x = x + pushed * h + np.sqrt(h) * rng.standard_normal((n, d)) @ G.T
        path.append(x)
    X = np.stack(path, axis=1)
    X = X + noise * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < missing] = np.nan
    times = np.broadcast_to(np.r_[0.0, np.cumsum(gaps)], (n, T))
    place = np.argsort(rng.random((n if own else 1, T)), axis=1)
    every = np.broadcast_to(place, (n, T))
    X, inputs = (np.take_along_axis(each, every[:, :, None], axis=1) for each in (X, inputs))
    times, truth = np.take_along_axis(times, every, axis=1), np.argsort(place, axis=1)
    return Lost(X, inputs, times, truth) if own else Lost(X, inputs, times[0], truth[0])


def fitted(X: Any, *, covariates: Any = None, knowledge: Any = None, **settings: Any) -> Record:
    """What a fit says, in numbers and decisions."""
    given = {"dt": DT, "random_state": 0, "n_jobs": 1, **settings}
    return said(rt.ReTrace(**given).fit(X, covariates=covariates, knowledge=knowledge))


def said(model: Any) -> Record:
    """The record of a fitted model."""
    errors, direction = model.standard_errors_, model.direction_
    return {
        "order": np.asarray(model.order_).tolist(),
        "drift": numbers(model.drift_),
        "offset": numbers(model.offset_),
        "inputs": numbers(model.inputs_),
        "diffusion": numbers(model.diffusion_),
        "noise": numbers(model.observation_noise_),
        "times": numbers(model.times_),
        "errors of drift": numbers(errors.drift),
        "errors of diffusion": numbers(errors.diffusion),
        "log-likelihood": numbers(model.log_likelihood_),
        "ratio": numbers(direction.log_likelihood_ratio),
        "p-value": numbers(direction.p_value),
        "identified": bool(direction.identified),
        "reason": str(direction.reason),
        "verdict": str(direction.verdict),
    }


def numbers(value: Any) -> Any:
    """As JSON holds it."""
    return None if value is None else np.asarray(value, dtype=float).tolist()


Case = Callable[[], Record]


def shared() -> Iterator[tuple[str, Case]]:
    """One order for all."""
    plain, noisy = lost(), lost(noise=0.1, seed=1)
    holes = lost(missing=0.15, seed=2)
    yield "shared auto", lambda: fitted(plain.X)
    yield "shared mle linear", lambda: fitted(lost(d=3).X, estimator="mle", drift="linear")
    yield "shared ols", lambda: fitted(plain.X, estimator="ols", subjects="alike")
    yield "shared exact", lambda: fitted(plain.X, estimator="exact")
    yield "shared em", lambda: fitted(noisy.X, estimator="em")
    yield "shared score", lambda: fitted(plain.X, order="score", drift="linear", max_iter=5)
    yield "shared polynomial", lambda: fitted(plain.X, drift=rt.drift.Polynomial(2))
    yield "shared inputs", lambda: _driven(lost(driven=1.0, seed=3))
    yield "shared at rest", lambda: fitted(lost(n=20, T=12, start=0.3, seed=4).X)
    yield "shared many slices", lambda: fitted(lost(n=8, T=640, seed=5).X, subjects="alike")
    yield "shared large", lambda: fitted(lost(n=300, T=40, d=5, seed=21).X)
    yield "shared two trajectories", lambda: fitted(lost(n=2, T=30, seed=22).X)
    yield "shared outside memory", lambda: fitted(_lazy(lost(n=200, T=12, seed=23).X))
    yield "noise none", lambda: fitted(noisy.X, observation_noise=None)
    yield "noise known", lambda: fitted(noisy.X, observation_noise=0.1)
    yield "noise estimate", lambda: fitted(noisy.X, observation_noise="estimate")
    yield "noise diagonal", lambda: fitted(noisy.X, observation_noise="diagonal", subjects="alike")
    yield "noise auto", lambda: fitted(noisy.X, observation_noise="auto")
    yield "noise, exact steps", lambda: fitted(noisy.X, observation_noise="estimate", estimator="exact", subjects="alike")  # fmt: skip
    yield "missing", lambda: fitted(holes.X)
    yield (
        "missing, noise and inputs",
        lambda: _driven(
            lost(missing=0.1, noise=0.1, driven=1.0, seed=6), observation_noise="estimate"
        ),
    )


def _lazy(X: np.ndarray) -> Any:
    import dask.array

    return dask.array.from_array(X, chunks=(50, -1, -1))


def _driven(panel: Lost, **settings: Any) -> Record:
    return fitted(panel.X, covariates=panel.inputs, subjects="alike", **settings)


def known() -> Iterator[tuple[str, Case]]:
    """Something known of time."""
    rest, uneven = lost(start=0.3, seed=7), lost(uneven=True, seed=8)
    T, place = len(rest.truth), np.argsort(rest.truth)
    first, last = int(rest.truth[0]), int(rest.truth[-1])
    some = np.where(np.arange(T) % 3 == 0, uneven.times, np.nan)
    told = {
        "first": rt.Knowledge(first=first),
        "positions": rt.Knowledge(positions={first: 0, int(rest.truth[4]): 4}),
        "precedences": rt.Knowledge(precedences=[(first, last), (int(rest.truth[2]), last)]),
        "blocks": rt.Knowledge(blocks=place // (T // 2)),
    }
    for name, knowledge in told.items():
        yield f"known {name}", lambda knowledge=knowledge: fitted(rest.X, knowledge=knowledge)
    timed = {
        "timestamps": rt.Knowledge(timestamps=uneven.times),
        "some timestamps": rt.Knowledge(timestamps=some),
        "timestamps with error": rt.Knowledge(timestamps=rest.times + 0.05, timestamp_error=0.1),
        "schedule": rt.Knowledge(schedule=np.sort(uneven.times)),
    }
    for name, knowledge in timed.items():
        X = rest.X if "error" in name else uneven.X
        yield f"known {name}", lambda X=X, knowledge=knowledge: fitted(X, knowledge=knowledge)
    yield "gaps estimated", lambda: fitted(uneven.X, spacing="estimate", subjects="alike")
    yield "gaps estimated, noise", lambda: fitted(
        lost(n=20, T=8, uneven=True, noise=0.1, seed=9).X, spacing="estimate",
        observation_noise="estimate", subjects="alike",
    )  # fmt: skip
    yield "timestamps, noise", lambda: fitted(
        lost(uneven=True, noise=0.1, seed=10).X, observation_noise="estimate", subjects="alike",
        knowledge=rt.Knowledge(timestamps=lost(uneven=True, noise=0.1, seed=10).times),
    )  # fmt: skip


def subjects() -> Iterator[tuple[str, Case]]:
    """Subjects that differ."""
    differ, rates = lost(levels=1.0, T=12, seed=11), lost(rates=0.6, T=12, seed=12)
    for name in ("alike", "levels", "auto"):
        yield f"subjects {name}", lambda name=name: fitted(differ.X, subjects=name)
    yield "subjects rates", lambda: fitted(rates.X, subjects="rates")
    yield "subjects levels, noise", lambda: fitted(
        lost(n=20, levels=1.0, noise=0.1, seed=13).X, subjects="levels", observation_noise="estimate"
    )  # fmt: skip


def independent() -> Iterator[tuple[str, Case]]:
    """Each trajectory's own order."""
    plain = lost(n=30, T=8, d=3, own=True, seed=14)
    small = lost(n=12, T=6, own=True, seed=15)
    noisy = lost(n=10, T=6, own=True, noise=0.1, seed=16)
    uneven = lost(n=8, T=6, own=True, uneven=True, seed=17)

    def own(X: Any, **settings: Any) -> Record:
        return fitted(X, permutation="independent", **settings)

    yield "own mle", lambda: own(plain.X, estimator="mle")
    yield "own auto", lambda: own(small.X)
    yield "own mcem", lambda: own(small.X, estimator="mcem", subjects="alike")
    yield (
        "own ragged",
        lambda: own(ragged(lost(n=20, T=8, d=3, own=True, seed=18)), estimator="mle"),
    )
    yield "own noise", lambda: own(noisy.X, observation_noise="estimate", estimator="em")
    yield (
        "own missing",
        lambda: own(lost(n=14, T=6, own=True, missing=0.1, seed=19).X, estimator="em"),
    )
    yield (
        "own noise, mcem",
        lambda: own(noisy.X, observation_noise="estimate", estimator="mcem", subjects="alike"),
    )
    yield "own missing, auto", lambda: own(lost(n=10, T=6, own=True, missing=0.1, seed=24).X)
    yield (
        "own levels",
        lambda: own(
            lost(n=30, T=8, d=3, own=True, levels=1.0, seed=25).X,
            estimator="mle",
            subjects="levels",
        ),
    )
    yield (
        "own first",
        lambda: own(small.X, estimator="mle", knowledge=rt.Knowledge(first=small.truth[:, 0])),
    )
    yield "own inputs", lambda: own(small.X, covariates=small.inputs, estimator="mle")
    yield "own timestamps", lambda: own(uneven.X, knowledge=rt.Knowledge(timestamps=uneven.times))
    yield "own timestamps with error", lambda: own(
        small.X, estimator="mle", knowledge=rt.Knowledge(timestamps=small.times, timestamp_error=0.1)
    )  # fmt: skip
    schedule = np.sort(uneven.times[0])
    yield "own schedule", lambda: own(uneven.X[:, :5], knowledge=rt.Knowledge(schedule=schedule))
    yield "own gaps estimated", lambda: own(uneven.X, spacing="estimate", subjects="alike")
    yield "own tumour", tumour


def ragged(panel: Lost) -> Any:
    """A panel whose trajectories have eight observations, seven, or six."""
    rows = table(panel.X)
    kept = rows[rows["visit"] < 8 - rows["subject"] % 3].drop(columns="visit")
    return rt.Panel.from_frame(kept, subject="subject")


def table(X: np.ndarray) -> Any:
    """A long table, one row per observation."""
    import pandas as pd

    n, T, d = X.shape
    at = {"subject": np.repeat(np.arange(n), T), "visit": np.tile(np.arange(T), n)}
    return pd.DataFrame(at | {f"x{k}": X[:, :, k].ravel() for k in range(d)})


def _cohort() -> tuple[Any, np.ndarray, np.ndarray]:
    cohort = rt.tumour.simulate_cohort(40, steps=9, sigma_tumour=0.05, random_state=0)
    moved = np.random.default_rng(0).permuted(np.tile(np.arange(10), (40, 1)), axis=1)[:, :, None]
    values, inputs = (
        np.take_along_axis(each, moved, 1) for each in (cohort.states, cohort.covariates)
    )
    return cohort, values, inputs


def tumour() -> Record:
    """Gompertz growth under treatment, each subject's visits shuffled."""
    cohort, X, inputs = _cohort()
    return fitted(X, covariates=inputs, dt=cohort.dt, permutation="independent",
                  drift=rt.drift.TumourGrowth(), estimator="mle")  # fmt: skip


def faces() -> Iterator[tuple[str, Case]]:
    """The other ways in: effects of treatment, and tables."""
    yield "treatment effect", treatment
    yield "recover", recovered


def treatment() -> Record:
    """Average and single effects of a treatment."""
    cohort = rt.tumour.simulate_cohort(60, steps=15, random_state=0)
    place = np.random.default_rng(1).permutation(16)
    asked = rt.treatment.TreatmentEffect(
        dt=cohort.dt, permutation="shared", drift="tumour", random_state=0, n_jobs=1
    )
    found = asked.fit(cohort.states[:, place], cohort.covariates[:, place])
    arms = {"T0": [0, 0], "T1": [5, 1]}
    return {
        "order": np.asarray(found.order_).tolist(),
        "ate": numbers(found.ate(**arms)),
        "effects": numbers(found.effect(**arms)),
        "interval": numbers(found.ate_interval(**arms, draws=20)),
        "identified": bool(found.direction_.identified),
    }


def recovered() -> Record:
    """A table with values missing."""
    panel = lost(n=24, T=8, missing=0.1, seed=20)
    return said(
        rt.recover(table(panel.X), subject="subject", slice="visit", dt=DT, random_state=0).model
    )


PANELS = {
    "grunfeld": None,
    "chickweight": None,
    "theoph": ["conc_mg_L"],
    "gait": None,
    "pbcseq_visits": None,
}
"""Real panels, and the variables taken (None: all that are not subject or time)."""


def real(folder: Path | None) -> Iterator[tuple[str, Case]]:
    """Real panels with their slices shuffled."""
    for name, variables in {} if folder is None else PANELS.items():
        yield (
            f"real {name}",
            lambda name=name, variables=variables: fitted(
                read(folder / f"{name}.csv", variables), dt=1.0
            ),
        )


def read(path: Path, variables: list[str] | None) -> np.ndarray:
    """(subject, time, variable), shuffled along time."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    variables = variables or [name for name in rows[0] if name not in ("subject", "time")]
    each: dict[str, list[list[float]]] = {}
    for row in rows:
        each.setdefault(row["subject"], []).append([float(row[name]) for name in variables])
    X = np.array(list(each.values()))
    return X[:, np.random.default_rng(0).permutation(X.shape[1])]


DECISIONS = ("order", "identified", "reason", "error")
"""What must be the same; anything else is a number, or a sentence."""


def difference(before: Record, now: Record) -> tuple[float, str, list[str]]:
    """The largest relative difference, of which number, and which decisions differ."""
    changed = [key for key in DECISIONS if before.get(key) != now.get(key)]
    worst, where = 0.0, ""
    for key in before.keys() - {*DECISIONS, "verdict", "seconds"}:
        apart = _apart(before[key], now.get(key), floor=1.0 if key in ("ratio", "p-value") else 0.0)
        if apart > worst:
            worst, where = apart, key
    return worst, where, changed


def _apart(one: Any, two: Any, *, floor: float) -> float:
    if one is None or two is None:
        return 0.0 if one is two else float("inf")
    a, b = np.asarray(one, dtype=float), np.asarray(two, dtype=float)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    if not finite.any():
        return 0.0
    scale = max(floor, float(np.abs(a[finite]).max()))
    gap = float(np.abs(a - b)[finite].max())
    return gap / scale if scale else gap


def record_of(case: Case) -> Record:
    """What a case gives; a refusal is an answer, too."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = case()
        except ValueError as error:
            found = {"error": type(error).__name__, "verdict": str(error)}
    return {**found, "seconds": round(time.perf_counter() - begin, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--folder", type=Path, help="of real panels")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    parts = (shared(), known(), subjects(), independent(), faces(), real(options.folder))
    cases = {name: case for part in parts for name, case in part if options.only in name}
    stored = json.loads(options.file.read_text()) if options.action == "compare" else {}
    bad, begin = 0, time.perf_counter()
    for name, case in cases.items():
        now = record_of(case)
        line = f"{name:<28} {now['seconds']:6.2f} s"
        if options.action == "write":
            stored[name] = now
            told = (
                now.get("error")
                or f"{'identified' if now['identified'] else 'open'}, {now.get('reason')}"
            )
            print(f"{line}  {told}", flush=True)
            continue
        if name not in stored:
            print(f"{line}  not stored", flush=True)
            continue
        worst, where, changed = difference(stored[name], now)
        failed = worst > TOLERANCE or bool(changed)
        bad += failed
        words = [f"{worst:8.1e} {where}", *(f"{key} DIFFERS" for key in changed)]
        print(f"{line}  {'FAIL' if failed else 'ok  '} {', '.join(words)}", flush=True)
    print(
        f"{len(cases)} fits in {time.perf_counter() - begin:.0f} s, code of {Path(rt.__file__).parent}"
    )
    if options.action == "write":
        options.file.write_text(json.dumps(stored, indent=1))
    else:
        print(f"{bad} differ" if bad else "all equal")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
