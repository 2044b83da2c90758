"""
A clock column
==============

An age left among the variables has no noise, so rounding would decide the direction. It is recognised in any order, left out and named.
If it is a time, it can be used as one.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import retrace_sde as rt

rng = np.random.default_rng(0)
n, T = 40, 12
sde = rt.LinearSDE([[-1.0, 0.5], [-0.3, -1.2]], 0.2 * np.eye(2))
X = sde.simulate(n, T, 0.2, x0=2 + 0.3 * rng.standard_normal((n, 2)), random_state=1)
born = rng.integers(40, 70, size=n)
table = pd.DataFrame(
    {
        "patient": np.repeat(np.arange(n), T),
        "visit": np.tile(rng.permutation(T), n),  # a code that means nothing
        "liver": X[..., 0].ravel(),
        "kidney": X[..., 1].ravel(),
        "age": np.repeat(born, T) + np.tile(np.arange(T), n),
    }
).sample(frac=1, random_state=2)

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = rt.recover(table, subject="patient", slice="visit", dt=0.2, random_state=0)
for each in said:
    print("Warning:", each.message)
print("variables used:", found.model.result_.names)
print(found.model.direction_.verdict)

# %%
# This was correct: within each patient the age grows along the order found.

figure, ax = plt.subplots(figsize=(6.5, 3.2))
for _, rows in list(found.ordered.groupby("patient"))[:10]:
    ax.plot(rows["position"], rows["age"] - rows["age"].min(), color="C0", alpha=0.5)
ax.set(
    xlabel="position found",
    ylabel="years since the first visit",
    title="The column that was left out",
)
figure.tight_layout()
