"""The settings of a `ReTrace`, checked, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retrace_sde.estimator.checks import check_settings, is_auto
from retrace_sde.evidence.closed_form.panels import Ground
from retrace_sde.evidence.growth import Growth
from retrace_sde.evidence.outcome import Options
from retrace_sde.evidence.selection.intercepts import Subjects
from retrace_sde.io.arrays import Indices
from retrace_sde.panel.inputs import MissingInputs
from retrace_sde.paper.algorithm1 import ScoreOrder, ScoreSearch, as_score_order
from retrace_sde.process.drift import Drift, as_drift, driven, has_state_space
from retrace_sde.search.plan import Settings, given_noise_covariance
from retrace_sde.search.protocols import Model

AS_GIVEN = ("estimator", "observation_noise", "missing_covariates", "common_shocks", "outliers", "max_iter", "alpha", "n_jobs", "verbose")  # fmt: skip
"""Settings that are used as they are."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked for. `score_order`: the order is sought by the paper's Algorithm 1.

    `known_order`: the order, where only its direction is asked for, in the places of the entry. `growth`: variables known to grow or fall.
    """

    dt: float
    shared: bool
    score_order: ScoreOrder | None
    estimator: str
    drift: Drift
    observation_noise: Any
    estimate_gaps: bool
    missing_covariates: MissingInputs
    subjects: Subjects
    common_shocks: bool | str
    outliers: str
    grounds: frozenset[Ground]
    max_iter: int
    alpha: float
    n_jobs: int | None
    verbose: bool
    given: Mapping[str, Any]
    known_order: Indices | None = None
    growth: Growth | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """The parameters of a `ReTrace`, refused where they cannot be used, alone or together."""
        check_settings(given)
        return cls(
            dt=float(given["dt"]),
            shared=given["permutation"] == "shared",
            score_order=as_score_order(given["order"]),
            drift=as_drift(given["drift"]),
            estimate_gaps=given["spacing"] == "estimate",
            subjects=Subjects(given["subjects"]),
            grounds=frozenset(map(Ground, given["evidence"])),
            given=given,
            **{name: given[name] for name in AS_GIVEN},
        )

    @property
    def by_likelihood(self) -> bool:
        """The order is sought by maximum likelihood."""
        return self.score_order is None

    @property
    def has_state_space(self) -> bool:
        """The drift is linear in the state: hidden states can be integrated out."""
        return has_state_space(driven(self.drift))

    @property
    def noise_by_evidence(self) -> bool:
        """The data decide whether there is observation noise."""
        return is_auto(self.observation_noise)

    @property
    def given_noise(self) -> Any:
        """Observation noise as it was given; None where there is none, or where the data decide."""
        return None if self.noise_by_evidence else self.observation_noise

    @property
    def common_scale(self) -> bool:
        """Variables are compared with each other, in the paper's scores or by one noise for all: they keep one scale."""
        noise = self.observation_noise
        if isinstance(noise, str):
            alike = noise == "estimate"
        else:
            alike = noise is None and self.estimator == "em"
        return alike or not self.by_likelihood

    def settings(self, noise: Any) -> Settings:
        """What decides the model, with the noise in the units of the fit."""
        rates, by_score = self.subjects is Subjects.RATES, not self.by_likelihood
        return Settings(self.shared, self.estimator, noise, self.estimate_gaps, by_score, rates)

    def options(self, model: Model, volume: float, aligned: str | None) -> Options:
        """What decides the search and the direction.

        `volume`: nats that a log-likelihood loses in the user's units; `aligned`: at what subjects are aligned, None: not told.
        """
        search, subjects, estimator = None, self.subjects, self.estimator
        if self.score_order is not None:
            noise = given_noise_covariance(model)
            search = ScoreSearch(self.max_iter, self.score_order, noise)
            if subjects is Subjects.AUTO:
                subjects = Subjects.ALIKE  # the paper's
        if model.states_hidden and estimator not in ("mcem", "auto"):
            estimator = "em"  # the scheme knows whether transitions are exact
        return Options(
            self.shared,
            estimator,
            self.max_iter,
            self.alpha,
            print if self.verbose else lambda line: None,
            search,
            subjects,
            volume,
            self.grounds,
            aligned,
            self.known_order,
            self.growth,
        )

    def recorded(self, estimator: str) -> dict[str, Any]:
        """The settings as the result keeps them."""
        kept = {name: value for name, value in self.given.items() if name != "n_jobs"}
        for name in ("drift", "order"):
            kept[name] = str(kept[name])
        kept["evidence"] = sorted(map(str, self.grounds))
        seed = kept["random_state"]
        seed = seed if isinstance(seed, int) else None
        return {**kept, "estimator": estimator, "random_state": seed}
