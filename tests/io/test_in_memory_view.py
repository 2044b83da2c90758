"""A large array is fitted where it is, with the answer of a copy in its places and units."""

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.io.lazy import view
from retrace_sde.io.lazy.view import InMemoryView, StandardUnits
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.survey import glanced

DT = 0.05


def panel(n=40, T=30, d=3, level=2.0):
    sde = rt.simulate.random_irreversible_sde(d, random_state=0)
    X = sde.simulate(n, T, DT, random_state=1) * [1.0, 10.0, 0.1] + level
    return rt.simulate.shuffle(X, random_state=2)


@pytest.fixture
def large(monkeypatch):
    """Every array counts as large."""
    monkeypatch.setattr(view, "VIEW_FROM_ELEMENTS", 1)


def fit(X, **settings):
    return rt.ReTrace(dt=DT, random_state=0, **settings).fit(X)


@pytest.mark.parametrize("drift", ["affine", "linear"])
@pytest.mark.parametrize("layout", ["as shuffled", "contiguous", "float32", "strict", "torch"])
def test_the_fit_is_that_of_a_copy(drift, layout, monkeypatch):
    X, truth = panel(level=0.1)
    if layout == "contiguous":
        X = np.ascontiguousarray(X)
    if layout == "float32":
        X = X.astype(np.float32)
    copied = fit(X, drift=drift)
    monkeypatch.setattr(view, "VIEW_FROM_ELEMENTS", 1)
    before = X.copy()
    if layout == "torch":
        given = pytest.importorskip("torch").as_tensor(np.ascontiguousarray(X))
    else:
        given = array_api_strict.asarray(X) if layout == "strict" else X
    looked = fit(given, drift=drift)
    assert isinstance(looked._memory.model.data.values, InMemoryView)
    assert np.array_equal(X, before)
    assert np.array_equal(looked.order_, copied.order_)
    assert_allclose(looked.drift_, copied.drift_, rtol=1e-8)
    assert_allclose(looked.diffusion_, copied.diffusion_, rtol=1e-8)
    assert_allclose(looked.standard_errors_.drift, copied.standard_errors_.drift, rtol=1e-7)
    assert_allclose(looked.direction_.p_value, copied.direction_.p_value, atol=1e-8)
    assert_allclose(looked.score(X), copied.score(X), rtol=1e-10)
    assert_allclose(looked.reorder(X), X[:, truth])
    assert_allclose(looked.forecast(X, 2).mean, copied.forecast(X, 2).mean, rtol=1e-8)


def test_blocks_slices_and_rows_are_those_of_a_copy(large):
    X, order = panel()
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(40), rng.permutation(30)
    centre, scale = X.mean(axis=(0, 1)), X.std(axis=(0, 1))
    copy = Data(((X - centre) / scale)[rows][:, columns])
    seen = Data(InMemoryView(X, StandardUnits(None, centre, scale), rows, columns))
    assert_allclose(to_numpy(seen.values), copy.values)
    for along in (None, order):
        assert_allclose(seen.block(slice(3, 9), along)[0], copy.block(slice(3, 9), along)[0])
    assert_allclose(seen.slices(order[:4]), copy.slices(order[:4]))
    assert_allclose(seen.states(order, 2), copy.states(order, 2))
    assert_allclose(seen.some(7).values, copy.some(7).values)
    own = np.argsort(rng.random((40, 30)), axis=1)
    weights = rng.random((40, 5))

    def of_piece(piece, along, weight):
        return piece.block(slice(None), along)[0][:, 0], weight

    for along in (order, own):
        for got, want in zip(
            seen.each_piece(of_piece, along, weights, size=7),
            copy.each_piece(of_piece, along, weights),
            strict=True,
        ):
            assert_allclose(got, want)


def with_one(value):
    def change(X):
        X = X.copy()
        X[5, 6, 1] = value
        return X

    return change


@pytest.mark.parametrize(
    "change",
    [
        with_one(np.nan),
        with_one(np.inf),
        with_one(1e150),
        lambda X: X + 1e5,
        lambda X: X[::2],
    ],
    ids=["missing", "infinite", "huge", "far from zero", "with gaps"],
)
def test_what_a_glance_does_not_settle_is_looked_at_closely(change, large):
    X, _ = panel()
    assert glanced(X, 1) is not None
    assert glanced(change(X), 1) is None


def test_small_arrays_are_copied():
    assert glanced(panel()[0], 1) is None


def test_a_variable_without_dynamics_is_left_out_as_of_a_copy(large):
    X, truth = panel()
    clock = np.broadcast_to(np.argsort(truth).astype(float)[None, :, None], (40, 30, 1))
    with pytest.warns(rt.ReTraceWarning, match="clock|count|time"):
        model = fit(np.concatenate([X, clock], axis=2))
    assert [each.index for each in model.result_.left_out] == [3]


def test_trajectories_with_equal_least_values_have_the_places_of_a_copy(monkeypatch):
    X = panel(level=0.1)[0].copy()
    X[:, 7] = X.min(axis=(0, 1)) - 0.1  # a common start
    copied = fit(X, subjects="alike")
    monkeypatch.setattr(view, "VIEW_FROM_ELEMENTS", 1)
    looked = fit(X, subjects="alike")
    assert isinstance(looked._memory.model.data.values, InMemoryView)
    assert np.array_equal(looked._memory.places.rows, copied._memory.places.rows)
    assert np.array_equal(looked.order_, copied.order_)
    assert_allclose(looked.drift_, copied.drift_, rtol=1e-7)
