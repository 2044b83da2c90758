"""
Real growth curves
==================

The distance from the pituitary to the pterygomaxillary fissure of 27 children at 8, 10, 12 and 14 years, in mm (R. F. Potthoff, S. N. Roy,
*Biometrika* 51, 1964, 313–326, Table 1; number by number those of ``Orthodont`` in R's nlme). The ages are lost: four slices, one variable.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

GIRLS = """
21 20 21.5 23 | 21 21.5 24 25.5 | 20.5 24 24.5 26 | 23.5 24.5 25 26.5 | 21.5 23 22.5 23.5 | 20 21 21 22.5
21.5 22.5 23 25 | 23 23 23.5 24 | 20 21 22 21.5 | 16.5 19 19 19.5 | 24.5 25 28 28
"""
BOYS = """
26 25 29 31 | 21.5 22.5 23 26.5 | 23 22.5 24 27.5 | 25.5 27.5 26.5 27 | 20 23.5 22.5 26 | 24.5 25.5 27 28.5
22 22 24.5 26.5 | 24 21.5 24.5 25.5 | 23 20.5 31 26 | 27.5 28 31 31.5 | 23 23 23.5 25 | 21.5 23.5 24 28
17 24.5 26 29.5 | 22.5 25.5 25.5 26 | 23 24.5 26 30 | 22 21.5 23.5 25
"""
X = np.array((GIRLS + BOYS).replace("|", " ").split(), dtype=float).reshape(27, 4, 1)
assert np.allclose(X[:11].mean(axis=(0, 2)), [21.182, 22.227, 23.091, 24.091], atol=1e-3)
assert np.allclose(X[11:].mean(axis=(0, 2)), [22.875, 23.812, 25.719, 27.469], atol=1e-3)

lost, truth = rt.simulate.shuffle(X, random_state=1)
model = rt.ReTrace(dt=2.0, random_state=0).fit(lost)
print("order found:", [(8, 10, 12, 14)[k] for k in np.argsort(truth)[model.order_]])
print(model.direction_.verdict)

# %%
# The order is right up to reversal, and the direction is open: 27 children at four ages do not identify it without further
# knowledge. One slice known to be the first settles it:

known = rt.ReTrace(dt=2.0, random_state=0).fit(lost, knowledge=rt.Knowledge(first=int(truth[0])))
print("order found:", [(8, 10, 12, 14)[k] for k in np.argsort(truth)[known.order_]])

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
rt.plots.trajectories(lost, ax=left)
rt.plots.trajectories(lost, known.order_, ax=right)
left.set(title="As stored", ylabel="mm")
right.set_title("In time")
figure.tight_layout()
