"""The candidates fitted along one order: every question reads from here, so that no model is fitted twice to the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.candidate import Candidate, CandidateFit, CandidateKind
from retrace_sde.evidence.closed_form.missing_draws import draw_missing
from retrace_sde.evidence.closed_form.null_simulation import NullSimulator, noisy_simulator
from retrace_sde.evidence.closed_form.panels import Form, Panels, Scale
from retrace_sde.evidence.closed_form.steps import StepFit, fit_directions
from retrace_sde.fit.start_law import Starts
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import BLOCK_ELEMENTS, evenly, to_numpy
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import Affine
from retrace_sde.search.model import Fit
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.protocols import Model

CANDIDATE_SAMPLE = 200_000
"""Numbers (n T d) that candidates are fitted to: a direction that shows, shows in fewer."""

MIN_SUBJECTS, MIN_VISITS = 3, 4
"""Trajectories, and observations of each, without which closed forms are not fitted."""

MIN_STEP_VARIANCE = 1e-12
"""Variance of a step, in units of the variables' own, below which second moments are lost to rounding."""


@dataclass(frozen=True, eq=False)
class CandidatesAlong:
    """An order with the fits of the searched model along it and its reverse, and the candidates fitted on it so far.

    `contributions`: each trajectory's `ℓ_j(order) − ℓ_j(reverse)` under the searched model. `rng` draws missing values.
    """

    model: Model
    both: tuple[Fit, Fit]
    contributions: Array
    rng: np.random.Generator
    _fits: dict[str, CandidateFit | None] = field(init=False, default_factory=dict)
    _state_spaces: dict[tuple[str, int, bytes], tuple[HiddenModel, Fit]] = field(
        init=False, default_factory=dict
    )

    def fit(self, candidate: Candidate) -> CandidateFit | None:
        """The fits of a candidate in both directions; None where it does not apply, or the data do not determine it."""
        if candidate.kind not in self._fits:
            found = None
            if candidate.applies(self):
                try:
                    found = candidate.fit(self)
                except np.linalg.LinAlgError:
                    found = None
            self._fits[candidate.kind] = found
        return self._fits[candidate.kind]

    def every(self, candidates: Sequence[Candidate]) -> list[CandidateFit]:
        """The fits of all candidates that apply."""
        return [found for each in candidates if (found := self.fit(each)) is not None]

    def gain(self, candidate: Candidate, over: Candidate) -> float | None:
        """Penalised nats by which one candidate explains the order, as it stands, better than another; None: not compared."""
        one, two = self.fit(candidate), self.fit(over)
        if one is None or two is None:
            return None
        return one.forward_evidence - two.forward_evidence

    @property
    def affine(self) -> bool:
        """The drift has an offset."""
        return isinstance(self.model.drift, Affine)

    @property
    def deviations(self) -> bool:
        """The data are deviations from the slices' means: what all trajectories share was taken out."""
        return getattr(self.model, "mean_path", None) is not None

    @cached_property
    def own_kind(self) -> CandidateKind | None:
        """Which candidate the searched model is, where its fit is not a closed form."""
        if self.model.states_hidden:
            noiseless = self.model.steps_equal and not self.both[0].law.R.any()
            return CandidateKind.MARKOV if noiseless else CandidateKind.NOISE
        return CandidateKind.GAPS if self.model.gaps_estimated else None

    def own_fit(self, penalty: float) -> CandidateFit:
        """The searched model itself as a candidate."""
        assert self.own_kind is not None
        rows = evenly(self.model.data.shape[0], self.size)
        one, two = (float(each.log_likelihoods[rows].sum()) for each in self.both)
        ratio = float(self.contributions.sum())
        return CandidateFit(self.own_kind, (one, two), penalty, ratio, lambda: self.contributions)

    # -- the sample --------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Trajectories that candidates are fitted to, at most."""
        _, T, d = self.model.data.shape
        return int(max(CANDIDATE_SAMPLE // (T * d), 2 * d + 20))

    @property
    def sampled(self) -> bool:
        """Candidates are fitted to some of the trajectories only."""
        return self.size < self.model.data.shape[0]

    @cached_property
    def sample(self) -> tuple[Model, Fit]:
        """The searched model on the trajectories that candidates are fitted to, with its order."""
        n, found = self.model.data.shape[0], self.both[0]
        if not self.sampled:
            return self.model, found
        return self.model.some(self.size), replace(found, order=_taken(found.order, n, self.size))

    @property
    def steps(self) -> float:
        """Steps of the sample."""
        return float(self.sample[0].data.lengths.steps.total)

    # -- states that are observed --------------------------------------------------------------------------

    @cached_property
    def panels(self) -> Panels | None:
        """The sample along the order, standardised, missing values drawn; None where closed forms do not apply."""
        return self._along_order(*self.sample)

    def panels_of(self, size: int) -> Panels | None:
        """The same of more trajectories than the sample has, `size` of them at most."""
        n, found = self.model.data.shape[0], self.both[0]
        if not self.sampled or size <= self.size:
            return self.panels
        order = _taken(found.order, n, size)
        return self._along_order(self.model.some(size), replace(found, order=order))

    def _along_order(self, few: Model, fit: Fit) -> Panels | None:
        """Some trajectories along their order."""
        model = self.model
        unknown_gaps = model.gaps_estimated and not model.states_hidden
        if model.data.covariates is not None or model.timing.gaps_known or unknown_gaps:
            return None
        x = to_numpy(few.data.block(slice(None), fit.order)[0])
        path = getattr(model, "mean_path", None)
        if path is not None and not model.states_hidden:
            # Offsets are free, so that linear steps do not see the means; products of variables need the states themselves.
            x = x * np.sqrt(1 - 1 / model.data.shape[0]) + path.means[fit.order]
        lengths = few.data.lengths
        inside = lengths.mask
        if len(x) < MIN_SUBJECTS or few.data.observed.min() < MIN_VISITS:
            return None
        seen = ~np.isnan(x) & inside[:, :, None]
        missing = not seen[inside].all()
        if missing and (not (model.states_hidden and model.steps_equal) or lengths.ragged):
            return None
        if lengths.ragged:
            x = np.where(inside[:, :, None], x, 0.0)
        flat = x[inside] if lengths.ragged else x.reshape(-1, x.shape[2])
        centre = (np.nanmean if missing else np.mean)(flat, axis=0)
        scale = np.nanstd(flat, axis=0) if missing else _deviation(flat, centre)
        if not (scale > 0).all():
            return None
        centre = centre * self.affine
        x = x - centre
        x /= scale
        if missing or lengths.ragged:
            x = np.where(seen, x, 0.0)
        aligned = fit.ordering.shared and not lengths.ragged
        units, groups = Scale(centre, scale), few.data.groups
        found = Panels(x[None], lengths.counts, units, groups=groups, aligned=aligned)
        if not missing:
            return None if _noiseless(found) else found
        laws = simulators(self.both, found, self.rng)
        return draw_missing(found, seen, laws, Form(affine=self.affine), self.rng)

    @property
    def whole_panels(self) -> Panels | None:
        """The panels where every trajectory is complete, all of them equally long, and steps are the searched model's own."""
        panels = self.panels
        plain = panels is not None and self.own_kind is None and panels.lengths is None
        return panels if plain and panels is not None and panels.filled is None else None

    # -- states behind noise -------------------------------------------------------------------------------

    def state_space(
        self, noise: Any, size: int | None = None, order: Indices | None = None
    ) -> tuple[HiddenModel, Fit]:
        """Measurement noise along the order, or along its reverse where that is given; fitted once."""
        n = self.model.data.shape[0]
        size = self.size if size is None else size
        few: Any = self.model if size >= n else self.model.some(size)
        along = _taken(self.both[0].order if order is None else order, n, size)
        key = noise, min(size, n), along.tobytes()
        if key not in self._state_spaces:
            hidden = HiddenModel.of(few, noise=noise)
            self._state_spaces[key] = hidden, hidden.fit(along, final=True)
        return self._state_spaces[key]

    def state_space_reverse(self, noise: Any) -> Fit:
        """The same along the reverse, from the fit along the order."""
        hidden, found = self.state_space(noise)
        back = hidden.reversed_fit(found, final=True)
        key = noise, min(self.size, self.model.data.shape[0]), back.order.tobytes()
        return self._state_spaces.setdefault(key, (hidden, back))[1]


def _taken(order: Indices, n: int, size: int) -> Indices:
    """The orders of some trajectories."""
    return order if size >= n else Order.of(order).take(evenly(n, size)).index


def simulators(
    both: tuple[Fit, Fit], panels: Panels, rng: np.random.Generator
) -> tuple[NullSimulator, NullSimulator]:
    """Two fits with hidden states, of an order and of its reverse, as null simulators in the units of the panel."""
    return _simulator(both[0], panels, rng), _simulator(both[1], panels, rng, backwards=True)


def _simulator(
    fit: Fit, panels: Panels, rng: np.random.Generator, *, backwards: bool = False
) -> NullSimulator:
    law, dt, d = fit.law, fit.step.dt, panels.x.shape[3]
    centre, scale = (np.zeros(d), np.ones(d)) if panels.units is None else panels.units
    A = law.theta[:, :d] * dt
    c = law.theta[:, d] * dt if law.theta.shape[1] > d else np.zeros(d)
    theta = (A * scale / scale[:, None]).T
    S = panels.x.shape[2] - 1
    offsets = np.broadcast_to((c + A @ centre) / scale, (1, S, d))
    square = np.outer(scale, scale)
    mean = np.tile((law.initial.mean - centre) / scale, (1, 2, 1))
    start = Starts(
        np.zeros((1, 1)), (law.initial.covariance / square)[None], mean, np.array([[1.0, 0.0]])
    )
    H = (law.H * dt / square)[None]
    way = StepFit(Form(), np.zeros(1), theta[None], offsets, H, np.ones((1, S)), start)
    return noisy_simulator(way, law.R / square, rng, backwards=backwards)


def _deviation(x: Array, centre: Array) -> Array:
    """Standard deviations of rows (N, d), some at a time: a copy of all would cost more than the sums."""
    size = max(1, BLOCK_ELEMENTS // x.shape[1])
    squares = np.zeros(x.shape[1])
    for begin in range(0, len(x), size):
        z = x[begin : begin + size] - centre
        squares += np.einsum("ij,ij->j", z, z)
    found: Array = np.sqrt(squares / len(x))
    return found


def _noiseless(panels: Panels) -> bool:
    """Some combination of variables has no measurable noise: second moments are then lost to rounding."""
    H = fit_directions(panels, Form())[0].H[0]
    return bool(np.linalg.eigvalsh(H)[0] < MIN_STEP_VARIANCE)
