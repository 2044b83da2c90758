"""Which model is fitted: decided here, once, from the settings and the data.

| states | gaps | model |
|---|---|---|
| seen as they are | equal, or known | `EulerModel` |
| seen as they are | known, and differ; the drift is linear in the state | `HiddenModel.across`, up to `CROSSED_WORK` |
| seen as they are | of a shared order, to be estimated | `GapModel` |
| noisy, or partly missing | equal | `HiddenModel` |
| noisy, partly missing, or placed on a schedule | known, scheduled, or of a shared order and to be estimated; or with inputs | `HiddenModel.across` |
| any | of single orders, of which only the distribution is known | `RandomGapModel` |

Nothing else asks for a concrete class: a model says by its properties (`states_hidden`, `gaps_estimated`, `gaps_random`) what a
caller must know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.fit.statespace.parameters import Noise, as_noise
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Clock
from retrace_sde.panel.validation import has_missing
from retrace_sde.process.drift import Drift, driven, has_state_space, in_state_space, is_linear
from retrace_sde.process.sde import Gaussian, Scheme
from retrace_sde.search.model import Fit
from retrace_sde.search.models.estimated_gaps import GapModel
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.models.random_gaps import RandomGapModel
from retrace_sde.search.protocols import Model

CROSSED_WORK = 5_000_000
"""n T d³ up to which states seen across known gaps that differ are fitted by exact transitions unless Euler's step is asked for. With times of
each trajectory's own a fit takes about 4 µs of it, 20 s at most; Euler's values lay up to 27 standard errors from the truth (200 × 20 × 3, gaps
of .2 to .8 where the slowest relaxation takes 2)."""


@dataclass(frozen=True)
class Settings:
    """What the user chose that decides the model: kind of order, estimator, observation noise (None: none given), gaps.

    `by_score`: the order is sought by the paper's scores. `rates`: each subject has a rate, of which only Euler's steps know.
    """

    shared: bool
    estimator: str
    noise: Noise | None
    estimate_gaps: bool
    by_score: bool = False
    rates: bool = False

    @property
    def scheme(self) -> Scheme:
        """Parameters are those of the SDE, unless the paper's, of Euler's step, are asked for."""
        return "euler" if self.estimator in ("mle", "ols") else "exact"


def planned_drift(drift: Drift, data: Data, timing: Clock, settings: Settings) -> Drift:
    """The drift as the model will see it: with inputs, or hidden states, a state-space form where it has one."""
    random_gaps = settings.estimate_gaps and not settings.shared
    noisy = settings.noise is not None or settings.estimator == "em"
    hidden = timing.scheduled or random_gaps or noisy or has_missing(Data(data.values))
    inputs = data.covariates is not None
    return (
        in_state_space(drift, inputs=inputs) if hidden or (inputs and is_linear(drift)) else drift
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What a model is chosen from: the data behind Euler's steps, with what is known of their time, and the settings."""

    plain: EulerModel
    settings: Settings

    def model(self) -> Model:
        """The model that the settings and the data call for."""
        model, settings = self.plain, self.settings
        noise = self._noise(model)
        unknown = settings.estimate_gaps and not model.timing.gaps_known
        scheduled = model.timing.scheduled
        irregular = scheduled or (unknown and not settings.shared) or self._crosses(model)
        if noise is None and not irregular:
            return GapModel(model.data, model.dt, model.drift).knowing(model) if unknown else model
        _check_state_space(model.drift, noise=noise, irregular=irregular)
        return self._hidden(model, 0.0 if noise is None else noise, unknown=unknown)

    def _crosses(self, model: EulerModel) -> bool:
        """Known gaps differ, and exact transitions across them, which have no closed form, are feasible or asked for."""
        settings, (n, T, d) = self.settings, model.data.shape
        plain = settings.by_score or settings.rates or model.data.lazy
        if settings.scheme != "exact" or plain or not has_state_space(model.drift):
            return False
        differ = model.timing.gaps_known and model.gaps.uneven(model.dt)
        return differ and (settings.estimator == "exact" or n * T * d**3 <= CROSSED_WORK)

    def with_noise(self, noise: Noise) -> Model:
        """The same data behind noise that the evidence asks for; gaps to be estimated are taken for equal."""
        return self._hidden(self.plain, noise, unknown=False)

    def _hidden(self, model: EulerModel, noise: Noise, *, unknown: bool) -> HiddenModel:
        """The state-space model for the steps that there are: equal, known, scheduled or unknown ones."""
        settings, equal = self.settings, np.full(model.data.shape[1] - 1, model.dt)
        if unknown and not settings.shared:
            return RandomGapModel.unknown(model, noise=noise)
        if model.timing.scheduled:
            gaps = model.timing.scheduled_gaps
            return HiddenModel.across(model, gaps, noise=noise, placed=True)
        if unknown or model.gaps.uneven(model.dt):
            gaps = model.gaps.along(model.data.shape[1])
            return HiddenModel.across(model, gaps, noise=noise, free=unknown)
        if model.data.covariates is not None:
            return HiddenModel.across(model, equal, noise=noise)
        return HiddenModel.of(model, noise=noise)

    def _noise(self, model: EulerModel) -> Noise | None:
        """Observation noise; 0 where there is none but values are missing, None where there are neither."""
        noise, estimator = self.settings.noise, self.settings.estimator
        if noise is None and estimator == "em":
            noise = "estimate"
        missing = has_state_space(driven(model.drift)) and has_missing(model.data)
        if noise is None and not missing:
            return None
        if estimator in ("mle", "ols") and not self.settings.by_score:
            raise ValueError(
                f"estimator={estimator!r} models neither noise nor missing values: use 'em', 'exact' (em "
                "without the bias of Euler's step) or 'auto'."
            )
        return 0.0 if noise is None else noise


def planned_with_missing(model: Model, found: Fit, initial: Gaussian) -> tuple[Model, Fit]:
    """A model of complete states, and its fit, for other data in which values are missing."""
    plain = model.plain()
    hidden = HiddenModel.of(plain, noise=0.0)
    if plain.data.covariates is not None:
        equal = np.full(plain.data.shape[1] - 1, plain.dt)
        hidden = HiddenModel.across(plain, equal, noise=0.0, scheme="euler")
    return hidden, hidden.adopted(found, initial)


def given_noise_covariance(model: Model) -> Array | None:
    """R as it was given, NaN where it is to be estimated; None where states are seen as they are."""
    return as_noise(model.noise, model.data.shape[2])[0] if isinstance(model, HiddenModel) else None


def _check_state_space(drift: Drift, *, noise: Any, irregular: bool) -> None:
    """Noise, missing values, schedules and gaps of single trajectories can be summed out of linear drifts only."""
    if has_state_space(driven(drift)):
        return
    if noise is not None:
        raise ValueError(nonlinear("observation noise", drift))
    if irregular:
        raise ValueError(
            f"a schedule, or gaps of own orders to be estimated, cannot be combined with {drift}: steps over gaps of any "
            "length are known for drifts linear in the state only. Use drift='affine' (covariates enter as inputs), or "
            "equal steps: no schedule and spacing='regular'."
        )


def nonlinear(what: str, drift: Drift) -> str:
    """Why what hides states is refused with a drift that is not linear in them, and what to do instead.

    A Gaussian smoother about such a drift does not hold up against a dense grid: docs/method.md has the figures.
    """
    return (
        f"{what} cannot be combined with {drift}: hidden states can be integrated out of drifts linear in the state only. "
        "Use drift='affine' (covariates enter as inputs); or keep the drift and fit what was observed completely: "
        "leave out trajectories, slices or variables with missing values, average replicates against noise, and fit "
        "without observation_noise."
    )
