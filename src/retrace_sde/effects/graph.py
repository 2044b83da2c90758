"""The graph of effects: which variable acts on which, at once, over a time, and for good, with simultaneous intervals.

    rates       A_ij            what one unit of j does to the rate of change of i
    over time   (e^{A Δ})_ij    what one unit of j now makes of i after Δ, by all paths
    for good    (−A⁻¹)_ij       by how much a lasting push on j, of one unit per unit of time, moves the equilibrium of i; stable A only

Errors of the last two by the delta method from those of A: `dM = Σ ∂M/∂A_kl dA_kl`. Equations' errors are correlated as
their noise is, `Cov(A_k, A_l) ≈ ρ_kl L_k L_lᵀ`, `L L ᵀ` each equation's own covariance; that is exact for maximum likelihood.

An edge is drawn where an interval excludes zero that holds *all* m coefficients at once with probability `level` (Bonferroni: each
with 1 − (1 − level)/m). An edge that is missing is not an effect that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.linalg import expm

from retrace_sde.fit.intervals import critical
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.statespace.transitions import exponentials
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.process.sde import covariance_root
from retrace_sde.result import ReTraceResult, Twin

MOST_VARIABLES_FOR_DELTA = 30
"""Variables up to which errors of e^{AΔ} and −A⁻¹ are computed: they take d² derivatives, of d² numbers each."""

DERIVATIVE_STEP = 1e-6
"""Step of the numerical derivatives, relative to the largest |A_ij|."""


class Effect(StrEnum):
    """What an edge stands for."""

    RATES = "rates"
    OVER_TIME = "over time"
    FOR_GOOD = "for good"


@dataclass(frozen=True)
class Edge:
    """`cause` acts on `effect`: an estimate and its simultaneous interval."""

    cause: str
    effect: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class EffectGraph:
    """Effects of columns on rows, with errors and simultaneous intervals at `level` over all of them.

    `span` is Δ of effects over time. `twin` is the same of the reversed order, where the direction is open.
    """

    kind: Effect
    causes: tuple[str, ...]
    names: tuple[str, ...]
    values: Array
    errors: Array
    low: Array
    high: Array
    level: float
    span: float
    twin: EffectGraph | None = None

    @property
    def told(self) -> Mask:
        """Which intervals exclude zero."""
        found: Mask = (self.low > 0) | (self.high < 0)
        return found

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The effects whose interval excludes zero, the largest absolute z first."""
        rows = np.argwhere(self.told)
        clearness = np.abs(self.values[self.told]) / self.errors[self.told]
        return tuple(
            Edge(self.causes[j], self.names[i], *map(float, (self.values[i, j], self.low[i, j], self.high[i, j])))
            for i, j in rows[np.argsort(-clearness)]
        )  # fmt: skip

    def __str__(self) -> str:
        head = f"{len(self.edges)} of {self.values.size} effects ({self.kind}) have a simultaneous {self.level:.0%} interval that excludes zero"
        lines = [f"{e.cause} → {e.effect}: {e.value:.4g} [{e.low:.4g}, {e.high:.4g}]" for e in self.edges]  # fmt: skip
        if self.twin is not None:
            lines += ["in the reversed order, which is as likely:", str(self.twin)]
        return "\n".join([head, *lines])


def effect_graph(
    fitted: Any, *, kind: str = Effect.RATES, span: float | None = None, level: float = 0.95
) -> EffectGraph:
    """Which variable acts on which: the graph of a fit, with an edge where an effect is significant.

    An edge stands where an interval that holds all effects at once excludes zero (Bonferroni). An edge that is missing is
    not an effect that is not there, and effects are those of the model: nothing unseen may act on two variables.

    Parameters
    ----------
    fitted : ReTrace or ReTraceResult
        The fit.
    kind : {"rates", "over time", "for good"}
        A_ij, what one unit of j does to the rate of change of i; (e^{A Δ})_ij, what it makes of i after Δ; (−A⁻¹)_ij, where a
        lasting push on j moves i.
    span : float, optional
        Δ of kind="over time"; dt if not given.
    level : float
        Of confidence, of all intervals together.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> Y = rt.LinearSDE([[-1.0, 0.0], [2.0, -1.0]], np.eye(2)).simulate(60, 20, 0.1, x0=0.1, random_state=1)
    >>> graph = rt.effect_graph(rt.ReTrace(dt=0.1, random_state=0).fit(Y))
    >>> ("x0", "x1") in [(edge.cause, edge.effect) for edge in graph.edges]
    True
    """
    result: ReTraceResult = getattr(fitted, "result_", fitted)
    if not isinstance(result, ReTraceResult):
        raise ValueError("effect_graph needs a fitted ReTrace, or its result_.")
    if kind not in list(Effect):
        raise ValueError(f"kind must be one of {[str(each) for each in Effect]}; got {kind!r}.")
    square = result.drift.shape == result.diffusion.shape
    if kind != Effect.RATES and not square:
        raise ValueError(f"kind={kind!r} needs a linear or affine drift; use kind='rates'.")
    if kind != Effect.RATES and len(result.names) > MOST_VARIABLES_FOR_DELTA:
        raise ValueError(
            f"kind={kind!r} is computed for up to {MOST_VARIABLES_FOR_DELTA} variables; use kind='rates'."
        )
    asked = Effect(kind), result.dt if span is None else float(span), level
    twin = result.alternative
    other = None
    if twin is not None and twin.standard_errors is not None:
        other = _graph(result, twin, twin.standard_errors, asked, None)
    return _graph(result, result, result.standard_errors, asked, other)


def _graph(
    result: ReTraceResult,
    found: ReTraceResult | Twin,
    errors: StandardErrors,
    asked: tuple[Effect, float, float],
    twin: EffectGraph | None,
) -> EffectGraph:
    A, (kind, span, level) = found.drift, asked
    values, spread = A, errors.drift
    if kind is not Effect.RATES:
        # In units of the noise: derivatives and sums over entries would drown what is small in the user's.
        scale = np.sqrt(np.diag(found.diffusion))
        ratio = scale[:, None] / scale
        turned, slopes = _turned(A / ratio, kind, span)
        slopes = slopes / ratio.ravel()
        covariance = _covariance(A, found.diffusion, errors)
        spread = np.sqrt(np.maximum(np.einsum("ap,pq,aq->a", slopes, covariance, slopes), 0))
        values, spread = turned * ratio, spread.reshape(A.shape) * ratio
    reach = critical(result.n_groups, 1 - (1 - level) / values.size) * spread
    causes = tuple(result.feature_names[: values.shape[1]])
    intervals = values - reach, values + reach
    return EffectGraph(kind, causes, result.names, values, spread, *intervals, level, span, twin)


def _turned(A: Array, kind: Effect, span: float) -> tuple[Array, Array]:
    """e^{AΔ} or −A⁻¹, and its derivatives (d², d²) by the entries of A."""
    d = len(A)
    if kind is Effect.FOR_GOOD:
        if np.linalg.eigvals(A).real.max() >= 0:
            nothing = np.full((d, d), np.nan)
            return nothing, np.zeros((d * d, d * d))
        inverse = np.linalg.inv(A)
        slopes = np.einsum("ik,lj->ijkl", inverse, inverse).reshape(d * d, d * d)
        return np.asarray(-inverse, dtype=np.float64), slopes
    h = DERIVATIVE_STEP * max(float(np.abs(A).max()), 1e-300)
    moved = h * np.eye(d * d).reshape(d * d, d, d)
    ahead = exponentials((A + moved) * span) - exponentials((A - moved) * span)
    return expm(A * span), (ahead / (2 * h)).reshape(d * d, d * d).T


def _covariance(A: Array, H: Array, errors: StandardErrors) -> Array:
    """Of vec A, row by row, (d², d²); without covariances of the equations, as if their coefficients were independent."""
    d = len(A)
    if errors.covariances is None:
        roots = np.array([np.diag(each) for each in errors.drift])
    else:
        roots = covariance_root(errors.covariances[:, :d, :d])
    scale = np.sqrt(np.diag(H))
    rho = H / np.outer(scale, scale)
    found = np.einsum("kl,kia,lja->kilj", rho, roots, roots)
    return np.asarray(found.reshape(d * d, d * d), dtype=np.float64)
