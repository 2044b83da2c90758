"""What speaks for the drift: an offset that is there, one that is not, and a drift that is curved."""

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")


def recovered(X, **options):
    n, T, d = X.shape
    table = pd.DataFrame({f"x{k}": X[:, :, k].ravel() for k in range(d)})
    table["who"], table["visit"] = np.repeat(np.arange(n), T), np.tile(np.arange(T), n)
    return rt.recover(table, subject="who", slice="visit", dt=0.15, random_state=0, **options)


def panel(push, start, *, noise, seed=0, n=40, T=12):
    rng = np.random.default_rng(seed)
    path = [start + 0.3 * rng.standard_normal((n, 2))]
    for _ in range(T - 1):
        path.append(path[-1] + 0.15 * push(path[-1]) + noise * rng.standard_normal((n, 2)))
    return np.stack(path, axis=1)


def test_the_offset_is_judged_in_the_tables_own_units():
    A = np.array([[-1.0, 0.5], [-0.3, -1.2]])
    X = panel(lambda x: x @ A.T, 2.0, noise=0.2, seed=1)
    centred, shifted = (recovered(each).model.result_ for each in (X, X + 3))
    assert centred.drift_choice.nats < 0 < shifted.drift_choice.nats
    assert "drift='linear'" in shifted.summary()
    assert centred.drift_choice.quadratic < 0
    assert centred.offset is not None  # kept: it costs little


def test_a_curved_drift_is_named():
    X = panel(lambda x: 2 * x * (1 - x), 1.0, noise=0.05)
    found = recovered(X).model.result_
    assert found.drift_choice.quadratic > 3
    assert "Polynomial(2) fits it" in found.drift_choice.verdict


def test_a_drift_by_name_is_not_judged(tmp_path):
    X = panel(lambda x: -x, 2.0, noise=0.2)
    assert recovered(X, drift="affine").model.result_.drift_choice is None
    result = recovered(X).model.result_
    again = type(result).load(result.save(tmp_path / "a"))
    assert again.drift_choice == result.drift_choice
