"""Every plot takes and returns an Axes, and shows the numbers it was given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import retrace_sde as rt
from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.effects.graph import Effect, EffectGraph
from retrace_sde.evidence.direction.verdict import direction_test
from retrace_sde.show import plots

A = np.array([[-1.0, 0.5, 0.0], [0.0, -2.0, 0.3], [-0.8, 0.0, -1.5]])
ERRORS = np.full((3, 3), 0.2)
H = np.diag([1.0, 4.0, 9.0])
NAMES = ("a", "b", "c")
ORDER = np.array([2, 0, 1])
SCORES = np.linspace(-2, 2, 9)
CHECK = ResidualCheck(
    (), 40, np.array([[-0.3, 0.1], [0.05, 0.0]]), np.ones((5, 2)), np.zeros((5, 2)), SCORES,
    np.column_stack([SCORES, 2 * SCORES]), np.arange(36.0).reshape(3, 6, 2), np.ones((3, 6, 2)),
)  # fmt: skip
GRAPH = EffectGraph(
    Effect.RATES, ("a", "b", "c"), ("a", "b", "c"), A, ERRORS, A - 0.6, A + 0.6, 0.05, 1.0
)
P = np.array([[0.1, 0.8, 0.1], [0.0, 0.1, 0.9], [0.9, 0.1, 0.0]])


@pytest.fixture
def ax():
    return Figure().subplots()


CALLS = {
    "cost_matrix": lambda ax: plots.cost_matrix(A**2, ORDER, ax=ax),
    "matrix": lambda ax: plots.matrix(A, title="A", names=NAMES, ax=ax),
    "drift_graph": lambda ax: plots.drift_graph(A, ERRORS, names=NAMES, ax=ax),
    "effects": lambda ax: plots.effects(GRAPH, ax=ax),
    "residual_quantiles": lambda ax: plots.residual_quantiles(CHECK, names=NAMES, ax=ax),
    "residual_positions": lambda ax: plots.residual_positions(CHECK, ax=ax),
    "autocorrelation": lambda ax: plots.autocorrelation(CHECK, names=NAMES, ax=ax),
    "simulated_fan": lambda ax: plots.simulated_fan(CHECK, 1, name="b", ax=ax),
    "eigenvalues": lambda ax: plots.eigenvalues(A, twin=A.T - np.eye(3), ax=ax),
    "parameter_intervals": lambda ax: plots.parameter_intervals(A, ERRORS, names=NAMES, ax=ax),
    "gaps": lambda ax: plots.gaps(np.array([1.0, 2.0]), ax=ax),
    "order_certainty": lambda ax: plots.order_certainty(P, ORDER, ax=ax),
    "position_probabilities": lambda ax: plots.position_probabilities(P, ORDER, ax=ax),
    "trajectories": lambda ax: plots.trajectories(np.ones((4, 3, 2)), ORDER, ax=ax),
    "direction_evidence": lambda ax: plots.direction_evidence(
        direction_test(np.arange(9.0), np.zeros(9), dimension=1), ax=ax
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_plot_returns_the_axes_it_was_given_and_draws(name, ax):
    assert CALLS[name](ax) is ax
    assert ax.get_title()
    ax.figure.canvas.draw()


def test_without_axes_a_plot_makes_its_own():
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    ax = plots.gaps(np.array([1.0, 2.0]))
    assert [bar.get_height() for bar in ax.patches] == [1.0, 2.0]
    plt.close(ax.figure)


def test_the_graph_has_an_arrow_for_each_interval_that_excludes_zero(ax):
    plots.drift_graph(A, ERRORS, names=NAMES, ax=ax)
    arrows = [each for each in ax.texts if getattr(each, "arrow_patch", None) is not None]
    # 0.5 and −0.8 of the off-diagonal entries; 0.3 is within 1.96 · 0.2 of zero.
    assert len(arrows) == 2
    rings = [each for each in ax.collections if not each.get_facecolor().size]
    assert len(rings) == 3
    # Of two trajectories Student's quantile is 12.7: nothing is told from zero.
    few = plots.drift_graph(A, ERRORS, n=2, ax=Figure().subplots())
    assert not [each for each in few.texts if getattr(each, "arrow_patch", None) is not None]
    one = plots.drift_graph(A[:1, :1], ERRORS[:1, :1], ax=Figure().subplots())
    assert [each.get_text() for each in one.texts] == ["x0"]


def test_the_graph_of_effects_draws_what_all_intervals_together_exclude(ax):
    """±.6 in place of ±1.96 · .2: only −.8 is left of the off-diagonal entries, and the diagonal."""
    plots.effects(GRAPH, ax=ax)
    arrows = [each for each in ax.texts if getattr(each, "arrow_patch", None) is not None]
    assert len(arrows) == 1
    assert "4 of 9" in ax.get_title()


def test_residuals_are_drawn_as_they_are(ax):
    plots.residual_quantiles(CHECK, ax=ax)
    np.testing.assert_array_equal(ax.lines[2].get_ydata(), 2 * SCORES)
    fan = plots.simulated_fan(CHECK, 1, ax=Figure().subplots())
    np.testing.assert_array_equal(fan.lines[0].get_ydata(), CHECK.band[1, :, 1])


def test_eigenvalues_are_drawn_where_they_are(ax):
    x, y = plots.eigenvalues(A, ax=ax).lines[-1].get_data()
    np.testing.assert_allclose(np.poly(x + 1j * y), np.poly(A), atol=1e-12)


def test_intervals_are_listed_by_clearness(ax):
    plots.parameter_intervals(A, ERRORS, names=NAMES, most=4, ax=ax)
    labels = [each.get_text() for each in ax.get_yticklabels()]
    assert labels == ["b → b", "c → c", "a → a", "a → c"]
    segments = ax.collections[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 0], stats.norm.interval(0.95, -2, 0.2))


def test_certainty_is_the_probability_of_the_place_given(ax):
    plots.order_certainty(P, ORDER, ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.9, 0.8, 0.9])


def test_comparable_entries_do_not_depend_on_units():
    units = np.array([10.0, 0.1, 3.0])
    other = A * units[:, None] / units[None, :]
    np.testing.assert_allclose(
        plots.comparable(other, H * np.outer(units, units)), plots.comparable(A, H)
    )
    shaded = plots.matrix(A, title="A", shade=plots.comparable(A, H), ax=Figure().subplots())
    np.testing.assert_allclose(shaded.images[0].get_array(), plots.comparable(A, H))
    assert shaded.texts[0].get_text() == "-1"


def test_gaps_carry_their_intervals(ax):
    plots.gaps(np.array([1.0, 2.0]), low=np.array([0.5, 1.5]), high=np.array([1.5, 3.0]), ax=ax)
    np.testing.assert_allclose(ax.collections[0].get_segments()[1][:, 1], [1.5, 3.0])


def test_courses_bear_the_users_names_on_scales_of_their_own_forward_beside_the_twin():
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(20, 6, dt=0.5, x0="stationary", random_state=1) * [1.0, 100.0]
    panel = rt.Panel.from_array(X, names=["weight", "pulse"])
    model = rt.ReTrace(dt=0.5, random_state=0).fit(panel)
    axes = plots.both_ways(model, panel, unit="days")
    assert axes.shape == (2, 1 if model.alternative_ is None else 2)
    assert [row[0].get_ylabel() for row in axes] == ["weight", "pulse"]
    assert axes[0, 0].get_xlabel() == "time (days)"
    assert axes[1, 0].get_ylim()[1] > 10 * axes[0, 0].get_ylim()[1]
    line = axes[0, 0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), X[0, model.order_, 0])
    np.testing.assert_array_equal(line.get_xdata(), model.times_)
    if model.alternative_ is not None:
        back = axes[0, 1].lines[0].get_ydata()
        np.testing.assert_array_equal(back, X[0, model.alternative_.order, 0])
        assert "reverse" in axes[0, 1].get_title()

    plt.close(axes[0, 0].figure)
