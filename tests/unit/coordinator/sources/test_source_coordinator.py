"""The coordinator of a source: its table, what must hold in any order of events, and short stories."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import (
    AssignedRecord,
    FinishedRecord,
    GivenAgainRecord,
    GivenBackRecord,
    NoMoreSplitsRecord,
    RegisteredRecord,
    SourceEventRecord,
    StateRecord,
)
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.coordinator.sources.source_state import SourceState, decode_source_state, encode_source_state
from headgate.errors import CorruptStateError, InvalidTransitionError, UnsupportedVersionError
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, InFlightRows, InlineState, SplitState
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.machines import Later, explore
from tests.unit.coordinator.sources.source_world import World
from tests.unit.coordinator.sources.toy_sources import PulledReportedToySource, PushedToySource, ToySource, ToySplit

A, B = SplitState("a", b"a"), SplitState("b", b"b")
ERROR = msg.ErrorReport(error_type="OSError", message="gone")


def machine(**options: Any) -> SourceCoordinator:
    return SourceCoordinator("uid", **{"reassigns_on_recovery": False, "parallelism": 2, **options})


def registered(subtask: int = 0, execution: int = 1, reported: tuple[SplitState, ...] = ()) -> src.FromReader:
    message = msg.ReaderRegistered(stage=0, execution=execution, source="uid", host="h", reported_splits=reported)
    return src.FromReader(subtask, message)


def requested(subtask: int = 0, execution: int = 1) -> src.FromReader:
    return src.FromReader(subtask, msg.SplitRequested(stage=0, execution=execution, source="uid", host="h"))


def sent_event(payload: bytes = b"e", subtask: int = 0) -> src.FromReader:
    return src.FromReader(subtask, msg.EventToEnumerator(stage=0, execution=1, source="uid", payload=payload))


def finished(*split_ids: str, subtask: int = 0) -> src.FromReader:
    ends = tuple(FinishedSplit(split_id, number) for number, split_id in enumerate(split_ids, 1))
    return src.FromReader(subtask, msg.SplitsFinished(stage=0, execution=1, source="uid", finished=ends))


def reported(incarnation: int, highest_number: int = 0, subtask: int = 0, **more: Any) -> src.FromReader:
    message = msg.SourceReported(
        stage=0, execution=1, source="uid", host="h", incarnation=incarnation, highest_number=highest_number, **more
    )
    return src.FromReader(subtask, message)


def kind(of: SourceCoordinator, event: src.Event) -> str:
    return type(event).__name__


# -- the table ------------------------------------------------------------------------------------------------------


def events(of: SourceCoordinator) -> Iterator[src.Event | Later]:
    """Yield what may come: one reader, one split, an older enumerator's words, and answers to what was ordered."""
    current = of._shared.incarnation
    if of.state in ("new", "failed") or (of.state != "closed" and len(of._history) < 3):
        yield src.SourceStarted()
        yield src.SourceStarted(1, encode_source_state(SourceState(b"s", ("a",))), ("done",))
    yield src.SourceClosed()
    if of.state == "new" or (of.state == "closed" and len(of._history) > 3):
        return
    reader = of._readers.get(0)
    if reader is None:
        yield registered()
        yield registered(reported=(A,))
    elif of.state == "recovering":
        yield reported(current - 1)
    elif of.state == "running":
        yield reported(current, request_pending=True)
        yield reported(current, finished=(FinishedSplit("z", 1),))
    yield requested()
    if reader is not None and not reader.reported_until and len(of._history) < 5:
        yield finished("z")
    if of._shared.events.handled:
        yield src.SourceEventHandled(current, 0)
        return
    if of._log.is_broken or len(of._history) == (3 if of.state == "recovering" else 2):
        yield sent_event()  # without a log it leaves no trace: there are enough machines as it is
    if reader is None or reader.state != "failed":
        yield src.ReaderFailed(0, of._completed)
    if reader is not None and reader._work is not None and of.state == "running":  # another one fails beside it
        other = of._readers.get(1)
        if other is None:
            yield registered(subtask=1)
        elif other.state == "registered":
            yield src.ReaderFailed(1, of._completed)
    for incarnation in (current, current - 1):
        yield src.EnumeratorFailed(incarnation, ERROR)
        if incarnation != current or reader is None or not reader._admitted:
            yield src.ReaderAdded(incarnation, 0)
        if incarnation != current:
            yield src.SourceEventHandled(incarnation, 0)
        if incarnation != current or of._work.reported is None:
            yield src.UnassignedChanged(incarnation, 7)
        elif reader is not None and reader._work is not None and not len(of._shared.outbox):
            yield src.UnassignedChanged(incarnation, 9)
        yield src.EnumeratorSnapshotted(incarnation, of._completed + 1, b"s")
        if reader is None or incarnation != current:
            yield src.EnumeratorStateChanged(incarnation, b"t")
            yield src.SlowWorkTried(incarnation, "listing", 1, "gone")
            for for_ms in (400, 1000, 1700):
                yield src.EnumeratorBusy(incarnation, (src.BusyCall("add_reader", for_ms),))
        if (reader is not None and reader.state != "reporting") or incarnation != current:
            if (
                "a" in of._shared.splits_back.swallowed
                or (not len(of._shared.splits_back.tracker) and not of._shared.splits_back.parked)
                or incarnation != current
            ):
                yield src.SplitsAssigned(incarnation, {0: (A,)})
            yield src.NoMoreSplitsSignalled(incarnation, 0)
            yield src.EventSent(incarnation, 0, b"e")
        if (reader is not None and reader.state == "failed") or incarnation != current:
            yield src.ReaderForgotten(incarnation, 0)
            yield src.SplitsTakenBack(incarnation, 0)
    if of.state == "running":
        yield Later(src.SourceTimePassed(), by_ms=1)
    for took in (False, True):
        yield src.EnumeratorStarted(current, took)
    yield src.LogAppended(of._log._ordered)
    yield src.LogAppendFailed(of._log.number, "full")
    yield src.LogAppendFailed(of._log._first_number - 1, "late")
    first = StateRecord(None, of._completed)
    assigned = AssignedRecord(0, 1, 1, (A,))
    logs = ((first, assigned, FinishedRecord(0, ())), (first, assigned, GivenBackRecord(0, 0)), (first,), None)
    for records in logs:
        yield src.LogLoaded(records, "corrupt", current)
    yield src.LogLoaded(None, "late", current - 1)
    yield src.CheckpointStarted(of._completed + 1)
    for checkpoint_id in (of._completed, of._completed + 1):
        yield src.BarriersSent(checkpoint_id)
        yield src.SourceCheckpointAborted(checkpoint_id)
    yield src.SourceCheckpointCompleted(of._completed)


WITH_WORK_UNASSIGNED = (
    src.SourceStarted(),
    registered(),
    src.ReaderAdded(1, 0),
    src.UnassignedChanged(1, 7),
    src.LogAppended(1),
)
"""A reader that is notified of what no reader has: those who join, fail and wait beside it are as well."""
IN_A_CHECKPOINT = (
    src.SourceStarted(),
    registered(),
    src.CheckpointStarted(1),
    src.EnumeratorSnapshotted(1, 1, b"s"),
    src.LogAppendFailed(2, "full"),
    src.SplitsAssigned(1, {0: (A,)}),
)
"""A reader's split, which no log can have, waits for its barrier."""
RESTORED = (
    src.SourceStarted(),
    registered(),
    src.EnumeratorFailed(1, ERROR),
    src.LogAppended(1),
    src.LogLoaded((StateRecord(None, 0), AssignedRecord(0, 1, 1, (A,))), "", 2),
)
"""The reader did not hear of the split that the log gives it."""


def test_the_table_is_what_the_machine_does() -> None:
    explore(
        lambda: machine(parallelism=50, reassigns_on_recovery=True, stuck_timeout_ms=1500),
        events,
        depth=7,
        limit=9000,
        ignore=("_watch", "_recoveries", "_quiet_until_ms", "incarnation"),
        begin_with=[WITH_WORK_UNASSIGNED, IN_A_CHECKPOINT, RESTORED],
    )


def test_no_watermark_passes_what_a_reader_that_is_away_may_report() -> None:
    """A split that it had may come to any reader: also to one that heard that nothing is unassigned."""
    made = machine(reassigns_on_recovery=True)

    def announced(event: src.Event) -> dict[int, int | None]:
        actions = [*made.handle(event, 0), *made.handle(src.LogAppended(made._log._ordered), 0)]
        sent = [each for each in actions if isinstance(each, src.SendToReader)]
        return {
            each.subtask: each.message.event_time_ms for each in sent if isinstance(each.message, msg.UnassignedWork)
        }

    made.handle(src.SourceStarted(1, encode_source_state(SourceState(b"s", ()))), 0)
    made.handle(registered(), 0)
    assert announced(src.UnassignedChanged(1, None)) == {}
    assert announced(src.ReaderAdded(1, 0)) == {0: MIN_WATERMARK_MS}
    made.handle(registered(1, reported=(A,)), 0)
    assert announced(src.UnassignedChanged(1, 7)) == {}
    assert announced(src.ReaderAdded(1, 1)) == {0: 7, 1: 7}
    assert announced(src.ReaderFailed(1, 1)) == {0: MIN_WATERMARK_MS}
    assert announced(src.UnassignedChanged(1, 9)) == {}
    announced(src.ReaderForgotten(1, 1))
    announced(src.SplitsTakenBack(1, 1))
    announced(registered(1, execution=2, reported=(A,)))
    assert announced(src.ReaderFailed(1, 1)) == {}
    assert announced(src.ReaderAdded(1, 1)) == {}, "of the execution that failed meanwhile"


def test_an_event_without_a_row_is_refused_with_what_was_before() -> None:
    made = machine()
    with pytest.raises(InvalidTransitionError, match="uid is new and cannot take LogAppended"):
        made.handle(src.LogAppended(1), 0)
    made.handle(src.SourceStarted(), 0)
    made.handle(registered(), 5)
    with pytest.raises(InvalidTransitionError, match="registered in execution 1") as raised:
        made.handle(registered(execution=2), 6)
    assert raised.value.history == ("0 ms: new SourceStarted -> running", "5 ms: running ReaderRegistered -> running")


# -- any order of events, with the real runner ----------------------------------------------------------------------

SUBTASKS = st.integers(0, 2)


class AnyOrder(RuleBasedStateMachine):
    """Invariant 1: each split is in exactly one place, in every completed checkpoint; and each row is there once."""

    @initialize(
        kind=st.sampled_from([ToySource, PushedToySource, PulledReportedToySource]),
        keeps=st.booleans(),
        parallelism=st.integers(1, 3),
        children=st.lists(st.booleans(), max_size=5),
    )
    def begin(self, kind: type[ToySource], keeps: bool, parallelism: int, children: list[bool]) -> None:
        splits = [ToySplit(split_id=f"s{n}", child=f"c{n}" if child else "") for n, child in enumerate(children)]
        self.world = World(kind(splits), parallelism, keeps_subtask=keeps)

    @rule(subtask=SUBTASKS, step=st.sampled_from(["to_reader", "from_reader", "read"]), times=st.integers(1, 4))
    def reader(self, subtask: int, step: str, times: int) -> None:
        for _ in range(times):
            getattr(self.world, f"step_{step}")(subtask)

    @rule(step=st.sampled_from(["enumerator", "work", "hear", "log"]), times=st.integers(1, 4))
    def coordinator(self, step: str, times: int) -> None:
        for _ in range(times):
            getattr(self.world, f"step_{step}")()

    @rule(step=st.sampled_from(["checkpoint", "barriers", "abort", "crash"]))
    def checkpoint(self, step: str) -> None:
        getattr(self.world, f"step_{step}")()

    @rule()
    def everything(self) -> None:
        self.world.drain()

    @rule(subtask=SUBTASKS)
    def fail_reader(self, subtask: int) -> None:
        self.world.step_fail_reader(subtask)

    @rule()
    def lose_log(self) -> None:
        self.world.step_log(fails=True)

    @rule(parallelism=st.integers(1, 3))
    def restart(self, parallelism: int) -> None:
        self.world.restart(parallelism)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            assert set(self.world.failures) <= {"planned"}, "an enumerator received something impossible"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


LOST_SPLITS = (3198, 9478, 13189, 27035, 27891)
"""Schedules in which an enumerator failed again before it was given what a failed reader had."""


def test_hundreds_of_schedules_settle() -> None:
    for seed in (*range(600), *LOST_SPLITS):
        run_schedule(seed)


def run_schedule(seed: int) -> None:
    """Take some steps, faults among them, and settle. A failure replays with its seed."""
    chosen = random.Random(seed)
    children = [chosen.random() < 0.3 for _ in range(chosen.randint(1, 6))]
    splits = [ToySplit(split_id=f"s{n}", child=f"c{n}" if child else "") for n, child in enumerate(children)]
    source = chosen.choice([ToySource, PushedToySource, PulledReportedToySource])(splits)
    world = World(source, chosen.randint(1, 3), keeps_subtask=chosen.random() < 0.3)
    for _ in range(chosen.choice([40, 100, 200])):
        subtask = chosen.randrange(world.parallelism)
        weights = (3, 3, 1, 1, 1, 7, 10, 11, 11, 11, 11, 11, 11, 11)
        (step,) = chosen.choices(
            (
                partial(world.step_fail_reader, subtask), world.step_crash, partial(world.step_log, fails=True),
                partial(world.restart, chosen.randint(1, 3)), world.step_abort, world.step_checkpoint,
                world.step_barriers, world.step_enumerator, world.step_hear, world.step_log, world.step_work,
                partial(world.step_to_reader, subtask), partial(world.step_read, subtask),
                partial(world.step_from_reader, subtask),
            ), weights,
        )  # fmt: skip
        step()
    world.settle()
    assert set(world.failures) <= {"planned"}, "an enumerator received something impossible"


# -- assignments and the log ----------------------------------------------------------------------------------------


def running(**options: Any) -> SourceCoordinator:
    made = machine(**options)
    made.handle(src.SourceStarted(), 0)
    made.handle(src.LogAppended(1), 0)
    for subtask in range(2):
        made.handle(registered(subtask), 0)
    return made


def handled(made: SourceCoordinator, *happened: src.Event) -> list[Any]:
    actions: list[Any] = []
    for event in happened:
        actions = made.handle(event, 0)
        made.check()
    return actions


def assign_message(*splits: SplitState, number: int = 1) -> msg.AssignSplits:
    return msg.AssignSplits(stage=0, execution=1, source="uid", number=number, splits=splits)


def test_an_assignment_is_logged_before_it_is_sent() -> None:
    made = running()
    assert handled(made, src.SplitsAssigned(1, {0: (A,), 1: (B,)})) == [
        src.AppendLog(0, 3, (AssignedRecord(0, 1, 1, (A,)), AssignedRecord(1, 1, 1, (B,))))
    ]
    assert handled(made, src.LogAppended(2)) == []
    assert handled(made, src.LogAppended(3)) == [
        src.SendToReader(0, assign_message(A)),
        src.SendToReader(1, assign_message(B)),
    ]


def test_the_state_for_a_checkpoint_waits_for_what_was_assigned_before_and_holds_back_what_follows() -> None:
    made = running()
    handled(made, src.CheckpointStarted(1), src.SplitsAssigned(1, {0: (A,)}))
    assert handled(made, src.EnumeratorSnapshotted(1, 1, b"s"), src.SplitsAssigned(1, {1: (B,)})) == []
    append, sent, ready = handled(made, src.LogAppended(2))
    state = StateRecord(encode_source_state(SourceState(b"s")), 1)
    assert append == src.AppendLog(1, 4, (state, AssignedRecord(1, 1, 1, (B,)))), "what waited is written together"
    assert sent == src.SendToReader(0, assign_message(A))
    assert isinstance(ready, src.EnumeratorStateReady)
    assert decode_source_state(ready.state).enumerator == b"s"
    assert handled(made, src.BarriersSent(1)) == []
    assert handled(made, src.LogAppended(4)) == [src.SendToReader(1, assign_message(B))]


@pytest.mark.parametrize("over", [src.BarriersSent, src.SourceCheckpointAborted])
def test_what_is_held_back_goes_when_a_checkpoint_is_aborted_too(over: Any) -> None:
    made = running()
    handled(made, src.CheckpointStarted(1), src.EnumeratorSnapshotted(1, 1, b"s"), src.EventSent(1, 0, b"e"))
    assert handled(made, src.LogAppended(2)) == []
    (sent,) = handled(made, over(1))
    assert sent.message.payload == b"e"
    assert handled(made, src.CheckpointStarted(2)) == [src.CallEnumerator(1, src.SnapshotEnumerator(2))]


def test_a_state_that_comes_after_its_checkpoint_was_aborted_says_nothing() -> None:
    made = running()
    handled(made, src.CheckpointStarted(1), src.SourceCheckpointAborted(1))
    assert handled(made, src.EnumeratorSnapshotted(1, 1, b"s")) == []


def test_without_a_log_assignments_go_on_until_the_enumerator_fails() -> None:
    made = running()
    handled(made, src.SplitsAssigned(1, {0: (A,)}))
    assert handled(made, src.LogAppendFailed(2, "full")) == [src.SendToReader(0, assign_message(A))]
    assert handled(made, src.SplitsAssigned(1, {0: (B,)})) == [src.SendToReader(0, assign_message(B, number=2))]
    stop, failover = handled(made, src.EnumeratorFailed(1, ERROR))
    assert (stop, failover) == (src.StopEnumerator(1), src.RequestGlobalFailover(ERROR))


def test_what_waits_is_written_before_the_log_is_read() -> None:
    made = running()
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.SplitsAssigned(1, {1: (B,)}))
    append, load = handled(made, src.EnumeratorFailed(1, ERROR))
    assert (append, load) == (src.AppendLog(0, 3, (AssignedRecord(1, 1, 1, (B,)),)), src.LoadLog(0, 3, 2))
    assert handled(made, src.LogAppended(2), sent_event(b"1")) == [], "while that is under way"
    assert [type(each) for each in handled(made, src.LogAppended(3))] == [src.AppendLog]


def test_a_snapshot_makes_the_log_whole_again_once_its_checkpoint_is_complete() -> None:
    made = running()
    handled(made, src.LogAppendFailed(1, "full"), src.CheckpointStarted(1))
    append, _ = handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))
    assert isinstance(append, src.AppendLog)
    handled(made, src.LogAppended(append.number), src.BarriersSent(1), src.SourceCheckpointCompleted(1))
    assert handled(made, src.EnumeratorFailed(1, ERROR)) == [src.LoadLog(1, append.number, 2)]


# -- a reader fails -------------------------------------------------------------------------------------------------


def test_a_failed_reader_is_forgotten_then_its_splits_go_back_and_then_it_may_come_again() -> None:
    made = running()
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.LogAppended(2))
    assert handled(made, src.ReaderFailed(0, 0)) == [src.CallEnumerator(1, src.ForgetReader(0))]
    # Was under way when it was forgotten; the other's pull is served meanwhile.
    assert [type(each) for each in handled(made, src.SplitsAssigned(1, {0: (B,)}))] == [src.AppendLog]
    assert handled(made, src.LogAppended(3)) == []
    assert handled(made, requested(1)) == [src.CallEnumerator(1, src.HandleSplitRequest(1, "h"))]
    assert handled(made, src.ReaderForgotten(1, 0)) == [src.CallEnumerator(1, src.AddSplitsBack(0, (A, B)))]
    append, reset = handled(made, src.SplitsTakenBack(1, 0))
    assert isinstance(append, src.AppendLog)
    assert reset == src.ReaderReset(0)
    assert handled(made, registered(execution=3)) == [src.CallEnumerator(1, src.AddReader(0, "h"))]


def test_what_a_completed_checkpoint_holds_does_not_go_back() -> None:
    made = running()
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.CheckpointStarted(1), src.EnumeratorSnapshotted(1, 1, b"s"))
    handled(made, src.LogAppended(2), src.LogAppended(3), src.BarriersSent(1), src.SplitsAssigned(1, {0: (B,)}))
    assert handled(made, src.SourceCheckpointCompleted(1)) == [
        src.DropLog(1),
        src.CallEnumerator(1, src.NotifyEnumerator(1)),
    ]
    handled(made, src.ReaderFailed(0, 1))
    assert handled(made, src.ReaderForgotten(1, 0)) == [src.CallEnumerator(1, src.AddSplitsBack(0, (B,)))]


def test_with_event_time_splits_of_a_failed_reader_wait_for_it() -> None:
    made = running(keeps_subtask=True)
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.LogAppended(2), src.ReaderFailed(0, 0))
    assert handled(made, src.ReaderForgotten(1, 0)) == [src.CallEnumerator(1, src.AddSplitsBack(0, ()))]
    handled(made, src.SplitsTakenBack(1, 0))
    assert handled(made, src.CheckpointStarted(1)) == [src.CheckpointRefused(1, "splits wait for the readers [0]")]
    append, add = handled(made, src.LogAppended(3), registered(execution=3))
    assert append == src.AppendLog(0, 4, (AssignedRecord(0, 3, 1, (A,)),))
    assert add == src.CallEnumerator(1, src.AddReader(0, "h", held=("a",)))


def test_a_reader_has_one_open_request_although_it_was_given_what_waited_for_it() -> None:
    """One could be answered with "no more splits" and the next one with a split that came back in between."""
    made = running(keeps_subtask=True)
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.LogAppended(2), src.ReaderFailed(0, 0))
    handled(made, src.ReaderForgotten(1, 0), src.SplitsTakenBack(1, 0), registered(execution=3))
    asks = src.CallEnumerator(1, src.HandleSplitRequest(0, "h"))
    assert handled(made, requested(execution=3)) == [asks], "it had not received them"
    assert handled(made, requested(execution=3)) == [], "it has read them"
    handled(made, src.NoMoreSplitsSignalled(1, 0))
    assert handled(made, requested(execution=3)) == [], "it had not received the promise"


def test_a_reader_that_asked_and_was_given_a_split_may_ask_again() -> None:
    made = running()
    asks = src.CallEnumerator(1, src.HandleSplitRequest(0, "h"))
    assert handled(made, requested()) == [asks]
    handled(made, src.SplitsAssigned(1, {0: (A,)}))
    assert handled(made, requested()) == [asks]


def test_a_reader_that_never_came_has_nothing_to_give_back() -> None:
    made = machine()
    handled(made, src.SourceStarted())
    assert handled(made, src.ReaderFailed(1, 0)) == [src.ReaderReset(1)]


# -- ends -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_knows_the_ends_reported_before_its_snapshot_was_ordered() -> None:
    """FLINK-37627: the rest stay in the reader's state."""
    made = running()
    handled(made, finished("a", "b"), src.LogAppended(2), src.CheckpointStarted(1))
    handled(made, finished("a", "b", "c"), src.LogAppended(3))
    ready = handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))[-1]
    assert ready.finished_known == {0: 2}


# -- the enumerator fails -------------------------------------------------------------------------------------------


def recovered(made: SourceCoordinator, *records: Any) -> list[src.Action]:
    handled(made, src.EnumeratorFailed(1, ERROR))
    return handled(made, src.LogLoaded((StateRecord(None, 0), *records), "", 2))


def test_a_restored_enumerator_hears_of_readers_when_they_have_reported_what_they_have() -> None:
    made = running()
    report = msg.ReportSource(stage=0, execution=1, source="uid", incarnation=2)
    assert recovered(made) == [
        src.StartEnumerator(2, None, 0),
        src.SendToReader(0, report),
        src.SendToReader(1, report),
    ]
    refused = handled(made, src.CheckpointStarted(1))
    assert refused == [src.CheckpointRefused(1, "reader 0 has not reported yet what it has")]
    assert handled(made, reported(2, request_pending=True)) == [
        src.CallEnumerator(2, src.AddReader(0, "h")),
        src.CallEnumerator(2, src.HandleSplitRequest(0, "h")),
    ]


def test_what_is_logged_and_did_not_arrive_is_sent_again() -> None:
    made = running()
    logged = [AssignedRecord(0, 1, 1, (A,)), AssignedRecord(0, 1, 2, (B,)), NoMoreSplitsRecord(0)]
    recovered(made, *logged)
    assert handled(made, reported(2, 1, held=("a",))) == [
        src.CallEnumerator(2, src.AddReader(0, "h", held=("a", "b"))),
        src.SendToReader(0, assign_message(B, number=2)),
        src.SendToReader(0, msg.NoMoreSplits(stage=0, execution=1, source="uid")),
    ]


def test_what_a_reader_has_is_not_assigned_twice_and_its_request_is_asked_again() -> None:
    made = running()
    recovered(made, AssignedRecord(0, 1, 1, (A,)))
    handled(made, reported(2, 1, request_pending=True))
    assert handled(made, src.SplitsAssigned(2, {0: (A,)})) == [src.CallEnumerator(2, src.HandleSplitRequest(0, "h"))]
    (append,) = handled(made, src.SplitsAssigned(2, {0: (B,)}))
    assert append.records == (AssignedRecord(0, 1, 2, (B,)),)


def test_what_a_failed_reader_had_is_not_lost_when_a_restored_enumerator_fails_before_it_was_given_it() -> None:
    """Its state may be logged in between: that it looked for splits again, say."""
    made = running()
    log: list[Any] = [StateRecord(encode_source_state(SourceState(b"without a")), 0), GivenBackRecord(0, 0)]
    log.insert(0, AssignedRecord(0, 1, 1, (A,)))
    again = src.CallEnumerator(2, src.AddSplitsBack(0, (A,)))
    assert again in recovered(made, *log)

    (append,) = handled(made, src.EnumeratorStateChanged(2, b"still without a"))
    log += append.records
    assert log[-1] == GivenAgainRecord(0, (A,))
    handled(made, src.EnumeratorFailed(2, ERROR))
    restored = handled(made, src.LogLoaded((StateRecord(None, 0), *log), "", 3))
    assert src.CallEnumerator(3, again.call) in restored


def test_what_a_restored_enumerator_was_given_is_in_its_states_and_not_given_to_the_next_one() -> None:
    made = running()
    log: list[Any] = [AssignedRecord(0, 1, 1, (A,)), StateRecord(encode_source_state(SourceState(b"without a")), 0)]
    log += [GivenBackRecord(0, 0), StateRecord(encode_source_state(SourceState(b"still without a")))]
    log += [GivenAgainRecord(0, (A,))]
    recovered(made, *log)
    handled(made, src.SplitsTakenBack(2, 0))
    (append,) = handled(made, src.EnumeratorStateChanged(2, b"with a"))
    assert append.records == (StateRecord(encode_source_state(SourceState(b"with a"))),)

    handled(made, src.EnumeratorFailed(2, ERROR))
    restored = handled(made, src.LogLoaded((StateRecord(None, 0), *log, *append.records), "", 3))
    assert not [each for each in restored if isinstance(each, src.CallEnumerator)]


def test_an_event_is_logged_before_it_is_handled_and_again_after_a_state_that_does_not_know_it() -> None:
    made = running()
    append, call = handled(made, sent_event(b"1"))
    assert append.records == (SourceEventRecord(0, b"1"),)
    assert call == src.CallEnumerator(1, src.HandleSourceEvent(0, b"1"))
    durable(made)
    handled(made, src.CheckpointStarted(1), sent_event(b"2"), src.SourceEventHandled(1, 0))
    durable(made)
    append, _ = handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))
    assert append.records[1:] == (SourceEventRecord(0, b"2"),), "the snapshot was ordered before it came"
    with pytest.raises(InvalidTransitionError, match="no event of that reader"):
        handled(made, src.SourceEventHandled(1, 1))


def test_a_restored_enumerator_gets_the_events_that_its_state_does_not_know_once_their_reader_is_back() -> None:
    made = running()
    handled(made, src.EnumeratorFailed(1, ERROR))
    (append,) = handled(made, sent_event(b"2"))
    assert append.records == (SourceEventRecord(0, b"2"),)
    handled(made, src.LogLoaded((StateRecord(None, 0), SourceEventRecord(0, b"1")), "", 2), sent_event(b"3"))
    assert handled(made, reported(2)) == [
        src.CallEnumerator(2, src.AddReader(0, "h")),
        *(src.CallEnumerator(2, src.HandleSourceEvent(0, payload)) for payload in (b"1", b"2", b"3")),
    ]


def test_ends_reported_in_between_are_reported_again() -> None:
    made = running()
    ends = (FinishedSplit("a", 1),)
    _, notify, *_ = recovered(made, AssignedRecord(0, 1, 1, (A,)), FinishedRecord(0, ends))
    assert notify == src.CallEnumerator(2, src.NotifySplitsFinished(("a",)))
    assert src.CallEnumerator(2, src.NotifySplitsFinished(("a",))) in handled(made, reported(2, 1, finished=ends))


def test_ends_of_a_reader_that_failed_since_are_not_reported_it_reads_to_them_again() -> None:
    """Else children of shards are assigned while their parents are read again."""
    ends = FinishedRecord(0, (FinishedSplit("a", 1),))
    for given_back in ((), (GivenBackRecord(0, 0),)):
        made = running()
        if not given_back:
            handled(made, src.ReaderFailed(0, 0))
        ordered = recovered(made, AssignedRecord(0, 1, 1, (A,)), ends, *given_back)
        assert not [each for each in ordered if isinstance(getattr(each, "call", None), src.NotifySplitsFinished)]


def test_a_split_that_came_back_after_its_end_is_with_a_reader_for_a_restored_enumerator_too() -> None:
    """Its state knows the end: else children of a shard are assigned while the shard is read again."""
    made = running(reassigns_on_recovery=True)
    log: list[Any] = [AssignedRecord(0, 1, 1, (A,)), FinishedRecord(0, (FinishedSplit("a", 1),))]
    log += [StateRecord(encode_source_state(SourceState(b"a ended"))), GivenBackRecord(0, 0)]
    log += [AssignedRecord(1, 1, 1, (A,))]
    assert recovered(made, *log) == [src.StartEnumerator(2, b"a ended", 0, {}, {1: (A,)}, {0: (A,)})]

    handled(made, src.EnumeratorStarted(2, took_assignments=True), src.EnumeratorFailed(2, ERROR))
    log += [GivenBackRecord(1, 0)]
    start, again = handled(made, src.LogLoaded((StateRecord(None, 0), *log), "", 3))[:2]
    assert (start.assigned, start.returned) == ({}, {})
    assert again == src.CallEnumerator(3, src.AddSplitsBack(1, (A,)))


def test_a_checkpoint_says_which_splits_of_a_restored_enumerator_are_with_readers() -> None:
    made = running()
    recovered(made, AssignedRecord(0, 1, 1, (A,)))
    handled(made, reported(2, 1), reported(2, 0, subtask=1), src.CheckpointStarted(1))
    ready = handled(made, src.EnumeratorSnapshotted(2, 1, b"s"))[-1]
    assert decode_source_state(ready.state) == SourceState(b"s", ("a",))
    again = machine()
    handled(again, src.SourceStarted(1, ready.state), registered())
    handled(again, requested())
    assert handled(again, src.SplitsAssigned(1, {0: (A,)})) == [src.CallEnumerator(1, src.HandleSplitRequest(0, "h"))]


@pytest.mark.parametrize(
    "records", [None, (), (StateRecord(b"1not a state", 0),), (AssignedRecord(0, 1, 1, (A,)),), (StateRecord(None, 7),)]
)
def test_an_unusable_log_is_a_global_failover(records: Any) -> None:
    made = running()
    handled(made, src.EnumeratorFailed(1, ERROR))
    stop, failover = handled(made, src.LogLoaded(records, "", 2))
    assert stop == src.StopEnumerator(2)
    assert "write-ahead log cannot be used" in failover.error.message
    assert handled(made, src.CheckpointStarted(1))[0].checkpoint_id == 1
    assert made.state == "failed"


def test_an_enumerator_that_fails_again_and_again_is_a_global_failover() -> None:
    made = running()
    for incarnation in (1, 2, 3):
        handled(
            made, src.EnumeratorFailed(incarnation, ERROR), src.LogLoaded((StateRecord(None, 0),), "", incarnation + 1)
        )
    assert handled(made, src.EnumeratorFailed(4, ERROR))[-1] == src.RequestGlobalFailover(ERROR)


def test_splits_after_the_promise_of_an_enumerator_before_are_a_global_failover() -> None:
    made = running()
    recovered(made, NoMoreSplitsRecord(0))
    handled(made, reported(2, 0))
    failover = handled(made, src.SplitsAssigned(2, {0: (A,)}))[-1]
    assert "there are no more splits" in failover.error.message


def busy(seconds: float, name: str = "add_reader", **of_it: Any) -> src.EnumeratorBusy:
    return src.EnumeratorBusy(1, (src.BusyCall(name, round(seconds * 1000), **of_it),))


def test_a_method_that_does_not_return_is_warned_of_and_then_the_enumerator_is_restored() -> None:
    made = running(stuck_timeout_ms=6000)
    handled(made, src.ReaderFailed(1, 0))
    warnings = {second: handled(made, busy(second)) for second in range(1, 7)}
    assert [second for second, actions in warnings.items() if actions] == [2, 4]
    (warning,) = warnings[4]
    assert warning.text == (
        "add_reader of the source 'uid' has not returned for 4 s: nothing is assigned, no checkpoint completes, the "
        "failed readers [1] are not restarted until it does"
    )
    assert made.troubles() == (warning.text.replace("4 s", "6 s"),)
    assert handled(made, busy(7)) == [src.LoadLog(0, 1, 2)]
    assert made.troubles() == ()
    restored = handled(made, src.LogLoaded((StateRecord(None, 0),), "", 2))
    assert src.CallEnumerator(2, src.ForgetReader(1)) in restored, "the reader that failed meanwhile gets on"


def test_a_method_that_never_returns_ends_in_a_global_failover_with_its_name() -> None:
    made = running(stuck_timeout_ms=1000)
    handled(made, src.LogAppendFailed(1, "full"))
    failover = handled(made, busy(1.5, "snapshot_state"))[-1]
    assert failover.error.error_type == "ConnectorContractError"
    assert "snapshot_state of the source 'uid' has not returned for 1 s (task.stuck.timeout)" in failover.error.message


def test_slow_work_may_take_longer_and_is_shown_and_restarted_too() -> None:
    made = running(stuck_timeout_ms=3000)
    slow = [handled(made, busy(second, "Pages.splits", is_slow_work=True)) for second in range(1, 61)]
    warned = [second for second, actions in enumerate(slow, 1) if actions]
    assert warned == [3, 6, 12, 24, 48]
    assert "no new splits are found meanwhile; readers continue with their splits" in made.troubles()[0]
    assert handled(made, busy(61, "Pages.splits", is_slow_work=True)) == [src.LoadLog(0, 1, 2)]


def test_a_process_that_was_stopped_and_a_call_that_returned_are_not_stuck() -> None:
    made = running(stuck_timeout_ms=6000)
    handled(made, busy(1))
    assert [type(action) for action in handled(made, busy(3600))] == [src.WarnOfEnumerator]
    for _ in range(20):
        assert handled(made, busy(1)) == [], "another call of the same name each time"
    handled(made, busy(1), src.EnumeratorBusy(1, ()))
    assert made.troubles() == ()


def test_failing_discovery_is_shown_until_it_succeeds() -> None:
    made = running()
    handled(
        made, src.SlowWorkTried(1, "Pages.splits", 1, "OSError: away"), src.SlowWorkTried(1, "Pages.splits", 2, "no")
    )
    assert made.troubles() == ("Pages.splits failed 2 times in a row and is retried: no",)
    handled(made, src.SlowWorkTried(1, "Pages.splits", 0))
    assert made.troubles() == ()


def test_what_keeps_an_enumerator_is_not_shown_of_the_next_one() -> None:
    made = running()
    handled(made, src.SlowWorkTried(1, "Pages.splits", 1, "OSError: away"), src.SourceStarted())
    assert made.troubles() == ()


# -- durable bytes --------------------------------------------------------------------------------------------------


def test_the_state_of_a_source_survives_and_its_golden_bytes_are_read() -> None:
    state = SourceState(b"enumerator", ("a", "b"), {1: (A,)})
    assert decode_source_state(encode_source_state(state)) == state
    assert decode_source_state(bytes.fromhex(GOLDEN_STATE)) == state


GOLDEN_STATE = "3193c40a656e756d657261746f7292a161a16281019182a873706c69745f6964a161a464617461c40161"


def test_other_bytes_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        decode_source_state(b"2...")
    for data in (b"", b"1", b"{", b"1\x93"):
        with pytest.raises(CorruptStateError):
            decode_source_state(data)


# -- reports --------------------------------------------------------------------------------------------------------


def test_a_state_taken_before_a_report_was_heard_of_does_not_swallow_it() -> None:
    """FLINK-40469's window, inside of the coordinator: the report is logged again after that state."""
    made = machine(reassigns_on_recovery=True)
    handled(made, src.SourceStarted())
    durable(made)
    handled(made, registered(reported=(A,)))
    durable(made)
    (append,) = handled(made, src.EnumeratorStateChanged(1, b"older"))
    assert append.records[1:] == (RegisteredRecord(0, 1, (A,)),)
    durable(made)
    handled(made, src.ReaderAdded(1, 0))
    (append,) = handled(made, src.EnumeratorStateChanged(1, b"newer"))
    assert append.records[1:] == ()


def test_what_another_reader_was_given_since_is_no_part_of_a_report() -> None:
    """FLIP-537, section 3: reader 0 reports what reader 1 has by now."""
    made = running(reassigns_on_recovery=True)
    handled(made, src.SplitsAssigned(1, {1: (B,)}), src.ReaderFailed(0, 0), src.ReaderForgotten(1, 0))
    handled(made, src.SplitsTakenBack(1, 0))
    assert handled(made, registered(execution=3, reported=(A, B)))[-1] == src.CallEnumerator(
        1, src.AddReader(0, "h", (A,))
    )


# -- rows in flight -------------------------------------------------------------------------------------------------

IN_FLIGHT = InFlightRows(handle=InlineState(b"rows"), buffers=1, rows=3, size_bytes=24)
WITH_ROWS = SplitState("a", b"a", IN_FLIGHT)
ENDED = SplitState("b", b"b", IN_FLIGHT, ended=True)


def durable(made: SourceCoordinator) -> list[src.Action]:
    """Return what follows when all that was logged is durable."""
    actions: list[src.Action] = []
    while made._log.durable < made._log.number:
        actions += handled(made, src.LogAppended(made._log._ordered))
    return actions


def given(actions: list[src.Action]) -> dict[int, tuple[SplitState, ...]]:
    """Return what is sent to readers, or logged to be sent."""
    records = [record for each in actions if isinstance(each, src.AppendLog) for record in each.records]
    return {record.subtask: record.splits for record in records if isinstance(record, AssignedRecord)}


def test_rows_in_flight_go_with_their_split_through_the_enumerator_which_does_not_know_of_them() -> None:
    made = running(reassigns_on_recovery=True)
    handled(made, src.ReaderFailed(0, 0), src.ReaderForgotten(1, 0), src.SplitsTakenBack(1, 0))
    handled(made, registered(execution=3, reported=(WITH_ROWS, ENDED)))
    durable(made)
    moved_on = SplitState("a", b"later")  # an enumerator may make its own splits of those that it was given
    assert given(handled(made, src.SplitsAssigned(1, {1: (moved_on,)}))) == {1: (SplitState("a", b"later", IN_FLIGHT),)}
    durable(made)
    assert given(handled(made, src.SplitsAssigned(1, {0: (SplitState("b", b"b"),)}))) == {0: (ENDED,)}


def test_rows_in_flight_of_a_split_that_is_taken_back_go_to_its_next_reader() -> None:
    made = running(reassigns_on_recovery=True)
    handled(made, src.ReaderFailed(0, 0), src.ReaderForgotten(1, 0), src.SplitsTakenBack(1, 0))
    handled(made, registered(execution=3, reported=(WITH_ROWS,)), src.SplitsAssigned(1, {1: (A,)}))
    handled(made, src.ReaderFailed(1, 0))
    (back,) = handled(made, src.ReaderForgotten(1, 1))
    assert back == src.CallEnumerator(1, src.AddSplitsBack(1, (WITH_ROWS,)))
    handled(made, src.SplitsTakenBack(1, 1))
    durable(made)
    assert given(handled(made, src.SplitsAssigned(1, {0: (A,)}))) == {0: (WITH_ROWS,)}


def test_a_checkpoint_holds_rows_in_flight_of_splits_that_nobody_has_yet() -> None:
    """FLINK-40469's window: else they would be in no state, although the position is after them."""
    made = machine(reassigns_on_recovery=True)
    handled(made, src.SourceStarted(), registered(reported=(WITH_ROWS,)), registered(subtask=1))
    handled(made, src.ReaderAdded(1, 0), src.ReaderAdded(1, 1), src.CheckpointStarted(1))
    handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))
    (ready,) = [each for each in durable(made) if isinstance(each, src.EnumeratorStateReady)]
    assert ready.unassigned == (WITH_ROWS,)
    again = machine(reassigns_on_recovery=True)
    handled(again, src.SourceStarted(1, ready.state, (), ready.unassigned), registered(), registered(subtask=1))
    durable(again)
    assert given(handled(again, src.SplitsAssigned(1, {1: (A,)}))) == {1: (WITH_ROWS,)}
    handled(again, src.ReaderAdded(1, 0), src.ReaderAdded(1, 1), src.CheckpointStarted(2))
    handled(again, src.EnumeratorSnapshotted(1, 2, b"s"))
    assert [each.unassigned for each in durable(again) if isinstance(each, src.EnumeratorStateReady)] == [()]


def test_watermarks_are_held_while_rows_in_flight_are_unassigned() -> None:
    made = machine(reassigns_on_recovery=True)
    handled(made, src.SourceStarted(), registered(reported=(WITH_ROWS,)), registered(subtask=1))

    def heard(*events: src.Event) -> list[int | None]:
        actions = [*handled(made, *events), *durable(made)]
        messages = [each.message for each in actions if isinstance(each, src.SendToReader)]
        return [each.event_time_ms for each in messages if isinstance(each, msg.UnassignedWork)]

    heard(src.ReaderAdded(1, 0), src.ReaderAdded(1, 1))
    assert set(heard(src.UnassignedChanged(1, 500))) == {MIN_WATERMARK_MS}
    assert heard(src.SplitsAssigned(1, {1: (A,)})) == [500, 500]
