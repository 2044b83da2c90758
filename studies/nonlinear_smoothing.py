"""Nonlinear drifts with noise, order known: sigma points and particles compared with a dense grid.

    python studies/nonlinear_smoothing.py --seeds 0:3       (about two minutes a seed)
    python studies/nonlinear_smoothing.py --affine          (the recommended alternative, order lost)

Euler steps of a drift linear in its parameters, `x' = x + Θ φ(x) Δt + N(0, H Δt)`, `y = x + N(0, σ²)`, 20 % of the entries
missing, σ known; 60 trajectories. Θ, H and p₀ are fitted along the order and along its reverse, with the states integrated out by

    grid        point masses closer than a step's spread, forward and backward: no approximation, the oracle
    cubature    EM with a Gaussian filter and Rauch–Tung–Striebel smoother by 2 d sigma points
    hermite     the same by 5 points per variable: the limit of Gaussian smoothers
    maximised   the likelihood of the filter of `hermite`, maximised directly: EM under a wrong distribution does not maximise it
    particles   EM with a fully adapted filter of 500 particles, 20 paths drawn backwards, the last of its rounds averaged

All but the grid start from the grid's answer: what is shown is where they go from the truth of the matter. The table has `away`; `off` of each
method and the grid's `ratio`; with --affine Kendall's τ, panels in the true direction, called and wrong.
At the true parameters: `mean`, the smoothed means' distance from the grid's in smoothed standard deviations; `variance`, the mean
ratio of smoothed variances; `log p`, the absolute error of the log-likelihood. Fitted: `away` and `most`, mean and largest distance
of Θ and H from the grid's in standard errors; `held`, the share of entries whose truth lies within 1.96 of them; `ratio`, the
log-likelihood of the order less that of its reverse, which decides the direction; `off`, its distance from the grid's.
"""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from joblib import Parallel, delayed
from numba import njit
from scipy.optimize import minimize

import retrace_sde as rt
from retrace_sde.fit.information import inverse
from retrace_sde.fit.statespace.ascent.climb import Ascent, climb
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.parameters import Parameters, Setup, spread
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import one_blas_thread
from retrace_sde.process.drift import Polynomial
from retrace_sde.process.sde import Gaussian

N, PATHS, MISSING, ROUNDS = 500, 20, 0.2, 40


@dataclass(frozen=True)
class Case:
    """A system, its step, the noise of its observations and where trajectories start."""

    name: str
    drift: Polynomial
    theta: np.ndarray
    H: np.ndarray
    dt: float
    noise: float
    start: Gaussian
    n: int = 60
    T: int = 20

    @property
    def d(self):
        return len(self.H)

    def law(self):
        return Parameters(self.theta, self.H, self.noise**2 * np.eye(self.d), self.start)

    def move(self, x, law):
        return x + self.drift.features(x, None) @ law.theta.T * self.dt

    def setup(self, y):
        shape, none = self.theta.shape, np.zeros(self.d, dtype=bool)
        free = np.ones(shape, dtype=bool)
        return Setup(self.dt, free, np.zeros(shape), None, none, False, None, spread(y))

    def panel(self, seed):
        rng = np.random.default_rng(seed)
        root = np.linalg.cholesky(self.H * self.dt)
        start = np.linalg.cholesky(self.start.covariance)
        x = [self.start.mean + rng.standard_normal((self.n, self.d)) @ start.T]
        while len(x) < self.T:
            x.append(self.move(x[-1], self.law()) + rng.standard_normal(x[-1].shape) @ root.T)
        y = np.stack(x, axis=1)
        y += self.noise * rng.standard_normal(y.shape)
        y[rng.random(y.shape) < MISSING] = np.nan
        return y


def double_well(dt, noise):
    """`x − x³`, from the ridge between its wells."""
    return Case(
        "double well",
        Polynomial(3),
        np.array([[0.0, 1, 0, -1]]),
        np.array([[0.25]]),
        dt,
        noise,
        Gaussian(np.zeros(1), np.array([[0.09]])),
    )


def predator_prey(dt, noise):
    """`x (1.5 − .25 x − .5 y)`, `y (.5 x − 1)`, features 1, x, y, x², xy, y²."""
    theta = np.array([[0, 1.5, 0, -0.25, -0.5, 0], [0, 0, -1, 0, 0.5, 0]])
    start = Gaussian(np.array([3.0, 1.5]), 0.04 * np.eye(2))
    return Case("predator, prey", Polynomial(2), theta, 0.05 * np.eye(2), dt, noise, start, T=12)


def fitzhugh(dt, noise):
    """`v − v³/3 − w + .5`, `.5 (v + .7 − .8 w)`, features 1, v, w, v², vw, w², v³, …"""
    theta = np.zeros((2, 10))
    theta[0, [0, 1, 2, 6]] = 0.5, 1, -1, -1 / 3
    theta[1, [0, 1, 2]] = 0.35, 0.5, -0.4
    start = Gaussian(np.array([-1.0, 0.0]), 0.09 * np.eye(2))
    return Case("FitzHugh–Nagumo", Polynomial(3), theta, 0.1 * np.eye(2), dt, noise, start, T=12)


CASES = {
    1: [double_well(0.1, 0.2), double_well(0.3, 0.3), double_well(0.3, 0.6)],
    2: [predator_prey(0.3, 0.15), fitzhugh(0.3, 0.2), fitzhugh(0.5, 0.4)],
}


@dataclass(frozen=True)
class Smoothed:
    """Of each trajectory: log-likelihood, Gram matrix of (φ √Δt, ΔX/√Δt), and the law of its states."""

    likelihood: np.ndarray
    gram: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def expected(self, theta):
        n, T, d = self.means.shape
        first = self.means[:, 0]
        gaps = first - first.mean(axis=0)
        spread = (gaps.T @ gaps + self.covariances[:, 0].sum(axis=0)) / n
        count, seen = float(n * (T - 1)), np.full(d, float(n * T))
        law = Gaussian(first.mean(axis=0), spread)
        total = float(self.likelihood.sum())
        # the Gram matrix is in units of √Δt already
        zero, gram = np.zeros_like(theta)[None], self.gram.sum(axis=0)[None]
        one, counts = np.ones(1), np.array([count])
        return Expected(total, gram, zero, one, counts, np.zeros(d), seen, law, float(n))


def gram_of(phi, cross, before, lag, after, dt):
    """(n, q, q) from the sums over time E φφᵀ, E x'φᵀ less E xφᵀ, E xxᵀ, E x'xᵀ and E x'x'ᵀ."""
    steps = (after + before - lag - lag.swapaxes(1, 2)) / dt
    top = np.concatenate([phi * dt, cross.swapaxes(1, 2)], axis=2)
    return np.concatenate([top, np.concatenate([cross, steps], axis=2)], axis=1)


# -- the grid ------------------------------------------------------------------------------------------------


def points_of(case, y, fine=None):
    """A lattice over all that was seen, and beyond, `fine` of the least spread of one step or one observation apart."""
    fine, axes = fine or (0.75 if case.d == 1 else 1.0), []
    for k in range(case.d):
        step = np.sqrt(case.H[k, k] * case.dt)
        rim = 3 * step  # what was seen already lies beyond the states by the noise
        gap = fine * min(step, case.noise)
        axes.append(np.arange(np.nanmin(y[..., k]) - rim, np.nanmax(y[..., k]) + rim, gap))
    return np.array(list(product(*axes))), np.prod([each[1] - each[0] for each in axes])


def seen_density(case, y, x):
    """p(y | x), (T, n, M): missing entries say nothing."""
    square = sum(
        np.nan_to_num((y[:, :, k].T[..., None] - x[:, k]) / case.noise) ** 2 for k in range(case.d)
    )
    count = (~np.isnan(y)).sum(axis=2).T[..., None]
    return np.exp(-0.5 * square) / (2 * np.pi * case.noise**2) ** (count / 2)


def normal(gap, S):
    """Density of N(0, S) at gaps (…, d)."""
    white = gap @ np.linalg.inv(np.linalg.cholesky(S)).T
    return np.exp(-0.5 * (white**2).sum(axis=-1)) / np.sqrt(np.linalg.det(2 * np.pi * S))


def on_grid(case, y, law, grid):
    x, cell, seen = grid
    n, T, d = y.shape
    kernel = normal(x[None] - case.move(x, law)[:, None], law.H * case.dt) * cell
    ahead, likelihood = np.empty((T, n, len(x))), np.zeros(n)
    now = normal(x - law.initial.mean, law.initial.covariance) * cell
    for t in range(T):
        now = (now if t == 0 else ahead[t - 1] @ kernel) * seen[t]
        total = now.sum(axis=-1)
        likelihood += np.log(total)
        ahead[t] = now / total[:, None]
    phi = case.drift.features(x, None)
    p = phi.shape[1]
    squares = (phi[:, :, None] * phi[:, None]).reshape(len(x), -1)
    both = (x[:, :, None] * x[:, None]).reshape(len(x), -1)
    means, seconds = np.empty((n, T, d)), np.empty((n, T, d * d))
    means[:, -1], seconds[:, -1] = ahead[-1] @ x, ahead[-1] @ both
    sums, cross, lag = np.zeros((n, p * p)), np.zeros((n, d, p)), np.zeros((n, d, d))
    back = np.ones((n, len(x)))
    for t in range(T - 2, -1, -1):
        rest = seen[t + 1] * back
        back = rest @ kernel.T
        total = (ahead[t] * back).sum(axis=1)[:, None]
        back /= total
        here = ahead[t] * back
        means[:, t], seconds[:, t] = here @ x, here @ both
        sums += here @ squares
        for k in range(d):
            there = ahead[t] * (((rest * x[:, k]) @ kernel.T) / total)
            cross[:, k] += there @ phi - (here * x[:, k]) @ phi
            lag[:, k] += there @ x
    second = seconds.reshape(n, T, d, d)
    before, after = second[:, :-1].sum(axis=1), second[:, 1:].sum(axis=1)
    gram = gram_of(sums.reshape(n, p, p), cross, before, lag, after, case.dt)
    return Smoothed(likelihood, gram, means, second - means[..., None] * means[:, :, None])


# -- sigma points --------------------------------------------------------------------------------------------


def cubature(d):
    """The rule of third degree: 2 d points at ± √d."""
    return np.concatenate([np.eye(d), -np.eye(d)]) * d**0.5, np.full(2 * d, 0.5 / d)


def hermite(d, order=5):
    z, w = np.polynomial.hermite_e.hermegauss(order)
    points = np.array(list(product(z, repeat=d)))
    return points, np.array([np.prod(each) for each in product(w / w.sum(), repeat=d)])


def spread_points(rule, m, P):
    return m[:, None] + rule @ np.linalg.cholesky(P).swapaxes(1, 2)


def by_points(case, y, law, rule):
    z, w = rule
    n, T, d = y.shape
    Q, likelihood = law.H * case.dt, np.zeros(n)
    m, P = np.tile(law.initial.mean, (n, 1)), np.tile(law.initial.covariance, (n, 1, 1))
    kept = []
    for t in range(T):
        ahead = None
        if t:
            x = spread_points(z, m, P)
            f = case.move(x, law)
            mean = w @ f
            gaps = f - mean[:, None]
            C = np.einsum("i,nia,nib->nab", w, x - m[:, None], gaps)
            before = m, P
            m, P = mean, np.einsum("i,nia,nib->nab", w, gaps, gaps) + Q
            ahead = (*before, m, P, C)
        for k in range(d):  # noise is independent between variables
            has = ~np.isnan(y[:, t, k])
            gap = np.where(has, y[:, t, k] - m[:, k], 0)
            S = P[:, k, k] + case.noise**2
            likelihood -= 0.5 * has * (gap**2 / S + np.log(2 * np.pi * S))
            gain = P[:, :, k] / S[:, None] * has[:, None]
            m, P = m + gain * gap[:, None], P - gain[:, :, None] * P[:, k, None, :]
        kept.append(ahead)
    p = law.theta.shape[1]
    sums, cross, lag = np.zeros((n, p, p)), np.zeros((n, d, p)), np.zeros((n, d, d))
    means, covariances = np.empty((n, T, d)), np.empty((n, T, d, d))
    means[:, -1], covariances[:, -1] = m, P
    for t in range(T - 2, -1, -1):
        m0, P0, m1, P1, C = kept[t + 1]
        D = np.linalg.solve(P1, C.swapaxes(1, 2)).swapaxes(1, 2)
        later, wide = means[:, t + 1], covariances[:, t + 1]
        m = m0 + np.einsum("nab,nb->na", D, later - m1)
        P = P0 + D @ (wide - P1) @ D.swapaxes(1, 2)
        means[:, t], covariances[:, t] = m, P
        link = wide @ D.swapaxes(1, 2)  # Cov(x', x)
        x = spread_points(z, m, P)
        follow = later[:, None] + (x - m[:, None]) @ np.linalg.solve(P, link.swapaxes(1, 2))
        phi = case.drift.features(x, None)
        sums += np.einsum("i,nia,nib->nab", w, phi, phi)
        cross += np.einsum("i,nia,nib->nab", w, follow - x, phi)
        lag += link + later[:, :, None] * m[:, None]
    second = covariances + means[..., None] * means[:, :, None]
    before, after = second[:, :-1].sum(axis=1), second[:, 1:].sum(axis=1)
    return Smoothed(
        likelihood, gram_of(sums, cross, before, lag, after, case.dt), means, covariances
    )


# -- particles -----------------------------------------------------------------------------------------------


@njit(cache=True)
def drawn_back(x, f, weights, whitener, uniforms):
    """Indices (T, paths) of particles x (T, N, d) of weights (T, N), drawn from the last to the first; f moved."""
    T, N, d = x.shape
    paths = uniforms.shape[1]
    found = np.empty((T, paths), dtype=np.int64)
    white = np.empty((N, d))
    total = np.empty(N)
    for t in range(T - 1, -1, -1):
        white[:] = f[t] @ whitener
        for m in range(paths):
            if t < T - 1:
                goal = x[t + 1, found[t + 1, m]] @ whitener
            mass = 0.0
            for i in range(N):
                w = weights[t, i]
                if t < T - 1:
                    square = 0.0
                    for k in range(d):
                        square += (goal[k] - white[i, k]) ** 2
                    w *= np.exp(-0.5 * square)
                mass += w
                total[i] = mass
            found[t, m] = min(np.searchsorted(total, uniforms[t, m] * mass), N - 1)
    return found


def by_particles(case, y, law, rng):
    parts = [one_by_particles(case, each, law, rng) for each in y]
    likelihood, paths = (np.stack(each) for each in zip(*parts, strict=True))  # paths (n, T, M, d)
    phi = case.drift.features(paths[:, :-1], None) * case.dt**0.5
    rows = np.concatenate([phi, np.diff(paths, axis=1) / case.dt**0.5], axis=-1)
    gram = np.einsum("ntma,ntmb->nab", rows, rows) / PATHS
    means = paths.mean(axis=2)
    gaps = paths - means[:, :, None]
    return Smoothed(likelihood, gram, means, np.einsum("ntma,ntmb->ntab", gaps, gaps) / (PATHS - 1))


def one_by_particles(case, y, law, rng):
    """Log-likelihood and paths (T, M, d): particles chosen by p(y | before), then drawn given y."""
    T, d = y.shape
    Q = law.H * case.dt
    x, f, likelihood = np.empty((T, N, d)), np.empty((T, N, d)), 0.0
    for t in range(T):
        mean, S = (
            (f[t - 1], Q) if t else (np.tile(law.initial.mean, (N, 1)), law.initial.covariance)
        )
        o = ~np.isnan(y[t])
        if o.any():
            V = S[np.ix_(o, o)] + case.noise**2 * np.eye(o.sum())
            gain = S[:, o] @ np.linalg.inv(V)
            fit = normal(y[t, o] - mean[:, o], V) + 1e-300
            likelihood += np.log(fit.mean())
            edges = np.cumsum(fit) / fit.sum()  # systematic resampling
            ways = np.minimum(np.searchsorted(edges, (np.arange(N) + rng.random()) / N), N - 1)
            mean = mean[ways] + (y[t, o] - mean[ways][:, o]) @ gain.T
            S = S - gain @ S[o]
        x[t] = mean + rng.standard_normal((N, d)) @ np.linalg.cholesky(S).T
        f[t] = case.move(x[t], law)
    whitener = np.linalg.inv(np.linalg.cholesky(Q)).T.copy()
    ways = drawn_back(x, f, np.ones((T, N)), whitener, rng.random((T, PATHS)))
    return likelihood, np.take_along_axis(x, ways[..., None], axis=1)


# -- fits ----------------------------------------------------------------------------------------------------


def first_guess(case, y):
    """A random walk: no drift, half of the increments' spread."""
    gaps = np.nanvar(np.diff(y, axis=1), axis=(0, 1)) / case.dt / 2
    start = np.diag(np.nanvar(y[:, 0], axis=0))
    law = Gaussian(np.nanmean(y[:, 0], axis=0), start)
    return replace(case.law(), theta=np.zeros_like(case.theta), H=np.diag(gaps), initial=law)


def em(case, y, smooth, law, rounds):
    """EM whose E-step is not exact, so that no likelihood guides it: so many rounds, all of them."""
    ascent, trail = Ascent(case.setup(y)), []
    for _ in range(rounds):
        law = ascent.maximise(smooth(case, y, law).expected(law.theta), law)
        trail.append(law)
    return trail


def maximised(case, y, smooth, law):
    """The law whose likelihood, as a smoother gives it, is highest near another."""
    ascent = Ascent(case.setup(y))
    weights = ascent.weights(law, smooth(case, y, law).expected(law.theta))

    def at(z):
        return ascent.unpack(ascent.pack(law) + z / weights, law)

    def loss(z):
        try:
            return -smooth(case, y, at(z)).likelihood.sum()
        except np.linalg.LinAlgError:
            return 1e6

    return at(minimize(loss, np.zeros(len(weights)), method="BFGS", options={"maxiter": 20}).x)


def fits(case, y, seed):
    """Each method's law and the likelihoods (n,) that it gives itself; the grid's smoother."""
    x, cell = points_of(case, y)
    grid = partial(on_grid, grid=(x, cell, seen_density(case, y, x)))

    def expected_at(trial):
        return grid(case, y, trial).expected(trial.theta)

    top = climb(expected_at, Ascent(case.setup(y)), first_guess(case, y), 200, 0.01).parameters
    few, many = (partial(by_points, rule=rule(case.d)) for rule in (cubature, hermite))
    drawn = partial(by_particles, rng=np.random.default_rng(seed))
    trail = em(case, y, drawn, top, 8)[2:]
    theta, H = (np.mean([getattr(e, key) for e in trail], axis=0) for key in ("theta", "H"))
    found = {
        "cubature": (few, em(case, y, few, top, ROUNDS)[-1]),
        "hermite": (many, em(case, y, many, top, ROUNDS)[-1]),
        "maximised": (many, maximised(case, y, many, top)),
        "particles": (drawn, replace(trail[-1], theta=theta, H=H)),
        "grid": (grid, top),
    }
    return {
        name: (smooth, law, smooth(case, y, law).likelihood)
        for name, (smooth, law) in found.items()
    }


def score(case, smooth, y, law):
    """Derivative of the log-likelihood by Θ and by the lower half of H: Fisher's identity."""
    gram, p, d = smooth(case, y, law).gram.sum(axis=0), law.theta.shape[1], case.d
    turn = np.c_[-law.theta, np.eye(d)]
    W, count = np.linalg.inv(law.H), len(y) * (case.T - 1)
    by_theta = W @ (turn @ gram)[:, :p]
    by_H = 0.5 * W @ (turn @ gram @ turn.T - count * law.H) @ W
    return np.r_[by_theta.ravel(), (2 * by_H - np.diag(np.diag(by_H)))[np.tril_indices(d)]]


def numbers(law):
    return np.r_[law.theta.ravel(), law.H[np.tril_indices(len(law.H))]]


def with_numbers(law, vector):
    d, p = law.theta.shape
    L = np.zeros((d, d))
    L[np.tril_indices(d)] = vector[d * p :]
    return replace(law, theta=vector[: d * p].reshape(d, p), H=L + np.tril(L, -1).T)


def errors(case, smooth, y, law):
    """Standard errors from the observed information, by differences of the score; p₀ counts as known."""
    x, here = numbers(law), score(case, smooth, y, law)
    steps = 1e-3 * np.maximum(np.abs(x), 0.1)
    rows = [
        (here - score(case, smooth, y, with_numbers(law, x + h * e))) / h
        for h, e in zip(steps, np.eye(len(x)), strict=True)
    ]
    return np.sqrt(np.diag(inverse((np.array(rows) + np.array(rows).T) / 2)))


# -- what is printed -----------------------------------------------------------------------------------------


def compare(case, seed):
    """Records, one for each method, of a panel."""
    y, law = case.panel(seed), case.law()
    found, back = fits(case, y, seed), fits(case, y[:, ::-1], seed)
    exact, top, _ = found["grid"]
    unit, best = errors(case, exact, y, top), exact(case, y, law)
    wide = np.diagonal(best.covariances, axis1=2, axis2=3)
    ratios = {name: float((found[name][2] - back[name][2]).sum()) for name in found}
    for name, (smooth, mine, _) in found.items():
        seen = smooth(case, y, law)
        spread = np.diagonal(seen.covariances, axis1=2, axis2=3)
        away = np.abs(numbers(mine) - numbers(top)) / unit
        held = np.abs(numbers(mine) - numbers(law)) < 1.96 * unit
        yield (
            name,
            {
                "mean": np.sqrt(((seen.means - best.means) ** 2 / wide).mean()),
                "variance": (spread / wide).mean(),
                "log p": abs(float((seen.likelihood - best.likelihood).sum())),
                "away": away.mean(),
                "most": away.max(),
                "held": held.mean(),
                "ratio": ratios[name],
                "off": abs(ratios[name] - ratios["grid"]),
            },
        )


def affine(case, seed):
    """The order of a shuffled panel by an affine drift with noise: Kendall's τ, and whether the direction is called."""
    y, order = case.panel(seed), np.random.default_rng(seed).permutation(case.T)
    model = rt.ReTrace(
        dt=case.dt, drift="affine", observation_noise=case.noise, random_state=seed, n_jobs=1
    ).fit(y[:, order])
    return rt.metrics.kendall_tau(np.argsort(order), model.order_), model.direction_.identified


def told(case, seeds):
    """Rows of the table of the affine drift."""
    tau, called = np.array([affine(case, seed) for seed in seeds], dtype=float).T
    ends = f"{tau.min():.2f} to {tau.max():.2f}"
    return [
        len(seeds),
        ends,
        int((tau > 0).sum()),
        int(called.sum()),
        int((called * (tau < 0)).sum()),
    ]


def compared(case, seeds):
    """A row of the table: the grid's ratio, and of each method how far it goes from the grid; everything else is printed."""
    with one_blas_thread():
        records = [each for seed in seeds for each in compare(case, seed)]
    row = [len(seeds)]
    for name in dict.fromkeys(name for name, _ in records):
        mine = [each for method, each in records if method == name]
        mean = {key: float(np.mean([each[key] for each in mine])) for key in mine[0]}
        print(f"{case.name}, {case.dt:g}, {case.noise:g}, {name}: {mean}", flush=True)
        row += [mean["ratio"]] if name == "grid" else [f"{mean['away']:.2f}; {mean['off']:.1f}"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:2")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--d", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--affine", action="store_true")
    given = parser.parse_args()
    seeds = range(*map(int, given.seeds.split(":")))
    cases = [case for d in given.d for case in CASES[d]]
    work, columns = compared, ["cubature", "hermite", "maximised", "particles", "ratio"]
    if given.affine:
        work, columns = told, ["τ", "true direction", "called", "wrong"]
    rows = Parallel(given.jobs)(delayed(work)(case, seeds) for case in cases)
    table = [
        [f"{case.name}, {case.dt:g}, {case.noise:g}", *row]
        for case, row in zip(cases, rows, strict=True)
    ]
    print(*lines({"columns": ["drift, Δt, σ", "panels", *columns], "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
