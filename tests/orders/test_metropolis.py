"""The sampler against enumeration: every kind of move alone, all of them together, and adapted ones."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2

from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.proposals import (
    KINDS,
    LENGTHS,
    SHARES,
    SHARPNESS,
    Proposals,
    adapted,
    length_table,
)
from retrace_sde.orders.moves.rules import Rules
from retrace_sde.orders.path_chains import Records, sample_block, sample_path
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import BlockCosts

NAMES = ["reversal", "exchange", "swap", "flip", "join by reversal", "join by insertion"]


def only(*kinds):
    """Cumulative shares that give the named kinds equal parts and the others none."""
    share = np.zeros(KINDS)
    share[list(kinds)] = 1
    cumulative = np.round(256 * np.cumsum(share / share.sum())).astype(np.int64)
    cumulative[-1] = 256
    return cumulative


def geometry(T, seed, *, d=2, scale=0.8):
    """States, predictions and start costs of one trajectory: asymmetric costs of a few nats."""
    rng = np.random.default_rng(seed)
    target = scale * rng.standard_normal((T, d))
    source = target + 0.5 * scale * rng.standard_normal((T, d))
    return target, source, rng.normal(0, 1, T)


def enumerated(target, source, start):
    """All orders and their posterior probabilities, by plain numpy."""
    T = len(target)
    C = 0.5 * ((target[None] - source[:, None]) ** 2).sum(axis=2)
    orders = np.array(list(permutations(range(T))))
    cost = start[orders[:, 0]] + C[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    weight = np.exp(cost.min() - cost)
    return orders, weight / weight.sum()


def marginals(orders, weight):
    """Pair, first, last and position probabilities of weighted orders."""
    T = orders.shape[1]
    pairs, positions = np.zeros((T, T)), np.zeros((T, T))
    for k in range(T - 1):
        np.add.at(pairs, (orders[:, k], orders[:, k + 1]), weight)
    for k in range(T):
        np.add.at(positions, (orders[:, k], k), weight)
    return pairs, positions[:, 0], positions[:, -1], positions


def run_block(
    geometry, orders, *, burn, samples, thin, shares, table, keep, seed, positions=True, prior=None
):
    """One chain for each row of `orders`, all on the same trajectory."""
    n, T = orders.shape
    rules = None
    if prior is not None:
        rules = Rules(*(np.repeat(each, n, axis=0) for each in prior.arrays(slice(None))))
    steps = BlockCosts(*(np.repeat(each[None], n, axis=0) for each in geometry))
    records = Records.none(n, T=T, keep=keep, positions=positions)
    states = np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)
    orders = orders.astype(np.intp).copy()
    schedule, proposals = Schedule(burn, samples, thin), Proposals(table, shares, SHARPNESS)
    sample_block(steps, rules, np.full(n, T), orders, states, schedule, proposals, records)
    return orders, records._asdict()


def codes(orders):
    return (orders.astype(np.int64) * orders.shape[1] ** np.arange(orders.shape[1])).sum(axis=1)


def chi_square_p(found, orders, weight):
    """p-value of the found orders against their probabilities; rare orders are pooled."""
    expected = weight * len(found)
    where = {code: k for k, code in enumerate(codes(orders))}
    observed = np.bincount([where[code] for code in codes(found)], minlength=len(orders))
    rare = expected < 8
    e = np.append(expected[~rare], expected[rare].sum())
    o = np.append(observed[~rare], observed[rare].sum())
    e, o = e[e > 0], o[e > 0]
    return chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1)


@pytest.mark.parametrize("kind", range(KINDS), ids=NAMES)
@pytest.mark.parametrize(
    "T", [2, 3, 6, *(pytest.param(T, marks=pytest.mark.statistics) for T in (4, 5))]
)
def test_each_kind_of_move_alone_keeps_the_posterior(kind, T):
    """Started from exact draws of the posterior, one kind of move alone must leave them exact draws.

    No kind needs to reach every order for that; a wrong Hastings ratio cannot pass.
    """
    shape = geometry(T, seed=10 * T)
    orders, weight = enumerated(*shape)
    rng = np.random.default_rng(T)
    begin = orders[rng.choice(len(orders), size=30_000, p=weight)]
    end, counts = run_block(
        shape, begin, burn=0, samples=1, thin=30, shares=only(kind), table=length_table(T - 1),
        keep=1, seed=kind, positions=False,
    )  # fmt: skip
    # 30 such tests: the smallest of 30 p-values is below 1e-4 three times in a thousand.
    assert chi_square_p(end, orders, weight) > 1e-4
    tried, accepted = counts["tally"][kind]
    assert tried == counts["tally"][:, 0].sum() == 30 * len(begin)
    # Two nodes have no third between them to swap around, nor any that are not neighbours.
    moved = np.mean(codes(end) != codes(begin))
    if T == 2 and kind in (2, 4):
        assert accepted == moved == 0
    else:
        assert accepted > 0.005 * tried
        assert moved > 0.01


@pytest.mark.parametrize("kind", [0, 1, 4, 5])
def test_each_ergodic_kind_alone_reaches_the_posterior_from_one_order(kind):
    T = 5
    shape = geometry(T, seed=3)
    orders, weight = enumerated(*shape)
    worst = np.tile(orders[np.argmin(weight)], (1500, 1))
    # Neighbours are not joined at the ends of the path by reversal: a whole flip helps it there.
    shares = only(kind, 3) if kind == 4 else only(kind)
    end, _ = run_block(
        shape, worst, burn=5_000, samples=1, thin=1, shares=shares, table=length_table(T - 1),
        keep=1, seed=5, positions=False,
    )  # fmt: skip
    assert chi_square_p(end, orders, weight) > 1e-4


@pytest.mark.parametrize("T", [3, 4, 5, 6])
@pytest.mark.parametrize("scale", [0.5, 1.5], ids=["uncertain", "certain"])
def test_frequencies_match_the_enumerated_posterior_within_monte_carlo_error(T, scale):
    shape = geometry(T, seed=T, scale=scale)
    orders, weight = enumerated(*shape)
    chains, samples = 100, 2000
    begin = np.tile(np.arange(T), (chains, 1))
    _, counts = run_block(
        shape, begin, burn=500, samples=samples, thin=5, shares=SHARES.astype(np.int64),
        table=length_table(T - 1), keep=0, seed=T,
    )  # fmt: skip
    z = []
    exact = marginals(orders, weight)
    for name, truth in zip(("pairs", "first", "last", "positions"), exact, strict=True):
        share = counts[name] / samples
        error = share.std(axis=0, ddof=1) / np.sqrt(chains)
        # Events too rare for a standard error are held to an absolute bound.
        seen = truth * chains * samples > 200
        z.append((share.mean(axis=0) - truth)[seen] / np.maximum(error[seen], 1e-6))
        assert np.all(np.abs(share.mean(axis=0) - truth)[~seen] < 2e-3)
    z = np.concatenate(z)
    assert len(z) >= 6
    # Standard normal scores, correlated: fewer independent ones than there are.
    assert np.sqrt(np.mean(z**2)) < 1.6
    assert np.abs(z).max() < 4.5
    assert np.all(counts["pairs"].sum(axis=(1, 2)) == samples * (T - 1))
    assert np.all(counts["positions"].sum(axis=1) == samples)
    assert np.all(counts["positions"].sum(axis=2) == samples)
    np.testing.assert_array_equal(counts["positions"][:, :, 0], counts["first"])
    np.testing.assert_array_equal(counts["positions"][:, :, -1], counts["last"])


def test_adapted_proposals_keep_the_posterior():
    T = 6
    shape = geometry(T, seed=21)
    orders, weight = enumerated(*shape)
    begin = orders[np.random.default_rng(0).choice(len(orders), size=40_000, p=weight)]
    _, counts = run_block(
        shape, begin[:50], burn=0, samples=1, thin=2000, shares=SHARES.astype(np.int64),
        table=length_table(T - 1), keep=0, seed=0, positions=False,
    )  # fmt: skip
    shares, weights = adapted(counts["tally"], counts["scales"])
    assert shares[-1] == 256
    # Every kind stays possible, and what is accepted more often is tried more often than before.
    portions = np.diff(np.concatenate([[0], shares]))
    assert np.all(portions > 0)
    rate = counts["tally"][:, 1] / counts["tally"][:, 0]
    gain = portions - np.diff(np.concatenate([[0], SHARES])) / 2
    assert np.argmax(gain) == np.argmax(rate)
    assert np.all((weights >= 0.25) & (weights <= 1.0))
    end, _ = run_block(
        shape, begin, burn=0, samples=1, thin=40, shares=shares,
        table=length_table(T - 1, weights), keep=1, seed=1, positions=False,
    )  # fmt: skip
    assert np.mean(codes(end) != codes(begin)) > 0.5
    assert chi_square_p(end, orders, weight) > 1e-4


def test_adaptation_survives_chains_that_never_moved():
    shares, weights = adapted(np.zeros((KINDS, 2), np.int64), np.zeros((64, 2), np.int64))
    assert shares[-1] == 256
    assert np.all(np.diff(np.concatenate([[0], shares])) > 0)
    assert np.all(np.isfinite(weights))
    assert length_table(40, weights).min() == 1


@pytest.mark.parametrize("reach", [1, 2, 3, 5, 17, 49, 255, 999])
def test_lengths_are_log_uniform_on_one_to_reach(reach):
    table = length_table(reach)
    assert len(table) == LENGTHS
    assert table.min() == 1
    assert table.max() == reach
    octave = np.floor(np.log2(table)).astype(int)
    octaves = int(np.ceil(np.log2(reach + 1)))
    shares = np.bincount(octave, minlength=octaves) / LENGTHS
    np.testing.assert_allclose(shares, 1 / octaves, atol=2 / LENGTHS)
    if reach >= 7:
        # Within an octave P(length) ∝ log(1 + 1/length): 4 against 7 as log(5/4) to log(8/7).
        four, seven = np.mean(table == 4), np.mean(table == 7)
        if reach > 7:
            assert four / seven == pytest.approx(np.log(5 / 4) / np.log(8 / 7), rel=0.1)


def test_octaves_take_the_weights_they_are_given():
    table = length_table(15, np.array([1.0, 0.0, 2.0, 1.0, 99.0]))
    shares = np.bincount(np.floor(np.log2(table)).astype(int), minlength=4) / LENGTHS
    np.testing.assert_allclose(shares, [0.25, 0.0, 0.5, 0.25], atol=2 / LENGTHS)


def test_a_block_is_each_trajectory_alone_with_its_state():
    rng = np.random.default_rng(4)
    lengths = np.array([2, 3, 7, 12, 12, 20])
    n, T, burn, samples, thin = 6, 20, 100, 50, 7
    target = np.cumsum(rng.standard_normal((n, T, 2)), axis=1)
    source, start = target + 0.1, rng.normal(0, 1, (n, T))
    proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
    schedule = Schedule(burn, samples, thin)
    seeds = rng.integers(0, 2**64, n, dtype=np.uint64)
    together, orders, states = (
        Records.none(n, T=T, keep=5, positions=True),
        np.tile(np.arange(T), (n, 1)),
        seeds.copy(),
    )
    steps = BlockCosts(target, source, start)
    sample_block(steps, None, lengths, orders, states, schedule, proposals, together)
    tally = np.zeros((KINDS, 2), np.int64)
    for j, t in enumerate(lengths):
        one = Records.none(1, T=T, keep=5, positions=True)
        order, state = np.arange(T)[None].copy(), seeds[j : j + 1].copy()
        rows = slice(j, j + 1)
        mine = BlockCosts(target[rows], source[rows], start[rows])
        sample_block(mine, None, lengths[rows], order, state, schedule, proposals, one)
        np.testing.assert_array_equal(order[0], orders[j])
        assert state[0] == states[j]
        for mine, theirs in zip(one[:5], together[:5], strict=True):
            np.testing.assert_array_equal(mine[0], theirs[j])
        tally += one[5]
        # Nothing is ever counted for what a trajectory does not have.
        assert sorted(orders[j, :t]) == list(range(t))
        np.testing.assert_array_equal(orders[j, t:], np.arange(t, T))
        pairs, first, last, positions = (each[j] for each in together[:4])
        assert pairs.sum() == pairs[:t, :t].sum() == samples * (t - 1)
        assert first[:t].sum() == last[:t].sum() == samples
        assert positions.sum() == positions[:t, :t].sum() == samples * t
    np.testing.assert_array_equal(tally, together[5])


def test_not_counting_positions_changes_nothing_else():
    shape = geometry(6, seed=2)
    begin = np.tile(np.arange(6), (4, 1))
    settings = {
        "burn": 10, "samples": 40, "thin": 3, "shares": SHARES.astype(np.int64),
        "table": length_table(5), "keep": 4, "seed": 9,
    }  # fmt: skip
    with_them, a = run_block(shape, begin, positions=True, **settings)
    without, b = run_block(shape, begin, positions=False, **settings)
    np.testing.assert_array_equal(with_them, without)
    for name in ("pairs", "first", "last", "kept", "tally"):
        np.testing.assert_array_equal(a[name], b[name])


def test_kept_orders_are_spread_over_the_run_and_have_the_posterior_as_their_law():
    T = 4
    shape = geometry(T, seed=8)
    orders, weight = enumerated(*shape)
    begin = np.tile(np.arange(T), (400, 1))
    _, counts = run_block(
        shape, begin, burn=200, samples=500, thin=20, shares=SHARES.astype(np.int64),
        table=length_table(T - 1), keep=50, seed=3,
    )  # fmt: skip
    kept = counts["kept"]
    assert np.all(np.sort(kept, axis=2) == np.arange(T))
    # 200 moves apart on 24 orders: independent draws.
    assert chi_square_p(kept.reshape(-1, T), orders, weight) > 1e-4


def test_as_many_kept_as_samples_are_all_of_them():
    T, samples = 5, 30
    shape = geometry(T, seed=1)
    _, counts = run_block(
        shape, np.arange(T)[None], burn=0, samples=samples, thin=2, shares=SHARES.astype(np.int64),
        table=length_table(T - 1), keep=samples, seed=3,
    )  # fmt: skip
    pairs, first, last, positions = marginals(counts["kept"][0].astype(int), np.ones(samples))
    np.testing.assert_array_equal(pairs, counts["pairs"][0])
    np.testing.assert_array_equal(first, counts["first"][0])
    np.testing.assert_array_equal(last, counts["last"][0])
    np.testing.assert_array_equal(positions, counts["positions"][0])


def test_the_longer_of_two_runs_continues_the_shorter():
    """A chain is its order and its state: two runs of 25 records are one of 50."""
    T = 9
    rng = np.random.default_rng(0)
    C = np.zeros((T + 1, T + 1))
    C[:, :T] = rng.gamma(1.0, 2.0, (T + 1, T))
    counts = [Records.none(T=T) for _ in "ab"]
    proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
    ends = []
    for parts, count in zip(((50,), (25, 25)), counts, strict=True):
        order, state = np.arange(T), np.array([5], np.uint64)
        for samples in parts:
            sample_path(C, None, order, state, Schedule(0, samples, 6), proposals, count)
        ends.append(order)
    np.testing.assert_array_equal(*ends)
    for one, two in zip(*counts, strict=True):
        np.testing.assert_array_equal(one, two)


PRIORS = {
    "positions": lambda rng, T: (
        np.where(np.eye(T)[[2]] + np.zeros((T, 1)) > 0, np.inf, 0.0),
        None,
    ),
    "timestamps": lambda rng, T: (rng.gamma(1.0, 1.0, (T, T)), None),
    "precedences": lambda rng, T: (None, [(0, 3), (3, 1)]),
    "all": lambda rng, T: (rng.gamma(1.0, 1.0, (T, T)), [(4, 0), (2, 1)]),
}


def known_of(name, T, seed=0):
    """A prior over orders of T: an observation's position, soft costs, precedences, or costs with rules."""
    unary, pairs = PRIORS[name](np.random.default_rng(seed), T)
    if name in ("positions", "all"):
        unary[1, :] = np.inf
        unary[:, 2] = np.inf
        unary[1, 2] = 0.0
    before = None
    if pairs is not None:
        before = np.zeros((T, T), dtype=bool)
        for a, b in pairs:
            before[a, b] = True
        for k in range(T):
            before |= before[:, [k]] & before[[k], :]
    return Prior(unary, before)


@pytest.mark.parametrize("name", list(PRIORS))
@pytest.mark.parametrize("T", [5, pytest.param(6, marks=pytest.mark.statistics)])
def test_chains_obey_what_is_known_and_sample_its_posterior(name, T):
    """Against enumeration over all permutations with the prior, from one order that breaks no rule."""
    shape, prior = geometry(T, seed=T), known_of(name, T)
    orders, weight = enumerated(*shape)
    weight = weight * np.exp(-np.array([prior.cost(order)[0] for order in orders]))
    weight = weight / weight.sum()
    begin = np.tile(prior.repair(np.arange(T)), (4000, 1))
    end, _ = run_block(
        shape, begin, burn=1500, samples=1, thin=1, shares=SHARES.astype(np.int64),
        table=length_table(T - 1), keep=1, seed=5, positions=False, prior=prior,
    )  # fmt: skip
    assert np.isfinite([prior.cost(order)[0] for order in end]).all()
    assert (weight > 0).sum() > 5
    assert chi_square_p(end, orders, weight) > 1e-4


@pytest.mark.parametrize("kind", range(KINDS), ids=NAMES)
@pytest.mark.parametrize("name", ["timestamps", "all"])
def test_each_kind_of_move_alone_keeps_the_posterior_under_knowledge(kind, name):
    T = 5
    shape, prior = geometry(T, seed=10 * T), known_of(name, T)
    orders, weight = enumerated(*shape)
    weight = weight * np.exp(-np.array([prior.cost(order)[0] for order in orders]))
    weight = weight / weight.sum()
    begin = orders[np.random.default_rng(T).choice(len(orders), size=20_000, p=weight)]
    end, _ = run_block(
        shape, begin, burn=0, samples=1, thin=30, shares=only(kind), table=length_table(T - 1),
        keep=1, seed=kind, positions=False, prior=prior,
    )  # fmt: skip
    assert chi_square_p(end, orders, weight) > 1e-4
