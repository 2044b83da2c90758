"""What can be combined: every combination is tried, and the page of the docs says what comes out."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study():
    path = ROOT / "studies" / "combinations.py"
    spec = importlib.util.spec_from_file_location("combinations", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_cannot_be_combined_is_refused_as_the_docs_say(study):
    page = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8")
    assert len(study.every()) == 168
    for name, text in study.reasons():
        assert text != "is not refused", name
        assert f"| {name} | {text} |" in page


@pytest.mark.parametrize("times", ["regular", "known", "estimated"])
@pytest.mark.parametrize("drift", ["linear", "affine", "inputs"])
def test_noise_and_missing_values_of_a_shared_order(study, times, drift):
    said, _ = study.tried(study.Combination("shared", True, True, times, drift, "nothing"))
    assert said == "fitted"


@pytest.mark.statistics
@pytest.mark.parametrize("times", ["regular", "known", "estimated"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("permutation", ["shared", "independent"])
def test_every_combination_is_fitted_as_the_docs_say(study, permutation, noise, missing, times):
    key = (permutation, noise, missing, times)
    found = {each: study.tried(each)[0] for each in study.every() if each[:4] == key}
    page = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8")
    assert study.row(key, found) in page.splitlines()
    assert set(found.values()) == {"fitted"}
