"""
A variable that is known to grow
================================

Calves gain weight steadily. Steady growth in reverse is steady loss, as likely a process: the data leave the direction open. What everybody
knows, that weight grows, settles it.

**In short:** ``rt.Knowledge(increasing="weight")``, or ``--increasing weight``, names the variable that grows. The order then runs forwards.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

rng = np.random.default_rng(0)
n, T = 25, 10
weight = rng.normal(40, 3, (n, 1)) + np.cumsum(0.4 + 0.3 * rng.standard_normal((n, T)), axis=1)
heart = 80 + rng.standard_normal((n, T))
panel = np.stack([weight, heart], axis=2)
X, truth = rt.simulate.shuffle(panel, random_state=3)

alone = rt.ReTrace(random_state=0).fit(X)
print("alone:", alone.direction_.verdict)
told = rt.ReTrace(random_state=0).fit(X, knowledge=rt.Knowledge(increasing=0))
print("told:", told.direction_.verdict)
print(*told.result_.notes, sep="\n")

# %%
# One note says what settled the direction. The others concern the heart rate, which is white noise here: it has no memory from one batch to the next, so no continuous process describes it,
# and one of its values stands out by chance.
#
# On the command line: ``retrace fit calves.csv --subject calf --slice batch --increasing weight``.

figure, ax = plt.subplots(figsize=(6.5, 3))
ax.plot(X[:12, told.order_, 0].T, color="C0", alpha=0.5)
ax.set(xlabel="position found", ylabel="weight", title="Weight grows, as told")
figure.tight_layout()
