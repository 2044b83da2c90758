"""
Plates without dates
====================

Forty cultures were measured on twelve plates, one plate a day, and the dates were not written down. Every plate has an offset of its own, which
moves all of its cultures together: as large as a culture's own deviations. Trajectories that share shocks are not independent, so a method that takes them
for independent trusts the plates' offsets, and sorts the days by them.

**In short:** nothing has to be set. ``rt.recover(table, subject="culture", slice="plate")`` tests whether cultures move together, finds that they do, and puts all twelve days in order.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import retrace_sde as rt

rng = np.random.default_rng(0)
sde = rt.LinearSDE([[-0.6, 0.4, 0.0], [0.0, -0.5, 0.4], [0.0, 0.0, -0.4]], 0.2 * np.eye(3))
start = rt.Gaussian([2.0, 1.0, -1.0], 0.1 * np.eye(3))
X = sde.simulate(40, 12, dt=0.5, x0=start, random_state=1)
offsets = 0.5 * rng.standard_normal((1, 12, 3))
measured, truth = rt.simulate.shuffle(X + offsets, random_state=2)
rows = [
    {"culture": f"c{i:02d}", "plate": f"P{t:02d}", "a": a, "b": b, "c": c}
    for i, each in enumerate(measured)
    for t, (a, b, c) in enumerate(each)
]
table = pd.DataFrame(rows)
print(table.head(3).to_string(index=False))

# %%
# One line, with default settings. The dependence between cultures is tested, and what they share is modelled: the order comes from how each culture deviates from
# its plate's mean, and the means count by as much as their own shocks allow.

found = rt.recover(table, subject="culture", slice="plate", dt=0.5, random_state=0)
print(found.model.direction_.verdict)
shared = found.model.result_.dependence
print(
    f"{shared.common_share:.0%} of the noise is common to all cultures (p = {shared.p_value:.2g})."
)
right = rt.metrics.order_accuracy(truth, found.model.order_, up_to_reversal=True)
print(f"share of days at their place: {right:.2f}")

# %%
# The same fit with cultures taken for independent (``common_shocks=False``): the offsets of the plates pass for movement, and some days are misplaced.

naive = rt.ReTrace(dt=0.5, common_shocks=False, random_state=0).fit(measured)
naive_right = rt.metrics.order_accuracy(truth, naive.order_, up_to_reversal=True)
print(f"share of days at their place, taken for independent: {naive_right:.2f}")

fig, axes = plt.subplots(1, 3, figsize=(11, 3), sharey=True)
orders = {
    "as stored": np.arange(12),
    "taken for independent": naive.order_,
    "with shared shocks": found.model.order_,
}
for ax, (title, order) in zip(axes, orders.items(), strict=True):
    ax.plot(measured[:8, order, 0].T, color="0.7", lw=1)
    ax.plot(np.argsort(truth)[order], "o-", color="C3", ms=4)
    ax.set(title=title, xlabel="position")
axes[0].set_ylabel("a (grey), true day (red)")
fig.tight_layout()
