"""Runs a `TransformWithState` as a subtask would, snapshots and restores included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.operators.transform_with_state.transform_with_state import Definition, TransformWithState
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import KeyedChunk, RestoredChunk

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def events(*rows: tuple[str | None, int, int]) -> pa.RecordBatch:
    """Return rows of (user, amount, milliseconds)."""
    users, amounts, times = zip(*rows, strict=True)
    at = pa.array([each * 1000 for each in times], pa.int64()).cast(INPUT.field("at").type)
    return pa.record_batch([pa.array(users, pa.string()), pa.array(amounts, pa.int64()), at], schema=INPUT)


def definition(output: list[tuple[str, pa.DataType]], **facts: Any) -> Definition:
    """Return the definition of a processor over `INPUT`, keyed by user."""
    return Definition(**{"keys": ("user",), "input": INPUT, "output": pa.schema(output), **facts})


class Uploads:
    """Where chunks are stored: once, however many snapshots name them."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def upload(self, chunks: Sequence[KeyedChunk]) -> int:
        """Store what is new; return how many bytes that are."""
        small = (each for each in chunks if len(self.stored.get(each.chunk_id, b"x" * 10_000)) < 10_000)
        assert all(each.serialize() == self.stored[each.chunk_id] for each in small), "what is gone is written again"
        new = {chunk.chunk_id: chunk.serialize() for chunk in chunks if chunk.chunk_id not in self.stored}
        self.stored |= new
        return sum(map(len, new.values()))


class StatefulRun:
    """One deployment of an operator in one subtask."""

    def __init__(
        self,
        processor: Any,
        definition: Definition,
        *,
        restored: Sequence[RestoredChunk] = (),
        subtask: int = 0,
        parallelism: int = 1,
        execution: int = 0,
        now_ms: int = 1_000_000,
        **context: Any,
    ) -> None:
        self.now_ms = now_ms
        self.emitted: list[pa.RecordBatch] = []
        self.late: list[pa.RecordBatch] = []
        self.operator = TransformWithState(processor, definition, clock_ms=lambda: self.now_ms)
        self.operator.on_late = self.late.append
        self.context = OperatorContext(
            uid="stateful", subtask=subtask, parallelism=parallelism, execution=execution, **context
        )
        self.operator.open(self.context, ())
        self.operator.restore_keyed(restored)

    def _emit(self, batch: pa.RecordBatch, split_id: str) -> None:
        self.emitted.append(batch)

    def rows(self, *rows: tuple[str | None, int, int]) -> list[tuple[Any, ...]]:
        """Process rows of (user, amount, milliseconds); return what came of it."""
        return self.batch(events(*rows))

    def batch(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Process a batch; return what came of it."""
        self.operator.process(batch, "split", self._emit)
        return self.taken()

    def watermark(self, timestamp_ms: int) -> list[tuple[Any, ...]]:
        """Let the watermark go on; return what came of it."""
        self.operator.process_watermark(timestamp_ms, self._emit)
        return self.taken()

    def time(self, now_ms: int) -> list[tuple[Any, ...]]:
        """Let the clock go on; return what came of it."""
        self.now_ms = now_ms
        self.operator.process_time(now_ms, self._emit)
        return self.taken()

    def taken(self) -> list[tuple[Any, ...]]:
        """Return the rows that were emitted since the last call."""
        batches, self.emitted = self.emitted, []
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def context_with(self, **facts: int) -> OperatorContext:
        """Return the context with other facts."""
        return msgspec.structs.replace(self.context, **facts)

    def snapshot(self) -> list[KeyedChunk]:
        """Take a snapshot."""
        return list(self.operator.snapshot_keyed(1))


def as_restored(chunks: Sequence[KeyedChunk], *, whole: bool = True) -> list[RestoredChunk]:
    """Return chunks as a restored subtask gets them."""
    return [RestoredChunk(chunk_id=each.chunk_id, whole=whole, read=each.serialize) for each in chunks]


def for_subtask(chunks: Sequence[KeyedChunk], context: OperatorContext) -> list[RestoredChunk]:
    """Return those chunks that hold key groups of a subtask."""
    own = context.key_groups
    return [
        RestoredChunk(
            chunk_id=each.chunk_id,
            whole=own.first <= each.first_key_group and each.last_key_group <= own.last,
            read=each.serialize,
        )
        for each in chunks
        if each.first_key_group <= own.last and own.first <= each.last_key_group
    ]
