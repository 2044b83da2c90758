"""How likely many shared orders are, each with the parameters fitted along it, in the direction that suits it better.

A search compares dozens of orders of the same slices of which it needs one. A fit of each, with every trajectory's own log-likelihood, would take most of
the search in a small panel. But the regression needs only `Σ x Δᵀ` and `Σ Δ Δᵀ` of an order: the squares of the states are the same
for all, but for those of the last slice, and the reverse has the same sums. Linear algebra and start laws are then done for all orders at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import array_api_compat
import numpy as np

from retrace_sde.fit.start_law import first_log_densities
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import BLOCK_ELEMENTS
from retrace_sde.process.drift import Affine, is_linear
from retrace_sde.search.protocols import Model

MIN_PIVOT = 1e-5
"""Smallest pivot of a Gram matrix with a unit diagonal up to which its Cholesky factor is taken: ten digits of each variance are left then."""


def objectives(model: Model, orders: Sequence[Indices]) -> Array | None:
    """`ℓ − prior cost` (K,) of orders, each in the better direction; None where fits of single orders are needed."""
    data = model.data
    plain = data.covariates is None and not data.lengths.ragged and not data.lazy
    known = model.timing.gaps_known or model.mean_path is not None
    if not orders or not plain or known or not model.closed_form or not is_linear(model.drift):
        return None
    if not array_api_compat.is_numpy_array(data.block(slice(0, 1))[0]) or data.shape[0] < 2:
        return None
    values = _log_likelihoods(
        np.ascontiguousarray(data.slices(np.arange(data.shape[1]))),
        np.array(orders),
        model.variances,
        affine=isinstance(model.drift, Affine),
    )
    if values is None:
        return None
    ways = zip(orders, (data.reversed(each) for each in orders), strict=True)
    costs = [[float(model.prior_costs(each).sum()) for each in way] for way in ways]
    found: Array = (values - np.array(costs)).max(axis=1)
    return found


def _log_likelihoods(x: Array, orders: Indices, variances: Array, *, affine: bool) -> Array | None:
    """Of orders (K, T) of slices x (T, n, d) and of their reverses, (K, 2); None where a Gram matrix is ill conditioned."""
    T, n, d = x.shape
    S, p = T - 1, d + affine
    rows = x.reshape(-1, d)
    totals = rows.T @ rows, rows.sum(axis=0)
    size = max(1, BLOCK_ELEMENTS // max(x.size, (p + d) ** 2))
    parts = []
    for some in (orders[begin : begin + size] for begin in range(0, len(orders), size)):
        ahead = _grams(x, some, totals, affine=affine)
        noise = _noise(np.concatenate([ahead, _turned(ahead, p)]), p, n * S)
        if noise is None:
            return None
        steps = -0.5 * n * S * (np.linalg.slogdet(noise)[1] + d * (1 + np.log(2 * np.pi)))
        first = x[np.concatenate([some[:, 0], some[:, -1]])]
        value = steps + first_log_densities(first, noise, variances).sum(axis=1)
        parts.append(value.reshape(2, -1).T)
    return np.concatenate(parts)


def _grams(x: Array, orders: Indices, totals: tuple[Array, Array], *, affine: bool) -> Array:
    """`Σ z zᵀ` (K, p + d, p + d) of the rows z = (x, 1, Δ) along orders; `totals`: squares and sums of the states of all slices."""
    T, n, d = x.shape
    p, last, z = d + affine, x[orders[:, -1]], x[orders]
    past, step = (each.reshape(len(z), -1, d) for each in (z[:, :-1], np.diff(z, axis=1)))
    gram = np.empty((len(orders), p + d, p + d))
    gram[:, :d, :d] = totals[0] - last.transpose(0, 2, 1) @ last
    gram[:, :d, p:] = past.transpose(0, 2, 1) @ step
    gram[:, p:, p:] = step.transpose(0, 2, 1) @ step
    if affine:
        gram[:, :d, d] = gram[:, d, :d] = totals[1] - last.sum(axis=1)
        gram[:, d, d] = n * (T - 1)
        gram[:, d, p:] = (last - x[orders[:, 0]]).sum(axis=1)
    gram[:, p:, :p] = gram[:, :p, p:].transpose(0, 2, 1)
    return gram


def _turned(gram: Array, p: int) -> Array:
    """The same along the reverses, whose rows are (x + Δ, 1, −Δ)."""
    found, d = gram.copy(), gram.shape[1] - p
    found[:, :d] += gram[:, p:]
    found[:, :, :d] += found[:, :, p:]
    found[:, p:] *= -1
    found[:, :, p:] *= -1
    return found


def _noise(gram: Array, p: int, count: int) -> Array | None:
    """Residual covariances (K, d, d) of the last d variables, regressed on the first p; None where some are lost to rounding."""
    scale = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
    if not (np.isfinite(scale) & (scale > 0)).all():
        return None
    try:
        lower = np.linalg.cholesky(gram / (scale[:, :, None] * scale[:, None, :]))
    except np.linalg.LinAlgError:
        return None
    if np.diagonal(lower, axis1=1, axis2=2).min() < MIN_PIVOT:
        return None
    left = lower[:, p:, p:] * scale[:, p:, None]
    found: Array = left @ left.transpose(0, 2, 1) / count
    return found
