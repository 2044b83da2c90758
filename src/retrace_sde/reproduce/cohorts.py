"""Tumour cohorts whose visits are shuffled, and the orders that are compared on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.panel import Panel
from retrace_sde.paper.baselines import dpt_order, mst_order
from retrace_sde.process.simulate import shuffle
from retrace_sde.process.tumour import Arm, Cohort, simulate_cohort

ORDERS = ("true", "recovered", "shuffled", "reversed", "mst", "dpt")


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A cohort, what is seen of it, and the order that was lost."""

    cohort: Cohort
    panel: Panel
    truth: Indices


@lru_cache(maxsize=3)
def shuffled_cohort(n: int, arm: Arm, sigma: float, seed: int) -> Shuffled:
    """Each subject's visits shuffled on their own; cohort and shuffle from separate streams of the seed."""
    streams = np.random.SeedSequence([seed, *arm.encode()]).spawn(2)
    of_cohort, of_order = map(np.random.default_rng, streams)
    cohort = simulate_cohort(n, arm=arm, sigma_tumour=sigma, random_state=of_cohort)
    T = cohort.observed.shape[1]
    moved, truth = shuffle(
        np.tile(np.arange(T), (n, 1)), permutation="independent", random_state=of_order
    )
    return Shuffled(cohort, cohort.shuffled(moved), truth)


def order_of(name: str, data: Shuffled, seed: int) -> Indices:
    """An order to estimate from, other than the recovered one.

    mst and dpt look at each subject's own distances, from a proper root; which end comes first is a guess.
    """
    rng = np.random.default_rng([seed, 7])
    if name == "true":
        return data.truth
    if name == "reversed":
        return data.truth[:, ::-1].copy()
    if name == "shuffled":
        T = data.truth.shape[1]
        return rng.permuted(np.tile(np.arange(T), (len(data.truth), 1)), axis=1)
    values: Array = data.panel.values
    if name == "mst":
        return np.stack([mst_order(x[None], root="end", random_state=rng) for x in values])
    return np.stack([dpt_order(x[None], root="extreme", random_state=rng) for x in values])
