"""
A shuffled Ornstein–Uhlenbeck process, restored
===============================================

One permutation shuffled the time slices of all trajectories. Order, direction and parameters are recovered.
"""

import matplotlib.pyplot as plt

import retrace_sde as rt

sde = rt.simulate.random_irreversible_sde(6, setting="stable", random_state=0)
X = sde.simulate(100, 60, dt=0.02, x0=0.1, random_state=1)
lost, truth = rt.simulate.shuffle(X, random_state=2)

model = rt.ReTrace(dt=0.02, random_state=0).fit(lost)
print(f"positions right: {rt.metrics.order_accuracy(truth, model.order_):.0%}")
print(model.direction_.verdict)

# %%
# The drift is as accurate as with the true order, since the true order was found:

oracle = rt.ReTrace(dt=0.02, random_state=0).fit(X)
for name, fit in (("order lost", model), ("order known", oracle)):
    print(f"{name}: mean error of A {rt.metrics.mean_absolute_error(sde.drift, fit.drift_):.3f}")

# %%
# As stored, and in the order found:

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
rt.plots.trajectories(lost, ax=left)
rt.plots.trajectories(lost, model.order_, ax=right)
left.set_title("As stored")
right.set_title("In the order found")
figure.tight_layout()
