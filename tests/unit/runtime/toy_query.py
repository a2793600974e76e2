"""A query whose parts do what a test says, and a real `SubtaskThread` that runs it, without Spark and a coordinator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from headgate.checkpoint.state_uploader import StateUploader
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.operator import Emit, Operator
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.protocol import messages as msg
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import FileState, InlineState, OperatorState, SplitState, StateHandle, SubtaskState
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.subtask_thread import SubtaskThread
from headgate.sink import SinkWriter
from headgate.source import (
    Boundedness,
    InputStatus,
    ReaderOutput,
    Source,
    SourceEvent,
    SourceReader,
    SourceReaderContext,
    Split,
    SplitEnumerator,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
    WatermarkStrategy,
)
from headgate.source.serialization import VersionedSerializer
from headgate.testing import ThreadRule, assert_single_threaded
from tests.unit.operators.collecting_sink import CollectingSink, CollectingWriter
from tests.waiting import wait_until

PATIENCE_S = 60
SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
MessageT = TypeVar("MessageT", bound=msg.FromSlot)
Start = Callable[..., "Running"]
LAST = -1
"""After the numbers of a batch: the split ends with them, in the same call."""


class InMemory:
    """A checkpoint location in which all state is in the manifest."""

    def write_shared(self, uid: str, chunk_id: str, data: bytes, inline_bytes: int) -> StateHandle:
        """See `StateStorage`."""
        return InlineState(data)

    def write_state(self, checkpoint_id: int, name: str, data: Iterator[bytes], inline_bytes: int) -> StateHandle:
        """See `StateStorage`."""
        return InlineState(b"".join(data))

    def open_state(self, handle: StateHandle) -> pa.NativeFile:
        """See `StateStorage`."""
        assert isinstance(handle, InlineState)
        return pa.BufferReader(handle.data)


class ToySplit(Split, frozen=True, kw_only=True):
    """A split and how many batches of it were read."""

    position: int = 0


SPLITS = VersionedSerializer(ToySplit, version=1, what="a split of a toy")


def state_of(split_id: str, position: int = 0) -> SplitState:
    return SplitState(split_id, SPLITS.serialize(ToySplit(split_id=split_id, position=position)))


def rows(*numbers: int) -> pa.RecordBatch:
    """Return rows with these numbers, which are their event times, too, in milliseconds."""
    at = pa.array([1000 * number for number in numbers], SCHEMA.field("at").type)
    return pa.record_batch([list(numbers), at], schema=SCHEMA)


class ToyReader(SourceReader[ToySplit]):
    """Emits what a test offers, from any thread, as soon as it has a split; logs its calls.

    ``fails`` of the source says which call raises what.
    """

    def __init__(self, source: ToySource, context: SourceReaderContext) -> None:
        self.source = source
        self.context = context
        self.log: list[str] = []
        self.splits: dict[str, ToySplit] = {}
        self.no_more = False
        self.polls = 0
        self._lock = threading.Lock()
        self._offered = list(source.offered)
        self._waiting: Future[None] = Future()

    def offer(self, split_id: str, *numbers: int) -> None:
        """Let the next poll emit a batch of a split; without numbers: end it, and ask for another."""
        with self._lock:
            self._offered.append((split_id, numbers))
        self.wake()

    def wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, Future()
        waiting.set_result(None)

    def start(self) -> None:
        self._note("start")
        if self.source.pulls:
            self.context.request_split()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        self.polls += 1
        self._fail("poll")
        with self._lock:
            offered = self._next()
        if offered is None:
            return InputStatus.END_OF_INPUT if self.no_more else InputStatus.NOTHING_AVAILABLE
        split_id, numbers = offered
        if not numbers:
            del self.splits[split_id]
            output.release_output_for_split(split_id)
            self.context.request_split()
        elif numbers[-1] == LAST:
            output.create_output_for_split(split_id).emit_batch(rows(*numbers[:-1]))
            del self.splits[split_id]
            output.release_output_for_split(split_id)
        elif split_id:
            output.create_output_for_split(split_id).emit_batch(rows(*numbers))
            self.splits[split_id] = ToySplit(split_id=split_id, position=self.splits[split_id].position + 1)
        else:
            output.emit_batch(rows(*numbers))
        return InputStatus.MORE_AVAILABLE

    def _next(self, *, look: bool = False) -> tuple[str, tuple[int, ...]] | None:
        """Return what is to be emitted next, and take it unless that is only looked for."""
        if not (self._offered and self.splits):
            return None
        return self._offered[0] if look else self._offered.pop(0)

    def available(self) -> Future[None]:
        with self._lock:
            if self._next(look=True) is not None or self.no_more:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            return self._waiting

    def add_splits(self, splits: Sequence[ToySplit]) -> None:
        self._note("add " + ",".join(split.split_id for split in splits))
        self.splits.update((split.split_id, split) for split in splits)

    def notify_no_more_splits(self) -> None:
        self._note("no more")
        self.no_more = True
        self.wake()

    def snapshot_state(self, checkpoint_id: int) -> list[ToySplit]:
        self._fail("snapshot")
        return list(self.splits.values())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note(f"complete {checkpoint_id}")

    def handle_source_event(self, event: SourceEvent) -> None:
        self._note("event")
        self.context.send_event(event)

    def close(self) -> None:
        self.context.request_split()  # late: it means nothing
        self._note("close")

    def _note(self, call: str) -> None:
        self.log.append(call)
        self._fail(call.split()[0])

    def _fail(self, call: str) -> None:
        error = self.source.fails.get(call)
        if callable(error):
            error()
        elif error is not None:
            raise error


class PausableToyReader(ToyReader):
    """Emits nothing of paused splits."""

    def __init__(self, source: ToySource, context: SourceReaderContext) -> None:
        super().__init__(source, context)
        self.paused: set[str] = set()
        self.pauses: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        self.pauses.append((tuple(splits_to_pause), tuple(splits_to_resume)))
        with self._lock:
            self.paused = (self.paused | set(splits_to_pause)) - set(splits_to_resume)

    def _next(self, *, look: bool = False) -> tuple[str, tuple[int, ...]] | None:
        for index, offered in enumerate(self._offered if self.splits else ()):
            if offered[0] not in self.paused:
                return offered if look else self._offered.pop(index)
        return None


class ToySource(Source[ToySplit, None]):
    """Makes `ToyReader`s and keeps them; ``can_pause``: `PausableToyReader`s."""

    name = "toy"
    split_serializer = SPLITS

    def __init__(self, *offered: tuple[str, tuple[int, ...]], pulls: bool = False, can_pause: bool = False) -> None:
        super().__init__({})
        self.offered = offered
        self.pulls = pulls
        self.reader_type = PausableToyReader if can_pause else ToyReader
        self.fails: dict[str, BaseException | Callable[[], object]] = {}
        self.readers: list[ToyReader] = []
        self.rule = ThreadRule("ToyReader")

    @property
    def reader(self) -> ToyReader:
        return self.readers[-1]

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[ToySplit]) -> SplitEnumerator[ToySplit, None]:
        raise NotImplementedError

    def restore_enumerator(
        self, context: SplitEnumeratorContext[ToySplit], state: None
    ) -> SplitEnumerator[ToySplit, None]:
        raise NotImplementedError

    def create_reader(self, context: SourceReaderContext) -> ToyReader:
        reader = self.reader_type(self, context)
        self.readers.append(assert_single_threaded(reader, free=("available", "offer", "wake"), rule=self.rule))
        return self.reader


class ReassignedToySource(ToySource, SupportsSplitReassignmentOnRecovery):
    """With FLIP-537's marker."""


class ToyOperator(Operator):
    """Lets rows through, and emits one row with the number -1 at the end.

    ``does`` is what happens in a call ("open", "process", "end"); it is shared by all copies, of which a query makes
    some.
    """

    schema = SCHEMA

    def __init__(self, **does: Callable[..., object]) -> None:
        self.does = does

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        self._do("open")

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        self._do("process", batch)
        emit(batch, split_id)

    def end_input(self, emit: Emit) -> None:
        self._do("end")
        emit(rows(-1), "")

    def _do(self, call: str, *arguments: pa.RecordBatch) -> None:
        if call in self.does:
            self.does[call](*arguments)


class ToySink(CollectingSink):
    """A `CollectingSink` that fails where a test says, and whose writers belong to one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, BaseException] = {}
        self.stuck: threading.Event | None = None
        """What each write waits for."""
        self.prepared_at: dict[int, int] = {}
        """By checkpoint: how many rows had come."""
        self.rule = ThreadRule("ToyWriter")

    @property
    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows]

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        self.fail("create")
        super().create_writer(context, schema, items)
        return assert_single_threaded(ToyWriter(self), rule=self.rule)

    def fail(self, call: str) -> None:
        if call in self.fails:
            raise self.fails[call]


class ToyWriter(CollectingWriter):
    def __init__(self, sink: ToySink) -> None:
        super().__init__(sink)
        self._toy = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._toy.fail("write")
        if self._toy.stuck is not None:
            self._toy.stuck.wait(PATIENCE_S)
        super().write(batch)

    def ready(self) -> Future[None] | None:
        self._toy.fail("ready")
        return super().ready()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        self._toy.fail("prepare")
        self._toy.prepared_at[checkpoint_id] = len(self._toy.rows)
        return super().prepare_commit(checkpoint_id, final=final)

    def finish(self) -> Future[None] | None:
        self._toy.fail("finish")
        return super().finish()


class Running:
    """A subtask on its own thread, whose coordinator is the test.

    Parameters
    ----------
    sources
        By uid; several are united.
    strategy
        Of all of them.
    operator
        What precedes the sink; None: nothing does.
    finds
        The operator finds the sources' event times, in this column of its rows.
    options
        Of the query.
    now_ms
        The runner's clock.
    files
        State in files, by path.
    """

    def __init__(
        self,
        *,
        strategy: WatermarkStrategy | None = None,
        operator: Operator | None = None,
        finds: str | None = None,
        options: Mapping[str, str] | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
        files: Mapping[str, bytes] | None = None,
        **sources: Source[Any, Any],
    ) -> None:
        self.sink = ToySink()
        self.ended: queue.Queue[int] = queue.Queue()
        self.posted: list[msg.FromSlot] = []
        self._unread: queue.Queue[msg.FromSlot] = queue.Queue()
        self._incarnation = 0
        self._execution = 0
        self._uids = tuple(sources)
        self._uid = self._uids[0]
        self._files = files or {}
        self._uploader = StateUploader(InMemory(), "w")
        self.thread = SubtaskThread(
            toy_definition(self.sink, sources, strategy, operator, finds, options),
            [0],
            SlotPlace(run=1, slot=2, attempt=0, host="h", query_id="q", time_zone="UTC", checkpoint_location="/none"),
            post=self._post,
            on_ended=lambda stage, execution: self.ended.put(execution),
            read_state=self._read_state,
            services=SlotServices(uploader=self._uploader),
            now_ms=now_ms,
        )
        self.runner = self.thread.runners[0]

    def deliver(self, message: Callable[..., msg.ToSlot], **fields: Any) -> None:
        """Send a message to the current execution."""
        self.runner.deliver(message(stage=0, execution=self._execution, **fields))

    def deploy(self, restore: SubtaskState | None = None) -> None:
        self._execution += 1
        self.deliver(msg.Deploy, parallelism=3, restore=restore)

    def start(self, *split_ids: str, restore: SubtaskState | None = None, unassigned: bool = False) -> None:
        """Deploy, and wait until it runs; then assign splits to the first source.

        ``unassigned``: nothing is reported of unassigned work, so that watermarks are held; else that there is none.
        """
        self.deploy(restore)
        self.next(msg.SubtaskRunning)
        if split_ids:
            self.assign(*split_ids)
        if not unassigned:
            for uid in self._uids:
                self.deliver(msg.UnassignedWork, source=uid, event_time_ms=None)

    def assign(self, *split_ids: str, number: int = 1, source: str | None = None) -> None:
        splits = tuple(map(state_of, split_ids))
        self.deliver(msg.AssignSplits, source=source or self._uid, number=number, splits=splits)

    def next(self, kind: type[MessageT]) -> MessageT:
        """Return the next message of a kind; those before it are skipped."""
        while True:
            message = self._unread.get(timeout=PATIENCE_S)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, msg.SubtaskFailed) or message.execution < self._execution, message

    def messages(self) -> list[msg.FromSlot]:
        """Let the subtask handle all messages up to now; return what it posted and nobody read, without figures."""
        posted: list[msg.FromSlot] = []
        self._incarnation += 1
        self.deliver(msg.ReportSource, source=self._uid, incarnation=self._incarnation)
        while True:
            message = self._unread.get(timeout=PATIENCE_S)
            if isinstance(message, msg.SourceReported) and message.incarnation == self._incarnation:
                return posted
            if not isinstance(message, msg.SubtaskProgress):
                posted.append(message)

    def checkpoint(
        self, checkpoint_id: int, kind: msg.CheckpointKind = msg.CheckpointKind.CHECKPOINT
    ) -> tuple[SubtaskState, msg.SubtaskProgress]:
        """Take a checkpoint; return its state, and the figures that came with it."""
        self.deliver(msg.TriggerCheckpoint, checkpoint_id=checkpoint_id, kind=kind)
        self.prepared(checkpoint_id).set_result(OperatorState())
        acknowledged = self.next(msg.CheckpointAcknowledged)
        assert acknowledged.checkpoint_id == checkpoint_id
        # Not the last of all: the timer's figures may have been posted after it by now.
        figures = self.posted[next(at for at, message in enumerate(self.posted) if message is acknowledged) - 1]
        assert isinstance(figures, msg.SubtaskProgress)
        return acknowledged.state, figures

    def settle(self) -> None:
        """Let the subtask handle all messages up to now, and take the step that follows; what it posts is read."""
        self.messages()
        self.messages()  # messages are handled before a step: only the second answer comes after one

    def announce(self, max_watermark_ms: int, others_ms: int, source: str | None = None) -> None:
        """Say where the alignment group is."""
        self.deliver(
            msg.AlignmentAnnounced,
            source=source or self._uid,
            max_watermark_ms=max_watermark_ms,
            others_ms=others_ms,
        )

    def prepared(self, checkpoint_id: int) -> Future[OperatorState]:
        """Wait until the sink prepares a checkpoint; return its future."""
        wait_until(lambda: any(call[:2] == ("prepare", checkpoint_id) for call in self._calls()))
        return self.sink.prepared[-1]

    def failure(self) -> msg.ErrorReport:
        """Return the error with which the subtask failed, when all of it is closed."""
        wait_until(lambda: any(isinstance(message, msg.SubtaskFailed) for message in self.posted))
        self.ended.get(timeout=PATIENCE_S)
        (failed,) = [message for message in self.posted if isinstance(message, msg.SubtaskFailed)]
        return failed.error

    def close(self) -> None:
        self.thread.close(PATIENCE_S)
        self._uploader.close(PATIENCE_S)
        assert not self.thread._thread.is_alive()

    def _calls(self) -> list[tuple[Any, ...]]:
        return [call for call in self.sink.calls if isinstance(call, tuple)]

    def _post(self, message: msg.FromSlot) -> None:
        self.posted.append(message)
        self._unread.put(message)

    def _read_state(self, handle: FileState) -> bytes:
        return self._files[handle.path]


def toy_definition(
    sink: ToySink,
    sources: Mapping[str, Source[Any, Any]],
    strategy: WatermarkStrategy | None = None,
    operator: Operator | None = None,
    finds: str | None = None,
    options: Mapping[str, str] | None = None,
) -> QueryDefinition:
    """Return a query of sources, which are united, perhaps an operator, event times found after it, and a sink."""
    nodes = [
        PlanNode(
            of=SourceDefinition(
                uid=uid,
                source=source,
                schema=SCHEMA,
                boundedness=Boundedness.CONTINUOUS_UNBOUNDED,
                watermark_strategy=strategy,
            ),
            name=uid,
        )
        for uid, source in sources.items()
    ]
    output = nodes[0] if len(nodes) == 1 else PlanNode(of=Union(SCHEMA, SCHEMA), inputs=tuple(nodes))
    if operator is not None:
        output = output.then(operator).named("function")
    if finds is not None:
        output = output.then(WithWatermark(output.schema, finds))
    return QueryDefinition(
        graph=stage_graph(output),
        sink=sink,
        sink_format="toy",
        options=parse_query_options(options or {}, {}),
        parallelism=3,
    )


@contextmanager
def started(**given: Any) -> Iterator[Start]:
    """Yield what makes running subtasks, with these arguments unless others are given; check and close them at last."""
    made: list[Running] = []

    def make(**of: Any) -> Running:
        made.append(Running(**{**given, **of}))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.sink.rule.check()
        for source in each.runner.subtask._definition.sources.values():
            if isinstance(source.source, ToySource):
                source.source.rule.check()


@pytest.fixture
def start() -> Iterator[Start]:
    """See `started`."""
    with started() as make:
        yield make
