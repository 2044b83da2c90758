"""Few trajectories: are positions as certain as they are said to be, and do intervals hold the truth?

    python studies/few.py --seeds 20000:20100 --jobs 16              n = 3, 5, 8 in one and two variables, T = 12
    python studies/few.py --seeds 20000:20100 --jobs 16 --rest       at rest, n = 100: the direction is open

Exact paths of a linear SDE, their slices shuffled; fits have default settings. `sure`: share of positions given a probability of .9
or more, and how many of those are `right`; `given`: how many precedences were given .7 to .9, and `pairs`: the share of those that hold. A and H: entries inside their 95 %
intervals, of the twin where the direction is open and the order shown runs backwards. `trace`: median of the trace of H relative to the truth.
`called`: how often a direction is identified, and `wrong`. With --rest, `middle`: share of the panels with an open direction in which
the precedence of the first and last slice is between .2 and .8.
"""

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import expm

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths
from retrace_sde.lost_time.table import lines

DT = 0.15
A = {1: np.array([[-1.0]]), 2: np.array([[-1.0, 0.5], [-0.3, -1.2]])}
H = {1: np.array([[0.25]]), 2: 0.25 * np.eye(2)}


def panel(rng, n, d, T, *, rest=False):
    """Exact paths from 2 ± .3, or at rest."""
    F = expm(A[d] * DT)
    K = np.kron(np.eye(d), A[d]) + np.kron(A[d], np.eye(d))
    stationary = np.linalg.solve(K, -H[d].ravel()).reshape(d, d)
    Q = np.linalg.cholesky(stationary - F @ stationary @ F.T)
    x = 2 + 0.3 * rng.standard_normal((n, d))
    if rest:
        x = rng.standard_normal((n, d)) @ np.linalg.cholesky(stationary).T
    path = [x]
    for _ in range(T - 1):
        path.append(path[-1] @ F.T + rng.standard_normal((n, d)) @ Q.T)
    return np.stack(path, axis=1)


def pairs(model, truth):
    """Probabilities of the more likely precedence of every pair, and whether it holds."""
    T = len(truth)
    place = np.argsort(truth)
    i, j = np.triu_indices(T, 1)
    came = np.array(
        [model.precedence_probability(int(a), int(b)) for a, b in zip(i, j, strict=True)]
    )
    holds = place[i] < place[j]
    return np.maximum(came, 1 - came), np.where(came >= 0.5, holds, ~holds)


def one(seed, n, d, T, rest, options):
    """One panel's counts."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    X, truth = rt.simulate.shuffle(panel(rng, n, d, T, rest=rest), random_state=seed)
    model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, **options).fit(X)
    result, identified = model.result_, model.direction_.identified
    backwards = rt.metrics.kendall_tau(truth, model.order_) < 0
    shown = result.alternative if backwards and not identified else result
    P = model.position_probabilities_
    given, right = P[model.order_, np.arange(T)], model.order_ == truth
    said, holds = pairs(model, truth)
    between = (said >= 0.7) & (said < 0.9)
    errors, n = shown.standard_errors, result.n_groups
    ends = model.precedence_probability(int(model.order_[0]), int(model.order_[-1]))
    return {
        "sure": float((given >= 0.9).mean()),
        "sure n": float((given >= 0.9).sum()),
        "right n": float(right[given >= 0.9].sum()),
        "between n": float(between.sum()),
        "holds n": float(holds[between].sum()),
        "A": covered(shown.drift, errors.drift, n, A[d]),
        "H": covered(shown.diffusion, errors.diffusion, n, H[d]),
        "trace": float(np.trace(shown.diffusion) / np.trace(H[d])),
        "called": float(identified),
        "wrong": float(identified and backwards),
        "open": float(not identified),
        "middle": float(not identified and 0.2 <= ends <= 0.8),
    }


def covered(values, errors, n, truth):
    """Share of the entries whose interval holds the truth."""
    return float(np.mean(np.abs(values - truth) <= half_widths(errors, n)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:20", help="a:b")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--estimator", default="auto")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    begin, end = map(int, given.seeds.split(":"))
    options = {"estimator": given.estimator}
    cases = {f"n={n} d={d}": (n, d, 12, False) for d in (2, 1) for n in (3, 5, 8)}
    if given.rest:
        cases = {"rest n=100 d=2": (100, 2, 12, True)}
    columns = ["panel", "panels", "sure", "right", "given", "pairs", "A", "H", "trace", "called"]
    columns += ["wrong"] + ["middle"] * given.rest
    table = []
    for name, case in cases.items():
        if given.only not in name:
            continue
        rows = Parallel(given.jobs)(
            delayed(one)(seed, *case, options) for seed in range(begin, end)
        )
        total = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        sums = {key: float(each.sum()) for key, each in total.items()}
        mean = {key: float(each.mean()) for key, each in total.items()}
        shares = [
            mean["sure"],
            sums["right n"] / sums["sure n"] if sums["sure n"] else None,
            int(sums["between n"]),
            sums["holds n"] / sums["between n"] if sums["between n"] else None,
            mean["A"],
            mean["H"],
            float(np.median(total["trace"])),
            mean["called"],
            mean["wrong"],
        ]
        middle = [sums["middle"] / max(sums["open"], 1)] * given.rest
        table.append([name, len(rows), *shares, *middle])
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
