"""
Wrong time stamps
=================

Two visits have swapped dates, one a typing error, and the clock of one subject was reset. Which stamps are wrong, and what should they be?

**In short:** ``rt.audit_times(table, subject="patient", time="day")`` gives each stamp the probability that it is wrong, and the time that it should say. It finds all three errors.
"""

import numpy as np
import pandas as pd

import retrace_sde as rt

n, T = 20, 15
turn = np.kron(np.eye(2), [[0.0, 4.0], [-4.0, 0.0]]) - 0.5 * np.eye(4)
X = rt.LinearSDE(turn, np.eye(4)).simulate(n, T, 0.1, x0="stationary", random_state=2)
table = pd.DataFrame(X.reshape(n * T, 4), columns=["a", "b", "c", "d"])
table["patient"] = np.repeat(np.arange(n), T)
table["day"] = np.tile(np.arange(T, dtype=float), n)
table.loc[[3, 11], "day"] = [11.0, 3.0]  # swapped
table.loc[50, "day"] = 13.4  # was 5
table.loc[96:100, "day"] -= 4.3  # a clock that was reset

found = rt.audit_times(table, subject="patient", time="day", random_state=0)
print(found.summary())

# %%
# Expected times over the times as given.
figure = found.plot().figure
