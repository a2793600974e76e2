"""A keyed pipeline, whole: its deployments and their links, the checkpoints, storage, faults, and what must hold.

Never: help a machine: what it is told is what would happen.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, assert_never

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions, StoredCheckpoints
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.restore import restore
from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import SubtaskState
from headgate.simulation.clockwork import Clockwork, Process
from headgate.simulation.keyed.deployment import Deployment
from headgate.simulation.keyed.durable import Storage, Table
from headgate.simulation.keyed.invariants import Invariants
from headgate.simulation.keyed.parts import KeyedParts
from headgate.simulation.keyed.scenario import Fault, FaultKind, KeyedScenario
from headgate.simulation.keyed.stages import source_uid, uids_of
from headgate.simulation.keyed.subtask import KeyedSubtask

_MAX_STEPS, _MAX_MS = 60_000, 120_000  # then it does not converge
_RESTART_MS = 10
_LETTER_MS = 3
_SLOW_FACTOR = 10


class Violation(AssertionError):
    """Something that must hold does not."""


class _Source(msgspec.Struct, frozen=True):
    name: str = "scripted"
    fixed: dict[str, object] = {}


class _Plan(msgspec.Struct, frozen=True):
    sources: dict[str, _Source]
    stages: tuple[tuple[str, ...], ...]
    exchanges: dict[str, ExchangePlan]
    parallelism: int
    max_parallelism: int
    run: int
    query_id: str = "simulated"
    signatures: dict[str, str] = {}


class KeyedCluster:
    """One simulation.

    Parameters
    ----------
    scenario
        What the seed decided.
    parts
        The machines.
    """

    def __init__(self, scenario: KeyedScenario, parts: KeyedParts) -> None:
        self.scenario, self.parts = scenario, parts
        self.clock = Clockwork()
        self.choose = random.Random(f"keyed schedule {scenario.seed}")
        self.storage, self.table = Storage(), Table()
        self.trace: deque[tuple[int, str, str, Any]] = deque(maxlen=4000)
        self.events = self.faults = 0
        self.rows_processed = self.filtered = self.spilled = 0
        self.invariants = Invariants(self)
        self.world = Process("world")
        self.driver = Process("driver of run 0")
        self.deployment: Deployment | None = None
        self.run_number = self.era = self.deployments = 0
        self.parallelism = 0
        self.finished = False
        self.committed_ms = 0
        """When an epoch was committed last."""
        self._coordinator: CheckpointCoordinator | None = None
        self._plan: _Plan | None = None
        self._wake_ms: int | None = None
        self._letters_ms: dict[str, int] = {}
        self._slow_until_ms = 0
        self._crash_in_recovery: list[int] = []
        self._rescale_in_recovery: list[int] = []
        self._rescale_after: dict[int, int] = {}
        self._requests = 0
        self._unaligned: set[int] = set()

    def is_unaligned(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint's barriers may pass rows."""
        return checkpoint_id in self._unaligned

    def run(self) -> None:
        """Run both phases: faults, then none.

        Raises
        ------
        Violation, AssertionError, InternalError
            Something does not hold, or the pipeline does not converge.
        """
        for fault in self.scenario.faults:
            self.clock.at(fault.at_ms, self.world, self._fault, fault)
        self._start_run(self.scenario.parallelism)
        while not self.finished:
            if not self.clock.step():
                raise Violation("nothing happens any more, but the query has not ended")
            if self.clock.steps > _MAX_STEPS or self.clock.now_ms > _MAX_MS:
                raise Violation(f"no end after {self.clock.steps} steps, {self.clock.now_ms} ms")
        self.invariants.at_the_end()

    def note(self, process: Process, event: Any) -> None:
        """Note that a machine is given an event."""
        self.events += 1
        self.trace.append((self.clock.now_ms, process.name, "<-", event))

    def note_action(self, process: Process, action: Any) -> None:
        """Note that a machine orders something."""
        self.trace.append((self.clock.now_ms, process.name, "->", action))

    # Channels.

    def link_delay_ms(self) -> int:
        """Draw how long something takes through a link."""
        slowest_ms = self.scenario.link_ms * (_SLOW_FACTOR if self.clock.now_ms < self._slow_until_ms else 1)
        return 1 + int(self.choose.random() * slowest_ms)

    def transmit(self, producer: KeyedSubtask, channel: ChannelId, element: Element) -> None:
        """Send an element to its consumer."""
        deployment = producer.deployment
        link = deployment.links[channel]
        delay_ms = self.link_delay_ms()
        deployment.slowest_link_ms = max(deployment.slowest_link_ms, delay_ms)
        link.down_ms = max(link.down_ms, self.clock.now_ms + delay_ms)
        match element:
            case Buffer():
                link.sent, link.behind_rows = link.sent + 1, True
                self.invariants.on_sent(link, channel)
            case Barrier():
                link.barriers[element.checkpoint_id] = (link.down_ms, link.sent) if link.behind_rows else None
            case _:
                link.behind_rows = False
        self.clock.at(link.down_ms, link.consumer, link.consumer.tell, link.consumer.arrived, channel, element)

    def credit_granted(self, consumer: KeyedSubtask, channel: ChannelId, credits: int) -> None:
        """Tell the producer of credit."""
        link = consumer.deployment.links[channel]
        link.up_ms = max(link.up_ms, self.clock.now_ms + self.link_delay_ms())
        self.clock.at(link.up_ms, link.producer, link.producer.tell, link.producer.credited, channel, credits)

    def _connect(self, deployment: Deployment, subtask: KeyedSubtask) -> None:
        """Connect what has become possible now that a subtask is open."""
        for channel, link in deployment.links.items():
            other = link.consumer if link.producer is subtask else link.producer
            if subtask in (link.producer, link.consumer) and other.opened:
                for process, what in (
                    (link.producer, link.producer.connected_to_consumer),
                    (link.consumer, link.consumer.connected_to_producer),
                ):
                    delay_ms = self.link_delay_ms()
                    now_ms = self.clock.now_ms
                    deployment.connected_ms = max(deployment.connected_ms, now_ms + delay_ms)
                    link.down_ms = max(link.down_ms, now_ms + delay_ms)
                    self.clock.after(delay_ms, process, process.tell, what, channel)

    # Runs and deployments.

    def _start_run(self, parallelism: int) -> None:
        """Start the query from the newest checkpoint."""
        scenario, stored = self.scenario, self.storage.latest
        if stored is not None:
            self.invariants.on_manifest(stored)
        self.run_number += 1
        self.driver.alive = False
        self.driver = Process(f"driver of run {self.run_number}")
        self.era += parallelism != self.parallelism
        self.parallelism = parallelism
        self._plan = _Plan(
            sources={source_uid(stage): _Source() for stage in scenario.sources},
            stages=tuple(uids_of(scenario, stage) for stage in range(scenario.stages)),
            exchanges=scenario.exchanges,
            parallelism=parallelism,
            max_parallelism=scenario.max_parallelism,
            run=self.run_number,
        )
        self._coordinator = self.parts.coordinator(
            CheckpointOptions(
                interval_ms=scenario.interval_ms,
                timeout_ms=scenario.timeout_ms,
                tolerable_failed=scenario.tolerable_failed,
                first_after_restore_ms=scenario.first_after_restore_ms,
            ),
            self._plan,
            None if stored is None else restore(stored, self._plan),
            stored=StoredCheckpoints(complete=tuple(sorted(self.storage.manifests))),
        )
        self._wake_ms = None
        self._letters_ms = {}
        self.tell(cp.CheckpointingStarted())
        self._deploy(self.driver)

    def _deploy(self, driver: Process) -> None:
        """Deploy all subtasks, of the newest checkpoint."""
        assert self._plan is not None and self._coordinator is not None
        latest = self._coordinator.latest
        stored = None if latest is None else self.storage.manifests[latest.checkpoint_id]
        self.deployments += 1
        deployment = self.deployment = Deployment(
            self,
            self.deployments,
            self.era,
            self.parallelism,
            stored,
            None if stored is None else restore(stored, self._plan),
            self.scenario.switches_of(self.run_number),
        )
        for subtask in deployment.subtasks.values():
            self.clock.after(int(self.choose.random() * 8), subtask, subtask.open)
        for pick in self._crash_in_recovery:
            victim = _picked(list(deployment.subtasks.values()), pick)
            self.clock.after(1 + pick % 40, victim, self.crash, victim)
        self._crash_in_recovery = []
        if self._rescale_in_recovery:
            parallelism = self._rescale_in_recovery.pop()
            self.clock.after(self.choose.choice((15, 40)), driver, self._rescale, parallelism)

    def crash(self, subtask: KeyedSubtask) -> None:
        """Let a subtask fail: all are connected to it, so that all begin anew."""
        deployment = subtask.deployment
        if not deployment.alive or self._is_past_the_last:
            return
        deployment.kill()
        self.faults += 1
        self.clock.after(0, self.driver, self.tell, cp.SubtasksNotRunning("a fault"))
        self.clock.after(_RESTART_MS, self.driver, self._deploy, self.driver)

    def _rescale(self, parallelism: int) -> None:
        """Stop at once, and start again."""
        if self._is_past_the_last:
            return
        assert self.deployment is not None
        self.deployment.kill()
        self.driver.alive = False
        self.faults += 1
        self.clock.after(_RESTART_MS, self.world, self._start_run, parallelism)

    @property
    def _is_past_the_last(self) -> bool:
        return self._coordinator is None or self._coordinator.is_past_the_last or not self.driver.alive

    def subtask_opened(self, subtask: KeyedSubtask) -> None:
        """Connect it, and tell the coordinator if all are there."""
        self._connect(subtask.deployment, subtask)
        self._tell_if_running(subtask.deployment)

    def recovered_processed(self, subtask: KeyedSubtask) -> None:
        """Tell the coordinator."""
        self._tell_if_running(subtask.deployment)
        event = cp.SubtaskRecovered(subtask.id, subtask.deployment.number)
        self.clock.after(self._letter_ms(), self.driver, self.tell, event)

    def _tell_if_running(self, deployment: Deployment) -> None:
        subtasks = deployment.subtasks.values()
        if deployment.told_running or not all(subtask.opened for subtask in subtasks):
            return
        if not deployment.switches.during_recovery and not all(subtask.recovered_processed for subtask in subtasks):
            return
        deployment.told_running = True
        self.clock.after(self._letter_ms(), self.driver, self._running, deployment)

    def _running(self, deployment: Deployment) -> None:
        if deployment is self.deployment and deployment.alive:
            deployment.running_ms = self.clock.now_ms
            recovering = frozenset(
                each for each, subtask in deployment.subtasks.items() if not subtask.recovered_processed
            )
            executions = dict.fromkeys(deployment.subtasks, deployment.number)
            self.tell(cp.SubtasksRunning(executions, restored=True, recovering=recovering))
            self._tell_if_ended(deployment)

    def input_ended(self, subtask: KeyedSubtask) -> None:
        """Take note of a subtask that has read all its input."""
        self.clock.after(self._letter_ms(), self.driver, self._tell_if_ended, subtask.deployment)

    def _tell_if_ended(self, deployment: Deployment) -> None:
        running = deployment is self.deployment and deployment.alive and deployment.running_ms
        if running and all(subtask.input_ended for subtask in deployment.subtasks.values()):
            self.tell(cp.InputAllEnded())

    # Checkpoints.

    def tell(self, event: cp.Event) -> None:
        """Give the coordinator an event and do what it orders."""
        coordinator = self._coordinator
        assert coordinator is not None
        self.note(self.driver, event)
        actions = coordinator.handle(event, self.clock.now_ms)
        coordinator.check()
        for action in actions:
            self.note_action(self.driver, action)
            self._carry_out(action)
        due_ms = coordinator.next_time_ms()
        if due_ms is not None and (self._wake_ms is None or due_ms < self._wake_ms):
            self._wake_ms = due_ms
            self.clock.at(max(due_ms, self.clock.now_ms), self.driver, self._wake, due_ms)

    def _wake(self, due_ms: int) -> None:
        if self._wake_ms == due_ms:
            self._wake_ms = None
            self.tell(cp.CheckpointTimePassed())

    def _carry_out(self, action: cp.Action) -> None:
        clock, driver = self.clock, self.driver
        match action:
            case cp.SnapshotSources(checkpoint_id=checkpoint_id):
                assert self._plan is not None
                for uid in self._plan.sources:
                    clock.after(0, driver, self.tell, cp.SourceStateReady(uid, checkpoint_id, b"{}", {}))
            case cp.SendBarriers():
                self._send_barriers(action)
            case cp.WriteManifest(checkpoint_id=checkpoint_id, manifest=manifest, location=location):
                clock.after(1, driver, self._write, checkpoint_id, manifest, location)
            case cp.NotifyCompleted(checkpoint_id=checkpoint_id):
                self.invariants.on_manifest(self.storage.manifests[checkpoint_id])
                self._tell_all("checkpoint_completed", checkpoint_id)
            case cp.NotifyAborted(checkpoint_id=checkpoint_id):
                self._tell_all("checkpoint_aborted", checkpoint_id)
            case cp.Commit():
                clock.after(self.choose.choice((1, 15)), driver, self._commit, action)
            case cp.AnswerRequest(request_id=request_id, checkpoint_id=checkpoint_id):
                parallelism = self._rescale_after.pop(request_id, None)
                if parallelism is not None and checkpoint_id is not None:
                    clock.after(0, driver, self._rescale, parallelism)
            case cp.QuerySuspended():
                self.finished = True
            case cp.DeleteCheckpoint(checkpoint_id=checkpoint_id):
                self.storage.manifests.pop(checkpoint_id, None)
            case cp.CheckpointFailureLimitReached():
                assert self.deployment is not None
                self.crash(next(iter(self.deployment.subtasks.values())))
            case _:
                assert_never(action)

    def _send_barriers(self, action: cp.SendBarriers) -> None:
        scenario, deployment = self.scenario, self.deployment
        assert deployment is not None
        unaligned = scenario.unaligned and action.kind is CheckpointKind.CHECKPOINT
        barrier = Barrier(
            checkpoint_id=action.checkpoint_id,
            kind=action.kind,
            location=action.location,
            unaligned=unaligned,
            alignment_timeout_ms=scenario.alignment_timeout_ms if unaligned else 0,
        )
        (self._unaligned.add if unaligned else self._unaligned.discard)(action.checkpoint_id)
        self.invariants.on_triggered(deployment)
        for subtask in deployment.subtasks.values():
            if subtask.id.stage in scenario.sources:
                self._letter(subtask, subtask.snapshot, barrier)

    def _tell_all(self, what: str, checkpoint_id: int) -> None:
        if self.deployment is not None:
            for subtask in self.deployment.subtasks.values():
                self._letter(subtask, getattr(subtask, what), checkpoint_id)

    def _letter_ms(self) -> int:
        return 1 + int(self.choose.random() * _LETTER_MS)

    def _letter(self, subtask: KeyedSubtask, what: Any, argument: Any) -> None:
        """Tell a subtask something, behind what it was told before."""
        at_ms = max(self._letters_ms.get(subtask.name, 0), self.clock.now_ms + self._letter_ms())
        self._letters_ms[subtask.name] = at_ms
        self.clock.at(at_ms, subtask, subtask.tell, what, argument)

    def acknowledge(self, subtask: KeyedSubtask, checkpoint_id: int, state: SubtaskState) -> None:
        """Tell the coordinator that a subtask's part is safe."""
        event = cp.SubtaskAcknowledged(subtask.id, subtask.deployment.number, checkpoint_id, state)
        self.clock.after(self._letter_ms(), self.driver, self.tell, event)

    def decline(self, subtask: KeyedSubtask, checkpoint_id: int) -> None:
        """Tell the coordinator that a subtask could not make its part."""
        event = cp.SubtaskDeclined(subtask.id, subtask.deployment.number, checkpoint_id, "a fault")
        self.clock.after(self._letter_ms(), self.driver, self.tell, event)

    def _write(self, checkpoint_id: int, manifest: Manifest, location: str) -> None:
        if not location:
            self.storage.manifests[checkpoint_id] = manifest
        self.tell(cp.ManifestWritten(checkpoint_id, 1000))

    def _commit(self, action: cp.Commit) -> None:
        self.table.publish(tuple(name for names in action.committables.values() for name in names))
        self.committed_ms = self.clock.now_ms
        self.tell(cp.Committed(action.epoch, {}))

    # Faults.

    def _fault(self, fault: Fault) -> None:
        deployment, coordinator = self.deployment, self._coordinator
        if self._is_past_the_last or deployment is None or coordinator is None:
            return
        self.trace.append((self.clock.now_ms, "world", "!!", str(fault)))
        self.faults += 1
        victim = _picked(list(deployment.subtasks.values()), fault.pick)
        match fault.kind:
            case FaultKind.CRASH:
                self.crash(victim)
            case FaultKind.CRASH_SOON:
                victim.crash_in = fault.pick % 9
            case FaultKind.CRASH_IN_RECOVERY:
                self._crash_in_recovery.append(fault.pick // 7)
                self.crash(victim)
            case FaultKind.RESCALE:
                self._rescale(fault.parallelism)
            case FaultKind.RESCALE_IN_RECOVERY:
                self._rescale_in_recovery.append(1 + fault.pick % 4)
                self._rescale(fault.parallelism)
            case FaultKind.CHECKPOINT:
                self.request(CheckpointKind.CHECKPOINT, "")
            case FaultKind.SAVEPOINT:
                self.request(CheckpointKind.SAVEPOINT, "savepoint")
            case FaultKind.RESCALE_FROM_SAVEPOINT:
                self._rescale_after[self.request(CheckpointKind.SAVEPOINT, "savepoint")] = fault.parallelism
            case FaultKind.DECLINE:
                victim.decline_next = True
            case FaultKind.SLOW_LINKS:
                self._slow_until_ms = self.clock.now_ms + 50
            case FaultKind.SLOW_SUBTASK:
                victim.cost_ms *= 3
            case _:
                assert_never(fault.kind)

    def request(self, kind: CheckpointKind, location: str) -> int:
        """Ask for a checkpoint; return the number of the request."""
        self._requests += 1
        self.tell(cp.CheckpointRequested(self._requests, kind, location))
        return self._requests


def _picked(things: list[KeyedSubtask], pick: int) -> KeyedSubtask:
    return things[pick % len(things)]
