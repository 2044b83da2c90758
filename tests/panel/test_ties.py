"""Tables with many ties: what is found depends neither on the order of rows, slices and variables nor on units."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde import Panel
from retrace_sde.panel.canonical import Cells, content_permutation, tied_places

KINDS = ("zeros and ones", "counts", "rounded")


def table(kind, seed):
    rng = np.random.default_rng(seed)
    if kind == "zeros and ones":
        return (rng.random((30, 9, 2)) < 0.05) * 1.0
    if kind == "counts":
        return rng.poisson(0.3, (20, 8, 3)) * 1.0
    return np.round(rng.normal(size=(15, 10, 2)).cumsum(axis=1))


def moved(X, rng):
    """The same table with everything in another order and in other units, and where its slices came from."""
    n, T, d = X.shape
    slices = rng.permutation(T)
    Y = X[rng.permutation(n)][:, slices][:, :, rng.permutation(d)]
    return Y * rng.uniform(0.01, 100, d), slices


def as_ranks(Z):
    """Each variable's ranks, which units do not change."""
    return np.stack(
        [np.unique(z, return_inverse=True)[1].reshape(z.shape) for z in np.moveaxis(Z, 2, 0)], -1
    )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_order_of_a_tied_table_comes_to_the_same_places(kind, shared):
    rng = np.random.default_rng(1)

    def in_places(X):
        return as_ranks(content_permutation(Panel.from_array(X), shared=shared).sorted(X))

    for seed in range(10):
        X = table(kind, seed)
        one = in_places(X)
        for _ in range(3):
            Y, _ = moved(X, rng)
            if not shared:
                Y = np.stack([y[rng.permutation(len(y))] for y in moved(X, rng)[0]])
            two = in_places(Y)
            every = itertools.permutations(range(X.shape[2]))
            assert any(np.array_equal(one[:, :, list(way)], two) for way in every)


def test_what_refinement_alone_cannot_tell_apart_is_tried():
    """Subjects and slices that make a ring of four and one of eight, each with two ones: all look alike, none is like all others."""
    X = np.zeros((6, 6))
    for ring in ((0, 1), (2, 3, 4, 5)):
        for k, j in enumerate(ring):
            X[j, j] = X[j, ring[(k + 1) % len(ring)]] = 1.0
    rng = np.random.default_rng(0)

    def in_places(x):
        inside = np.ones(x.shape, dtype=bool)
        rows, columns = tied_places(Cells.of([x], np.zeros(1, int), inside), shared=True)
        return x[rows][:, columns]

    one = in_places(X)
    for _ in range(20):
        np.testing.assert_array_equal(in_places(X[rng.permutation(6)][:, rng.permutation(6)]), one)


def _fitted(X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rt.ReTrace(random_state=0).fit(X)


@pytest.mark.parametrize(
    "seeds",
    [(0, 1), pytest.param((3, 4, 5, 6, 7, 8, 9, 10), marks=pytest.mark.statistics)],
    ids=["two", "eight"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_orders_and_verdicts_of_a_tied_table_do_not_depend_on_how_it_is_laid_out(kind, seeds):
    """Up to symmetries: slices may change places if subjects who change places, too, make the table the same."""
    rng = np.random.default_rng(2)
    for seed in seeds:
        X = table(kind, seed)
        if len(np.unique(X.transpose(1, 0, 2).reshape(X.shape[1], -1), axis=0)) < X.shape[1]:
            continue  # equal slices are refused
        Y, slices = moved(X, rng)
        one, two = _fitted(X), _fitted(Y)
        assert one.direction_.identified == two.direction_.identified
        assert np.isclose(one.direction_.log_likelihood_ratio, two.direction_.log_likelihood_ratio)
        along = [
            sorted(X[:, order].reshape(len(X), -1).tolist())
            for order in (one.order_, slices[two.order_])
        ]
        assert along[0] == along[1]
