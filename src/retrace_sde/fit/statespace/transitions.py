"""Exact transitions of a linear SDE over gaps of any length, and how they change with its parameters.

    dX = (A X + B v) dt + G dW,   v constant over the gap g:    X' = F X + S v + N(0, Q),
    F = e^{A g},   S = ∫₀^g e^{As} ds B,   Q = ∫₀^g e^{As} H e^{Aᵀs} ds,

all three from one exponential over a short stretch `g/2ᵏ` (Van Loan), and twice the stretch k times,

    F ← F F,   S ← F S + S,   Q ← Q + F Q Fᵀ.

v rides along as states that never change; it is 1 for an offset, and inputs. Over the whole gap Van Loan's matrix would hold `e^{−A g}`: of fast
relaxations Q and, sooner, gradients are then lost to rounding. Limits: growth by `e^LARGEST_GROWTH`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array

LARGEST_GROWTH = 300.0
"""Largest growth, in powers of e, over a gap: Q, its square, would overflow soon beyond it."""

STRETCH = 1.0
"""Largest `‖A‖ g` over which Van Loan's matrix is used: it loses no digit there."""


class Transitions(NamedTuple):
    """F (K, d, d), S (K, d, m) and Q (K, d, d) over each of K gaps."""

    matrix: Array
    inputs: Array
    covariance: Array


def exponentials(M: Array) -> Array:
    """`e^M` of a stack of small matrices at once: Taylor's series to order 14 of M/2ᵏ, squared k times.

    scipy's, matrix by matrix, would take most of the time of a fit.
    """
    norm = np.abs(M).sum(axis=-2).max()
    halvings = max(0, int(np.ceil(np.log2(max(norm, 1e-300) / 0.3))))
    X = M / 2.0**halvings
    E = np.eye(M.shape[-1]) + X / 14
    for k in range(13, 0, -1):
        E = np.eye(M.shape[-1]) + X @ E / k
    for _ in range(halvings):
        E = E @ E
    return E


def van_loan_matrix(theta: Array, H: Array) -> Array:
    """[[−M, H], [0, Mᵀ]] with M the generator of (X, v), which `theta` = (A, B) fills above zeros."""
    d, p = theta.shape
    M = np.zeros((2 * p, 2 * p))
    M[:d, :p], M[:d, p : p + d] = -theta, H
    M[p:, p:] = -M[:p, :p].T
    return M


def reaches(theta: Array, gaps: Array) -> bool:
    """The exponentials over these gaps do not overflow."""
    A = theta[:, : len(theta)]
    return bool(
        np.isfinite(A).all() and np.linalg.eigvals(A).real.max() * gaps.max() < LARGEST_GROWTH
    )


def euler_transitions(theta: Array, H: Array, gaps: Array) -> Transitions:
    """Euler's step over each gap: F = 1 + A g, S = B g, Q = H g."""
    d, g = len(H), gaps[:, None, None]
    return Transitions(np.eye(d) + theta[:, :d] * g, theta[:, d:] * g, H * g)


def transitions(theta: Array, H: Array, gaps: Array) -> Transitions:
    """The exact step over each gap; theta (d, d + m) = (A, B)."""
    return _doubled(theta, H, gaps)[-1]


def _doubled(theta: Array, H: Array, gaps: Array) -> list[Transitions]:
    """The exact step over `gaps/2ᵏ`, twice that, and so on, to the gaps."""
    d, p = theta.shape
    M = van_loan_matrix(theta, H)
    far = max(float(np.abs(theta[:, :d]).sum(axis=0).max() * gaps.max()), STRETCH)
    k = int(np.ceil(np.log2(far / STRETCH)))
    E = exponentials(M * gaps[:, None, None] / 2.0**k)
    F = E[:, p:, p:].transpose(0, 2, 1)
    Q = (F @ E[:, :p, p:])[:, :d, :d]
    found = [Transitions(F[:, :d, :d], F[:, :d, d:], (Q + Q.transpose(0, 2, 1)) / 2)]
    for _ in range(k):
        F, S, Q = found[-1]
        Q = Q + F @ Q @ F.transpose(0, 2, 1)
        found.append(Transitions(F @ F, F @ S + S, (Q + Q.transpose(0, 2, 1)) / 2))
    return found


def pulled_back(
    theta: Array, H: Array, gaps: Array, to_F: Array, to_Q: Array
) -> tuple[Array, Array, Array]:
    """A gradient by (F, S) (K, d, p) and Q (K, d, d) of each gap as one by theta, H and the gaps.

    Through the doublings in reverse, then through the exponential, whose adjoint is its Fréchet derivative at the transpose.
    """
    d = len(theta)
    steps = _doubled(theta, H, gaps)
    of_F, of_S = to_F[..., :d], to_F[..., d:]
    to_Q = (to_Q + to_Q.transpose(0, 2, 1)) / 2
    for F, S, Q in reversed(steps[:-1]):
        back = F.transpose(0, 2, 1)
        of_F = of_F @ back + back @ of_F + of_S @ S.transpose(0, 2, 1) + 2 * to_Q @ F @ Q
        of_S = back @ of_S + of_S
        to_Q = to_Q + back @ to_Q @ F
    short = gaps / 2.0 ** (len(steps) - 1)
    to_F = np.concatenate([of_F, of_S], axis=2)
    of_theta, of_H, of_short = _through_exponential(theta, H, short, to_F, to_Q)
    return of_theta, of_H, of_short * short / gaps


def _through_exponential(
    theta: Array, H: Array, gaps: Array, to_F: Array, to_Q: Array
) -> tuple[Array, Array, Array]:
    """The same over gaps that are short, by Van Loan's matrix."""
    d, p = theta.shape
    M = van_loan_matrix(theta, H)
    E = exponentials(M * gaps[:, None, None])
    F, E12 = E[:, p:, p:].transpose(0, 2, 1), E[:, :p, p:]
    of_Q, of_F = np.zeros((2, len(gaps), p, p))
    of_Q[:, :d, :d], of_F[:, :d] = to_Q, to_F
    blocks = np.zeros((len(gaps), 4 * p, 4 * p))
    blocks[:, : 2 * p, : 2 * p] = blocks[:, 2 * p :, 2 * p :] = M.T * gaps[:, None, None]
    blocks[:, :p, 3 * p :] = F.transpose(0, 2, 1) @ of_Q
    blocks[:, p : 2 * p, 3 * p :] = (of_F + of_Q @ E12.transpose(0, 2, 1)).transpose(0, 2, 1)
    L = exponentials(blocks)[:, : 2 * p, 2 * p :]
    to_M = (L * gaps[:, None, None]).sum(axis=0)
    of_theta = (to_M[p:, p:].T - to_M[:p, :p])[:d]
    return of_theta, to_M[:d, p : p + d], np.sum(L * M, axis=(1, 2))


class Cost(NamedTuple):
    """−log-likelihood of steps, without its constant, and its gradient by theta, H and the gaps."""

    value: float
    theta: Array
    diffusion: Array
    gaps: Array


def step_cost(
    theta: Array, H: Array, gaps: Array, counts: Array, grams: Array, about: Array | float = 0.0
) -> Cost | None:
    """`½ Σ_k (n_k log |Q_k| + tr Q_k⁻¹ E_k)`, with E_k the sum of squares of `X' − F_k X − S_k v` over the steps of gap k.

    `grams` (K, p + d, p + d): summed products of (x, v, η), `η = x' − x − about (x, v)`; about coefficients near those of the
    steps no digits are lost. None where the exponentials overflow, or a Q is lost to rounding: a trial step of a search that
    went astray.
    """
    d = len(H)
    if len(gaps) == 0:  # of a subject who was seen once
        return Cost(0.0, np.zeros_like(theta), np.zeros_like(H), np.zeros(0))
    if not reaches(theta, gaps):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        F, S, Q = transitions(theta, H, gaps)
    if not np.isfinite(Q).all():
        return None
    values, vectors = np.linalg.eigh(Q)
    if not values.min() > 0:
        return None
    P = (vectors / values[:, None, :]) @ vectors.transpose(0, 2, 1)
    one = np.tile(np.eye(d), (len(gaps), 1, 1))
    residual = np.concatenate([np.concatenate([one - F, -S], axis=2) + about, one], axis=2)
    RG = residual @ grams
    E = RG @ residual.transpose(0, 2, 1)
    value = 0.5 * float(np.sum(counts * np.log(values).sum(axis=1)) + np.sum(P * E))
    to_F, to_Q = -P @ RG[:, :, :-d], 0.5 * (counts[:, None, None] * P - P @ E @ P)
    return Cost(value, *pulled_back(theta, H, gaps, to_F, to_Q))
