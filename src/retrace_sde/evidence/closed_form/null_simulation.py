"""The direction's p-value by null simulation: panels from models in which calling the direction would be wrong.

The ratio is compared with those of panels simulated from (i) the fit of the direction that loses, from its own start law, and (ii) the fit of each direction at rest, where it has a stationary law; then in absolute value, since a stationary
process has no direction; of Markov steps (ii) compares the departure from rest (`rest`) instead of the ratio. *Whole slices* of residuals are resampled, all trajectories together: shocks that trajectories
share, copies, heavy tails and tied values stay what they are. Both directions are refitted every time. The largest p-value counts: (i) alone would
call a direction from the start law's own noise. Variances that change with time are not at rest, and (ii) is then no null.
Nulls are simulated in turn, each while its p-value is near the level; simulation stops once a null reproduces the ratio.

The ratio may come from another model than the null panels do. With measurement noise a fit has no closed form: null panels are
then simulated from the noisy model, and the ratio is that of the nearest closed form. Where values are missing, the same cells
are hidden in every simulated panel, and drawn again as those of the data were (`missing_draws`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from retrace_sde.evidence.closed_form.panels import Form, Ground, Panels
from retrace_sde.evidence.closed_form.rest import departs, departures
from retrace_sde.evidence.closed_form.steps import (
    StepFit,
    fit_directions,
    ratios,
    residuals,
)
from retrace_sde.evidence.closed_form.sums import products
from retrace_sde.fit.start_law import Starts
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import evenly
from retrace_sde.progress import steps

STAGES, MAX_ROUNDS = (19, 99, 399, 1999), 80
"""Simulations of each null: more where the p-value is too near the level to tell; and the rounds of `SIMULATED_NUMBERS` beyond which the last stage is
left out. With 399 the verdict on pbcseq_visits (p = .04) depended on the seed: called in 1 of 3 shuffles."""

REACH = (6, 60.0), (12, 25.0), (19, 16.0)
"""Draws, and standard deviations beyond their mean from which further ones are taken not to reach the ratio. Ratios have heavy tails: of 470 nulls (60
panels of six kinds of noise, three forms, 300 draws each) and 300 random choices of so many draws from each, at most 7 in a million put a ratio that
far which 4 % of all draws reach. Student's law of the draws would be too sure: with six, 15 deviations have a probability of 1e-5, and 2000 in a million did."""

SIMULATED_NUMBERS = 250_000
"""Numbers (B n T d) simulated at a time, but not fewer than six panels: more leave the processor's cache."""

LARGE_NUMBERS = 2_000_000
"""Numbers (B n T d) simulated at a time, at most, of panels that are larger than `SIMULATED_NUMBERS` allows for: memory grows with them."""

PART_NUMBERS, PART_TRAJECTORIES = 100_000, 20
"""Numbers, and trajectories, of a part of a panel that settles the test where its ratio is out of reach: a panel of twice that size is not simulated
as a whole before."""

THINNED_TRAJECTORIES, THINNED_SLICES, THINNED_STEPS, THINNED_SHARE = 60, 30, 6, 0.5
"""Trajectories, slices, and steps for each variable, at least, of a thinned part, and its share of a panel's numbers, at most. Of d = 50, T = 250 (three processes) 60 trajectories
of every tenth slice have 64 nats each, as with every slice, and lie 36 to 290 deviations from their nulls; 20 of every slice, as many numbers three times
over, 22 to 55."""

MIN_PART_NATS = 8.0
"""Nats for each variable below which a part is not tried: nulls at rest have ratios of .5 to 1.4 nats for each, with deviations as large (d = 3 to 50)."""

MIN_START_SHARE = 1e-9
"""Share of a step's covariance that a start law has at least: one fitted to few first states may be singular, up to rounding."""

GAUSSIAN_POOL = 5000
"""Residuals drawn to represent a Gaussian law."""

RANGE_MARGIN = 0.5
"""How far simulated states of a polynomial drift may leave the range of the data, as a share of it: such a step may diverge."""


class SimulatedP(NamedTuple):
    """A p-value and its own Monte-Carlo error (one standard deviation). `by_reversal`: of trajectories that are randomly time-reversed."""

    p_value: float
    p_error: float
    by_reversal: bool = False

    @classmethod
    def of(cls, reached: int, draws: int) -> SimulatedP:
        """Of draws, some of which reach what was observed."""
        p = (1 + reached) / (1 + draws)
        return cls(p, float(np.sqrt(p * (1 - p) / draws)))

    def clear(self, alpha: float) -> bool:
        """Too far from the level for more simulations to matter."""
        return abs(self.p_value - alpha) > 3 * self.p_error


@dataclass(frozen=True, eq=False)
class NullSimulator:
    """A fit to simulate panels from, in its own direction.

    `pool`: residuals to draw from, whole slices (S, n, d), or single ones (N, d) where slices are not aligned. `noise` (d, d),
    where there is measurement noise: a root of its covariance, as it multiplies rows. `bounds`: within which a polynomial
    drift's states are held. `within` (n, lags·d): by how much first states differ from those of their groups, where
    trajectories are grouped.
    """

    fit: StepFit
    pool: Array
    backwards: bool = False
    at_rest: bool = False
    noise: Array | None = None
    bounds: tuple[Array, Array] | None = None
    within: Array | None = None

    @classmethod
    def of(cls, panels: Panels, form: Form, *, backwards: bool) -> NullSimulator:
        """Of a panel's fit in one direction."""
        way = fit_directions(panels, form)[int(backwards)]
        along = panels.reverse if backwards else panels
        bounds = within = None
        if form.degree > 1:
            low, high = panels.x.min(axis=(0, 1, 2)), panels.x.max(axis=(0, 1, 2))
            margin = RANGE_MARGIN * (high - low)
            bounds = low - margin, high + margin
        if panels.groups is not None:
            first, size = along.first(form.lags)[0], np.bincount(panels.groups)[:, None]
            total = np.zeros((len(size), first.shape[1]))
            np.add.at(total, panels.groups, first)
            within = first - (total / size)[panels.groups]
        return cls(way, _pool(along, way), backwards, bounds=bounds, within=within)

    @property
    def start(self) -> Starts:
        """The law of the first states, which is not singular."""
        found = self.fit.start
        step = np.kron(np.eye(self.fit.form.lags), self.fit.H[0])
        return replace(found, covariance=found.covariance + MIN_START_SHARE * step)

    def panels(self, like: Panels, size: int, rng: np.random.Generator) -> Panels:
        """New panels in the data's direction, missing cells of the data drawn again.

        One at rest is simulated for T steps before the panel starts, so that resampled residuals reach the start.
        """
        n, T, d = like.x.shape[1:]
        form, spreads = self.fit.form, np.sqrt(self.fit.variances[0])
        first, own = (self._at_rest if self.at_rest else self._from_start)(like, size, n, rng)
        last = first[..., :d]
        state = last if form.lags == 1 else last + first[..., d:]
        burn = T if self.at_rest and like.groups is None else 0
        # Slices stand apart in memory, as they are simulated.
        x = np.empty((size, T, n, d))
        if not burn:
            x[:, 0], x[:, form.lags - 1] = last, state
        F, curved = self.fit.step[0], self.fit.theta[0][form.lags * d :]
        offsets = self.fit.offsets[0] * (not (self.at_rest and form.means))
        for k, e in enumerate(self._noise(burn, T - form.lags, size, n, rng)):
            t = max(k - burn, 0)
            new = (state.reshape(-1, d) @ F[:d]).reshape(size, n, d)
            new += own + offsets[t]
            new += e * spreads[t] if form.spreads and not self.at_rest else e
            if form.lags == 2:
                new += (last.reshape(-1, d) @ F[d:]).reshape(size, n, d)
            if form.degree > 1:
                new += np.concatenate(products(state, form.degree), axis=-1) @ curved
            last, state = state, new if self.bounds is None else np.clip(new, *self.bounds)
            if k >= burn - form.lags:
                x[:, k - burn + form.lags] = state
        x = x.transpose(0, 2, 1, 3)
        if self.noise is not None:
            x = x + rng.standard_normal(x.shape) @ self.noise
        x = like.turned(x) if self.backwards else x
        if like.filled is not None:
            x = like.filled.fill(x, rng, at_rest=self.at_rest)
        return replace(like, x=x, units=None, filled=None)

    def _noise(
        self, burn: int, count: int, size: int, n: int, rng: np.random.Generator
    ) -> Iterator[Array]:
        """Residuals (size, n, d) of some steps before the panel starts, and of its own: every panel's own permutation of
        the slices, or single ones drawn.

        No slice is drawn twice: the same residuals of all trajectories in two steps would be a dependence of its own.
        """
        pool = self.pool
        if pool.ndim == 2:
            for _ in range(burn + count):
                yield pool[rng.integers(len(pool), size=(size, n))]
            return
        slices = np.tile(np.arange(len(pool)), (size, 1))
        before, after = (rng.permuted(slices, axis=1) for _ in range(2))
        for k in range(burn):
            # What a panel starts from must not hold the residuals that its own steps draw.
            yield pool[before[:, k % len(pool), None], rng.permutation(n)]
        for k in range(count):
            yield pool[after[:, k % len(pool)]]

    def _from_start(
        self, like: Panels, size: int, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """First states (size, n, lags·d) from the start law, one for each group, and intercepts given them."""
        first = self.start.draw(size, self._groups(like, n), rng)
        if self.within is not None:
            first = first[:, like.groups] + self.within
        law = self.fit.intercepts
        if law is None:
            return first, np.zeros(1)
        known = np.concatenate([np.ones((size, n, 1)), first], axis=2)
        apart = rng.standard_normal((size, n, self.fit.H.shape[1])) @ _root(law.omega[0])
        return first, known @ law.of_start[0] + apart

    def _at_rest(
        self, like: Panels, size: int, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """The same from the stationary law."""
        fit, lags, d = self.fit, self.fit.form.lags, self.fit.H.shape[1]
        G, law = self._groups(like, n), self.fit.intercepts
        own = np.zeros((size, G, d))
        if law is not None:
            slope = law.of_start[0][1:]
            mean, width = fit.start.moments
            root = _root(slope.T @ width @ slope + law.omega[0])
            own = law.of_start[0][0] + mean @ slope + rng.standard_normal((size, G, d)) @ root
        noise = np.zeros((lags * d, lags * d))
        noise[:d, :d] = fit.H[0]
        spread = _root(solve_discrete_lyapunov(fit.companion, noise))
        F = fit.step[0].reshape(lags, d, d).sum(axis=0)
        shared = 0.0 if fit.form.means else fit.offsets[0].mean(axis=0)
        centre = (own + shared) @ np.linalg.inv(np.eye(d) - F)
        # The newest slice comes first in the state, the oldest in the start.
        state = rng.standard_normal((size, G, lags * d)) @ spread + np.tile(centre, lags)
        if lags == 2:
            old, new = state[..., d:], state[..., :d]
            state = np.concatenate([old, new - old], axis=2)
        if self.within is not None:
            return state[:, like.groups] + self.within, own[:, like.groups]
        return state, own

    def _groups(self, like: Panels, n: int) -> int:
        return n if self.within is None or like.groups is None else int(like.groups.max()) + 1


def noisy_simulator(
    law: StepFit, R: Array, rng: np.random.Generator, *, backwards: bool
) -> NullSimulator:
    """A simulator with measurement noise R (d, d) and Gaussian residuals: those of hidden states cannot be resampled."""
    pool = rng.standard_normal((GAUSSIAN_POOL, len(R))) @ _root(law.H[0])
    return NullSimulator(law, pool, backwards, noise=_root(R) if R.any() else None)


def simulated_test(
    panels: Panels,
    form: Form,
    rng: np.random.Generator,
    *,
    alpha: float,
    simulators: tuple[NullSimulator, NullSimulator] | None = None,
    grounds: frozenset[Ground] = frozenset(Ground),
) -> SimulatedP:
    """Of one panel, by a form's ratio on the `grounds` that may count.

    `simulators`: of the order and of its reverse, where they are not the form's own.
    """

    def statistic(some: Panels) -> Array:
        return ratios(some, form, grounds)

    ratio = float(statistic(panels)[0])
    if simulators is None:
        if _beyond_doubt(panels, form, statistic, ratio, rng):
            return _none_reached(alpha)
        simulators = _own_simulators(panels, form)
    worst = SimulatedP(0.0, 0.0)
    for simulator in nulls(simulators, favoured=0 if ratio >= 0 else 1):
        if simulator.at_rest and departs(panels, form):
            found = _p_value_at_rest(simulator, form, grounds, panels, rng, alpha=alpha)
        else:
            found = _p_value_under(simulator, statistic, panels, ratio, rng, alpha=alpha)
        worst = max(worst, found)
        if worst.clear(alpha) and worst.p_value > alpha:
            break
    return worst


def _part(panels: Panels, form: Form) -> Panels | None:
    """Some of the trajectories, where there are many more than a large ratio needs; None: too few, or alike in groups, or drawn.

    Of Markov steps every k-th slice as well: these are Markov steps, too, linear ones linear, at rest where the panel is, and
    in reverse where it is.
    """
    n, T, d = panels.x.shape[1:]
    if panels.groups is not None or panels.filled is not None or panels.visits.ragged:
        return None
    size, stride = max(PART_NUMBERS // (T * d), PART_TRAJECTORIES), 1
    if form.lags == form.degree == 1 and not form.levels and not form.spreads:
        every = max(1, (T - 1) // (THINNED_SLICES - 1))
        count = -(-T // every)
        thin = min(max(THINNED_TRAJECTORIES, -(-THINNED_STEPS * d // count)), n)
        if thin * count <= THINNED_SHARE * n * T and form.fits(thin, count, d):
            size, stride = thin, every
    if stride == 1 and (n < 2 * size or not form.fits(size, T, d)):
        return None
    return Panels(panels.x[:, evenly(n, size), ::stride], aligned=panels.aligned)


def _beyond_doubt(
    panels: Panels,
    form: Form,
    statistic: Callable[[Panels], Array],
    ratio: float,
    rng: np.random.Generator,
) -> bool:
    """A part of the panel has the sign of the whole ratio, out of reach of every null; no more counts than its trajectories' share of the whole."""
    part, (n, _, d) = _part(panels, form), panels.x.shape[1:]
    if part is None:
        return False
    share = abs(ratio) * part.x.shape[1] / n
    if share < MIN_PART_NATS * d:
        return False
    own = float(statistic(part)[0])
    if own * ratio <= 0:
        return False
    least = min(abs(own), share)
    for each in nulls(_own_simulators(part, form), favoured=0 if ratio >= 0 else 1):
        drawn = _null_ratios(each, statistic, part, ratio, rng)
        found = _until_out_of_reach(np.empty(0), drawn, least, REACH[-1][0], REACH[0][0])
        if not out_of_reach(found, least):
            return False
    return True


def _own_simulators(panels: Panels, form: Form) -> tuple[NullSimulator, NullSimulator]:
    """Of a form's fits to the order and to its reverse."""
    one, two = (NullSimulator.of(panels, form, backwards=back) for back in (False, True))
    return one, two


def nulls(simulators: tuple[NullSimulator, NullSimulator], *, favoured: int) -> list[NullSimulator]:
    """The reverse of the favoured direction from its own start, and each direction at rest, where variances do not change."""
    at_rest = [
        replace(each, at_rest=True)
        for each in simulators
        if each.fit.stable and not each.fit.form.spreads
    ]
    return [simulators[1 - favoured], *at_rest]


def _p_value_under(
    simulator: NullSimulator,
    statistic: Callable[[Panels], Array],
    like: Panels,
    ratio: float,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> SimulatedP:
    """The share of a simulator's panels whose ratio reaches the one observed; at rest, in either direction."""
    drawn = _null_ratios(simulator, statistic, like, ratio, rng)
    return staged(drawn, abs(ratio), alpha=alpha, at_once=_at_once(like))


def _p_value_at_rest(
    simulator: NullSimulator,
    form: Form,
    grounds: frozenset[Ground],
    like: Panels,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> SimulatedP:
    """The share of a simulator's panels at rest that depart from rest as far as the data."""

    def drawn(size: int) -> Array:
        return _of_simulated(
            simulator, lambda some: departures(some, form, grounds), like, size, rng
        )

    observed = float(departures(like, form, grounds)[0])
    return staged(drawn, observed, alpha=alpha, at_once=_at_once(like))


def _at_once(like: Panels) -> int:
    """Panels that are simulated at a time."""
    return max(REACH[0][0], SIMULATED_NUMBERS // like.x[0].size)


def _of_simulated(
    simulator: NullSimulator,
    statistic: Callable[[Panels], Array],
    like: Panels,
    size: int,
    rng: np.random.Generator,
) -> Array:
    """A statistic of so many simulated panels; of large ones a few are held at a time."""
    most, found = max(1, LARGE_NUMBERS // like.x[0].size), []
    for begin in range(0, size, most):
        panels = simulator.panels(like, min(most, size - begin), rng)
        found.append(statistic(panels))
        panels.forget()
    return np.concatenate(found)


def _null_ratios(
    simulator: NullSimulator,
    statistic: Callable[[Panels], Array],
    like: Panels,
    ratio: float,
    rng: np.random.Generator,
) -> Callable[[int], Array]:
    """Draws of ratios under a null, in the direction of the one observed; at rest, in either direction."""

    def drawn(size: int) -> Array:
        found = _of_simulated(simulator, statistic, like, size, rng)
        return np.abs(found) if simulator.at_rest else found * np.sign(ratio)

    return drawn


def staged(
    drawn: Callable[[int], Array], least: float, *, alpha: float, at_once: int
) -> SimulatedP:
    """The share of drawn numbers that reach `least`: drawn in stages, until the p-value is clear of the level.

    Where `least` is out of reach of those drawn so far, the others of a stage are counted as not reaching it: the p-value is the
    one that drawing them would give.
    """
    values, found = np.empty(0), SimulatedP(1.0, 1.0)
    stages = STAGES if STAGES[-1] <= MAX_ROUNDS * at_once else STAGES[:-1]
    for stage in steps(stages, "testing the direction of time"):
        values = _until_out_of_reach(values, drawn, least, stage, at_once)
        found = SimulatedP.of(int((values >= least).sum()), stage)
        if found.clear(alpha):
            break
    return found


def _none_reached(alpha: float) -> SimulatedP:
    """The p-value of as many draws as make it clear of the level, none of which reaches the ratio."""
    found = (SimulatedP.of(0, stage) for stage in STAGES)
    return next((each for each in found if each.clear(alpha)), SimulatedP.of(0, STAGES[-1]))


def _until_out_of_reach(
    values: Array, drawn: Callable[[int], Array], least: float, most: int, at_once: int
) -> Array:
    """Further draws, up to so many, while they may reach `least`."""
    while len(values) < most and not out_of_reach(values, least):
        k = len(values)
        stop = min([count for count, _ in REACH if count > k] + [most])
        values = np.append(values, drawn(min(at_once, stop - k)))
    return values


def out_of_reach(values: Array, least: float) -> bool:
    """Hardly any further draw would reach `least`: it is many standard deviations away (`REACH`).

    This spares draws where the answer is beyond doubt, and no others.
    """
    k = len(values)
    far = [deviations for count, deviations in REACH if count <= k]
    if not far:
        return False
    width = max(float(values.std(ddof=1)) * np.sqrt(1 + 1 / k), 1e-300)
    return bool(least - values.mean() > far[-1] * width)


def _pool(panels: Panels, fit: StepFit) -> Array:
    """Residuals to draw from, centred, and scaled up for the degrees of freedom used: slices (S, n, d), or single ones (N, d)."""
    e, form = residuals(panels, fit)[0], fit.form
    live = panels.live(form.lags) > 0
    n, S, _ = e.shape
    N = live.sum()
    used = fit.theta.shape[1] + (S if form.means else form.affine) + n * form.levels
    e = e * np.sqrt(N / max(N - used, N / 4))
    if not panels.aligned:
        flat = e[live]
        return np.asarray(flat - flat.mean(axis=0))
    return np.asarray((e if form.means else e - e.mean(axis=(0, 1))).transpose(1, 0, 2))


def _root(S: Array) -> Array:
    """A root of a matrix that may be singular, as it multiplies rows."""
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)
