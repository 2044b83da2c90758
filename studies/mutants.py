"""Mutation testing of the core packages: one small change at a time, and the tests that should fail.

    python studies/mutants.py [--count 40] [--seed 0] [--only fit/moments] [--minutes 20]

A mutant has one operator, comparison, number or condition changed, in a copy of the sources. Compiled functions are left out:
their caches would hide the change. Survivors are printed with their line: each is a missing test or an equivalent
mutant. Tests that do not end in ten minutes count as failed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "retrace_sde"
ROOMS = {
    "panel/canonical": "tests/panel/test_canonical.py",
    "panel/parameters": "tests/test_walk.py",
    "fit/moments": "tests/fit/test_moments.py",
    "fit/regression": "tests/fit/test_moments.py",
    "fit/exact": "tests/fit/test_exact.py",
    "fit/start_law": "tests/fit/test_start_law.py",
    "fit/scores": "tests/fit/test_scores.py",
    "orders/prior": "tests/panel/test_knowledge.py",
    "orders/costs": "tests/orders/test_costs.py",
    "orders/loops": "tests/orders/test_loops.py",
    "orders/folds": "tests/orders/test_folds.py",
    "evidence/direction/verdict": "tests/evidence/test_direction.py",
    "evidence/guards": "tests/evidence/test_guards.py",
    "process/sde": "tests/process/test_sde.py",
}
"""A module and the tests that hold it to its word."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.GtE, ast.GtE: ast.Lt,
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.USub: ast.UAdd, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


class Mutate(ast.NodeTransformer):
    """Counts the places that can be changed, and changes the one that is wanted."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.seen, self.line = wanted, 0, 0

    def _here(self, node: ast.AST) -> bool:
        self.seen += 1
        if self.seen - 1 == self.wanted:
            self.line = getattr(node, "lineno", 0)
            return True
        return False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        compiled = any("njit" in ast.unparse(each) for each in node.decorator_list)
        return node if compiled else self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("op", "ops"):
            ops = getattr(node, name, None)
            for k, op in enumerate(ops if isinstance(ops, list) else [ops]):
                new = SWAPS.get(type(op))
                if new is not None and self._here(node):
                    if isinstance(ops, list):
                        ops[k] = new()
                    else:
                        setattr(node, name, new())
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        if number and self._here(node):
            node.value += 1  # type: ignore[attr-defined]
        return super().generic_visit(node)


def places(path: Path) -> int:
    counter = Mutate()
    counter.visit(ast.parse(path.read_text()))
    return counter.seen


def survives(module: str, place: int, limit: float) -> tuple[bool, str]:
    """Whether the tests pass with one place changed, and the line that it is on."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "retrace_sde"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        target, changed = copy / f"{module}.py", Mutate(place)
        text = target.read_text()
        target.write_text(ast.unparse(ast.fix_missing_locations(changed.visit(ast.parse(text)))))
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(ROOT / ROOMS[module])]  # fmt: skip
        try:
            done = subprocess.run(
                words, cwd=ROOT, env={**os.environ, "PYTHONPATH": folder}, timeout=limit, capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, ""
        return done.returncode == 0, f"{module}.py:{changed.line}: {text.splitlines()[changed.line - 1].strip()}"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=20.0)
    asked = parser.parse_args()
    rooms = [module for module in ROOMS if asked.only in module]
    every = [(module, k) for module in rooms for k in range(places(SOURCE / f"{module}.py"))]
    end, tried, left = time.monotonic() + 60 * asked.minutes, 0, []
    for module, place in random.Random(asked.seed).sample(every, min(asked.count, len(every))):
        if time.monotonic() > end:
            break
        alive, line = survives(module, place, 600)
        tried += 1
        if alive:
            left.append(line)
            print(f"survived: {line}", flush=True)
    print(f"{tried - len(left)} of {tried} changes were noticed ({len(every)} are possible)")


if __name__ == "__main__":
    main()
