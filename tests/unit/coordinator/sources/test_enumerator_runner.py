"""What a runner does for an enumerator, and what it does not let pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from headgate.connectors.kafka.split import KafkaSplit, KafkaState
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner, SlowWork
from headgate.errors import ConnectorContractError, DataLossError, OptionError, SourceError, SourceUnavailableError
from headgate.protocol.state import SplitState
from headgate.source.enumerator import Boundedness
from headgate.source.events import SourceEvent
from headgate.source.serialization import VersionedSerializer
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.unit.connectors.kafka.partitions_source import Cluster, PartitionsSource
from tests.unit.coordinator.sources.toy_sources import (
    SPLITS,
    STATES,
    PulledReportedToySource,
    PushedToySource,
    ToyEnumerator,
    ToySource,
    ToySplit,
    ToyState,
)


class Hello(SourceEvent, frozen=True, kw_only=True):
    """An event of a connector's own."""

    text: str


class Scripted(ToyEnumerator):
    """Does what the test says when a reader asks for a split."""

    script: Callable[[Scripted], None] = lambda self: None

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        type(self).script(self)

    def add_reader(self, subtask: int) -> None:
        pass

    def add_splits_back(self, splits: Sequence[ToySplit], subtask: int) -> None:
        self.context.assign_splits({1: splits})

    def serve(self) -> None:
        pass

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        pass

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        self.context.send_event_to_source_reader(subtask, event)


def state_of(*splits: ToySplit) -> bytes:
    return STATES.serialize(ToyState(known=tuple(each.split_id for each in splits), pending=splits, discovered=True))


def runner(
    source: ToySource, state: bytes | None = None, parallelism: int = 2
) -> tuple[EnumeratorRunner, list[SlowWork]]:
    work: list[SlowWork] = []
    made = EnumeratorRunner(
        source,
        "uid",
        incarnation=3,
        boundedness=Boundedness.BOUNDED,
        schema=source.schema(),
        parallelism=parallelism,
        state=state,
        checkpoint_id=0,
        call_async=work.append,
    )
    return made, work


def scripted(script: Callable[[Scripted], None]) -> EnumeratorRunner:
    source = ToySource([])
    source.enumerator = type("Script", (Scripted,), {"script": script})
    made, _ = runner(source)
    made.start()
    for subtask in (0, 1):
        made.call(src.AddReader(subtask, "h"))
    return made


def ask(made: EnumeratorRunner) -> list[Any]:
    return list(made.reported(made.call(src.HandleSplitRequest(0, "h"))))


def stored(split: ToySplit) -> SplitState:
    return SplitState(split.split_id, SPLITS.serialize(split))


A, B = ToySplit(split_id="a"), ToySplit(split_id="b")


def test_what_it_says_comes_in_order_as_the_coordinator_takes_it() -> None:
    def script(of: Scripted) -> None:
        of.context.assign_splits({0: [A], 1: []})
        of.context.send_event_to_source_reader(0, Hello(text="hi"))
        of.context.signal_no_more_splits(0)

    assigned, sent, no_more = ask(scripted(script))
    assert assigned == src.SplitsAssigned(3, {0: (stored(A),)})
    assert pickle.loads(sent.payload) == Hello(text="hi")
    assert no_more == src.NoMoreSplitsSignalled(3, 0)


def test_events_of_readers_reach_it_and_readers_can_be_forgotten() -> None:
    made = scripted(lambda of: None)
    sent, handled = made.reported(made.call(src.HandleSourceEvent(1, pickle.dumps(Hello(text="ho")))))
    assert handled == src.SourceEventHandled(3, 1)
    assert isinstance(sent, src.EventSent)
    assert made.reported(made.call(src.ForgetReader(1))) == [src.ReaderForgotten(3, 1)]
    assert list(made.readers) == [0]
    assert made.reported(made.call(src.ForgetReader(7))) == [src.ReaderForgotten(3, 7)]


class Bounded(Scripted):
    """Has work of a certain time that nobody has; a reader that comes is given some of it."""

    times: tuple[object, ...] = ()
    """One for each time that it is asked."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked = 0

    def unassigned_event_time_ms(self) -> Any:
        self.asked += 1
        return type(self).times[min(self.asked, len(type(self).times)) - 1]

    def add_reader(self, subtask: int) -> None:
        self.context.assign_split(A, subtask)


def bounded(*times: object) -> tuple[EnumeratorRunner, list[SlowWork]]:
    source = ToySource([])
    source.enumerator = type("Script", (Bounded,), {"times": times})
    return runner(source)


def test_what_is_unassigned_is_reported_after_what_was_assigned_and_only_when_it_changed() -> None:
    made, work = bounded(MIN_WATERMARK_MS, MIN_WATERMARK_MS, 70, 70, None)
    assert made.start() == [src.EnumeratorStarted(3), src.UnassignedChanged(3, MIN_WATERMARK_MS)]
    assert made.call(src.HandleSplitRequest(0, "h")) == []
    _, changed = made.finish(work[0], [], None)
    assert changed == src.UnassignedChanged(3, 70)
    assert made.call(src.SnapshotEnumerator(1))[1:] == []
    assigned, reported, added = made.reported(made.call(src.AddReader(0, "h")))
    assert assigned == src.SplitsAssigned(3, {0: (stored(A),)})
    assert (reported, added) == (src.UnassignedChanged(3, None), src.ReaderAdded(3, 0)), "a newcomer hears this first"


def test_a_source_that_knows_nothing_says_so_once() -> None:
    made = scripted(lambda of: None)
    restarted, _ = bounded(None)
    assert restarted.start()[1:] == [src.UnassignedChanged(3, None)]
    assert ask(made) == []
    assert made.call(src.AddReader(1, "h")) == [src.ReaderAdded(3, 1)]


@pytest.mark.parametrize("time", [1.5, "now", 2**63, -(2**63) - 1])
def test_what_is_no_time_fails_the_enumerator_and_not_the_driver(time: object) -> None:
    made, _ = bounded(time)
    with pytest.raises(ConnectorContractError, match="broke its contract in unassigned_event_time_ms"):
        raise pickle.loads(made.reported(made.start())[-1].error.pickled)  # type: ignore[union-attr, arg-type]


def test_slow_work_is_handed_out_and_a_changed_state_is_reported_once() -> None:
    made, work = runner(ToySource([A, B]))
    assert made.reported(made.start())[0] == src.EnumeratorStarted(3)
    (found,) = work
    changed, _ = made.reported(made.finish(found, found.work(), None))
    assert isinstance(changed, src.EnumeratorStateChanged)
    assert [split.split_id for split in STATES.deserialize(changed.state).pending] == ["a", "b"]
    assert made.reported(made.finish(found, found.work(), None)) == []


def test_a_snapshot_comes_after_what_was_assigned_before_it() -> None:
    made, _ = runner(ToySource([A, B]), state_of(A, B))
    made.start()
    made.call(src.AddReader(0, "h"))
    outputs = made.call(src.HandleSplitRequest(0, "h"))
    outputs += [*made.call(src.SnapshotEnumerator(4)), *made.call(src.HandleSplitRequest(0, "h"))]
    first, snapshot, second = made.reported(outputs)
    assert isinstance(snapshot, src.EnumeratorSnapshotted)
    assert snapshot.checkpoint_id == 4
    assert [split.split_id for split in STATES.deserialize(snapshot.state).pending] == ["a"]
    assert (first, second) == (
        src.SplitsAssigned(3, {0: (stored(B),)}),
        src.SplitsAssigned(3, {0: (stored(A),)}),
    )


def test_a_state_after_slow_work_is_taken_as_for_the_next_checkpoint() -> None:
    """A connector may forget what the checkpoint of that number holds once it is complete."""
    asked = []

    class Noting(Scripted):
        def snapshot_state(self, checkpoint_id: int) -> ToyState:
            asked.append(checkpoint_id)
            return super().snapshot_state(checkpoint_id)

    source = ToySource([])
    source.enumerator = Noting
    made, work = runner(source)
    made.start()
    made.call(src.SnapshotEnumerator(7))
    made.finish(work[0], [], None)
    assert asked == [7, 8]


def test_reported_splits_are_in_the_info_of_a_reader() -> None:
    made, _ = runner(PushedToySource([A]), state_of(), parallelism=1)
    made.start()
    (assigned,) = made.reported(made.call(src.AddReader(0, "h", (stored(A),))))[:1]
    assert assigned == src.SplitsAssigned(3, {0: (stored(A),)})
    assert made.readers[0].reported_splits_on_registration == (A,)
    made.call(src.ForgetReader(0))
    # It holds nothing now but what it reports: the same split again is not a contradiction.
    assert made.reported(made.call(src.AddReader(0, "h", (stored(A),))))[0] == assigned


def test_a_report_does_not_take_a_split_from_the_reader_that_was_just_given_it() -> None:
    """The coordinator had not heard of the assignment when the report came (found by the simulator)."""
    made = scripted(lambda of: of.context.assign_split(A, 1))
    ask(made)

    made.call(src.AddReader(0, "h", (stored(A), stored(B))))
    assert made.readers[0].reported_splits_on_registration == (B,)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (lambda of: of.context.assign_split(A, 5), r"reader 5 is not registered, only \[0, 1\] are"),
        (lambda of: of.context.assign_splits({0: [A], 1: [A]}), "goes to 1, but reader 0 has it"),
        (lambda of: (of.context.assign_split(A, 1), of.context.assign_split(A, 0)), "goes to 0, but reader 1 has it"),
        (lambda of: (of.context.signal_no_more_splits(0), of.context.assign_split(A, 0)), "promised no more splits"),
        (lambda of: of.context.signal_no_more_splits(4), "reader 4 is not registered"),
        (lambda of: of.context.send_event_to_source_reader(4, Hello(text="")), "reader 4 is not registered"),
    ],
)
def test_a_broken_promise_fails_the_enumerator(script: Callable[[Scripted], None], why: str) -> None:
    made = scripted(script)
    failed = ask(made)[-1]
    with pytest.raises(ConnectorContractError, match=why):
        raise pickle.loads(failed.error.pickled)
    assert failed.error.facts["source"] == "uid"
    assert made.failed
    assert ask(made) == [], "it is not called again"


def test_finished_and_given_back_splits_may_be_assigned_again() -> None:
    made = scripted(lambda of: of.context.assign_split(A, 0))
    ask(made)
    made.call(src.NotifySplitsFinished(("a",)))
    assert ask(made) == [src.SplitsAssigned(3, {0: (stored(A),)})]
    assigned, back = made.reported(made.call(src.AddSplitsBack(0, (stored(A),))))
    assert assigned == src.SplitsAssigned(3, {1: (stored(A),)})
    assert back == src.SplitsTakenBack(3, 0)


def test_what_came_back_after_its_end_comes_back_before_readers_have_it_again() -> None:
    split = ToySplit(split_id="s0")
    state = STATES.serialize(ToyState(known=("s0",), ended=("s0",), discovered=True))
    source = PulledReportedToySource([split])
    made = EnumeratorRunner(
        source,
        "uid",
        incarnation=3,
        boundedness=Boundedness.BOUNDED,
        schema=source.schema(),
        parallelism=2,
        state=state,
        checkpoint_id=0,
        call_async=lambda work: None,
        assigned={0: (stored(split),)},
        returned={1: (stored(split),)},
    )
    assert made.reported(made.start())[0] == src.EnumeratorStarted(3, took_assignments=True)
    (snapshotted,) = made.reported(made.call(src.SnapshotEnumerator(1)))
    assert isinstance(snapshotted, src.EnumeratorSnapshotted)
    assert STATES.deserialize(snapshotted.state).pending == ()


def test_whatever_raises_fails_the_enumerator() -> None:
    def raising(of: Scripted) -> None:
        raise OSError("no such topic")

    (failed,) = ask(scripted(raising))
    assert (failed.incarnation, failed.error.error_type, failed.error.message) == (3, "OSError", "no such topic")
    assert "in raising" in failed.error.traceback
    made, _ = runner(ToySource([]), b"not a state")
    (failed,) = made.reported(made.start())
    assert isinstance(failed, src.EnumeratorFailed)
    assert failed.error.error_type == "CorruptStateError"
    made, work = runner(ToySource([]))
    made.start()
    (failed,) = made.reported(made.finish(work[0], None, ValueError("discovery")))
    assert isinstance(failed, src.EnumeratorFailed)
    assert failed.error.message == "discovery"


@pytest.mark.parametrize("is_final", [True, False])
def test_an_error_says_whether_trying_again_is_worth_it(is_final: bool) -> None:
    made, work = runner(ToySource([]))
    made.start()
    (failed,) = made.reported(made.finish(work[0], None, SourceUnavailableError("no broker", final=is_final)))
    assert isinstance(failed, src.EnumeratorFailed)
    assert failed.error.final == is_final


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_a_connector_fails_the_enumerator_and_not_its_thread(error: BaseException) -> None:
    def exiting(of: Any) -> None:
        raise error

    (failed,) = ask(scripted(exiting))
    assert (failed.incarnation, failed.error.error_type) == (3, type(error).__name__)

    class Serializer(VersionedSerializer[ToyState]):
        def serialize(self, value: ToyState) -> bytes:
            raise error

    class Source(ToySource):
        state_serializer = Serializer(ToyState, version=1, what="a state")

    made, _ = runner(Source([]))
    made.start()
    (failed,) = made.reported(made.call(src.SnapshotEnumerator(1)))
    assert isinstance(failed, src.EnumeratorFailed) and failed.error.error_type == type(error).__name__


def test_a_state_that_cannot_be_serialised_fails_it_where_it_is_serialised() -> None:
    class Odd(Scripted):
        def snapshot_state(self, checkpoint_id: int) -> ToyState:
            return ToyState(known=(object(),))  # type: ignore[arg-type]

    source = ToySource([])
    source.enumerator = Odd
    made, _ = runner(source)
    made.start()
    (failed,) = made.reported(made.call(src.SnapshotEnumerator(1)))
    assert isinstance(failed, src.EnumeratorFailed)


def test_an_error_that_cannot_be_pickled_is_reported_all_the_same() -> None:
    def raising(of: Scripted) -> None:
        raise ValueError(lambda: None)

    (failed,) = ask(scripted(raising))
    assert failed.error.pickled is None
    assert failed.error.error_type == "ValueError"


@pytest.mark.parametrize(
    "error, at_the_start, later",
    [
        (OptionError("no such topic", option="subscribe"), True, True),
        (SourceError("access denied"), True, False),
        (DataLossError("records are gone"), True, True),
        (SourceUnavailableError("away"), False, False),
        (OSError("away"), False, False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_only_what_the_user_must_mend_is_not_tried_again(error: Exception, at_the_start: bool, later: bool) -> None:
    for state, is_final in ((None, at_the_start), (state_of(A), later)):
        source = ToySource([A])
        source.enumerator = type("Failing", (Scripted,), {"start": lambda _: raise_(error)})
        made, _ = runner(source, state)
        (failed,) = made.reported(made.start())
        assert isinstance(failed, src.EnumeratorFailed)
        assert failed.error.final == is_final


def raise_(error: Exception) -> None:
    raise error


class Listing(Scripted):
    """Lists again and again, and can do with errors."""

    def start(self) -> None:
        self.context.call_async(self.look, lambda _, __: None, period_ms=1000)

    def look(self) -> None:
        pass


def test_slow_work_that_failed_is_tried_again_soon_then_less_often_and_its_failures_are_reported() -> None:
    source = ToySource([])
    source.enumerator = Listing
    made, handed_out = runner(source)
    made.start()
    (work,) = handed_out
    waits, failures = [], []
    for _ in range(7):
        failures.append(made.reported(made.finish(work, None, OSError("away")))[-1])
        waits.append(made.next_run_ms(work))
    assert waits == [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert failures[1] == src.SlowWorkTried(3, "Listing.look", 2, "OSError: away")
    assert made.reported(made.finish(work, None, None)) == [src.SlowWorkTried(3, "Listing.look", 0)]
    assert made.next_run_ms(work) == 1000
    assert made.reported(made.finish(work, None, None)) == []


def test_work_that_is_made_anew_for_each_try_is_known_by_its_name() -> None:
    def work() -> SlowWork:
        return SlowWork(lambda: None, lambda _, __: None, 0, None)

    made, _ = runner(ToySource([]), state_of(A))
    made.start()
    failed = made.reported(made.finish(work(), None, OSError("away")))[-1]
    succeeded = made.reported(made.finish(work(), None, None))[-1]
    assert (failed.failures, succeeded.failures) == (1, 0)  # type: ignore[union-attr]
    assert failed.name == succeeded.name == "test_work_that_is_made_anew_for_each_try_is_known_by_its_name"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["nobody", "reported", "held", "finished"])
def test_a_split_that_no_reader_has_after_a_recovery_is_named_before_a_checkpoint_forgets_it(how: str) -> None:
    source = PartitionsSource(Cluster(rides=[9, 9]), {"subscribe": "rides", "startingOffsets": "earliest"})
    state = KafkaState(initial_discovery_finished=True, assigned={"rides": ((0, 0), (1, 1))}, parallelism=2)
    made = EnumeratorRunner(
        source, "kafka", incarnation=1, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, schema=source.schema(),
        parallelism=2, state=source.state_serializer.serialize(state), checkpoint_id=5, call_async=lambda work: None,
    )  # fmt: skip

    def split(partition: int) -> SplitState:
        each = KafkaSplit(split_id=f"rides-{partition}", topic="rides", partition=partition, position=7)
        return SplitState(each.split_id, source.split_serializer.serialize(each))

    made.start()
    made.call(src.AddReader(0, "here", (split(0),)))
    (taken,) = made.reported(made.call(src.SnapshotEnumerator(6)))
    assert isinstance(taken, src.EnumeratorSnapshotted), "reader 1 has yet to register"
    made.call(src.AddReader(1, "here", (split(1),) if how == "reported" else (), ("rides-1",) if how == "held" else ()))
    if how == "finished":
        made.call(src.NotifySplitsFinished(("rides-1",)))
    outcome = made.reported(made.call(src.SnapshotEnumerator(7)))[-1]
    if how != "nobody":
        assert isinstance(outcome, src.EnumeratorSnapshotted)
        return
    assert isinstance(outcome, src.EnumeratorFailed) and outcome.error.final
    assert "restored with splits that no reader has: 'rides-1'. Their rows would not be read" in outcome.error.message
