"""Means and spreads of records, and the style of the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from retrace_sde.reproduce.experiment import Record
from retrace_sde.reproduce.files import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD_COLOURS = {
    "oracle": "#000000",
    "ReTrace": "#0072B2",
    "Algorithm 1": "#D55E00",
    "MST": "#009E73",
    "DPT": "#CC79A7",
    "scanpy": "#E69F00",
    "limit": "#56B4E9",
    "distances": "#E69F00",
}
"""Okabe and Ito's colours, by the first word or words of a method's name."""


def colour(method: str) -> str:
    """The same method has the same colour in every figure."""
    return next(
        (METHOD_COLOURS[key] for key in METHOD_COLOURS if method.startswith(key)), "#56B4E9"
    )


def where(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """The records whose keys have these values."""
    return [each for each in records if all(each[k] == v for k, v in wanted.items())]


def values(records: Iterable[Record], key: str) -> list[float]:
    """One column, without the missing."""
    return [each[key] for each in records if each[key] is not None]


def distinct(records: Iterable[Record], key: str) -> list[Any]:
    """The values of a key in the order in which they appear."""
    return list(dict.fromkeys(each[key] for each in records))


def spread(numbers: Sequence[float]) -> float:
    """Standard deviation; zero for a single number."""
    return stdev(numbers) if len(numbers) > 1 else 0.0


def mean(records: Iterable[Record], key: str, **wanted: Any) -> float:
    """The mean of a column over the records whose keys have these values."""
    return fmean(values(where(records, **wanted), key))


def plus_minus(numbers: Sequence[float], form: Callable[[float], str]) -> str:
    """`mean ± sd`, or a dash where there is nothing."""
    return f"{form(fmean(numbers))} ± {form(spread(numbers))}" if numbers else "–"


Cell = Callable[[Sequence[Record]], str]
"""What a table says of some records."""


def column(key: str, form: Callable[[float], str]) -> Cell:
    """Mean ± sd of a key."""
    return lambda records: plus_minus(values(records, key), form)


def accuracies(records: Sequence[Record]) -> str:
    """Directed accuracy, mean ± sd, and up to reversal in brackets, in per cent."""
    either = percent(mean(records, "accuracy_up_to_reversal"))
    return f"{column('accuracy', percent)(records)} ({either})"


def table_by(records: Sequence[Record], key: str, cells: Mapping[str, Cell]) -> str:
    """A table with a row for each value of a key, and a column for each of some cells."""
    rows = [
        [each, *(cell(where(records, **{key: each})) for cell in cells.values())]
        for each in distinct(records, key)
    ]
    return markdown_table([key, *cells], rows)


def by_method(
    records: Sequence[Record],
    key: str,
    at: Sequence[float],
    header: Sequence[str],
    cell: Cell = accuracies,
) -> str:
    """A table with a row for each method and a column for each value of a key."""
    rows = [
        [method, *(cell(where(records, method=method, **{key: here})) for here in at)]
        for method in distinct(records, "method")
    ]
    return markdown_table(header, rows)


def percent(number: float) -> str:
    """A share as the paper prints it, without the sign."""
    return f"{100 * number:.1f}"


def compact(number: float) -> str:
    """Three digits where they say something; powers of ten where there are many."""
    if number == 0:
        return "0"
    return f"{number:.1e}" if abs(number) >= 1e4 else f"{number:.3g}"


def curves(
    ax: Axes, records: Sequence[Record], x: str, y: str, scale: float, styles: Styles
) -> None:
    """Mean of y against x for each method, with its standard error over seeds; the oracle broad, beneath the others."""
    for method in distinct(records, "method"):
        mine = where(records, method=method)
        at = distinct(mine, x)
        groups = [[scale * each for each in values(where(mine, **{x: here}), y)] for here in at]
        errors = [spread(group) / len(group) ** 0.5 for group in groups]
        style: dict[str, Any] = {
            "linewidth": 1.5,
            "elinewidth": 0.8,
            "markersize": 4.5,
            "zorder": 3,
            "capsize": 2,
        }
        style |= look(method) | styles.get(method, {})
        ax.errorbar(at, [fmean(group) for group in groups], errors, label=method, **style)


METRICS = (
    ("accuracy", 100.0, "accuracy, %"),
    ("accuracy_up_to_reversal", 100.0, "accuracy up to reversal, %"),
    ("mae_drift", 1.0, "MAE-A"),
)
"""What is drawn of every method: the key of a record, its scale and its label."""


Styles = Mapping[str, dict[str, Any]]
"""Of some methods, beside their own."""


def panels(
    rows: int, columns: int, size: tuple[float, float], *, grid: str = "both", **shared: Any
) -> tuple[Figure, Any]:
    """A figure of rows × columns axes, (rows, columns), on a light grid."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=size, layout="constrained")
    axes = drawing.subplots(rows, columns, sharey="row", squeeze=False, **shared)
    for ax in axes.flat:
        ax.set_axisbelow(True)
        ax.grid(axis=grid, color="#DDDDDD")
    return drawing, axes


Place = Literal["outside upper right", "outside lower center"]


def legend(drawing: Figure, axes: Iterable[Axes], place: Place, *, columns: int = 0) -> None:
    """One legend for some axes, beside them; each label once."""
    named: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    look = {"ncols": columns or len(named), "frameon": False}
    drawing.legend(named.values(), named.keys(), loc=place, **look)


def curve_grid(
    columns: Sequence[tuple[Sequence[Record], str]],
    metrics: Sequence[tuple[str, float, str]],
    size: tuple[float, float],
    *,
    sharex: str,
    styles: Styles = {},  # noqa: B006 - only read
    legend_columns: int = 0,
) -> tuple[Figure, Any]:
    """A row of axes for each metric and a column for some records against a key, with one legend below."""
    drawing, axes = panels(len(metrics), len(columns), size, sharex=sharex)
    for row, (key, scale, label) in zip(axes, metrics, strict=True):
        row[0].set_ylabel(label)
        for ax, (records, x) in zip(row, columns, strict=True):
            curves(ax, records, x, key, scale, styles)
            if scale == 100:
                ax.set_ylim(-4, 106)
    legend(drawing, axes[0], "outside lower center", columns=legend_columns)
    return drawing, axes


def look(method: str) -> dict[str, Any]:
    """Colour, marker and line of a method, the same in every figure."""
    if method.startswith("oracle"):
        return {"color": METHOD_COLOURS["oracle"], "linewidth": 4, "alpha": 0.75, "zorder": 1}
    marks = {"A": "s", "M": "^", "D": "v", "R": "o", "l": "D", "s": "P", "d": "X"}
    arbitrary = method in ("MST-MLE", "DPT-MLE", "limit")
    return {
        "color": colour(method),
        "marker": marks.get(method[0], "x"),
        "linestyle": "--" if arbitrary else "-",
        "fillstyle": "none" if arbitrary else "full",
    }
