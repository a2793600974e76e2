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
from headgate.connectors.datagen.split import DatagenSplit
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job.slot_streams import SlotStreams
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, SubtaskId
from headgate.simulation.scenario import ConnectionFaults, Scenario
from headgate.simulation.scripted_source import ScriptedEnumerator, ScriptedState
from headgate.task import subtask as st
from headgate.task.subtask import SubtaskMachine
from tests.scenarios.planted import first_found


class ForgetsReported(ScriptedEnumerator):
    """FLINK-40469: reported splits that are not assigned yet are not in the snapshot."""

    def snapshot_state(self, checkpoint_id: int) -> ScriptedState:
        state = super().snapshot_state(checkpoint_id)
        reported = {
            split.split_id
            for reader in self._context.registered_readers.values()
            for split in reader.reported_splits_on_registration
            if isinstance(split, DatagenSplit)
        }
        kept = tuple(split for split in state.pending if split.split_id not in reported)
        return msgspec.structs.replace(state, pending=kept)


class ReportsNothingAgain(SubtaskMachine):
    """FLINK-40710: a reader that fails alone registers again empty, whatever its state holds."""

    def handle(self, event: st.Event, now_ms: int) -> list[st.Action]:
        return [
            st.Post(msgspec.structs.replace(action.message, reported_splits=()))
            if self.execution > 1 and isinstance(action, st.Post) and isinstance(action.message, msg.ReaderRegistered)
            else action
            for action in super().handle(event, now_ms)
        ]


class ResolvesAgain(ScriptedEnumerator):
    """FLINK-38453: the state has splits without positions: they are resolved a second time when it is restored."""

    def __init__(self, topic: Any, context: Any, state: ScriptedState | None) -> None:
        super().__init__(topic, context, state)
        self._pending = {each: topic.first(topic.splits[each]) for each in self._pending}

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        resolved = [self._topic.first(self._topic.splits[each.split_id]) for each in splits]
        super().add_splits_back(resolved, subtask)


class PromisesOnlyWhatIsNew(ScriptedEnumerator):
    """FLINK-31006: a bounded source that is restored finds nothing new and never says that nothing follows."""

    def __init__(self, topic: Any, context: Any, state: ScriptedState | None) -> None:
        super().__init__(topic, context, state)
        self._restored = state is not None

    def _nothing_follows(self) -> bool:
        return super()._nothing_follows() and not self._restored


class KeepsPendingBySubtask(ScriptedEnumerator):
    """FLINK-21817: what is pending for a subtask that is no longer there is nobody's after a rescale."""

    def __init__(self, topic: Any, context: Any, state: ScriptedState | None) -> None:
        super().__init__(topic, context, state)
        owners = state.owners if state is not None else {}
        self._pending = {
            each: split for each, split in self._pending.items() if owners.get(each, 0) < context.current_parallelism
        }


class PutsAllOnTheFirst(ScriptedEnumerator):
    """FLINK-31762: some readers get two splits, some none."""

    def _distribute(self) -> None:
        if not self._rebalancing or len(self._context.registered_readers) == self._context.current_parallelism:
            for split_id in self._pending:
                self._owners.setdefault(split_id, 0)
        super()._distribute()


class AssignsTwice(ScriptedEnumerator):
    """FLINK-39073: a split is assigned that a reader has already."""

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        before = dict(self._pending)
        super().handle_split_request(subtask, host)
        if before and subtask == 0:
            self._pending = {**before, **self._pending}


class WakesNobody(ScriptedEnumerator):
    """SeaTunnel: restored splits go back to the assigner, but nobody who waits for work is woken."""

    def __init__(self, topic: Any, context: Any, state: ScriptedState | None) -> None:
        super().__init__(topic, context, state)
        self._asleep: list[DatagenSplit] = []

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        self._asleep += splits
        super().add_splits_back((), subtask)

    def snapshot_state(self, checkpoint_id: int) -> ScriptedState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, pending=(*state.pending, *self._asleep))


class KeepsOneOfEachFamily(ScriptedEnumerator):
    """Fluss 3548: splits are stored by something coarser than their id."""

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        super().add_splits_back(list({each.split_id.split("-")[1]: each for each in splits}.values())[:1], subtask)


class LosesOnePending(ScriptedEnumerator):
    """A pending split is not in the snapshot."""

    def snapshot_state(self, checkpoint_id: int) -> ScriptedState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, pending=state.pending[1:])


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
IN_ENUMERATORS: list[tuple[type[ScriptedEnumerator], int, str]] = [
    (ForgetsReported, 72, PLACE),
    (ResolvesAgain, 266, r"rows of \S+ (before \d+ )?are missing|published twice"),
    (PromisesOnlyWhatIsNew, 5, "no end after"),
    (KeepsPendingBySubtask, 1396, PLACE),
    (PutsAllOnTheFirst, 50, r"the readers of \S+ have \[.*\] splits"),
    (AssignsTwice, 7, "broke its contract in assign_splits|in 2 places|was given"),
    (WakesNobody, 19, f"no end after|{PLACE}"),
    (KeepsOneOfEachFamily, 7, PLACE),
    (LosesOnePending, 7, PLACE),
]
IN_SUBTASKS: list[tuple[type[SubtaskMachine], int, str]] = [
    (ReportsNothingAgain, 6, PLACE),
    (ForgetsEnds, 7, PLACE),
    (RunsBeforeItRegisters, 266, PLACE),
    (WaitsForTheMessage, 44, "committables that one before it published"),
]


@pytest.mark.parametrize(("bug", "seed", "what"), IN_ENUMERATORS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bug_in_an_enumerator_is_found(bug: type[ScriptedEnumerator], seed: int, what: str) -> None:
    first_found(what, seed, {ScriptedEnumerator: bug})


@pytest.mark.parametrize(("bug", "seed", "what"), IN_SUBTASKS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bug_in_a_subtask_is_found(bug: type[SubtaskMachine], seed: int, what: str) -> None:
    first_found(what, seed, {SubtaskMachine: bug})


def test_an_older_connection_in_a_slot_s_place_is_found() -> None:
    def is_broken_late(scenario: Scenario) -> bool:
        return any(isinstance(fault.kind, ConnectionFaults) for fault in scenario.faults)

    first_found(r"is on connection \d+ again", 13, {SlotStreams: TakesWhoComesLast}, of=is_broken_late)


def test_a_commit_before_the_manifest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = CheckpointCoordinator.handle

    def too_early(machine: Any, event: checkpoints.Event, now_ms: int) -> list[checkpoints.Action]:
        actions = handle(machine, event, now_ms)
        writes = [each for each in actions if isinstance(each, checkpoints.WriteManifest)]
        commits = [checkpoints.Commit(each.manifest.epoch, each.manifest.commits, False) for each in writes]
        return [*commits, *actions]

    monkeypatch.setattr(CheckpointCoordinator, "handle", too_early)
    first_found("which no manifest holds", 2)


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
    first_found(PLACE, 7)
