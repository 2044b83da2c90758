"""Mask, padding and reversal of ragged rows, against loops over single rows."""

import numpy as np
import pytest

from retrace_sde.panel.blocks import Data
from retrace_sde.panel.lengths import Lengths


@pytest.fixture(params=[None, [5, 1, 3, 2], [5, 5, 5, 5]], ids=["full", "ragged", "all as long"])
def lengths(request):
    counts = request.param
    return Lengths(4, 5, None if counts is None else np.array(counts))


def test_the_mask_marks_what_is_there(lengths):
    expected = np.zeros((4, 5), dtype=bool)
    for j, m in enumerate(lengths.each):
        expected[j, :m] = True
    assert np.array_equal(lengths.mask, expected)
    assert lengths.total == expected.sum()
    assert np.array_equal(lengths.steps.mask, expected[:, 1:])
    assert lengths.steps.total == expected[:, 1:].sum()


def test_a_reversal_turns_each_row_within_its_own_length(lengths):
    rows = np.random.default_rng(0).random((4, 5))
    back = lengths.reversed(rows)
    for j, m in enumerate(lengths.each):
        assert np.array_equal(back[j, :m], rows[j, :m][::-1])
        assert np.array_equal(back[j, m:], rows[j, m:])
    assert np.array_equal(lengths.reversed(back), rows)
    assert np.array_equal(np.take_along_axis(rows, lengths.reversal, axis=1), back)


def test_steps_turn_with_the_rows_they_lie_between(lengths):
    times = np.cumsum(np.random.default_rng(1).random((4, 5)), axis=1)
    gaps = np.diff(times, axis=1)
    turned = np.diff(lengths.reversed(times), axis=1)
    inside = lengths.steps.mask
    assert np.allclose(lengths.steps.reversed(gaps)[inside], -turned[inside])


def test_weights_are_the_mask_as_numbers(lengths):
    weights = lengths.weights()
    if not lengths.ragged:
        assert weights is None
        return
    assert weights.shape == (4, 5, 1)
    assert np.array_equal(weights[:, :, 0] == 1, lengths.mask)


@pytest.mark.parametrize("rows", [np.array([2, 2, 0]), slice(1, 3)])
def test_some_rows_keep_their_lengths(lengths, rows):
    some = lengths.take(rows)
    assert some.ragged == lengths.ragged
    assert np.array_equal(some.each, lengths.each[rows])
    assert np.array_equal(some.mask, lengths.mask[rows])


def test_data_know_their_lengths(lengths):
    data = Data(np.zeros((4, 5, 2)), counts=lengths.counts)
    assert np.array_equal(data.observed, lengths.each)
    assert np.array_equal(data.take(np.array([3, 1])).lengths.mask, lengths.mask[[3, 1]])
