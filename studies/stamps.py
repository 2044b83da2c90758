"""How many grossly wrong time stamps are found: precision, recall and Kendall's τ of the expected times.

Stamps are off by half a gap (standard deviation); 5 or 10 % say nothing: uniform, at least three gaps from the truth. Three ways: `audit`
(`audit_times`), `fit` (`Knowledge(wrong=…)`), and `plain`, a fit that takes all stamps for right. A fourth, `limit`, is an oracle: the sampler of
`audit` with the true law of steps and of the start, the true share of wrong stamps, and the knowledge that times are regular.
`python -m studies.stamps --seeds 20000:20010 --jobs 2`
`python -m studies.stamps --seeds 50000:50010 --times own --ways audit,limit`
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import kendalltau

import retrace_sde as rt
from retrace_sde.lost_time.table import lines
from retrace_sde.search.stamps.judge import (
    DRAWS_A_ROUND,
    Judge,
    Sequence,
    audit_sequences,
    sequences_of,
)
from retrace_sde.search.stamps.law import StepLaw

N, T, DT, ERROR, LEAST_GAPS = 30, 20, 0.1, 0.5, 3.0
WAYS = {
    "audit": "`audit_times`",
    "fit": "`Knowledge(wrong=…)`",
    "plain": "all stamps taken for right",
    "limit": "the process known",
}
GAUSSIAN = 1e6
"""Degrees of freedom of a Student law that is as good as Gaussian."""


def panel(seed, d, share, own):
    """Values in true order, stamps in gaps, and which of them are wrong."""
    rng = np.random.default_rng(seed)
    X = rt.simulate.random_irreversible_sde(d, random_state=seed).simulate(
        N, T, DT, random_state=seed + 1
    )
    true = np.tile(np.arange(float(T)), (N, 1)) if own else np.arange(float(T))
    lost = rng.random(true.shape) < share
    far = rng.uniform(-0.5, T - 0.5, true.shape)
    while (near := np.abs(far - true) < LEAST_GAPS).any():
        far = np.where(near, rng.uniform(-0.5, T - 0.5, true.shape), far)
    stamps = np.where(lost, far, true + ERROR * rng.normal(size=true.shape))
    return X, stamps, lost


def limit(X, stamps, seed, own, share):
    """The same by somebody who knows the process."""
    sde = rt.simulate.random_irreversible_sde(X.shape[2], random_state=seed)
    theta = DT * np.c_[sde.drift, np.zeros(X.shape[2])]
    law = StepLaw(theta, DT * sde.diffusion, GAUSSIAN)
    judge = Judge(law, sde.initial, np.ones(1), np.zeros(1), share, regular=True, alone=False)
    rng, error = np.random.default_rng(seed), np.full(T, ERROR)
    rows = [(x[None], row) for x, row in zip(X, stamps, strict=True)] if own else [(X, stamps)]
    found = [
        judge.sampled(Sequence(x, row, error), DRAWS_A_ROUND[-1], rng, events=False)
        for x, row in rows
    ]
    return np.array([each.wrong for each in found]), [each.draws.mean(axis=0) for each in found]


def judged(way, X, stamps, seed, own, share):
    """The probability that each stamp is wrong, (m, T), and each observation's expected place."""
    if way == "limit":
        return limit(X, stamps, seed, own, share)
    if way == "audit":
        sequences, _ = sequences_of(X, stamps, np.full(N, T), ERROR)
        found, _ = audit_sequences(sequences, np.random.default_rng(seed), wrong=0.05)
        return np.array([each.wrong for each in found]), [each.draws.mean(axis=0) for each in found]
    known = rt.Knowledge(
        timestamps=stamps * DT, timestamp_error=ERROR * DT, wrong=0.05 if way == "fit" else None
    )
    model = rt.ReTrace(
        dt=DT, permutation="independent" if own else "shared", subjects="alike", random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, knowledge=known)
    places = np.argsort(np.atleast_2d(model.order_), axis=1)
    wrong = model.result_.wrong_stamps
    return np.zeros_like(places) if wrong is None else np.atleast_2d(wrong), places


def one(seed, d, share, own, ways):
    """Of each way: found, wrongly called and missed stamps of one panel, and the mean τ."""
    X, stamps, lost = panel(seed, d, share, own)
    lost, rows = np.atleast_2d(lost), {}
    for way in ways:
        wrong, places = judged(way, X, stamps, seed, own, share)
        called = wrong > 0.5
        taus = [kendalltau(each, np.arange(T))[0] for each in places]
        hits = (called & lost).sum(), (called & ~lost).sum(), (~called & lost).sum()
        rows[way] = [*map(int, hits), float(np.mean(taus))]
    return rows


def main():
    """One line for each setting and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="20000:20010")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--times", default="shared,own")
    parser.add_argument("--variables", default="3,5")
    parser.add_argument("--ways", default="audit,fit,plain", help=f"of {', '.join(WAYS)}")
    given = parser.parse_args()
    ways, kinds = given.ways.split(","), given.times.split(",")
    first, last = map(int, given.seeds.split(":"))
    table = []
    for own in (kind == "own" for kind in kinds):
        for d in map(int, given.variables.split(",")):
            for share in (0.05, 0.1):
                rows = Parallel(given.jobs)(
                    delayed(one)(seed, d, share, own, ways) for seed in range(first, last)
                )
                for way in ways:
                    hit, false, missed = np.sum([each[way][:3] for each in rows], axis=0)
                    found = hit / max(hit + false, 1), hit / max(hit + missed, 1)
                    tau = np.mean([each[way][3] for each in rows])
                    case = f"{'own' if own else 'shared'}, {d}, {share:g}"
                    table.append([case, last - first, WAYS[way], *map(float, found), f"{tau:.3f}"])
    columns = ["times, variables, wrong", "panels", "way", "precision", "recall", "τ"]
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
