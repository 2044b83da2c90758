"""Tables of any library become the panel they stand for, and nothing is guessed or filled in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import retrace_sde as rt

KINDS = {
    "pandas": lambda table: table,
    "pandas, nullable": lambda table: table.convert_dtypes(),
    "pandas, odd index": lambda table: table.set_index(np.arange(len(table))[::-1] * 3),
    "polars": pl.from_pandas,
    "polars, lazy": lambda table: pl.from_pandas(table).lazy(),
    "pyarrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    rows = [
        (f"s{j}", f"p{t}", *rng.standard_normal(2), 10 * j + t) for j in range(3) for t in range(4)
    ]
    return pd.DataFrame(rows, columns=["who", "plate", "a", "b", "dose"]).sample(
        frac=1, random_state=1, ignore_index=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_gives_the_same_panel(kind, table):
    options = {"subject": "who", "slice": "plate", "covariates": "dose"}
    panel = rt.Panel.from_frame(KINDS[kind](table), **options)
    assert panel.values.shape == (3, 4, 2)
    assert (panel.names, panel.covariate_names) == (("a", "b"), ("dose",))
    for j, who in enumerate(panel.ids):
        for t, plate in enumerate(panel.slices):
            row = table[(table.who == who) & (table.plate == plate)].iloc[0]
            np.testing.assert_array_equal(panel.values[j, t], [row.a, row.b])
            assert panel.covariates[j, t, 0] == row.dose
            assert panel.rows[j, t] == row.name


def test_without_a_slice_the_rows_of_a_subject_are_its_observations(table):
    ragged = table.drop(index=table.index[table.who == "s1"][:1])
    panel = rt.Panel.from_frame(ragged, subject="who", variables=["a", "b"])
    assert panel.slices is None
    lengths = dict(zip(panel.ids, panel.lengths, strict=True))
    assert lengths == {"s0": 4, "s1": 3, "s2": 4}
    j = panel.ids.index("s1")
    own = ragged[ragged.who == "s1"]
    np.testing.assert_array_equal(panel.values[j, :3, 0], own.a)
    np.testing.assert_array_equal(panel.values[j, 3], panel.values[j, 2])  # padding
    assert panel.rows[j, 3] == -1


def test_missing_values_and_missing_rows_stay_missing(table):
    holes = table.copy()
    holes.loc[2, "a"] = np.nan
    holes = holes.drop(index=5)
    panel = rt.Panel.from_frame(pl.from_pandas(holes), subject="who", slice="plate", variables="a")
    assert np.isnan(panel.values).sum() == 2
    assert (panel.rows < 0).sum() == 1
    assert panel.notes == ("1 of 12 combinations of subject and slice have no row",)


def test_rows_without_any_value_have_no_place_in_an_order_of_their_own(table):
    empty = table.copy()
    empty.loc[empty.who == "s2", ["a", "b"]] = np.nan
    empty.loc[empty.index[empty.who == "s0"][0], ["a", "b"]] = np.nan
    panel = rt.Panel.from_frame(empty, subject="who", variables=["a", "b"])
    assert set(panel.ids) == {"s0", "s1"}
    assert sorted(panel.lengths) == [3, 4]
    assert "5 rows without any value" in panel.notes[0]
    assert "'s2'" in panel.notes[1]


def test_variables_are_the_numeric_columns_that_change_within_subjects(table):
    more = table.assign(sex="f", age=table.who.str[1:].astype(int), day=pd.Timestamp("2020-01-01"))
    panel = rt.Panel.from_frame(more, subject="who", slice="plate")
    assert panel.names == ("a", "b", "dose")
    assert panel.notes[0] == (
        "left out, since constant within every subject: 'age'; a treatment among them can be an input (covariates=)"
    )
    assert panel.notes[1] == "left out, since not numeric: 'sex', 'day'"


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("a", pd.Categorical(["x", "y"] * 6), "column 'a' is categorical, not numeric"),
        ("a", [True, False] * 6, "column 'a' is boolean, .* name it as an input \\(covariates=\\), write it as 0 and 1"),
        ("a", ["no", "yes"] * 6, "'no' in row 1 and 11 more cells. Write it as 0 and 1"),
        ("a", ["low"] + ["high"] * 11, "'low' in row 1 and 11 more cells"),
        ("a", [str(k) for k in range(12)], "numbers stored as text"),
        ("a", [1, "x"] * 6, "'x' in row 2"),
        ("a", [1 + 2j] * 12, "column 'a'"),
        ("a", [7.0] * 12, "never changes within a subject"),
        ("a", [np.nan] * 12, "never changes within a subject \\(or is empty"),
        ("who", [None] + ["x"] * 11, "'who' is empty in 1 rows, the first of them row 1"),
        ("who", [1, "1"] * 6, "a number and a text"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_number_is_refused_by_name(table, column, values, words):
    with pytest.raises(ValueError, match=words):
        rt.Panel.from_frame(
            table.assign(**{column: values}), subject="who", slice="plate", variables=["a"]
        )


def test_one_word_among_numbers_is_not_a_reason_to_leave_a_column_out(table):
    cells = table.a.astype(object)
    cells[3] = "n/a?"
    with pytest.raises(ValueError, match=r"'n/a\?' in row 4"):
        rt.Panel.from_frame(table.assign(a=cells), subject="who", slice="plate")


def test_duplicates_are_reported_by_subject(table):
    twice = pd.concat([table, table[table.who != "s1"].iloc[[0, 3, 5]]])
    with pytest.raises(
        ValueError, match=r"more than one row for the same slice: subject 's\d', 's\d' \(first"
    ):
        rt.Panel.from_frame(twice, subject="who", slice="plate")


def test_what_is_not_a_table_is_refused_with_a_hint():
    with pytest.raises(ValueError, match=r"Panel\.from_array"):
        rt.Panel.from_frame(np.zeros((3, 4)), subject="x")
    with pytest.raises(ValueError, match=r"unique column names.*'x' 2 times"):
        rt.Panel.from_frame(pa.table([[1], [2]], names=["x", "x"]), subject="x")
    with pytest.raises(ValueError, match=r"unique column names.*'x' 2 times"):
        rt.Panel.from_frame(pd.DataFrame([[1, 2]], columns=["x", "x"]), subject="x")


def times_of(table, values, **options):
    panel = rt.Panel.from_frame(
        table.assign(when=values), subject="who", variables=["a"], time="when", **options
    )
    found = np.full(len(table), np.nan)
    inside = panel.rows >= 0
    found[panel.rows[inside]] = panel.times[inside]
    return found


def test_numbers_are_times_as_they_are_and_gaps_stay_gaps(table):
    stamps = np.arange(12) * 0.5 + 100
    stamps[4] = np.nan
    np.testing.assert_array_equal(times_of(table, stamps), stamps)


@pytest.mark.parametrize(("unit", "size"), [("days", 1), ("hours", 24), ("weeks", 1 / 7)])
def test_dates_count_from_the_earliest_in_the_unit_asked_for(table, unit, size):
    days = [dt.date(2021, 3, 1) + dt.timedelta(days=3 * k) for k in range(12)]
    expected = 3.0 * np.arange(12) * size
    stamps = [day.isoformat() for day in days]
    for values in (days, pd.to_datetime(pd.Series(days)), stamps):
        np.testing.assert_allclose(times_of(table, values, time_unit=unit), expected)
    stamps[3] = None
    assert np.flatnonzero(np.isnan(times_of(table, stamps))).tolist() == [3]


def test_time_zones_and_summer_time_are_one_scale(table):
    """Across the change to summer time a local day is 23 hours long."""
    local = pd.date_range("2021-03-27 12:00", periods=12, freq="D", tz="Europe/Berlin")
    expected = np.append([0, 23], 23 + 24 * np.arange(1, 11))
    np.testing.assert_allclose(times_of(table, local, time_unit="hours"), expected)
    mixed = [f"2021-01-01T{12 + k % 3:02d}:00:00+0{k % 3}:00" for k in range(12)]
    np.testing.assert_allclose(times_of(table, mixed), 0)


def test_times_that_are_neither_numbers_nor_dates_are_refused(table):
    with pytest.raises(ValueError, match=r"'01/02/2021' with the day or the month first"):
        times_of(table, ["01/02/2021"] * 12)
    with pytest.raises(ValueError, match="time_unit must be one of"):
        times_of(table, ["2021-01-01"] * 12, time_unit="fortnights")


def test_slices_have_the_mean_of_their_times(table):
    nominal = table.plate.str[1:].astype(float)
    panel = rt.Panel.from_frame(
        table.assign(when=nominal), subject="who", slice="plate", variables="a", time="when"
    )
    assert panel.times.tolist() == [float(name[1:]) for name in panel.slices]
    late = nominal + 0.3 * (table.who == "s1")
    panel = rt.Panel.from_frame(
        table.assign(when=late), subject="who", slice="plate", variables="a", time="when"
    )
    np.testing.assert_allclose(panel.times, [float(name[1:]) + 0.1 for name in panel.slices])
    assert "their mean is used" in panel.notes[0]


ROLES = {"subject": "who", "slice": "plate", "variables": "a", "time": "when"}


def test_times_that_differ_more_within_slices_than_between_them_are_refused(table):
    """A measured variable, or clocks that nobody shares: no slice has a time of its own."""
    nominal, who = table.plate.str[1:].astype(float), table.who.str[1:].astype(float)
    apart = (nominal + 20.0 * who).where((who + nominal) % 3 > 0)  # nobody has them all
    for wrong in (table.b, apart, nominal * (1 + 9 * who)):
        with pytest.raises(ValueError, match="since each subject's first visit"):
            rt.Panel.from_frame(table.assign(when=wrong), **ROLES)
        assert rt.Panel.from_frame(table.assign(when=wrong), **ROLES, time_error=2.0).times.shape


@pytest.mark.parametrize("missing", [0, 2])
def test_clocks_that_begin_elsewhere_and_go_on_alike_are_counted_from_the_first_slice(
    table, missing
):
    """Ages, staggered enrolment: advised to be named as time, and then refused, until they were."""
    nominal = table.plate.str[1:].astype(float)
    when = nominal**2 + 20.0 * table.who.str[1:].astype(float) + 0.1 * (table.index % 2)
    when[(table.who == "s2").to_numpy().nonzero()[0][:missing]] = np.nan
    panel = rt.Panel.from_frame(table.assign(when=when), **ROLES)
    expected = np.array([float(name[1:]) ** 2 for name in panel.slices])
    np.testing.assert_allclose(panel.times, expected - expected.min(), atol=0.11)
    assert any("since the first slice" in note for note in panel.notes)


def test_what_a_fit_wrote_is_not_analysed_again(table):
    extra = ["position", "time", "position_probability", "retrace_position"]
    rng = np.random.default_rng(1)
    again = table.assign(**{name: rng.standard_normal(12) for name in extra})
    roles = {"subject": "who", "slice": "plate"}
    plain = rt.Panel.from_frame(table, **roles)
    panel = rt.Panel.from_frame(again, **roles)
    assert panel.names == plain.names
    assert any("a fit wrote them: 'position'" in note for note in panel.notes)
    one = rt.Panel.from_frame(again.drop(columns=extra[2:]), **roles)
    assert one.names == (*plain.names, "position", "time")
    assert rt.Panel.from_frame(again, variables="position", **roles).names == ("position",)


@pytest.mark.parametrize("name", [7, ("a", "b")])
def test_names_that_are_not_text_are_refused(name, table):
    columns = [name if each == "b" else each for each in table.columns]
    odd = table.set_axis(pd.Index(columns, tupleize_cols=False), axis=1)
    with pytest.raises(ValueError, match="must be named by text"):
        rt.Panel.from_frame(odd, subject="who", slice="plate")


@pytest.mark.parametrize("kind", [lambda table: table, pl.from_pandas])
def test_decimals_are_numbers(kind, table):
    exact = kind(table.assign(a=[Decimal(str(round(each, 3))) for each in table.a]))
    panel = rt.Panel.from_frame(exact, subject="who", slice="plate", variables=["a", "b"])
    plain = rt.Panel.from_frame(table.round(3), subject="who", slice="plate", variables=["a", "b"])
    np.testing.assert_allclose(panel.values[..., 0], plain.values[..., 0])
    assert "a" in rt.Panel.from_frame(exact, subject="who", slice="plate").names


def test_a_unit_needs_times(table):
    with pytest.raises(ValueError, match="but no time"):
        rt.Panel.from_frame(table, subject="who", slice="plate", time_unit="days")


def test_true_and_false_are_inputs_where_they_are_named(table):
    given = np.arange(len(table)) % 2 == 1
    asked = {"subject": "who", "slice": "plate", "variables": ["a", "b"], "covariates": "on"}
    numbers = rt.Panel.from_frame(table.assign(on=given.astype(int)), **asked)
    for column in (given, given.astype(object), pd.array(given, dtype="boolean")):
        panel = rt.Panel.from_frame(table.assign(on=column), **asked)
        np.testing.assert_array_equal(panel.covariates, numbers.covariates)
    holes = given.astype(object)
    holes[3] = None
    panel = rt.Panel.from_frame(table.assign(on=holes), **asked)
    assert np.isnan(panel.covariates).sum() == 1 + np.isnan(numbers.covariates).sum()
    left = rt.Panel.from_frame(table.assign(on=given, sex="f"), subject="who", slice="plate")
    assert left.notes[:2] == (
        "left out, since boolean: 'on'; a treatment among them can be an input (covariates=)",
        "left out, since not numeric: 'sex'",
    )


def test_arrays_of_true_and_false_are_inputs():
    X = np.random.default_rng(0).normal(size=(20, 6, 1))
    on = np.random.default_rng(1).random((20, 6, 1)) < 0.5
    found = [
        rt.ReTrace(random_state=0).fit(X, covariates=u).inputs_ for u in (on, on.astype(float))
    ]
    np.testing.assert_array_equal(*found)
