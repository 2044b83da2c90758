"""
Treatment effects while the direction is open
=============================================

Twenty patients, six visits in an unknown order, a drug that is given for a while and then stopped. The order of the visits is found, but not which way time runs. An effect estimated along the
wrong direction can have the wrong sign, so none is given unless you ask for both.

**In short:** ``direction="both"`` gives the effect in the order found and in its reverse. Here they have opposite signs; knowing which visit is the baseline settles which one holds.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

rng = np.random.default_rng(0)
n, T, dt, effect = 20, 6, 0.5, 0.4
A = np.array([[-0.7, 0.3], [-0.4, -0.5]])
given = np.zeros((n, T, 1))
given[:, 0, 0] = rng.random(n) < 0.5
for t in range(1, T):  # mostly as at the last visit
    given[:, t, 0] = np.where(rng.random(n) < 0.9, given[:, t - 1, 0], rng.random(n) < 0.5)
x = 0.4 * rng.standard_normal((n, 2)) + given[:, 0] * [effect, 0]
path = [x]
for t in range(T - 1):
    for _ in range(10):
        noise = 0.4 * np.sqrt(dt / 10) * rng.standard_normal((n, 2))
        x = x + (x @ A.T + given[:, t] * [effect, 0]) * dt / 10 + noise
    path.append(x)
X = np.stack(path, axis=1)
lost, truth = rt.simulate.shuffle(X, random_state=1)
drug, _ = rt.simulate.shuffle(given, random_state=1)  # the treatment stays with its visit

# %%
# By default an open direction is an error:

options = {
    "dt": dt,
    "permutation": "shared",
    "drift": "affine",
    "subjects": "alike",
    "random_state": 0,
}
try:
    rt.TreatmentEffect(**options).fit(lost, drug)
except rt.treatment.UndeterminedDirectionError as error:
    print(error)

# %%
# Both answers, side by side. What they have in common can be said; here it is nothing, not even the sign:

asked = {"T0": [0], "T1": [1], "draws": 100}
both = rt.TreatmentEffect(direction="both", **options).fit(lost, drug)
rows = {"in the order found": both, "in reverse": both.alternative_}
print(both.summary())

# %%
# One fact settles it. The protocol says which visit was the baseline; the order is found with it, and the effect estimated along that order:

baseline = rt.Knowledge(first=int(truth[0]))
order = rt.ReTrace(dt=dt, random_state=0).fit(lost, knowledge=baseline).order_
rows["baseline known"] = rt.TreatmentEffect(**options).fit(lost, drug, order=order)
print("positions right:", rt.metrics.order_accuracy(truth, order))

# %%
# Effect on the first variable at the last visit, with 95 % intervals; dotted, the truth:

when = np.linspace(0, (T - 1) * dt, 500)
response = np.zeros(2)
for step in np.diff(when):
    response = response + (A @ response + [effect, 0]) * step
figure, ax = plt.subplots(figsize=(6.5, 2.4))
for k, (name, each) in enumerate(rows.items()):
    low, high = each.ate_interval(**asked)
    mean = each.ate(T0=[0], T1=[1])
    print(f"{name}: {mean[0]:+.2f} [{low[0]:+.2f}, {high[0]:+.2f}]")
    ax.errorbar(mean[0], k, xerr=[[mean[0] - low[0]], [high[0] - mean[0]]], fmt="o", color=f"C{k}")
ax.axvline(response[0], color="black", linestyle=":")
ax.axvline(0, color="black", linewidth=0.8)
ax.set(yticks=range(3), yticklabels=list(rows), xlabel="average effect of the drug")
ax.invert_yaxis()
figure.tight_layout()
