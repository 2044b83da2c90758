"""Which candidate model explains correlated residuals: the one that predicts the next step best.

Every candidate of `evidence.candidates.registry` that predicts steps is compared with Markov steps along the order found. A
gain in log-likelihood is tested against χ² (Bonferroni over the candidates); of those that are significant the best by BIC is
named. The fits are rough, meant to tell candidates apart, not to estimate.
"""

from __future__ import annotations

from retrace_sde.after.steps import Steps
from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.evidence.candidates.prediction import markov_prediction
from retrace_sde.evidence.candidates.registry import CANDIDATES
from retrace_sde.process.tails import chi2_sf

MIN_PREDICTED_STEPS = 4
"""Steps of a trajectory without which candidates are not compared."""


def explain(steps: Steps, level: float) -> tuple[str | None, float]:
    """The kind of the candidate that the steps ask for, and its p-value; None where no gain is significant at `level`."""
    y = steps.response
    if y is None or not steps.regular or y.shape[1] < MIN_PREDICTED_STEPS:
        return None, 1.0
    n, S, _ = y.shape
    base = markov_prediction(steps)
    predictions = {
        each.kind: found for each in CANDIDATES if (found := each.predict(steps)) is not None
    }
    evidence: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for kind, found in predictions.items():
        gain = (found.log_likelihood - base) * (1 - found.chance)
        p = float(chi2_sf(2 * max(gain, 0.0), found.parameters))
        p_values[kind] = min(1.0, len(predictions) * p)
        if p_values[kind] < level:
            evidence[kind] = gain - penalty(Block(found.parameters, n * (S - 1)))
    for kind in list(evidence):
        if any(other in evidence for other in predictions[kind].yields_to):
            del evidence[kind]
    if not evidence:
        return None, min(p_values.values(), default=1.0)
    best = max(evidence, key=lambda kind: evidence[kind])
    return best, p_values[best]
