"""What the commands share: errors in one line, progress on a terminal only, and how a table is named."""

from __future__ import annotations

import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import pandas as pd
from rich.console import Console

from retrace_sde.data.files import read_table
from retrace_sde.data.tables import UNITS
from retrace_sde.data.validation import ReTraceWarning
from retrace_sde.progress import report, reporting

Command = TypeVar("Command", bound=Callable[..., Any])


class OneLine(click.Group):
    """A group whose errors are one line on stderr with exit code 2; anything unforeseen is a bug, code 1."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line and leave with its exit code."""
        output = sys.stdout
        try:
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
            click.echo(f"retrace: the output cannot be written: {error.strerror}.", err=True)
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """What stdout still holds goes nowhere, so that Python does not fail on it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def refusing() -> Iterator[None]:
    """Data that cannot be used become one clear line, whatever part of the package refused them."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise click.ClickException(
            f"the computation broke down ({error}): a variable barely varies or depends on others; "
            "`retrace diagnose` may tell which."
        ) from None
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except MemoryError:
        raise click.ClickException("the data do not fit into memory.") from None


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """The package's cautions as sentences, to be printed with the result."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    texts = [str(each.message) for each in caught if issubclass(each.category, ReTraceWarning)]
    found += list(dict.fromkeys(texts))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A bar on stderr that names each step as it begins; nothing where stderr is not a terminal."""
    with reporting(True):
        yield report


@contextmanager
def working() -> Iterator[tuple[Callable[[str], None], list[str]]]:
    """Work on somebody's data: what names each step, and the cautions, which are there at the end."""
    with refusing(), progress() as begin, collected_warnings() as cautions:
        yield begin, cautions


def say(label: str, text: str, *, width: int = 11) -> None:
    """A labelled paragraph: wrapped on a terminal, one line in a pipe."""
    text = printable(text)
    if sys.stdout.isatty():
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


def listed(names: Sequence[str], limit: int = 10) -> str:
    """Names, as many as one reads."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def table_options(command: Command) -> Command:
    """The options that say what the columns of FILE are."""
    options = [
        click.argument("file", type=click.Path(path_type=Path)),
        click.option("--subject", metavar="COL", help="Column that says whose observation a row is."),
        click.option("--slice", "slice_", metavar="COL",
                     help="Column with a label shared by the subjects, in unknown order."),
        click.option("--independent", is_flag=True,
                     help="Each subject's rows have an order of their own (the default without --slice)."),
        click.option("--time", metavar="COL", help="Column with the times that are known; may have gaps."),
        click.option("--time-error", type=float, metavar="X", help="Standard error of the known times."),
        click.option("--time-unit", type=click.Choice(list(UNITS)),
                     help="Unit for dates; numbers are taken as they are [default: days]."),
        click.option("--variables", multiple=True, metavar="COL[,COL…]",
                     help="Numeric columns to analyse [default: all that vary]."),
        click.option("--covariates", multiple=True, metavar="COL[,COL…]",
                     help="Numeric columns that act as inputs from their row to the next: treatment, dose."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


seed_option = click.option("--seed", type=int, default=0, show_default=True)


def columns_of(names: tuple[str, ...], frame: pd.DataFrame) -> list[str]:
    """Names given one by one or separated by commas; a column whose name has a comma is one name."""
    found: list[str] = []
    for name in names:
        found += [name] if name in frame.columns else [each.strip() for each in name.split(",")]
    return [name for name in found if name]


def load(
    file: Path,
    *,
    subject: str | None,
    slice_: str | None,
    independent: bool,
    variables: tuple[str, ...],
    covariates: tuple[str, ...],
    **others: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table, and its columns as `Panel.from_frame` wants them named."""
    if slice_ is not None and independent:
        raise ValueError(
            "--slice and --independent exclude each other: one order for all, or one each."
        )
    frame = read_table(file, text=[name for name in (subject, slice_) if name is not None])
    if subject is None:
        if not frame.attrs.get("array"):
            some = ", ".join(map(str, frame.columns[:8]))
            raise ValueError(f"--subject is missing: which column says whose row it is? ({some})")
        subject = "subject"
        slice_ = slice_ or (None if independent else "slice")
    if frame.attrs.get("array") and not variables:
        variables = tuple(name for name in frame.columns if name not in ("subject", "slice"))
    roles = {
        "subject": subject,
        "slice": slice_,
        "variables": columns_of(variables, frame) or None,
        "covariates": columns_of(covariates, frame) or None,
        **others,
    }
    return frame, roles
