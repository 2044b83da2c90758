"""Panels with a known order, to be hidden: simulated mechanisms, shared shocks, trends, wrong cells, real ones.

`directed` says whether the distribution has a direction at all: in a panel at rest every direction that is claimed is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.linalg import expm, solve_continuous_lyapunov

from retrace_sde.datasets import load_icu
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.files import read_table
from retrace_sde.process.sde import Gaussian, LinearSDE
from retrace_sde.process.simulate import random_irreversible_sde, shuffle

DT = 0.1
FEWEST_TO_SPLIT = 40
"""Subjects of a real panel from which on half of them are kept, in order, for methods that learn from others."""


@dataclass(frozen=True, eq=False)
class Hidden:
    """A panel whose slices are shuffled, and what is known of it."""

    name: str
    kind: str
    directed: bool
    values: Array
    truth: Indices
    known: Array
    """Other subjects of the same process, in time order."""

    drift: Array | None = None


@dataclass(frozen=True)
class Source:
    """How a panel is made: `make` takes a generator and returns trajectories in time order, and A where there is one."""

    kind: str
    directed: bool
    make: Callable[[np.random.Generator], tuple[Array, Array | None]]


N, T = 60, 16
"""Trajectories that are simulated, of which the first half are hidden, and their length."""

EULER_STEP = 0.01
"""Time between the small steps of a nonlinear SDE."""


def _reversible(rng: np.random.Generator, d: int) -> LinearSDE:
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return LinearSDE(-(Q * rng.uniform(0.5, 3, d)) @ Q.T, np.eye(d))


def _linear(
    rng: np.random.Generator, *, turning: bool = True, off: float = 0.0, narrow: float = 1.0,
    common: float = 0.0, plates: float = 0.0, levels: float = 0.0, noise: float = 0.0, missing: float = 0.0, d: int = 3,
) -> tuple[Array, Array | None]:  # fmt: skip
    """A linear SDE from its stationary distribution, or from `off` deviations away with a `narrow` spread; and what trajectories share."""
    sde = random_irreversible_sde(d, random_state=rng) if turning else _reversible(rng, d)
    S = solve_continuous_lyapunov(sde.drift, -sde.diffusion)
    sd = np.sqrt(np.diag(S))
    start = Gaussian(np.zeros(d), narrow**2 * S)
    own, shared = (sde.simulate(k, T, DT, x0=start, random_state=rng) for k in (N, 1))
    mean = np.stack([expm(sde.drift * DT * k) @ (off * sd) for k in range(T)])
    X = mean + np.sqrt(1 - common) * own + np.sqrt(common) * shared
    X = (
        X
        + plates * sd * rng.standard_normal((1, T, d))
        + levels * sd * rng.standard_normal((N, 1, d))
    )
    X = X + noise * sd * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < missing, np.nan, X), sde.drift


def _stepped(
    rng: np.random.Generator, field: Callable[[Array], Array], start: Array, *, every: int, noise: float
) -> tuple[Array, None]:  # fmt: skip
    """A nonlinear SDE by small Euler steps, of which one in `every` is observed."""
    x, found = start, []
    for k in range(T * every):
        if k % every == 0:
            found.append(x)
        x = x + EULER_STEP * field(x) + noise * np.sqrt(EULER_STEP) * rng.standard_normal(x.shape)
    return np.stack(found, axis=1), None


def _logistic(rng: np.random.Generator) -> tuple[Array, None]:
    start = 0.1 * np.exp(0.3 * rng.standard_normal((N, 2)))
    return _stepped(rng, lambda x: 3 * x * (1 - x), start, every=12, noise=0.04)


def _epidemic(rng: np.random.Generator) -> tuple[Array, None]:
    def field(x: Array) -> Array:
        new = 6 * x[:, 0] * x[:, 1]
        return np.stack([-new, new - 2 * x[:, 1]], axis=1)

    infected = 0.02 * np.exp(0.3 * rng.standard_normal(N))
    return _stepped(rng, field, np.stack([1 - infected, infected], axis=1), every=15, noise=0.01)


def _predators(rng: np.random.Generator) -> tuple[Array, None]:
    def field(x: Array) -> Array:
        a, b = x.T
        return np.stack([a * (1.5 - b), b * (a - 1.0)], axis=1)

    start = np.array([1.6, 1.0]) + 0.15 * rng.standard_normal((N, 2))
    return _stepped(rng, field, start, every=15, noise=0.04)


def _neurons(rng: np.random.Generator) -> tuple[Array, None]:
    def field(x: Array) -> Array:
        v, w = x.T
        return np.stack([3 * (v - v**3 / 3 - w), (v + 0.7 - 0.8 * w) / 3], axis=1)

    start = np.array([-1.0, 1.0]) + 0.3 * rng.standard_normal((N, 2))
    return _stepped(rng, field, start, every=20, noise=0.1)


def _double_wells(rng: np.random.Generator) -> tuple[Array, None]:
    start = rng.choice([-1.0, 1.0], (N, 2)) + 0.3 * rng.standard_normal((N, 2))
    return _stepped(rng, lambda x: x - x**3, start, every=15, noise=0.5)


def _wear(rng: np.random.Generator) -> tuple[Array, None]:
    """Increments that are never negative."""
    return np.cumsum(rng.gamma(0.6, 1.0, (N, T, 2)), axis=1), None


def _shot_noise(rng: np.random.Generator) -> tuple[Array, None]:
    """Sudden rises that decay: stationary and irreversible."""
    x, found = np.zeros((N, 3)), []
    for _ in range(T + 60):
        x = 0.8 * x + rng.exponential(1.0, x.shape) * (rng.random(x.shape) < 0.3)
        found.append(x)
    return np.stack(found[60:], axis=1), None


def _momentum(rng: np.random.Generator) -> tuple[Array, None]:
    """Positions whose velocities are not seen."""
    v, x, found = rng.standard_normal((N, 2)), np.zeros((N, 2)), []
    for _ in range(T):
        found.append(x)
        v = 0.9 * v + 0.3 * rng.standard_normal(v.shape)
        x = x + 0.3 * v
    return np.stack(found, axis=1), None


def _two_groups(rng: np.random.Generator) -> tuple[Array, None]:
    """Half of the subjects rise, half fall."""
    sign, x, found = (
        np.where(np.arange(N) % 2, 1.0, -1.0)[:, None],
        0.3 * rng.standard_normal((N, 2)),
        [],
    )
    for _ in range(T):
        found.append(x)
        x = x + 0.2 * (2 * sign - x) + 0.2 * rng.standard_normal(x.shape)
    return np.stack(found, axis=1), None


def _outside(rng: np.random.Generator, mean: Callable[[Array], Array]) -> tuple[Array, None]:
    """Stationary deviations about a mean that something outside moves; t runs from 0 to 1."""
    X, _ = _linear(rng, turning=False, d=2)
    return X + X.std() * mean(np.linspace(0, 1, T))[None, :, None], None


def _volatility(rng: np.random.Generator) -> tuple[Array, None]:
    """Noise that becomes smaller and smaller."""
    x, found = 2 * rng.standard_normal((N, 3)), []
    for size in np.linspace(2, 0.5, T):
        found.append(x)
        x = 0.85 * x + 0.5 * size * rng.standard_normal(x.shape)
    return np.stack(found, axis=1), None


def _wrong_cells(rng: np.random.Generator) -> tuple[Array, Array | None]:
    """A decimal point lost in one cell of three hundred."""
    X, A = _linear(rng, off=2.0, narrow=0.3)
    return np.where(rng.random(X.shape) < 1 / 300, 30 * X, X), A


def _exchanged(rng: np.random.Generator) -> tuple[Array, Array | None]:
    """One row in fifty exchanged with another subject's of the same slice."""
    X, A = _linear(rng, levels=1.0, turning=False)
    half = N // 2
    for t, (a, b) in zip(
        rng.integers(T, size=half // 3), rng.integers(half, size=(half // 3, 2)), strict=True
    ):
        X[[a, b], t] = X[[b, a], t]
    return X, A


def _other_units(rng: np.random.Generator) -> tuple[Array, Array | None]:
    """One subject of the thirty in other units."""
    X, A = _linear(rng, off=2.0, narrow=0.3)
    X[rng.integers(N // 2)] *= 100
    return X, A


def _carried_forward(rng: np.random.Generator) -> tuple[Array, Array | None]:
    """A third of the subjects drop out, and their last row is repeated."""
    X, A = _linear(rng, off=2.0, narrow=0.3)
    for x, last in zip(X[::3], rng.integers(T // 2, T - 2, len(X[::3])), strict=True):
        x[last:] = x[last]
    return X, A


def _growing_gaps(rng: np.random.Generator) -> tuple[Array, None]:
    """Visits that get further and further apart: as many as T out of a longer, evenly observed course."""
    seen = np.unique(np.round(1.25 ** np.arange(4, 30)).astype(int))[:T] - 2
    fine = DT / 8
    sde = random_irreversible_sde(3, random_state=rng)
    sd = np.sqrt(np.diag(solve_continuous_lyapunov(sde.drift, -sde.diffusion)))
    start = Gaussian(2 * sd, np.diag((0.3 * sd) ** 2))
    return sde.simulate(N, int(seen[-1]) + 1, fine, x0=start, random_state=rng)[:, seen], None


def _of(**options: float) -> Callable[[np.random.Generator], tuple[Array, Array | None]]:
    return lambda rng: _linear(rng, **options)  # type: ignore[arg-type]


SIMULATED: dict[str, Source] = {
    "transient": Source("mechanism", True, _of(off=2.0, narrow=0.3)),
    "contracting": Source("mechanism", True, _of(narrow=3.0)),
    "from one point": Source("mechanism", True, _of(narrow=0.1)),
    "logistic growth": Source("mechanism", True, _logistic),
    "epidemic": Source("mechanism", True, _epidemic),
    "predator and prey": Source("mechanism", True, _predators),
    "FitzHugh–Nagumo": Source("mechanism", True, _neurons),
    "wear": Source("mechanism", True, _wear),
    "shot noise": Source("mechanism", True, _shot_noise),
    "unseen velocity": Source("mechanism", True, _momentum),
    "two groups": Source("mechanism", True, _two_groups),
    "noisy transient": Source("mechanism", True, _of(off=2.0, narrow=0.3, noise=0.3)),
    "transient, 10 % missing": Source("mechanism", True, _of(off=2.0, narrow=0.3, missing=0.1)),
    "growing gaps": Source("mechanism", True, _growing_gaps),
    "reversible rest": Source("rest", False, _of(turning=False)),
    "irreversible rest": Source("rest", False, _of()),
    "rest, own levels": Source("rest", False, _of(turning=False, levels=2.0)),
    "double wells": Source("rest", False, _double_wells),
    "rest, 60 % common": Source("shared shocks", False, _of(turning=False, common=0.6)),
    "rest, plates": Source("shared shocks", False, _of(turning=False, plates=1.0)),
    "transient, plates": Source("shared shocks", True, _of(off=2.0, narrow=0.3, plates=0.3)),
    "transient, 50 % common": Source("shared shocks", True, _of(off=2.0, narrow=0.3, common=0.5)),
    "treatment begins": Source("outside", True, lambda rng: _outside(rng, lambda t: np.where(t >= 0.5, 2.0, 0.0))),
    "outside trend": Source("outside", True, lambda rng: _outside(rng, lambda t: 3.0 * t * t)),
    "volatility falls": Source("outside", True, _volatility),
    "wrong cells": Source("wrong data", True, _wrong_cells),
    "exchanged rows": Source("wrong data", False, _exchanged),
    "one in other units": Source("wrong data", True, _other_units),
    "carried forward": Source("wrong data", True, _carried_forward),
}  # fmt: skip
"""Made anew from each seed."""

REAL = {
    "physionet2012_icu_4h": True,
    "pbcseq_visits": True,
    "berkeley_growth": True,
    "chickweight": True,
    "tcell34": True,
    "grunfeld": True,
    "mavoglurant_pk": True,
    "theoph": True,
    "ecb_fx_monthly": False,
    "gait": False,
}
"""Panels read from a folder, `NAME.csv` with the columns subject, time and variables; whether they have a direction."""


def hidden(name: str, seed: int, folder: Path | None = None) -> Hidden:
    """A panel by its name, its slices shuffled by the seed."""
    rng = np.random.default_rng([seed, *name.encode()])
    drift = None
    if name in SIMULATED:
        source = SIMULATED[name]
        X, drift = source.make(rng)
        kind, directed = source.kind, source.directed
    else:
        X = _panel(load_icu(), "patient", "hour")
        if folder is not None and name != "icu":
            X = _panel(read_table(folder / f"{name}.csv", text=["subject"]), "subject", "time")
        X = X[rng.permutation(len(X))]
        kind, directed = "real", REAL.get(name, True)
    half = len(X) // 2 if len(X) >= FEWEST_TO_SPLIT else len(X)
    values, truth = shuffle(X[:half], random_state=rng)
    return Hidden(name, kind, directed, values, truth, X[half:], drift)


def names(folder: Path | None = None) -> Iterator[str]:
    """All panels that there are; of the folder's those whose files it holds."""
    yield from SIMULATED
    yield "icu"
    if folder is not None:
        yield from (name for name in REAL if (folder / f"{name}.csv").is_file())


def _panel(table: pd.DataFrame, subject: str, time: str) -> Array:
    """Rows in time order, the same number for each subject; what does not vary within subjects is left out."""
    groups = table.groupby(subject)
    varies = [
        name
        for name in table
        if name not in (subject, time, "actual_hours") and groups[name].nunique().max() > 1
    ]
    return table[varies].to_numpy(float).reshape(len(groups), -1, len(varies))
