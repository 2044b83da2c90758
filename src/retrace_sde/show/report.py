"""The report: one HTML file that needs nothing else, not even a network.

Answers first, in sentences; then the figures, drawn in the browser as SVG by `templates/report.js` from numbers
inside the page; then tables. Every name from the data is escaped: jinja2 escapes HTML, `_json` escapes what
could end a script element, and the page's policy runs no script but its own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from copy import copy
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from retrace_sde.estimator.conventions import check_is_fitted
from retrace_sde.fit.intervals import clearness, critical, half_widths
from retrace_sde.io.arrays import Array
from retrace_sde.io.files import replacing
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.panel.panel import Panel
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace
from retrace_sde.show.figures import figures
from retrace_sde.show.sharing import contents, nameless, unquoted
from retrace_sde.show.verdicts import verdicts
from retrace_sde.show.wording import worded

FORECAST_STEPS = 3
"""Observations ahead that a report forecasts unless it is told otherwise."""

SUSPECTS_LISTED = 10
"""Values that are probably wrong, listed in the page at most."""

MAX_TABLE_ROWS = 200
"""Rows of a table of parameters, at most: those with the largest |estimate| / standard error."""

DIFFUSION_FORMULA = (
    "Ĥ is the covariance of what the drift leaves unexplained, per unit of time: Σ e eᵀ / (N Δt), "
    "e = Δx − Θ φ(x) Δt"
)
ESTIMATORS = {
    "mle": (
        "Maximum likelihood along the order: Θ̂ = (R_φφ⁻¹ R_φΔ)ᵀ, the regression of Δx on φ(x) Δt.",
        f"{DIFFUSION_FORMULA}. Errors: Var Ĥ_ij = (H_ii H_jj + H_ij²) / N.",
    ),
    "ols": (
        "Least squares, equation by equation: the regression of Δx on φ(x) Δt.",
        f"{DIFFUSION_FORMULA}, with N less the number of features in the divisor. "
        "Errors: Var Ĥ_ij = (H_ii H_jj + H_ij²) / N.",
    ),
    "exact": (
        "Exact discretisation: A = log(F) / Δt, F the regression of each state on the one before it.",
        "From the covariance V of that regression's residuals: A V + V Aᵀ = F H Fᵀ − H.",
    ),
    "mcem": (
        "Maximum likelihood averaged over orders: Monte-Carlo EM, the regression of Δx on φ(x) Δt with each pair "
        "weighted by how often it is adjacent. Errors include the uncertainty of the order (Louis) unless a "
        "note says otherwise.",
        f"{DIFFUSION_FORMULA}, averaged over the orders; errors as for the drift.",
    ),
    "em": (
        "Maximum likelihood of what was observed: EM with a Kalman smoother along the order.",
        f"{DIFFUSION_FORMULA}, in expectation over the states behind noise and missing values.",
    ),
}
"""How each estimator computes the drift and the diffusion, in a sentence each."""

VERSIONED_PACKAGES = ("retrace-sde", "numpy", "scipy", "numba", "scikit-learn")
"""Packages on whose versions the numbers may depend."""


def write_report(
    model: ReTrace,
    X: Any,
    path: str | Path,
    *,
    title: str | None = None,
    share: bool = False,
    steps: int = FORECAST_STEPS,
) -> Path:
    """Write the report of a fit to one HTML file and return its path.

    The page holds values and ids of some trajectories, as it says on top, unless `share`.
    Call `model.sample_orders()` first to see the probability of each position. Figures show a part of a large panel, and say
    so; answers and tables are always about all the data.

    Parameters
    ----------
    model : ReTrace
        Fitted.
    X : Panel or array (n, T, d)
        What it was fitted on; a Panel's names and ids appear in the page.
    path : str or Path
        Where to.
    title : str, optional
        Of the page.
    share : bool
        Summaries only, trajectories numbered.
    steps : int
        Observations ahead that are forecast; 0: none.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> rt.write_report(rt.ReTrace(dt=0.05, random_state=0).fit(Y), Y, "fit.html", share=True).name
    'fit.html'
    """
    panel = _panel(model, X)
    if share:
        model = copy(model)
        model.result_, panel = unquoted(model.result_, panel), nameless(panel)
    result = model.result_
    data = figures(model, panel, share=share, steps=steps)
    page = render(
        "report.html",
        title=title or "ReTrace report",
        result=result,
        shape=tuple(panel.values.shape),
        verdicts=verdicts(model, panel),
        data=data,
        residuals=_residual_sentences(model, panel),
        contents=contents(data, panel, share=share),
        share=share,
        suspects_listed=SUSPECTS_LISTED,
        ragged=panel.lengths is not None,
        formulas=ESTIMATORS.get(result.settings["estimator"], ("", "")),
        critical=critical(result.n_groups),
        drift=_both_ways(result),
        offset=_offset(model),
        diffusion=_rows(result, *_lower(result), result.names),
        noise=_noise(result),
        posterior=getattr(model, "posterior_", None),
        settings={name: str(value) for name, value in sorted(result.settings.items())},
        versions=_versions(),
        fingerprint=None if share else _fingerprint(panel.values),
    )
    return write_whole(page, path)


def _residual_sentences(model: ReTrace, panel: Panel) -> list[dict[str, Any]]:
    """Each residual check, those that failed first; none where they were not run."""
    check, names = model.residuals_, [str(each) for each in panel.ids]
    found = [*check.failed, *(each for each in check.verdicts if not each.failed)]
    return [{"failed": each.failed, "sentence": worded(each.sentence(names))} for each in found]


def render(template: str, **values: Any) -> str:
    """A page of `templates/`, with the house style and script inside."""
    script = Markup(_text("report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    house = {
        "style": Markup(_text("report.css")),
        "script": script,
        "script_hash": f"sha256-{digest}",
    }
    return _environment().get_template(template).render(**house, **values)


def write_whole(page: str, path: str | Path) -> Path:
    """Write a page, whole or not at all."""
    target = Path(path)
    with replacing(target) as file:
        file.write(page.encode())
    return target


def _json(data: Any) -> Markup:
    """JSON that is safe inside a script element: no `<`, so neither `</script>` nor `<!--` can occur."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


@cache
def _environment() -> Environment:
    loader = PackageLoader("retrace_sde", "show/templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters |= {"number": number, "json": _json, "worded": _worded}
    return environment


@pass_context
def _worded(_: Context, text: str) -> str:
    """As `worded`. With the context as an argument it is not computed once, when the template is compiled, for every reader."""
    return worded(text)


@cache
def _text(name: str) -> str:
    return (files("retrace_sde.show") / "templates" / name).read_text(encoding="utf-8")


def number(value: float, digits: int = 4) -> str:
    """A number for reading: four digits, a true minus sign, a dash if it is not finite."""
    if not np.isfinite(value):
        return "\N{EN DASH}"
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def _panel(model: ReTrace, X: Any) -> Panel:
    check_is_fitted(model, "result_")
    result = model.result_
    panel = (X if isinstance(X, Panel) else Panel.from_array(X)).without(result.left_out)
    fitted = (result.n_trajectories, result.order.shape[-1], len(result.names))
    if tuple(panel.values.shape) != fitted:
        raise ValueError(
            f"X has shape {tuple(panel.values.shape)}, but the model was fitted on {fitted}: pass the data of "
            "the fit."
        )
    return panel


class Rows(NamedTuple):
    """Rows of a table that are listed, and how many there are."""

    listed: list[dict[str, Any]]
    total: int


def _rows(
    result: ReTraceResult, values: Array, errors: Array, causes: tuple[str, ...], like: Array | None = None
) -> Rows:  # fmt: skip
    """Entries with 95 % intervals, the clearest first, as many as are listed; entries that are NaN are left out.

    `like`: the |estimate| / standard error that say which are listed, where they are not their own.
    """
    reach = half_widths(errors, result.n_groups)
    known = np.isfinite(values)
    clear = np.where(known, clearness(values, errors) if like is None else like, -np.inf)
    rank = np.argsort(-clear, axis=None, kind="stable")[: min(MAX_TABLE_ROWS, int(known.sum()))]
    rows = []
    for i, j in np.column_stack(np.unravel_index(rank, values.shape)).tolist():
        value, error = float(values[i, j]), float(errors[i, j])
        low, high = value - reach[i, j], value + reach[i, j]
        rows.append({
            "cause": causes[j], "effect": result.names[i], "value": value, "error": error,
            "low": low, "high": high, "significant": low > 0 or high < 0,
        })  # fmt: skip
    return Rows(rows, int(known.sum()))


def _both_ways(result: ReTraceResult) -> Rows:
    """Drift coefficients, those of inputs too; where the direction is undetermined, with those of the twin beside them."""
    causes, ways = result._effects
    like = clearness(*ways[0])
    (rows, total), *back = (_rows(result, *each, causes, like) for each in ways)
    if not back:
        return Rows(rows, total)
    beside = {(row["cause"], row["effect"]): row for row in back[0].listed}
    return Rows([{**row, "twin": beside.get((row["cause"], row["effect"]))} for row in rows], total)


def _lower(result: ReTraceResult) -> tuple[Array, Array]:
    """H without its repeated half, and its errors."""
    half = result.diffusion.astype(float)
    half[np.triu_indices(len(half), 1)] = np.nan
    return half, result.standard_errors.diffusion


def _offset(model: ReTrace) -> Rows:
    result = model.result_
    errors = result.standard_errors.offset
    if errors is None or not result.offset.any():
        return Rows([], 0)
    return _rows(result, result.offset[:, None], errors[:, None], ("1",))


def _noise(result: ReTraceResult) -> list[tuple[str, float]]:
    """Each variable's standard deviation of observation noise, where it is in the model."""
    R = result.observation_noise
    if R is None or not R.any():  # values may be missing without noise
        return []
    return list(zip(result.names, np.sqrt(np.diag(R)).tolist(), strict=True))


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # used from its source tree
            continue
    return found


def _fingerprint(values: Any) -> str:
    """SHA-256 of the values as float64, trajectory by trajectory: which data this was."""
    digest = hashlib.sha256()
    for j in range(values.shape[0]):
        digest.update(to_numpy(values[j, ...]).astype("<f8").tobytes())
    return digest.hexdigest()
