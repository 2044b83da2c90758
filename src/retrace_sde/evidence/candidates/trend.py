"""A trend from outside: deviations that follow linear steps about a path that is a parabola of time,

    x_t = m(t) + y_t,      y_{t+1} = F y_t + e_t,      m(t) = b₀ + b₁ t + b₂ t².

A treatment, a season or a wearing sensor moves all subjects along such a path, and its reverse is as good a path. A relaxation to
equilibrium may look the same: one exponential is hardly told from a parabola. So where a trend explains the panel as well as
the best candidate, the slices' means alone say nothing of the direction, and deviations from them must show it, too.

The means are n-fold exact observations of one path, so given the fit with free offsets the path is a generalised
least-squares problem, and its misfit χ²/2 is what the trend loses against free offsets.

Both paths have numbers to choose, and what these are worth depends on how well the panel determines them: a slow process hardly its
parabola. So they are integrated out, over a normal prior of `PRIOR_DEVIATIONS`: a path with information I pays
`½ log|1 + τ² I|`, the relaxation also `(d/2) log |G| / |G_deviations|` for dynamics that its means determine, too (G second moments of the past).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import form_penalty
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import StepFit, contributions, fit_directions
from retrace_sde.evidence.closed_form.sums import StepSums
from retrace_sde.fit.start_law import inverted
from retrace_sde.io.arrays import Array

DEGREES = (1, 2)
"""Of the polynomial: the one with the highest penalised likelihood counts. A cubic follows any relaxation (n = 8 to 30)."""

PRIOR_DEVIATIONS = 0.5
"""τ: prior standard deviation of a path's coefficients, in those of the slices (time runs from −1 to 1). With the tie of `comparison.TREND_TIE_NATS` trends are
called wrongly in .03 or less in one to four variables, transients (n = 30, T = 20) rightly in .91, .82 and .55 in four, three and two; at one
deviation .91, .80 and .45. With 1.5 nats for each number that a parabola has beyond a relaxation: .05 wrong in four
variables, and .85, .73 and .41 right (200 panels each, true order, Markov steps alone)."""


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
        ways = panels, panels.reverse
        pasts = [_Past.of(each) for each in ways]
        spread = np.linalg.cholesky(pasts[0].within + pasts[1].within) / np.sqrt(2 * pasts[0].rows)
        relaxed = [
            (float(way.total[0]), _relaxation(each, way, spread))
            for each, way in zip(pasts, fit_directions(panels, Form()), strict=True)
        ]
        # What the best candidate, mostly Markov steps, pays for its path is not in its BIC.
        paid = form_penalty(panels, Form()) - max(relaxed)[1]
        one, two = fit_directions(panels, Form(means=True))
        found = []
        each_way = [_paths(*each, spread) for each in zip(ways, (one, two), strict=True)]
        for paths in zip(*each_way, strict=True):
            totals = tuple(
                float(way.total[0]) - panels.log_volume - path.misfit / 2
                for way, path in zip((one, two), paths, strict=True)
            )
            evidence = max(total - path.volume for total, path in zip(totals, paths, strict=True))
            found.append((evidence - paid, totals))
        evidence, (first, second) = max(found)

        def by_trajectory() -> Array:
            return np.asarray(contributions(panels, one)[0] - contributions(panels.reverse, two)[0])

        price = max(first, second) - evidence
        return CandidateFit(
            self.kind, (first, second), price, first - second, by_trajectory, Role.MEANS
        )

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


class Path(NamedTuple):
    """χ² of the slices' means about the best path, and what its coefficients cost, in nats."""

    misfit: float
    volume: float


def volume(information: Array) -> float:
    """`½ log|1 + τ² I|` of coefficients in units of the slices' deviations."""
    size = len(information)
    return 0.5 * float(np.linalg.slogdet(np.eye(size) + PRIOR_DEVIATIONS**2 * information)[1])


class _Past(NamedTuple):
    """Second moments (d, d) of the states before a step, about their mean and about those of slices; numbers of trajectories and of rows."""

    whole: Array
    within: Array
    trajectories: int
    rows: float

    @classmethod
    def of(cls, panels: Panels) -> _Past:
        """In the direction of a panel."""
        sums, d = StepSums.of(panels, Form()), panels.x.shape[3]
        w, mean = sums.count, sums.mean[0][:, :d]
        within, about = sums.about_slices(None)[0][:d, :d], mean - w @ mean / w.sum()
        whole = within + (w[:, None] * about).T @ about
        return cls(whole, within, panels.x.shape[1], float(w.sum()))


def _relaxation(past: _Past, fit: StepFit, spread: Array) -> float:
    """What the path of Markov steps costs: its start, the mean to which it relaxes, and dynamics that it determines.

    `spread`: a root of the covariance of slices, as it multiplies columns.
    """
    d = len(spread)
    towards = (np.eye(d) - fit.step[0].T) @ spread
    start = spread.T @ np.linalg.solve(_start(fit, spread, past.trajectories), spread)
    end = towards.T @ np.linalg.solve(fit.H[0], towards)
    whole, within = (float(np.linalg.slogdet(each)[1]) for each in past[:2])
    coefficients = volume(past.trajectories * start) + volume(past.rows * end)
    return coefficients + d * (whole - within) / 2


def _start(fit: StepFit, spread: Array, n: int) -> Array:
    """The covariance of the first slice; that of all slices where there are too few trajectories for one."""
    return np.asarray(fit.start.moments[1]) if n > len(spread) else spread @ spread.T


def _paths(panels: Panels, fit: StepFit, spread: Array) -> list[Path]:
    """Of the best polynomials of time, of all `DEGREES`.

    `m_{t+1} − F m_t` is linear in the coefficients, so that the normal equations are sums of Kronecker products; those of a lower degree are
    the first of the highest one's.
    """
    path = panels.x[0].mean(axis=0)
    (n, T, d), most = panels.x.shape[1:], max(DEGREES) + 1
    F = fit.step[0]
    powers = np.linspace(-1, 1, T)[:, None] ** np.arange(most)
    covariances = _start(fit, spread, n), fit.H[0]
    start, step = (inverted(np.linalg.cholesky(S)).T for S in covariances)
    # Each term is (polynomials, what multiplies their coefficients), for the first slice and for the steps.
    equations = [
        ([(powers[:1], start)], path[:1] @ start),
        ([(powers[1:], step), (-powers[:-1], F @ step)], (path[1:] - path[:-1] @ F) @ step),
    ]
    G, g, squares = np.zeros((most, d, most, d)), np.zeros((most, d)), 0.0
    for terms, values in equations:
        squares += float((values**2).sum())
        for p, M in terms:
            g += p.T @ values @ M.T
            for q, N in terms:
                G += (p.T @ q)[:, None, :, None] * (M @ N.T)[None, :, None, :]
    units = (
        spread.T @ G.transpose(0, 2, 1, 3) @ spread
    )  # of coefficients in units of the slices' deviations
    return [
        Path(
            n * max(squares - _explained(_square(G[:k, :, :k]), g[:k].ravel()), 0.0),
            volume(n * _square(units[:k, :k].transpose(0, 2, 1, 3))),
        )
        for k in (degree + 1 for degree in DEGREES)
    ]


def _square(G: Array) -> Array:
    """(k, d, k, d) as a matrix."""
    k, d = G.shape[:2]
    return G.reshape(k * d, k * d)


def _explained(G: Array, g: Array) -> float:
    """`gᵀ G⁻¹ g`; of a singular G by least squares."""
    try:
        half = solve_triangular(np.linalg.cholesky(G), g, lower=True)
    except np.linalg.LinAlgError:
        return float(g @ np.linalg.lstsq(G, g, rcond=None)[0])
    return float(half @ half)


OUTSIDE_TREND = OutsideTrend()
