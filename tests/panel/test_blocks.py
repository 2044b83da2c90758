"""What a fit borrows from the machine it gives back, also where fits overlap."""

from __future__ import annotations

import threading
import warnings

import numpy as np
from threadpoolctl import threadpool_info

from retrace_sde.panel.blocks import Data, one_blas_thread


def threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_threads_of_the_linear_algebra_are_restored_when_contexts_overlap():
    """The first to enter leaves first: the second must not take its limit for what there was before."""
    before = threads()
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def first():
        with one_blas_thread():
            entered.set()
            leave.wait(10)
        done.set()

    worker = threading.Thread(target=first)
    worker.start()
    entered.wait(10)
    with one_blas_thread():
        leave.set()
        done.wait(10)
        assert set(threads()) <= {1}
    worker.join()
    assert threads() == before


def test_no_warning_leaves_the_blocks_of_any_number_of_jobs():
    values = np.zeros((400, 10, 100))
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("error")
        for jobs in (1, 2):
            found = list(Data(values, n_jobs=jobs).map(lambda x, u: np.log(x).min()))
            assert np.all(np.isneginf(found))
