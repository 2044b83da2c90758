"""A newcomer's candidate and guard: a few lines and one entry in a list, and every question sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.after.residuals import residual_check
from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit
from retrace_sde.evidence.candidates.linear_step import MARKOV
from retrace_sde.evidence.candidates.penalty import Block, penalty, step_parameters
from retrace_sde.evidence.candidates.prediction import Prediction, chance_share, profile, rows
from retrace_sde.evidence.candidates.registry import CANDIDATES
from retrace_sde.evidence.direction.comparison import compare_directions
from retrace_sde.evidence.direction.verdict import direction_test
from retrace_sde.evidence.guards import GUARDS, GuardFinding
from retrace_sde.fit.start_law import starts
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import EulerModel

N, T, D = 40, 20, 2
INPUT = np.random.default_rng(0).standard_normal(T)


@dataclass(frozen=True)
class CommonInput:
    """`x_{t+1} = F x_t + c + b u_t + e_t`, u known by position."""

    u: np.ndarray
    kind: str = "common input"
    meaning: str = "a known input moves all trajectories"
    allows: str = "a common input"
    remedy: str = "an input that all trajectories share. Give it as a covariate"

    def applies(self, along):
        return along.whole_panels is not None

    def fit(self, along):
        panels, d = along.panels, along.panels.x.shape[3]
        both = [
            self._log_likelihoods(each, u)
            for each, u in ((panels, self.u), (panels.reverse, self.u[::-1]))
        ]
        volume = panels.log_volume / len(both[0])
        price = penalty(Block(step_parameters(d, affine=True) + d, along.steps))
        return CandidateFit.of_trajectories(self.kind, both[0] - volume, both[1] - volume, price)

    def predict(self, steps):
        y, z, _ = rows(steps)
        u = np.broadcast_to(self.u[1:-1, None], (*y.shape[:1], len(self.u) - 2, 1))
        value = profile(y[:, 1:], np.concatenate([z[:, 1:], u], axis=2))[0]
        return Prediction(value, y.shape[2], chance_share(steps))

    def _log_likelihoods(self, panels, u):
        """Least squares of the steps, and the start law that every candidate has."""
        x, d = panels.x[0], panels.x.shape[3]
        ones = np.ones((*x[:, :-1].shape[:2], 1))
        z = np.concatenate([x[:, :-1], ones, ones * u[:-1, None]], axis=2).reshape(-1, d + 2)
        y = np.diff(x, axis=1).reshape(-1, d)
        e = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
        H = e.T @ e / len(e)
        steps = multivariate_normal(np.zeros(d), H).logpdf(e).reshape(len(x), -1).sum(axis=1)
        return steps + starts(panels.first(1), H, panels.widths(1)).log_densities[0]


def driven(seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x, found = 2 + rng.standard_normal((N, D)), []
    for u in INPUT:
        found.append(x)
        x = 0.8 * x + 0.5 * u + 0.2 * rng.standard_normal((N, D))
    return np.stack(found, axis=1)


@pytest.fixture
def along():
    """The candidates along the true order of a driven panel, the newcomer's among them."""
    CANDIDATES.append(toy := CommonInput(INPUT))
    model = EulerModel(Data(driven(), n_jobs=1), 0.1, Affine())
    one = model.fit(np.arange(T))
    both = one, model.reversed_fit(one)
    shares = both[0].log_likelihoods - both[1].log_likelihoods
    yield CandidatesAlong(model, both, shares, np.random.default_rng(0))
    CANDIDATES.remove(toy)


def test_the_direction_compares_it_and_is_tested_in_it(along):
    plain = direction_test(*(each.log_likelihoods for each in along.both), dimension=D)
    test, reverse = compare_directions(along, plain, np.random.default_rng(0), alpha=0.05)
    assert test.models[0].name == "common input"
    assert test.preferred is test.models[0]
    assert test.models[0].meaning == "a known input moves all trajectories"
    assert test.identified
    assert not reverse
    assert "With a common input allowed" in test.verdict


def test_the_choice_reads_its_penalised_log_likelihood(along):
    toy = CANDIDATES[-1]
    gain = along.gain(toy, MARKOV)
    assert gain is not None
    assert gain > 30
    assert along.fit(toy) is along.fit(toy)  # fitted once


def test_residuals_are_explained_by_it(along):
    check = residual_check(along.model, along.both[0], np.random.default_rng(0))
    causes = {each.cause for each in check.failed}
    assert "common input" in causes
    assert "Give it as a covariate" in str(check)


def test_a_guard_is_a_function_and_a_line(monkeypatch):
    def copied_subjects(case):
        """Two trajectories that are copies of one another are not independent."""
        values = np.asarray(case.model.data.values)
        copies = len(np.unique(values.reshape(len(values), -1), axis=0)) < len(values)
        return GuardFinding(case.test, ("Some trajectories are copies.",)) if copies else None

    monkeypatch.setattr("retrace_sde.evidence.guards.GUARDS", [*GUARDS, copied_subjects])
    X = driven()
    X[1] = X[0]
    with pytest.warns(rt.ReTraceWarning, match="copies"):
        rt.ReTrace(dt=0.1, random_state=0, n_jobs=1).fit(X)
