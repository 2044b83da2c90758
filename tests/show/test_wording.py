"""A sentence names a setting as the reader's interface does: an argument in Python, a flag in a command, a choice on the page."""

from __future__ import annotations

import html
import json
import re

import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.app.work import PYTHON_WORDS, _choice
from retrace_sde.cli.main import main
from retrace_sde.io.columns import read_times
from retrace_sde.io.formats import frame_of_array
from retrace_sde.io.tables import as_frame
from retrace_sde.show.report import _environment
from retrace_sde.show.wording import SETTING, in_words, reworded, speaking, worded

FLAGS = {"outliers", "time", "covariates", "common_shocks", "large"}


def flag(name, value):
    return f"--{name} {value or ''}".rstrip() if name in FLAGS else None


@pytest.mark.parametrize(
    ("said", "here"),
    [
        ("(outliers='keep' uses it)", "(--outliers keep uses it)"),
        ("outliers=None leaves them out", "--outliers None leaves them out"),
        ("known about time (time=).", "known about time (--time)."),
        ("as an input (covariates=['a', 'b c']).", "as an input (--covariates a,b c)."),
        ("order='likelihood' has no flag", "order='likelihood' has no flag"),
        ("allow it (large=True).", "allow it (--large True)."),
        ("time=5, dt = 1 and p = 0.05 are no settings", "time=5, dt = 1 and p = 0.05 are no settings"),
        ("see result_.suspects.", "see suspects.csv."),
    ],
)  # fmt: skip
def test_settings_get_the_names_of_the_interface(said, here):
    with speaking(in_words(flag, {})):
        assert worded(said) == here
    assert worded(said) == said  # in Python


def test_only_sentences_of_an_answer_are_reworded():
    answer = {"variables": ["time="], "notes": ["give time="], "deep": [{"verdict": "time="}]}
    with speaking(in_words(flag, {})):
        found = reworded(answer)
    assert found == {"variables": ["time="], "notes": ["give --time"], "deep": [{"verdict": "--time"}]}  # fmt: skip


def test_the_page_has_roles_and_names_the_rest_as_python_does():
    words = in_words(_choice, PYTHON_WORDS)
    assert words("known about time (time=)") == "known about time (the role time)"
    assert words("see result_.suspects") == "see suspects.csv"
    assert words("outliers='keep' uses it") == "outliers='keep' (in Python) uses it"
    assert words("slice 'dose='{'' of the table") == "slice 'dose='{'' of the table"


def test_a_page_that_was_compiled_for_one_reader_speaks_to_the_next():
    page = _environment().from_string("{{ 'outliers=None'|worded }}")
    assert page.render() == "outliers=None"
    with speaking(in_words(flag, {})):
        assert page.render() == "--outliers None"


@pytest.fixture(scope="module")
def table():
    """A decimal point lost in one cell."""
    X = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(
        30, 8, 0.1, x0=2.0, random_state=1
    )
    X[4, 3, 1] *= 1000
    return frame_of_array(X)


def settings_named(text):
    """Settings that a text writes as Python does."""
    return [found[0] for found in SETTING.finditer(text) if found[2] or found[3]]


def test_a_command_never_speaks_python(table, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["fit", "t.csv", "--subject", "subject", "--slice", "slice", "--dt", "0.1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ran = CliRunner().invoke(main, [*given, "--out", "o"])
        refused = CliRunner().invoke(
            main, [*given, "--estimator", "mcem", "--out", "p", "--subjects", "alike"]
        )
    assert ran.exit_code == 0, ran.output
    page = html.unescape((tmp_path / "o" / "report.html").read_text(encoding="utf-8"))
    page = re.sub(r"<(script|style|details).*?</\1>", "", page, flags=re.DOTALL)
    numbers = (tmp_path / "o" / "parameters.json").read_text(encoding="utf-8")
    for said in (ran.output, page, numbers):
        assert "--outliers keep uses what was given); see suspects.csv" in said
        assert settings_named(said) == []
        assert "result_." not in said
    assert refused.exit_code == 2
    assert settings_named(refused.output) == []
    assert "--estimator mcem averages over independent orders" in refused.output
    note = next(each for each in json.loads(numbers)["notes"] if "look" in each)
    saved = rt.ReTraceResult.load(tmp_path / "o" / "result.npz")  # read in Python, so in its words
    assert any(each.startswith(note[:20]) and "outliers='keep'" in each for each in saved.notes)


def test_a_forecast_names_the_command_that_has_the_setting(table, tmp_path):
    """`retrace forecast` looks for wrong values, but has no flag for them and lists none."""
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["t.csv", "--subject", "subject", "--slice", "slice", "--dt", "0.1", "--steps", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ran = CliRunner().invoke(main, ["forecast", *given])
    assert ran.exit_code == 0, ran.output
    assert settings_named(ran.output) == []
    assert (
        "(retrace fit --outliers keep uses what was given); `retrace fit` lists them in suspects.csv"
        in ran.output
    )


def test_python_never_speaks_in_flags(table):
    with pytest.warns(rt.ReTraceWarning, match="see result_.suspects"):
        found = rt.recover(table, subject="subject", slice="slice", dt=0.1, random_state=0)
    assert "outliers='keep'" in found.summary()
    assert "--" not in str(rt.diagnose(table, subject="subject", slice="slice"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--slice", "slice", "--first", "B9"], "--first names slice 'B9'; the table has"),
        (["--slice", "slice", "--position", "1=99"], "--position names position 99; positions run"),
        (["--slice", "slice", "--before", "1:2", "--before", "2:1"], "no order satisfies --before: slice '1'"),
        (["--slice", "slice", "--first", "1", "--position", "2=0"], "slices '2' (--position) and '1' (--first) cannot"),
        (["--slice", "slice", "--dt", "0"], "--dt must be a positive number"),
        (["--slice", "slice", "--estimator", "mcem"], "use --estimator mle and sample_orders() (in Python)"),
        (["--first", "zz"], "--first names column 'zz', which the table does not have"),
        (["--slice", "slice", "--schedule", "0,1"], "--schedule has 2 times, but there are 8 slices"),
        (["--slice", "slice", "--out", "o" * 300], "… cannot be the name of the results (File name too long): choose another with --out"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_option(table, tmp_path, given, said):
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ran = CliRunner().invoke(main, ["fit", "t.csv", "--subject", "subject", *given])
    assert ran.exit_code == 2
    assert said in ran.output


def test_a_refusal_of_an_effect_names_the_option(table, tmp_path):
    table.assign(dose=table.index % 2).to_csv(tmp_path / "t.csv", index=False)
    given = ["effect", "t.csv", "--subject", "subject", "--slice", "slice", "--treatment", "dose"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        tumour = CliRunner().invoke(main, [*given, "--drift", "tumour"])
        back = CliRunner().invoke(main, [*given, "--horizon", "-1"])
    assert "Invalid value for '--horizon': -1.0 is not in the range x>0" in back.output
    assert "--drift tumour describes one variable, a volume; got 3 variables" in tumour.output
    assert "keep the volume alone (--variables)" in tumour.output


def test_a_file_that_is_no_saved_fit_is_named_with_its_option(table, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["place", "t.csv", "--subject", "subject", "--fitted", "t.csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        ran = CliRunner().invoke(main, given)
    assert "--fitted: t.csv is damaged, or was not written by `retrace fit`: it is no npz file" in ran.output  # fmt: skip


def test_the_unit_of_dates_has_the_name_of_the_interface():
    days = pd.DataFrame({"who": [1, 1, 2, 2], "day": ["2024-01-01", "2024-01-03"] * 2})
    _, (said,) = read_times(as_frame(days), "day")
    assert "for another unit give time_unit=)" in said
    assert "time_unit= (in Python)" in in_words(_choice, PYTHON_WORDS)(said)
    with speaking(in_words(lambda name, value: "--time-unit" if name == "time_unit" else None, {})):
        assert "for another unit give --time-unit)" in worded(said)
