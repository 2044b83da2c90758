"""What a first call compiles: functions, their signatures, and the seconds of each.

    python studies/compile_time.py [--paths "shared" "shared, missing values"] [--least 0.1]

Each path of `benchmarks/first_use` runs in a process of its own with an empty cache of kernels. A function's seconds are those of its own
compilation, without the functions that it compiles on the way; signatures beyond the first are listed, since each is compiled again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

import numpy as np

PATHS: dict[str, dict[str, Any]] = {
    "shared": {},
    "shared, missing values": {"missing": True},
    "shared, noise": {"observation_noise": "estimate"},
    "own orders": {"permutation": "independent"},
    "own orders, missing values": {"permutation": "independent", "missing": True},
}


def compiled(path: str) -> dict[str, Any]:
    """A small fit: its CPU seconds, and of each compilation the function, the signature and its own CPU seconds."""
    from numba.core import event

    import retrace_sde as rt

    settings = dict(PATHS[path])
    missing = settings.pop("missing", False)
    sde = rt.simulate.random_irreversible_sde(4, random_state=0)
    X = sde.simulate(50, 8, 0.1, x0=0.3, random_state=1)
    X, _ = rt.simulate.shuffle(X, permutation=settings.get("permutation", "shared"), random_state=2)
    if missing:
        X = np.where(np.random.default_rng(3).random(X.shape) < 0.05, np.nan, X)
    found: list[tuple[str, str, float]] = []
    open_: list[tuple[float, float]] = []  # since when, and seconds of what is compiled inside

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            open_.append((time.process_time(), 0.0))

        def on_end(self, event: Any) -> None:
            since, inside = open_.pop()
            spent = time.process_time() - since
            if open_:
                open_[-1] = open_[-1][0], open_[-1][1] + spent
            function = event.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__qualname__}"
            found.append((name, str(event.data["args"]), spent - inside))

    with event.install_listener("numba:compile", Listener()):
        begin = time.process_time()
        rt.ReTrace(dt=0.1, random_state=0, n_jobs=1, **settings).fit(X)
        seconds = time.process_time() - begin
    return {"seconds": seconds, "compiled": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=list(PATHS))
    parser.add_argument("--least", type=float, default=0.1, help="seconds of functions listed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(compiled(asked.one)))
        return
    for path in asked.paths:
        with tempfile.TemporaryDirectory() as cache:
            said = subprocess.run(
                [sys.executable, __file__, "--one", path],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        found = json.loads(said.splitlines()[-1])
        times: dict[str, list[float]] = defaultdict(list)
        for name, _, seconds in found["compiled"]:
            times[name].append(seconds)
        total = sum(map(sum, times.values()))
        print(
            f"\n{path}: {found['seconds']:.1f} CPU s, {total:.1f} of them compiling {len(times)} functions "
            f"with {len(found['compiled'])} signatures"
        )
        for name, each in sorted(times.items(), key=lambda item: -sum(item[1])):
            if sum(each) >= asked.least:
                print(f"  {sum(each):6.2f} s  {len(each)} signatures  {name}")


if __name__ == "__main__":
    main()
