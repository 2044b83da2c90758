"""Estimates that a few wrong values cannot move: centre and scale, a trimmed regression, and an order of slices by bounded costs.

The order starts from medians over trajectories of the distances between slices. Then a trimmed regression along it and the search under
the bounded cost `Σ_j min(m²_j, χ²_d(.99))` alternate, m the Mahalanobis length of a step: one trajectory counts for no more
than its share.

Limits: up to about a tenth of the rows may be wrong; the order only has to be good enough to compare rows with their neighbours.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.paths import guided_paths, improve, shortest_path
from retrace_sde.orders.prior import Prior
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.tails import chi2_ppf

KEPT, TRIMMED_ROUNDS, ORDER_ROUNDS = 0.99, 4, 3
"""Share of Gaussian residuals that a trimmed regression keeps, its rounds, and rounds of regression and search."""

ORDER_TRAJECTORIES, REGRESSION_ROWS = 60, 4000
"""Trajectories, and rows, that are enough for the order and for a regression."""

FARTHEST = 8.0
"""Robust standard deviations from the centre beyond which a value counts as that far, for the order."""

NORMAL_MAD = 1.4826
"""Standard deviation of a Gaussian over its median absolute deviation."""

SLICES_AT_ONCE = 16
"""Slices whose distances are computed at a time: all at once leave the processor's cache."""

REGRESSION_RIDGE = 1e-9
"""Weight of the identity in a trimmed regression, relative to the regressors' own: for variables that hardly move."""


def median(values: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Median without missing values; NaN where there is none.

    As np.nanmedian, four times as quick: that looks for the largest values too, and goes through masked arrays where some are missing.
    """
    axes = np.arange(values.ndim)[() if axis is None else np.atleast_1d(axis)]
    rest = [k for k in range(values.ndim) if k not in axes]
    flat = values.transpose(*rest, *axes).reshape(*(values.shape[k] for k in rest), -1)
    if not flat.shape[-1]:
        return np.full(flat.shape[:-1], np.nan)
    missing = np.isnan(flat)
    if not missing.any():
        half = flat.shape[-1] // 2
        parted = np.partition(flat, half, axis=-1)
        middle = parted[..., half]
        return np.asarray(
            middle if flat.shape[-1] % 2 else (parted[..., :half].max(axis=-1) + middle) / 2
        )
    ordered, count = np.sort(flat, axis=-1), flat.shape[-1] - missing.sum(axis=-1, keepdims=True)
    low, high = (
        np.take_along_axis(ordered, np.maximum(at, 0), axis=-1)[..., 0]
        for at in ((count - 1) // 2, np.minimum(count // 2, flat.shape[-1] - 1))
    )
    return np.asarray((low + high) / 2)


def quantile(values: Array, share: float) -> Array:
    """An observed value with that share below it, along axis 1 and without missing values; NaN where there is none."""
    along = np.ascontiguousarray(np.moveaxis(values, 1, -1))
    missing = np.isnan(along)
    if not missing.any():
        at = int(share * (along.shape[-1] - 1))
        return np.asarray(np.partition(along, at, axis=-1)[..., at])
    last = np.maximum(along.shape[-1] - 1 - missing.sum(axis=-1, keepdims=True), 0)
    ordered = np.sort(along, axis=-1)  # those that are not known are last
    return np.asarray(np.take_along_axis(ordered, (share * last).astype(np.intp), axis=-1)[..., 0])


def centre_and_scale(x: Array) -> tuple[Array, Array]:
    """Median and scaled median absolute deviation of each variable (d,) of x (n, T, d)."""
    centre = median(x, (0, 1))
    scale = NORMAL_MAD * median(np.abs(x - centre), (0, 1))
    spread = np.nanstd(x, axis=(0, 1))
    scale = np.where(scale > 0, scale, spread)
    return centre, np.where(scale > 0, scale, 1.0)


def trimmed_regression(y: Array, x: Array) -> tuple[Array, Array]:
    """Coefficients (d + 1, d) of y (N, d) on x and a constant, and the covariance of what is left, from the bulk of the rows.

    It starts at y = x + c, so that rows with a wrong regressor, which differ from their neighbour, are left out from the first round on. The
    regression is that of y − x, whose second moments lose no digits to what y and x have in common; a round adds or takes away what rows changed sides.
    """
    every = evenly(len(y), REGRESSION_ROWS)
    if len(every) < len(y):
        y, x = y[every], x[every]
    N, d = y.shape
    near = np.r_[np.eye(d), np.zeros((1, d))]
    Z = np.c_[x, np.ones(N), y - x]
    moved = Z[:, d + 1 :]
    rest = moved - median(moved, 0)
    variances = (NORMAL_MAD * median(np.abs(rest), 0)) ** 2 + 1e-12
    B, S = near, np.diag(variances)
    bound, middle = chi2_ppf(KEPT, d), chi2_ppf(0.5, d)
    squares, before = rest**2 @ (1 / variances), np.zeros(N, dtype=bool)
    G = np.zeros((2 * d + 1, 2 * d + 1))
    for _ in range(TRIMMED_ROUNDS):
        kept = squares <= bound * median(squares) / middle
        count = int(kept.sum())
        if count < 3 * (d + 1) or np.array_equal(kept, before):
            break
        G = _second_moments(Z, kept, before, G)
        before = kept
        ridge = REGRESSION_RIDGE * np.trace(G[: d + 1, : d + 1])
        change = np.linalg.solve(G[: d + 1, : d + 1] + ridge * np.eye(d + 1), G[: d + 1, d + 1 :])
        B = near + change
        residual = np.r_[-change, np.eye(d)]  # of a row of Z
        total = residual.T @ G @ residual
        mean = G[d] @ residual / count
        S = (total - count * np.outer(mean, mean)) / (count - 1) + 1e-12 * np.eye(d)
        white = Z @ (residual @ whitening(S))
        squares = np.einsum("ij,ij->i", white, white)
        S = S * max(float(median(squares)) / middle, 1e-12)
    return B, S


def _second_moments(Z: Array, kept: Mask, before: Mask, G: Array) -> Array:
    """`Σ z zᵀ` of the rows of Z that are kept, from G, that of rows before, where most of those are the same."""
    new, gone = kept & ~before, before & ~kept
    if 2 * (new.sum() + gone.sum()) > kept.sum():
        bulk = Z[kept]
        return np.asarray(bulk.T @ bulk)
    return np.asarray(G + Z[new].T @ Z[new] - Z[gone].T @ Z[gone])


def whitening(S: Array) -> Array:
    """W with Wᵀ S W = I."""
    return np.asarray(np.linalg.inv(np.linalg.cholesky(S)).T)


def median_distances(z: Array) -> Array:
    """Squared distances (T, T) between slices of z (n, T, d), means over variables and medians over trajectories."""
    T, d = z.shape[1:]
    known = (~np.isnan(z)).astype(float)
    complete = bool(known.all())
    z = np.where(known > 0, z, 0.0)
    squares, D = z * z, np.zeros((T, T))
    long = squares.sum(axis=2)
    for begin in range(0, T, SLICES_AT_ONCE):
        some, rest = slice(begin, begin + SLICES_AT_ONCE), slice(begin, T)
        # Σ (a − b)² = Σ a² + Σ b² − 2 Σ a b, each over the variables that both slices have.
        total = -2 * z[:, some] @ z[:, rest].transpose(0, 2, 1)
        if complete:
            total += long[:, some, None]
            total += long[:, None, rest]
            D[some, rest] = np.maximum(median(total, 0) / d, 0.0)
            continue
        total += squares[:, some] @ known[:, rest].transpose(0, 2, 1)
        total += known[:, some] @ squares[:, rest].transpose(0, 2, 1)
        with np.errstate(invalid="ignore"):
            total /= known[:, some] @ known[:, rest].transpose(0, 2, 1)
        D[some, rest] = np.maximum(median(total, 0), 0.0)
    D = np.triu(D, 1)
    D = np.where(np.isnan(D), np.nanmax(D), D)
    return D + D.T


def robust_order(z: Array, prior: Prior | None = None) -> Indices:
    """An order (T,) of the slices of z (n, T, d) that a few wrong values do not change."""
    z = z[evenly(len(z), ORDER_TRAJECTORIES)]
    n, T, d = z.shape
    z = np.clip(z, -FARTHEST, FARTHEST)  # one wrong variable must not hide what the others tell
    D = median_distances(z)
    order = shortest_path(D) if prior is None else guided_paths(n * d * D, n * d, prior)[0]
    seen: Mask = np.asarray(~np.isnan(z).any(axis=2))
    filled = np.where(np.isnan(z), np.nan_to_num(median(z, 0))[None], z)
    for _ in range(ORDER_ROUNDS):
        along, known = filled[:, order], seen[:, order]
        both = known[:, 1:] & known[:, :-1]
        if both.sum() < 4 * (d + 1):
            return order
        costs = _bounded_costs(
            filled, seen, *trimmed_regression(along[:, 1:][both], along[:, :-1][both])
        )
        found = improve(costs, np.zeros(T), order, prior)
        if np.array_equal(found, order):
            break
        order = found
    return order


def _bounded_costs(z: Array, seen: Mask, B: Array, S: Array) -> Array:
    """`½ Σ_j min(m²_j, χ²_d(.99))` (T, T) of one slice after another; a step that is not seen counts as an ordinary one."""
    _, T, d = z.shape
    W, bound = whitening(S), chi2_ppf(KEPT, d)
    target, source = z @ W, (z @ B[:-1] + B[-1]) @ W
    long = (target * target).sum(axis=2)[:, None]
    costs = np.empty((T, T))
    for begin in range(0, T, SLICES_AT_ONCE):
        some = slice(begin, begin + SLICES_AT_ONCE)
        squares = -2 * source[:, some] @ target.transpose(0, 2, 1)
        squares += (source[:, some] ** 2).sum(axis=2)[:, :, None] + long
        np.minimum(squares, bound, out=squares)
        if not seen.all():
            squares[~(seen[:, some, None] & seen[:, None])] = d
        costs[some] = 0.5 * squares.sum(axis=0)
    np.fill_diagonal(costs, 0.0)
    return costs
