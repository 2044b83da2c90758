"""
A direction that is not identifiable, and what identifies it
============================================================

A stationary vortex, run backwards in time, is a vortex that turns the other way. With unknown drift the two cannot be distinguished: the
answer is *open*, and both are returned. A start away from equilibrium, or one known pair, settles it.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

vortex = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
still, truth = rt.simulate.shuffle(
    vortex.simulate(100, 15, 0.1, x0="stationary", random_state=3), random_state=2
)
open_ = rt.ReTrace(dt=0.1, random_state=0).fit(still)
print(open_.direction_.verdict)

# %%
# **A transient.** The same vortex, started away from its centre:

start = rt.Gaussian(np.array([2.0, 0.0]), 0.1 * np.eye(2))
moving, _ = rt.simulate.shuffle(
    vortex.simulate(100, 15, 0.1, x0=start, random_state=3), random_state=2
)
told = rt.ReTrace(dt=0.1, random_state=0).fit(moving)
print(told.direction_.verdict)

# %%
# **Knowledge.** One slice is known to be earlier than another:

pair = rt.Knowledge(precedences=[(int(truth[2]), int(truth[12]))])
known = rt.ReTrace(dt=0.1, random_state=0).fit(still, knowledge=pair)
print(
    known.direction_.verdict,
    f"Positions right: {rt.metrics.order_accuracy(truth, known.order_):.0%}",
)

# %%
# The evidence of each trajectory: in the stationary case as many for as against.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for ax, fit, title in zip(
    axes, (open_, told), ("Stationary: open", "Transient: identified"), strict=True
):
    rt.plots.direction_evidence(fit.direction_, ax=ax)
    ax.set_title(title)
figure.tight_layout()
