"""Which tests are run: those marked `statistics`, and many examples of each property, only on request."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The suite tries the same few examples every time: what one run says, the next one says too.
settings.register_profile("few", max_examples=4, deadline=None, derandomize=True)
settings.register_profile("many", max_examples=25, deadline=None)
settings.load_profile("few")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `statistics` unless `-m` names them: many seeds, the paper's sizes, minutes."""
    if "statistics" in config.getoption("markexpr"):
        return
    left_out = [each for each in items if each.get_closest_marker("statistics")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if not each.get_closest_marker("statistics")]
