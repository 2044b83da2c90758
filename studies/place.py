"""Orders of new subjects, learned from subjects whose order is known; and segments of lost order.

    python studies/place.py [--seeds 0:10] [--jobs 1] [--only pairs|segments|real] [--folder FOLDER]

pairs: calibration of `precedence` on simulated panels (random irreversible SDEs, d = 3, 200 known subjects, 2,000 new ones with three
observations). segments: 6 segments of 10 observations, 30 subjects, gaps of 2 to 10 (20) steps; of own
segments also what somebody reaches who knows the process and the law of gaps. real (FOLDER holds long csv files
`subject,time,<variables>` in true time order): half of the subjects known, the orders of the others hidden; log-loss, accuracy and
calibration error of pairs beside gradient boosting of pairs, logistic regression on differences, and the best single variable.
Whole trajectories, and three consecutive visits of each.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import permutations, product
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from real_panels import PANELS, read_panel
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import retrace_sde as rt
from retrace_sde.lost_time.table import lines
from retrace_sde.search.enumerated import exponent_of, tempered

SETS = ("pbcseq_visits", "physionet2012_icu_4h", "berkeley_growth")

LEAST = 0.005
"""Probabilities are kept this far from 0 and 1: sampled orders say no more."""


def shuffled(Y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each trajectory in an order of its own, and the time of each observation."""
    time = np.argsort(rng.random(Y.shape[:2]), axis=1)
    return np.take_along_axis(Y, time[..., None], axis=1), time


def learned(Y: np.ndarray, dt: float = 1.0, **settings: object) -> rt.ReTrace:
    """A fit to subjects in known order."""
    known = rt.Knowledge(positions=np.tile(np.arange(Y.shape[1]), (len(Y), 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=dt, permutation="independent", random_state=0, n_jobs=1, **settings)  # type: ignore[arg-type]
        return model.fit(Y, knowledge=known)


def of_pairs(P: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that a came before b and whether it did, of all pairs a < b as stored."""
    a, b = np.triu_indices(time.shape[1], 1)
    return P[:, a, b].ravel(), (time[:, a] < time[:, b]).ravel()


def scores(p: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Log-loss, accuracy and expected calibration error (ten bins)."""
    p = np.clip(p, LEAST, 1 - LEAST)
    loss = -np.where(came, np.log(p), np.log(1 - p)).mean()
    right = ((p > 0.5) == came).mean()
    bins = np.minimum((10 * p).astype(int), 9)
    gaps = [abs((p - came)[bins == k].sum()) for k in range(10)]
    return np.array([loss, right, sum(gaps) / len(p)])


def pairs(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    Y = sde.simulate(2200, 3, 0.3, scheme="exact", random_state=rng)
    X, time = shuffled(Y[200:], rng)
    return scores(*of_pairs(learned(Y[:200], 0.3, subjects="alike").precedence(X), time))


def segments(seed: int, longest: int) -> float:
    """Whether all segments stand in order."""
    rng, S, L, dt = np.random.default_rng(seed), 6, 10, 0.05
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    begins = np.r_[0, np.cumsum(rng.integers(2, longest + 1, size=S - 1) + L - 1)]
    slices = np.concatenate([begin + np.arange(L) for begin in begins])
    Y = sde.simulate(30, slices[-1] + 1, dt, scheme="exact", random_state=rng)[:, slices]
    place = rng.permutation(S)
    X = np.concatenate([Y[:, p * L : (p + 1) * L] for p in place], axis=1)
    known = rt.Knowledge(segments=np.repeat(np.arange(S), L))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=dt, subjects="alike", random_state=0, n_jobs=1).fit(
            X, knowledge=known
        )
    return float((place[model.order_[::L] // L] == np.arange(S)).all())


LENGTH, STEP, SUBJECTS, GAPS = 10, 0.05, 30, range(2, 11)
"""Of own segments: observations of each, time between them, subjects, and steps between neighbouring segments."""


def in_segments(seed: int, S: int) -> tuple[np.ndarray, np.ndarray]:
    """Subjects whose segments are stored in orders of their own, (n, S L, d), and the true places of the segments."""
    rng, L, n = np.random.default_rng(seed), LENGTH, SUBJECTS
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    Y = sde.simulate(n, S * (L + 10), STEP, scheme="exact", random_state=rng)
    gaps = rng.integers(GAPS.start, GAPS.stop, (n, S - 1))
    begins = np.c_[np.zeros(n, dtype=int), np.cumsum(gaps + L - 1, axis=1)]
    places = np.array([rng.permutation(S) for _ in range(n)])
    return np.array(
        [
            np.concatenate([Y[j, begins[j, p] : begins[j, p] + L] for p in each])
            for j, each in enumerate(places)
        ]
    ), places


def right_joints(found: np.ndarray) -> float:
    """The share of neighbouring segments that follow one another in time."""
    return float((np.diff(found, axis=1) == 1).mean())


def own_segments(seed: int, S: int) -> float:
    """The share of joints of neighbouring segments that are right, 30 subjects with orders of their own."""
    X, places = in_segments(seed, S)
    known = rt.Knowledge(segments=np.tile(np.repeat(np.arange(S), LENGTH), (SUBJECTS, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=STEP, permutation="independent", subjects="alike", random_state=0, n_jobs=1)  # fmt: skip
        model.fit(X, knowledge=known)
    return right_joints(np.take_along_axis(places, model.order_[:, ::LENGTH] // LENGTH, axis=1))


def own_segments_limit(seed: int, S: int) -> float:
    """The same by somebody who knows the process and the law of gaps: the most likely of all orders of the segments."""
    X, places = in_segments(seed, S)
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    assert sde.initial is not None
    first, last = X[:, ::LENGTH], X[:, LENGTH - 1 :: LENGTH]
    laws = [sde.transition(gap * STEP) for gap in GAPS]
    each = []
    for law in laws:  # of b after a, (n, a, b)
        rest = first[:, None] - (last @ law.matrix.T + law.shift)[:, :, None]
        each.append(multivariate_normal(np.zeros(3), law.covariance).logpdf(rest))
    joint, start = logsumexp(each, axis=0), sde.initial.log_density(first)
    orders = np.array(list(permutations(range(S))))
    score = start[:, orders[:, 0]] + joint[:, orders[:, :-1], orders[:, 1:]].sum(axis=2)
    return right_joints(np.take_along_axis(places, orders[score.argmax(axis=1)], axis=1))


def features(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    one, two = x[:, a].reshape(-1, x.shape[2]), x[:, b].reshape(-1, x.shape[2])
    return np.concatenate([one, two, one - two], axis=1)


def peers(X: np.ndarray, time: np.ndarray, new: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Probabilities of the new subjects' pairs by classifiers that learn from shuffled known ones."""
    d = X.shape[2]
    a, b = np.triu_indices(X.shape[1], 1)
    came = (time[:, a] < time[:, b]).ravel()
    seen, mirrored = features(X, a, b), features(X, b, a)
    there, back = features(new, a, b), features(new, b, a)
    both, told = np.concatenate([seen, mirrored]), np.concatenate([came, ~came])
    boost = HistGradientBoostingClassifier(random_state=seed, early_stopping=True).fit(both, told)
    by_boost = (boost.predict_proba(there)[:, 1] + boost.predict_proba(back)[:, 0]) / 2
    scale = seen[:, 2 * d :].std(axis=0)
    logistic = LogisticRegression(fit_intercept=False).fit(both[:, 2 * d :] / scale, told)
    by_logistic = logistic.predict_proba(there[:, 2 * d :] / scale)[:, 1]
    rises = (seen[:, 2 * d :] < 0) == came[:, None]
    share = rises.mean(axis=0)
    best = int(np.abs(share - 0.5).argmax())
    by_variable = np.where(there[:, 2 * d + best] < 0, share[best], 1 - share[best])
    return {"gradient boosting of pairs": by_boost, "logistic regression on differences": by_logistic,
            "best single variable": by_variable}  # fmt: skip


def real(folder: Path, name: str, seed: int, *, three: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    Y = np.asarray(read_panel(folder / f"{name}.csv", PANELS[name]))
    Y = Y[rng.permutation(len(Y))]
    if three:
        begin = rng.integers(Y.shape[1] - 2, size=len(Y))[:, None] + np.arange(3)
        Y = np.take_along_axis(Y, begin[..., None], axis=1)
    half = len(Y) // 2
    new, time = shuffled(Y[half:], rng)
    found = {"ReTrace": learned(Y[:half], observation_noise="auto").precedence(new)}
    p, came = of_pairs(found["ReTrace"], time)
    halves = [(Y[:half][k::2], Y[:half][1 - k :: 2]) for k in (0, 1)]
    right = []
    for known, judged in halves:  # as recover(order_known=…) does
        some, when = shuffled(judged, rng)
        q, first = of_pairs(learned(known, observation_noise="auto").precedence(some), when)
        right.append(np.where(first, q, 1 - q))
    by_known = tempered(p, exponent_of(np.concatenate(right)))
    rows = {"ReTrace": scores(p, came), "ReTrace, tempered": scores(by_known, came)}
    for method, each in peers(*shuffled(Y[:half], rng), new, seed).items():
        rows[method] = scores(each, came)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:10", help="A:B")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=["pairs", "segments", "real"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    seeds = range(*(int(each) for each in options.seeds.split(":")))
    run = Parallel(options.jobs)
    if options.only in (None, "pairs"):
        found = np.mean(run(delayed(pairs)(seed) for seed in seeds), axis=0)
        columns = ["pairs of simulated panels", "panels", "log-loss", "right", "calibration error"]
        rows = [["three observations", len(seeds), *(f"{each:.3f}" for each in found)]]
        print(*lines({"columns": columns, "rows": rows}), sep="\n", end="\n\n")
    if options.only in (None, "segments"):
        rows = []
        for longest in (10, 20):
            right = np.mean(run(delayed(segments)(seed, longest) for seed in seeds))
            rows.append(
                [f"one order, gaps of 2 to {longest} steps", len(seeds), float(right), None]
            )
        for S in (2, 6):
            right = np.mean(run(delayed(own_segments)(seed, S) for seed in seeds))
            limit = np.mean([own_segments_limit(seed, S) for seed in seeds])
            rows.append([f"own orders, {S} of each", len(seeds), float(right), float(limit)])
        columns = ["segments", "panels", "all in order, or joints right", "process known"]
        print(*lines({"columns": columns, "rows": rows}), sep="\n", end="\n\n")
    if options.only in (None, "real") and options.folder is not None:
        rows = []
        for name, three in product(SETS, (False, True)):
            work = (delayed(real)(options.folder, name, seed, three=three) for seed in seeds)
            each = run(work)
            methods = {key: np.mean([one[key] for one in each], axis=0) for key in each[0]}
            what = "three visits" if three else "all visits"
            cells = [" / ".join(f"{cell:.2f}" for cell in mean) for mean in methods.values()]
            rows.append([f"{name}, {what}", len(seeds), *cells])
        columns = ["log-loss / right / calibration error", "halves", *methods]
        print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
