"""The paper's tables and figures, one small module each: settings, tasks, and how to show the records.

A module defines `EXPERIMENT`, an `experiment.Experiment`; `experiment.run` runs its tasks and resumes them,
`files` writes the records as JSON, CSV, Markdown and pictures.
"""

from __future__ import annotations

import importlib

from retrace_sde.reproduce.experiment import Experiment

NAMES = ("table1", "figure2", "figure3", "figure4", "figure5")
"""In the order of the paper."""


def load(name: str) -> Experiment:
    """The experiment of that name; its module is imported only now."""
    found: Experiment = importlib.import_module(f"{__name__}.{name}").EXPERIMENT
    return found
