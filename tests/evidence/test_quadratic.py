"""A quadratic drift: its fit beside least squares, its test on predators and prey and on wells without a direction."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.quadratic import enough, fit_quadratic, quadratic_test
from retrace_sde.evidence.closed_form.null_simulation import random_reversal_test
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.fit.start_law import starts

Floats = NDArray[np.float64]


def stepped(field, x: Floats, noise: float, rng: np.random.Generator, *, T: int = 20) -> Floats:
    """Paths of Euler's scheme, ten substeps of .02 between observations."""
    found = []
    for _ in range(T):
        found.append(x)
        for _ in range(10):
            x = x + 0.02 * field(x) + noise * np.sqrt(0.02) * rng.standard_normal(x.shape)
    return np.stack(found, axis=1)


def predators(seed: int, n: int = 40) -> Floats:
    """Half a period of predators and prey, which linear models find to run either way."""
    rng = np.random.default_rng(seed)
    start = np.array([1.8, 0.6]) + 0.1 * rng.standard_normal((n, 2))

    def field(x: Floats) -> Floats:
        return np.stack([x[:, 0] * (1 - x[:, 1]), x[:, 1] * (x[:, 0] - 1)], axis=1)

    return stepped(field, start, 0.05, rng)


def wells(seed: int, n: int = 40) -> Floats:
    """Double wells in equilibrium: a nonlinear drift, and no direction."""
    rng = np.random.default_rng(seed)

    def field(x: Floats) -> Floats:
        return 4 * x * (1 - x**2)

    rest = stepped(field, rng.choice([-1.0, 1.0], (n, 1)), 0.7, rng)
    return stepped(field, rest[:, -1], 0.7, rng)


def standard(x: Floats) -> Panels:
    return Panels(((x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1)))[None])


def test_it_is_least_squares_on_squares_and_products_and_a_start_law() -> None:
    panels = standard(predators(0, n=15))
    x = panels.x[0]
    past, step = x[:, :-1].reshape(-1, 2), np.diff(x, axis=1).reshape(-1, 2)
    a, b = past.T
    rows = np.stack([a, b, a * a, a * b, b * b, np.ones_like(a)], axis=1)
    e = step - rows @ np.linalg.lstsq(rows, step, rcond=None)[0]
    H = e.T @ e / len(e)
    steps = multivariate_normal(np.zeros(2), H).logpdf(e).reshape(15, -1).sum(axis=1)
    first = starts(x[None, :, 0], H[None], panels.variances).log_densities[0]
    assert_allclose(fit_quadratic(panels)[0].log_likelihoods[0], first + steps, rtol=1e-6)


def test_the_reversed_panel_has_the_same_fits_in_turn() -> None:
    panels = standard(predators(1, n=15))
    one, two = fit_quadratic(panels)
    back, there = fit_quadratic(Panels(panels.x[:, :, ::-1]))
    assert_allclose(one.log_likelihoods, there.log_likelihoods)
    assert_allclose(two.log_likelihoods, back.log_likelihoods)


def test_too_many_variables_or_too_few_steps_are_not_asked() -> None:
    rng = np.random.default_rng(0)
    assert enough(Panels(rng.standard_normal((1, 10, 10, 2))))
    assert not enough(Panels(rng.standard_normal((1, 4, 6, 6))))
    assert not enough(Panels(rng.standard_normal((1, 500, 10, 7))))


def test_predators_and_prey_are_called_and_never_backwards() -> None:
    found = []
    for seed in range(12):
        panels = standard(predators(seed))
        one, two = (each.log_likelihoods.sum() for each in fit_quadratic(panels))
        p = quadratic_test(panels, np.random.default_rng(seed), alpha=0.05).p_value
        found.append(float(np.sign(one - two)) * (p < 0.05))
    assert min(found) >= 0
    assert sum(found) >= 5  # seven in ten in the study; fewer of twelve once in a hundred


def test_wells_in_equilibrium_are_rarely_called() -> None:
    called = sum(
        quadratic_test(standard(wells(seed)), np.random.default_rng(seed), alpha=0.05).p_value
        < 0.05
        for seed in range(40)
    )
    assert called <= 6  # at 5 %: more once in 300


@pytest.mark.parametrize("form", [Form(), Form(1, True)])
def test_trajectories_turned_by_lot_excuse_what_linear_models_do_not_explain(form: Form) -> None:
    rng = np.random.default_rng(5)
    found = [
        random_reversal_test(standard(wells(seed)), form, rng, alpha=0.05).p_value
        for seed in range(40)
    ]
    assert sum(p < 0.05 for p in found) <= 6  # at 5 %: more once in 300


def test_a_lot_is_drawn_again_and_again_and_finds_what_there_is() -> None:
    """A panel that holds every trajectory and its reverse has no ratio to beat; of a transient hardly any lot does as well."""
    x = np.random.default_rng(0).standard_normal((1, 12, 9, 2))
    same = Panels(np.concatenate([x, x[:, :, ::-1]], axis=1))
    assert random_reversal_test(same, Form(), np.random.default_rng(1), alpha=0.05).p_value > 0.5
    gone = np.exp(-np.arange(9) / 4)[None, None, :, None] * 5 + x / 5
    assert (
        random_reversal_test(Panels(gone), Form(), np.random.default_rng(1), alpha=0.05).p_value
        < 0.05
    )


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_the_fit_says_that_the_drift_is_quadratic_and_reverses_the_order() -> None:
    for seed in range(3):
        shuffled, truth = rt.simulate.shuffle(predators(seed), random_state=seed)
        model = rt.ReTrace(dt=0.2, drift="affine", random_state=0, n_jobs=1).fit(shuffled)
        test = model.direction_
        assert test.models[0].name == CandidateKind.CURVED
        if test.identified:
            assert rt.metrics.kendall_tau(truth, model.order_) == 1
            assert "a quadratic drift" in test.verdict
            assert test.preferred is test.models[0]
