"""Combinations: individual orders with missing values, noise, irregular times and inputs; schedules; unknown gaps.

    python studies/combined.py --seeds 100:130 [--only NAME] [--jobs 2]

Prints, for each setting: panels with NaN among the results, trace of H relative to the truth, coverage of 95 % intervals of A and H, accuracy of
the order up to reversal, errors next to those of the fit with everything known, directions called, and how often positions given a
probability of .7 to .9 are right.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.lost_time.table import lines


@dataclass(frozen=True)
class Setting:
    """A process, what is lost of its data, and what the fit is told."""

    name: str
    d: int = 4
    n: int = 60
    T: int = 10
    dt: float = 0.2
    permutation: str = "independent"
    missing: float = 0.15
    noise: float = 0.0
    gaps: str = "equal"  # "own": each trajectory's own; "common": one set for all
    told: str = "nothing"  # "times", "schedule" or "nothing" (of gaps: that they are not equal)
    inputs: bool = False
    start: float | None = 1.5  # how far from equilibrium; None: stationary
    missed: int = 0
    seed: int = 0


SETTINGS = (
    Setting("missing"),
    Setting("missing, noise", noise=0.05),
    Setting("missing, known times", gaps="own", told="times"),
    Setting("missing, inputs", inputs=True),
    Setting("stationary, noise", missing=0.0, noise=0.1, start=None),
    Setting("schedule", n=100, T=20, permutation="shared", missing=0.2, noise=0.1, gaps="common", told="schedule"),
    Setting("schedule, gaps unknown", n=100, T=20, permutation="shared", missing=0.2, noise=0.1, gaps="common"),
    Setting("schedule, stationary", n=100, T=20, permutation="shared", missing=0.2, noise=0.1, gaps="common", told="schedule", start=None),
    Setting("schedule, stationary, gaps unknown", n=100, T=20, permutation="shared", missing=0.2, noise=0.1, gaps="common", start=None),
    Setting("schedule, two missed", missing=0.0, gaps="common", told="schedule", missed=2),
    Setting("schedule, two missed, gaps unknown", missing=0.0, gaps="common", missed=2),
    Setting("unknown gaps", missing=0.0, gaps="own"),
)  # fmt: skip


def simulate(s: Setting, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Paths (n, T, d) in time order, times (n, T), inputs (n, T, 1), and (A, c, B), H."""
    d = s.d
    A = -np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d)
    G = 0.5 * np.eye(d) + 0.15 * rng.standard_normal((d, d))
    c, B = rng.standard_normal(d), np.zeros((d, 1))
    if s.inputs:
        B = rng.standard_normal((d, 1))
    theta, H = np.c_[A, c, B], G @ G.T
    rest = rt.LinearSDE(A, H, offset=c).stationary()
    x = rest.sample(s.n, rng)
    if s.start is not None:
        x = rest.mean + s.start * np.sqrt(np.diag(rest.covariance)) + 0.3 * (x - rest.mean)
    shape = (s.n, s.T - 1) if s.gaps == "own" else (1, s.T - 1)
    gaps = np.full(shape, s.dt) if s.gaps == "equal" else s.dt * rng.gamma(2.0, 0.5, shape)
    gaps = np.broadcast_to(gaps, (s.n, s.T - 1))
    U = rng.integers(0, 2, (s.n, s.T, 1)).astype(float) if s.inputs else np.zeros((s.n, s.T, 1))
    path = [x]
    for t in range(s.T - 1):
        F, S, Q = transitions(theta, H, gaps[:, t])
        v = np.c_[np.ones(s.n), U[:, t]]
        x = np.einsum("nij,nj->ni", F, x) + np.einsum("nij,nj->ni", S, v)
        x = x + np.einsum("nij,nj->ni", np.linalg.cholesky(Q), rng.standard_normal((s.n, d)))
        path.append(x)
    times = np.concatenate([np.zeros((s.n, 1)), np.cumsum(gaps, axis=1)], axis=1)
    return np.stack(path, axis=1), times, U, theta, H


def lose(s: Setting, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What is left of the paths: noise, missing entries."""
    Y = X + s.noise * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < s.missing, np.nan, Y)


def run(s: Setting) -> dict[str, float]:
    """One data set: the fit with what is told, and the fit with everything known."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(s.seed)
    X, times, U, theta, H = simulate(s, rng)
    Y = lose(s, X, rng)
    truth, shuffled, stamps, inputs = shuffle(s, Y, times, U, rng)
    own = s.permutation == "independent"
    options = {
        "dt": s.dt if s.gaps != "common" else float(np.diff(times[0]).mean()),
        "permutation": s.permutation,
        "observation_noise": "estimate" if s.noise else None,
        "random_state": s.seed,
        "n_jobs": 1,
    }
    known = {"times": {"timestamps": stamps}, "schedule": {"schedule": times[0]}, "nothing": {}}[
        s.told
    ]
    spacing = "estimate" if s.told == "nothing" and s.gaps != "equal" else "regular"
    u = inputs if s.inputs else None
    model = rt.ReTrace(**options, spacing=spacing)
    model.fit(shuffled, covariates=u, knowledge=rt.Knowledge(**known) if known else None)
    oracle = rt.ReTrace(**options)
    oracle.fit(shuffled, covariates=u, knowledge=rt.Knowledge(timestamps=stamps))
    found = judged(s, model, truth, theta, H)
    found |= {f"oracle {k}": v for k, v in judged(s, oracle, truth, theta, H).items()}
    if own and not s.missed and hasattr(model, "posterior_"):
        found |= positions(model, truth)
    return found


def shuffle(s: Setting, Y, times, U, rng):  # type: ignore[no-untyped-def]
    """Each trajectory's (or the common) order lost; visits missed are gone."""
    n, T, _ = Y.shape
    kept = T - s.missed
    if s.permutation == "shared":
        truth = rng.permutation(T)
        place = np.argsort(truth)
        return truth, Y[:, place], times[0, place], U[:, place]
    rows = np.argsort(rng.random((n, T)), axis=1)[:, :kept]  # which are there, as they stand
    truth = np.argsort(rows, axis=1)
    take = partial(np.take_along_axis, indices=rows[:, :, None], axis=1)
    return truth, take(Y), np.take_along_axis(times, rows, axis=1), take(U)


def judged(
    s: Setting, model: rt.ReTrace, truth: np.ndarray, theta: np.ndarray, H: np.ndarray
) -> dict[str, float]:
    """Estimates of one fit compared with the truth."""
    d, errors = s.d, model.standard_errors_
    A, n = theta[:, :d], model.result_.n_trajectories
    order = model.order_
    right = rt.metrics.order_accuracy(truth, order)
    back = rt.metrics.order_accuracy(truth, order[..., ::-1])
    forward = rt.metrics.kendall_tau(truth, order) > 0
    lower = np.tril_indices(d)
    inside_A = np.abs(model.drift_ - A) <= half_widths(errors.drift, n)
    inside_H = np.abs(model.diffusion_ - H) <= half_widths(errors.diffusion, n)
    identified = model.direction_.identified
    values = (model.drift_, model.diffusion_, errors.drift, errors.diffusion)
    return {
        "nan": float(not all(np.isfinite(each).all() for each in values)),
        "trace H": float(np.trace(model.diffusion_) / np.trace(H)),
        "cover A": float(inside_A.mean()),
        "cover H": float(inside_H[lower].mean()),
        "accuracy": float(max(right, back)),
        "MAE-A": float(np.abs(model.drift_ - A).mean()),
        "MAE-H": float(np.abs(model.diffusion_ - H).mean()),
        "called right": float(identified and forward),
        "called wrong": float(identified and not forward),
        "converged": float(model.converged_),
    }


def positions(model: rt.ReTrace, truth: np.ndarray) -> dict[str, float]:
    """How often an observation stands where it was given a probability of .7 to .9."""
    P = np.asarray(model.position_probabilities_, dtype=float)
    place = np.argsort(truth, axis=1)
    there = (P > 0.7) & (P < 0.9)
    j, a, k = np.nonzero(there)
    if len(j) == 0:
        return {"given": np.nan, "right": np.nan, "said": 0.0}
    return {
        "given": float(P[there].sum()),
        "right": float((place[j, a] == k).sum()),
        "said": float(len(j)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="100:130")
    parser.add_argument("--only", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    chosen = [s for s in SETTINGS if given.only in (None, s.name)]
    tasks = [replace(s, seed=seed) for s in chosen for seed in range(first, last)]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = list(pool.map(run, tasks))
    columns = ["panels", "NaN", "trace of H", "A covered", "H covered", "order right"]
    columns += ["MAE-A (known)", "MAE-H (known)", "called right", "wrong", ".7 to .9: right"]
    for what in ("independent", "shared"):
        rows = [
            summary(s.name, [r for r, t in zip(results, tasks, strict=True) if t.name == s.name])
            for s in chosen
            if s.permutation == what
        ]
        if rows:
            print(
                *lines({"columns": [f"{what} orders", *columns], "rows": rows}),
                sep="\n",
                end="\n\n",
            )


def summary(name: str, rows: list[dict[str, float]]) -> list[str | float | None]:
    """Means over panels; errors of the fit with everything known stand in brackets."""
    mean = {key: float(np.nanmean([row[key] for row in rows])) for key in rows[0]}
    errors = [f"{mean[key]:.3f} ({mean['oracle ' + key]:.3f})" for key in ("MAE-A", "MAE-H")]
    said = sum(row.get("said", 0.0) for row in rows)
    right = float(np.nansum([row["right"] for row in rows])) / said if said else None
    first = [mean[key] for key in ("trace H", "cover A", "cover H", "accuracy")]
    called = mean["called right"], mean["called wrong"]
    return [name, len(rows), int(sum(row["nan"] for row in rows)), *first, *errors, *called, right]


if __name__ == "__main__":
    main()
