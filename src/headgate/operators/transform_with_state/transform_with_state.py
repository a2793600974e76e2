"""`TransformWithState`: runs a user's `StatefulProcessor` for each key.

Never: keep a generator of the user's open between two calls: what it had not yet yielded would be in no checkpoint.

A batch is given to the processor key by key, each with all its rows in their order; then the timers fire that are due.
As in Spark a timer fires once the watermark, or the clock, has reached it; one that is registered for a time that has
passed fires after the rows, or the timers, that come next. A round of timers is over when each that was due has fired:
one that registers another for a time that has passed does not go on for ever, not even at the last watermark.

With timers of event time, rows at the watermark or before are late, as they are for all other operators and in Spark:
the processor does not see them.

Follows ``TransformWithStateInPySparkExec`` of Spark 4.3; docs/architecture.md, "Keyed state".
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.key_hash import key_groups
from headgate.operators.operator import Emit, KeyedOperator
from headgate.operators.transform_with_state.key_codes import KeyCodes
from headgate.operators.transform_with_state.keyed_store import KEYS_AT_ONCE, KeyedStore
from headgate.operators.transform_with_state.restored_rows import RestoredRows
from headgate.operators.transform_with_state.sorted_runs import SPILL_BYTES, SortedRuns, mapped
from headgate.operators.transform_with_state.state_rows import (
    PROGRESS,
    SET,
    read_chunk,
    rows_of,
)
from headgate.operators.transform_with_state.stored_states import StoredStates
from headgate.operators.transform_with_state.user_rows import Flavor, PandasFlavor, RowFlavor
from headgate.pickling import dumps
from headgate.protocol.operator_context import OperatorContext
from headgate.source.event_time import UNITS_PER_SECOND
from headgate.source.watermark import MIN_WATERMARK_MS, saturated_ms
from headgate.state.chunks import KeyedChunk, RestoredChunk

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

TimeMode = Literal["none", "processingtime", "eventtime"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says of a processor.

    Parameters
    ----------
    keys
        The columns of the key.
    input
        The columns of the rows.
    output
        The columns of what it yields.
    time_mode
        Which timers there are.
    event_time
        The column by which rows are late; None: none is. As in Spark there is one in time mode ``eventtime`` only.
    output_event_time
        The column of the output that must not be below the watermark; None: nothing is checked.
    pandas
        Whether it takes and gives pandas frames, not rows.
    initial_state
        The rows for ``handleInitialState``, with the columns of the key; None: there are none.
    schemas
        What the schemas that ``init`` gives as text mean, as Spark's JSON: only a driver can read them.
    conf
        The session's settings that Spark gives to its Python workers; those for frames matter.
    """

    keys: tuple[str, ...]
    input: pa.Schema
    output: pa.Schema
    time_mode: TimeMode = "none"
    event_time: str | None = None
    output_event_time: str | None = None
    pandas: bool = False
    initial_state: pa.Table | None = None
    schemas: Mapping[str, str] = {}
    conf: Mapping[str, str] = {}


class TransformWithState(KeyedOperator):
    """Calls a processor, and keeps the state and the timers of its keys.

    Parameters
    ----------
    processor
        The user's; each subtask has a copy.
    definition
        Its definition.
    clock_ms
        Returns milliseconds since 1970-01-01 UTC.
    """

    kind = "transform-with-state"

    blocks = True

    def __init__(
        self,
        processor: StatefulProcessor,
        definition: Definition,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._pickled = pickled(processor)
        self._processor: StatefulProcessor | None = None
        self._definition = definition
        self._clock_ms = clock_ms
        self.schema = definition.output
        self.function = type(processor).__name__
        keys = ", ".join(f"{key} {definition.input.field(key).type}" for key in definition.keys)
        self.signature = f"transformWithState by {keys} in time mode {definition.time_mode}"
        self._late_rows = 0

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Call the processor's ``init``."""
        from headgate.operators.transform_with_state.handle import Handle

        self._context = context
        self._flavor = self._make_flavor(context.time_zone)
        self._codes = KeyCodes(self._definition.input, self._definition.keys, _zone(context.time_zone))
        self._watermark_ms: int | None = None
        self._fired: dict[int, int] = {}
        """Up to which watermark the timers of a key group fired before the restore, if that is beyond the watermark."""
        self._downstream_ms: int | None = None
        """The watermark that operators downstream have reached."""
        self._late_rows = 0
        self._chunks = 0
        self._progress_of: tuple[int | None] | None = None
        """The watermark in the newest sorted run; None: there is no run."""
        self._handle = Handle(self._definition.time_mode, self._parse_schema)
        # One of its own for each deployment: what it keeps in its fields are states of that one.
        self._processor = context.load(self._pickled)
        self._user.init(self._handle)

    def _make_flavor(self, time_zone: str) -> Flavor:
        if self._definition.pandas:
            return PandasFlavor(self.function, self.schema, time_zone, self._definition.conf)
        return RowFlavor(self.function, self.schema, time_zone)

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of this subtask's keys; what is new to the query gets its initial state.

        Raises
        ------
        StoredStateError
            A chunk cannot be read, or a state was another one when it was stored.
        UserFunctionError
            ``handleInitialState`` raised.
        """
        for _ in self.restore_in_steps(chunks):
            pass

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Index a chunk, or a part of it, at a time; a key's state is made when the key has rows or a timer."""
        uid, keys = self._context.uid, self._codes.codec.schema.json()
        states = StoredStates(uid, self.function, keys, self._handle.variables, self._handle.deleted)
        own, restored = self._context.key_groups, RestoredRows(self._bounded)
        memory_bytes, folder = self._context.memory_bytes, self._context.spill_folder
        self._runs = SortedRuns(self._name_chunk, folder, memory_bytes, (own.first, own.last))
        seeded: dict[int, int | None] = {}
        tables, keep = [], True
        for chunk in chunks:
            read, header = read_chunk(chunk.read(), chunk.chunk_id)
            yield
            states.take_on(header)
            table = states.own_rows(read, header, own)
            keep = keep and chunk.whole and table.num_rows == read.num_rows and not states.are_converted(header)
            table = self._bounded(table.combine_chunks())
            tables.append(table)
            yield
            is_progress = pc.equal(table["state"], PROGRESS)
            seeded |= {group: expiry for _, group, _, _, _, expiry in rows_of(table.filter(is_progress))}
            yield from restored.add_in_steps(table)
        restored.end()
        self._header = states.header
        named = [(table, chunk.chunk_id if keep else None) for chunk, table in zip(chunks, tables, strict=True)]
        self._runs.add_level(named)
        if not keep:
            self._runs.merge_all(self._clock_ms())
        reached = {group: at_ms for group in self._groups if (at_ms := seeded.get(group)) is not None}
        if len(reached) == len(self._groups):
            self._watermark_ms = min(reached.values())
        self._fired = {group: at_ms for group, at_ms in reached.items() if at_ms != self._watermark_ms}
        if len(seeded) == len(self._groups):
            self._progress_of = (self._watermark_ms,)
        self._store = KeyedStore(states.variables, memory_bytes=memory_bytes, spill_folder=folder, restored=restored)
        self._handle.start(self._store)
        self._store.now_ms = self._clock_ms()
        yield from self._apply_initial_state([group for group in self._groups if group not in seeded])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Call ``handleInputRows`` for each key of the batch, then fire the timers that are due."""
        self._store.now_ms = self._clock_ms()
        batch = self._in_time(batch)
        if batch.num_rows:
            self._handle_rows(pa.table(batch), emit, split_id)
        self._fire(emit, split_id)
        self._flush(emit, split_id)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Fire the timers that the watermark has reached."""
        if self._watermark_ms is None or timestamp_ms > self._watermark_ms:
            self._store.now_ms = self._clock_ms()
            self._watermark_ms = timestamp_ms
            self._fired = {group: at_ms for group, at_ms in self._fired.items() if at_ms > timestamp_ms}
            if self._definition.time_mode == "eventtime":
                self._fire(emit, "")
        self._downstream_ms = timestamp_ms

    def due_ms(self) -> int | None:
        """Return when the first timer of the clock is due, or something is past its time to live."""
        if self._definition.time_mode != "processingtime":
            return None
        due = [each for each in (self._store.next_timer_ms(), self._store.next_sweep_ms()) if each is not None]
        return min(due, default=None)

    def process_time(self, now_ms: int, emit: Emit) -> None:
        """Fire the timers that the clock has reached, and forget what is past its time to live."""
        self._store.now_ms = now_ms
        if self._definition.time_mode == "processingtime":
            self._store.sweep()
            self._fire(emit, "")

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the chunks of before, or what they were merged into, and one with what changed."""
        rows = self._store.changed_rows()
        progress = (self._watermark_ms if self._definition.time_mode == "eventtime" else None,)
        if self._progress_of != progress:
            self._progress_of = progress
            for group in self._groups:
                fired_ms = self._fired.get(group, progress[0])
                rows.add(PROGRESS, group, b"", group.to_bytes(2, "big"), SET, None, fired_ms)
        if len(rows):
            self._runs.add(rows.table())
            self._runs.merge(self._store.now_ms)
        header, groups = self._header, self._context.key_groups
        return [
            KeyedChunk(
                chunk_id=run.chunk_id,
                first_key_group=groups.first if run.groups is None else run.groups[0],
                last_key_group=groups.last if run.groups is None else run.groups[1],
                serialize=lambda run=run: run.serialize(header),  # type: ignore[misc]
            )
            for run in self._runs.runs
        ]

    @property
    def event_time_column(self) -> str | None:
        """The column of the output with the event time for operators downstream; None: not declared."""
        return self._definition.output_event_time

    @property
    def late_rows(self) -> int:
        """How many rows came after the watermark since the deployment."""
        return self._late_rows

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late; None: without an event time no row does."""
        return None if self._definition.event_time is None else self._definition.input

    def close(self) -> None:
        """Call the processor's ``close``, and delete the local files."""
        try:
            if self._processor is not None:
                self._processor.close()
        finally:
            if hasattr(self, "_store"):  # it was restored
                self._store.close()

    # The user's methods.

    @property
    def _user(self) -> StatefulProcessor:
        assert self._processor is not None, "open was not called"
        return self._processor

    def _handle_rows(self, rows: pa.Table, emit: Emit, split_id: str) -> None:
        order, starts = self._codes.group(rows)
        rows = rows.take(order)
        first = rows.take(pa.array(starts[:-1]))
        groups = self._key_groups(first)
        times = self._times()
        parts = self._flavor.groups(rows, list(self._definition.keys), starts)
        keys = self._codes.encode(first)
        for number, (key_bytes, group, (key, user_rows)) in enumerate(zip(keys, groups, parts, strict=True)):
            if number % KEYS_AT_ONCE == 0:
                self._store.fetch(keys[number : number + KEYS_AT_ONCE])
            self._store.turn_to(key_bytes, group)
            self._flavor.take(self._user.handleInputRows(key, user_rows, times), "handleInputRows")
            self._turn_over()
            if self._flavor.is_full:
                self._flush(emit, split_id)

    def _fire(self, emit: Emit, split_id: str) -> None:
        mode = self._definition.time_mode
        reached = self._watermark_ms if mode == "eventtime" else self._store.now_ms
        if mode == "none" or reached is None:
            return
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

        times = self._times()
        due = self._store.take_due(reached)
        for number, (at_ms, key_bytes, group) in enumerate(due):
            if number % KEYS_AT_ONCE == 0:
                self._store.fetch([key for _, key, _ in due[number : number + KEYS_AT_ONCE]])
            current = self._store.turn_to(key_bytes, group)
            if at_ms in (current.timers or ()):
                key = self._codes.key_of(key_bytes)
                # By name, as Spark does.
                output = self._user.handleExpiredTimer(
                    key=key, timerValues=times, expiredTimerInfo=ExpiredTimerInfo(at_ms)
                )
                self._flavor.take(output, "handleExpiredTimer")
                self._store.delete_timer(at_ms)
            self._turn_over()
            if self._flavor.is_full:
                self._flush(emit, split_id)
        self._flush(emit, split_id)

    def _turn_over(self) -> None:
        """Let it be nobody's turn, and let state go to the local disk if there is too much of it in memory."""
        self._store.turn_over()
        if self._store.is_full:
            rows = self._store.changed_rows()
            if len(rows):
                self._runs.add(rows.table()).spill()
            self._store.evict()

    def _bounded(self, table: pa.Table) -> pa.Table:
        """Return rows that are not in memory, if that is bounded."""
        own = self._context
        if not own.memory_bytes or not own.spill_folder or table.nbytes < SPILL_BYTES:
            return table
        return mapped(table, Path(own.spill_folder) / "restored.arrow")

    def _apply_initial_state(self, new_groups: Sequence[int]) -> Iterator[None]:
        state = self._definition.initial_state
        if state is None or not new_groups:
            return
        groups = np.array(self._key_groups(state))
        state = state.filter(pa.array(np.isin(groups, new_groups)))
        if not state.num_rows:
            return
        order, starts = self._codes.group(state)
        state = state.take(order)
        first = state.take(pa.array(starts[:-1]))
        times = self._times()
        parts = self._flavor.groups(state, list(self._definition.keys), starts)
        for key_bytes, group, (key, rows) in zip(
            self._codes.encode(first), self._key_groups(first), parts, strict=True
        ):
            self._store.turn_to(key_bytes, group)
            for row in rows:
                self._user.handleInitialState(key, row, times)
            self._turn_over()
            yield

    def _times(self) -> Any:
        """Return the times that the user sees; as in Spark, -1 without timers, and 0 before there is a watermark."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        if self._definition.time_mode == "none":
            return TimerValues(-1, -1)
        return TimerValues(self._store.now_ms, 0 if self._watermark_ms is None else self._watermark_ms)

    # Rows.

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not late: those after the watermark, and after what their key group has fired."""
        name = self._definition.event_time
        if name is None or (self._watermark_ms is None and not self._fired):
            return batch
        column = batch.column(name)
        bound: Any = _bound(self._watermark_ms, column.type)
        if self._fired:
            bounds = [
                _bound(self._fired.get(each, self._watermark_ms), column.type)
                for each in range(self._context.max_parallelism)
            ]
            bound = pa.array(bounds, pa.int64()).take(pa.array(self._key_groups(batch))).cast(column.type)
        else:
            earliest = pc.min(column).value
            if earliest is None or earliest > bound:
                return batch
            bound = pa.scalar(bound, pa.int64()).cast(column.type)
        is_late = pc.fill_null(pc.less_equal(column, bound), False)
        late = batch.filter(is_late)
        if late.num_rows:
            self._late_rows += late.num_rows
            self.on_late(late)
        return batch.filter(pc.invert(is_late))

    def _flush(self, emit: Emit, split_id: str) -> None:
        batch = self._flavor.flush()
        if batch is None:
            return
        self._check_event_time(batch)
        emit(batch, split_id)

    def _check_event_time(self, batch: pa.RecordBatch) -> None:
        """Raise if output would be late downstream: it must be after the watermark that was sent there."""
        name = self._definition.output_event_time
        if name is None:
            return
        known_ms = self._downstream_ms
        column = batch.column(name)
        earliest = pc.min(column).value
        if known_ms is None or earliest is None or earliest > _bound(known_ms, column.type):
            return
        raise UserFunctionError(
            f"{self.function} gave a row whose event time {name!r} is {pc.min(column)}, not after the watermark "
            f"({known_ms} ms since 1970): operators downstream would drop it as late. Emit only event times after "
            "timerValues.getCurrentWatermarkInMs().",
            function=self.function,
        )

    # State.

    @property
    def _groups(self) -> range:
        groups = self._context.key_groups
        return range(groups.first, groups.last + 1)

    def _key_groups(self, rows: pa.Table | pa.RecordBatch) -> list[int]:
        columns = [_array(rows.column(name)) for name in self._definition.keys]
        groups: list[int] = key_groups(columns, self._context.max_parallelism).to_pylist()
        return groups

    def _name_chunk(self) -> str:
        self._chunks += 1
        own = self._context
        return f"{own.uid}-{own.run}-{own.subtask}-{own.attempt}-{own.execution}-{self._chunks}"

    def _parse_schema(self, text: str) -> StructType:
        from pyspark.sql.types import StructType

        found = self._definition.schemas.get(text)
        if found is None:
            raise OptionError(
                f"{self.function}.init gives the schema {text!r} here and did not do so on the driver: only the driver "
                "can read a schema that is text. Give the same schemas always, or a StructType.",
                option="schema", value=text,
            )  # fmt: skip
        return StructType.fromJson(msgspec.json.decode(found))


def _bound(at_ms: int | None, kind: pa.TimestampType) -> int:
    """Return milliseconds in the unit of a timestamp type, rounded down."""
    return MIN_WATERMARK_MS if at_ms is None else saturated_ms(at_ms * UNITS_PER_SECOND[kind.unit] // 1000)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _zone(time_zone: str) -> datetime.tzinfo:
    """Return a time zone as Arrow gives it to rows."""
    zone: datetime.tzinfo = pa.scalar(0, pa.timestamp("us", time_zone)).as_py().tzinfo
    return zone


def pickled(processor: StatefulProcessor) -> bytes:
    """Return a processor as it is sent to slots.

    Raises
    ------
    OptionError
        It cannot be.
    """
    try:
        return dumps(processor)
    except Exception as error:
        raise OptionError(
            f"transformWithState: {type(processor).__name__} cannot be sent to the slots: {error}. What "
            "cannot be pickled is made in init.",
            option="statefulProcessor", value=type(processor).__name__,
        ) from error  # fmt: skip
