"""Random intercepts behind noise: where their search begins."""

from dataclasses import replace

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.evidence.selection import intercepts


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_levels_that_rounding_determined_are_no_place_to_begin(monkeypatch):
    """Slopes on first states that hardly vary are of any size: the law that begins there is singular, and the search does without."""
    sde = rt.LinearSDE([[-1.0, 0.3], [0.0, -1.0]], np.eye(2))
    X = rt.simulate.add_noise(sde.simulate(12, 8, 0.2, random_state=0), 0.3, random_state=1)
    model = rt.ReTrace(dt=0.2, observation_noise="estimate", subjects="alike", random_state=0)
    memory = model.fit(X, knowledge=rt.Knowledge(positions=np.arange(8)))._memory
    found, rough = memory.outcome.found, intercepts.fit_levels

    def likelihood(change):
        monkeypatch.setattr(intercepts, "fit_levels", change)
        return intercepts.hidden_levels_along(memory.model, found).log_likelihood

    def steep(*args):
        levels = rough(*args)
        return replace(levels, slope=levels.slope + 1e9)

    assert likelihood(steep) == likelihood(lambda *_: None)
