"""The last stretch of a climb: it finds the maximum, whatever the start, and its slopes are the likelihood's."""

from dataclasses import replace

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.statespace.ascent.quasi_newton import Coordinates, finish
from retrace_sde.fit.statespace.parameters import as_noise
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.model import Problem
from retrace_sde.search.models.hidden import HiddenModel

DT = 0.15


def panel(seed, *, n=40, T=15, noise=0.1):
    rng = np.random.default_rng(seed)
    A, path = np.array([[-1.0, 0.5], [-0.3, -1.2]]), [2 + 0.3 * rng.standard_normal((n, 2))]
    for _ in range(T - 1):
        path.append(path[-1] + DT * path[-1] @ A.T + 0.5 * DT**0.5 * rng.standard_normal((n, 2)))
    return np.stack(path, axis=1) + noise * rng.standard_normal((n, T, 2))


def models(y):
    problem = Problem(Data(y), DT, Affine())
    uneven = DT * np.tile([0.5, 1.5], y.shape[1])[: y.shape[1] - 1]
    return {
        "equal steps": HiddenModel.of(problem, noise="estimate"),
        "a noise each": HiddenModel.of(problem, noise="diagonal"),
        "known gaps": HiddenModel.across(problem, uneven, noise="estimate"),
        "known gaps, Euler": HiddenModel.across(problem, uneven, noise="estimate", scheme="euler"),
        "free gaps": HiddenModel.across(problem, uneven, noise="estimate", free=True),
    }


@pytest.mark.parametrize(
    "name", ["equal steps", "a noise each", "known gaps", "known gaps, Euler", "free gaps"]
)
def test_slopes_are_those_of_the_likelihood(name):
    y = panel(0, n=6, T=6)
    y[2, 3, 1] = np.nan
    model = models(y)[name]
    order = np.arange(6)
    prepared, ascent = model._prepared([order]), model._ascent
    start = model._guess(order, as_noise(model.noise, 2)[0])
    at = Coordinates(ascent, start, model._expect(prepared, start))
    x = 0.3 * np.random.default_rng(1).standard_normal(len(at.begin))
    here = at.unpack(x)
    found = at.slopes(here, model._expect(prepared, here), x)

    def value(x):
        return model._expect(prepared, at.unpack(x)).likelihood

    h = 1e-5
    expected = [(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["equal steps", "known gaps"])
def test_the_maximum_is_found_from_starts_with_little_noise_and_with_much(name):
    """Steps of EM from little noise stop where they began, 4 to 7 nats below."""
    model, order = models(panel(7002))[name], np.arange(15)
    prepared, ends = model._prepared([order]), []
    for share in (0.01, 3.0):
        start = model._guess(order, as_noise("estimate", 2)[0])
        R = share * np.mean(np.diag(start.H)) * DT * np.eye(2)
        start = start.__class__(**{**start.__dict__, "R": R})
        expected = model._expect(prepared, start)
        ends.append(
            finish(lambda law: model._expect(prepared, law), model._ascent, start, expected)
        )
    low, high = ends
    assert abs(low.expected.likelihood - high.expected.likelihood) < 0.02
    assert abs(low.parameters.R[0, 0] / high.parameters.R[0, 0] - 1) < 0.02


def test_noise_of_a_short_panel_is_found_along_its_known_order():
    """σ = .1 was estimated as .03 to .065: the median of ten is within three standard errors, .012 each."""
    found = []
    for seed in range(7300, 7310):
        known = rt.Knowledge(positions={k: k for k in range(15)})
        # One of the ten has a value that looks wrong, and is not.
        model = rt.ReTrace(dt=DT, observation_noise="estimate", subjects="alike", outliers="keep")
        found.append(model.fit(panel(seed), knowledge=known).result_.observation_noise[0, 0] ** 0.5)
    assert abs(np.median(found) - 0.1) < 3 * 1.25 * 0.012 / np.sqrt(10)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_likelihood_is_given_up_only_where_it_is_out_of_reach(seed):
    """A nat short of the maximum is reached; a thousand beyond it ends the search sooner."""
    model, order = models(panel(seed))["known gaps"], np.arange(15)
    prepared = model._prepared([order])
    start = model._guess(order, as_noise("estimate", 2)[0])
    first = model._expect(prepared, start)

    def search(needed):
        return finish(
            lambda law: model._expect(prepared, law), model._ascent, start, first, needed=needed
        )

    whole = search(-np.inf)
    top = whole.expected.likelihood
    assert search(top - 1).expected.likelihood >= top - 1
    assert search(top + 1000).evaluations < whole.evaluations


def test_a_step_where_the_smoother_breaks_down_is_refused():
    """One of 100 panels of growth with offsets of slices ended in an error: of its data, though a trial step was to blame."""
    model, order = models(panel(1))["equal steps"], np.arange(15)
    prepared = model._prepared([order])
    start = model._guess(order, as_noise("estimate", 2)[0])
    first, tried = model._expect(prepared, start), []

    def expect(law):
        found = model._expect(prepared, law)
        tried.append(law)
        if len(tried) != 2:
            return found
        broken = replace(found.first, covariance=np.full((2, 2), np.nan))
        return replace(found, first=broken)

    end = finish(expect, model._ascent, start, first)
    assert len(tried) > 2
    assert end.expected.likelihood > first.likelihood
    assert np.isfinite(end.parameters.H).all()
