"""Missing values of one trajectory drawn given its other ones, where every step is Gaussian.

With `x_{t+1} = F_t x_t + c_t + e`, `e ~ N(0, S)`, and a Gaussian first state, the missing values m have the precision Λ_mm and the mean
`Λ_mm⁻¹ (h − Λ x)_m`, Λ block tridiagonal and x the observed values with zeros for the missing ones.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from retrace_sde.io.arrays import Array, Mask


def cells_drawn(
    x: Array,
    gone: Mask,
    F: Array,
    c: Array,
    mean: Array,
    precisions: tuple[Array, Array],
    rng: np.random.Generator,
) -> Array:
    """States (T, d) with those that are `gone` drawn; steps F (T − 1, d, d) and c (T − 1, d), `precisions` of the first state and of a step."""
    (first, P), d, x = precisions, x.shape[1], np.where(gone, 0.0, x)
    back = F.transpose(0, 2, 1) @ P
    residual = x[1:] - (F @ x[:-1, :, None])[:, :, 0] - c
    slope = np.zeros_like(x)
    slope[0] = first @ (mean - x[0])
    slope[1:] -= residual @ P
    slope[:-1] += (back @ residual[:, :, None])[:, :, 0]
    blocks = np.zeros((len(x), d, d))
    blocks[0] = first
    blocks[1:] += P
    blocks[:-1] += back @ F
    # Only observations that miss something are laid out: the matrix is as large as what is missing.
    at = np.flatnonzero(gone.any(axis=1))
    precision = np.zeros((len(at), d, len(at), d))
    precision[range(len(at)), :, range(len(at))] = blocks[at]
    for i in np.flatnonzero(np.diff(at) == 1):
        precision[i, :, i + 1] = -back[at[i]]
        precision[i + 1, :, i] = -back[at[i]].T
    chosen = gone[at].ravel()
    factor = np.linalg.cholesky(precision.reshape(len(chosen), len(chosen))[np.ix_(chosen, chosen)])
    centre = cho_solve((factor, True), slope[gone])
    found = x.copy()
    found[gone] = centre + solve_triangular(
        factor, rng.standard_normal(len(centre)), lower=True, trans="T"
    )
    return found
