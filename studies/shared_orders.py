"""One shared permutation: order, direction and errors against the oracle, calibration, and Algorithm 1's rounds.

    python studies/shared_orders.py settings   [--size 10,200,60] [--seeds 9000:9005]
    python studies/shared_orders.py direction  [--seeds 7000:7100]
    python studies/shared_orders.py algorithm1 [--size 50,2000,250] [--seeds 11:12]

Sizes are d, n, T. The oracle is the normal equations with the true order.
"""

from __future__ import annotations

import argparse

import numpy as np

import retrace_sde as rt
from retrace_sde.metrics import mean_absolute_error, order_accuracy

DT = 0.01
SETTINGS = ("stable", "growing", "rotation", "paper")
STARTS = ("small", "point", "shifted", "large")


def start(kind: str, sde: rt.LinearSDE, n: int, rng: np.random.Generator) -> object:
    d = sde.dimension
    if kind == "half-width":
        law = sde.stationary()
        return rt.Gaussian(law.mean, law.covariance / 4)
    if kind == "shifted":
        return 2 * rng.standard_normal(d) + 0.5 * rng.standard_normal((n, d))
    named = {"small": 0.1, "large": 1.0, "stationary": "stationary", "own": None}
    return 2 * rng.standard_normal(d) if kind == "point" else named[kind]


def panel(setting: str, kind: str, size: tuple[int, int, int], seed: int):
    d, n, T = size
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting=setting, random_state=rng)
    X = sde.simulate(n, T, DT, x0=start(kind, sde, n, rng), random_state=rng)
    return sde, *rt.simulate.shuffle(X, random_state=rng)


def closed_form(X, order):
    d = X.shape[2]
    ordered = X[:, order]
    x, dx = ordered[:, :-1].reshape(-1, d), np.diff(ordered, axis=1).reshape(-1, d)
    A = np.linalg.solve(x.T @ x, x.T @ dx).T / DT
    residual = dx - x @ A.T * DT
    return A, residual.T @ residual / (len(x) * DT)


def settings(size: tuple[int, int, int], seeds: range) -> None:
    print(
        "setting   start     right  up to rev.  identified  wrong  nats             A, H / oracle"
    )
    for setting in SETTINGS:
        for kind in STARTS:
            right, either, called, wrong, nats, ratios = [], [], [], 0, [], []
            for seed in seeds:
                sde, X, truth = panel(setting, kind, size, seed)
                model = rt.ReTrace(dt=DT, drift="linear").fit(X)
                right.append(order_accuracy(truth, model.order_))
                either.append(order_accuracy(truth, model.order_, up_to_reversal=True))
                called.append(model.direction_.identified)
                wrong += called[-1] and right[-1] < 1
                nats.append(model.direction_.log_likelihood_ratio)
                if right[-1] == 1:
                    A, H = closed_form(X, truth)
                    ours = (model.drift_, model.diffusion_)
                    truths = (sde.drift, sde.diffusion)
                    ratios.append(
                        [
                            mean_absolute_error(t, o) / mean_absolute_error(t, c)
                            for t, o, c in zip(truths, ours, (A, H), strict=True)
                        ]
                    )
            worst = np.max(ratios, axis=0) if ratios else (np.nan, np.nan)
            print(
                f"{setting:9} {kind:9} {np.mean(right):.3f}  {np.mean(either):.3f}       "
                f"{np.mean(called):.2f}        {wrong}      {min(nats):.0f} to {max(nats):.0f}".ljust(
                    76
                )
                + f" ≤ {worst[0]:.4f}, {worst[1]:.4f}",
                flush=True,
            )


def direction(seeds: range) -> None:
    for kind, size in (
        ("stationary", (10, 200, 60)),
        ("stationary", (10, 20, 60)),
        ("stationary", (3, 50, 30)),
        ("stationary", (50, 20, 100)),
        ("half-width", (10, 200, 50)),
    ):
        rows = []
        for seed in seeds:
            _, X, truth = panel("stable", kind, size, seed)
            model = rt.ReTrace(dt=DT, drift="linear").fit(X)
            exact = order_accuracy(truth, model.order_) == 1
            either = order_accuracy(truth, model.order_, up_to_reversal=True) == 1
            called = model.direction_.identified
            rows.append((called, either, called and exact, called and not exact))
        called, either, good, bad = np.mean(rows, axis=0)
        print(
            f"{kind:10} d,n,T = {size}: identified {called:.3f} (right {good:.3f}, wrong {bad:.3f}), "
            f"order right up to reversal {either:.3f}",
            flush=True,
        )


def algorithm1(size: tuple[int, int, int], seeds: range) -> None:
    for setting, kind in (
        ("growing", "small"),
        ("stable", "small"),
        ("stable", "large"),
        ("paper", "own"),
    ):
        for reading in ("absolute", "mean"):
            for seed in seeds:
                _, X, truth = panel(setting, kind, size, seed)
                model = rt.ReTrace(
                    dt=DT, order=rt.paper.ScoreOrder(drift=reading), max_iter=4, drift="linear"
                ).fit(X)
                rounds = [order_accuracy(truth, each.order) for each in model.history_]
                shown = ", ".join(f"{100 * share:.1f} %" for share in rounds)
                print(f"{setting:8} {kind:6} {reading:9} seed {seed}: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["settings", "direction", "algorithm1"])
    parser.add_argument("--size", default=None)
    parser.add_argument("--seeds", default=None)
    arguments = parser.parse_args()
    defaults = {
        "settings": ("10,200,60", "9000:9005"),
        "direction": ("10,200,60", "7000:7100"),
        "algorithm1": ("50,2000,250", "11:12"),
    }[arguments.what]
    d, n, T = map(int, (arguments.size or defaults[0]).split(","))
    first, last = map(int, (arguments.seeds or defaults[1]).split(":"))
    if arguments.what == "settings":
        settings((d, n, T), range(first, last))
    elif arguments.what == "direction":
        direction(range(first, last))
    else:
        algorithm1((d, n, T), range(first, last))


if __name__ == "__main__":
    main()
