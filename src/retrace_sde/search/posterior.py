"""What the posterior over orders gives: where each observation stands, and what came before what; and whether its chains have explored enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.deferred import optimize
from retrace_sde.metrics import kendall_taus
from retrace_sde.orders.draws import Chains, Draws, Stretch, random_states
from retrace_sde.orders.folds import folded_orders
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.lengths import Lengths
from retrace_sde.progress import report, steps
from retrace_sde.search.protocols import Model, SharedOrders

SAMPLING = "sampling position probabilities"

ORDERS_KEPT = 50
"""Sampled orders that are kept of each chain."""

SHARED_CHAINS = 4
"""Chains over one shared order, which is a single thing to sample; single orders have two chains each."""

UNFOLDED_DRAWS = 2000
"""Random unfoldings of a folded order."""

DIAGNOSED_TRAJECTORIES = 500
"""Trajectories used by the convergence diagnostics, evenly spaced."""


@dataclass(frozen=True, eq=False)
class OrderPosterior:
    """The posterior over orders: under the fitted parameters, or with parameters drawn or integrated out (`over_parameters`).

    `position_probabilities[…, a, k]` is the probability that observation a stands at position k; `samples`
    holds orders drawn from the posterior, (draws, T) or (n, draws, T). `r_hat` and `effective_size` (of as
    many draws) are the worse of two: of the log-likelihood of each draw and of its Kendall's τ with the first.
    Chains that start alike cannot show other modes.
    """

    position_probabilities: NDArray[np.float32]
    samples: NDArray[np.int16]
    r_hat: float
    effective_size: float
    over_parameters: bool = False

    def precedence(self, i: int, j: int) -> float | Array:
        """The probability that observation i came before observation j (one for each trajectory)."""
        T = self.samples.shape[-1]
        for each in (i, j):
            if not 0 <= each < T:
                raise ValueError(f"observations run from 0 to {T - 1}; got {each}.")
        if i == j:
            raise ValueError(f"observation {i} is not before or after itself: give two.")
        place = np.argsort(self.samples, axis=-1)
        before: Array = (place[..., i] < place[..., j]).mean(axis=-1)
        return float(before) if before.ndim == 0 else before

    def expected_order(self) -> Indices:
        """The order with the most positions right on average: `max_o Σ_k P[o_k, k]`, an assignment."""
        tables = self.position_probabilities.reshape(-1, *self.position_probabilities.shape[-2:])
        orders = np.empty(tables.shape[:2], dtype=np.intp)
        for row, table in zip(orders, tables, strict=True):
            a, k = optimize.linear_sum_assignment(-table.astype(float))
            row[k] = a
        return orders.reshape(self.position_probabilities.shape[:-1])

    def unfolded(
        self, order: Indices, probability: float, rng: np.random.Generator
    ) -> OrderPosterior:
        """The posterior where a shared order by level is, with a probability, a path folded onto itself.

        These modes are not reached by the chains, which start alike: all unfoldings are taken as equally likely.
        """
        many = folded_orders(order, UNFOLDED_DRAWS, rng)
        where = np.zeros(self.position_probabilities.shape)
        np.add.at(where, (many, np.arange(len(order))[None]), 1 / UNFOLDED_DRAWS)
        samples = self.samples.copy()
        moved = np.flatnonzero(rng.random(len(samples)) < probability)
        samples[moved] = many[: len(moved)]
        P = (1 - probability) * self.position_probabilities + probability * where
        return self._with(P, samples)

    def _with(self, probabilities: Any, samples: NDArray[np.int16]) -> OrderPosterior:
        """The same chains, read otherwise."""
        P = probabilities.astype(np.float32)
        return replace(self, position_probabilities=P, samples=samples)

    def mixed_with(self, others: list[tuple[OrderPosterior, float]]) -> OrderPosterior:
        """A mixture of posteriors over one shared order, each with its share of the probability; this one has the rest."""
        own = 1 - sum(share for _, share in others)
        P = own * self.position_probabilities
        samples = self.samples.copy()
        end = len(samples)
        for each, share in others:
            P = P + share * each.position_probabilities
            count = min(round(share * len(samples)), end, len(each.samples))
            samples[end - count : end] = each.samples[evenly(len(each.samples), count)]
            end -= count
        return self._with(P, samples)

    def either_direction(self, probability: float) -> OrderPosterior:
        """The posterior over a shared order that is, with a probability, to be read from its other end."""
        P = (1 - probability) * self.position_probabilities
        P = P + probability * self.position_probabilities[:, ::-1]
        every = np.arange(len(self.samples))
        back = np.floor((every + 1) * probability) > np.floor(every * probability)
        return self._with(P, np.where(back[:, None], self.samples[:, ::-1], self.samples))

    def along(self, order: Indices) -> NDArray[np.int16]:
        """The orders drawn, those that run against a shared order reversed."""
        back = kendall_taus(order, self.samples) < 0
        return np.where(back[:, None], self.samples[:, ::-1], self.samples)

    def halved(self, other: OrderPosterior) -> OrderPosterior:
        """Half of this and half of another posterior over the same orders: the other direction's."""
        P = (self.position_probabilities + other.position_probabilities) / 2
        both = self._with(P, np.concatenate([self.samples, other.samples], axis=-2))
        size = self.effective_size + other.effective_size
        return replace(both, r_hat=max(self.r_hat, other.r_hat), effective_size=size)

    def either_way(self, turn: Mask, lengths: Lengths) -> OrderPosterior:
        """Both directions equally likely: half of the probability reversed, for the trajectories (n,) that may be."""
        back = np.where(turn[:, None], lengths.reversal, np.arange(lengths.T))
        P, samples = self.position_probabilities, self.samples
        mirrored, turned = turned_about(P, back), turned_about(samples, back)
        return self._with((P + mirrored) / 2, np.concatenate([samples, turned], axis=1))

    @property
    def mixed(self) -> bool:
        """The chains have converged, so that their frequencies estimate probabilities."""
        return mixed(self.r_hat, self.effective_size)


def turned_about(of_positions: NDArray[Any], back: Indices) -> NDArray[Any]:
    """Something of each position, (n, m, T), read from the places (n, T)."""
    return np.take_along_axis(
        of_positions, np.broadcast_to(back[:, None], of_positions.shape), axis=2
    )


def order_posterior(
    model: Model, law: Any, chains: Chains, *, samples: int
) -> tuple[OrderPosterior, Draws]:
    """The posterior over each trajectory's order under a fixed law, and the draws behind it."""
    report(SAMPLING)
    n, T, _ = model.data.shape
    draws = model.draw(
        law, chains, Stretch(samples, 25 * T, min(ORDERS_KEPT, samples), positions=True)
    )
    C = len(draws.kept)
    probabilities = draws.positions.astype(np.float32) / np.float32(samples * C)
    tidy_padding(model, probabilities, draws.kept)
    merged = draws.kept.transpose(1, 0, 2, 3).reshape(n, -1, T)
    return OrderPosterior(probabilities, merged, *_diagnosed(model, law, draws.kept)), draws


def tidy_padding(model: Model, probabilities: NDArray[np.float32], kept: NDArray[np.int16]) -> None:
    """Beyond a trajectory's length nothing was sampled: padding stays where it is."""
    lengths = model.data.lengths
    if not lengths.ragged:
        return
    outside = ~lengths.mask
    j, k = np.nonzero(outside)
    probabilities[j, k, k] = 1.0
    kept[:] = np.where(outside[None, :, None, :], np.arange(lengths.T, dtype=np.int16), kept)


def _diagnosed(model: Model, law: Any, kept: NDArray[np.int16]) -> tuple[float, float]:
    """Split R-hat and effective size of the log-likelihood of each draw and of its τ with the first."""
    C, n, R, _ = kept.shape
    few, rows = model.some(DIAGNOSED_TRAJECTORIES), evenly(n, DIAGNOSED_TRAJECTORIES)
    drawn = kept[:, rows].astype(np.intp).swapaxes(1, 2).reshape(C * R, len(rows), -1)
    values = [few.log_joint(each, law).sum() - few.prior_costs(each).sum() for each in drawn]
    traces = np.stack([values, kendall_taus(drawn[0], drawn)], axis=1)
    return convergence(traces.reshape(C, R, 2))


def shared_posterior(
    orders: SharedOrders, order: Indices, rng: np.random.Generator, *, samples: int
) -> OrderPosterior:
    """The posterior over one order shared by all trajectories."""
    T = len(order)
    states = random_states(rng, SHARED_CHAINS)
    positions, kept = np.zeros((T, T)), []
    for c in steps(range(SHARED_CHAINS), SAMPLING, least=2):
        where, some = orders.sample(order, states[c : c + 1], samples, min(ORDERS_KEPT, samples))
        positions += where
        kept.append(some)
    records = np.stack(kept).astype(np.intp)
    merged = records.reshape(-1, T)
    costs = [orders.cost(each) for each in merged]
    traces = np.stack([costs, kendall_taus(merged[0], merged)], axis=1)
    probabilities = (positions / (samples * len(kept))).astype(np.float32)
    diagnosed = convergence(traces.reshape(len(kept), -1, 2))
    return OrderPosterior(probabilities, merged.astype(np.int16), *diagnosed)


MAX_R_HAT, MIN_EFFECTIVE_SIZE = 1.05, 100.0
"""Chains have converged within these (Vehtari et al. 2021 ask for 1.01 and 400 where tails matter). Of eight halves of 25 independent draws
R-hat exceeds 1.05 less than once in a thousand."""


def mixed(r_hat: float, effective_size: float) -> bool:
    """The chains have converged."""
    return r_hat <= MAX_R_HAT and effective_size >= MIN_EFFECTIVE_SIZE


def convergence(x: Array) -> tuple[float, float]:
    """Rank-normalised split R-hat and effective size, the worst over the quantities of traces (chains, draws, quantities).

    R-hat is the larger of that of the ranks and of the ranks of distances from the median, so that chains of different spread are
    seen and heavy tails hide nothing (Vehtari et al. 2021).
    """
    C, R, _ = x.shape
    varying = x.std(axis=(0, 1)) > 1e-12 * (np.abs(x).max(axis=(0, 1)) + 1e-300)
    if not varying.any():
        return 1.0, float(C * R)
    x = x[:, :, varying]
    z = _normal_scores(x)
    size = np.sum([_effective_size(chain) for chain in z], axis=0)
    folded = _normal_scores(np.abs(x - np.median(x, axis=(0, 1))))
    return max(_split_r_hat(z), _split_r_hat(folded)), float(size.min())


def _normal_scores(x: Array) -> Array:
    """Ranks over all chains, ties at their mean, as quantiles of the standard normal distribution (Blom 1958)."""
    flat = x.reshape(-1, x.shape[2])
    scores = np.stack([ranks(column) for column in flat.T], axis=1)
    return np.asarray(ndtri((scores - 0.375) / (len(flat) + 0.25))).reshape(x.shape)


def ranks(values: Array) -> Array:
    """From 1 on, ties at their mean."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where])


def _split_r_hat(x: Array) -> float:
    """The largest over the quantities, each chain in two halves; 1 where nothing varies."""
    half = x.shape[1] // 2
    split = np.concatenate([x[:, :half], x[:, half : 2 * half]])
    within = split.var(axis=1, ddof=1).mean(axis=0)
    between = split.mean(axis=1).var(axis=0, ddof=1)
    r_hat = np.sqrt((within * (half - 1) / half + between) / np.maximum(within, 1e-300))
    return float(np.where(between > 1e-12, r_hat, 1.0).max())


def _effective_size(trace: Array) -> Array:
    """Geyer's initial positive sequence, for each column of (draws, quantities)."""
    x = trace - trace.mean(axis=0)
    R = len(x)
    spectrum = np.abs(np.fft.rfft(x, 2 * R, axis=0)) ** 2
    correlation = np.fft.irfft(spectrum, axis=0)[:R]
    correlation = correlation / np.maximum(correlation[0], 1e-300)
    pairs = correlation[1 : R - 1 : 2] + correlation[2:R:2]
    positive = np.cumprod(pairs > 0, axis=0)
    return R / np.maximum(1 + 2 * (pairs * positive).sum(axis=0), 1.0)
