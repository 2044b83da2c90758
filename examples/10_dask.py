"""
A dask cluster
==============

A chunked array is fitted like any other. Without dask installed the array is fitted in this process.
"""

import matplotlib.pyplot as plt

import retrace_sde as rt

try:
    import dask.array as da
except ImportError:
    da = None

sde = rt.simulate.random_irreversible_sde(8, random_state=0)
X = sde.simulate(2000, 40, 0.02, x0=0.1, random_state=1)
lost, truth = rt.simulate.shuffle(X, random_state=2)

blocks = lost if da is None else da.from_array(lost, chunks=(500, 40, 8))
print("blocks:", "one, in memory" if da is None else blocks.numblocks)
model = rt.ReTrace(dt=0.02, random_state=0).fit(blocks)
print(f"positions right: {rt.metrics.order_accuracy(truth, model.order_):.0%}")
print(model.direction_.verdict)

# %%
# To use a cluster, create a client first (``dask.distributed.Client(address)``). The parameters with their intervals:

figure, ax = plt.subplots(figsize=(6.5, 4))
rt.plots.parameter_intervals(model.drift_, model.standard_errors_.drift, n=len(X), most=15, ax=ax)
figure.tight_layout()
