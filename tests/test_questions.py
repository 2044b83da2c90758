"""Every question of docs/questions.md has a call that answers it: each is made, on data of which the answer is known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "questions.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the docs are in the repository only")

N, T, DT = 40, 8, 0.3
rng = np.random.default_rng(0)
SDE = rt.LinearSDE([[-1.0, 0.8, 0.0], [0.0, -1.0, 0.5], [0.0, 0.0, -0.7]], 0.1 * np.eye(3))
X = SDE.simulate(N, T, DT, x0=2 + 0.3 * rng.standard_normal((N, 3)), random_state=1)
LABELS = rng.permutation(list("ABCDEFGH"))
TABLE = pd.DataFrame(
    {
        "patient": np.repeat([f"p{j}" for j in range(N)], T),
        "visit": np.tile(LABELS, N),
        "day": np.tile(DT * np.arange(T), N),
        **{f"x{i}": X[..., i].ravel() for i in range(3)},
    }
).sample(frac=1, random_state=2, ignore_index=True)
LOST = TABLE.drop(columns="day")
VARIABLES = ["x0", "x1", "x2"]


def retrace(*arguments):
    run = CliRunner().invoke(main, [str(each) for each in arguments])
    assert run.exit_code == 0, (run.output, run.exception)
    return run.stdout


def in_time(labels):
    return list(labels) == list(LABELS)


def no_dates(folder):
    found = rt.recover(LOST, subject="patient", variables=VARIABLES, dt=DT, random_state=0).ordered
    days = found.merge(TABLE, on=["patient", "visit"])
    tau = [own["position"].corr(own["day"], "kendall") for _, own in days.groupby("patient")]
    assert np.mean(tau) > 0.8


def no_order(folder):
    found = rt.recover(LOST, subject="patient", slice="visit", dt=DT, random_state=0)
    assert in_time(found.parameters["order"])


def one_series(folder):
    """Twenty variables of one machine, its first record known."""
    machine = rt.simulate.random_irreversible_sde(20, setting="stable", random_state=1)
    series = machine.simulate(1, 80, 0.05, x0="stationary", random_state=2)[0]
    lost, truth = rt.simulate.shuffle(series[None], random_state=3)
    known = rt.Knowledge(first=int(truth[0]))
    with pytest.warns(rt.ReTraceWarning, match="one trajectory"):
        model = rt.ReTrace(dt=0.05, random_state=0).fit(lost, knowledge=known)
    assert rt.metrics.order_accuracy(truth, model.order_) > 0.9


def direction(folder):
    LOST.to_csv(folder / "t.csv", index=False)
    said = retrace("diagnose", folder / "t.csv", "--subject", "patient", "--slice", "visit")
    assert "a transient, which is what can reveal the direction of time" in said
    assert "identified" in rt.ReTrace(dt=DT, random_state=0).fit(X).direction_.verdict


def wrong_stamps(folder):
    stamped = TABLE.copy()
    stamped.loc[stamped.index[5], "day"] += 100
    found = rt.audit_times(stamped, subject="patient", time="day")
    assert found.table.probability_wrong.max() > 0.9
    stamped.to_csv(folder / "t.csv", index=False)
    words = "--subject", "patient", "--time", "day", "--out", folder / "o.csv"
    retrace("audit", folder / "t.csv", *words)


def without_dates(folder):
    few = TABLE[TABLE.visit.isin(LABELS[:5])].drop(columns="visit")
    found = rt.audit_hidden(few, subject="patient", time="day", random_state=0)
    assert found.table.tau.mean() > 0.8
    few.to_csv(folder / "t.csv", index=False)
    words = "--subject", "patient", "--time", "day", "--hidden", "--out", folder / "o.csv"
    assert "give" in retrace("audit", folder / "t.csv", *words)


def who_came_first(folder):
    ranked = TABLE.rename(columns={"day": "rank"})
    half = ranked.patient.str[1:].astype(int) < N // 2
    found = rt.recover(
        ranked[half], subject="patient", order_known="rank", dt=DT, observation_noise=None, random_state=0
    )  # fmt: skip
    P = found.model.precedence(X[N // 2 :, :4])
    assert P[:, 0, 3].mean() > 0.9
    found.model.result_.save(folder / "result.npz")
    LOST[~half].drop(columns="visit").to_csv(folder / "t.csv", index=False)
    words = "--subject", "patient", "--fitted", folder / "result.npz", "--out", folder / "o.csv"
    assert "probability" in retrace("place", folder / "t.csv", *words)


def arrow(folder):
    test = rt.arrow_of_time(TABLE, subject="patient", time="day")
    assert test.identified
    TABLE.to_csv(folder / "t.csv", index=False)
    retrace("arrow", folder / "t.csv", "--subject", "patient", "--time", "day")


def order_known(folder):
    timed = rt.recover(TABLE, subject="patient", time="day", variables=VARIABLES, random_state=0)
    for A in (timed.model.drift_, rt.statespace.em(X, DT, noise="estimate").sde.drift):
        assert np.abs(A - SDE.drift).max() < 1.0


def order_known_in_part(folder):
    for known in (
        rt.Knowledge(first=0),
        rt.Knowledge(timestamps=DT * np.arange(T), timestamp_error=DT),
        rt.Knowledge(schedule=DT * np.arange(T), first=0),
    ):
        model = rt.ReTrace(dt=DT, random_state=0).fit(X, knowledge=known)
        assert list(model.order_) == list(range(T))
    LOST.to_csv(folder / "t.csv", index=False)
    roles = ("--subject", "patient", "--slice", "visit", "--first", LABELS[0])
    assert "known" in retrace("fit", folder / "t.csv", *roles, "--dt", DT, "--out", folder / "o")


def grows(folder):
    chance = np.random.default_rng(3)
    weight = chance.normal(40, 3, (N, 1)) + np.cumsum(0.4 + 0.3 * chance.standard_normal((N, T)), axis=1)  # fmt: skip
    table = pd.DataFrame({"calf": np.repeat(np.arange(N), T), "batch": np.tile(LABELS, N), "weight": weight.ravel(),
                          "heart": chance.normal(80, 1, N * T)})  # fmt: skip
    known = rt.Knowledge(increasing="weight")
    found = rt.recover(table, subject="calf", slice="batch", knowledge=known, random_state=0)
    assert in_time(found.parameters["order"])
    table.to_csv(folder / "t.csv", index=False)
    words = "--subject", "calf", "--slice", "batch", "--increasing", "weight", "--out", folder / "o"
    assert "grow" in retrace("fit", folder / "t.csv", *words)


def logs(folder):
    pieces = ["second"] * 4 + ["first"] * 4
    stored = X[:, [4, 5, 6, 7, 0, 1, 2, 3]]
    table = pd.DataFrame({"device": np.repeat(np.arange(N), T), "record": np.tile(np.arange(T), N), "log": np.tile(pieces, N),
                          **{name: stored[..., i].ravel() for i, name in enumerate(VARIABLES)}})  # fmt: skip
    known = rt.Knowledge(segments="log")
    found = rt.recover(table, subject="device", slice="record", knowledge=known, dt=DT, random_state=0)  # fmt: skip
    assert list(found.parameters["order"]) == [4, 5, 6, 7, 0, 1, 2, 3]
    table.to_csv(folder / "t.csv", index=False)
    words = "--subject", "device", "--slice", "record", "--segments", "log", "--dt", DT, "--out", folder / "o"  # fmt: skip
    retrace("fit", folder / "t.csv", *words)


def gaps(folder):
    uneven = X[:, [0, 1, 3, 4, 7]]  # of 1, 2, 1 and 3 steps
    found = rt.ReTrace(dt=7 * DT / 4, spacing="estimate", random_state=0).fit(uneven).gaps_
    assert found.argmin() in (0, 2)
    assert found.argmax() == 3


def noisy_and_missing(folder):
    Y = rt.simulate.add_noise(X, 0.2, random_state=3)
    Y[rng.random(Y.shape) < 0.1] = np.nan
    model = rt.ReTrace(dt=DT, observation_noise="auto", random_state=0).fit(Y)
    assert rt.metrics.kendall_tau(np.arange(T), model.order_) > 0.7
    assert np.abs(np.sqrt(np.diag(model.observation_noise_)) - 0.2).max() < 0.06


def treatment(folder):
    cohort = rt.tumour.simulate_cohort(60, steps=12, random_state=0)
    panel = rt.Panel.from_array(
        cohort.states, names=["volume"], covariates=cohort.covariates, dt=cohort.dt
    )
    effects = rt.treatment.TreatmentEffect(dt=cohort.dt, permutation="shared", random_state=0)
    _, high = effects.fit(panel).ate_interval(T0=[0, 0], T1=[5, 1], draws=30)
    assert high < 0
    table = pd.DataFrame(
        {
            "patient": np.repeat(np.arange(60), 13),
            "visit": np.tile(np.arange(13), 60),
            "volume": cohort.states.ravel(),
            "chemo": cohort.covariates[..., 0].ravel(),
            "radio": cohort.covariates[..., 1].ravel(),
        }
    )
    table.to_csv(folder / "t.csv", index=False)
    roles = ("--subject", "patient", "--slice", "visit", "--treatment", "chemo,radio")
    assert "volume" in retrace("effect", folder / "t.csv", *roles, "--dt", cohort.dt)


def acts_on(folder):
    graph = rt.effect_graph(rt.ReTrace(dt=DT, random_state=0).fit(X))
    assert {("x1", "x0")} <= {(each.cause, each.effect) for each in graph.edges}


def next_and_missing(folder):
    model = rt.ReTrace(dt=DT, random_state=0).fit(X)
    assert model.forecast(X, 2).mean.shape == (N, 2, 3)
    holes = X.copy()
    holes[0, 3, 1] = np.nan
    filled = rt.ReTrace(dt=DT, random_state=0).fit(holes).impute(holes)
    assert filled.low[0, 3, 1] < X[0, 3, 1] < filled.high[0, 3, 1]


def differ(folder):
    level = 3 * rng.standard_normal((60, 1, 3))
    apart = SDE.simulate(60, 20, 0.2, x0="stationary", random_state=4) + level
    model = rt.ReTrace(dt=0.2, random_state=0).fit(apart)
    assert model.subject_effects_.kind == "levels"


def too_large(folder):
    da = pytest.importorskip("dask.array")
    model = rt.ReTrace(dt=DT, random_state=0).fit(da.from_array(X, chunks=(10, T, 3)))
    assert list(model.order_) == list(range(T))


ANSWERS = {
    "My visits have no dates.": no_dates,
    "My plates, or visit codes, lost their order.": no_order,
    "I have one long series, and its order is lost.": one_series,
    "Is there a direction in my data at all?": direction,
    "Can the order be recovered once I delete the dates?": without_dates,
    "Which of my time stamps are wrong?": wrong_stamps,
    "Who came first, in subjects whose dates are lost?": who_came_first,
    "My data are in order: which way does time run in them?": arrow,
    "I know the order and want the SDE.": order_known,
    "I know the order in part": order_known_in_part,
    "One of my variables only grows": grows,
    "My device was reset: each log is in order, the logs are not.": logs,
    "The gaps are unequal and unknown.": gaps,
    "My measurements are noisy, and many are missing.": noisy_and_missing,
    "What would treatment have done?": treatment,
    "Which variable acts on which?": acts_on,
    "What comes next? What was missing?": next_and_missing,
    "My subjects differ.": differ,
    "My table is too large for memory.": too_large,
}


def test_every_question_is_asked_here():
    asked = re.findall(r"^\| \*\*(.+?)\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert asked == list(ANSWERS)


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
@pytest.mark.parametrize("question", ANSWERS)
def test_the_call_answers_it(question, tmp_path):
    ANSWERS[question](tmp_path)
