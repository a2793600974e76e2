"""A query in small: the job's master, its slots and subtasks back to back, a toy source, Spark, a store and a sink.

Never: run anything on its own, or answer out of order where there is a stream, a thread or a queue; between those the
seed decides who is next. Rows count once they are committed, as at a sink that knows its epochs.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.restore import restore
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobOptions, JobPlan, SourcePlan
from headgate.coordinator.slots.slots import ATTEMPT_BITS
from headgate.coordinator.sources import enumerator_runner as run
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import LogRecord
from headgate.protocol.messages import (
    AlignmentAnnounced,
    Envelope,
    ErrorReport,
    FromSlot,
    SubtaskId,
    UnassignedWork,
)
from headgate.protocol.state import OperatorState, SplitState
from headgate.source.enumerator import Boundedness
from headgate.source.source import SupportsSplitReassignmentOnRecovery
from headgate.task import slot as slt
from headgate.task import subtask as sub
from tests.unit.coordinator.sources.toy_sources import SPLITS, ToySource, ToySplit

UID, SINK = "toy", "sink"
FAILED = ErrorReport(error_type="ValueError", message="planned")
Row = tuple[str, int]


class Task:
    """What a subtask runs: a reader that emits a row a turn, and a sink writer that stages rows."""

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.machine = sub.SubtaskMachine(
            SubtaskId(0, number), sources={UID: process.world.reassigns}, host=f"host-{number}"
        )
        self.close()

    def close(self) -> None:
        self.held: dict[str, ToySplit] = {}
        self.rows: list[Row] = []  # staged, in no completed checkpoint
        self.barriers: dict[int, int] = {}  # how many rows belong to a checkpoint
        self.reading = self.asked = self.no_more = self.ended = False
        self.opening: object = None

    def opened(self, opening: object) -> None:
        if opening is self.opening:  # else it was closed meanwhile
            self.notify(sub.OperatorsOpened())

    def notify(self, event: sub.Event) -> None:
        if self.process.dead:
            return
        for action in self.machine.handle(event, self.process.world.now_ms):
            self.carry_out(action)
        self.machine.check()

    def later(self, event: sub.Event) -> None:
        self.process.world.soon(("task", self.process.key), lambda: self.notify(event))

    def carry_out(self, action: sub.Action) -> None:
        match action:
            case sub.Post(message=message):
                self.process.notify(slt.MessagePosted(message))
            case sub.OpenOperators():
                opening = self.opening = object()
                self.process.world.soon(("task", self.process.key), lambda: self.opened(opening))
            case sub.AddSplits(splits=splits):
                self.asked = False
                for each in splits:
                    assert each.split_id not in self.held, f"{each.split_id} twice"
                    self.held[each.split_id] = SPLITS.deserialize(each.data)
            case sub.NotifyNoMoreSplits():
                self.no_more = True
            case sub.StartReading() | sub.ResumeReading():
                self.reading = True
            case sub.TakeSnapshot(checkpoint_id=checkpoint_id):
                self.reading = self.reading and not (action.suspend or action.drain)
                self.barriers[checkpoint_id] = len(self.rows)
                splits = tuple(SplitState(each.split_id, SPLITS.serialize(each)) for each in self.held.values())
                staged = OperatorState(committables=(msgspec.json.encode(self.rows),))
                self.later(sub.SnapshotMade(checkpoint_id, {UID: splits}, {SINK: staged}))
            case sub.NotifyOperators(checkpoint_id=checkpoint_id):
                past = self.barriers.pop(checkpoint_id, 0)
                del self.rows[:past]
                self.barriers = {each: at - past for each, at in self.barriers.items()}
            case sub.CloseAll():
                self.close()
            case _:
                raise AssertionError(action)

    def turn(self) -> None:
        """Emit a row, ask for a split, or end."""
        if not self.reading or self.ended:
            return
        if self.held:
            split_id, split = next(iter(self.held.items()))
            self.rows.append((split_id, split.position))
            self.process.world.emitted[self.process.key[0]] += 1
            if split.position + 1 < split.stop:
                self.held[split_id] = msgspec.structs.replace(split, position=split.position + 1)
            else:
                del self.held[split_id]
                self.notify(sub.SplitsEnded(UID, (split_id,)))
        elif self.no_more:
            self.ended = True
            self.notify(sub.AllInputEnded())
        elif not self.asked and not self.process.world.reassigns:
            self.asked = True
            self.notify(sub.RequestMade(UID))


class Process:
    """One attempt of a slot: a Python worker of Spark's."""

    def __init__(self, world: World, slot: int, attempt: int) -> None:
        self.world, self.key = world, (slot, attempt)
        self.machine = slt.SlotMachine(run=1, slot=slot, attempt=attempt, host=f"host-{slot}")
        self.dead = False
        self.silent = False  # it hangs: nothing goes in or out
        self.backlog: list[slt.Event] = []
        self.connections: dict[int, int] = {}  # its number of a connection: the coordinator's
        self.task = Task(self, slot)
        self.notify(slt.SlotStarted())

    def notify(self, event: slt.Event) -> None:
        if self.silent:
            self.backlog.append(event)
        if self.dead or self.silent:
            return
        for action in self.machine.handle(event, self.world.now_ms):
            self.carry_out(action)
        self.machine.check()

    def wake_up(self) -> None:
        """Hang no longer."""
        self.silent = False
        backlog, self.backlog = self.backlog, []
        for event in backlog:
            self.notify(event)

    def carry_out(self, action: slt.Action) -> None:
        match action:
            case slt.OpenStream(connection=connection):
                self.connections[connection] = self.world.connect(self, connection)
            case slt.SendEnvelope(connection=connection, envelope=envelope):
                self.world.send(self.connections[connection], envelope)
            case slt.Deliver(message=AlignmentAnnounced() | UnassignedWork() as message):
                self.world.event_time_messages.append((self.key[0], message))  # for outputs, which are not modelled
            case slt.Deliver(message=message):
                self.task.notify(sub.MessageReceived(message))  # type: ignore[arg-type]
            case slt.ExitSlot(reason=reason):
                self.dead = True
                self.world.soon(("spark",), lambda: self.world.exited(self, reason))
            case _:
                raise AssertionError(action)


class World:
    """Everything around one query with one source.

    Parameters
    ----------
    source
        The source.
    parallelism
        How many slots.
    options
        The query's.
    restored
        The checkpoint to start from, of whatever parallelism.
    retries
        How often Spark tries a task.
    """

    def __init__(
        self,
        source: ToySource,
        parallelism: int,
        options: JobOptions,
        *,
        seed: int = 0,
        restored: Manifest | None = None,
        retries: int = 4,
    ) -> None:
        self.source, self.parallelism, self.retries = source, parallelism, retries
        self.reassigns = isinstance(source, SupportsSplitReassignmentOnRecovery)
        self.random = random.Random(seed)
        self.now_ms = 0
        self.queues: dict[tuple[Any, ...], deque[Callable[[], None]]] = {}
        self.processes: dict[int, Process] = {}
        self.alive: list[Process] = []  # zombies too
        self.failures: Counter[int] = Counter()
        self.submission: int | None = None
        self.submissions = 0
        self.connections: dict[int, tuple[Process, int]] = {}
        self.opened = 0
        self.runner: run.EnumeratorRunner | None = None
        self.calls: deque[src.Action] = deque()
        self.log: list[tuple[int, int, LogRecord]] = []
        self.committed: dict[int, Counter[Row]] = {}  # by epoch
        self.stored: dict[int, Manifest] = {}
        self.emitted: Counter[int] = Counter()
        self.logged: list[str] = []
        self.shown: list[job.ShowRestart | job.ShowFailedCheckpoint] = []
        self.event_time_messages: list[tuple[int, AlignmentAnnounced | UnassignedWork]] = []  # by slot, in order
        self.answers: dict[int, cp.AnswerRequest] = {}
        self.error: ErrorReport | None = None
        self.over = False
        self.fail_manifest = self.fail_commit = False
        plan = JobPlan(
            sources={UID: SourcePlan(name="toy", reassigns_on_recovery=self.reassigns)},
            stages=((UID, SINK),),
            parallelism=parallelism,
            max_parallelism=128,
            query_id="q",
            run=1,
        )
        fitting = None if restored is None else restore(restored, plan)
        self.master = JobMaster(plan, options, fitting, random.Random(seed))
        self.notify(sch.QueryStarted())

    # The coordinator.

    def notify(self, event: job.Event) -> None:
        for action in self.master.handle(event, self.now_ms):
            self.carry_out(action)
        self.master.check()

    def soon(self, queue: tuple[Any, ...], what: Callable[[], None]) -> None:
        """Let something happen after all before it in the same queue."""
        self.queues.setdefault(queue, deque()).append(what)

    def carry_out(self, action: job.Action) -> None:
        match action:
            case job.Transmit(connection=connection, envelope=envelope):
                self.soon(("down", connection), lambda: self.deliver(connection, envelope))
            case job.CloseConnection(connection=connection):
                self.soon(("down", connection), lambda: self.break_connection(connection, notify_master=False))
            case job.ForSource(action=order):
                self.for_source(order)
            case sch.SubmitJob(submission=submission):
                self.submit(submission)
            case sch.CancelJob(submission=submission):
                self.soon(("spark",), lambda: self.end_job(submission, FAILED))
            case sch.FailQuery(error=error):
                self.error = error
            case sch.QueryOver():
                self.over = True
            case cp.WriteManifest():
                self.soon(("store",), lambda: self.write(action))
            case cp.Commit():
                self.soon(("sink",), lambda: self.commit(action))
            case cp.DeleteCheckpoint(checkpoint_id=checkpoint_id):
                self.soon(("store",), lambda: self.delete(checkpoint_id))
            case cp.DeleteSavepoint():
                self.soon(("store",), lambda: self.answers.update({each.request_id: each for each in action.answers}))
            case cp.AnswerRequest():
                self.answers[action.request_id] = action
            case job.Log(text=text):
                self.logged.append(text)
            case job.ShowRestart() | job.ShowFailedCheckpoint():
                self.shown.append(action)
            case job.ShowProgress() | job.ShowCheckpoint() | job.ShareMinimum():
                pass
            case _:
                raise AssertionError(action)

    def write(self, order: cp.WriteManifest) -> None:
        if self.fail_manifest:
            self.notify(cp.ManifestWriteFailed(order.checkpoint_id, "planned"))
            return
        self.stored[order.checkpoint_id] = order.manifest
        self.notify(cp.ManifestWritten(order.checkpoint_id, 1))

    def delete(self, checkpoint_id: int) -> None:
        self.stored.pop(checkpoint_id, None)

    def commit(self, order: cp.Commit) -> None:
        if self.fail_commit:
            self.notify(cp.CommitFailed(order.epoch, "planned"))
            return
        rows = Counter(tuple(row) for each in order.committables.get(SINK, ()) for row in msgspec.json.decode(each))
        assert self.committed.get(order.epoch, rows) == rows, f"epoch {order.epoch} was committed otherwise"
        self.committed[order.epoch] = rows
        self.notify(cp.Committed(order.epoch, {}))

    # The source.

    def for_source(self, order: src.Action) -> None:
        match order:
            case src.AppendLog() | src.DropLog() | src.LoadLog():
                self.soon(("log",), lambda: self.on_log(order))
            case _:
                self.soon(("enumerator",), lambda: self.on_enumerator(order))

    def hear(self, events: Iterable[src.Event]) -> None:
        for event in events:
            self.soon(("reported",), lambda event=event: self.notify(job.FromSource(UID, event)))  # type: ignore[misc]

    def on_enumerator(self, order: src.Action) -> None:
        match order:
            case src.StartEnumerator():
                self.runner = runner = run.EnumeratorRunner(
                    self.source, UID, incarnation=order.incarnation, boundedness=Boundedness.BOUNDED,
                    schema=self.source.schema(), parallelism=self.parallelism, state=order.state,
                    checkpoint_id=order.checkpoint_id, call_async=lambda work: self.soon(
                        ("enumerator",), lambda: self.hear(runner.reported(runner.finish(work, work.work(), None)))
                    ),
                )  # fmt: skip
                self.hear(runner.reported(runner.start()))
            case src.CallEnumerator(call=call, incarnation=incarnation):
                if self.runner is not None and self.runner.incarnation == incarnation:
                    self.hear(self.runner.reported(self.runner.call(call)))
            case src.StopEnumerator():
                self.runner = None

    def on_log(self, order: src.Action) -> None:
        match order:
            case src.AppendLog(segment=segment, number=number, records=records):
                first = number - len(records) + 1
                self.log.extend((segment, first + at, record) for at, record in enumerate(records))
                self.hear([src.LogAppended(number)])
            case src.DropLog(before_segment=before):
                self.log = [each for each in self.log if before is not None and each[0] >= before]
            case src.LoadLog():
                kept = [each for each in self.log if each[0] >= order.from_segment]
                whole = bool(kept) and kept[-1][1] == order.through
                found = tuple(record for _, _, record in kept) if whole else None
                self.hear([src.LogLoaded(found, "planned", order.incarnation)])

    def crash_enumerator(self) -> None:
        """Let the enumerator's thread die, with what it was about to do."""
        assert self.runner is not None
        self.runner.failed = True
        self.hear([src.EnumeratorFailed(self.runner.incarnation, FAILED)])

    # Connections.

    def connect(self, process: Process, connection: int) -> int:
        self.opened += 1
        self.connections[self.opened] = (process, connection)
        self.soon(("down", self.opened), lambda: process.notify(slt.StreamOpened(connection)))
        return self.opened

    def send(self, connection: int, envelope: Envelope) -> None:
        assert isinstance(envelope.message, FromSlot)
        self.soon(("up", connection), lambda: self.receive(connection, envelope))

    def receive(self, connection: int, envelope: Envelope) -> None:
        if connection in self.connections:
            self.notify(job.SlotMessageReceived(connection, envelope))

    def deliver(self, connection: int, envelope: Envelope) -> None:
        if connection in self.connections:
            process, own = self.connections[connection]
            process.notify(slt.EnvelopeReceived(own, envelope))

    def break_connection(self, connection: int, *, notify_master: bool = True) -> None:
        """Break a connection; what is under way on it is lost."""
        process, own = self.connections.pop(connection, (None, 0))
        if process is not None:
            self.soon(("down", connection), lambda: process.notify(slt.StreamBroken(own)))
            if notify_master:
                self.soon(("up", connection), lambda: self.notify(job.ConnectionClosed(connection)))

    def cut(self, slot: int) -> None:
        """Break a slot's connection."""
        for connection, (process, _) in list(self.connections.items()):
            if process is self.processes[slot]:
                self.break_connection(connection)

    # Spark.

    def submit(self, submission: int) -> None:
        self.submission = submission
        self.submissions += 1
        self.failures.clear()
        for slot in range(self.parallelism):
            self.start_process(slot)

    def start_process(self, slot: int) -> None:
        assert self.submission is not None
        process = Process(self, slot, self.submission << ATTEMPT_BITS | self.failures[slot])
        self.processes[slot] = process
        self.alive.append(process)

    def exited(self, process: Process, reason: str | None) -> None:
        slot = process.key[0]
        if self.processes.get(slot) is not process:
            return
        del self.processes[slot]
        self.drop_connections(process)
        if reason is not None:
            self.retry(slot)
        elif not self.processes and self.submission is not None:
            self.end_job(self.submission, None)

    def kill(self, slot: int) -> None:
        """Kill a worker with SIGKILL."""
        process = self.processes.pop(slot)
        process.dead = True
        self.drop_connections(process)
        self.retry(slot)

    def lose(self, slot: int) -> Process:
        """Let Spark take an executor for lost that lives: a zombie, beside the new attempt."""
        zombie = self.processes.pop(slot)
        self.retry(slot)
        return zombie

    def drop_connections(self, process: Process) -> None:
        for connection, (each, _) in list(self.connections.items()):
            if each is process:
                self.break_connection(connection)

    def retry(self, slot: int) -> None:
        self.failures[slot] += 1
        if self.failures[slot] < self.retries:
            submission = self.submission
            self.soon(("spark",), lambda: self.start_process(slot) if self.submission == submission else None)
        elif self.submission is not None:
            self.end_job(self.submission, FAILED)

    def end_job(self, submission: int, error: ErrorReport | None) -> None:
        if submission != self.submission:
            return
        self.submission = None
        for process in self.processes.values():
            process.dead = True
            self.drop_connections(process)
        self.processes.clear()
        self.soon(("spark-listener",), lambda: self.notify(sch.JobEnded(submission, error)))

    # Time.

    def step(self, count: int = 1) -> bool:
        """Let so many things happen that are under way; return whether there were so many."""
        for _ in range(count):
            queues = [queue for queue in self.queues.values() if queue]
            if not queues:
                return False
            self.random.choice(queues).popleft()()
        return True

    def settle(self) -> None:
        """Let everything happen that is under way."""
        while self.step():
            pass

    def pass_time(self, ms: int, *, reading: bool = True) -> None:
        """Let time go on, in steps of 10 ms, in each of which every task has a turn."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms and not self.over:
            self.now_ms += 10
            for process in list(self.processes.values()):
                self.wake(process)
                if reading and not (process.dead or process.silent):
                    process.task.turn()
            due_ms = self.master.next_time_ms()
            if due_ms is not None and due_ms <= self.now_ms:
                self.notify(job.TimePassed())
            self.settle()
        if self.over:
            self.settle()

    def wake(self, process: Process) -> None:
        due_ms = process.machine.next_time_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            process.notify(slt.SlotTimePassed())

    # What must hold.

    @property
    def rows(self) -> Counter[Row]:
        """What was committed."""
        return sum(self.committed.values(), Counter[Row]())

    def executions(self) -> list[int]:
        """Return the subtasks' executions."""
        return [each.execution for each in self.master.status().subtasks]
