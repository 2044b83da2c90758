"""Coverage of 95 % intervals: random intercepts or rates of subjects, few subjects; and comparison with a bootstrap.

    python studies/interval_coverage.py --seeds 0:100                       levels of sd 0, 1, 3 and random rates, order lost
    python studies/interval_coverage.py --seeds 0:100 --few                 5 and 8 subjects
    python studies/interval_coverage.py --seeds 0:100 --short               random intercepts, total time shorter than mean reversion
    python studies/interval_coverage.py --seeds 0:100 --hidden              order known: noise, missing values, uneven gaps
    python studies/interval_coverage.py --seeds 0:100 --steps               order lost, steps of .02, .15 and .5: shared, own, noise, missing, levels
    python studies/interval_coverage.py --panels FOLDER                     reported errors compared with a bootstrap over subjects

`wrong`: a direction was called that is the reverse of the truth. `width`: mean half-width relative to subjects="alike".
`levels`: how often they were chosen. `c`: coverage of the intercept; `noise`: mean estimate of its deviation, relative to the truth.
`±`: Monte-Carlo errors. `exact`: how often the parameters are the SDE's, not Euler's. `alike`: coverage of A by subjects="alike". `bootstrap / reported`: median over coefficients, the whole fit repeated along the order
that was found (`known`: with the true order).
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths
from retrace_sde.lost_time.table import lines

A = np.array([[-1.0, 0.5], [-0.3, -1.2]])
H = 0.25 * np.eye(2)


def panel(seed, *, n=120, T=20, dt=0.15, levels=0.0, rates=0.0):
    """Exact paths from 2 ± .3, subjects with intercepts of a standard deviation, or rates of one of the logarithm."""
    rng = np.random.default_rng(seed)
    c = levels * rng.standard_normal((n, 2))
    rate = np.exp(rates * rng.standard_normal(n))
    steps = [
        rt.LinearSDE(r * A, H, offset=own).transition(dt) for r, own in zip(rate, c, strict=True)
    ]
    F, s, Q = map(
        np.array, zip(*[(each.matrix, each.shift, each.covariance) for each in steps], strict=True)
    )
    root = np.linalg.cholesky(Q)
    path = [2 + 0.3 * rng.standard_normal((n, 2))]
    for _ in range(T - 1):
        x, noise = path[-1], rng.standard_normal((n, 2))
        path.append(np.einsum("nij,nj->ni", F, x) + s + np.einsum("nij,nj->ni", root, noise))
    return np.stack(path, axis=1)


def fitted(X, seed, *, permutation="shared", **options):
    """A shuffled panel's fit with default settings, and whether a wrong direction was called."""
    shuffled, truth = rt.simulate.shuffle(X, permutation=permutation, random_state=seed)
    options = {"random_state": 0, "permutation": permutation, **options}
    model = rt.ReTrace(**options).fit(shuffled)
    backwards = rt.metrics.kendall_tau(truth, model.order_) < 0
    wrong = model.direction_.identified and backwards
    if backwards and not model.direction_.identified:
        model = rt.ReTrace(**options).fit(X, knowledge=rt.Knowledge(first=0))
    return model, wrong


def covered(model):
    """Shares of A and H inside their intervals, and the mean half-width."""
    n = model.result_.n_trajectories
    reach = half_widths(model.standard_errors_.drift, n)
    inside = np.abs(model.diffusion_ - H) < half_widths(model.standard_errors_.diffusion, n)
    return np.mean(np.abs(model.drift_ - A) < reach), np.mean(inside), reach.mean()


def one(seed, settings):
    """One simulated panel, its order lost: shares of A and H that are covered, wrong, width and levels."""
    warnings.simplefilter("ignore")
    X = panel(seed, **settings)
    model, wrong = fitted(X, seed, dt=0.15)
    alike, _ = fitted(X, seed, dt=0.15, subjects="alike")
    a, h, width = covered(model)
    of_alike, _, of_width = covered(alike)
    return [a, h, wrong, width / of_width, _has_levels(model), of_alike]


def _has_levels(model):
    return model.subject_effects_ is not None and model.subject_effects_.kind == "levels"


def one_hidden(seed, settings):
    """The same in the known order, measured with an error of .1, or with values missing, or across uneven gaps."""
    warnings.simplefilter("ignore")
    kind, settings = settings["kind"], {k: v for k, v in settings.items() if k != "kind"}
    rng = np.random.default_rng(seed + 10**6)
    T, noise = settings["T"], 0.0 if kind == "missing" else 0.1
    fine = panel(seed, **{**settings, "T": 2 * T, "dt": 0.15}) if kind == "uneven" else None
    X, times = panel(seed, **settings) if fine is None else fine, 0.15 * np.arange(float(T))
    if fine is not None:
        kept = np.r_[0, np.sort(rng.choice(np.arange(1, 2 * T), T - 1, replace=False))]
        X, times = fine[:, kept], 0.15 * kept
    X = X + noise * rng.standard_normal(X.shape)
    X = np.where((rng.random(X.shape) < 0.15) & (kind == "missing"), np.nan, X)
    options = {"observation_noise": "estimate"} if noise else {}
    model = rt.ReTrace(dt=0.15, random_state=0, n_jobs=1, **options)
    model.fit(X, knowledge=rt.Knowledge(timestamps=times))
    a, h, _ = covered(model)
    sigma = np.nan if not noise else model.result_.observation_noise[0, 0] ** 0.5
    return [a, h, sigma, np.trace(model.drift_), _has_levels(model)]


def one_step(seed, settings):
    """Order lost, a step of a length: states as they are, orders of their own, measured with noise, with values missing, with levels."""
    warnings.simplefilter("ignore")
    kind, dt = settings["kind"], settings["dt"]
    X = panel(seed, n=60, T=20, dt=dt, levels=float(kind == "levels"))
    rng = np.random.default_rng(seed + 10**6)
    options = {"dt": dt, "n_jobs": 1}
    if kind == "own":
        options["permutation"] = "independent"
    if kind == "noise":
        X = X + 0.1 * rng.standard_normal(X.shape)
        options["observation_noise"] = "estimate"
    if kind == "missing":
        X = np.where(rng.random(X.shape) < 0.15, np.nan, X)
    model, wrong = fitted(X, seed, **options)
    a, h, _ = covered(model)
    result = model.result_
    c = np.mean(np.abs(result.offset) < half_widths(model.standard_errors_.offset, len(X)))
    R = result.observation_noise
    noise = np.nan if kind != "noise" or R is None else R[0, 0] ** 0.5 / 0.1
    return [a, h, c, noise, _has_levels(model), wrong, result.scheme == "exact"]


def simulated(seeds, cases, jobs, run):
    """Mean over panels of every case, shares of A and H with their Monte-Carlo errors: entries of one panel are not independent."""
    found = {}
    for name, settings in cases.items():
        rows = np.array(Parallel(jobs)(delayed(run)(seed, settings) for seed in seeds), dtype=float)
        mean, doubt = np.nanmean(rows, axis=0), rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        shares = [f"{mean[k]:.3f} ± {doubt[k]:.3f}" for k in range(2)]
        rest = [None if np.isnan(each) else f"{each:.3f}" for each in mean[2:]]
        found[name] = [*shares, *rest]
        print(f"{name}: {found[name]}", flush=True)
    return found


def values(path):
    """A complete panel (n, T, d) of a long table `subject, time, …`, in time order."""
    frame = pd.read_csv(path)
    numbers = frame.select_dtypes("number").columns
    names = [each for each in numbers if each not in ("subject", "time", "actual_hours")]
    groups = [each[names].to_numpy(float) for _, each in frame.groupby("subject", sort=False)]
    return np.stack(groups) if len({len(each) for each in groups}) == 1 else None


def compared(path, order, replicates):
    """One panel's bootstrap and reported errors, order known or lost: a row of the table."""
    warnings.simplefilter("ignore")
    X = values(path)
    X = (X - X.mean(axis=(0, 1))) / X.std(axis=(0, 1))
    known = None
    if order == "known":
        known = rt.Knowledge(timestamps=np.arange(X.shape[1], dtype=float))
    given = X if known is not None else rt.simulate.shuffle(X, random_state=1)[0]
    model = rt.ReTrace(random_state=0, n_jobs=1).fit(given, knowledge=known)
    errors = model.bootstrap_errors(draws=replicates)
    reported = model.standard_errors_
    ratios = [errors.drift / reported.drift, errors.diffusion / reported.diffusion]
    ratio = np.median(np.concatenate([each.ravel() for each in ratios]))
    effects = model.subject_effects_
    kind = "–" if effects is None else str(effects.kind)
    return [path.stem, len(X), order, str(reported.kind), kind, float(ratio)]


def panels(folder, replicates, fewest, jobs):
    cases = []
    for path in sorted(Path(folder).glob("*.csv")):
        X = values(path)
        if X is not None and not np.isnan(X).any() and len(X) >= fewest:
            cases += [(path, "known"), (path, "lost")]
    rows = Parallel(jobs)(delayed(compared)(*each, replicates) for each in cases)
    columns = ["real panel", "n", "order", "errors", "subjects", "bootstrap / reported"]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:20", help="a:b")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--panels", metavar="FOLDER")
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--fewest", type=int, default=40)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.panels:
        panels(given.panels, given.replicates, given.fewest, given.jobs)
        return
    cases = {f"levels sd {sd:g}": {"levels": sd} for sd in (0.0, 1.0, 3.0)}
    cases["rates sd 0.3"] = {"rates": 0.3}
    if given.few:
        cases = {f"n = {n}": {"n": n} for n in (5, 8)}
    if given.short:
        cases = {"levels sd 1, total time .6": {"levels": 1.0, "n": 60, "T": 5}}
    begin, end = map(int, given.seeds.split(":"))
    run, columns = one, ("A", "H", "wrong", "width", "levels", "alike")
    if given.hidden:
        run, columns = one_hidden, ("A", "H", "sigma", "trace A", "levels")
        cases = {"noise .1, alike, n = 40, T = 15": {"kind": "noise", "n": 40, "T": 15}}
        for kind in ("noise", "missing", "uneven"):
            cases[f"{kind}, levels sd 1"] = {"kind": kind, "n": 60, "T": 15, "levels": 1.0}
    if given.steps:
        run, columns = one_step, ("A", "H", "c", "noise", "levels", "wrong", "exact")
        kinds = ("shared", "own", "noise", "missing", "levels")
        each = [(kind, dt) for kind in kinds for dt in (0.02, 0.15, 0.5)]
        cases = {f"{kind}, step {dt:g}": {"kind": kind, "dt": dt} for kind, dt in each}
    chosen = {name: each for name, each in cases.items() if given.only in name}
    found = simulated(range(begin, end), chosen, given.jobs, run)
    rows = [[name, end - begin, *each] for name, each in found.items()]
    print(*lines({"columns": ["subjects", "panels", *columns], "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
