"""Kernels cached by another version of the package are compiled again, whatever their index names."""

from __future__ import annotations

import importlib.util
import pickle

import numba
import pytest

KERNEL = """
from {home} import njit

@njit(cache=True)
def doubled(x):
    return 2 * x
"""

GONE = b"cretrace_sde.rooms.of_a_former_version\nMove\n."
"""A pickle of a class whose module is no longer there."""


@pytest.mark.parametrize(("home", "fails"), [("numba", True), ("retrace_sde.io.kernels", False)])
def test_an_index_of_a_former_version_is_not_unpickled(tmp_path, monkeypatch, home, fails):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    path = tmp_path / "module.py"
    path.write_text(KERNEL.format(home=home))
    assert _fresh(path).doubled(3) == 6
    (index,) = path.parent.rglob("*.nbi")
    written = index.read_bytes()
    index.write_bytes(pickle.dumps(numba.__version__) + GONE)
    if fails:  # or numba has mended it, and `io/kernels` is no longer needed
        with pytest.raises(ModuleNotFoundError):
            _fresh(path).doubled(3)
        return
    assert _fresh(path).doubled(3) == 6
    assert index.read_bytes() == written  # mended, and read by the next


def _fresh(path):
    spec = importlib.util.spec_from_file_location("module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
