"""Effects from tables as they are: values missing, a subject with one visit, a treatment that is absent here and there."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.app.work import _choice
from retrace_sde.cli.common import _flag, refusing
from retrace_sde.cli.effect import effect
from retrace_sde.effects.missing_values import with_missing_drawn
from retrace_sde.effects.treatment import TreatmentEffect, effect_drift
from retrace_sde.fit.subjects import SubjectFit
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.inputs import MissingInputsError, constants_filled
from retrace_sde.process.drift import Polynomial, TumourGrowth
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.show.wording import in_words, speaking

DT, T = 0.25, 12


def _treated(seed: int, n: int = 60, missing: float = 0.05) -> tuple[Any, Any, Any]:
    """Complete states (n, T, 2), the same with values missing, and a treatment that never changes, (n, T, 1)."""
    rng = np.random.default_rng(seed)
    given = (np.arange(n) % 2).astype(float)
    x = rng.normal(size=(n, 2)) * 0.3 + [2, -1]
    X = [x]
    for _ in range(T - 1):
        move = x @ np.array([[-1.0, 0.5], [-0.8, -0.6]]).T + given[:, None] * [0.8, 0.0]
        x = x + DT * move + 0.15 * DT**0.5 * rng.normal(size=(n, 2))
        X.append(x)
    whole = np.stack(X, axis=1)
    seen = np.where(rng.random(whole.shape) < missing, np.nan, whole)
    return whole, seen, np.repeat(given[:, None], T, axis=1)[..., None]


def test_missing_values_are_drawn_from_their_conditional_law() -> None:
    """Against the dense Gaussian of all states, two neighbours and a first state missing among them."""
    rng = np.random.default_rng(0)
    n, L, d = 3, 4, 2
    drift = Polynomial(1, interactions=True)
    theta = rng.normal(size=(d, 6)) * 0.4
    H = np.array([[0.5, 0.2], [0.2, 0.8]])
    x, u = rng.normal(size=(n, L, d)), rng.normal(size=(n, L, 1))
    missing = np.zeros((n, L, d), dtype=bool)
    missing[0, 1], missing[0, 2, 0], missing[0, 0, 1] = True, True, True
    order = np.array([2, 0, 1, 3])
    problem = EulerModel(Data(x, u), DT, drift)
    nothing = np.zeros((0, 0))
    fit = SubjectFit(theta, H, (), nothing, np.zeros((n, d, 0)), np.zeros((n, 0, 0)), 1, True)
    draws = np.array([
        with_missing_drawn(problem, fit, order, missing, rng).data.values[missing]
        for _ in range(4000)
    ])  # fmt: skip
    # The dense law: x_0 from p₀, then each step; the mean and the covariance of all states in time order.
    from retrace_sde.fit.euler import Euler
    from retrace_sde.fit.start_law import start_law

    start = start_law(x[:, 2], Euler(drift, theta, H, DT), problem.variances)
    mean, cov = [start.mean], np.zeros((L * d, L * d))
    cov[:d, :d] = start.covariance
    for t in range(L - 1):
        at = u[0, order[t]]
        base = DT * theta @ drift.features(np.zeros(d), at)
        F = np.column_stack([e + DT * theta @ drift.features(e, at) - base for e in np.eye(d)])
        mean.append(F @ mean[-1] + base)
        here, there = slice(t * d, t * d + d), slice(t * d + d, t * d + 2 * d)
        cov[there, : t * d + d] = F @ cov[here, : t * d + d]
        cov[: t * d + d, there] = cov[there, : t * d + d].T
        cov[there, there] = F @ cov[here, here] @ F.T + H * DT
    back = np.argsort(order)
    place = (back[:, None] * d + np.arange(d)).ravel()  # of the states as they were given
    centre, cov = np.concatenate(mean)[place], cov[np.ix_(place, place)]
    m = missing[0].ravel()
    gain = np.linalg.solve(cov[np.ix_(~m, ~m)], cov[np.ix_(~m, m)]).T
    want = centre[m] + gain @ (x[0].ravel()[~m] - centre[~m])
    spread = cov[np.ix_(m, m)] - gain @ cov[np.ix_(~m, m)]
    assert_allclose(draws.mean(axis=0), want, atol=4 * np.sqrt(np.diag(spread).max() / 4000))
    assert_allclose(np.cov(draws.T), spread, atol=0.1 * np.diag(spread).max())


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_missing_values_are_integrated_out_of_an_effect() -> None:
    whole, seen, u = _treated(3, missing=0.3)
    asked = TreatmentEffect(dt=DT, permutation="shared", subjects="alike", random_state=0)
    complete = asked.fit(whole, u, order=np.arange(T)).ate_interval(draws=400)
    some = asked.fit(seen, u, order=np.arange(T))
    low, high = some.ate_interval(draws=400)
    assert_allclose(some.ate(), np.mean(complete, axis=0), atol=0.04)
    wider = (high - low) / (np.asarray(complete[1]) - complete[0])
    assert (wider > 1).all()
    assert (wider < 2).all()


def test_the_order_is_recovered_although_values_are_missing() -> None:
    whole, seen, u = _treated(3, n=24)
    place = np.random.default_rng(0).permutation(T)
    asked = TreatmentEffect(dt=DT, permutation="shared", subjects="alike", random_state=0)
    found = asked.fit(seen[:, place], u[:, place])
    assert_allclose(found.order_, np.argsort(place))
    known = asked.fit(whole, u, order=np.arange(T)).ate()
    assert_allclose(found.ate(), known, atol=0.03)


def test_a_subject_with_one_visit_is_left_out_by_name() -> None:
    whole, _, u = _treated(3)
    whole[7, 1:] = np.nan
    panel = rt.Panel.from_array(whole, covariates=u, ids=[f"p{j}" for j in range(60)])
    with pytest.warns(rt.ReTraceWarning, match=r"two visits and these have one: 'p7'\."):
        found = TreatmentEffect(dt=DT, permutation="shared").fit(panel, order=np.arange(T))
    assert len(found.effect()) == 59
    assert "p7" not in found.ids_


def test_a_volume_is_a_tumour_and_anything_else_is_affine() -> None:
    assert effect_drift("auto", ["Volume_cm3"]) == TumourGrowth()
    for names in (["pressure"], ["volume", "psa"], []):
        assert effect_drift("auto", names) == Polynomial(1, interactions=True)


def test_a_treatment_that_never_changes_is_filled_in() -> None:
    u = np.array([[1.0, np.nan, 1.0], [0.0, 0.0, np.nan], [np.nan, np.nan, 2.0]])[..., None]
    assert_allclose(constants_filled(u)[..., 0], [[1, 1, 1], [0, 0, 0], [2, 2, 2]])
    changes = u.copy()
    changes[1, 1] = 1.0
    assert_allclose(
        constants_filled(changes), changes
    )  # for nobody: it may change in the others, too
    whole, _, given = _treated(3)
    holes = given.copy()
    holes[4, 3] = np.nan
    asked = TreatmentEffect(dt=DT, permutation="shared", random_state=0)
    filled = asked.fit(whole, holes, order=np.arange(T)).ate()
    assert_allclose(filled, asked.fit(whole, given, order=np.arange(T)).ate())


def test_each_interface_names_its_own_way_to_fill_inputs() -> None:
    whole, _, u = _treated(3)
    u[:, ::2] = 0.5
    u[4, 3] = np.nan
    asked = TreatmentEffect(dt=DT, permutation="shared", random_state=0)
    with pytest.raises(MissingInputsError, match="missing_covariates='carry'") as refused:
        asked.fit(whole, u, order=np.arange(T))
    on_page = in_words(_choice, {})(str(refused.value))
    assert "Choose “Inputs that are missing”: last value before" in on_page
    with (
        click.Context(effect),
        speaking(in_words(_flag, {})),
        pytest.raises(click.ClickException, match="Choose --missing-covariates carry"),
        refusing(),
    ):
        asked.fit(whole, u, order=np.arange(T))
    carried = asked.set_params(missing_covariates="carry").fit(whole, u, order=np.arange(T))
    assert np.isfinite(carried.ate()).all()


def test_the_command_takes_a_table_as_it_comes(tmp_path: Any) -> None:
    from click.testing import CliRunner

    from retrace_sde.cli.main import main

    _, seen, u = _treated(5, n=30)
    frame = pd.DataFrame({
        "patient": np.repeat([f"p{j}" for j in range(30)], T), "visit": np.tile(range(T), 30), "a": seen[..., 0].ravel(),
        "b": seen[..., 1].ravel(), "drug": u.ravel(),
    })  # fmt: skip
    frame.loc[40, "drug"] = np.nan
    frame = frame[~((frame["patient"] == "p9") & (frame["visit"] > 0))]
    frame.to_csv(tmp_path / "trial.csv", index=False)
    options = ["--subject", "patient", "--time", "visit", "--treatment", "drug", "--draws", "20"]
    run = CliRunner().invoke(main, ["effect", str(tmp_path / "trial.csv"), *options])
    assert run.exit_code == 0, run.output
    assert "29 subjects; treatment in drug" in run.output
    assert "p9" in run.output
