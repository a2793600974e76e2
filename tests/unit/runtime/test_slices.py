"""The size of a call: it converges, whatever a call and a row cost, and reacts at once when rows become slow."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headgate.runtime.slices import CALL_MS, SliceController


def calls(slices: SliceController, cost_ms: Callable[[int], float], count: int = 60) -> list[tuple[int, float]]:
    """Make so many calls, each as large as allowed; return how many rows they had and how long they took."""
    made = []
    for _ in range(count):
        rows = slices.rows
        made.append((rows, cost_ms(rows)))
        slices.took(*made[-1])
    return made


@pytest.mark.parametrize("row_ms", [0.0, 0.00001, 0.01, 1.0, 7.0, 39.0, 60.0])
@pytest.mark.parametrize("fixed_ms", [0.0, 3.0, 20.0])
def test_calls_stay_within_the_limit_and_come_near_to_it(row_ms: float, fixed_ms: float) -> None:
    rows, cost_ms = calls(SliceController(), lambda rows: fixed_ms + rows * row_ms)[-1]
    assert cost_ms <= CALL_MS * 1.1 or rows == 1
    assert cost_ms + row_ms >= CALL_MS * 0.9 or rows == 1 << 20


@pytest.mark.parametrize("row_ms", [0.0, 0.0001, 0.01, 0.1])
@pytest.mark.parametrize("fixed_ms", [39.0, 45.0, 200.0, 2000.0])
def test_a_call_whose_cost_is_not_in_its_rows_is_not_made_small(row_ms: float, fixed_ms: float) -> None:
    made = calls(SliceController(), lambda rows: fixed_ms + rows * row_ms)
    rows, cost_ms = made[-1]
    assert rows >= 90
    assert cost_ms <= fixed_ms * 1.3
    assert all(cost_ms <= fixed_ms * 2 for _, cost_ms in made)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("fixed_ms", "row_ms", "least"), [(45.0, 0.01, 200), (0.0, 1.0, 15), (500.0, 0.5, 60)])
def test_it_converges_on_a_machine_whose_times_vary(seed: int, fixed_ms: float, row_ms: float, least: int) -> None:
    choose = random.Random(seed)

    def cost_ms(rows: int) -> float:
        hiccup_ms = 300 if choose.random() < 0.03 else 0
        return (fixed_ms + rows * row_ms) * choose.uniform(0.9, 1.3) + hiccup_ms

    made = calls(SliceController(), cost_ms, 1000)[100:]
    total_ms = sum(cost_ms for _, cost_ms in made)
    assert sum(rows for rows, _ in made) / len(made) >= least
    assert total_ms / len(made) <= max(CALL_MS, fixed_ms * 1.25) * 1.5 + 9


def test_the_first_call_has_one_row_because_its_cost_is_unknown() -> None:
    assert SliceController().rows == 1


def test_rows_that_take_very_long_are_not_tried_by_two() -> None:
    assert {rows for rows, _ in calls(SliceController(), lambda rows: rows * 6000.0)} == {1}
    assert [rows for rows, _ in calls(SliceController(), lambda rows: rows * 60.0)].count(2) == 1


def test_a_function_that_loads_something_first_is_not_taken_for_a_slow_one() -> None:
    took_ms = iter([3000.0])
    rows, _ = calls(SliceController(), lambda rows: next(took_ms, 0.01 * rows), 20)[-1]
    assert rows == 4000


def test_slow_rows_shrink_the_next_call() -> None:
    slices = SliceController()
    calls(slices, lambda rows: 0.01, 8)
    assert slices.rows > 10_000
    slices.took(1000, 1000.0)
    assert slices.rows <= 40


def test_a_call_that_becomes_slow_by_itself_grows_again() -> None:
    slices = SliceController()
    calls(slices, lambda rows: 0.01 * rows)
    assert calls(slices, lambda rows: 100 + 0.01 * rows)[-1][0] >= 2000


def test_each_slow_call_among_others_is_one_of_its_own() -> None:
    """As if the machine had been busy with something else: what rows cost is not forgotten for it."""
    slices = SliceController()
    calls(slices, lambda rows: 1.0 * rows)
    for _ in range(3):
        slices.took(slices.rows, 1000.0)
        assert [rows for rows, _ in calls(slices, lambda rows: 1.0 * rows, 3)] == [1, 8, 40]
        calls(slices, lambda rows: 1.0 * rows)


def test_small_batches_do_not_make_calls_larger() -> None:
    slices = SliceController()
    calls(slices, lambda rows: 0.0, 2)
    assert slices.rows == 64
    for _ in range(100):
        slices.took(1, 0.0)
    assert slices.rows == 64
