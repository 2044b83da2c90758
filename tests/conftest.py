"""All tests run the linear algebra on one thread: small matrices, and often a busy machine."""

from __future__ import annotations

import pytest

from retrace_sde.data.blocks import one_blas_thread


@pytest.fixture(autouse=True, scope="session")
def calm_blas():
    with one_blas_thread():
        yield
