"""Subtasks of a join of two streams, driven as the runtime drives them, and a join by comparing all rows with all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_groups
from headgate.operators.stream_join.condition import PairCondition
from headgate.operators.stream_join.operator import Side, StreamJoin, StreamJoinKind
from headgate.protocol.key_groups import KeyGroupRange, key_group_range, subtask_of
from headgate.protocol.operator_context import OperatorContext
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.state.chunks import KeyedChunk, RestoredChunk

TIMESTAMP = pa.timestamp("us", "UTC")
LEFT = pa.schema([("k", pa.int64()), ("lt", TIMESTAMP), ("lv", pa.string())])
RIGHT = pa.schema([("k 2", pa.int64()), ("rt", TIMESTAMP), ("rv", pa.string())])
SCHEMAS = (LEFT, RIGHT)
Row = tuple[int | None, int | None, str]
"""A key, an event time in milliseconds, and what distinguishes rows."""
EARLIER_MS, LATER_MS = 2000, 3000
"""A row of the right side is equal to one of the left from so much earlier to so much later."""
BOUNDS_MS = (-LATER_MS - 1, -EARLIER_MS - 1)


def batch(number: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows of a side."""
    keys, times, values = zip(*rows) if rows else ((), (), ())
    micros = pa.array([None if each is None else each * 1000 for each in times], pa.int64())
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int64()), micros.cast(TIMESTAMP), pa.array(values, pa.string())], schema=SCHEMAS[number]
    )


class NearInTime(PairCondition):
    """That a pair is near in time."""

    def __init__(self) -> None:
        """Nothing is compiled: NumPy compares."""

    def __str__(self) -> str:
        return "near in time"

    def opened(self, context: OperatorContext) -> PairCondition:
        return self

    def prepare(self, context: OperatorContext) -> Any:
        return iter(())

    def true_of(self, pairs: pa.RecordBatch) -> Any:
        later = pairs.column(4).cast(pa.int64()).to_numpy(False) - pairs.column(1).cast(pa.int64()).to_numpy(False)
        return (later >= -EARLIER_MS * 1000) & (later <= LATER_MS * 1000)

    def close(self) -> None:
        """Nothing is open."""


def near(left: Row, right: Row) -> bool:
    """Return whether a pair is joined."""
    return (
        left[0] is not None
        and left[0] == right[0]
        and left[1] is not None
        and right[1] is not None
        and -EARLIER_MS <= right[1] - left[1] <= LATER_MS
    )


def brute_force(kind: StreamJoinKind, left: Sequence[Row], right: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Return the values of a join, each pair once, with None for what is not there."""
    pairs = [(one, other) for one in left for other in right if near(one, other)]
    alone = (
        [each for each in left if not any(each is one for one, _ in pairs)],
        [each for each in right if not any(each is other for _, other in pairs)],
    )
    if kind == "semi":
        return Counter((each[2],) for each in left if not any(each is one for one in alone[0]))
    if kind == "anti":
        return Counter((each[2],) for each in alone[0])
    found = Counter((one[2], other[2]) for one, other in pairs)
    if kind in ("left", "full"):
        found.update((each[2], None) for each in alone[0])
    if kind in ("right", "full"):
        found.update((None, each[2]) for each in alone[1])
    return found


def made(kind: StreamJoinKind, bounds_ms: tuple[int | None, int | None] = BOUNDS_MS) -> StreamJoin:
    """Return a join by key and time."""
    sides = [Side(schema, (0,), late=1, time=1, offset_ms=bound) for schema, bound in zip(SCHEMAS, bounds_ms)]
    operator = StreamJoin(sides[0], sides[1], pa.schema([*LEFT, *RIGHT]), kind, NearInTime(), "k = k 2")
    operator.uid = "join"
    return operator


class Subtasks:
    """All subtasks of a join; a checkpoint's files are a dict."""

    def __init__(
        self, make: Callable[[], StreamJoin], folder: Path, *, parallelism: int = 1, memory_bytes: int = 0
    ) -> None:
        self._make = make
        self._folder = folder
        self._max_parallelism = 8
        self._memory_bytes = memory_bytes
        self._deployments = 0
        self._checkpoints = 0
        self.files: dict[str, bytes] = {}
        self._groups: dict[str, KeyGroupRange] = {}
        self.uploaded: list[int] = []
        self.emitted: list[pa.RecordBatch] = []
        self.late: list[pa.RecordBatch] = []
        self.operators: list[StreamJoin] = []
        self.deploy([], parallelism)

    def deploy(self, states: Sequence[Sequence[KeyedChunk]], parallelism: int) -> None:
        """Restore the states of all subtasks of a checkpoint."""
        self.close()
        self._deployments += 1
        self.operators = []
        for subtask in range(parallelism):
            operator = self._make()
            operator.on_late = self.late.append  # type: ignore[method-assign]
            operator.open(
                OperatorContext(
                    uid="join", subtask=subtask, parallelism=parallelism, execution=self._deployments,
                    max_parallelism=self._max_parallelism, memory_bytes=self._memory_bytes,
                    spill_folder=str(self._folder / f"{self._deployments}-{subtask}"),
                ),
                [],
            )  # fmt: skip
            own = key_group_range(subtask, parallelism, self._max_parallelism)
            operator.restore_keyed(
                [
                    RestoredChunk(
                        chunk_id=chunk.chunk_id,
                        whole=self._groups[chunk.chunk_id].first in own and self._groups[chunk.chunk_id].last in own,
                        read=lambda name=chunk.chunk_id: self.files[name],  # type: ignore[misc]
                    )
                    for state in states
                    for chunk in state
                    if self._groups[chunk.chunk_id].overlaps(own)
                ]
            )
            self.operators.append(operator)

    def _emit(self, rows: pa.RecordBatch, split: str) -> None:
        rows.validate(full=True)
        assert rows.schema == self.operators[0].schema
        self.emitted.append(rows)

    def process(self, number: int, rows: Sequence[Row]) -> None:
        """Give rows of a side to the subtasks of their keys."""
        given = batch(number, rows)
        groups = key_groups([given.column(0)], self._max_parallelism).to_pylist()
        subtasks = np.array([subtask_of(each, len(self.operators), self._max_parallelism) for each in groups])
        for subtask, operator in enumerate(self.operators):
            own = given.filter(pa.array(subtasks == subtask))
            if own.num_rows:
                operator.process_input(number, own, "split", self._emit)

    def watermark(self, timestamp_ms: int, subtask: int | None = None) -> None:
        for each in self.operators if subtask is None else [self.operators[subtask]]:
            each.process_watermark(timestamp_ms, self._emit)

    def end(self) -> None:
        self.watermark(MAX_WATERMARK_MS)

    def checkpoint(self) -> list[Sequence[KeyedChunk]]:
        self._checkpoints += 1
        states, uploaded = [operator.snapshot_keyed(self._checkpoints) for operator in self.operators], 0
        for chunk in (chunk for state in states for chunk in state):
            if len(self.files.get(chunk.chunk_id, b"x" * 10_000)) < 10_000:
                again, first = (
                    pa.ipc.open_stream(each).read_all() for each in (chunk.serialize(), self.files[chunk.chunk_id])
                )
                assert again.combine_chunks() == first.combine_chunks(), "a file that is gone is written again"
            if chunk.chunk_id not in self.files:
                self.files[chunk.chunk_id] = chunk.serialize()
                self._groups[chunk.chunk_id] = KeyGroupRange(chunk.first_key_group, chunk.last_key_group)
                uploaded += len(self.files[chunk.chunk_id])
        self.uploaded.append(uploaded)
        return states

    def values(self) -> Counter[tuple[Any, ...]]:
        """Return the values of what was emitted, as `brute_force`."""
        found: Counter[tuple[Any, ...]] = Counter()
        for each in self.emitted:
            names = [name for name in ("lv", "rv") if name in each.schema.names]
            found.update(zip(*(each.column(name).to_pylist() for name in names)))
        return found

    def close(self) -> None:
        for operator in self.operators:
            operator.close()
