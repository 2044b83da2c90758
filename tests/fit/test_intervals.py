"""Intervals are Student's: exact for Gaussian means of few, the normal law's for many."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from retrace_sde.fit.intervals import critical, half_widths


@pytest.mark.parametrize("n", [2, 3, 5, 30])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_means_of_few_are_covered_as_often_as_promised(n, level):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((20_000, n))
    inside = np.abs(x.mean(axis=1)) < half_widths(x.std(axis=1, ddof=1) / n**0.5, n, level)
    assert abs(inside.mean() - level) < 4 * (level * (1 - level) / len(x)) ** 0.5


def test_many_and_one_have_the_normal_quantile():
    assert critical() == pytest.approx(1.959964, abs=1e-6)
    assert critical(10**9) == pytest.approx(critical(), abs=1e-6)
    assert critical(1) == critical(0) == critical()


def test_every_error_has_its_width_and_none_stays_none():
    np.testing.assert_allclose(
        half_widths([[1.0, 2.0], [0.0, np.nan]], 10),
        stats.t.ppf(0.975, 9) * np.array([[1, 2], [0, np.nan]]),
    )
