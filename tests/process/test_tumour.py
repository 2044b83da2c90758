"""The tumour testbed against its specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrace_sde.process.tumour import (
    ARMS,
    CHEMOTHERAPY_DOSE,
    MIN_VOLUME,
    POPULATION,
    diameter,
    growth_parameters,
    simulate_cohort,
    volume,
)


def test_balls() -> None:
    assert_allclose(volume([1.3, 1.5, 30.0, 13.0]), [1.150, 1.767, 14137.17, 1150.35], rtol=1e-3)
    assert_allclose(diameter(volume(2.5)), 2.5)


def test_without_variability_and_noise_growth_is_gompertz() -> None:
    """`log(x/K)` decays exponentially; Euler's path tends to it as the step shrinks."""
    for arm in ("treated", "untreated"):
        cohort = simulate_cohort(
            20, arm=arm, sigma_tumour=0, sigma_obs=0, variability=0, steps=3000, random_state=0
        )  # type: ignore[arg-type]
        rho, K = POPULATION["rho"], POPULATION["capacity"]
        C, d = cohort.treatment(arm)  # type: ignore[arg-type]
        kill = POPULATION["beta_c"] * C + (POPULATION["alpha_r"] + POPULATION["beta_r"]) * d
        level = np.log(K) - kill / rho
        start, end = np.log(cohort.states[:, 0, 0]), np.log(cohort.states[:, -1, 0])
        assert_allclose(end, level + (start - level) * np.exp(-rho * 15), atol=1e-3)
        assert_allclose(cohort.expected(arm)[:, -1], cohort.states[:, -1, 0])  # type: ignore[arg-type]


def test_volumes_after_fifteen_days_are_those_specified() -> None:
    """Means and spreads of the specification; 3 standard errors at n = 5000, plus the last printed digit."""
    for arm, mean, sd in (
        ("untreated", 8.56, 1.08),
        ("treated", 0.74, 0.13),
        ("observational", 3.9, None),
    ):
        cohort = simulate_cohort(5000, arm=arm, random_state=1)  # type: ignore[arg-type]
        last = cohort.states[:, -1, 0]
        assert abs(last.mean() - mean) < 3 * last.std() / 5000**0.5 + (
            0.05 if sd is None else 0.005
        )
        if sd is not None:
            assert abs(last.std() / sd - 1) < 0.05
        assert cohort.floor_hits == 0
        assert cohort.observed.shape == (5000, 61, 1)
        assert cohort.covariates.shape == (5000, 61, 2)
        assert cohort.dt == 0.25
        assert_allclose((cohort.observed - cohort.states).std(), 0.01, rtol=0.01)
    effect = (cohort.expected("treated") - cohort.expected("untreated"))[:, -1]
    assert abs(effect.mean() + 7.84) < 0.06
    for name, value in POPULATION.items():
        own = cohort.parameters[name]
        assert_allclose(own.mean(), value, rtol=0.003)
        assert_allclose(np.log(own).std(), 0.05, rtol=0.05)


def test_arms_share_subjects_and_noise() -> None:
    cohorts = {arm: simulate_cohort(50, arm=arm, sigma_tumour=0.03, random_state=2) for arm in ARMS}
    one = cohorts["treated"]
    for arm in ARMS:
        for other in cohorts.values():
            assert np.array_equal(other.paths[arm], one.paths[arm])
        mine = cohorts[arm]
        assert np.array_equal(mine.states, mine.paths[arm])
        x, own = mine.states[:, :, 0], {k: v[:, None] for k, v in mine.parameters.items()}
        C, d = mine.covariates[:, :-1, 0], mine.covariates[:, :-1, 1]
        rate = own["rho"] * np.log(own["capacity"] / x[:, :-1]) - own["beta_c"] * C
        rate = rate - own["alpha_r"] * d - own["beta_r"] * d**2
        noise = (np.diff(x, axis=1) - 0.25 * rate * x[:, :-1]) / own["sigma"] / 0.5
        if arm == "treated":
            first = noise
        assert_allclose(noise, first, atol=1e-9)


def test_treatment_follows_the_arm_and_the_policy_is_confounded() -> None:
    assert np.all(
        simulate_cohort(5, arm="treated", random_state=0).covariates == [CHEMOTHERAPY_DOSE, 1.0]
    )
    assert np.all(simulate_cohort(5, arm="untreated", random_state=0).covariates == 0)
    strong = simulate_cohort(5, arm="treated", radiotherapy=2.0, days=30, random_state=0)
    assert strong.dt == 0.5
    with pytest.raises(TypeError, match="chemo"):
        simulate_cohort(5, chemo=2.0)
    assert np.all(strong.covariates == [CHEMOTHERAPY_DOSE, 2.0])
    cohort = simulate_cohort(4000, random_state=3)
    given = cohort.covariates / [CHEMOTHERAPY_DOSE, 1.0]
    assert set(np.unique(given)) == {0.0, 1.0}
    p = 1 / (1 + np.exp(-2 / 13 * (diameter(cohort.states) - 6.5)))
    assert abs((given - p).mean()) < 3 * 0.5 / given.size**0.5
    # Size decides: treatment regressed on its probability has slope one, 5 standard errors wide.
    flat, share = given.ravel(), np.broadcast_to(p, given.shape).ravel()
    slope = np.cov(flat, share)[0, 1] / share.var()
    assert abs(slope - 1) < 5 * 0.5 / (share.std() * flat.size**0.5) < 0.7


def test_the_floor_is_kept_and_its_hits_are_counted() -> None:
    cohort = simulate_cohort(200, arm="treated", sigma_tumour=0.5, random_state=0)
    assert cohort.states.min() == MIN_VOLUME
    assert cohort.floor_hits >= np.sum(cohort.states[:, 1:] == MIN_VOLUME) > 0


def test_literature_setting() -> None:
    cohort = simulate_cohort(3000, literature=True, random_state=0)
    assert cohort.lengths is not None
    assert cohort.dt == 1.0
    chemo, radio = cohort.covariates[:, :, 0], cohort.covariates[:, :, 1]
    assert np.all(cohort.covariates[:, 0] == 0)
    assert set(np.unique(radio)) == {0.0, 2.0}
    new = chemo[:, 1:] - chemo[:, :-1] / 2  # what is left after a day is half
    assert_allclose(np.minimum(np.abs(new), np.abs(new - 5)), 0, atol=1e-9)
    last = cohort.lengths - 1
    end = cohort.states[np.arange(3000), last, 0]
    gone = cohort.lengths < 61
    died, recovered = cohort.outcomes["died"] > 0, cohort.outcomes["recovered"] > 0
    assert np.array_equal(gone | (last == 60) & (died | recovered), died | recovered)
    assert np.all(end[died] == volume(13.0))
    assert np.all(end[recovered] == 0)
    assert 0 < died.mean() < recovered.mean() < 0.2
    assert_allclose(
        np.corrcoef(cohort.parameters["alpha_r"], cohort.parameters["rho"])[0, 1], 0.7, atol=0.1
    )
    start = diameter(cohort.states[:, 0, 0])
    assert start.min() > 0.3
    assert start.max() < 13
    with pytest.raises(ValueError, match="literature"):
        cohort.expected("treated")


def test_shuffled_panels_carry_treatment_with_their_visits() -> None:
    cohort = simulate_cohort(6, random_state=0)
    moved = np.random.default_rng(0).permuted(np.tile(np.arange(61), (6, 1)), axis=1)
    panel = cohort.shuffled(moved)
    assert panel.covariate_names == ("chemotherapy", "radiotherapy")
    assert np.array_equal(panel.values[2, 5], cohort.observed[2, moved[2, 5]])
    assert np.array_equal(panel.covariates[2, 5], cohort.covariates[2, moved[2, 5]])
    assert np.array_equal(cohort.panel.values, cohort.observed)


@pytest.mark.parametrize(
    ("options", "match"), [({"arm": "placebo"}, "arm must be"), ({"n": 0}, "at least 1")]
)
def test_impossible_cohorts_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        simulate_cohort(**options)


def test_parameters_of_other_drifts_are_refused() -> None:
    from retrace_sde.process.drift import Linear

    with pytest.raises(ValueError, match="TumourGrowth"):
        growth_parameters(Linear(), np.ones((1, 1)))
