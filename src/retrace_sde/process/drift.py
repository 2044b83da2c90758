"""Drifts that are linear in their parameters: `b(x, u) = Θ φ(x, u)`.

Any such drift keeps the whole engine closed form: regression on φ gives Θ, and transition costs stay
matrix products. Covariates u travel with their observation: they act from it to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations_with_replacement
from operator import mul
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array
from retrace_sde.panel.parameters import check

__all__ = [
    "Affine",
    "Drift",
    "Features",
    "Linear",
    "Polynomial",
    "TumourGrowth",
]


class Drift(ABC):
    """Features φ: (…, d) states and (…, k) covariates to (…, p) regressors; the drift is `b(x, u) = Θ φ(x, u)`.

    What is linear in its parameters Θ keeps every formula of a fit in closed form. Any array-API namespace. With drifts
    that are not linear in x, noise, missing values and gaps of any length are refused: they need a smoother.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> drift = rt.drift.Affine()
    >>> drift.features(np.array([[2.0, 3.0]]), None)
    array([[2., 3., 1.]])
    >>> drift.feature_names(["x", "y"], [])
    ['x', 'y', '1']
    >>> drift.admit(np.array([-1.0])), drift.reversal(1, 0.5).shape
    (array([-1.]), (3, 3))
    """

    @abstractmethod
    def features(self, x: Any, u: Any | None) -> Any:
        """φ(x, u), one row of p regressors per state.

        Parameters
        ----------
        x : array (…, d)
            States.
        u : array (…, k) or None
            Covariates.
        """

    @abstractmethod
    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        """One name for each of the p regressors.

        Parameters
        ----------
        variables, covariates : sequence of str
            Their names.
        """

    def admit(self, x: NDArray[Any]) -> NDArray[Any]:
        """The nearest states that the drift is defined for; simulated paths are kept there.

        Parameters
        ----------
        x : array
            States.
        """
        return x

    def reversal(self, d: int, dt: float) -> Array | None:
        """The matrix that takes the row (φ(x) √Δt, Δx/√Δt) of a step to that of the step run backwards.

        It exists where φ(x + Δx) is linear in φ(x) and Δx; None: the backward rows must be formed anew.

        Parameters
        ----------
        d : int
            Variables.
        dt : float
            Δt.
        """
        return None


@dataclass(frozen=True)
class Linear(Drift):
    """The paper's drift `b(x) = A x`: φ(x) = x, Θ = A. For data centred at their equilibrium; about another level it is biased, and so is the direction of time.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.drift.Linear().feature_names(["x", "y"], [])
    ['x', 'y']
    """

    def features(self, x: Any, u: Any | None) -> Any:
        return x

    def reversal(self, d: int, dt: float) -> Array:
        return _step_back(d, d, dt)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return list(variables)


@dataclass(frozen=True)
class Affine(Drift):
    """`b(x) = A x + c`: φ(x) = (x, 1), Θ = (A, c). For data that are not centred at their equilibrium.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.drift.Affine().feature_names(["x", "y"], [])
    ['x', 'y', '1']
    """

    def features(self, x: Any, u: Any | None) -> Any:
        xp = array_api_compat.array_namespace(x)
        one = xp.ones((*x.shape[:-1], 1), dtype=x.dtype, device=array_api_compat.device(x))
        return xp.concat([x, one], axis=-1)

    def reversal(self, d: int, dt: float) -> Array:
        return _step_back(d, d + 1, dt)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return [*variables, "1"]


@dataclass(frozen=True)
class Driven(Drift):
    """`b(x, u) = A x + B u + c`: φ(x, u) = (x, 1, u), Θ = (A, c, B); without `offset` no c.

    A linear or affine drift becomes this where inputs u are given. Run backwards, a step starts from another u: it has no
    reversal of its own class.
    """

    offset: bool = True

    def features(self, x: Any, u: Any | None) -> Any:
        xp = array_api_compat.array_namespace(x)
        base = Affine().features(x, None) if self.offset else x
        return base if u is None else xp.concat([base, xp.astype(u, x.dtype)], axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return [*variables, *(["1"] if self.offset else []), *covariates]

    def __str__(self) -> str:
        return "affine" if self.offset else "linear"


def _step_back(d: int, p: int, dt: float) -> Array:
    """x → x + Δx in the regressors, Δx → −Δx."""
    turn = np.eye(p + d)
    turn[p:, p:] *= -1
    turn[:d, p:] = dt * np.eye(d)
    return turn


@dataclass(frozen=True)
class Polynomial(Drift):
    """All monomials of the variables up to a degree: φ(x) = (1, x_i, x_i x_j, …).

    In d variables there are (d + degree choose degree) monomials: more than a few of both need many transitions.

    Parameters
    ----------
    degree : int
        The highest.
    interactions : bool
        Covariates enter as u_k and, with interactions, as u_k x_i.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.drift.Polynomial(2).feature_names(["x", "y"], [])
    ['1', 'x', 'y', 'x·x', 'x·y', 'y·y']
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.full((60, 20, 1), 0.1)
    >>> for t in range(19):  # logistic growth
    ...     X[:, t + 1] = X[:, t] + 0.2 * X[:, t] * (1 - X[:, t]) * 2 + 0.02 * rng.normal(size=(60, 1))
    >>> model = rt.ReTrace(dt=0.2, drift=rt.drift.Polynomial(2), random_state=0).fit(X[:, 1:])
    >>> model.drift_.shape  # 1, x, x²
    (1, 3)
    """

    degree: int
    interactions: bool = False

    def __post_init__(self) -> None:
        check("Polynomial", {"degree": self.degree, "interactions": self.interactions})

    def features(self, x: Any, u: Any | None) -> Any:
        xp = array_api_compat.array_namespace(x)
        columns = [x[..., i : i + 1] for i in range(x.shape[-1])]
        one = xp.ones((*x.shape[:-1], 1), dtype=x.dtype, device=array_api_compat.device(x))
        parts = [one]
        for power in range(1, self.degree + 1):
            monomials = combinations_with_replacement(columns, power)
            parts += [reduce(mul, chosen) for chosen in monomials]
        if u is not None:
            parts.append(u)
            if self.interactions:
                parts += [u * column for column in columns]
        return xp.concat(parts, axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        names = ["1"]
        for power in range(1, self.degree + 1):
            names += ["·".join(each) for each in combinations_with_replacement(variables, power)]
        names += covariates
        if self.interactions:
            names += [f"{name}·{variable}" for variable in variables for name in covariates]
        return names


@dataclass(frozen=True)
class TumourGrowth(Drift):
    """Gompertz growth under treatment: `b(x, u) = (a − ρ log x − Σ_k κ_k u_k) x`, one variable.

    φ = (x, x log x, u₁ x, u₂ x, …); with chemotherapy C and radiotherapy d, κ = (β_c, α_r + β_r) and a = ρ log K.
    `rt.tumour.growth_parameters` reads a fit, and names what it cannot tell.

    Parameters
    ----------
    floor : float
        Volumes below count as this in the logarithm; data with many values ≤ 0 are refused.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.drift.TumourGrowth().feature_names(["volume"], ["chemo"])
    ['volume', 'volume·log volume', 'volume·chemo']
    """

    floor: float = 1e-3

    def __post_init__(self) -> None:
        check("TumourGrowth", {"floor": self.floor})

    def features(self, x: Any, u: Any | None) -> Any:
        if x.shape[-1] != 1:
            raise ValueError(
                f"drift='tumour' describes one variable, a volume; got {x.shape[-1]} variables: keep the volume "
                "alone (variables=), or take another drift."
            )
        xp = array_api_compat.array_namespace(x)
        parts = [x, x * xp.log(xp.clip(x, min=self.floor))]
        if u is not None:
            parts.append(u * x)
        return xp.concat(parts, axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        x = variables[0]
        return [x, f"{x}·log {x}", *(f"{x}·{name}" for name in covariates)]

    def admit(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.maximum(x, self.floor)


@dataclass(frozen=True, eq=False)
class Features(Drift):
    """A drift from your own feature function φ(x, u).

    Parameters
    ----------
    function : callable
        `function(x, u)` gives one row of regressors per state: x (…, d) are states and u (…, k) covariates (or None). It must
        work for any leading shape and look at one observation at a time, for the order is not known.
    names : sequence of str
        One for each regressor.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> drift = rt.drift.Features(lambda x, u: np.sin(x), ("sin x",))
    >>> drift.features(np.zeros((1, 1)), None)
    array([[0.]])
    """

    function: Callable[[Any, Any | None], Any]
    names: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))

    def features(self, x: Any, u: Any | None) -> Any:
        found = self.function(x, u)
        wanted = (*x.shape[:-1], len(self.names))
        if getattr(found, "shape", None) != wanted:
            raise ValueError(
                f"the feature function must return shape {wanted} for states of shape {tuple(x.shape)} and "
                f"{len(self.names)} names; got {getattr(found, 'shape', type(found).__name__)}."
            )
        return found

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return list(self.names)

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", "function")
        return f"Features({name}, names={self.names})"


@dataclass(frozen=True, eq=False)
class Independent(Drift):
    """Another drift without the features that are linear combinations of earlier ones in the data at hand.

    `φ_dropped = φ_kept weights`: a coefficient of the fit is its own plus the weighted sum of the dropped ones,
    which these data cannot separate.
    """

    whole: Drift
    kept: tuple[int, ...]
    weights: Array

    def features(self, x: Any, u: Any | None) -> Any:
        phi = self.whole.features(x, u)
        xp = array_api_compat.array_namespace(phi)
        return xp.stack([phi[..., j] for j in self.kept], axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        names = self.whole.feature_names(variables, covariates)
        return [names[j] for j in self.kept]

    def admit(self, x: NDArray[Any]) -> NDArray[Any]:
        return self.whole.admit(x)

    def absorbed(self, names: Sequence[str]) -> dict[str, str]:
        """Each dropped feature, of all the features' names, and what it equals in the data at hand."""
        dropped = [j for j in range(len(names)) if j not in self.kept]
        found = {}
        for column, j in zip(self.weights.T, dropped, strict=True):
            terms = [
                f"{w:.4g} × {names[k]}"
                for w, k in zip(column, self.kept, strict=True)
                if abs(w) > 1e-8 * np.abs(column).max(initial=1e-300)
            ]
            found[names[j]] = " + ".join(terms) or "0"
        return found

    def __str__(self) -> str:
        return str(self.whole)


MIN_INDEPENDENT_SHARE = 1e-12
"""Share of a feature's sum of squares that earlier features leave unexplained, below which it counts as dependent."""


def independent_features(drift: Drift, gram: Array) -> Drift:
    """The drift itself where `gram` = Σ φ φᵀ has full rank, else without its dependent features.

    Features do not depend on the order, so this can be done before the order is known.
    """
    lengths = np.sqrt(np.diag(gram))
    unit = gram / np.outer(np.where(lengths > 0, lengths, 1), np.where(lengths > 0, lengths, 1))
    kept: list[int] = []
    for j in range(len(unit)):
        among = unit[np.ix_(kept, kept)]
        rest = 1 - unit[j, kept] @ np.linalg.solve(among, unit[kept, j]) if kept else 1.0
        if lengths[j] > 0 and rest > MIN_INDEPENDENT_SHARE:
            kept.append(j)
    dropped = [j for j in range(len(unit)) if j not in kept]
    if not dropped:
        return drift
    if not kept:
        raise ValueError("all features of the drift are zero in these data: nothing can be fitted.")
    weights = np.linalg.solve(gram[np.ix_(kept, kept)], gram[np.ix_(kept, dropped)])
    return Independent(drift, tuple(kept), np.asarray(weights, dtype=np.float64))


def as_drift(drift: str | Drift) -> Drift:
    """The drift object behind a name."""
    if isinstance(drift, Drift):
        return drift
    named: dict[str, Drift] = {"linear": Linear(), "affine": Affine(), "tumour": TumourGrowth()}
    if not isinstance(drift, str) or drift not in named:
        raise ValueError(
            f"drift must be one of {sorted(named)} or a retrace_sde.drift.Drift, not {drift!r:.60}."
        )
    return named[drift]


def is_linear(drift: Drift) -> bool:
    """`A x` or `A x + c`: the drifts that have an exact discretisation, a reversal and a state-space model."""
    return isinstance(drift, Linear | Affine)


def has_state_space(drift: Drift) -> bool:
    """Linear in the state, with inputs or without: noise, missing values and gaps of any length can be integrated out."""
    return isinstance(drift, Linear | Affine | Driven)


def has_offset(drift: Drift) -> bool:
    """A constant c is among what is estimated."""
    return isinstance(drift, Affine) or (isinstance(drift, Driven) and drift.offset)


def driven(drift: Drift) -> Drift:
    """A linear or affine drift as one with inputs; a polynomial of degree one is the same. Others as they are."""
    if isinstance(drift, Linear | Affine):
        return Driven(isinstance(drift, Affine))
    if isinstance(drift, Polynomial) and drift.degree == 1 and not drift.interactions:
        return Driven()
    return drift


def in_state_space(drift: Drift, *, inputs: bool) -> Drift:
    """The drift as state spaces know it: `Driven` with inputs, `Linear` or `Affine` without; others as they are."""
    found = driven(drift)
    if inputs or not isinstance(found, Driven):
        return found
    return Affine() if found.offset else Linear()


def parted(coefficients: Array, drift: Drift) -> tuple[Array, Array, Array | None]:
    """A, c and B of a drift that has them; of others Θ, zeros and None."""
    d = len(coefficients)
    if not has_state_space(drift):
        return coefficients, np.zeros(d), None
    c = coefficients[:, d] if has_offset(drift) else np.zeros(d)
    B = coefficients[:, d + has_offset(drift) :] if isinstance(drift, Driven) else None
    return coefficients[:, :d], c, B
