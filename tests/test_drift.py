from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrace_sde.costs import Model
from retrace_sde.drift import Affine, Drift, Linear, as_drift
from retrace_sde.sde import LinearSDE


def test_an_affine_model_predicts_eulers_mean() -> None:
    rng = np.random.default_rng(0)
    A, c, x = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(4, 5, 3))
    step = LinearSDE(A, np.eye(3), offset=c).transition(0.1, scheme="euler")
    model = Model(Affine(), np.column_stack([A, c]), np.eye(3), 0.1)
    assert_allclose(model.predict(x, None), x @ step.matrix.T + step.shift)
    linear = Model(Linear(), A, np.eye(3), 0.1)
    assert_allclose(linear.predict(x, None), x @ step.matrix.T)


@pytest.mark.parametrize("drift", [Linear(), Affine()])
@pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 7, 3)])
def test_one_regressor_per_name_for_any_leading_shape(drift: Drift, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    names = drift.feature_names(["a", "b", "c"], [])
    features = drift.features(x, None)
    assert features.shape == (*shape[:-1], len(names))
    for k, name in enumerate(names):
        assert np.array_equal(features[..., k], np.ones(shape[:-1]) if name == "1" else x[..., k])


@pytest.mark.parametrize("drift", [Linear(), Affine()])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_keep_namespace_and_precision(drift: Drift, dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(dtype)
    strict = drift.features(array_api_strict.asarray(x), None)
    assert isinstance(strict, type(array_api_strict.asarray(x)))
    assert strict.dtype == getattr(array_api_strict, dtype)
    assert np.array_equal(np.asarray(strict), drift.features(x, None))


def test_drifts_by_name() -> None:
    assert as_drift("linear") == Linear()
    assert as_drift("affine") == Affine() != Linear()

    class Mine(Linear):
        pass

    mine: Any = Mine()
    assert as_drift(mine) is mine
    with pytest.raises(ValueError, match=r"'affine', 'linear'.*not 'cubic'"):
        as_drift("cubic")
