"""The tumour-growth testbed: cohorts whose every counterfactual is known (units: cm³, days).

    X' = X + [ρ log(K/X) − β_c C − (α_r d + β_r d²)] X Δt + σ √Δt ξ,      Y = X + σ_obs ε,

with chemotherapy C ∈ [0, 5], radiotherapy d ∈ {0, 1}, and parameters that vary between subjects. All
arms of a cohort run on the same noise ξ, so that a subject's factual and counterfactual paths differ by
treatment alone. Parameters are those of the field's simulators (Geng et al. 2017; RMSN 2018; CRN 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import expit
from scipy.stats import truncnorm

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import checked
from retrace_sde.process.drift import Drift, Independent, TumourGrowth
from retrace_sde.process.simulate import Seed

Arm = Literal["treated", "untreated", "observational"]
ARMS: tuple[Arm, ...] = ("treated", "untreated", "observational")

POPULATION = {
    "rho": 0.01453,
    "capacity": np.pi * 30.0**3 / 6,
    "beta_c": 0.028,
    "alpha_r": 0.0398,
    "beta_r": 0.00398,
}
"""Means of the subjects' parameters; K is the volume of a ball of 30 cm."""

CHEMOTHERAPY_DOSE = 5.0
MIN_VOLUME = 1e-3
"""Smallest volume, cm³: additive noise could otherwise make a volume negative."""

POLICY_MIDPOINT = 6.5
"""Diameter, cm, at which confounded treatment has probability one half."""


def volume(diameter: Array | float) -> Array:
    """Volume of a ball, cm³, from its diameter, cm.

    Parameters
    ----------
    diameter : array or float
        cm.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> float(rt.tumour.volume(2.0).round(3))
    4.189
    """
    return np.pi * np.asarray(diameter, dtype=float) ** 3 / 6


def diameter(volume: Array | float) -> Array:
    """Diameter of a ball, cm, from its volume, cm³.

    Parameters
    ----------
    volume : array or float
        cm³.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> float(rt.tumour.diameter(rt.tumour.volume(3.0)).round(6))
    3.0
    """
    return np.cbrt(6 * np.asarray(volume, dtype=float) / np.pi)


@dataclass(frozen=True, eq=False)
class Cohort:
    """One arm of a simulated cohort, in time order, and the same subjects' paths under the other arms.

    Attributes
    ----------
    arm : str
        Which.
    observed, states : array (n, T, 1)
        Measured with noise, and the truth behind it.
    covariates : array (n, T, 2)
        C and d from each visit to the next.
    paths : dict
        The states under each arm, from the same noise.
    parameters : dict of array (n,)
        The subjects' own.
    dt : float
        Time between visits, days.
    floor_hits : int
        Steps of this arm that were stopped at the floor.
    lengths : array (n,) or None
        Visits until death or recovery (literature's setting only).
    radiotherapy : float
        Dose of a visit.
    outcomes : dict
        Of the literature's setting.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> cohort = rt.tumour.simulate_cohort(50, arm="treated", steps=20, random_state=0)
    >>> cohort.expected("untreated").shape, cohort.treatment("treated")
    ((50, 21), array([5., 1.]))
    >>> cohort.shuffled(np.arange(21)[::-1]).values.shape
    (50, 21, 1)
    """

    arm: Arm
    observed: Array
    states: Array
    covariates: Array
    paths: dict[Arm, Array]
    parameters: dict[str, Array]
    dt: float
    floor_hits: int = 0
    lengths: Indices | None = None
    radiotherapy: float = 1.0
    outcomes: dict[str, Array] = field(default_factory=dict)

    @property
    def panel(self) -> Panel:
        """What an analyst would see, as a `Panel`; shuffle it first."""
        return self.shuffled(np.arange(self.observed.shape[1]))

    def shuffled(self, moved: Indices) -> Panel:
        """The panel with its visits rearranged.

        Parameters
        ----------
        moved : array (T,) or (n, T)
            For all subjects, or one row for each.
        """
        index = np.broadcast_to(moved, self.observed.shape[:2])[:, :, None]
        return Panel(
            np.take_along_axis(self.observed, index, axis=1),
            ("volume",),
            tuple(str(j) for j in range(len(self.observed))),
            np.take_along_axis(self.covariates, index, axis=1),
            ("chemotherapy", "radiotherapy"),
            self.dt,
            self.lengths,
        )

    def treatment(self, arm: Literal["treated", "untreated"]) -> Array:
        """(C, d) of an arm of constant treatment.

        Parameters
        ----------
        arm : {"treated", "untreated"}
            The treatment.
        """
        return np.array([CHEMOTHERAPY_DOSE, self.radiotherapy]) * (arm == "treated")

    def expected(self, arm: Literal["treated", "untreated"]) -> Array:
        """Each subject's expected volume (n, T) under constant treatment, by its own parameters.

        The path without noise: it differs from the mean over noise by less than 0.01 cm³ at σ = 0.1.

        Parameters
        ----------
        arm : {"treated", "untreated"}
            The treatment.
        """
        if self.lengths is not None:
            raise ValueError(
                "expected outcomes are defined for the package's own setting; with literature=True use paths."
            )
        C, d = self.treatment(arm)
        x = self.states[:, 0, 0]
        path = [x]
        for _ in range(self.states.shape[1] - 1):
            x = np.maximum(x + self.dt * x * _growth(self.parameters, x, C, d), MIN_VOLUME)
            path.append(x)
        return np.stack(path, axis=1)


@dataclass(frozen=True)
class Regimen:
    """What is seldom varied: how long subjects are watched, and the dose of radiotherapy when given.

    Parameters
    ----------
    days : float
        Length of the study.
    radiotherapy : float
        1 as a switch; 2: in Gy.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.tumour.Regimen(days=30.0)
    Regimen(days=30.0, radiotherapy=1.0)
    """

    days: float = 15.0
    radiotherapy: float = 1.0


@checked
def simulate_cohort(
    n: int = 5000,
    *,
    arm: Arm = "observational",
    sigma_tumour: float = 0.015,
    sigma_obs: float = 0.01,
    variability: float = 0.05,
    steps: int = 60,
    confounding: float = 2.0,
    literature: bool = False,
    random_state: Seed = None,
    **regimen: float,
) -> Cohort:
    """n subjects of one arm of the tumour-growth testbed, with all counterfactuals.

    Observational treatment is confounded: each visit C = 5 · Bernoulli(p), d = Bernoulli(p), with
    `p = sigmoid(confounding/13 · (diameter − 6.5))`. The same seed gives the same
    subjects and noise in every arm.

    Parameters
    ----------
    n : int
        Subjects.
    arm : {"treated", "untreated", "observational"}
        C = 5, d = 1 throughout; nothing; or as above.
    sigma_tumour, sigma_obs : float
        Noise of growth and of measurement.
    variability : float
        Lognormal, of every parameter including σ_tumour.
    steps : int
        Visits.
    confounding : float
        How much the size of a tumour decides its treatment.
    literature : bool
        The setting of CRN and Causal Transformer instead (60 daily steps unless `steps`
        is given otherwise, volumes of all stages, multiplicative noise of 1 %, a drug half-life of one day, 2 Gy,
        death at 13 cm and recovery); `sigma_*`, `variability`, `days` and `radiotherapy` then do not apply.
    random_state : int, Generator or None
        Seed.
    **regimen
        `days` and `radiotherapy`, those of `Regimen`.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> treated, not_ = (rt.tumour.simulate_cohort(200, arm=arm, random_state=0) for arm in ("treated", "untreated"))
    >>> bool(treated.states[:, -1].mean() < not_.states[:, -1].mean())
    True
    """
    rng, course = np.random.default_rng(random_state), Regimen(**regimen)
    if literature:
        return _literature(n, arm, steps, confounding, rng)
    own = {
        name: mean * np.exp(variability * rng.standard_normal(n) - variability**2 / 2)
        for name, mean in (POPULATION | {"sigma": sigma_tumour}).items()
    }
    start = volume(rng.uniform(1.3, 1.5, size=n))
    noise = rng.standard_normal((steps, n))
    draws = rng.random((2, steps + 1, n))
    error = sigma_obs * rng.standard_normal((n, steps + 1, 1))
    runs = {
        name: _run(
            name, own, start, noise, draws, course.days / steps, confounding, course.radiotherapy
        )
        for name in ARMS
    }
    states, covariates, hits = runs[arm]
    return Cohort(
        arm,
        states + error,
        states,
        covariates,
        {name: run[0] for name, run in runs.items()},
        own,
        course.days / steps,
        hits,
        radiotherapy=course.radiotherapy,
    )


def _growth(own: dict[str, Array], x: Array, C: Array | float, d: Array | float) -> Array:
    """The rate in brackets: `ρ log(K/x) − β_c C − (α_r d + β_r d²)`."""
    kill = own["beta_c"] * C + own["alpha_r"] * d + own["beta_r"] * d**2
    return np.asarray(own["rho"] * np.log(own["capacity"] / x) - kill)


def _run(
    arm: Arm,
    own: dict[str, Array],
    x: Array,
    noise: Array,
    draws: Array,
    dt: float,
    confounding: float,
    radiotherapy: float,
) -> tuple[Array, Array, int]:
    """States (n, T, 1), treatments (n, T, 2) and floor hits of one arm."""
    states, given, hits = [x], [], 0
    for t in range(len(noise) + 1):
        if arm == "observational":
            p = expit(confounding / 13 * (diameter(x) - POLICY_MIDPOINT))
        else:
            p = np.full(len(x), float(arm == "treated"))
        C, d = CHEMOTHERAPY_DOSE * (draws[0, t] < p), radiotherapy * (draws[1, t] < p)
        given.append(np.stack([C, d], axis=1))
        if t == len(noise):
            break
        step = x + dt * x * _growth(own, x, C, d) + own["sigma"] * np.sqrt(dt) * noise[t]
        hits += int((step < MIN_VOLUME).sum())
        x = np.maximum(step, MIN_VOLUME)
        states.append(x)
    return np.stack(states, axis=1)[:, :, None], np.stack(given, axis=1), hits


@dataclass(frozen=True)
class TumourParameters:
    """A fit of `TumourGrowth` as parameters of the tumour model.

    Attributes
    ----------
    estimated : dict of float
        What was estimated.
    not_identified : dict of str
        What could not be, and why.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.tumour.TumourParameters({"rho": 0.1}, {}).estimated
    {'rho': 0.1}
    """

    estimated: dict[str, float]
    not_identified: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{name} = {value:.4g}" for name, value in self.estimated.items()]
        return "\n".join(lines + [f"{k}: {why}" for k, why in self.not_identified.items()])


def growth_parameters(
    drift: Drift, coefficients: Array, *, covariates: Sequence[str] = ()
) -> TumourParameters:
    """a = ρ log K, ρ, and each covariate's rate κ, from the coefficients of a fitted `TumourGrowth`.

    With two covariates, chemotherapy and radiotherapy, the rates are β_c and α_r + β_r. Features that depend
    on others in the data at hand leave only combinations of parameters, which are named as such.

    Parameters
    ----------
    drift : TumourGrowth
        As fitted.
    coefficients : array (1, p)
        `model.drift_`.
    covariates : sequence of str
        Their names.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> found = rt.tumour.growth_parameters(rt.drift.TumourGrowth(), np.array([[0.3, -0.1]]))
    >>> {name: round(value, 3) for name, value in found.estimated.items()}
    {...}
    """
    whole = drift.whole if isinstance(drift, Independent) else drift
    if not isinstance(whole, TumourGrowth):
        raise ValueError(f"these are parameters of TumourGrowth; the fit has {whole}.")
    rates = (
        ["beta_c", "alpha_r + beta_r"]
        if len(covariates) == 2
        else [f"kappa_{c}" for c in covariates]
    )
    names, signs = ["a", "rho", *rates], [1.0, *[-1.0] * (1 + len(rates))]
    kept = drift.kept if isinstance(drift, Independent) else tuple(range(len(names)))
    dropped = [j for j in range(len(names)) if j not in kept]
    estimated, cannot = {}, {}
    for i, j in enumerate(kept):
        label = names[j]
        for m, k in enumerate(dropped):
            w = drift.weights[i, m] if isinstance(drift, Independent) else 0.0
            if abs(w) > 1e-8:
                weight = signs[j] * signs[k] * w
                label += f" {'+' if weight > 0 else '−'} {abs(weight):.4g} ({names[k]})"
        estimated[label] = float(signs[j] * np.ravel(coefficients)[i])
    for m, k in enumerate(dropped):
        alone = isinstance(drift, Independent) and not np.any(np.abs(drift.weights[:, m]) > 1e-8)
        cannot[names[k]] = (
            "never given in these data"
            if alone
            else "not identified separately from the others in these data"
        )
    if "alpha_r + beta_r" in names:
        cannot["alpha_r, beta_r"] = "only their sum is identified: d² = d at one dose"
    cannot["K"] = (
        "not determined in practice, since exp(a/rho) multiplies small errors: use a and rho"
    )
    return TumourParameters(estimated, cannot)


# The setting of CRN and Causal Transformer ---------------------------------------------------------

TUMOUR_STAGES = {
    "I": (1432, 1.72, 4.70, 5.0),
    "II": (128, 1.96, 1.63, 13.0),
    "IIIA": (1306, 1.91, 9.40, 13.0),
    "IIIB": (7248, 2.76, 6.87, 13.0),
    "IV": (12840, 3.86, 8.82, 13.0),
}
"""Of each stage: its frequency, and the lognormal distribution (μ, σ, largest) of its diameter, at least 0.3 cm."""

CELLS_PER_CM3 = 5.8e8
"""Tumour cells per cm³: recovery has probability exp(−cells)."""

POLICY_DAYS = 15
"""Days over which the policy averages the diameter."""


def _literature(
    n: int, arm: Arm, steps: int, confounding: float, rng: np.random.Generator
) -> Cohort:
    own = _literature_subjects(n, rng)
    start = volume(own.pop("diameter"))
    noise = 0.01 * rng.standard_normal((steps, n))
    draws = rng.random((3, steps + 1, n))
    runs = {name: _literature_run(name, own, start, noise, draws, confounding) for name in ARMS}
    states, covariates, lengths, outcomes = runs[arm]
    return Cohort(
        arm,
        states,
        states,
        covariates,
        {name: run[0] for name, run in runs.items()},
        own,
        1.0,
        lengths=lengths,
        radiotherapy=2.0,
        outcomes=outcomes,
    )


def _literature_subjects(n: int, rng: np.random.Generator) -> dict[str, Array]:
    """Stages, diameters and parameters; α_r and ρ correlate by 0.87, and all are positive."""
    counts = np.array([row[0] for row in TUMOUR_STAGES.values()], dtype=float)
    stage = rng.choice(len(TUMOUR_STAGES), size=n, p=counts / counts.sum())
    mu, sigma, most = np.array([row[1:] for row in TUMOUR_STAGES.values()]).T[:, stage]
    diameters = np.exp(_truncated(mu, sigma, np.log(0.3), np.log(most), rng))
    kind = rng.integers(
        1, 4, size=n
    )  # responds better to radiotherapy (1), to neither, to chemotherapy (3)
    sd = np.array([0.168, 7.23e-3])
    covariance = np.outer(sd, sd) * np.array([[1, 0.87], [0.87, 1]])
    pairs = np.empty((0, 2))
    while len(pairs) < n:  # about four in ten are positive in both
        drawn = rng.multivariate_normal([0.0398, 7e-5], covariance, size=4 * n)
        pairs = np.concatenate([pairs, drawn[(drawn > 0).all(axis=1)]])
    alpha = pairs[:n, 0] + 0.1 * 0.0398 * (kind == 1)
    beta_c = _truncated(np.full(n, 0.028), np.full(n, 7e-4), 0.0, np.inf, rng)
    return {
        "rho": pairs[:n, 1],
        "capacity": np.full(n, POPULATION["capacity"]),
        "beta_c": beta_c + 0.1 * 0.028 * (kind == 3),
        "alpha_r": alpha,
        "beta_r": alpha / 10,
        "diameter": diameters,
    }


def _truncated(
    mean: Array, sd: Array, low: Array | float, high: Array | float, rng: np.random.Generator
) -> Array:
    drawn = truncnorm.rvs((low - mean) / sd, (high - mean) / sd, random_state=rng, size=len(mean))
    return np.asarray(mean + sd * drawn)


def _literature_run(
    arm: Arm, own: dict[str, Array], x: Array, noise: Array, draws: Array, confounding: float
) -> tuple[Array, Array, Indices, dict[str, Array]]:
    """Daily steps with multiplicative noise until death (13 cm) or recovery; a drug half-life of one day.

    The policy looks at the mean diameter of the days before, and day 0 is untreated, as published.
    """
    n, death = len(x), float(volume(13.0))
    lengths = np.full(n, len(noise) + 1, dtype=np.intp)
    alive = np.ones(n, dtype=bool)
    died, recovered = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    C, d = np.zeros(n), np.zeros(n)
    states, given = [x], [np.zeros((n, 2))]
    for t in range(1, len(noise) + 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            step = x * (1 + _growth(own, x, C, d) + noise[t - 1])
        x = np.where(alive, step, x)
        past = np.stack(states[max(t - POLICY_DAYS, 0) : t])
        p = expit(confounding / 13 * (diameter(past).mean(axis=0) - POLICY_MIDPOINT))
        p = p if arm == "observational" else np.full(n, float(arm == "treated"))
        C = C / 2 + CHEMOTHERAPY_DOSE * (draws[0, t] < p)
        d = 2.0 * (draws[1, t] < p)
        dies = alive & (x > death)
        recovers = alive & ~dies & (draws[2, t] < np.exp(-np.maximum(x, 0.0) * CELLS_PER_CM3))
        x = np.where(dies, death, np.where(recovers, 0.0, x))
        died, recovered = died | dies, recovered | recovers
        lengths[dies | recovers] = t + 1
        alive &= ~(dies | recovers)
        states.append(x)
        given.append(np.stack([C, d], axis=1))
    outcomes = {"died": died.astype(float), "recovered": recovered.astype(float)}
    return np.stack(states, axis=1)[:, :, None], np.stack(given, axis=1), lengths, outcomes
