"""Groups without a window: state that lives on, its output modes, and event times as keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.expressions.expressions import Bound
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import NoWindow
from headgate.source.watermark import MAX_WATERMARK_MS
from tests.unit.operators.windows import words
from tests.unit.operators.windows.window_world import EPOCH, SCHEMA, Subtasks, at_once, batch, made, many, process
from tests.unit.operators.windows.words import avg, collect_list, count, max, sum

AGGREGATES = (sum("v"), count())
BY_TIME = NoWindow(Bound(0, "at"))


def subtasks(folder: Path, mode: Any = "update", keys: Any = ("k",), window: Any = None, **options: Any) -> Subtasks:
    aggregates = options.pop("aggregates", AGGREGATES)
    return Subtasks(lambda: made(SCHEMA, window or NoWindow(), list(keys), aggregates, mode), folder, **options)


def taken(world: Subtasks) -> list[tuple[Any, ...]]:
    """Return what was emitted since the last time."""
    found = sorted((tuple(row.values()) for row in world.rows()), key=repr)
    world.emitted.clear()
    return found


def test_updates_go_on_for_ever(tmp_path: Path) -> None:
    """No watermark ends a group, no row is late, and a rescaled query goes on with what it had."""
    world = subtasks(tmp_path)
    world.process(batch((1, 1, 5), (None, 1, 6), (3, None, 2)))
    world.watermark(10_000_000)
    assert taken(world) == []
    states = world.checkpoint()
    assert taken(world) == [(1, 11, 2), (None, 2, 1)]
    world.restore(states, 3)
    world.process(batch((1, 1, 1), (9, 2, 3)))
    world.checkpoint()
    assert taken(world) == [(1, 12, 3), (2, 3, 1)]
    world.process(batch((None, None, 1)))
    world.watermark(MAX_WATERMARK_MS)
    assert taken(world) == [(None, 3, 2)], "what changed since the last barrier is emitted at the end"
    world.checkpoint()
    assert taken(world) == []
    assert world.late_rows == 0
    assert world.operators[0].late_schema is None


def test_append_emits_groups_at_the_end_of_the_input_only(tmp_path: Path) -> None:
    world = subtasks(tmp_path, "append", parallelism=2)
    world.process(batch((1, 1, 5), (2, 2, 6)))
    world.checkpoint()
    world.watermark(10_000_000)
    assert taken(world) == []
    world.watermark(MAX_WATERMARK_MS)
    assert taken(world) == [(1, 5, 1), (2, 6, 1)]


def test_complete_emits_all_groups_before_every_barrier(tmp_path: Path) -> None:
    """Also after the end of the input: other subtasks may go on, and a checkpoint has the rows of all."""
    world = subtasks(tmp_path, "complete", parallelism=2)
    world.process(batch((1, 1, 5), (2, 2, 6)))
    world.watermark(5_000)
    for _ in range(2):
        states = world.checkpoint()
        assert taken(world) == [(1, 5, 1), (2, 6, 1)]
    world.restore(states, 1)
    world.process(batch((0, 3, 1)))
    world.watermark(MAX_WATERMARK_MS)
    assert taken(world) == []
    world.checkpoint()
    assert taken(world) == [(1, 5, 1), (2, 6, 1), (3, 1, 1)]


@pytest.mark.parametrize("window", [words.window("at", "10 seconds"), words.session_window("at", "10 seconds")])
def test_without_event_time_no_window_ends_and_no_row_is_late(tmp_path: Path, window: Any) -> None:
    world = Subtasks(lambda: made(SCHEMA, window, ["k"], AGGREGATES), tmp_path)
    (operator,) = world.operators
    operator.has_event_time = False
    assert operator.late_schema is None
    world.process(batch((0, 1, 5)))
    world.watermark(60_000)
    world.process(batch((1, 1, 6)))
    assert taken(world) == [] and world.late_rows == 0
    assert [row["sum(v)"] for row in world.finish()] == [11]


def test_complete_groups_that_go_on_elsewhere_are_emitted_before_the_end_and_not_again(tmp_path: Path) -> None:
    """Else others, who expect no rows after the end, would get those of the last barriers."""
    for elsewhere in (False, True):
        world = subtasks(tmp_path, "complete")
        world.process(batch((1, 1, 5), (2, 2, 6)))
        (operator,) = world.operators
        operator.goes_on_elsewhere = elsewhere
        groups = [(1, 5, 1), (2, 6, 1)]
        world.checkpoint()
        assert taken(world) == groups
        operator.end_input(world._emit)
        assert taken(world) == (groups if elsewhere else [])
        world.checkpoint()
        assert taken(world) == ([] if elsewhere else groups)


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_an_aggregation_without_keys_has_one_row_of_no_rows(tmp_path: Path, mode: str) -> None:
    """In one subtask, with what Spark has of nothing."""
    aggregates = (count(), sum("v"), avg("v"), max("v"), collect_list("v"), count("v"))
    world = subtasks(tmp_path, mode, (), parallelism=3, aggregates=aggregates)
    world.watermark(MAX_WATERMARK_MS)
    world.checkpoint()
    assert taken(world) == [(0, None, None, None, [], 0)]
    world = subtasks(tmp_path, mode, (), parallelism=3)
    world.process(batch((1, 0, 5), (2, 0, 6)))
    world.watermark(MAX_WATERMARK_MS)
    world.checkpoint()
    assert taken(world) == [(11, 2)]


def test_a_group_whose_key_is_the_event_time_ends_with_the_watermark(tmp_path: Path) -> None:
    """As in Spark at the watermark, not after it; without a time at the end only; what comes later is late."""
    world = subtasks(tmp_path, "append", ("at", "k"), BY_TIME)
    world.process(batch((1, 1, 5), (2, 1, 6), (None, 1, 7), (1, 1, 1)))
    world.watermark(999)
    assert taken(world) == []
    world.watermark(1000)
    assert [((at - EPOCH).total_seconds(), *rest) for at, *rest in taken(world)] == [(1.0, 1, 6, 2)]
    states = world.checkpoint()
    world.restore(states, 2)
    world.process(batch((1, 1, 9), (3, 1, 1), (None, 1, 1)))
    assert world.late_rows == 1
    world.watermark(3000)
    assert sorted(row[2:] for row in taken(world)) == [(1, 1), (6, 1)]
    world.watermark(MAX_WATERMARK_MS)
    assert taken(world) == [(None, 1, 8, 2)]


@pytest.mark.parametrize("memory_bytes", [0, 400_000])
def test_an_update_reports_changes_of_large_state(tmp_path: Path, memory_bytes: int) -> None:
    """State beyond its memory is in files; a restored and rescaled query finds all of it."""
    world = subtasks(tmp_path, memory_bytes=memory_bytes)
    keys = np.arange(60_000)
    for begin in range(0, len(keys), 20_000):
        process(world, many(keys[begin : begin + 20_000], 1))
        states = world.checkpoint()
    assert (world.operators[0].state_bytes[1] > 0) == (memory_bytes > 0)
    taken(world)
    world.restore(states, 2)
    world.process(batch((1, 7, 1), (2, 59_999, 1), (3, 60_000, 1)))
    world.checkpoint()
    assert taken(world) == [(59_999, 59_999 % 7 + 1, 2), (60_000, 1, 1), (7, 1, 2)]
    world.process(batch((1, 7, 1), (3, 60_000, None), (3, None, 3)))
    world.checkpoint()
    assert taken(world) == [(60_000, 1, 2), (7, 2, 3), (None, 3, 1)]


def test_updates_go_at_once_to_a_sink_that_publishes_at_once(tmp_path: Path) -> None:
    """Each change once, between barriers too; then there is a pause, which is longer where more rows were merged."""
    waits = subtasks(tmp_path / "waits")
    waits.process(batch((1, 1, 5)))
    assert waits.operators[0].due_ms() is None, "a sink that publishes with checkpoints gets each group once for each"
    world = Subtasks(lambda: at_once(made(SCHEMA, NoWindow(), ["k"], AGGREGATES, "update")), tmp_path)
    operator = world.operators[0]
    world.process(batch((1, 1, 5)))
    assert operator.due_ms() == 0
    operator.process_time(1000, world._emit)
    assert taken(world) == [(1, 5, 1)]
    assert operator.due_ms() is None, "nothing changed since"
    world.process(batch((1, 1, 1), (2, 2, 2)))
    assert operator.due_ms() == 1002
    operator.process_time(1001, world._emit)
    assert taken(world) == []
    operator.process_time(1002, world._emit)
    assert taken(world) == [(1, 6, 2), (2, 2, 1)]
    world.process(many(np.arange(10_000), 1))
    world.checkpoint()
    assert len(taken(world)) == 10_000, "a barrier does not wait for the pause"
    world.checkpoint()
    assert taken(world) == []
    world.process(many(np.arange(10_000), 1))
    operator.process_time(2000, world._emit)
    assert len(taken(world)) == 10_000
    world.process(batch((1, 1, 5)))
    assert operator.due_ms() == 2200


def test_changes_of_event_times_are_reported_each(tmp_path: Path) -> None:
    """A key that has several event times has a group of each, and only those that changed are emitted."""
    world = subtasks(tmp_path, "update", ("at", "k"), BY_TIME)
    world.process(batch(*((second, 1, second) for second in range(100))))
    world.checkpoint()
    taken(world)
    world.process(batch((7, 1, 1), (200, 1, 1)))
    world.checkpoint()
    assert sorted(row[1:] for row in taken(world)) == [(1, 1, 1), (1, 8, 2)]


def test_nothing_that_changed_is_due(tmp_path: Path) -> None:
    """What was emitted before the barrier is over, and only a later group has changed since."""
    schema = pa.schema([("at", SCHEMA.field("at").type), ("k", pa.int64()), ("v", pa.float64())])
    world = Subtasks(
        lambda: made(schema, BY_TIME, ["at", "k"], [Aggregate("var_pop", Bound(0, "v"))], "update"), tmp_path
    )
    world.process(batch((1, 1, 5)).cast(schema))
    world.checkpoint()
    world.process(batch((3, 1, 6)).cast(schema))
    world.emitted.clear()
    world.watermark(2_000)
    assert taken(world) == []
    world.watermark(3_000)
    assert [row[2] for row in taken(world)] == [0.0]
