"""`common_shocks`: order, parameters, errors and forecasts of trajectories that share shocks or plates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.estimator import fitting
from retrace_sde.evidence.direction.reversal_search import search_reversals
from retrace_sde.evidence.direction.verdict import Caution, Reason, left_open
from retrace_sde.fit.regression import ErrorKind
from retrace_sde.panel.panel import Panel
from retrace_sde.search.alternate import Found
from retrace_sde.search.space import Shared
from retrace_sde.show.verdicts import verdicts

A = np.array([[-1.0, 0.5, 0.0], [-0.5, -1.0, 0.3], [0.0, -0.3, -0.8]])
DT = 0.1


def panel(seed, *, n=30, T=16, common=0.0, plates=0.0):
    """At rest, H = (1 − common) I and U = common I; plates: an offset of so many standard deviations for each slice."""
    rng = np.random.default_rng(seed)

    def noise():
        return np.sqrt(1 - common) * rng.standard_normal((n, 3)) + np.sqrt(
            common
        ) * rng.standard_normal(3)

    F, x = np.eye(3) + A * DT, [0.75 * noise()]
    for _ in range(T - 1):
        x.append(x[-1] @ F.T + np.sqrt(DT) * noise())
    X = np.stack(x, axis=1)
    return X + plates * X.std(axis=(0, 1)) * rng.standard_normal((1, T, 3))


def fitted(X, seed=0, **options):
    shuffled, truth = rt.simulate.shuffle(X, random_state=seed)
    return rt.ReTrace(dt=DT, random_state=0, **options).fit(shuffled), shuffled, truth


def right(order, truth):
    return np.array_equal(order, truth) or np.array_equal(order, truth[::-1])


def test_plates_of_one_standard_deviation_do_not_disturb_order_or_parameters():
    model, _, truth = fitted(panel(1, plates=1.0))
    found = model.result_.dependence
    assert found.kind == "common shocks"
    assert found.removed
    assert found.p_value <= 0.01
    assert right(model.order_, truth)
    assert not model.direction_.identified
    ways = [(model.drift_, model.standard_errors_.drift)]
    twin = model.alternative_
    ways.append((twin.drift, twin.standard_errors.drift))
    forwards = ways[0 if np.array_equal(model.order_, truth) else 1]
    assert np.mean(np.abs(forwards[0] - A) < 2.05 * forwards[1]) >= 7 / 9
    assert "share shocks" in model.summary()


def test_independent_trajectories_are_fitted_as_they_are():
    X = panel(2)
    auto, _, _ = fitted(X)
    plain, _, _ = fitted(X, common_shocks=False)
    assert auto.result_.dependence.kind == "independent"
    np.testing.assert_array_equal(auto.drift_, plain.drift_)
    assert auto.log_likelihood_ == plain.log_likelihood_


def growth_behind_noise(seed, *, n=40, T=15):
    """Logistic growth of one variable to sizes of each one's own, measured with a tenth of them, (n, T, 1)."""
    rng = np.random.default_rng(seed)
    size, onset = np.exp(0.15 * rng.standard_normal((n, 1))), 0.05 * rng.standard_normal((n, 1))
    X = size / (1 + np.exp(-8 * (np.linspace(-0.5, 0.5, T) - onset)))
    return (X + 0.1 * rng.standard_normal((n, T)))[..., None]


@pytest.mark.parametrize("seed", [700, 703, 705])
def test_a_common_course_behind_measurement_noise_is_not_taken_for_shocks(seed):
    model, _, truth = fitted(growth_behind_noise(seed))
    found = model.result_.dependence
    assert found.kind == "independent"
    assert "measurement noise allowed for" in found.verdict
    assert not model.result_.cycle
    assert abs(rt.metrics.kendall_tau(truth, model.order_)) > 0.9


@pytest.mark.filterwarnings("ignore:The order may be folded")
def test_plates_of_one_variable_are_not_taken_for_measurement_noise():
    """Without them slices are sorted by their offsets, and noise explains what that leaves, but for correlations of either sign."""
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(30)]
    for _ in range(15):
        x.append(0.95 * x[-1] + np.sqrt(1 - 0.95**2) * rng.standard_normal(30))
    X = (np.stack(x, axis=1) + rng.standard_normal((1, 16)))[..., None]
    model, _, truth = fitted(X)
    assert model.result_.dependence.removed
    assert right(model.order_, truth)


def test_shocks_are_found_behind_measurement_noise_too():
    X = panel(1, plates=1.0)
    X = X + 0.5 * np.random.default_rng(0).standard_normal(X.shape)
    model, _, _ = fitted(X, observation_noise="auto")
    assert model.result_.dependence.kind == "common shocks"
    assert model.result_.dependence.removed


def test_what_a_slice_adds_to_all_changes_neither_order_nor_drift_nor_diffusion():
    X = panel(3, common=0.3)
    rng = np.random.default_rng(0)
    one, _, truth = fitted(X, common_shocks=True)
    two, _, _ = fitted(X + rng.standard_normal((1, 16, 3)), common_shocks=True)
    same = np.array_equal(one.order_, two.order_)
    assert same or np.array_equal(one.order_, two.order_[::-1])
    assert right(one.order_, truth)
    other = two if same else two.alternative_
    np.testing.assert_allclose(other.drift if not same else two.drift_, one.drift_, atol=1e-8)
    H = two.diffusion_ if same else other.diffusion
    np.testing.assert_allclose(H, one.diffusion_, atol=1e-8)


def test_the_common_covariance_is_found_in_the_units_of_the_data():
    X = panel(4, T=40, common=0.5) * np.array([1.0, 100.0, 0.01])
    model, _, truth = fitted(X)
    U = model.result_.dependence.common_covariance
    scale = np.array([1.0, 100.0, 0.01])
    assert right(model.order_, truth)
    np.testing.assert_allclose(np.sqrt(np.diag(U)) / scale, np.sqrt(0.5), rtol=0.3)
    assert abs(model.result_.dependence.common_share - 0.5) < 0.15


def test_missing_values_and_noise_are_fitted_on_deviations_too():
    X = panel(5, n=20, T=12, plates=1.0)
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(X.shape) < 0.15, np.nan, X)
    model, given, truth = fitted(holes)
    assert model.result_.dependence.removed
    assert right(model.order_, truth)
    filled = model.impute(given)
    missing = np.isnan(given)
    complete = rt.simulate.shuffle(X, random_state=0)[0]
    held = (filled.low <= complete) & (complete <= filled.high)
    assert held[missing].mean() > 0.85
    np.testing.assert_array_equal(filled.values[~missing], given[~missing])


def test_a_reversed_stretch_is_found_behind_noise_and_missing_values():
    X = panel(12, plates=0.3)
    X[np.random.default_rng(1).random(X.shape) < 0.15] = np.nan
    memory = fitted(X)[0]._memory
    model, found = memory.model, memory.outcome.found
    space = Shared.of(model, np.random.default_rng(0))
    for begin, end in ((0, 2), (0, 3), (12, 16)):
        order = found.order.copy()
        order[begin:end] = order[begin:end][::-1]
        pair = space.fit(model, order)
        assert pair.better.objective < found.objective
        start = Found(pair.better, pair.worse, (), True)
        again = search_reversals(model, space, start, max_iter=20)
        assert right(again.better.order, found.order)
        assert again.better.states is not None


def test_slice_effects_beside_missing_values_are_those_of_least_squares():
    """`(Σ_i P_i) m = Σ_i P_i x_i` with P_i the precision of what was seen of trajectory i, under the law of the fit; of steps, dense."""
    X = panel(11, n=12, T=6, plates=1.0)
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    known = rt.Knowledge(timestamps=DT * np.arange(6))
    fit = rt.ReTrace(dt=DT, random_state=0, common_shocks=True).fit(X, knowledge=known)
    memory = fit._memory
    model, found = memory.model, memory.outcome.found
    law, T, d = found.law, 6, 3
    F, c, Q = np.eye(d) + law.theta[:, :d] * DT, law.theta[:, d] * DT, law.H * DT
    K, mean = np.zeros((T, d, T, d)), [law.initial.mean]
    V = law.initial.covariance
    for a in range(T):
        W = V
        for b in range(a, T):
            K[a, :, b], K[b, :, a] = W.T, W
            W = F @ W
        V = F @ V @ F.T + Q
        mean.append(F @ mean[-1] + c)
    K, mean = K.reshape(T * d, T * d), np.concatenate(mean[:T])
    G, v = np.zeros((T * d, T * d)), np.zeros(T * d)
    for y in model.values[:, found.order].reshape(len(X), -1):
        seen = np.flatnonzero(~np.isnan(y))
        P = np.linalg.inv(K[np.ix_(seen, seen)])
        G[np.ix_(seen, seen)] += P
        v[seen] += P @ (y - mean)[seen]
    shifts = model.slice_shifts(found)[found.order].ravel()
    centred = np.linalg.solve(G, v) + mean
    np.testing.assert_allclose(shifts, centred, atol=5e-3)
    assert np.abs(shifts).max() < 0.05  # those of the fit are nearly these


@pytest.mark.parametrize("seed", [3, 8, 27])
def test_slice_effects_of_few_values_do_not_follow_a_singular_law(seed):
    X = panel(seed, n=8, T=6, plates=1.0)
    X[np.random.default_rng(seed).random(X.shape) < 0.4] = np.nan
    known = rt.Knowledge(timestamps=DT * np.arange(6))
    fit = rt.ReTrace(dt=DT, random_state=0, common_shocks=True).fit(X, knowledge=known)
    assert np.abs(fit._memory.model.mean_path.means).max() < 3.5


@pytest.mark.filterwarnings("ignore:The direction of time is not determined")
def test_a_fit_knows_its_own_panel_where_values_are_missing():
    X = panel(5, n=20, T=12, plates=1.0)
    X[np.random.default_rng(1).random(X.shape) < 0.15] = np.nan
    model, given, _ = fitted(X)
    one, two = model.forecast(given, 2), model.forecast(None, 2)
    np.testing.assert_array_equal(one.mean, two.mean)


@pytest.mark.filterwarnings("ignore:The direction of time is not determined")
def test_slice_effects_of_other_trajectories_are_of_maximum_likelihood_too():
    """A panel all but equal to that of the fit has all but the same means: two-way means are .05 away here, .2 in others."""
    X = panel(5, n=20, T=12, plates=1.0)
    X[np.random.default_rng(1).random(X.shape) < 0.15] = np.nan
    model, given, _ = fitted(X)
    near = given.copy()
    near[tuple(np.argwhere(~np.isnan(near))[0])] += 1e-3
    one, two = model.forecast(given, 2), model.forecast(near, 2)
    np.testing.assert_allclose(one.mean, two.mean, atol=2e-3)


def test_smoothed_states_are_those_of_the_trajectories():
    model, shuffled, _ = fitted(panel(6, common=0.5))
    np.testing.assert_allclose(model.states_, shuffled[:, model.order_], atol=1e-10)


@pytest.mark.parametrize("seeds", [8, pytest.param(25, marks=pytest.mark.statistics)])
def test_forecasts_of_the_mean_carry_the_common_part(seeds):
    """Coverage of the mean over trajectories, and of single ones, one and two steps ahead; forwards, in the known order."""
    means, single = [], []
    for seed in range(seeds):
        X = panel(100 + seed, T=22, common=0.5)
        known = rt.Knowledge(timestamps=DT * np.arange(20))
        model = rt.ReTrace(dt=DT, random_state=0).fit(X[:, :20], knowledge=known)
        ahead = model.forecast(X[:, :20], 2)
        middle, low, high = ahead.average
        np.testing.assert_allclose(middle, ahead.mean.mean(axis=0), atol=1e-9)
        truth = X[:, 20:]
        means.append((low <= truth.mean(axis=0)) & (truth.mean(axis=0) <= high))
        single.append((ahead.low <= truth) & (truth <= ahead.high))
    assert 0.85 <= np.mean(means) <= 1.0  # intervals of independent errors would hold .4
    assert 0.88 <= np.mean(single) <= 0.99


def test_errors_allow_for_shocks_that_are_kept():
    X = panel(7, T=40, common=0.5)
    kept, _, _ = fitted(X, common_shocks=False, subjects="alike")
    assert kept.standard_errors_.kind is ErrorKind.DRISCOLL_KRAAY
    assert "Driscoll" in kept.result_.dependence.verdict


def test_other_trajectories_are_ordered_by_the_same_model():
    X = panel(8, n=40, common=0.5)
    model, _, truth = fitted(X[:30])
    others, hidden = rt.simulate.shuffle(X[30:], random_state=9)
    found = model.reorder(others)
    forwards = np.array_equal(model.order_, truth)
    np.testing.assert_array_equal(found, others[:, hidden if forwards else hidden[::-1]])
    assert np.isfinite(model.score(others))


def test_the_result_keeps_what_was_found(tmp_path):
    model, _, _ = fitted(panel(9, common=0.5))
    path = model.result_.save(tmp_path / "fit.npz")
    found = rt.ReTraceResult.load(path)
    assert found == model.result_
    assert found.dependence.verdict == model.result_.dependence.verdict
    assert found.direction.deviations


def test_an_open_direction_says_that_the_means_do_not_count():
    """The means of the slices fall, which is no sign of a direction where all trajectories share shocks."""
    fall = np.linspace(3.0, 0.0, 16)[:, None]
    model, shuffled, _ = fitted(panel(1, plates=0.5) + fall)
    assert model.result_.dependence.removed
    said = model.result_.summary() + str(model.identifiability_)
    assert "as they do when deviations from the slice means are stationary" in said
    assert "No significant change of the spread of deviations from the slice means" in said
    assert (
        "they are a single trajectory, and what all trajectories share cannot be told from" in said
    )
    assert "the data look stationary" not in said
    advice = str(verdicts(model, Panel.from_array(shuffled)))
    assert "or trajectories that start far apart" in advice
    assert "data from a transient" not in advice


@pytest.mark.usefixtures("brief")
def test_own_orders_cannot_be_tested():
    X = panel(10, n=6, T=7)
    shuffled, _ = rt.simulate.shuffle(X, permutation="independent", random_state=0)
    model = rt.ReTrace(dt=DT, permutation="independent", random_state=0).fit(shuffled)
    assert model.result_.dependence.kind == "not tested"
    assert "cannot be aligned" in model.result_.dependence.verdict


@pytest.mark.parametrize(
    "options",
    [{"permutation": "independent"}, {"order": "score"}, {"drift": rt.drift.Polynomial(2)}],
)
def test_what_cannot_be_split_is_refused(options):
    with pytest.raises(ValueError, match="common_shocks"):
        rt.ReTrace(common_shocks=True, **options).fit(panel(0))


def test_an_input_common_to_all_is_not_removed():
    X = panel(11, common=0.5)
    u = np.broadcast_to(np.random.default_rng(2).standard_normal((1, 16, 1)), (30, 16, 1))
    model = rt.ReTrace(dt=DT, random_state=0).fit(X, covariates=u)
    assert not model.result_.dependence.removed
    assert "input is common" in model.result_.dependence.verdict


def test_plates_that_noise_of_measurement_would_explain_away():
    """Fitted as they are, such data leave no diffusion; their deviations do."""
    X = panel(12, plates=1.0) + 0.1 * np.random.default_rng(0).standard_normal((30, 16, 3))
    model, _, truth = fitted(X, observation_noise="diagonal")
    assert model.result_.dependence.removed
    assert right(model.order_, truth)


def test_a_common_way_to_many_levels_is_not_taken_for_common_shocks():
    """One drift for all leaves a course that all share; p was .001 before subjects were moved to where they are alike."""
    rng, dt = np.random.default_rng(0), 0.5
    drift, n = np.array([[-1.0, 0.5], [-0.3, -1.2]]), 60
    step = rt.LinearSDE(drift, 0.25 * np.eye(2)).transition(dt)
    push = np.linalg.solve(drift, step.matrix - np.eye(2)) @ rng.standard_normal((2, n))
    x, root = [2 + 0.3 * rng.standard_normal((n, 2))], np.linalg.cholesky(step.covariance)
    for _ in range(19):
        x.append(x[-1] @ step.matrix.T + push.T + rng.standard_normal((n, 2)) @ root.T)
    model = rt.ReTrace(dt=dt, random_state=0).fit(np.stack(x, axis=1))
    assert model.subject_effects_.kind == "levels"
    assert model.result_.dependence.kind == "independent"


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_a_fold_of_the_slices_leaves_the_direction_of_their_deviations_open(monkeypatch):
    """What all trajectories share may rise and fall: deviations do not show that, and say nothing of where time begins."""
    plain = fitting._planned_fit

    def folded(*given, deviations):
        found, plan = plain(*given, deviations=deviations)
        if deviations:
            return found, plan
        doubtful = left_open(found.outcome.direction, Reason.FOLD)
        cautions = (*found.outcome.cautions, Caution.FOLD)
        outcome = replace(found.outcome, direction=doubtful, cautions=cautions)
        return replace(found, outcome=outcome), plan

    X = panel(4, plates=0.3, n=60)
    fading = np.exp(-np.arange(16) * DT)[:, None]
    X = X + fading * 4 * np.random.default_rng(5).standard_normal((60, 1, 3))
    seen = fitted(X)[0]
    assert seen.result_.dependence.removed
    assert seen.direction_.identified
    monkeypatch.setattr(fitting, "_planned_fit", folded)
    model = fitted(X)[0]
    assert not model.direction_.identified
    assert model.direction_.reason == "fold"
    assert Caution.FOLD in model.result_.notes
