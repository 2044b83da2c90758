"""Cells that hold equal values: how often they are recognised, and what they do to the order and its direction.

    python studies/cells.py rates --seeds 20000:20100 --jobs 16
    python studies/cells.py fits --seeds 20000:20040 --jobs 16 --only carried

`rates`: the share of panels in which rows carried forward, a detection limit or tied columns were found (hits where the
panel has them, false alarms elsewhere). `fits`: the direction `called`, `wrong` and `scrambled` (|τ| < .9), the mean probability
given to positions and the share of them that are right.
"""

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.evidence.tied_cells import carried_forward, piles, tied
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import one_blas_thread


def transient(seed, *, n=40, T=12, d=2, dt=0.3):
    """A course towards equilibrium from a shifted start, whose spread grows a little."""
    rng = np.random.default_rng(seed)
    F = np.eye(d) - dt * (0.8 * np.eye(d) + 0.3 * rng.standard_normal((d, d)))
    x = np.empty((n, T, d))
    x[:, 0] = 1.5 + 0.7 * rng.standard_normal((n, d))
    for t in range(1, T):
        x[:, t] = x[:, t - 1] @ F.T + 0.4 * rng.standard_normal((n, d))
    return x


def at_rest(seed, *, n=40, T=12, d=2):
    """A stationary reversible course."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    found = np.empty((n, T, d))
    for t in range(T):
        x = 0.85 * x + np.sqrt(1 - 0.85**2) * rng.standard_normal((n, d))
        found[:, t] = x
    return found


def growth(seed, *, n=30, T=12):
    """Logistic growth with noise."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 6, T)
    rates, start = rng.normal(1, 0.1, (n, 1, 2)), rng.normal(-3, 0.3, (n, 1, 2))
    return 1 / (1 + np.exp(-(start + rates * t[None, :, None]))) + 0.01 * rng.standard_normal(
        (n, T, 2)
    ).cumsum(axis=1)


def sparse(seed, *, n=30, T=9):
    """0/1 columns with 5 % ones; nothing depends on time."""
    return (np.random.default_rng(seed).random((n, T, 2)) < 0.05) * 1.0


def counts(seed, *, n=40, T=8):
    """Poisson counts of mean .05."""
    return np.random.default_rng(seed).poisson(0.05, (n, T, 2)) * 1.0


def weak(seed, *, n=40, T=12, shift=0.7):
    """A start that is shifted a little from equilibrium."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, T, 2))
    x[:, 0] = shift + rng.standard_normal((n, 2))
    for t in range(1, T):
        x[:, t] = 0.85 * x[:, t - 1] + np.sqrt(1 - 0.85**2) * rng.standard_normal((n, 2))
    return x


def carried(seed, *, make=weak, hazard=0.12):
    """The last observation carried forward after dropout, which may happen at every visit from the third on."""
    X = make(seed)
    rng = np.random.default_rng(10**6 + seed)
    for x, last in zip(X, 1 + rng.geometric(hazard, len(X)), strict=True):
        x[last + 1 :] = x[last] if last < len(x) else 0.0
    return X


def limited(seed, *, fall=0.15, limit=-1.5):
    """Values that fall until more and more of them are at a detection limit."""
    X = at_rest(seed)
    return np.maximum(X - fall * np.arange(X.shape[1])[None, :, None], limit)


def raised(seed, *, rise=0.2):
    """A detection limit that is higher at every visit, of values at rest."""
    X = at_rest(seed)
    return np.maximum(X, -2 + rise * np.arange(X.shape[1])[None, :, None])


def aliased(seed, *, n=40, T=14, period=2.1):
    """A rotation observed every 1/period of a turn: neighbours lie on opposite sides."""
    rng = np.random.default_rng(seed)
    turn = 2 * np.pi / period
    F = 0.97 * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    x = np.empty((n, T, 2))
    x[:, 0] = [2.0, 0.0] + 0.5 * rng.standard_normal((n, 2))
    for t in range(1, T):
        x[:, t] = x[:, t - 1] @ F.T + 0.2 * rng.standard_normal((n, 2))
    return x


def rounded(seed, *, make=transient, unit=0.01):
    """Values rounded to a share of their standard deviation."""
    X = make(seed)
    unit = unit * 10.0 ** np.floor(np.log10(X.std(axis=(0, 1))))
    return np.round(X / unit) * unit


def scores(seed):
    """Whole numbers, some ten of them."""
    return np.round(3 * transient(seed))


PANELS = {
    "transient": transient,
    "at rest": at_rest,
    "growth": growth,
    "rounded": rounded,
    "scores": scores,
    "sparse": sparse,
    "counts": counts,
    "carried": carried,
    "carried, at rest": lambda seed: carried(seed, make=at_rest),
    "limited": limited,
    "limited, at rest": lambda seed: limited(seed, fall=0.0, limit=-1.0),
    "raised": raised,
    "carried, rounded": lambda seed: rounded(seed, make=carried),
    "limited, rounded": lambda seed: rounded(seed, make=limited),
    "aliased": aliased,
}
DIRECTED = {"transient", "growth", "rounded", "scores", "carried", "limited", "raised", "aliased"}


def found(name, seed):
    """Whether rows carried forward, a limit and tied columns are recognised."""
    X, _ = rt.simulate.shuffle(PANELS[name](seed), random_state=seed)
    return carried_forward(X) is not None, bool(piles(X)), bool(tied(X))


def fitted(name, seed):
    """Called, wrong, scrambled, the mean probability of positions and the share that is right; None where the panel is refused."""
    X, truth = rt.simulate.shuffle(PANELS[name](seed), random_state=seed)
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore")
        try:
            model = rt.ReTrace(random_state=0, n_jobs=1).fit(X)
        except ValueError:
            return None
        P = model.position_probabilities_
    tau = rt.metrics.kendall_tau(truth, model.order_)
    called = model.direction_.identified
    sure = P[model.order_, np.arange(len(truth))].mean()
    right = max((model.order_ == truth).mean(), (model.order_ == truth[::-1]).mean())
    return called, called and tau < 0, abs(tau) < 0.9, sure, right


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rates", "fits"])
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    look, heads = (
        (found, ("carried", "limited", "tied"))
        if given.what == "rates"
        else (fitted, ("called", "wrong", "scrambled", "sure", "right"))
    )
    table = []
    for name in given.only or PANELS:
        each = Parallel(given.jobs)(delayed(look)(name, seed) for seed in range(first, last))
        rows = np.array([row for row in each if row is not None], dtype=float)
        shares = [float(value) for value in rows.mean(axis=0)]
        if name not in DIRECTED and given.what == "fits":
            shares[1] = None
        table.append([name, len(rows), *shares])
    print(*lines({"columns": ["panel", "panels", *heads], "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
