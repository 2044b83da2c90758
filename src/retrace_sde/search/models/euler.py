"""States observed as they are, at steps of dt or across known gaps: `x' | x ~ N(x + Θ φ(x) Δt, H Δt)`.

Along an order the fit is closed form; what orders cost under it is one matrix product, or one for each
trajectory; averaged over orders it needs only how often b followed a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from retrace_sde.fit.euler import Euler, step_log_likelihoods
from retrace_sde.fit.exact import constrained
from retrace_sde.fit.moments import Frequencies, Moments, Statistics, moments, statistics
from retrace_sde.fit.pairs import Pairs
from retrace_sde.fit.regression import (
    Estimate,
    StandardErrors,
    Through,
    mle,
    ols,
    parameters,
    regression_errors,
)
from retrace_sde.fit.scores import (
    StepScores,
    bootstrap_errors,
    regression_sandwich,
    sandwich_of_grams,
    sandwich_possible,
    told_by,
    widened,
    with_bias,
)
from retrace_sde.fit.start_law import (
    START_FLOOR,
    judged_starts,
    most_start_log_density,
    start_law,
    start_log_densities,
)
from retrace_sde.fit.unequal_steps import dispersion
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.costs import (
    as_matrix,
    distances,
    flat_slices,
    near_costs,
    spread,
    step_costs,
    transition_costs,
)
from retrace_sde.orders.draws import Chains, Draws, Stretch, random_states
from retrace_sde.orders.near.neighbours import (
    MAX_DENSE_SLICES,
    along_band,
    nearby,
    short_path,
    slice_vectors,
)
from retrace_sde.orders.near.search import Near, NearPath
from retrace_sde.orders.own import BLOCK, EulerLaw, OwnOrders
from retrace_sde.orders.paths import (
    NEAR_ENDS,
    BoundedStarts,
    PathCosts,
    guided_paths,
    shortest_path,
)
from retrace_sde.panel.blocks import Data, in_order, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import Affine, has_state_space, is_linear
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.model import Effort, Fit
from retrace_sde.search.models.exact_gaps import exact_fit, exact_fits
from retrace_sde.search.protocols import Model, SharedOrders

STEPS_PER_VARIABLE = 8
"""Minimum number of steps for each variable in the data that are searched."""

SEARCH_ELEMENTS = 3000
"""Values n·d of a slice used by the search: more trajectories do not make the order clearer."""

VERIFIED_WIDTH = 2
"""An order found on a few trajectories is verified on all of them against moves within this distance."""

CLEAR_NATS = 100.0
"""Nats at which a subset of trajectories decides for all: the standard deviation of a difference of 100 expected nats is √200, about 14."""

EULER_ACROSS = (
    "The parameters are those of Euler's steps across gaps that differ, biased by their length: the panel is too large for exact transitions by default "
    "(estimator='exact' asks for them), or each subject has a rate of its own."
)


@dataclass(frozen=True, eq=False)
class EulerModel(Model):
    """Euler's steps along an order. `unequal_steps`: orders are judged by steps that may differ in variance."""

    unequal_steps: bool = False
    effort = Effort(40, 1.04, 600, warm=12, bridged=2000, bridges=50, louis=50, positions=1500)

    # -- an order known ----------------------------------------------------------------------------------

    def fit(self, order: Indices, start: Fit | None = None, *, final: bool = False) -> Fit:
        """Maximum likelihood along an order, and the joint log-likelihood `log p₀ + Σ log p` there."""
        if self.timing.gaps_known or not Order.of(order).shared:
            return self.fit_gaps(order, self.gaps)
        pairs = Pairs.of(self.data, order, self.dt, self.drift)
        found = None if pairs is None else pairs.moments()
        if pairs is not None and found is not None:
            return self._both_ways(order, found, pairs, final=final)
        return self.fit_gaps(order, self.gaps)

    def _both_ways(self, order: Indices, found: Moments, pairs: Pairs, *, final: bool) -> Fit:
        """The fits along an order and its reverse from one pass.

        Of the last fits the better has errors over trajectories, too, where these are independent.
        """
        turn = self.drift.reversal(self.data.shape[2], self.dt)
        assert turn is not None  # or there is no reverse
        back = found.transformed(turn)
        there, here = self._step(found), self._step(back)
        ahead, reverse = pairs.log_likelihoods(there, here)
        one = self._judged(order, found, there, ahead, self.gaps)
        two = self._judged(self.data.reversed(order), back, here, reverse, self.gaps)
        alone = self.data.groups is None and sandwich_possible(self.data, found.n_features)
        if final and alone:
            grams = pairs.grams(told_by(self.data, found.n_features))
            n, T, _ = self.data.shape
            if one.objective >= two.objective:
                errors = sandwich_of_grams(grams, float(T - 1), n, found, self._through(there))
                one = replace(one, robust_errors=errors)
            else:
                turned = (turn @ each @ turn.T for each in grams)
                errors = sandwich_of_grams(turned, float(T - 1), n, back, self._through(here))
                two = replace(two, robust_errors=errors)
        return replace(one, reverse=two)

    def fit_gaps(self, order: Indices, gaps: Gaps) -> Fit:
        """The same with given gaps between neighbours."""
        return self._fitted(order, moments(self.data, order, gaps, self.drift), gaps)

    def _fitted(self, order: Indices, found: Moments, gaps: Gaps) -> Fit:
        step = self._step(found)
        steps = step_log_likelihoods(self.data, order, step, gaps)
        return self._judged(order, found, step, steps, gaps)

    def _step(self, found: Moments) -> Euler:
        return Euler(self.drift, *parameters(found), self.dt)

    def _judged(self, order: Indices, found: Moments, step: Euler, steps: Array, gaps: Gaps) -> Fit:
        densities, laws = judged_starts(self.data.states(order)[None], step, self.variances)
        total, prior = densities[0] + steps, self.prior_costs(order)
        start = laws[0] if gaps.equal else None
        value = self.mean_path_value(order, step)
        return Fit(order, step, found, total, prior, gaps=gaps, start=start, mean_path_value=value)

    def reversed_fit(self, found: Fit, start: Fit | None = None, *, final: bool = False) -> Fit:
        """The fit along the reverse of an order, whether or not that is possible; from the same moments."""
        if found.reverse is not None:
            return found.reverse
        back = self.data.reversed(found.order)
        if not found.gaps.equal:
            return self.fit_gaps(back, found.gaps.reversed())
        turn = self.drift.reversal(self.data.shape[2], self.dt)
        if turn is None or found.moments.from_rows:
            return self.fit_gaps(back, found.gaps)
        return self._fitted(back, found.moments.transformed(turn), found.gaps)

    def _through(self, step: Euler) -> Through | None:
        """How the parameters that are shown move with those of a step; None: they are these."""
        sde = self.embedding(step.coefficients, step.diffusion)
        return None if sde is None else sde.moved

    def estimator(self, found: Fit) -> str:
        """The estimator of one order by default: exact transitions for drifts that are linear in the state, where feasible."""
        if found.gaps.equal:
            return "mle" if self._through(found.step) is None else "exact"
        return "exact" if self._crosses(found, "auto") else "mle"

    def estimate(self, found: Fit, name: str, rng: np.random.Generator | None = None) -> Estimate:
        """The parameters along the order of a fit: those of the SDE, or of Euler's step.

        With a generator robust errors where they are available, without one Euler's of the regression. `name`: ols has other degrees
        of freedom; exact looks for the likeliest SDE where the step belongs to none.
        """
        if not found.gaps.equal and self._crosses(found, name):
            return self._across(found, rng)
        euler = ols(found.moments) if name == "ols" else mle(found.moments)
        robust = rng is not None and sandwich_possible(self.data, found.moments.n_features)

        def errors(through: Through | None) -> StandardErrors:
            if robust:
                return self._robust_errors(found, through)
            # Without a generator nobody reads those of what moves with the regression.
            known = through is None or rng is None
            return (
                euler.errors
                if known
                else regression_errors(found.moments, euler.diffusion, through)
            )

        law = euler.coefficients, euler.diffusion
        if not found.gaps.equal:
            biased = self.scheme == "exact" and has_state_space(self.drift)
            shown = Estimate(*law, errors(None), (EULER_ACROSS,) if biased else ())
        elif name == "exact" and is_linear(self.drift):
            affine = isinstance(self.drift, Affine)
            shown = self.shown(
                law, errors, partial(constrained, found.moments, self.dt, affine=affine)
            )
        else:
            shown = self.shown(law, errors)
        if not robust:
            return shown
        return replace(shown, errors=with_bias(shown.errors, shown.diffusion, found.moments))

    def _robust_errors(self, found: Fit, through: Through | None) -> StandardErrors:
        """Errors over trajectories, of the regression or of what moves with it; a fit may have brought them along."""
        brought = found.robust_errors
        if brought is not None and (through is None) == (self._through(found.step) is None):
            return brought
        along = found.order, found.gaps
        return regression_sandwich(self.data, *along, self.drift, found.moments, through)

    def _crosses(self, found: Fit, name: str) -> bool:
        """Parameters are fitted with exact transitions across the gaps of a fit, which differ."""
        if self.scheme != "exact":
            return False
        return name == "exact" or (found.gaps.shared and exact_fits(self))

    def _across(self, found: Fit, rng: np.random.Generator | None) -> Estimate:
        """The parameters by exact transitions across gaps that differ."""
        regression = mle(found.moments)
        plain = self._fitted_across(found) or regression
        if rng is None or not sandwich_possible(self.data, found.moments.n_features):
            return plain
        errors = widened(plain.errors, self._robust_errors(found, None), regression.errors)
        return replace(plain, errors=with_bias(errors, plain.diffusion, found.moments))

    def _fitted_across(self, found: Fit) -> Estimate | None:
        return exact_fit(self, found, free=False).estimate

    def initial(self, found: Fit) -> Gaussian:
        """p₀ of the first states."""
        if found.start is not None:
            return found.start
        return start_law(self.data.states(found.order), found.step, self.variances)

    # -- one order for all -------------------------------------------------------------------------------

    def for_search(self) -> Self:
        """As many trajectories as make the order clear."""
        n, T, d = self.data.shape
        # With many variables and few slices so few could not even tell H.
        enough = max(-(-SEARCH_ELEMENTS // d), -(-STEPS_PER_VARIABLE * d // (T - 1)))
        if n > 2 * enough:
            return self.some(enough)
        return self.some(n) if self.data.lazy else self

    def shared_starts(self, rng: np.random.Generator) -> list[Indices]:
        return self.rough_starts()

    def rough_starts(self) -> list[Indices]:
        """Short paths through the slices; with a prior, several that satisfy it."""
        n, T, d = self.data.shape
        if T > MAX_DENSE_SLICES and self.prior is None:
            return [short_path(slice_vectors(self.data, spread(self.data)))]
        near = distances(self.data)
        return (
            [shortest_path(near)] if self.prior is None else guided_paths(near, n * d, self.prior)
        )

    def shared_orders(self, found: Fit, initial: Gaussian | None = None) -> SharedOrders:
        """What one order for all costs under a fit; slices are judged as first ones leave-one-out, or by p₀."""
        n, T, d = self.data.shape
        every = self.data.slices(np.arange(T))
        if (
            initial is None
            and self.prior is None
            and n > d
            and 2 * NEAR_ENDS < T <= MAX_DENSE_SLICES
        ):
            least = -most_start_log_density(every, found.step)
            return BoundedStarts(
                self._pair_costs(found), least, partial(self._starts, found, every)
            )
        start = (
            self._starts(found, every, np.arange(T))
            if initial is None
            else -initial.log_density(every).sum(axis=1)
        )
        if T > MAX_DENSE_SLICES and self.prior is None:
            return NearPath(self._near_costs(found, start))
        return PathCosts(self._pair_costs(found), start, self.prior)

    def _starts(self, found: Fit, every: Array, which: Indices) -> Array:
        """What some of all slices (T, n, d) cost as first ones."""
        return -start_log_densities(every[which], found.step, self.variances).sum(axis=1)

    def _near_costs(self, found: Fit, start: Array) -> Near:
        """Costs of near slices, of steps of unequal variance where that is asked for and they differ."""
        x, u = self.data.block(slice(None))
        W = found.step.whitening.T
        target = flat_slices(to_numpy(x) @ W)
        source = flat_slices(to_numpy(found.step.predict(x, u)) @ W)
        if self.mean_path is not None:
            mean = self.mean_path.vectors(found.order, found.step.diffusion * found.step.dt)
            source, target = np.c_[source, mean[0]], np.c_[target, mean[1]]
        near = nearby(source, target, start, found.order)
        if not self.unequal_steps:
            return near
        unequal = self._dispersion(step_costs(self.data, found.order, found.step))
        if unequal is None:
            return near
        rough, far = np.empty((len(start), 0)), 2 * near.costs[near.lists >= 0].max()
        costs = unequal.costs(near.costs)
        return Near(near.lists, costs, start, rough, rough, float(unequal.costs(far)))

    def _pair_costs(self, found: Fit) -> Array:
        """Costs (T, T) of one slice after another, of steps of unequal variance where that is asked for and they differ."""
        costs = transition_costs(self.data, found.step)
        if self.unequal_steps:
            unequal = self._dispersion(costs[found.order[:-1], found.order[1:]])
            costs = costs if unequal is None else unequal.costs(costs)
        if self.mean_path is None:
            return costs
        return costs + self.mean_path.costs(found.order, found.step.diffusion * found.step.dt)

    def _dispersion(self, halves: Array) -> Any:
        n, T, d = self.data.shape
        return dispersion(halves, float(n * d)) if T > 3 else None

    def evidence(self, found: Fit) -> float:
        """Nats by which unequal steps explain an order better than equal ones; 0 where that may be chance."""
        unequal = self._dispersion(step_costs(self.data, found.order, found.step))
        return 0.0 if unequal is None else unequal.evidence

    def with_unequal_steps(self, found: Fit) -> Self | None:
        """The model whose steps may differ in variance, where those along an order do."""
        return replace(self, unequal_steps=True) if self.evidence(found) else None

    def score(self, found: Fit) -> float:
        """What orders found in different ways are compared by: steps equal or unequal, whichever is better."""
        return found.objective + self.evidence(found)

    def verified(self, found: Fit) -> bool:
        """No reversal or move among near neighbours would be more likely on all the trajectories.

        Where the few that were searched are sure of that by `CLEAR_NATS` nats for each step that a move replaces, all are.
        """
        few = self.for_search()
        return few._stands(found, sure=CLEAR_NATS) or self._stands(found)

    def _stands(self, found: Fit, sure: float = 0.0) -> bool:
        """No near move makes the order more likely, even if it were to gain `sure` nats for each step it replaces."""
        costs = near_costs(self.data, found.order, found.step, VERIFIED_WIDTH)
        costs[0] += sure
        positions = np.arange(len(found.order))
        ends = positions[: VERIFIED_WIDTH + 1]
        start = np.full(len(positions), np.inf)
        states = self.data.slices(found.order[ends])
        start[ends] = -start_log_densities(states, found.step, self.variances).sum(axis=1)
        prior = None if self.prior is None else self.prior.relabelled(found.order)
        if prior is None and len(positions) > MAX_DENSE_SLICES:
            judge: NearPath | PathCosts = NearPath(along_band(costs, start))
        else:
            judge = PathCosts(as_matrix(costs), start, prior)
        return np.array_equal(judge.improve(positions), positions)

    def distances(self) -> Array:
        """Squared distances between slices."""
        return distances(self.data)

    # -- one order each ----------------------------------------------------------------------------------

    def law(self, found: Fit) -> EulerLaw:
        """What single orders are judged by."""
        return EulerLaw(found.step, self.initial(found))

    def own_orders(self, law: EulerLaw) -> OwnOrders:
        """What each trajectory's order costs under a law."""
        return OwnOrders(self.data, law, self.prior)

    def own_starts(self, rng: np.random.Generator) -> list[Indices]:
        """Short paths in the metric of S = H Δt (from the paths' increments), turned to run the same way."""
        n, T, d = self.data.shape
        states = random_states(rng, n)
        orders = np.tile(np.arange(T, dtype=np.intp), (n, 1))
        S = within_covariance(self.data)
        zero = np.zeros((d, self.n_features))
        for k in range(4):
            law = EulerLaw(Euler(self.drift, zero, S / self.dt, self.dt), None)
            orders, changed = self.own_orders(law).improve(orders, states, cold=k == 0)
            if changed == 0:
                break
            S = increment_covariance(self.data, orders)
        return [self.aligned(orders, rng)]

    # -- averages over orders ----------------------------------------------------------------------------

    def draw(self, law: EulerLaw, chains: Chains, stretch: Stretch) -> Draws:
        """Advance chains under a law, counting what the M-step needs where that is asked for."""
        dt, drift = self.dt, self.drift

        def count(x: Array, u: Any, frequencies: Frequencies) -> Statistics:
            return statistics(x, u, frequencies, dt, drift)

        return self.own_orders(law).draw(chains, stretch, count if stretch.expected else None)

    @property
    def draws_parameters(self) -> bool:
        """Steps are all alike, and there are no shocks: parameters given orders have a conjugate law."""
        plain = self.mean_path is None and not self.unequal_steps and not self.gaps_estimated
        return plain and not self.timing.gaps_known and not self.data.lazy

    def completed(
        self, orders: Indices, law: EulerLaw, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Log-likelihood under a law, and the states along orders, which were seen."""
        states = to_numpy(in_order(self.data.values, orders))
        return float(self.log_joint(orders, law).sum()), np.asarray(states)

    def law_of(
        self, step: Euler, start: Gaussian, noise: tuple[Array, Array], rng: np.random.Generator
    ) -> EulerLaw:
        """The law of a step and of first states that were drawn; there is no noise."""
        return EulerLaw(step, start)

    def shared_move(self, order: Indices, law: EulerLaw, rng: np.random.Generator) -> Indices:
        """A shared order moved given its parameters: as it was, for moves with parameters integrated out are better."""
        return order

    def expect(self, draws: Draws, law: EulerLaw) -> list[Statistics]:
        """E-step: expected statistics of each chain, counted on the way."""
        return draws.counted

    def maximise(self, sums: Statistics, law: EulerLaw | None = None) -> EulerLaw:
        """M-step: the law that expected statistics make most likely."""
        step = Euler(self.drift, *parameters(self.moments(sums)), self.dt)
        n = self.data.shape[0]
        mean = sums.first / n
        spread = sums.first_square / n - np.outer(mean, mean)
        covariance = spread + START_FLOOR * step.dt * step.diffusion
        return EulerLaw(step, Gaussian(mean, (covariance + covariance.T) / 2))

    def extrapolate(self, old: EulerLaw, new: EulerLaw) -> EulerLaw:
        """Where the next round starts."""
        return new

    def begin(self, found: Fit) -> EulerLaw:
        """Where the average over orders starts, from best orders."""
        return self.law(found)

    def mirrored(self, sums: Statistics, chains: Chains) -> EulerLaw:
        """A start for the reverse, for a drift whose reversal is of its own class."""
        turn = self.drift.reversal(self.data.shape[2], self.dt)
        assert turn is not None  # other drifts are searched in both directions
        return self.maximise(sums.reversed(turn))

    def moments(self, sums: Statistics) -> Moments:
        """Expected statistics as the estimators know them."""
        return sums.moments(float(self.data.lengths.steps.total))

    def known_order_errors(
        self, sums: Statistics, law: EulerLaw, *, shown: bool = False
    ) -> StandardErrors:
        """Standard errors for known orders, of Euler's parameters or of those that are shown."""
        through = self._through(law.step) if shown else None
        return regression_errors(self.moments(sums), law.step.diffusion, through)

    def log_joint(self, orders: Indices, law: EulerLaw, gaps: Indices | None = None) -> Array:
        """`log p₀ + Σ log p` of each trajectory along an order, under a fixed law, shape (n,)."""
        steps = step_log_likelihoods(self.data, orders, law.step)
        return (
            steps if law.start is None else steps + law.start.log_density(self.data.states(orders))
        )

    def averaged_fit(self, orders: Indices, law: EulerLaw, sums: Statistics) -> Fit:
        """The law of an average over orders, shown along its most likely ones."""
        found = self.moments(sums)
        values = self.log_joint(orders, law)
        costs = self.prior_costs(orders)
        return Fit(orders, law.step, found, values, costs, law, gaps=Gaps.of(self.dt))

    def scoring(self, law: EulerLaw, sums: Statistics) -> StepScores:
        """Scores and information of single trajectories."""
        start = law.start or Gaussian(
            np.zeros(len(law.step.diffusion)), np.eye(len(law.step.diffusion))
        )
        p = law.step.coefficients.shape[1]
        through = self._through(law.step)
        return StepScores(self.data, law.step, start, sums.gram[:p, :p], through)

    def parameters(self, law: EulerLaw) -> tuple[Array, Array]:
        """Θ and H."""
        return law.step.coefficients, law.step.diffusion

    def for_others(self, data: Data) -> Self:
        """The same for other trajectories, of whose time nothing is known."""
        return replace(self, data=data, prior=None, timing=self.timing.for_others(), mean_path=None)

    def bootstrap(self, found: Fit, rng: np.random.Generator, *, replicates: int) -> StandardErrors:
        """Standard errors by resampling trajectories along the order of a fit."""
        along = found.order, found.gaps
        through = self._through(found.step) if found.gaps.equal else None
        return bootstrap_errors(
            self.data, *along, self.drift, rng, replicates=replicates, through=through
        )

    def smoothed_view(self, found: Fit, *, raw: bool = False) -> tuple[EulerModel, Indices]:
        """The states as the guards see them, and their order."""
        return self, found.order

    def plain(self) -> EulerModel:
        """The problem as the paper's algorithm sees it."""
        return self

    def effective(self, found: Moments, estimate: Estimate) -> Moments:
        """The moments that tests may trust: all of them."""
        return found


def within_covariance(data: Data) -> Array:
    """Covariance about each trajectory's own mean: proportional to H for paths without drift."""

    def of_piece(piece: Data) -> Array:
        x, seen = to_numpy(piece.block(slice(None))[0]), piece.observed
        inside = piece.lengths.mask[:, :, None]
        mean = (x * inside).sum(axis=1, keepdims=True) / seen[:, None, None]
        z = ((x - mean) * inside).reshape(-1, x.shape[2])
        return z.T @ z

    total = data.sum_pieces(of_piece, size=BLOCK)
    S = total / max(data.lengths.steps.total, 1)
    return S + 1e-9 * np.trace(S) / len(S) * np.eye(len(S))


def increment_covariance(data: Data, orders: Indices) -> Array:
    """Covariance of the increments along orders, per step."""

    def of_piece(piece: Data, orders: Indices) -> Array:
        x, live = to_numpy(piece.block(slice(None), orders)[0]), piece.live
        step = np.diff(x, axis=1) if live is None else np.diff(x, axis=1) * live
        z = step.reshape(-1, x.shape[2])
        return z.T @ z

    total = data.sum_pieces(of_piece, orders, size=BLOCK)
    return total / data.lengths.steps.total
