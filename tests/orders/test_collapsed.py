"""The evidence of a shared order against integration on a grid, and draws by it against all orders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from retrace_sde.orders.collapsed import chains
from retrace_sde.orders.collapsed.chains import cheapest_move, draw_orders
from retrace_sde.orders.collapsed.marginal import OrderEvidence, default_priors, step_posterior
from retrace_sde.orders.prior import Prior


def walk(seed, *, n, T, d, affine=True):
    rng = np.random.default_rng(seed)
    x = 0.7 * np.cumsum(rng.standard_normal((T, n, d)), axis=0) + rng.standard_normal((1, n, d))
    return x, np.concatenate([x, np.ones((T, n, 1))], axis=-1) if affine else x


def log_sum(values, steps):
    best = values.max()
    return best + np.log(np.exp(values - best).sum() * np.prod(steps))


def test_the_evidence_is_the_integral_over_the_parameters():
    """One variable, linear drift: coefficient and variance, and the first slice's mean and variance, on grids."""
    x, phi = walk(0, n=3, T=3, d=1, affine=False)
    step, start = default_priors(x, phi)
    evidence = OrderEvidence.of(x, phi)
    K0, S0, weight, S1 = step.precision[0, 0], step.scale[0, 0], start.weight, start.scale[0, 0]
    location, log_q = np.linspace(-12, 12, 1500), np.linspace(-9, 9, 1200)
    t, q = location[:, None], np.exp(log_q)[None]
    width = location[1] - location[0], log_q[1] - log_q[0]
    normal = -0.5 * np.log(2 * np.pi * q)
    spread = -step.freedom / 2 * np.log(q) - S0 / (2 * q)
    of_steps, of_starts = [], []
    orders = np.array(list(permutations(range(3))))
    for order in orders:
        a, b = x[order[:-1]].ravel(), x[order[1:]].ravel()
        gaps = sum(normal - (y - z - t * z) ** 2 / (2 * q) for z, y in zip(a, b, strict=True))
        prior = normal - t**2 * K0 / (2 * q)
        of_steps.append(log_sum(gaps + prior + spread, width))
        spread_1 = -start.freedom / 2 * np.log(q) - S1 / (2 * q)
        mean = normal - weight * (t - start.mean[0]) ** 2 / (2 * q)
        first = sum(normal - (y - t) ** 2 / (2 * q) for y in x[order[0]].ravel())
        total = log_sum(mean + spread_1 + first, width)
        of_starts.append(total - log_sum(mean + spread_1 + 0 * t, width))
    np.testing.assert_allclose(evidence.starts[orders[:, 0]], of_starts, atol=1e-3)
    found = evidence(orders) - evidence.starts[orders[:, 0]] - np.array(of_steps)
    np.testing.assert_allclose(found, found[0], atol=1e-3)


@pytest.mark.parametrize(("n", "d", "affine"), [(2, 1, True), (3, 2, True), (2, 2, False)])
def test_draws_are_as_frequent_as_all_orders_say(n, d, affine):
    T = 5
    x, phi = walk(1, n=n, T=T, d=d, affine=affine)
    evidence, rng = OrderEvidence.of(x, phi), np.random.default_rng(2)
    every = np.array(list(permutations(range(T))))
    weights = np.exp(evidence(every) - evidence(every).max())
    starts = np.array([[rng.permutation(T)] * 4 for _ in range(4)])
    drawn = draw_orders(evidence, None, starts, rng, records=2500).orders.reshape(-1, T)
    code = T ** np.arange(T)
    counts = np.array([(drawn @ code == each).mean() for each in every @ code])
    assert 0.5 * np.abs(counts - weights / weights.sum()).sum() < 0.06


def test_the_direction_is_drawn_anew_for_each_record():
    """A chain that changed direction in one record of ten would need ten times as many."""
    x = np.tile(np.arange(6.0)[:, None, None], (1, 2, 1)) + 0.1 * walk(7, n=2, T=6, d=1)[0]
    evidence = OrderEvidence.of(x, np.concatenate([x, np.ones((6, 2, 1))], axis=-1))
    odds = np.diff(evidence(np.array([np.arange(6), np.arange(6)[::-1]])))[0]
    drawn = draw_orders(evidence, None, np.arange(6)[None, None], np.random.default_rng(3), records=400, warm=True)  # fmt: skip
    place = np.argsort(drawn.orders[0], axis=-1)
    ahead = place[:, 0] < place[:, -1]
    share = 1 / (1 + np.exp(odds))
    assert 0.1 < share < 0.9
    changes = np.mean(ahead[1:] != ahead[:-1])
    assert changes == pytest.approx(2 * share * (1 - share), abs=0.1)


def test_what_is_known_is_obeyed():
    x, phi = walk(3, n=2, T=5, d=1)
    before = np.zeros((5, 5), dtype=bool)
    before[4, 0] = True
    rng = np.random.default_rng(0)
    starts = np.array([[[4, 0, 1, 2, 3]]] * 4)
    drawn = draw_orders(OrderEvidence.of(x, phi), Prior(None, before), starts, rng, records=200)
    place = np.argsort(drawn.orders, axis=-1)
    assert (place[..., 4] < place[..., 0]).all()


def test_units_do_not_matter_to_orders():
    x, _ = walk(4, n=3, T=6, d=2)
    M = np.array([[3.0, 1.0], [-200.0, 50.0]])
    one, two = (
        OrderEvidence.of(z, np.concatenate([z, np.ones((6, 3, 1))], axis=-1))
        for z in (x, x @ M.T + [5.0, -7.0])
    )
    orders = np.array([np.random.default_rng(k).permutation(6) for k in range(20)])
    gap = one(orders) - two(orders)
    np.testing.assert_allclose(gap, gap[0], atol=1e-6)


def test_the_cheapest_move_is_the_best_of_all_of_its_kind():
    x, phi = walk(5, n=4, T=4, d=1)
    evidence, order = OrderEvidence.of(x, phi), np.arange(4)
    others = [o for o in permutations(range(4)) if o not in ((0, 1, 2, 3), (3, 2, 1, 0))]
    best = evidence(np.array(others)).max()
    own = np.logaddexp(*evidence(np.array([order, order[::-1]])))
    assert cheapest_move(evidence, None, order) <= own - best + 1e-9


def test_parameters_along_an_order_are_drawn_about_its_regression():
    x, phi = walk(6, n=200, T=4, d=2)
    rows, steps = phi[:-1].reshape(-1, 3), np.diff(x, axis=0).reshape(-1, 2)
    law, rng = step_posterior(steps, rows, default_priors(x, phi)[0]), np.random.default_rng(0)
    theta = np.linalg.lstsq(rows, steps, rcond=None)[0].T
    draws = [law.draw(rng) for _ in range(500)]
    np.testing.assert_allclose(np.mean([a for a, _ in draws], axis=0), theta, atol=0.02)
    np.testing.assert_allclose(np.mean([q for _, q in draws], axis=0), law.scale / (law.freedom - 3), atol=0.005)  # fmt: skip


def test_moves_judged_all_at_once_are_those_of_the_compiled_search(monkeypatch):
    """Of orders of several lengths, the shortest of which have no segments to turn."""
    rng = np.random.default_rng(8)
    for T in (3, 4, 5, 8):
        x, phi = walk(T, n=6, T=T, d=2)
        evidence, order = OrderEvidence.of(x, phi), rng.permutation(T)
        quick = cheapest_move(evidence, None, order)
        with monkeypatch.context() as patch:
            patch.setattr(chains, "MAX_TABLE", 0)
            assert quick == pytest.approx(cheapest_move(evidence, None, order), abs=1e-7)
