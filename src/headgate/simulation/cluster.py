"""The whole cluster: a driver after the other, Spark's tasks, the network, storage, faults, and what must hold.

Never: help a machine: its events are what would happen.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.named_files import named_files
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.restore import restore
from headgate.checkpoint.storage import CheckpointStorage
from headgate.coordinator.job import job_events as jm
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobPlan
from headgate.coordinator.slots.slots import ATTEMPT_BITS
from headgate.driver.job_plans import job_plan
from headgate.errors import StoredStateError
from headgate.graph.stage_graph import QueryDefinition
from headgate.operators.key_hash import key_groups
from headgate.protocol.messages import CheckpointKind, Deploy, Envelope, ErrorReport, SubtaskProgress, TriggerCheckpoint
from headgate.simulation.application import Application
from headgate.simulation.autoscaling import SimulatedAutoscaler
from headgate.simulation.clockwork import Clockwork, Process
from headgate.simulation.data_network import DataNetwork
from headgate.simulation.driver_process import DriverProcess
from headgate.simulation.durable import Row, Storage, Table
from headgate.simulation.fault_kinds import Fault
from headgate.simulation.invariants import Invariants
from headgate.simulation.network import Connection, Network
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_query import definition_of
from headgate.simulation.scripted_reader import ScriptedReader
from headgate.simulation.scripted_sink import ScriptedSink
from headgate.simulation.scripted_source import SOURCES
from headgate.simulation.slot_process import SlotProcess
from headgate.simulation.snapshot_times import SnapshotTimes
from headgate.simulation.source_scripts import PHASE_MS
from headgate.simulation.subtask_process import SubtaskProcess
from headgate.simulation.topic import Topic
from headgate.simulation.world import PendingFaults
from headgate.task.reader_output import StreamingOutput

_MAX_STEPS, _MAX_MS = 60_000, 120_000  # then it does not converge
_PATIENCE_MS = 15_000  # the same, without a row published
_MAX_TASK_FAILURES = 4
_LINGER_MS = 100
_FAULT_AGAIN_MS = 150
_QUIET_MS = 3000
_START_AGAIN_MS = 200
"""How long somebody takes to start a query again that does not start."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Job(Process):
    """One submission of Spark's job."""

    def __init__(self, driver: DriverProcess, submission: int) -> None:
        super().__init__(f"job {submission}")
        self.driver, self.submission = driver, submission
        self.failures = 0
        self.tasks: dict[int, SlotProcess] = {}
        self.attempts: dict[int, int] = {}
        self.done: set[int] = set()


class Cluster:
    """One simulation.

    Parameters
    ----------
    scenario
        What the seed decided.
    inject
        Lets a fault happen; returns whether there was anything for it to happen to.
    """

    def __init__(self, scenario: Scenario, inject: Callable[[Cluster, Fault], bool]) -> None:
        self.scenario = scenario
        self._inject = inject
        self.clock = Clockwork()
        self.choose = random.Random(f"schedule {scenario.seed}")
        self.network = Network(self.clock, self.choose)
        self.storage, self.table = Storage(lambda: self.clock.now_ms), Table()
        self.topics = {script.uid: Topic(script, lambda: self.clock.now_ms) for script in scenario.sources}
        self.sources = {
            uid: SOURCES[topic.script.kind](topic, lambda source, context: self._acting.create_reader(source, context))
            for uid, topic in self.topics.items()
        }
        self.uid_of = {split_id: uid for uid, topic in self.topics.items() for split_id in topic.splits}
        """By split: its source."""
        keys = pa.array(range(max(topic.script.keys for topic in self.topics.values())), pa.int64())
        self.key_groups: list[int] = key_groups([keys], scenario.max_parallelism).to_pylist()
        """By key."""
        names = list(self.uid_of)
        groups = key_groups([pa.array(names, pa.string())], scenario.max_parallelism).to_pylist()
        self.split_groups: dict[str, int] = dict(zip(names, groups))
        """By split: the key group of its name."""
        self.definition: QueryDefinition
        """Of the run."""
        self.data = DataNetwork(self.clock, self.choose)
        self.acting: SubtaskProcess | None = None
        """Which subtask is having a turn."""
        self.world = Process("world")
        self.driver: DriverProcess | None = None
        self.jobs: list[Job] = []
        self.slots: list[SlotProcess] = []
        self.invariants = Invariants(self)
        self.snapshot_times = SnapshotTimes(self)
        self.trace: deque[tuple[int, str, str, Any]] = deque(maxlen=4000)
        self.events = self.faults = 0
        self.fault_ms: int | None = None  # when the last one happened
        self.excused_until_ms = -1
        """Up to when snapshots may wait: a process was frozen, or a link cut."""
        self.longest_turn_ms = 0.0
        """What functions took in a turn of a subtask at most."""
        self.ended_copies: dict[tuple[int, int], dict[str, int]] = {}
        """By run and generation: up to where the first subtask was given the splits of a broadcast that has ended."""
        self.moved: dict[int, int] = {}
        """By slot: how often it came back on another host."""
        self.pending = PendingFaults()
        self.next_parallelism = scenario.parallelism
        self.calm = False
        self.finished = False
        self.stopping = False
        self._gave_up = 0
        self.run_number = 0
        self.others_ms: int | None = None
        """The vote of the application's other queries in the alignment group."""
        self.others_since_ms = 0
        group = scenario.alignment_group
        self.application = None if group is None else Application(self, group, scenario.neighbour)
        self.autoscaler = None if scenario.autoscaler is None else SimulatedAutoscaler(self, scenario.autoscaler)
        self._violation: ErrorReport | None = None
        self._requests = self._drain = 0
        self._savepoints: dict[int, str] = {}  # the folders that were asked for, by request
        self._progress = 0, 0  # how many rows were published, and since when

    def run(self) -> None:
        """Run both phases.

        Raises
        ------
        Violation, AssertionError, InternalError
            Something does not hold, or the cluster does not converge.
        """
        for fault in self.scenario.faults:
            self.clock.at(fault.at_ms, self.world, self._fault, fault)
        self.clock.at(self.scenario.phase_ms, self.world, self._calm_down)
        if self.application is not None:
            self.application.start()
        self.start_run(self.scenario.parallelism)
        if self.autoscaler is not None:
            self.autoscaler.start()
        while not self.finished:
            if not self.clock.step():
                raise Violation("nothing happens any more, but the query has not ended")
            if self._violation is not None:
                raise Violation(f"{self._violation.error_type}: {self._violation.message}\n{self._violation.traceback}")
            if self.clock.steps > _MAX_STEPS * max(1, self.scenario.phase_ms / PHASE_MS) or self.clock.now_ms > _MAX_MS:
                raise Violation(
                    f"no end after {self.clock.steps} steps, {self.clock.now_ms} ms: {self.invariants.missing()}"
                )
        self.invariants.at_the_end()

    def violated(self, error: ErrorReport) -> None:
        """Note that a subtask failed, which nothing gave it a reason for; a subtask reports its errors and goes on."""
        self._violation = self._violation or error

    @property
    def _acting(self) -> SubtaskProcess:
        assert self.acting is not None, "only a subtask opens readers, functions and writers"
        return self.acting

    @property
    def plan(self) -> JobPlan | None:
        """The plan of the run; None: there is none."""
        return None if self.driver is None else self.driver.plan

    @property
    def excuses_late(self) -> bool:
        """Whether rows may come after the watermark at functions."""
        return self.invariants.excuses_late

    def is_replaced(self, slot: SlotProcess) -> bool:
        """Return whether another attempt of a slot, or another run, has begun."""
        return any((each.run, each.attempt) > (slot.run, slot.attempt) for each in self.slots if each.slot == slot.slot)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has gone wrong for long."""
        return self.fault_ms is None or self.clock.now_ms - self.fault_ms > _QUIET_MS

    # What processes report.

    def note(self, process: Process, event: Any) -> None:
        """Note that a machine is given an event."""
        self.events += 1
        self.trace.append((self.clock.now_ms, process.name, "<-", event))
        if process is self.driver:
            self.snapshot_times.on_event(event)

    def note_action(self, process: Process, action: Any) -> None:
        """Note that a machine orders something."""
        self.trace.append((self.clock.now_ms, process.name, "->", action))
        self.invariants.on_action(process, action)
        if process is self.driver:
            self.snapshot_times.on_action(action)
        fault = self.pending.in_recovery
        if fault is not None and isinstance(action, jm.Transmit) and isinstance(action.envelope.message, Deploy):
            self.pending.in_recovery = None
            self.clock.after(10 + fault.pick % 90, self.world, self._fault, fault)

    def check(self, machine: Any) -> None:
        """Check a machine after a step."""
        machine.check()
        if isinstance(machine, JobMaster):
            self.invariants.on_streams(machine._slots._connections)

    def splits_added(self, slot: SlotProcess, uid: str, split_ids: set[str]) -> None:
        """Note that a reader has got splits."""
        self.invariants.on_splits_added(slot, uid, split_ids)

    def rows_wanted(self, slot: SlotProcess, reader: ScriptedReader) -> None:
        """Note that a reader is about to read."""
        self.invariants.before_rows(slot, reader)

    def rows_read(self, slot: SlotProcess, reader: ScriptedReader, rows: list[Row]) -> None:
        """Note what a reader read."""
        self.invariants.on_rows(slot, reader, rows)

    def looked(self, reader: ScriptedReader, output: StreamingOutput) -> None:
        """Note what a turn of a subtask left of a reader."""
        self.invariants.on_look(reader, output)

    def snapshot_taken(self, subtask: SubtaskProcess, checkpoint_id: int) -> None:
        """Note that a subtask takes a snapshot."""
        self.snapshot_times.on_snapshot(subtask, checkpoint_id)

    def barrier_ordered(self, subtask: SubtaskProcess, order: TriggerCheckpoint) -> None:
        """Note that a subtask that reads sources is ordered to send a barrier."""
        self.snapshot_times.on_barrier(subtask, order)

    def manifest_written(self, manifest: Manifest) -> None:
        """Check a checkpoint that is complete."""
        self.invariants.on_manifest(manifest)
        names = [file.path for file in named_files(manifest)]
        self.storage.files.check_not_gone_for_long(names, manifest.checkpoint_id)
        if self.pending.at_checkpoints and (any(manifest.in_flight) or not self.scenario.unaligned):
            fault = self.pending.at_checkpoints.pop(0)
            self.clock.after(fault.pick % 60, self.world, self._fault, fault)

    def commit(self, action: cp.Commit, fault: str) -> dict[str, tuple[bytes, ...]]:
        """Publish an epoch; raises OSError where a fault wants it."""
        self.invariants.on_commit(action)
        if fault == "before":
            raise OSError
        committables = [data for each in action.committables.values() for data in each]
        later = (
            []
            if action.final
            else [each for each in committables if self.choose.random() < self.scenario.publish_later]
        )
        now = [each for each in committables if each not in later]
        self.table.publish(now[: len(now) // 2] if fault == "half" else now)
        self.invariants.on_published(action, [] if fault else now, whole=not (fault or later))
        if fault:
            raise OSError
        return {"sink": tuple(later)}

    def progress_shown(self, subtask: int, progress: SubtaskProgress) -> None:
        """Take note of what a subtask reports."""
        if self.autoscaler is not None:
            self.autoscaler.take(subtask, progress)

    # The network.

    def connect(self, slot: SlotProcess) -> Connection | None:
        """Connect a slot to the driver; None: there is none of its run."""
        driver = self.driver
        if driver is None or not driver.alive or driver.over or driver.plan.run != slot.run:
            return None
        return self.network.connect(slot, driver)

    def send_to_driver(self, connection: Connection, envelope: Envelope) -> None:
        """Send from a slot."""
        driver = connection.driver
        assert isinstance(driver, DriverProcess)
        self.network.to_driver(connection, envelope, driver.receive)

    def send_to_slot(self, number: int, envelope: Envelope) -> None:
        """Send from the driver."""
        connection = self.network.connections[number - 1]
        slot = connection.slot
        assert isinstance(slot, SlotProcess)
        self.network.to_slot(connection, envelope, lambda each: slot.receive(connection, each))

    def break_connection(self, connection: Connection) -> None:
        """Break a connection."""
        slot, driver = connection.slot, connection.driver
        assert isinstance(slot, SlotProcess) and isinstance(driver, DriverProcess)
        self.network.break_(connection, lambda: slot.lose(connection), lambda: driver.lose(connection.number))

    def break_late(self, connection: Connection, late_ms: int) -> None:
        """Break a connection, and let what the slot sent come after what it sends on the next one."""
        slot, driver = connection.slot, connection.driver
        assert isinstance(slot, SlotProcess) and isinstance(driver, DriverProcess)
        self.network.break_late(
            connection, late_ms, lambda: slot.lose(connection), lambda: driver.lose(connection.number)
        )

    def close_connection(self, number: int) -> None:
        """Close a connection from the driver's side."""
        connection = self.network.connections[number - 1]
        slot = connection.slot
        assert isinstance(slot, SlotProcess)
        self.network.close(connection, lambda: slot.lose(connection))

    # Spark.

    def submit_job(self, driver: DriverProcess, submission: int) -> None:
        """Start the tasks of a job."""
        job = Job(driver, submission)
        self.jobs.append(job)
        for slot in range(driver.plan.parallelism):
            self.start_task(job, slot)

    def start_task(self, job: Job, slot: int) -> None:
        """Start an attempt of a task, in a while."""
        delay_ms, self.pending.starved_ms = self.choose.choice((5, 20, 100)) + self.pending.starved_ms, 0
        self.clock.after(delay_ms, job, self._begin_task, job, slot)

    def _begin_task(self, job: Job, slot: int) -> None:
        number = job.attempts.get(slot, -1) + 1
        job.attempts[slot] = number
        attempt = job.submission << ATTEMPT_BITS | number
        process = SlotProcess(
            self, job.driver.plan.run, slot, attempt, lambda each, reason: self._task_ended(job, each, reason)
        )
        job.tasks[slot] = process
        self.slots.append(process)
        process.start()

    def _task_ended(self, job: Job, process: SlotProcess, reason: str | None) -> None:
        """Spark sees a task end; of one that it has given up it sees nothing."""
        self.data.lose(process)
        if not job.alive or job.tasks.get(process.slot) is not process:
            return
        if reason is None:
            job.done.add(process.slot)
            if len(job.done) == job.driver.plan.parallelism:
                self.end_job(job, None)
            return
        self._task_failed(job, process)

    def _task_failed(self, job: Job, process: SlotProcess) -> None:
        job.failures += 1
        if job.failures >= _MAX_TASK_FAILURES:
            self.end_job(job, "too many task failures")
        else:
            self.start_task(job, process.slot)

    def end_job(self, job: Job, reason: str | None) -> None:
        """End a job with all its tasks, but for those that nothing reaches now; the driver is notified."""
        if not job.alive:
            return
        job.alive = False
        for process in job.tasks.values():
            if process.frozen_until_ms <= self.clock.now_ms:
                self._kill(process)
        error = None if reason is None else ErrorReport(error_type="SparkException", message=reason)
        self.clock.after(
            self.choose.choice((1, 30)), job.driver, job.driver.notify, sch.JobEnded(job.submission, error)
        )

    def cancel_job(self, driver: DriverProcess, submission: int) -> None:
        """Let Spark kill a job, in a while."""
        for job in self.jobs:
            if job.driver is driver and job.submission == submission:
                self.clock.after(self.choose.choice((5, 50)), job, self.end_job, job, "cancelled")

    def crash_slot(self, process: SlotProcess) -> None:
        """Kill a slot's process; Spark starts another one if it has not given up on this one before."""
        self._kill(process)
        for job in self.jobs:
            if job.alive and job.tasks.get(process.slot) is process:
                self._task_failed(job, process)

    def freeze(self, process: Process, ms: int) -> None:
        """Let nothing happen to a process for a while."""
        process.freeze(self.clock.now_ms + ms)
        self.excused_until_ms = max(self.excused_until_ms, process.frozen_until_ms)

    def abandon(self, process: SlotProcess) -> bool:
        """Let Spark give up on an executor that lives on: another attempt of the task starts beside it."""
        for job in self.jobs:
            if job.alive and job.tasks.get(process.slot) is process:
                del job.tasks[process.slot]
                self._task_failed(job, process)
                return True
        return False

    def _kill(self, process: SlotProcess) -> None:
        process.alive = False
        self.data.lose(process)
        if process.connection is not None:
            self.break_connection(process.connection)

    # Runs.

    def start_run(self, parallelism: int) -> None:
        """Start the query from the newest checkpoint."""
        storage = CheckpointStorage("checkpoints", self.storage.files)
        try:
            self.run_number = Ownership.claim(storage.store).run
            storage.delete_orphans()
            found = self._newest(storage)
        except StoredStateError as error:
            if not self.storage.files.excuses(type(error).__name__, str(error)):
                raise
            self.clock.after(_START_AGAIN_MS, self.world, self.start_run, parallelism)
            return
        self.definition = definition_of(
            self.scenario,
            tuple(self.sources.items()),
            lambda: self._acting,
            ScriptedSink(lambda context: self._acting.create_writer(context)),
            self.run_number,
            parallelism,
        )
        plan = job_plan(self.definition, "simulated", self.run_number)
        self.storage.files.known_gone.clear()  # it finds out again
        self.invariants.on_run(parallelism)
        if self.autoscaler is not None:
            self.autoscaler.run_began(parallelism)
        self.driver = DriverProcess(self, plan, None if found is None else restore(found, plan), storage)
        if self.application is not None:
            self.application.run_began(self.driver)
        self.driver.start()

    def _newest(self, storage: CheckpointStorage) -> Manifest | None:
        """Return the newest checkpoint, as it is read, which is the one that was written last."""
        found, newest = storage.load_newest(), self.storage.newest()
        name = f"chk-{0 if found is None else found.checkpoint_id}/_metadata"
        assert not self.storage.files.is_damaged(name), f"corrupt: {name} is restored though it is damaged"
        numbers = [0 if each is None else each.checkpoint_id for each in (found, newest)]
        assert numbers[0] == numbers[1], f"stored: checkpoint {numbers[0]} is restored, but the newest is {numbers[1]}"
        return found

    def crash_driver(self, parallelism: int) -> None:
        """Kill the driver, and Spark's tasks with it, some of them a little later; start again."""
        driver = self.driver
        if driver is None or not driver.alive:
            return
        driver.is_suspended = self.stopping = False  # nobody rescales or stops it any more
        self._end_driver(driver)
        for process in self.slots:
            if process.alive:
                self.clock.after(self.choose.choice((0, 0, 500)), process, self._kill, process)
        self.clock.after(self.choose.choice((10, 300)), self.world, self.start_run, parallelism)

    def _end_driver(self, driver: DriverProcess) -> None:
        driver.alive = False
        if not self.is_rescaled and self.application is not None:
            self.application.leave()
        for enumerator in driver.enumerators.values():
            enumerator.alive = False
        for connection in self.network.connections:
            if connection.driver is driver:
                self.break_connection(connection)
        for job in self.jobs:
            if job.driver is driver:
                job.alive = False

    def query_failed(self, driver: DriverProcess, error: ErrorReport) -> None:
        """Note that the query has given up; somebody will start it again, unless nothing goes wrong any more."""
        self._gave_up += self.calm
        if self._gave_up > 1:  # once may be for what went wrong before
            raise Violation(f"the query failed though nothing goes wrong: {error.message}")
        driver.failed = True

    def query_over(self, driver: DriverProcess) -> None:
        """Note that a run has ended; its process lives on for a moment."""
        self.clock.after(_LINGER_MS, driver, self._run_ended, driver)

    def _run_ended(self, driver: DriverProcess) -> None:
        """Start the next run, or be done."""
        self._end_driver(driver)
        again = driver.stopped or driver.failed or driver.suspension is not None
        ended = all(topic.script.bounded for topic in self.topics.values()) and not again
        if self.stopping or ended:
            self.finished = True
            return
        self.clock.after(10, self.world, self.start_run, self.next_parallelism)

    def request(self, driver: DriverProcess, kind: CheckpointKind, location: str = "") -> int:
        """Ask for a checkpoint; return the number of the request."""
        self._requests += 1
        if self.stopping:
            self._drain = self._requests
        elif kind in (CheckpointKind.SUSPEND, CheckpointKind.DRAIN):
            driver.suspension = self._requests
        if location:
            self._savepoints[self._requests] = location
        number = self._requests
        driver.notify(cp.CheckpointRequested(number, kind, location))
        return number

    def request_refused(self, driver: DriverProcess, request_id: int) -> None:
        """Note that a checkpoint that was asked for failed: the query goes on."""
        if request_id in self._savepoints:
            self.storage.refuse(self._savepoints[request_id])
        if request_id == self._drain:
            self.stopping = False
        if request_id == driver.suspension:
            driver.suspension = None
            if self.autoscaler is not None:
                self.autoscaler.refused()

    # The application's other queries.

    @property
    def is_rescaled(self) -> bool:
        """Whether the query goes on with another run, and this one's slots are ending."""
        driver = self.driver
        return driver is not None and driver.is_suspended and not (driver.stopped or driver.failed)

    def others_vote(self) -> None:
        """Note that they are about to: nobody has read since, and they may be the slowest by now."""
        self.invariants.check_paused()

    # Phases.

    def _fault(self, fault: Fault) -> None:
        self.next_parallelism = fault.parallelism
        if self._inject(self, fault):
            self.faults += 1
            self.fault_ms = self.clock.now_ms
        elif not self.calm:  # there was nothing that it could happen to
            self.clock.after(_FAULT_AGAIN_MS, self.world, self._fault, fault)

    def _calm_down(self) -> None:
        """No faults from here on; nothing grows any more either."""
        self.calm = True
        self.pending = PendingFaults()
        self.storage.files.calm_down()
        self.network.calm_down()
        for slot in self.slots:
            slot.forget_faults()
        if self.driver is not None:
            self.driver.forget_faults()
        for topic in self.topics.values():
            topic.frozen_ms = self.clock.now_ms
        self._progress = len(self.table.rows), self.clock.now_ms
        self.clock.after(100, self.world, self._look)

    def _look(self) -> None:
        """Check that it makes progress; end an unbounded query once everything is committed."""
        published, now_ms = len(self.table.rows), self.clock.now_ms
        if published != self._progress[0]:
            self._progress = published, now_ms
        elif now_ms - self._progress[1] > _PATIENCE_MS:
            raise Violation(
                f"no end after {_PATIENCE_MS} ms in which no row was published: {self.invariants.missing()}"
            )
        if (
            not self.finished
            and not any(topic.script.bounded for topic in self.topics.values())
            and not self.invariants.missing()
        ):
            driver = self.driver
            if driver is not None and driver.alive and not driver.over and not self.stopping:
                self.stopping = True
                if self.scenario.drain:
                    self.request(driver, CheckpointKind.DRAIN)
                else:
                    driver.notify(jm.StopRequested())
        self.clock.after(100, self.world, self._look)
