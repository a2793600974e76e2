"""Subtasks of a window operator, driven as the runtime drives them: by key group, with restores and rescales."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headgate.expressions.expressions import Column
from headgate.operators.key_hash import key_groups
from headgate.operators.windows.aggregates import Aggregate, accumulator_of
from headgate.operators.windows.assigner import NoWindow, SessionWindow, TimeWindow
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.partial import Partials
from headgate.operators.windows.sessions import SessionAggregate
from headgate.operators.windows.windowed import Aggregated, Key, OutputMode, WindowedAggregate
from headgate.protocol.key_groups import KeyGroupRange, key_group_range, subtask_of
from headgate.protocol.operator_context import OperatorContext
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.state.chunks import KeyedChunk, RestoredChunk

TIMESTAMP = pa.timestamp("us", "UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("at", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64())])


def batch(*rows: tuple[float | None, int | None, int | None]) -> pa.RecordBatch:
    """Return rows of (second, key, value)."""
    times = [None if second is None else round(second * 1e6) for second, _, _ in rows]
    columns = [pa.array(times, pa.int64()).cast(TIMESTAMP), *([row[n] for row in rows] for n in (1, 2))]
    return pa.RecordBatch.from_arrays([pa.array(each, kind.type) for each, kind in zip(columns, SCHEMA)], schema=SCHEMA)


def many(keys: Any, second: float) -> pa.RecordBatch:
    keys = np.asarray(keys, np.int64)
    times = pa.array(np.full(len(keys), round(second * 1e6))).cast(TIMESTAMP)
    return pa.RecordBatch.from_arrays([times, pa.array(keys), pa.array(keys % 7)], schema=SCHEMA)


def made(
    schema: pa.Schema,
    window: TimeWindow | SessionWindow | NoWindow,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
    mode: OutputMode = "append",
) -> WindowedAggregate:
    """Return an operator over columns as they are; the event time is in ``at``. Without keys ``k`` is the same."""
    computed = []
    for each in aggregates:
        name = None if each.argument is None else Column(each.argument).name_in_output
        kind = None if name is None else schema.field(name).type
        computed.append(Aggregated(each.name_in_output, accumulator_of(each, kind), name))
    windows = [] if isinstance(window, NoWindow) else [window.name]
    arguments: dict[str, Any] = {
        "time": None if window.time is None else "at",
        "keys": [Key(name, name) for name in keys] or [Key("k", None)],
        "aggregates": computed,
        "columns": [*windows, *keys, *(each.name for each in computed)],
    }
    operator: WindowedAggregate
    if isinstance(window, SessionWindow):
        operator = SessionAggregate(schema, window, **arguments)
    else:
        operator = WindowAggregate(schema, window, **arguments)
    operator.uid = "window"
    operator.output_mode = mode
    return operator


def at_once(operator: WindowedAggregate) -> WindowedAggregate:
    """Return an operator that emits updates between barriers, too."""
    operator.emits_updates_at_once = True
    return operator


class Subtasks:
    """All subtasks of an operator; a checkpoint's files are a dict."""

    def __init__(
        self,
        make: Callable[[], WindowedAggregate],
        folder: Path,
        *,
        parallelism: int = 1,
        max_parallelism: int = 8,
        memory_bytes: int = 0,
    ) -> None:
        self._make = make
        self._folder = folder
        self._max_parallelism = max_parallelism
        self._memory_bytes = memory_bytes
        self._deployments = 0
        self._checkpoints = 0
        self.files: dict[str, bytes] = {}
        self._key_groups: dict[str, KeyGroupRange] = {}
        self.uploaded: list[int] = []
        self.emitted: list[pa.RecordBatch] = []
        self.late: list[pa.RecordBatch] = []
        self.operators: list[WindowedAggregate] = []
        self._deploy([], parallelism)

    def _deploy(self, states: list[list[KeyedChunk]], parallelism: int) -> None:
        for operator in self.operators:
            operator.close()
        self._deployments += 1
        self.operators = []
        for subtask in range(parallelism):
            operator = self._make()
            operator.on_late = self.late.append  # type: ignore[method-assign]
            folder = self._folder / f"{self._deployments}-{subtask}"
            operator.open(
                OperatorContext(
                    uid="window", subtask=subtask, parallelism=parallelism, execution=self._deployments,
                    max_parallelism=self._max_parallelism, spill_folder=str(folder), memory_bytes=self._memory_bytes,
                ),
                [],
            )  # fmt: skip
            own = key_group_range(subtask, parallelism, self._max_parallelism)
            chunks = [
                RestoredChunk(
                    chunk_id=chunk.chunk_id,
                    whole=all(group in own for group in msgspec.structs.astuple(self._groups_of(chunk))),
                    read=lambda name=chunk.chunk_id: self.files[name],  # type: ignore[misc]
                )
                for state in states
                for chunk in state
                if self._groups_of(chunk).overlaps(own)
            ]
            operator.restore_keyed(chunks)
            self.operators.append(operator)

    def _groups_of(self, chunk: KeyedChunk) -> KeyGroupRange:
        return self._key_groups.get(chunk.chunk_id, KeyGroupRange(chunk.first_key_group, chunk.last_key_group))

    def _emit(self, batch: pa.RecordBatch, split: str) -> None:
        batch.validate(full=True)
        self.emitted.append(batch)

    def process(self, batch: pa.RecordBatch) -> None:
        """Give rows to the subtasks of their keys."""
        keys = [batch.column(key.column) for key in self.operators[0]._keys]
        groups = key_groups(keys, self._max_parallelism).to_pylist()
        many = len(self.operators)
        targets = [subtask_of(group, many, self._max_parallelism) for group in groups]
        for subtask, operator in enumerate(self.operators):
            own = batch.filter(pa.array([target == subtask for target in targets], pa.bool_()))
            if own.num_rows:
                operator.process(own, "split", self._emit)

    def watermark(self, timestamp_ms: int, *, subtask: int | None = None) -> None:
        """Let the watermark of all subtasks, or of one, go on."""
        for number, operator in enumerate(self.operators):
            if subtask is None or number == subtask:
                operator.process_watermark(timestamp_ms, self._emit)

    def checkpoint(self) -> list[list[KeyedChunk]]:
        """Take a checkpoint; chunks that are stored are not stored again."""
        self._checkpoints += 1
        states = []
        uploaded = 0
        for operator in self.operators:
            operator.prepare_snapshot(self._emit)
            operator.snapshot(self._checkpoints)
            chunks = list(operator.snapshot_keyed(self._checkpoints))
            assert len({chunk.chunk_id for chunk in chunks}) == len(chunks)
            for chunk in chunks:
                if len(self.files.get(chunk.chunk_id, b"x" * 10_000)) < 10_000:
                    again, stored = chunk.serialize(), self.files[chunk.chunk_id]
                    assert again == stored or _rows(again) == _rows(stored), "a file that is gone is written again"
                if chunk.chunk_id not in self.files:
                    # What is known of a stored chunk stays what it was when it was stored, at another parallelism, too.
                    self._key_groups[chunk.chunk_id] = KeyGroupRange(chunk.first_key_group, chunk.last_key_group)
                    self.files[chunk.chunk_id] = chunk.serialize()
                    uploaded += len(self.files[chunk.chunk_id])
            states.append(chunks)
        self.uploaded.append(uploaded)
        return states

    def restore(self, states: list[list[KeyedChunk]], parallelism: int) -> None:
        """Go on from a checkpoint; what was emitted since stays emitted."""
        self._deploy(states, parallelism)

    def finish(self) -> list[dict[str, Any]]:
        """Let everything fire, and return all that was emitted."""
        self.watermark(MAX_WATERMARK_MS)
        for operator in self.operators:
            assert not operator.snapshot_keyed(0)[1:]
            operator.close()
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """Return what was emitted."""
        return [row for batch in self.emitted for row in batch.to_pylist()]

    @property
    def late_rows(self) -> int:
        """How many rows were late since the last deployment."""
        return sum(operator.late_rows for operator in self.operators)


def _rows(stored: bytes) -> list[str]:
    """Return the rows of a part, in any order: a part that is spilled has them in another one."""
    return sorted(map(repr, pa.ipc.open_stream(stored).read_all().to_pylist()))


class TwoPhases(Subtasks):
    """All subtasks of an operator that takes partial results, and a producer that makes these.

    Parameters
    ----------
    grouped
        Says for each batch whether it is grouped, or each row lifted.
    """

    def __init__(
        self,
        make: Callable[[], WindowedAggregate],
        folder: Path,
        *,
        grouped: Callable[[], bool] = lambda: True,
        **options: int,
    ) -> None:
        self._grouped = grouped
        self.partials, _ = two_phases(make())
        self.crossed = 0
        super().__init__(lambda: two_phases(make())[1], folder, **options)

    def process(self, batch: pa.RecordBatch) -> None:
        """Give rows to the subtasks of their keys, after the first phase."""
        crossing = self.partials.lifted(batch)
        if crossing.num_rows and self._grouped():
            crossing = self.partials.merged(crossing)
        crossing.validate(full=True)
        self.crossed += crossing.num_rows
        super().process(crossing)


def two_phases(operator: WindowedAggregate) -> tuple[Partials, WindowAggregate]:
    """Return what crosses an exchange before an operator, and the operator that takes it."""
    assert isinstance(operator, WindowAggregate)
    phases = operator.two_phases(always=True)
    assert phases is not None
    _, exchange, last = phases
    return exchange.partials, last


def process(world: Subtasks, rows: pa.RecordBatch) -> None:
    """Give rows to the one subtask, without looking at each."""
    for begin in range(0, rows.num_rows, 20_000):
        world.operators[0].process(rows.slice(begin, 20_000), "s", world._emit)
