"""
One order per patient, and how certain it is
============================================

Each patient's visits were shuffled separately. One patient provides few values to determine an order, so orders are uncertain. ReTrace
averages over them, and gives the probability of each position of a visit.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

sde = rt.simulate.random_irreversible_sde(3, random_state=1)
X = sde.simulate(80, 10, 0.05, x0=0.1, random_state=2)
lost, truth = rt.simulate.shuffle(X, permutation="independent", random_state=3)

model = rt.ReTrace(dt=0.05, permutation="independent", random_state=0).fit(lost)
print(f"estimator chosen: {model.result_.settings['estimator']}")
print(f"positions right: {rt.metrics.order_accuracy(truth, model.order_):.0%}")
print(f"trace of H, estimate / truth: {np.trace(model.diffusion_) / np.trace(sde.diffusion):.2f}")
print(f"visit 0 of patient 0 before its visit 1: {model.precedence_probability(0, 1)[0]:.0%}")

# %%
# Left: position probabilities of one patient's visits. Right: calibration; of placements given 80 %, about 80 % are right.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
rt.plots.position_probabilities(model.position_probabilities_[0], model.order_[0], ax=left)
rt.plots.calibration(truth, model.position_probabilities_, ax=right)
figure.tight_layout()
