"""How many grossly wrong time stamps are found: precision, recall and Kendall's τ of the expected times.

Stamps are off by half a gap (standard deviation); 5 or 10 % say nothing: uniform, at least three gaps from the truth.
`python -m studies.stamps --seeds 20000:20010 --jobs 2`
"""

from __future__ import annotations

import argparse

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import kendalltau

import retrace_sde as rt
from retrace_sde.audit.stamps import audit_sequences, sequences_of

N, T, ERROR, LEAST_GAPS = 30, 20, 0.5, 3.0


def one(seed, d, share, own):
    """Found, wrongly called and missed stamps of one panel, and the mean τ."""
    rng = np.random.default_rng(seed)
    X = rt.simulate.random_irreversible_sde(d, random_state=seed).simulate(
        N, T, 0.1, random_state=seed + 1
    )
    true = np.tile(np.arange(float(T)), (N, 1)) if own else np.arange(float(T))
    lost = rng.random(true.shape) < share
    far = rng.uniform(-0.5, T - 0.5, true.shape)
    while (near := np.abs(far - true) < LEAST_GAPS).any():
        far = np.where(near, rng.uniform(-0.5, T - 0.5, true.shape), far)
    stamps = np.where(lost, far, true + ERROR * rng.normal(size=true.shape))
    sequences, _ = sequences_of(X, stamps, np.full(N, T), ERROR)
    found, _ = audit_sequences(sequences, np.random.default_rng(seed), wrong=0.05)
    called, lost = np.array([each.wrong > 0.5 for each in found]), np.atleast_2d(lost)
    taus = [kendalltau(each.draws.mean(axis=0), np.arange(T))[0] for each in found]
    hits = (called & lost).sum(), (called & ~lost).sum(), (~called & lost).sum()
    return *hits, np.mean(taus)


def main():
    """One line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="20000:20010")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    print("times  d  wrong  precision  recall  tau")
    for own in (False, True):
        for d in (3, 5):
            for share in (0.05, 0.1):
                rows = Parallel(given.jobs)(
                    delayed(one)(seed, d, share, own) for seed in range(first, last)
                )
                hit, false, missed = np.sum([each[:3] for each in rows], axis=0)
                tau = np.mean([each[3] for each in rows])
                kind = "own" if own else "shared"
                print(
                    f"{kind:6} {d}  {share:.2f}  {hit / max(hit + false, 1):.3f}  "
                    f"{hit / max(hit + missed, 1):.3f}  {tau:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
