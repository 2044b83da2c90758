"""Panels that are read where they are: some trajectories are screened, and suspects among them are listed by their own places."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.estimator import screening
from retrace_sde.estimator.entry import entered
from retrace_sde.estimator.request import Request
from retrace_sde.io.lazy import view


def panel(n: int = 200, T: int = 8):
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    start = 2 + 0.3 * np.random.default_rng(0).standard_normal((n, 2))
    X = sde.simulate(n, T, 0.1, x0=start, random_state=0)
    return X[:, np.random.default_rng(1).permutation(T)]


def stored(X, kind, monkeypatch):
    if kind == "dask":
        return pytest.importorskip("dask.array").from_array(X, chunks=(50, *X.shape[1:]))
    monkeypatch.setattr(view, "VIEW_FROM_ELEMENTS", 1)
    return X


def screened(X, outliers="auto"):
    request = Request.of(rt.ReTrace(outliers=outliers).get_params(deep=False))
    return screening.screened(entered(X, None, None, None, request), request)


@pytest.mark.parametrize("kind", ["view", "dask"])
def test_suspects_of_stored_panels_are_listed_as_those_in_memory_are(kind, monkeypatch):
    X = panel()
    X[[7, 120], [2, 5], [1, 0]] *= 40
    in_memory = screened(X)[1]
    entry, found = screened(stored(X, kind, monkeypatch))
    assert isinstance(entry.panel.values, view.ArrayView)
    places = {(e.trajectory, e.slice, e.variable) for e in found}
    assert places == {(7, 2, "x1"), (120, 5, "x0")}
    assert places == {(e.trajectory, e.slice, e.variable) for e in in_memory}
    assert not any(each.missing for each in found)
    assert entry.cautions[-1].startswith("All 200 trajectories")
    assert "listed only" in entry.cautions[-1]
    assert not screened(stored(X, kind, monkeypatch), "keep")[1]


def test_of_many_trajectories_some_are_screened(monkeypatch):
    monkeypatch.setattr(screening, "SAMPLED_NUMBERS", 400 * panel().shape[2])
    entry, found = screened(stored(panel(), "view", monkeypatch))
    assert not found
    assert entry.notes[-1].startswith("50 of 200 trajectories")
