"""How the likelihood of a state-space model is climbed: parameters as vectors, the M-step, slopes, and what each number weighs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.statespace.em_steps import Expected, exact_steps, maximise
from retrace_sde.fit.statespace.parameters import Flat, Parameters, Setup, pack, unpack
from retrace_sde.io.arrays import Array


class Slopes(NamedTuple):
    """Derivatives of the expected log-likelihood by Θ, H and, where they are free, the gaps."""

    theta: Array
    H: Array
    gaps: Array | None = None


@dataclass(frozen=True, eq=False)
class Ascent:
    """How parameters are laid out as vectors and maximised: what `climb` and `finish` need. `spans`: gaps are free, in these stretches."""

    setup: Setup
    spans: Spans | None = None

    @property
    def scores(self) -> bool:
        """Steps are not those of EM, so that one may lower the likelihood."""
        return False

    def pack(self, law: Parameters) -> Array:
        """The free parameters as a vector without constraints."""
        found = pack(law, self.setup)
        return found if law.gaps is None else np.r_[found, np.log(law.gaps / self.setup.dt)]

    def unpack(self, vector: Array, like: Parameters) -> Parameters:
        """The parameters behind a vector; what is known is taken from `like`."""
        if like.gaps is None or self.spans is None:
            return unpack(vector, like, self.setup)
        at = len(vector) - len(like.gaps)
        found = unpack(vector[:at], like, self.setup)
        return replace(found, gaps=self.setup.dt * self.spans.gaps(vector[at:]))

    def weights(self, now: Parameters, expected: Expected) -> Array:
        """Square roots of the complete data's information on each entry of the packed vector, roughly."""
        found = information_weights(now, expected, self.setup)
        return found if now.gaps is None else np.r_[found, np.sqrt(expected.counts / 2 + 1e-9)]

    def maximise(self, expected: Expected, now: Parameters) -> Parameters:
        """The M-step."""
        return maximise(self.setup, expected, now, self.spans)

    def advance(self, expected: Expected, now: Parameters) -> tuple[Parameters, float]:
        """Where the next step leads, and by how much it should raise the log-likelihood: that of EM, which promises nothing."""
        return self.maximise(expected, now), np.inf

    def slopes(self, expected: Expected, now: Parameters) -> Slopes:
        """Derivatives by Θ, H and free gaps at the parameters of the E-step.

        Of Euler's steps `H⁻¹ Σ η φᵀ` and `½ (H⁻¹ Σ η ηᵀ H⁻¹ − n H⁻¹)`.
        """
        if now.scheme == "euler":
            p, gram = now.theta.shape[1], expected.euler_gram(now.theta)
            weight = np.linalg.inv(now.H)
            of_H = 0.5 * (weight @ gram[p:, p:] @ weight - expected.count * weight)
            return Slopes(weight @ gram[p:, :p], of_H)
        steps = exact_steps(self.setup, expected, None)
        found = steps.cost(now.theta, now.H, expected.gaps if now.gaps is None else now.gaps)
        if found is None:
            raise np.linalg.LinAlgError("the likelihood is not defined here.")
        return Slopes(-found.theta, -found.diffusion, None if now.gaps is None else -found.gaps)


def _even(S: Array, scale: Array) -> Array:
    """The information of a trajectory on each entry of a matrix logarithm, roughly."""
    return np.ones(len(S) * (len(S) + 1) // 2)


def information_weights(
    now: Parameters, expected: Expected, setup: Setup, each: Flat = _even
) -> Array:
    """Square roots of the complete data's information on each entry of the packed vector, roughly."""
    p, n = setup.free.shape[1], float(expected.seen.max())
    regressors = np.diag(expected.gram)[:p]
    theta = np.sqrt(np.outer(1 / np.diag(now.H), regressors))[setup.free]
    logs = np.sqrt(expected.seen[setup.noise_free] / 2)
    weights = [theta, np.sqrt((logs**2).sum(keepdims=True)) if setup.noise_tied else logs]
    if setup.H is None:
        weights.append(np.sqrt(expected.count * each(now.H, setup.rate)))
    if setup.initial is None:
        firsts = max(n / max(len(expected.gram), 1), 1.0)
        P = np.diag(now.initial.covariance)
        weights += [
            np.sqrt(firsts / P),
            np.sqrt(firsts * each(now.initial.covariance, setup.scale)),
        ]
    return np.concatenate(weights)
