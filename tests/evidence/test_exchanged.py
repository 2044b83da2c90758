"""Rows that were exchanged: what they gain in each other's place, how often chance gains as much, and which are named."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.evidence.suspects.exchanged import _Places, find_exchanges
from retrace_sde.evidence.suspects.robust import centre_and_scale
from retrace_sde.evidence.suspects.rows import find_rows, judge
from retrace_sde.evidence.suspects.two_sided import TwoSided


def rest(seed: int = 0, n: int = 30, T: int = 12):
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    S = sde.stationary().covariance
    start = np.random.default_rng([seed, 1]).standard_normal((n, 3)) @ np.linalg.cholesky(S).T
    return sde.simulate(n, T, 0.1, x0=start, random_state=seed)


def standardised(X):
    centre, scale = centre_and_scale(X)
    return (X - centre) / scale, np.broadcast_to(np.arange(float(X.shape[1])), X.shape[:2])


def places_of(z, times):
    law = TwoSided.of(z, times)
    judged = judge(law.sides(z, times, z), np.ones(z.shape[:2], dtype=bool))
    return law, judged, _Places.of(z, times, z, law, judged.tail)


@pytest.mark.parametrize("complete", [True, False])
def test_gains_are_those_of_the_panel_with_the_rows_exchanged(complete):
    """Against the cost of the whole panel, with rows exchanged, under the same law and scales, where nothing is a spike."""
    z, times = standardised(rest())
    if not complete:
        z[[11, 15], [3, 7]] = np.nan
    law, judged, places = places_of(z, times)
    free = replace(places, most=np.full_like(places.most, np.inf))

    def whole(x):
        return places.cost(_Places.of(x, times, z, law, judged.tail).before)[:, 1:].sum()

    def exchanged(one, two):
        x = z.copy()
        x[one], x[two] = z[two], z[one]
        return whole(z) - whole(x)

    rows = np.array([[3, 4], [7, 11], [5, 2]])
    gains, compared = free.gains(rows), 0
    assert np.array_equal(np.isnan(gains), np.isnan(places.gains(rows)))
    for (j, k), gained in zip(rows.tolist(), gains, strict=True):
        for m in (0, 9, 25, 30 + 6, 30 + 8):
            other = (m, k) if m < 30 else (j, m - 30)
            if not np.isnan(gained[m]):
                compared += 1
                assert gained[m] == pytest.approx(exchanged((j, k), other))
                clear = places.clear(np.array([[j, k]]), np.array([other]))
                assert clear == pytest.approx(gained[m])
    assert compared >= 10
    near = places.next_to_each_other[1]
    for j, k in ((2, 1), (8, 6), (0, 10)):
        assert near[j, k] == pytest.approx(exchanged((j, k), (j, k + 1)))


def test_a_spike_costs_the_step_past_it_and_being_anywhere():
    """Against the density of the next row given the one before, with the row between them integrated out."""
    z, times = standardised(rest())
    law, judged, places = places_of(z, times)
    tail = replace(judged.tail, degrees=1e9, scale=1.0)
    bridges = replace(places, tail=tail)._bridges()
    W, F = law.whitening, law.ahead.coefficients[:-1].T
    S = np.linalg.inv(W @ W.T)
    for j, k in ((3, 4), (20, 7)):
        scale, after = places.scale[j, k], places.scale_after[j, k]
        step = np.linalg.solve(W.T, places.before[j, k]) * scale
        past = F @ step + np.linalg.solve(W.T, places.after[j, k]) * after
        ratio = float((scale / after).mean())
        both = after.mean() ** 2 * (S + F @ S @ F.T)
        assert ratio == pytest.approx(1, abs=0.1)
        density = multivariate_normal(np.zeros(3), both).logpdf(past)
        usual = multivariate_normal(np.zeros(3), after.mean() ** 2 * S).logpdf(np.zeros(3))
        assert bridges[j, k] == pytest.approx(usual - density, rel=0.1)
    assert (bridges[:, -1] == 0).all()


def test_pairs_that_lose_tell_how_many_gain_by_chance():
    """`P(g > t) = E[e^g; g < −t]` over clean panels, at a bound that some pairs of a slice do exceed."""
    seen = told = 0.0
    for seed in range(20):
        z, times = standardised(rest(seed, n=20))
        places = places_of(z, times)[2]
        gains = places.gains(np.argwhere(np.ones(z.shape[:2], dtype=bool)))[:, :20]
        seen += (gains > 1).sum()
        told += np.exp(gains[gains < -1]).sum()
    assert seen > 100
    assert told == pytest.approx(seen, rel=0.25)


def test_exchanges_are_found_of_which_not_both_rows_stand_out_alone():
    found = alone = 0
    wrong = [((4, 5), (9, 5)), ((12, 3), (20, 3)), ((15, 2), (15, 8)), ((22, 7), (27, 7))]
    for seed in range(8):
        X = rest(seed)
        for one, two in wrong:
            X[one], X[two] = X[two].copy(), X[one].copy()
        z, times = standardised(X)
        law, judged, _ = places_of(z, times)
        pairs = find_exchanges(z, times, z, law, judged.tail, judged.p)
        found += len({(e.one, e.two) for e in pairs} & {*wrong, *((b, a) for a, b in wrong)})
        alone += sum(judged.p[one] < 1e-4 and judged.p[two] < 1e-4 for one, two in wrong)
        named = {(e.trajectory, e.position): e.partner for e in find_rows(z, times)}
        assert all(named[b] == a for a, b in named.items() if b is not None)
    assert found >= 24  # of 32
    assert alone <= 20


@pytest.mark.parametrize(("seed", "pairs"), [(6, [(2, 11), (3, 10)]), (8, [(0, 8), (1, 9)])])
def test_rows_next_to_each_other_that_are_both_at_a_wrong_slice_are_found(seed, pairs):
    """They fit each other, so that exchanging one pair alone gains nothing."""
    X = rest(seed) + np.arange(12.0)[:, None] * np.array([0.6, -0.4, 0.5])
    X[20, [4, 9]] = X[20, [9, 4]]
    for a, b in pairs:
        X[6, [a, b]] = X[6, [b, a]]
    named = {(e.trajectory, e.position): e.partner for e in find_rows(*standardised(X))}
    for a, b in pairs:
        assert named[6, a] == (6, b)
        assert named[6, b] == (6, a)


def test_clean_panels_and_wrong_cells_have_no_exchanges():
    X = rest(7)
    assert not find_rows(*standardised(X))
    X[4, 5, 1] += 30
    X[17, 2, 0] -= 30
    found = find_rows(*standardised(X))
    assert {(e.trajectory, e.position, e.partner) for e in found} == {(4, 5, None), (17, 2, None)}


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_two_spikes_in_a_large_panel_are_no_exchange(seed):
    """With so many rows to choose from some fit in the place of each; of spikes next to an ordinary row the two would be."""
    X = rest(seed, n=300, T=8)
    rng, sd = np.random.default_rng(0), np.diff(X, axis=1).std(axis=(0, 1))
    for j, k in zip(rng.choice(300, 40, replace=False), rng.integers(1, 7, 40), strict=True):
        X[j, k] += 4 * rng.standard_normal(3) * sd
    found = find_rows(*standardised(X))
    assert len(found) >= 30
    assert all(each.partner is None for each in found)


def test_exchanged_rows_are_named_as_such():
    X = rest(3)
    X[8], X[9] = X[8] + 1.5, X[9] - 1.5
    X[[8, 9], 6] = X[[9, 8], 6]
    with pytest.warns(rt.ReTraceWarning, match="look exchanged"):
        result = rt.ReTrace(dt=0.1, random_state=0, outliers="flag").fit(X).result_
    assert {(e.trajectory, e.slice) for e in result.suspects} == {(8, 6), (9, 6)}
