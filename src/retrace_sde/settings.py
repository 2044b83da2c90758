"""Every check of what a model is asked to do, once, before it sees data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrace_sde.algorithm1 import as_score
from retrace_sde.drift import as_drift, is_linear
from retrace_sde.score import GaussianScore
from retrace_sde.validation import check_choice, check_positive


def check_settings(given: Mapping[str, Any]) -> None:
    """The parameters of `ReTrace`, each by itself and together."""
    check_positive("dt", given["dt"])
    check_choice("permutation", given["permutation"], ["shared", "independent"])
    check_choice("order", given["order"], ["likelihood", "score"])
    check_choice("estimator", given["estimator"], ["auto", "mle", "ols", "exact", "em", "mcem"])
    check_choice("spacing", given["spacing"], ["regular", "estimate"])
    check_choice("score_drift", given["score_drift"], ["absolute", "mean"])
    check_choice("keep", given["keep"], ["best", "last"])
    score = as_score(given["score_model"])
    if not isinstance(score, GaussianScore) and given["observation_noise"] is not None:
        raise ValueError(
            "score_model must be 'gaussian' with observation_noise: only S − R corrects for it."
        )
    check_positive("max_iter", given["max_iter"])
    if not 0 < given["alpha"] < 1:
        raise ValueError(f"alpha must lie between 0 and 1; got {given['alpha']!r}.")
    if not is_linear(as_drift(given["drift"])):
        if given["estimator"] in ("exact", "em"):
            raise ValueError(
                f"estimator={given['estimator']!r} needs a linear or affine drift; use 'mle'."
            )
        if given["observation_noise"] is not None:
            raise ValueError("observation_noise needs a linear or affine drift: leave it None.")
    if given["permutation"] == "independent" and given["order"] == "score":
        raise ValueError(
            "order='score' is the paper's algorithm for one shared permutation; use order='likelihood' "
            "with permutation='independent'."
        )
    if given["spacing"] == "estimate" and given["permutation"] == "independent":
        raise ValueError(
            "spacing='estimate' needs one shared permutation: a gap of one trajectory has only the d "
            "numbers of its step behind it, so its relative error is √(2/d) even with all else known. "
            "Give times as knowledge, or use spacing='regular'."
        )
    if given["spacing"] == "estimate" and given["order"] == "score":
        raise ValueError("spacing='estimate' needs order='likelihood'.")
    if given["permutation"] == "shared" and given["estimator"] == "mcem":
        raise ValueError(
            "estimator='mcem' averages over independent orders; with permutation='shared' use 'mle' "
            "and sample_orders()."
        )
