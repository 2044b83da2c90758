"""Rules on the order help where values are missing, even where a start lays half of the paths the wrong way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

import retrace_sde as rt


@pytest.mark.statistics
def test_known_times_of_three_observations_do_not_mislead_a_panel_with_gaps():
    """Half of the paths start the wrong way round, which rules forbid to mend: τ was .2, and .6 without rules."""
    sde = rt.simulate.random_irreversible_sde(4, random_state=0)
    X = sde.simulate(60, 9, 0.1, x0=0.1, random_state=1)
    shuffled, truth = rt.simulate.shuffle(X, permutation="independent", random_state=2)
    rng = np.random.default_rng(0)
    shuffled[rng.random(shuffled.shape) < 0.04] = np.nan
    position = np.argsort(truth, axis=1)
    known = np.where(position < 3, 0.1 * position, np.nan)
    model = rt.ReTrace(dt=0.1, permutation="independent", estimator="em", observation_noise=1e-3,
                       drift="affine", random_state=0, n_jobs=1)  # fmt: skip
    model.fit(shuffled, knowledge=rt.Knowledge(timestamps=known))
    found = np.argsort(model.order_, axis=1)
    tau = [kendalltau(a, b)[0] for a, b in zip(found, position, strict=True)]
    assert np.mean(tau) > 0.5
    three = np.take_along_axis(found, truth[:, :3], axis=1)
    assert (np.diff(three, axis=1) > 0).all()
