"""The same data, the same answer, on every path: stored order, units of variables and of time, precision and jobs change nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import retrace_sde as rt

DT, N = 0.1, 12
PATHS = [
    f"{space} {what}" for space in ("shared", "own") for what in ("plain", "noise", "missing", "stamps", "before", "gaps")
]  # fmt: skip
LONG = ("own noise", "own missing", "own gaps")
"""Paths whose fits sample for long: of five observations."""
CHANGES = ["places", "units", "time", "precision", "jobs"]


def data(path, seed):
    """X, the options of the fit, and what is known."""
    space, what = path.split()
    own, rng = space == "own", np.random.default_rng(seed)
    T = 5 if path in LONG else 7
    sde = rt.simulate.random_irreversible_sde(2, random_state=rng)
    X = sde.simulate(N, T, DT, x0=0.4, random_state=rng)
    options, known = {"permutation": "independent" if own else "shared"}, {}
    if what == "noise":
        X = X + 0.05 * rng.standard_normal(X.shape)
        options["observation_noise"] = "diagonal"
    elif what == "missing":
        X[:, :, 1][rng.random((N, T)) < 0.1] = np.nan
    elif what == "stamps":
        stamps = np.full((N, T) if own else T, np.nan)
        stamps[..., :3] = DT * np.arange(3)
        known = {"timestamps": stamps, "timestamp_error": 0.1}
    elif what == "before":
        known = {"precedences": [(j, 0, 5) for j in range(N)] if own else [(0, 5)]}
    elif what == "gaps":
        options["spacing"] = "estimate"
    return X, options, known


def fit(X, options, known, **more):
    model = rt.ReTrace(**{"dt": DT, "n_jobs": 1, "random_state": 0, **options, **more})
    return model.fit(X, knowledge=rt.Knowledge(**known) if known else None)


def places(X, known, own, rng):
    """The data with trajectories and slices, or observations, in other places, and how to bring an order back."""
    T, rows = X.shape[1], rng.permutation(N)
    columns = np.argsort(rng.random((N, T)), axis=1) if own else rng.permutation(T)
    Y = np.take_along_axis(X[rows], columns[:, :, None], axis=1) if own else X[rows][:, columns]
    there = dict(known)
    if "timestamps" in known:
        s = known["timestamps"]
        there["timestamps"] = np.take_along_axis(s[rows], columns, axis=1) if own else s[columns]
    if "precedences" in known and own:
        j, at = np.argsort(rows), np.argsort(columns, axis=1)
        pairs = [(j[k], at[j[k], a], at[j[k], b]) for k, a, b in known["precedences"]]
        there["precedences"] = [tuple(map(int, each)) for each in pairs]
    elif "precedences" in known:
        at = np.argsort(columns)
        there["precedences"] = [(int(at[a]), int(at[b])) for a, b in known["precedences"]]

    def back(order):
        if not own:
            return columns[order]
        found = np.empty_like(order)
        found[rows] = np.take_along_axis(columns, order, axis=1)
        return found

    return Y, there, back


def check(one, other, order, scale=1.0, time=1.0):
    np.testing.assert_array_equal(order, one.order_)
    scale = np.broadcast_to(scale, len(one.diffusion_))
    A, H = one.drift_ * np.divide.outer(scale, scale), one.diffusion_ * np.outer(scale, scale)
    size = np.abs(one.drift_).max() * np.divide.outer(scale, scale)
    np.testing.assert_allclose((other.drift_ * time - A) / size, 0, atol=1e-8)
    size = np.sqrt(np.outer(np.diag(H), np.diag(H)))
    np.testing.assert_allclose((other.diffusion_ * time - H) / size, 0, atol=1e-8)
    a, b = one.direction_, other.direction_
    assert a.identified == b.identified
    assert a.reason is b.reason
    if a.p_value is not None:
        assert a.p_value == pytest.approx(b.p_value, abs=1e-6)  # EM ends by a rise in nats


@cache
def as_stored(path, seed):
    """The fit that all changes are compared with."""
    return fit(*data(path, seed))


def run(path, change, seed):
    X, options, known = data(path, seed)
    rng, own = np.random.default_rng(seed + 1), path.startswith("own")
    if change == "precision":
        X = X.astype(np.float32)
        one, other = fit(X.astype(float), options, known), fit(X, options, known)
        return check(one, other, other.order_)
    one = as_stored(path, seed)
    if change == "places":
        Y, there, back = places(X, known, own, rng)
        other = fit(Y, options, there)
        return check(one, other, back(other.order_))
    if change == "units":
        scale = 2.0 ** rng.integers(-20, 20, 2) if own else 10.0 ** rng.uniform(-4, 4, 2)
        shift = np.zeros(2) if own else rng.normal(size=2) * scale
        other = fit(X * scale + shift, options, known)
        return check(one, other, other.order_, scale=scale)
    if change == "time":
        unit = 64.0 if own else 60.0
        there = {k: v * unit if k.startswith("time") else v for k, v in known.items()}
        other = fit(X, options, there, dt=unit * DT)
        return check(one, other, other.order_, time=unit)
    other = fit(X, options, known, n_jobs=2)
    return check(one, other, other.order_)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("shared")])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_the_same_data_have_the_same_answer(path, change):
    run(path, change, 100)


@pytest.mark.parametrize("unit", [1e-99, 1e-11, 1e99])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_time_may_be_counted_in_any_unit(unit):
    X, options, known = data("shared plain", 100)
    one, other = fit(X, options, known), fit(X, options, known, dt=unit * DT)
    check(one, other, other.order_, time=unit)
    a, b = (each.result_.subjects.nats for each in (one, other))
    assert a == pytest.approx(b, abs=1e-6)


@pytest.mark.statistics
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_the_same_data_have_the_same_answer_on_every_path_and_seed(path, seed):
    """Twenty seeds of each path, every change in four of them; own orders sample, so that units are powers of two there:
    what rounds nothing."""
    run(path, CHANGES[seed % len(CHANGES)], 200 + seed)
