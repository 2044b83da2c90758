"""Nonlinear drifts where states are hidden: one clear sentence, whatever hides them."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.estimator.checks import no_diffusion

DT = 0.1
REMEDIES = ["drift='affine'", "inputs", "leave out trajectories", "average replicates"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return 5 + 0.3 * rng.standard_normal((20, 8, 1)).cumsum(axis=1)


def with_gap(X):
    Y = X.copy()
    Y[3, 5, 0] = np.nan
    return Y


def refusal(X, **given):
    knowledge = given.pop("knowledge", None)
    with pytest.raises(ValueError) as caught:
        rt.ReTrace(dt=DT, n_jobs=1, **given).fit(X, knowledge=knowledge)
    return str(caught.value)


@pytest.mark.parametrize("permutation", ["shared", "independent"])
@pytest.mark.parametrize("drift", [rt.drift.Polynomial(2), "tumour"])
def test_noise_and_missing_values_are_refused_with_the_drift_s_name_and_what_to_do(
    X, drift, permutation
):
    options = {"drift": drift, "permutation": permutation}
    name = str(rt.drift.as_drift(drift))
    noisy = refusal(X, observation_noise=0.1, **options)
    missing = refusal(with_gap(X), **options)
    for sentence in (noisy, missing):
        for words in [f"cannot be combined with {name}", *REMEDIES]:
            assert words in sentence
    assert noisy.startswith("observation_noise")
    for words in ["1 missing", "trajectory 3", "slice 5", "'x0'", "Missing values cannot"]:
        assert words in missing


def test_infinite_values_are_not_called_missing(X):
    Y = X.copy()
    Y[3, 5, 0] = np.inf
    sentence = refusal(Y, drift=rt.drift.Polynomial(2))
    assert "Drop those" in sentence
    assert "affine" not in sentence


def test_other_data_with_missing_values_are_refused_alike(X):
    model = rt.ReTrace(dt=DT, drift=rt.drift.Polynomial(2), n_jobs=1, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"Missing values cannot be combined with Polynomial"):
        model.reorder(with_gap(X))


@pytest.mark.parametrize(
    "given",
    [
        {"knowledge": rt.Knowledge(schedule=[0, 1, 2, 4, 7, 8, 9, 12])},
        {"spacing": "estimate", "permutation": "independent"},
    ],
)
def test_gaps_of_any_length_are_refused_by_their_own_name(X, given):
    sentence = refusal(X, drift=rt.drift.Polynomial(2), **given)
    for words in ["a schedule, or gaps", "Polynomial(degree=2", "drift='affine'", "equal steps"]:
        assert words in sentence
    assert "replicates" not in sentence


@pytest.mark.filterwarnings("ignore:The order may be folded")
def test_a_polynomial_of_degree_one_is_affine_behind_noise(X):
    options = {"dt": DT, "observation_noise": 0.1, "random_state": 0, "n_jobs": 1}
    affine = rt.ReTrace(drift="affine", **options).fit(with_gap(X))
    same = rt.ReTrace(drift=rt.drift.Polynomial(1), **options).fit(with_gap(X))
    assert np.array_equal(same.order_, affine.order_)
    assert np.array_equal(same.drift_, affine.drift_)


@pytest.mark.parametrize("seed", [2, 5])
def test_too_few_values_are_said_to_be_too_few(seed):
    """Own orders of 6 subjects at 5 times, .4 of the values missing: variables were said to follow from the state, as if measured without noise."""
    X = rt.simulate.random_irreversible_sde(3, random_state=seed).simulate(
        6, 5, DT, random_state=seed
    )
    X[np.random.default_rng(seed).random(X.shape) < 0.4] = np.nan
    X, _ = rt.simulate.shuffle(X, permutation="independent", random_state=seed)
    sentence = refusal(X, permutation="independent", random_state=0)
    share = f"with {np.isnan(X).mean():.0%} of the values missing"
    for part in ("the likelihood has no maximum", share, "more trajectories"):
        assert part in sentence


def test_a_variable_without_noise_may_be_one_of_few_values(X):
    """A fit of 5 subjects at 8 times, .6 of the values missing, was told that it was measured without noise."""
    assert "missing" not in no_diffusion(rt.Panel.from_array(X), 0)
    Y = X.copy()
    Y[:, ::2] = np.nan
    sentence = no_diffusion(rt.Panel.from_array(Y), 0)
    assert "variable 'x0' has no measurable noise" in sentence
    assert "too few values are observed (50% are missing): then give more" in sentence
