"""`Deduplicate` as the runtime drives it: keys that are known, forgotten, spilled, restored and rescaled."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators import deduplicate
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.windows.windowed import Key
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.state.sorted_runs import FAN_IN
from tests.unit.operators.windows.window_world import SCHEMA, TIMESTAMP, Subtasks, batch, many, process


def made(*keys: str, time: str | None = "at", within_us: int | None = None) -> Callable[[], Any]:
    def make() -> Any:
        operator = Deduplicate(SCHEMA, keys, time=time, within_us=within_us)
        operator.uid = "window"
        operator._keys = [Key(each, each) for each in keys]  # type: ignore[attr-defined]  # by which the world deals out
        return operator

    return make


def values(world: Subtasks) -> list[Any]:
    return [row["v"] for row in world.rows()]


def test_the_first_row_of_each_key_goes_through(tmp_path: Path) -> None:
    world = Subtasks(made("k"), tmp_path)
    world.process(batch((1, 1, 10), (1, 2, 11), (1, 1, 12), (1, None, 13), (1, None, 14)))
    world.process(batch((2, 2, 15), (2, 3, 16), (2, None, 17)))
    assert values(world) == [10, 11, 13, 16]


def test_floating_keys_are_those_of_spark(tmp_path: Path) -> None:
    """Also in the rows that go on, as in Spark's batch, where they are those of a group."""
    numbers = pa.array([-0.0, 0.0, float("nan"), -float("nan"), None, 1.0])
    operator = Deduplicate(pa.schema([("x", pa.float64())]), ["x"])
    operator.uid = "x"
    operator.open(_context(tmp_path), [])
    emitted: list[pa.RecordBatch] = []
    for _ in range(2):
        operator.process(pa.record_batch({"x": numbers}), "s", lambda rows, split: emitted.append(rows))
    assert [repr(each.column("x").to_pylist()) for each in emitted] == ["[0.0, nan, None, 1.0]"]


def _context(folder: Path) -> Any:
    from headgate.protocol.operator_context import OperatorContext

    return OperatorContext(uid="x", subtask=0, parallelism=1, spill_folder=str(folder))


def test_the_event_time_of_windows_is_their_end(tmp_path: Path) -> None:
    """As it is where rows that an aggregation emits are deduplicated: those at the watermark are late."""
    bounds = [pa.array([each * 1_000_000 for each in seconds]).cast(TIMESTAMP) for seconds in ([0, 5, 9], [10, 15, 19])]
    windows = pa.StructArray.from_arrays(bounds, ["start", "end"])
    rows = pa.record_batch({"k": pa.array([1, 1, 2], pa.int64()), "window": windows})
    operator = Deduplicate(rows.schema, ["k"], time="window", within_us=1_000_000)
    operator.uid = "x"
    operator.open(_context(tmp_path), [])
    emitted: list[pa.RecordBatch] = []

    def process(first: int, many: int) -> list[int]:
        emitted.clear()
        operator.process(rows.slice(first, many), "s", lambda batch, split: emitted.append(batch))
        return [row["window"]["end"].second for batch in emitted for row in batch.to_pylist()]

    assert process(0, 1) == [10]
    operator.process_watermark(10_000, lambda batch, split: None)
    assert process(0, 3) == [19]
    assert operator.late_rows == 1
    operator.process_watermark(11_000, lambda batch, split: None)
    assert process(1, 2) == [15], "forgotten a second after the end of its window"


def test_late_rows_have_the_columns_of_the_program(tmp_path: Path) -> None:
    rows = pa.record_batch({"k": [[1], None], "at": pa.array([0, 1], TIMESTAMP), "k.bytes": [b"1", None]})
    operator = Deduplicate(rows.schema, ["k.bytes"], time="at", within_us=0, late=[(1, "at"), (0, "x")])
    operator.uid = "x"
    late: list[pa.RecordBatch] = []
    operator.on_late = late.append
    operator.open(_context(tmp_path), [])
    operator.process_watermark(10_000, lambda rows, split: None)
    operator.process(rows, "s", lambda rows, split: None)
    assert late == [rows.select(["at", "k"]).rename_columns(["at", "x"])]
    assert [each.schema for each in late] == [operator.late_schema]


def test_late_rows_are_counted_and_keys_with_their_time_are_forgotten(tmp_path: Path) -> None:
    world = Subtasks(made("k", "at", within_us=0), tmp_path)
    world.process(batch((1, 1, 10), (1, 1, 11), (5, 1, 12), (None, 1, 13), (None, 1, 14)))
    world.watermark(1000)
    world.process(batch((1, 1, 15), (1, 7, 16), (1.001, 7, 17), (5, 1, 18)))
    assert values(world) == [10, 12, 13, 17] and world.late_rows == 2
    world.watermark(5000)
    assert [part.rows for part in world.operators[0]._known.parts] == [1]  # type: ignore[attr-defined]


def test_within_the_watermark_a_key_comes_again_when_it_is_forgotten(tmp_path: Path) -> None:
    world = Subtasks(made("k", within_us=2_000_000), tmp_path)
    world.process(batch((1, 1, 10), (2, 1, 11)))
    world.watermark(2999)
    world.process(batch((4, 1, 12)))
    world.watermark(3000)
    world.process(batch((4, 1, 13), (5, 1, 14)))
    assert values(world) == [10, 13]
    world.watermark(6000)
    assert world.operators[0].snapshot_keyed(1)[1:] == []


@pytest.mark.parametrize("memory_bytes", [0, 1 << 16])
def test_many_keys_with_spills_restores_and_rescales(tmp_path: Path, memory_bytes: int) -> None:
    """Compared with a set; what has been emitted since a checkpoint is emitted again after it is restored."""
    draw = random.Random(3)
    world = Subtasks(made("k", time=None), tmp_path, memory_bytes=memory_bytes)
    known: set[int] = set()
    expected: list[int] = []
    saved: Any = None
    for step in range(60):
        keys = [draw.randrange(60_000) for _ in range(2000)]
        world.process(many(keys, 1))
        new = sorted(set(keys) - known)
        expected += new
        known |= set(new)
        if step % 11 == 5:
            saved = world.checkpoint(), set(known)
        if step % 11 == 8:
            world.restore(saved[0], draw.choice([1, 2, 3]))
            known = set(saved[1])
        if memory_bytes and step > 50:
            assert sum(each.state_bytes[0] for each in world.operators) <= memory_bytes * len(world.operators)  # type: ignore[attr-defined]
            assert all(each.state_bytes[1] for each in world.operators)  # type: ignore[attr-defined]
    assert sorted(row["k"] for row in world.rows()) == sorted(expected)
    for operator in world.operators:
        operator.close()
    assert not list(tmp_path.rglob("part-*"))


def test_a_checkpoint_stores_what_is_new(tmp_path: Path) -> None:
    world = Subtasks(made("k", time=None), tmp_path)
    for begin in range(0, 400_000, 20_000):
        process(world, many(range(begin, begin + 20_000), 1))
    world.checkpoint()
    world.process(many(range(100), 1))
    world.process(many(range(400_000, 400_100), 1))
    world.checkpoint()
    assert world.uploaded[1] < world.uploaded[0] / 50


def test_equal_hashes_are_not_equal_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two keys with one hash are known to us: a hash that has only three values stands for it."""
    monkeypatch.setattr(deduplicate, "key_hash", lambda arrays: arrays[0].to_numpy().astype(np.uint64) % np.uint64(3))
    world = Subtasks(made("k", time=None), tmp_path)
    for begin in (0, 10, 5, 0):
        world.process(many(range(begin, begin + 20), 1))
    assert [row["k"] for row in world.rows()] == list(range(30))


def test_a_row_that_was_late_stays_late_after_a_rescale(tmp_path: Path) -> None:
    world = Subtasks(made("k", within_us=1_000_000), tmp_path, parallelism=2)
    rows = many(range(50), 1)
    world.process(rows)
    world.watermark(3000, subtask=0)
    world.process(rows)
    late, emitted = world.late_rows, len(world.rows())
    assert 0 < late < 50 and emitted == 50
    world.restore(world.checkpoint(), 1)
    world.process(rows)
    assert world.late_rows == late and len(world.rows()) == 50
    world.watermark(MAX_WATERMARK_MS)


def test_runs_of_all_sizes_are_few(tmp_path: Path) -> None:
    world = Subtasks(made("k", time=None), tmp_path)
    for begin in range(0, 200_000, 500):
        process(world, many(range(begin, begin + 500), 1))
    known: SimpleNamespace = world.operators[0]._known  # type: ignore[attr-defined]
    assert len(known.runs) <= 4 * FAN_IN
