"""
What data give away without their dates
=======================================

A hospital wants to share laboratory values without dates. How much of each patient's order could somebody recover all the same, and which
column gives it away?
"""

import numpy as np
import pandas as pd

import retrace_sde as rt

n, T = 40, 6
A = np.array([[-0.6, 0.0, 0.0], [1.0, -0.6, 0.0], [0.0, 0.0, -3.0]])
X = rt.LinearSDE(A, np.diag([0.5, 0.5, 3.0])).simulate(
    n, T, 0.4, x0=[3.0, 0.0, 0.0], random_state=1
)
table = pd.DataFrame(X.reshape(n * T, 3), columns=["tumour", "marker", "noise"])
table["patient"] = np.repeat(np.arange(n), T)
table["day"] = np.tile(np.arange(T, dtype=float), n)
table["age"] = 60 + table["patient"] % 20 + table["day"] / 365  # a second clock
table = table.sample(frac=1, random_state=0)

found = rt.audit_hidden(
    table, subject="patient", time="day", variables=["tumour", "marker", "noise"], random_state=0
)
print(found.summary())

# %%
# Patient by patient.
print(found.table.head().round(2).to_string())

# %%
# Without each column in turn; `age`, which no model uses, sorts the rows by itself (column `alone`).
print(found.columns.round(2).to_string())
found.plot()

# %%
# On the command line: ``retrace audit visits.csv --subject patient --time day --hidden``.
