"""Simulation-based calibration (Talts et al. 2018) of the posterior over orders and parameters.

    python studies/sbc.py --seeds 20000:20500 --jobs 16 [--only own] [--counts FILE] [--figure FILE]

Parameters and first states are drawn from the prior that the sampler uses, a panel from these, and its slices are shuffled, or each
trajectory's observations. The rank of each true value among draws of the posterior is then uniform: of the coefficients, the log-determinant
of the covariance, the noise, the log evidence of the order; and, ties broken at random, of a precedence, of the precedence of the first and
last row, and of a position. The direction is one of the unknowns here: it is drawn with the order.

59 draws are ranked, so that ten bins hold six ranks each. They come from a chain that starts at random, far enough apart to be independent in
effect: ranks among autocorrelated draws are not uniform (Talts et al., section 5.1). Uniformity does not depend on how many draws there are. Settings have panels of their own.

Printed for each setting: the lowest p-value of χ² over the bins, of which quantity, and that value times the number of quantities (Bonferroni's, which is Holm's for the
lowest: valid however quantities depend on each other); how many are below .01, and how many are expected to be; CPU seconds of a run. The last row is over all settings:
its adjusted p-value is the test of the whole. `--counts` keeps the counts of all ranks, `--figure` draws them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy import stats

from retrace_sde import __version__
from retrace_sde.fit.euler import Euler
from retrace_sde.lost_time.table import lines
from retrace_sde.orders.collapsed.chains import draw_orders
from retrace_sde.orders.collapsed.marginal import (
    Conjugate,
    OrderEvidence,
    StartPrior,
    StepPrior,
    step_posterior,
)
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.gibbs import Gibbs, Priors
from retrace_sde.search.model import Problem
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

N, T, D, BINS = 3, 8, 2, 10
OWN_N, OWN_T = 3, 6

DRAWS = 59
"""Draws that are ranked: one less than a multiple of `BINS`."""

APART, BURN = 10, 100
"""Sweeps between draws, and before the first. Integrated autocorrelation times (six panels of each setting, 1,200 sweeps) are 1 to 4 sweeps on average, 8 of a noise variance, and 18 in the worst panel."""

STRETCH, TEMPERATURES = 8, 4
"""With parameters integrated out: draws are 4 T moves of an order apart, tempered."""

STEP = StepPrior(10 * np.eye(D + 1), D + 6.0, 0.4 * np.eye(D))
START = StartPrior(np.zeros(D), 1.0, D + 6.0, 4.0 * np.eye(D))
NOISE_SQUARES, NOISE_FREEDOM = 0.3, 8.0
ROUNDING = 1e-9
SETTINGS = "shared", "noise", "missing", "own", "own-noise", "own-missing"


def features(x):
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)


def panel(rng, n=N, times=T):
    """Parameters and a panel (T, n, d) in time order, from the prior."""
    law = Conjugate(np.zeros((D, D + 1)), STEP.precision, STEP.freedom, STEP.scale)
    theta, Q = law.draw(rng)
    centre = Conjugate(np.zeros((D, 1)), np.eye(1) * START.weight, START.freedom, START.scale)
    mean, spread = centre.draw(rng)
    x = [mean[:, 0] + rng.standard_normal((n, D)) @ np.linalg.cholesky(spread).T]
    root = np.linalg.cholesky(Q)
    for _ in range(times - 1):
        x.append(x[-1] + features(x[-1]) @ theta.T + rng.standard_normal((n, D)) @ root.T)
    return theta, Q, np.array(x)


def rank(rng, draws, value):
    """The rank, 0 to the number of draws, of a value among them, ties broken at random; what rounding tells apart is a tie."""
    gap = np.asarray(draws, dtype=float) - value
    below, ties = (gap < -ROUNDING).sum(), (np.abs(gap) <= ROUNDING).sum()
    return int(below + rng.integers(0, ties + 1))


def parameters(laws, theta, Q):
    """Draws and true values of the coefficients and of the covariance of a step."""
    every = {f"theta {r}{c}": ([t[r, c] for t, _ in laws], theta[r, c]) for r in range(D) for c in range(D + 1)}  # fmt: skip
    dets = [np.linalg.slogdet(q)[1] for _, q in laws]
    return {**every, "log det Q": (dets, np.linalg.slogdet(Q)[1])}


def collapsed(seed):
    """Ranks of the true values of one panel: one order for all, parameters integrated out."""
    rng = generator("shared", seed)
    theta, Q, x = panel(rng)
    shuffle = rng.permutation(T)
    truth = np.argsort(shuffle)  # slice `shuffle[k]` in time stands at k
    states = x[shuffle]
    evidence = OrderEvidence.of(states, features(states), (STEP, START))
    starts = np.array([[rng.permutation(T) for _ in range(TEMPERATURES)]])
    burned = draw_orders(evidence, None, starts, rng, records=BURN // APART, stretch=STRETCH)
    drawn = draw_orders(evidence, None, burned.ends, rng, records=DRAWS, stretch=STRETCH, warm=True)
    orders = drawn.orders[0]
    laws = [along(states[order]).draw(rng) for order in orders]
    i, j = rng.choice(T, 2, replace=False)
    place, there = np.argsort(orders, axis=1), np.argsort(truth)
    found = {
        **parameters(laws, theta, Q),
        "log evidence": (evidence(orders), evidence(truth[None])[0]),
        "a pair": (place[:, i] < place[:, j], there[i] < there[j]),
        "slices 0, T - 1": (place[:, 0] < place[:, -1], there[0] < there[-1]),
        "position": (place[:, i], there[i]),
    }
    return {name: rank(rng, *each) for name, each in found.items()}


def along(states):
    """The posterior of the parameters of a step along states (T, n, d) in time order."""
    phi, change = features(states[:-1]), np.diff(states, axis=0)
    return step_posterior(change.reshape(-1, D), phi.reshape(-1, phi.shape[-1]), STEP)


class Turning(Gibbs):
    """Sweeps in which the reversal of all orders is proposed as well: here the direction is one of the unknowns."""

    def redraw(self, orders, law):
        """Orders, which may come back reversed, and parameters."""
        _, states = self.model.completed(orders, law, self.rng)
        back = self.model.data.reversed(orders)
        mirrored = states[:, ::-1]
        one, other = self._posteriors(orders, states), self._posteriors(back, mirrored)
        odds = sum(map(log_evidence, other)) - sum(map(log_evidence, one))
        if np.log(1 - self.rng.random()) < odds:
            orders, states, one = back, mirrored, other
        return orders, self._law(orders, states, *one)


def log_evidence(law):
    """Of the data behind a conjugate posterior, up to a constant that depends on their number alone."""
    volume = len(law.scale) * np.linalg.slogdet(law.precision)[1]
    return float(-0.5 * (volume + law.freedom * np.linalg.slogdet(law.scale)[1]))


def gibbs(setting, seed):
    """Ranks of the true values of one panel: orders, parameters and states drawn in turn."""
    rng = generator(setting, seed)
    own = setting.startswith("own")
    n, times = (OWN_N, OWN_T) if own else (N, T)
    theta, Q, x = panel(rng, n, times)
    x = x.transpose(1, 0, 2)
    sigma = np.sqrt(NOISE_SQUARES / rng.chisquare(NOISE_FREEDOM))
    noisy, missing = setting.endswith("noise"), setting.endswith("missing")
    y = x + sigma * rng.standard_normal(x.shape) if noisy else x.copy()
    if missing:
        y[rng.random(y.shape) < 0.2] = np.nan
    shuffle = np.array([rng.permutation(times) for _ in range(n if own else 1)])
    truth = np.argsort(shuffle, axis=1)
    y = np.take_along_axis(y, np.broadcast_to(shuffle, (n, times))[:, :, None], axis=1)
    problem = Problem(Data(y, n_jobs=1), 1.0, Affine())
    model: Any = EulerModel(problem.data, 1.0, Affine())
    if noisy or missing:
        model = HiddenModel.of(problem, noise="estimate" if noisy else 0.0)
    squares = np.full(D, NOISE_SQUARES / D), np.full(D, NOISE_FREEDOM / D)
    priors = Priors(STEP, START, squares)
    sampler = (Turning if own else Gibbs)(model, priors, rng)
    drawn = list(chain(sampler, n, times, own))
    orders = np.array([order for order, _ in drawn]).reshape(DRAWS, -1, times)
    laws = [model.parameters(law) for _, law in drawn]
    j = int(rng.integers(n)) if own else 0
    a, b = rng.choice(times, 2, replace=False)
    place, there = np.argsort(orders[:, j], axis=1), np.argsort(truth[j])
    found = {
        **parameters(laws, theta, Q),
        "a pair": (place[:, a] < place[:, b], there[a] < there[b]),
        "rows 0, T - 1": (place[:, 0] < place[:, -1], there[0] < there[-1]),
        "position": (place[:, a], there[a]),
    }
    if noisy:
        found["noise"] = [law.R[0, 0] for _, law in drawn], sigma**2
    return {name: rank(rng, *each) for name, each in found.items()}


def chain(sampler, n, times, own):
    """Orders and laws of a chain, from orders and parameters at random."""
    rng, model = sampler.rng, sampler.model
    law = start_law(sampler)
    if own:
        order = np.array([rng.permutation(times) for _ in range(n)])
        chains = Chains.start(order, rng, chains=1)
    else:
        order = rng.permutation(times)
    for k in range(1, BURN + APART * DRAWS + 1):
        if own:
            order, law = sampler.redraw(chains.orders[0].copy(), law)
            chains.orders[0] = order
            model.draw(law, chains, Stretch(2, 2 * times, 1))
            order = chains.orders[0].copy()
        else:
            order, law, _ = sampler.shared_sweep(order, law)
        if k > BURN and (k - BURN) % APART == 0:
            yield order.copy(), law


def start_law(sampler):
    """Parameters from the prior."""
    model, rng, priors = sampler.model, sampler.rng, sampler.priors
    laws = ((STEP, STEP.precision), (START, np.eye(1) * START.weight))
    (theta, Q), (mean, spread) = (
        Conjugate(np.zeros((D, len(K))), K, each.freedom, each.scale).draw(rng) for each, K in laws
    )
    euler = Euler(model.drift, theta / model.dt, Q / model.dt, model.dt)
    return model.law_of(euler, Gaussian(mean[:, 0], spread), priors.noise, rng)


def generator(setting, seed):
    """Random numbers of one panel: a seed has other panels in each setting, so that settings are independent."""
    return np.random.default_rng([SETTINGS.index(setting), seed])


def one(setting, seed):
    """Ranks of one panel, and CPU seconds."""
    begin = time.process_time()
    found = collapsed(seed) if setting == "shared" else gibbs(setting, seed)
    return found, time.process_time() - begin


def summary(rows):
    """Counts of the ranks of each quantity, χ² and its p-value."""
    found = {}
    for name in rows[0]:
        ranks = np.array([row[name] for row in rows])
        counts = np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)
        chi2, p = stats.chisquare(counts)
        found[name] = {"chi2": float(chi2), "p": float(p), "counts": counts.tolist()}
    return found


def tested(values):
    """Of p-values and names: their number, the lowest and its name, adjusted for their number; how many are below .01, and are expected to be."""
    lowest, name = min(values)
    below = sum(p < 0.01 for p, _ in values)
    adjusted = min(len(values) * lowest, 1.0)
    return [len(values), f"{lowest:.3f}", name, f"{adjusted:.3f}", below, f"{0.01 * len(values):.1f}"]  # fmt: skip


def figure(record, path):
    """Ranks of every quantity in every setting, with the band that holds 99 % of uniform counts."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for each in record.values() for name in each["ranks"]))
    size = (1.1 * len(names) + 1, 1.0 * len(record) + 0.6)
    _, axes = plt.subplots(len(record), len(names), figsize=size, squeeze=False, sharex=True)
    for row, (setting, each) in zip(axes, record.items(), strict=True):
        low, high = stats.binom.ppf([0.005, 0.995], each["runs"], 1 / BINS)
        for axis, name in zip(row, names, strict=True):
            axis.set(xticks=[], yticks=[])
            if name not in each["ranks"]:
                axis.axis("off")
                continue
            axis.axhspan(low, high, color="0.85", lw=0)
            axis.bar(range(BINS), each["ranks"][name]["counts"], width=1.0, color="#4878a8")
            axis.set_ylim(0, 2 * each["runs"] / BINS)
        row[0].set_ylabel(f"{setting}\n{each['runs']} runs", fontsize=7)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, fontsize=7)
    plt.tight_layout()
    plt.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:100", help="a:b")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=SETTINGS, nargs="*", default=SETTINGS)
    parser.add_argument("--counts", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    seeds = range(*map(int, given.seeds.split(":")))
    found, table = {}, []
    every, cost = [], []
    for setting in given.only:
        runs = Parallel(given.jobs)(delayed(one)(setting, seed) for seed in seeds)
        rows, spent = [ranks for ranks, _ in runs], [seconds for _, seconds in runs]
        found[setting] = {"runs": len(rows), "ranks": summary(rows)}
        values = [(each["p"], name) for name, each in found[setting]["ranks"].items()]
        table.append([setting, len(rows), *tested(values), f"{np.mean(spent):.2f}"])
        every += [(p, f"{setting}: {name}") for p, name in values]
        cost.append(np.mean(spent))
    table.append(["all", len(seeds) * len(cost), *tested(every), f"{np.mean(cost):.2f}"])
    columns = ["posterior", "runs", "quantities", "lowest p", "of", "adjusted p", "below .01", "expected", "CPU s"]  # fmt: skip
    print(*lines({"columns": columns, "rows": table}), sep="\n")
    if given.counts:
        made = {
            "command": f"python studies/sbc.py --seeds {given.seeds}",
            "version": __version__,
            "settings": found,
        }
        given.counts.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    if given.figure:
        figure(found, given.figure)


if __name__ == "__main__":
    main()
