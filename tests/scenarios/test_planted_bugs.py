"""Bugs that others shipped, planted into a simulated cluster one at a time: some seed finds each.

Those that can happen between machines are here, under their public tickets; those about one
connector alone (offsets out of range, topics that are made by asking for them, sticky bounded reads, pausing of unknown
splits) are tests of that connector. A bug is a subclass or a changed method, in this file only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from headgate.checkpoint import checkpoint_events as checkpoints
from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.connectors.files.enumerator import FilesEnumerator, FilesState
from headgate.connectors.files.split import FileSplit
from headgate.connectors.kafka.enumerator import KafkaEnumerator
from headgate.connectors.kafka.split import KafkaSplit, KafkaState
from headgate.connectors.kinesis.enumerator import KinesisEnumerator
from headgate.connectors.kinesis.shards import ShardTable
from headgate.connectors.kinesis.split import KinesisSplit, KinesisState
from headgate.connectors.simple.enumerator import SimpleEnumerator
from headgate.connectors.simple.split import SimpleState
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job.slot_streams import SlotStreams
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, SubtaskId
from headgate.simulation.fault_kinds import ConnectionFaults
from headgate.simulation.scenario import Scenario
from headgate.source.enumerator import SplitEnumerator
from headgate.task import subtask as st
from headgate.task.subtask import SubtaskMachine
from tests.scenarios.planted import first_found


class ForgetsReported(KafkaEnumerator):
    """FLINK-40469: reported splits that are not assigned yet are not in the snapshot."""

    def snapshot_state(self, checkpoint_id: int) -> KafkaState:
        state = super().snapshot_state(checkpoint_id)
        reported = {
            split.split_id
            for reader in self._context.registered_readers.values()
            for split in reader.reported_splits_on_registration
        }
        kept = tuple(split for split in state.unassigned if split.split_id not in reported)
        return msgspec.structs.replace(state, unassigned=kept)


class ReportsNothingAgain(SubtaskMachine):
    """FLINK-40710: a reader that fails alone registers again empty, whatever its state holds."""

    def handle(self, event: st.Event, now_ms: int) -> list[st.Action]:
        return [
            st.Post(msgspec.structs.replace(action.message, reported_splits=()))
            if self.execution > 1 and isinstance(action, st.Post) and isinstance(action.message, msg.ReaderRegistered)
            else action
            for action in super().handle(event, now_ms)
        ]


class ResolvesAgain(KafkaEnumerator):
    """FLINK-38453: the state has splits without positions: they are resolved a second time when it is restored."""

    def __init__(
        self, context: Any, discover: Any, subscription: Any, assigner: Any, interval_ms: Any, state: Any
    ) -> None:
        if state is not None:
            resolved = {each.split_id: each for each in discover(frozenset(), True)}
            state = msgspec.structs.replace(
                state, unassigned=tuple(resolved[each.split_id] for each in state.unassigned)
            )
        super().__init__(context, discover, subscription, assigner, interval_ms, state)

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask: int) -> None:
        resolved = {each.split_id: each for each in self._discover(frozenset(), True)}
        super().add_splits_back([resolved[each.split_id] for each in splits], subtask)


class PromisesOnlyWhatIsNew(KafkaEnumerator):
    """FLINK-31006: a bounded source that is restored finds nothing new and never says that nothing follows."""

    def start(self) -> None:
        super().start()
        self._may_find_more = self._may_find_more or self._bounded  # until a discovery is over


class KeepsPendingBySubtask(KinesisEnumerator):
    """FLINK-21817: what is pending for a subtask that is no longer there is nobody's after a rescale."""

    def __init__(self, context: Any, discover: Any, assigner: Any, interval_ms: int, state: Any) -> None:
        if state is not None and state.parallelism:
            dealt = ((number % state.parallelism, each) for number, each in enumerate(state.unassigned))
            kept = tuple(each for subtask, each in dealt if subtask < context.current_parallelism)
            state = msgspec.structs.replace(state, unassigned=kept)
        super().__init__(context, discover, assigner, interval_ms, state)


class PutsAllOnTheFirst(KafkaEnumerator):
    """FLINK-31762: some readers get two splits, some none."""

    def _find_owners(self, pending: Sequence[Any], parallelism: int) -> None:
        for each in pending:
            each.owner = 0 if each.owner is None else each.owner


class AssignsTwice(FilesEnumerator):
    """FLINK-39073: a split is assigned that a reader has already."""

    def _next_split(self) -> FileSplit | None:
        split = super()._next_split()
        if split is not None and len(self._context.registered_readers) > 1:
            self._put_first(split)
        return split


class WakesNobody(FilesEnumerator):
    """SeaTunnel: restored splits go back to the assigner, but nobody who waits for work is woken."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._asleep: list[FileSplit] = []

    def add_splits_back(self, splits: Sequence[FileSplit], subtask: int) -> None:
        self._asleep += splits
        super().add_splits_back((), subtask)

    def snapshot_state(self, checkpoint_id: int) -> FilesState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, pending=(*state.pending, *self._asleep))


class KeepsOneOfEachFamily(FilesEnumerator):
    """Fluss 3548: splits are stored by something coarser than their id, here by their file."""

    def snapshot_state(self, checkpoint_id: int) -> FilesState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, pending=tuple({each.path: each for each in state.pending}.values()))


class LosesOnePending(KinesisEnumerator):
    """A pending split is not in the snapshot."""

    def snapshot_state(self, checkpoint_id: int) -> KinesisState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, unassigned=state.unassigned[1:])


class FollowsAtOnce(ShardTable):
    """Children do not wait for the shards that they come from."""

    def ready(self) -> list[KinesisSplit]:
        return list(self.unassigned.values())


class PushesTwice(SimpleEnumerator):
    """What is assigned stays in the state, and is assigned once more after a restore."""

    def snapshot_state(self, checkpoint_id: int) -> SimpleState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, known=())


class ForgetsEnds(SubtaskMachine):
    """FLINK-37627: an end between the enumerator's snapshot and the reader's is in neither."""

    TRANSITIONS = SubtaskMachine.TRANSITIONS  # again, for the handler that is another

    def _on_trigger_checkpoint(self, message: msg.TriggerCheckpoint, now_ms: int) -> list[st.Action]:
        actions = super()._on_trigger_checkpoint(message, now_ms)
        for checkpoint_id, barrier in self._snapshots.items():
            none: dict[str, tuple[Any, ...]] = dict.fromkeys(barrier.finished, ())
            self._snapshots[checkpoint_id] = msgspec.structs.replace(barrier, finished=none)
        return actions


class WaitsForTheMessage(SubtaskMachine):
    """What a barrier of a channel has of the checkpoint before it is not heard: its committables come twice."""

    TRANSITIONS = SubtaskMachine.TRANSITIONS  # again, for the handler that is another

    def _on_trigger_checkpoint(self, message: msg.TriggerCheckpoint, now_ms: int) -> list[st.Action]:
        return super()._on_trigger_checkpoint(msgspec.structs.replace(message, completed=0), now_ms)


class RunsBeforeItRegisters(SubtaskMachine):
    """RUNNING is posted before the registrations."""

    def __init__(self, subtask: SubtaskId, *, sources: dict[str, bool], host: str) -> None:
        super().__init__(subtask, sources=sources, host=host)

    def handle(self, event: st.Event, now_ms: int) -> list[st.Action]:
        actions = super().handle(event, now_ms)
        running = [
            each for each in actions if isinstance(each, st.Post) and isinstance(each.message, msg.SubtaskRunning)
        ]
        return [*running, *(each for each in actions if each not in running)]


class TakesWhoComesLast(SlotStreams):
    """A connection counts from when it is heard of: one that broke before takes the place of the slot's next one."""

    def register(self, connection: int, envelope: Envelope, message: msg.RegisterSlot) -> list[job.Action]:
        actions = super().register(connection, envelope, message)
        if self.key_of(connection) is None:
            stream = self._streams[envelope.slot, envelope.attempt]
            actions = [] if stream.connection is None else self.close(stream.connection)
            stream.connection, stream.about = connection, message
            self._connections[connection] = envelope.slot, envelope.attempt
        return actions


PLACE = r"has \S+ in \d places|are missing|not published|no end after|published twice"
IN_ENUMERATORS: list[tuple[type[SplitEnumerator[Any, Any]], int, str]] = [
    (ForgetsReported, 88, PLACE),
    (ResolvesAgain, 88, r"rows of \S+ (before \d+ )?are missing|published twice"),
    (PromisesOnlyWhatIsNew, 10, "no end after"),
    (KeepsPendingBySubtask, 1483, PLACE),
    (PutsAllOnTheFirst, 2, r"the readers of \S+ have \[.*\] splits"),
    (AssignsTwice, 3, "broke its contract in assign_splits|in 2 places|was given"),
    (WakesNobody, 142, f"no end after|{PLACE}"),
    (KeepsOneOfEachFamily, 184, PLACE),
    (LosesOnePending, 202, PLACE),
    (PushesTwice, 0, "was given"),
]
IN_SUBTASKS: list[tuple[type[SubtaskMachine], int, str]] = [
    (ReportsNothingAgain, 61, PLACE),
    (ForgetsEnds, 14, PLACE),
    (RunsBeforeItRegisters, 187, PLACE),
    (WaitsForTheMessage, 21, "committables that one before it published"),
]


@pytest.mark.parametrize(("bug", "seed", "what"), IN_ENUMERATORS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bug_in_an_enumerator_is_found(bug: type[SplitEnumerator[Any, Any]], seed: int, what: str) -> None:
    first_found(what, seed, {bug.__base__: bug})


@pytest.mark.parametrize(("bug", "seed", "what"), IN_SUBTASKS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bug_in_a_subtask_is_found(bug: type[SubtaskMachine], seed: int, what: str) -> None:
    first_found(what, seed, {SubtaskMachine: bug})


def test_a_child_that_does_not_wait_for_its_parents_is_found() -> None:
    first_found("is reading", 1, {ShardTable: FollowsAtOnce})


def test_an_older_connection_in_a_slot_s_place_is_found() -> None:
    def is_broken_late(scenario: Scenario) -> bool:
        return any(isinstance(fault.kind, ConnectionFaults) for fault in scenario.faults)

    first_found(r"is on connection \d+ again", 29, {SlotStreams: TakesWhoComesLast}, of=is_broken_late)


def test_a_commit_before_the_manifest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = CheckpointCoordinator.handle

    def too_early(machine: Any, event: checkpoints.Event, now_ms: int) -> list[checkpoints.Action]:
        actions = handle(machine, event, now_ms)
        writes = [each for each in actions if isinstance(each, checkpoints.WriteManifest)]
        commits = [checkpoints.Commit(each.manifest.epoch, each.manifest.commits, False) for each in writes]
        return [*commits, *actions]

    monkeypatch.setattr(CheckpointCoordinator, "handle", too_early)
    first_found("which no manifest holds", 5)


def test_an_assignment_that_overtakes_a_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release: Callable[[Any, int], Any] = SourceCoordinator._release

    def at_once(machine: Any, now_ms: int) -> Any:
        actions = release(machine, now_ms)
        if machine._pending is not None and machine._pending.ready:
            machine._pending.ready = False
            actions += release(machine, now_ms)
            machine._pending.ready = True
        return actions

    monkeypatch.setattr(SourceCoordinator, "_release", at_once)
    first_found(PLACE, 33)
