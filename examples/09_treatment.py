"""
Treatment effects, and what a reversed order does to them
=========================================================

Tumours under chemotherapy and radiotherapy; larger tumours are treated more. Visits are shuffled. Effects are estimated along the order found,
the true one and its reverse.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

cohort = rt.tumour.simulate_cohort(150, steps=20, random_state=0)
panel, truth = rt.simulate.shuffle(cohort.states, random_state=1)
inputs, _ = rt.simulate.shuffle(cohort.covariates, random_state=1)
true_effect = (cohort.paths["treated"][:, -1] - cohort.paths["untreated"][:, -1]).mean()

asked = {"T0": [0, 0], "T1": [5, 1]}
rows = []
for name, order in (("order found", None), ("order known", truth), ("reversed", truth[::-1])):
    effects = rt.TreatmentEffect(dt=cohort.dt, permutation="shared", drift="tumour", random_state=0)
    effects.fit(panel, inputs, order=order)
    low, high = effects.ate_interval(**asked, draws=100)
    rows.append((name, effects.ate(**asked), low, high))
    print(f"{name}: {rows[-1][1]:+.2f} cm³ [{low:+.2f}, {high:+.2f}]")
print(f"truth: {true_effect:+.2f} cm³")

# %%
# Read backwards, growing tumours seem to shrink, and treatment seems harmful or ineffective. An open direction therefore raises an error.

names, means, lows, highs = zip(*rows, strict=True)
figure, ax = plt.subplots(figsize=(6.5, 2.4))
ax.errorbar(means, names, xerr=[np.subtract(means, lows), np.subtract(highs, means)], fmt="o")
ax.axvline(true_effect, color="black", linestyle=":", label="truth")
ax.axvline(0, color="black", linewidth=0.8)
ax.invert_yaxis()
ax.set_xlabel("average effect of treatment on the volume, cm³")
ax.legend(frameon=False)
figure.tight_layout()
