"""Real tables through `retrace fit`, rows shuffled and times relabelled, missing values and all.

    python studies/real_tables.py FOLDER [--only NAME …]

FOLDER holds long csv files `subject,time,<variables>`. A shared order: times become labels drawn at random, and rows
are shuffled. pbcseq_raw_irregular: each patient's visits are shuffled separately, and recovered without
knowledge, with the times of the first three visits, and with these known to be the first three. Printed: accuracy up to reversal, Kendall's τ (of
each patient, averaged; and among the visits whose time was not given), neighbours, direction, seconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main as retrace

SHARED = {
    "physionet2012_icu_4h": (),
    "pbcseq_visits": (),
    "mavoglurant_pk": ("--spacing", "estimate"),
    "theoph": ("--variables", "conc_mg_L"),
    "berkeley_growth": (),
    "chickweight": (),
    "tcell34": (),
    "ecb_fx_monthly": (),
    "grunfeld": (),
    "gait": (),
    "physionet2012_icu_1h_missing": (),
}
LOGS = ["bili", "alk.phos", "ast", "protime"]
VISITS = [*(f"log_{name}" for name in LOGS), "albumin", "platelet"]


def fit(table: pd.DataFrame, *options: str) -> tuple[dict[str, Any], pd.DataFrame, float]:
    """What `retrace fit` prints and writes."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "table.csv", Path(folder) / "out"
        table.to_csv(file, index=False)
        begin = time.perf_counter()
        arguments = [
            "fit",
            str(file),
            "--subject",
            "subject",
            "--json",
            "--out",
            str(out),
            *options,
        ]
        run = CliRunner().invoke(retrace, arguments)
        seconds = time.perf_counter() - begin
        if run.exit_code:
            raise SystemExit(run.stderr or repr(run.exception))
        return json.loads(run.stdout), pd.read_csv(out / "ordered.csv"), seconds


def direction(found: dict[str, Any], tau: float) -> str:
    test = found["direction"]
    if not test["identified"]:
        return "closed loop" if found["cycle"] else "open"
    tested = "known" if test["p_value"] is None else f"p = {test['p_value']:.2g}"
    return f"{'right' if tau > 0 else 'WRONG'} ({tested})"


def shared(table: pd.DataFrame, *options: str) -> str:
    rng = np.random.default_rng(1)
    times = np.sort(table["time"].unique())
    labels = dict(zip(times, rng.permutation([f"s{k}" for k in range(len(times))]), strict=True))
    rank = {label: k for k, label in enumerate(labels.values())}
    blind = table.assign(slice=table["time"].map(labels)).drop(columns="time")
    found, _, seconds = fit(blind.sample(frac=1, random_state=1), "--slice", "slice", *options)
    place = np.array([rank[label] for label in found["order"]])
    T = len(place)
    accuracy = max((place == np.arange(T)).mean(), (place[::-1] == np.arange(T)).mean())
    tau = pd.Series(place).corr(pd.Series(np.arange(T)), method="kendall")
    near = np.isin(np.abs(np.diff(place)), [1, T - 1] if found["cycle"] else [1]).mean()
    return f"{accuracy:.2f} | {tau:+.2f} | {near:.2f} | {direction(found, tau)} | {seconds:.0f}"


def prepared(table: pd.DataFrame, *, complete: bool) -> pd.DataFrame:
    """Visits in random order, with their true rank."""
    table = table.assign(**{f"log_{name}": np.log(table[name]) for name in LOGS})
    table = table.dropna(subset=VISITS) if complete else table
    table["rank"] = table.groupby("subject")["time"].rank(method="first")
    blind = table[["subject", "time", "rank", *VISITS]]
    return blind.sample(frac=1, random_state=0, ignore_index=True)


def taus(ordered: pd.DataFrame, known: int) -> list[float]:
    """Mean τ over patients, of all visits and of those that are not known."""
    means = []
    for rows in (ordered, ordered[ordered["rank"] > known]):
        each = [
            own["rank"].corr(own["position"], method="kendall")
            for _, own in rows.groupby("subject")
            if len(own) > 2
        ]
        means.append(float(np.mean(each)))
    return means


TOLD = {0: "nothing", 3: "the times of the first three visits"}


def visits(table: pd.DataFrame, *, known: int, complete: bool) -> str:
    """Without knowledge, or with the times of the first visits (but not that they are the first)."""
    blind = prepared(table, complete=complete)
    blind["time"] = blind["time"].where(blind["rank"] <= known)
    options = ("--time", "time") if known else ("--independent",)
    found, ordered, seconds = fit(blind, "--variables", ",".join(VISITS), *options)
    both = taus(ordered, known)
    others = f"{both[1]:+.2f}" if known else "–"
    return f"{both[0]:+.2f} | {others} | {direction(found, both[0])} | {seconds:.0f}"


def first_known(table: pd.DataFrame, *, known: int, complete: bool) -> str:
    """With the first visits known to be the first, the second and so on."""
    blind = prepared(table, complete=complete).drop(columns="time")
    panel = rt.Panel.from_frame(blind, subject="subject", variables=VISITS)
    rank = np.where(panel.rows >= 0, blind["rank"].to_numpy()[panel.rows], np.inf)
    first = rt.Knowledge(positions=np.where(rank <= known, rank - 1, -1))
    begin = time.perf_counter()
    found = rt.recover(blind, subject="subject", variables=VISITS, knowledge=first, random_state=0)
    seconds = time.perf_counter() - begin
    both = taus(found.ordered, known)
    told = direction(found.parameters, both[0])
    return f"{both[0]:+.2f} | {both[1]:+.2f} | {told} | {seconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    names = [name for name in SHARED if not options.only or name in options.only]
    if names:
        print("| table | accuracy up to reversal | τ | neighbours | direction | seconds |")
        print("|---|---|---|---|---|---|")
    for name, extra in SHARED.items():
        if name in names:
            table = pd.read_csv(options.folder / f"{name}.csv")
            label = f"{name} ({' '.join(extra)})" if extra else name
            print(f"| {label} | {shared(table, *extra)} |", flush=True)
    name = "pbcseq_raw_irregular"
    if not options.only or name in options.only:
        table = pd.read_csv(options.folder / f"{name}.csv")
        print("\n| rows, known | τ | among the others | direction | seconds |")
        print("|---|---|---|---|---|")
        for complete in (True, False):
            label = f"{'complete' if complete else 'all'} rows"
            for known in (0, 3):
                line = visits(table, known=known, complete=complete)
                print(f"| {label}, {TOLD[known]} | {line} |", flush=True)
            line = first_known(table, known=3, complete=complete)
            print(f"| {label}, the first three visits as such | {line} |", flush=True)


if __name__ == "__main__":
    main()
