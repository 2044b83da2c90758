"""Lazy arrays: whatever a pass asks of them is what it would ask of the same numbers in memory, and they are never read whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retrace_sde.io.lazy import array as room
from retrace_sde.io.lazy.array import as_lazy
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.canonical import content_permutation
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import check_panel

KINDS = ("memmap", "zarr", "dask")


def as_stored(values, kind, folder):
    """The same numbers, outside memory."""
    if kind == "memmap":
        np.save(folder / "x.npy", values)
        return np.load(folder / "x.npy", mmap_mode="r")
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        found = zarr.create_array(
            str(folder / "x.zarr"), shape=values.shape, chunks=(7, 2, 3), dtype=values.dtype
        )
        found[:] = values
        return found
    dask = pytest.importorskip("dask.array")
    return dask.from_array(values, chunks=(11, 3, 2))


@pytest.fixture(params=KINDS)
def both(request, tmp_path, monkeypatch):
    """Numbers (60, 6, 3), looked at with rows, slices and units of their own, and the same copied."""
    monkeypatch.setattr(room, "CHUNK_BYTES", 8 * 6 * 3 * 16)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 6, 3))
    rows, columns = rng.permutation(60), rng.permutation(6)
    centre, scale = rng.normal(size=3), rng.uniform(1, 2, size=3)
    found = as_lazy(as_stored(x, request.param, tmp_path))
    shown = found.permuted(rows, columns).standardised(centre, scale)
    return Data(shown), Data((x[rows][:, columns] - centre) / scale)


def test_passes_see_what_they_would_see_in_memory(both):
    lazy, copied = both
    own = np.argsort(np.random.default_rng(2).random((60, 6)), axis=1)

    def along(piece, orders, weight):
        x = piece.block(slice(None), orders)[0]
        return x[:, 0] * weight

    def total(piece, orders):
        x = piece.block(slice(None), orders)[0]
        return x.sum(axis=0), np.float64(len(x))

    assert lazy.lazy
    assert not copied.lazy
    assert np.array_equal(lazy.each_piece(along, own, 2.0), copied.each_piece(along, own, 2.0))
    for one, two in zip(lazy.sum_pieces(total, own), copied.sum_pieces(total, own), strict=True):
        assert np.allclose(one, two, rtol=1e-13, atol=1e-12)
    assert np.array_equal(lazy.states(own, 3), copied.states(own, 3))
    assert np.array_equal(lazy.slices(np.array([4, 1])), copied.slices(np.array([4, 1])))
    assert np.array_equal(lazy.slices(np.array([1, 5])), copied.slices(np.array([1, 5])))
    assert np.array_equal(lazy.some(7).values, copied.some(7).values)
    assert np.array_equal(lazy.block(slice(3, 5), own)[0], copied.block(slice(3, 5), own)[0])


def test_lengths_and_inputs_go_with_their_trajectories(both):
    lengths, u = np.arange(60) % 4 + 3, np.random.default_rng(3).normal(size=(60, 6, 1))
    one, two = (replace(each, counts=lengths, covariates=u) for each in both)

    def seen(piece):
        return piece.live.sum(axis=(1, 2)) + piece.covariates.sum(axis=(1, 2))

    assert np.array_equal(one.each_piece(seen), two.each_piece(seen))


def test_what_is_stored_is_never_read_whole(both, monkeypatch):
    monkeypatch.setattr(room, "MAX_READ_BYTES", 0)
    lazy, _ = both
    assert len(lazy.take(np.arange(6)).values) == 6
    with pytest.raises(ValueError, match="stored outside it"):
        lazy.block(slice(None))
    with pytest.raises(ValueError, match="stored outside it"):
        list(lazy.map_rows(lambda rows: rows))


def test_rows_are_read_once(both, monkeypatch):
    asked = []
    read = room._rows
    monkeypatch.setattr(
        room, "_rows", lambda source, rows: asked.append(rows) or read(source, rows)
    )
    lazy, _ = both
    for size in (5, 5, 3):
        lazy.some(size)
    assert sum(map(len, asked)) == len(np.unique(np.concatenate(asked))) < 8


def test_chunks_hold_whole_trajectories(both):
    lazy, _ = both
    n, seen = 60, np.concatenate([np.arange(60)[each] for each in lazy.values.chunks])
    assert np.array_equal(seen, np.arange(n))
    assert len(lazy.values.chunks) > 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_places_and_facts_are_those_of_memory(kind, shared, tmp_path):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 6, 3)) + 1e3
    x[3, 2] = x[4, 5]  # two trajectories that share an observation
    panel = check_panel(as_stored(x, kind, tmp_path), ragged=not shared)
    found, true = (
        content_permutation(panel, shared=shared),
        content_permutation(Panel.from_array(x), shared=shared),
    )
    assert np.array_equal(found.rows, true.rows)
    assert np.array_equal(found.columns, true.columns)
    facts = panel.values.facts
    assert np.array_equal(facts.low, x.min(axis=(0, 1)))
    assert np.array_equal(facts.high, x.max(axis=(0, 1)))
    assert np.allclose(facts.mean, x.mean(axis=(0, 1)), rtol=1e-15)
    assert np.allclose(facts.scale, x.std(axis=(0, 1)), rtol=1e-11)


def test_what_is_no_number_is_found_where_it_stands(tmp_path):
    x = np.random.default_rng(5).normal(size=(40, 5, 2))
    x[31, 2, 1] = np.nan
    with pytest.raises(ValueError, match=r"1 missing .* trajectory 31, slice 2, variable 'x1'"):
        check_panel(as_stored(x, "memmap", tmp_path), missing=True)


def test_what_was_computed_from_a_map_is_in_memory(tmp_path):
    mapped = as_stored(np.ones((4, 3, 2)), "memmap", tmp_path)
    assert as_lazy(mapped) is not None
    assert as_lazy(mapped + 1) is None
    assert as_lazy(np.ones((4, 3, 2))) is None
