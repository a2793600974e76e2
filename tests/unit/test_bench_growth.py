"""``bench/growth.py`` without a query: what is asked for, and beside what it is shown; never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.growth import CASES, Figures, _results, _through, _wanted, draw
from bench.keyed_rows import KEYS, expected

SIZES = [2, 4, 16]


def test_a_case_is_chosen_by_its_name_or_with_a_number_of_slots_and_always_measured_at_two() -> None:
    assert _wanted(["windows", "dedup-64", "dedup-8"], SIZES) == {"windows": SIZES, "dedup": [2, 8, 64]}
    assert _wanted(None, SIZES) == {**dict.fromkeys(CASES, SIZES), "skew": [2]}


@pytest.mark.parametrize("name", ["window", "windows-", "windows-x", ""])
def test_what_is_no_case_is_refused(name: str) -> None:
    with pytest.raises(SystemExit, match=f"no case {name}; there are passthrough, .*, skew"):
        _wanted([name], SIZES)


def test_a_ratio_is_the_cost_at_two_slots_over_the_cost_here() -> None:
    found = {"windows": {2: Figures([90.0, 100.0, 120.0]), 16: Figures([390.0, 400.0, 500.0])}}
    assert [(each.case.name, each.ratio) for each in _results(found)] == [("windows-2", 1.0), ("windows-16", 0.25)]


class _Query:
    def __init__(self, *subtasks: tuple[int, int, int]) -> None:
        self._subtasks = [{"stage": stage, "rowsIn": rows, "rowsOut": out} for stage, rows, out in subtasks]

    def snapshot(self) -> dict[str, object]:
        return {"subtasks": self._subtasks}


def test_rows_that_lie_in_the_exchange_are_not_through_it_and_groups_count_as_the_rows_that_they_are_of() -> None:
    assert _through(_Query((0, 600, 0), (0, 400, 0))) == 1000
    assert _through(_Query((0, 600, 600), (0, 400, 400), (1, 300, 9), (1, 200, 9))) == 500
    assert _through(_Query((0, 600, 60), (0, 400, 40), (1, 30, 9), (1, 20, 9))) == 500


def test_of_skewed_rows_one_key_has_half() -> None:
    plain, skewed = (expected(1_000_000, skewed=each) for each in (False, True))
    windows = 17  # of 58,824 rows each
    assert plain.groups == 17 * KEYS
    assert skewed.total == plain.total
    assert windows * (KEYS // 2) < skewed.groups <= windows * (KEYS // 2 + 1)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw({"windows": {2: Figures([100.0]), 16: Figures([400.0])}, "state": {2: Figures([9.0])}}, tmp_path / "of.png")
    assert (tmp_path / "of.png").read_bytes().startswith(b"\x89PNG")
