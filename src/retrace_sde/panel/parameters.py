"""One table of the parameters users may pass: name, what it must be in words, and the check.

A name means the same everywhere; where a function or a class differs, the table has `function.name`. Functions are `checked`;
estimators, whose constructors do nothing, check their settings when they are fitted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

MAX_COUNT = 2**31 - 1
"""The largest count: a larger one would never finish."""

MAX_DRAWS = 10**6
"""Steps, draws and replicates, at most: more would exhaust memory and time."""


class Rule(NamedTuple):
    """What a parameter must be: in words, and as a test of a value."""

    words: str
    holds: Callable[[Any], bool]

    def or_none(self, meaning: str = "None") -> Rule:
        """The same, or None."""
        return Rule(f"{self.words}, or {meaning}", lambda v: v is None or self.holds(v))


def _real(v: Any) -> bool:
    """A finite real number (not a bool) within the range of a float."""
    if _whole(v) and abs(v) > 10**300:
        return False
    if isinstance(v, bool | np.bool_) or not isinstance(v, int | float | np.number):
        return False
    return not isinstance(v, np.complexfloating) and abs(float(v)) < np.inf


def _whole(v: Any) -> bool:
    return isinstance(v, int | np.integer) and not isinstance(v, bool)


def _number(words: str, within: Callable[[float], bool]) -> Rule:
    return Rule(words, lambda v: _real(v) and bool(within(float(v))))


def _count(least: int, most: int = MAX_COUNT) -> Rule:
    words = f"a whole number of at least {least}" + (
        f", at most {most}" if most < MAX_COUNT else ""
    )
    return Rule(words, lambda v: _whole(v) and least <= v <= most)


def _one_of(*words: str) -> Rule:
    listed = ", ".join(map(repr, words))
    return Rule(f"one of {listed}", lambda v: isinstance(v, str) and v in words)


def _several_of(v: Any, *words: str) -> bool:
    return isinstance(v, tuple | list | set | frozenset) and len(v) > 0 and set(v) <= set(words)


def _seed(v: Any) -> bool:
    seeds = np.random.Generator | np.random.SeedSequence | np.random.BitGenerator
    return v is None or (_whole(v) and v >= 0) or isinstance(v, seeds)


def _features(v: Any) -> bool:
    if isinstance(v, str):
        return v in ("auto", "alike", "levels", "fixed")
    listed = isinstance(v, tuple | list) and all(_whole(k) and k >= 0 for k in v)
    return listed and len(set(v)) == len(v)


POSITIVE = _number("a positive number", lambda v: v > 0)
NOT_NEGATIVE = _number("a number of at least 0", lambda v: v >= 0)
ANY = _number("a finite number", lambda v: True)
BETWEEN = _number("a number between 0 and 1", lambda v: 0 < v < 1)
SHARE = _number("a number from 0 to 1", lambda v: 0 <= v <= 1)
SWITCH = Rule("True or False", lambda v: isinstance(v, bool | np.bool_))
NAME = Rule("a name", lambda v: isinstance(v, str))
TREATMENT = Rule("a treatment", lambda v: True)  # looked at by what knows the arms
SHARED = _one_of("shared", "independent")

RULES: Mapping[str, Rule] = {
    # of estimators
    "dt": _number(
        "a positive number, between 1e-100 and 1e100", lambda v: 1e-100 <= v <= 1e100
    ),  # its square is one too
    "permutation": SHARED,
    "estimator": _one_of("auto", "mle", "ols", "exact", "em", "mcem"),
    "spacing": _one_of("regular", "estimate"),
    "missing_covariates": _one_of("refuse", "carry", "interpolate"),
    "ReTrace.subjects": _one_of("auto", "alike", "levels", "rates"),
    "common_shocks": Rule(
        "'auto', True or False",
        lambda v: isinstance(v, bool) or (isinstance(v, str) and v == "auto"),
    ),
    "outliers": _one_of("auto", "flag", "keep"),
    "ScoreOrder.drift": _one_of("absolute", "mean"),
    "ScoreOrder.keep": _one_of("best", "last"),
    "transform": _one_of("default", "pandas", "polars"),
    "evidence": Rule(
        "a sequence of 'means', 'spreads' and 'residuals', at least one of them",
        lambda v: _several_of(v, "means", "spreads", "residuals"),
    ),
    "Knowledge.wrong": _number(
        "a share above 0, below 0.5: how many stamps are expected to be wrong",
        lambda v: 0 < v < 0.5,
    ).or_none(),
    "Knowledge.share": _number("a number above 0.5, below 1", lambda v: 0.5 < v < 1),
    "aligned": _one_of("start", "end", "neither").or_none(),
    "max_iter": _count(1),
    "alpha": BETWEEN,
    "random_state": Rule("a whole number of at least 0, a numpy.random.Generator, or None", _seed),
    "n_jobs": Rule(
        "a whole number other than 0, or None for all cores",
        lambda v: v is None or (_whole(v) and v != 0 and abs(v) <= MAX_COUNT),
    ),
    "verbose": Rule("True or False", lambda v: isinstance(v, bool | np.bool_) or _whole(v)),
    "average": SWITCH,
    "TreatmentEffect.direction": _one_of("test", "both"),
    "outside_support": _one_of("refuse", "allow").or_none(),
    "TreatmentEffect.outside_support": _one_of("refuse", "allow"),
    "strength": NOT_NEGATIVE.or_none(),
    "imbalance": POSITIVE,
    "TreatmentEffect.subjects": Rule(
        "'auto', 'alike', 'levels', 'fixed', or a tuple of different features, counted from 0",
        _features,
    ),
    # of what is asked of a fit
    "steps": _count(1, MAX_DRAWS),
    "level": BETWEEN,
    "draws": _count(2, MAX_DRAWS),
    "adopt": SWITCH,
    "horizon": Rule(  # what knows dt looks closer
        "a positive multiple of dt, or None",
        lambda v: v is None or (isinstance(v, int | float | np.number) and not isinstance(v, bool)),
    ),
    "counterfactual.T": TREATMENT,
    "sample_paths.T": TREATMENT,
    "span": POSITIVE.or_none(),
    "title": NAME.or_none(),
    # of processes and simulations
    "n": _count(1),
    "T": _count(1),
    "d": _count(1),
    "scheme": _one_of("euler", "exact"),
    "setting": _one_of("stable", "growing", "rotation", "paper"),
    "sigma": NOT_NEGATIVE,
    "share": SHARE,
    "keep_first": SWITCH,
    "tolerance": NOT_NEGATIVE,
    "arm": _one_of("treated", "untreated", "observational"),
    "sigma_tumour": NOT_NEGATIVE,
    "sigma_obs": NOT_NEGATIVE,
    "variability": NOT_NEGATIVE,
    "confounding": ANY,
    "literature": SWITCH,
    "days": POSITIVE,
    "radiotherapy": NOT_NEGATIVE,
    "degree": _count(1),
    "floor": POSITIVE,
    "interactions": SWITCH,
    "affine": SWITCH,
    "covariances": SWITCH,
    "n_neighbors": _count(1).or_none(),
    "transition": _one_of("symmetric", "random-walk"),
    # of panels
    "Panel.dt": POSITIVE.or_none(),
    "from_frame.dt": POSITIVE.or_none(),
    "time_error": POSITIVE.or_none("None where times are exact"),
    "subject": NAME,
    "arrow_of_time.subject": NAME.or_none(),
    "slice": NAME.or_none(),
    "time": NAME.or_none(),
}


def check(owner: str, given: Mapping[str, Any]) -> None:
    """Everything given to a function or an estimator is what the table says."""
    for name, value in given.items():
        rule = RULES.get(f"{owner}.{name}") or RULES.get(name)
        if rule is not None and not rule.holds(value):
            raise ValueError(f"{name} must be {rule.words}; got {_shown(value)}.")


def _shown(value: Any) -> str:
    """A value in a few words, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return f"a number of {len(hex(value)) * 4} bits"  # Python refuses to print very long ones
    return f"{value!r:.60}"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function or a method whose arguments are looked up in the table before it sees them."""
    signature = inspect.signature(function)
    rest = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

    @wraps(function)
    def with_checks(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(signature.bind(*args, **kwargs).arguments)
        for name in rest:
            given |= given.pop(name, {})
        check(function.__name__, given)
        return function(*args, **kwargs)

    return with_checks
