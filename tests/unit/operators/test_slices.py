"""The size of a call: it converges, whatever a row costs, and reacts at once when rows become slow."""

from __future__ import annotations

import pytest

from headgate.operators.slices import CALL_MS, SliceController


@pytest.mark.parametrize("row_ms", [0.0, 0.00001, 0.01, 1.0, 7.0, 39.0, 60.0])
@pytest.mark.parametrize("fixed_ms", [0.0, 3.0])
def test_calls_stay_within_the_limit_and_come_near_to_it(row_ms: float, fixed_ms: float) -> None:
    slices = SliceController()
    for _ in range(50):
        rows = slices.rows
        cost_ms = fixed_ms + rows * row_ms
        slices.took(rows, cost_ms)
    assert cost_ms <= CALL_MS * 1.1 or rows == 1
    assert cost_ms >= CALL_MS / 3 or rows == 1 << 20


def test_the_first_call_is_small() -> None:
    assert SliceController().rows == 16


def test_slow_rows_shrink_the_next_call() -> None:
    slices = SliceController()
    for _ in range(6):
        slices.took(slices.rows, 0.01)
    assert slices.rows > 10_000
    slices.took(1000, 1000.0)
    assert slices.rows == 40


def test_small_batches_do_not_make_calls_larger() -> None:
    slices = SliceController()
    for _ in range(100):
        slices.took(1, 0.0)
    assert slices.rows == 16
