from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy import stats

import retrace_sde as rt
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.registry import CANDIDATES
from retrace_sde.evidence.direction.verdict import (
    DirectionTest,
    ModelEvidence,
    Reason,
    Source,
    direction_test,
    doubtful_direction,
    known_direction,
)
from retrace_sde.fit.euler import step_log_likelihoods
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Drift, Linear
from retrace_sde.process.sde import Gaussian
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.models.euler import EulerModel

Floats = NDArray[np.float64]


def panel(
    n: int, T: int, d: int, seed: int, *, spread: float | str | None, dt: float = 0.1
) -> Floats:
    """A stable irreversible panel; the start has `spread` times the stationary deviation, or N(0, I)."""
    sde = random_irreversible_sde(d, random_state=seed)
    law = sde.stationary()
    start: Any = "stationary"
    if spread == "unit":
        start = Gaussian(np.zeros(d), np.eye(d))
    elif isinstance(spread, float):
        start = Gaussian(law.mean, spread**2 * law.covariance)
    return sde.simulate(n, T, dt, x0=start, scheme="exact", random_state=10_000 + seed)


def conditional(X: Floats, drift: Drift, dt: float = 0.1) -> tuple[Floats, Floats]:
    """Step log-likelihoods of the fit in time and of the fit against it, without the start."""
    found = []
    for order in (np.arange(X.shape[1]), np.arange(X.shape[1])[::-1].copy()):
        fit = EulerModel(Data(X, n_jobs=1), dt, drift).fit(order)
        found.append(step_log_likelihoods(Data(X, n_jobs=1), order, fit.step))
    return found[0], found[1]


def judge(X: Floats, dt: float = 0.1, drift: Drift | None = None) -> DirectionTest:
    """The test of the true order against its reverse."""
    problem, order = EulerModel(Data(X, n_jobs=1), dt, drift or Linear()), np.arange(X.shape[1])
    fits = problem.fit(order), problem.fit(order[::-1].copy())
    return direction_test(fits[0].log_likelihoods, fits[1].log_likelihoods, dimension=X.shape[2])


def calls(tests: list[DirectionTest]) -> tuple[int, int]:
    """How many call the true direction, and how many the wrong one."""
    right = sum(test.identified and test.z > 0 for test in tests)
    return right, sum(test.identified and test.z < 0 for test in tests)


# The likelihood ratio


@pytest.mark.parametrize("drift", [Linear(), Affine()])
@pytest.mark.parametrize("spread", [None, 0.1, 3.0])
def test_the_conditional_ratio_is_a_ratio_of_determinants(
    drift: Drift, spread: float | None
) -> None:
    # Residuals of x' on x have determinant |S| / |S₀₀|, of x on x' |S| / |S₁₁|: the joint cancels.
    X = panel(50, 15, 4, 0, spread=spread)
    forward, backward = conditional(X, drift)
    first, last = X[:, :-1].reshape(-1, 4), X[:, 1:].reshape(-1, 4)
    if isinstance(drift, Affine):
        first, last = first - first.mean(axis=0), last - last.mean(axis=0)
    log_det = [np.linalg.slogdet(part.T @ part)[1] for part in (first, last)]
    expected = 0.5 * 50 * 14 * (log_det[0] - log_det[1])
    assert abs(expected) > 0.1
    assert forward.sum() - backward.sum() == pytest.approx(expected, rel=1e-6)


def test_fitting_the_reversed_order_is_fitting_the_reversed_data() -> None:
    X, order = panel(20, 10, 3, 0, spread=0.5), np.arange(10)
    against = EulerModel(Data(X), 0.1, Linear()).fit(order[::-1].copy())
    reversed_data = EulerModel(Data(X[:, ::-1].copy()), 0.1, Linear()).fit(order)
    assert_allclose(against.log_likelihoods, reversed_data.log_likelihoods, rtol=1e-9)
    assert_allclose(against.step.coefficients, reversed_data.step.coefficients, rtol=1e-9)


def test_without_the_start_the_ratio_is_confidently_wrong() -> None:
    X = panel(100, 20, 3, 0, spread=0.1)
    steps_only = direction_test(*conditional(X, Linear()), dimension=3)
    joint = judge(X)
    assert steps_only.identified
    assert steps_only.z < 0
    assert joint.identified
    assert joint.z > 0


# The test


@pytest.mark.parametrize("d", [1, 3, 25, 100])
def test_it_is_the_t_test_of_the_differences_with_an_error_widened_by_the_start(d: int) -> None:
    rng = np.random.default_rng(0)
    n = 25
    forward, backward = rng.normal(0.3, 1, size=(2, n))
    found = direction_test(forward, backward, dimension=d)
    known = stats.ttest_1samp(forward - backward, 0)
    assert found.z == pytest.approx(known.statistic * np.sqrt(n / (n + d)))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(found.z), n - 1))
    assert found.p_value > known.pvalue
    assert found.log_likelihood_ratio == pytest.approx((forward - backward).sum())
    assert_allclose(found.contributions, forward - backward)
    swapped = direction_test(backward, forward, dimension=d)
    assert (swapped.z, swapped.p_value) == pytest.approx((-found.z, found.p_value))


def test_in_many_trajectories_it_is_the_t_test_of_the_differences() -> None:
    forward, backward = np.random.default_rng(0).normal(size=(2, 10_000))
    found = direction_test(forward, backward, dimension=2)
    known = stats.ttest_1samp(forward - backward, 0)
    assert (found.z, found.p_value) == pytest.approx((known.statistic, known.pvalue), rel=1e-3)


def test_the_verdict_says_what_was_found() -> None:
    # z = 10 / (√(5 + 1) 0.79).
    delta, zero = np.array([1.0, 2.0, 3.0, 2.5, 1.5]), np.zeros(5)
    clear = direction_test(delta, zero, dimension=1)
    assert clear.identified
    assert clear.verdict == (
        "The direction of time is identified: log-likelihood ratio +10.0 nats, p = 0.0067."
    )
    strict = direction_test(delta, zero, dimension=1, alpha=0.001)
    assert not strict.identified
    assert "is not decided: this order fits better (log-likelihood ratio +10.0" in strict.verdict
    assert "Both are returned" in strict.verdict
    alike = direction_test(delta / 10 - 0.1, zero, dimension=1, alpha=0.001)
    assert "fit equally well, as they do when the process is stationary" in alike.verdict
    assert "fit equally well" not in strict.verdict
    assert (strict.undecided, alike.undecided, clear.undecided) == (True, False, False)
    certain = direction_test(np.arange(1000.0), np.full(1000, -1e4), dimension=1)
    assert "p < 0.0001" in certain.verdict
    point = direction_test(delta, zero, dimension=1, point_start=True)
    assert point.verdict.startswith(clear.verdict)
    assert "start from (almost) one point" in point.verdict


@pytest.mark.parametrize(("n", "words"), [(1, "1 trajectory:"), (2, "2 trajectories:")])
def test_it_abstains_with_too_few_trajectories(n: int, words: str) -> None:
    found = direction_test(np.full(n, 1e6), np.arange(n, dtype=float), dimension=1)
    assert not found.identified
    assert found.p_value is None
    assert words in found.verdict


def test_it_says_where_its_p_value_comes_from() -> None:
    found = direction_test(np.arange(9.0), np.zeros(9), dimension=1)
    assert found.p_source is Source.VUONG
    assert replace(found, p_error=0.01).p_source is Source.SIMULATION
    assert replace(found, by_reversal=True).p_source is Source.REVERSAL
    assert replace(found, reason=Reason.RESIDUALS).p_source is Source.RESIDUALS
    assert known_direction(found).p_source is None


def test_differences_without_spread() -> None:
    same = direction_test(np.ones(5), np.ones(5), dimension=1)
    assert (same.identified, same.z, same.p_value) == (False, 0.0, 1.0)
    constant = direction_test(np.ones(5), np.full(5, 2.0), dimension=1)
    assert (constant.identified, constant.z, constant.p_value) == (True, -np.inf, 0.0)


# Calibration and power, the true order given


@pytest.mark.parametrize(
    ("drift", "n"),
    [
        (Linear(), 30),
        pytest.param(Affine(), 30, marks=pytest.mark.statistics),
        pytest.param(Linear(), 8, marks=pytest.mark.statistics),
    ],
)
def test_false_calls_on_stationary_data_stay_within_the_level(drift: Drift, n: int) -> None:
    found = [judge(panel(n, 15, 3, seed, spread=None), drift=drift) for seed in range(150)]
    right, wrong = calls(found)
    # At a level of 5 % Binomial(150, 0.05) exceeds 15 with probability 0.5 %.
    assert right + wrong <= 15
    # Neither direction is favoured: the median of z is 0, by the sign test at 0.1 %.
    positive = sum(test.z > 0 for test in found)
    assert stats.binomtest(positive, 150).pvalue > 1e-3


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_a_start_of_half_or_double_width_gives_the_direction_away(spread: float) -> None:
    found = [judge(panel(100, 20, 3, seed, spread=spread)) for seed in range(40)]
    right, wrong = calls(found)
    # At a power of 99 % fewer than 37 of 40 have probability 0.07 %.
    assert right >= 37
    assert wrong == 0


def test_a_mean_that_returns_to_rest_gives_the_direction_away() -> None:
    found = []
    for seed in range(20):
        sde = random_irreversible_sde(3, random_state=seed)
        law = sde.stationary()
        pushed = Gaussian(law.mean + 3 * np.sqrt(np.diag(law.covariance)), law.covariance)
        X = sde.simulate(100, 20, 0.1, x0=pushed, scheme="exact", random_state=seed)
        found.append(judge(X, drift=Affine()))
    assert calls(found) == (20, 0)


def test_the_noise_of_these_panels_is_ill_conditioned() -> None:
    for d in (10, 30):
        H = [random_irreversible_sde(d, random_state=seed).diffusion for seed in range(15)]
        assert np.median(np.linalg.cond(H)) > 300


@pytest.mark.parametrize("dt", [0.1, 0.01])
@pytest.mark.parametrize(
    ("d", "n", "T"), [(10, 40, 30), pytest.param(30, 20, 40, marks=pytest.mark.statistics)]
)
def test_false_calls_in_many_variables_stay_within_the_level(
    d: int, n: int, T: int, dt: float
) -> None:
    found = [judge(panel(n, T, d, seed, spread=None, dt=dt), dt) for seed in range(100)]
    # Binomial(100, 0.05) exceeds 11 with probability 0.4 %.
    assert sum(calls(found)) <= 11
    assert stats.binomtest(sum(test.z > 0 for test in found), 100).pvalue > 1e-3


@pytest.mark.parametrize("dt", [0.1, 0.01])
@pytest.mark.parametrize(("d", "n", "T"), [(10, 200, 50), (30, 60, 40), (30, 20, 40)])
def test_a_start_unlike_the_noise_is_never_called_wrongly(
    d: int, n: int, T: int, dt: float
) -> None:
    # N(0, I) has nothing of the shape of H, and much more spread than H's thin directions.
    found = [judge(panel(n, T, d, seed, spread="unit", dt=dt), dt) for seed in range(15)]
    assert calls(found)[1] == 0


def test_half_the_width_in_ten_variables_gives_the_direction_away() -> None:
    found = [judge(panel(200, 50, 10, seed, spread=0.5)) for seed in range(12)]
    assert calls(found) == (12, 0)


def test_a_narrow_start_of_fewer_trajectories_than_variables_gives_the_direction_away() -> None:
    assert calls([judge(panel(20, 40, 30, seed, spread=0.1)) for seed in range(30)]) == (30, 0)


def test_a_common_start_is_evidence_and_not_a_crash() -> None:
    sde = random_irreversible_sde(3, setting="paper", random_state=0)
    X = sde.simulate(30, 30, 0.01, random_state=0)
    found = judge(X, dt=0.01)
    assert np.all(np.isfinite(found.contributions))
    assert found.identified
    assert found.z > 0


def test_knowledge_is_doubted_only_where_the_data_fit_the_reverse_better() -> None:
    delta, zero = np.array([1.0, 2.0, 3.0, 2.5, 1.5]), np.zeros(5)
    against = known_direction(direction_test(zero, delta, dimension=1))
    agreeing = known_direction(direction_test(delta, zero, dimension=1))
    untested = known_direction(direction_test(zero[:2], delta[:2], dimension=1))
    assert all(each.known and each.identified for each in (against, agreeing, untested))
    assert against.p_value is None
    assert against.evidence.p_value == pytest.approx(0.0067, abs=1e-4)
    assert "nats, p = 0.0067): check that knowledge." in against.verdict
    assert "check" not in agreeing.verdict + untested.verdict


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_words(reason: Reason) -> None:
    test = direction_test(np.arange(5.0), np.zeros(5), dimension=1)
    words = {each: replace(test, reason=each).verdict for each in Reason}
    assert len(set(words.values())) == len(Reason)
    assert words[reason].endswith(".")


@pytest.mark.parametrize("shared", [True, False])
def test_an_abstention_advises_only_what_the_fit_accepts(shared: bool) -> None:
    rng = np.random.default_rng(0)
    test = direction_test(rng.normal(1, 1, 20), np.zeros(20), dimension=1)
    doubt = doubtful_direction(test, test, shared=shared)
    assert not doubt.identified
    assert "Give times" in doubt.verdict
    assert ("spacing='estimate'" in doubt.verdict) == shared


def test_every_model_is_said_in_words() -> None:
    kinds = [
        each.kind for each in CANDIDATES
    ]  # any unique string, a `CandidateKind` where other code asks for it
    assert set(CandidateKind) - {CandidateKind.RESIDUALS} <= set(kinds)
    assert len(set(kinds)) == len(kinds)
    tested = ModelEvidence(CandidateKind.MEMORY, 12.0, 3.0, 0.031, 0.009, counted=True)
    assert tested.p_said == "0.031 ± 0.009"
    bound = ModelEvidence(CandidateKind.MEMORY, 12.0, 30.0, 0.01, 0.00995, counted=True)
    assert bound.p_said == "≤ 0.01"  # none of 99 null panels reaches the ratio
    assert tested.said(20.0) == "memory (evidence -8 nats, ratio +3.0, p = 0.031)"
    assert ModelEvidence(CandidateKind.MARKOV, 12.0, 3.0, 1e-9, 0.0).p_said == "< 0.0001"
    silent = ModelEvidence(CandidateKind.RESIDUALS, 20.0, 0.0, 0.2)
    assert silent.said(20.0) == "non-Gaussian residuals (for neither direction, p = 0.2)"
    heard = ModelEvidence(CandidateKind.RESIDUALS, 20.0, float("-inf"), 0.002, counted=True)
    assert heard.said(20.0) == "non-Gaussian residuals (for the reverse, p = 0.002)"


def test_a_simulated_p_value_close_to_the_level_says_so():
    test = direction_test(np.random.default_rng(0).normal(0.3, 1, 40), np.zeros(40), dimension=2)
    for p, error, close in ((0.04, 0.006, True), (0.04, 0.004, False), (0.04, None, False)):
        one = replace(test, p_value=p, p_error=error)
        assert one.close is close
        assert ("another random_state" in one.verdict) is close
    low = replace(test, identified=False, log_likelihood_ratio=9.0, p_value=0.043, p_error=0.01)
    assert "not below 0.05 by more than its simulation error" in low.verdict
    assert "but not significantly" in replace(low, p_value=0.07).verdict


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_wrong_knowledge_is_doubted_where_the_course_it_turns_round_looks_shared():
    """In reverse no drift explains how the slices move, so that they seem to share shocks; deviations alone hardly contradict."""
    rng, sde = np.random.default_rng(0), rt.LinearSDE([[-1.0, 0.5], [-0.5, -0.6]], 0.2 * np.eye(2))
    x0 = np.array([2.0, 0.0]) + 0.4 * rng.standard_normal((20, 2))
    X = sde.simulate(20, 8, 0.5, x0=x0, random_state=0)

    def doubted(X):
        model = rt.ReTrace(dt=0.5, random_state=0).fit(X, knowledge=rt.Knowledge(first=0))
        return any("or that knowledge is wrong" in each for each in model.result_.notes)

    assert doubted(X[:, ::-1])
    assert not doubted(X)


def test_deviations_are_independent_given_what_a_slice_shares() -> None:
    found = direction_test(np.arange(2.0, 8.0), np.zeros(6), dimension=1)
    assert "Trajectories are independent of one another." in found.assumptions
    about = replace(found, deviations=True).assumptions
    assert "Trajectories are independent of one another, given what is common to a slice." in about
