"""Twenty messy tables: each ends in the right order, or in one line that says what to type; that then works."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main

N, T, DT = 24, 6, 0.3
LABELS = ["F", "B", "E", "A", "D", "C"]
"""The slices in true time order."""


def run(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def clean():
    """Three variables of 24 people at six visits, rows shuffled, with the true day of each visit."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=4)
    X = 20 + 3 * sde.simulate(N, T, DT, x0=0.2, random_state=1)
    frame = pd.DataFrame(
        {
            "patient": np.repeat([f"{j:03d}" for j in range(1, N + 1)], T),
            "visit": np.tile(LABELS, N),
            "day": pd.Timestamp("2024-01-20") + pd.to_timedelta(np.tile(np.arange(T), N) * 7, unit="D"),
            "weight": X[..., 0].ravel(),
            "pulse": X[..., 1].ravel(),
            "crp": X[..., 2].ravel(),
        }
    )  # fmt: skip
    return frame.sample(frac=1, random_state=5).reset_index(drop=True)


def in_dollars(frame):
    """Thousands with a comma, in quotes, as a spreadsheet writes them."""
    return frame.assign(weight=[f"{1000 * each:,.2f}" for each in frame.weight])


def german(frame, file):
    """Semicolons, decimal commas, Windows' encoding, an umlaut in a name."""
    frame.rename(columns={"weight": "größe"}).to_csv(
        file, sep=";", decimal=",", encoding="cp1252", index=False, date_format="%d.%m.%Y"
    )


def excel(frame, file):
    """A workbook with an empty column and an old sheet."""
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(file) as book:
        frame.assign(remarks=None).to_excel(book, sheet_name="Visits", index=False)
        frame.head(3).to_excel(book, sheet_name="old", index=False)


def text(frame, file, **options):
    frame.to_csv(file, index=False, **options)


def titled(frame, file):
    file.write_text("Export of 5 March\n\n" + frame.to_csv(index=False))


def ids_as_numbers(frame, file):
    """The first column counts rows, the ids are floats, as a join leaves them."""
    frame.assign(patient=frame.patient.astype(float)).to_csv(file)


def one_visit(frame, file):
    some = frame[(frame.patient != "004") | (frame.visit == "E")]
    text(some, file)


def doubled(frame, file):
    text(pd.concat([frame, frame.iloc[[0, 7]]]), file)


SHARED = "--subject patient --slice visit"
OWN = "--subject patient --variables weight,pulse,crp --time day"

ANSWERED = {
    "clean": (text, "t.csv", SHARED),
    "german csv": (german, "t.csv", SHARED),
    "a workbook": (excel, "t.xlsx", SHARED),
    "tabs in a txt file": (lambda f, p: text(f, p, sep="\t"), "t.txt", SHARED),
    "utf-16 from a spreadsheet": (lambda f, p: text(f, p, sep="\t", encoding="utf-16"), "t.csv", SHARED),
    "a title above the table": (titled, "t.csv", SHARED),
    "ids as numbers, rows counted": (ids_as_numbers, "t.csv", SHARED),
    "points for missing cells": (
        lambda f, p: text(f.assign(crp=f.crp.where(f.index != 9)), p, na_rep="."), "t.csv", SHARED),
    "thousands with commas": (lambda f, p: text(in_dollars(f), p), "t.csv", SHARED),
    "sep= on top": (lambda f, p: p.write_text("sep=;\n" + f.to_csv(index=False, sep=";")), "t.csv", SHARED),
    "a counter and a constant": (
        lambda f, p: text(f.assign(n=f.groupby("patient")["day"].rank(), site=1), p), "t.csv", SHARED),
    "a copy in pounds": (lambda f, p: text(f.assign(lb=(f.weight * 2.2046).round(4)), p), "t.csv", SHARED),
    "us dates known": (lambda f, p: text(f.drop(columns="visit"), p, date_format="%m/%d/%Y"), "t.csv", OWN),
    "one visit of one patient": (one_visit, "t.csv", SHARED),
    "the same record twice, dates known": (doubled, "t.csv", OWN),
}  # fmt: skip


def answer(file, options, tmp_path):
    found = run("fit", file, *shlex.split(options), "--json", "--out", tmp_path / "out")
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.stdout)


def check(found, tmp_path):
    """The true order: of the slices, or of each patient's days."""
    if found["order"] is not None:
        assert found["order"] == LABELS
        return
    table = pd.read_csv(tmp_path / "out" / "ordered.csv").dropna(subset=["position"])
    day = pd.to_datetime(table.day, format="mixed")
    assert (day.groupby(table.patient).rank() == table.position + 1).all()
    assert found["variables"] == ["weight", "pulse", "crp"]


@pytest.mark.parametrize("case", ANSWERED)
def test_a_messy_table_is_answered(case, clean, tmp_path):
    make, name, options = ANSWERED[case]
    file = tmp_path / name
    make(clean, file)
    found = answer(file, options, tmp_path)
    check(found, tmp_path)
    assert len(found["variables"]) == 3


ASKED = {
    "dates that can be read two ways": (
        lambda f, p: text(
            f.assign(day=pd.Timestamp("2024-01-02") + (f.day - f.day.min()) / 7).drop(columns="visit"), p,
            date_format="%m/%d/%Y"),
        OWN, "--monthfirst", f"{OWN} --monthfirst"),
    "commas for decimals or thousands": (
        lambda f, p: text(f.assign(weight=[f"{each:.3f}".replace(".", ",") for each in f.weight]), p),
        SHARED, "--decimal ,", f"{SHARED} --decimal ,"),
    "a property for the subject": (
        lambda f, p: text(f.assign(sex=np.where(f.patient.astype(int) % 2, "m", "f")), p),
        "--subject sex --variables weight,pulse,crp", "--subject patient", SHARED),
    "a name misspelt": (text, "--subject Patient --slice visit", "Did you mean 'patient'?", SHARED),
    "a header one name short": (
        lambda f, p: p.write_text(f.to_csv(index=False).replace(",crp\n", "\n", 1)), SHARED, "name every column", None),
    "two rows for a visit": (doubled, SHARED, "They agree in every variable: keep one row of each", None),
    "a word among numbers": (
        lambda f, p: text(f.assign(crp=f.crp.astype(str).where(f.index != 9, "high")), p), SHARED, "'high' in row 10",
        f"{SHARED} --variables weight,pulse"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_a_messy_table_is_asked_about_in_one_line(case, clean, tmp_path):
    make, options, hint, then = ASKED[case]
    file = tmp_path / "t.csv"
    make(clean, file)
    found = run("fit", file, *shlex.split(options), "--out", tmp_path / "out")
    assert found.exit_code == 2, (found.output, found.exception)
    assert hint in found.stderr
    assert found.stderr.startswith("retrace: ")
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    if then is not None:
        check(answer(file, then, tmp_path), tmp_path)


def test_there_are_twenty():
    assert len(ANSWERED) + len(ASKED) >= 20
