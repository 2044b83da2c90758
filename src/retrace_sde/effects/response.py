"""What a lasting change of an input does: `r' = A r + B_k`, from nothing, in the user's units.

r is how far the means are moved by one unit more of input k, held from the start; by δ units, δ r. Intervals by draws of the
coefficients from their estimated distribution, Gaussian, equations correlated as the noise is; the order and its direction are taken for
right, so an open direction has two answers, one for each twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.fit.regression import StandardErrors
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import covariance_root
from retrace_sde.result import ReTraceResult, Twin

RESPONSE_DRAWS = 400
"""Draws of the coefficients behind the intervals."""


@dataclass(frozen=True, eq=False)
class Response:
    """Means moved by one unit of each input, (inputs, steps + 1, d), with 95 % limits where errors are known."""

    times: Array
    means: Array
    low: Array | None
    high: Array | None


def responses(result: ReTraceResult) -> tuple[Response, ...]:
    """Of the order shown and, where the direction is open, of its reverse; empty without inputs."""
    if result.inputs is None or not result.inputs.size:
        return ()
    ways = [each for each in (result, result.alternative) if each is not None]
    return tuple(
        _response(each, each.inputs, result.dt, result.order.shape[-1] - 1)
        for each in ways
        if each.inputs is not None
    )


def _response(found: ReTraceResult | Twin, B: Array, dt: float, steps: int) -> Response:
    times: Array = dt * np.arange(steps + 1, dtype=np.float64)
    means = _walked(found.drift[None], B[None], dt, steps)[0]
    drawn = _drawn(found.drift, B, found.diffusion, found.standard_errors)
    if drawn is None:
        return Response(times, means, None, None)
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.quantile(_walked(*drawn, dt, steps), [0.025, 0.975], axis=0)
    return Response(times, means, low, high)


def _walked(A: Array, B: Array, dt: float, steps: int) -> Array:
    """(draws, inputs, steps + 1, d) from A (draws, d, d) and B (draws, d, inputs), by the fit's own Euler steps."""
    r = np.zeros_like(B)
    path = [r]
    for _ in range(steps):
        r = r + (A @ r + B) * dt
        path.append(r)
    return np.stack(path).transpose(1, 3, 0, 2)


def _drawn(
    A: Array, B: Array, H: Array, errors: StandardErrors | None
) -> tuple[Array, Array] | None:
    """Coefficients from their distribution, always the same draws; None where their covariance is not known."""
    d, k = B.shape
    cov = None if errors is None else errors.covariances
    if cov is None or not np.isfinite(cov).all():
        return None
    chosen = [*range(d), *range(cov.shape[1] - k, cov.shape[1])]
    roots = covariance_root(cov[:, chosen][:, :, chosen])
    scale = np.sqrt(np.diag(H))
    z = np.random.default_rng(0).standard_normal((RESPONSE_DRAWS, d, d + k))
    z = np.linalg.cholesky(H / np.outer(scale, scale) + 1e-12 * np.eye(d)) @ z
    moved = np.einsum("iab,sib->sia", roots, z)
    return A + moved[:, :, :d], B + moved[:, :, d:]
