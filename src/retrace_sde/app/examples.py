"""Tables to try the page with, made on the spot from known SDEs whose time is then lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from retrace_sde.io.arrays import Array
from retrace_sde.io.formats import frame_of_array
from retrace_sde.process.sde import LinearSDE
from retrace_sde.process.simulate import shuffle


def _recovering() -> pd.DataFrame:
    """Patients after an operation, all sampled at the same twelve visits; the visits' order is lost."""
    A = np.array([[-0.8, 0.0, -0.3], [0.9, -0.7, 0.0], [0.0, 0.5, -0.6]])
    sde = LinearSDE(A, 0.05 * np.eye(3))
    start = np.array([2.0, 0.0, -1.0]) + 0.3 * np.random.default_rng(0).standard_normal((60, 3))
    X = sde.simulate(60, 12, 0.25, x0=start, random_state=1)
    X, _ = shuffle(X, permutation="shared", random_state=2)
    return _named(X * [4, 12, 0.6] + [38, 70, 7.1], ["temperature", "pulse", "ph"])


def _resting() -> pd.DataFrame:
    """Resting volunteers: the order is found, its direction cannot be."""
    A = np.array([[-0.8, 0.3], [0.3, -0.6]])
    sde = LinearSDE(A, 0.3 * np.eye(2))
    X = sde.simulate(80, 10, 0.15, x0="stationary", random_state=3)
    X, _ = shuffle(X, permutation="shared", random_state=4)
    return _named(X * [8, 3] + [75, 16], ["heart_rate", "breaths"])


def _treated() -> pd.DataFrame:
    """Patients with a drug switched on and off between visits whose order is lost."""
    rng = np.random.default_rng(5)
    n, T, d, dt = 40, 10, 4, 0.3
    A = np.array([[-0.5, 0.2, 0, 0], [0.6, -0.7, 0, 0.1], [0, 0.5, -0.6, 0], [0.2, 0, 0.4, -0.5]])
    B, c = np.array([-0.9, 0.0, 0.4, 0.0]), np.array([0.6, 0.2, 0.1, 0.2])
    dose = (rng.random((n, T)) < 0.5).astype(float)
    X = np.empty((n, T, d))
    X[:, 0] = np.array([3.0, 0.2, 0.5, 2.0]) + 0.2 * rng.standard_normal((n, d))
    for t in range(T - 1):
        push = X[:, t] @ A.T + dose[:, t, None] * B + c
        X[:, t + 1] = X[:, t] + push * dt + 0.06 * rng.standard_normal((n, d))
    both, _ = shuffle(np.concatenate([X, dose[:, :, None]], axis=2), random_state=6)
    names = ["receptor", "kinase", "target", "marker", "dose"]
    return _named(both, names)


def _named(X: Array, names: list[str]) -> pd.DataFrame:
    frame = frame_of_array(X, names=names)
    frame["subject"] = [f"p{int(k) + 1:02d}" for k in frame["subject"]]
    frame["slice"] = [f"visit {chr(65 + int(k))}" for k in frame["slice"]]
    return frame.rename(columns={"subject": "patient", "slice": "visit"})


EXAMPLES: dict[str, Callable[[], pd.DataFrame]] = {
    "recovering": _recovering,
    "resting": _resting,
    "treated": _treated,
}
"""By name: order and direction are found; the direction is open; inputs whose effect can be asked for."""
