"""What the page's own process does with a table: read it, guess, diagnose, fit, write the results.

It runs apart from the server, so that it can be stopped at any time and its memory goes with it. It gets tasks and sends
messages as plain dictionaries, ready for JSON.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from retrace_sde.app.guess import chosen, guess, short
from retrace_sde.diagnosis import diagnose
from retrace_sde.effects.response import responses
from retrace_sde.evidence.suspects.record import cells
from retrace_sde.io.answers import plain
from retrace_sde.io.dialect import NOTES_KEY, WRITTEN_KEY
from retrace_sde.io.files import SHEETS_KEY, read_table
from retrace_sde.io.writing import write_table
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import collected_warnings
from retrace_sde.progress import Progress, report, reporting, told
from retrace_sde.recovery import Options, Recovery, recover
from retrace_sde.show.figures import orders_drawn
from retrace_sde.show.report import FORECAST_STEPS, write_report
from retrace_sde.show.verdicts import verdicts
from retrace_sde.show.wording import in_words, reworded, speaking

MAX_LINES, MAX_GROUPS, MAX_SLICES_MOVING = 6, 6, 60
"""Variables, subjects and slices, at most, that are seen moving into order."""

ROWS_SHOWN = 5
"""Rows of the table that are shown."""

FILES = {
    "ordered.csv": "text/csv",
    "ordered_safe.csv": "text/csv",
    "forecast.csv": "text/csv",
    "suspects.csv": "text/csv",
    "report.html": "text/html",
    "share.html": "text/html",
    "result.npz": "application/octet-stream",
    "retrace_fit.py": "text/x-python",
}
"""What a fit leaves to be downloaded, and its kind; nothing else is ever served."""

Message = dict[str, Any]


class Desk:
    """One table, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[tuple[Any, ...], pd.DataFrame] | None = None

    def table(self, task: Message, text: tuple[str, ...] = ()) -> pd.DataFrame:
        """The table, read again only where other columns are labels now, or another sheet is asked for."""
        path, sheet = task["path"], task.get("sheet")
        if self._read is None or self._read[0] != (path, sheet, text):
            self._read = None
            report("reading the table")
            self._read = (path, sheet, text), read_table(path, text=text, sheet=sheet)
        return self._read[1]

    def forget(self) -> None:
        """No table."""
        self._read = None

    def read(self, task: Message) -> Message:
        """Columns, what they may be, and the first rows."""
        frame = self.table(task)
        report("looking at the columns")
        found = guess(frame)
        head = frame.head(ROWS_SHOWN).astype(object).where(frame.head(ROWS_SHOWN).notna(), "")
        return {
            "rows": len(frame),
            "notes": [f"{note[:1].upper()}{note[1:]}." for note in _page_notes(frame)],
            "sheets": frame.attrs.get(SHEETS_KEY),
            "columns": [asdict(each) for each in found],
            "roles": chosen(found),
            "head": [[short(each, 60) for each in row] for row in head.to_numpy().tolist()],
        }

    def _with_roles(self, task: Message) -> pd.DataFrame:
        roles = task["roles"]
        if not roles.get("subject"):
            raise ValueError("say which column is the subject: whose observation a row is.")
        labels = tuple(roles[key] for key in ("subject", "slice", "group") if roles.get(key))
        return self.table(task, labels)

    def diagnose(self, task: Message) -> Message:
        """What can be learned, before any fit."""
        frame = self._with_roles(task)
        asked = recover_options(task["roles"], {})
        asked.pop("random_state")
        report("looking at what can be learned")
        panel = Panel.from_frame(frame, **asked)
        found = {**diagnose(panel).to_dict(), "slice_labels": list(panel.slices or ())}
        return plain(found)

    def fit(self, task: Message) -> Message:
        """Order, direction and SDE; files to download, and what the page draws."""
        frame = self._with_roles(task)
        roles, options, name = task["roles"], task["options"], task["name"]
        steps = steps_ahead(options)
        with collected_warnings() as cautions:
            found = recover(frame, **recover_options(roles, options))
            ordered = found.ordered
        with warnings.catch_warnings(
            action="ignore"
        ):  # the page says itself that the direction is open
            ahead = found.forecast(steps)
        report("writing")
        form = frame.attrs.get(WRITTEN_KEY)
        write_table(ordered, self.folder / "ordered.csv", written=form)
        write_table(ordered, self.folder / "ordered_safe.csv", safe=True, written=form)
        write_table(ahead, self.folder / "forecast.csv", written=form)
        write_table(found.suspects, self.folder / "suspects.csv", safe=True)
        found.model.result_.save(self.folder / "result.npz")
        found.report(self.folder / "report.html", title=name, steps=steps)
        share = self.folder / "share.html"
        write_report(found.model, found.panel, share, share=True, steps=steps)
        python = script(name, roles, options, sheet=task.get("sheet"), written=form)
        (self.folder / "retrace_fit.py").write_text(python, encoding="utf-8")
        return plain({**_answer(found, cautions), "steps": steps})


CHOICES = {
    "time": "the role time",
    "covariates": "the role input",
    "missing_covariates": "“Inputs that are missing”: {}",
    "common_shocks": "“Shocks, plates or batches that all subjects share”: {}",
}
"""Settings that the page offers, by what it calls them."""

VALUES = {
    "carry": "last value before",
    "auto": "remove if a test finds them",
    "True": "remove",
    "False": "leave",
}
"""Values that it calls otherwise."""

PYTHON_WORDS = {
    "share=True": "share.html",
    "time_unit=": "time_unit= (in Python)",
    "Knowledge(first=…, precedences=…)": "“First slice”",
    "(large=True)": "(in Python, read_table(…, large=True); in a command, --large)",
}
"""What the page calls otherwise."""


def _choice(name: str, value: str | None) -> str | None:
    """A setting as the page has it; as Python has it where the page does not. None: no setting, but something in the table."""
    if name in CHOICES:
        return CHOICES[name].replace("{}", VALUES.get(value or "", value or ""))
    asked = f"{name}=" if value is None else f"{name}={value!r}"
    return f"{asked} (in Python)" if name in Options.__annotations__ else None


def _page_notes(frame: pd.DataFrame) -> list[str]:
    """How the table was read; of sheets the page has a choice of its own."""
    return [] if SHEETS_KEY in frame.attrs else frame.attrs.get(NOTES_KEY, [])


def _answer(found: Recovery, cautions: list[str]) -> Message:
    model, panel, result = found.model, found.panel, found.model.result_
    notes = set(result.notes)
    labels = None
    if result.shared_order and panel.slices is not None:
        labels = [panel.slices[int(k)] for k in result.order]
    return {
        "verdicts": [asdict(each) for each in verdicts(model, panel)],
        "direction": found.direction,
        "cycle": bool(result.cycle),
        "order": labels,
        "subjects": len(panel.ids),
        "variables": list(result.names),
        "cautions": [each for each in cautions if each not in notes],
        "moving": _moving(found),
        "inputs": _inputs(found),
        "files": list(FILES),
    }


def _moving(found: Recovery) -> Message:
    """What is seen moving into order: means over subjects of the slices, or a few subjects' own rows."""
    model, panel = found.model, found.panel
    shared = model.result_.shared_order  # then there is one unit: all subjects
    wrong = cells(model.result_.suspects, tuple(panel.values.shape), panel.names)
    values = np.where(wrong, np.nan, to_numpy(panel.values))
    spread = np.nanstd(values, axis=(0, 1))
    centre = np.nanmean(values, axis=(0, 1))
    lines = list(panel.names[:MAX_LINES])
    groups = []
    for unit in orders_drawn(model, panel)[:MAX_GROUPS]:
        kept = np.array(unit["slices"])
        some = evenly(len(kept), MAX_SLICES_MOVING)
        at = {int(each): place for place, each in enumerate(some)}
        if shared:
            # Of slices without a value.
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                shown = np.nanmean(values, axis=0)[kept[some]]
        else:
            shown = values[panel.ids.index(unit["trajectory"])][kept[some]]
        z = ((shown - centre) / np.where(spread > 0, spread, 1.0))[:, : len(lines)].T
        groups.append({
            "label": "mean of all subjects" if shared else unit["trajectory"],
            "labels": [unit["labels"][each] if shared else str(kept[each] + 1) for each in some],
            "lines": np.round(z, 3),
            "steps": [
                {"label": step["label"], "order": [at[a] for a in step["order"] if a in at]}
                for step in unit["steps"]
            ],
        })  # fmt: skip
    return {"variables": lines, "groups": groups, "shared": shared}


def _inputs(found: Recovery) -> Message | None:
    """What a lasting change of each input does; None without inputs."""
    ways = responses(found.model.result_)
    if not ways:
        return None
    u = to_numpy(found.panel.covariates)
    return {
        "names": list(found.panel.covariate_names),
        "reach": [float(np.nanmax(u[..., k]) - np.nanmin(u[..., k])) or 1.0 for k in range(u.shape[2])],
        "ways": [vars(way) for way in ways],
    }  # fmt: skip


TASKS: dict[str, Callable[[Desk, Message], Message]] = {
    "read": Desk.read,
    "diagnose": Desk.diagnose,
    "fit": Desk.fit,
}


def serve(tasks: Connection, folder: str) -> None:
    """Do tasks until the other end hangs up; whatever comes meanwhile asks for what there is."""
    _bound_memory()
    desk, words = Desk(Path(folder)), in_words(_choice, PYTHON_WORDS)

    def tell(step: Progress) -> None:
        tasks.send({
            "kind": "progress", "doing": step.doing, "fraction": step.fraction,
            "elapsed": step.elapsed, "left": told(step),
        })  # fmt: skip
        if tasks.poll():
            tasks.recv()
            raise StopIteration

    while True:
        try:
            task = tasks.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        if "task" not in task:  # the table is forgotten, or enough was asked for when all was done
            desk.forget()
            continue
        try:
            with reporting(tell), speaking(words):
                answer = reworded(TASKS[task["task"]](desk, task))
            tasks.send({"kind": "done", "task": task["task"], "answer": answer})
        except (MemoryError, ValueError, OSError) as error:
            tasks.send({"kind": "failed", "text": words(_sentence(error, task))})


def _sentence(error: Exception, task: Message) -> str:
    """The message, with the user's name of the file instead of where it lies."""
    text = str(error)
    if isinstance(error, MemoryError):
        text = "The table does not fit into memory."
    elif isinstance(error, np.linalg.LinAlgError):
        text = (
            f"The computation broke down ({error}): a variable barely varies or depends on others."
        )
    text = text.replace(str(task["path"]), str(task.get("name", "the file")))
    return text[:1].upper() + text[1:]


def _bound_memory() -> None:
    """No more memory than the machine has: a table too large then ends this process, not the machine."""
    if sys.platform == "win32":
        return
    import os
    import resource

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = total if hard == resource.RLIM_INFINITY else min(total, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def recover_options(roles: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What `recover` is called with, from the page's choices, which the server has checked."""
    found: dict[str, Any] = {"subject": roles["subject"]}
    found |= {key: roles[key] for key in ("slice", "time", "group") if roles.get(key)}
    found |= {key: list(roles[key]) for key in ("variables", "covariates") if roles.get(key)}
    found |= {key: options[key] for key in ("dt", "missing_covariates") if key in options}
    if "common_shocks" in options:
        found["common_shocks"] = options["common_shocks"] == "yes"
    ends = {key: options[key] for key in ("first", "last") if options.get(key)}
    if ends and roles.get("slice"):
        found["knowledge"] = Knowledge(**ends)
    return {**found, "random_state": 0}


PLAIN = {"sep": ",", "decimal": ".", "encoding": "utf-8"}
"""How pandas writes csv by itself."""


def steps_ahead(options: dict[str, Any]) -> int:
    """Observations that are forecast."""
    return int(options.get("steps") or FORECAST_STEPS)


def script(
    file: str,
    roles: dict[str, Any],
    options: dict[str, Any],
    *,
    sheet: str | None = None,
    written: dict[str, str] | None = None,
) -> str:
    """A file that fits the same table the same way and writes the same results, as text like the user's own (`written`)."""
    asked = recover_options(roles, options)
    known = asked.pop("knowledge", None)
    if known is not None:
        ends = ", ".join(f"{key}={getattr(known, key)!r}" for key in ("first", "last") if getattr(known, key) is not None)  # fmt: skip
    lines = [f"    {key}={value!r}," for key, value in asked.items()]
    lines += [] if known is None else [f"    knowledge=rt.Knowledge({ends}),"]
    text = [name for name in (roles["subject"], roles.get("slice"), roles.get("group")) if name]
    read = f", sheet={sheet!r}" if sheet is not None else ""
    form = [f", {key}={sign!r}" for key, sign in (written or {}).items() if sign != PLAIN[key]]
    steps, tail = steps_ahead(options), "".join([", index=False", *form])
    return "\n".join([
        '"""Puts a table back in time, as the page did. Usage: python retrace_fit.py [FILE]"""',
        "", "import sys", "", "import retrace_sde as rt", "",
        f"file = sys.argv[1] if len(sys.argv) > 1 else {file!r}",
        f"table = rt.read_table(file, text={text!r}{read})",
        "found = rt.recover(", "    table,", *lines, ")",
        "print(found.summary())",
        f'found.ordered.to_csv("ordered.csv"{tail})',
        f'found.forecast({steps}).to_csv("forecast.csv"{tail})',
        f'found.report("report.html", steps={steps})',
        'found.model.result_.save("result.npz")', "",
    ])  # fmt: skip
