"""How well any test can tell a relaxation to equilibrium from an outside trend, by the slices' means: the process is known.

    python studies/trend_limit.py --seeds 0:400

`transients` (d = 4, n = 30, T = 20, start 1.5 deviations off the mean) have a direction. `trends` (`3 t²` on stationary deviations that are slow,
d = 2, n = 30, T = 12) have none that the dynamics show: their reverse looks like a relaxation. The step F and the stationary covariance S are the true ones of
either direction, so that all that is left to estimate is the path of the means: a relaxation `m_t = μ + Fᵗ(m₀ − μ)`, or a straight line or parabola
of time; the numbers of a path cost what they cost in `candidates.trend`. A direction is called where its relaxation is better than the other
direction's by 3 nats, and than the best trend by the nats of the first column. Default settings estimate F and S too, and can only do worse.
"""

from __future__ import annotations

import argparse

import assumptions
import direction
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov

from retrace_sde.evidence.candidates.trend import volume
from retrace_sde.evidence.direction.comparison import MIN_NATS
from retrace_sde.lost_time.table import lines
from retrace_sde.process.simulate import random_irreversible_sde

Floats = NDArray[np.float64]
Panel = tuple[Floats, Floats, Floats]
DT = 0.1


def transient(seed: int) -> Panel:
    """A panel with the drift and the diffusion of its process."""
    sde = random_irreversible_sde(4, random_state=seed)
    return direction.linear(seed, d=4, n=30, T=20, start="shifted"), sde.drift, sde.diffusion


def trend(seed: int) -> Panel:
    """The same; the drift is drawn as `assumptions.walk` draws it."""
    rng = np.random.default_rng([seed, 5])
    Q = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    A = -(Q * rng.uniform(0.5, 3, 2)) @ Q.T
    return assumptions.PANELS["trend"](seed), A, np.eye(2)


def misfit(path: Floats, columns: Floats, F: Floats, S: Floats, n: int) -> float:
    """Half of χ² of the slices' means (T, d) about the best combination of paths (T, d, k), and what its coefficients cost."""
    start, step = (np.linalg.inv(np.linalg.cholesky(each)) for each in (S, S - F @ S @ F.T))

    def white(x: Floats) -> Floats:
        first, rest = start @ x[0], np.einsum("ij,tjk->tik", step, x[1:] - np.einsum("ij,tjk->tik", F, x[:-1]))  # fmt: skip
        return np.concatenate([first, rest.reshape(-1, x.shape[2])])

    values, paths = white(path[:, :, None])[:, 0], white(columns)
    left = values - paths @ np.linalg.lstsq(paths, values, rcond=None)[0]
    units = np.kron(np.eye(columns.shape[2] // len(S)), np.linalg.cholesky(S))
    return n * float(left @ left) / 2 + volume(n * units.T @ paths.T @ paths @ units)


def nats(panel: Panel) -> tuple[float, float]:
    """The relaxation's ratio of both directions, and what the better one has over the best trend."""
    X, A, H = panel
    n, T, d = X.shape
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    t, eye, path = np.linspace(-1, 1, T), np.eye(d), X.mean(axis=0)
    powers = [np.einsum("t,ij->tij", t**k, eye) for k in range(3)]
    relaxed, trends = [], []
    for m, G in ((path, F), (path[::-1], S @ F.T @ np.linalg.inv(S))):
        courses = np.stack([np.linalg.matrix_power(G, k) for k in range(T)])
        # of the start, and of the mean to which it relaxes
        relaxed.append(misfit(m, np.concatenate([courses, powers[0] - courses], axis=2), G, S, n))
        for k in (1, 2):
            trends.append(misfit(m, np.concatenate(powers[: k + 1], axis=2), G, S, n))
    return relaxed[1] - relaxed[0], min(trends) - min(relaxed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:400", help="a:b")
    seeds = range(*map(int, parser.parse_args().seeds.split(":")))
    right, wrong = (np.array([nats(make(seed)) for seed in seeds]) for make in (transient, trend))
    rows = []
    for tie in range(7):
        called = [(each[:, 1] >= tie) & (np.abs(each[:, 0]) >= MIN_NATS) for each in (right, wrong)]
        shares = np.mean(called[0] & (right[:, 0] > 0)), np.mean(called[1])
        rows.append([tie, len(seeds), *map(float, shares)])
    columns = ["nats over the best trend", "panels", "transients called", "trends called"]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
