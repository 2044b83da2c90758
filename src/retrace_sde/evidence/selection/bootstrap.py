"""Errors by resampling subjects: what was fitted is fitted again, along the order found, to subjects drawn with replacement."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrace_sde.evidence.selection.intercepts import resampled_fit
from retrace_sde.evidence.selection.subjects import SubjectAccount
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.scores import errors_of_draws
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import joblib
from retrace_sde.progress import steps
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model


def bootstrap(
    model: Model,
    found: Fit,
    rng: np.random.Generator,
    *,
    name: str,
    account: SubjectAccount | None,
    replicates: int,
) -> StandardErrors:
    """The spread of an estimator's answers over panels of n subjects, or as many groups, drawn with replacement; the order is held fixed.

    Where the SDE's parameters are a function of Euler's, to first order in these. What is drawn does not depend on how many run at a time. `account`: random intercepts, where the fit has them.
    """
    refits = name == "exact" and model.closed_form and not found.gaps.equal
    if account is None and not refits:
        return model.bootstrap(found, rng, replicates=replicates)
    sde = None if account is None else account.embedding
    drawn = [model.data.resampled(rng) for _ in range(replicates)]

    def one(rows: Indices) -> tuple[Array, Array]:
        if account is not None:
            return account.resampled(found, rows)
        few: Any = model
        again, fit = resampled_fit(few, found, rows)
        estimate = again.estimate(fit, name)
        return estimate.coefficients, estimate.diffusion

    parallel = joblib.Parallel(model.data.n_jobs or -1, prefer="threads", return_as="generator")
    replies = parallel(joblib.delayed(one)(rows) for rows in drawn)
    fits = list(steps(replies, "resampling subjects", total=len(drawn), least=2))
    return errors_of_draws(fits, None if sde is None else sde.moved)
