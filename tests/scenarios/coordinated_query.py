"""A query around one source, in small: the real coordinator and runner, a log in memory, readers that only hold splits.

Never: decide when something happens: a test says what fails and when; everything else follows at once, in order.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import msgspec

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner, SlowWork
from headgate.coordinator.sources.log_records import LogRecord
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, SplitState
from headgate.source.enumerator import Boundedness
from headgate.source.events import SourceEvent
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery
from tests.unit.coordinator.sources.toy_sources import ToySource, ToySplit

BOUNDED = Boundedness.BOUNDED
UID = "source"


class Reader(msgspec.Struct):
    """What an execution of a reader has."""

    execution: int
    held: dict[str, SplitState] = {}
    finished: list[FinishedSplit] = []
    numbered: int = 0
    highest: int = 0
    requested: bool = False
    ended: bool = False
    inbox: deque[Any] = msgspec.field(default_factory=deque)
    taken: list[Any] = []
    """All messages, in order."""
    is_cut: bool = False


class Checkpoint(msgspec.Struct):
    """A completed checkpoint."""

    checkpoint_id: int = 0
    state: bytes | None = None
    readers: dict[int, tuple[SplitState, ...]] = {}
    finished: dict[int, tuple[FinishedSplit, ...]] = {}


class Query:
    """A query that runs.

    Parameters
    ----------
    source, parallelism, boundedness
        What is read and how.
    restored
        Where it goes on; the splits are dealt to another number of readers in turn.
    """

    def __init__(
        self,
        source: Source[Any, Any],
        parallelism: int,
        boundedness: Boundedness = Boundedness.CONTINUOUS_UNBOUNDED,
        restored: Checkpoint | None = None,
        *,
        keeps_subtask: bool = False,
        register: bool = True,
    ) -> None:
        self.source, self.parallelism, self.boundedness = source, parallelism, boundedness
        self.reports = isinstance(source, SupportsSplitReassignmentOnRecovery)
        self.machine = SourceCoordinator(
            UID, reassigns_on_recovery=self.reports, parallelism=parallelism, keeps_subtask=keeps_subtask
        )
        self.completed = restored or Checkpoint()
        self.log: list[tuple[int, LogRecord]] = []
        self.log_works = True
        self.work: list[tuple[EnumeratorRunner, SlowWork]] = []
        self.readers: dict[int, Reader] = {}
        self.away: set[int] = set()
        self.executions = 0
        self.checkpoints = self.completed.checkpoint_id
        self.failures: list[str] = []
        self.failovers: list[str] = []
        self.resets: list[int] = []
        self.requests: list[int] = []
        self.ready: src.EnumeratorStateReady | None = None
        self.refused: str | None = None
        self._events: deque[src.Event] = deque()
        self._is_busy = False
        self._start()
        if register:
            for subtask in range(parallelism):
                self.deploy(subtask)

    def _start(self) -> None:
        finished = tuple(each.split_id for ends in self.completed.finished.values() for each in ends)
        self.notify(src.SourceStarted(self.completed.checkpoint_id, self.completed.state, finished))

    # What the test lets happen.

    def deploy(self, subtask: int) -> None:
        """Let a reader come with its state of the last completed checkpoint."""
        self.executions += 1
        self.away.discard(subtask)
        splits = self.dealt(subtask)
        reader = self.readers[subtask] = Reader(self.executions)
        if not self.reports:
            reader.held = {split.split_id: split for split in splits}
        self.post(
            subtask,
            msg.ReaderRegistered,
            host="h",
            reported_splits=splits if self.reports else (),
            held=tuple(reader.held),
        )

    def fail_reader(self, subtask: int, *, comes_back: bool = True) -> None:
        """Let a reader be lost, and come back once its splits are."""
        del self.readers[subtask]
        self.away.add(subtask)
        self.notify(src.ReaderFailed(subtask, self.completed.checkpoint_id))
        assert subtask in self.resets, "its splits are not back"
        self.resets.remove(subtask)
        if comes_back:
            self.deploy(subtask)

    def crash(self, message: str = "planned") -> None:
        """Let the enumerator's thread die."""
        assert self.runner is not None
        self.runner.failed = True
        report = msg.ErrorReport(error_type="OSError", message=message)
        self.notify(src.EnumeratorFailed(self.runner.incarnation, report))

    def request(self, subtask: int) -> None:
        """Let a reader ask for a split."""
        self.readers[subtask].requested = True
        self.post(subtask, msg.SplitRequested, host="h")

    def event(self, subtask: int, event: SourceEvent) -> None:
        """Let a reader send the enumerator an event."""
        self.post(subtask, msg.EventToEnumerator, payload=pickle.dumps(event))

    def finish(self, subtask: int, split_id: str) -> None:
        """Let a reader read a split to its end."""
        reader = self.readers[subtask]
        del reader.held[split_id]
        reader.numbered += 1
        reader.finished.append(FinishedSplit(split_id, reader.numbered))
        self.post(subtask, msg.SplitsFinished, finished=(reader.finished[-1],))

    def discover(self) -> None:
        """Run the slow work that waits, once."""
        work, self.work = self.work, []
        for runner, each in work:
            if runner is not self.runner:
                continue
            outputs = runner.finish(each, each.work(), None)
            if each.period_ms is not None:
                self.work.append((runner, each))
            self.hear(runner, outputs)

    def begin_checkpoint(self) -> bool:
        """Let a checkpoint get as far as its barriers; whether it did."""
        self.checkpoints += 1
        self.ready = self.refused = None
        self.notify(src.CheckpointStarted(self.checkpoints))
        return self.ready is not None

    def complete_checkpoint(self) -> None:
        """Let the readers take their part, and the checkpoint be complete."""
        assert self.ready is not None
        readers = {subtask: tuple(reader.held.values()) for subtask, reader in self.readers.items()}
        finished = {subtask: tuple(reader.finished) for subtask, reader in self.readers.items()}
        self.completed = Checkpoint(self.checkpoints, self.ready.state, readers, finished)
        self.notify(src.BarriersSent(self.checkpoints))
        for subtask, number in self.ready.finished_known.items():
            reader = self.readers[subtask]
            reader.finished = [each for each in reader.finished if each.number > number]
        self.notify(src.SourceCheckpointCompleted(self.checkpoints))

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint and return it."""
        assert self.begin_checkpoint(), self.refused
        self.complete_checkpoint()
        return self.completed

    def cut(self, subtask: int) -> None:
        """Let nothing reach a reader for a while."""
        self.readers[subtask].is_cut = True

    def mend(self, subtask: int) -> None:
        """Let a reader get its messages again."""
        self.readers[subtask].is_cut = False
        self.deliver(subtask)

    # What can be seen.

    def held(self) -> dict[int, list[str]]:
        """Return the ids of the splits of each reader that has any."""
        return {subtask: sorted(reader.held) for subtask, reader in sorted(self.readers.items()) if reader.held}

    def sizes(self, topic: str = "") -> list[int]:
        """Return how many splits each reader has."""
        return [
            sum(name.startswith(topic) for name in self.readers[subtask].held) if subtask in self.readers else 0
            for subtask in range(self.parallelism)
        ]

    def splits(self) -> dict[str, Any]:
        """Return all splits that readers have, by id; none is with two."""
        found: dict[str, Any] = {}
        for reader in self.readers.values():
            for split_id, split in reader.held.items():
                assert split_id not in found, f"{split_id} is with two readers"
                found[split_id] = self.source.split_serializer.deserialize(split.data)
        return found

    def unassigned(self) -> dict[int, Any]:
        """Return what each reader received last about unassigned work; those that received nothing are missing."""
        reported = {
            subtask: [message.event_time_ms for message in reader.taken if isinstance(message, msg.UnassignedWork)]
            for subtask, reader in sorted(self.readers.items())
        }
        return {subtask: times[-1] for subtask, times in reported.items() if times}

    def dealt(self, subtask: int) -> tuple[SplitState, ...]:
        """Return what a reader finds in the last completed checkpoint."""
        parts = self.completed.readers
        if len(parts) == self.parallelism:
            return parts[subtask]
        everything = [split for _, part in sorted(parts.items()) for split in part]
        return tuple(everything[subtask :: self.parallelism])

    # What follows.

    def notify(self, event: src.Event) -> None:
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        while self._events:
            for action in self.machine.handle(self._events.popleft(), 0):
                self.carry_out(action)
            self.machine.check()
        self._is_busy = False
        if self.failovers and self.machine.state == "failed":
            self.readers.clear()
            self.work.clear()
            self._start()
            for subtask in range(self.parallelism):
                self.deploy(subtask)

    def hear(self, runner: EnumeratorRunner, outputs: Any) -> None:
        for event in runner.reported(outputs):
            if isinstance(event, src.EnumeratorFailed):
                self.failures.append(event.error.message)
            self.notify(event)

    def carry_out(self, action: src.Action) -> None:
        match action:
            case src.StartEnumerator():
                self.runner = runner = EnumeratorRunner(
                    self.source,
                    UID,
                    incarnation=action.incarnation,
                    boundedness=self.boundedness,
                    schema=self.source.schema(),
                    parallelism=self.parallelism,
                    state=action.state,
                    checkpoint_id=action.checkpoint_id,
                    holders=action.holders,
                    assigned=action.assigned,
                    returned=action.returned,
                    call_async=lambda work: self.work.append((runner, work)),
                )
                self.hear(runner, runner.start())
            case src.CallEnumerator(call=call):
                if isinstance(call, src.HandleSplitRequest):
                    self.requests.append(call.subtask)
                if self.runner.incarnation == action.incarnation:
                    self.hear(self.runner, self.runner.call(call))
            case src.StopEnumerator():
                self.runner.failed = True
            case src.AppendLog(segment=segment, number=number, records=records):
                if self.log_works:
                    self.log.extend((segment, record) for record in records)
                    self.notify(src.LogAppended(number))
                else:
                    self.notify(src.LogAppendFailed(number, "the disk is full"))
            case src.DropLog(before_segment=before):
                self.log = [each for each in self.log if before is not None and each[0] >= before]
            case src.LoadLog(from_segment=segment, incarnation=incarnation):
                records = tuple(record for at, record in self.log if at >= segment)
                self.notify(src.LogLoaded(records if self.log_works else None, "lost", incarnation))
            case src.SendToReader(subtask=subtask, message=message):
                if subtask in self.readers:
                    self.readers[subtask].inbox.append(message)
                    self.deliver(subtask)
            case src.EnumeratorStateReady():
                self.ready = action
            case src.CheckpointRefused(reason=reason):
                self.refused = reason
            case src.ReaderReset(subtask=subtask):
                self.resets.append(subtask)
            case src.RequestGlobalFailover(error=error):
                self.failovers.append(error.message)
            case _:
                raise AssertionError(action)

    def deliver(self, subtask: int) -> None:
        reader = self.readers[subtask]
        while reader.inbox and not reader.is_cut:
            self.take(subtask, reader, reader.inbox.popleft())

    def take(self, subtask: int, reader: Reader, message: Any) -> None:
        reader.taken.append(message)
        match message:
            case msg.UnassignedWork():
                pass
            case msg.AssignSplits():
                if message.number > reader.highest:
                    assert message.number == reader.highest + 1
                    reader.highest, reader.requested = message.number, False
                    for split in message.splits:
                        assert split.split_id not in reader.held, f"{split.split_id} came twice"
                        reader.held[split.split_id] = split
            case msg.NoMoreSplits():
                reader.ended, reader.requested = True, False
            case msg.ReportSource(incarnation=incarnation):
                self.post(
                    subtask,
                    msg.SourceReported,
                    host="h",
                    incarnation=incarnation,
                    highest_number=reader.highest,
                    finished=tuple(reader.finished),
                    request_pending=reader.requested,
                    no_more_splits=reader.ended,
                    held=tuple(reader.held),
                )
            case _:
                raise AssertionError(message)

    def post(self, subtask: int, kind: Any, **fields: Any) -> None:
        message = kind(stage=0, execution=self.readers[subtask].execution, source=UID, **fields)
        self.notify(src.FromReader(subtask, message))


def pulled(*split_ids: str, parallelism: int = 2, **options: Any) -> Query:
    """Return a query whose readers ask for one split after the other; discovery has run."""
    query = Query(ToySource([ToySplit(split_id=each) for each in split_ids]), parallelism, BOUNDED, **options)
    query.discover()
    return query
