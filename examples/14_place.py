"""
Who came first: subjects whose dates are lost
=============================================

Half of the patients have dated scans, the others have scans in no particular order. Those with dates teach the process; for the others each
pair of scans gets a probability.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import retrace_sde as rt

n, T = 120, 3
sde = rt.LinearSDE([[-0.8, 0.0], [0.9, -0.4]], 1.2 * np.eye(2))
X = sde.simulate(n, T, 0.5, x0=[2.0, 0.0], random_state=1)
table = pd.DataFrame(X.reshape(n * T, 2), columns=["volume", "thickness"])
table["patient"] = np.repeat(np.arange(n), T)
table["dated"] = (table["patient"] < n // 2).astype(int)  # these stand in order
lost = table[table["dated"] == 0].sample(frac=1, random_state=2)
table = pd.concat([table[table["dated"] == 1], lost])

found = rt.recover(table, subject="patient", order_known="dated", dt=0.5, random_state=0)
print(found.model.direction_.verdict)

# %%
# The pair probabilities of three new patients, observation a before b.
P = found.model.precedence(X[-3:])
print(np.round(P, 2))

# %%
# How sure they are, and how often they are right: the second and the third scan of each undated patient.
P = found.model.precedence(X[n // 2 :])
sure = np.maximum(P[:, 1, 2], 1 - P[:, 1, 2])
print(f"right: {np.mean(P[:, 1, 2] > 0.5):.2f}, said to be right: {sure.mean():.2f}")

figure, ax = plt.subplots(figsize=(6, 3))
ax.hist(P[:, 1, 2], bins=np.linspace(0, 1, 21), color="C0")
ax.set(xlabel="probability that the second scan came before the third", ylabel="patients")
figure.tight_layout()

# %%
# On the command line: ``retrace fit scans.csv --subject patient --order-known dated``, and for later patients
# ``retrace place new.csv --subject patient --fitted scans-retrace``.
