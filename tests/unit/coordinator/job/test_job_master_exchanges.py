"""The job master with stages that exchanges connect: barriers, restarts of what is connected, and addresses."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_events import (
    Action,
    ConnectionClosed,
    Event,
    ForSource,
    FromSource,
    Log,
    SlotMessageReceived,
    TimePassed,
    Transmit,
)
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobOptions, JobPlan, SourcePlan
from headgate.coordinator.job.restart_strategy import ExponentialDelay
from headgate.coordinator.job.scheduler import SchedulerOptions
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind, ErrorReport
from headgate.protocol.session import Session
from headgate.protocol.state import ChannelState, InlineState, SubtaskState

BROKEN = ErrorReport(error_type="ValueError", message="planned")


def plan(kind: str, parallelism: int = 2) -> JobPlan:
    return JobPlan(
        sources={"a": SourcePlan(name="toy", reassigns_on_recovery=False)},
        stages=(("a", "parse"), ("window", "sink")),
        parallelism=parallelism,
        max_parallelism=16,
        query_id="q",
        run=1,
        exchanges={"by-user": ExchangePlan(kind=kind, producer_stage=0, consumer_stage=1)},
    )


class Master:
    """A master of two stages that is checked after each event, with the slots' ends of its streams.

    Slot n is on connection n + 1, until it comes again.
    """

    def __init__(self, kind: str = "hash", restored: Manifest | None = None, **more: Any) -> None:
        options = JobOptions(
            checkpoints=CheckpointOptions(interval_ms=1_000, first_after_restore_ms=100),
            scheduler=SchedulerOptions(restart=ExponentialDelay(jitter_factor=0, initial_backoff_ms=100)),
            **more,
        )
        self.machine = JobMaster(plan(kind), options, restored, random.Random(0))
        self.sessions: dict[int, Session] = {}
        self.got: dict[int, list[msg.Message]] = {0: [], 1: []}  # by slot, what it was sent
        self.slot_on: dict[int, int] = {}
        self.logged: list[str] = []

    def __call__(self, event: Event, now_ms: int = 0) -> list[Action]:
        actions = self.machine.handle(event, now_ms)
        self.machine.check()
        for action in actions:
            if isinstance(action, Transmit) and action.connection in self.sessions:
                for message in self.sessions[action.connection].receive(action.envelope):
                    self.got[self.slot_on[action.connection]].append(message)
            elif isinstance(action, Log):
                self.logged.append(action.text)
            elif isinstance(action, ForSource):
                self.answer(action.action, now_ms)
        return actions

    def answer(self, order: src.Action, now_ms: int) -> None:
        """Let logs be written and readers forgotten, at once."""
        match order:
            case src.AppendLog(number=number):
                self(FromSource("a", src.LogAppended(number)), now_ms)

    def register(self, connection: int, slot: int, attempt: int = 0, now_ms: int = 0) -> None:
        session = self.sessions.get(connection) or Session(run=1, slot=slot, attempt=attempt)
        self.sessions[connection], self.slot_on[connection] = session, slot
        about = msg.RegisterSlot(host=f"h{slot}", data_address=f"h{slot}:{attempt}")
        self(SlotMessageReceived(connection, session.send_uncounted(about)), now_ms)

    def hear(self, connection: int, message: msg.FromSlot, now_ms: int = 0) -> list[Action]:
        return self(SlotMessageReceived(connection, self.sessions[connection].send(message)), now_ms)

    def run(self, execution: int = 1, now_ms: int = 0, connections: tuple[int, ...] = (1, 2)) -> None:
        """Let all subtasks of all slots run."""
        for connection in connections:
            came = msg.ReaderRegistered(stage=0, execution=execution, source="a", host="h")
            self.hear(connection, came, now_ms)
            for stage in (0, 1):
                self.hear(connection, msg.SubtaskRunning(stage=stage, execution=execution), now_ms)

    def start(self) -> None:
        self(sch.QueryStarted())
        self.register(1, 0)
        self.register(2, 1)
        self.run()

    def of(self, kind: type[Any], slot: int | None = None) -> list[Any]:
        """Return what slots got of a kind, and forget all that they got."""
        slots = [slot] if slot is not None else [0, 1]
        found = [message for each in slots for message in self.got[each] if isinstance(message, kind)]
        for each in slots:
            self.got[each].clear()
        return found


def channel(producer: int, consumer: int, *, output: bool) -> ChannelState:
    handle = InlineState(f"{producer} {consumer}".encode())
    return ChannelState(
        exchange="by-user", producer=producer, consumer=consumer, output=output, handle=handle,
        buffers=1, rows=1, size_bytes=1,
    )  # fmt: skip


def manifest(*channels: ChannelState, channels_parallelism: int) -> Manifest:
    states = (SubtaskState(), SubtaskState())
    return Manifest(
        checkpoint_id=9, epoch=1, kind=CheckpointKind.CHECKPOINT, query_id="q", run=0, created_ms=0, parallelism=2,
        max_parallelism=16, sources={}, stages=(("a", "parse"), ("window", "sink")), subtasks=(states, states),
        exchanges=plan("hash").exchanges, channels=channels, channels_parallelism=channels_parallelism,
    )  # fmt: skip


# Who is notified where the others are.


def test_all_learn_where_all_are_when_all_are_deployed() -> None:
    """After its deployment, on the same stream; both ends of an exchange."""
    master = Master()
    master(sch.QueryStarted())
    master.register(1, 0)
    assert master.got[0] == [msg.SlotAccepted()]
    master.register(2, 1)
    addresses = {0: "h0:0", 1: "h1:0"}
    for slot in (0, 1):
        assert master.got[slot] == [
            msg.SlotAccepted(),
            msg.Deploy(stage=0, execution=1, parallelism=2, generation=1),
            msg.Deploy(stage=1, execution=1, parallelism=2, generation=1),
            msg.SlotsLocated(stage=0, execution=1, generation=1, addresses=addresses),
            msg.SlotsLocated(stage=1, execution=1, generation=1, addresses=addresses),
        ]


def test_a_slot_that_comes_back_gets_what_it_missed() -> None:
    """Its stream was gone when all were notified: no message is made anew, none is lost."""
    master = Master()
    master(sch.QueryStarted())
    master.register(1, 0)
    master(ConnectionClosed(1), 10)
    master.register(2, 1, now_ms=20)
    assert master.of(msg.SlotsLocated) == []  # nothing is deployed to a slot that is not there
    master.sessions[3] = master.sessions[1]
    master.register(3, 0, now_ms=30)
    assert [each.generation for each in master.of(msg.SlotsLocated)] == [1] * 4
    master(ConnectionClosed(2), 40)
    master.sessions[4] = master.sessions[2]
    master.register(4, 1, now_ms=50)
    assert master.of(msg.SlotsLocated) == []


# Restarts.


def test_whatever_fails_restarts_all_that_exchanges_connect_in_place() -> None:
    """In one generation; slots stay, and their processes with them."""
    master = Master()
    master.start()
    master.of(object)
    master.hear(2, msg.SubtaskFailed(stage=1, execution=1, error=BROKEN), 1_000)
    assert [(each.stage, each.execution) for each in master.of(msg.CancelSubtask, 0)] == [(0, 1), (1, 1)]
    assert [(each.stage, each.execution) for each in master.of(msg.CancelSubtask, 1)] == [(0, 1)]
    assert (
        "subtasks 0, 1 restart" in master.logged[-1]
        and "since exchanges connect them; slots that live stay" in master.logged[-1]
    )
    master(TimePassed(), 1_100)
    messages = [each for slot in (0, 1) for each in master.got[slot] if isinstance(each, msg.Deploy | msg.SlotsLocated)]
    assert {(type(each), each.execution, each.generation) for each in messages} == {
        (msg.Deploy, 2, 2), (msg.SlotsLocated, 2, 2),
    }  # fmt: skip
    assert len(messages) == 8
    master.run(2, 1_200)
    assert master.machine.status().state == "running"


def test_slots_do_not_stay_when_the_job_is_submitted_again() -> None:
    master = Master()
    master.start()
    master(sch.JobEnded(0, BROKEN), 1_000)
    (reported,) = (each for each in master.logged if "subtasks 0, 1 restart" in each)
    assert reported.endswith("They are all, since exchanges connect them.")


def test_a_slot_that_dies_is_waited_for_before_anybody_is_notified() -> None:
    """The others are deployed and wait; the new process has another address."""
    master = Master()
    master.start()
    master.of(object)
    master.register(3, 1, attempt=1, now_ms=1_000)
    master(TimePassed(), 1_100)
    assert {each.addresses[1] for each in master.of(msg.SlotsLocated)} == {"h1:1"}
    master.run(2, 1_200, (1, 3))
    master(ConnectionClosed(3), 2_000)
    for at_ms in (4_500, 7_000, 9_500, 11_300):
        master.hear(1, msg.SlotHeartbeat(), at_ms)
        master(TimePassed(), at_ms)
    master(TimePassed(), 12_100)  # it did not come back
    master(TimePassed(), 12_500)
    assert [each.generation for each in master.of(msg.Deploy, 0)] == [3, 3]
    assert master.of(msg.SlotsLocated) == []
    master.register(4, 1, attempt=2, now_ms=12_600)
    located = master.of(msg.SlotsLocated)
    assert len(located) == 4
    assert {(each.generation, each.addresses[1]) for each in located} == {(3, "h1:2")}


def test_with_forward_exchanges_only_a_slot_restarts_alone() -> None:
    """Its own stages are its region, with generations of their own."""
    master = Master("forward")
    master.start()
    assert {tuple(each.addresses) for each in master.of(msg.SlotsLocated, 1)} == {(1,)}
    master.of(object)
    master.hear(2, msg.SubtaskFailed(stage=1, execution=1, error=BROKEN), 1_000)
    assert "subtasks 1 restart" in master.logged[-1] and "exchanges" not in master.logged[-1]
    master(FromSource("a", src.ReaderForgotten(1, 1)), 1_010)
    master(FromSource("a", src.SplitsTakenBack(1, 1)), 1_020)
    master(TimePassed(), 1_200)
    assert master.of(object, 0) == []
    messages = master.got[1][1:]
    assert messages == [
        msg.Deploy(stage=0, execution=2, parallelism=2, generation=2),
        msg.Deploy(stage=1, execution=2, parallelism=2, generation=2),
        msg.SlotsLocated(stage=0, execution=2, generation=2, addresses={1: "h1:0"}),
        msg.SlotsLocated(stage=1, execution=2, generation=2, addresses={1: "h1:0"}),
    ]


# Channel state.


@pytest.mark.parametrize("on_downstream", [True, False])
def test_subtasks_get_the_channel_state_that_is_theirs(on_downstream: bool) -> None:
    """By the checkpoint's numbers and today's; who recovers output is an option."""
    restored = manifest(channel(2, 0, output=False), channel(2, 0, output=True), channels_parallelism=3)
    master = Master(restored=restored, recover_output_downstream=on_downstream)
    master.start()
    deploys = {(slot, each.stage): each for slot in (0, 1) for each in master.of(msg.Deploy, slot)}
    taken = {
        key: [(each.state.output, each.channel, each.filtered) for each in deploy.recovered]
        for key, deploy in deploys.items() if deploy.recovered
    }  # fmt: skip
    if on_downstream:
        assert taken == {(0, 1): [(False, 0, True), (True, 0, True)]}
    else:
        assert taken == {(0, 1): [(False, 0, True)], (0, 0): [(True, 0, True)]}
    assert all(each.restore == SubtaskState() and each.checkpoint_id == 9 for each in deploys.values())
    assert {each.relocated for each in deploys.values()} == {frozenset(each.exchange for each in restored.channels)}


def test_time_outs_count_once_all_that_was_recovered_is_processed() -> None:
    """Before that a restart would begin the same recovery anew."""
    restored = manifest(channel(2, 0, output=False), channels_parallelism=3)
    master = Master(restored=restored)
    master.start()
    master(cp.Committed(restored.epoch, {}))
    late_ms = 600_000

    def beat(now_ms: int) -> None:
        for connection, session in master.sessions.items():
            master(SlotMessageReceived(connection, session.send_uncounted(msg.SlotHeartbeat())), now_ms)

    for number, recovered in ((1, False), (2, True)):
        begins_ms = number * late_ms * 2
        beat(begins_ms)
        snapshot(master, CheckpointKind.CHECKPOINT, "", begins_ms)
        if recovered:
            master.hear(1, msg.SubtaskRecovered(stage=1, execution=1), begins_ms + 1)
        master.of(object)
        beat(begins_ms + late_ms)
        master(TimePassed(), begins_ms + late_ms)
        assert len(master.of(msg.CancelSubtask)) == (4 if recovered else 0)


# Barriers.


def snapshot(master: Master, kind: CheckpointKind, location: str, now_ms: int) -> None:
    """Ask for a checkpoint, and let the source take part."""
    master(cp.CheckpointRequested(1, kind, location), now_ms)
    master(TimePassed(), now_ms)
    master(FromSource("a", src.EnumeratorSnapshotted(1, master.machine.status().pending_checkpoint or 0, b"s")), now_ms)


@pytest.mark.parametrize(
    ("kind", "location", "unaligned"),
    [
        (CheckpointKind.CHECKPOINT, "", True),
        (CheckpointKind.SUSPEND, "", True),
        (CheckpointKind.SUSPEND, "folder", False),
        (CheckpointKind.SAVEPOINT, "folder", False),
        (CheckpointKind.DRAIN, "", False),
    ],
)
def test_barriers_go_to_the_sources_and_pass_rows_unless_it_is_a_savepoint(
    kind: CheckpointKind, location: str, unaligned: bool
) -> None:
    """To all others they come through their channels; that it is over is sent to all."""
    master = Master(alignment_timeout_ms=50)
    master.start()
    master.of(object)
    snapshot(master, kind, location, 10)
    barrier = msg.TriggerCheckpoint(
        stage=0, execution=1, checkpoint_id=1, kind=kind, location=location, unaligned=unaligned,
        alignment_timeout_ms=50 if unaligned else 0,
    )  # fmt: skip
    assert master.of(msg.TriggerCheckpoint, 0) == master.of(msg.TriggerCheckpoint, 1) == [barrier]
    declined = msg.CheckpointDeclined(stage=1, execution=1, checkpoint_id=1, reason="planned")
    master.hear(1, declined, 20)
    assert {each.stage for each in master.of(msg.CheckpointAborted, 1)} == {0, 1}


@pytest.mark.parametrize(("kind", "unaligned"), [("hash", False), ("forward", True)])
def test_barriers_keep_their_place_where_they_must(kind: str, unaligned: bool) -> None:
    """By the option, and in queries that have no exchange whose rows they may pass."""
    master = Master(kind, unaligned=unaligned)
    master.start()
    master.of(object)
    snapshot(master, CheckpointKind.CHECKPOINT, "", 10)
    assert [each.unaligned for each in master.of(msg.TriggerCheckpoint)] == [False, False]


def test_the_manifest_has_the_channels_of_all_subtasks_and_the_next_deployment_gets_them() -> None:
    """Numbered by this query's parallelism; the subtasks' own states have none."""
    master = Master()
    master.start()
    snapshot(master, CheckpointKind.CHECKPOINT, "", 10)
    written: list[Action] = []
    for connection, number in ((1, 0), (2, 1)):
        for stage in (0, 1):
            own = channel(number, 0, output=True) if stage == 0 else channel(0, number, output=False)
            acknowledged = msg.CheckpointAcknowledged(
                stage=stage, execution=1, checkpoint_id=1, state=SubtaskState(channels=(own,))
            )
            written = master.hear(connection, acknowledged, 20)
    (order,) = [each for each in written if isinstance(each, cp.WriteManifest)]
    made = order.manifest
    assert made.exchanges == plan("hash").exchanges and made.channels_parallelism == 2
    assert {(each.producer, each.consumer, each.output) for each in made.channels} == {
        (0, 0, True), (1, 0, True), (0, 0, False), (0, 1, False),
    }  # fmt: skip
    assert all(state == SubtaskState() for stage in made.subtasks for state in stage)
    master(cp.ManifestWritten(1, 1), 30)
    master.of(object)
    master.hear(1, msg.SubtaskFailed(stage=0, execution=1, error=BROKEN), 1_000)
    master(TimePassed(), 1_100)
    deploys = {(slot, each.stage): each.recovered for slot in (0, 1) for each in master.of(msg.Deploy, slot)}
    assert {key: [msgspec.structs.astuple(each)[1:] for each in got] for key, got in deploys.items()} == {
        (0, 0): [], (1, 0): [], (0, 1): [(0, False), (0, False), (1, False)], (1, 1): [(0, False)],
    }  # fmt: skip
