"""Which batches are grouped before the exchange."""

from __future__ import annotations

import pytest

from headgate.operators.windows.repetition import (
    FIRST_PASSED_ROWS,
    LEAST_ROWS,
    MOST_GROUPS,
    MOST_PASSED_ROWS,
    PROBED_ROWS,
    Repetition,
)


def passed(repetition: Repetition, rows: int) -> int:
    """Return how many rows pass before a batch is grouped again."""
    count = 0
    while not repetition.is_worth_grouping(rows):
        count += rows
    return count


def test_batches_whose_keys_repeat_are_grouped_for_ever() -> None:
    repetition = Repetition()
    for _ in range(100):
        assert repetition.is_worth_grouping(PROBED_ROWS)
        repetition.grouped(PROBED_ROWS, int(MOST_GROUPS * PROBED_ROWS))


def test_small_batches_pass_and_change_nothing() -> None:
    repetition = Repetition()
    assert not repetition.is_worth_grouping(LEAST_ROWS - 1)
    assert repetition.is_worth_grouping(LEAST_ROWS)
    repetition.grouped(PROBED_ROWS, PROBED_ROWS)
    for _ in range(10_000):
        assert not repetition.is_worth_grouping(LEAST_ROWS - 1)
    assert passed(repetition, PROBED_ROWS) == FIRST_PASSED_ROWS


def test_it_is_decided_by_enough_rows() -> None:
    repetition = Repetition()
    for _ in range(PROBED_ROWS // LEAST_ROWS - 1):
        repetition.grouped(LEAST_ROWS, LEAST_ROWS)
        assert repetition.is_worth_grouping(LEAST_ROWS)
    repetition.grouped(LEAST_ROWS, LEAST_ROWS)
    assert not repetition.is_worth_grouping(LEAST_ROWS)


def test_where_keys_hardly_repeat_it_is_tried_again_and_ever_more_seldom() -> None:
    repetition = Repetition()
    found = []
    for _ in range(8):
        repetition.grouped(PROBED_ROWS, int(MOST_GROUPS * PROBED_ROWS) + 1)
        found.append(passed(repetition, PROBED_ROWS))
    assert found == [min(FIRST_PASSED_ROWS << n, MOST_PASSED_ROWS) for n in range(8)]
    repetition.grouped(PROBED_ROWS, 1)
    assert repetition.is_worth_grouping(PROBED_ROWS)
    repetition.grouped(PROBED_ROWS, PROBED_ROWS)
    assert passed(repetition, PROBED_ROWS) == FIRST_PASSED_ROWS, "they had begun to repeat meanwhile"


def test_more_groups_than_rows_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="3 groups of 2 rows"):
        Repetition().grouped(2, 3)
