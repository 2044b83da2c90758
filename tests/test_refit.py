"""A fit that fails leaves the former one as it was: result, scores, draws, states."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde import retrace
from retrace_sde.estimator import assemble, fitting
from retrace_sde.panel.validation import ReTraceWarning

DT = 0.1
KINDS = {
    "shared": {},
    "own": {"permutation": "independent", "estimator": "mle"},
    "averaged": {"permutation": "independent", "estimator": "mcem"},
    "noise": {"observation_noise": 0.1},
    "own, noise": {"permutation": "independent", "estimator": "em", "observation_noise": 0.1},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The chains over orders mix slowly"),
    pytest.mark.usefixtures("brief"),
]


def panel(kind, seed=0):
    options = KINDS[kind]
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(15, 6, DT, x0=0.3, random_state=seed)
    if "noise" in kind:
        X = rt.simulate.add_noise(X, 0.1, random_state=seed + 1)
    way = options.get("permutation", "shared")
    return np.ascontiguousarray(rt.simulate.shuffle(X, permutation=way, random_state=seed)[0])


class Before:
    """A fitted model, and all that must stay: the same objects, and the same answers on other data."""

    def __init__(self, kind):
        self.X, self.other = panel(kind), panel(kind, 5)
        self.model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, **KINDS[kind]).fit(self.X)
        self.model.sample_orders(draws=100)
        self.settings = self.model.get_params()
        self.result, self.posterior = self.model.result_, self.model.posterior_
        self.said = self.answers()

    def answers(self):
        model = self.model
        return (
            model.score(self.other),
            model.reorder(self.other),
            model.order_.copy(),
            model.drift_.copy(),
            model.diffusion_.copy(),
            model.states_,
            model.position_probabilities_.copy(),
            model.summary(),
            model.n_features_in_,
        )

    def assert_kept(self):
        assert self.model.result_ is self.result
        assert self.model.posterior_ is self.posterior
        self.model.set_params(**self.settings)
        for one, two in zip(self.answers(), self.said, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def fitted():
    """Each kind is fitted once: every test leaves it as it was, or fails."""
    found = {}

    def of(kind):
        if kind not in found:
            found[kind] = Before(kind)
        return found[kind]

    return of


def infinite(X):
    X[3, 2, 1] = np.inf


def constant(X):
    X[:, :, 1] = 3.0


BAD_DATA = {
    "infinite": (infinite, "infinite|finite"),
    "constant": (constant, "constant"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", BAD_DATA)
def test_bad_data(kind, bad, fitted):
    before, (spoil, words) = fitted(kind), BAD_DATA[bad]
    X = panel(kind, 9)
    spoil(X)
    with pytest.raises(ValueError, match=words):
        before.model.fit(X)
    before.assert_kept()


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_another_shape(kind, fitted):
    before = fitted(kind)
    wide = np.random.default_rng(0).standard_normal((2, 3, 9))
    for X in (before.X[0], wide):
        with pytest.raises(ValueError, match=r"shape|trajector|observations|features|parameters"):
            before.model.fit(X)
        before.assert_kept()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "knowledge",
    [{"first": 0}, rt.Knowledge(first=99), rt.Knowledge(first=0, last=0)],
    ids=["another object", "not there", "contradictory"],
)
def test_bad_knowledge(kind, knowledge, fitted):
    before = fitted(kind)
    with pytest.raises(ValueError, match=r"Knowledge|99|first|last|order"):
        before.model.fit(panel(kind, 9), knowledge=knowledge)
    before.assert_kept()


BAD_SETTINGS = [
    ({"alpha": 2.0}, "alpha"),
    ({"dt": -1.0}, "dt"),
    ({"estimator": "best"}, "estimator"),
    ({"drift": "cubic"}, "drift"),
    ({"max_iter": 0}, "max_iter"),
    ({"observation_noise": -1.0}, "noise|standard deviation"),
    # told late, when the data have been read
    ({"observation_noise": 0.1, "estimator": "ols"}, "estimator='ols'"),
    ({"subjects": "levels", "drift": "linear"}, "affine|best order"),
]


@pytest.mark.parametrize(
    "kind",
    [
        "shared",
        *(pytest.param(each, marks=pytest.mark.statistics) for each in KINDS if each != "shared"),
    ],
)
@pytest.mark.parametrize(
    ("settings", "words"), BAD_SETTINGS, ids=[",".join(each[0]) for each in BAD_SETTINGS]
)
def test_bad_settings(kind, settings, words, fitted):
    before = fitted(kind)
    before.model.set_params(**settings)
    with pytest.raises(ValueError, match=words):
        before.model.fit(panel(kind, 9))
    before.assert_kept()


STAGES = [(fitting, "fit"), (assemble, "identify"), (assemble, "ReTraceResult"), (retrace, "as_given")]  # fmt: skip
INTERRUPTED = [
    pytest.param(
        kind,
        where,
        at,
        id=f"{kind}-{at}",
        # A kind of fit matters at its start and at its end; between them the code is the same for all.
        marks=[pytest.mark.statistics] if where is assemble and kind != "shared" else [],
    )
    for kind in KINDS
    for where, at in STAGES
]


@pytest.mark.parametrize(("kind", "where", "at"), INTERRUPTED)
def test_an_interrupted_fit(kind, where, at, fitted, monkeypatch):
    """From the search to the last line: nothing is set before all is known."""
    before = fitted(kind)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
        before.model.fit(panel(kind, 9))
    before.assert_kept()


def test_a_caution_that_is_made_an_error(fitted):
    """Warnings may be errors, as they are here: then that fit has failed like any other."""
    before = fitted("shared")
    t = np.linspace(0, 1, 15)[None, :, None]
    rng = np.random.default_rng(0)
    X = np.sin(np.pi * t) * np.exp(0.3 * rng.standard_normal((12, 1, 1)))
    X = X + 0.05 * rng.standard_normal(X.shape)
    with pytest.raises(ReTraceWarning, match="folds onto itself"):
        before.model.fit(X)
    before.assert_kept()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_succeeds_replaces_all_of_it(kind, fitted):
    """Or the tests above would pass with a model that never changes."""
    before = copy(fitted(kind))
    before.model = copy(before.model)  # the one that the other tests share stays as it was
    before.model.fit(before.other)
    assert before.model.result_ is not before.result
    assert before.model.__dict__.get("posterior_") is not before.posterior
    assert hasattr(before.model, "posterior_") or kind != "averaged"
    fresh = rt.ReTrace(**before.settings).fit(before.other)
    np.testing.assert_array_equal(before.model.order_, fresh.order_)
    np.testing.assert_array_equal(before.model.drift_, fresh.drift_)
    np.testing.assert_array_equal(before.model.states_, fresh.states_)
    assert before.model.score(before.X) == fresh.score(before.X)


def test_fewer_draws_than_orders_kept_are_permutations():
    """Orders that were kept but never drawn stayed zero, and the fit ended in an error."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(30, 6, 0.1, random_state=1)
    lost, _ = rt.simulate.shuffle(X, permutation="independent", random_state=2)
    model = rt.ReTrace(dt=0.1, permutation="independent", estimator="mle", random_state=0).fit(lost)
    drawn = model.sample_orders(draws=8).samples
    np.testing.assert_array_equal(
        np.sort(drawn, axis=-1), np.broadcast_to(np.arange(6), drawn.shape)
    )
