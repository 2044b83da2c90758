"""Fitted regimes asked what a treatment would have done to their subjects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.effects.regime import Regime
from retrace_sde.effects.subject_model import SubjectModel
from retrace_sde.effects.support import Support
from retrace_sde.io.arrays import Array, Indices

Treatment = str | ArrayLike | None
Given = tuple[str, Array | None]
"""The regime that a treatment belongs to, and its covariates (n or 1, steps, k)."""


def steps_in(horizon: float, dt: float) -> int:
    """A horizon in steps."""
    steps = round(float(horizon) / dt) if np.isfinite(horizon) else 0
    if steps < 1 or abs(steps * dt / horizon - 1) > 1e-6:
        raise ValueError(f"horizon must be a positive multiple of dt = {dt:g}; got {horizon!r}.")
    return steps


@dataclass(frozen=True, eq=False)
class Interventions:
    """One regime, named "", whose covariates are the treatment, or one regime for each arm.

    With arms, a subject under another arm than its own deviates from that arm's population as its distribution says.
    `features` are the names of all features of the drift, `largest` the most of each covariate that was given, `support`
    the treatments that were given; without it, none is refused.
    """

    regimes: dict[str, Regime]
    arms: tuple[str, ...]
    covariates: tuple[str, ...]
    features: list[str]
    largest: Array | None
    variables: tuple[str, ...]
    support: Support | None = None

    @property
    def size(self) -> int:
        """Subjects in all; they are numbered arm after arm."""
        return sum(regime.size for regime in self.regimes.values())

    @property
    def dt(self) -> float:
        """Time between neighbouring states."""
        return next(iter(self.regimes.values())).problem.dt

    def steps(self, horizon: float | None) -> int:
        """The horizon in steps; None: as long as the observed trajectories."""
        if horizon is None:
            return max(each.problem.data.shape[1] for each in self.regimes.values()) - 1
        return steps_in(horizon, self.dt)

    def given(self, T: Treatment, steps: int, *, first: bool = False) -> Given:
        """A treatment, checked; None: no treatment or the first arm if `first`, else the most or the last arm."""
        if self.arms:
            name = self.arms[0 if first else -1] if T is None else T
            if isinstance(name, int | np.integer) and 0 <= name < len(self.arms):
                name = self.arms[name]
            if name not in self.arms:
                raise ValueError(f"T0 and T1 must be arms, {self.arms}; got {T!r}.")
            return str(name), None
        k = len(self.covariates)
        if k == 0:
            raise ValueError(
                "the fit has no covariates and no arms, so there is no treatment to compare."
            )
        try:
            value = self._amounts(T, first)
        except (TypeError, ValueError):
            raise ValueError(
                f"a treatment must be numbers of {self.covariates}; got {T!r}."
            ) from None
        shapes = {(k,): (1, 1, k), (steps, k): (1, steps, k), (self.size, steps, k): value.shape}
        if value.shape not in shapes or not np.isfinite(value).all():
            raise ValueError(
                f"a treatment must be finite numbers of shape ({k},), ({steps}, {k}) or ({self.size}, {steps}, {k}) for "
                f"{', '.join(self.covariates)}; got shape {value.shape}."
            )
        constant = value.ndim == 1
        value = value.reshape(shapes[value.shape])
        value = np.broadcast_to(value, (len(value), steps, k))
        self.regimes[""].check_treatment(value[:, :1] if constant else value, self.features)
        if self.support is not None:
            self.support.check(value[:, :1] if constant else value)
        return "", value

    def with_regime(self, name: str, regime: Regime) -> Interventions:
        """The same with another fit of one arm."""
        return replace(self, regimes={**self.regimes, name: regime})

    def with_model(self, model: SubjectModel) -> Interventions:
        """The same subjects, without arms, under another model of their levels."""
        return self.with_regime("", replace(self.regimes[""], model=model))

    def _amounts(self, T: Treatment, first: bool) -> Array:
        """Of each covariate; None: nothing if `first`, else the most that was given."""
        if T is None:
            T = np.zeros(len(self.covariates)) if first else self.largest
        return np.asarray(T, dtype=float)

    def named(self, T: Treatment, *, first: bool = False) -> str:
        """A treatment in words: an arm, or how much of each covariate."""
        if self.arms:
            return repr(self.given(T, 1, first=first)[0])
        value = self._amounts(T, first)
        if value.ndim > 1:
            return f"a schedule of {', '.join(self.covariates)}"
        pairs = zip(self.covariates, value, strict=True)
        return ", ".join(f"{name} = {each:g}" for name, each in pairs)

    def comparison(
        self,
        variable: str,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
    ) -> str:
        """What an effect compares, in words."""
        time = self.steps(horizon) * self.dt
        return f"effect of {self.named(T1)} against {self.named(T0, first=True)} on {variable!r} at t = {time:g}"

    def check_starts(self, X: ArrayLike) -> Array:
        """Starting states (m, d) of other subjects."""
        start = np.asarray(X, dtype=float)
        d = next(iter(self.regimes.values())).problem.data.shape[2]
        if start.ndim != 2 or start.shape[1] != d or not np.isfinite(start).all():
            raise ValueError(
                f"X must be finite starting states of shape (m, {d}); got {start.shape}."
            )
        drift = next(iter(self.regimes.values())).problem.drift
        outside = (drift.admit(start) != start).any(axis=1)
        if outside.any():
            raise ValueError(
                f"{outside.sum()} of the {len(start)} starting states are outside what {drift} is defined for; "
                f"the first is {start[outside][0].tolist()}, and the nearest allowed "
                f"{drift.admit(start[outside])[0].tolist()}."
            )
        return start

    def ends(
        self, given: Given, steps: int, start: Array | None = None, push: Array | None = None
    ) -> Array:
        """Expected states (n, d) of the subjects, or of others by their starting states, after some steps.

        `push` (d,) is added to all levels.
        """
        name, treatment = given
        starts = [start]
        if start is None:
            others = self.regimes.items()
            starts = [None if arm == name else each.starts.mean(axis=0) for arm, each in others]
        regime = self.regimes[name]
        found = [regime.mean_path(treatment, steps, each, push)[:, -1] for each in starts]
        return np.concatenate(found)

    def mean_paths(self, given: Given, chosen: Indices, steps: int) -> Array:
        """Expected paths (subjects, steps + 1, d)."""
        found = [
            regime.mean_path(treatment, steps, start)
            for regime, treatment, start in self._asked(given, chosen)
        ]
        return np.concatenate(found)

    def paths(
        self, given: Given, chosen: Indices, steps: int, samples: int, rng: np.random.Generator
    ) -> Array:
        """Paths (samples, subjects, steps + 1, d) with all uncertainty and the process's noise."""
        found = []
        for regime, treatment, start in self._asked(given, chosen):
            each = []
            for k in range(samples):
                begin, own = regime.draw_subjects(k, regime.draw_coefficients(rng), rng, start)
                each.append(np.stack(list(regime.path(begin, own, treatment, steps, rng)), axis=1))
            found.append(np.stack(each))
        return np.concatenate(found, axis=1)

    def _asked(
        self, given: Given, chosen: Indices
    ) -> Iterator[tuple[Regime, Array | None, Array | None]]:
        """For the chosen subjects of each arm: the regime asked, the treatment, and their starts if not its own."""
        if len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= self.size:
            raise ValueError(f"subjects must be indices from 0 to {self.size - 1}.")
        regime, begin = self.regimes[given[0]], 0
        for name, each in self.regimes.items():
            rows = chosen[(chosen >= begin) & (chosen < begin + each.size)] - begin
            begin += each.size
            treatment = given[1]
            if treatment is not None and len(treatment) > 1:
                treatment = treatment[rows]
            if len(rows) and name == given[0]:
                yield regime.some(rows), treatment, None
            elif len(rows):
                yield regime, treatment, each.starts.mean(axis=0)[rows]

    def effect_draws(
        self,
        before: Given,
        after: Given,
        steps: int,
        draws: int,
        rng: np.random.Generator,
        start: Array | None = None,
    ) -> Iterator[Array]:
        """Effects (n, d) under parameters, deviations and orders drawn from their uncertainty."""
        for k in range(draws):
            theta = {name: each.draw_coefficients(rng) for name, each in self.regimes.items()}
            own = {
                name: each.draw_subjects(k, theta[name], rng, start)
                for name, each in self.regimes.items()
            }
            ends = []
            for name, treatment in (before, after):
                regime = self.regimes[name]
                parts = [own[name]]
                if start is None:
                    parts = [
                        drawn
                        if other == name
                        else regime.draw_subjects(k, theta[name], rng, drawn[0])
                        for other, drawn in own.items()
                    ]
                paths = (list(regime.path(*part, treatment, steps)) for part in parts)
                ends.append(np.concatenate([path[-1] for path in paths]))
            yield ends[1] - ends[0]
