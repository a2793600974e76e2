"""`StreamJoin` as the runtime drives it: beside a join of all rows with all, late, evicted, spilled and restored."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from headgate.operators.stream_join import operator as module
from headgate.operators.stream_join.operator import StreamJoinKind
from headgate.state import part
from headgate.state.sorted_runs import FAN_IN
from tests.unit.operators.stream_join.join_world import (
    BOUNDS_MS,
    EARLIER_MS,
    LATER_MS,
    Row,
    Subtasks,
    brute_force,
    made,
)

KINDS: tuple[StreamJoinKind, ...] = get_args(StreamJoinKind)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 14])
@pytest.mark.parametrize("kind", KINDS)
def test_random_interleavings_give_what_a_join_of_all_rows_gives(
    tmp_path: Path, kind: StreamJoinKind, memory_bytes: int
) -> None:
    """Rows, watermarks, checkpoints, restores at other parallelisms; late rows are those of no join."""
    for seed in range(12 if memory_bytes == 0 else 4):
        draw = random.Random(f"{kind} {seed}")
        world = Subtasks(
            lambda: made(kind), tmp_path / str(seed), parallelism=draw.choice([1, 2, 3]), memory_bytes=memory_bytes
        )
        most = 12 if memory_bytes == 0 else 60
        sides: tuple[list[Row], list[Row]] = ([], [])
        watermark, late, saved = -1, 0, None
        for step in range(40):
            number = draw.randrange(2)
            rows: list[Row] = []
            for place in range(draw.randrange(most)):
                time = max(0, watermark + draw.randrange(-1500, 5000))
                rows.append(
                    (
                        draw.choice([None, *range(6)]),
                        draw.choice([time] * 20 + [None]),
                        f"{'lr'[number]}{step}.{place}.{draw.randrange(1000)}",
                    )
                )
            world.process(number, rows)
            in_time = [row for row in rows if row[1] is None or row[1] > watermark]
            late += len(rows) - len(in_time)
            sides[number].extend(in_time)
            if draw.random() < 0.4:
                watermark += draw.randrange(1, 2500)
                world.watermark(watermark)
            if draw.random() < 0.15:
                saved = world.checkpoint(), [list(each) for each in sides], watermark, list(world.emitted)
            if draw.random() < 0.15 and saved is not None:
                state, before, watermark, emitted = saved
                world.deploy(state, draw.choice([1, 2, 3]))
                sides, world.emitted = (list(before[0]), list(before[1])), list(emitted)
                world.watermark(watermark)
        world.end()
        assert world.values() == brute_force(kind, *sides), seed
        world.close()
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_late_rows_are_counted_and_given_with_nulls_for_the_other_side(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("full"), tmp_path)
    world.watermark(1000)
    world.process(0, [(1, 1000, "late"), (1, 1001, "left")])
    world.process(1, [(1, 999, "late"), (1, 1001, "right"), (1, None, "timeless")])
    assert world.operators[0].late_rows == 2
    assert [row for each in world.late for row in each.to_pylist()] == [
        {"k": 1, "lt": world.late[0].column("lt")[0].as_py(), "lv": "late", "k 2": None, "rt": None, "rv": None},
        {"k": None, "lt": None, "lv": None, "k 2": 1, "rt": world.late[1].column("rt")[0].as_py(), "rv": "late"},
    ]
    assert world.values() == Counter([("left", "right")])


def test_rows_are_kept_as_long_as_the_bounds_say_and_emitted_alone_once(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("full"), tmp_path)
    world.process(0, [(1, 5000, "left")])
    world.process(1, [(2, 5000, "right")])
    world.watermark(5000 + EARLIER_MS)
    assert world.values() == Counter() and world.operators[0].rows_kept == (1, 1)
    world.watermark(5001 + EARLIER_MS)
    assert world.values() == Counter([(None, "right")])
    world.watermark(5000 + LATER_MS)
    world.process(1, [(1, 5001 + LATER_MS, "too late for it")])
    assert world.values() == Counter([(None, "right")])
    world.watermark(5001 + LATER_MS)
    assert world.values() == Counter([(None, "right"), ("left", None)])
    assert world.operators[0].rows_kept == (0, 1)
    world.end()
    assert world.values() == Counter([(None, "right"), ("left", None), (None, "too late for it")])
    assert world.operators[0].watermark_delay_ms == LATER_MS + 1


def test_what_cannot_match_is_not_kept(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("left", (-LATER_MS - 1, 10_000)), tmp_path)
    world.process(0, [(None, 1, "no key")])
    assert world.values() == Counter([("no key", None)]) and world.operators[0].rows_kept == (0, 0)
    world.watermark(0)
    world.process(1, [(1, 9000, "over when it comes"), (None, 9000, "no key")])
    assert world.operators[0].rows_kept == (0, 0)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 18])
def test_state_stays_bounded_by_the_watermark(tmp_path: Path, memory_bytes: int) -> None:
    """Rows of ten times as long as they are kept; without bounds all of them are kept."""
    most, unbounded = 0, 0
    for bounds in (BOUNDS_MS, (None, None)):
        world = Subtasks(lambda bounds=bounds: made("inner", bounds), tmp_path / str(bounds), memory_bytes=memory_bytes)  # type: ignore[misc]
        for second in range(60):
            for number in range(2):
                world.process(number, [(place, second * 1000 + place, f"{second}.{place}") for place in range(1000)])
            world.watermark(second * 1000)
            if memory_bytes:
                assert world.operators[0].state_bytes[0] <= memory_bytes
            if bounds is BOUNDS_MS:
                most = max(most, *world.operators[0].rows_kept)
        unbounded = world.operators[0].rows_kept[0]
        if memory_bytes:
            assert world.operators[0].state_bytes[1] > 0
        world.close()
    assert most <= 2 * (LATER_MS // 1000 + 2) * 1000 and unbounded == 60_000


def test_a_semi_join_forgets_what_is_matched(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("semi"), tmp_path)
    world.process(0, [(key, 0, f"{key}.{place}") for key in range(100) for place in range(2)])
    world.process(1, [(key, 1, "") for key in range(100) for _ in range(3)])
    assert world.values() == Counter((f"{key}.{place}",) for key in range(100) for place in range(2))
    assert world.operators[0].rows_kept == (0, 300)
    world.process(1, [(1, 2, "")])
    world.process(0, [(1, 2, "again")])
    assert world.values()[("again",)] == 1 and world.operators[0].rows_kept[0] == 0


def test_many_equal_rows_are_joined_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "PAIRS", 64)
    world = Subtasks(lambda: made("inner"), tmp_path)
    world.process(0, [(1, place, f"l{place}") for place in range(30)])
    world.process(1, [(1, place, f"r{place}") for place in range(30)])
    assert world.values() == Counter((f"l{one}", f"r{other}") for one in range(30) for other in range(30))
    assert max(each.num_rows for each in world.emitted) <= 64


def test_equal_hashes_are_not_equal_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "key_hash", lambda arrays: np.zeros(len(arrays[0]), np.uint64))
    world = Subtasks(lambda: made("inner"), tmp_path)
    world.process(0, [(1, 0, "one"), (2, 0, "two")])
    world.process(1, [(2, 0, "2"), (3, 0, "3"), (1, 0, "1")])
    assert world.values() == Counter([("one", "1"), ("two", "2")])


def test_a_checkpoint_stores_what_is_new(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("left"), tmp_path)
    for begin in range(0, 100_000, 10_000):
        world.process(0, [(key, 0, f"{key}") for key in range(begin, begin + 10_000)])
    world.checkpoint()
    world.process(1, [(key, 0, "") for key in range(10)])
    world.process(0, [(key, 0, "") for key in range(10)])
    world.checkpoint()
    assert 0 < world.uploaded[1] < world.uploaded[0] / 20


def test_what_was_over_in_one_subtask_is_over_after_a_rescale(tmp_path: Path) -> None:
    """The watermarks of two subtasks differ when the barrier comes: no row is emitted twice or lost."""
    world = Subtasks(lambda: made("left"), tmp_path, parallelism=2)
    rows: list[Any] = [(key, 1000, f"{key}") for key in range(40)]
    world.process(0, rows)
    world.watermark(1001 + LATER_MS, subtask=0)
    some = sum(world.values().values())
    assert 0 < some < 40
    world.deploy(world.checkpoint(), 1)
    world.process(1, [(key, 1001, "") for key in range(40)])
    world.end()
    assert sum(1 for each in world.values() if each[1] is None) == some, "what was over is joined with nothing"
    assert Counter(value for value, _ in world.values().elements()) == Counter(f"{key}" for key in range(40))


def test_runs_are_few(tmp_path: Path) -> None:
    world = Subtasks(lambda: made("inner", (None, None)), tmp_path)
    for begin in range(0, 40_000, 400):
        world.process(0, [(key, 0, "") for key in range(begin, begin + 400)])
    kept: Any = world.operators[0]._kept[0]
    assert len(kept.runs.runs) <= 4 * FAN_IN
