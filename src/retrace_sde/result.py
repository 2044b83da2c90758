"""What a fit returns: a frozen record that prints itself and can be saved without pickle."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.evidence.identifiability import IdentifiabilityReport
from retrace_sde.evidence.selection.drift import DriftChoice
from retrace_sde.evidence.selection.noise import NoiseChoice
from retrace_sde.evidence.selection.subjects import SubjectEffects
from retrace_sde.fit.intervals import (
    Parameter,
    clearest,
    coefficients,
    covariances,
    table,
)
from retrace_sde.fit.regression import ErrorKind, StandardErrors
from retrace_sde.fit.unequal_steps import GapClocks
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.files import replacing
from retrace_sde.io.npz import READ_ERRORS, read_arrays
from retrace_sde.panel.order import Order
from retrace_sde.panel.parameters import checked
from retrace_sde.panel.uninformative import LeftOut
from retrace_sde.process.sde import Gaussian, LinearSDE
from retrace_sde.search.model import Round

FORMAT = 3
"""Version of the file that `save` writes."""

SHOWN = 10
"""Coefficients that a summary lists: those with the largest |z|."""

MOST_TRAJECTORIES = 2**53
"""Largest n that a saved result may state: beyond it a float no longer counts."""

Row = tuple[str, str]

_ERRORS = {
    ErrorKind.MODEL: "model-based (too few trajectories for a sandwich estimate)",
    ErrorKind.SANDWICH: "robust (sandwich, clustered by trajectory)",
    ErrorKind.GROUPS: "robust (sandwich, clustered by group)",
    ErrorKind.BOOTSTRAP: "bootstrap over trajectories",
}


@dataclass(frozen=True, eq=False)
class Twin:
    """The time-reversed answer, as likely as the one returned: its order and its parameters."""

    order: Indices
    drift: Array
    offset: Array
    diffusion: Array
    log_likelihood: float
    times: Array | None = None
    standard_errors: StandardErrors | None = None
    inputs: Array | None = None


class Later:
    """A field whose value, given as a `partial`, is computed when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type) -> Any:
        if record is None:  # the field's default
            return None
        value = vars(record)[self.name]
        if isinstance(value, partial):
            value = vars(record)[self.name] = value()
        return value

    def __set__(self, record: Any, value: Any) -> None:
        vars(record)[self.name] = value


@dataclass(frozen=True, eq=False)
class ReTraceResult:
    r"""Order, direction and SDE, with their uncertainty and what was used to find them; `model.result_`.

    Frozen; saved without pickle. Units, and the places of slices and trajectories, are those of the data given.

    Attributes
    ----------
    order : array (T,) or (n, T)
        `X[:, order]` is in time order.
    times : array (T,) or (n, T)
        Times along the order.
    drift, offset, diffusion : array
        A (d, d), or the coefficients of a richer drift, c (d,) and H (d, d).
    standard_errors : StandardErrors
        `.drift`, `.diffusion`, `.offset`, `.inputs`; `.kind` says what they rest on.
    initial : Gaussian
        p₀, the distribution of the first state.
    direction : DirectionTest
        Whether the direction of time is identified.
    alternative : Twin or None
        The time-reversed answer where it is not.
    identifiability : IdentifiabilityReport
        What the data can and cannot determine, in sentences.
    log_likelihood : float
        Of the order returned.
    history : tuple of Round
        Each round of the search.
    converged : bool
        The order no longer changed, and all estimates are finite.
    n_trajectories : int
        n.
    dt : float
        Time between neighbours.
    names, feature_names : tuple of str
        Of the variables, and of what the drift is linear in.
    settings : dict
        What the estimator was asked for.
    notes : tuple of str
        What was done on the way, and what to beware of.
    observation_noise : array (d, d) or None
        R.
    gap_intervals : array or None
        Of estimated gaps.
    inputs : array (d, k) or None
        B.
    subjects : SubjectEffects or None
        Random intercepts or rates of the subjects.
    noise_choice : NoiseChoice or None
        The comparison with and without measurement noise, for observation_noise="auto".
    gap_clocks : GapClocks or None
        How much of unequal gaps may be volatility.
    residuals : ResidualCheck or None
        Residual diagnostics, computed when first read, along a part of the data that the fit kept.
    left_out : tuple of LeftOut
        Variables without dynamics of their own.
    drift_choice : DriftChoice or None
        The comparison of drifts.
    stopped : bool
        The fit was ended early on request.
    groups : array (n,) or None
        Numbers of the groups whose trajectories may be alike, those that are nearly copies included; None: all are independent.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 10, 0.05, random_state=1)
    >>> result = rt.ReTrace(dt=0.05, random_state=0).fit(Y).result_
    >>> path = result.save("fit.npz")
    >>> rt.ReTraceResult.load(path) == result
    True
    >>> result.to_latex().startswith(r"\begin{tabular}")
    True
    >>> result.summary().splitlines()[0]  # doctest: +ELLIPSIS
    'ReTrace...
    """

    order: Indices
    times: Array
    drift: Array
    offset: Array
    diffusion: Array
    standard_errors: StandardErrors
    initial: Gaussian
    direction: DirectionTest
    alternative: Twin | None
    identifiability: IdentifiabilityReport
    log_likelihood: float
    history: tuple[Round, ...]
    converged: bool
    n_trajectories: int
    dt: float
    names: tuple[str, ...]
    feature_names: tuple[str, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    observation_noise: Array | None = None
    gap_intervals: Array | None = None
    inputs: Array | None = None
    subjects: SubjectEffects | None = None
    noise_choice: NoiseChoice | None = None
    gap_clocks: GapClocks | None = None
    residuals: ResidualCheck | None = Later()  # type: ignore[assignment]
    left_out: tuple[LeftOut, ...] = ()
    drift_choice: DriftChoice | None = None
    stopped: bool = False
    groups: Indices | None = None

    @property
    def n_groups(self) -> int:
        """How many groups are taken for independent of one another; without groups, every trajectory is one."""
        return self.n_trajectories if self.groups is None else len(np.unique(self.groups))

    @property
    def size(self) -> str:
        """How many trajectories there are, in words, and in how many groups."""
        several = "" if self.groups is None else f" in {self.n_groups} groups"
        return f"{self.n_trajectories} trajectories{several}"

    @property
    def cycle(self) -> bool:
        """The slices form a closed loop: the order is cyclic and its cut arbitrary."""
        return self.identifiability.cycle

    @property
    def shared_order(self) -> bool:
        """One order holds for all trajectories; otherwise each has its own."""
        return Order.of(self.order).shared

    @property
    def sde(self) -> LinearSDE:
        """The fitted SDE, ready to simulate; linear and affine drifts only."""
        if self.drift.shape != self.diffusion.shape:
            raise ValueError("only a linear or affine drift is a LinearSDE; this fit has another.")
        return LinearSDE(self.drift, self.diffusion, offset=self.offset, initial=self.initial)

    @property
    def parameters(self) -> pd.DataFrame:
        """One row for each parameter, with its standard error, a Wald test and a 95 % interval.

        `kind` is drift, offset, input, diffusion or noise. A row of the first three is the effect of `variable` on the rate of
        change of `on`; of the last two, the covariance of the two. Tests and intervals use Student's t with n − 1 degrees of
        freedom, n trajectories. NaN: no standard error, or a variance, for which zero is no hypothesis. Where the
        direction is open these are the parameters in the order returned; `alternative` holds those of its reverse.
        """
        return table(self._rows(), self.n_groups)

    @checked
    def conf_int(self, *, level: float = 0.95) -> pd.DataFrame:
        """Confidence intervals of all parameters, columns `lower` and `upper`; rows as in `parameters`.

        Parameters
        ----------
        level : float
            Of confidence.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 10, 0.05, random_state=1)
        >>> result = rt.ReTrace(dt=0.05, random_state=0).fit(Y).result_
        >>> list(result.conf_int(level=0.9).index[:2])
        ['A[x0, x0]', 'A[x0, x1]']
        """
        return table(self._rows(), self.n_groups, level=level)[["lower", "upper"]]

    def _rows(self) -> Iterator[Parameter]:
        names, errors, p = self.names, self.standard_errors, self.drift.shape[1]
        yield from coefficients(
            "drift", "A", self.drift, errors.drift, self.feature_names[:p], names
        )
        if "1" in self.feature_names[p : p + 1]:
            c = None if errors.offset is None else errors.offset[:, None]
            for each in coefficients("offset", "c", self.offset[:, None], c, ["1"], names):
                yield each._replace(name=f"c[{each.on}]")
        if self.inputs is not None:
            acting = self.feature_names[-self.inputs.shape[1] :]
            yield from coefficients("input", "B", self.inputs, errors.inputs, acting, names)
        yield from covariances("diffusion", "H", self.diffusion, errors.diffusion, names)
        if self.observation_noise is not None:
            yield from covariances("noise", "R", self.observation_noise, None, names)

    def summary(self) -> str:
        """The result as text: data and method, the direction, the coefficients, what is identified, and notes."""
        overview = self._overview()
        width = max(len(name) for name, _ in overview)
        lines = ["ReTrace results", "==============="]
        lines += [f"{name:<{width}}  {text}" for name, text in overview]
        lines += ["", self._caption, *_aligned([self._header, *self._coefficients()])]
        lines += [f"  {self._footnote}"]
        lines += ["", "Identifiability: what the data can (+) and cannot (−) determine"]
        lines += [str(self.identifiability)]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        T, test = self.order.shape[-1], self.direction
        said = "known" if test.known else "identified" if test.identified else "open"
        return (
            f"ReTraceResult({self.size} × {T} slices × {len(self.names)} variables, "
            f"direction {said}; print it for all)"
        )

    def __str__(self) -> str:
        return self.summary()

    def __eq__(self, other: object) -> bool:
        """Equal in all that `save` writes; NaN equals NaN."""
        if not isinstance(other, ReTraceResult):
            return NotImplemented
        mine: dict[str, NDArray[Any]] = {}
        theirs: dict[str, NDArray[Any]] = {}
        same = json.dumps(_pack(self, "", mine)) == json.dumps(_pack(other, "", theirs))
        return (
            same and mine.keys() == theirs.keys() and all(_same(mine[k], theirs[k]) for k in mine)
        )

    def __hash__(self) -> int:
        return hash((self.names, self.n_trajectories, self.log_likelihood))

    def _repr_html_(self) -> str:
        """The result as a table for notebooks; every name is escaped."""
        rows = [(name, text) for name, text in self._overview()]
        rows += [("identified", text) for text in self.identifiability.can]
        rows += [("not identified", text) for text in self.identifiability.cannot]
        rows += [("note", text) for text in self.notes]
        head = "".join(
            f"<tr><th style='text-align:left'>{html.escape(a)}</th>"
            f"<td style='text-align:left'>{html.escape(b)}</td></tr>"
            for a, b in rows
        )
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._coefficients()
        )
        return (
            f"<table><caption>ReTrace results</caption>{head}</table>"
            f"<table><caption>{self._caption}. {self._footnote}</caption>"
            f"<tr>{''.join(f'<th>{name}</th>' for name in self._header)}</tr>{body}</table>"
        )

    def to_latex(self) -> str:
        """The drift coefficients with the largest |z| as a LaTeX table (booktabs)."""
        rows = "\n".join(
            " & ".join(_latex(cell) for cell in row) + r" \\" for row in self._coefficients()
        )
        header = " & ".join(self._header).replace(" %", r"\,\%").replace("P>|z|", r"$P>|z|$")
        return (
            f"\\begin{{tabular}}{{ll{'r' * (len(self._header) - 2)}}}\n\\toprule\n{header} \\\\\n"
            f"\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}"
        )

    def _overview(self) -> list[Row]:
        T, d = self.order.shape[-1], len(self.names)
        ended = "converged after" if self.converged else "stopped on request after"
        if not self.converged and not self.stopped:
            ended = (
                "not converged: the order was still changing, or an estimate is not finite, after"
            )
        count = len(self.history)
        rows = [
            (
                "data",
                f"{self.size} × {T} slices × {d} variables, dt = {self.dt:g}",
            ),
            *self._used(),
            (
                "method",
                f"order by {self.settings['order']}, estimator {self.settings['estimator']}; "
                f"{ended} {count} round{'s' * (count != 1)}",
            ),
            ("log-likelihood", f"{self.log_likelihood:,.1f}"),
            ("direction", self.direction.verdict),
        ]
        if self.alternative is not None:
            rows.append(
                (
                    "alternative",
                    "the time-reversed order, with its own parameters and errors, is in `alternative_`",
                )
            )
        rows += [
            *self._models(),
            *self._noise(),
            *self._gaps(),
            *self._subjects(),
            ("standard errors", self.errors_rest),
        ]
        if self.residuals is not None:
            rows += [("residuals", line) for line in str(self.residuals).splitlines()]
        return rows

    def _models(self) -> list[Row]:
        """The models that were compared for the direction, by their evidence."""
        models = self.direction.models
        if len(models) < 2:
            return []
        return [
            ("models compared", "; ".join(each.said(models[0].log_evidence) for each in models))
        ]

    def _used(self) -> list[Row]:
        """The variables that were used, where some were not."""
        if not self.left_out:
            return []
        dropped = ", ".join(f"{each.name} ({each.why})" for each in self.left_out)
        return [("variables", f"{', '.join(self.names)}; left out: {dropped}")]

    def _gaps(self) -> list[Row]:
        if self.gap_intervals is None:
            return []
        gaps, (low, high) = np.diff(self.times), self.gap_intervals.T
        width = np.median(high / low)
        return [
            (
                "gaps",
                f"estimated, {gaps.min():.3g} to {gaps.max():.3g}; 95 % intervals of ratio {width:.2g}"
                + ("" if self.gap_clocks is None else f" ({self.gap_clocks})"),
            )
        ]

    @property
    def errors_rest(self) -> str:
        """The kind of standard errors, in words."""
        return _ERRORS[self.standard_errors.kind]

    def _subjects(self) -> list[Row]:
        return [] if self.subjects is None else [("subjects", self.subjects.verdict)]

    def _noise(self) -> list[Row]:
        chosen = [] if self.drift_choice is None else [("drift", self.drift_choice.verdict)]
        chosen += (
            [] if self.noise_choice is None else [("measurement noise", self.noise_choice.verdict)]
        )
        return [*chosen, *self._noise_estimated()]

    def _noise_estimated(self) -> list[Row]:
        if self.observation_noise is None:
            return []
        deviations = np.sqrt(np.diag(self.observation_noise))
        named = [f"{name} {each:.3g}" for name, each in zip(self.names, deviations, strict=True)]
        shown = ", ".join(named[:SHOWN]) + (" …" if len(named) > SHOWN else "")
        if np.ptp(deviations) == 0:
            shown = f"{deviations[0]:.3g} in every variable"
        return [("noise estimated", f"standard deviation {shown}")]

    @property
    def _caption(self) -> str:
        count = self.drift.size + (0 if self.inputs is None else self.inputs.size)
        some = f", the {SHOWN} of {count} with the largest |z|" if count > SHOWN else ""
        both = "" if self.alternative is None else "; the direction is open, so in both orders"
        return f"Drift coefficients{some}{both}"

    @property
    def _footnote(self) -> str:
        """What the tests and intervals of the table rest on."""
        count = self.drift.size + (0 if self.inputs is None else self.inputs.size)
        n = self.n_groups
        text = f"Student's t, {n - 1} degrees of freedom" if n > 1 else "Normal approximation"
        many = f"; not corrected for {count} tests ({count / 20:.0f} expected below 0.05 by chance)"
        return f"{text}{many if count >= 20 else ''}."

    @property
    def _header(self) -> tuple[str, ...]:
        """While the direction is open no sign is *the* effect: both orders stand side by side."""
        if self.alternative is None:
            return "effect of", "on", "coef", "std err", "z", "P>|z|", "95 % interval"
        return (
            "effect of",
            "on",
            "in this order",
            "95 % interval",
            "in its reverse",
            "95 % interval",
        )

    @property
    def _effects(self) -> tuple[tuple[str, ...], list[tuple[Array, Array]]]:
        """What acts, inputs last; its coefficients and their errors, the twin's behind where there is one."""
        ways = [_with_inputs(self.drift, self.inputs, self.standard_errors)]
        if self.alternative is not None:
            twin = self.alternative
            ways.append(_with_inputs(twin.drift, twin.inputs, twin.standard_errors))
        names = self.feature_names
        if self.inputs is not None:
            d, k = self.drift.shape[1], self.inputs.shape[1]
            names = (*names[:d], *names[len(names) - k :])
        return names, ways

    def _coefficients(self) -> list[tuple[str, ...]]:
        """Cells of the table, the coefficients with the largest |z| first; those of the reverse beside them."""
        names, ways = self._effects
        chosen = list(clearest(*ways[0], SHOWN))
        tables = [
            table(
                [
                    Parameter("", "", names[j], self.names[i], values[i, j], errors[i, j])
                    for i, j in chosen
                ],
                self.n_groups,
            )
            for values, errors in ways
        ]
        rows = []
        for k, (i, j) in enumerate(chosen):
            cells = [names[j], self.names[i]]
            for one in (each.iloc[k] for each in tables):
                tested = [f"{one['std_error']:.4g}", f"{one['z']:.2f}", f"{one['p_value']:.3f}"]
                known = np.isfinite(one["std_error"])
                ends = f"[{one['lower']:.4g}, {one['upper']:.4g}]" if known else "unknown"
                cells += [f"{one['estimate']:.4g}", *(tested if len(tables) == 1 else []), ends]
            rows.append(tuple(cells))
        return rows

    def save(self, path: str | Path) -> Path:
        """Write everything to one .npz file (arrays and a JSON text, no pickle); returns its path.

        Parameters
        ----------
        path : str or Path
            Where to.
        """
        target = Path(path)
        if target.suffix != ".npz":
            target = target.with_name(target.name + ".npz")
        arrays: dict[str, NDArray[Any]] = {}
        text = _pack(self, "", arrays)
        text["format"] = FORMAT
        with replacing(target) as file:
            words = json.dumps(text, default=_setting)
            np.savez_compressed(file, json=np.array(words), **arrays)  # type: ignore[arg-type]
        return target

    @classmethod
    def load(cls, path: str | Path) -> ReTraceResult:
        """Read what `save` wrote; a file that is damaged, or of another version, is refused in one sentence.

        Parameters
        ----------
        path : str or Path
            The .npz file.
        """
        source = Path(path)
        if source.suffix != ".npz" and not source.exists():
            source = source.with_name(source.name + ".npz")
        try:
            arrays = read_arrays(source)
            text = json.loads(str(arrays.pop("json")))
            form = text.pop("format", None)
            found: ReTraceResult | None = _unpack(cls, text, "", arrays) if form == FORMAT else None
        except FileNotFoundError:
            raise
        except READ_ERRORS as error:
            raise ValueError(
                f"{path} is damaged, or was not written by ReTraceResult.save: {error!s:.200}. Fit again, or load another."
            ) from None
        if found is None:
            raise ValueError(
                f"{path} has a format that this version cannot read ({form!r:.20}, not {FORMAT})."
            )
        wrong = found._amiss()
        if wrong is not None:
            raise ValueError(f"{path} is damaged: {wrong}. Fit again, or load another.")
        return found

    def _amiss(self) -> str | None:
        """What cannot be of a result of a fit: shapes that do not go together, an order that is none, numbers that are none."""
        n, d, T = self.n_trajectories, len(self.names), self.order.shape[-1]
        own = (n, T)
        shapes: list[tuple[str, Any, tuple[tuple[int, ...], ...]]] = [
            ("order", self.order, ((T,), own)),
            ("times", self.times, ((T,), own)),
            ("offset", self.offset, ((d,),)),
            ("diffusion", self.diffusion, ((d, d),)),
            ("initial.mean", self.initial.mean, ((d,),)),
            ("initial.covariance", self.initial.covariance, ((d, d),)),
            ("standard_errors.drift", self.standard_errors.drift, (self.drift.shape,)),
            ("standard_errors.diffusion", self.standard_errors.diffusion, ((d, d),)),
        ]
        if self.alternative is not None:
            twin = self.alternative
            shapes += [
                ("alternative.order", twin.order, (self.order.shape,)),
                ("alternative.drift", twin.drift, (self.drift.shape,)),
                ("alternative.diffusion", twin.diffusion, ((d, d),)),
            ]
        for name, value, allowed in shapes:
            if value.shape not in allowed:
                return f"{name} has shape {value.shape}, not {' or '.join(map(str, allowed))}"
        if self.drift.ndim != 2 or len(self.drift) != d:
            return f"drift has shape {self.drift.shape} for {d} variables"
        for name, value, _ in shapes:
            if name.endswith("order") and np.any(np.sort(value, axis=-1) != np.arange(T)):
                return f"{name} is not a permutation of 0 to {T - 1}"
        each = self.direction.contributions  # of all trajectories, or of those that were enough
        if each.ndim != 1 or not 0 < len(each) <= n:
            return f"direction.contributions has shape {each.shape} for {n} trajectories"
        if self.groups is not None and self.groups.shape != (n,):
            return f"groups has shape {self.groups.shape} for {n} trajectories"
        if not 0 < self.dt < np.inf:
            return f"dt is {self.dt!r}, not a positive number"
        if n > MOST_TRAJECTORIES:
            return f"it speaks of {n:.3g} trajectories"
        if not {"order", "estimator"} <= self.settings.keys():
            return "its settings name neither order nor estimator"
        if self.converged and not np.isfinite(self.log_likelihood):
            return f"it says that it converged, at a log-likelihood of {self.log_likelihood}"
        numbers = self.drift, self.offset, self.diffusion
        if self.converged and not all(np.isfinite(each).all() for each in numbers):
            return "it says that it converged, but some of its parameters are not numbers"
        return None


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, names to the left and numbers to the right of their columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(size) if k < 2 else cell.rjust(size)
            for k, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    numbers = one.dtype.kind == "f" and other.dtype.kind == "f"
    return np.array_equal(one, other, equal_nan=numbers)


def _pack(record: Any, prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Split a record into arrays, by dotted name, and a JSON-ready rest."""
    text: dict[str, Any] = {}
    for name, part in _parts(type(record)).items():
        key, value = f"{prefix}{name}", getattr(record, name)
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif is_dataclass(value):
            text[name] = _pack(value, f"{key}.", arrays)
        elif part is not None and isinstance(value, tuple):
            text[name] = [_pack(each, f"{key}.{k}.", arrays) for k, each in enumerate(value)]
        elif isinstance(value, dict):
            text[name] = {each: _setting(one) for each, one in value.items()}
        else:
            text[name] = value
    return text


def _setting(value: Any) -> Any:
    """A setting as JSON knows it: arrays as lists, and objects, such as a drift, by their names."""
    if hasattr(value, "__array__"):
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_setting(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _unpack(kind: type, text: dict[str, Any], prefix: str, arrays: dict[str, NDArray[Any]]) -> Any:
    values: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for name, part in _parts(kind).items():
        key = f"{prefix}{name}"
        if (
            key not in arrays and name not in text
        ):  # written before there was such a field: its default
            continue
        stored: Any = arrays[key] if key in arrays else text[name]
        if part is None or stored is None:
            values[name] = tuple(stored) if isinstance(stored, list) else stored
        elif issubclass(part, Enum):
            values[name] = part(stored)
        elif isinstance(stored, list):
            each = enumerate(stored)
            values[name] = tuple(_unpack(part, one, f"{key}.{k}.", arrays) for k, one in each)
        else:
            values[name] = _unpack(part, stored, f"{key}.", arrays)
        if not _matches(values[name], hints[name]):
            raise TypeError(f"{key} holds {type(values[name]).__name__}, which it cannot")
    return kind(**values)


def _matches(value: Any, hint: Any) -> bool:
    """A value is of the type that a field is declared with; arrays hold numbers of the declared kind."""
    origin, args = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # a type statement, as NDArray is from Python 3.12 on
        return _matches(value, origin.__value__[args])
    if origin in (Union, UnionType):
        return any(_matches(value, each) for each in args)
    if origin is np.ndarray:
        kind = np.dtype(get_args(args[1])[0]).kind
        return isinstance(value, np.ndarray) and value.dtype.kind == kind
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(each, args[0]) for each in value)
    if origin is Literal:
        return value in args
    if hint is Any or hint is float:
        return hint is Any or (isinstance(value, int | float) and not isinstance(value, bool))
    whole = hint is int and isinstance(value, bool)
    return isinstance(value, origin or hint) and not whole


def _parts(kind: type) -> dict[str, type | None]:
    """The fields of a record, and the record or enum that each holds, alone, as an option or in a tuple."""
    found: dict[str, type | None] = {}
    for name, hint in get_type_hints(kind).items():
        types = [each for each in (hint, *get_args(hint)) if isinstance(each, type)]
        parts = (each for each in types if is_dataclass(each) or issubclass(each, Enum))
        found[name] = next(parts, None)
    return found


def _with_inputs(
    drift: Array, inputs: Array | None, errors: StandardErrors | None
) -> tuple[Array, Array]:
    """A, and B beside it, and their errors; NaN where there are none."""
    values = drift if inputs is None else np.c_[drift, inputs]
    if errors is None:
        return values, np.full_like(values, np.nan)
    known = errors.drift
    if inputs is not None:
        of_B = np.full_like(inputs, np.nan) if errors.inputs is None else errors.inputs
        known = np.c_[known, of_B]
    return values, known


_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


def _latex(cell: str) -> str:
    """Text as LaTeX prints it, on one line."""
    return "".join(_LATEX.get(sign, sign if sign.isprintable() else " ") for sign in cell)
