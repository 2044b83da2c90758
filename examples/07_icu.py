"""
Patients in intensive care
==========================

120 patients, twelve bins of four hours, five variables (PhysioNet Challenge 2012, ODC-BY). The hours are lost; :func:`rt.recover` takes the table as
it is.

**In short:** one line puts the twelve hours back in their true order. Which way they run is left open: the true direction fits better, but not significantly, so both are
returned. (The benchmark hides a random half of these patients, whose direction is called, rightly: with so few patients the answer depends on who is among them.)
"""

import matplotlib.pyplot as plt

import retrace_sde as rt

table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
print(table.head(3).to_string(index=False))

# %%
# One line recovers them. Measurement noise and random intercepts of patients are tested for and reported:

found = rt.recover(table, subject="patient", slice="slice", dt=4.0, random_state=0)
hours = [truth[found.panel.slices[k]] for k in found.model.order_]
print("hours in the order found:", hours)
print(found.model.direction_.verdict)
print(found.ordered.iloc[:3, [0, 1, *range(-4, 0)]].to_string(index=False))

# %%
# Heart rate and the coma score of all patients, in the order found:

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for ax, name in zip(axes, (found.panel.names[0], found.panel.names[3]), strict=True):
    rt.plots.courses(found.model, found.panel, variable=name, unit="hours", ax=ax)
figure.tight_layout()
