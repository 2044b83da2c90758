"""Segments of known order, in lost order and with unknown gaps: put in order, and the SDE fitted along them."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.estimator.segments import _best_path, _searched_path, stitched, stitched_each
from retrace_sde.orders.prior import Prior
from retrace_sde.process.drift import Affine

LENGTH, DT = 6, 0.05


def cut(seed, *, n=30, S=5):
    """Segments of trajectories in shuffled order, and the place of each in time; gaps of 2 to 8 steps between them."""
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    begins = np.r_[0, np.cumsum(rng.integers(2, 9, size=S - 1) + LENGTH - 1)]
    slices = np.concatenate([begin + np.arange(LENGTH) for begin in begins])
    Y = sde.simulate(n, slices[-1] + 1, DT, scheme="exact", random_state=seed)[:, slices]
    place = rng.permutation(S)
    X = np.concatenate([Y[:, p * LENGTH : (p + 1) * LENGTH] for p in place], axis=1)
    return X, place, slices * DT, sde


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_segments_are_put_in_order_with_their_gaps(seed):
    X, place, times, sde = cut(seed)
    known = rt.Knowledge(segments=np.repeat(np.arange(5), LENGTH))
    model = rt.ReTrace(dt=DT, subjects="alike", random_state=0).fit(X, knowledge=known)
    truth = np.concatenate([s * LENGTH + np.arange(LENGTH) for s in np.argsort(place)])
    np.testing.assert_array_equal(model.order_, truth)
    assert model.direction_.known
    assert np.corrcoef(model.times_, times)[0, 1] > 0.99
    assert any("segments" in note for note in model.result_.notes)
    error = np.abs(model.drift_ - sde.drift) / model.standard_errors_.drift
    assert error.mean() < 2.5


def test_missing_values_lists_and_what_is_known_besides():
    X, place, _, _ = cut(4)
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    lists = [list(range(s * LENGTH, (s + 1) * LENGTH)) for s in range(5)]
    first = int(np.argmin(place) * LENGTH)
    known = rt.Knowledge(segments=lists, first=first)
    model = rt.ReTrace(dt=DT, subjects="alike", random_state=0).fit(X, knowledge=known)
    assert (place[model.order_[::LENGTH] // LENGTH] == np.arange(5)).all()
    wrong = rt.Knowledge(segments=lists, first=first, precedences=[((first + LENGTH) % 30, first)])
    with pytest.raises(ValueError, match="contradict"):
        rt.ReTrace(dt=DT).fit(X, knowledge=wrong)


def test_a_table_names_its_segments_by_labels(tmp_path):
    X, place, _, _ = cut(5)
    frame = pd.DataFrame(
        [(j, f"r{k}", *X[j, k]) for j in range(30) for k in range(X.shape[1])],
        columns=["device", "record", "x", "y", "z"],
    )
    lists = [[f"r{k}" for k in range(s * LENGTH, (s + 1) * LENGTH)] for s in range(5)]
    found = rt.recover(frame, subject="device", slice="record", dt=DT, observation_noise=None,
                       subjects="alike", knowledge=rt.Knowledge(segments=lists), random_state=0)  # fmt: skip
    begins = [int(str(found.panel.slices[k])[1:]) // LENGTH for k in found.model.order_[::LENGTH]]
    assert (place[begins] == np.arange(5)).all()
    frame["log"] = [int(name[1:]) // LENGTH for name in frame.record]
    frame.to_csv(tmp_path / "logs.csv", index=False)
    words = ["fit", str(tmp_path / "logs.csv"), "--subject", "device", "--slice", "record", "--dt", str(DT),
             "--observation-noise", "none", "--segments", "log", "--out", str(tmp_path / "out")]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "gaps between them are estimated" in done.output
    ordered = pd.read_csv(tmp_path / "out" / "ordered.csv").query("device == 0")
    assert (place[ordered.log.to_numpy()[::LENGTH]] == np.arange(5)).all()
    done = CliRunner().invoke(main, [*words[:-4], "--segments", "logs", "--force"])
    assert done.exit_code == 2
    assert "logs" in done.output


@pytest.mark.parametrize(
    ("segments", "said"),
    [([0, 0, 1], "30 slices and 3 labels"), ([[0, 1], [2]], "exactly one"), ([0] * 30, "one segment")],
)  # fmt: skip
def test_segments_that_are_none_are_refused(segments, said):
    X, _, _, _ = cut(6)
    with pytest.raises(ValueError, match=said):
        rt.ReTrace(dt=DT).fit(X, knowledge=rt.Knowledge(segments=segments))
    with pytest.raises(ValueError, match="own orders"):
        rt.ReTrace(dt=DT, permutation="independent").fit(X, knowledge=rt.Knowledge(segments=segments))  # fmt: skip


def own(seed, *, n=40, S=4, d=4):
    """Segments of six, each trajectory's in an order of its own; values, labels and the place of each segment in time (n, S)."""
    rng = np.random.default_rng(seed)
    sde = rt.LinearSDE(np.kron(np.eye(d // 2), [[0.0, 3.0], [-3.0, 0.0]]) - 0.4 * np.eye(d), np.eye(d))  # fmt: skip
    Y = sde.simulate(n, S * (LENGTH + 4), DT, x0=3 + rng.standard_normal((n, d)), random_state=seed)
    places = np.array([rng.permutation(S) for _ in range(n)])
    begins = np.cumsum(rng.integers(0, 4, (n, S)), axis=1) + LENGTH * np.arange(S)
    rows = [[begins[j, p] + np.arange(LENGTH) for p in places[j]] for j in range(n)]
    X = np.array([Y[j, np.concatenate(each)] for j, each in enumerate(rows)])
    return X, np.tile(np.repeat(np.arange(S), LENGTH), (n, 1)), places


def in_order(order, places):
    """The share of trajectories whose segments stand in time order."""
    firsts = np.take_along_axis(places, order[:, ::LENGTH] // LENGTH, axis=1)
    return np.mean((firsts == np.arange(places.shape[1])).all(axis=1))


@pytest.mark.usefixtures("brief")
def test_segments_of_own_orders(tmp_path):
    n = 12
    X, labels, places = own(1, n=n)
    model = rt.ReTrace(dt=DT, permutation="independent", subjects="alike", random_state=0)
    model.fit(X, knowledge=rt.Knowledge(segments=labels))
    assert in_order(model.order_, places) > 0.9
    assert (np.diff(model.order_.reshape(n, 4, LENGTH)) == 1).all()  # whole segments, as stored
    assert model.direction_.known
    first = {j: int(np.argmin(places[j]) * LENGTH) for j in range(n)}
    known = rt.Knowledge(segments=labels, first=first)
    assert in_order(model.fit(X, knowledge=known).order_, places) >= in_order(model.order_, places)
    frame = pd.DataFrame(X.reshape(-1, 4), columns=list("abcd"))
    frame = frame.assign(device=np.repeat(np.arange(n), 4 * LENGTH), log=labels.ravel())
    found = rt.recover(frame, subject="device", dt=DT, observation_noise=None, subjects="alike",
                       knowledge=rt.Knowledge(segments="log"), random_state=0)  # fmt: skip
    assert in_order(found.model.order_, places) > 0.9
    assert "log" not in found.panel.names


def some_missing(X, labels, rng):
    """A first or a last observation of half of the segments is missing."""
    X = X.copy()
    for j, s in np.ndindex(len(X), labels.max() + 1):
        rows, u = np.flatnonzero(labels[j] == s), rng.random()
        if u < 0.5:
            X[j, rows[0 if u < 0.2 else -1]] = np.nan
    return X


def test_ends_with_missing_values_are_no_cheaper_than_others():
    """Every segment's first observation counts once: .87 of 30 shared orders, .47 where joints with a missing end cost nothing; of own orders .88 for .73."""
    right = []
    for seed in range(10):
        X, place, _, _ = cut(seed, n=6)
        labels = np.tile(np.repeat(np.arange(5), LENGTH), (6, 1))
        gone = some_missing(X, labels, np.random.default_rng(seed))
        lists = [list(range(s * LENGTH, (s + 1) * LENGTH)) for s in range(5)]
        found = stitched(gone, lists, np.zeros((5, 5), dtype=bool), DT, Affine())
        right.append((place[found.segments] == np.arange(5)).all())
    assert np.mean(right) >= 0.7
    X, labels, places = own(0, n=12)
    gone = some_missing(X, labels, np.random.default_rng(0))
    each = [[list(np.flatnonzero(row == s)) for s in range(4)] for row in labels]
    joined = stitched_each(gone, each, [np.zeros((4, 4), dtype=bool)] * 12, DT, Affine())
    assert in_order(np.array([one.order for one in joined]), places) > 0.75


def test_the_best_path_is_that_of_brute_force():
    rng = np.random.default_rng(0)
    costs, start = rng.random((6, 6)), rng.random(6)
    before = np.zeros((6, 6), dtype=bool)
    before[4, 1] = True

    def cost(path):
        return start[path[0]] + sum(costs[a, b] for a, b in pairwise(path))

    allowed = [p for p in permutations(range(6)) if p.index(4) < p.index(1)]
    best = min(allowed, key=cost)
    assert _best_path(costs, start, before) == list(best)
    assert _searched_path(costs, start, Prior(None, before)) == list(best)
