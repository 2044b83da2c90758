"""
Logs of a device that was reset
===============================

Within each log the order is known; which log came first, and how long the pauses were, is not. Thirty devices were reset together, so
that they share the order of their logs.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

dt, length = 0.05, 8
rng = np.random.default_rng(0)
sde = rt.simulate.random_irreversible_sde(3, random_state=4)
begins = np.array([0, 11, 26, 38, 51])  # pauses of 4, 8, 5 and 6 steps
Y = sde.simulate(30, 60, dt, random_state=1)
logs = [Y[:, begin : begin + length] for begin in begins]
stored = rng.permutation(5)
X = np.concatenate([logs[k] for k in stored], axis=1)

known = rt.Knowledge(segments=np.repeat(np.arange(5), length))
model = rt.ReTrace(dt=dt, subjects="alike", random_state=0).fit(X, knowledge=known)
print("logs in time order:", stored[model.order_[::length] // length])
print(*model.result_.notes, sep="\n")

# %%
# Times found over true times: pauses are estimated as well.
true = np.concatenate([begin + np.arange(length) for begin in begins]) * dt
figure, ax = plt.subplots(figsize=(5, 3.5))
ax.plot(true, model.times_, ".")
ax.plot(true, true, color="0.7")
ax.set(xlabel="true time", ylabel="time found")
figure.tight_layout()

# %%
# Each device may have been reset by itself: labels (n, T) and ``permutation="independent"``. On the command line:
# ``retrace fit logs.csv --subject device --slice record --segments log``; without ``--slice``, each device's own.
