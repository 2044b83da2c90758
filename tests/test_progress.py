"""Progress: what is told, that telling changes nothing, and that a stop ends cleanly."""

from __future__ import annotations

import io
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import retrace_sde as rt
from retrace_sde import progress
from retrace_sde.cli.main import main
from retrace_sde.io.formats import frame_of_array
from retrace_sde.progress import Progress, bar, report, reporting, steps, told
from retrace_sde.search import mcem
from retrace_sde.show.verdicts import verdicts


@pytest.fixture(scope="module")
def shuffled():
    sde = rt.simulate.random_irreversible_sde(3, setting="stable", random_state=0)
    X = sde.simulate(40, 12, dt=0.05, x0=0.5, random_state=1)
    return rt.simulate.shuffle(X, random_state=2)[0]


def test_loops_within_loops_make_one_bar_that_never_runs_back():
    seen = []
    with reporting(seen.append):
        for _ in steps(range(3), "outer"):
            for _ in steps(range(4), "inner"):
                progress._listening.get().told = 0.0  # however often: tell every time
    assert {each.doing for each in seen} == {"outer"}
    shares = [each.fraction for each in seen]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(11 / 12)


def test_a_fit_tells_its_steps_and_is_the_same_fit(shuffled):
    seen = []
    told = rt.ReTrace(dt=0.05, random_state=0).fit(shuffled, progress=seen.append)
    silent = rt.ReTrace(dt=0.05, random_state=0).fit(shuffled)
    np.testing.assert_array_equal(told.order_, silent.order_)
    np.testing.assert_array_equal(told.drift_, silent.drift_)
    doing = [each.doing for each in seen]
    assert doing[0] == "preparing"
    assert {"searching for the order", "testing the direction of time"} <= set(doing)
    assert all(each.fraction is None or 0 <= each.fraction <= 1 for each in seen)
    assert [each.elapsed for each in seen] == sorted(each.elapsed for each in seen)


def test_stop_iteration_returns_what_is_there_and_says_so(shuffled):
    def stop(step):
        if step.fraction is not None:
            raise StopIteration

    model = rt.ReTrace(dt=0.05, random_state=0)
    with pytest.warns(rt.ReTraceWarning, match="Stopped on request"):
        model.fit(shuffled, progress=stop)
    assert sorted(model.order_) == list(range(12))
    assert np.isfinite(model.drift_).all()
    assert not model.converged_
    assert any("Stopped on request" in note for note in model.result_.notes)


def test_a_fit_that_was_stopped_calls_no_direction(shuffled):
    """The whole fit calls it; stopped at any step before the residuals, it does not, and says why."""
    assert rt.ReTrace(dt=0.05, random_state=0).fit(shuffled).direction_.identified
    doing = "searching for the order", "testing the direction of time"
    for stage in doing:

        def stop(step, stage=stage):
            if step.doing == stage:
                raise StopIteration

        model = rt.ReTrace(dt=0.05, random_state=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", rt.ReTraceWarning)
            model.fit(shuffled, progress=stop)
        cut = any("Stopped on request" in str(each.message) for each in caught)
        assert model.direction_.identified is not cut
        if cut:
            assert "was stopped" in model.summary()
            assert model.direction_.p_value is None
            assert model.alternative_ is not None
            said = " ".join(each.answer for each in verdicts(model, rt.Panel.from_array(shuffled)))
            assert "It was not tested to the end" in said
        assert cut or stage != doing[0]


def test_what_is_known_stands_though_a_fit_was_stopped(shuffled):
    def stop(step):
        raise StopIteration

    with pytest.warns(rt.ReTraceWarning, match="Stopped on request"):
        model = rt.ReTrace(dt=0.05, random_state=0).fit(
            shuffled, knowledge=rt.Knowledge(first=0), progress=stop
        )
    assert model.direction_.known
    assert model.result_.stopped
    said = [
        line for each in verdicts(model, rt.Panel.from_array(shuffled)) for line in each.sentences
    ]
    assert "Fit again and let it finish: this fit was stopped." in said
    assert not any("max_iter" in line for line in said)
    assert "stopped on request" in model.summary()


@pytest.mark.usefixtures("brief")
def test_own_orders_stop_too():
    sde = rt.simulate.random_irreversible_sde(2, setting="stable", random_state=0)
    X = sde.simulate(15, 6, dt=0.05, x0=0.5, random_state=1)
    X = rt.simulate.shuffle(X, permutation="independent", random_state=2)[0]

    def stop(step):
        if step.fraction is not None:
            raise StopIteration

    model = rt.ReTrace(dt=0.05, permutation="independent", estimator="mcem", random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, progress=stop)
    said = [str(each.message) for each in caught]
    assert any("averaging over orders ended early" in each for each in said)
    assert not any("inf" in each for each in said)
    assert np.isfinite(model.drift_).all()


def test_any_other_exception_ends_the_fit_and_leaves_the_former_result(shuffled):
    model = rt.ReTrace(dt=0.05, random_state=0).fit(shuffled)
    before = model.result_

    def fail(step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model.fit(shuffled + 1, progress=fail)
    assert model.result_ is before
    model.fit(shuffled)  # and nobody listens any more


def test_bootstrap_returns_the_replicates_it_had(shuffled):
    model = rt.ReTrace(dt=0.05, estimator="exact", random_state=0, n_jobs=1).fit(shuffled)
    seen = []

    def stop(step):
        seen.append(step)
        raise StopIteration

    with reporting(stop):
        errors = model.bootstrap_errors(draws=50)
    assert np.isfinite(errors.drift).all()
    assert seen[0].doing == "resampling subjects"


def test_recover_passes_it_on(shuffled):
    frame = frame_of_array(shuffled)
    seen = []
    rt.recover(frame, subject="subject", slice="slice", random_state=0, progress=seen.append)
    assert len({each.doing for each in seen}) >= 3


@pytest.mark.parametrize("stream", ["none", "written only", "closed"])
def test_a_standard_stream_that_a_program_replaced_is_no_terminal(stream, monkeypatch):
    class Written:
        def write(self, text): ...
        def flush(self): ...

    replaced = {"none": None, "written only": Written(), "closed": io.StringIO()}[stream]
    if stream == "closed":
        replaced.close()
    monkeypatch.setattr("sys.stderr", replaced)
    with rt.progress.bar(shown=False) as callback:
        assert callable(callback)


def test_the_first_interrupt_asks_the_second_ends():
    console = Console(file=io.StringIO())
    before = signal.getsignal(signal.SIGINT)
    with bar(console=console) as tell, reporting(tell):
        with pytest.raises(KeyboardInterrupt):  # nothing has begun: nothing is lost
            signal.raise_signal(signal.SIGINT)
        done = []
        for k in steps(range(10), "counting"):
            progress._listening.get().told = 0.0
            done.append(k)
            if k == 3:
                signal.raise_signal(signal.SIGINT)
        assert done == [0, 1, 2, 3, 4]  # told once more, and then no more
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_how_long_it_takes_is_said_in_words():
    assert told(Progress("x", None, 5.0, None)) == ""
    assert told(Progress("x", 0.5, 5.0, 5.2)) == "about 5 s left"
    assert told(Progress("x", 0.1, 60.0, 540.0)) == "about 9 min left"


def test_nobody_listening_costs_nothing_and_hears_nothing():
    report("anything", 0.5)
    assert list(steps(iter("abc"), "x")) == ["a", "b", "c"]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_on_the_command_line_writes_what_there_is_or_ends(times, tmp_path, monkeypatch):
    sde = rt.simulate.random_irreversible_sde(2, setting="stable", random_state=0)
    X = sde.simulate(15, 6, dt=0.05, x0=0.5, random_state=1)
    X = rt.simulate.shuffle(X, permutation="independent", random_state=2)[0]
    frame = frame_of_array(X).drop(columns="slice")
    frame.to_csv(tmp_path / "t.csv", index=False)
    ask, pressed = mcem.report, []

    def press(doing, fraction):
        ask(doing, fraction)
        if len(pressed) < times:
            pressed.append(1)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(mcem, "report", press)
    command = ["fit", str(tmp_path / "t.csv"), "--subject", "subject", "--estimator", "mcem"]
    said = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out")])
    if times == 1:
        assert said.exit_code == 0, said.output
        assert "averaging over orders ended early" in said.output
        assert (tmp_path / "out" / "ordered.csv").exists()
    else:
        assert said.exit_code == 130
        assert "retrace: stopped." in said.output
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_one_line_says_that_something_is_compiled_where_someone_looks_on(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(progress, "_said", threading.Event())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    for _ in range(2):
        with progress.reporting(None):
            numba.njit(lambda x: x + 1)(1.0)
    assert capsys.readouterr().err == (progress.COMPILING + "\n" if terminal else "")


def test_it_is_said_where_the_first_kernel_is_what_imports_numba(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(progress, "_said", threading.Event())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.reporting(None):
        pass  # nothing is compiled, and nobody listens any more
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "numba")
        begun = progress.reporting(None)
        begun.__enter__()
    progress.telling_what_is_compiled()
    numba.njit(lambda x: x + 2)(1.0)
    begun.__exit__(None, None, None)
    assert capsys.readouterr().err == progress.COMPILING + "\n"
