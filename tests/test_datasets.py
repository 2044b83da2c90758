"""The panel that comes with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

import retrace_sde as rt


def test_the_panel_is_whole_and_says_where_it_is_from():
    table = rt.datasets.load_icu()
    assert table.shape == (1440, 7)
    assert not table.isna().any().any()
    assert table.groupby("patient")["hour"].apply(list).map(tuple).nunique() == 1
    text = (files("retrace_sde.datasets") / "README.md").read_text(encoding="utf-8")
    assert "ODC-BY" in text
    assert "Silva et al. 2012" in table.attrs["source"]


def test_time_is_lost_and_can_be_put_back():
    table = rt.datasets.load_icu()
    lost, truth = rt.datasets.lose_time(table, time="hour", random_state=3)
    assert "hour" not in lost.columns
    assert list(truth.values()) == sorted(truth.values())
    back = lost.assign(hour=lost["slice"].map(truth)).sort_values(["patient", "hour"])
    want = table.sort_values(["patient", "hour"])
    np.testing.assert_array_equal(back[table.columns], want[table.columns])
    again, _ = rt.datasets.lose_time(table, time="hour", random_state=3)
    assert lost.equals(again)
