"""Treatment effects: closed forms with a known order, refusals, and effects from shuffled visits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import retrace_sde as rt
from retrace_sde.effects.treatment import TreatmentEffect, UndeterminedDirectionError
from retrace_sde.metrics import counterfactual_rmse, kendall_tau, treatment_effect_bias
from retrace_sde.process.drift import Polynomial
from retrace_sde.process.tumour import growth_parameters, simulate_cohort

T0, T1 = [0.0, 0.0], [5.0, 1.0]


def _shuffled(cohort: Any, seed: int) -> tuple[Any, Any]:
    n, T = cohort.observed.shape[:2]
    moved = np.random.default_rng(seed).permuted(np.tile(np.arange(T), (n, 1)), axis=1)
    return cohort.shuffled(moved), np.argsort(moved, axis=1)


def _truth(cohort: Any) -> Any:
    return (cohort.expected("treated") - cohort.expected("untreated"))[:, -1]


@pytest.fixture(scope="module")
def observational() -> Any:
    cohort = simulate_cohort(150, random_state=4)
    panel, order = _shuffled(cohort, 1)
    known = TreatmentEffect(random_state=0, n_jobs=1).fit(panel, order=order)
    found = TreatmentEffect(random_state=0, n_jobs=1).fit(panel)
    return cohort, panel, order, known, found


def test_a_misspelt_treatment_is_refused(observational: Any) -> None:
    for ask in (observational[3].effect, observational[3].ate, observational[3].ate_interval):
        with pytest.raises(TypeError, match="t1"):
            ask(t1=[5.0, 1.0])


def test_a_linear_effect_is_a_geometric_series() -> None:
    """`x' = x + (c + a x + b u) Δt`: the effect of u = 1 after k steps is `b (((1 + aΔt)ᵏ − 1)/a)`."""
    rng = np.random.default_rng(0)
    n, T, dt, a, b = 400, 15, 0.2, -0.7, 1.3
    u = (rng.random((n, T, 1)) < 0.5).astype(float)
    x = [rng.normal(size=(n, 1)) * 0.3]
    for t in range(T - 1):
        x.append(
            x[-1] + dt * (0.5 + a * x[-1] + b * u[:, t]) + 0.1 * dt**0.5 * rng.normal(size=(n, 1))
        )
    X = np.stack(x, axis=1)
    model = TreatmentEffect(dt=dt, drift=Polynomial(1), subjects="alike")
    model.fit(X, u, order=np.arange(T))
    theta = model.interventions_.regimes[""].fit.coefficients[0]
    assert_allclose(theta, [0.5, a, b], atol=0.03)
    growth = 1 + theta[1] * dt
    want = theta[2] * (growth ** np.array([14, 5]) - 1) / theta[1]
    assert_allclose(model.effect(), want[0])
    assert_allclose(model.effect(T0=[1.0], T1=[0.0], horizon=1.0), -want[1])
    assert_allclose(model.ate(np.array([[0.0], [9.0]]), horizon=1.0), want[1])
    low, high = model.ate_interval(horizon=1.0)
    exact = b * ((1 + a * dt) ** 5 - 1) / a
    assert low < exact < high
    assert (high - low) / want[1] < 0.1
    # A schedule: treated in the first step only.
    once = np.zeros((5, 1))
    once[0] = 1
    assert_allclose(model.effect(T1=once, horizon=1.0), theta[2] * dt * growth**4)


def test_the_recovered_order_gives_the_effects_of_the_true_one(observational: Any) -> None:
    cohort, _, order, known, found = observational
    truth = _truth(cohort)
    assert kendall_tau(order, found.order_) > 0.97
    rmse = {
        name: counterfactual_rmse(truth, model.effect(T0=T0, T1=T1))
        for name, model in (("known", known), ("found", found))
    }
    bias = {
        name: treatment_effect_bias(truth, model.effect(T0=T0, T1=T1))
        for name, model in (("known", known), ("found", found))
    }
    assert rmse["found"] < 1.1 * rmse["known"] < 0.44
    assert abs(bias["found"] - bias["known"]) < 0.06
    assert abs(found.error_[""] - 0.01) < 0.001
    regime = found.interventions_.regimes[""]
    read = growth_parameters(
        regime.problem.drift, regime.fit.coefficients, covariates=found.interventions_.covariates
    )
    assert_allclose(read.estimated["beta_c"], 0.028, rtol=0.05)
    assert_allclose(read.estimated["alpha_r + beta_r"], 0.04378, rtol=0.1)
    assert "K" in read.not_identified


def test_intervals_hold_the_truth(observational: Any) -> None:
    """Of 150 subjects' 95 % intervals at least 85 % hold: subjects differ in more than their intercept."""
    cohort, _, _, known, found = observational
    truth = _truth(cohort)
    for model in (known, found):
        low, high = model.ate_interval(T0=T0, T1=T1)
        assert low < truth.mean() < high
        below, above = model.effect_interval(T0=T0, T1=T1, draws=60)
        assert 0.85 <= np.mean((below < truth) & (truth < above)) <= 1
        assert_allclose((below + above) / 2, model.effect(T0=T0, T1=T1))


def test_bands_hold_the_counterfactual_paths(observational: Any) -> None:
    """Untreated paths from the same noise lie in the 90 % bands nine times in ten (± what subjects share)."""
    cohort, _, _, known, _ = observational
    chosen = np.arange(0, 150, 3)
    found = known.counterfactual(T0, subjects=chosen, level=0.9)
    assert found.mean.shape == found.lower.shape == (50, 61, 1)
    assert_allclose(found.times, 0.25 * np.arange(61))
    path = cohort.paths["untreated"][chosen]
    inside = np.mean((found.lower < path) & (path < found.upper), axis=(0, 2))
    assert 0.8 < inside[5:].mean() < 0.98
    assert_allclose(found.mean[:, 0], known.interventions_.regimes[""].starts[0][chosen])
    drawn = known.sample_paths(T0, subjects=[3, 7], draws=30, horizon=5.0)
    assert drawn.shape == (30, 2, 21, 1)
    again = known.sample_paths(T0, subjects=[3, 7], draws=30, horizon=5.0)
    assert np.array_equal(drawn, again)


def test_a_reversed_order_hides_the_effect_or_turns_it_round(observational: Any) -> None:
    cohort, panel, order, _, _ = observational
    back = TreatmentEffect(n_jobs=1).fit(panel, order=order[:, ::-1])
    assert back.ate(T0=T0, T1=T1) > _truth(cohort).mean() + 6
    arms = {arm: simulate_cohort(100, arm=arm, random_state=6) for arm in ("untreated", "treated")}
    panels = {name: each.panel for name, each in arms.items()}
    forward = TreatmentEffect(dt=0.25).fit(panels, order=dict.fromkeys(panels, np.arange(61)))
    turned = TreatmentEffect(dt=0.25).fit(panels, order=dict.fromkeys(panels, np.arange(61)[::-1]))
    assert forward.ate() < -7
    assert turned.ate() > 7


def test_arms_are_recovered_each_on_its_own() -> None:
    cohorts, panels, orders = {}, {}, {}
    for k, arm in enumerate(("untreated", "treated")):
        cohorts[arm] = simulate_cohort(80, arm=arm, random_state=20 + k)  # type: ignore[arg-type]
        panels[arm], orders[arm] = _shuffled(cohorts[arm], k)
    model = TreatmentEffect(random_state=0, n_jobs=1).fit(panels)
    truth = np.concatenate([_truth(each) for each in cohorts.values()])
    assert model.effect().shape == (160,)
    low, high = model.ate_interval(level=0.997)
    assert low < truth.mean() < high
    assert kendall_tau(orders["untreated"], model.order_["untreated"]) > 0.999  # type: ignore[index]
    assert_allclose(model.effect(T0="treated", T1="untreated"), -model.effect())
    assert model.effect(np.array([[1.4]])).shape == (1,)
    band = model.counterfactual("treated", subjects=[0, 100])
    assert band.mean.shape == (2, 61, 1)
    with pytest.raises(ValueError, match="arms"):
        model.effect(T1="placebo")


def _stationary(n: int = 60) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    u = np.repeat(rng.integers(0, 2, size=(n, 1, 1)), 12, axis=1).astype(float)
    x = [u[:, 0] + rng.normal(size=(n, 1))]
    for t in range(11):
        x.append(x[-1] + 0.1 * (u[:, t] - x[-1]) + (0.1 * 1.9) ** 0.5 * rng.normal(size=(n, 1)))
    return np.stack(x, axis=1), u


def test_an_undetermined_direction_is_refused_with_its_reason() -> None:
    X, u = _stationary()
    model = TreatmentEffect(
        dt=0.1, permutation="shared", drift=Polynomial(1), subjects="alike", random_state=0
    )
    with pytest.raises(UndeterminedDirectionError, match=r"not determined.*direction='both'"):
        model.fit(X, u)
    both = TreatmentEffect(
        dt=0.1,
        permutation="shared",
        drift=Polynomial(1),
        subjects="alike",
        direction="both",
        random_state=0,
    ).fit(X, u)
    assert both.alternative_ is not None
    assert np.array_equal(both.alternative_.order_, np.asarray(both.order_)[::-1])
    assert np.isfinite([both.ate(), both.alternative_.ate()]).all()
    assert not both.direction_.identified  # type: ignore[union-attr]
    first = both.summary().splitlines()[0]
    assert "in the order found, and" in first
    assert "in the reversed order" in first
    assert first.count("95 % interval") == 2


def test_effects_that_the_data_cannot_tell_are_refused() -> None:
    """C and d always together: both or neither can be asked about, one alone cannot."""
    rng = np.random.default_rng(0)
    cohort = simulate_cohort(60, arm="untreated", random_state=1)
    u = np.zeros((60, 61, 2))
    u[:, :, 0] = 5 * (rng.random((60, 61)) < 0.5)
    u[:, :, 1] = u[:, :, 0] / 5
    model = TreatmentEffect(dt=0.25).fit(cohort.observed, u, order=np.arange(61))
    assert model.effect(T0=[0, 0], T1=[5, 1]).shape == (60,)
    with pytest.raises(ValueError, match="not identified"):
        model.effect(T0=[0, 0], T1=[5, 0])
    treated = simulate_cohort(60, arm="treated", random_state=1).panel
    with pytest.raises(ValueError, match="not identified"):
        TreatmentEffect().fit(treated, order=np.arange(61)).effect()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"T1": [5.0]}, "shape"),
        ({"T1": "much"}, "numbers of"),
        ({"horizon": 0.3}, "multiple of dt"),
        ({"horizon": -1.0}, "multiple of dt"),
        ({"X": [1.0, 2.0]}, "starting states"),
    ],
)
def test_impossible_questions_are_refused(observational: Any, options: Any, match: str) -> None:
    known = observational[3]
    with pytest.raises(ValueError, match=match):
        known.effect(options.pop("X", None), **options)


def test_impossible_intervals_are_refused_and_the_summary_names_what_is_compared() -> None:
    panels = {
        arm: simulate_cohort(10, arm=arm, random_state=1).panel for arm in ("untreated", "treated")
    }  # type: ignore[arg-type]
    model = TreatmentEffect(dt=0.25).fit(panels, order=dict.fromkeys(panels, np.arange(61)))
    for ask in (model.ate_interval, model.effect_interval):
        for level in (0, 2, np.nan):
            with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
                ask(level=level)
        for draws in (1, 2.5):
            with pytest.raises(ValueError, match="draws must be a whole number of at least 2"):
                ask(draws=draws)  # type: ignore[arg-type]
    for horizon in (np.nan, np.inf):
        with pytest.raises(ValueError, match="positive multiple of dt"):
            model.ate(horizon=horizon)
    assert model.direction_ == {"untreated": None, "treated": None}
    text = model.summary()
    name = panels["treated"].names[0]
    assert f"effect of 'treated' against 'untreated' on {name!r} at t = 15: on average -" in text
    assert "of arm 'treated': Not tested" in text


def test_impossible_fits_are_refused() -> None:
    panel = simulate_cohort(20, random_state=0).panel
    with pytest.raises(ValueError, match="two arms"):
        TreatmentEffect().fit({"all": panel})
    with pytest.raises(ValueError, match="permutation of 0 to 60"):
        TreatmentEffect().fit(panel, order=np.zeros(61, dtype=int))
    with pytest.raises(ValueError, match="no covariates"):
        TreatmentEffect().fit(panel.values, order=np.arange(61))
    with pytest.raises(ValueError, match="direction"):
        TreatmentEffect(direction="forward").fit(panel)  # type: ignore[arg-type]


def test_values_that_are_no_volumes_are_refused_and_small_errors_are_floored() -> None:
    cohort = simulate_cohort(20, random_state=0)
    known = np.arange(61)
    shown = "zero or negative.*subject '3', row 2.*0.001 cm³"
    for model in (TreatmentEffect(drift="tumour"), rt.ReTrace(drift="tumour")):
        for X in (cohort.observed - 3, cohort.observed.copy()):  # most values, or one far too low
            X[3, 2] = -9.0
            with pytest.raises(ValueError, match=shown):
                model.fit(X, cohort.covariates)
    X = cohort.observed.copy()
    X[3, 2], X[4, 1] = -0.01, 0.0
    floored = np.where(X <= 0, 1e-3, X)
    with pytest.warns(rt.ReTraceWarning, match="^2 of 1220 values.*'3', row 2.*taken as its floor"):
        found = TreatmentEffect(drift="tumour").fit(X, cohort.covariates, order=known)
    assert X[3, 2] == -0.01
    other = TreatmentEffect(drift="tumour").fit(floored, cohort.covariates, order=known)
    assert_allclose(found.effect(), other.effect())
    with pytest.raises(ValueError, match="1 of the 2 starting states"):
        found.effect([[1.0], [-1.0]])


def test_it_is_an_estimator_and_does_not_change_its_input() -> None:
    from sklearn.base import clone

    model = clone(rt.treatment.TreatmentEffect(dt=0.25, subjects=(0, 2)))
    panel = simulate_cohort(30, random_state=0).panel
    before = panel.values.copy()
    model.fit(panel, order=np.arange(61))
    assert np.array_equal(before, panel.values)
    assert model.interventions_.regimes[""].fit.columns == (0, 2)


def test_parameters_are_a_table_for_each_arm() -> None:
    """With subjects alike and one variable the errors are those of least squares refitted without each subject."""
    rng = np.random.default_rng(0)
    n, T, dt = 40, 8, 0.2
    u = (rng.random((n, T, 1)) < 0.5).astype(float)
    X = rng.normal(size=(n, T, 1)).cumsum(axis=1)
    model = TreatmentEffect(dt=dt, drift=Polynomial(1), subjects="alike")
    model.fit(X, u, order=np.arange(T))
    found = model.parameters_
    assert list(found.index[:4]) == ["A[x0, 1]", "A[x0, x0]", "A[x0, u0]", "H[x0, x0]"]
    assert set(found["arm"]) == {""}
    phi = np.concatenate([np.ones((n, T - 1, 1)), X[:, :-1], u[:, :-1]], axis=2)
    y = (X[:, 1:] - X[:, :-1])[:, :, 0] / dt
    bread = np.linalg.inv(np.einsum("jti,jtk->ik", phi, phi))
    theta = bread @ np.einsum("jti,jt->i", phi, y)
    without = np.array([
        np.linalg.lstsq(np.delete(phi, j, 0).reshape(-1, 3), np.delete(y, j, 0).ravel())[0] for j in range(n)
    ])  # fmt: skip
    errors = np.sqrt((n - 1) * without.var(axis=0))
    assert_allclose(found["estimate"][:3], theta)
    assert_allclose(found["std_error"][:3], errors, rtol=1e-5)
    wide = model.conf_int(level=0.99)
    assert_allclose(
        (wide["upper"] - wide["lower"])[:3], 2 * stats.t.ppf(0.995, n - 1) * errors, rtol=1e-5
    )
    arms = {"a": X[:20], "b": X[20:]}
    both = TreatmentEffect(dt=dt, drift=Polynomial(1), subjects="alike")
    both.fit(arms, order=dict.fromkeys(arms, np.arange(T)))
    assert list(both.parameters_["arm"].unique()) == ["a", "b"]


@pytest.mark.statistics
@pytest.mark.parametrize("design", ["observational", "two-arm"])
def test_the_interval_of_the_average_effect_covers_it(design: str) -> None:
    """95 % intervals from shuffled visits, 50 replicates: nine in ten hold the cohort's own average.

    A hundred untreated subjects do not always tell the direction; such a cohort is refused, and few are.
    """
    held = refused = 0
    for seed in range(50):
        names = ("observational",) if design == "observational" else ("untreated", "treated")
        panels, truths = {}, []
        for k, arm in enumerate(names):
            cohort = simulate_cohort(100, arm=arm, random_state=5000 + 2 * seed + k)  # type: ignore[arg-type]
            panels[arm] = _shuffled(cohort, seed + 100 * k)[0]
            truths.append(_truth(cohort))
        model = TreatmentEffect(random_state=seed)
        try:
            model.fit(panels if len(names) > 1 else panels["observational"])
        except UndeterminedDirectionError:
            refused += 1
            continue
        low, high = model.ate_interval(**({} if len(names) > 1 else {"T0": T0, "T1": T1}))
        held += bool(low < np.concatenate(truths).mean() < high)
    print(f"{design}: {held} of {50 - refused} hold it, {refused} refused")  # docs/method.md
    assert refused <= (5 if design == "two-arm" else 0)
    assert held >= 0.9 * (50 - refused)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_subjects_are_taken_as_the_data_prefer(spread: float) -> None:
    rng = np.random.default_rng(1)
    n, T, dt = 80, 15, 0.2
    u = (rng.random((n, T, 1)) < 0.5).astype(float)
    own, x = spread * rng.normal(size=(n, 1)), [rng.normal(size=(n, 1))]
    for t in range(T - 1):
        noise = 0.3 * dt**0.5 * rng.normal(size=(n, 1))
        x.append(x[-1] + dt * (0.5 + own - 0.7 * x[-1] + 1.3 * u[:, t]) + noise)
    model = TreatmentEffect(dt=dt, drift=Polynomial(1), subjects="auto")
    model.fit(np.stack(x, axis=1), u, order=np.arange(T))
    assert model.interventions_.regimes[""].fit.columns == ((0,) if spread else ())


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_the_unit_of_time_changes_no_effect():
    """Growth per microsecond or per day: the same subjects, the same effect."""
    rng = np.random.default_rng(0)
    u = rng.integers(0, 2, (30, 8, 1)).astype(float)
    x = np.empty((30, 8, 1))
    x[:, 0] = 2 + 0.3 * rng.standard_normal((30, 1))
    for t in range(7):
        x[:, t + 1] = 0.9 * x[:, t] + 0.08 * u[:, t] + 0.1 * rng.standard_normal((30, 1))
    found = []
    for unit in (1.0, 60.0, 1e-6):
        model = TreatmentEffect(
            dt=0.1 * unit, permutation="shared", drift=rt.drift.Polynomial(1), direction="both", random_state=0, n_jobs=1
        ).fit(x, u)  # fmt: skip
        found.append([model.ate(), *model.ate_interval()])
    np.testing.assert_allclose(found, [found[0]] * 3, rtol=1e-5)


@pytest.mark.parametrize("by_arm", [False, True])
def test_effects_and_intervals_scale_with_the_units_of_variables(by_arm: bool) -> None:
    """The root of the coefficients' covariance was taken in units that its rounding mixed: intervals reached 1e73."""
    rng = np.random.default_rng(0)
    n, T = 40, 8
    u = (rng.random((n, T, 1)) < 0.5).astype(float)
    own, x = rng.normal(size=(n, 2)), [rng.normal(size=(n, 2))]
    for t in range(T - 1):
        push = own - 0.6 * x[-1] + 0.3 * x[-1][:, ::-1] + u[:, t]
        x.append(x[-1] + push + 0.3 * rng.normal(size=(n, 2)))
    X, order = np.stack(x, axis=1), np.arange(T)

    def found(units: list[float]) -> Any:
        if by_arm:
            data = {"a": X[::2] * units, "b": X[1::2] * units}
            model = TreatmentEffect(random_state=0).fit(data, order={"a": order, "b": order})
        else:
            model = TreatmentEffect(random_state=0).fit(X * units, u, order=order)
        assert not any("says nothing" in each for each in model.cautions())
        asked = [*model.ate_interval(draws=30), *model.effect_interval(draws=30)]
        asked += [model.counterfactual("b" if by_arm else [1.0], subjects=[0], draws=30).upper[0]]
        return np.vstack([model.ate(), *asked]) / units

    want = found([1.0, 1.0])
    for units in ([1e9, 1e-9], [1e-9, 1.0], [1.0, 1e8]):
        assert_allclose(found(units), want, rtol=1e-6)


def test_an_interval_that_says_nothing_is_told() -> None:
    rng = np.random.default_rng(0)
    u = (rng.random((12, 6, 1)) < 0.5).astype(float)
    x = [rng.normal(size=(12, 2))]
    for t in range(5):
        x.append(1.3 * x[-1] + u[:, t] + 0.3 * rng.normal(size=(12, 2)))
    model = TreatmentEffect(random_state=0).fit(np.stack(x, axis=1), u, order=np.arange(6))
    told = "The interval of the effect on 'x1' says nothing"
    assert not any(told in each for each in model.cautions(horizon=1.0))
    assert any(told in each for each in model.cautions(horizon=60.0))
