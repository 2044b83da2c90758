"""Each trajectory's own order from noisy or incomplete observations, where rules say what precedes what.

Rules forbid to turn a path round, so a start that lays it the wrong way is hard to leave. With rules there is
a second start, from the orders found without them and then repaired; the more likely of the two counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retrace_sde.independent import one_way
from retrace_sde.noisy import Hidden, NoisyProblem
from retrace_sde.noisy_independent import alternate, plain_problem, recover_noisy_orders
from retrace_sde.problem import Round


def recover_ruled_orders(
    problem: NoisyProblem, rng: np.random.Generator, *, max_iter: int
) -> tuple[Hidden, Hidden, list[Round], bool]:
    """The orders found and their twin (the better first), the rounds, and whether the orders settled."""
    found = recover_noisy_orders(problem, rng, max_iter=max_iter)
    if problem.prior is None or problem.prior.before is None:
        return found
    free = recover_noisy_orders(replace(problem, prior=None), rng, max_iter=max_iter)
    pair = [alternate(problem, problem.repaired(each.order), [], max_iter) for each in free[:2]]
    (one, settled), (two, _) = sorted(pair, key=lambda each: -each[0].objective)
    if one.objective <= found[0].objective:
        return found
    if one_way(plain_problem(problem), one.order):
        two = problem.fit(problem.data.reversed(one.order))
    one, two = (problem.fit(each.order, start=each.fit, loose=False) for each in (one, two))
    return one, two, [*free[2], one.as_round()], settled
