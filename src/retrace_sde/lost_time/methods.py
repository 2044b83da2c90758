"""What a method answers about a panel, how good the answer is, and the methods that ship with the benchmark: ours, the paper's, and what people use instead."""

from __future__ import annotations

import importlib
import inspect
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.lost_time.panels import DT, Hidden
from retrace_sde.metrics import kendall_tau, mean_absolute_error, order_accuracy
from retrace_sde.orders.paths import shortest_path, spectral_path
from retrace_sde.paper.baselines import dpt_order, mst_order, slice_distances
from retrace_sde.retrace import ReTrace


@dataclass(frozen=True, eq=False)
class Answer:
    """An order of the slices, and what the method claims about it.

    Parameters
    ----------
    order : array (T,)
        `X[:, order]` is in time order, or in its reverse.
    directed : bool
        The order is claimed to run forwards in time; False: it may be the reverse.
    probability : float, optional
        How likely a slice is to be at its right position, up to reversal, by the method's own account.
    drift : array (d, d), optional
        Estimate of A in `dX = (A X + c) dt + G dW`, for an order that runs forwards.

    Examples
    --------
    >>> import numpy as np
    >>> from retrace_sde.lost_time import Answer
    >>> Answer(np.arange(5)).directed
    False
    """

    order: Indices
    directed: bool = False
    probability: float | None = None
    drift: Array | None = None


Method = Callable[..., Any]
"""`order(X)`, or `order(X, known)` for a method that learns from other subjects whose order is known."""


def record(name: str, method: Method, panel: Hidden, *, with_known: bool) -> dict[str, Any]:
    """How a method does on one panel: its accuracy, its direction, what it claims, and its seconds.

    A method that fails is told, and counts as one that found nothing.
    """
    found: dict[str, Any] = {
        "method": name,
        "panel": panel.name,
        "kind": panel.kind,
        "directed": panel.directed,
    }
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            given = method(panel.values, panel.known) if with_known else method(panel.values)
        answer = given if isinstance(given, Answer) else Answer(np.asarray(given))
        right = order_accuracy(panel.truth, answer.order, up_to_reversal=True)
    except Exception as error:  # whatever somebody else's method raises
        return found | {"error": " ".join(str(error).split())[:200] or type(error).__name__}
    found["seconds"] = time.perf_counter() - begin
    found["accuracy"] = right
    tau = kendall_tau(panel.truth, answer.order)
    found["tau"] = abs(tau)
    found["called"] = bool(answer.directed)
    found["wrong"] = bool(answer.directed and (tau < 0 or not panel.directed))
    if answer.probability is not None:
        found["probability"] = float(answer.probability)
    if panel.drift is not None and answer.drift is not None and tau > 0:
        found["drift_error"] = mean_absolute_error(panel.drift, answer.drift)
    return found


FOREST_SEED = 0


def retrace(X: Array) -> Answer:
    """ReTrace with its defaults."""
    model = ReTrace(dt=DT, n_jobs=1, random_state=0).fit(X)
    found = np.asarray(model.position_probabilities_)
    # Up to reversal: a position and its mirror image count together, along the order that was found.
    along = found[model.order_, np.arange(len(found))]
    mirrored = found[model.order_[::-1], np.arange(len(found))]
    sure = float(np.minimum(along + mirrored, 1.0).mean())
    return Answer(model.order_, model.direction_.identified, sure, model.drift_)


def algorithm1(X: Array) -> Answer:
    """The paper's Algorithm 1, which claims the direction that its scores prefer."""
    model = ReTrace(
        dt=DT, order="score", drift="linear", estimator="mle", n_jobs=1, random_state=0
    ).fit(_filled(X))
    return Answer(model.order_, True, None, model.drift_)


def mst(X: Array) -> Indices:
    """Minimum spanning tree, walked from an end of its longest path."""
    return mst_order(_scaled(X), random_state=0)


def dpt(X: Array) -> Indices:
    """Diffusion pseudotime from an end."""
    return dpt_order(_scaled(X), random_state=0)


def tsp(X: Array) -> Indices:
    """Seriation as a shortest path through the slices."""
    return shortest_path(slice_distances(_scaled(X)) ** 2)


def spectral(X: Array) -> Indices:
    """Seriation by the Fiedler vector of the slices' similarities."""
    return spectral_path(slice_distances(_scaled(X)) ** 2)


def forest(X: Array, known: Array) -> Answer:
    """A random forest that learns from other subjects which of two rows comes first; slices are ranked by their votes.

    It sees what no other method here does: subjects of the same process in their true order.
    """
    from sklearn.ensemble import RandomForestClassifier

    if not len(known):
        raise ValueError("there are no other subjects whose order is known.")
    X, known = _filled(X), _filled(known)
    rng = np.random.default_rng(FOREST_SEED)
    first, second = np.triu_indices(known.shape[1], 1)
    pairs = np.concatenate([known[:, first], known[:, second]], axis=-1).reshape(-1, 2 * X.shape[2])
    turned = rng.random(len(pairs)) < 0.5
    d = X.shape[2]
    pairs[turned] = np.concatenate([pairs[turned, d:], pairs[turned, :d]], axis=-1)
    trees = RandomForestClassifier(200, min_samples_leaf=5, random_state=FOREST_SEED, n_jobs=1)
    trees.fit(pairs, ~turned)
    T = X.shape[1]
    before = np.full((T, T), 0.5)
    for a, b in zip(*np.triu_indices(T, 1), strict=True):
        both = (
            np.concatenate([X[:, a], X[:, b]], axis=-1),
            np.concatenate([X[:, b], X[:, a]], axis=-1),
        )
        votes = [
            np.log(np.clip(trees.predict_proba(each)[:, 1], 0.01, 0.99)).mean() for each in both
        ]
        before[a, b] = 1 / (1 + np.exp(votes[1] - votes[0]))
        before[b, a] = 1 - before[a, b]
    return Answer(np.argsort(-before.sum(axis=1), kind="stable"), True)


METHODS: dict[str, Method] = {
    "ReTrace": retrace,
    "Algorithm 1": algorithm1,
    "MST": mst,
    "DPT": dpt,
    "shortest path": tsp,
    "spectral": spectral,
    "random forest (learns from others)": forest,
}
"""By the name in the table."""


def load(name: str) -> tuple[str, Method, bool]:
    """A method by its name here, or `module:function`; and whether it takes other subjects whose order is known."""
    if name in METHODS:
        found: Callable[..., Any] = METHODS[name]
    else:
        module, _, function = name.partition(":")
        if not function:
            raise ValueError(f"{name!r} is none of {', '.join(METHODS)}, nor module:function.")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{name} cannot be imported: {error}.") from None
    return name, found, "known" in inspect.signature(found).parameters


def _filled(X: Array) -> Array:
    """Missing values replaced by the slice's mean, for methods that know none."""
    return np.where(np.isnan(X), np.nanmean(X, axis=0, keepdims=True), X)


def _scaled(X: Array) -> Array:
    """Variables of unit variance, so that distances do not depend on their units."""
    X = _filled(X)
    scale = X.std(axis=(0, 1))
    return X / np.where(scale > 0, scale, 1.0)
