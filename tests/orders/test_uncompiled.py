"""The search of few slices in numpy makes the moves of the compiled one."""

from __future__ import annotations

import numpy as np
import pytest

from retrace_sde.orders.moves.uncompiled import improve_few
from retrace_sde.orders.search import LONG_SEGMENT, SHORT_SEGMENT, improve_path, padded_costs


@pytest.mark.parametrize("kind", ["any", "near a path", "tied"])
@pytest.mark.parametrize("T", [2, 3, 5, 8, 13, 24])
def test_the_search_without_a_compiler_ends_where_the_compiled_one_does(kind: str, T: int) -> None:
    rng = np.random.default_rng([T, len(kind)])
    for _ in range(10):
        x = np.cumsum(rng.standard_normal((T, 2)), axis=0)
        costs = {
            "any": rng.random((T, T)),
            "near a path": ((x[:, None] - x) ** 2).sum(axis=2) + 0.3 * rng.random((T, T)),
            "tied": rng.integers(0, 4, (T, T)).astype(float),
        }[kind]
        padded = padded_costs(costs, rng.random(T))
        one = np.concatenate([[T], rng.permutation(T), [T]]).astype(np.intp)
        two, first = one.copy(), one.copy()
        improve_path(padded, None, one, 1e-9, True)
        improve_few(padded, two, 1e-9, SHORT_SEGMENT, LONG_SEGMENT)
        np.testing.assert_array_equal(one, two)
        assert T < 5 or not np.array_equal(one, first)
