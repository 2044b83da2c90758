"""A walk over parameters and odd arrays: an answer or one sentence of ours; no foreign error, no foreign warning, no NaN that
says it converged."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

import retrace_sde as rt
from retrace_sde.panel.parameters import RULES
from retrace_sde.process.drift import Polynomial, TumourGrowth

DT = 0.1
ODD = [
    None, True, -1, 0, 1.5, float("nan"), float("inf"), -float("inf"), 1e308, 10**400, "x", "", b"x", [], {}, (), object(),
    np.float64("nan"), np.array([1.0, 2.0]), np.array("x"), 1j, np.bool_(True), lambda: 0,
]  # fmt: skip
"""Values that are hardly ever right; where one of them is, that is fine too."""


def panel(seed=0, n=12, T=8, d=2):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    return rng, sde.simulate(n, T, DT, x0=0.4, random_state=rng)


ABSURD = (
    "dt",
    "sigma",
    "sigma_tumour",
    "sigma_obs",
    "variability",
    "days",
    "confounding",
    "radiotherapy",
)
_, X = panel()
SDE = rt.LinearSDE([[-1.0, 0.5], [-0.3, -1.2]], np.eye(2))
CALLS = {
    "simulate": (SDE.simulate, {"n": 3, "T": 4, "dt": 0.1, "scheme": "euler", "random_state": 0}),
    "transition": (SDE.transition, {"dt": 0.1, "scheme": "euler"}),
    "log_likelihood": (SDE.log_likelihood, {"X": X, "dt": 0.1, "scheme": "exact"}),
    "is_reversible": (SDE.is_reversible, {"tolerance": 1e-8}),
    "LinearSDE": (rt.LinearSDE, {"drift": -np.eye(2), "offset": np.zeros(2), "diffusion": np.eye(2)}),
    "sde": (rt.simulate.random_irreversible_sde, {"d": 2, "setting": "stable", "random_state": 0}),
    "add_noise": (rt.simulate.add_noise, {"X": X, "sigma": 0.1, "random_state": 0}),
    "shuffle": (
        rt.simulate.shuffle,
        {"X": X, "permutation": "shared", "share": 1.0, "keep_first": False, "random_state": 0},
    ),
    "cohort": (
        rt.tumour.simulate_cohort,
        {"n": 3, "arm": "treated", "sigma_tumour": 0.1, "sigma_obs": 0.1, "variability": 0.1, "steps": 4, "confounding": 1.0,
             "literature": False, "random_state": 0, "days": 5.0, "radiotherapy": 1.0},
    ),
    "mst_order": (rt.baselines.mst_order, {"X": X, "random_state": 0}),
    "dpt_order": (rt.baselines.dpt_order, {"X": X, "n_neighbors": 3, "transition": "symmetric", "random_state": 0}),
    "panel": (rt.Panel.from_array, {"values": X, "dt": 0.1}),
    "polynomial": (Polynomial, {"degree": 2, "interactions": False}),
    "tumour": (TumourGrowth, {"floor": 0.1}),
}  # fmt: skip


def check_ours(error):
    """One sentence of the package's own: not numpy's, and nothing that a user who passed data did not do."""
    assert not isinstance(error, np.linalg.LinAlgError)
    assert str(error).endswith("."), error
    assert "G @ G.T" not in str(error)


@pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, (_, given) in CALLS.items() for name in given]
)
def test_no_parameter_of_a_function_lets_a_foreign_error_out(call, name):
    function, given = CALLS[call]
    function(**given)
    for value in ODD:
        if name in ("X", "values", "diffusion"):
            continue  # arrays: see below
        if name in ABSURD and not isinstance(value, str | bytes | list | dict | tuple | type(None)):
            continue  # lawful, and absurd: overflow is what was asked for
        try:
            function(**{**given, name: value})
        except ValueError as error:
            check_ours(error)


SETTINGS = list(rt.ReTrace().get_params(deep=False))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_no_setting_lets_a_foreign_error_out(name):
    """Settings are looked at before anything is computed, so most of these take no time."""
    for value in ODD:
        lawful = RULES.get(f"ReTrace.{name}") or RULES.get(name)
        if lawful is not None and lawful.holds(value):
            continue
        number = value is None or isinstance(value, int | float | np.generic | np.ndarray)
        if name == "observation_noise" and number and np.any(value != -1):
            continue  # of many forms; its own tests look at them
        with pytest.raises(ValueError, match=r"\.$"):
            rt.ReTrace(**{"dt": DT, name: value}).fit(X)


@pytest.fixture(scope="module")
def fitted():
    return rt.ReTrace(dt=DT, random_state=0, n_jobs=1).fit(X)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("forecast", {"X": X, "steps": 2, "level": 0.9}),
        ("impute", {"X": X, "level": 0.9}),
        ("sample_orders", {"draws": 50}),
        ("bootstrap_errors", {"draws": 3, "adopt": False}),
    ],
)
def test_no_question_to_a_fit_lets_a_foreign_error_out(fitted, method, given):
    for name in set(given) - {"X"}:
        for value in ODD:
            if RULES[name].holds(value):
                continue
            with pytest.raises(ValueError, match=rf"^{name} must be"):
                getattr(fitted, method)(**{**given, name: value})


def odd_arrays():
    rng, X = panel()
    n, T, _ = X.shape
    noise, t = rng.standard_normal((n, T, 1)), np.arange(T) * DT
    start = rng.standard_normal((n, 1, 2))
    for e in (6, 8, 10, 12, 14):
        yield f"collinear 1e-{e}", np.concatenate([X, X[..., :1] + 10.0**-e * noise], axis=2)
    for e in (8, 12, 14, 15):
        yield f"nearly constant 1e-{e}", np.concatenate([X, 5 + 10.0**-e * noise], axis=2)
    yield "parallel lines", start + np.array([1.0, -0.5]) * t[None, :, None]
    yield "lines", start + rng.standard_normal((n, 1, 2)) * t[None, :, None]
    yield "proportional lines", start * (1 + 0.3 * t[None, :, None])
    A = np.array([[-1, 0.5], [-0.3, -1.2]])
    yield "no noise", np.stack([start[:, 0] @ expm(A * s).T for s in t], axis=1)
    for e in (-320, -308, -200, -150, -100, 100, 139, 150, 300):
        yield f"scale 1e{e}", X * 1e-300 * 10.0 ** (e + 300) if e < -300 else X * 10.0**e
    yield "scales apart", X * np.array([1e100, 1e-100])
    for big in (1e6, 1e12, 1e50, 1e100, 1e139):
        Y = X.copy()
        Y[3, 4, 0] = big
        yield f"outlier {big:g}", Y
    for size in (1e6, 1e12):
        Y = X.copy()
        Y[:, 4:] += size
        yield f"jump {size:g}", Y
        Y = X.copy()
        Y[5] += size
        yield f"one far away {size:g}", Y
        yield f"level {size:g}", X + size
    yield "whole numbers", np.round(3 * X)
    yield "ones", np.ones_like(X)
    yield "beyond whole numbers", np.full(X.shape, 2**63, dtype=np.uint64) + (X > 0)
    thirds = np.sign(X) * (np.abs(X) > np.quantile(np.abs(X), 0.3))
    yield "mostly their mean", np.concatenate([thirds, -thirds])
    yield "two values", (X > 0).astype(float)
    yield "copies", np.repeat(X[:3], 4, axis=0)
    yield "one trajectory", X[:1]
    yield "two trajectories", X[:2]
    yield "three slices", X[:, :3]
    yield "half precision", X.astype(np.float16)
    yield "one start", np.concatenate([np.zeros((n, 1, 2)), X[:, 1:]], axis=1)
    Y = X.copy()
    Y[0, 0, 0] = np.nan
    yield "one missing", Y
    yield "all missing", np.full_like(X, np.nan)
    yield "heavy tails", rng.standard_cauchy((n, T, 2))
    yield "white noise", rng.standard_normal((n, T, 2))
    yield "explosion", X * np.exp(4 * np.arange(T))[None, :, None]
    yield "empty", np.empty((0, 5, 2))
    yield "flat", X[:, :, 0]
    yield "words", np.full(X.shape, "a")
    yield "complex", X * 1j
    yield "ragged", [[[1.0]], [[1.0], [2.0]]]
    yield "masked", np.ma.masked_greater(X, 0.5)


PATHS = {
    "shared": {},
    "exact": {"estimator": "exact"},
    "score": {"order": "score"},
    "own": {"permutation": "independent", "estimator": "mle", "max_iter": 2},
    "noise": {"observation_noise": "estimate"},
    "gaps": {"spacing": "estimate"},
}
QUICK = ("shared",)
"""Its estimator is chosen by the fit, and is that of "exact"."""


FOUND = [("one trajectory", "gaps"), ("lines", "noise"), ("proportional lines", "noise")]
"""Where a warning of scipy's, and errors of numpy's from behind the fit itself, once came out."""


@pytest.mark.parametrize(("name", "path"), FOUND)
@pytest.mark.parametrize("rounding", [0.0, 1e-15])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_what_once_let_foreign_words_out(name, path, rounding):
    values = dict(odd_arrays())[name]
    other = np.random.default_rng(1).standard_normal(values.shape)
    test_odd_arrays_are_answered_or_refused(path, name, values * (1 + rounding * other))


@pytest.mark.parametrize(
    "path", [p if p in QUICK else pytest.param(p, marks=pytest.mark.statistics) for p in PATHS]
)
@pytest.mark.parametrize(
    ("name", "values"), list(odd_arrays()), ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_odd_arrays_are_answered_or_refused(path, name, values):
    try:
        model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, **PATHS[path]).fit(values)
    except ValueError as error:
        check_ours(error)
        return
    assert model.summary()
    if model.converged_:
        errors = model.standard_errors_
        for each in (model.drift_, model.offset_, model.diffusion_, errors.drift, errors.diffusion):
            assert np.isfinite(each).all()
