"""Test data: random irreversible SDEs, observation noise, and the loss of time itself."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array
from retrace_sde.panel.parameters import checked
from retrace_sde.process.sde import Gaussian, LinearSDE

Setting = Literal["stable", "growing", "rotation", "paper"]
Permutation = Literal["shared", "independent"]
Seed = int | np.random.Generator | None
Real = TypeVar("Real", bound=np.generic)


@checked
def random_irreversible_sde(
    d: int, *, setting: Setting = "stable", random_state: Seed = None
) -> LinearSDE:
    """A random SDE that violates detailed balance (in d ≥ 2). M has entries N(0, 1/d).

    Parameters
    ----------
    d : int
        Variables.
    setting : {"stable", "growing", "rotation", "paper"}
        stable: `A = M` shifted so that the largest real part is −0.5. growing: `A = M − 0.5 I`, whose
        largest real part is near +0.5. rotation: `A = −0.5 I + (M − Mᵀ)·√2`, a slow decay with fast turns.
        These three have `H = G Gᵀ`, G (d, d) with entries N(0, 1/d), and start from N(0, 0.1² I).
        paper: A and G (d, d) with entries N(0, 1), and one common start of norm 2 to 10 for all trajectories:
        the spread grows without bound.
    random_state : int, Generator or None
        Seed.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.simulate.random_irreversible_sde(5, random_state=0)
    >>> np.linalg.eigvals(sde.drift).real.max().round(6), sde.is_reversible()
    (np.float64(-0.5), False)
    """
    rng = np.random.default_rng(random_state)
    M = rng.standard_normal((d, d)) / np.sqrt(d)
    if setting == "paper":
        G = rng.standard_normal((d, d))
        direction = rng.standard_normal(d)
        start = direction / np.linalg.norm(direction) * rng.uniform(2, 10)
        point = Gaussian(start, np.zeros((d, d)))
        return LinearSDE(M * np.sqrt(d), G @ G.T, initial=point)
    G = rng.standard_normal((d, d)) / np.sqrt(d)
    while (
        np.linalg.svd(G, compute_uv=False)[-1] < 0.2 / d
    ):  # nearly singular noise is another problem
        G = rng.standard_normal((d, d)) / np.sqrt(d)
    if setting == "stable":
        A = M - (np.linalg.eigvals(M).real.max() + 0.5) * np.eye(d)
    elif setting == "growing":
        A = M - 0.5 * np.eye(d)
    else:
        A = (M - M.T) * np.sqrt(2) - 0.5 * np.eye(d)
    return LinearSDE(A, G @ G.T, initial=Gaussian(np.zeros(d), 0.01 * np.eye(d)))


@checked
def add_noise(X: Array, sigma: float, *, random_state: Seed = None) -> Array:
    """Noisy measurements `Y = X + ε`, `ε ~ N(0, σ² I)` (the paper's observation model, R = σ² I).

    Parameters
    ----------
    X : array
        States.
    sigma : float
        σ.
    random_state : int, Generator or None
        Seed.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> rt.simulate.add_noise(np.zeros((1000, 2)), 0.5, random_state=0).std().round(1)
    np.float64(0.5)
    """
    rng = np.random.default_rng(random_state)
    return X + sigma * rng.standard_normal(X.shape)


@checked
def shuffle(
    X: NDArray[Real],
    *,
    permutation: Permutation = "shared",
    share: float = 1.0,
    keep_first: bool = False,
    random_state: Seed = None,
) -> tuple[NDArray[Real], NDArray[np.intp]]:
    """Lose the time order of X (n, T, …): returns the shuffled copy and the order that restores it.

    Parameters
    ----------
    X : array (n, T, …)
        In time order; not modified.
    permutation : {"shared", "independent"}
        shared: one permutation of the T slices for all trajectories, `shuffled[:, order]` equals X.
        independent: one per trajectory, `numpy.take_along_axis(shuffled, order[..., None], axis=1)` equals X.
    share : float
        The share of the slices that take part, chosen at random.
    keep_first : bool
        The first stays in place.
    random_state : int, Generator or None
        Seed.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> X = np.arange(12.0).reshape(2, 6, 1)
    >>> lost, order = rt.simulate.shuffle(X, random_state=0)
    >>> np.array_equal(lost[:, order], X)
    True
    """
    rng = np.random.default_rng(random_state)
    n, T = X.shape[:2]
    moved = _partial_permutations(1 if permutation == "shared" else n, T, share, keep_first, rng)
    order = np.argsort(moved, axis=1)
    if permutation == "shared":
        return X[:, moved[0]], order[0]
    return np.take_along_axis(X, moved.reshape(n, T, *[1] * (X.ndim - 2)), axis=1), order


def _partial_permutations(
    n: int, T: int, share: float, keep_first: bool, rng: np.random.Generator
) -> NDArray[np.intp]:
    """n permutations of 0 … T−1, each of a random subset of the given share; the rest stays in place."""
    movable = np.tile(np.arange(int(keep_first), T), (n, 1))
    size = round(share * movable.shape[1])
    chosen = np.sort(rng.permuted(movable, axis=1)[:, :size], axis=1)
    moved = np.tile(np.arange(T), (n, 1))
    np.put_along_axis(moved, chosen, rng.permuted(chosen, axis=1), axis=1)
    return moved
