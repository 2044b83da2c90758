"""Every combination of options: each is fitted, and rejected ones are listed with their message.

    python studies/combinations.py [--jobs 2] [--write docs/combinations.md]

Orders shared or individual × noise × missing values × times regular, known or estimated × a linear, affine or driven drift × nothing
known, the first observation known, or timestamps with an error: 168 in all (known times leave nothing else to know).
A combination counts as fitted where order, parameters and standard errors are all finite.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np

import retrace_sde as rt
from retrace_sde.fit.statespace.transitions import transitions


class Combination(NamedTuple):
    """One of the 168, or of those that are refused."""

    permutation: str
    noise: bool
    missing: bool
    times: str
    drift: str
    known: str


def every() -> list[Combination]:
    """All combinations that make sense."""
    sides = (
        *(("shared", "independent"), (False, True), (False, True)),
        *(("regular", "known", "estimated"), ("linear", "affine", "inputs")),
        ("nothing", "first", "noisy timestamps"),
    )
    found = [Combination(*each) for each in product(*sides)]
    return [each for each in found if each.times != "known" or each.known == "nothing"]


def data(c: Combination, n: int = 12, T: int = 6, d: int = 2, seed: int = 0):  # type: ignore[no-untyped-def]
    """A transient of an affine SDE at irregular times, shuffled: X, inputs, times as they stand, and the true order."""
    rng = np.random.default_rng(seed)
    A, c0, H = np.array([[-1.0, 0.5], [-0.3, -1.2]]), np.array([0.3, 0.1]), 0.25 * np.eye(d)
    B = np.array([[0.8], [0.0]]) if c.drift == "inputs" else np.zeros((d, 1))
    gaps = np.full(T - 1, 0.2) if c.times == "regular" else rng.gamma(2.0, 0.1, T - 1)
    F, S, Q = transitions(np.c_[A, c0, B], H, gaps)
    U, x = rng.standard_normal((n, T, 1)), 2 + 0.3 * rng.standard_normal((n, d))
    path = [x]
    for t in range(T - 1):
        v = np.c_[np.ones(n), U[:, t]]
        x = x @ F[t].T + v @ S[t].T + rng.standard_normal((n, d)) @ np.linalg.cholesky(Q[t]).T
        path.append(x)
    X = np.stack(path, axis=1)
    X = X + 0.05 * rng.standard_normal(X.shape) if c.noise else X
    X = np.where(rng.random(X.shape) < 0.1, np.nan, X) if c.missing else X
    times = np.r_[0.0, np.cumsum(gaps)]
    if c.permutation == "shared":
        place = rng.permutation(T)
        return X[:, place], U[:, place], times[place], np.argsort(place)
    place = np.argsort(rng.random((n, T)), axis=1)
    take = place[:, :, None]
    shuffled = np.take_along_axis(X, take, axis=1)
    return shuffled, np.take_along_axis(U, take, axis=1), times[place], np.argsort(place, axis=1)


def knowledge(c: Combination, times: np.ndarray, truth: np.ndarray) -> rt.Knowledge | None:
    """What the fit is told of time."""
    if c.times == "known":
        return rt.Knowledge(timestamps=times)
    if c.known == "first":
        return rt.Knowledge(first=int(truth[0]) if truth.ndim == 1 else truth[:, 0])
    if c.known == "noisy timestamps":
        rng = np.random.default_rng(1)
        noisy = times + 0.1 * rng.standard_normal(times.shape)
        return rt.Knowledge(timestamps=noisy, timestamp_error=0.1)
    return None


def model_for(c: Combination, times: np.ndarray) -> rt.ReTrace:
    """The model a user would ask for."""
    return rt.ReTrace(
        dt=float(np.diff(np.sort(times, axis=-1), axis=-1).mean()),
        permutation=c.permutation,
        observation_noise="estimate" if c.noise else None,
        spacing="estimate" if c.times == "estimated" else "regular",
        drift="affine" if c.drift == "inputs" else c.drift,
        random_state=0,
        n_jobs=1,
    )


def tried(c: Combination) -> tuple[str, float]:
    """ "fitted", "not finite", or why it is refused; and the seconds it took."""
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    X, U, times, truth = data(c)
    model = model_for(c, times)
    try:
        model.fit(
            X, covariates=U if c.drift == "inputs" else None, knowledge=knowledge(c, times, truth)
        )
    except ValueError as error:
        return str(error), time.perf_counter() - begin
    errors = model.standard_errors_
    numbers = [model.drift_, model.diffusion_, errors.drift, errors.diffusion]
    numbers += [model.inputs_, errors.inputs] if c.drift == "inputs" else []
    finite = all(np.isfinite(each).all() for each in numbers)
    return "fitted" if finite else "not finite", time.perf_counter() - begin


REFUSED = (
    ("observation noise, or missing values, and a nonlinear drift",
     lambda X, U: rt.ReTrace(drift=rt.drift.Polynomial(2), observation_noise=0.1).fit(X)),
    ("gaps of own orders unknown, and a nonlinear drift",
     lambda X, U: rt.ReTrace(drift=rt.drift.Polynomial(2), spacing="estimate", permutation="independent").fit(X)),
    ("a schedule, and a nonlinear drift",
     lambda X, U: rt.ReTrace(drift=rt.drift.Polynomial(2)).fit(X, knowledge=rt.Knowledge(schedule=np.arange(X.shape[1])))),
    ("a schedule of a shared order with more times than slices",
     lambda X, U: rt.ReTrace().fit(X, knowledge=rt.Knowledge(schedule=np.arange(X.shape[1] + 2)))),
    ("the paper's algorithm, and gaps that are not known",
     lambda X, U: rt.ReTrace(order="score", spacing="estimate", drift="linear").fit(X)),
    ("the paper's algorithm, and knowledge of time",
     lambda X, U: rt.ReTrace(order="score", drift="linear").fit(X, knowledge=rt.Knowledge(first=0))),
    ("the paper's algorithm, and orders of their own",
     lambda X, U: rt.ReTrace(order="score", permutation="independent", drift="linear").fit(X)),
    ("estimator='mle' or 'ols', and noise or missing values",
     lambda X, U: rt.ReTrace(estimator="mle", observation_noise=0.1).fit(X)),
    ("inputs that are missing, unless they are to be carried on or interpolated",
     lambda X, U: rt.ReTrace().fit(X, covariates=np.where(U > 1, np.nan, U))),
    ("an input that is constant", lambda X, U: rt.ReTrace(observation_noise=0.1).fit(X, covariates=np.ones_like(U))),
    ("levels of subjects by name, and averages over orders",
     lambda X, U: rt.ReTrace(subjects="levels", estimator="mcem", permutation="independent").fit(X)),
    ("levels of subjects by name, and gaps of own orders that are not known",
     lambda X, U: rt.ReTrace(subjects="levels", spacing="estimate", permutation="independent").fit(X)),
    ("rates of subjects by name, and noise or missing values",
     lambda X, U: rt.ReTrace(subjects="rates", observation_noise=0.1).fit(X)),
)  # fmt: skip
"""What cannot be combined, and a call that shows it."""


def reasons() -> list[tuple[str, str]]:
    """What cannot be combined, and what is said of it."""
    warnings.simplefilter("ignore")
    X, U, _, _ = data(Combination("shared", False, False, "regular", "affine", "nothing"))
    found = []
    for name, call in REFUSED:
        try:
            call(X, U)
        except ValueError as error:
            found.append((name, str(error)))
        else:
            found.append((name, "is not refused"))
    return found


def row(key: tuple[str, bool, bool, str], results: dict[Combination, str]) -> str:
    """A line of the page's table: what became of the combinations that begin with `key`."""
    cells = []
    for drift in ("linear", "affine", "inputs"):
        these = [v for c, v in results.items() if c[:4] == key and c.drift == drift]
        good = sum(v == "fitted" for v in these)
        cells.append("yes" if good == len(these) else f"{good} of {len(these)}")
    permutation, noise, missing, times = key
    own = "own" if permutation == "independent" else "shared"
    parts = (own, "yes" if noise else "no", "yes" if missing else "no", times, *cells)
    return "| " + " | ".join(parts) + " |"


def written(results: dict[Combination, str]) -> str:
    """The page of the docs."""
    lines = ["# What can be combined", ""]
    fitted = sum(each == "fitted" for each in results.values())
    lines += [
        f"{fitted} of {len(results)} combinations fit, with finite parameters and errors "
        "(`python studies/combinations.py --write docs/combinations.md`; a test tries each of them).",
        "",
        "| orders | noise | missing values | times | linear | affine | with inputs |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [row(key, results) for key in dict.fromkeys(each[:4] for each in results)]
    lines += ["", "Each cell with regular or estimated times stands for three: nothing more known, the first observation known, "
              "timestamps with an error.", "", "## What cannot", "", "| what | what is said |", "|---|---|"]  # fmt: skip
    lines += [f"| {name} | {text} |" for name, text in reasons()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", default=None)
    given = parser.parse_args()
    combinations = every()
    with ProcessPoolExecutor(given.jobs) as pool:
        results = dict(zip(combinations, pool.map(tried, combinations), strict=True))
    for c, (text, _) in results.items():
        if text != "fitted":
            print(*c, "→", text)
    print(sum(text == "fitted" for text, _ in results.values()), "of", len(results), "fitted")
    print(f"slowest {max(seconds for _, seconds in results.values()):.0f} s")
    page = written({c: text for c, (text, _) in results.items()})
    if given.write:
        with open(given.write, "w", encoding="utf-8") as file:
            file.write(page)


if __name__ == "__main__":
    main()
