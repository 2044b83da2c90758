"""How large the house is, and how often one idea is written out: a table, one column for each `src` folder.

    python studies/house.py [SRC …] [--list]

Without a folder this checkout's is measured. `--list` names what was counted, with its place.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

MODELS = {"EulerModel", "GapModel", "HiddenModel", "TimedModel", "DrawnModel"}
"""And every class whose name ends in Model in one of the rooms below."""

ROOMS = ("engine", "search", "evidence")
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
RECURSION = re.compile(r"filter|smooth|sampl|metropolis", re.IGNORECASE)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


class House:
    """The modules of a package, parsed."""

    def __init__(self, source: Path) -> None:
        root = source / "retrace_sde"
        if not root.is_dir():
            raise SystemExit(f"{source} holds no package retrace_sde: name the src of a checkout.")
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
        self.texts = {str(path.relative_to(root)): text for path, text in texts.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.models = MODELS | {
            node.name
            for name, node in self.nodes(ast.ClassDef)
            if name.split("/")[0] in ROOMS and node.name.endswith("Model")
        }

    def nodes(self, kind: type[Node]) -> Iterator[tuple[str, Node]]:
        """Every node of a kind, with its module."""
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, kind):
                    yield name, node

    def code_lines(self) -> int:
        """Lines that hold code: no docstrings, comments or blanks."""
        return sum(len(_lines(text, self.trees[name])) for name, text in self.texts.items())

    def protocols(self) -> list[str]:
        """Each protocol and how many members its body declares."""
        found = []
        for _, node in self.nodes(ast.ClassDef):
            if "Protocol" in map(_last, node.bases):
                members = [each for each in node.body if isinstance(each, Function | ast.AnnAssign)]
                found.append(f"{node.name}: {len(members)}")
        return sorted(found)

    def model_tests(self) -> list[str]:
        """`isinstance` of a model's class, or a class pattern of one, outside plan.py."""
        found = []
        for name, node in self.nodes(ast.Call):
            if _last(node.func) == "isinstance" and len(node.args) == 2:
                asked = {_last(each) for each in ast.walk(node.args[1])}
                found += [_at(name, node)] if asked & self.models else []
        for name, pattern in self.nodes(ast.MatchClass):
            found += [_at(name, pattern)] if _last(pattern.cls) in self.models else []
        return [each for each in found if not each.split(":")[0].endswith("plan.py")]

    def ndim_tests(self) -> list[str]:
        """`order.ndim == 2` and the like, of orders and gaps; also `np.ndim(order)`."""
        wanted, found = {"order", "orders", "gaps"}, []
        for name, node in self.nodes(ast.Attribute):
            if node.attr == "ndim" and _last(node.value) in wanted:
                found.append(_at(name, node))
        for name, call in self.nodes(ast.Call):
            if _last(call.func) == "ndim" and call.args and _last(call.args[0]) in wanted:
                found.append(_at(name, call))
        return found

    def gap_tests(self) -> list[str]:
        """`gaps is None`, `gaps is not None`."""
        return [
            _at(name, node)
            for name, node in self.nodes(ast.Compare)
            if isinstance(node.ops[0], ast.Is | ast.IsNot) and _last(node.left) == "gaps"
        ]

    def masks(self) -> list[str]:
        """`np.arange(T) < lengths[:, None]` written out, in any form: an order comparison with an arange."""
        ordering = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
        return [
            _at(name, node)
            for name, node in self.nodes(ast.Compare)
            if isinstance(node.ops[0], ordering) and _counts(node)
        ]

    def constants(self) -> dict[str, list[str]]:
        """Upper-case names at the top of modules, and where each is defined."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, tree in self.trees.items():
            for node in tree.body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
                every = [each for target in targets for each in ast.walk(target)]
                for each in {_last(target) for target in every}:
                    if re.fullmatch(r"[A-Z][A-Z0-9_]+", each):
                        found[each].append(name)
        return found

    def imported(self) -> Counter[str]:
        """In how many modules each name is imported from another."""
        named = {
            (name, each.name) for name, node in self.nodes(ast.ImportFrom) for each in node.names
        }
        return Counter(each for _, each in named)

    def public(self) -> list[str]:
        """`__all__` of the package."""
        for node in self.trees["__init__.py"].body:
            if isinstance(node, ast.Assign) and _last(node.targets[0]) == "__all__":
                return [str(each) for each in ast.literal_eval(node.value)]
        return []

    def compiled(self) -> list[str]:
        """Functions under `@njit`."""
        return [f"{at} {node.name}" for at, node in self._functions() if _jit(node)]

    def recursions(self) -> list[str]:
        """Filters, smoothers and samplers: functions whose names say so."""
        return [
            f"{at} {node.name}" for at, node in self._functions() if RECURSION.search(node.name)
        ]

    def _functions(self) -> Iterator[tuple[str, Function]]:
        for name, node in self.nodes(ast.FunctionDef):
            yield _at(name, node), node


def _lines(text: str, tree: ast.AST) -> set[int]:
    words = {
        row
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for row in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        row
        for each in tokens
        if each.type not in SILENT
        for row in range(each.start[0], each.end[0] + 1)
    }
    return code - words


def _last(node: ast.AST) -> str:
    """`c` of `a.b.c`; "" where there is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _counts(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call) and _last(each.func) == "arange" for each in ast.walk(node)
    )


def _jit(node: Function) -> bool:
    inner = (each for decorator in node.decorator_list for each in ast.walk(decorator))
    return any(_last(each) == "njit" for each in inner)


def _at(name: str, node: ast.stmt | ast.expr | ast.pattern) -> str:
    return f"{name}:{node.lineno}"


def measured(house: House) -> dict[str, tuple[int, list[str]]]:
    """Each row of the table: a number, and what was counted."""
    constants, imported = house.constants(), house.imported()
    lists = {
        "protocols (members)": house.protocols(),
        "isinstance of models outside plan.py": house.model_tests(),
        "ndim of order, orders, gaps": house.ndim_tests(),
        "gaps is None, is not None": house.gap_tests(),
        "masks written out": house.masks(),
        "module constants": [f"{name}: {', '.join(at)}" for name, at in constants.items()],
        "constants defined in several modules": [k for k, at in constants.items() if len(at) > 1],
        "constants imported elsewhere": [name for name in constants if imported[name]],
        "public names": house.public(),
        "compiled functions (@njit)": house.compiled(),
        "filters, smoothers, samplers": house.recursions(),
    }
    sizes = {"code lines": house.code_lines(), "files": len(house.trees)}
    whole: dict[str, tuple[int, list[str]]] = {name: (size, []) for name, size in sizes.items()}
    whole |= {name: (len(found), found) for name, found in lists.items()}
    at = lists["protocols (members)"]
    whole["members of all protocols"] = (sum(int(each.split(": ")[1]) for each in at), [])
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).parents[1] / "src"
    parser.add_argument("sources", type=Path, nargs="*", default=[here])
    parser.add_argument("--list", action="store_true", help="name everything that was counted")
    options = parser.parse_args()
    columns = [measured(House(source)) for source in options.sources]
    titles = [str(source)[-24:] for source in options.sources]
    print(f"{'':<40}" + "".join(f"{title:>26}" for title in titles))
    for row in columns[0]:
        print(f"{row:<40}" + "".join(f"{column[row][0]:>26,}" for column in columns))
    always = ("protocols (members)", "filters, smoothers, samplers")
    for title, column in zip(titles, columns, strict=True):
        for row, (_, found) in column.items():
            if found and (options.list or row in always):
                print(f"\n{title}, {row}:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main()
