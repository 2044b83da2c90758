"""Drifts that are linear in their parameters: `b(x, u) = Θ φ(x, u)`.

Any such drift keeps the whole engine closed form: regression on φ gives Θ, and transition costs stay
matrix products. Covariates u travel with their observation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray


class Drift(ABC):
    """Features φ: (…, d) states and (…, k) covariates to (…, p) regressors; any array-API namespace."""

    @abstractmethod
    def features(self, x: Any, u: Any | None) -> Any:
        """φ(x, u), one row of p regressors per state."""

    @abstractmethod
    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        """One name for each of the p regressors."""

    def reversal(self, d: int, dt: float) -> NDArray[np.float64] | None:
        """The matrix that takes the row (φ(x) √Δt, Δx/√Δt) of a step to that of the step run backwards.

        It exists where φ(x + Δx) is linear in φ(x) and Δx; None: the backward rows must be formed anew.
        """
        return None


@dataclass(frozen=True)
class Linear(Drift):
    """The paper's drift `b(x) = A x`: φ(x) = x, Θ = A."""

    def features(self, x: Any, u: Any | None) -> Any:
        return x

    def reversal(self, d: int, dt: float) -> NDArray[np.float64]:
        return _step_back(d, d, dt)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return list(variables)


@dataclass(frozen=True)
class Affine(Drift):
    """`b(x) = A x + c`: φ(x) = (x, 1), Θ = (A, c). For data that are not centred at their equilibrium."""

    def features(self, x: Any, u: Any | None) -> Any:
        xp = array_api_compat.array_namespace(x)
        one = xp.ones((*x.shape[:-1], 1), dtype=x.dtype, device=array_api_compat.device(x))
        return xp.concat([x, one], axis=-1)

    def reversal(self, d: int, dt: float) -> NDArray[np.float64]:
        return _step_back(d, d + 1, dt)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return [*variables, "1"]


def _step_back(d: int, p: int, dt: float) -> NDArray[np.float64]:
    """x → x + Δx in the regressors, Δx → −Δx."""
    turn = np.eye(p + d)
    turn[p:, p:] *= -1
    turn[:d, p:] = dt * np.eye(d)
    return turn


def as_drift(drift: str | Drift) -> Drift:
    """The drift object behind a name."""
    if isinstance(drift, Drift):
        return drift
    named: dict[str, Drift] = {"linear": Linear(), "affine": Affine()}
    if drift not in named:
        raise ValueError(
            f"drift must be one of {sorted(named)} or a retrace_sde.drift.Drift, not {drift!r}."
        )
    return named[drift]
