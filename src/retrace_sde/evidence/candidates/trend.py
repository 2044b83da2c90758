"""A trend from outside: deviations that follow linear steps about a path that is a parabola of time,

    x_t = m(t) + y_t,      y_{t+1} = F y_t + e_t,      m(t) = b₀ + b₁ t + b₂ t².

A treatment, a season or a wearing sensor moves all subjects along such a path, and its reverse is as good a path. A relaxation to
equilibrium may look the same: one exponential is hardly told from a parabola. So where a trend explains the panel as well as
the best candidate, the slices' means alone say nothing of the direction, and deviations from them must show it, too.

The means are n-fold exact observations of one path, so given the fit with free offsets the path is a generalised
least-squares problem, and its misfit χ²/2 is what the trend loses against free offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import form_penalty
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import StepFit, contributions, fit_directions
from retrace_sde.io.arrays import Array

DEGREES = (1, 2)
"""Of the polynomial: the one with the highest penalised likelihood counts. A cubic follows any relaxation (n = 8 to 30)."""

NATS_A_PARAMETER = 1.5
"""What each number costs that a parabola has beyond a relaxation, which has as many as a straight line. With the tie of `comparison.TREND_TIE_NATS`
it keeps wrong calls of trends at .03 or less in one to three variables and .05 in four; at one nat and a tie of 3, as many
are wrong and 0 to .09 fewer transients are called (100 panels each, n = 30, T = 12 and 20, true order)."""


@dataclass(frozen=True)
class OutsideTrend:
    """Linear steps about a polynomial of time."""

    kind: str = CandidateKind.TREND
    meaning: str = "something outside moves all trajectories along a smooth path"
    allows: str = "a trend from outside"
    remedy: str = ""

    def applies(self, along: CandidatesAlong) -> bool:
        panels = along.panels
        if panels is None or not panels.aligned or along.deviations or not along.affine:
            return False
        return Form(means=True).fits(*panels.x.shape[1:])

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        panels = along.panels
        assert panels is not None  # it applies
        plain = form_penalty(panels, Form())
        d = panels.x.shape[3]
        found = []
        one, two = fit_directions(panels, Form(means=True))
        for k in DEGREES:
            totals = tuple(
                float(way.total[0]) - panels.log_volume - _misfit(each, way, k) / 2
                for each, way in ((panels, one), (panels.reverse, two))
            )
            # A trend in error costs a call, a relaxation in error calls wrongly: further numbers cost less than BIC asks.
            found.append((totals, plain + NATS_A_PARAMETER * (k - 1) * d))
        (first, second), price = max(found, key=lambda each: max(each[0]) - each[1])

        def by_trajectory() -> Array:
            return np.asarray(contributions(panels, one)[0] - contributions(panels.reverse, two)[0])

        return CandidateFit(
            self.kind, (first, second), price, first - second, by_trajectory, Role.MEANS
        )

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


def _misfit(panels: Panels, fit: StepFit, degree: int) -> float:
    """χ² of the slices' means about the best polynomial of time.

    `m_{t+1} − F m_t` is linear in the coefficients, so that the normal equations are sums of Kronecker products.
    """
    path = panels.x[0].mean(axis=0)
    n, T = panels.x.shape[1:3]
    F = fit.step[0]
    powers = np.linspace(-1, 1, T)[:, None] ** np.arange(degree + 1)
    start, step = (np.linalg.inv(np.linalg.cholesky(S)).T for S in (fit.start.moments[1], fit.H[0]))
    # Each term is (polynomials, what multiplies their coefficients), for the first slice and for the steps.
    equations = [
        ([(powers[:1], start)], path[:1] @ start),
        ([(powers[1:], step), (-powers[:-1], F @ step)], (path[1:] - path[:-1] @ F) @ step),
    ]
    size = (degree + 1) * path.shape[1]
    G, g, squares = np.zeros((size, size)), np.zeros(size), 0.0
    for terms, values in equations:
        squares += float((values**2).sum())
        for p, M in terms:
            g += (p.T @ values @ M.T).ravel()
            for q, N in terms:
                G += np.kron(p.T @ q, M @ N.T)
    return float(n * max(squares - g @ np.linalg.lstsq(G, g, rcond=None)[0], 0.0))


OUTSIDE_TREND = OutsideTrend()
