"""Have chains over orders explored enough: split R-hat and effective sample size of what they trace."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from retrace_sde.io.arrays import Array

MAX_R_HAT, MIN_EFFECTIVE_SIZE = 1.05, 100.0
"""Chains have converged within these (Vehtari et al. 2021 ask for 1.01 and 400 where tails matter). Of eight halves of 25 independent draws
R-hat exceeds 1.05 less than once in a thousand."""


def mixed(r_hat: float, effective_size: float) -> bool:
    """The chains have converged."""
    return r_hat <= MAX_R_HAT and effective_size >= MIN_EFFECTIVE_SIZE


def convergence(x: Array) -> tuple[float, float]:
    """Rank-normalised split R-hat and effective size, the worst over the quantities of traces (chains, draws, quantities).

    R-hat is the larger of that of the ranks and of the ranks of distances from the median, so that chains of different spread are
    seen and heavy tails hide nothing (Vehtari et al. 2021).
    """
    C, R, _ = x.shape
    varying = x.std(axis=(0, 1)) > 1e-12 * (np.abs(x).max(axis=(0, 1)) + 1e-300)
    if not varying.any():
        return 1.0, float(C * R)
    x = x[:, :, varying]
    z = _normal_scores(x)
    size = np.sum([_effective_size(chain) for chain in z], axis=0)
    folded = _normal_scores(np.abs(x - np.median(x, axis=(0, 1))))
    return max(_split_r_hat(z), _split_r_hat(folded)), float(size.min())


def _normal_scores(x: Array) -> Array:
    """Ranks over all chains, ties at their mean, as quantiles of the standard normal distribution (Blom 1958)."""
    flat = x.reshape(-1, x.shape[2])
    ranks = np.stack([_ranks(column) for column in flat.T], axis=1)
    return np.asarray(ndtri((ranks - 0.375) / (len(flat) + 0.25))).reshape(x.shape)


def _ranks(values: Array) -> Array:
    """From 1 on, ties at their mean."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where])


def _split_r_hat(x: Array) -> float:
    """The largest over the quantities, each chain in two halves; 1 where nothing varies."""
    half = x.shape[1] // 2
    split = np.concatenate([x[:, :half], x[:, half : 2 * half]])
    within = split.var(axis=1, ddof=1).mean(axis=0)
    between = split.mean(axis=1).var(axis=0, ddof=1)
    r_hat = np.sqrt((within * (half - 1) / half + between) / np.maximum(within, 1e-300))
    return float(np.where(between > 1e-12, r_hat, 1.0).max())


def _effective_size(trace: Array) -> Array:
    """Geyer's initial positive sequence, for each column of (draws, quantities)."""
    x = trace - trace.mean(axis=0)
    R = len(x)
    spectrum = np.abs(np.fft.rfft(x, 2 * R, axis=0)) ** 2
    correlation = np.fft.irfft(spectrum, axis=0)[:R]
    correlation = correlation / np.maximum(correlation[0], 1e-300)
    pairs = correlation[1 : R - 1 : 2] + correlation[2:R:2]
    positive = np.cumprod(pairs > 0, axis=0)
    return R / np.maximum(1 + 2 * (pairs * positive).sum(axis=0), 1.0)
