"""Tests of standard laws against scipy.stats."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from retrace_sde.process.tails import kurtosis_test


@pytest.mark.parametrize(("seed", "freedom"), [(0, 4), (1, 30), (2, 1000)])
def test_kurtosis_is_tested_as_scipy_does(seed, freedom):
    z = np.random.default_rng(seed).standard_t(freedom, 150)
    want = stats.kurtosis(z), stats.kurtosistest(z, alternative="greater").pvalue
    np.testing.assert_allclose(kurtosis_test(z), want, rtol=1e-10)
