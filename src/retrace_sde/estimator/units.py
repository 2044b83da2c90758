"""Data are fitted in standard units and places and answered in their own: `z = (x − m)/s`, variable by variable.

Every formula is equivariant on paper, but not in floating point: dates as numbers or a mix of kilometres and
microns would lose digits. `dz = (A' z + c') dt + G' dW` becomes `A = S A' S⁻¹`, `c = S c' − A m`, `H = S H' S`.
A drift without an offset admits no shift (m = 0); drifts that are not linear are fitted as they are. Where trajectories share
shocks, what is fitted are deviations from the slice means (`search/mean_path`), `z = √(n/(n − 1)) (x − m_t)/s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.evidence.dependence import Dependence
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.evidence.selection.subjects import SubjectEffects
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.io.arrays import Array
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.panel.blocks import Data, in_order, like, to_numpy
from retrace_sde.panel.canonical import RowPermutation
from retrace_sde.panel.clock import same_for_all
from retrace_sde.panel.groups import renumbered
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.process.drift import Drift, has_offset, has_state_space
from retrace_sde.process.sde import Gaussian
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.search.mean_path import without_slice_effects
from retrace_sde.search.model import Round
from retrace_sde.search.posterior import OrderPosterior

ROUNDS_TO_BITS = 1.5 * 2.0**18
"""Doubles beside this number are multiples of 2⁻³⁴, so that adding and subtracting it rounds to these."""


@dataclass(frozen=True, eq=False)
class Units:
    """Centre m (d,) and scale s (d,), and how many values of each variable there are.

    `tied`: values are rounded, so that those of tables with many ties tie in the same way whatever units they come in.
    `deviations`: from the slice means.
    """

    centre: Array
    scale: Array
    counts: Array
    tied: bool = False
    deviations: bool = False

    @classmethod
    def of(
        cls,
        panel: Panel,
        drift: Drift,
        *,
        common: bool = False,
        tied: bool = False,
        deviations: bool = False,
    ) -> Units | None:
        """Mean and standard deviation over the observations; None: fit the data as they are.

        `common`: one scale for all variables, whose noise is said to be the same.
        """
        if not has_state_space(drift):
            return None
        d = panel.values.shape[2]
        if deviations:
            centre = cls.of(panel, drift)
            apart = cls.of(
                replace(panel, values=without_slice_effects(panel.values)), drift, common=common
            )
            if centre is None or apart is None:  # decided by the drift above
                return None
            return replace(apart, centre=centre.centre, tied=tied, deviations=True)
        if isinstance(panel.values, ArrayView):
            facts = panel.values.facts
            counts, mean, scale = facts.counts, facts.mean, facts.scale
        else:
            counts, mean, scale = cls._measured(panel)
        if common:
            scale = np.full(d, np.sqrt(np.mean(scale**2)))
        return cls(mean if has_offset(drift) else np.zeros(d), scale, counts, tied)

    @staticmethod
    def _measured(panel: Panel) -> tuple[Array, Array, Array]:
        """How many values of each variable there are, their means and standard deviations."""
        values = in_order(panel.values, None)
        xp = array_api_compat.array_namespace(values)
        lengths = Lengths.of(values, panel.lengths)
        inside = ~xp.isnan(values)
        if lengths.ragged:
            device = array_api_compat.device(values)
            inside = inside & xp.asarray(lengths.mask[:, :, None], device=device)
        counts = xp.sum(xp.astype(inside, values.dtype), axis=(0, 1))

        def mean_of(each: Any) -> Any:
            return xp.sum(xp.where(inside, each, xp.zeros_like(each)) / counts, axis=(0, 1))

        # In two passes: the square of a large mean would drown a small spread.
        mean = mean_of(values)
        mean = mean + mean_of(values - mean)
        scale = mean_of((values - mean) ** 2) ** 0.5
        return to_numpy(counts), to_numpy(mean), to_numpy(scale)

    def apply(self, values: Any) -> Any:
        """The values in standard units, a copy; of lazy ones a view."""
        if not self.deviations:
            return self.standardised(values)
        return self._scaled(without_slice_effects(values))

    def standardised(self, values: Any) -> Any:
        """The same with the slice means left in."""
        if isinstance(values, ArrayView):
            return values.standardised(self.centre, self.scale)
        values = in_order(values, None)
        return self._scaled(values - like(self.centre, values))

    def _scaled(self, values: Any) -> Any:
        found = values / like(self.scale, values)
        return (found + ROUNDS_TO_BITS) - ROUNDS_TO_BITS if self.tied else found

    def restore(self, values: Array) -> Array:
        """Values in the table's units."""
        return values * self.scale + self.centre

    def noise(self, noise: Any) -> Any:
        """Observation noise given in the table's units, in standard ones; unknown noise stays unknown."""
        if isinstance(noise, str):
            return noise
        given = np.asarray(noise, dtype=float)
        return given / (self.scale if given.ndim < 2 else np.outer(self.scale, self.scale))

    def log_volume(self, data: Data) -> float:
        """What the density of data loses by the change of units, in nats."""
        if data.lazy:
            return float(data.lengths.total * np.log(self.scale).sum())
        known = ~np.isnan(to_numpy(data.values)) & data.lengths.mask[:, :, None]
        return float((known.sum(axis=(0, 1)) * np.log(self.scale)).sum())

    def result(self, result: ReTraceResult) -> ReTraceResult:
        """A result in the table's units."""
        parameters, first, twin = self._parameters(result), result.initial, result.alternative
        return replace(
            result,
            **parameters,
            initial=Gaussian(self.centre + self.scale * first.mean, self._square(first.covariance)),
            alternative=None if twin is None else replace(twin, **self._parameters(twin)),
            history=tuple(self._round(each) for each in result.history),
            observation_noise=None
            if result.observation_noise is None
            else self._square(result.observation_noise),
            subjects=self._subjects(result.subjects, parameters["drift"]),
            dependence=self._dependence(result.dependence),
        )

    def _parameters(self, found: ReTraceResult | Twin) -> dict[str, Any]:
        """What an answer and its twin have in common."""
        drift, errors = found.drift * self._ratio, found.standard_errors
        return {
            "drift": drift,
            "offset": found.offset * self.scale - drift @ self.centre,
            "inputs": self._inputs(found.inputs),
            "diffusion": self._square(found.diffusion),
            "standard_errors": None if errors is None else self.errors(errors),
            "log_likelihood": found.log_likelihood - self.volume,
        }

    def errors(self, errors: StandardErrors) -> StandardErrors:
        """Standard errors in the table's units; the offset's needs its covariance with A."""
        d = len(self.scale)
        offset, covariances = errors.offset, errors.covariances
        if covariances is not None:
            p = covariances.shape[1]
            turn = np.diag(np.append(1 / self.scale, np.ones(p - d)))
            turn[d : d + 1, :d] = -self.centre / self.scale
            covariances = self.scale[:, None, None] ** 2 * (turn @ covariances @ turn.T)
            if offset is not None and p > d and np.any(offset):
                offset = np.sqrt(covariances[:, d, d])
        elif offset is not None:
            offset = offset * self.scale if not self.centre.any() else np.full(d, np.nan)
        drift, diffusion = errors.drift * self._ratio, self._square(errors.diffusion)
        inputs = self._inputs(errors.inputs)
        return replace(
            errors,
            drift=drift,
            diffusion=diffusion,
            offset=offset,
            covariances=covariances,
            inputs=inputs,
        )

    @property
    def _ratio(self) -> Array:
        return self.scale[:, None] / self.scale[None, :]

    @property
    def volume(self) -> float:
        """What a density loses by the change of units, in nats."""
        return float((self.counts * np.log(self.scale)).sum())

    def _square(self, matrix: Array) -> Array:
        return matrix * np.outer(self.scale, self.scale)

    def _coefficients(self, theta: Array) -> Array:
        d = len(self.scale)
        if theta.shape[1] == d:
            return theta * self._ratio
        # φ = (x, 1, u): what the shift of x adds goes to the constant; without one there is no shift
        A = theta[:, :d] * self._ratio
        rest = theta[:, d:] * self.scale[:, None]
        if self.centre.any():
            rest[:, 0] -= A @ self.centre
        return np.column_stack([A, rest])

    def _inputs(self, B: Array | None) -> Array | None:
        return None if B is None else B * self.scale[:, None]

    def _round(self, each: Round) -> Round:
        return replace(
            each,
            drift=self._coefficients(each.drift),
            diffusion=self._square(each.diffusion),
            log_likelihood=each.log_likelihood - self.volume,
        )

    def _subjects(self, found: SubjectEffects | None, A: Array) -> SubjectEffects | None:
        """`c = S c' − A m`, and its law: `Γ = S Γ' S⁻¹`, `μ = S μ' − (A + Γ) m`, `Ω = S Ω' S`."""
        if found is None or found.intercepts is None:
            return found
        law: Any = found  # which comes with the intercepts
        slope = law.slope * self._ratio
        return replace(
            found,
            intercepts=found.intercepts * self.scale - A @ self.centre,
            errors=law.errors * self.scale,
            mean=law.mean * self.scale - (A + slope) @ self.centre,
            slope=slope,
            between=self._square(law.between),
        )

    def _dependence(self, found: Dependence | None) -> Dependence | None:
        if found is None or found.common_covariance is None:
            return found
        return replace(found, common_covariance=self._square(found.common_covariance))


def as_given(result: ReTraceResult, places: RowPermutation) -> ReTraceResult:
    """A result of trajectories, slices and observations as they were given."""
    twin, subjects, groups = result.alternative, result.subjects, result.groups
    return replace(
        result,
        order=places.given_orders(result.order),
        times=_own(result.times, places),
        alternative=None
        if twin is None
        else replace(
            twin,
            order=places.given_orders(twin.order),
            times=None if twin.times is None else _own(twin.times, places),
        ),
        direction=_direction(result.direction, places),
        history=tuple(
            replace(each, order=places.given_orders(each.order)) if each.order.size else each
            for each in result.history
        ),
        subjects=None if subjects is None else subjects.moved(places.given_rows),
        groups=None if groups is None else renumbered(places.given_rows(groups)),
        time_shifts=None if result.time_shifts is None else places.given_rows(result.time_shifts),
    )


def _direction(test: DirectionTest, places: RowPermutation) -> DirectionTest:
    """The test with each trajectory's evidence at its place; that of some of them, where they were enough, has none."""
    if len(test.contributions) != len(places.rows):
        return test
    return replace(test, contributions=places.given_rows(test.contributions))


def _own(times: Array, places: RowPermutation) -> Array:
    """Times along one order for all stand; those along each trajectory's own go with it."""
    return times if same_for_all(times) else np.asarray(places.given_rows(times))


def posterior_as_given(found: OrderPosterior, places: RowPermutation) -> OrderPosterior:
    """A posterior over orders of slices, or observations, as they were given."""
    P = found.position_probabilities
    back = np.argsort(places.columns) if places.shared else None
    return replace(
        found,
        position_probabilities=P[back] if back is not None else places.given_observations(P),
        samples=places.given_orders(found.samples).astype(found.samples.dtype),
    )
