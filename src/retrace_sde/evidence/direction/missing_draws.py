"""Values that are missing, drawn given those that were seen, so that closed forms speak of panels with holes, too.

A draw from a law, and the smoothed difference between what was seen and the same cells of the draw, are a draw given what was
seen (Durbin & Koopman 2002). Every other trajectory is filled under the law of one way round, the rest under that of the other:
neither direction gains by it. Panels of a process at rest are filled as such: laws of a transient would give them its direction.
Draws, not means: means between their neighbours would look like momentum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from retrace_sde.evidence.direction.linear import Form, Panels, ways
from retrace_sde.evidence.direction.null_simulation import World, pool
from retrace_sde.fit.statespace.model import StateSpace
from retrace_sde.fit.statespace.smoother import kalman
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.process.sde import Gaussian, Transition


@dataclass(frozen=True, eq=False)
class Filled:
    """How values are drawn where `seen` (n, T, d) says that there are none: under the `laws` of both ways round.

    `log_density`: of those drawn in the data, given what was seen.
    """

    seen: Mask
    laws: tuple[World, World]
    log_density: float = 0.0

    @property
    def counts(self) -> Array:
        """How many values of each variable were seen, (d,)."""
        return np.asarray(self.seen.sum(axis=(0, 1)), dtype=float)

    def fill(self, x: Array, rng: np.random.Generator, *, at_rest: bool = False) -> Array:
        """Panels (B, n, T, d), of a process at rest or not, with values drawn where the data have none."""
        found = x.copy()
        for k, law in enumerate(self._resting if at_rest else self.laws):
            rows = slice(k, None, 2)
            like, seen = Panels(x[:, rows]), self.seen[rows]
            drawn = law.panels(like, len(x), rng).x
            gap = _along(law, np.where(seen, x[:, rows] - drawn, np.nan))
            smooth = kalman(
                gap.reshape(-1, *gap.shape[2:]), _space(law, centred=True), covariances=False
            )
            drawn += _along(law, smooth.means.reshape(gap.shape))
            found[:, rows] = np.where(seen, x[:, rows], drawn)
        return found

    @property
    def _resting(self) -> tuple[World, World]:
        """The laws at rest: each that is stable, or the one that is for both."""
        stable = [law._replace(stationary=True) for law in self.laws if law.stable]
        return (stable[0], stable[-1]) if stable else self.laws

    def conditional(self, x: Array) -> float:
        """`log q(drawn | seen)` of a filled panel (n, T, d)."""
        total = 0.0
        for k, law in enumerate(self.laws):
            rows, space = slice(k, None, 2), _space(law)
            both = (x[rows], np.where(self.seen[rows], x[rows], np.nan))
            whole, part = (
                kalman(_along(law, y[None])[0], space, covariances=False).log_likelihood
                for y in both
            )
            total += float(whole.sum() - part.sum())
        return total


def filled(
    panels: Panels, seen: Mask, laws: tuple[World, World], form: Form, rng: np.random.Generator
) -> Panels:
    """A panel with holes, filled under laws fitted to it; `seen` (n, T, d). `form`: what the laws are without noise.

    Without noise closed forms fitted to a first filling fill it again: their start laws are judged by left-out trajectories, and
    do not shrink to the few first states that were seen.
    """
    how = Filled(seen, laws)
    if laws[0].noise is None:
        first = replace(panels, x=how.fill(panels.x, rng))
        one, two = (World(way, pool(first, way)) for way in ways(first, form))
        how = Filled(seen, (one, two))
    x = how.fill(panels.x, rng)
    return replace(panels, x=x, filled=replace(how, log_density=how.conditional(x[0])))


def _along(law: World, x: Array) -> Array:
    """Panels (B, n, T, d) the way that a law runs, or back."""
    return x[:, :, ::-1] if law.way.backwards else x


def _space(law: World, *, centred: bool = False) -> StateSpace:
    """The state space of a law; `centred`: of differences between two of its panels."""
    way, d = law.way, law.way.H.shape[1]
    R = np.zeros((d, d)) if law.noise is None else law.noise.T @ law.noise
    F, shift = way.step[0].T, way.c[0]
    mean, width = way.start.moments
    if law.stationary:
        mean, width = np.linalg.inv(np.eye(d) - F) @ shift, solve_discrete_lyapunov(F, way.H[0])
    if centred:
        mean, shift = np.zeros(d), np.zeros(d)
    return StateSpace(Transition(F, shift, way.H[0]), R, Gaussian(mean, (width + width.T) / 2))
