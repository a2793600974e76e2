"""What the operators of windows share: their columns, how far keys have fired, and how that is stored.

Never: hold an object per key, or take a row that was late before a restore for one in time.

A row is late when all windows that it belongs to have ended: it is counted, given to `on_late`, and dropped.

How far a key has fired is part of the keyed state (`headgate.state.watermarks`), as are the partial results of groups
(`headgate.state.sorted_runs`). Nothing fires twice, since what fired is no longer in the state.

A checkpoint has, of each subtask, a *head* first and then the parts that it names, each of which is stored once.

Follows Spark 4.3's ``groupBy(window)``; docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.expressions.key_bytes import key_bytes, key_value
from headgate.operators.key_hash import groups_of_hashes, key_groups, key_hash
from headgate.operators.operator import Emit, KeyedOperator
from headgate.operators.windows.aggregates import Accumulator
from headgate.operators.windows.assigner import MOST_US
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn, places_of
from headgate.state.arrays import one_array
from headgate.state.chunks import KeyedChunk, RestoredChunk, keyed_chunks, read_head, read_part
from headgate.state.part import Layout
from headgate.state.sorted_runs import SortedRuns
from headgate.state.watermarks import LEAST_US, KeyGroupWatermarks, Ranges

OutputMode = Literal["append", "update", "complete"]
FLUSH_ROWS = 1 << 16
"""So many rows wait before they are merged, or a quarter of `state.memory`: small batches are merged together."""
EMIT_ROWS = 1 << 16
"""A batch that is emitted has so many rows at most."""


class Aggregated(msgspec.Struct, frozen=True):
    """A column of the output.

    Parameters
    ----------
    name
        Its name.
    accumulator
        How it is computed.
    column
        Of which column of the input; None: of rows.
    """

    name: str
    accumulator: Accumulator
    column: str | None


class Key(msgspec.Struct, frozen=True):
    """A column of the key.

    Parameters
    ----------
    column
        Its name in the input.
    name
        Its name in the output; None: it is not there.
    of
        The type of the values whose `key_bytes` it has; None: it has the values.
    """

    column: str
    name: str | None
    of: pa.DataType | None = None


class Head(msgspec.Struct, frozen=True):
    """What is stored before the parts of a subtask.

    Parameters
    ----------
    fired
        First and last key group, and up to when they have fired, in microseconds.
    runs
        The names of the parts of each run, in order.
    dead
        By the name of a part: which of its rows do not count any more, as packed bits.
    aggregates
        What the columns of the parts are; None: a version wrote it of which the query had the same ones.
    """

    fired: Ranges
    runs: list[list[str]]
    dead: dict[str, bytes] = {}
    aggregates: tuple[StateColumn, ...] | None = None


_heads = msgspec.msgpack.Decoder(Head)


class WindowedAggregate(KeyedOperator):
    """Aggregates rows by windows and keys.

    Parameters
    ----------
    input_schema
        The columns of its input.
    window
        The name of the window's column; None: there is no window.
    time
        The column with the event time; None: it does not matter.
    keys
        The columns of the key.
    aggregates
        What is computed.
    columns
        The names of the output's columns, in order: the window's, of keys, of aggregates.
    """

    kind = "window"
    output_mode: OutputMode = "append"
    emits_updates_at_once = False
    """Whether what changed in update mode is wanted soon, and not only before the next barrier. Set as the mode is."""

    has_event_time = True
    """Whether the watermark is that of its rows: else no group ends before the last one, and no row is late."""
    goes_on_elsewhere = False
    """Whether, in complete mode, the groups go to other subtasks: the last ones before the end. Set as the mode is."""

    def __init__(
        self,
        input_schema: pa.Schema,
        window: str | None,
        *,
        time: str | None,
        keys: Sequence[Key],
        aggregates: Sequence[Aggregated],
        columns: Sequence[str],
    ) -> None:
        self.input_schema = input_schema
        self.function = f"groupBy({', '.join(columns[: len(columns) - len(aggregates)])}).agg(...)"
        self._window_name = window
        self._time = time
        self._keys = tuple(keys)
        self._bytes_of = {key.column: key.of for key in keys if key.of is not None}
        self._aggregates = tuple(aggregates)
        self.blocks = any(each.accumulator.blocks for each in aggregates)
        types = {key.name: input_schema.field(key.column).type if key.of is None else key.of for key in keys}
        types |= {each.name: each.accumulator.kind for each in aggregates}
        if window is not None:
            bound = input_schema.field(time).type
            types[window] = pa.struct([pa.field("start", bound), pa.field("end", bound)])
        self.schema = pa.schema([pa.field(name, types[name]) for name in columns])
        self._state_keys = [f"key {number}" for number in range(len(self._keys))]
        self._state_partials = {
            f"partial {number} {place}": each
            for number, aggregate in enumerate(self._aggregates)
            for place, each in enumerate(aggregate.accumulator.partials)
        }
        self._late_rows = 0

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """See `headgate.operators.operator.Operator.prepare`."""
        for each in self._aggregates:
            yield from each.accumulator.prepare(context)

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        for each in self._aggregates:
            each.accumulator.open(context)
        self._context = context
        self._new_name = partial(next, context.chunk_names())
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._late_rows = 0
        self._watermarks = KeyGroupWatermarks(context.key_groups, context.max_parallelism)
        self._has_ended = False
        self._runs = SortedRuns(
            self._layout, name=self._new_name, memory_bytes=context.memory_bytes, spill_folder=context.spill_folder
        )

    def end_input(self, emit: Emit) -> None:
        """In complete mode, if others expect no rows after the end, emit all groups now and not again."""
        if self.output_mode == "complete" and self.goes_on_elsewhere:
            self.prepare_snapshot(emit)
            self._has_ended = True

    def close(self) -> None:
        """Delete the local files, and release what the aggregates hold."""
        for each in self._aggregates:
            each.accumulator.close()
        self._runs.close()

    @property
    def late_rows(self) -> int:
        """How many rows came after the watermark since the deployment."""
        return self._late_rows

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late; None: no row can."""
        never = self._time is None or not self.has_event_time or self.output_mode == "complete"
        shown = (each.with_type(self._bytes_of.get(each.name, each.type)) for each in self.input_schema)
        return None if never else pa.schema(shown)

    @property
    def state_bytes(self) -> tuple[int, int]:
        """How many bytes of state are in memory, and how many in local files."""
        return self._runs.bytes_held

    def _passes_over(self, watermark_us: int) -> bool:
        """Return whether a watermark ends nothing here; else it is the one of now."""
        if self.output_mode == "complete" or (not self.has_event_time and watermark_us < MOST_US):
            return True
        return not self._watermarks.advance(watermark_us)

    # Rows that come.

    def _timed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        """Return the rows that have an event time, and these; the others are in no window, as in Spark."""
        times = batch.column(self._time)
        if times.null_count:
            batch = batch.filter(times.is_valid())
            times = batch.column(self._time)
        return batch, times.cast(pa.int64()).to_numpy()

    def _horizon(self, batch: pa.RecordBatch) -> Any:
        """Return up to when windows have ended, in microseconds: for all rows, or for each."""
        keys = [batch.column(key.column) for key in self._keys]
        return self._watermarks.of(lambda: key_groups(keys, self._context.max_parallelism).to_numpy())

    def _drop_late(self, late: pa.RecordBatch) -> None:
        self._late_rows += late.num_rows
        for name, kind in self._bytes_of.items():
            place = late.schema.get_field_index(name)
            late = late.set_column(place, name, key_value(late.column(place), kind))
        self.on_late(late)

    def _lifted(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the keys and the partial results of rows."""
        arrays = [plain_key(batch.column(key.column)) for key in self._keys]
        for each in self._aggregates:
            values = None if each.column is None else batch.column(each.column)
            arrays += each.accumulator.lift(values, batch.num_rows)
        return arrays

    def _wait(self, lifted: Any) -> None:
        self._waiting.append(lifted)
        self._waiting_rows += lifted.num_rows
        self._waiting_bytes += lifted.nbytes
        most_bytes = self._context.memory_bytes // 4
        if self._waiting_rows >= FLUSH_ROWS or 0 < most_bytes <= self._waiting_bytes:
            self._flush()

    def _take_waiting(self) -> list[Any]:
        rows, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
        return rows

    @abstractmethod
    def _flush(self) -> None:
        """Add what waits to the state."""

    # Rows that go.

    def _emit(self, table: Any, starts: Any, ends: Any, emit: Emit) -> None:
        """Emit finished groups, with the start and the end of the window of each."""
        for begin in range(0, table.num_rows, EMIT_ROWS):
            rows = table.slice(begin, EMIT_ROWS).combine_chunks()
            made: dict[str | None, Any] = {}
            if self._window_name is not None:
                kind = self.schema.field(self._window_name).type
                bounds = [pa.array(each[begin : begin + EMIT_ROWS]).cast(kind.field(0).type) for each in (starts, ends)]
                made[self._window_name] = pa.StructArray.from_arrays(bounds, fields=list(kind))
            for key, state in zip(self._keys, self._state_keys):
                values = one_array(rows.column(state))
                made[key.name] = values if key.of is None else key_value(values, key.of)
            for number, each in enumerate(self._aggregates):
                places = range(len(each.accumulator.partials))
                partials = [one_array(rows.column(f"partial {number} {place}")) for place in places]
                made[each.name] = each.accumulator.finish(partials)
            emit(pa.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema), "")

    # State.

    @property
    @abstractmethod
    def _layout(self) -> Layout:
        """What the rows of the state are."""

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the state: what has been fired up to when, which rows do not count, and the parts of the runs."""
        self._flush()
        parts = self._runs.parts
        head = Head(
            fired=self._watermarks.ranges(),
            runs=[[part.name for part in run] for run in self._runs.runs],
            dead={part.name: marks for part in parts if (marks := part.marks)},
            aggregates=None if self.state_schema is None else self.state_schema.aggregates,
        )
        stored = [(part.name, part.stored) for part in parts]
        return keyed_chunks(self._context.key_groups, (self._new_name(), head), stored)

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for _ in self.restore_in_steps(chunks):
            pass

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Do so, a chunk at a time.

        A part that a head names may be missing: it was stored before a rescale, and is of none of this subtask's key
        groups.
        """
        left = deque(chunks)
        while left:
            head = _heads.decode(read_head(left.popleft()))
            self._watermarks.take_on(head.fired)
            for names in head.runs:
                follows = False
                for name in names:
                    if left and left[0].is_named(name):
                        follows = self._adopt(left.popleft(), head, head.dead.get(name), follows) or follows
                        yield
        self._watermarks.settle()

    @abstractmethod
    def _adopt(self, chunk: RestoredChunk, head: Head, dead: bytes | None, follows: bool) -> bool:
        """Take on a part, whose run has parts already if it ``follows``; return whether anything of it counts."""

    @abstractmethod
    def emit_state(self, emit: Emit) -> None:
        """Emit all groups that have not ended as they are now; the state stays. Of sliding windows: each slide's part.

        Who reads a checkpoint calls it, right after `restore_keyed`.
        """

    @property
    @abstractmethod
    def _stored_columns(self) -> list[str]:
        """The columns of the state that are stored."""

    def _part_of(self, chunk: RestoredChunk, head: Head) -> tuple[Any, bool]:
        """Return a part in the columns of now, and whether it was stored so."""
        table = read_part(chunk)
        if self.state_schema is None or head.aggregates is None:
            return table, True
        now = self.state_schema.aggregates
        wanted = {key: self.input_schema.field(of.column).type for key, of in zip(self._state_keys, self._keys)}
        if head.aggregates == now and all(table.schema.field(name).type == kind for name, kind in wanted.items()):
            return table, True
        wanted |= {name: each.kind for name, each in self._state_partials.items()}
        return evolved(table, self._stored_columns, wanted, places_of(head.aggregates, now), self._of_nothing), False

    def _of_nothing(self, number: int) -> list[Any]:
        return self._aggregates[number].accumulator.of_nothing()

    def _hashes(self, table: Any) -> Any:
        """Return the hash of each row's key, of the state."""
        return key_hash([one_array(table.column(name)) for name in self._state_keys])

    def _groups_of(self, table: Any) -> Any:
        """Return the key group of each row of the state."""
        return groups_of_hashes(self._hashes(table), self._context.max_parallelism)


def event_times(column: Any) -> Any:
    """Return event times in microseconds; those of windows are their ends."""
    return (pc.struct_field(column, "end") if pa.types.is_struct(column.type) else column).cast(pa.int64())


def watermark_us(timestamp_ms: int) -> int:
    """Return a watermark in microseconds, within what an event time can be."""
    return max(LEAST_US, min(MOST_US, timestamp_ms * 1000))


def evolved(
    table: Any,
    columns: Sequence[str],
    kinds: dict[str, pa.DataType],
    places: Sequence[int | None],
    of_nothing: Callable[[int], list[Any]],
) -> Any:
    """Return a part whose aggregates were others.

    Parameters
    ----------
    table
        The part.
    columns
        The columns that it is to have.
    kinds
        The types of keys and partial results.
    places
        Where each aggregate was; None: it is new.
    of_nothing
        Returns the partial results that a new one has of no rows.
    """
    made = []
    for name in columns:
        zeros = pa.array(np.zeros(table.num_rows, np.int64))
        of, *numbers = name.split(" ")
        if of != "partial":
            column = table.column(name)
        elif (place := places[int(numbers[0])]) is not None:
            column = table.column(" ".join([of, str(place), *numbers[1:]]))
        elif numbers[2:]:  # the times of its values, of which there are none
            column = zeros
        else:
            column = of_nothing(int(numbers[0]))[int(numbers[1])].take(zeros)
        kind = kinds.get(name, column.type)
        made.append(column if column.type == kind else column.cast(kind))
    return pa.table(made, names=list(columns))


def plain_key(values: Any) -> Any:
    """Return a key as Spark groups it: -0.0 is 0.0, and there is one NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), values.type), numbers)


def comparable_key(values: pa.Array) -> pa.Array:
    """Return a key as Arrow compares it: equal where Spark's keys are, and null where it is."""
    return key_bytes(values) if pa.types.is_nested(values.type) else plain_key(values)
