"""Identifiability: a small simulation for every statement of docs/theory.md.

python studies/theory.py --seeds 0:20
python studies/theory.py --seeds 0:20 --only twin
"""

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed
from scipy import stats
from scipy.linalg import expm

import retrace_sde as rt

VORTEX = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
SADDLE = rt.LinearSDE([[-1.0, 0.3], [0.3, -0.6]], np.eye(2))
CHAIN = rt.LinearSDE([[-1.0, 0.0], [2.0, -1.0]], np.eye(2))
OFF_REST = rt.Gaussian(np.array([2.0, 0.0]), 0.1 * np.eye(2))


def fitted(X, **options):
    """A fit of X with its order lost, the true order, and whether the answer runs forwards."""
    lost, truth = rt.simulate.shuffle(
        X, permutation=options.get("permutation", "shared"), random_state=0
    )
    model = rt.ReTrace(random_state=0, n_jobs=1, **options).fit(lost)
    return model, truth, rt.metrics.kendall_tau(truth, model.order_) > 0


def order(seed):
    """Statement 1: a shared order is found as n grows; individual orders stay uncertain."""
    found = []
    for n in (2, 10, 50):
        X = VORTEX.simulate(n, 20, 0.1, x0="stationary", random_state=seed)
        for permutation in ("shared", "independent"):
            estimator = "auto" if permutation == "shared" else "mle"
            model, truth, _ = fitted(X, dt=0.1, permutation=permutation, estimator=estimator)
            found.append(rt.metrics.order_accuracy(truth, model.order_, up_to_reversal=True))
    return found


def reversible(seed):
    """Statement 2: A known and reversible: both directions have the same likelihood, path by path."""
    X = SADDLE.simulate(50, 20, 0.2, x0="stationary", scheme="exact", random_state=seed)
    ratio = SADDLE.log_likelihood(X, 0.2) - SADDLE.log_likelihood(X[:, ::-1], 0.2)
    return [np.abs(ratio).max()]


def known(seed):
    """Statement 3: A known and irreversible: the ratio grows at the rate of entropy production."""
    dt, T = 0.02, 101
    X = VORTEX.simulate(50, T, dt, x0="stationary", scheme="exact", random_state=seed)
    ratio = VORTEX.log_likelihood(X, dt) - VORTEX.log_likelihood(X[:, ::-1], dt)
    return [ratio.mean() / (dt * (T - 1)), VORTEX.entropy_production()]


def twin(seed):
    """Statement 4: A unknown, stationary: share found forwards, share called; A of the reversed order against Σ Aᵀ Σ⁻¹."""
    X = VORTEX.simulate(100, 20, 0.1, x0="stationary", scheme="exact", random_state=seed)
    model, _, forwards = fitted(X, dt=0.1, estimator="exact")
    other = None if model.alternative_ is None else model.alternative_.drift
    back = other if forwards else model.drift_
    off = np.nan if back is None else np.abs(back - VORTEX.reverse().drift).mean()
    return [forwards, model.direction_.identified, off]


def transient(seed):
    """Statement 5: off rest it is called from three slices on; of two slices never."""
    found = []
    for T in (2, 3, 10):
        X = VORTEX.simulate(100, T, 0.3, x0=OFF_REST, random_state=seed)
        early, late = X[:, :-1].reshape(-1, 2), X[:, 1:].reshape(-1, 2)
        found.append(ratio_both_ways(early, late, X[:, 0], X[:, -1]))
    return found


def ratio_both_ways(early, late, first, last):
    """Joint log-likelihood of the order minus that of its reverse, each with its own affine fit and initial distribution."""

    def steps(x, y):
        design = np.column_stack([x, np.ones(len(x))])
        rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
        return -len(x) / 2 * np.linalg.slogdet(rest.T @ rest / len(x))[1]

    def start(x):
        return -len(x) / 2 * np.linalg.slogdet(np.cov(x.T, bias=True))[1]

    return steps(early, late) + start(first) - steps(late, early) - start(last)


def noise(seed):
    """Statement 6: stationary, Gaussian and skewed noise: called right, called wrongly."""
    rng = np.random.default_rng(seed)
    found = []
    for skewed in (False, True):
        draw = rng.exponential(size=(40, 90, 3)) - 1 if skewed else rng.standard_normal((40, 90, 3))
        A = np.array([[0.7, 0.4, 0.0], [-0.4, 0.6, 0.2], [0.1, 0.0, 0.5]])
        X = np.zeros((40, 90, 3))
        for t in range(89):
            X[:, t + 1] = X[:, t] @ A.T + draw[:, t]
        model, _, forwards = fitted(X[:, 50:], dt=1.0)
        called = model.direction_.identified
        found += [called and forwards, called and not forwards]
    return found


def constraint(seed):
    """Statement 7: stationary, known that x1 does not act on x0: nats for the true direction, with and without that knowledge."""
    X = CHAIN.simulate(200, 20, 0.1, x0="stationary", random_state=seed)
    mask = np.array([[True, False], [True, True]])
    found = []
    for known_zero in (mask, None):
        known_of_A = rt.statespace.Known(drift_mask=known_zero)
        fits = [rt.statespace.em(Y, 0.1, noise=1e-3, known=known_of_A) for Y in (X, X[:, ::-1])]
        found.append(fits[0].log_likelihood[-1] - fits[1].log_likelihood[-1])
    return found


def memory(seed):
    """Statement 8: a hidden velocity, from rest: nats for the truth under Markov's model and under one with memory."""
    spring = rt.LinearSDE([[0.0, 1.0], [-4.0, -0.4]], np.diag([1e-4, 0.05]))
    start = rt.Gaussian(np.array([1.0, 0.0]), np.diag([0.2, 1e-3]))
    seen = [
        spring.simulate(40, 16, 0.1, x0=start, scheme="exact", random_state=2 * seed + k)[..., :1]
        for k in (0, 1)
    ]
    model, _, forwards = fitted(np.concatenate(seen, axis=2), dt=0.1)
    ratios = {str(each.name): each.log_likelihood_ratio for each in model.direction_.models}
    sign = 1 if forwards else -1
    return [sign * ratios["Markov"], sign * ratios["memory"], model.direction_.identified, forwards]


def aliasing(seed):
    """Statement 9: A, and A with one more rotation per step, have the same transition and likelihood."""
    dt, turn = 0.5, np.array([[0.0, 1.0], [-1.0, 0.0]])
    slow = rt.LinearSDE(-np.eye(2) + turn, np.eye(2))
    fast = rt.LinearSDE(-np.eye(2) + (1 + 2 * np.pi / dt) * turn, np.eye(2))
    X = slow.simulate(20, 30, dt, scheme="exact", random_state=seed)
    apart = np.abs(expm(slow.drift * dt) - expm(fast.drift * dt)).max()
    return [apart, np.abs(slow.log_likelihood(X, dt) - fast.log_likelihood(X, dt)).max()]


def spread(seed):
    """Statement 10: Algorithm 1, first round, where spread grows and where it shrinks: Kendall's τ."""
    found = []
    for setting, x0 in (("paper", None), ("stable", 3.0)):
        sde = rt.simulate.random_irreversible_sde(10, setting=setting, random_state=seed)
        X = sde.simulate(500, 40, 0.02, x0=x0, random_state=seed)
        lost, truth = rt.simulate.shuffle(X, random_state=0)
        model = rt.ReTrace(dt=0.02, order="score", drift="linear", max_iter=1, n_jobs=1).fit(lost)
        found.append(rt.metrics.kendall_tau(truth, model.history_[0].order))
    return found


def common(seed):
    """Statement 11: half of the noise common: errors of F from deviations, and of s from the mean path, for n and T."""
    rng, F, s = (
        np.random.default_rng(seed),
        np.array([[0.8, 0.2], [-0.2, 0.7]]),
        np.array([0.5, -0.3]),
    )
    found = []
    for n, T in ((10, 20), (1000, 20), (10, 2000)):
        x = [np.linalg.solve(np.eye(2) - F, s) + np.zeros((n, 2))]
        for _ in range(T + 19):
            noise = rng.standard_normal((n, 2)) + rng.standard_normal(2)
            x.append(x[-1] @ F.T + s + np.sqrt(0.5) * noise)
        X = np.stack(x[20:], axis=1)
        m = X.mean(axis=0)
        early, late = ((X - m)[:, cut].reshape(-1, 2) for cut in (slice(None, -1), slice(1, None)))
        fitted_F = np.linalg.lstsq(early, late, rcond=None)[0].T
        fitted_s = (m[1:] - m[:-1] @ fitted_F.T).mean(axis=0)
        found += [np.sqrt(np.mean((fitted_F - F) ** 2)), np.sqrt(np.mean((fitted_s - s) ** 2))]
    return found


def exchange(seed):
    """Statement 18: short steps, N = 10: share of random walks that prefer two slices exchanged, at an end and within."""
    u, v, w = np.random.default_rng(seed).standard_normal((3, 4000, 10))
    size = [(each**2).sum(1) for each in (u, v, w, u + v, v + w)]
    ends = size[3] < size[1]
    inner = size[3] + size[4] < size[0] + size[2]
    return [ends.mean(), stats.t.sf(np.sqrt(10) / 2, 10), inner.mean(), stats.t.sf(np.sqrt(5), 10)]


def vuong(seed):
    """Statement 20: at rest, n = 50: the spread of Vuong's z, and the share with p < .05, irreversible and reversible."""
    found = []
    for k, sde in enumerate((VORTEX, SADDLE)):
        X = sde.simulate(5000, 8, 0.2, x0="stationary", scheme="exact", random_state=2 * seed + k)
        z = [vuong_z(each) for each in X.reshape(100, 50, 8, 2)]
        found += [np.std(z), np.mean(2 * stats.t.sf(np.abs(z), 49) < 0.05)]
    return found


def vuong_z(X):
    """Of one panel: each direction with its own affine fit and initial distribution."""

    def log_likelihoods(X):
        early, late = X[:, :-1].reshape(-1, 2), X[:, 1:].reshape(-1, 2)
        design = np.column_stack([early, np.ones(len(early))])
        rest = late - design @ np.linalg.lstsq(design, late, rcond=None)[0]
        first = X[:, 0] - X[:, 0].mean(axis=0)

        def densities(e):
            Q = e.T @ e / len(e)
            return -0.5 * (np.linalg.slogdet(Q)[1] + (e @ np.linalg.inv(Q) * e).sum(1))

        return densities(rest).reshape(len(X), -1).sum(axis=1) + densities(first)

    delta = log_likelihoods(X) - log_likelihoods(X[:, ::-1])
    return delta.sum() / (np.sqrt(len(X)) * delta.std(ddof=1))


STATEMENTS = {
    "order": (order, ["n=2 shared", "own", "n=10 shared", "own", "n=50 shared", "own"]),
    "reversible": (reversible, ["largest |ratio|, nats"]),
    "known": (known, ["nats per unit time", "entropy production"]),
    "twin": (twin, ["forwards", "called", "MAE of the twin's A"]),
    "transient": (transient, ["T=2, nats", "T=3", "T=10"]),
    "noise": (noise, ["Gaussian right", "wrong", "skewed right", "wrong"]),
    "constraint": (constraint, ["zero known, nats", "not known"]),
    "memory": (memory, ["Markov, nats", "memory", "called", "forwards"]),
    "aliasing": (aliasing, ["|F − F'|", "|ratio|"]),
    "spread": (spread, ["τ, spread grows", "τ, spread shrinks"]),
    "exchange": (exchange, ["ends", "by the formula", "inner", "by the formula"]),
    "vuong": (vuong, ["irreversible: sd", "p < .05", "reversible: sd", "p < .05"]),
    "common": (common, ["n=10, T=20: F", "s", "n=1000, T=20: F", "s", "n=10, T=2000: F", "s"]),
}


def quiet(function, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--only", choices=STATEMENTS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    seeds = range(*map(int, given.seeds.split(":")))
    for name in [given.only] if given.only else STATEMENTS:
        function, columns = STATEMENTS[name]
        every = np.array(
            Parallel(given.jobs)(delayed(quiet)(function, seed) for seed in seeds), dtype=float
        )
        shown = zip(
            columns, np.nanmean(every, 0), np.nanmin(every, 0), np.nanmax(every, 0), strict=True
        )
        print(
            f"{name}: "
            + "; ".join(f"{c} {m:.3g} ({low:.3g} … {high:.3g})" for c, m, low, high in shown),
            flush=True,
        )
