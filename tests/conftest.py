"""All tests run the linear algebra on one thread: small matrices, and often a busy machine."""

from __future__ import annotations

import shutil
import signal
import sys

import pytest

from retrace_sde.io.untrusted import trial
from retrace_sde.panel.blocks import one_blas_thread
from retrace_sde.search.models.hidden import HiddenModel


@pytest.fixture(scope="session")
def heeding():
    """To be run in a new process: heed the signals that a background job is started to ignore."""

    def heed() -> None:
        for each in (signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)

    return heed


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, headless, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no Chromium on the PATH: install Debian's package chromium")
    with playwright.sync_playwright() as driver:
        # Chromium's own sandbox needs rights that containers do not give; the page is ours.
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def shortened():
    """Makes fits that average over orders as short as can be, for tests of none of this: the same code runs, four times less of it.

    Few rounds before directions are compared, one other start, and no second, longer sampling.
    """

    def shorten(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(HiddenModel, "effort", HiddenModel.effort._replace(warm=6))
        patch.setattr("retrace_sde.evidence.direction.marginal_test.RESTARTS", 1)
        patch.setattr("retrace_sde.search.gibbs.MAX_OWN_STAGES", 1)

    return shorten


@pytest.fixture
def brief(monkeypatch, shortened):
    """Fits that average over orders, at their shortest, in one test."""
    shortened(monkeypatch)


@pytest.fixture(autouse=True, scope="session")
def calm_blas():
    with one_blas_thread():
        yield


@pytest.fixture(autouse=True)
def forked_readers(monkeypatch):
    """Files are read by a fork of the test's process, though runners of tests have threads: a new interpreter takes a second each time.

    tests/io/test_untrusted.py reads by both.
    """
    if sys.platform == "linux":
        monkeypatch.setattr(trial, "forkable", lambda: True)
