"""Log-Cholesky coordinates of a covariance: there and back, and the gradient by central differences."""

import numpy as np
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime

from retrace_sde.fit.information import by_log_cholesky, from_log_cholesky, log_cholesky


def covariance(d, seed=0):
    G = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return G @ G.T


def test_every_vector_is_a_covariance_and_back():
    for d in (1, 2, 4):
        H = covariance(d)
        C = from_log_cholesky(log_cholesky(H), d)
        assert_allclose(C @ C.T, H, rtol=1e-12)
    C = from_log_cholesky(np.array([1e4, 0.0, -1e4]), 2)
    assert np.isfinite(C).all()
    assert (np.diag(C) > 0).all()


def test_the_gradient_is_that_of_the_coordinates():
    d, weights = 3, np.random.default_rng(1).standard_normal((3, 3))

    def value(entries):
        C = from_log_cholesky(entries, d)
        return float(np.sum(weights * (C @ C.T)))

    at = log_cholesky(covariance(d))
    found = by_log_cholesky(weights, from_log_cholesky(at, d))
    assert_allclose(found, approx_fprime(at, value, 1e-7), rtol=1e-5)
