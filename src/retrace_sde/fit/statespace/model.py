"""The state-space model: its steps, by class, and its checks.

X_{i+1} = F_k X_i + S_k v_i + N(0, Q_k),     Y_i = X_i + N(0, R),     X_0 ~ N(m₀, P₀).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retrace_sde.fit.statespace.filter import Table
from retrace_sde.fit.statespace.transitions import Transitions
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian, Transition


@dataclass(frozen=True, eq=False)
class StateSpace:
    """A state-space model of one step: `X' = F X + s + N(0, Q)`, `Y = X + N(0, R)`.

    `StateSpace(sde.transition(dt), R, initial)` is the model of an SDE.

    Parameters
    ----------
    transition : Transition
        F, s and Q of one step; Q must be positive definite.
    noise : array (d, d)
        R; may be zero where P₀ is positive definite (values then are missing or exact).
    initial : Gaussian
        The law of X_0.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE(-np.eye(2), np.eye(2))
    >>> model = rt.statespace.StateSpace(sde.transition(0.1), 0.01 * np.eye(2), sde.stationary())
    >>> rt.statespace.kalman(sde.simulate(3, 20, 0.1, random_state=0), model).means.shape
    (3, 20, 2)
    """

    transition: Transition
    noise: Array
    initial: Gaussian

    @property
    def steps(self) -> StepModel:
        """The same as a model with one class of steps; v = 1."""
        step = self.transition
        one = Transitions(step.matrix[None], step.shift[None, :, None], step.covariance[None])
        return StepModel(*one, self.noise, self.initial)


@dataclass(frozen=True, eq=False)
class StepModel:
    """F (K, d, d), S (K, d, m) and Q (K, d, d) of each of K classes of steps, R and the law of X_0.

    `regular`: every Q is positive definite, so that predicted covariances can be inverted.
    """

    matrix: Array
    inputs: Array
    covariance: Array
    noise: Array
    initial: Gaussian
    regular: bool = True

    @cached_property
    def diagonal(self) -> bool:
        """The noises of the variables are independent: entries can be taken one by one."""
        return not np.any(self.noise[~np.eye(len(self.noise), dtype=bool)])

    @property
    def coefficients(self) -> Array:
        """(F − 1, S) of each class, (K, d, p): `X' − X = (F − 1) X + S v + η`."""
        return np.concatenate([self.matrix - np.eye(len(self.noise)), self.inputs], axis=2)

    @property
    def table(self) -> Table:
        """As the filter along changing orders wants it; R diagonal."""
        law = np.diag(self.noise), self.initial.mean, self.initial.covariance
        parts = self.matrix, self.inputs, self.covariance, *law
        return Table.of(*parts)


def check_model(model: StateSpace, d: int) -> None:
    """Shapes that fit together, and covariances that can be ones."""
    step, initial = model.transition, model.initial
    named = {"transition": step.matrix, "step covariance": step.covariance, "noise": model.noise}
    for name, matrix in {**named, "initial covariance": initial.covariance}.items():
        if np.shape(matrix) != (d, d) or not np.isfinite(matrix).all():
            raise ValueError(
                f"the {name} must be a finite matrix ({d}, {d}), not {np.shape(matrix)}."
            )
        if name != "transition" and not is_covariance(matrix):
            raise ValueError(f"the {name} must be symmetric, without negative eigenvalues.")
    if np.shape(step.shift) != (d,) or np.shape(initial.mean) != (d,):
        raise ValueError(f"the shift and the initial mean must be vectors of {d} numbers.")
    for matrix in (step.covariance, initial.covariance + model.noise):
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError(
                "the step covariance, and the sum of noise and initial covariance, must be positive definite."
            )


def is_covariance(matrix: Array) -> bool:
    """Symmetric and positive semi-definite, up to rounding."""
    scale = float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-8 * scale):
        return False
    return bool(np.linalg.eigvalsh(matrix)[0] >= -1e-10 * scale)
