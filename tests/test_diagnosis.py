"""What is said before any fit is true of data whose truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.diagnosis import diagnose
from retrace_sde.io.formats import frame_of_array


def look(X, *, own=False, **options):
    table = frame_of_array(X)
    names = [name for name in table.columns if name.startswith("x")]
    panel = rt.Panel.from_frame(
        table, subject="subject", slice=None if own else "slice", variables=names, **options
    )
    return diagnose(panel)


def kinds(found, topic):
    return [finding.kind for finding in found.findings if finding.topic == topic]


def sentences(found):
    return " ".join(finding.sentence for finding in found.findings)


@pytest.fixture(scope="module")
def sde():
    return rt.simulate.random_irreversible_sde(4, random_state=0)


@pytest.mark.parametrize("own", [False, True])
def test_paths_have_an_order_and_noise_has_none(sde, own):
    X = sde.simulate(60, 15, 0.02, x0=0.1, random_state=1)
    assert kinds(look(X, own=own), "order")[0] == "good"
    noise = np.random.default_rng(2).standard_normal((60, 15, 4))
    assert kinds(look(noise, own=own), "order")[0] == "caution"


def test_a_transient_and_a_stationary_process_are_told_apart(sde):
    transient = sde.simulate(100, 15, 0.1, x0=0.1, random_state=1)
    assert kinds(look(transient), "direction") == ["good"]
    calm = [
        sde.simulate(100, 15, 0.1, x0=sde.stationary(), random_state=seed) for seed in range(12)
    ]
    wrong = sum(kinds(look(X), "direction") == ["good"] for X in calm)
    assert wrong <= 3  # of 12 at a level of 5 %: more happens once in 400


def test_cycles_folds_constants_and_repeats_are_named():
    rng = np.random.default_rng(0)
    turn = 2 * np.pi * np.arange(20) / 20
    loop = np.stack([np.cos(turn), np.sin(turn)], axis=-1) + 0.1 * rng.standard_normal((30, 20, 2))
    assert "cycle" in sentences(look(loop))
    walk = rng.standard_normal((30, 12, 3)).cumsum(axis=1)
    assert "cycle" not in sentences(look(walk))
    assert "folds onto itself" in sentences(look(walk[:, :, :1]))
    walk[3, 5] = walk[3, 6]
    assert "(subject '3')" in sentences(look(walk))
    walk[:, :, 2] = walk[:, :, 0] - 2 * walk[:, :, 1]
    assert not look(walk).usable
    levels = np.dstack([walk[:, :, :2], np.sign(walk[:, :, 0]), np.exp(walk[:, :, 1])])
    text = sentences(look(levels))
    assert "At most 5 values occur in 'x2'" in text
    assert "long upper tail: 'x3'" in text


def test_sizes_missing_values_and_times(sde):
    X = sde.simulate(30, 10, 0.05, x0=0.1, random_state=1)
    X[np.random.default_rng(0).random(X.shape) < 0.6] = np.nan
    found = look(X)
    assert (found.subjects, found.slices) == (30, 10)
    np.testing.assert_allclose(found.missing_share, np.isnan(X).mean(axis=(0, 1)))
    assert kinds(found, "missing values") == ["caution"]
    table = frame_of_array(sde.simulate(30, 10, 0.05, x0=0.1, random_state=1))
    table["when"] = table["slice"].astype(float)
    panel = rt.Panel.from_frame(table, subject="subject", slice="slice", time="when")
    assert kinds(diagnose(panel), "order") == []
    table.loc[table["slice"] == "3", "when"] = np.nan
    panel = rt.Panel.from_frame(
        table, subject="subject", slice="slice", time="when", variables=["x0", "x1"]
    )
    assert "known of 9 of 10 slices" in sentences(diagnose(panel))


def test_few_subjects_cannot_tell_the_direction():
    X = np.random.default_rng(0).standard_normal((2, 10, 2)).cumsum(axis=1)
    assert "at least 3" in sentences(look(X))


def test_a_column_called_cycle_is_no_cycle(sde):
    X = sde.simulate(30, 12, 0.05, x0=0.1, random_state=1)
    table = frame_of_array(X).rename(columns={"x0": "cycle"})
    table.loc[0, "cycle"] = np.nan
    found = diagnose(rt.Panel.from_frame(table, subject="subject", slice="slice"))
    assert "cycle" in sentences(found)
    assert len(kinds(found, "direction")) == 1


def test_a_table_of_other_names_reads_the_same():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.standard_normal(60).cumsum(), "b": rng.standard_normal(60)})
    table["p"], table["v"] = np.repeat(range(6), 10), np.tile(range(10), 6)
    panel = rt.Panel.from_frame(table, subject="p", slice="v")
    assert diagnose(panel).to_dict()["variables"] == ("a", "b")


def _panel_of(X):
    n, T, d = X.shape
    frame = pd.DataFrame({f"x{k}": X[..., k].ravel() for k in range(d)})
    return rt.Panel.from_frame(frame.assign(id=np.repeat(np.arange(n), T)), subject="id")


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("digits", [0, 1, None])
def test_duplicates_are_told_from_rounding_and_seen_behind_missing_values(d, digits):
    X = np.cumsum(np.random.default_rng(5).normal(size=(20, 12, d)), axis=1)
    X = X if digits is None else X.round(digits)
    topics = [each.topic for each in diagnose(_panel_of(X)).findings]
    assert "duplicates" not in topics
    if digits is None:
        for missing in (False, True):
            X[3, 5] = X[3, 7]
            if missing and d > 1:
                X[3, [5, 7], 0] = np.nan
            found = [each for each in diagnose(_panel_of(X)).findings if each.topic == "duplicates"]
            assert len(found) == 1
            assert "1 (subject 3)" in found[0].sentence


def test_tables_arrays_and_panels_are_looked_at_alike():
    X = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(12, 6, 0.05, random_state=1)
    panel = rt.Panel.from_array(X)
    j = np.indices(X.shape[:2])[0]
    table = pd.DataFrame({"who": j.ravel(), "x0": X[:, :, 0].ravel(), "x1": X[:, :, 1].ravel()})
    found = rt.diagnose(table, subject="who")
    assert found == rt.diagnose(X) == rt.diagnose(panel)
    assert str(found).startswith("12 subjects, 72 observations, variables x0, x1.")
    assert all(each.sentence in str(found) for each in found.findings)
    with pytest.raises(ValueError, match="name columns of a table"):
        rt.diagnose(panel, subject="who")
