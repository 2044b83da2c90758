"""The walks of docs/walk.md: the tables that newcomers brought, and the commands as they are typed there.

Makes `study.xlsx` (a page of notes, missing visits and values, a treatment, a patient who came once), `horse wounds FINAL v2.csv`
(odd names, several signs for missing values, clocks with different origins) and an AnnData object; runs the commands and prints what they
print, with their seconds, and the true orders.

    python studies/walks.py [--seed 20311] [--out DIR]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anndata
import numpy as np
import pandas as pd

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

STUDY = "study.xlsx --subject Patient --slice Visit"
HORSES = "'horse wounds FINAL v2.csv' --subject 'Horse ID' --slice 'Photo batch'"
COMMANDS = (
    f"diagnose {STUDY}",
    f"fit {STUDY} --covariates Drug --out res",
    f"effect {STUDY} --treatment Drug --out effect.xlsx",
    f"forecast {STUDY} --covariates Drug --steps 2 --out next.xlsx",
    f"diagnose {HORSES}",
    f"fit {HORSES} --out horses",
    f"fit {HORSES} --time 'Age at photo (days)' --covariates 'Honey gel ml' --out horses-timed",
)


def study(rng: np.random.Generator) -> tuple[pd.DataFrame, list[str]]:
    """Forty patients; pressure and glucose go a quarter of the way to a level that the drug lowers by 14 and 1."""
    n, T = 40, 8
    labels = [f"V{k}" for k in rng.permutation(np.arange(1, T + 1))]
    rows = []
    for i in range(n):
        drug = i % 2
        x = np.array([160 + 8 * rng.standard_normal(), 7 + 0.6 * rng.standard_normal()])
        for label in labels:
            rows.append((f"P{i:02d}", label, drug, round(x[0], 1), round(x[1], 2)))
            level = np.array([150.0 - 14 * drug, 6.5 - drug])
            x = x + 0.25 * (level - x) + np.array([2.0, 0.15]) * rng.standard_normal(2)
    frame = pd.DataFrame(rows, columns=["Patient", "Visit", "Drug", "Pressure", "Glucose"])
    frame.loc[rng.random(len(frame)) < 0.05, "Glucose"] = np.nan
    frame = frame[rng.random(len(frame)) > 0.05]
    once = frame[frame["Patient"] == "P07"].index[1:]
    return frame.drop(index=once).sample(frac=1, random_state=1), labels


def horses(rng: np.random.Generator) -> tuple[pd.DataFrame, list[str]]:
    """Forty-eight wounds that honey gel makes smaller, directly and by their pH."""
    n, labels = 48, [str(each) for each in rng.permutation(list("ABCDEFGHI"))]
    rows = []
    for i in range(n):
        area, ph, skin = rng.normal(20, 3), rng.normal(7.6, 0.2), rng.normal(31, 0.5)
        age, honey = int(rng.integers(300, 3000)), i % 2
        for t, label in enumerate(labels):
            gel = honey * float(rng.integers(5, 30))
            rows.append((f"H{i:02d}", round(area, 2), round(ph, 2), round(skin, 1), age + 3 * t, "ny"[honey], gel,
                         str(rng.choice(["AB", "CD"])), label))  # fmt: skip
            area += 0.6 * (ph - 7.2) - (0.12 + 0.0021 * gel) * area + 0.5 * rng.standard_normal()
            ph += 0.25 * (7.3 - ph) - 0.005 * gel + 0.06 * rng.standard_normal()
            skin += 0.3 * (31 - skin) + 0.2 * rng.standard_normal()
    names = ["Horse ID ", "Wound area (cm²)", "pH wound", "skin temp °C", "Age at photo (days)", "HONEY y/n", "Honey gel ml",
             "photographer", "Photo batch"]  # fmt: skip
    frame = pd.DataFrame(rows, columns=names).astype(object)
    for name in names[1:4]:
        empty = rng.random(len(frame)) < 0.07
        frame.loc[empty, name] = rng.choice(["", "n/a", "-"], empty.sum())
    return frame.sample(frac=1, random_state=0), labels


def cells(seed: int) -> None:
    """An AnnData object of donors on plates, and the snapshot that is refused."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    X = sde.simulate(30, 8, 0.1, x0=sde.initial, random_state=seed)
    X, order = rt.simulate.shuffle(X, random_state=seed)
    obs = pd.DataFrame({"donor": np.repeat([f"d{i}" for i in range(30)], 8), "plate": np.tile([f"p{k}" for k in range(8)], 30)})  # fmt: skip
    adata = anndata.AnnData(X.reshape(-1, 3), obs=obs.set_index(obs.index.astype(str)))
    rt.anndata.order(adata, subject="donor", slice="plate", dt=0.1)
    found = adata.obs.groupby("plate", observed=True)["retrace_position"].first().astype(int)
    print(f"AnnData: positions of the plates {found.tolist()}; true {np.argsort(order).tolist()}")
    try:
        rt.anndata.order(adata[::8].copy(), subject="donor", slice="plate")
    except ValueError as error:
        print(f"AnnData, one observation of each donor: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seed", type=int, default=20311)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "retrace-walks")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    table, visits = study(np.random.default_rng(asked.seed))
    with pd.ExcelWriter(asked.out / "study.xlsx") as book:
        notes = pd.DataFrame({"About": ["Exported 2026-11-01", "Contact: the study nurse"]})
        notes.to_excel(book, sheet_name="Notes", index=False)
        table.to_excel(book, sheet_name="Visits", index=False)
    wounds, batches = horses(np.random.default_rng(asked.seed))
    wounds.to_csv(asked.out / "horse wounds FINAL v2.csv", index=False)
    print(f"True orders: {' → '.join(visits)}; {' → '.join(batches)}\n")
    failed, table = 0, []
    for command in COMMANDS:
        force = ["--force"] if "--out" in command else []
        begun, spent = time.perf_counter(), os.times()
        run = subprocess.run([sys.executable, "-m", "retrace_sde", *shlex.split(command), *force], cwd=asked.out, text=True,
                             capture_output=True)  # fmt: skip
        failed += run.returncode != 0
        now = os.times()
        cpu = now.children_user + now.children_system - spent.children_user - spent.children_system
        table.append([f"`retrace {command}`", f"{cpu:.0f}", f"{time.perf_counter() - begun:.0f}"])
        print(f"$ retrace {command}\n{run.stdout}{run.stderr}")
    columns = ["command", "CPU seconds", "wall-clock seconds"]
    print(*lines({"columns": columns, "rows": table}), sep="\n")
    cells(asked.seed)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
