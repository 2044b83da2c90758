"""Masked means missing; and an error of times too small, or too large, to be squared is exact, or says nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.panel.knowledge import bounded_time_error
from retrace_sde.panel.validation import check_panel

DT = 0.1


@pytest.fixture(scope="module")
def shuffled():
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(20, 8, DT, x0=0.3, random_state=1)
    return rt.simulate.shuffle(X, random_state=2)


@pytest.fixture(scope="module")
def holes(shuffled):
    """The same panel with NaN, and masked with 987654 under the mask."""
    X = shuffled[0]
    hidden = np.random.default_rng(0).random(X.shape) < 0.1
    return np.where(hidden, np.nan, X), np.ma.masked_array(np.where(hidden, 987654.0, X), hidden)


def forms(masked):
    return {
        "array": masked,
        "float32": masked.astype(np.float32),
        "list of arrays": list(masked),
        "list of lists of rows": [list(each) for each in masked],
        "panel": rt.Panel.from_array(masked),
        "built panel": rt.Panel(masked, ("x0", "x1"), tuple(map(str, range(20)))),
        "trajectories": rt.Panel.from_trajectories(list(masked)),
        "aeon": rt.Panel.from_aeon(masked.transpose(0, 2, 1)),
    }


@pytest.mark.parametrize("form", ["array", "float32", "list of arrays", "list of lists of rows", "panel",
                                  "built panel", "trajectories", "aeon"])  # fmt: skip
def test_masked_values_are_missing_in_whatever_form(form, holes):
    missing, masked = holes
    before = masked.copy()
    found = check_panel(forms(masked)[form], ragged=True, missing=True).values
    np.testing.assert_allclose(found, missing, rtol=1e-6 if form == "float32" else 0)
    assert not isinstance(found, np.ma.MaskedArray)
    np.testing.assert_array_equal(masked.mask, before.mask)
    np.testing.assert_array_equal(masked.data, before.data)


def test_a_fit_of_masked_values_is_that_of_missing_ones(holes):
    missing, masked = holes
    found, wanted = (rt.ReTrace(dt=DT, random_state=0).fit(each) for each in (masked, missing))
    np.testing.assert_array_equal(found.drift_, wanted.drift_)
    assert found.score(masked) == wanted.score(missing)


def test_masked_integers_and_masks_that_hide_nothing(shuffled):
    X = shuffled[0]
    whole = rt.ReTrace(dt=DT).fit(np.ma.masked_array(X)).drift_
    np.testing.assert_array_equal(whole, rt.ReTrace(dt=DT).fit(X).drift_)
    counts = np.ma.masked_array((X * 1000).round().astype(int))
    counts[0, 0, 0] = np.ma.masked
    wanted = (X * 1000).round()
    wanted[0, 0, 0] = np.nan
    np.testing.assert_array_equal(
        rt.ReTrace(dt=DT).fit(counts).drift_, rt.ReTrace(dt=DT).fit(wanted).drift_
    )
    with pytest.raises(ValueError, match="real numbers"):
        rt.ReTrace(dt=DT).fit(np.ma.masked_array(X.astype(str)))


def test_a_report_of_masked_data_does_not_show_what_the_mask_hides(holes, tmp_path):
    masked = holes[1]
    model = rt.ReTrace(dt=DT, random_state=0).fit(masked)
    assert "987654" not in rt.write_report(model, masked, tmp_path / "r.html").read_text()


def test_masked_times_are_unknown(shuffled):
    X, truth = shuffled
    stamps = np.ma.masked_array(np.argsort(truth) * DT)
    stamps[3] = -50.0
    stamps[3] = np.ma.masked
    known = rt.Knowledge(timestamps=stamps)
    np.testing.assert_array_equal(rt.ReTrace(dt=DT).fit(X, knowledge=known).order_, truth)


ERRORS = [5e-324, 1e-170, 1e-12]
"""The least number there is, one whose square is none, and one whose square is."""


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("permutation", ["shared", "independent"])
@pytest.mark.parametrize("known", ["all", "some"])
def test_times_whose_error_vanishes_when_squared_are_exact(error, permutation, known, shuffled):
    X, truth = shuffled
    stamps = np.argsort(truth) * DT
    if known == "some":
        stamps[truth[3]] = np.nan
    if permutation == "independent":
        stamps = np.tile(stamps, (20, 1))
    model = rt.ReTrace(dt=DT, permutation=permutation, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model.fit(X, knowledge=rt.Knowledge(timestamps=stamps, timestamp_error=error))
        soft = model.order_
        exact = model.fit(X, knowledge=rt.Knowledge(timestamps=stamps)).order_
    np.testing.assert_array_equal(soft, exact)
    places = np.take_along_axis(np.atleast_2d(stamps), np.atleast_2d(soft), axis=1)
    for row in places:
        assert np.all(np.diff(row[~np.isnan(row)]) > 0)


@pytest.mark.parametrize("error", [1e160, 1e300, 1.7e308])
def test_times_whose_error_overflows_say_nothing(error, shuffled):
    X, truth = shuffled
    stamps = np.argsort(truth)[::-1] * DT  # wrong, and known to be so
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = rt.ReTrace(dt=DT).fit(
            X, knowledge=rt.Knowledge(timestamps=stamps, timestamp_error=error)
        )
    np.testing.assert_array_equal(model.order_, rt.ReTrace(dt=DT).fit(X).order_)


def test_errors_of_their_own_are_bounded_one_by_one():
    times = np.array([0.0, 1.0, 2.0, np.nan])
    np.testing.assert_allclose(
        bounded_time_error(times, np.array([1e-200, 0.1, 1e300, np.nan])), [1e-6, 0.1, 2e6, np.nan]
    )
    assert bounded_time_error(times, 0.1) == 0.1
    assert bounded_time_error(times, 1e-200) is None
    for wrong in (
        -1.0,
        0.0,
        np.nan,
        "x",
        np.ones(7),
    ):  # left to the check that has the words for it
        assert bounded_time_error(times, wrong) is wrong


@pytest.mark.parametrize("error", [1e-200, 1e300])
def test_tables_too(error, shuffled):
    X, truth = shuffled
    n, T, _ = X.shape
    frame = pd.DataFrame({"who": np.repeat(np.arange(n), T), "slice": np.tile(np.arange(T), n),
                          "day": np.tile(np.argsort(truth) * 1.0, n), "a": X[:, :, 0].ravel(),
                          "b": X[:, :, 1].ravel()})  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The times span")  # of an error beyond all times
        found = rt.recover(frame, subject="who", slice="slice", time="day", time_error=error, random_state=0)  # fmt: skip
    if error < 1:
        np.testing.assert_array_equal(found.model.order_, truth)
    for wrong in (np.nan, np.inf, 0.0, -1.0):
        with pytest.raises(ValueError, match="time_error must be a positive number"):
            rt.Panel.from_frame(frame, subject="who", slice="slice", time="day", time_error=wrong)


@pytest.mark.parametrize("name", ["timestamps", "schedule"])
def test_dates_and_times_beyond_squares_are_refused(name):
    """Dates would be counted in nanoseconds; gaps of 1e200 ended in words of the linear algebra's own."""
    X = np.random.default_rng(0).standard_normal((12, 6, 2)).cumsum(axis=1)
    days = np.arange("2020-01-01", "2020-01-07", dtype="datetime64[D]").astype("datetime64[ns]")
    for times, said in ((days, "numbers"), (1e200 * np.arange(6), "unit"), (1e-200 * np.arange(6), "unit")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            rt.ReTrace(dt=0.1).fit(X, knowledge=rt.Knowledge(**{name: times}))
