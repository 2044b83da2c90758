"""Real panels, where their folder is: order, direction, loops and folds."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RETRACE_PANELS", ROOT.parent / "shared" / "data"))

pytestmark = pytest.mark.skipif(
    not (FOLDER / "gait.csv").exists(), reason="the folder of real panels is not here"
)


def experiment():
    spec = importlib.util.spec_from_file_location(
        "real_panels", ROOT / "studies" / "real_panels.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCURACY = {
    "physionet2012_icu_4h": 1.0,
    "pbcseq_visits": 1.0,
    "mavoglurant_pk": 1.0,
    "theoph": 0.18,
    "berkeley_growth": 1.0,
    "chickweight": 1.0,
    "tcell34": 0.4,
    "ecb_fx_monthly": 0.715,
    "grunfeld": 1.0,
}
"""What the shortest path on scaled slices reaches, up to reversal."""


LARGE = ("physionet2012_icu_4h", "tcell34")
"""888 patients, and 34 variables: fits take as long as those of all other panels."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.statistics if each in LARGE else ())
        for each in ACCURACY
    ],
)
def test_order_and_direction_of_real_panels(name):
    panels = experiment()
    X = panels.read_panel(FOLDER / f"{name}.csv", panels.PANELS[name])
    found = panels.recover(X, 1)
    assert found["accuracy"] >= ACCURACY[name]
    assert not found["cycle"]
    right = found["tau"] > 0
    assert right or not found["identified"]
    if name in ("physionet2012_icu_4h", "berkeley_growth", "chickweight"):
        assert found["identified"]
    if name == "ecb_fx_monthly":
        assert not found["identified"]
    if name == "theoph":
        assert found["warned"]


def test_gait_is_a_closed_loop():
    panels = experiment()
    found = panels.recover(panels.read_panel(FOLDER / "gait.csv"), 2)
    assert found["cycle"]
    assert found["neighbours"] >= 0.95
    assert not found["identified"]


def test_estimated_gaps_do_not_get_mavoglurant_wrong():
    panels = experiment()
    X = panels.read_panel(FOLDER / "mavoglurant_pk.csv")
    found = panels.recover(X, 0, spacing="estimate")
    assert found["tau"] > 0
    assert found["accuracy"] == 1.0


def test_knowledge_opens_the_fold_of_theoph():
    panels = experiment()
    X = panels.read_panel(FOLDER / "theoph.csv", panels.PANELS["theoph"])
    alone = panels.recover(X, 0)
    assert abs(alone["tau"]) < 0.5
    for known in (" (last known)", " (halves known)"):
        assert panels.recover(X, 0, known=known)["tau"] > 0.9
