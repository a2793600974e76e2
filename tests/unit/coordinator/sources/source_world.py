"""A source's coordinator, its real runner, a log, a checkpoint coordinator and readers in small: steps in any order.

Never: run anything on its own. Every step is one thing that may happen next; FIFO is kept where there is a stream, a
thread or a queue, and nowhere else. What readers emit counts once a checkpoint is complete, as at a sink.

A reader's watermark is that of its splits and of the unassigned work that it knows of: none that comes is before it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headgate.coordinator.sources import enumerator_runner as run
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import LogRecord
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.coordinator.sources.source_state import decode_source_state
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, ReaderState, SplitState
from headgate.source.enumerator import Boundedness
from headgate.source.source import SupportsSplitReassignmentOnRecovery
from tests.unit.coordinator.sources.toy_sources import (
    SPLITS,
    STATES,
    PullEnumerator,
    ToySource,
    ToySplit,
    event_time_of,
)

UID = "toy"
Row = tuple[str, int]


class Barrier(msgspec.Struct, frozen=True):
    """A checkpoint's barrier on a reader's stream."""

    checkpoint_id: int


class Completed(msgspec.Struct, frozen=True):
    """A checkpoint is durable; up to this number the enumerator knows the reader's ends."""

    finished_known: int


class Acknowledged(msgspec.Struct, frozen=True):
    """A reader's part of a checkpoint."""

    checkpoint_id: int
    state: ReaderState
    rows: int


class Running(msgspec.Struct, frozen=True):
    """The reader runs; follows its registration."""


class Checkpoint(msgspec.Struct):
    """What is safe of a checkpoint."""

    checkpoint_id: int
    state: bytes | None = None
    finished_known: dict[int, int] = {}
    readers: dict[int, Acknowledged] = {}
    is_sent: bool = False


class Reader:
    """One execution of a reader: it holds splits, emits rows, keeps its ends, and asks when it has nothing."""

    def __init__(self, world: World, subtask: int, execution: int, state: ReaderState) -> None:
        self.world, self.subtask, self.execution = world, subtask, execution
        self.inbox: deque[Any] = deque()
        self.outbox: deque[Any] = deque()
        self.running = False  # as far as the coordinator knows
        self.held: dict[str, ToySplit] = {}
        self.finished: list[FinishedSplit] = []
        self.numbered = 0
        self.highest = 0
        self.requested = False
        self.ended = False
        self.rows: list[Row] = []  # emitted, in no completed checkpoint
        self.work: msg.UnassignedWork | None = None  # until it comes, the watermark is held
        self.watermark_ms: int | None = None
        reported: tuple[SplitState, ...] = ()
        if world.reassigns:
            reported = state.splits
            world.source.reported.update(split.split_id for split in reported)
        else:
            self.add(state.splits)
        self.post(msg.ReaderRegistered, host="host", reported_splits=reported, held=tuple(self.held))
        self.outbox.append(Running())
        if state.finished:
            self.finish([each.split_id for each in state.finished])

    def post(self, kind: Callable[..., Any], **fields: Any) -> None:
        self.outbox.append(kind(stage=0, execution=self.execution, source=UID, **fields))

    def add(self, splits: Sequence[SplitState]) -> None:
        for each in splits:
            split = SPLITS.deserialize(each.data)
            assert split.split_id not in self.held, f"reader {self.subtask} has {split} already"
            self.held[split.split_id] = split
            time_ms, watermark_ms = event_time_of(split.split_id), self.watermark_ms
            if time_ms is not None and watermark_ms is not None and self.world.keeps_times:
                assert time_ms >= watermark_ms, f"{split} comes to reader {self.subtask} after {watermark_ms}"

    def see(self) -> None:
        """Let the watermark go as far as it may."""
        if self.work is not None:
            bounds = [event_time_of(split_id) for split_id in self.held] + [self.work.event_time_ms]
            watermark_ms = min((bound for bound in bounds if bound is not None), default=None)
            if watermark_ms is not None:
                self.watermark_ms = watermark_ms if self.watermark_ms is None else max(watermark_ms, self.watermark_ms)

    def finish(self, split_ids: Sequence[str]) -> None:
        ends = tuple(FinishedSplit(split_id, self.numbered + at) for at, split_id in enumerate(split_ids, 1))
        self.numbered += len(ends)
        self.finished.extend(ends)
        self.post(msg.SplitsFinished, finished=ends)

    def read(self) -> bool:
        """Emit a row, or ask for a split; whether there was anything to do."""
        if not self.held:
            if self.requested or self.ended or not self.world.asks:
                return False
            self.requested = True
            self.post(msg.SplitRequested, host="host")
            return True
        split_id, split = next(iter(self.held.items()))
        self.rows.append((split_id, split.position))
        if split.position + 1 < split.stop:
            self.held[split_id] = msgspec.structs.replace(split, position=split.position + 1)
        else:
            del self.held[split_id]
            self.finish([split_id])
        return True

    def take(self, message: Any) -> None:
        self.see()
        match message:
            case msg.UnassignedWork():
                assert self.work is None or self.work.event_time_ms != message.event_time_ms, "it knows that"
                self.work = message
            case msg.AssignSplits():
                if message.number > self.highest:
                    assert message.number == self.highest + 1, f"reader {self.subtask} missed an assignment"
                    assert not self.ended, "splits after the promise that nothing follows"
                    self.highest, self.requested = message.number, False
                    self.add(message.splits)
            case msg.NoMoreSplits():
                self.ended, self.requested = True, False
            case msg.ReportSource():
                self.post(
                    msg.SourceReported,
                    host="host",
                    incarnation=message.incarnation,
                    highest_number=self.highest,
                    finished=tuple(self.finished),
                    request_pending=self.requested,
                    no_more_splits=self.ended,
                    held=tuple(self.held),
                )
            case Barrier():
                self.outbox.append(Acknowledged(message.checkpoint_id, self.state(), len(self.rows)))
            case Completed():
                self.finished = [each for each in self.finished if each.number > message.finished_known]
            case _:
                raise AssertionError(message)

    def state(self) -> ReaderState:
        splits = tuple(SplitState(each.split_id, SPLITS.serialize(each)) for each in self.held.values())
        return ReaderState(splits=splits, finished=tuple(self.finished))


class World:
    """Everything around one source.

    Parameters
    ----------
    source
        The source.
    parallelism
        How many readers.
    keeps_subtask
        As the coordinator's.
    """

    def __init__(self, source: ToySource, parallelism: int, *, keeps_subtask: bool = False) -> None:
        self.source = source
        self.reassigns = isinstance(source, SupportsSplitReassignmentOnRecovery)
        self.asks = issubclass(source.enumerator, PullEnumerator)
        self.keeps_subtask = keeps_subtask
        # Whether what a failed reader had returns to it: else it may come to one whose watermark is past it.
        self.keeps_times = (keeps_subtask and not self.reassigns) or not self.asks
        self.executions = 0
        self.checkpoints = 0
        self.completed = Checkpoint(0)
        self.committed: Counter[Row] = Counter()
        self.ends: set[str] = set()
        self.failovers: list[str] = []
        self.failures: list[str] = []
        self.start(parallelism)

    # A start of the query, and a global failover.

    def start(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.machine = SourceCoordinator(
            UID, reassigns_on_recovery=self.reassigns, parallelism=parallelism, keeps_subtask=self.keeps_subtask
        )
        self.machine_log: list[tuple[int, int, LogRecord]] = []
        self.restore()

    def restore(self) -> None:
        self.runner: run.EnumeratorRunner | None = None
        self.calls: deque[Any] = deque()
        self.reported: deque[src.Event] = deque()
        self.log_orders: deque[Any] = deque()
        self.work: list[tuple[run.EnumeratorRunner, run.SlowWork]] = []
        self.readers: dict[int, Reader] = {}
        self.pending: Checkpoint | None = None
        finished = [each.split_id for part in self.completed.readers.values() for each in part.state.finished]
        self.notify(src.SourceStarted(self.completed.checkpoint_id, self.completed.state, tuple(finished)))
        for subtask, state in enumerate(self.dealt()):
            self.deploy(subtask, state)

    def dealt(self) -> list[ReaderState]:
        """Return the readers' states, dealt anew if there is another number of them."""
        parts = [part.state for _, part in sorted(self.completed.readers.items())] or [ReaderState()] * self.parallelism
        if len(parts) == self.parallelism:
            return parts
        splits = [split for part in parts for split in part.splits]
        return [ReaderState(splits=tuple(splits[n :: self.parallelism])) for n in range(self.parallelism)]

    def deploy(self, subtask: int, state: ReaderState) -> None:
        self.executions += 1
        self.readers[subtask] = Reader(self, subtask, self.executions, state)

    def restart(self, parallelism: int) -> None:
        """Start the query again from the last completed checkpoint."""
        self.start(parallelism)

    # Events and actions.

    def notify(self, event: src.Event) -> None:
        again: list[msg.ErrorReport] = []
        for action in self.machine.handle(event, 0):
            self.carry_out(action, again)
        self.machine.check()
        if again:
            self.failovers.append(again[0].message)
            self.restore()

    def carry_out(self, action: src.Action, again: list[msg.ErrorReport]) -> None:
        match action:
            case src.StartEnumerator() | src.CallEnumerator():
                self.calls.append(action)
            case src.StopEnumerator():
                self.calls.clear()
                self.runner = None
            case src.AppendLog() | src.DropLog() | src.LoadLog():
                self.log_orders.append(action)
            case src.SendToReader(subtask=subtask, message=message):
                if subtask in self.readers:  # else it is lost with the slot
                    self.readers[subtask].inbox.append(message)
            case src.EnumeratorStateReady():
                assert self.pending is not None and self.pending.checkpoint_id == action.checkpoint_id
                self.pending.state, self.pending.finished_known = action.state, dict(action.finished_known)
            case src.CheckpointRefused(checkpoint_id=checkpoint_id):
                assert self.pending is not None and self.pending.checkpoint_id == checkpoint_id
                self.pending = None
            case src.ReaderReset(subtask=subtask):
                self.deploy(subtask, self.dealt()[subtask])
            case src.RequestGlobalFailover(error=error):
                again.append(error)
            case _:
                raise AssertionError(action)

    # Steps. Each returns whether it could be taken.

    def step_enumerator(self) -> bool:
        if not self.calls:
            return False
        match self.calls.popleft():
            case src.StartEnumerator() as order:
                self.runner = runner = run.EnumeratorRunner(
                    self.source,
                    UID,
                    incarnation=order.incarnation,
                    boundedness=Boundedness.BOUNDED,
                    schema=self.source.schema(),
                    parallelism=self.parallelism,
                    state=order.state,
                    checkpoint_id=order.checkpoint_id,
                    holders=order.holders,
                    assigned=order.assigned,
                    returned=order.returned,
                    call_async=lambda work: self.work.append((runner, work)),
                )
                self.reported.extend(runner.reported(runner.start()))
            case src.CallEnumerator(call=call, incarnation=incarnation):
                if self.runner is not None and self.runner.incarnation == incarnation:
                    self.reported.extend(self.runner.reported(self.runner.call(call)))
        return True

    def step_work(self) -> bool:
        if not self.work:
            return False
        runner, work = self.work.pop(0)
        if runner is self.runner:
            self.reported.extend(runner.reported(runner.finish(work, work.work(), None)))
        return True

    def step_hear(self) -> bool:
        if not self.reported:
            return False
        event = self.reported.popleft()
        if isinstance(event, src.EnumeratorFailed):
            self.failures.append(event.error.message)
        self.notify(event)
        return True

    def step_log(self, fails: bool = False) -> bool:
        if not self.log_orders:
            return False
        order = self.log_orders.popleft()
        match order:
            case src.AppendLog(segment=segment, number=number, records=records):
                if fails:
                    self.notify(src.LogAppendFailed(number, "planned"))
                    return True
                first = number - len(records) + 1
                self.machine_log.extend((segment, first + at, record) for at, record in enumerate(records))
                self.notify(src.LogAppended(number))
            case src.DropLog(before_segment=before):
                self.machine_log = [each for each in self.machine_log if before is not None and each[0] >= before]
            case src.LoadLog():
                kept = [each for each in self.machine_log if each[0] >= order.from_segment]
                whole = bool(kept) and kept[-1][1] == order.through and not fails
                records = tuple(record for _, _, record in kept) if whole else None
                self.notify(src.LogLoaded(records, "planned", order.incarnation))
        return True

    def step_to_reader(self, subtask: int) -> bool:
        reader = self.readers.get(subtask)
        if reader is None or not reader.inbox:
            return False
        reader.take(reader.inbox.popleft())
        return True

    def step_from_reader(self, subtask: int) -> bool:
        reader = self.readers.get(subtask)
        if reader is None or not reader.outbox:
            return False
        match reader.outbox.popleft():
            case Running():
                reader.running = True
            case Acknowledged() as part:
                self.acknowledge(subtask, part)
            case message:
                self.notify(src.FromReader(subtask, message))
        return True

    def step_read(self, subtask: int) -> bool:
        reader = self.readers.get(subtask)
        return reader is not None and reader.read()

    def step_checkpoint(self) -> bool:
        running = len(self.readers) == self.parallelism and all(each.running for each in self.readers.values())
        if self.pending is not None or not running:
            return False
        self.checkpoints += 1
        self.pending = Checkpoint(self.checkpoints, readers={})
        self.notify(src.CheckpointStarted(self.checkpoints))
        return True

    def step_barriers(self) -> bool:
        """Send the barriers, once the source's state is there."""
        if self.pending is None or self.pending.state is None or self.pending.is_sent:
            return False
        self.pending.is_sent = True
        for reader in self.readers.values():
            reader.inbox.append(Barrier(self.pending.checkpoint_id))
        self.notify(src.BarriersSent(self.pending.checkpoint_id))
        return True

    def step_abort(self) -> bool:
        if self.pending is None:
            return False
        aborted, self.pending = self.pending, None
        self.notify(src.SourceCheckpointAborted(aborted.checkpoint_id))
        return True

    def acknowledge(self, subtask: int, part: Acknowledged) -> None:
        if self.pending is None or self.pending.checkpoint_id != part.checkpoint_id:
            return
        self.pending.readers[subtask] = part
        if len(self.pending.readers) < self.parallelism:
            return
        self.completed, self.pending = self.pending, None
        for each, acknowledged in self.completed.readers.items():
            reader = self.readers[each]
            self.committed.update(reader.rows[: acknowledged.rows])
            del reader.rows[: acknowledged.rows]
            reader.inbox.append(Completed(self.completed.finished_known.get(each, 0)))
        self.check_completed()
        self.notify(src.SourceCheckpointCompleted(self.completed.checkpoint_id))

    def step_fail_reader(self, subtask: int) -> bool:
        if subtask not in self.readers:
            return False
        del self.readers[subtask]
        self.step_abort()
        self.notify(src.ReaderFailed(subtask, self.completed.checkpoint_id))
        return True

    def step_crash(self) -> bool:
        """Let the enumerator's thread die, with what it was about to do."""
        if self.runner is None or self.runner.failed:
            return False
        self.runner.failed = True
        report = msg.ErrorReport(error_type="OSError", message="planned")
        self.reported.append(src.EnumeratorFailed(self.runner.incarnation, report))
        return True

    # What must hold.

    def check_completed(self) -> None:
        """Assert invariant 1 of a completed checkpoint: every split is in exactly one place."""
        assert self.completed.state is not None
        state = decode_source_state(self.completed.state)
        enumerator = STATES.deserialize(state.enumerator)
        places = Counter(each.split_id for each in enumerator.pending if each.split_id not in state.assigned)
        for part in self.completed.readers.values():
            places.update(each.split_id for each in part.state.splits)
        read = {split_id for split_id, _ in self.committed}
        places.update(each for each in read if self.committed[(each, 1)])
        assert not state.parked
        twice = {each: count for each, count in places.items() if count != 1}
        assert not twice, f"in checkpoint {self.completed.checkpoint_id}: {twice}"
        lost = set(enumerator.known) - set(places)
        assert not lost, f"in no place of checkpoint {self.completed.checkpoint_id}: {lost}"

    def settle(self) -> None:
        """Go on without faults until all is read and committed, and assert that each row is there once."""
        for _ in range(200):
            self.drain()
            done = all(reader.ended and not reader.held for reader in self.readers.values())
            if done and not any(reader.rows for reader in self.readers.values()):
                break
            self.step_checkpoint()
            self.drain()
            self.step_barriers()
        expected = {
            (each, at): 1
            for split in self.source.splits
            for each in (split.split_id, split.child)
            if each
            for at in (0, 1)
        }
        assert dict(self.committed) == expected, f"{self.committed} is not what there is"
        assert all(reader.ended for reader in self.readers.values()), "a reader waits for ever"
        held = {
            n: each.work for n, each in self.readers.items() if not each.work or each.work.event_time_ms is not None
        }
        assert not held, f"nothing is unassigned, and readers are held: {held}"

    def drain(self) -> None:
        """Do everything but checkpoints until nothing is left to do."""
        busy = True
        while busy:
            done = [self.step_enumerator(), self.step_work(), self.step_hear(), self.step_log()]
            for subtask in range(self.parallelism):
                done += [self.step_to_reader(subtask), self.step_read(subtask), self.step_from_reader(subtask)]
            busy = any(done)
