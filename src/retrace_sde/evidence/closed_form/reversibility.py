"""Does a panel differ from its time reverse at all? A randomisation test in which each trajectory is randomly time-reversed.

Under any time-reversible process a trajectory is as likely as its reverse, so the signs of features that change sign with the direction are random:
the change of the values from first to last, of their squares and products, the circulation `Σ_t x_t x_{t+1}ᵀ − x_{t+1} x_tᵀ`, and the skewness of
steps. Where only deviations from the slices' means may tell, odd polynomials of time of their products are added, which see a spread that rises and
falls again: growth on plates of one deviation is told from its reverse in .83 of 30 panels, .60 without them. The test is exact for independent trajectories, or groups of them, for every n and without a model (Lehmann and Romano, *Testing
Statistical Hypotheses*, chapter 15; docs/theory.md, statement 19). Step models call nonlinear processes in equilibrium; this does not. It says
nothing of irreversible processes at rest, for which panels are simulated (`null_simulation`).

The ratio of the step models, refitted to randomly reversed panels, would be as exact. It was tried in place of the features and rejects
reversibility less often where variances are free: 5 instead of 15 of 30 panels whose noise calms down were called.

Where gaps are unequal features still have mean zero under reversibility, and the test holds for many trajectories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.io.arrays import Array, Indices, Mask

FLIPS = 999
"""Random reversals."""

BOUND = 3.0
"""Size, in medians over trajectories, that a feature does not exceed. Squares of one trajectory that lags behind in growth outweighed those of 29 others:
growth told from its reverse by deviations in .82 of 60 panels, so bounded in .98, by 1 or .3 medians as often; other panels as before."""

MIN_GROUPS = 8
"""Independent trajectories, or groups of them, that the test needs: of fewer, too many of the 2ⁿ reversals are nearly the panel
itself."""

NUMBERS_AT_ONCE = 1 << 20
"""Features of all groups that are standardised at a time: of d = 400 a block has ten times as many."""


def reversibility_p(panels: Panels, rng: np.random.Generator, *, means: bool) -> float:
    """The p-value of "every trajectory is as likely as its reverse"; 0 where there are too few trajectories to ask.

    `means`: offsets of the steps are free, so that only deviations from the slices' means may tell.
    """
    x, there = panels.x[0], panels.visits.mask
    if not means:
        return _p(antisymmetric_features(x, there), len(x), panels.groups, rng)
    x = x - x.mean(axis=0)
    blocks = chain(islice(antisymmetric_features(x, there), 1, None), _trends(x, there))
    return _p(blocks, len(x), panels.groups, rng)


def irreversibility_p(
    x: Array, there: Mask, rng: np.random.Generator, *, groups: Indices | None = None
) -> float | None:
    """The same of trajectories (n, T, d), complete where `there` (n, T); by more features, where nothing else is asked of them.

    Further features: those of two steps at once, and `Σ x_t x_{t+1}³ − x_t³ x_{t+1}`, which symmetric processes may have. None: too few trajectories.
    """
    seen = x[there]
    z = np.where(there[..., None], (x - seen.mean(axis=0)) / seen.std(axis=0), 0.0)
    further = chain(_step_features(z, there, 2), (_fourth(z, there),))
    found = _p(chain(antisymmetric_features(z, there), further), len(z), groups, rng)
    return found or None


def antisymmetric_features(x: Array, there: Mask) -> Iterator[Array]:
    """Blocks (n, k) of features that change sign when a trajectory is reversed, made one at a time: with many variables they are large."""
    rows = np.arange(len(x))
    first, last = _ends(there)
    yield x[rows, last] - x[rows, first]
    yield _ends_products(x, there)
    yield from _step_features(x, there, 1)


def _ends_products(x: Array, there: Mask) -> Array:
    """Changes (n, k) of squares and products of values from the first observation to the last."""
    rows, (i, j) = np.arange(len(x)), np.triu_indices(x.shape[2])
    first, end = (x[rows, each] for each in _ends(there))
    found: Array = end[:, i] * end[:, j]
    found -= first[:, i] * first[:, j]
    return found


def _ends(there: Mask) -> tuple[Indices, Indices]:
    """The first and the last observation of each trajectory."""
    return there.argmax(axis=1), there.shape[1] - 1 - there[:, ::-1].argmax(axis=1)


def _trends(x: Array, there: Mask) -> Iterator[Array]:
    """Odd polynomials of time, from −1 at a trajectory's first observation to 1 at its last, of degrees 1 and 3, times products of values."""
    (first, last), (i, j) = _ends(there), np.triu_indices(x.shape[2])
    middle, half = (first + last) / 2, np.maximum((last - first) / 2, 0.5)
    time = (np.arange(x.shape[1]) - middle[:, None]) / half[:, None]
    weights = (each * there for each in (time, (5 * time**3 - 3 * time) / 2))
    for w in weights:
        yield ((x * w[..., None]).transpose(0, 2, 1) @ x)[:, i, j]


def _pairs(x: Array, there: Mask, lag: int) -> tuple[Array, Array]:
    """States `lag` steps apart, zero where one of them was not seen."""
    if there.all():
        return x[:, :-lag], x[:, lag:]
    live = (there[:, lag:] & there[:, :-lag])[..., None]
    return x[:, :-lag] * live, x[:, lag:] * live


def _step_features(x: Array, there: Mask, lag: int) -> Iterator[Array]:
    """Circulation, and skewness of the steps over a lag."""
    here, after = _pairs(x, there, lag)
    yield _circulation(here, after)
    step = after - here
    yield np.einsum("ntd,ntd->nd", step * step, step)


def _circulation(here: Array, after: Array) -> Array:
    turning = here.transpose(0, 2, 1) @ after
    a, b = np.triu_indices(here.shape[2], 1)
    found: Array = turning[:, a, b]
    found -= turning[:, b, a]
    return found


def _fourth(x: Array, there: Mask) -> Array:
    here, after = _pairs(x, there, 1)
    return np.asarray((here * after**3 - here**3 * after).sum(axis=1))


def bounded(features: Array) -> Array:
    """Features (G, k) that no group dominates: about as they are up to BOUND medians of their sizes, and not beyond.

    Sizes do not change with the direction, so that the test stays exact.
    """
    bound = BOUND * np.median(np.abs(features), axis=0)
    found: Array = features / np.sqrt(1 + (features / np.where(bound > 0, bound, np.inf)) ** 2)
    return found


def _p(blocks: Iterable[Array], n: int, groups: Indices | None, rng: np.random.Generator) -> float:
    """By random signs of the groups, the largest of the blocks' standardised sums of squares."""
    _, code = np.unique(np.arange(n) if groups is None else groups, return_inverse=True)
    G = int(code.max()) + 1
    if G < MIN_GROUPS:
        return 0.0
    signs = np.concatenate([np.ones((1, G)), rng.choice([-1.0, 1.0], size=(FLIPS, G))])
    largest = np.full(FLIPS + 1, -np.inf)
    for block in blocks:
        if not block.shape[1]:
            continue
        total = block if groups is None else np.zeros((G, block.shape[1]))
        if groups is not None:
            np.add.at(total, code, block)
        k, squares = 0, np.zeros(FLIPS + 1)
        size = max(1, NUMBERS_AT_ONCE // G)
        for begin in range(0, total.shape[1], size):
            some = bounded(total[:, begin : begin + size])
            scale = np.sqrt((some**2).sum(axis=0))
            k += int((scale > 0).sum())
            squares += _squares(signs, some / np.where(scale > 0, scale, 1.0))
        if k:
            largest = np.maximum(largest, (squares - k) / np.sqrt(2 * k))
    return float((largest >= largest[0] * (1 - 1e-12)).sum() / (FLIPS + 1))


def _squares(signs: Array, features: Array) -> Array:
    """`‖s F‖²` of rows s (R, G) and features F (G, k): of more features than groups by `s F Fᵀ sᵀ`."""
    if features.shape[1] <= features.shape[0]:
        z = signs @ features
        return np.asarray((z**2).sum(axis=1))
    return np.asarray(((signs @ (features @ features.T)) * signs).sum(axis=1))
