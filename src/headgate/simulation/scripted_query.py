"""The query of a simulated cluster: its program, and models of what users and connectors write: readers, a function,
a sink.

Never: emit a row of a split before its position or after its end, or forget rows that were staged and not confirmed.

    source-0 .. source-n -> union -> observed -> sink
    source-0 .. source-n -> union [-> first exchange -> observed] -> by key -> counted -> sink

Follows the contracts (`headgate.source`, `headgate.operators.operator`, `headgate.sink`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa

from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Emit, KeyedChunk, KeyedOperator, Operator, RestoredChunk
from headgate.operators.union import Union
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.simulation.durable import Committable, Row, encode_committable
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_source import SCHEMA, Nudge, ScriptedSource, ScriptedSplit, Topic
from headgate.sink import Sink, SinkWriter
from headgate.source import Boundedness, InputStatus, ReaderOutput, SourceEvent, SourceReader, SourceReaderContext
from headgate.source.watermark import MAX_WATERMARK_MS

_POLL_MS = 25
_MOST_ROWS = 8


class Surroundings(Protocol):
    """The process that readers and writers are in, and who looks at them."""

    choose: random.Random
    """The cluster's."""

    def now_ms(self) -> int:
        """Read the clock."""

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Do something in so many milliseconds, if the process lives then."""

    def count_quiet(self) -> None:
        """Count how long splits have been silent, before there is room in the sink, or no longer."""

    def declines(self) -> bool:
        """Return whether the snapshot that is being taken fails."""

    def snapshot_ms(self) -> int:
        """Return how long it takes until the rows of a snapshot are safe."""

    def uid_of(self, split_id: str) -> str:
        """Return the source of a split."""

    def work(self, rows: int) -> None:
        """Take the time that a function takes for so many rows."""

    def key_group(self, key: int) -> int:
        """Return the key group of a key."""

    def rows_of_key(self, split_id: str, key: int, first: int, last: int) -> int:
        """Return how many rows a key has in a split between two offsets, both included."""

    @property
    def excuses_late(self) -> bool:
        """Whether rows may come after the watermark has passed them."""

    def splits_added(self, reader: ScriptedReader, splits: Sequence[ScriptedSplit]) -> None:
        """Take note that a reader got splits."""

    def rows_wanted(self, reader: ScriptedReader) -> None:
        """Take note that a reader is about to read."""

    def rows_read(self, reader: ScriptedReader, rows: list[Row]) -> None:
        """Take note of what a reader read."""


class ScriptedReader(SourceReader[ScriptedSplit]):
    """Reads a few rows of a split at a time, and takes its time.

    Parameters
    ----------
    uid, topic
        What it reads.
    context
        The task's.
    around
        The process.
    """

    def __init__(self, uid: str, topic: Topic, context: SourceReaderContext, around: Surroundings) -> None:
        self.uid = uid
        self.splits: dict[str, ScriptedSplit] = {}
        self.no_more = False
        self.highest_ms: dict[str, int] = {}
        """By split: the highest event time emitted by this reader, less the disorder."""
        self.quiet_ms: dict[str, int] = {}
        """By split: how long it could have been read, and had no rows."""
        self.paused: set[str] = set()
        """Splits that it was called to pause."""
        self.held: set[str] = set()
        """Splits that are paused, be it with the whole source."""
        self.watermarks: list[int] = []
        """What was emitted, without the final one."""
        self.is_final = False
        """Whether the final watermark was emitted."""
        self.unassigned_ms: int | None = None
        """Where what is not assigned begins, as far as the subtask was notified."""
        self.idle: set[str] = set()
        """Splits that were idle when it was looked last."""
        self.votes_since_ms: dict[str, int] = {}
        """By split: since when it is read and not idle."""
        self._topic = topic
        self._context = context
        self._around = around
        self._choose = around.choose
        self._asking = False
        self._available: Future[None] = Future()
        self._counted_ms = around.now_ms()

    def start(self) -> None:
        """Ask for a split, and greet the enumerator, at times."""
        if self._choose.random() < 0.3:
            self._ask()
        if self._choose.random() < 0.1:
            self._context.send_event(Nudge())

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit some rows of one split."""
        self._around.rows_wanted(self)
        rows = self._read(output)
        self._around.rows_read(self, rows)
        self._ask()
        if self._choose.random() < 0.01:
            self._context.send_event(Nudge())
        if self.no_more and not self.splits:
            return InputStatus.END_OF_INPUT
        available: Future[None] = Future()
        self._available = available
        self._around.later(1 + self._choose.randrange(2 * _POLL_MS), lambda: _wake(available))
        return InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None]:
        """Done when it is time to read again."""
        return self._available

    def add_splits(self, splits: Sequence[ScriptedSplit]) -> None:
        """Take splits to read."""
        self._asking = False
        for split in splits:
            assert split.split_id not in self.splits, f"a reader was given {split.split_id} twice"
            self.splits[split.split_id] = split
            self.quiet_ms[split.split_id] = 0
        self._around.splits_added(self, splits)

    def notify_no_more_splits(self) -> None:
        """Take note that none follows."""
        self.no_more = True
        _wake(self._available)

    def snapshot_state(self, checkpoint_id: int) -> list[ScriptedSplit]:
        """Return the splits at their positions."""
        return list(self.splits.values())

    def handle_source_event(self, event: SourceEvent) -> None:
        """Do something about it, at times."""
        assert isinstance(event, Nudge)
        if self._choose.random() < 0.3:
            self._context.send_event(Nudge())
        else:
            self._ask()

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Read some splits no more, and others again."""
        self._around.count_quiet()
        self.paused = (self.paused | set(splits_to_pause)) - set(splits_to_resume)

    def close(self) -> None:
        """Nothing is open."""

    def count_quiet(self, reading: bool) -> None:
        """Count the time since the last call: ``reading`` says whether rows were wanted in it."""
        now_ms = self._around.now_ms()
        passed_ms, self._counted_ms = now_ms - self._counted_ms, now_ms
        for split_id in self.splits.keys() - self.paused - self.held if reading else ():
            self.quiet_ms[split_id] += passed_ms

    def _ask(self) -> None:
        if self._topic.script.pulled and not (self.splits or self.no_more or self._asking):
            self._asking = True
            self._context.request_split()

    def _read(self, output: ReaderOutput) -> list[Row]:
        """Emit rows of one split, and its end; return the rows."""
        ready = [
            each
            for each in self.splits.values()
            if each.position < self._topic.rows(each.split_id) or each.stop == each.position
            if each.split_id not in self.paused
        ]
        if not ready:
            return []
        split = self._choose.choice(ready)
        split_id = split.split_id
        end = min(self._topic.rows(split_id), split.position + self._choose.randint(1, _MOST_ROWS))
        end = self._emit(output, split, end)
        rows = [(self.uid, split_id, offset) for offset in range(split.position, end)]
        if end == split.stop:
            del self.splits[split_id]
            self.paused.discard(split_id)
            self.votes_since_ms.pop(split_id, None)
            output.release_output_for_split(split_id)
        else:
            self.splits[split_id] = msgspec.structs.replace(split, position=end)
        return rows

    def _emit(self, output: ReaderOutput, split: ScriptedSplit, end: int) -> int:
        """Emit rows up to ``end``, or as many as alignment allows; return after which one."""
        split_id, strategy = split.split_id, self._topic.script.strategy
        offsets = range(split.position, end)
        times = [0 if strategy is None else self._topic.event_time_ms(split_id, offset) for offset in offsets]
        columns = [
            pa.array(times, SCHEMA.field(0).type), pa.array([split_id] * len(offsets)), pa.array(offsets, pa.int64()),
            pa.array([self._topic.key(offset) for offset in offsets], pa.int64()),
        ]  # fmt: skip
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        of_split = output.create_output_for_split(split_id)
        if strategy is not None and self._topic.script.knows_rows:
            batch = batch.slice(0, output.rows_allowed(split_id, batch))
        if batch.num_rows:
            if strategy is not None:
                highest_ms = max(times[: batch.num_rows]) - strategy.max_out_of_orderness_ms
                self.highest_ms[split_id] = max(highest_ms, self.highest_ms.get(split_id, highest_ms))
            self.quiet_ms[split_id] = 0
            of_split.emit_batch(batch)
        rows: int = batch.num_rows
        return split.position + rows


def _wake(available: Future[None]) -> None:
    if not available.done():
        available.set_result(None)


class Observed(Operator):
    """A user's function that lets rows through, and checks watermarks and the end.

    Parameters
    ----------
    opened
        Returns the process in which a subtask's copy is opened.
    once
        Only subtask 0 lets rows through: everybody is given all of them.
    """

    kind = function = "observed"
    schema = SCHEMA

    def __init__(self, opened: Callable[[], Surroundings], *, once: bool = False) -> None:
        self._opened = opened
        self._once = once

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin."""
        self._around = self._opened()
        self._lets_through = not self._once or context.subtask == 0
        self._watermark_ms: int | None = None
        self._has_ended = False

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Let rows through."""
        assert not self._has_ended, f"rows of {split_id} come after the end"
        self._around.work(batch.num_rows)
        if self._lets_through:
            emit(batch, split_id)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Check that it grows."""
        assert self._watermark_ms is None or timestamp_ms > self._watermark_ms, "a watermark went back"
        self._watermark_ms = timestamp_ms

    def end_input(self, emit: Emit) -> None:
        """Check that the final watermark came."""
        assert self._watermark_ms == MAX_WATERMARK_MS, "a source that ended emitted no final watermark"
        self._has_ended = True


class Seen(msgspec.Struct):
    """What a key had of a split: the first and the last offset, and how many there were."""

    first: int
    last: int
    count: int


_SEEN = msgspec.msgpack.Decoder(list[tuple[str, int, Seen]])


class Counted(Observed, KeyedOperator):
    """A user's function with state by key: lets rows through, and checks that each came once and in order.

    Parameters
    ----------
    opened
        As for `Observed`.
    in_order
        Whether rows of a split and a key come in their order.
    """

    kind = function = "counted"
    signature = "counted"

    def __init__(self, opened: Callable[[], Surroundings], *, in_order: bool) -> None:
        super().__init__(opened)
        self._in_order = in_order

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without state."""
        super().open(context, items)
        self._context = context
        self._seen: dict[tuple[str, int], Seen] = {}
        self._chunks = 0

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of this subtask's keys."""
        for chunk in chunks:
            for split_id, key, seen in _SEEN.decode(chunk.read()):
                if self._around.key_group(key) in self._context.key_groups:
                    assert (split_id, key) not in self._seen, f"the state of key {key} of {split_id} comes twice"
                    self._seen[split_id, key] = seen

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return all of it as one chunk."""
        context, groups = self._context, self._context.key_groups
        self._chunks += 1
        name = f"{context.uid}-{context.run}-{context.subtask}-{context.attempt}-{context.execution}-{self._chunks}"
        data = msgspec.msgpack.encode([(split_id, key, seen) for (split_id, key), seen in self._seen.items()])
        return [KeyedChunk(name, groups.first, groups.last, lambda: data)]

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Check rows, and let them through."""
        columns = (batch.column(index).to_pylist() for index in range(1, 4))
        for of_split, offset, key in zip(*columns):
            assert self._around.key_group(key) in self._context.key_groups, f"key {key} is another subtask's"
            self._count(of_split, offset, key)
        self._check_time(batch)
        super().process(batch, split_id, emit)

    def _count(self, split_id: str, offset: int, key: int) -> None:
        seen = self._seen.get((split_id, key))
        if seen is None:
            self._seen[split_id, key] = seen = Seen(offset, offset, 1)
        else:
            assert not self._in_order or offset > seen.last, (
                f"order: row {offset} of {split_id}, key {key}, comes after {seen.last}"
            )
            seen.first, seen.last, seen.count = min(seen.first, offset), max(seen.last, offset), seen.count + 1
        if self._in_order:
            wanted = self._around.rows_of_key(split_id, key, seen.first, seen.last)
            assert seen.count == wanted, (
                f"lost: key {key} of {split_id} had {seen.count} rows from {seen.first} to {seen.last}, of {wanted}"
            )

    def _check_time(self, batch: pa.RecordBatch) -> None:
        if self._watermark_ms is not None and not self._around.excuses_late:
            earliest_ms = batch.column(0).cast(pa.int64()).to_pylist()
            assert min(earliest_ms) >= self._watermark_ms, f"late: {min(earliest_ms)}, after {self._watermark_ms}"


class ScriptedWriter(SinkWriter):
    """Stages rows at each barrier; has no room at times.

    Parameters
    ----------
    name
        Of this writer alone.
    around
        The process.
    """

    def __init__(self, name: str, around: Surroundings) -> None:
        self._name = name
        self._around = around
        self._rows: list[Row] = []
        self._staged: list[tuple[int, bytes]] = []  # by the checkpoint they were staged for
        self._count = 0
        self._room: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        splits, offsets = batch.column(1).to_pylist(), batch.column(2).to_pylist()
        self._rows += [(self._around.uid_of(split_id), split_id, offset) for split_id, offset in zip(splits, offsets)]
        if self._room is None and self._around.choose.random() < 0.1:
            self._around.count_quiet()
            room: Future[None] = Future()
            self._room = room
            self._around.later(self._around.choose.randrange(100), lambda: self._make_room(room))

    def ready(self) -> Future[None] | None:
        """Return None, or when there is room."""
        return self._room

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Stage what was written; what was staged before and is not confirmed stands there again."""
        if self._rows:
            self._count += 1
            committable = Committable(f"{self._name}-{self._count}", tuple(self._rows))
            self._staged.append((checkpoint_id, encode_committable(committable)))
            self._rows = []
        state = OperatorState(committables=tuple(data for _, data in self._staged))
        prepared: Future[OperatorState] = Future()
        error = OSError("a fault") if self._around.declines() else None
        safe = partial(prepared.set_result, state) if error is None else partial(prepared.set_exception, error)
        self._around.later(self._around.snapshot_ms(), safe)
        return prepared

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget what is in a completed checkpoint."""
        self._staged = [(staged, data) for staged, data in self._staged if staged > checkpoint_id]

    def _make_room(self, room: Future[None]) -> None:
        self._around.count_quiet()
        self._room = None
        room.set_result(None)


class ScriptedSink(Sink):
    """A sink whose writers the simulator makes."""

    name = "scripted"

    def __init__(self, make: Callable[[OperatorContext], ScriptedWriter]) -> None:
        self._make = make

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> ScriptedWriter:
        """Return a subtask's writer."""
        return self._make(context)


def definition_of(
    scenario: Scenario,
    sources: Sequence[tuple[str, ScriptedSource]],
    opened: Callable[[], Surroundings],
    sink: Sink,
    parallelism: int,
) -> QueryDefinition:
    """Return the program at a parallelism."""
    nodes = [
        PlanNode(
            of=SourceDefinition(
                uid=uid,
                source=source,
                schema=SCHEMA,
                boundedness=Boundedness.BOUNDED if source.topic.script.bounded else Boundedness.CONTINUOUS_UNBOUNDED,
                watermark_strategy=source.topic.script.strategy,
            ),
            name=uid,
        )
        for uid, source in sources
    ]
    others = [SCHEMA] * (len(nodes) - 1)
    output = nodes[0] if not others else PlanNode(of=Union(SCHEMA, *others), inputs=tuple(nodes))
    first = scenario.first_exchange
    if first is not None:
        partition, keys = _by_key if first == "custom" else None, ("key",) if first == "hash" else ()
        output = output.then(Exchange(SCHEMA, first, partition=partition, keys=keys)).named("first")
    if first is not None or not scenario.is_keyed:
        output = output.then(Observed(opened, once=first == "broadcast")).named("observed")
    if scenario.is_keyed:
        output = output.then(Exchange(SCHEMA, "hash", keys=("key",))).named("keys")
        output = output.then(Counted(opened, in_order=first != "rebalance")).named("counted")
    return QueryDefinition(
        graph=stage_graph(output),
        sink=sink,
        sink_format="scripted",
        options=parse_query_options(scenario.query_options(), {}),
        parallelism=parallelism,
    )


def _by_key(batch: pa.RecordBatch, parallelism: int) -> pa.Array:
    """Say which subtask gets which rows of a ``custom`` exchange."""
    return pa.array([(key * 5) % parallelism for key in batch.column(3).to_pylist()], pa.int64())
