"""A report to be sent holds no subject's values or id; the ordinary one says on top what it holds."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io.formats import frame_of_array
from retrace_sde.show.verdicts import verdicts


def table(n, T=10, d=2, *, permutation="shared", x0=0.4):
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=0)
    X = sde.simulate(n, T, dt=0.05, x0=x0, random_state=1)
    X = rt.simulate.shuffle(X, permutation=permutation, random_state=2)[0]
    # Values that no rounding makes equal, so that each can be looked for in the page.
    frame = frame_of_array(100 + 10 * X)
    frame["subject"] = [f"Patient-{name}-Secret" for name in frame["subject"]]
    return frame if permutation == "shared" else frame.drop(columns="slice")


def embedded(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def series(tree):
    """Every list of numbers in a page's data, as sorted tuples: whatever order they are told in."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, list):
        return set()
    inner = {found for each in tree for found in series(each)}
    plain = tree and all(isinstance(each, float) for each in tree)
    return inner | ({tuple(sorted(tree))} if plain else set())


@pytest.fixture(scope="module")
def shared():
    frame = table(12)
    return frame, rt.recover(frame, subject="subject", slice="slice", random_state=0)


def written(found, tmp_path, **options):
    return found.report(tmp_path / "r.html", **options).read_text(encoding="utf-8")


def test_the_ordinary_report_says_on_top_what_it_holds(shared, tmp_path):
    page = written(shared[1], tmp_path)
    assert "values of 12 and ids of 12 of 12 subjects" in page
    assert page.index('id="contents"') < page.index('id="verdicts"')
    assert "Patient-3-Secret" in page


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("permutation", ["shared", "independent"])
def test_a_shared_report_holds_no_id_and_no_value(permutation, tmp_path):
    frame = table(12, permutation=permutation)
    slice_ = "slice" if permutation == "shared" else None
    found = rt.recover(frame, subject="subject", slice=slice_, random_state=0)
    found.model.sample_orders(draws=100)
    open_, closed = written(found, tmp_path), written(found, tmp_path, share=True)
    short = frame[["x0", "x1"]].map(lambda each: float(f"{each:.4g}"))
    people = short.groupby(frame["subject"])
    told = {tuple(sorted(each[name])) for _, each in people for name in ("x0", "x1")}
    assert len(told & series(embedded(open_))) == 24  # the test can find them
    assert not told & series(embedded(closed))
    assert len(embedded(closed)["paths"]["values"]) == (3 if slice_ else 0)
    assert "Secret" in open_
    assert "Secret" not in closed
    assert "SHA-256" not in closed
    assert "Made to be shared: summaries of 12 subjects" in closed


def test_means_are_the_tables_and_of_five_subjects_at_least(shared, tmp_path):
    frame, found = shared
    data = embedded(written(found, tmp_path, share=True))
    mean = frame.groupby("slice", sort=False)["x0"].mean().to_numpy()
    np.testing.assert_allclose(data["paths"]["values"][0][0], mean, rtol=1e-3)
    few = table(4)
    page = written(rt.recover(few, subject="subject", slice="slice"), tmp_path, share=True)
    assert series(embedded(page)["paths"]["values"]) == set()


def test_notes_that_quote_a_subject_stay_at_home(tmp_path):
    frame = table(8)
    frame.loc[frame["subject"] == "Patient-7-Secret", ["x0", "x1"]] = np.nan
    found = rt.recover(frame, subject="subject", slice="slice", random_state=0)
    assert "Patient-7-Secret" in written(found, tmp_path)
    assert "Secret" not in written(found, tmp_path, share=True)


def test_suspects_are_marked_and_listed_and_stay_at_home_where_shared(tmp_path):
    frame = table(12)
    frame.loc[37, "x1"] *= 30
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        found = rt.recover(frame, subject="subject", slice="slice", random_state=0)
    (suspect,) = found.model.result_.suspects
    page = written(found, tmp_path)
    marked = embedded(page)["paths"]["suspects"]
    assert marked[suspect.trajectory] == [[1, suspect.slice]]
    assert sum(map(len, marked)) == 1
    assert "Circles mark what is probably wrong" in page
    closed = written(found, tmp_path, share=True)
    assert "Secret" not in closed
    assert f"{frame.loc[37, 'x1']:.4g}" not in closed
    assert "1 entries look wrong" not in closed
    assert "1 entry looks wrong" in closed


def test_the_command_line_shares_the_report_and_says_what_it_does_not(tmp_path):
    table(12).to_csv(tmp_path / "Jane-Doe-Secret.csv", index=False)
    arguments = ["fit", str(tmp_path / "Jane-Doe-Secret.csv"), "--subject", "subject"]
    arguments += ["--slice", "slice", "--share", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 0, said.output
    assert "the other files do" in said.output
    assert "Secret" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_an_open_direction_never_stands_beside_everything():
    frame = table(30, x0="stationary")
    found = rt.recover(frame, subject="subject", slice="slice", random_state=0)
    assert not found.model.direction_.identified
    said = {each.question: each for each in verdicts(found.model, found.panel)}
    assert said["Which way does time run?"].answer.startswith("It cannot be known")
    rest = said["What else can these data tell?"]
    assert rest.standing == "mixed"
    assert rest.answer.endswith("for either direction of time")


def test_an_effect_that_shows_in_one_direction_is_not_said_to_show_in_either():
    """The direction is open beside plates; the drug's effect has an interval without zero in the true order, and with it in the reverse."""
    rng, n, T = np.random.default_rng(3), 24, 8
    x = 3 + 0.3 * rng.standard_normal((n, 3))
    A = np.array([[-0.6, 0.3, 0], [-0.2, -0.5, 0.1], [0, 0.2, -0.7]])
    drug, plates, rows = rng.random((n, T)) < 0.5, 0.5 * rng.standard_normal((T, 3)), []
    for t in range(T):
        rows += [(f"m{j}", f"P{(5 * t) % T}", *(x[j] + plates[t]), float(drug[j, t])) for j in range(n)]  # fmt: skip
        x = x + x @ A.T * 0.3 + 0.18 * drug[:, [t]] * [1, 0, 0] + 0.3 * rng.standard_normal((n, 3))
    frame = pd.DataFrame(rows, columns=["mouse", "plate", "a", "b", "c", "drug"])
    found = rt.recover(frame, subject="mouse", slice="plate", covariates=["drug"], random_state=0)
    assert not found.model.direction_.identified
    (said,) = [each for each in verdicts(found.model, found.panel) if "drug" in each.question]
    values = [way[0][:, 3] / way[1][:, 3] for way in found.model.result_._effects[1]]
    assert [bool((np.abs(each) > 2.1).any()) for each in values] in ([True, False], [False, True])
    assert said.answer == "drug: significant at 5 %, in one direction of time"
