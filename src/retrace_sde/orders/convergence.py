"""Have chains over orders explored enough: split R-hat and effective sample size of what they trace."""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Array


def convergence(x: Array) -> tuple[float, float]:
    """Split R-hat and effective size, the worst over the quantities of traces (chains, draws, quantities)."""
    C, R, _ = x.shape
    varying = x.std(axis=(0, 1)) > 1e-12 * (np.abs(x).max(axis=(0, 1)) + 1e-300)
    if not varying.any():
        return 1.0, float(C * R)
    x = x[:, :, varying]
    half = R // 2
    split = np.concatenate([x[:, :half], x[:, half : 2 * half]])
    within = split.var(axis=1, ddof=1).mean(axis=0)
    between = split.mean(axis=1).var(axis=0, ddof=1)
    r_hat = np.sqrt((within * (half - 1) / half + between) / np.maximum(within, 1e-300))
    size = np.sum([_effective_size(chain) for chain in x], axis=0)
    return float(r_hat.max()), float(size.min())


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
