"""Noise and missing values through `ReTrace`: orders, direction, parameters, posterior, both permutations."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

DT = 0.01


def panel(seed, *, d=4, n=120, T=20, noise=0.15, spread=0.3, permutation="shared"):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    X = sde.simulate(n, T, DT, x0=rng.standard_normal((n, d)) * spread, random_state=rng)
    Y = rt.simulate.add_noise(X, noise, random_state=rng)
    shuffled, truth = rt.simulate.shuffle(Y, permutation=permutation, random_state=rng)
    return sde, np.ascontiguousarray(shuffled), truth, rng


def up_to_reversal(truth, order):
    return max(rt.metrics.order_accuracy(truth, way) for way in (order, order[..., ::-1]))


@pytest.mark.parametrize("noise", ["estimate", 0.15])
def test_noise_that_hides_neighbours_does_not_hide_the_order(noise):
    """Steps have standard deviation 0.1: nearest slices mislead, the likelihood does not."""
    sde, Y, truth, _ = panel(11, n=300)
    model = rt.ReTrace(dt=DT, observation_noise=noise, random_state=0, drift="linear").fit(Y)
    assert rt.metrics.order_accuracy(truth, model.order_) == 1.0
    # 27 nats behind noise: 18 of 400 panels without a direction have as many, too near the level to call it
    assert model.direction_.p_value < 0.1
    assert model.result_.settings["estimator"] == "em"
    assert np.sqrt(np.diag(model.observation_noise_)) == pytest.approx(0.15, rel=0.02)
    # the fit is that of em along the true order
    known = rt.statespace.em(Y[:, truth], DT, noise=noise, scheme="exact")
    np.testing.assert_allclose(model.diffusion_, known.diffusion, atol=0.02)
    far = np.abs(model.drift_ - sde.drift) / model.standard_errors_.drift
    assert far.max() < 4.5  # 16 entries, normal errors: beyond 4.5 once in ten thousand fits


@pytest.mark.filterwarnings(
    "ignore:The chains over orders mix slowly"
)  # of a model that does not hold
def test_ignoring_the_noise_gives_a_worse_order():
    _, Y, truth, _ = panel(12, n=40, noise=0.3)
    aware = rt.ReTrace(dt=DT, observation_noise="estimate", random_state=0, drift="linear").fit(Y)
    naive = rt.ReTrace(dt=DT, drift="linear").fit(Y)
    assert up_to_reversal(truth, aware.order_) > up_to_reversal(truth, naive.order_) + 0.1


def test_without_noise_both_engines_agree():
    """R → 0: the state-space likelihood is that of the states, p₀ and direction test included."""
    _, Y, _, _ = panel(13, noise=1e-4)
    plain = rt.ReTrace(dt=DT, drift="linear").fit(Y)
    noisy = rt.ReTrace(dt=DT, observation_noise=1e-4, drift="linear").fit(Y)
    np.testing.assert_array_equal(noisy.order_, plain.order_)
    np.testing.assert_allclose(noisy.drift_, plain.drift_, atol=0.05)
    np.testing.assert_allclose(noisy.diffusion_, plain.diffusion_, rtol=2e-3, atol=2e-3)
    assert noisy.log_likelihood_ == pytest.approx(plain.log_likelihood_, abs=10)
    assert noisy.direction_.z == pytest.approx(plain.direction_.z, rel=0.05)


@pytest.mark.parametrize("n", [200, pytest.param(300, marks=pytest.mark.statistics)])
def test_entries_and_whole_observations_may_be_missing(n):
    _, Y, truth, rng = panel(14, n=n, noise=0.1)
    full = rt.ReTrace(dt=DT, observation_noise=0.1, random_state=0, drift="linear").fit(Y)
    Z = Y.copy()
    Z[rng.random(Z.shape) < 0.15] = np.nan
    Z[rng.random(Z.shape[:2]) < 0.05] = np.nan
    before = Z.copy()
    model = rt.ReTrace(dt=DT, observation_noise=0.1, random_state=0, drift="linear").fit(Z)
    np.testing.assert_array_equal(Z, before)
    assert rt.metrics.order_accuracy(truth, model.order_) == 1.0
    assert not np.isnan(model.states_).any()
    assert np.abs(model.drift_ - full.drift_).max() < 4 * full.standard_errors_.drift.max()


def test_missing_values_without_noise_need_no_setting():
    _, Y, truth, rng = panel(15, noise=1e-9)
    Y[rng.random(Y.shape) < 0.1] = np.nan
    model = rt.ReTrace(dt=DT, drift="linear").fit(Y)
    assert rt.metrics.order_accuracy(truth, model.order_) == 1.0
    assert model.result_.settings["estimator"] == "em"
    assert np.all(model.observation_noise_ == 0)


def test_stationary_data_have_no_direction_under_noise():
    rng = np.random.default_rng(16)
    sde = rt.simulate.random_irreversible_sde(3, random_state=rng)
    x0 = sde.stationary().sample(100, rng)
    X = sde.simulate(100, 20, 0.1, x0=x0, random_state=rng, scheme="exact")
    Y, truth = rt.simulate.shuffle(
        rt.simulate.add_noise(X, 0.1, random_state=rng), random_state=rng
    )
    model = rt.ReTrace(dt=0.1, observation_noise=0.1, drift="linear").fit(Y)
    assert up_to_reversal(truth, model.order_) == 1.0
    assert not model.direction_.identified
    np.testing.assert_array_equal(model.alternative_.order, model.order_[::-1])


def test_knowledge_is_obeyed_under_noise():
    _, Y, truth, _ = panel(17, n=30, noise=0.4)
    first, last = int(truth[0]), int(truth[-1])
    knowledge = rt.Knowledge(first=first, last=last, precedences=[(int(truth[5]), int(truth[9]))])
    model = rt.ReTrace(dt=DT, observation_noise=0.4, drift="linear").fit(Y, knowledge=knowledge)
    place = np.argsort(model.order_)
    assert model.order_[0] == first
    assert model.order_[-1] == last
    assert place[truth[5]] < place[truth[9]]
    assert model.direction_.known


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("T", [10, pytest.param(20, marks=pytest.mark.statistics)])
def test_posterior_score_reorder_and_bootstrap_under_noise(T):
    _, Y, _, _ = panel(18, n=60, T=T, noise=0.3)
    model = rt.ReTrace(dt=DT, observation_noise=0.3, random_state=0, drift="linear").fit(Y[:40])
    posterior = model.sample_orders(draws=200)
    P = posterior.position_probabilities
    np.testing.assert_allclose(P.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-5)
    ends = model.precedence_probability(int(model.order_[0]), int(model.order_[-1]))
    # The order is sure, its direction as sure as the test says.
    assert ends > 0.9 if model.direction_.identified else ends == pytest.approx(0.5, abs=0.05)
    assert model.reorder(Y[40:]).shape == Y[40:].shape
    assert model.score(Y[40:]) > model.score(Y[40:] + 1.0)
    errors = model.bootstrap_errors(draws=8)
    assert 0.3 < errors.diffusion.mean() / model.standard_errors_.diffusion.mean() < 3


def test_the_paper_s_correction_and_its_warning():
    _, Y, _, _ = panel(19, n=60, noise=0.3, spread=0.05)
    with pytest.warns(rt.ReTraceWarning, match="S − R is floored"):
        model = rt.ReTrace(dt=DT, order="score", observation_noise=0.35, drift="linear").fit(Y)
    assert model.result_.settings["estimator"] == "em"
    unknown = rt.ReTrace(dt=DT, order="score", observation_noise="estimate", drift="linear").fit(Y)
    assert any("not corrected" in note for note in unknown.result_.notes)


def test_what_cannot_be_combined_is_refused():
    _, Y, _, _ = panel(20, n=10)
    with pytest.raises(ValueError, match="estimator='mle'"):
        rt.ReTrace(dt=DT, estimator="mle", observation_noise=0.1, drift="linear").fit(Y)
    with pytest.raises(ValueError, match="linear in the state only"):
        rt.ReTrace(dt=DT, drift=rt.drift.Polynomial(2), observation_noise=0.1).fit(Y)


def test_leave_one_out_start_is_the_filter_s_own_likelihood_corrected():
    """With many trajectories leaving one out changes little: the two likelihoods agree."""
    _, Y, truth, _ = panel(21, n=400, noise=0.1)
    problem = HiddenModel.of(EulerModel(Data(Y), DT, Linear()), noise=0.1)
    found = problem.fit(truth, final=True)
    gap = found.log_likelihoods - problem.log_joint(truth, found.law)
    d = Y.shape[2]
    assert abs(gap.mean()) < 2 * (d + d * (d + 1) / 2) / len(Y)


def independent(seed, **options):
    sde, Y, truth, rng = panel(seed, permutation="independent", **options)
    return sde, Y, truth, rng


def test_independent_orders_with_little_noise():
    _, Y, truth, _ = independent(22, d=8, n=60, T=15, noise=0.02, spread=1.0)
    model = rt.ReTrace(
        dt=DT,
        permutation="independent",
        estimator="em",
        observation_noise=0.02,
        random_state=0,
        drift="linear",
    ).fit(Y)
    order = model.order_ if model.direction_.identified else model.alternative_.order
    accuracy = max(
        rt.metrics.order_accuracy(truth, each)
        for each in (model.order_, model.order_[:, ::-1], order)
    )
    assert accuracy > 0.8


@pytest.mark.statistics
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_averaging_over_orders_recovers_the_noise_that_one_order_hides():
    """σ is as large as a step: best orders explain the noise away, the average over orders does not."""
    sde, Y, truth, _ = independent(23, d=3, n=200, T=20, noise=0.1)
    options = {"dt": DT, "drift": "linear", "permutation": "independent"}
    options["observation_noise"] = "estimate"
    one = rt.ReTrace(**options, estimator="em", random_state=0).fit(Y)
    many = rt.ReTrace(**options, estimator="mcem", random_state=0).fit(Y)
    oracle = rt.statespace.em(np.take_along_axis(Y, truth[:, :, None], axis=1), DT)
    sigma = [float(np.sqrt(np.diag(fit.observation_noise_).mean())) for fit in (one, many)]
    assert sigma[0] < 0.05
    assert sigma[1] == pytest.approx(0.1, rel=0.1)
    error = np.abs(many.diffusion_ - sde.diffusion).mean()
    assert error < 0.5 * np.abs(one.diffusion_ - sde.diffusion).mean()
    assert error < 8 * np.abs(oracle.diffusion - sde.diffusion).mean()
    assert np.isfinite(many.standard_errors_.drift).all()
    assert many.position_probabilities_.shape == (200, 20, 20)


@pytest.mark.statistics
def test_few_trajectories_with_gaps_keep_the_order_that_plain_distances_find():
    """Pairs of slices seen together are few here: the likelihood of what was seen has the last word."""
    _, Y, truth, rng = panel(24, d=5, n=12, T=30, noise=1e-9)
    Y[rng.random(Y.shape) < 0.1] = np.nan
    model = rt.ReTrace(dt=DT, drift="linear").fit(Y)
    assert up_to_reversal(truth, model.order_) == 1.0
    again = rt.ReTrace(dt=DT, random_state=5, drift="linear").fit(Y)
    np.testing.assert_array_equal(again.order_, model.order_)


def test_independent_orders_with_gaps_and_lengths_of_their_own():
    """Entries and a whole observation missing, trajectories of different length: little is lost by it."""
    _, Y, truth, rng = independent(25, d=10, n=40, T=10, noise=1e-9, spread=1.0)
    lengths = rng.integers(7, 11, size=40)
    trajectories, orders = [], []
    for y, order, length in zip(Y, truth, lengths, strict=True):
        kept = np.sort(order[:length])  # the first visits in time, as they were stored
        trajectories.append(y[kept])
        orders.append(np.searchsorted(kept, order[:length]))

    def neighbours(estimator):
        panel_ = rt.Panel.from_trajectories(trajectories, dt=DT)
        model = rt.ReTrace(
            permutation="independent", estimator=estimator, random_state=0, drift="linear"
        )
        found = model.fit(panel_).order_
        outside = np.arange(10)[None] >= lengths[:, None]
        assert np.all(found[outside] == np.nonzero(outside)[1])
        return np.mean(
            [
                np.mean(np.abs(np.diff(np.argsort(order)[each[:length]])) == 1)
                for each, order, length in zip(found, orders, lengths, strict=True)
            ]
        )

    complete = neighbours("mle")
    for each in trajectories:
        each[rng.random(each.shape) < 0.1] = np.nan
    trajectories[3][2] = np.nan
    assert complete > 0.9
    assert neighbours("em") > complete - 0.1


def test_values_missing_only_from_new_data():
    """A fit to complete data orders and scores trajectories with gaps; without gaps both ways agree."""
    _, Y, truth, rng = panel(26, noise=1e-9)
    model = rt.ReTrace(dt=DT, drift="linear", outliers="keep").fit(Y[:80])
    holes = Y[80:].copy()
    holes[rng.random(holes.shape) < 0.1] = np.nan
    np.testing.assert_array_equal(model.reorder(holes)[:, 0], holes[:, truth[0]])
    assert np.isfinite(model.score(holes))
    few = Y[80:].copy()
    few[0, 0, 0] = (
        np.nan
    )  # the other engine, on nearly the same data: one value of 40 · 20 · 4 less
    assert model.score(few) == pytest.approx(model.score(Y[80:]), rel=0.01)


def test_knowledge_of_the_fit_does_not_bind_other_data():
    _, Y, truth, _ = panel(27, n=100, noise=0.1)
    knowledge = rt.Knowledge(first=int(truth[0]))
    model = rt.ReTrace(dt=DT, observation_noise=0.1, drift="linear").fit(
        Y[:60], knowledge=knowledge
    )
    other = Y[60:][:, ::-1]
    np.testing.assert_array_equal(model.reorder(other), other[:, 19 - truth])


SAME = {
    "shared": {"permutation": "shared"},
    "shared, gaps": {"permutation": "shared", "missing": 0.1},
    "own": {"permutation": "independent", "estimator": "em"},
    "own, gaps": {"permutation": "independent", "estimator": "em", "missing": 0.1},
    "averaged, gaps": {"permutation": "independent", "estimator": "mcem", "missing": 0.1},
}


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
@pytest.mark.parametrize(
    "case",
    [
        "shared, gaps",
        *(
            pytest.param(each, marks=pytest.mark.statistics)
            for each in SAME
            if each != "shared, gaps"
        ),
    ],
)
def test_the_same_seed_gives_the_same_answer_whatever_the_number_of_jobs(case):
    """More trajectories than a block holds, so that there is something to share out."""
    options = SAME[case].copy()
    share = options.pop("missing", 0.0)
    _, Y, _, rng = panel(28, d=2, n=140, T=5, noise=0.1, permutation=options["permutation"])
    Y[rng.random(Y.shape) < share] = np.nan
    before = Y.copy()

    def fit(n_jobs, seed=3):
        noise = {"observation_noise": "estimate", "random_state": seed, "n_jobs": n_jobs}
        return rt.ReTrace(dt=DT, drift="linear", **noise, **options).fit(Y)

    one, other = fit(1), fit(2)
    np.testing.assert_array_equal(Y, before)
    for name in ("order_", "drift_", "diffusion_", "observation_noise_", "states_", "times_"):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name), err_msg=name)
    mine, theirs = one.standard_errors_, other.standard_errors_
    np.testing.assert_array_equal(theirs.drift, mine.drift)
    np.testing.assert_array_equal(theirs.diffusion, mine.diffusion)
    assert other.log_likelihood_ == one.log_likelihood_
    np.testing.assert_array_equal(other.direction_.contributions, one.direction_.contributions)
    assert other.score(Y[:20]) == one.score(Y[:20])
    np.testing.assert_array_equal(
        other.sample_orders(draws=20).samples, one.sample_orders(draws=20).samples
    )
