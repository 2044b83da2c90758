"""Segments of known order, in lost order and with unknown gaps: put in order, and the SDE fitted along them."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.search.segments import _best_path, _searched_path

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
    with pytest.raises(ValueError, match="shared"):
        rt.ReTrace(dt=DT, permutation="independent").fit(X, knowledge=rt.Knowledge(segments=segments))  # fmt: skip


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
    assert _searched_path(costs, start, before) == list(best)
