"""EM for noisy observations in known order, compared with alternatives: errors and CPU seconds.

`python benchmarks/statespace.py` prints the table; `make bench` tracks the ratios of seconds. All start
from the same guess and know that Y = X + noise. Ours runs until the likelihood stops rising, dynamax and
pykalman for a fixed number of rounds of plain EM. One thread each; methods take turns in one process.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

import numpy as np
from scipy.linalg import logm

import retrace_sde as rt
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.statespace.em import em
from retrace_sde.fit.statespace.parameters import Setup, as_noise, first_guess, spread
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")  # fmt: skip

DT = 0.01
ROUNDS = {"dynamax": 50, "pykalman": 10}
"""Rounds of EM of the peers: dynamax's default, and pykalman's."""


def panel(sigma, *, seed=0, n=200, T=100, d=10, missing=0.0):
    """A stable SDE, its exact simulation from X_0 ~ N(0, I), noise, and a share of entries lost at random."""
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0=1.0, scheme="exact", random_state=seed + 1000)
    Y = rt.simulate.add_noise(X, sigma, random_state=seed + 2000)
    lost = np.random.default_rng(seed + 3000).random(Y.shape) < missing
    return sde, np.where(lost, np.nan, Y)


def guess(Y):
    """Where `em` starts: transition, its covariance, noise and first states."""
    d = Y.shape[2]
    R, unknown, tied = as_noise("estimate", d)
    free = np.ones((d, d), dtype=bool)
    setup = Setup(DT, free, np.zeros((d, d)), None, unknown, tied, None, spread(Y))
    return first_guess(Y, setup, R).model(DT)


def continuous(F, Q):
    """(A, H) of an exact step: A = log(F) / dt, and H from A Q + Q Aᵀ = F H Fᵀ − H."""
    if not (np.isfinite(F).all() and np.isfinite(Q).all()):
        return np.full_like(F, np.nan), np.full_like(Q, np.nan)
    A = np.real(logm(F)) / DT
    right = A @ Q + Q @ A.T
    d = len(F)
    H = np.linalg.solve(np.kron(F, F) - np.eye(d * d), right.ravel()).reshape(d, d)
    return A, (H + H.T) / 2


def ours(Y, scheme="exact"):
    found = em(Y, DT, scheme=scheme)
    return found.drift, found.diffusion


def noise_ignored(Y):
    found = mle(moments(Data(Y), np.arange(Y.shape[1]), DT, Linear()))
    return found.coefficients, found.diffusion


def dynamax(Y, rounds=ROUNDS["dynamax"]):
    """(A, H), and the CPU seconds of its rounds of EM, compiling not counted.

    In float64, with two repairs without which it ends in NaN: the covariance of the first states of several trajectories (its
    M-step takes `Σ x xᵀ − (Σ x)(Σ x)ᵀ`, which is not positive for more than one), and a step covariance that stays symmetric.
    Emission weights are held at 1: free ones would leave the states in unknown coordinates. The round is that of its `fit_em`,
    which compiles it anew in every call.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    d, start = Y.shape[2], guess(Y)

    class Fixed(LinearGaussianSSM):
        def m_step(self, params, props, batch_stats, m_step_state):
            firsts, _, (xx, xy, yy, count) = (
                jax.tree_util.tree_map(partial(jnp.sum, axis=0), part) for part in batch_stats
            )
            new, state = super().m_step(params, props, batch_stats, m_step_state)
            total, squares, number = firsts
            mean = total / number
            cov = squares / number - jnp.outer(mean, mean)
            R = (yy - xy - xy.T + xx) / count
            Q = new.dynamics.cov
            return new._replace(
                dynamics=new.dynamics._replace(cov=(Q + Q.T) / 2),
                initial=new.initial._replace(mean=mean, cov=cov),
                emissions=new.emissions._replace(
                    weights=jnp.eye(d), cov=jnp.eye(d) * jnp.trace(R) / d
                ),
            ), state

    model = Fixed(d, d, has_dynamics_bias=False, has_emissions_bias=False)
    first, props = model.initialize(
        initial_mean=jnp.asarray(start.initial.mean),
        initial_covariance=jnp.asarray(start.initial.covariance),
        dynamics_weights=jnp.asarray(start.transition.matrix),
        dynamics_covariance=jnp.asarray(start.transition.covariance),
        emission_weights=jnp.eye(d),
        emission_covariance=jnp.asarray(start.noise),
    )
    y = jnp.asarray(Y)

    @jax.jit
    def one_round(params, state):
        stats, likelihoods = jax.vmap(partial(model.e_step, params))(y, None)
        params, state = model.m_step(params, props, stats, state)
        return params, state, likelihoods.sum()

    state = model.initialize_m_step_state(first, props)
    jax.block_until_ready(one_round(first, state))  # compile
    params, busy = first, time.process_time()
    for _ in range(rounds):
        params, state, likelihood = one_round(params, state)
        float(likelihood)  # waits for the round, as its `fit_em` does
    busy = time.process_time() - busy
    found = np.asarray(params.dynamics.weights), np.asarray(params.dynamics.cov)
    return *continuous(*found), {"seconds": busy}


def pykalman(Y):
    """Its EM takes one series: the trajectories one after the other, so that every join counts as a step."""
    from pykalman import KalmanFilter

    start = guess(Y)
    peer = KalmanFilter(
        transition_matrices=start.transition.matrix,
        observation_matrices=np.eye(Y.shape[2]),
        transition_covariance=start.transition.covariance,
        observation_covariance=start.noise,
        initial_state_mean=start.initial.mean,
        initial_state_covariance=start.initial.covariance,
        em_vars=[
            "transition_matrices",
            "transition_covariance",
            "observation_covariance",
            "initial_state_mean",
            "initial_state_covariance",
        ],
    )
    found = peer.em(Y.reshape(-1, Y.shape[2]), n_iter=ROUNDS["pykalman"])
    return continuous(found.transition_matrices, found.transition_covariance)


def ours_with_gaps(Y):
    """`em`, a fifth of the entries lost at random: what the peers do not take."""
    return ours(np.where(np.random.default_rng(0).random(Y.shape) < 0.2, np.nan, Y))


METHODS = {
    "Euler, noise ignored": noise_ignored,
    "`em`": ours,
    "`em`, scheme='euler'": partial(ours, scheme="euler"),
    "`em`, 20 % missing": ours_with_gaps,
    "dynamax: EM, 50 rounds": dynamax,
    "pykalman: EM, 10 rounds": pykalman,
}


def timed(function, Y):
    """CPU seconds, a method's own count where it has one, and (A, H)."""
    begin = time.process_time()
    A, H, *more = function(Y)
    return more[0]["seconds"] if more else time.process_time() - begin, (A, H)


def ratio(peer, Y):
    return timed(peer, Y)[0] / timed(ours, Y)[0]


class NoisyEM:
    """n = 200, T = 100, d = 10, Δt = .01, complete: how many times longer the peers take."""

    params = (0.1, 0.5)
    param_names = ("sigma",)
    timeout = 3600

    def setup(self, sigma):
        _, self.Y = panel(sigma)
        ours(self.Y[:20])

    def time_em(self, sigma):
        ours(self.Y)

    def peakmem_em(self, sigma):
        ours(self.Y)

    def track_dynamax_ratio(self, sigma):
        return ratio(dynamax, self.Y)

    def track_pykalman_ratio(self, sigma):
        return ratio(pykalman, self.Y)

    track_dynamax_ratio.unit = track_pykalman_ratio.unit = "peer / ours"  # type: ignore[attr-defined]


class MissingEntries:
    """n = 2000, T = 50, d = 10 with 20 % of the entries missing: every trajectory has its own pattern."""

    timeout = 600

    def setup(self):
        _, self.Y = panel(0.1, n=2000, T=50, missing=0.2)
        em(self.Y[:50], DT, max_iter=1)  # compile

    def time_three_steps(self):
        em(self.Y, DT, max_iter=3)

    def peakmem_three_steps(self):
        em(self.Y, DT, max_iter=3)


def short(number):
    """Three digits; below the resolution of the clock that is said."""
    return f"{number:.3g}" if number > 0 else "< 0.01"


def compared(sigma, seeds, turns, only):
    """CPU seconds (the least of all panels and turns) and mean absolute errors of A and H of each method, by turns in this process."""
    methods = {name: each for name, each in METHODS.items() if any(part in name for part in only)}
    found = {name: [] for name in methods}
    for seed in seeds:
        sde, Y = panel(sigma, seed=seed)
        for turn in range(turns):
            for name, method in methods.items():
                if turn == 0 or "pykalman" not in name:  # which takes minutes
                    took, (A, H) = timed(method, Y)
                    wrong = np.abs(A - sde.drift).mean(), np.abs(H - sde.diffusion).mean()
                    found[name].append([took, *wrong])
    return {name: [np.min(rows, axis=0)[0], *np.mean(rows, axis=0)[1:]] for name, rows in found.items()}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:1", help="a:b")
    parser.add_argument("--turns", type=int, default=3, help="times that every method runs")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.1, 0.5])
    parser.add_argument("--only", nargs="+", default=[""], help="methods with one of these in it")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    small = panel(0.1, n=20, T=10)[1]
    for compiled in (ours, ours_with_gaps, noise_ignored):
        compiled(small)
    several = [compared(sigma, seeds, asked.turns, asked.only) for sigma in asked.sigmas]
    columns = [f"σ = {s:g}: {each}" for s in asked.sigmas for each in ("CPU s", "MAE of A", "MAE of H")]  # fmt: skip
    rows = [[name, *(short(each) for part in several for each in part[name])] for name in several[0]]  # fmt: skip
    print(*lines({"columns": ["method", *columns], "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
