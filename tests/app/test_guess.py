"""What columns look like, on tables as people have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.app.examples import EXAMPLES
from retrace_sde.app.guess import chosen, guess
from retrace_sde.app.work import Desk, _sentence, recover_options, script


def table(n=12, T=6, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "who": np.repeat([f"s{k}" for k in range(n)], T),
        "x": rng.standard_normal(n * T), "y": rng.standard_normal(n * T),
    })  # fmt: skip


def roles(frame):
    return {each.name: each.role for each in guess(frame)}


@pytest.mark.parametrize(
    "name", ["id", "Patient ID", "subject", "USUBJID", "animal_id", "recordID"]
)
def test_subjects_are_known_by_name_also_as_numbers(name):
    frame = table().rename(columns={"who": name})
    frame[name] = frame[name].str[1:].astype(int)
    assert roles(frame)[name] == "subject"


def test_a_subject_without_a_telling_name_is_text_with_several_rows():
    assert roles(table()) == {"who": "subject", "x": "variable", "y": "variable"}


def test_slices_are_labels_met_once_in_each_subject():
    frame = table()
    frame["plate"] = np.tile([11, 7, 3, 25, 8, 1], 12)
    assert roles(frame)["plate"] == "slice"
    frame["plate"] = 7  # the same for all: no slice
    assert roles(frame)["plate"] == "none"
    frame["tag"] = np.tile(list("abcdef"), 12)
    assert roles(frame)["tag"] == "slice"


@pytest.mark.parametrize(
    "times", [np.tile(np.arange(6.0), 12), np.tile([f"2024-01-0{k}" for k in range(1, 7)], 12)]
)
def test_times_are_numbers_called_so_or_dates(times):
    frame = table()
    frame["visit date"] = times
    assert roles(frame)["visit date"] == "time"


def test_inputs_are_called_so_and_a_switch_is_left_to_its_owner():
    frame = table()
    frame["dose_mg"], frame["on"] = np.tile([0, 5, 5, 0, 5, 0], 12), np.tile([0, 1, 0, 1, 0, 0], 12)
    frame["sex"] = np.repeat(np.arange(12) % 2, 6)
    found = roles(frame)
    assert (found["dose_mg"], found["on"], found["sex"]) == ("input", "none", "none")


def test_an_input_is_not_all_there_is_and_a_second_time_is_no_variable():
    frame = table().drop(columns="y").rename(columns={"x": "log_conc_per_dose"})
    assert roles(frame)["log_conc_per_dose"] == "variable"
    frame["hours"] = np.tile(np.arange(6.0), 12)
    frame["days"] = frame["hours"] / 24
    assert roles(frame) == {
        "who": "subject",
        "log_conc_per_dose": "variable",
        "hours": "time",
        "days": "none",
    }


def test_every_column_has_a_reason_and_nothing_is_guessed_without_a_subject():
    found = guess(table().drop(columns="who"))
    assert all(each.reason for each in found)
    assert chosen(found)["subject"] is None


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_guessed_whole(name):
    found = chosen(guess(EXAMPLES[name]()))
    assert (found["subject"], found["slice"]) == ("patient", "visit")
    assert bool(found["covariates"]) == (name == "treated")
    rt.Panel.from_frame(EXAMPLES[name](), **{k: v or None for k, v in found.items()})


def test_hostile_names_are_quoted_in_the_script():
    evil = "x');import os;os.system('rm -rf /')#\n\""
    text = script(evil, {"subject": evil, "slice": evil, "variables": [evil]}, {"first": evil})
    import ast

    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = {ast.unparse(node.func) for node in calls}
    assert "os.system" not in names
    assert "rt.recover" in names


def test_the_script_uses_public_names_only():
    import ast

    roles = {"subject": "s", "slice": "v", "variables": ["x"], "covariates": ["u"]}
    tree = ast.parse(script("t.csv", roles, {"first": "a", "last": "b", "dt": 0.5}))
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert imported == ["sys", "retrace_sde"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rt"
    }
    assert used == {"read_table", "recover", "Knowledge"} <= set(rt.__all__)
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "found"
    }
    assert not [
        name
        for name in found
        if name.startswith("_") or (not hasattr(rt.Recovery, name) and name != "model")
    ]


def test_options_of_the_page_are_those_of_recover():
    asked = recover_options(
        {"subject": "s", "slice": None, "variables": ["x"]}, {"dt": 0.5, "first": "a"}
    )
    assert asked == {"subject": "s", "variables": ["x"], "dt": 0.5, "random_state": 0}


def test_a_page_cannot_ask_for_the_decimal_sign_and_need_not(tmp_path):
    """Semicolons and three decimals everywhere: used to be refused with an option that the page does not have."""
    path = tmp_path / "t.csv"
    table().round(3).to_csv(path, sep=";", decimal=",", index=False, float_format="%.3f")
    found = Desk(tmp_path).read({"path": str(path)})
    assert found["roles"]["variables"] == ["x", "y"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (np.linalg.LinAlgError("singular matrix"), "The computation broke down (singular matrix)"),
        (MemoryError(), "The table does not fit into memory."),
        (ValueError("/folder/upload-1.csv has no rows"), "T.csv has no rows"),
    ],
)
def test_what_fails_is_said_in_a_sentence(error, said):
    """numpy's error is a ValueError too: its own words say nothing to who drops a table."""
    found = _sentence(error, {"path": "/folder/upload-1.csv", "name": "t.csv"})
    assert found.startswith(said)
