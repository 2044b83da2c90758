"""Bad input gets one clear error; usable input of any kind gives the same answer and stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.panel.validation import _half_is_wide, check_panel

DT = 0.01


@pytest.fixture
def X():
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    return sde.simulate(30, 12, DT, random_state=1)


def bad(X, change):
    other = X.copy()
    change(other)
    return other


def set_nan(X):
    X[4, 7, 1] = np.nan


def set_inf(X):
    X[0, 0, 0] = np.inf


def set_constant(X):
    X[:, :, 2] = 3.0


def set_two_constant(X):
    X[:, :, 1:] = 3.0


def set_duplicate(X):
    X[:, 9] = X[:, 2]


def set_dependent(X):
    X[:, :, 2] = 2 * X[:, :, 0] - X[:, :, 1]


def set_huge(X):
    X *= 1e200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_inf, ["1 infinite", "trajectory 0", "interpolate"]),
        (set_constant, ["'x2'", "constant", "drop"]),
        (set_two_constant, ["variables 'x1', 'x2' are constant", "drop them"]),
        (set_duplicate, ["slices 2, 9", "identical", "keep one"]),
        (set_dependent, ["'x0'", "'x1'", "'x2'", "linearly dependent", "drop"]),
        (set_huge, ["too large", "rescale"]),
    ],
)
def test_unusable_values_are_named_with_place_and_remedy(X, change, words):
    with pytest.raises(ValueError) as caught:
        rt.ReTrace(dt=DT).fit(bad(X, change))
    for word in words:
        assert word in str(caught.value)


def test_missing_values_are_refused_where_the_model_has_no_place_for_them(X):
    with pytest.raises(ValueError) as caught:
        rt.ReTrace(dt=DT, order="score").fit(bad(X, set_nan))
    for word in ["1 missing", "trajectory 4", "slice 7", "'x1'", "interpolate"]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (np.s_[4], ["trajectory 4", "0 observed values", "drop"]),
        (np.s_[1:, 7], ["slice 7", "1 observed value;"]),
        (np.s_[:, :, 1], ["variable 'x1'", "0 observed values"]),
    ],
)
def test_what_was_never_seen_is_named(X, gone, words):
    Y = X.copy()
    Y[gone] = np.nan
    if words == ["slice 7", "1 observed value;"]:
        Y[0, 7, 1:] = np.nan
    with pytest.raises(ValueError) as caught:
        rt.ReTrace(dt=DT).fit(Y)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((30, 12), ["three axes", "(30, 12)", "X[None]"]),
        ((30,), ["three axes"]),
        ((30, 2, 3), ["2 time slices", "at least"]),
        ((0, 12, 3), ["0 trajectories"]),
        ((30, 12, 0), ["0 variables"]),
        ((1, 5, 9), ["4 transitions", "19", "drop variables"]),
    ],
)
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_shapes_that_cannot_be_used(shape, words):
    X = np.random.default_rng(2).standard_normal(shape)
    with pytest.raises(ValueError) as caught:
        rt.ReTrace(dt=DT).fit(X)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "X", [[[["a"]]], np.array([[["2020-01-01"]]]), np.ones((3, 4, 5), complex)]
)
def test_what_is_not_real_numbers_is_refused(X):
    with pytest.raises(ValueError, match="real numbers"):
        rt.ReTrace().fit(X)


def test_ragged_lists_are_refused():
    with pytest.raises(ValueError, match="not a rectangular array"):
        rt.ReTrace().fit([[[1.0], [2.0]], [[1.0]]])


@pytest.mark.parametrize(
    "parameters",
    [
        {"dt": 0},
        {"dt": -1.0},
        {"dt": float("nan")},
        {"permutation": "both"},
        {"order": "fast"},
        {"estimator": "best"},
        {"drift": "cubic"},
        {"max_iter": 0},
        {"alpha": 1.5},
        {"observation_noise": -0.1},
        {"observation_noise": "loud"},
        {"observation_noise": [[1.0, 2.0], [2.0, 1.0]]},
        {"spacing": "guess"},
    ],
)
def test_parameters_are_checked_by_name(X, parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=name):
        rt.ReTrace(**parameters).fit(X)


@pytest.mark.parametrize("option", [{"drift": "signed"}, {"keep": "first"}, {"score": "spline"}])
def test_options_of_the_papers_algorithm_are_checked_by_name(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} must be"):
        rt.paper.ScoreOrder(**option)


def test_covariates_must_belong_to_the_observations(X):
    with pytest.raises(ValueError, match=r"covariates must have shape \(30, 12, k\)"):
        rt.ReTrace(dt=DT).fit(X, covariates=np.zeros((30, 11, 1)))


def test_every_usable_kind_of_array_gives_the_same_answer_and_is_left_alone(X):
    X = np.round(X * 1e4)  # whole numbers, exact in every kind below
    expected = rt.ReTrace(dt=DT).fit(X)
    readonly = X.copy()
    readonly.flags.writeable = False
    kinds = {
        "int64": X.astype(np.int64),
        "int32": X.astype(np.int32),
        "float32": X.astype(np.float32),
        "readonly": readonly,
        "fortran": np.asfortranarray(X),
        "strided": np.repeat(X, 2, axis=1)[:, ::2],
        "list": X.tolist(),
        "panel": rt.Panel.from_array(X, dt=DT),
    }
    for kind, values in kinds.items():
        before = np.array(values.values if kind == "panel" else values)
        model = rt.ReTrace(dt=DT).fit(values)
        np.testing.assert_array_equal(model.order_, expected.order_, err_msg=kind)
        np.testing.assert_allclose(model.drift_, expected.drift_, rtol=1e-8, err_msg=kind)
        after = np.array(values.values if kind == "panel" else values)
        np.testing.assert_array_equal(after, before, err_msg=kind)


def test_a_panels_own_step_and_names_are_used(X):
    panel = rt.Panel.from_array(X, names=["a", "b", "c"], dt=0.5)
    model = rt.ReTrace(dt=DT).fit(panel)
    np.testing.assert_allclose(model.gaps_, 0.5)
    assert model.result_.names == ("a", "b", "c")


def test_another_array_namespace_gives_the_same_answer(X):
    strict = pytest.importorskip("array_api_strict")
    here, there = rt.ReTrace(dt=DT).fit(X), rt.ReTrace(dt=DT).fit(strict.asarray(X))
    np.testing.assert_array_equal(here.order_, there.order_)
    np.testing.assert_allclose(here.drift_, there.drift_, rtol=1e-9)
    assert here.direction_.z == pytest.approx(there.direction_.z, rel=1e-9)


def test_names_are_looked_up_not_compared_each_with_each():
    """A hundred thousand columns used to take minutes."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    d = 300
    X = np.random.default_rng(0).standard_normal((4, 5, d))
    check_panel(rt.Panel.from_array(X, names=tuple(Name(f"gene{k}") for k in range(d))), idle=False)
    assert compared < 10 * d


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"names": ("a", "b", "c")}, "names must be 2"),
        ({"names": ("a", "a")}, "two variables are named 'a'"),
        ({"ids": ("a",)}, "ids must be 4"),
    ],
)
def test_everything_has_one_name_and_variables_their_own(given, words):
    X = np.random.default_rng(0).standard_normal((4, 5, 2))
    named = {"names": ("a", "b"), "ids": tuple("wxyz"), **given}
    with pytest.raises(ValueError, match=words):
        rt.ReTrace().fit(rt.Panel(X, **named))


@pytest.mark.parametrize("pairs", [5, {(0, 1)}, np.array([[0, 1]]), "ab", [0], [(0, 1, 2)]])
def test_precedences_are_a_list_of_pairs(pairs):
    X = np.random.default_rng(0).standard_normal((4, 5, 2))
    with pytest.raises(ValueError, match="precedences"):
        rt.ReTrace().fit(X, knowledge=rt.Knowledge(precedences=pairs))


def test_quartiles_that_are_surely_far_apart_are():
    """Against the quartiles themselves, of variables of which more and more values are equal."""
    rng, found = np.random.default_rng(3), []
    for share in (0.0, 0.2, 0.45, 0.7, 0.9):
        x = np.where(rng.random((4000, 1)) < share, 0.0, rng.standard_normal((4000, 1)))
        low, high = np.quantile(x, (0.25, 0.75), axis=0)
        for least in (1e-6, 0.1, 0.5, 1.0, 1.3, 2.0):
            sure = _half_is_wide(x, np.array([least]))
            found.append(sure)
            assert not sure or (high - low > least).all()
    assert any(found)
    assert not all(found)
