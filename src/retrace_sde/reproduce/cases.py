"""Simulated panels whose order is lost, and the regimes in which the methods are compared; tumour cohorts whose visits are shuffled, and orders to compare on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.panel import Panel
from retrace_sde.paper.baselines import dpt_order, mst_order
from retrace_sde.process.sde import Gaussian, LinearSDE
from retrace_sde.process.simulate import Setting, add_noise, random_irreversible_sde, shuffle
from retrace_sde.process.tumour import Arm, Cohort, simulate_cohort


@dataclass(frozen=True)
class Regime:
    """A kind of SDE and how its trajectories start: by its own distribution, a standard deviation, or "stationary"."""

    name: str
    setting: Setting
    start: float | str | None = None


@dataclass(frozen=True)
class Size:
    """Variables, trajectories, slices, and the time between slices."""

    d: int
    n: int
    T: int
    dt: float = 0.01


@dataclass(frozen=True, eq=False)
class Case:
    """Shuffled observations, the SDE and the distribution of its start, the true order, and the sd of the noise."""

    sde: LinearSDE
    initial: Gaussian
    values: Array
    truth: Indices
    dt: float
    noise: float = 0.0

    @property
    def incomplete(self) -> bool:
        return bool(np.isnan(self.values).any())


def simulate_case(
    regime: Regime,
    size: Size,
    seed: int,
    *,
    noise: float = 0.0,
    shuffled: float = 1.0,
    missing: float = 0.0,
) -> Case:
    """A panel with noise, with only a share of its slices shuffled, or with values missing.

    The SDE, its paths, the permutation, noise and gaps come from separate streams of the seed and the
    regime's name: the same paths are seen with more noise, more slices shuffled, or more values missing.
    """
    seeds = np.random.SeedSequence([seed, *regime.name.encode()]).spawn(5)
    of_sde, of_paths, of_order, of_noise, of_gaps = map(np.random.default_rng, seeds)
    sde = random_irreversible_sde(size.d, setting=regime.setting, random_state=of_sde)
    X = sde.simulate(  # as in the paper
        size.n, size.T, size.dt, x0=regime.start, scheme="euler", random_state=of_paths
    )
    if noise:
        X = add_noise(X, noise, random_state=of_noise)
    if missing:
        X[of_gaps.random(X.shape) < missing] = np.nan
    values, truth = shuffle(X, share=shuffled, random_state=of_order)
    return Case(sde, _start_law(sde, regime.start), values, truth, size.dt, noise)


def _start_law(sde: LinearSDE, start: float | str | None) -> Gaussian:
    if isinstance(start, float):
        return Gaussian(np.zeros(sde.dimension), start**2 * np.eye(sde.dimension))
    return sde.stationary() if start == "stationary" or sde.initial is None else sde.initial


case = lru_cache(maxsize=1)(simulate_case)
"""The same, and the last panel is kept: the tasks of several methods follow one another on it."""


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
