"""The direction of data that are in order: called where it shows, in either direction, and refused where it means nothing."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.linalg import expm

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.estimator.in_order import correlation_time, in_order, split
from retrace_sde.evidence.closed_form.reversibility import irreversibility_p
from retrace_sde.evidence.direction.arrow import Arrow
from retrace_sde.evidence.direction.verdict import Reason


def relaxing(n=30, T=14, *, times=None, seed=0):
    """From near 0 to 3, with exact steps over any gaps."""
    rng = np.random.default_rng(seed)
    gaps = np.ones(T - 1) if times is None else np.diff(times)
    x = [0.2 * rng.standard_normal((n, 2))]
    for gap in gaps:
        F = np.exp(-0.2 * gap)
        x.append(3 + F * (x[-1] - 3) + 0.4 * np.sqrt(1 - F**2) * rng.standard_normal((n, 2)))
    return np.stack(x, axis=1)


def table(X, times):
    n, T, d = X.shape
    times = np.broadcast_to(times, (n, T))
    columns = {f"x{k}": X[..., k].ravel() for k in range(d)}
    return pd.DataFrame({"who": np.repeat(np.arange(n), T), "day": times.ravel(), **columns})


def test_a_transient_runs_forwards_and_its_mirror_image_backwards():
    X = relaxing()
    one, two = rt.arrow_of_time(X), rt.arrow_of_time(X[:, ::-1])
    assert (one.direction, two.direction) == (Arrow.FORWARDS, Arrow.BACKWARDS)
    assert isinstance(one, rt.DirectionTest)
    assert one.log_likelihood_ratio > 0 > two.log_likelihood_ratio
    assert np.isclose(one.log_likelihood_ratio, -two.log_likelihood_ratio)
    assert one.assumptions == two.assumptions
    assert one.reversibility_p < 0.01
    assert one.verdict.startswith("Time runs forwards")
    assert two.verdict.startswith("Time runs backwards")


def test_an_order_that_looks_folded_is_not_questioned():
    """One variable that rises and falls: given the order, there is nothing to unfold."""
    rng = np.random.default_rng(0)
    x, found = np.zeros((40, 2)), []
    for _ in range(14):
        found.append(x[:, 0])
        step = np.stack([0.5 * x[:, 1] - 0.1 * x[:, 0], 0.3 * (1 - x[:, 0]) - 0.5 * x[:, 1]], 1)
        x = x + step + 0.05 * rng.standard_normal((40, 2))
    test = rt.arrow_of_time(np.stack(found, axis=1)[..., None])
    assert test.reason is not Reason.FOLD


@pytest.mark.parametrize("own", [False, True])
def test_irregular_times(own):
    rng = np.random.default_rng(1)
    if own:
        each = [np.cumsum(rng.exponential(1.0, 10)) for _ in range(30)]
        X = np.concatenate([relaxing(1, 10, times=t, seed=k) for k, t in enumerate(each)])
        times = np.stack(each)
    else:
        times = np.cumsum(rng.exponential(1.0, 10))
        X = relaxing(30, 10, times=times)
    shuffled = table(X, times).sample(frac=1, random_state=0)
    assert rt.arrow_of_time(shuffled, subject="who", time="day").direction == "forwards"
    shuffled["day"] = -shuffled["day"]
    assert rt.arrow_of_time(shuffled, subject="who", time="day").direction == "backwards"


def test_at_rest_with_unequal_gaps_nothing_is_called():
    """Gaps that grow, of which Euler's steps know only the lengths."""
    times = np.cumsum(1.3 ** np.arange(10))
    A, S = np.array([[-0.5, 0.2], [0.2, -0.4]]), np.eye(2)
    called = []
    for seed in range(8):
        rng = np.random.default_rng([seed, 5])
        x = [rng.standard_normal((30, 2))]
        for gap in np.diff(times):
            F = expm(A * gap)
            x.append(
                x[-1] @ F.T + rng.standard_normal((30, 2)) @ np.linalg.cholesky(S - F @ S @ F.T).T
            )
        called.append(rt.arrow_of_time(np.stack(x, 1), times=times).identified)
    assert sum(called) <= 1


def test_rows_of_a_grid_that_are_missing_are_missing_values():
    X = relaxing(20, 8)
    stamps = np.tile(np.arange(8.0), (20, 1))
    kept = np.random.default_rng(0).random((20, 8)) > 0.2
    rows = table(X, stamps)[kept.ravel()]
    panel = rt.Panel.from_frame(rows, subject="who", time="day")
    found = in_order(np.asarray(panel.values), panel.times, panel.lengths, 1.0)
    assert found.aligned
    assert found.gaps.equal
    assert np.array_equal(np.isnan(found.values).any(axis=2), ~kept)
    assert np.array_equal(found.values[kept], X[kept])


def test_one_long_series_is_split_into_blocks_that_lie_apart():
    rng = np.random.default_rng(0)
    y = np.zeros(2000)
    for t in range(1999):
        y[t + 1] = 0.8 * y[t] + rng.standard_normal()
    tau = correlation_time(y[:, None])
    assert 0.7 * 4.5 < tau < 1.3 * 4.5  # (1 + φ) / (2 (1 − φ))
    blocks, _, length, apart = split(y[None, :, None], None)
    assert np.array_equal(blocks[1, :, 0], y[length + apart :][:length])
    assert rt.arrow_of_time(y).direction == "open"


def test_a_chaotic_series_has_an_arrow():
    rng, x = np.random.default_rng(0), [0.3]
    for _ in range(600):
        x.append(float(np.clip(3.9 * x[-1] * (1 - x[-1]) + 1e-3 * rng.standard_normal(), 0.01, 1)))
    found = rt.arrow_of_time(x)
    assert found.direction == "forwards"
    assert found.preferred.name == "quadratic drift"
    assert any("stationary" in each for each in found.assumptions)
    assert rt.arrow_of_time(x[::-1]).direction == "backwards"


def test_a_rotation_is_irreversible_but_has_no_direction():
    A = np.array([[-1.0, 2.0], [-2.0, -1.0]])
    sde = rt.LinearSDE(A, np.eye(2))
    found = rt.arrow_of_time(sde.simulate(60, 20, 0.1, x0="stationary", random_state=2), dt=0.1)
    assert found.direction == "open"
    assert found.reversibility_p < 0.01
    assert "differ from their time reverse" in found.verdict
    rate = found.entropy_production
    assert rate.low < sde.entropy_production() < rate.high
    assert found.advice


@pytest.mark.parametrize("seed", range(3))
def test_one_period_of_a_closed_course_has_no_direction(seed):
    """As a stride, whose size and phase subjects differ in: what one drift says of it is that of where it was cut."""
    rng = np.random.default_rng(seed)
    n, T = 40, 20
    angle = 2 * np.pi * np.arange(T) / T + 0.05 * rng.standard_normal((n, 1))
    waves = [np.cos(angle), 0.7 * np.sin(angle) + 0.4 * np.cos(2 * angle)]
    levels, sizes = 0.1 * rng.standard_normal((n, 1, 2)), 0.2 * rng.standard_normal((n, 1, 2))
    X = levels + np.exp(sizes) * np.stack(waves, axis=2) + 0.1 * rng.standard_normal((n, T, 2))
    for each in (X, X[:, ::-1]):
        found = rt.arrow_of_time(each)
        assert found.direction is Arrow.OPEN
        assert found.reason is Reason.CYCLE
        assert "closed loop" in found.verdict
        assert "starts" not in found.verdict  # the order was given


def test_entropy_production_near_detailed_balance_has_an_upper_bound_only():
    sde = rt.LinearSDE(np.diag([-1.0, -1.5]), np.eye(2))
    x = sde.simulate(60, 20, 0.1, x0="stationary", random_state=3)
    rate = rt.arrow_of_time(x, dt=0.1).entropy_production
    assert rate.p_value > 0.05
    assert rate.low == 0
    assert rate.rate < rate.high < 1  # the log's delta method gives limits of many powers of ten
    assert "not significantly above zero" in str(rate)
    assert "95 % interval" not in str(rate)


def test_random_reversal_keeps_its_level_and_ignores_what_is_missing():
    rng = np.random.default_rng(0)
    p = []
    for _ in range(60):
        x = rng.standard_normal((20, 9, 2))
        x = x[:, 1:] + x[:, :-1]  # a moving average is reversible
        there = rng.random((20, 8)) > 0.2
        there[:, :2] = True
        p.append(irreversibility_p(np.where(there[..., None], x, np.nan), there, rng))
    assert np.mean(np.array(p) <= 0.1) < 0.2
    assert irreversibility_p(rng.standard_normal((5, 8, 2)), np.ones((5, 8), bool), rng) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"X": np.zeros((3, 5))}, "more variables than times"),
        ({"X": np.zeros((3, 5, 2)), "subject": "who"}, "name columns of a table"),
        ({"X": np.zeros((2, 3, 4, 5))}, "must be"),
        ({"X": table(relaxing(9, 6), np.zeros(6)), "subject": "who", "time": "day"}, "same time"),
        ({"X": table(relaxing(9, 6), np.arange(6.0)), "subject": "who", "times": [1]}, "for arrays"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_words(given, words):
    with pytest.raises(ValueError, match=words):
        rt.arrow_of_time(given.pop("X"), **given)


@pytest.mark.parametrize("name", ["pseudotime", "dpt", "dpt_pseudotime", "slingPseudotime_1"])
def test_a_pseudotime_is_refused(name):
    rows = table(relaxing(9, 6), np.arange(6.0)).rename(columns={"day": name})
    with pytest.raises(ValueError, match="looks like a pseudotime"):
        rt.arrow_of_time(rows, subject="who", time=name)
    named = rows.rename(columns={name: "depth"})  # "dpt" is a word, not a part of one
    assert rt.arrow_of_time(named, subject="who", time="depth").direction in set(Arrow)


def test_an_order_that_a_variable_may_have_sorted_is_an_assumption():
    X = np.sort(relaxing(30, 10), axis=1)
    found = rt.arrow_of_time(X)
    assert found.sorted_by == "x0"
    assert not found.identified or any("sorted by 'x0'" in each for each in found.assumptions)


def test_too_short_a_series_says_how_long_it_must_be():
    found = rt.arrow_of_time(np.random.default_rng(0).standard_normal(60))
    assert found.reason is Reason.TOO_FEW
    assert "at least" in found.advice[0]


def run(*words, code=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found.output


def test_the_command(tmp_path):
    table(relaxing(), np.arange(14.0)).to_csv(tmp_path / "visits.csv", index=False)
    file = tmp_path / "visits.csv"
    answer = json.loads(run("arrow", file, "--subject", "who", "--time", "day", "--json"))
    assert answer["direction"] == "forwards"
    assert answer["assumptions"]
    noise = np.random.default_rng(0).standard_normal(400)
    pd.DataFrame({"day": np.arange(400), "level": noise}).to_csv(
        tmp_path / "series.csv", index=False
    )
    said = run("arrow", tmp_path / "series.csv", "--time", "day")
    assert "open" in said
    assert "blocks" in said
    assert "--time" in run("arrow", file, "--subject", "who", "--slice", "day", code=2)


@pytest.mark.parametrize("plates", [0.0, 1.0])
def test_independence_is_assumed_given_what_is_common_where_something_is(plates):
    """As a fit of the same data says: plates were found, and taken out."""
    rng = np.random.default_rng(0)
    found = rt.arrow_of_time(relaxing() + plates * rng.standard_normal((1, 14, 2)))
    (independent,) = [each for each in found.assumptions if "independent" in each]
    assert ("common to a slice" in independent) == (plates > 0)
