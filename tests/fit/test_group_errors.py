"""Standard errors over groups of trajectories: sums of scores are squared, and whole groups are left out or drawn."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.moments import moments
from retrace_sde.fit.scores import bootstrap_errors, regression_sandwich
from retrace_sde.panel.blocks import Data

SDE = rt.LinearSDE([[-0.6, 0.4], [-0.4, -0.6]], np.eye(2))
DT = 0.2


def clustered(groups, T=10, seed=0):
    """Trajectories of one group have a drift in common, which the model does not know."""
    rng = np.random.default_rng(seed)
    groups = np.asarray(groups)
    X = SDE.simulate(len(groups), T, DT, x0=[3.0, 0.0], random_state=seed)
    push = rng.normal(size=(groups.max() + 1, 1, 2))[groups]
    return X + push * np.arange(T)[None, :, None] * DT


def regression(X):
    """Rows (1, x) and increments per unit of time of each trajectory."""
    n, T, _ = X.shape
    before, step = X[:, :-1], np.diff(X, axis=1) / DT
    return np.concatenate([before, np.ones((n, T - 1, 1))], axis=2), step


def sandwich(X, groups):
    data, order = Data(X, groups=groups), np.arange(X.shape[1])
    drift = rt.drift.Affine()
    return regression_sandwich(data, order, DT, drift, moments(data, order, DT, drift))


def test_errors_are_those_of_leaving_out_each_group():
    groups = np.r_[np.repeat(np.arange(8), 3), 8, 9, 9]
    X = clustered(groups)
    z, y = regression(X)

    def fit(rows):
        theta, *_ = np.linalg.lstsq(z[rows].reshape(-1, 3), y[rows].reshape(-1, 2))
        e = y[rows].reshape(-1, 2) - z[rows].reshape(-1, 3) @ theta
        return theta.T, e.T @ e / len(e) * DT

    G = groups.max() + 1
    every = [fit(groups != g) for g in range(G)]
    whole = fit(groups >= 0)
    for k, found in enumerate(("drift", "diffusion")):
        square = sum((each[k] - whole[k]) ** 2 for each in every)
        expected = np.sqrt((G - 1) / G * square)
        np.testing.assert_allclose(getattr(sandwich(X, groups), found), expected, rtol=2e-3)


def test_errors_are_cluster_robust_ones_with_many_groups():
    """Those of statsmodels' `cov_type="cluster"` (CR1), written out; leaving out (CR3) differs from them by O(1/G)."""
    groups = np.repeat(np.arange(150), 3)
    X = clustered(groups)
    z, y = regression(X)
    rows, N = z.reshape(-1, 3), z.shape[0] * z.shape[1]
    bread = np.linalg.inv(rows.T @ rows)
    found = sandwich(X, groups).drift
    for k in range(2):
        theta = bread @ rows.T @ y[:, :, k].ravel()
        scores = (z * (y[:, :, k] - z @ theta)[:, :, None]).sum(axis=1)
        scores = scores.reshape(150, 3, 3).sum(axis=1)
        covariance = 150 / 149 * (N - 1) / (N - 3) * bread @ scores.T @ scores @ bread
        np.testing.assert_allclose(found[k], np.sqrt(np.diag(covariance)), rtol=0.03)
    alone = sandwich(X, None).drift
    assert found[0, 2] > 1.4 * alone[0, 2]  # what groups share is in the intercept


def test_errors_of_a_panel_three_times_are_those_of_the_panel():
    X = clustered(np.arange(40))
    three, groups = np.repeat(X, 3, axis=0), np.repeat(np.arange(40), 3)
    for found in ("drift", "diffusion", "covariances"):
        one, again = getattr(sandwich(X, None), found), getattr(sandwich(three, groups), found)
        np.testing.assert_allclose(again, one, rtol=0.02, atol=1e-3 * np.abs(one).max())
    drift, order = rt.drift.Affine(), np.arange(X.shape[1])
    one, again = (
        bootstrap_errors(Data(x, groups=g), order, DT, drift, np.random.default_rng(0))
        for x, g in ((X, None), (three, groups))
    )
    np.testing.assert_allclose(again.drift, one.drift)


@pytest.mark.parametrize("options", [{}, {"observation_noise": 0.1}, {"subjects": "levels"},
                                     {"subjects": "levels", "observation_noise": 0.1}], ids=str)  # fmt: skip
def test_every_estimator_sums_within_groups(options):
    """Three noisy looks at each trajectory count once."""
    X = SDE.simulate(25, 12, DT, x0=[3.0, 0.0], random_state=1)
    three, groups = np.repeat(X, 3, axis=0), np.repeat(np.arange(25), 3)
    given = {"dt": DT, "subjects": "alike", "random_state": 0} | options
    known = rt.Knowledge(positions=np.arange(12))
    one = rt.ReTrace(**given).fit(X, knowledge=known)
    again = rt.ReTrace(**given).fit(three, knowledge=known, groups=groups)
    assert again.standard_errors_.kind == "sandwich by group"
    assert again.result_.n_groups == 25
    assert "75 trajectories in 25 groups" in again.summary()
    np.testing.assert_array_equal(again.result_.groups, groups)
    np.testing.assert_allclose(again.standard_errors_.drift, one.standard_errors_.drift, rtol=0.1)
    reach = again.result_.conf_int()["upper"] - again.result_.parameters["estimate"]
    ratio = (reach / again.result_.parameters["std_error"])[:9]  # of A, c and H
    np.testing.assert_allclose(ratio, 2.0639, rtol=1e-3)  # Student's, 24 degrees of freedom


def test_the_bootstrap_draws_groups():
    rows = Data(np.zeros((7, 4, 1)), groups=np.array([0, 1, 0, 2, 2, 2, 1]))
    drawn = rows.resampled(np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=7)
    assert counts[0] == counts[2]
    assert counts[1] == counts[6]
    assert len(set(counts[3:6])) == 1
    np.testing.assert_array_equal(np.sort(rows.whole_groups(7)), np.arange(7))


@pytest.mark.usefixtures("brief")
def test_averages_over_orders_sum_scores_within_groups():
    """Louis' information is that of single trajectories; only the spread of scores is that of groups.

    Trajectories start far from rest: both fits must know the direction, or errors average over two.
    """
    start = np.random.default_rng(0).normal([5.0, 0.0], 0.8, size=(25, 2))
    X = SDE.simulate(25, 6, DT, x0=start, random_state=0)
    given = {"dt": DT, "permutation": "independent", "estimator": "mcem", "random_state": 0}
    one = rt.ReTrace(**given).fit(X).standard_errors_
    three, groups = np.repeat(X, 3, axis=0), np.repeat(np.arange(25), 3)
    again = rt.ReTrace(**given).fit(three, groups=groups).standard_errors_
    assert (one.kind, again.kind) == ("sandwich", "sandwich by group")
    np.testing.assert_allclose(again.diffusion, one.diffusion, rtol=0.2)
