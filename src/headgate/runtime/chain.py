"""Runs one subtask's part of a stage: rows of its inputs, through the operators, to the sink's writer and exchanges.

Never: start a thread, read a clock other than the one it is given, or run a user's function longer than its slice.

A batch that a reader emits waits at the entry. `process_some` takes from it as many rows as make one slice for whatever
is downstream (`entry_rows`), and takes no more before these have gone through: mails of the mailbox get their turn in
between, however large a batch is. What a slice gave rise to is put before what waits, so rows of a split stay in order.

Exactly once: a reader's position is after the rows that wait here, so no reader is polled while any do. A snapshot is
taken when the slice that was begun has gone through (`snapshot` asserts it): it waits for one slice. What is left at
the entry then is in-flight state of its split (`rows_in_flight`), and is processed after the snapshot. Likewise,
downstream of an exchange the input gate holds what is left of a buffer, which is channel state. Rows that a barrier
waits for may overdraw an exchange's room, by what one slice gives (``overdraft``): else a slow consumer would hold up
checkpoints.

Watermarks, ends and times go through the operators one after the other, what each emits before it goes on.

A record on which a function fails is found by halving: the halves are put before what waits, and are calls like any.
What a call emitted counts only once it returned, so that a half that is called again repeats nothing. An operator with
keyed state is not called again: its state has seen the rows.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headgate.event_log import describe
from headgate.futures import gathered, mapped
from headgate.graph.stage_graph import BAD_RECORDS_UID, LATE_ROWS_UID, SINK_UID, QueryDefinition
from headgate.operators import bad_records
from headgate.operators.operator import Emit, KeyedOperator, Operator
from headgate.operators.with_watermark import WithWatermark
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.runtime.call_clock import CallClock, ProcessorDelay
from headgate.runtime.chain_figures import ChainFigures, OperatorFigures
from headgate.runtime.chain_input import ChainInput
from headgate.runtime.chain_slices import ChainSlices
from headgate.runtime.clocks import work_ms
from headgate.runtime.few_rows import FEW_ROWS, FewRows, Rows
from headgate.runtime.overdue_progress import UnderWay
from headgate.runtime.slices import LONGEST_TRIAL_MS
from headgate.sink import SinkWriter
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.state.chunks import KeyedChunk, RestoredChunk
from headgate.task.watermark_flow import WatermarkFlow

_log = logging.getLogger(__name__)

MAIL_MS = 10.0
"""No further slice begins in a step that has taken this long, in milliseconds: small batches share a step."""


# What waits.


class _Emitted(msgspec.Struct, frozen=True):
    """Rows of a source's split that no operator has seen."""

    source: str
    batch: pa.RecordBatch
    split: str


class _Note(msgspec.Struct, frozen=True):
    """Something to do after the rows that were emitted before it."""

    run: Callable[[], None]


class _Step(msgspec.Struct, frozen=True):
    """Something for the operator with this index, then for those after it, then for the exchanges.

    Parameters
    ----------
    index
        Whose turn it is.
    call
        What is called on an operator; it may emit.
    then
        What is called after the last operator.
    """

    index: int
    call: Callable[[Operator, Emit], None]
    then: Callable[[], None]


class StageOutput(Protocol):
    """What takes the rows of an exchange, on the subtask's thread."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. Does not block, also when there is no room."""

    def ready(self) -> Future[None] | None:
        """Return None if there is room, else a future that is done when there is."""

    def on_watermark(self, timestamp_ms: int) -> None:
        """Take the stage's watermark, in milliseconds."""

    def on_idle(self) -> None:
        """Let nobody wait for this subtask's watermark."""

    def on_active(self) -> None:
        """Let them wait again."""

    def on_ended(self) -> None:
        """Say that no rows follow."""


class StageChain:
    """The pipeline of one subtask. All methods are called on the mailbox thread.

    Parameters
    ----------
    definition
        The query.
    context
        The subtask's; each part gets it with its own uid.
    items
        By uid: the list state to restore.
    stage
        The number of the stage.
    keyed
        By uid of operator: the keyed state to restore.
    outputs
        By uid: what takes the rows of the exchanges that the stage produces.
    clock_ms
        A monotonic time in milliseconds, by which calls are measured.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        context: OperatorContext,
        items: Mapping[str, Sequence[bytes]],
        *,
        stage: int = 0,
        keyed: Mapping[str, Sequence[RestoredChunk]] | None = None,
        outputs: Mapping[str, StageOutput] | None = None,
        clock_ms: Callable[[], float] = work_ms,
    ) -> None:
        graph, self._stage = definition.graph, definition.graph.stages[stage]
        self._definition = definition
        self._context = context
        self._items = items
        self._keyed = keyed or {}
        self._outputs = dict(outputs or {})
        self._clock_ms = clock_ms
        self._delay = ProcessorDelay()
        # A simulator's time is its own: nobody else's processes take any of it.
        self._calls = CallClock(clock_ms, self._delay.ms if clock_ms is work_ms else lambda: 0.0)
        # A definition outlives a deployment, and in a simulator it is that of all subtasks: what changes is ours alone.
        self._operators: dict[str, Operator] = {node.uid: copy.copy(node.operator) for node in self._stage.operators}
        self._timed = [each for each in self._operators.values() if type(each).due_ms is not Operator.due_ms]
        self._inputs_of = {uid: graph.inputs_fed_by(uid) for uid in self._stage.feeds}
        self._delays_ms = graph.watermark_delays_ms
        schemas = {source.uid: source.schema for source in self._stage.sources}
        self._event_time_operators = {uid: graph.event_time_operator(uid) for uid in schemas}
        schemas |= {uid: exchange.schema for uid, exchange in self._stage.inputs.items()}
        timeless = [each.uid for each in self._stage.sources if each.watermark_strategy is None]
        self._watermarks = WatermarkFlow(
            schemas,
            broadcast=filter(graph.is_broadcast, self._stage.inputs),
            timeless=timeless if len(timeless) < len(self._stage.sources) else (),
        )
        self._processed_ms: int | None = None  # the watermark that went through the operators last
        self._processed_idle = False
        longest_trial_ms = min(LONGEST_TRIAL_MS, definition.options["task.stuck.timeout"] / 4)
        parts = (*self._operators, *self._outputs, *([SINK_UID] if self._stage.has_sink else []))
        self._slices = ChainSlices(parts, self._stage.feeds, schemas, longest_trial_ms)
        self._figures = {uid: OperatorFigures() for uid in parts}
        self._inputs = {uid: ChainInput(self, uid, schema) for uid, schema in schemas.items()}
        self._waiting: deque[Rows | _Note | _Step] = deque()
        self._entry: deque[_Emitted | _Note | _Step] = deque()  # after all of that
        self._notes: deque[Any] = self._entry if self._stage.sources else self._waiting
        self._written: tuple[int, float, str] | None = None
        """By a sink that has no room since: how many rows, when, and of which input."""
        self._opened: list[Operator] = []
        self._writers: dict[str, SinkWriter] = {}
        self._skipped = 0
        self._bad_rows = 0
        self._under_way: UnderWay | None = None
        self._few: FewRows | None = None
        self.position_of: Callable[[str, str], str | None] = lambda source, split: None
        """Returns the position of a source's split, as text, for the sink of bad records."""

    @property
    def under_way(self) -> UnderWay | None:
        """The call that an operator or a sink is in. Any thread."""
        few = None if self._few is None else self._few.under_way
        return self._under_way if few is None else few

    def input(self, uid: str) -> ChainInput:
        """Return what takes the rows and watermarks of a source."""
        return self._inputs[uid]

    def event_time_operator(self, source: str) -> str | None:
        """Return the uid of the operator that finds a source's event times; None: they are in its own columns."""
        return self._event_time_operators[source]

    def open(self) -> None:
        """Open everything at once: `open_in_steps`."""
        for _ in self.open_in_steps():
            pass

    def open_in_steps(self) -> Iterator[None]:
        """Open the operators and the sinks' writers, with their state, in steps between which mails may be handled.

        What is open already is closed by `close`.

        Raises
        ------
        UserFunctionError
            An ``open()`` of the user's raised.
        """
        definition, late = self._definition, self._definition.late_rows
        for uid, operator in self._operators.items():
            self._opened.append(operator)
            try:
                if isinstance(operator, KeyedOperator) and late is not None and late.uid == uid:
                    operator.on_late = self._write_late
                yield from operator.prepare(self._context_of(uid))
                operator.open(self._context_of(uid), self._items.get(uid, ()))
                if isinstance(operator, KeyedOperator):
                    yield from operator.restore_in_steps(self._keyed.get(uid, ()))
            except Exception as error:
                raise bad_records.explain(error, self._call(uid, "", "")) from error
        sinks = [(SINK_UID, definition.sink, definition.graph.schema)] if self._stage.has_sink else []
        if definition.bad_records_sink is not None:
            sinks.append((BAD_RECORDS_UID, definition.bad_records_sink, bad_records.SCHEMA))
        if late is not None and late.uid in self._operators:
            sinks.append((LATE_ROWS_UID, late.sink, late.schema))
        for uid, sink, schema in sinks:
            self._writers[uid] = sink.create_writer(self._context_of(uid), schema, self._items.get(uid, ()))
        writes = {uid: output.write for uid, output in self._outputs.items()}
        if self._stage.has_sink:
            writes[SINK_UID] = self._writers[SINK_UID].write
            if self._writers[SINK_UID].waits_for_rows:
                return  # how long they take shows after each call
        self._few = FewRows(
            self._operators, writes, self._inputs_of, self._slices.calls, self._figures, self._failed, MAIL_MS
        )

    def ready(self) -> Future[None] | None:
        """Return None if `process_some` may go on, else a future that is done when it may (back pressure)."""
        room = self.sinks_ready()
        return room if room is not None or not self._outputs else self._first_full(self._outputs.values())

    def entry_rows(self, uid: str) -> int:
        """Return how many rows of an input make one slice."""
        return self._slices.entry_rows(uid)

    def entry_ms(self) -> float:
        """Return about how long it takes to process what waits at the entry, in milliseconds; infinite: not known."""
        waiting: Counter[str] = Counter()
        for item in self._entry:
            if isinstance(item, _Emitted):
                waiting[item.source] += item.batch.num_rows
        return sum((self._slices.expected_ms(uid, rows) for uid, rows in waiting.items()), 0.0)

    @property
    def waits(self) -> bool:
        """Whether something was begun that is not processed."""
        return bool(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits anywhere."""
        return not (self._waiting or self._entry)

    @property
    def entry_waits(self) -> bool:
        """Whether something waits at the entry."""
        return bool(self._entry)

    def rows_in_flight(self, source: str) -> dict[str, list[pa.RecordBatch]]:
        """Return the rows of a source that wait at the entry, by split, in their order."""
        found: dict[str, list[pa.RecordBatch]] = {}
        for item in self._entry:
            if isinstance(item, _Emitted) and item.source == source:
                found.setdefault(item.split, []).append(item.batch)
        return found

    def process_some(self, *, overdraft: bool = False, entry: bool = True) -> bool:
        """Take on what waits, about `MAIL_MS` and at most one slice longer; return whether there was anything.

        ``overdraft``: a snapshot waits for it; the room of exchanges does not matter, that of sinks does. ``entry``:
        what waits at the entry is begun as well.

        Raises
        ------
        HeadgateError
            A function failed, and bad records are not to be skipped; or the sink did.
        """
        if not (self._waiting or (entry and self._entry)):
            return False
        began_ms = self._clock_ms()
        while self._waiting or (entry and self._entry):
            if not self._waiting:
                self._begin(self._entry.popleft())
            if self._waiting:
                self._step(self._waiting.popleft())
            self._end_slice()
            if self._clock_ms() - began_ms >= MAIL_MS:
                break
            if (self.sinks_ready() if overdraft else self.ready()) is not None:
                break
        return True

    def process_few(self) -> bool:
        """Take what waits at the entry through at once, if it is little and nothing was begun; else nothing is done.

        Returns whether nothing is left to `process_some`; raises as that does. There is room.
        """
        if self._waiting or self._few is None:
            return False
        began_ms = self._clock_ms()
        now_ms = began_ms
        while self._entry:
            if isinstance(note := self._entry[0], _Note):
                self._entry.popleft()
                self._step(note)
                if self._waiting:
                    return False
                continue
            taken = self._take_few()
            if taken is None:
                return False
            source, batch, split = taken
            if not self._count_few(source, batch.num_rows, self._few.take(source, batch, split, now_ms)):
                return False
            if self._entry:
                now_ms = self._clock_ms()
                if now_ms - began_ms >= MAIL_MS or self.ready() is not None:
                    return False
        return True

    def _take_few(self) -> tuple[str, pa.RecordBatch, str] | None:
        """Take the first batches from the entry, which are one then; None: they go the long way.

        Where bad records are looked for each batch stays of its split.
        """
        assert self._few is not None
        first, rows = self._entry[0], 0
        if not isinstance(first, _Emitted):
            return None
        most = min(FEW_ROWS, self._slices.entry_rows(first.source))
        taken: list[_Emitted] = []
        for each in self._entry:
            if not isinstance(each, _Emitted) or each.source != first.source or rows + each.batch.num_rows > most:
                break
            taken.append(each)
            rows += each.batch.num_rows
            if self._definition.bad_records != "fail":
                break
        if not taken or not self._few.is_next():
            return None
        for _ in taken:
            self._entry.popleft()
        if len(taken) == 1:
            return first.source, first.batch, first.split
        return first.source, pa.concat_batches([each.batch for each in taken]), ", ".join(each.split for each in taken)

    def sinks_ready(self) -> Future[None] | None:
        """Return None if the sinks have room, else a future that is done when they do."""
        room = self._first_full(self._writers.values())
        if room is None and self._written is not None:
            rows, began_ms, source = self._written
            self._written = None
            self._slices.took(SINK_UID, rows, self._clock_ms() - began_ms, source)
            self._end_slice()
        return room

    def end_input(self) -> None:
        """Let each operator emit what it holds, after what waits; `process_some` does it."""
        # What waits may queue watermarks when its turn comes, the final one too: the end comes after those as well.
        end = _Step(0, lambda operator, emit: operator.end_input(emit), self._announce_end)
        self.take_note(lambda: self._notes.append(end))

    def prepare_snapshot(self) -> None:
        """Let each operator emit what belongs before the barrier, after what waits; `process_some` does it."""
        if self._stage.has_sink and self._definition.sink.output_mode == "complete":
            self._waiting.append(_Note(self._writers[SINK_UID].discard_rows))
        self._waiting.append(_Step(0, lambda operator, emit: operator.prepare_snapshot(emit), lambda: None))

    def due_ms(self) -> int | None:
        """Return when `process_time` is wanted, in milliseconds since 1970-01-01 UTC; None: nothing is due."""
        due = [each for operator in self._timed if (each := operator.due_ms()) is not None]
        return min(due, default=None)

    @property
    def finds_event_times(self) -> bool:
        """Whether operators find event times of sources, upon which readers are called."""
        return any(self._event_time_operators.values())

    @property
    def has_times(self) -> bool:
        """Whether `due_ms` may ever return a time."""
        return bool(self._timed)

    def process_time(self, now_ms: int) -> None:
        """Pass the time to the operators, after what waits, in milliseconds since 1970-01-01 UTC."""
        self._waiting.append(_Step(0, lambda operator, emit: operator.process_time(now_ms, emit), lambda: None))

    def snapshot(self, checkpoint_id: int, *, final: bool) -> Future[dict[str, OperatorState]]:
        """Return what belongs to a checkpoint, by uid, once it is safe. Nothing that was begun waits when it is called.

        ``final``: no rows follow.
        """
        assert not self._waiting, f"{len(self._waiting)} slices were begun: their rows would be in no checkpoint"
        states = {uid: operator.snapshot(checkpoint_id) for uid, operator in self._operators.items()}
        under_way = {uid: writer.prepare_commit(checkpoint_id, final=final) for uid, writer in self._writers.items()}
        held = {uid: state for uid, state in states.items() if state is not None}
        return mapped(gathered([*under_way.values()]), lambda safe: held | dict(zip(under_way, safe)))

    @property
    def has_keyed_state(self) -> bool:
        """Whether `snapshot_keyed` has anything to return."""
        return any(isinstance(each, KeyedOperator) for each in self._operators.values())

    def snapshot_keyed(self, checkpoint_id: int) -> dict[str, Sequence[KeyedChunk]]:
        """Return the keyed state that belongs to a checkpoint, by uid; called right after `snapshot`."""
        keyed = {uid: each for uid, each in self._operators.items() if isinstance(each, KeyedOperator)}
        return {uid: operator.snapshot_keyed(checkpoint_id) for uid, operator in keyed.items()}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify operators and sinks that a checkpoint is durable."""
        parts: list[Operator | SinkWriter] = [*self._operators.values(), *self._writers.values()]
        for part in parts:
            part.notify_checkpoint_complete(checkpoint_id)

    def finish(self) -> Future[None] | None:
        """Return a future that is done when the sinks published what is known complete; None: nothing is left."""
        finishing = [future for writer in self._writers.values() if (future := writer.finish()) is not None]
        return mapped(gathered(finishing), lambda _: None) if finishing else None

    def figures(self) -> ChainFigures:
        """Return what was done since the deployment."""
        rows_out = {SINK_UID: self._figures[SINK_UID].rows_in} if self._stage.has_sink else {}
        if BAD_RECORDS_UID in self._writers:
            rows_out[BAD_RECORDS_UID] = self._bad_rows
        return ChainFigures(
            rows_in={source.uid: self._slices.entered[source.uid] for source in self._stage.sources},
            rows_out=rows_out,
            busy_ms={uid: round(each.busy_ms) for uid, each in self._figures.items()},
            watermark_ms=self._watermarks.watermark_ms,
            skipped=self._skipped,
            late=sum(each.late_rows for each in self._operators.values() if isinstance(each, KeyedOperator)),
            unpublished_ms={uid: waited for uid, each in self._writers.items() if (waited := each.unpublished_ms())},
            operators={uid: msgspec.structs.replace(each) for uid, each in self._figures.items()},
            rows_received=sum(self._slices.entered[uid] for uid in self._stage.inputs),
            rows_sent=sum(self._figures[uid].rows_in for uid in self._outputs),
        )

    def close(self) -> None:
        """Close everything, whatever raises. What is in no checkpoint is thrown away."""
        self._waiting.clear()
        self._entry.clear()
        parts: list[Operator | SinkWriter] = [*self._writers.values(), *self._opened]
        self._writers, self._opened = {}, []
        self._delay.close()
        for part in parts:
            try:
                part.close()
            except Exception as error:
                _log.warning("closing %s of subtask %d failed: %s", part, self._context.subtask, describe(error))

    # For the inputs.

    def take_rows(self, source: str, batch: pa.RecordBatch, split: str) -> None:
        """Take rows of a source, which wait at the entry; or a slice of an exchange's."""
        if source in self._stage.inputs:
            if not self._take_at_once(source, batch):
                self._give(source, batch, split)
        elif batch.num_rows:
            self._entry.append(_Emitted(source, batch, split))

    def _take_at_once(self, source: str, batch: pa.RecordBatch) -> bool:
        """Take a slice of an exchange's through, if it is of few rows and all before it are; return whether it did."""
        few, rows = self._few, batch.num_rows
        if few is None or self._waiting or rows > FEW_ROWS or self.ready() is not None or not few.is_next():
            return False
        self._count_few(source, rows, few.take(source, batch, "", self._clock_ms()))
        return True

    def _count_few(self, source: str, rows: int, left: Sequence[Rows]) -> bool:
        """Count rows that took the short way; return whether nothing of them is left to the long one."""
        if not (left or self._waiting):
            self._slices.entered[source] += rows
            return True
        self._slices.take(source, rows)
        self._waiting.extend(left)  # after what an error gave rise to
        return False

    def take_note(self, run: Callable[[], None]) -> None:
        """Queue something to do after the rows that came before it."""
        self._notes.append(_Note(run))

    @property
    def watermarks(self) -> WatermarkFlow:
        """The watermarks of this subtask."""
        return self._watermarks

    def _first_full(self, outputs: Iterable[SinkWriter | StageOutput]) -> Future[None] | None:
        for output in outputs:
            room = output.ready()
            if room is not None and not room.done():
                return room
        return None

    def _begin(self, item: _Emitted | _Note | _Step) -> None:
        """Begin with the first rows of what waits at the entry."""
        if not isinstance(item, _Emitted):
            self._step(item)
            return
        batch, rows = item.batch, self._slices.entry_rows(item.source)
        if rows < batch.num_rows:
            self._entry.appendleft(msgspec.structs.replace(item, batch=batch.slice(rows)))
            batch = batch.slice(0, rows)
        self._give(item.source, batch, item.split)

    def _give(self, source: str, batch: pa.RecordBatch, split: str) -> None:
        """Queue rows for the first operators."""
        if batch.num_rows:
            self._slices.take(source, batch.num_rows)
            self._waiting.extend(Rows(*to, batch, source, split) for to in self._inputs_of[source])

    def _step(self, item: Rows | _Note | _Step) -> None:
        match item:
            case Rows():
                self._process(item)
            case _Note(run=run):
                run()
                self._follow_watermarks()
            case _Step():
                self._next_operator(item)

    def _follow_watermarks(self) -> None:
        """Let the stage's watermark and idleness go on, if they moved."""
        timestamp_ms, idle = self._watermarks.watermark_ms, self._watermarks.is_idle
        if timestamp_ms is not None and (self._processed_ms is None or timestamp_ms > self._processed_ms):
            self._processed_ms = timestamp_ms
            advanced = timestamp_ms

            def advance_operator(operator: Operator, emit: Emit) -> None:
                operator.process_watermark(self._delayed(advanced, operator.uid), emit)

            def advance_outputs() -> None:
                for uid, output in self._outputs.items():
                    output.on_watermark(self._delayed(advanced, uid))

            self._waiting.appendleft(_Step(0, advance_operator, advance_outputs))
        if idle != self._processed_idle:
            self._processed_idle = idle
            for output in self._outputs.values():
                (output.on_idle if idle else output.on_active)()

    def _delayed(self, watermark_ms: int, uid: str) -> int:
        """Return the watermark of what an operator or an exchange takes, of the stage's; the last one is for all."""
        return watermark_ms if watermark_ms == MAX_WATERMARK_MS else watermark_ms - self._delays_ms[uid]

    def _announce_end(self) -> None:
        for output in self._outputs.values():
            output.on_ended()

    def _write_late(self, batch: pa.RecordBatch) -> None:
        """Keep rows that came after the watermark."""
        self._writers[LATE_ROWS_UID].write(batch)

    def _process(self, item: Rows) -> None:
        """Give the first rows of an item to its operator, and put what comes of them before what is left of it."""
        rows = min(self._slices.call_rows(item.uid), item.batch.num_rows)
        if rows < item.batch.num_rows:
            self._waiting.appendleft(msgspec.structs.replace(item, batch=item.batch.slice(rows)))
            item = msgspec.structs.replace(item, batch=item.batch.slice(0, rows))
        self._calls.begin(item.uid)
        began_ms = self._calls.began_ms
        self._under_way = UnderWay(item.uid, began_ms)
        if item.uid == SINK_UID:
            self._writers[SINK_UID].write(item.batch)
        elif item.uid in self._outputs:
            self._outputs[item.uid].write(item.batch)
        else:
            emitted: list[tuple[pa.RecordBatch, str]] = []
            try:
                self._operators[item.uid].process_input(item.input, item.batch, item.split, _collector(emitted))
            except (Exception, SystemExit) as error:
                failed_ms = self._clock_ms() - began_ms
                self._figures[item.uid].busy_ms += failed_ms
                self._slices.failed(item.uid, failed_ms, item.source)
                self._failed(item, error)
                return
            self._feed(item.uid, emitted, item.source)
            if self._event_time_operators.get(item.source) == item.uid:
                self._report_event_times(item)
        took_ms, own_ms = self._calls.end()
        self._under_way = None
        if item.uid == SINK_UID and self._waits_for_rows():
            self._written = rows, began_ms, item.source
        else:
            self._slices.took(item.uid, rows, own_ms, item.source)
        figures = self._figures[item.uid]
        figures.rows_in += rows
        figures.busy_ms += took_ms

    def _end_slice(self) -> None:
        """Look back at a slice of an input once all of it has gone through."""
        if not self._waiting and self._written is None:
            self._slices.went_through()

    def _waits_for_rows(self) -> bool:
        """Return whether the sink has no room until it has taken the rows that it was given."""
        writer = self._writers[SINK_UID]
        room = writer.ready() if writer.waits_for_rows else None
        return room is not None and not room.done()

    def _report_event_times(self, item: Rows) -> None:
        """Notify the output of a source that rows passed. What follows from it is queued after all that waits."""
        operator = self._operators[item.uid]
        assert isinstance(operator, WithWatermark)
        self._inputs[item.source].rows_passed(item.split, operator.highest_event_time_ms(item.batch))

    def _feed(self, uid: str, emitted: Sequence[tuple[pa.RecordBatch, str]], source: str) -> None:
        """Put rows that an operator emitted before everything else that waits, in their order."""
        self._figures[uid].rows_out += sum(batch.num_rows for batch, _ in emitted)
        items = [
            Rows(*to, batch, source, split) for batch, split in emitted if batch.num_rows for to in self._inputs_of[uid]
        ]
        self._waiting.extendleft(reversed(items))

    def _failed(self, item: Rows, error: Exception | SystemExit) -> None:
        self._under_way = None
        call = self._call(item.uid, item.source, item.split)
        if isinstance(error, SystemExit):  # of a function's: it would end the thread without a word
            raise bad_records.explain(error, call) from error
        once = isinstance(self._operators[item.uid], KeyedOperator)
        if once or self._definition.bad_records == "fail" or not bad_records.is_of_the_record(error):
            raise bad_records.explain(error, call, can_be_skipped=not once) from error
        rows = item.batch.num_rows
        if rows > 1:
            halves = (item.batch.slice(0, rows // 2), item.batch.slice(rows // 2))
            self._waiting.extendleft(msgspec.structs.replace(item, batch=half) for half in reversed(halves))
            return
        self._skipped += 1
        self._figures[item.uid].rows_in += 1
        if BAD_RECORDS_UID in self._writers:
            position = self.position_of(item.source, item.split)
            self._writers[BAD_RECORDS_UID].write(bad_records.describe(item.batch, error, call, position))
            self._bad_rows += 1

    def _next_operator(self, step: _Step) -> None:
        operators = list(self._operators.items())
        if step.index == len(operators):
            step.then()
            return
        uid, operator = operators[step.index]
        emitted: list[tuple[pa.RecordBatch, str]] = []
        began_ms = self._clock_ms()
        self._under_way = UnderWay(uid, began_ms)
        try:
            step.call(operator, _collector(emitted))
        except Exception as error:
            raise bad_records.explain(error, self._call(uid, "", "")) from error
        self._figures[uid].busy_ms += self._clock_ms() - began_ms
        self._under_way = None
        self._waiting.appendleft(msgspec.structs.replace(step, index=step.index + 1))
        self._feed(uid, emitted, "")

    def _context_of(self, uid: str) -> OperatorContext:
        subtask = self._context.subtask
        if uid == BAD_RECORDS_UID:  # which every stage writes to: files are named after the subtask
            subtask += self._stage.number * self._context.max_parallelism
        spill_folder = self._context.spill_folder and os.path.join(self._context.spill_folder, "operators", uid)
        return msgspec.structs.replace(self._context, uid=uid, subtask=subtask, spill_folder=spill_folder)

    def _call(self, uid: str, source: str, split: str) -> bad_records.FailedCall:
        function = getattr(self._operators[uid], "function", type(self._operators[uid]).__name__)
        return bad_records.FailedCall(
            operator=uid, function=function, subtask=self._context.subtask, source=source, split=split
        )


def _collector(emitted: list[tuple[pa.RecordBatch, str]]) -> Callable[[pa.RecordBatch, str], None]:
    return lambda batch, split_id: emitted.append((batch, split_id))
