"""
Missing values and irregular gaps, together
===========================================

A fifth of the values is missing, visits are unequally spaced, and neither order nor gaps are known.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

rng = np.random.default_rng(0)
gaps = rng.gamma(2.0, 0.1, size=11)
A = -np.eye(3) + 0.5 * np.eye(3, k=1)
sde = rt.LinearSDE(A, 0.2 * np.eye(3))
X = np.empty((60, 12, 3))
X[:, 0] = 2 + 0.3 * rng.standard_normal((60, 3))
for k, gap in enumerate(gaps):
    X[:, k + 1] = sde.simulate(60, 2, gap, x0=X[:, k], scheme="exact", random_state=rng)[:, 1]

lost, truth = rt.simulate.shuffle(X, random_state=1)
lost[rng.random(lost.shape) < 0.2] = np.nan

model = rt.ReTrace(dt=gaps.mean(), spacing="estimate", random_state=0).fit(lost)
print(f"positions right: {rt.metrics.order_accuracy(truth, model.order_):.0%}")
print(model.direction_.verdict)
filled = model.impute(lost)
holes = np.isnan(lost)
held = (filled.low <= X[:, np.argsort(truth)]) & (X[:, np.argsort(truth)] <= filled.high)
print(f"of the {holes.sum()} imputed values, {held[holes].mean():.0%} lie in their 95 % intervals")

# %%
# The estimated gaps and the true ones (their mean is given: it sets the unit of time):

figure, ax = plt.subplots(figsize=(6.5, 3.2))
found, limits = model.gaps_, model.result_.gap_intervals
rt.plots.gaps(found, low=limits[:, 0], high=limits[:, 1], ax=ax)
ax.plot(np.arange(len(gaps)), gaps, "x", color="black", label="truth")
ax.legend(frameon=False)
figure.tight_layout()
