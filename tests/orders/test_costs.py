"""Costs between slices and along orders."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal

from retrace_sde.fit.euler import Euler, step_log_likelihoods
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.orders.costs import as_matrix, distances, near_costs, spread, transition_costs
from retrace_sde.panel import blocks
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Drift, Linear
from retrace_sde.process.sde import Gaussian, LinearSDE
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.models.euler import EulerModel

Floats = NDArray[np.float64]
DT = 0.05


class Driven(Drift):
    """b(x, u) = A x + B u."""

    def features(self, x: Any, u: Any | None) -> Any:
        assert u is not None
        return np.concatenate([x, u], axis=-1)

    def feature_names(self, variables: Any, covariates: Any) -> list[str]:
        return [*variables, *covariates]


def setup(n: int = 9, T: int = 8, d: int = 3, seed: int = 0) -> tuple[Floats, Euler]:
    """A panel and an affine model that is not the one it came from."""
    rng = np.random.default_rng(seed)
    X = random_irreversible_sde(d, random_state=rng).simulate(n, T, DT, x0=1.0, random_state=rng)
    theta, G = rng.normal(size=(d, d + 1)), rng.normal(size=(d, d))
    return X, Euler(Affine(), theta, G @ G.T + 0.1 * np.eye(d), DT)


def as_sde(model: Euler) -> LinearSDE:
    theta, d = model.coefficients, len(model.diffusion)
    return LinearSDE(theta[:, :d], model.diffusion, offset=theta[:, d])


def plain_costs(X: Floats, model: Euler, U: Floats | None = None) -> Floats:
    """−log p(slice b | slice a) for every pair, one trajectory at a time, less its constant."""
    n, T, d = X.shape
    C = np.zeros((T, T))
    noise = multivariate_normal(np.zeros(d), model.diffusion * model.dt)
    for a in range(T):
        for b in range(T):
            for j in range(n):
                phi = model.drift.features(X[j, a], None if U is None else U[j, a])
                mean = X[j, a] + model.coefficients @ phi * model.dt
                C[a, b] -= noise.logpdf(X[j, b] - mean) - noise.logpdf(np.zeros(d))
    np.fill_diagonal(C, 0)
    return C


def random_order(T: int) -> NDArray[np.intp]:
    return np.random.default_rng(9).permutation(T)


# Pairs of slices


def test_transition_costs_are_gaussian_log_densities() -> None:
    X, model = setup()
    assert_allclose(transition_costs(Data(X), model), plain_costs(X, model), rtol=1e-9)


def test_transition_costs_with_covariates() -> None:
    X, model = setup()
    U = np.random.default_rng(1).normal(size=(9, 8, 2))
    model = Euler(Driven(), np.random.default_rng(2).normal(size=(3, 5)), model.diffusion, DT)
    assert_allclose(transition_costs(Data(X, U), model), plain_costs(X, model, U), rtol=1e-9)


def test_near_costs_are_the_band_of_all_costs() -> None:
    X, model = setup()
    order = random_order(8)
    along = plain_costs(X, model)[np.ix_(order, order)]
    gap = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    for width in (1, 3, 7):
        near = as_matrix(near_costs(Data(X), order, model, width))
        inside = (gap > 0) & (gap <= width)
        assert_allclose(near[inside], along[inside], rtol=1e-9)
        assert np.all(np.isinf(near[~inside]))


@pytest.mark.parametrize("T", [2, 3])
def test_near_costs_of_fewer_slices_than_the_width(T: int) -> None:
    X, model = setup(T=T)
    near = as_matrix(near_costs(Data(X), np.arange(T), model, 3))
    np.fill_diagonal(near, 0)
    assert_allclose(near, plain_costs(X, model), rtol=1e-9)


def test_distances_are_euclidean_in_the_given_scale() -> None:
    X, _ = setup()
    scale = np.array([0.1, 1.0, 30.0])
    flat = (X / scale).transpose(1, 0, 2).reshape(8, -1)
    found = distances(Data(X), scale=scale)
    assert_allclose(found, cdist(flat, flat, "sqeuclidean"), rtol=1e-10, atol=1e-10)
    assert np.array_equal(found, found.T)


def test_distances_do_not_depend_on_units_and_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = setup()
    flat = (X / X.std(axis=(0, 1))).transpose(1, 0, 2).reshape(8, -1)
    expected = cdist(flat, flat, "sqeuclidean")
    for other in (X, X * [1e-6, 1.0, 1e6], X + np.array([0.0, 1e5, -1e5])):
        assert_allclose(distances(Data(other)), expected, rtol=1e-8, atol=1e-8)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1)
    assert_allclose(distances(Data(X)), expected, rtol=1e-10, atol=1e-10)


def test_a_large_level_costs_no_digits() -> None:
    # Rounding the raised data to 2⁻²⁶ makes every difference exact, so that any loss is ours.
    X, model = setup()
    X = np.round(X * 2**20) / 2**20
    raised = X + 2.0**27
    flat = X.transpose(1, 0, 2).reshape(8, -1)
    expected = cdist(flat, flat, "sqeuclidean")
    high = raised.transpose(1, 0, 2).reshape(8, -1)
    norms = (high**2).sum(axis=1)
    naive = norms[:, None] + norms - 2 * high @ high.T
    assert np.abs(naive - expected).max() > 0.1 * expected.max()  # the case is a hard one
    assert_allclose(distances(Data(raised), scale=np.ones(3)), expected, rtol=1e-10, atol=1e-10)
    # A model without drift: the same distances in the metric of H Δt.
    still = Euler(Linear(), np.zeros((3, 3)), model.diffusion, DT)
    assert_allclose(transition_costs(Data(raised), still), plain_costs(X, still), rtol=1e-6)


# Along an order


def test_step_log_likelihoods_are_those_of_the_euler_chain() -> None:
    X, model = setup()
    order = random_order(8)
    sde = as_sde(model)
    start = Gaussian(np.zeros(3), np.eye(3))
    whole = sde.log_likelihood(X[:, order], DT, initial=start, scheme="euler")
    found = step_log_likelihoods(Data(X), order, model)
    assert_allclose(found, whole - start.log_density(X[:, order[0]]), rtol=1e-10)


def test_differences_of_costs_are_differences_of_log_likelihoods() -> None:
    X, model = setup()
    C = transition_costs(Data(X), model)
    one, other = random_order(8), np.arange(8)
    cost = [C[o[:-1], o[1:]].sum() for o in (one, other)]
    found = [step_log_likelihoods(Data(X), o, model).sum() for o in (one, other)]
    assert cost[0] - cost[1] == pytest.approx(found[1] - found[0], rel=1e-9)


def test_the_fit_is_where_the_likelihood_is_greatest() -> None:
    X, _ = setup(n=20)
    order = np.arange(8)
    best = mle(moments(Data(X), order, DT, Affine()))

    def likelihood(theta: Floats, H: Floats) -> float:
        return float(step_log_likelihoods(Data(X), order, Euler(Affine(), theta, H, DT)).sum())

    top = likelihood(best.coefficients, best.diffusion)
    rng = np.random.default_rng(0)
    for _ in range(20):
        change = 1e-3 * rng.normal(size=(3, 3))
        assert likelihood(best.coefficients + 1e-2 * rng.normal(size=(3, 4)), best.diffusion) < top
        assert likelihood(best.coefficients, best.diffusion + change + change.T) < top


def test_ratios_of_steps_do_not_depend_on_coordinates() -> None:
    # A change of variables shifts every log density by one constant per step.
    X, _ = setup(n=30)
    B = np.random.default_rng(4).normal(size=(3, 3))
    order, values = np.arange(8), []
    for panel in (X, X @ B.T + 5):
        model = EulerModel(Data(panel), DT, Affine()).fit(order).step
        values.append(step_log_likelihoods(Data(panel), order, model))
    shift = 7 * np.linalg.slogdet(B)[1]
    assert_allclose(values[1], values[0] - shift, rtol=1e-8)


# Blocks, jobs and namespaces


def everything(data: Data, model: Euler, order: NDArray[np.intp]) -> list[Floats]:
    return [
        transition_costs(data, model),
        distances(data),
        near_costs(data, order, model, 2),
        step_log_likelihoods(data, order, model),
        start_log_densities(data.slices(order[:2]), model, spread(data) ** 2),
    ]


def test_blocks_and_jobs_do_not_change_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    X, model = setup(n=50)
    X.flags.writeable = False
    order = random_order(8)
    whole = everything(Data(X), model, order)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * 8 * 3)
    with blocks.one_blas_thread():
        one, four = (everything(Data(X, n_jobs=jobs), model, order) for jobs in (1, 4))
    for a, b, c in zip(whole, one, four, strict=True):
        assert_allclose(b, a, rtol=1e-10, atol=1e-10)
        assert np.array_equal(b, c)


def test_single_precision_data_are_summed_in_double() -> None:
    X, model = setup(n=50)
    single = X.astype(np.float32)
    for a, b in zip(
        everything(Data(single), model, random_order(8)),
        everything(Data(single.astype(float)), model, random_order(8)),
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_another_array_namespace_gives_the_same_costs() -> None:
    X, model = setup()
    order = random_order(8)
    strict = everything(Data(array_api_strict.asarray(X)), model, order)
    for a, b in zip(everything(Data(X), model, order), strict, strict=True):
        assert isinstance(b, np.ndarray)
        assert_allclose(b, a, rtol=1e-9, atol=1e-9)
