"""Sheets of workbooks, and tables written as the user's own: `--sheet`, semicolons, decimal commas, `--out-format`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io.files import EXTENSIONS, read_table
from retrace_sde.io.writing import OUT_FORMATS, check_writable, write_table

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")

ROLES = ("--subject", "Tier", "--slice", "Besuch")
FAST = ("--estimator", "mle", "--observation-noise", "none", "--subjects", "alike")


def table():
    """Names with an umlaut, ids with leading zeros, a formula among the remarks."""
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(20, 6, 0.05, random_state=1)
    rows = [
        {"Tier": f"{j:03d}", "Besuch": "CAFBED"[t], "größe": X[j, t, 0], "x": X[j, t, 1], "note": "=1+1"}
        for j in range(20)
        for t in range(6)
    ]  # fmt: skip
    return pd.DataFrame(rows).sample(frac=1, random_state=2).reset_index(drop=True)


def run(*words, code=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found.output


@pytest.fixture
def book(tmp_path):
    """A workbook whose table is on its second sheet."""
    path = tmp_path / "Studie.xlsx"
    with pd.ExcelWriter(path) as file:
        pd.DataFrame({"about": ["exported in May"]}).to_excel(file, sheet_name="Info", index=False)
        table().to_excel(file, sheet_name="Besuche", index=False)
    return path


@pytest.fixture
def european(tmp_path):
    """As a German Excel writes csv: semicolons, decimal commas, the Windows encoding."""
    path = tmp_path / "t.csv"
    table().to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")
    return path


def test_a_sheet_is_read_by_its_name(book):
    frame = read_table(book, sheet="Besuche", text=["Tier"])
    assert len(frame) == 120
    assert frame["Tier"].iloc[0] in set(table()["Tier"])
    assert frame.attrs["notes"] == ["sheet 'Besuche' was read, and not 'Info'"]
    with pytest.raises(ValueError, match=r"no sheet 'besuche'; its sheets are 'Info', 'Besuche'\. Did you mean 'Besuche'"):  # fmt: skip
        read_table(book, sheet="besuche")
    table().to_csv(book.with_suffix(".csv"), index=False)
    with pytest.raises(ValueError, match="no workbook with sheets"):
        read_table(book.with_suffix(".csv"), sheet="Besuche")


def test_commands_read_a_sheet_and_name_it(book, tmp_path):
    words = (*ROLES, "--sheet", "Besuche")
    named = "Sheet 'Besuche' was read, and not 'Info'."
    assert named in run("diagnose", book, *words)
    assert named in run("fit", book, *words, *FAST, "--out", tmp_path / "o")
    saved = ("--fitted", tmp_path / "o")
    assert named in run("place", book, *words, *saved, "--out", tmp_path / "p.csv")
    said = run(
        "forecast", book, *words, *saved, "--steps", 1, "--out", tmp_path / "f.csv", "--json"
    )
    assert json.loads(said)["notes"] == [named]


def test_a_european_table_is_written_as_it_was_read(european, tmp_path):
    run("fit", european, *ROLES, *FAST, "--out", tmp_path / "o")
    options = {"sep": ";", "decimal": ",", "encoding": "cp1252", "dtype": {"Tier": str}}
    after = pd.read_csv(tmp_path / "o" / "ordered.csv", **options)
    before = table().sort_values(["Tier", "Besuch"]).reset_index(drop=True)
    found = after.sort_values(["Tier", "Besuch"]).reset_index(drop=True)
    assert list(found["Tier"]) == list(before["Tier"])
    assert np.allclose(found["größe"], before["größe"])
    assert found["position_probability"].between(0, 1).all()
    again = read_table(tmp_path / "o" / "ordered.csv", text=["Tier"])  # by our own reader too
    assert np.allclose(sorted(again["größe"]), sorted(before["größe"]))
    saved = ("--fitted", tmp_path / "o")
    run("forecast", european, *ROLES, *saved, "--steps", 1, "--out", tmp_path / "f.csv")
    assert pd.read_csv(tmp_path / "f.csv", **options)["mean"].dtype == float
    run("place", european, *ROLES, *saved, "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv", **options)["x"].dtype == float


@pytest.mark.parametrize("kind", OUT_FORMATS)
def test_tables_are_written_in_the_format_that_is_asked_for(european, tmp_path, kind):
    said = run("fit", european, *ROLES, *FAST, "--out", tmp_path / "o", "--out-format", kind)
    assert f"ordered.{kind}" in said
    found = read_table(tmp_path / "o" / f"ordered.{kind}", text=["Tier"])
    assert sorted(set(found["Tier"])) == [f"{j:03d}" for j in range(20)]
    assert np.allclose(sorted(found["größe"]), sorted(table()["größe"]))
    assert set(found["note"]) == {"=1+1"}
    assert not (tmp_path / "o" / "ordered.csv").exists() or kind == "csv"
    if kind == "csv":  # asked for, it is the usual one
        assert len(pd.read_csv(tmp_path / "o" / "ordered.csv").columns) == 9


def test_a_format_that_cannot_be_written_is_refused_before_the_work(european, tmp_path):
    words = ("forecast", european, *ROLES, "--steps", 1)
    assert "tables are written as .csv, .tsv, .xlsx, .parquet" in run(*words, "--out", tmp_path / "f.pdf", code=2)  # fmt: skip
    said = run(*words, "--out", tmp_path / "f.csv", "--out-format", "xlsx", code=2)
    assert "is not called .xlsx" in said
    with pytest.raises(ValueError, match="1,048,576 rows"):
        check_writable(tmp_path / "t.xlsx", (1_048_576, 3))


def test_a_workbook_holds_no_formula_and_nothing_that_it_cannot(tmp_path):
    when = pd.Timestamp("2024-03-05 10:00", tz="Europe/Berlin")
    frame = pd.DataFrame({"=A1": ["=1+1", "a\x01b"], "when": [when, when], "mixed": [1, "x"], "list": [[1], None]})  # fmt: skip
    write_table(frame, tmp_path / "t.xlsx")
    import openpyxl

    sheet = openpyxl.load_workbook(tmp_path / "t.xlsx").active
    rows = [[cell.value for cell in row] for row in sheet.iter_rows()]
    assert all(cell.data_type != "f" for row in sheet.iter_rows() for cell in row)
    assert rows[1] == ["=1+1", "2024-03-05T10:00:00+01:00", 1, "[1]"]
    assert rows[2][0] == "a\N{REPLACEMENT CHARACTER}b"
    write_table(frame.drop(columns="list"), tmp_path / "t.parquet")
    assert list(read_table(tmp_path / "t.parquet")["mixed"]) == ["1", "x"]
    with pytest.raises(ValueError, match="32,767 signs"):
        write_table(pd.DataFrame({"a": ["x" * 40_000]}), tmp_path / "t.xlsx")


def test_the_help_of_fit_names_every_format():
    said = run("fit", "--help")
    assert all(f" {suffix[1:]}" in " ".join(said.split()) for suffix in EXTENSIONS)
    for command in ("fit", "diagnose", "forecast", "place", "effect"):
        assert "--sheet" in run(command, "--help")
