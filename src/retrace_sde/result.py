"""What a fit returns: a frozen record that prints itself and can be saved without pickle."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.evidence.dependence import Dependence
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.evidence.identifiability import IdentifiabilityReport
from retrace_sde.evidence.influence import RestsOn
from retrace_sde.evidence.selection.drift import DriftChoice
from retrace_sde.evidence.selection.noise import NoiseChoice
from retrace_sde.evidence.selection.subjects import SubjectEffects
from retrace_sde.evidence.suspects.record import Suspect
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
from retrace_sde.io.deferred import pd
from retrace_sde.io.files import replacing
from retrace_sde.io.untrusted.sizes import READ_ERRORS, read_arrays
from retrace_sde.panel.order import Order
from retrace_sde.panel.parameters import checked
from retrace_sde.panel.uninformative import LeftOut
from retrace_sde.process.sde import Gaussian, LinearSDE, Scheme
from retrace_sde.search.model import Round

FORMAT = 3
"""Version of the file that `save` writes."""

COEFFICIENTS_SHOWN = 10
"""Coefficients that a summary lists: those with the largest |z|."""

MOST_TRAJECTORIES = 2**53
"""Largest n that a saved result may state: beyond it a float no longer counts."""

Row = tuple[str, str]

_ERRORS = {
    ErrorKind.MODEL: "model-based (too few trajectories for a sandwich estimate)",
    ErrorKind.SANDWICH: "robust (sandwich, clustered by trajectory)",
    ErrorKind.GROUPS: "robust (sandwich, clustered by group)",
    ErrorKind.BOOTSTRAP: "bootstrap over trajectories",
    ErrorKind.DRISCOLL_KRAAY: "robust to common shocks (Driscoll-Kraay, clustered by slice)",
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
    scheme : {"exact", "euler"}
        The parameters are those of the SDE, or of Euler's step over dt.
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
    dependence : Dependence or None
        Whether trajectories share shocks.
    stopped : bool
        The fit was ended early on request.
    groups : array (n,) or None
        Numbers of the groups whose trajectories may be alike, those that are nearly copies included; None: all are independent.
    suspects : tuple of Suspect
        Values, rows, trajectories and slices that are probably wrong, in sentences too.
    wrong_stamps : array (T,) or (n, T), or None
        The probability that each time stamp is wrong, given the order, where `Knowledge(wrong=…)` asked; NaN where there is none.
    pair_exponent : float
        By which the log-odds of `precedence` are multiplied: not 1 where subjects of known order tell how sure these are (`recover(order_known=…)`).
    time_shifts : array (n, d) or None
        How far ahead each trajectory is on the course that all follow, in units of time along the order, where trajectories seem to be at
        different stages of it; NaN for variables in which they do not.
    influence : tuple of RestsOn
        Trajectories, or groups, without which the direction or the order would be another, in sentences too.

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
    dependence: Dependence | None = None
    stopped: bool = False
    groups: Indices | None = None
    suspects: tuple[Suspect, ...] = ()
    wrong_stamps: Array | None = None
    time_shifts: Array | None = None
    pair_exponent: float = 1.0
    influence: tuple[RestsOn, ...] = ()
    scheme: Scheme = "euler"

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
    def direction_found(self) -> Literal["identified", "known", "open"]:
        """The outcome of the direction test in a word."""
        if self.direction.known:
            return "known"
        return "identified" if self.direction.identified else "open"

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
        """The result as text: data and method, the direction, the coefficients, what is identified, and notes.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 10, 0.05, random_state=1)
        >>> print(rt.ReTrace(dt=0.05, random_state=0).fit(Y).summary())  # doctest: +ELLIPSIS
        ReTrace...
        """
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
        return (
            f"ReTraceResult({self.size} × {self.order.shape[-1]} slices × {len(self.names)} variables, "
            f"direction {self.direction_found}; print it for all)"
        )

    def __str__(self) -> str:
        return self.summary()

    def __eq__(self, other: object) -> bool:
        """Equal in all that `save` writes; NaN equals NaN."""
        if not isinstance(other, ReTraceResult):
            return NotImplemented
        (words, mine), (others, theirs) = self._packed(), other._packed()
        same = words == others and mine.keys() == theirs.keys()
        return same and all(np.array_equal(mine[k], theirs[k], equal_nan=True) for k in mine)

    def __hash__(self) -> int:
        return hash((self.names, self.n_trajectories, self.log_likelihood))

    def _repr_html_(self) -> str:
        """The result as a table for notebooks; every name is escaped."""
        rows = self._overview()
        rows += [("identified", text) for text in self.identifiability.can]
        rows += [("not identified", text) for text in self.identifiability.cannot]
        rows += [("note", text) for text in self.notes]
        left = "style='text-align:left'"
        head = "".join(
            f"<tr><th {left}>{html.escape(a)}</th><td {left}>{html.escape(b)}</td></tr>"
            for a, b in rows
        )
        body = "".join(html_row(row) for row in self._coefficients())
        return (
            f"<table><caption>ReTrace results</caption>{head}</table>"
            f"<table><caption>{self._caption}. {self._footnote}</caption>{html_row(self._header, 'th')}{body}</table>"
        )

    def to_latex(self) -> str:
        """The drift coefficients with the largest absolute z as a LaTeX table (booktabs)."""
        rows = "\n".join(
            " & ".join(_latex(cell) for cell in row) + r" \\" for row in self._coefficients()
        )
        header = " & ".join(self._header).replace(" %", r"\,\%").replace("P>|z|", r"$P>|z|$")
        return (
            f"\\begin{{tabular}}{{ll{'r' * (len(self._header) - 2)}}}\n\\toprule\n{header} \\\\\n"
            f"\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}"
        )

    def _overview(self) -> list[Row]:
        T, d, count = self.order.shape[-1], len(self.names), len(self.history)
        ended = "not converged: the order was still changing, or an estimate is not finite, after"
        if self.converged or self.stopped:
            ended = "converged after" if self.converged else "stopped on request after"
        order, estimator = self.settings["order"], self.settings["estimator"]
        method = (
            f"order by {order}, estimator {estimator}; {ended} {count} round{'s' * (count != 1)}"
        )
        twin = "the time-reversed order, with its own parameters and errors, is in `alternative_`"
        size = f"{self.size} × {T} slices × {d} variables, dt = {self.dt:g}"
        rows = [
            ("data", size),
            ("variables", self._used()),
            ("method", method),
            ("log-likelihood", f"{self.log_likelihood:,.1f}"),
            ("direction", self.direction.verdict),
            ("assuming", " ".join(self.direction.assumptions) or None),
            *(("influence", str(each)) for each in self.influence),
            ("dependence", _verdict(self.dependence)),
            ("alternative", None if self.alternative is None else twin),
            ("models compared", self._models()),
            ("drift", _verdict(self.drift_choice)),
            ("measurement noise", _verdict(self.noise_choice)),
            ("noise estimated", self._noise()),
            ("gaps", self._gaps()),
            ("subjects", _verdict(self.subjects)),
            ("standard errors", self.errors_rest),
        ]
        checks = "" if self.residuals is None else str(self.residuals)
        rows += [("residuals", line) for line in checks.splitlines()]
        return [(name, text) for name, text in rows if text is not None]

    def _models(self) -> str | None:
        """The models that were compared for the direction, by their evidence."""
        models = self.direction.models
        if len(models) < 2:
            return None
        return "; ".join(each.said(models[0].log_evidence) for each in models)

    def _used(self) -> str | None:
        """The variables that were used, where some were not."""
        if not self.left_out:
            return None
        dropped = ", ".join(f"{each.name} ({each.why})" for each in self.left_out)
        return f"{', '.join(self.names)}; left out: {dropped}"

    def _gaps(self) -> str | None:
        if self.gap_intervals is None:
            return None
        gaps, (low, high) = np.diff(self.times), self.gap_intervals.T
        clocks = "" if self.gap_clocks is None else f" ({self.gap_clocks})"
        ratio = f"95 % intervals of ratio {np.median(high / low):.2g}{clocks}"
        return f"estimated, {gaps.min():.3g} to {gaps.max():.3g}; {ratio}"

    @property
    def errors_rest(self) -> str:
        """The kind of standard errors, in words."""
        return _ERRORS[self.standard_errors.kind]

    def _noise(self) -> str | None:
        if self.observation_noise is None:
            return None
        deviations = np.sqrt(np.diag(self.observation_noise))
        if np.ptp(deviations) == 0:
            return f"standard deviation {deviations[0]:.3g} in every variable"
        named = [f"{name} {each:.3g}" for name, each in zip(self.names, deviations, strict=True)]
        more = " …" if len(named) > COEFFICIENTS_SHOWN else ""
        return f"standard deviation {', '.join(named[:COEFFICIENTS_SHOWN])}{more}"

    @property
    def _tests(self) -> int:
        """Coefficients that are tested: of variables and of inputs."""
        return self.drift.size + (0 if self.inputs is None else self.inputs.size)

    @property
    def _caption(self) -> str:
        count = self._tests
        some = (
            f", the {COEFFICIENTS_SHOWN} of {count} with the largest |z|"
            if count > COEFFICIENTS_SHOWN
            else ""
        )
        both = "" if self.alternative is None else "; the direction is open, so in both orders"
        return f"Drift coefficients{some}{both}"

    @property
    def _footnote(self) -> str:
        """What the tests and intervals of the table rest on."""
        n, count = self.n_groups, self._tests
        text = f"Student's t, {n - 1} degrees of freedom" if n > 1 else "Normal approximation"
        many = f"; not corrected for {count} tests ({count / 20:.0f} expected below 0.05 by chance)"
        return f"{text}{many if count >= 20 else ''}."

    @property
    def _header(self) -> tuple[str, ...]:
        """While the direction is open no sign is *the* effect: both orders stand side by side."""
        if self.alternative is None:
            return "effect of", "on", "coef", "std err", "z", "P>|z|", "95 % interval"
        both = "in this order", "95 % interval", "in its reverse", "95 % interval"
        return "effect of", "on", *both

    @property
    def _effects(self) -> tuple[tuple[str, ...], list[tuple[Array, Array]]]:
        """What acts, inputs last; its coefficients and their errors, the twin's behind where there is one."""
        ways = [_with_inputs(each) for each in (self, self.alternative) if each is not None]
        names = self.feature_names
        if self.inputs is not None:
            d, k = self.drift.shape[1], self.inputs.shape[1]
            names = (*names[:d], *names[len(names) - k :])
        return names, ways

    def _coefficients(self) -> list[tuple[str, ...]]:
        """Cells of the table, the coefficients with the largest |z| first; those of the reverse beside them."""
        names, ways = self._effects
        chosen = list(clearest(*ways[0], COEFFICIENTS_SHOWN))
        tables = []
        for values, errors in ways:
            found = [
                ("", "", names[j], self.names[i], values[i, j], errors[i, j]) for i, j in chosen
            ]
            tables.append(table([Parameter(*each) for each in found], self.n_groups))
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
        words, arrays = self._packed()
        with replacing(target) as file:
            np.savez_compressed(file, json=np.array(words), **arrays)  # type: ignore[arg-type]
        return target

    def _packed(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """What is saved: a JSON text, and the arrays by their dotted names."""
        arrays: dict[str, NDArray[Any]] = {}
        text = {"format": FORMAT, **_pack(self, "", arrays)}
        return json.dumps(text, default=_setting), arrays

    def model(self) -> Any:
        """A fitted `ReTrace` with these parameters: it orders, scores and forecasts other trajectories of the process.

        The data are not kept in a result, so that position probabilities, smoothed states and the bootstrap need a new fit.
        Linear and affine drifts only.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 10, 0.05, random_state=1)
        >>> path = rt.ReTrace(dt=0.05, random_state=0).fit(Y[:20]).result_.save("saved.npz")
        >>> lost, truth = rt.simulate.shuffle(Y[20:], random_state=2)
        >>> np.array_equal(rt.ReTraceResult.load(path).model().reorder(lost), Y[20:])
        True
        """
        return import_module("retrace_sde.retrace").ReTrace._of_result(self)

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
        line, square, orders = ((d,),), ((d, d),), ((T,), (n, T))
        shapes: dict[str, tuple[tuple[int, ...], ...]] = {
            "order": orders,
            "times": orders,
            "offset": line,
            "diffusion": square,
            "initial.mean": line,
            "initial.covariance": square,
            "standard_errors.drift": (self.drift.shape,),
            "standard_errors.diffusion": square,
        }
        if self.alternative is not None:
            shapes |= {
                "alternative.order": (self.order.shape,),
                "alternative.drift": (self.drift.shape,),
                "alternative.diffusion": square,
            }
        found = {name: attrgetter(name)(self) for name in shapes}
        for name, value in found.items():
            if value.shape not in shapes[name]:
                return f"{name} has shape {value.shape}, not {' or '.join(map(str, shapes[name]))}"
        if self.drift.ndim != 2 or len(self.drift) != d:
            return f"drift has shape {self.drift.shape} for {d} variables"
        for name, value in found.items():
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
            return f"it claims {n:.3g} trajectories"
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


def html_row(cells: Iterable[str], tag: str = "td") -> str:
    """A row of a table in HTML; the cells are escaped."""
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


def _verdict(choice: DriftChoice | NoiseChoice | SubjectEffects | Dependence | None) -> str | None:
    return None if choice is None else choice.verdict


def _pack(value: Any, key: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """A value as JSON knows it: records as objects, tuples as lists; arrays are put aside by their dotted names."""
    if isinstance(value, np.ndarray):
        arrays[key] = value
        return None
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        return {name: _pack(getattr(value, name), _within(key, name), arrays) for name in names}
    if isinstance(value, tuple):
        return [_pack(each, _within(key, k), arrays) for k, each in enumerate(value)]
    return value


def _unpack(hint: Any, stored: Any, key: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """The value that was stored, as a field of that type holds it; refused where it cannot."""
    origin, args, value = get_origin(hint), get_args(hint), arrays.get(key, stored)
    if hasattr(origin, "__value__"):  # a type statement, as NDArray is from Python 3.12 on
        return _unpack(origin.__value__[args], stored, key, arrays)
    if origin in (Union, UnionType):  # of something and None
        return None if value is None else _unpack(args[0], stored, key, arrays)
    if origin is tuple and isinstance(value, list):
        each = enumerate(value)
        return tuple(_unpack(args[0], one, _within(key, k), arrays) for k, one in each)
    if is_dataclass(hint) and isinstance(value, dict):
        parts = ((name, _within(key, name), part) for name, part in get_type_hints(hint).items())
        return hint(  # type: ignore[operator]
            **{  # a field that is not there was unknown when it was written: its default
                name: _unpack(part, value.get(name), inner, arrays)
                for name, inner, part in parts
                if name in value or inner in arrays
            }
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if origin is np.ndarray:
        kind = np.dtype(get_args(args[1])[0]).kind
        fits = isinstance(value, np.ndarray) and value.dtype.kind == kind
    elif origin is Literal:
        fits = value in args
    else:
        wanted = int | float if hint is float else origin or hint
        fits = isinstance(value, wanted) and (hint is bool or not isinstance(value, bool))
    if not fits:
        raise TypeError(f"{key} holds {type(value).__name__}, which it cannot")
    return value


def _within(key: str, name: str | int) -> str:
    return f"{key}.{name}" if key else str(name)


def _setting(value: Any) -> Any:
    """A setting as JSON knows it: arrays as lists, and objects, such as a drift, by their names."""
    return np.asarray(value).tolist() if hasattr(value, "__array__") else str(value)


def _with_inputs(found: ReTraceResult | Twin) -> tuple[Array, Array]:
    """A, and B beside it, and their errors; NaN where there are none."""
    B, errors = found.inputs, found.standard_errors
    values = found.drift if B is None else np.c_[found.drift, B]
    if errors is None:
        return values, np.full_like(values, np.nan)
    if B is None:
        return values, errors.drift
    return values, np.c_[
        errors.drift, np.full_like(B, np.nan) if errors.inputs is None else errors.inputs
    ]


_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


def _latex(cell: str) -> str:
    """Text as LaTeX prints it, on one line."""
    return "".join(_LATEX.get(sign, sign if sign.isprintable() else " ") for sign in cell)
