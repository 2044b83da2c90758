"""What the commands share: errors in one line, one printer, progress on a terminal only, and the options of a table."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retrace_sde.show.wording import in_words, reworded, speaking, worded

if TYPE_CHECKING:
    import pandas as pd

# Only click and words are imported here: a command that asks for more gets it when it runs, and `--help` answers at once.

Command = TypeVar("Command", bound=Callable[..., Any])


class OneLine(click.Group):
    """A group whose errors are one line on stderr with exit code 2; anything unforeseen is a bug, code 1."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line and leave with its exit code."""
        if sys.stdout is None:
            _closed()
        for stream in (sys.stdout, sys.stderr):
            _speak_plainly(stream)
        output = sys.stdout
        try:
            with _ended_by_signals(), speaking(in_words(_flag, PYTHON_WORDS)):
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be answered
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            click.echo(printable(f"retrace: {' '.join(error.format_message().split())}"), err=True)
            sys.exit(2)
        except click.Abort:
            click.echo("retrace: stopped.", err=True)
            sys.exit(130)
        except SystemExit:
            if sys.stdout is not output:  # click has muted a pipe that nobody reads any more
                _drop_output()
                sys.exit(0)
            raise
        except BrokenPipeError:
            _drop_output()
            sys.exit(0)
        except OSError as error:
            _drop_output()
            click.echo(
                f"retrace: the output cannot be written: {error.strerror or error}.", err=True
            )
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _closed() -> None:
    """Standard output is closed: say so before the work, where stderr is open."""
    if sys.stderr is not None:
        click.echo("retrace: the output is closed, so no answer can be given.", err=True)
    sys.exit(2)


SIGNS = {"→": "->", "−": "-", "–": "-", "…": "...", "×": "x", "≥": ">=", "≤": "<=", "≈": "~", "τ": "tau", "σ": "sigma",
         "Δ": "d", "Σ": "sum", "√": "sqrt", "²": "^2", "°": "deg", "“": '"', "”": '"', "‘": "'", "’": "'"}  # fmt: skip
"""How signs are written where the output's encoding lacks them."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Signs that cannot be encoded, as the nearest that can."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(SIGNS.get(sign, "?") for sign in lacking).encode(
        "ascii", "replace"
    ).decode(), error.end


codecs.register_error("retrace", _nearest)


def _speak_plainly(stream: Any) -> None:
    """Some Windows code pages have no arrows and no Greek: that must not end a run whose work is done."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="retrace")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the work as an exception does, so that what is half-written is removed."""

    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before: dict[int, Any] = {}
    try:
        for number in (getattr(signal, name) for name in names):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one of them
                before[number] = signal.signal(number, end)
    except ValueError:  # not in the main thread, which alone hears signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drop_output() -> None:
    """What stdout still holds goes nowhere, so that Python does not fail on it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


FLAGS = {"positions": "position", "precedences": "before", "timestamps": "time", "timestamp_error": "time-error"}  # fmt: skip
"""Arguments whose flags are called otherwise."""


def _flag(name: str, value: str | None) -> str | None:
    """A setting as the command that runs takes it, `outliers='keep'` as `--outliers keep`; None where it has no such flag.

    `retrace diagnose` speaks of the fit that comes next; commands that fit by default settings name `retrace fit`, which has the others.
    """
    context = click.get_current_context(silent=True)
    if name == "covariates" and context is not None and context.info_name == "effect":
        name = "treatment"
    flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
    commands = {} if context is None else {"": context.command}
    if context is not None and context.info_name in ("diagnose", "forecast", "audit"):
        fit = context.find_root().command.get_command(context, "fit")  # type: ignore[attr-defined]
        commands = (
            {"": fit} if context.info_name == "diagnose" else {**commands, "retrace fit ": fit}
        )
    for prefix, command in commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and flag in option.opts:
                truth = {"True": "" if option.is_flag else "yes", "False": "no", "None": "none"}
                return f"{prefix}{flag} {truth.get(value or '', value or '')}".rstrip()
    return None


PYTHON_WORDS = {
    "Knowledge(first=…, precedences=…)": "--first, --before",
    "Pass the order if it is known": "Name the column of times with --time if they are known",
    "direction='both'": "--both-directions",
    "ReTraceResult.save": "`retrace fit`",
    "T0= and T1=": "--t0 and --t1",
    "permutation='shared'": "--slice",
    "permutation='independent'": "--independent",
}
"""What a command calls otherwise than by a flag of the same name."""


REFUSED = re.compile(r"([a-z][a-z_]*)(?= (?:must|names|has|is|are|needs?|cannot) )")
"""The argument that a refusal begins with, as in `dt must be positive`."""


def _refusal(error: Exception) -> str:
    """A refusal in the words of the command, which names what it refuses."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}."
    text = str(error)
    found = REFUSED.match(text)
    flag = None if found is None else _flag(found[1], None)
    return worded(text if found is None or flag is None else flag + text[found.end() :])


@contextmanager
def refusing() -> Iterator[None]:
    """Data that cannot be used become one clear line, whatever part of the package refused them."""
    from numpy.linalg import LinAlgError

    try:
        yield
    except LinAlgError as error:
        raise click.ClickException(
            f"the computation broke down ({error}): a variable barely varies or depends on others; "
            "`retrace diagnose` may tell which."
        ) from None
    except (ValueError, OSError, OverflowError) as error:
        raise click.ClickException(_refusal(error)) from None
    except MemoryError:
        raise click.ClickException("the data do not fit into memory.") from None


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A bar on stderr that names each step as it begins; nothing where stderr is not a terminal."""
    from retrace_sde.progress import bar, report, reporting

    with bar() as tell, reporting(tell):
        yield report


@contextmanager
def working() -> Iterator[tuple[Callable[[str], None], list[str]]]:
    """Around work on a table: a callback that names each step, and the cautions, complete at the end."""
    from retrace_sde.panel.validation import collected_warnings

    with refusing(), progress() as begin, collected_warnings() as cautions:
        yield begin, cautions


def checked_outputs(
    paths: Iterable[Path], *, source: Path, force: bool
) -> tuple[bool, click.ClickException | None]:
    """Whether results of ours will be replaced, and what is in the way of the new ones, to be said by `clearing`."""
    from retrace_sde.io.writing import check_outputs

    try:
        return check_outputs(paths, source=source, force=force), None
    except ValueError as error:
        return False, click.ClickException(str(error))


@contextmanager
def clearing(in_the_way: click.ClickException | None) -> Iterator[None]:
    """Around a computation: what is in the way of its results is said once options and table are found to be usable, before its first long step."""
    from retrace_sde.progress import PREPARING, reporting

    if in_the_way is None:
        yield
        return

    def refuse(step: Any) -> None:
        if step.doing != PREPARING:
            raise in_the_way

    with reporting(refuse):
        yield
    raise in_the_way


def give(answer: Mapping[str, Any], lines: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """The answer of a command: JSON, or labelled paragraphs, as they were asked for."""
    if as_json:
        from retrace_sde.io.answers import plain

        click.echo(json.dumps(reworded(plain(answer)), allow_nan=False))
        return
    shown = [(label, worded(text)) for label, text in lines]
    width = max(11, *(len(label) + 2 for label, _ in shown))
    for label, text in shown:
        say(label, text, width=width)


def say(label: str, text: str, *, width: int = 11) -> None:
    """A labelled paragraph: wrapped on a terminal, one line in a pipe."""
    text = printable(text)
    if sys.stdout.isatty():
        from rich.console import Console

        columns = min(max(Console().width, 50), 110)
        lines = textwrap.wrap(text, columns - width, break_on_hyphens=False) or [""]
        shown = click.style(f"{label:<{width}}", bold=True)
        text = ("\n" + " " * width).join(lines)
    else:
        shown = f"{label:<{width}}"
    click.echo(f"{shown}{text}")


def printable(text: str) -> str:
    """Text without control characters: a column's name must not drive the terminal."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def file_name(file: Path) -> str:
    """The name of a file as text that every encoding of Unicode can hold: bytes that are no UTF-8 become �."""
    return os.fsencode(file.name).decode("utf-8", "replace")


def listed(names: Sequence[str], limit: int = 10) -> str:
    """Names, as many as one reads."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


class Finite(click.FloatRange):
    """A finite number; NaN and infinity are refused."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number, or the refusal of click."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """For the help; click writes x<=None where there are no bounds."""
        return "" if self.min is None and self.max is None else super()._describe_range()


def table_options(command: Command) -> Command:
    """The argument FILE and the options that say how it is read and what its columns are."""
    from retrace_sde.io.columns import TIME_UNITS

    options = [
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--subject", metavar="COL", help="Column that says whose observation a row is."),
        click.option("--slice", "slice_", metavar="COL",
                     help="Column with a label shared by the subjects, in unknown order."),
        click.option("--independent", is_flag=True,
                     help="Each subject's rows have an order of their own (the default without --slice)."),
        click.option("--time", metavar="COL", help="Column with the known times; empty where a time is not known."),
        click.option("--time-error", type=Finite(0, min_open=True), metavar="X",
                     help="Standard deviation of the error of the known times."),
        click.option("--time-unit", type=click.Choice(list(TIME_UNITS)),
                     help="Unit for dates; numbers are taken as they are [default: days]."),
        click.option("--variables", multiple=True, metavar="COL[,COL…]",
                     help="Numeric columns to analyse [default: all that vary]."),
        click.option("--covariates", multiple=True, metavar="COL[,COL…]",
                     help="Columns of numbers, or true and false, that act as inputs from their row to the next: treatment, dose."),
        click.option("--group", metavar="COL",
                     help="Column with each subject's group (litter, centre): subjects of one group may be alike in any way."),
        click.option("--large", is_flag=True,
                     help="Read FILE even if it expands to far more than its size; otherwise refused."),
        click.option("--sep", metavar="SIGN", help="What separates cells of a text file, or 'tab' [default: recognised]."),
        click.option("--decimal", metavar="SIGN", help="Decimal sign of a text file, '.' or ',' [default: recognised]."),
        click.option("--encoding", metavar="NAME", help="Encoding of a text file [default: recognised]."),
        click.option("--sheet", metavar="NAME", help="Sheet of an Excel workbook [default: the first that holds a table]."),
        click.option("--dayfirst/--monthfirst", "dayfirst", default=None,
                     help="How dates with the year last are read, 5.3.2024 [default: recognised]."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                           help="Seed of the random numbers.")  # fmt: skip
force_option = click.option(
    "--force", is_flag=True, help="Replace results of an earlier run (never another file)."
)
safe_option = click.option("--safe-csv", is_flag=True,
                           help="Write text that a spreadsheet would run as a formula with a ' before it.")  # fmt: skip


format_option = click.option("--out-format", type=click.Choice(["csv", "tsv", "xlsx", "parquet"]),
                             help="Kind of the tables written [default: csv, with FILE's separator, decimal sign and encoding].")  # fmt: skip


aligned_option = click.option("--aligned", type=click.Choice(["start", "end", "neither"]),
                              help="At what subjects are aligned, selected or normalised; at the end, means and spreads are no evidence of the "
                              "direction.")  # fmt: skip


def missing_covariates_option(where: str) -> Callable[[Command], Command]:
    """What to do where inputs are missing, in the command's own words."""
    return click.option("--missing-covariates", type=click.Choice(["refuse", "carry", "interpolate"]), default="refuse",
                        show_default=True, help=f"What to do where {where}.")  # fmt: skip


def fitted_option(*, required: bool = False) -> Callable[[Command], Command]:
    """A saved fit, by which new subjects are judged."""
    return click.option("--fitted", type=click.Path(path_type=Path), metavar="RESULT", required=required,
                        help="result.npz of an earlier `retrace fit` of other subjects, or its folder.")  # fmt: skip


def numbers(text: str, form: str) -> list[float]:
    """Numbers with commas between them; `form` says what they should be."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"{form}; got {text!r}.") from None


def one_table_options(default: str | None) -> Callable[[Command], Command]:
    """Options of a command that reads FILE and writes one table; it passes them on to `TableJob.of`."""
    kinds = "as csv, tsv, xlsx or parquet"
    where = f"Where to, {kinds} [default: FILE's name + '-{default}.csv']."
    if default is None:
        where = f"Table of each subject's effect, {kinds}."
    out = click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help=where)

    def add(command: Command) -> Command:
        return out(format_option(force_option(safe_option(command))))

    return add


SUSPECTS_OF_FIT = "see result_.suspects", "`retrace fit` lists them in suspects.csv"
"""These commands write one table, and none of suspects."""


@dataclass(frozen=True)
class TableJob:
    """A table that was read, what its columns are, and the place of the one table that is written from it; None: nowhere."""

    frame: pd.DataFrame
    roles: dict[str, Any]
    out: Path | None
    replaced: bool
    safe: bool
    form: dict[str, str] | None
    in_the_way: click.ClickException | None

    @classmethod
    def of(cls, file: Path, default: str, *, out: Path | None, out_format: str | None, force: bool, safe_csv: bool,
           optional: bool = False, **columns: Any) -> TableJob:  # fmt: skip
        """Read FILE; a place that cannot be written is refused before. `optional`: no table unless it is asked for."""
        from retrace_sde.io.files import check_target
        from retrace_sde.io.writing import check_writable

        replaced, in_the_way = False, None
        if out is None and not (optional and out_format is None):
            out = Path(f"{file.stem}-{default}.{out_format or 'csv'}")
        if out is not None:
            if out_format is not None and out.suffix.lower() != f".{out_format}":
                raise ValueError(f"--out {out} is not called .{out_format}, as --out-format says.")
            check_target(out, folder=False)
            check_writable(out)
            replaced, in_the_way = checked_outputs([out], source=file, force=force)
        frame, roles = load(file, **columns)
        form = text_form(frame, out_format)
        return cls(frame, roles, out, replaced, safe_csv, form, in_the_way)

    def write(self, table: pd.DataFrame) -> None:
        """The table in its file, whole or not at all; as text like the user's own, unless a format was asked for."""
        from retrace_sde.io.files import whole_or_nothing
        from retrace_sde.io.writing import write_table

        if self.out is not None:
            with whole_or_nothing(self.out.absolute().parent) as folder:
                write_table(table, folder / self.out.name, safe=self.safe, written=self.form)

    def answer(self, cautions: list[str], notes: list[str] | None = None) -> dict[str, Any]:
        """What every such command says: the file, notes (None: how FILE was read) and cautions."""
        notes = notes_of(self.frame) if notes is None else notes
        warnings = [each.replace(*SUSPECTS_OF_FIT) for each in cautions]
        return {"file": str(self.out), "notes": notes, "warnings": warnings}

    def lines(
        self, cautions: list[str], notes: list[str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """The same in words, after the command's own."""
        yield from (("Note", text) for text in (notes_of(self.frame) if notes is None else notes))
        yield from (("Caution", text.replace(*SUSPECTS_OF_FIT)) for text in cautions)
        if self.out is not None:
            yield "Replaced" if self.replaced else "Written", str(self.out)


def text_form(frame: pd.DataFrame, out_format: str | None) -> dict[str, str] | None:
    """How a csv is written: as the table that was read, unless a format was asked for."""
    from retrace_sde.io.dialect import WRITTEN_KEY

    return frame.attrs.get(WRITTEN_KEY) if out_format is None else None


def notes_of(frame: pd.DataFrame) -> list[str]:
    """How a table was read, as sentences: the sheet, the separator, what was taken for missing."""
    from retrace_sde.io.dialect import NOTES_KEY

    return [f"{note[:1].upper()}{note[1:]}." for note in frame.attrs.get(NOTES_KEY, ())]


def columns_of(names: Iterable[str], frame: pd.DataFrame) -> list[str]:
    """Names given one by one or separated by commas; a column whose name has a comma is one name."""
    found: list[str] = []
    for name in names:
        found += [name] if name in frame.columns else [each.strip() for each in name.split(",")]
    return [name for name in found if name]


def _with_dates(frame: pd.DataFrame, time: str | None, dayfirst: bool) -> pd.DataFrame:
    """The table with dates for the text in its time column, read as the user says."""
    from retrace_sde.io.columns import dates
    from retrace_sde.io.dialect import is_text

    if time is None or time not in frame.columns:
        raise ValueError(
            "--dayfirst and --monthfirst say how --time is read: name the column of dates."
        )
    if not is_text(frame[time]):
        return frame
    stamps, _ = dates(frame[time], time, dayfirst=dayfirst)
    return frame.assign(**{time: stamps.dt.tz_localize(None)})


def load(
    file: Path,
    *,
    slice_: str | None,
    independent: bool,
    large: bool,
    dayfirst: bool | None,
    one_series: bool = False,
    **columns: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table, and its columns as `Panel.from_frame` wants them named; `one_series`: without subjects it is one of them."""
    from retrace_sde.io.files import read_table

    if slice_ is not None and independent:
        raise ValueError(
            "--slice and --independent exclude each other: one order for all, or one each."
        )
    written = {name: columns.pop(name) for name in ("sep", "decimal", "encoding", "sheet")}
    roles = {**columns, "slice": slice_}
    text = [roles[name] for name in ("subject", "slice", "group") if roles[name] is not None]
    frame = read_table(file, text=text, **written, large=large)
    array = frame.attrs.get("array")
    if roles["subject"] is None and array:
        roles |= {"subject": "subject", "slice": slice_ or (None if independent else "slice")}
    elif roles["subject"] is None and not one_series:
        some = ", ".join(map(str, frame.columns[:8]))
        raise ValueError(f"--subject is missing: which column says whose row it is? ({some})")
    if array and not roles["variables"]:
        roles["variables"] = [each for each in frame.columns if each not in ("subject", "slice")]
    if dayfirst is not None:
        frame = _with_dates(frame, roles["time"], dayfirst)
    for several in ("variables", "covariates"):
        roles[several] = columns_of(roles[several], frame) or None
    return frame, roles
