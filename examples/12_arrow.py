"""
Which way does time run?
========================

Three series in order: a linear process at rest, whose reverse is as good; noisy chaos, which runs one way only; and a relaxation whose
times count down. The answer is *open*, *forwards* and *backwards*, and says what it rests on.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

rng = np.random.default_rng(0)
resting, chaos = np.zeros(1500), np.full(1500, 0.3)
for t in range(1499):
    resting[t + 1] = 0.7 * resting[t] + rng.standard_normal()
    chaos[t + 1] = np.clip(
        3.9 * chaos[t] * (1 - chaos[t]) + 0.01 * rng.standard_normal(), 0.01, 0.99
    )
relaxing = np.zeros((40, 20))
for t in range(19):
    relaxing[:, t + 1] = 3 + 0.8 * (relaxing[:, t] - 3) + 0.3 * rng.standard_normal(40)

answers = {
    "at rest": rt.arrow_of_time(resting),
    "chaos": rt.arrow_of_time(chaos),
    "days before an event": rt.arrow_of_time(relaxing[:, ::-1, None]),
}
for name, found in answers.items():
    print(f"{name}: {found.direction}\n  {found.verdict}")
    for sentence in (*found.assumptions, *found.advice):
        print("  -", sentence)

# %%
# The series, as they were given:

figure, axes = plt.subplots(1, 3, figsize=(9, 2.6))
axes[0].plot(resting[:80])
axes[1].plot(chaos[:80])
axes[2].plot(relaxing[:12, ::-1].T, color="C0", alpha=0.4)
for ax, (name, found) in zip(axes, answers.items(), strict=True):
    ax.set(title=f"{name}: {found.direction}", xlabel="as given")
figure.tight_layout()
