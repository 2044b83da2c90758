"""Subjects that differ, from the outside: what is chosen, what it changes, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.regression import ErrorKind

A = np.array([[-1.0, 0.5], [-0.3, -1.2]])


def panel(seed, *, n=80, T=15, sd=1.0, dt=0.15):
    """Shuffled Euler paths from 2 ± .3 with intercepts of a given spread, and their order."""
    rng = np.random.default_rng(seed)
    c, path = sd * rng.normal(size=(n, 2)), [2 + 0.3 * rng.normal(size=(n, 2))]
    for _ in range(T - 1):
        x = path[-1]
        path.append(x + dt * (x @ A.T + c) + 0.5 * dt**0.5 * rng.normal(size=x.shape))
    return np.stack(path, axis=1), c


def fit(X, **options):
    return rt.ReTrace(dt=0.15, random_state=0, **options).fit(X)


def test_levels_are_chosen_where_there_are_some_and_only_there():
    differ, alike = fit(panel(1)[0]), fit(panel(2, sd=0.0)[0])
    assert differ.subject_effects_.kind == "levels"
    assert differ.subject_effects_.nats > 50
    assert "by" in differ.subject_effects_.verdict
    assert differ.subject_effects_.verdict in differ.summary()
    assert alike.subject_effects_.kind == "alike"
    assert alike.subject_effects_.intercepts is None
    assert "subjects='levels'" in alike.summary()


def test_drift_direction_and_intercepts_are_right_where_one_sde_for_all_is_not():
    X, c = panel(3)
    shuffled, truth = rt.simulate.shuffle(X, random_state=3)
    levels, alike = fit(shuffled), fit(shuffled, subjects="alike")
    assert_allclose(levels.order_, truth)
    assert levels.direction_.identified
    error = half_widths(levels.standard_errors_.drift, 80)
    assert (np.abs(levels.drift_ - A) < 1.5 * error).all()
    assert (np.abs(alike.drift_ - A) > half_widths(alike.standard_errors_.drift, 80)).any()
    found = levels.subject_effects_
    z = (found.intercepts - c) / found.errors
    assert 0.8 < z.std() < 1.25  # a spread of 160 numbers, with an error of .06
    assert np.corrcoef(found.intercepts.ravel(), c.ravel())[0, 1] > 0.9


def test_alike_subjects_are_fitted_as_without_the_question():
    X = panel(4, sd=0.0)[0]
    one, two = fit(X), fit(X, subjects="alike")
    assert_allclose(one.drift_, two.drift_)
    assert_allclose(one.standard_errors_.drift, two.standard_errors_.drift)
    assert one.log_likelihood_ == two.log_likelihood_
    assert two.subject_effects_.asked


def test_alike_subjects_on_their_way_are_not_at_rest_about_levels():
    """Their first states are about as wide as at rest; but the mean moves."""
    kinds = [fit(panel(seed, sd=0.0)[0]).subject_effects_.kind for seed in range(10)]
    assert kinds == ["alike"] * 10


def test_orders_of_their_own_can_have_levels():
    X = np.concatenate([panel(k, n=20, T=10)[0] for k in (5, 55, 555)], axis=2)
    shuffled, _ = rt.simulate.shuffle(X, permutation="independent", random_state=5)
    model = fit(shuffled, permutation="independent", subjects="levels")
    assert model.subject_effects_.kind == "levels"
    assert model.subject_effects_.asked
    assert model.subject_effects_.intercepts.shape == (20, 6)
    assert model.direction_.p_value is not None


def test_a_tables_units_change_nothing_but_units():
    X = panel(6)[0]
    frame = rt.Panel.from_array(X)
    scale, shift = np.array([100.0, 0.01]), np.array([50.0, -3.0])
    n, T, _ = X.shape
    rows = {
        "id": np.repeat(np.arange(n), T),
        "visit": np.tile(np.arange(T), n),
        "a": (X[:, :, 0] * scale[0] + shift[0]).ravel(),
        "b": (X[:, :, 1] * scale[1] + shift[1]).ravel(),
    }
    pandas = pytest.importorskip("pandas")
    table = rt.recover(
        pandas.DataFrame(rows), subject="id", slice="visit", variables=["a", "b"], dt=0.15
    ).model
    array = fit(frame)
    one, two = array.subject_effects_, table.subject_effects_
    turned = scale[:, None] * array.drift_ / scale
    assert_allclose(table.drift_, turned, rtol=1e-3)
    assert_allclose(two.intercepts, one.intercepts * scale - turned @ shift, rtol=1e-2)
    assert_allclose(two.errors, one.errors * scale, rtol=1e-3)
    slope = scale[:, None] * one.slope / scale
    assert_allclose(two.mean, one.mean * scale - (turned + slope) @ shift, rtol=2e-2)


def test_exact_transitions_can_have_levels():
    X = panel(7)[0]
    euler, exact = fit(X, estimator="mle"), fit(X, estimator="exact")
    F = np.eye(2) + 0.15 * euler.drift_
    values, vectors = np.linalg.eig(F)
    log = (vectors * np.log(values)) @ np.linalg.inv(vectors) / 0.15
    assert_allclose(exact.drift_, log.real, rtol=1e-6)
    assert exact.standard_errors_.kind == ErrorKind.SANDWICH
    assert (exact.standard_errors_.drift > euler.standard_errors_.drift).all()


def test_known_irregular_times_can_have_levels():
    rng = np.random.default_rng(8)
    gaps = rng.uniform(0.05, 0.25, 14)
    c, path = rng.normal(size=(80, 2)), [2 + 0.3 * rng.normal(size=(80, 2))]
    for g in gaps:
        x = path[-1]
        path.append(x + g * (x @ A.T + c) + 0.5 * g**0.5 * rng.normal(size=x.shape))
    times = np.append(0.0, np.cumsum(gaps))
    model = rt.ReTrace().fit(np.stack(path, axis=1), knowledge=rt.Knowledge(timestamps=times))
    assert model.subject_effects_.kind == "levels"
    assert (np.abs(model.drift_ - A) < 2 * half_widths(model.standard_errors_.drift, 80)).all()


def test_a_short_time_is_said():
    model = fit(panel(9, n=60, T=7, dt=0.02)[0], subjects="levels")
    assert model.subject_effects_.short
    assert "looks like slow mean reversion" in model.summary()


def test_what_cannot_have_levels_is_refused_in_one_sentence():
    X = panel(10)[0]
    with pytest.raises(ValueError, match="drift='affine'"):
        fit(X - X.mean(axis=(0, 1)), subjects="levels", drift="linear")
    with pytest.raises(ValueError, match="noise, missing values"):
        fit(X, subjects="rates", observation_noise=0.1)
    with pytest.raises(ValueError, match="more than 6 subjects"):
        fit(X[:6], subjects="levels")
    with pytest.raises(ValueError, match="subjects"):
        fit(X, subjects="different")


def test_what_was_chosen_is_saved(tmp_path):
    result = fit(panel(11)[0]).result_
    again = type(result).load(result.save(tmp_path / "a"))
    assert again.subjects.kind is result.subjects.kind
    assert again.standard_errors.kind is ErrorKind.SANDWICH
    assert_allclose(again.subjects.intercepts, result.subjects.intercepts)
    assert again.summary() == result.summary()


@pytest.mark.parametrize("estimator", ["auto", "exact"])
def test_bootstrap_over_subjects_agrees_with_the_sandwich(estimator):
    """120 replicates: a relative error of .065 of each error, and both estimate one thing."""
    model = fit(panel(12, n=60)[0], estimator=estimator)
    errors = model.bootstrap_errors(draws=120)
    assert errors.kind == ErrorKind.BOOTSTRAP
    assert_allclose(errors.drift / model.standard_errors_.drift, 1.0, atol=0.35)
    assert_allclose(errors.offset / model.standard_errors_.offset, 1.0, atol=0.35)


def test_bootstrap_is_the_same_whatever_the_jobs_and_can_be_adopted():
    X = panel(13, n=40)[0]
    one, two = (fit(X, n_jobs=jobs) for jobs in (1, 2))
    first = one.bootstrap_errors(draws=8, adopt=True)
    assert_allclose(first.drift, two.bootstrap_errors(draws=8).drift, rtol=1e-10)
    assert one.standard_errors_ is first
    assert "bootstrap" in one.summary()
    with pytest.raises(ValueError, match="at least 2"):
        one.bootstrap_errors(draws=1)


def test_residuals_are_looked_at_with_the_levels_taken_out():
    X = panel(14)[0]
    assert not fit(X).result_.residuals.failed
    assert fit(X, subjects="alike").result_.residuals.failed


def test_noise_is_chosen_by_evidence_and_only_where_residuals_call_for_it():
    X = panel(15, n=60, sd=0.0)[0]
    clean = fit(X, observation_noise="auto")
    assert clean.result_.noise_choice.noise is None
    assert clean.observation_noise_ is None
    assert "no measurement noise" in clean.summary()
    rng = np.random.default_rng(15)
    noisy = fit(X + 0.3 * rng.normal(size=X.shape), observation_noise="auto")
    assert noisy.result_.noise_choice.noise is not None
    assert noisy.result_.noise_choice.nats > 10
    assert "observation_noise=None" in noisy.summary()
    assert_allclose(np.sqrt(np.diag(noisy.observation_noise_)), 0.3, rtol=0.3)


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_the_direction_says_of_noise_what_the_fit_says(missing, tmp_path):
    """Candidates are compared along the order found with noise, and missing values are drawn for some: the first panel had 29 nats against 12.7."""
    rng = np.random.default_rng(0)
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(30, 16, 0.1, x0=2 + 0.3 * rng.normal(size=(30, 3)), random_state=1)
    X = X + 0.4 * rng.normal(size=X.shape)
    X[rng.random(X.shape) < missing] = np.nan
    found = rt.ReTrace(dt=0.1, observation_noise="auto", random_state=0).fit(X).result_
    nats = f"{found.noise_choice.nats:.1f} nats"
    for result in (found, rt.ReTraceResult.load(found.save(tmp_path / "fit.npz"))):
        verdict = result.direction.verdict
        assert f"With measurement noise allowed, which the data prefer by {nats}" in verdict
        assert f"measurement noise, by {nats}" in result.noise_choice.verdict


def test_rates_are_told_from_levels():
    rng = np.random.default_rng(16)
    n, T, dt = 100, 20, 0.15
    r, path = np.exp(0.3 * rng.normal(size=(n, 1))), [2 + 0.3 * rng.normal(size=(n, 2))]
    for _ in range(T - 1):
        x = path[-1]
        path.append(x + dt * r * (x @ A.T) + 0.5 * dt**0.5 * rng.normal(size=x.shape))
    model = fit(np.stack(path, axis=1))
    found = model.subject_effects_
    assert found.kind == "rates"
    assert 0.15 < found.rate_spread < 0.45
    assert np.corrcoef(found.rates, r[:, 0])[0, 1] > 0.5
    assert (np.abs(model.drift_ - A) < 2 * half_widths(model.standard_errors_.drift, n)).all()
    assert "random rates, one for each subject" in model.summary()


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
@pytest.mark.parametrize("kind", ["levels", "rates"])
def test_what_is_asked_by_name_is_fitted_along_any_order(kind):
    """Along own best orders, and along that of the paper's algorithm; never dropped without a word."""
    X = panel(17, n=30)[0][:, :8]
    own = rt.simulate.shuffle(X, permutation="independent", random_state=0)[0]
    for values, options in ((own, {"permutation": "independent"}), (X, {"order": "score"})):
        found = rt.ReTrace(dt=0.2, subjects=kind, random_state=0, n_jobs=1, **options).fit(values)
        assert found.subject_effects_.kind == kind
        assert found.subject_effects_.asked
        assert ", as asked" in found.summary()


def test_what_is_noted_of_subjects_who_are_alike_is_not_said_of_levels():
    """Levels read as noise that is not there: that noise is negligible stood beside the noise that was found."""
    X = panel(12, n=40, T=8)[0] + 0.1 * np.random.default_rng(0).normal(size=(40, 8, 2))
    found = fit(X, observation_noise="diagonal", subjects="levels").result_
    alike = fit(X, observation_noise="diagonal", subjects="alike").result_
    assert any("observation noise is negligible" in note for note in alike.notes)
    assert not any("observation noise is negligible" in note for note in found.notes)
    assert np.sqrt(np.diag(found.observation_noise)).max() > 0.05
