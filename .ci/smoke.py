"""What an installed package must do, away from its sources: the version asked for, an order, a direction, a file and back."""

import sys
from pathlib import Path

import retrace_sde as rt

assert rt.__version__ == sys.argv[1], rt.__version__
assert "site-packages" in rt.__file__, rt.__file__
for name in rt.__all__:
    getattr(rt, name)

sde = rt.simulate.random_irreversible_sde(3, random_state=0)
X, truth = rt.simulate.shuffle(sde.simulate(40, 12, 0.05, random_state=1), random_state=2)
model = rt.ReTrace(dt=0.05, random_state=0).fit(X)
assert rt.metrics.order_accuracy(truth, model.order_) == 1.0
assert model.direction_.identified
assert rt.ReTraceResult.load(model.result_.save("fit.npz")) == model.result_
assert Path(rt.write_report(model, X, "fit.html")).stat().st_size > 10_000
assert len(rt.datasets.load_icu()) == 1440
print(f"retrace_sde {rt.__version__} on Python {sys.version.split()[0]}: fine")
