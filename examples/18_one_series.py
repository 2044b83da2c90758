"""
One long series
===============

A single machine was measured 80 times, and its log lost the times: one trajectory instead of many. All that is left of the order is how the variables move
together, so it takes many of them. This example shows how many, what a single series cannot tell, and what helps.

**In short:** with some twenty variables the order comes back nearly whole, with five it does not. The direction of one series cannot be tested: name its first record, or anything else that you know.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

warnings.simplefilter("ignore", rt.ReTraceWarning)  # every fit warns that there is one trajectory

T, dt = 80, 0.05
shares = {}
for d in (5, 8, 12, 24):
    rows = []
    for seed in range(8):
        machine = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=seed)
        X = machine.simulate(1, T, dt, x0="stationary", random_state=seed)
        lost, truth = rt.simulate.shuffle(X, random_state=seed)
        model = rt.ReTrace(dt=dt, random_state=0).fit(lost)
        near = rt.metrics.neighbour_share(truth, model.order_)
        right = rt.metrics.order_accuracy(truth, model.order_, up_to_reversal=True)
        claimed = 2 * model.position_probabilities_[model.order_, np.arange(T)].mean()  # either way
        rows.append((near, right, claimed))
    shares[d] = np.mean(rows, axis=0)
    print(
        f"{d:2} variables: neighbours right {shares[d][0]:.0%}, positions right {shares[d][1]:.0%}"
    )

# %%
# Twenty-four variables determine the order, five do not. Neighbours are found before positions: one stretch that is put in backwards shifts many positions. **Read the
# probabilities of a single series with care.** They are given the estimated parameters, of which one series says little, and are too high (dotted).

figure, ax = plt.subplots(figsize=(6.5, 3.2))
styles = {"neighbours right": "o-", "positions right": "s-", "positions right, as claimed": "C1s:"}
for k, (name, style) in enumerate(styles.items()):
    ax.plot(list(shares), [each[k] for each in shares.values()], style, label=name)
ax.set(xlabel="variables", ylabel="share, mean of 8 series", ylim=(0, 1.03))
ax.legend(frameon=False)
figure.tight_layout()

# %%
# A series read backwards fits as well, and one series cannot decide between the two:

print(model.direction_.verdict)

# %%
# What is known from elsewhere can. Here somebody remembers the first record. Pairs in known order, times of some records, or a variable that only grows do as
# well (``rt.Knowledge``).

first = rt.Knowledge(first=int(truth[0]))
known = rt.ReTrace(dt=dt, random_state=0).fit(lost, knowledge=first)
print(known.direction_.verdict)
print(f"positions right: {rt.metrics.order_accuracy(truth, known.order_):.0%}")

# %%
# Is the series *in* order, and the question which way it runs? :ref:`sphx_glr_gallery_12_arrow.py`. Are there logs whose inner order is
# known? :ref:`sphx_glr_gallery_15_segments.py`.
