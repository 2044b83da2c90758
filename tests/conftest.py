"""All tests run the linear algebra on one thread: small matrices, and often a busy machine."""

from __future__ import annotations

import signal

import pytest

from retrace_sde.data.blocks import one_blas_thread


@pytest.fixture(scope="session")
def heeding():
    """To be run in a new process: heed the signals that a background job is started to ignore."""

    def heed() -> None:
        for each in (signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)

    return heed


@pytest.fixture(autouse=True, scope="session")
def calm_blas():
    with one_blas_thread():
        yield
