"""
Visits after anonymisation
==========================

A registry removed all dates before it shared its table. Each patient was seen eight times, at the same eight points of the protocol, and the visits were renamed V1 to V8
at random. Some visits were missed, and some values were not measured. Which visit came first?

**In short:** ``rt.recover(table, subject="patient", slice="visit")`` returns the table in time order. Here it finds the true order of all eight visits, and which way time runs.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import retrace_sde as rt

rng = np.random.default_rng(0)
n, T = 60, 8
names = ["bilirubin", "albumin", "platelets"]
disease = rt.LinearSDE([[-0.4, -0.3, 0.0], [-0.2, -0.5, 0.1], [0.0, 0.3, -0.3]], 0.05 * np.eye(3))
start = rt.Gaussian([1.5, -1.0, 1.0], 0.1 * np.eye(3))
X = disease.simulate(n, T, dt=0.5, x0=start, random_state=7)
code = [f"V{k}" for k in rng.permutation(T) + 1]  # code[t] is the name of the visit at time t
table = pd.DataFrame(X.reshape(n * T, 3), columns=names)
table.insert(0, "patient", np.repeat([f"p{j:02d}" for j in range(n)], T))
table.insert(1, "visit", np.tile(code, n))
table[names] = table[names].mask(rng.random((n * T, 3)) < 0.05)  # not measured
table = table[rng.random(n * T) > 0.1].sample(frac=1, random_state=2)  # missed visits
print(table.head(4).round(2).to_string(index=False))

# %%
# What can be known, before any fit:

print(rt.diagnose(table, subject="patient", slice="visit"))

# %%
# One line. The table comes back in time order, every row with its position and the probability of that position. ``dt`` is the time between
# visits, half a year: it is the unit of the rates, and the order does not depend on it.

found = rt.recover(table, subject="patient", slice="visit", dt=0.5, random_state=0)
order = [found.panel.slices[k] for k in found.model.order_]
print("found:", " ".join(order))
print("truth:", " ".join(code))
print(found.model.direction_.verdict)
columns = ["patient", "visit", "bilirubin", "position", "time", "position_probability", "direction"]
print(found.ordered[columns].head(4).round(2).to_string(index=False))

# %%
# If the codes had been deleted too, each patient's visits would have an order of their own. Three values per visit then have to determine it, and the
# probabilities say how well they do (complete rows only, to keep the example short):

complete = table.dropna()
alone = rt.recover(complete.drop(columns="visit"), subject="patient", dt=0.5, random_state=0)
true_time = complete["visit"].map({name: k for k, name in enumerate(code)})[alone.ordered.index]
rank = true_time.groupby(alone.ordered["patient"]).rank() - 1
print(alone.model.direction_.verdict)
print(f"positions right: {(rank == alone.ordered['position']).mean():.0%}")
print(f"mean probability given to them: {alone.ordered['position_probability'].mean():.0%}")

# %%
# Bilirubin of all patients by visit code, and in the order found:

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
as_coded = table.sort_values("visit")
for _, rows in as_coded.groupby("patient"):
    left.plot(rows["visit"].str[1:].astype(int), rows["bilirubin"], color="C0", alpha=0.25)
left.set(
    title="By visit code",
    ylabel="bilirubin (standardised)",
    xticks=range(1, T + 1),
    xticklabels=sorted(code),
)
for _, rows in found.ordered.groupby("patient"):
    right.plot(rows["position"], rows["bilirubin"], color="C0", alpha=0.25)
right.set(title="In the order found", xticks=range(T), xticklabels=order)
figure.tight_layout()
