"""Variables that are known to grow settle the direction, and data that contradict them are told."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main


def growing(n=25, T=10, *, slope=0.4, seed=0):
    """Steady growth beside a stationary variable: its reverse is steady decline, as likely a process."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(0, 3, (n, 1)) + np.cumsum(slope + 0.3 * rng.standard_normal((n, T)), axis=1)
    rest = [rng.standard_normal(n)]
    for _ in range(T - 1):
        rest.append(0.7 * rest[-1] + 0.7 * rng.standard_normal(n))
    return np.stack([weight, np.stack(rest, axis=1)], axis=2)


def fitted(X, truth_seed=3, **known):
    shuffled, truth = rt.simulate.shuffle(X, random_state=truth_seed)
    model = rt.ReTrace(random_state=0).fit(shuffled, knowledge=rt.Knowledge(**known))
    return model, rt.metrics.kendall_tau(truth, model.order_)


@pytest.mark.parametrize(("known", "sign"), [({"increasing": 0}, 1), ({"decreasing": "x0"}, -1)])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_a_variable_that_grows_settles_the_direction(known, sign):
    model, tau = fitted(growing(), **known)
    assert model.direction_.known
    assert sign * tau > 0.9
    assert any("determine the direction" in each for each in model.result_.notes)


def test_a_variable_that_does_not_grow_settles_nothing():
    with pytest.warns(rt.ReTraceWarning, match="do not determine the direction"):
        model, _ = fitted(growing(), increasing="x1")
    assert not model.direction_.known


def test_data_that_contradict_are_told():
    sde = rt.LinearSDE(-0.5 * np.eye(2), 0.1 * np.eye(2))
    X = sde.simulate(40, 10, 0.3, x0=np.full((40, 2), 5.0), random_state=0)  # it falls
    with pytest.warns(rt.ReTraceWarning, match="The data alone fit the reverse better"):
        model, tau = fitted(X, increasing="x0")
    assert tau < -0.9
    assert "check that knowledge" in model.direction_.verdict


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"increasing": "wait"}, "the variables are"),
        ({"increasing": 7}, "run from 0 to 1"),
        ({"increasing": 0, "decreasing": 0}, "drop one"),
        ({"increasing": 0, "share": 0.4}, "share must be"),
    ],
)
def test_what_cannot_be_used_is_refused(known, words):
    with pytest.raises(ValueError, match=words):
        rt.ReTrace().fit(growing(), knowledge=rt.Knowledge(**known))


def test_the_command_takes_names(tmp_path):
    X, truth = rt.simulate.shuffle(growing(), random_state=3)
    n, T, _ = X.shape
    pd.DataFrame(
        {
            "calf": np.repeat(np.arange(n), T),
            "batch": np.tile(list("abcdefghij"), n),
            "weight": X[..., 0].ravel(),
            "heart": X[..., 1].ravel(),
        }
    ).to_csv(tmp_path / "calves.csv", index=False)
    words = ["fit", tmp_path / "calves.csv", "--subject", "calf", "--slice", "batch"]
    words += ["--increasing", "weight", "--out", tmp_path / "out", "--json"]
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["order"] == ["abcdefghij"[k] for k in truth]
