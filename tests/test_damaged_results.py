"""Saved results that were damaged or tampered with: one sentence, no foreign error, nothing loaded that cannot be."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pytest

import retrace_sde as rt


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    rng = np.random.default_rng(0)
    sde = rt.simulate.random_irreversible_sde(2, random_state=rng)
    X = sde.simulate(20, 8, 0.1, random_state=rng)
    model = rt.ReTrace(dt=0.1, random_state=0, n_jobs=1).fit(X)
    return model.result_.save(tmp_path_factory.mktemp("saved") / "result.npz")


def rewritten(saved, path, arrays=None, text=None):
    """The file with some arrays, or entries of its text, replaced (None: left out)."""
    with np.load(saved) as file:
        found = {name: file[name] for name in file.files}
    words = json.loads(str(found.pop("json")))
    for name, value in (text or {}).items():
        where, *keys = words, *name.split(".")
        for key in keys[:-1]:
            where = where[key]
        if value is None:
            del where[keys[-1]]
        else:
            where[keys[-1]] = value
    found = {k: v for k, v in {**found, **(arrays or {})}.items() if v is not None}
    np.savez_compressed(path, json=np.array(json.dumps(words)), **found)
    return path


def refused(path):
    with pytest.raises(ValueError, match=r"^.*(damaged|format|not written).*\.$") as caught:
        rt.ReTraceResult.load(path)
    assert str(path) in str(caught.value)


ARRAYS = {
    "order": [np.arange(7), np.zeros(8, dtype=np.intp), np.arange(8.0), np.arange(1, 9), None, np.array("x")],
    "drift": [np.zeros((3, 2)), np.full((2, 2), np.nan), np.zeros(2), np.array([["a", "b"]]), None, np.full((2, 2), np.inf)],
    "diffusion": [np.zeros((2, 3)), np.full((2, 2), np.nan), np.array(1.0)],
    "offset": [np.zeros(3), np.full(2, np.inf)],
    "times": [np.zeros(5), np.zeros((2, 2))],
    "initial.mean": [np.zeros(3), None],
    "initial.covariance": [np.zeros((1, 1))],
    "standard_errors.drift": [np.zeros((1, 1)), None],
    "direction.contributions": [np.zeros(30), np.zeros((20, 1)), np.zeros(0)],
}  # fmt: skip
TEXT = {
    "dt": [0, -1, "x", [1]],
    "n_trajectories": [3, 0, "20", 1.5, 10**30],
    "converged": ["yes", 1.0, []],
    "names": [["a"], "ab", [1, 2], {}],
    "direction": [3, [], {"identified": True}],
    "direction.reason": ["because", 7],
    "direction.z": ["high", [1]],
    "standard_errors.kind": ["guess"],
    "settings": [[], "x", {}, {"order": "likelihood"}],
    "notes": [3, [1, 2]],
    "history": [3, [3], [{}]],
    "log_likelihood": ["much", float("nan")],
    "format": [99, None, "3"],
}


@pytest.mark.parametrize(
    ("name", "k"), [(name, k) for name, v in ARRAYS.items() for k in range(len(v))]
)
def test_arrays_that_cannot_be_are_refused(saved, tmp_path, name, k):
    refused(rewritten(saved, tmp_path / "a.npz", arrays={name: ARRAYS[name][k]}))


@pytest.mark.parametrize(
    ("name", "k"), [(name, k) for name, v in TEXT.items() for k in range(len(v))]
)
def test_words_that_cannot_be_are_refused(saved, tmp_path, name, k):
    refused(rewritten(saved, tmp_path / "a.npz", text={name: TEXT[name][k]}))


def test_every_cut_and_many_flipped_bytes(saved, tmp_path):
    whole, path = saved.read_bytes(), tmp_path / "a.npz"
    rng = np.random.default_rng(0)
    for size in (0, 1, 30, len(whole) // 3, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            rt.ReTraceResult.load(path)  # a byte that nothing reads may be any
        except ValueError as error:
            assert str(error).endswith("."), error  # noqa: PT017 - either is fine


def test_sizes_are_looked_at_before_anything_is_read(saved, tmp_path):
    """A header that claims a terabyte, and a gigabyte of zeros in a few bytes."""
    path, claim = tmp_path / "a.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(
        claim, {"descr": "<f8", "fortran_order": False, "shape": (1 << 37,)}
    )
    path.write_bytes(saved.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", claim.getvalue())
    refused(path)
    path.write_bytes(saved.read_bytes())
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\x01\x02")
    whole[at + 24 : at + 28] = struct.pack("<I", 0xF0000000)  # the size that the directory declares
    path.write_bytes(whole)
    refused(path)


def test_a_file_of_another_kind_and_one_that_is_not_there(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(3))
    refused(path)
    path.write_text("hello")
    refused(path)
    with pytest.raises(FileNotFoundError):
        rt.ReTraceResult.load(tmp_path / "nothing.npz")


def test_evidence_of_some_trajectories_is_enough(saved, tmp_path):
    """Of thousands of own orders only some are compared both ways round: such a result used to be refused as damaged."""
    some = np.arange(5.0)
    path = rewritten(saved, tmp_path / "a.npz", arrays={"direction.contributions": some})
    np.testing.assert_array_equal(rt.ReTraceResult.load(path).direction.contributions, some)


def test_settings_of_every_type_survive(saved, tmp_path):
    from dataclasses import replace

    found = rt.ReTraceResult.load(saved)
    odd = {
        "a": np.arange(3),
        "b": np.float32(1.5),
        "c": np.bool_(True),
        "d": (1, np.int64(2)),
        "e": object(),
        "f": {"g": 1},
    }
    path = replace(found, settings={**found.settings, **odd}, converged=np.bool_(True)).save(
        tmp_path / "b"
    )
    again = rt.ReTraceResult.load(path).settings
    assert again["a"] == [0, 1, 2]
    assert (again["b"], again["c"], again["d"]) == (1.5, True, [1, 2])
    assert sorted(tmp_path.iterdir()) == [path]
