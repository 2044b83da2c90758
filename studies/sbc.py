"""Simulation-based calibration (Talts et al. 2018) of the posterior over a shared order and its parameters.

    python studies/sbc.py --seeds 20000:20500 --jobs 16

Parameters and first states are drawn from the prior that the sampler uses, a panel from these, and its slices are shuffled. The rank of
each true value among draws of the posterior is then uniform: of the coefficients, the log-determinant of the covariance and the log
evidence of the order; and, ties broken at random, of the precedence of the first and the last slice and of two random ones. Printed: χ² over ten
bins, and its p-value. The direction is one of the unknowns here: it is drawn with the order.
"""

import argparse

import numpy as np
from joblib import Parallel, delayed
from scipy import stats

from retrace_sde.orders.collapsed.chains import draw_orders
from retrace_sde.orders.collapsed.marginal import (
    Conjugate,
    OrderEvidence,
    StartPrior,
    StepPrior,
)

N, T, D, BINS, RECORDS = 3, 8, 2, 10, 100
STEP = StepPrior(10 * np.eye(D + 1), D + 6.0, 0.4 * np.eye(D))
START = StartPrior(np.zeros(D), 1.0, D + 6.0, 4.0 * np.eye(D))


def features(x):
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)


def panel(rng):
    """Parameters and a panel (T, n, d) in time order, from the prior."""
    law = Conjugate(np.zeros((D, D + 1)), STEP.precision, STEP.freedom, STEP.scale)
    theta, Q = law.draw(rng)
    centre = Conjugate(np.zeros((D, 1)), np.eye(1) * START.weight, START.freedom, START.scale)
    mean, spread = centre.draw(rng)
    x = [mean[:, 0] + rng.standard_normal((N, D)) @ np.linalg.cholesky(spread).T]
    root = np.linalg.cholesky(Q)
    for _ in range(T - 1):
        x.append(x[-1] + features(x[-1]) @ theta.T + rng.standard_normal((N, D)) @ root.T)
    return theta, Q, np.array(x)


def one(seed):
    """Ranks, between 0 and 1, of the true values of one panel."""
    rng = np.random.default_rng(seed)
    theta, Q, x = panel(rng)
    shuffle = rng.permutation(T)
    truth = np.argsort(shuffle)  # slice `shuffle[k]` in time stands at k
    states = x[shuffle]
    evidence = OrderEvidence.of(states, features(states), (STEP, START))
    starts = np.array([[rng.permutation(T) for _ in range(4)] for _ in range(4)])
    drawn = draw_orders(evidence, None, starts, rng, records=RECORDS, stretch=2)
    orders = drawn.orders.reshape(-1, T)[::4]
    laws = [evidence.parameters(order).draw(rng) for order in orders]
    i, j = rng.choice(T, 2, replace=False)
    first, last = 0, T - 1
    place, there = np.argsort(orders, axis=1), np.argsort(truth)
    found = {
        **{f"theta {r}{c}": ([t[r, c] for t, _ in laws], theta[r, c]) for r in range(D) for c in range(D + 1)},
        "log det Q": ([np.linalg.slogdet(q)[1] for _, q in laws], np.linalg.slogdet(Q)[1]),
        "log evidence": (evidence(orders), evidence(truth[None])[0]),
        "a pair": (place[:, i] < place[:, j], there[i] < there[j]),
        "slices 0, T - 1": (place[:, first] < place[:, last], there[first] < there[last]),
        "position": (place[:, i], there[i]),
    }  # fmt: skip
    ranks = {}
    for name, (draws, value) in found.items():
        draws = np.asarray(draws, dtype=float)
        below, ties = (draws < value).sum(), (np.abs(draws - value) < 1e-9).sum()
        ranks[name] = (below + rng.integers(0, ties + 1)) / (len(draws) + 1)
    return ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:100", help="a:b")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    begin, end = map(int, given.seeds.split(":"))
    rows = Parallel(given.jobs)(delayed(one)(seed) for seed in range(begin, end))
    print(f"{'quantity':<18}{'chi2':>8}{'p':>8}   counts of {len(rows)} ranks")
    for name in rows[0]:
        counts = np.histogram([row[name] for row in rows], bins=BINS, range=(0, 1))[0]
        chi2, p = stats.chisquare(counts)
        print(f"{name:<18}{chi2:8.1f}{p:8.3f}   {' '.join(map(str, counts))}")


if __name__ == "__main__":
    main()
