"""Groups of trajectories that may be alike: what is known of them at the entry, and who acts on them."""

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.groups import group_codes

SDE = rt.LinearSDE([[-0.6, 0.4], [-0.4, -0.6]], np.eye(2))


def panel(n=12, T=8, seed=0):
    return SDE.simulate(n, T, 0.2, x0=[3.0, 0.0], random_state=seed)


def fitted(X, **options):
    return rt.ReTrace(dt=0.2, subjects="alike", random_state=0).fit(X, **options)


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "a", "b", "c"],
        [1, 1, 2, 3],
        np.array([1.5, 1.5, 2, 3]),
        [(0, 1), (0, 1), (1, 1), "z"],
        pd.Categorical(["x", "x", "y", "z"]),
        pd.Series(["x", "x", "y", "z"], index=[7, 8, 9, 7]),
        np.ma.array([4, 4, 5, 6]),
    ],
    ids=str,
)
def test_labels_are_anything_that_can_be_hashed(labels):
    np.testing.assert_array_equal(group_codes(labels, 4), [0, 0, 1, 2])


def test_labels_that_cannot_be_used_are_refused():
    X = panel()
    for groups, said in (
        ([1, 2, 3], "one label for each of the 12 trajectories"),
        ("litter", "one label for each of the 12"),
        (np.zeros((12, 2)), "one label for each of the 12"),
        ([None, *range(11)], "the first that of trajectory 0"),
        (np.r_[np.nan, np.arange(11)], "missing"),
        (np.ma.array(np.arange(12), mask=np.arange(12) == 3), "trajectory 3"),
        ([[1]] * 12, "one label|hashable"),
    ):
        with pytest.raises(ValueError, match=said):
            fitted(X, groups=groups)
    with pytest.raises(ValueError, match="given twice"):
        fitted(rt.Panel.from_array(X, groups=range(12)), groups=range(12))


def test_groups_stay_with_their_trajectories():
    X, labels = panel(), np.repeat(["p", "q", "r", "s"], 3)
    model = fitted(X, groups=labels)
    places = model._memory.places
    groups = model._memory.model.data.groups
    assert len(set(zip(groups, labels[places.rows], strict=True))) == 4
    assert model._memory.model.data.n_groups == 4
    data = Data(X, groups=np.repeat(np.arange(4), 3))
    np.testing.assert_array_equal(data.take(np.array([5, 0, 11, 4])).groups, [0, 1, 2, 0])
    np.testing.assert_allclose(data.by_group(X[:, 0]), X[:, 0].reshape(4, 3, 2).sum(axis=1))
    some = rt.Panel.from_array(X, groups=labels)[[0, 4, 11]]
    assert list(some.groups) == ["p", "q", "s"]


def test_a_table_has_one_group_for_each_subject():
    X = panel()
    n, T, _ = X.shape
    table = pd.DataFrame(X.reshape(-1, 2), columns=["x", "y"])
    table["who"], table["when"] = np.repeat(np.arange(n), T), np.tile(np.arange(T), n)
    table["litter"] = np.repeat([f"L{k}" for k in range(4)], 3 * T)
    given = {"subject": "who", "slice": "when"}
    found = rt.recover(table, **given, group="litter", dt=0.2, random_state=0, subjects="alike")
    assert found.model._memory.model.data.n_groups == 4
    assert found.panel.names == ("x", "y")
    table.loc[3 * T + 1, "litter"] = "L0"
    with pytest.raises(ValueError, match="subject 3 belongs to more than one group"):
        rt.Panel.from_frame(table, **given, group="litter")
    table["litter"] = table["litter"].where(table["who"] != 2)
    with pytest.raises(ValueError, match="group column 'litter' is empty"):
        rt.Panel.from_frame(table, **given, group="litter")


def test_groups_of_one_change_nothing():
    X = panel()
    plain, alone = fitted(X), fitted(X, groups=list("abcdefghijkl"))
    assert alone.result_ == plain.result_
    assert alone._memory.model.data.groups is None


def test_groups_pass_through_a_grid_search():
    from sklearn.model_selection import GridSearchCV, GroupKFold

    X, labels = panel(), np.repeat(list("pqrs"), 3)
    X = rt.Panel.from_array(X, groups=labels)
    search = GridSearchCV(
        rt.ReTrace(dt=0.2, subjects="alike", random_state=0), {"drift": ["affine"]},
        cv=GroupKFold(2),
    ).fit(X, groups=labels)  # fmt: skip
    assert search.best_estimator_._memory.model.data.n_groups == 4


def test_the_direction_counts_groups():
    from retrace_sde.evidence.direction.verdict import direction_test

    delta = np.random.default_rng(0).normal(0.3, 1, 12)
    one = direction_test(delta, np.zeros(12), dimension=2)
    three, groups = np.repeat(delta, 3), np.repeat(np.arange(12), 3)
    again = direction_test(three, np.zeros(36), dimension=2, groups=groups)
    assert again.z == pytest.approx(one.z)
    assert again.p_value == pytest.approx(one.p_value)
    assert direction_test(three, np.zeros(36), dimension=2).z > 1.5 * one.z
    few = direction_test(delta, np.zeros(12), dimension=2, groups=np.arange(12) % 2)
    assert "cannot be tested on 2 groups" in few.verdict


def test_the_order_of_rows_changes_nothing():
    X, labels = panel(18), np.repeat(np.arange(6), 3)
    shuffled = np.random.default_rng(1).permutation(18)
    one, two = fitted(X, groups=labels), fitted(X[shuffled], groups=-labels[shuffled])
    for name in ("drift_", "direction_.z", "standard_errors_.drift"):
        first, *rest = name.split(".")
        values = [getattr(each, first) for each in (one, two)]
        values = [getattr(each, rest[0]) if rest else each for each in values]
        np.testing.assert_array_equal(*values)
