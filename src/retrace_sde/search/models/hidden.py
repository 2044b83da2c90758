"""States behind noise and missing values: what an order is worth is the likelihood of what was observed.

    Y_i = X_i + N(0, R),     dX = (A X + c + B u) dt + G dW.

EM runs along an order, or along one for each trajectory; the states are summed out, not filled in. p₀ is judged
leave-one-out, as without noise (`start_law`): all that a trajectory tells about its first state is one Gaussian, whose
density under the fitted p₀ is exchanged for that under p₀ fitted to the others. Gaps are all dt, those between known times,
those of a schedule (they belong to positions, whichever observation stands there), or those of a shared order that are estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.exact import constrained, moments_of_step
from retrace_sde.fit.information import inverse
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import (
    Estimate,
    StandardErrors,
    Through,
    mle,
    regression_errors,
)
from retrace_sde.fit.scores import errors_of_draws, errors_of_scores
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.fit.statespace import em_steps as steps
from retrace_sde.fit.statespace.ascent.climb import Ascent, Climb, climb
from retrace_sde.fit.statespace.ascent.quasi_newton import finished
from retrace_sde.fit.statespace.ascent.scoring import Scoring
from retrace_sde.fit.statespace.em import climb_notes, resumed
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.errors import Scores
from retrace_sde.fit.statespace.observations import Observations, StepClasses
from retrace_sde.fit.statespace.parameters import (
    Noise,
    Parameters,
    Setup,
    as_noise,
    first_guess,
    spread,
)
from retrace_sde.fit.statespace.smoother import Smoothed, drawn_states, states
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.draws import Chains, Draws, Stretch, random_states
from retrace_sde.orders.flips import align
from retrace_sde.orders.hidden.assignment import Arrangement
from retrace_sde.orders.hidden.gaussian import Chain
from retrace_sde.orders.hidden.own import HiddenOrders, HiddenSteps
from retrace_sde.orders.hidden.pair_moments import (
    PairMoments,
    arranged,
    arrangement,
    seen_distances,
    starting_orders,
)
from retrace_sde.orders.paths import shortest_path
from retrace_sde.panel.blocks import Data, evenly, in_order, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Affine, has_offset
from retrace_sde.process.sde import Gaussian, Scheme
from retrace_sde.progress import steps as reported
from retrace_sde.search.alternate import alternate, recover
from retrace_sde.search.model import Effort, Fit, Problem
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.exact_gaps import spans
from retrace_sde.search.protocols import Model
from retrace_sde.search.space import Own, Shared

LOOSE, RESAMPLED, TIGHT = 0.5, 0.1, 1e-2
"""Rise of the log-likelihood, in nats over three steps, at which EM stops while the order still changes, for a
resampled panel, and at the end."""

STEPS, STEPS_BEFORE_FINISH = 200, 20
"""Steps of EM along one order, at most; and before quasi-Newton steps take over at the end."""

VAGUE = 100.0
"""Variance, in units of the variables' own, that stands for not knowing the first state."""

SEARCH_TRAJECTORIES = 300
"""EM sees this many trajectories while a shared order changes; the search itself sees all."""

CLIMB = 4
"""Steps of EM in a round of Monte-Carlo EM: orders are drawn anew before the parameters could settle on them."""

APART = 4
"""Records, T/2 moves apart, of which one goes into a round: an E-step behind noise costs as much as so many moves."""

OVERSTEP = 1.8
"""Rounds are taken this many times over: with orders that uncertain plain ones are short, and 2 is stable."""

POLISHES, POLISH_REACH, CHEAP = 3, 3, 100_000
"""Passes in which slices are moved by the exact likelihood, and how far where one costs no more than n T d³ = CHEAP."""

TRIED_ELEMENTS = 10_000
"""Numbers of panels along orders that are tried at once: a small one costs more calls than sums."""

SHIFT_STEPS, SHIFT = 200, 1e-4
"""Steps of EM for what slices add to all trajectories, at most, and the change, in standard deviations of the variables, at which they end."""

STILL = 10
"""Rounds of the search without drift, at most."""

SHARED_KICKS = 6
"""Random changes of a shared order after which its search is repeated."""


@dataclass(frozen=True, eq=False)
class HiddenModel(Model):
    """A linear SDE, maybe with inputs, behind observations (n, T, d), NaN where missing; R as `noise` says.

    Trajectories that are shorter end in NaN; an observation all of whose entries are missing still stands for a
    time at which nothing was seen. `still`: without drift, which a rough order would only mislead. `pairs`: the
    moments of pairs of slices, where they come from more trajectories than these.

    `classes`: the steps between positions, None where all gaps are dt and there are no inputs. Where all gaps are dt the step is
    fitted in Euler's form, whatever the scheme (`Parameters`). `free`: gaps of a shared order, to be estimated; `path`: the order along which they are
    fitted, where times known of some slices set the lengths of stretches. `placed`: gaps belong to positions and stay there when an
    order is reversed; else they are reversed with it.
    """

    noise: Noise = "estimate"
    still: bool = False
    pairs: PairMoments | None = None
    classes: StepClasses | None = None
    free: bool = False
    placed: bool = False
    path: Indices | None = None
    effort = Effort(4, 1.02, 12, warm=24, bridged=500, bridges=40, louis=10, positions=300)

    @classmethod
    def of(cls, problem: Problem, *, noise: Noise) -> Self:
        """From a problem with a linear or affine drift; what lies beyond a trajectory's end is missing."""
        data = problem.data
        values = np.array(to_numpy(data.values), dtype=float)
        if data.lengths.ragged:
            values[~data.lengths.mask] = np.nan
        found = cls(replace(data, values=values), problem.dt, problem.drift)
        return replace(found.knowing(problem), noise=noise)

    @classmethod
    def across(
        cls,
        problem: Problem,
        gaps: Array,
        *,
        noise: Noise,
        scheme: Scheme = "exact",
        free: bool = False,
        placed: bool = False,
    ) -> Self:
        """From a problem, whose drift may have inputs, and the gaps between its positions, (T − 1,) or (n, T − 1)."""
        classes = StepClasses.by_position(gaps) if free else StepClasses.of(gaps)
        found = cls.of(problem, noise=noise)
        return replace(found, classes=classes, free=free, placed=placed, scheme=scheme)

    @property
    def regular(self) -> bool:
        """All gaps are dt, and there are no inputs."""
        return self.classes is None

    @property
    def steps_equal(self) -> bool:
        return self.regular

    @cached_property
    def steps(self) -> StepClasses:
        """The steps between positions."""
        if self.classes is None:
            return StepClasses.equal(self.dt, self.data.shape[1])
        return self.classes

    @property
    def form(self) -> Scheme:
        """How the parameters of a law make a step."""
        return "euler" if self.one_step else self.scheme

    @cached_property
    def one_step(self) -> bool:
        """All gaps are dt, so that steps of every scheme can be written in Euler's form."""
        if self.classes is None:
            return True
        gaps = self.classes.gaps
        return not self.free and len(gaps) == 1 and bool(np.isclose(gaps[0], self.dt))

    def some(self, size: int) -> Self:
        """The same on some trajectories, evenly spaced."""
        n, found = self.data.shape[0], super().some(size)
        if found is self or self.classes is None:
            return found
        return replace(found, classes=self.classes.some(evenly(n, size)))

    @property
    def states_hidden(self) -> bool:
        return True

    @property
    def gaps_estimated(self) -> bool:
        return self.free

    @property
    def values(self) -> Array:
        return self.data.values

    @cached_property
    def complete(self) -> bool:
        """No value is missing that belongs to a trajectory."""
        return not np.isnan(self.values[self.data.lengths.mask]).any()

    @cached_property
    def variances(self) -> Array:
        """Each variable's variance over all that was seen of it."""
        found = np.nanvar(self.values, axis=(0, 1))
        return np.where(found > 0, found, 1.0)

    @cached_property
    def means(self) -> Array:
        """Each variable's mean over all that was seen of it."""
        return np.asarray(np.nanmean(self.values, axis=(0, 1)))

    @property
    def offset(self) -> bool:
        """A constant is among what moves the states."""
        if self.regular:
            return isinstance(self.drift, Affine) and not self.still
        return has_offset(self.drift)

    @cached_property
    def setup(self) -> Setup:
        """What EM estimates and what it knows."""
        d = self.data.shape[2]
        _, unknown, tied = as_noise(self.noise, d)
        p = d + self.offset if self.regular else self.n_features
        free, zero = np.full((d, p), not self.still), np.zeros((d, p))
        return Setup(self.dt, free, zero, None, unknown, tied, None, spread(self.values))

    def inputs(self, order: Indices) -> Array | None:
        """v along an order, (n, T, m): 1 where there is an offset, and the inputs; None where there are none."""
        if self.regular or self.data.covariates is None:
            return None
        n, T, _ = self.data.shape
        u = to_numpy(in_order(self.data.covariates, order))
        return np.concatenate([np.ones((n, T, 1)), u], axis=2) if has_offset(self.drift) else u

    def along(self, order: Indices) -> Array:
        """The observations in an order (T,), or each in its own (n, T)."""
        return in_order(self.values, order)

    def plain(self) -> EulerModel:
        """The problem as if all had been seen, and without noise: for a start."""
        filled = np.where(np.isnan(self.values), self.means, self.values)
        found = EulerModel(replace(self.data, values=filled), self.dt, self.drift)
        return found.knowing(self)

    # -- an order known ----------------------------------------------------------------------------------

    def fit(self, order: Indices, start: Fit | None = None, *, final: bool = False) -> Fit:
        """EM along an order, from an earlier fit where there is one; free gaps are fitted too, from equal ones or those of that fit."""
        if self.free and self.path is not order:
            return replace(self, path=order).fit(order, start, final=final)
        R = as_noise(self.noise, self.data.shape[2])[0]
        guess = self._guess(order, R) if start is None else self._resumed(start.law, R)
        found = self._climbed(
            self._prepared([order]), guess, TIGHT if final else LOOSE, final=final
        )
        law = found.parameters
        fitted = self._along(order, law, found.expected)
        own, states = self._states(order, law)
        fitted = replace(fitted, log_likelihoods=self._judged(own, order, law, fitted.step))
        if final:
            fitted = replace(fitted, states=states, notes=climb_notes(found, self.setup))
        return self._with_errors(fitted) if self.free and final else fitted

    def _with_errors(self, found: Fit) -> Fit:
        """Errors of parameters and gaps together, from the observed information: gaps trade off with H."""
        scores = self._scoring(found.law).scores
        covariance = scores.covariance(scores.observed(self._prepared([found.order])))
        step = found.step
        return replace(
            found,
            estimate=Estimate(
                step.coefficients, step.diffusion, scores.errors(covariance), scheme=self.scheme
            ),
            log_gap_errors=scores.log_gap_errors(covariance),
        )

    # How observations along orders are laid out, smoothed and turned into sums.

    def _prepared(self, orders: Sequence[Indices], rows: Indices | None = None) -> Observations:
        """The observations along each of some orders, one after another (or only some `rows` of them)."""
        y = np.concatenate([self.along(order) for order in orders])
        v = [each for each in map(self.inputs, orders) if each is not None]
        found = Observations(
            y,
            self.steps.repeated(len(orders)),
            np.concatenate(v) if v else None,
            self.data.n_jobs,
        )
        return found if rows is None else found.some(rows)

    def _expect(self, prepared: Observations, law: Parameters) -> Expected:
        """The E-step on prepared observations."""
        return steps.expect(prepared, law)

    @property
    def _ascent(self) -> Ascent:
        every = np.arange(self.data.shape[1], dtype=np.intp) if self.path is None else self.path
        return Ascent(self.setup, spans(self, every) if self.free else None)

    def _guess(self, order: Indices, R: Array) -> Parameters:
        """Where EM starts when nothing is known: as for equal steps; the drift is 0."""
        gaps = np.full(self.data.shape[1] - 1, self.dt) if self.free else None
        found = first_guess(self.along(order), self.setup, R)
        return replace(found, gaps=gaps, scheme=self.form)

    def _resumed(self, law: Parameters, R: Array) -> Parameters:
        """Where EM goes on from an earlier law."""
        return replace(resumed(law, self.setup, R), scheme=self.form)

    def _smoothed(self, order: Indices, law: Parameters, times: int) -> Smoothed:
        """The smoother along an order; covariances of the first so many times."""
        return states(self._prepared([order]), law.steps(self.steps.gaps), times=times)

    def _states(self, order: Indices, law: Parameters) -> tuple[Array, Array]:
        """Log-likelihoods (n,) and smoothed means (n, T, d)."""
        found = self._smoothed(order, law, 0)
        return found.log_likelihood, found.means

    def _step(self, law: Parameters) -> Euler:
        """The step of a law; without drift it has no offset of its own."""
        theta = law.theta
        if self.regular and self.still and isinstance(self.drift, Affine):
            theta = np.c_[theta, np.zeros(len(theta))]
        return Euler(self.drift, theta, law.H, self.dt)

    def _through(self, law: Parameters) -> Through | None:
        """How the parameters that are shown move with those of a law; None: they are these."""
        sde = self.embedding(law.theta, law.H) if self.one_step else None
        return None if sde is None else sde.moved

    def _climbed(
        self, prepared: Observations, guess: Parameters, tolerance: float, *, final: bool = False
    ) -> Climb:
        def expected_at(trial: Parameters) -> Expected:
            return self._expect(prepared, trial)

        # what noise leaves of the information across unequal gaps has no closed form
        ascent = Scoring.of(self.setup, prepared) if self.regular else self._ascent
        found = climb(
            expected_at, ascent, guess, STEPS_BEFORE_FINISH if final else STEPS, tolerance
        )
        return finished(expected_at, self._ascent, found) if final else found

    def reversed_fit(self, found: Fit, start: Fit | None = None, *, final: bool = False) -> Fit:
        """EM along the reverse of an order: with its gaps reversed, or with those of the positions."""
        back, own = self.data.reversed(found.order), self.classes
        if own is None or self.placed or self.free or len(own.gaps) == 1:
            return self.fit(back, start, final=final)
        index = own.index
        index = index[:, ::-1] if len(index) == 1 else self.data.lengths.steps.reversed(index)
        classes = replace(own, index=np.ascontiguousarray(index))
        turned = replace(self, classes=classes, timing=self.timing.reversed())
        return turned.fit(back, start, final=final)

    def _along(self, order: Indices, law: Parameters, sums: Expected) -> Fit:
        """A law along an order, as every part of the engine knows it; likelihoods are not filled in."""
        step = self._step(law)
        costs, gaps = self.prior_costs(order), self._gaps(law)
        found = Fit(order, step, sums.moments, np.empty(0), costs, law, gaps=gaps)
        return replace(found, mean_path_value=self.mean_path_value(order, step))

    def _gaps(self, law: Parameters) -> Gaps:
        """The gaps between positions, as estimated or given, not those that stand for them."""
        if self.classes is None:
            return Gaps.of(self.dt)
        if self.free:
            return Gaps.of(self.dt if law.gaps is None else law.gaps)
        if self.timing.gaps_known or len(self.classes.gaps) == 1:
            return self.gaps
        known = self.classes.gaps[self.classes.index]
        return Gaps.of(known[0] if len(known) == 1 else known, self.data.lengths)

    def _judged(self, own: Array, order: Indices, law: Parameters, step: Euler) -> Array:
        """Log-likelihoods along an order from those under the fitted p₀, which is judged leave-one-out."""
        if len(own) < 2:
            return own
        vague = Gaussian(self.means, np.diag(VAGUE * self.variances))
        found = self._smoothed(order, replace(law, initial=vague), 1)
        first = found.means[:, 0]
        spread = law.initial.covariance + found.covariances[found.pattern, 0]
        gap = first - law.initial.mean
        squares = (gap * np.linalg.solve(spread, gap[:, :, None])[:, :, 0]).sum(axis=1)
        log_det = np.linalg.slogdet(2 * np.pi * spread)[1]
        left_out = start_log_densities(first[None], step, self.variances)[0]
        return own + 0.5 * (squares + log_det) + left_out

    def slice_shifts(self, found: Fit) -> Array | None:
        """By maximum likelihood under the fit's law: where the smoothed deviations of every slice have mean zero (EM).

        Without a law the effect of a slice depends on which trajectories are missing there: its error, common to all others, is a
        shock that order and drift would have to explain.
        """
        if self.mean_path is None or self.complete:
            return None
        shifts = np.zeros(self.values.shape[1:])
        for _ in range(SHIFT_STEPS):
            model = replace(self, data=replace(self.data, values=self.values - shifts))
            rest = model._states(found.order, found.law)[1].mean(axis=0)
            shifts[found.order] += rest
            if np.abs(rest).max() < SHIFT:
                break
        return shifts

    def estimate(self, found: Fit, name: str, rng: np.random.Generator | None = None) -> Estimate:
        """The parameters along the order of a fit; their errors by simulation, NaN without a generator."""
        if found.estimate is not None:
            return found.estimate
        law = found.step.coefficients, found.step.diffusion

        def errors(through: Through | None) -> StandardErrors:
            if rng is not None:
                return self._errors(found, rng, through)
            return StandardErrors(np.full_like(law[0], np.nan), np.full_like(law[1], np.nan))

        if not self.one_step:
            return Estimate(*law, errors(None), scheme=self.scheme)
        if name == "exact" and self.regular:
            moments = moments_of_step(*law, found.moments)
            affine = isinstance(self.drift, Affine)
            return self.shown(law, errors, partial(constrained, moments, self.dt, affine=affine))
        return self.shown(law, errors)

    def _errors(
        self, found: Fit, rng: np.random.Generator, through: Through | None
    ) -> StandardErrors:
        """Errors of the parameters along a known order, or of what moves with them, by simulation."""
        scoring = replace(self._scoring(found.law), through=through)
        covariance = inverse(scoring.along(found.order, rng))
        each = self.data.by_group(scoring.of(found.order))
        return errors_of_scores(scoring.errors, covariance, each.T @ each, self.data)

    def _scoring(self, law: Parameters) -> HiddenScores:
        gaps, spans = law.crossed(self.steps.gaps), None if self.regular else self._ascent.spans
        return HiddenScores(self, Scores(self.setup, law, gaps, spans), self._through(law))

    def estimator(self, found: Fit) -> str:
        return "em"

    def initial(self, found: Fit) -> Gaussian:
        """p₀ as it was fitted."""
        law: Parameters = found.law
        return law.initial

    # -- one order for all -------------------------------------------------------------------------------

    def for_search(self) -> Self:
        """EM on a few trajectories, the search on the pairs of all."""
        few = self.some(SEARCH_TRAJECTORIES)
        if self.free:  # gaps of their own would excuse wrong orders: first with equal ones
            equal = StepClasses.equal(self.dt, self.data.shape[1])
            few = replace(few, free=False, classes=equal)
        return replace(few, pairs=self._pairs())

    def _pairs(self) -> PairMoments:
        whole = self.values
        if not self.regular and self.data.covariates is not None:
            whole = np.concatenate([whole, to_numpy(self.data.covariates)], axis=2)
        return PairMoments.of(whole)

    def rough_starts(self) -> list[Indices]:
        """Short paths, and spectral ones."""
        starts = starting_orders(self.values, np.sqrt(self.variances))
        if self.prior is not None or self.timing.scheduled:  # which way round then matters
            starts = [self.repaired(way) for o in starts for way in (o, o[::-1].copy())]
        return starts

    def shared_starts(self, rng: np.random.Generator) -> list[Indices]:
        """The best order of a random walk, from rough ones; both directions fit equally well."""
        walk, space = replace(self, still=True), Shared.of(self, rng)
        trails = [alternate(walk, space, order, max_iter=STILL) for order in self.rough_starts()]
        return [max((each.pair.better for each in trails), key=lambda fit: fit.objective).order]

    def shared_orders(self, found: Fit, initial: Gaussian | None = None) -> Arranged:
        """What one order for all costs under a fit, whose law has its own p₀: a quadratic assignment problem."""
        orders = self.orders_under(found.law)
        if self.mean_path is None:
            return orders
        walk = self.mean_path.vectors(found.order, found.step.diffusion * found.step.dt)
        return replace(orders, tables=orders.tables.with_walk(*walk))

    def orders_under(self, law: Parameters) -> Arranged:
        """The same under given parameters, without the mean path."""
        pairs = self._pairs() if self.pairs is None else self.pairs
        if self.regular:
            return Arranged(self, law, arrangement(pairs, law.model(self.dt), self.prior))
        return Arranged(self, law, arranged(pairs, self._chain(law), self.prior))

    def _chain(self, law: Parameters) -> Chain:
        """The steps between positions."""
        model, index = law.steps(self.steps.gaps), self.steps.index[0]
        F, S, Q = (each[index] for each in (model.matrix, model.inputs, model.covariance))
        s = S[:, :, 0] if self.offset else np.zeros(S.shape[:2])
        return Chain(F, s, Q, S[:, :, int(self.offset) :], law.R, law.initial)

    def with_unequal_steps(self, found: Fit) -> None:
        """Noise of its own size excuses unequal steps already."""

    def score(self, found: Fit) -> float:
        """What orders found in different ways are compared by."""
        return found.objective

    def verified(self, found: Fit) -> bool:
        """The search looked at all trajectories; an order found with equal gaps is searched once more with its own."""
        return not self.free

    def distances(self) -> Array:
        """Squared distances between slices, over what both saw."""
        return seen_distances(self.values, np.sqrt(self.variances))

    # -- one order each ----------------------------------------------------------------------------------

    def law(self, found: Fit) -> Parameters:
        """What single orders are judged by."""
        return found.law

    def own_orders(self, law: Parameters) -> HiddenOrders:
        """What each trajectory's order costs under a law."""
        return HiddenOrders(self.data, self._course(law), self.means, self.prior)

    def _course(self, law: Parameters) -> HiddenSteps:
        """The steps between the positions of an order under a law."""
        table = law.steps(self.steps.gaps).table
        return HiddenSteps(self._chain(law), table, self.steps.index[0], self.offset)

    def own_starts(self, rng: np.random.Generator) -> list[Indices]:
        """The best orders of a random walk, from short paths, turned to run the same way.

        Rules forbid to turn a path round, so a start that lays it the wrong way is hard to leave: with rules there
        are more, from the orders found without them and then repaired.
        """
        walk, space = replace(self, still=True), Own.of(self, rng)
        trail = alternate(walk, space, self._short_paths(rng), max_iter=STILL)
        starts = [self._aligned(trail.pair.better, rng)]
        if self.prior is not None and self.prior.before is not None:
            free = recover(replace(self, prior=None), space, rng, max_iter=STILL)
            starts += [self.repaired(each.order) for each in (free.better, free.worse)]
        return starts

    def _aligned(self, found: Fit, rng: np.random.Generator) -> Indices:
        """Orders turned to run the same way, by their paths smoothed where values are missing.

        Means there would be jumps to the middle and back, larger than what tells one way from the other.
        """
        states = self._states(found.order, found.law)[1]
        seen, every = self.smoothed_view(replace(found, states=states), raw=True)
        costs = self.prior_costs(found.order), self.prior_costs(self.data.reversed(found.order))
        turned = align(seen.data, every, self.dt, self.drift, costs, rng)
        return np.take_along_axis(found.order, turned, axis=1)

    def _short_paths(self, rng: np.random.Generator) -> Indices:
        """Through the observations as they are; where entries are missing, over what neighbours both have."""
        if self.complete:
            return self.plain().own_starts(rng)[0]
        n, T, _ = self.data.shape
        scale = np.sqrt(self.variances)
        orders = np.tile(np.arange(T, dtype=np.intp), (n, 1))
        for j, length in enumerate(self.data.observed.tolist()):
            if length > 2:
                near = seen_distances(self.values[j : j + 1, :length], scale)
                orders[j, :length] = shortest_path(near)
        return self.plain().aligned(self.repaired(orders), rng)

    # -- averages over orders ----------------------------------------------------------------------------

    def begin(self, found: Fit) -> Parameters:
        """A fit to best orders with what of H they owe to noise given back to it.

        Best orders explain noise away as if it were part of the path, and EM hardly leaves R = 0. From the other
        side, where half of a step's variance `H dt + 2 R` is noise, it finds its way down.
        """
        old, unknown = self.law(found), self.setup.noise_free
        R = old.R.copy()
        R[unknown, unknown] = np.maximum(np.diag(R), np.diag(old.H) * self.dt / 4)[unknown]
        share = np.where(unknown, np.sqrt(0.5), 1.0)
        return replace(old, R=R, H=old.H * np.outer(share, share))

    def draw(self, law: Parameters, chains: Chains, stretch: Stretch) -> Draws:
        """Advance chains under a law; the orders themselves are what the E-step needs, far enough apart to add information."""
        if not stretch.keep:
            samples = stretch.samples
            stretch = stretch._replace(samples=APART * samples, keep=samples)
        return self.own_orders(law).draw(chains, stretch)

    @property
    def draws_parameters(self) -> bool:
        """Steps are all alike, and there are no shocks: parameters given orders and states have a conjugate law."""
        return self.one_step and self.mean_path is None and not self.still

    def completed(
        self, orders: Indices, law: Parameters, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Log-likelihood under a law, and states along orders drawn from what was observed."""
        seen = self._prepared([orders])
        values, states = drawn_states(seen, law.steps(self.steps.gaps), rng)
        return float(values.sum()), states

    def law_of(
        self, step: Euler, start: Gaussian, noise: tuple[Array, Array], rng: np.random.Generator
    ) -> Parameters:
        """The law of a step and of first states that were drawn; free variances of the noise are drawn, too.

        `noise`: sums of squares (d,) and their degrees of freedom, so that a variance is a sum over a draw of χ².
        """
        R, free, tied = as_noise(self.noise, len(step.diffusion))
        squares, freedom = (each[free] for each in noise)
        if tied and free.any():
            squares, freedom = squares.sum(keepdims=True), freedom.sum(keepdims=True)
        R[free, free] = squares / rng.chisquare(freedom)
        return Parameters(step.coefficients, step.diffusion, R, start, scheme=self.form)

    def shared_move(self, order: Indices, law: Parameters, rng: np.random.Generator) -> Indices:
        """A shared order moved given its parameters, states summed out.

        Where values are missing a random segment is put back in one of all places, either way round, by the likelihood of what was seen:
        values that are filled in hold an order in place. With many numbers (`TRIED_ELEMENTS`) only some places are tried, next to the present one on
        a circle, so that each of them would try as many.
        """
        if not self.complete:
            return self._segment_redrawn(order, law, rng)
        T, tables = len(order), self.orders_under(law).tables
        state = random_states(rng, 1)
        return tables.sample(order, state, burn=2 * T, samples=1, thin=1)[0].astype(np.intp)

    def _segment_redrawn(
        self, order: Indices, law: Parameters, rng: np.random.Generator
    ) -> Indices:
        """The full conditional of where a random segment stands, among some places."""
        T = len(order)
        L = 1 if rng.random() < 0.5 else min(int((T + 1) ** rng.random()), T)
        at = int(rng.integers(T - L + 1))
        part, rest = order[at : at + L], np.delete(order, np.s_[at : at + L])
        ways = [part] if L == 1 else [part, part[::-1]]
        places = [np.insert(rest, p, way) for way in ways for p in range(T - L + 1)]
        size = min(max(TRIED_ELEMENTS // self.values.size, 2), len(places))
        first = at - int(rng.integers(size))
        some = [places[(first + k) % len(places)] for k in range(size)]
        values = self.log_joints(some, law).sum(axis=1)
        values -= np.array([self.prior_costs(each).sum() for each in some])
        chances = np.exp(values - values.max())
        return some[int(np.searchsorted(chances.cumsum(), rng.random() * chances.sum()))]

    def expect(self, draws: Draws, law: Parameters) -> list[Expected]:
        """A few steps of EM on the observations in every order drawn; the expected statistics of each chain there."""
        chains = [self._drawn(draws, c) for c in range(len(draws.kept))]

        def expected_at(trial: Parameters) -> Expected:
            return steps.together([self._expect(each, trial) for each in chains])

        found = climb(expected_at, self._ascent, law, CLIMB, 0.0).expected
        return [part.scaled(1 / draws.kept.shape[2]) for part in found.parts]

    def _drawn(self, draws: Draws, c: int) -> Observations:
        """The observations along all orders that a chain kept."""
        return self._prepared(list(draws.kept[c].transpose(1, 0, 2).astype(np.intp)))

    def maximise(self, sums: Expected, law: Parameters) -> Parameters:
        """M-step: the parameters that expected statistics make most likely."""
        return self._ascent.maximise(sums, law)

    def extrapolate(self, old: Parameters, new: Parameters) -> Parameters:
        """`old + OVERSTEP (new − old)`, in coordinates that keep covariances positive."""
        x, y = self._ascent.pack(old), self._ascent.pack(new)
        return self._ascent.unpack(x + OVERSTEP * (y - x), new)

    def mirrored(self, sums: Expected, chains: Chains) -> Parameters:
        """A start for the twin: EM along orders that the reversed chains stand at."""
        return self.law(self.fit(chains.orders[0]))

    def known_order_errors(
        self, sums: Expected, law: Parameters, *, shown: bool = False
    ) -> StandardErrors:
        """Standard errors that known orders and states would leave, of Euler's parameters or of those that are shown."""
        return regression_errors(sums.moments, law.H, self._through(law) if shown else None)

    def log_joint(self, orders: Indices, law: Parameters, gaps: Indices | None = None) -> Array:
        """`log p` of what was seen of each trajectory along an order, under a fixed law, shape (n,)."""
        return self._states(orders, law)[0]

    def log_joints(self, orders: Sequence[Indices], law: Parameters) -> Array:
        """The same along each of some orders of all trajectories, shape (len(orders), n)."""
        found = states(self._prepared(orders), law.steps(self.steps.gaps))
        return found.log_likelihood.reshape(len(orders), -1)

    def averaged_fit(self, orders: Indices, law: Parameters, sums: Expected) -> Fit:
        """The law of an average over orders, shown along its most likely ones."""
        values, states = self._states(orders, law)
        return replace(self._along(orders, law, sums), log_likelihoods=values, states=states)

    def scoring(self, law: Parameters, sums: Expected) -> HiddenScores:
        """Scores and information of single trajectories; p₀ counts as known."""
        return self._scoring(law)

    def parameters(self, law: Parameters) -> tuple[Array, Array]:
        """Θ and H of a step in Euler's form."""
        return law.theta, law.H

    def for_others(self, data: Data) -> HiddenModel:
        """The same for other trajectories, of whose time nothing but a schedule is known."""
        problem, T = Problem(data, self.dt, self.drift), data.shape[1]
        if self.classes is None:
            return replace(HiddenModel.of(problem, noise=self.noise), scheme=self.scheme)
        gaps = np.full(T - 1, self.dt)
        if self.placed and self.classes.index.shape[1] == T - 1:
            gaps = self.classes.gaps[self.classes.index[0]]
        known: dict[str, Any] = {"noise": self.noise, "placed": self.placed, "scheme": self.scheme}
        return HiddenModel.across(problem, gaps, **known)

    def adopted(self, found: Fit, initial: Gaussian) -> Fit:
        """A fit that knew no missing values as one of this model: the same parameters, R = 0."""
        step, d = found.step, self.data.shape[2]
        R = np.zeros((d, d))
        law = Parameters(step.coefficients, step.diffusion, R, initial, scheme=self.form)
        return replace(found, law=law)

    def bootstrap(self, found: Fit, rng: np.random.Generator, *, replicates: int) -> StandardErrors:
        """Standard errors by resampling trajectories along the order of a fit, EM from that fit."""
        start = self._resumed(found.law, as_noise(self.noise, self.data.shape[2])[0])
        fits = []
        for _ in reported(range(replicates), "resampling subjects", least=2):
            sample = self._prepared([found.order], self.data.resampled(rng))
            again = self._step(self._climbed(sample, start, RESAMPLED).parameters)
            fits.append((again.coefficients, again.diffusion))
        return errors_of_draws(fits, self._through(found.law))

    def smoothed_view(self, found: Fit, *, raw: bool = False) -> tuple[EulerModel, Indices]:
        """The smoothed states, in time order already; `raw`: what was observed, smoothed only where missing."""
        n, T, _ = self.data.shape
        order, states = np.arange(T, dtype=np.intp), found.states
        if raw:
            y = self.along(found.order)
            states = np.where(np.isnan(y), np.asarray(states), y)
        u = self.data.covariates
        u = None if u is None else in_order(u, found.order)
        data = replace(self.data, values=states, covariates=u)
        mean = None if self.mean_path is None else self.mean_path.along_time(found.order)
        seen = EulerModel(data, self.dt, self.drift, mean_path=mean)
        return seen, order if found.ordering.shared else np.tile(order, (n, 1))

    def effective(self, found: Moments, estimate: Estimate) -> Moments:
        """The expected moments, shrunk to the information that noise and gaps left of them.

        Known states would give smaller errors than those of the fit; tests on the moments must not.
        """
        law, errors = mle(found), estimate.errors
        sde = None
        if self.one_step and estimate.scheme == "exact":
            sde = self.embedding(law.coefficients, law.diffusion)
        known = regression_errors(found, law.diffusion, None if sde is None else sde.moved)
        with np.errstate(invalid="ignore"):
            drift = np.nanmedian(known.drift / np.maximum(errors.drift, 1e-300))
            spread = np.nanmedian(known.diffusion / np.maximum(errors.diffusion, 1e-300))
        share, count = min(float(drift), 1.0), min(float(spread), 1.0) ** 2 * found.count
        return replace(found, factor=found.factor * share, count=count)


@dataclass(frozen=True, eq=False)
class HiddenScores:
    """Scores of trajectories behind noise along given orders, and what they tell of the parameters, or of what moves with them."""

    model: HiddenModel
    scores: Scores
    through: Through | None = None

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self.scores.size

    def of(self, orders: Indices, gaps: Indices | None = None) -> Array:
        """Derivatives (n, size) of each trajectory's log-likelihood along given orders."""
        return self.scores.of(self.model._prepared([orders]))

    def along(self, order: Indices, rng: np.random.Generator) -> Array:
        """The information along a known order."""
        return self.scores.information(self.model._prepared([order]), rng)

    def information(self, rng: np.random.Generator) -> Array:
        """The information if the orders were known, as the observations stand: orders hardly change it."""
        n, T, _ = self.model.data.shape
        return self.along(np.tile(np.arange(T, dtype=np.intp), (n, 1)), rng)

    def errors(self, covariance: Array) -> StandardErrors:
        """Standard errors of Θ and H from the covariance of the parameters."""
        return self.scores.errors(covariance, self.through)


@dataclass(frozen=True, eq=False)
class Arranged:
    """What one order for all costs behind noise: by pairs of slices, and where values are missing by what was seen.

    Moments of pairs stand for the values that are missing only on average: with few trajectories, and most
    of all with little noise, the search on them may leave the best order behind.
    """

    model: HiddenModel
    law: Parameters
    tables: Arrangement

    def cost(self, order: Indices) -> float:
        """−log p of an order, prior included, up to a constant."""
        return self.tables.cost(order) if self.model.complete else -self._worth(order)

    def improve(self, order: Indices, state: State) -> Indices:
        """A local minimum near an order."""
        found = self.tables.improve(order, state, kicks=SHARED_KICKS)
        return found if self.model.complete else self.polished((order, found))

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """How often each slice stood where, (T, T), in `samples` records of one chain, and `keep` of them."""
        T = len(order)
        records = self.tables.sample(order, state, burn=50 * T, samples=samples, thin=T)
        where = np.zeros((T, T), dtype=np.int32)
        np.add.at(where, (records, np.arange(T)), 1)
        return where, records[:: max(1, samples // keep)][:keep]

    def polished(self, orders: tuple[Indices, ...]) -> Indices:
        """The best of some orders, moved while it helps, by the likelihood of what was seen."""
        values = self._worths(orders)
        best, value = orders[int(np.argmax(values))], max(values)
        _, T, d = self.model.data.shape
        reach = POLISH_REACH if self.model.values.size * d**2 <= CHEAP else 1
        steps = (*range(1, reach + 1), *range(-reach, 0)) if reach > 1 else (1,)
        at_once = max(1, TRIED_ELEMENTS // self.model.values.size)
        worse = {order.tobytes() for order in orders}
        for _ in range(POLISHES):
            before, left = best, [*product(range(T), steps)]
            while left:
                # Most moves do not help: some are tried at once, and those after one that does again.
                now, left = left[:at_once], left[at_once:]
                trials = [(k, _moved(best, *move)) for k, move in enumerate(now)]
                trials = [each for each in trials if each[1].tobytes() not in worse]
                others = self._worths([order for _, order in trials])
                for (k, order), other in zip(trials, others, strict=True):
                    worse.add(order.tobytes())  # than what is best from now on, or that itself
                    if other > value + 1e-6:
                        best, value, left = order, other, [*now[k + 1 :], *left]
                        break
            if best is before:
                break
        return best

    def _worth(self, order: Indices) -> float:
        return self._worths([order])[0]

    def _worths(self, orders: Sequence[Indices]) -> list[float]:
        model, law, found = self.model, self.law, list[float]()
        values = model.log_joints(orders, law).sum(axis=1) if orders else ()
        for order, value in zip(orders, values, strict=True):
            worth = float(value) - float(model.prior_costs(order).sum())
            if model.mean_path is not None:
                worth += model.mean_path.log_likelihood(order, law.H * model.dt)
            found.append(worth)
        return found


def _moved(order: Indices, slice_: int, by: int) -> Indices:
    """An order with one slice moved by so many positions, as it is where that is beyond an end."""
    p = int(np.flatnonzero(order == slice_)[0])
    return np.insert(np.delete(order, p), p + by, slice_) if 0 <= p + by < len(order) else order
