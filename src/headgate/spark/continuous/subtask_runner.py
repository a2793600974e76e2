"""Runs one subtask of a stage on its mailbox thread: readers, operators and sink, as the subtask machine orders.

Never: let a letter take much longer than one slice of rows (traps, 18), or touch a reader, an operator or the sink on
another thread.

    loop: letters -> a slice that waits -> a snapshot that is due -> poll a reader -> wait for a letter

A batch that a reader emitted is cut into slices, which wait in the chain; the reader's position is behind them already,
so a snapshot is taken when none waits. Letters are read between two slices.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, assert_never

import msgspec

from headgate.errors import InternalError
from headgate.operators.chain import StageChain
from headgate.operators.operator import OperatorContext
from headgate.operators.stage_graph import QueryDefinition, SourceDefinition
from headgate.protocol import messages as msg
from headgate.protocol.state import FileState, InlineState, OperatorState, SplitState, StateHandle
from headgate.readers import SourceReaderBase
from headgate.source import InputStatus, SourceEvent, SourceReader, SourceReaderContext
from headgate.spark.continuous.error_reports import report_of
from headgate.task import subtask as machine
from headgate.task.mailbox import Letter, Mailbox, monotonic_ms
from headgate.task.outputs import StreamingOutput

_log = logging.getLogger(__name__)

PROGRESS_PERIOD_MS = 250
"""How often a subtask tells its figures."""


class SlotPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a subtask runs: its names and numbers, for contexts and errors."""

    run: int
    slot: int
    attempt: int
    host: str
    query_id: str
    time_zone: str
    checkpoint_location: str


class SubtaskRunner:
    """A subtask's thread. It lives as long as its slot, through all executions of the subtask.

    Parameters
    ----------
    definition
        What the query does.
    stage
        The stage's number.
    place
        Where this is.
    post
        Takes letters to the coordinator; called on the subtask's thread.
    on_ended
        Called with an execution that is closed.
    read_state
        Reads state that lies in a file of the checkpoint.
    now_ms
        Reads the clock, in milliseconds.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        stage: int,
        place: SlotPlace,
        post: Callable[[msg.FromSlot], None],
        on_ended: Callable[[int], None],
        read_state: Callable[[FileState], bytes],
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._definition = definition
        self._stage = stage
        self._place = place
        self._post = post
        self._on_ended = on_ended
        self._read_state = read_state
        self._now_ms = now_ms
        self._machine = machine.SubtaskMachine(
            msg.SubtaskId(stage, place.slot),
            sources={uid: source.reassigns_on_recovery for uid, source in definition.sources.items()},
            host=place.host,
        )
        self._mailbox = Mailbox(now_ms)
        self._execution: _Execution | None = None
        self._number = 0
        self._events: deque[machine.Event] = deque()
        self._handling = False
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"headgate-subtask-{stage}-{place.slot}", daemon=True)
        self._thread.start()

    def deliver(self, letter: Any) -> None:
        """Hand over a letter of the coordinator; called by any thread."""
        self._mailbox.post(Letter(lambda: self._on_letter(letter)))

    def finish(self, timeout_s: float) -> bool:
        """Let the sink publish what the last checkpoint left to it; return whether it did so in time. Another thread.

        Raises
        ------
        HeadgateError
            It failed.
        """
        finished: Future[None] = Future()
        self._mailbox.post(Letter(lambda: self._begin_finish(finished), finished.cancel))
        try:
            finished.result(timeout_s)
        except (TimeoutError, CancelledError):
            return False
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread, closing what runs; wait for that at most this long, in seconds. Called by another thread."""
        self._mailbox.post(Letter(self._begin_close))
        self._thread.join(timeout_s)

    def busy_since(self) -> float | None:
        """Return since when the current letter, slice or poll runs (monotonic seconds); None: it waits. Any thread."""
        return self._busy_since

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch of a reader blocks (monotonic seconds); None: none does. Any thread."""
        execution = self._execution
        return None if execution is None else execution.fetching_since()

    @property
    def number(self) -> int:
        """The execution that was deployed last. Any thread."""
        return self._number

    # From here on: on the subtask's thread.

    def _run(self) -> None:
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Letter(self._on_progress_due))
        while not self._closing:
            self._busy_since = time.monotonic()
            busy = self._guarded(self._turn)
            self._busy_since = None
            if not busy and not self._closing:
                self._mailbox.wait()
        self._close_execution()
        self._mailbox.close()

    def _turn(self) -> bool:
        """Run waiting letters, then one step of the execution; return whether there may be more at once."""
        self._mailbox.run_letters()
        execution = self._execution
        return execution is not None and not self._closing and execution.step(self._now_ms())

    def _guarded(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except Exception as error:
            self._on_error(error)
            return True

    def _on_error(self, error: Exception) -> None:
        facts = {} if self._execution is None else self._execution.facts_of(error)
        _log.warning("subtask %d.%d failed: %s", self._stage, self._place.slot, error)
        report = report_of(error, **facts)
        if isinstance(error, InternalError):  # perhaps the machine's own: it cannot be asked
            self._events.clear()
            self._close_execution()
            self._post(msg.SubtaskFailed(stage=self._stage, execution=self._number, error=report))
        else:
            self.handle(machine.SomethingFailed(report))

    def _begin_finish(self, finished: Future[None]) -> None:
        under_way = None if self._execution is None else self._execution.finish()
        if under_way is None:
            finished.set_result(None)
        else:
            under_way.add_done_callback(lambda future: _hand_over(future, finished))

    def _begin_close(self) -> None:
        self._closing = True

    def _on_letter(self, letter: Any) -> None:
        if isinstance(letter, msg.Deploy):
            self._number = letter.execution
        self.handle(machine.LetterCame(letter))

    def handle(self, event: machine.Event) -> None:
        """Give an event to the machine and carry out what it decides, behind what is being carried out."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                actions = self._machine.handle(self._events.popleft(), self._now_ms())
                try:
                    for action in actions:
                        self._carry_out(action)
                except InternalError:
                    raise
                except Exception as error:  # what was to follow makes no sense any longer
                    self._on_error(error)
        finally:
            self._handling = False

    def _carry_out(self, action: machine.Action) -> None:
        execution = self._execution
        match action:
            case machine.OpenOperators(parallelism=parallelism, operators=operators):
                self._open(parallelism, operators)
            case machine.CloseAll():
                self._close_execution()
            case machine.Post(letter=letter):
                self._post(letter)
            case _ if execution is None:
                raise InternalError(f"{action!r} was ordered of subtask {self._place.slot}, which is not open.")
            case machine.AddSplits(source=uid, splits=splits):
                execution.inputs[uid].add_splits(splits)
            case machine.TellNoMoreSplits(source=uid):
                execution.inputs[uid].notify_no_more_splits()
            case machine.HandEvent(source=uid, payload=payload):
                execution.inputs[uid].reader.handle_source_event(pickle.loads(payload))
            case machine.StartReading() | machine.ResumeReading():
                execution.reading = True
            case machine.TakeSnapshot(checkpoint_id=checkpoint_id, drain=drain, suspend=suspend):
                execution.snapshot_due = (checkpoint_id, drain, suspend)
            case machine.NotifyOperators(checkpoint_id=checkpoint_id):
                execution.notify_checkpoint_complete(checkpoint_id)
            case _:
                assert_never(action)

    def _open(self, parallelism: int, operators: Mapping[str, OperatorState]) -> None:
        self._close_execution()
        items = {uid: [self._bytes_of(item) for item in state.items] for uid, state in operators.items()}
        execution = self._execution = _Execution(self, parallelism, items)
        execution.open()
        self.handle(machine.OperatorsOpened())

    def _bytes_of(self, handle: StateHandle) -> bytes:
        return handle.data if isinstance(handle, InlineState) else self._read_state(handle)

    def _close_execution(self) -> None:
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.close()
            self._on_ended(execution.number)

    def _on_progress_due(self) -> None:
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Letter(self._on_progress_due))
        if self._execution is not None and self._execution.reading:
            self._post(self._execution.progress())


class _Execution:
    """What one deployment holds: readers with their outputs, the chain, the sink's writer."""

    def __init__(self, runner: SubtaskRunner, parallelism: int, items: Mapping[str, list[bytes]]) -> None:
        self._runner = runner
        self.number = runner._number
        self.reading = False
        self.snapshot_due: tuple[int, bool, bool] | None = None
        self._parallelism = parallelism
        self._items = items
        self._ended = False
        self._sink_blocked = False
        self._turn = 0
        self.inputs: dict[str, _Input] = {}
        self._chain: StageChain | None = None

    def open(self) -> None:
        """Make readers, operators and sink."""
        runner, definition = self._runner, self._runner._definition
        context = OperatorContext(
            uid="",
            subtask=runner._place.slot,
            parallelism=self._parallelism,
            run=runner._place.run,
            attempt=runner._place.attempt,
            execution=self.number,
            query_id=runner._place.query_id,
            options={"checkpointLocation": runner._place.checkpoint_location},
        )
        self._chain = chain = definition.make_chain(context, self._items)
        chain.open()
        chain.position_of = self._position_of
        for uid, source in definition.sources.items():
            self.inputs[uid] = _Input(self, uid, source, chain)

    def step(self, now_ms: int) -> bool:
        """Do the next piece of work; return whether there was one."""
        chain = self._chain
        if chain is None or not self._sink_takes_rows():
            return False
        if chain.process_some():
            return True
        if self.snapshot_due is not None:
            checkpoint_id, drain, suspend = self.snapshot_due
            if drain and not self._ended:
                self._end_input()
                return True
            self.snapshot_due = None
            self._take_snapshot(checkpoint_id, drain, suspend)
            return True
        if not self.reading or self._ended:
            return False
        return self._poll(now_ms)

    def _poll(self, now_ms: int) -> bool:
        inputs = list(self.inputs.values())
        self._turn += 1
        for offset in range(len(inputs)):
            each = inputs[(self._turn + offset) % len(inputs)]
            if each.status is InputStatus.MORE_AVAILABLE:
                each.poll(now_ms)
                return True
        if all(each.status is InputStatus.END_OF_INPUT for each in inputs):
            self._end_input()
            self._runner.handle(machine.AllInputEnded())
            return True
        return False

    def _end_input(self) -> None:
        assert self._chain is not None
        self._ended = True
        for each in self.inputs.values():
            each.end()
        self._chain.end_input()

    def _sink_takes_rows(self) -> bool:
        assert self._chain is not None
        room = self._chain.ready()
        blocked = room is not None and not room.done()
        if blocked != self._sink_blocked:
            self._sink_blocked = blocked
            now_ms = self._runner._now_ms()
            for each in self.inputs.values():
                (each.output.block if blocked else each.output.unblock)(now_ms)
            if blocked and room is not None:
                room.add_done_callback(lambda _: self._runner._mailbox.post(Letter(lambda: None)))
        return not blocked

    def _take_snapshot(self, checkpoint_id: int, drain: bool, suspend: bool) -> None:
        assert self._chain is not None
        splits = {uid: each.snapshot(checkpoint_id) for uid, each in self.inputs.items()}
        if suspend:
            self.reading = False
        safe = self._chain.snapshot(checkpoint_id, final=drain or suspend or self._ended)
        safe.add_done_callback(
            lambda future: self._runner._mailbox.post(Letter(lambda: self._on_safe(checkpoint_id, splits, future)))
        )

    def _on_safe(
        self,
        checkpoint_id: int,
        splits: dict[str, tuple[SplitState, ...]],
        future: Future[dict[str, OperatorState]],
    ) -> None:
        if self._runner._execution is self:  # else: of an execution that is over
            self._runner.handle(machine.SnapshotMade(checkpoint_id, splits, future.result()))
            self._runner._post(self.progress())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell readers, operators and sink."""
        assert self._chain is not None
        for each in self.inputs.values():
            each.reader.notify_checkpoint_complete(checkpoint_id)
        self._chain.notify_checkpoint_complete(checkpoint_id)

    def finish(self) -> Future[None] | None:
        """Return a future that is done when the sinks have published what they owe; None: they owe nothing."""
        return None if self._chain is None else self._chain.finish()

    def progress(self) -> msg.SubtaskProgress:
        """Return the figures since the deployment."""
        assert self._chain is not None
        figures = self._chain.figures()
        return msg.SubtaskProgress(
            stage=self._runner._stage,
            execution=self.number,
            rows_in=figures.rows_in,
            rows_out=figures.rows_out,
            positions={uid: each.positions() for uid, each in self.inputs.items()},
            busy_ms=figures.busy_ms,
            watermark_ms=figures.watermark_ms,
            skipped=figures.skipped,
        )

    def facts_of(self, error: BaseException) -> dict[str, Any]:
        """Return where this is, for an error's report: stage, subtask, and the position being read where known."""
        facts: dict[str, Any] = {"stage": self._runner._stage, "subtask": self._runner._place.slot}
        known = getattr(error, "facts", {})
        for uid in self.inputs:
            position = self._position_of(uid, known.get("split", ""))
            if position is not None:
                facts |= {"source": uid, "position": position}
        return facts

    def _position_of(self, source: str, split: str) -> str | None:
        """Return the position of a split behind the batch that its rows stand in, as text."""
        position = self.inputs[source].position_of(split) if source in self.inputs else None
        return None if position is None else position.decode(errors="replace")

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch blocks (monotonic seconds)."""
        readers = [each.reader for each in list(self.inputs.values())]
        since = [reader.stuck_since() for reader in readers if isinstance(reader, SourceReaderBase)]
        return min((each for each in since if each is not None), default=None)

    def close(self) -> None:
        """Close everything, whatever raises."""
        self.reading = False
        closings: list[Callable[[], None]] = [each.reader.close for each in self.inputs.values()]
        if self._chain is not None:
            closings.append(self._chain.close)
        for close in closings:
            try:
                close()
            except Exception:
                _log.warning("closing a part of subtask %d failed", self._runner._place.slot, exc_info=True)


def _hand_over(future: Future[None], to: Future[None]) -> None:
    error = future.exception()
    if error is None:
        to.set_result(None)
    else:
        to.set_exception(error)


class _Input:
    """One source's reader in a subtask, and its output."""

    def __init__(self, execution: _Execution, uid: str, source: SourceDefinition, chain: StageChain) -> None:
        self.uid = uid
        self._execution = execution
        self._runner = runner = execution._runner
        self._source = source.source
        self.status = InputStatus.MORE_AVAILABLE
        self._last_positions: dict[str, bytes] = {}
        self.output = _Output(self, source, chain, runner._now_ms())
        self.reader: SourceReader[Any] = source.source.create_reader(
            SourceReaderContext(
                subtask=runner._place.slot,
                schema=source.schema,
                host=runner._place.host,
                request_split=lambda: runner.handle(machine.RequestMade(uid)),
                send_event=self._send_event,
                time_zone=runner._place.time_zone,
                query=runner._definition.name or runner._place.query_id,
            )
        )
        self.reader.start()
        self._arm_timer()

    def add_splits(self, splits: tuple[SplitState, ...]) -> None:
        read = [self._source.split_serializer.deserialize(split.data) for split in splits]
        for split in read:
            self.output.create_output_for_split(split.split_id)
        self.reader.add_splits(read)
        self._last_positions |= {split.split_id: split.data for split in splits}
        self._wake()

    def notify_no_more_splits(self) -> None:
        self.reader.notify_no_more_splits()
        self._wake()

    def poll(self, now_ms: int) -> None:
        self.output.advance_time(now_ms)
        self.status = self.reader.poll_next(self.output)
        if self.output.ended_splits:
            ended, self.output.ended_splits = tuple(self.output.ended_splits), []
            self._runner.handle(machine.SplitsEnded(self.uid, ended))
        if self.status is InputStatus.NOTHING_AVAILABLE:
            available = self.reader.available()
            if available.done():
                self.status = InputStatus.MORE_AVAILABLE
            else:
                available.add_done_callback(lambda _: self._runner._mailbox.post(Letter(self._wake)))

    def snapshot(self, checkpoint_id: int) -> tuple[SplitState, ...]:
        return tuple(self._state_of(split) for split in self.reader.snapshot_state(checkpoint_id))

    def positions(self) -> dict[str, bytes]:
        # A snapshot without a checkpoint: readers promise that taking one changes nothing.
        self._last_positions = {split.split_id: split.data for split in self.snapshot(0)}
        return self._last_positions

    def position_of(self, split_id: str) -> bytes | None:
        """Return where a split is; of one that has ended while its last rows wait, where it was known to be last."""
        last = self._last_positions
        found = self.positions().get(split_id)
        return found if found is not None else last.get(split_id)

    def end(self) -> None:
        if self.status is not InputStatus.END_OF_INPUT or not self.output.ended:
            self.output.end_input()

    def _state_of(self, split: Any) -> SplitState:
        return SplitState(split.split_id, self._source.split_serializer.serialize(split))

    def _wake(self) -> None:
        if self.status is InputStatus.NOTHING_AVAILABLE:
            self.status = InputStatus.MORE_AVAILABLE

    def _send_event(self, event: SourceEvent) -> None:
        self._runner.handle(machine.EventMade(self.uid, pickle.dumps(event)))

    def _arm_timer(self) -> None:
        if self.output.timer_period_ms is not None:
            self._runner._mailbox.run_after(self.output.timer_period_ms, Letter(self._on_timer))

    def _on_timer(self) -> None:
        if self._runner._execution is self._execution and not self.output.ended:
            self.output.advance_time(self._runner._now_ms())
            self._arm_timer()


class _Output(StreamingOutput):
    """Notes which splits ended beside handing rows on."""

    def __init__(self, of: _Input, source: SourceDefinition, chain: StageChain, now_ms: int) -> None:
        self._behind = chain.input(of.uid)
        super().__init__(source.schema, source.watermark_strategy, self._behind, now_ms)
        self.ended_splits: list[str] = []
        self.ended = False

    def release_output_for_split(self, split_id: str) -> None:
        super().release_output_for_split(split_id)
        self._behind.release_split(split_id)
        self.ended_splits.append(split_id)

    def end_input(self) -> None:
        if not self.ended:
            self.ended = True
            super().end_input()
