"""The arrow of time of data in order, beside published tests of reversibility: level and power on the same data.

    python -m benchmarks.arrow --seeds 20000:20100 --jobs 2
    python -m benchmarks.arrow --seeds 20000:20100 --only "OU,telegraph" --methods "ReTrace,ordinal patterns"

A panel is 40 trajectories of 40 observations. Peers test one variable: the first. A series is 1600 observations of the same process,
where that is stationary. Peers answer whether data differ from their reverse; ReTrace also says in which direction time runs, or that it
does not show, and is counted as `called`, and as `wrong` where it calls the reverse.

Packages that are not installed are left out of the table: `irreversibility` (Zanin 2025, AGPL-3.0) and `time_irreversibility_estimator` (Vodret,
Pacini & Bongiorno 2024, MIT) are on PyPI and no dependency of this project; install them beside it, or run this file by an
interpreter that has them and leave ReTrace out. The other baselines are small versions within this file.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

Floats = NDArray[np.float64]
N, T = 40, 40
BURN = 100
FLIPS = 999


# -- generators: (n, T, d), stationary ones after a burn-in -------------------------------------------------


def recursion(
    step: Callable[[Floats, np.random.Generator], Floats], begin: Floats, size: int, rng: np.random.Generator
) -> Floats:  # fmt: skip
    x, found = begin, []
    for _ in range(size):
        found.append(x)
        x = step(x, rng)
    return np.stack(found, axis=1)


def ou(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return x @ np.array([[0.8, 0.1], [0.1, 0.7]]) + rng.standard_normal((n, 2))

    return recursion(step, np.zeros((n, 2)), BURN + size, rng)[:, BURN:]


def ar2(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return np.stack([1.2 * x[:, 0] - 0.5 * x[:, 1] + rng.standard_normal(n), x[:, 0]], axis=1)

    return recursion(step, np.zeros((n, 2)), BURN + size, rng)[:, BURN:, :1]


def logistic(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return np.clip(3.9 * x * (1 - x) + 0.02 * rng.standard_normal(x.shape), 0.01, 0.99)

    return recursion(step, rng.uniform(0.2, 0.8, (n, 1)), BURN + size, rng)[:, BURN:]


def henon(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return np.stack([1 - 1.4 * x[:, 0] ** 2 + x[:, 1], 0.3 * x[:, 0]], axis=1)

    x = recursion(step, rng.uniform(-0.1, 0.1, (n, 2)), BURN + size, rng)[:, BURN:, :1]
    return x + 0.05 * rng.standard_normal(x.shape)


def garch(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        v = 0.1 + 0.3 * x[:, 0] ** 2 + 0.6 * x[:, 1]
        return np.stack([np.sqrt(v) * rng.standard_normal(n), v], axis=1)

    return recursion(step, np.ones((n, 2)), BURN + size, rng)[:, BURN:, :1]


def shot_noise(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return 0.7 * x + rng.exponential(1.0, (n, 1)) * (rng.random((n, 1)) < 0.4)

    x = recursion(step, np.ones((n, 1)), BURN + size, rng)[:, BURN:]
    return x + 0.05 * rng.standard_normal(x.shape)


def rotation(rng: np.random.Generator, n: int, size: int) -> Floats:
    turn = 0.9 * np.array([[np.cos(0.4), np.sin(0.4)], [-np.sin(0.4), np.cos(0.4)]])

    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return x @ turn + rng.standard_normal((n, 2))

    return recursion(step, np.zeros((n, 2)), BURN + size, rng)[:, BURN:]


def jump_diffusion(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        jumps = 4 * rng.standard_normal((n, 1)) * (rng.random((n, 1)) < 0.1)
        return 0.7 * x + 0.4 * rng.standard_normal((n, 1)) + jumps

    return recursion(step, np.zeros((n, 1)), BURN + size, rng)[:, BURN:]


def transient(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return 0.9 * x + 0.3 * rng.standard_normal((n, 2))

    return recursion(step, 2 + 0.3 * rng.standard_normal((n, 2)), size, rng)


def growth(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return 1.08 * x + 0.08 * rng.standard_normal((n, 1))

    return recursion(step, 1 + 0.2 * rng.standard_normal((n, 1)), size, rng)


def telegraph(rng: np.random.Generator, n: int, size: int) -> Floats:
    def step(x: Floats, rng: np.random.Generator) -> Floats:
        return np.where(rng.random((n, 1)) < np.where(x > 0, 0.1, 0.25), -x, x)

    x = recursion(step, np.ones((n, 1)), BURN + size, rng)[:, BURN:]
    return x + 0.3 * rng.standard_normal(x.shape)


def lorenz(rng: np.random.Generator, n: int, size: int) -> Floats:
    """The x coordinate, every .1."""

    def field(s: Floats) -> Floats:
        x, y, z = s[:, 0], s[:, 1], s[:, 2]
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=1)

    def step(s: Floats, rng: np.random.Generator) -> Floats:
        for _ in range(10):
            k1 = field(s)
            k2 = field(s + 0.005 * k1)
            s = s + 0.01 * k2
        return s

    x = recursion(step, rng.normal([1, 1, 20], 1.0, (n, 3)), BURN + size, rng)[:, BURN:, :1]
    return x + 0.2 * rng.standard_normal(x.shape)


def shuffled(rng: np.random.Generator, n: int, size: int) -> Floats:
    """Shot noise, each trajectory in random order."""
    return rng.permuted(shot_noise(rng, n, size), axis=1)


GENERATORS: dict[str, tuple[Callable[[np.random.Generator, int, int], Floats], str]] = {
    "OU": (ou, "reversible"),
    "AR(2)": (ar2, "reversible"),
    "telegraph": (telegraph, "reversible"),
    "shuffled": (shuffled, "reversible"),
    "rotation": (rotation, "irreversible"),
    "GARCH": (garch, "irreversible"),
    "shot noise": (shot_noise, "irreversible"),
    "jump diffusion": (jump_diffusion, "irreversible"),
    "logistic map": (logistic, "irreversible"),
    "Hénon map": (henon, "irreversible"),
    "Lorenz x": (lorenz, "irreversible"),
    "transient": (transient, "moving"),
    "growth": (growth, "moving"),
}


# -- baselines: odd features of trajectories, each trajectory randomly reversed ------------------------------


def flipped(features: Floats, rng: np.random.Generator) -> float:
    """The p-value of features (n, k) that change sign with the direction."""
    signs = np.concatenate([np.ones((1, len(features))), rng.choice([-1.0, 1.0], (FLIPS, len(features)))])  # fmt: skip
    scale = np.sqrt((features**2).sum(axis=0))
    z = ((signs @ (features / np.where(scale > 0, scale, 1))) ** 2).sum(axis=1)
    return float((z >= z[0] * (1 - 1e-12)).mean())


def ordinal_patterns(x: Floats, rng: np.random.Generator) -> float:
    """Counts of the patterns of three values against those of their reverses (Zanin et al. 2018)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)
    codes = np.argsort(windows, axis=2) @ [9, 3, 1]
    names = {pattern: int(np.dot(pattern, [9, 3, 1])) for pattern in permutations(range(3))}
    pairs = []
    for pattern, code in names.items():
        ranks = tuple(np.argsort(pattern))
        back = names[tuple(int(k) for k in np.argsort(ranks[::-1]))]
        if code < back:
            pairs.append((codes == code).sum(axis=1) - (codes == back).sum(axis=1))
    return flipped(np.stack(pairs, axis=1).astype(float), rng)


def visibility_graph(x: Floats, rng: np.random.Generator) -> float:
    """Squares of the out-degrees of the horizontal visibility graph against those of the in-degrees (Lacasa et al. 2012)."""

    def degrees(row: Floats) -> Floats:
        found = np.zeros(len(row))
        for i, value in enumerate(row):
            top = -np.inf
            for later in row[i + 1 :]:
                if later > top:
                    found[i] += 1
                    top = later
                if later >= value:
                    break
        return found

    odd = [(degrees(row) ** 2).sum() - (degrees(row[::-1]) ** 2).sum() for row in x]
    return flipped(np.array(odd)[:, None], rng)


def bds(x: Floats, rng: np.random.Generator) -> float:
    """Correlation integrals of residuals of an AR(2), of dimension 2 against 1: a test of independence (Broock et al. 1996).

    Listed among tests of irreversibility; it finds any dependence that is not linear.
    """
    z = x - x.mean()
    past = np.stack([z[:, 1:-1].ravel(), z[:, :-2].ravel()], axis=1)
    e = z[:, 2:].ravel() - past @ np.linalg.lstsq(past, z[:, 2:].ravel(), rcond=None)[0]
    e = e.reshape(len(x), -1)

    def gap(e: Floats) -> float:
        near = np.abs(e[:, :, None] - e[:, None, :]) < 1.5 * e.std()
        return float((near[:, 1:, 1:] & near[:, :-1, :-1]).mean() - near.mean() ** 2)

    seen = abs(gap(e))
    drawn = [abs(gap(rng.permuted(e, axis=1))) for _ in range(99)]
    return (1 + sum(each >= seen for each in drawn)) / 100


def packaged(name: str) -> Callable[[Floats, np.random.Generator], float]:
    """A test of the package `irreversibility`, of one series, or of each trajectory and combined as Fisher does."""

    def found(x: Floats, rng: np.random.Generator) -> float:
        from irreversibility.exposeTests import allTests
        from scipy import stats

        test = dict(allTests)[name]
        each = [float(test(np.ascontiguousarray(row))[0]) for row in x]
        if len(each) == 1:
            return each[0]
        return float(stats.combine_pvalues(np.clip(each, 1e-6, 1.0))[1])

    return found


def classifier(x: Floats, rng: np.random.Generator) -> float:
    """`time_irreversibility_estimator`: log-odds of a gradient-boosted classifier on windows of five, trajectories left out in turn.

    The package gives an estimate and no p-value; ours is a t-test over trajectories. Boosting stops by trajectories that are neither
    trained on nor judged: its own cross-validation stops by those that are judged, which makes estimates positive without any irreversibility.
    """
    from scipy import stats
    from time_irreversibility_estimator import TimeIrreversibilityEstimator

    windows = np.lib.stride_tricks.sliding_window_view(x, 5, axis=1)
    n, per, _ = windows.shape
    groups = np.repeat(np.arange(n), per)
    flat = windows.reshape(-1, 5)
    odds = np.zeros(n)
    folds = np.arange(n) % 5
    for fold in range(5):
        machine = TimeIrreversibilityEstimator(n_estimators=200, random_state=0, n_jobs=1)
        out, stop = folds[groups] == fold, folds[groups] == (fold + 1) % 5
        used = ~out & ~stop
        model = machine.train(flat[used], flat[used][:, ::-1], flat[stop], flat[stop][:, ::-1])
        result = machine.evaluate(model, flat[out], flat[out][:, ::-1])[1]
        odds[folds == fold] = np.asarray(result).reshape(-1, per).mean(axis=1)
    return float(stats.ttest_1samp(odds, 0.0, alternative="greater").pvalue)


Peer = Callable[[Floats, np.random.Generator], float]
PEERS: dict[str, tuple[Peer, str]] = {
    "ordinal patterns": (ordinal_patterns, ""),
    "visibility graph": (visibility_graph, ""),
    "BDS": (bds, ""),
    "irreversibility: permutation": (packaged("Permutation patterns"), "irreversibility"),
    "irreversibility: visibility": (packaged("Visibility Graph"), "irreversibility"),
    "irreversibility: Casali": (packaged("Casali"), "irreversibility"),
    "irreversibility: BDS": (packaged("BDS"), "irreversibility"),
    "classifier": (classifier, "time_irreversibility_estimator"),
}
"""Each peer and the package that it needs."""


def blocks(x: Floats, length: int = 40) -> Floats:
    """One series as blocks, for baselines that flip trajectories."""
    return x[: len(x) // length * length].reshape(-1, length)


def answer(name: str, seed: int, form: str, methods: list[str]) -> dict[str, tuple[float, float, float]]:  # fmt: skip
    """Of every method: whether it rejects reversibility, calls a direction, and calls it wrongly."""
    generate, _ = GENERATORS[name]
    rng = np.random.default_rng([seed, list(GENERATORS).index(name)])
    X = generate(rng, *((N, T) if form == "panel" else (1, N * T)))
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "ReTrace" in methods:
            import retrace_sde as rt

            test = rt.arrow_of_time(X if form == "panel" else X[0], random_state=seed)
            rejected = test.reversibility_p is not None and test.reversibility_p < 0.05
            called = test.direction != "open"
            found["ReTrace"] = (float(rejected), float(called), float(test.direction == "backwards"))  # fmt: skip
        for method, (peer, _) in PEERS.items():
            if method not in methods:
                continue
            x = X[:, :, 0]
            whole = method.startswith("irreversibility")
            x = x if form == "panel" or whole else blocks(x[0])
            found[method] = (float(peer(x, rng) < 0.05), -1.0, -1.0)
    return found


Cells = dict[str, dict[str, list[float]]]
"""Of each generator and method: shares that reject, call and call wrongly (-1: it never calls), and how many panels there were."""


def recorded(file: Path, form: str, cells: Cells, command: str) -> None:
    """Add figures to a file; those of other methods and generators stay, so that they may be run elsewhere. The table is that of panels."""
    made: dict[str, Any] = {"forms": {}, "commands": {}}
    if file.exists():
        made |= json.loads(file.read_text("utf-8"))
    known: Cells = made["forms"].setdefault(form, {})
    for name, each in cells.items():
        known.setdefault(name, {}).update(each)
        for method in each:
            # Commands whose generators are all run anew are forgotten with their figures.
            of = made.setdefault("run by", {}).setdefault(form, {}).setdefault(method, {})
            for other in known:
                of.setdefault(other, made["commands"].get(method, command))
            of[name] = command
    for method, of in made.get("run by", {}).get("panel", {}).items():
        made["commands"][method] = "`, `".join(dict.fromkeys(of.values()))
    shown = made["forms"].get("panel", {})
    methods = [each for each in ("ReTrace", *PEERS) if each in made["commands"]]
    counts = {method: sorted({int(each[method][3]) for each in shown.values() if method in each}) for method in methods}  # fmt: skip
    panels = {method: " or ".join(map(str, each)) for method, each in counts.items()}
    made["command"] = "`, `".join(
        dict.fromkeys("`, `".join(made["commands"].values()).split("`, `"))
    )
    if find_spec("retrace_sde"):  # peers run in an environment of their own
        from retrace_sde import __version__

        made["version"] = __version__
    made["columns"] = ["generator", "", *(f"{each} ({panels[each]})" for each in methods), "called", "wrong"]  # fmt: skip
    made["rows"] = [
        [name, GENERATORS[name][1], *(_two(shown[name].get(each), 0) for each in methods),
         *(_two(shown[name].get("ReTrace"), k) for k in (1, 2))]
        for name in GENERATORS if name in shown
    ]  # fmt: skip
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _two(cell: list[float] | None, k: int) -> str:
    return "" if cell is None else f"{cell[k]:.2f}".removeprefix("0") if cell[k] < 1 else "1.00"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="generators, with commas between them")
    parser.add_argument("--methods", default="", help="methods, with commas between them")
    parser.add_argument("--forms", default="panel,series")
    parser.add_argument("--json", type=Path, help="a file to which figures are added")
    asked = parser.parse_args()
    begin, end = map(int, asked.seeds.split(":"))
    names = [each for each in GENERATORS if not asked.only or each in asked.only.split(",")]
    there = ["ReTrace"] if find_spec("retrace_sde") else []
    there += [name for name, (_, package) in PEERS.items() if not package or find_spec(package)]
    methods = [each for each in there if not asked.methods or each in asked.methods.split(",")]
    for form in asked.forms.split(","):
        some = [each for each in names if form == "panel" or GENERATORS[each][1] != "moving"]
        tasks = [(name, seed) for seed in range(begin, end) for name in some]
        started = time.perf_counter()
        rows = Parallel(asked.jobs, batch_size=1)(
            delayed(answer)(*task, form, methods) for task in tasks
        )
        print(f"\n{form}: {end - begin} each, {time.perf_counter() - started:.0f} s. Share that rejects reversibility at 5 %")  # fmt: skip
        cells: Cells = {}
        for name in some:
            mine = [row for (each, _), row in zip(tasks, rows, strict=True) if each == name]
            cells[name] = {
                method: [*(float(np.mean([row[method][k] for row in mine])) for k in range(3)), end - begin]
                for method in methods
            }  # fmt: skip
            shares = [f"{cells[name][method][0]:.2f}" for method in methods]
            if "ReTrace" in methods:
                shares += [f"{cells[name]['ReTrace'][k]:.2f}" for k in (1, 2)]
            print(f"| {name} | {GENERATORS[name][1]} | " + " | ".join(shares) + " |")
        heads = [*methods, *(["called", "wrong"] if "ReTrace" in methods else [])]
        print("| generator | | " + " | ".join(heads) + " |")
        if asked.json is not None:
            chosen = f' --methods "{asked.methods}"' if asked.methods else ""
            chosen += f' --only "{asked.only}"' if asked.only else ""
            recorded(
                asked.json, form, cells, f"python -m benchmarks.arrow --seeds {asked.seeds}{chosen}"
            )


if __name__ == "__main__":
    main()
