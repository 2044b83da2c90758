"""What an effect assumes: errors of the jackknife, positivity, confounded levels, hidden variables, single subjects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrace_sde.effects.subject_model import fit_model
from retrace_sde.effects.treatment import OutsideSupportError, TreatmentEffect
from retrace_sde.io.arrays import Array
from retrace_sde.process.drift import Polynomial

N, T, DT, RATE, GAIN = 60, 10, 0.2, -0.7, 0.6
ORDER = np.arange(T)
TRUTH = GAIN * ((1 + RATE * DT) ** (T - 1) - 1) / RATE
"""The effect of treatment throughout, a geometric series."""


def _panel(
    seed: int,
    *,
    frailty: float = 0.0,
    feedback: float = 0.0,
    drugs: int = 1,
    n: int = N,
    kept: int = 1,
    dt: float = DT,
) -> tuple[Array, Array]:
    """Levels of sd .5 and treatment at random, drawn anew every `kept` visits; with `frailty` subjects with high levels are treated
    more often, with `feedback` those in a high state."""
    rng = np.random.default_rng(seed)
    own = 0.5 * rng.normal(size=(n, 1))
    x, u = [-own / RATE + 0.6 * rng.normal(size=(n, 1))], []
    for t in range(T):
        odds = 2 * frailty * own + feedback * x[-1]
        if t % kept:
            u.append(u[-1])
        elif drugs == 1:
            u.append((rng.random((n, 1)) < 1 / (1 + np.exp(-odds))).astype(float))
        else:  # none or one of them, never two
            u.append(np.eye(drugs + 1)[rng.integers(0, drugs + 1, size=n)][:, 1:])
        push = own + RATE * x[-1] + GAIN * u[-1].sum(axis=1, keepdims=True)
        x.append(x[-1] + dt * push + 0.3 * dt**0.5 * rng.normal(size=(n, 1)))
    return np.stack(x[:-1], axis=1), np.stack(u, axis=1)


def _fitted(
    X: Array, u: Array, subjects: Any = "levels", groups: Any | None = None, dt: float = DT
) -> TreatmentEffect:
    model = TreatmentEffect(dt=dt, drift=Polynomial(1), subjects=subjects, random_state=0)
    return model.fit(X, u, order=ORDER, groups=groups)


@pytest.fixture(scope="module")
def randomised() -> TreatmentEffect:
    return _fitted(*_panel(1))


def test_the_interval_holds_a_known_effect_and_the_summary_names_what_is_assumed(
    randomised: TreatmentEffect,
) -> None:
    low, high = randomised.ate_interval()
    assert low < TRUTH < high
    text = randomised.summary()
    for word in ("g-formula", "Consistency", "unmeasured confounding", "Positivity", "interference"):  # fmt: skip
        assert word in text


@pytest.mark.parametrize("fixed", [False, True])
def test_the_jackknife_agrees_with_refits_without_each_subject(fixed: bool) -> None:
    """Slopes of state and treatment; the constant depends on where first states are centred, which refits move."""
    model = _fitted(*_panel(4, n=24), "fixed" if fixed else "levels")
    regime = model.interventions_.regimes[""]
    refits = []
    for j in range(24):
        others = regime.rows.some(np.delete(np.arange(24), j))
        found = fit_model(others, 3, (0,), fixed=fixed, begin=regime.model)
        refits.append(found.base.coefficients[0, 1:])
    want = np.sqrt(23 * np.var(refits, axis=0))
    got = np.sqrt(np.diag(regime.covariance))[1:]
    assert_allclose(got, want, rtol=0.05)


@pytest.mark.parametrize("subjects", ["alike", "levels"])
def test_copies_in_groups_add_nothing(subjects: str) -> None:
    """Each subject twice, in one group with its copy: the errors are those of the subjects themselves."""
    X, u = _panel(5, n=20)
    once = _fitted(X, u, subjects)
    twice = _fitted(np.repeat(X, 2, axis=0), np.repeat(u, 2, axis=0), subjects, np.repeat(np.arange(20), 2))  # fmt: skip
    assert_allclose(twice.parameters_["std_error"], once.parameters_["std_error"], rtol=0.01)
    assert len(twice.influence()) == 20
    assert "1 more of its group" in twice.influence()["left_out"][0]
    with pytest.raises(ValueError, match="one label for each"):
        _fitted(X, u, subjects, [1, 2])


def test_a_combination_that_was_never_given_is_refused_and_allowed_by_name() -> None:
    model = _fitted(*_panel(3, drugs=2))
    for ask in (model.ate, model.ate_interval, model.effect, model.sensitivity, model.influence):
        with pytest.raises(OutsideSupportError, match="u0 and u1 were never given together") as told:  # fmt: skip
            ask()
    assert "u0 = 1 alone" in str(told.value)
    assert "outside_support='allow'" in str(told.value)
    assert "never given together" in model.summary()
    with pytest.raises(OutsideSupportError):
        model.counterfactual([1, 1])
    for dose in ([2, 0], [0.5, 0]):
        with pytest.raises(OutsideSupportError, match=rf"u0 = {dose[0]:g} was never given"):
            model.ate(T1=dose)
    assert model.ate(T1=[1, 0]) > 0
    allowed = model.ate(outside_support="allow")
    assert_allclose(allowed, model.ate(T1=[1, 0]) + model.ate(T1=[0, 1]))
    low, high = model.ate_interval(T1=[1, 1], outside_support="allow")
    assert low < allowed < high
    model.set_params(outside_support="allow")
    assert model.ate() == allowed
    with pytest.raises(ValueError, match="outside_support must be one of"):
        model.ate(outside_support="yes")  # type: ignore[arg-type]


def test_a_treatment_of_few_subjects_is_told() -> None:
    X, u = _panel(6)
    u[3:] = 0.0
    u[:3, :, 0] = np.arange(T) % 2
    assert "u0 = 1 was given to 3 subjects only." in _fitted(X, u, "alike").cautions()


def test_frailty_that_drives_treatment_is_told_and_corrected() -> None:
    X, u = _panel(2, frailty=2.0)
    random, fixed = _fitted(X, u), _fitted(X, u, "fixed")
    test = random.confounding_test()
    assert test is not None
    assert test.rejected
    assert "use subjects='fixed'" in test.verdict
    assert_allclose([test.random[0], test.fixed[0]], [random.ate(), fixed.ate()], rtol=1e-3)
    low, high = fixed.ate_interval()
    assert low < TRUTH < high
    assert "fixed effects are used" in fixed.summary()
    assert _fitted(X, u, "alike").confounding_test() is None


@pytest.mark.parametrize("feedback", [0.0, 2.0])
def test_a_treatment_that_is_kept_is_not_taken_for_confounding(feedback: float) -> None:
    """Drawn at random, or by the state, at every third visit. A test that modelled the treatment without memory rejected 39 of 40 of the first."""
    rejected = 0
    for seed in range(10):
        X, u = _panel(seed, feedback=feedback, kept=3, dt=1.0)
        test = _fitted(X, u, dt=1.0).confounding_test()
        assert test is not None
        rejected += test.rejected
    assert rejected <= 2


def test_fixed_effects_need_a_treatment_that_changes() -> None:
    X, u = _panel(7)
    with pytest.raises(ValueError, match="u0 never changes within a subject"):
        _fitted(X, np.repeat(u[:, :1], T, axis=1), "fixed")
    arms = {"a": X[:30], "b": X[30:]}
    model = TreatmentEffect(dt=DT, subjects="fixed")
    with pytest.raises(ValueError, match="each subject stays in its arm"):
        model.fit(arms, order=dict.fromkeys(arms, ORDER))


def test_a_hidden_variable_as_strong_as_the_treatment_explains_it(
    randomised: TreatmentEffect,
) -> None:
    """A level acts as the treatment does in a linear drift: the push that undoes an effect is its coefficient."""
    gain = randomised.parameters_["estimate"]["A[x0, u0]"]
    found = randomised.sensitivity(imbalance=0.5)
    assert_allclose(found.to_zero, gain / 0.5, rtol=1e-6)
    low, _ = randomised.ate_interval()
    ate = float(randomised.ate())
    assert_allclose(found.to_doubt, gain / 0.5 * low / ate, rtol=1e-6)
    halved = randomised.sensitivity(strength=gain / 2)
    assert_allclose([halved.low[0], halved.high[0]], [ate / 2, 1.5 * ate], rtol=1e-6)
    assert "brings the effect to zero" in str(found)
    assert found.reversed is None
    for wrong in ({"strength": np.nan}, {"strength": -1.0}, {"imbalance": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            randomised.sensitivity(**wrong)


def test_the_effect_without_a_subject_is_that_of_a_refit() -> None:
    X, u = _panel(8, n=30)
    found = _fitted(X, u, "alike").influence()
    phi = np.concatenate([np.ones((30, T - 1, 1)), X[:, :-1], u[:, :-1]], axis=2)
    y = (X[:, 1:] - X[:, :-1])[:, :, 0] / DT
    effects = []
    for j in range(30):
        _, a, b = np.linalg.lstsq(np.delete(phi, j, 0).reshape(-1, 3), np.delete(y, j, 0).ravel())[0]  # fmt: skip
        effects.append(b * ((1 + a * DT) ** (T - 1) - 1) / a)
    assert_allclose(found["effect"], effects, rtol=0.01)
    assert not found["changes"].any()


def test_an_answer_that_rests_on_one_subject_names_it() -> None:
    """All of the effect is in one subject of ten."""
    rng = np.random.default_rng(0)
    u = (rng.random((10, T, 1)) < 0.5).astype(float)
    x = [np.zeros((10, 1))]
    for t in range(T - 1):
        push = 0.01 * rng.normal(size=(10, 1))
        push[0] += 3 * (u[0, t] - 0.5)
        push[1:] -= 0.2 * u[1:, t]
        x.append(0.9 * x[-1] + push)
    model = _fitted(np.stack(x, axis=1), u, "alike")
    assert any("'0'" in each for each in model.cautions()), model.influence()


def test_a_variance_that_vanishes_without_a_subject_does_not_spoil_the_errors() -> None:
    """Without subject 16 of this cohort, mean treatments vary no more than by chance; its change was .34."""
    changes = _fitted(*_panel(20015), "fixed").interventions_.regimes[""].jackknife.changes
    assert np.abs(changes[:, 0, 2]).max() < 0.05


def test_the_test_of_confounded_levels_knows_neither_units_nor_the_sequence_of_subjects() -> None:
    X, u = _panel(11, frailty=0.4, n=40)
    one = _fitted(X, u).confounding_test()
    rows = np.random.default_rng(0).permutation(len(X))
    two = _fitted(50 * X[rows] + 7, 3 * u[rows]).confounding_test()
    assert one is not None
    assert two is not None
    assert 0.001 < one.p_value < 0.999
    assert_allclose([two.statistic, two.p_value], [one.statistic, one.p_value], rtol=0.02)
    assert one.degrees == (1, 35)  # of x, u, 1, x₀ and the mean treatment each costs one of 40


@pytest.mark.parametrize("subjects", ["levels", "fixed"])
def test_a_treatment_that_all_have_at_the_same_visits_is_not_confounded_with_levels(subjects):
    """The summary of such a trial ended in "Singular matrix"."""
    rng, n, T = np.random.default_rng(0), 30, 8
    u = np.zeros((n, T, 1))
    u[:, 3:6] = 1
    path = [rng.standard_normal((n, 2))]
    for t in range(T - 1):
        path.append(0.8 * path[-1] + 0.5 * u[:, t] * [1, 0] + 0.3 * rng.standard_normal((n, 2)))
    model = TreatmentEffect(dt=1.0, subjects=subjects, random_state=0)
    model.fit(np.stack(path, axis=1), covariates=u, order=np.arange(T))
    assert model.confounding_test() is None
    low, high = model.ate_interval()
    truth = 0.5 * (1 - 0.8 ** (T - 1)) / (1 - 0.8)
    assert low[0] < truth < high[0]
    assert "correlated" not in model.summary().split("assumes")[0]
