"""How the likelihood of a state-space model is climbed: EM with extrapolation, the one search for the maximum of the likelihood.

`Ascent` lays parameters out as vectors, makes the M-step and gives slopes and what each number weighs; `scoring` is another.
EM is slow where the noise is far below or above the step's own spread, so its steps are extrapolated (Anderson); a step that would
lower the likelihood is replaced by the plain one, which cannot. Quasi-Newton steps end a climb (`quasi_newton`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.statespace.em_steps import Expected, exact_steps, maximise
from retrace_sde.fit.statespace.parameters import Parameters, Setup, flattened, raised
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian

Expectation = Callable[[Parameters], Expected]
"""The E-step at given parameters."""

STEPS_REMEMBERED = 10
"""Steps that the extrapolation looks back on."""

HEAP_ELEMENTS = (1 << 22) - (1 << 12)
"""Numbers of an array that is asked for and let go before a climb. The C library of most systems gives arrays of some MB back to the
system each time, and to get them again takes longer than to fill them, until once a larger one was let go."""

LAST_PROMISE = 0.1
"""Share of the tolerance: a step of scoring that promises a smaller rise is the last."""


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

    scores: ClassVar[bool] = False
    """Steps are not those of EM, so that one may lower the likelihood."""

    def _flat(self, S: Array, scale: Array) -> Array:
        """The lower half of the matrix logarithm of S in the units `scale`.

        In these coordinates the extrapolation needs half the steps it needs with Cholesky factors, where one
        small eigenvalue of H is spread over all rows.
        """
        return flattened(S, scale, lambda values: np.log(np.maximum(values, 1e-15 * values[-1])))

    def _matrix(self, vector: Array, scale: Array) -> Array:
        """The matrix behind its flat form."""
        return raised(vector, scale, np.exp)

    def _information(self, S: Array, scale: Array) -> Array:
        """The information of a step, or of a trajectory, on each entry of the flat form, roughly."""
        return np.ones(len(S) * (len(S) + 1) // 2)

    def pack(self, law: Parameters) -> Array:
        """The free parameters as a vector without constraints: logarithms of variances and gaps, matrices in their flat form."""
        setup = self.setup
        parts = [law.theta[setup.free], np.log(setup.noises(np.diag(law.R)))]
        if setup.H is None:
            parts.append(self._flat(law.H, setup.rate))
        if setup.initial is None:
            parts += [law.initial.mean, self._flat(law.initial.covariance, setup.scale)]
        if law.gaps is not None:
            parts.append(np.log(law.gaps / setup.dt))
        return np.concatenate(parts)

    def unpack(self, vector: Array, like: Parameters) -> Parameters:
        """The parameters behind a vector; what is known is taken from `like`."""
        setup, d = self.setup, len(self.setup.free)
        half = d * (d + 1) // 2
        sizes = [int(setup.free.sum()), setup.n_noises, half if setup.H is None else 0]
        sizes.append(d + half if setup.initial is None else 0)
        of_theta, logs, of_H, first, of_gaps = np.split(vector, np.cumsum(sizes))
        theta, R = like.theta.copy(), setup.with_noises(like.R, np.exp(logs))
        theta[setup.free] = of_theta
        H = like.H if setup.H is not None else self._matrix(of_H, setup.rate)
        initial = setup.initial or Gaussian(first[:d], self._matrix(first[d:], setup.scale))
        found = replace(like, theta=theta, H=H, R=R, initial=initial)
        if like.gaps is None or self.spans is None:
            return found
        return replace(found, gaps=setup.dt * self.spans.gaps(of_gaps))

    def weights(self, now: Parameters, expected: Expected) -> Array:
        """Square roots of the complete data's information on each entry of the packed vector, roughly."""
        setup, n = self.setup, float(expected.seen.max())
        regressors = np.diag(expected.gram)[: setup.free.shape[1]]
        theta = np.sqrt(np.outer(1 / np.diag(now.H), regressors))[setup.free]
        logs = np.sqrt(expected.seen[setup.noise_free] / 2)
        weights = [theta, np.sqrt((logs**2).sum(keepdims=True)) if setup.noise_tied else logs]
        if setup.H is None:
            weights.append(np.sqrt(expected.count * self._information(now.H, setup.rate)))
        if setup.initial is None:
            firsts, P = max(n / max(len(expected.gram), 1), 1.0), now.initial.covariance
            weights.append(np.sqrt(firsts / np.diag(P)))
            weights.append(np.sqrt(firsts * self._information(P, setup.scale)))
        if now.gaps is not None:
            weights.append(np.sqrt(expected.counts / 2 + 1e-9))
        return np.concatenate(weights)

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
        found = steps.cost(now.theta, now.H, now.crossed(expected.gaps))
        if found is None:
            raise np.linalg.LinAlgError("the likelihood is not defined here.")
        return Slopes(-found.theta, -found.diffusion, None if now.gaps is None else -found.gaps)


@dataclass(frozen=True, eq=False)
class Climb:
    """Where a climb ended: parameters, the E-step there, log-likelihoods, whether they had stopped rising, and whether a step of
    scoring saw the `top`."""

    parameters: Parameters
    expected: Expected
    trace: list[float]
    converged: bool
    evaluations: int
    top: bool = False


def climb(
    expected_at: Expectation,
    ascent: Ascent,
    start: Parameters,
    max_iter: int,
    tolerance: float,
) -> Climb:
    """EM with Anderson's extrapolation: of the last steps the combination whose EM step is smallest.

    "Small" is measured in the metric of the complete data's information. Every accepted step raises the
    likelihood; where the extrapolated one does not, the plain EM step is taken and the memory cleared.
    """
    np.empty(HEAP_ELEMENTS)
    now, expected = start, expected_at(start)
    trace, evaluations = [expected.likelihood], 1
    x = ascent.pack(now)
    memory: list[tuple[Array, Array]] = []
    step, left = _ahead(ascent, expected, now, x)
    while len(trace) <= max_iter:
        weight = ascent.weights(now, expected)
        plain = ahead = x + step
        if memory:
            moves, changes = (np.array(rows) for rows in zip(*memory, strict=True))
            gamma = np.linalg.lstsq((changes * weight).T, step * weight, rcond=1e-10)[0]
            ahead = plain - gamma @ (moves + changes)
        for trial in _trials(ascent, expected, now, ahead, plain):
            better = _attempt(expected_at, ascent, trial, now, trace[-1])
            evaluations += 1
            if better is not None:
                break
            memory.clear()
        if better is None:  # not even the plain step rises: what is left is rounding
            return Climb(now, expected, trace, True, evaluations)
        now, expected = better
        trace.append(expected.likelihood)
        new_step, left = _ahead(ascent, expected, now, trial)
        top = left < LAST_PROMISE * tolerance
        if top or (len(trace) > 3 and trace[-1] - trace[-4] < tolerance):
            return Climb(now, expected, trace, True, evaluations, top)
        memory = [*memory[1 - STEPS_REMEMBERED :], (trial - x, new_step - step)]
        x, step = trial, new_step
    return Climb(now, expected, trace, False, evaluations)


def _trials(
    ascent: Ascent, expected: Expected, now: Parameters, ahead: Array, plain: Array
) -> Iterator[Array]:
    """The extrapolated step, the plain one, and EM's, which cannot lower the likelihood: each if those before it did."""
    yield ahead
    if ahead is not plain:
        yield plain
    if ascent.scores:
        yield ascent.pack(ascent.maximise(expected, now))


def _ahead(ascent: Ascent, expected: Expected, now: Parameters, x: Array) -> tuple[Array, float]:
    """The next step, and the rise that it promises; that of EM where there is no other."""
    try:
        target, gain = ascent.advance(expected, now)
    except np.linalg.LinAlgError:
        if not ascent.scores:
            raise
        target, gain = ascent.maximise(expected, now), np.inf
    return ascent.pack(target) - x, gain


def _attempt(
    expected_at: Expectation,
    ascent: Ascent,
    trial: Array,
    like: Parameters,
    least: float,
) -> tuple[Parameters, Expected] | None:
    """Parameters and E-step at a trial point, or None where the likelihood is lower there or not defined."""
    with np.errstate(all="ignore"):
        try:
            found = ascent.unpack(trial, like)
            expected = expected_at(found)
        except np.linalg.LinAlgError:
            return None
    return (found, expected) if expected.likelihood >= least else None
