"""Fits to arrays that stay outside memory: the same answers, from threads and from workers, also when one of them dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io.answers import table_notes
from retrace_sde.io.lazy.array import as_lazy
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import EulerModel

N, T, D = 4000, 12, 3


@pytest.fixture(scope="module")
def panel():
    sde = rt.simulate.random_irreversible_sde(D, setting="stable", random_state=1)
    x0 = 1.0 + 0.3 * np.random.default_rng(2).standard_normal((N, D))
    return rt.simulate.shuffle(sde.simulate(N, T, 0.1, x0=x0, random_state=3), random_state=4)


@pytest.fixture(scope="module")
def in_memory(panel):
    return rt.ReTrace(dt=0.1, random_state=0).fit(panel[0])


@pytest.fixture(scope="module")
def resampled(in_memory):
    return in_memory.bootstrap_errors(draws=20)


def same(one, two):
    """Every answer of two fits, to 1e-8."""
    assert np.array_equal(one.order_, two.order_)
    assert one.direction_.identified == two.direction_.identified
    pairs = [
        (getattr(one, name), getattr(two, name))
        for name in ("drift_", "offset_", "diffusion_", "log_likelihood_")
    ]
    pairs += [
        (getattr(one.standard_errors_, name), getattr(two.standard_errors_, name))
        for name in ("drift", "diffusion")
    ]
    pairs += [
        (one.result_.initial.mean, two.result_.initial.mean),
        (one.result_.initial.covariance, two.result_.initial.covariance),
    ]
    pairs += [(one.direction_.contributions, two.direction_.contributions)]
    for a, b in pairs:
        assert np.allclose(a, b, rtol=1e-8, atol=1e-8 * np.abs(a).max())


def as_stored(x, kind, folder):
    if kind == "memmap":
        np.save(folder / "x.npy", x)
        return np.load(folder / "x.npy", mmap_mode="r")
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        found = zarr.create_array(
            str(folder / "x.zarr"), shape=x.shape, chunks=(700, T, D), dtype=x.dtype
        )
        found[:] = x
        return found
    return pytest.importorskip("dask.array").from_array(np.asarray(x), chunks=(900, 5, 2))


@pytest.mark.parametrize("kind", ["memmap", "zarr", "dask"])
def test_answers_are_those_of_memory(kind, panel, in_memory, resampled, tmp_path):
    found = rt.ReTrace(dt=0.1, random_state=0).fit(as_stored(panel[0], kind, tmp_path))
    assert rt.metrics.order_accuracy(panel[1], found.order_) == 1.0
    same(in_memory, found)
    assert np.allclose(resampled.drift, found.bootstrap_errors(draws=20).drift, rtol=1e-8)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="pages are counted on Linux")
def test_pages_of_a_map_that_were_read_leave_the_process(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((64, 128, 1024)))
    lazy = np.load(tmp_path / "x.npy", mmap_mode="r")

    def resident():
        """Bytes of the file that this process holds."""
        _, after = Path("/proc/self/smaps").read_text().split(str(tmp_path / "x.npy"))
        return 1024 * int(after.split("Rss:")[1].split()[0])

    assert Data(as_lazy(lazy)).sum_pieces(lambda piece: piece.values.sum()) == lazy.size
    assert resident() < lazy.nbytes / 10
    assert lazy.sum() == lazy.size  # as it was
    assert resident() > lazy.nbytes / 2


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_what_was_written_to_a_map_stays(mode, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((40, 50, 60)))
    lazy = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        lazy[3:30] = 1.0
    before = np.array(lazy)
    for window in (lazy, lazy[5:9], lazy[::-2, :, ::3]):
        Data(as_lazy(window)).sum_pieces(lambda piece: piece.values.sum())
        assert np.array_equal(lazy, before)


@pytest.fixture(scope="module")
def own_orders():
    sde = rt.simulate.random_irreversible_sde(4, setting="stable", random_state=1)
    rng = np.random.default_rng(2)
    x = sde.simulate(40, 7, 0.1, x0=2.0 + rng.standard_normal((40, 4)), random_state=3)
    return rt.simulate.shuffle(x, permutation="independent", random_state=4)[0]


def test_own_orders_are_those_of_memory(own_orders, tmp_path):
    lazy = as_stored(own_orders, "memmap", tmp_path)
    settings = {"dt": 0.1, "permutation": "independent", "estimator": "mle", "random_state": 0}
    one, two = (rt.ReTrace(**settings).fit(each) for each in (own_orders, lazy))
    assert np.array_equal(one.order_, two.order_)
    assert np.allclose(one.drift_, two.drift_, rtol=1e-8)
    assert np.allclose(one.standard_errors_.drift, two.standard_errors_.drift, rtol=1e-7)


def test_chains_over_own_orders_are_those_of_memory(own_orders, tmp_path):
    """What an average over orders is made of: the same draws, wherever the trajectories are."""
    found = []
    order = np.random.default_rng(5).permutation(40)
    lazy = as_lazy(as_stored(own_orders, "memmap", tmp_path)).permuted(order, None)
    for data in (Data(own_orders[order]), Data(lazy)):
        model = EulerModel(data, 0.1, Affine())
        orders = np.tile(np.arange(7), (40, 1))
        chains = Chains.start(orders, np.random.default_rng(6))
        draws = model.draw(model.law(model.fit(orders)), chains, Stretch(20, 50, 4, True, True))
        found.append(
            (chains.orders, draws.kept, draws.positions, draws.tally, draws.counted[1].gram)
        )
    for one, two in zip(*found, strict=True):
        assert np.allclose(one, two, rtol=1e-9, atol=1e-9)


def test_other_trajectories_are_scored_where_they_are(panel, in_memory, tmp_path):
    lazy = as_stored(panel[0], "memmap", tmp_path)
    assert in_memory.score(lazy) == pytest.approx(in_memory.score(panel[0]), rel=1e-8)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"observation_noise": 0.1}, "observation_noise"),
        ({"order": "score"}, "order='score'"),
        ({"spacing": "estimate"}, "spacing='estimate'"),
        ({"estimator": "em"}, "estimator='em'"),
    ],
)
def test_what_needs_memory_is_refused_in_a_sentence(settings, named, panel, tmp_path):
    with pytest.raises(ValueError, match=r"needs the trajectories in memory.*X\[:5000\]") as said:
        rt.ReTrace(**settings).fit(as_stored(panel[0], "memmap", tmp_path))
    assert named in str(said.value)


@pytest.mark.statistics
def test_a_worker_that_is_killed_changes_nothing(panel, in_memory):
    """Its tasks are done again elsewhere; sums are put together in the same order."""
    distributed = pytest.importorskip("distributed")
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(n_workers=2, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids, killed = list(client.run(os.getpid).values()), []

        def kill(event):
            if not killed and "order" in event.doing:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(event)

        found = rt.ReTrace(dt=0.1, random_state=0)
        found.fit(as_stored(panel[0], "dask", None), progress=kill)
    assert killed
    same(in_memory, found)


@pytest.mark.parametrize("address", ["inproc", pytest.param("local", marks=pytest.mark.statistics)])
def test_the_command_fits_a_store_on_workers(address, panel, in_memory, tmp_path, capfd):
    """Those of a scheduler that runs (here in this process), or processes that it starts."""
    distributed = pytest.importorskip("distributed")
    as_stored(panel[0], "zarr", tmp_path)
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(n_workers=2, **options) as running:
        named = running.scheduler_address if address == "inproc" else address
        line = ["fit", str(tmp_path / "x.zarr"), "--scheduler", named, "--dt", "0.1", "--json", "--observation-noise", "none",
                "--out", str(tmp_path / "out")]  # fmt: skip
        with pytest.raises(SystemExit) as left:
            main(line)
        said = capfd.readouterr()
        with pytest.raises(SystemExit) as again:
            main(line)
        assert again.value.code == 2
        assert "replace it with --force" in capfd.readouterr().err
    assert left.value.code == 0, said.err
    assert "Dashboard  http" in said.err
    answer = json.loads(said.out.splitlines()[-1])
    assert answer["order"] == in_memory.order_.tolist()
    assert np.allclose(answer["drift"], in_memory.drift_, rtol=1e-8)
    assert {each.name for each in (tmp_path / "out").iterdir()} >= {"parameters.json", "result.npz"}


def test_what_is_written_of_a_stored_panel_does_not_read_it():
    """A command that was done with its workers read the whole store, to count what is missing in it."""
    dask = pytest.importorskip("dask.array")

    def refuse(block):
        raise AssertionError("read")

    never = dask.zeros((60, 5, 2), chunks=(20, 5, 2)).map_blocks(refuse, meta=np.empty((0, 0, 0)))
    assert table_notes(rt.Panel.from_array(never)) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--scheduler", "local"], "zarr store"),
        (["--scheduler", "local", "--subject", "id"], "columns"),
    ],
)
def test_the_command_says_what_a_scheduler_takes(options, named, tmp_path, capfd):
    """Before it speaks of files that are in the way."""
    (tmp_path / "x.csv").write_text("id,x\n1,2\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "parameters.json").write_text("somebody's own")
    with pytest.raises(SystemExit) as left:
        main(["fit", str(tmp_path / "x.csv"), *options, "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert named in capfd.readouterr().err
