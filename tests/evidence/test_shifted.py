"""A column shifted by one row is recognised, and said with the table's labels; so are visits that were entered twice."""

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.evidence.suspects.shifted import find_shifted


def panel(seed: int, n: int = 30, T: int = 12):
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    start = 2 + 0.3 * np.random.default_rng(seed).standard_normal((n, 3))
    X = sde.simulate(n, T, 0.1, x0=start, random_state=seed)
    return X[:, np.random.default_rng(seed).permutation(T)]


def table(X):
    n, T, _ = X.shape
    at = [(j, k) for j in range(n) for k in range(T)]
    rows = [
        {"who": f"S{j}", "visit": f"V{k}", "a": X[j, k, 0], "b": X[j, k, 1], "c": X[j, k, 2]}
        for j, k in at
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_shifted_column_is_found(by):
    X = panel(1)
    sequence = np.broadcast_to(np.arange(12), (30, 12))
    assert not find_shifted(X, sequence, slices=True)
    for j in (4, 9):
        X[j, :, 1] = np.roll(X[j, :, 1], -by)
    found = find_shifted(X, sequence, slices=True)
    assert {(e.trajectory, e.variable, e.by) for e in found} == {(4, 1, by), (9, 1, by)}


def test_clean_panels_have_none():
    sequence = np.broadcast_to(np.arange(12), (30, 12))
    rest = np.random.default_rng(0).standard_t(3, (30, 12, 2)).cumsum(axis=1)
    assert not find_shifted(rest, sequence, slices=True)
    assert not any(find_shifted(panel(s), sequence, slices=True) for s in range(2, 12))


def test_diagnose_names_subjects_and_columns():
    X = panel(1)
    X[4, :, 1] = np.roll(X[4, :, 1], 1)
    said = str(rt.diagnose(table(X), subject="who", slice="visit"))
    assert "The column 'b' looks shifted down by one row in subject 'S4'" in said
    assert "shifted" not in str(rt.diagnose(table(panel(1)), subject="who", slice="visit"))


def test_visits_entered_twice_agree_or_not():
    frame = table(panel(1))
    same, other = frame.iloc[[5]], frame.iloc[[7]].assign(a=99.0)
    with pytest.raises(
        ValueError, match=r"slice 'V5', rows 6 and 361\)\. They agree in every variable"
    ):
        rt.diagnose(pd.concat([frame, same]), subject="who", slice="visit")
    with pytest.raises(ValueError, match="1 of 2 such visits disagree"):
        rt.diagnose(pd.concat([frame, same, other]), subject="who", slice="visit")
