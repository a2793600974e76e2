"""A subtask's output: the table first, then what exactly-once hangs on, against a model that knows where rows are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import Barrier, Buffer, ChannelId, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.task.exchange.result_partition import (
    Action,
    BarrierEmitted,
    CheckpointGivenUp,
    ConsumerConnected,
    CreditGranted,
    Event,
    EventEmitted,
    PartitionTimePassed,
    ResultPartition,
    RowsEmitted,
    StoreChannels,
    Transmit,
)
from tests.machines import Later, explore


def rows(name: str, size_bytes: int = 10) -> Buffer:
    return Buffer([name], 1, size_bytes)


def unaligned(checkpoint_id: int, timeout_ms: int = 0) -> BarrierEmitted:
    return BarrierEmitted(Barrier(checkpoint_id=checkpoint_id, unaligned=True, alignment_timeout_ms=timeout_ms))


def aligned(checkpoint_id: int) -> BarrierEmitted:
    return BarrierEmitted(Barrier(checkpoint_id=checkpoint_id))


def partition(*events: Event, consumers: int = 1, supports_unaligned: bool = True) -> ResultPartition:
    made = ResultPartition("keys", 0, range(consumers), supports_unaligned=supports_unaligned)
    for event in events:
        made.handle(event, 0)
    return made


def summary(actions: list[Action]) -> list[Any]:
    """What is sent, in short (rows' names, barriers' numbers, other events), and what is stored, as (number, names)."""
    short: list[Any] = []
    for action in actions:
        match action:
            case Transmit(_, Buffer() as buffer):
                short.append(buffer.rows[0])
            case Transmit(_, Barrier(checkpoint_id=checkpoint_id)):
                short.append(checkpoint_id)
            case Transmit(_, event):
                short.append(event)
            case StoreChannels(checkpoint_id, channels):
                names = {channel.consumer: [each.rows[0] for each in stored] for channel, stored in channels.items()}
                short.append((checkpoint_id, names))
    return short


CONNECTED, CREDIT = ConsumerConnected(0), CreditGranted(0, 1)
A, B, C = (RowsEmitted(0, rows(name)) for name in "abc")
TIME = PartitionTimePassed()


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""

    def events(machine: ResultPartition) -> Iterator[Event | Later]:
        newest = machine._newest_checkpoint
        yield CONNECTED
        yield CREDIT
        yield A
        yield EventEmitted(WatermarkPassed(5))
        yield EventEmitted(ProducerEnded())
        yield aligned(newest + 1)
        yield unaligned(newest + 1)
        yield unaligned(newest + 1, timeout_ms=10)
        yield CheckpointGivenUp(newest)
        yield TIME
        yield Later(TIME, by_ms=10)

    explore(partition, events, depth=6, limit=1_500)


def test_rows_wait_for_connection_and_credit_and_leave_in_order() -> None:
    """A consumer that connects late gets everything, in order, and never more than it has granted."""
    made = partition(A, B, EventEmitted(ProducerIdle()), C)
    assert (made.queued_buffers, made.queued_bytes) == (3, 30)
    assert summary(made.handle(CreditGranted(0, 2), 0)) == []
    assert summary(made.handle(CONNECTED, 0)) == ["a", "b", ProducerIdle()]
    assert (made.queued_buffers, made.queued_bytes) == (1, 10)
    assert summary(made.handle(CREDIT, 0)) == ["c"]
    assert (made.queued_buffers, made.queued_bytes) == (0, 0)


def test_what_waits_in_all_queues_is_counted_together() -> None:
    """Memory is bounded for all consumers together, however many there are."""
    made = partition(A, B, RowsEmitted(1, rows("x", 15)), consumers=2)
    assert (made.queued_buffers, made.queued_bytes) == (3, 35)
    made.handle(CONNECTED, 0)
    made.handle(CREDIT, 0)
    assert (made.queued_buffers, made.queued_bytes) == (2, 25)


def test_events_pass_without_credit_but_not_before_rows() -> None:
    """An event at the head leaves at once; one after rows leaves with them."""
    made = partition(CONNECTED)
    assert summary(made.handle(EventEmitted(WatermarkPassed(1)), 0)) == [WatermarkPassed(1)]
    assert summary(made.handle(A, 0)) == []
    assert summary(made.handle(EventEmitted(WatermarkPassed(2)), 0)) == []
    assert summary(made.handle(CREDIT, 0)) == ["a", WatermarkPassed(2)]


def test_an_unaligned_barrier_passes_blocked_rows_and_stores_them() -> None:
    """What it passed is a copy: stored with the checkpoint, and sent all the same."""
    made = partition(CONNECTED, ConsumerConnected(1), A, B, consumers=2)
    assert summary(made.handle(unaligned(1), 0)) == [1, 1, (1, {0: ["a", "b"]})]
    assert summary(made.handle(CreditGranted(0, 2), 0)) == ["a", "b"]


def test_the_stored_channels_are_named_by_exchange_and_both_ends() -> None:
    """Channel state has its channel's identity."""
    [stored] = partition(A).handle(unaligned(1), 0)
    assert stored == StoreChannels(1, {ChannelId("keys", 0, 0): (A.buffer,)})


def test_an_unaligned_barrier_of_an_unconnected_consumer_is_stored_at_once() -> None:
    """A checkpoint does not wait for a consumer: the barrier leaves first when that comes."""
    made = partition(CREDIT, A)
    assert summary(made.handle(unaligned(1), 0)) == [(1, {0: ["a"]})]
    assert summary(made.handle(B, 0)) == []
    assert summary(made.handle(unaligned(2), 0)) == [(2, {0: ["a", "b"]})]
    assert summary(made.handle(CONNECTED, 0)) == [1, 2, "a"]


def test_an_aligned_barrier_keeps_its_place() -> None:
    """It stores nothing, and is answered when it has left every queue."""
    made = partition(CONNECTED, ConsumerConnected(1), A, consumers=2)
    assert summary(made.handle(aligned(1), 0)) == [1]
    assert summary(made.handle(B, 0)) == []
    assert summary(made.handle(CreditGranted(0, 2), 0)) == ["a", 1, (1, {}), "b"]


def test_rows_of_an_exchange_that_cannot_be_passed_are_not() -> None:
    """Unaligned is per connection (FLINK-37870)."""
    made = partition(CONNECTED, A, supports_unaligned=False)
    assert summary(made.handle(unaligned(1, timeout_ms=5), 0)) == []
    assert made.next_time_ms() is None
    assert summary(made.handle(CREDIT, 0)) == ["a", 1, (1, {})]


def test_a_barrier_with_a_timeout_keeps_its_place_until_it_is_over() -> None:
    """Then it passes what was before it, not what came after it, and is sent on without the timeout."""
    made = partition(CONNECTED, CREDIT)
    assert summary(made.handle(A, 100)) == ["a"]
    made.handle(B, 100)
    assert summary(made.handle(unaligned(1, timeout_ms=50), 100)) == []
    made.handle(C, 101)
    assert made.next_time_ms() == 150
    assert summary(made.handle(TIME, 149)) == []
    actions = made.handle(TIME, 150)
    assert summary(actions) == [1, (1, {0: ["b"]})]
    assert actions[0] == Transmit(0, Barrier(checkpoint_id=1, unaligned=True))
    assert made.next_time_ms() is None
    assert summary(made.handle(CreditGranted(0, 5), 150)) == ["b", "c"]


def test_a_barrier_that_leaves_in_time_stores_nothing() -> None:
    """Where rows flow an unaligned checkpoint is as small as an aligned one."""
    made = partition(CONNECTED, A, unaligned(1, timeout_ms=50))
    assert summary(made.handle(CREDIT, 10)) == ["a", 1, (1, {})]
    assert made.next_time_ms() is None


def test_a_timeout_counts_for_each_queue_by_itself() -> None:
    """Where the barrier has left nothing is stored, where it has not what it passes is."""
    made = partition(CONNECTED, ConsumerConnected(1), A, RowsEmitted(1, rows("x")), unaligned(1, 50), consumers=2)
    assert summary(made.handle(CreditGranted(1, 1), 10)) == ["x", 1]
    assert summary(made.handle(TIME, 50)) == [1, (1, {0: ["a"]})]


def test_an_aborted_barrier_is_taken_out() -> None:
    """Nothing is stored or timed for it any longer, and what came after it flows."""
    made = partition(CONNECTED, A, unaligned(1, timeout_ms=50), B)
    assert summary(made.handle(CheckpointGivenUp(1), 0)) == []
    assert made.next_time_ms() is None
    assert summary(made.handle(CreditGranted(0, 2), 0)) == ["a", "b"]
    assert summary(made.handle(unaligned(2), 0)) == [2, (2, {})]


@pytest.mark.parametrize(
    "event",
    [
        CONNECTED,
        ConsumerConnected(7),
        CreditGranted(0, 0),
        RowsEmitted(7, rows("a")),
        A,
        EventEmitted(WatermarkPassed(1)),
        EventEmitted(Barrier(checkpoint_id=9)),
        aligned(3),
    ],
)
def test_what_cannot_have_happened_is_refused(event: Event) -> None:
    """The error has the history, and nothing has changed."""
    made = partition(CONNECTED, aligned(3), EventEmitted(ProducerEnded()))
    with pytest.raises(InvalidTransitionError) as caught:
        made.handle(event, 0)
    assert caught.value.facts["history"] and "keys" in str(caught.value)


class Model:
    """Where rows are, in the simplest way: per consumer what was emitted, what was sent, what each checkpoint owns."""

    def __init__(self, consumers: int, supports_unaligned: bool) -> None:
        self.machine = partition(consumers=consumers, supports_unaligned=supports_unaligned)
        self.consumers = range(consumers)
        self.now_ms = 0
        self.emitted: dict[int, list[Any]] = {each: [] for each in self.consumers}
        self.sent: dict[int, list[Any]] = {each: [] for each in self.consumers}
        self.credits = dict.fromkeys(self.consumers, 0)
        self.connected: set[int] = set()
        self.before: dict[int, dict[int, int]] = {}  # how many rows were emitted before each barrier
        self.sent_before: dict[int, dict[int, int]] = {}  # how many were sent before it
        self.stored: dict[int, dict[int, list[Any]]] = {}
        self.given_up: set[int] = set()
        self.number = itertools.count(1)

    def emit(self, consumer: int) -> None:
        self.emitted[consumer].append(name := f"{consumer}-{next(self.number)}")
        self.handle(RowsEmitted(consumer, rows(name)))

    def emit_event(self) -> None:
        event = WatermarkPassed(next(self.number))
        for each in self.consumers:
            self.emitted[each].append(event)
        self.handle(EventEmitted(event))

    def barrier(self, checkpoint_id: int, kind: str) -> None:
        self.before[checkpoint_id] = {each: len(self.emitted[each]) for each in self.consumers}
        self.sent_before[checkpoint_id] = {}
        self.handle(
            {"aligned": aligned(checkpoint_id), "timed": unaligned(checkpoint_id, 10)}.get(
                kind, unaligned(checkpoint_id)
            )
        )

    def give_up(self, checkpoint_id: int) -> None:
        self.given_up.add(checkpoint_id)
        self.handle(CheckpointGivenUp(checkpoint_id))

    def grant(self, consumer: int, credits: int) -> None:
        self.credits[consumer] += credits
        self.handle(CreditGranted(consumer, credits))

    def connect(self, consumer: int) -> None:
        self.connected.add(consumer)
        self.handle(ConsumerConnected(consumer))

    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.handle(TIME)
        due = self.machine.next_time_ms()
        assert due is None or due > self.now_ms

    def handle(self, event: Event) -> None:
        for action in self.machine.handle(event, self.now_ms):
            match action:
                case Transmit(consumer, Barrier(checkpoint_id=checkpoint_id)):
                    assert consumer in self.connected
                    assert consumer not in self.sent_before[checkpoint_id], "sent twice"
                    assert checkpoint_id not in self.given_up
                    self.sent_before[checkpoint_id][consumer] = len(self.sent[consumer])
                case Transmit(consumer, Buffer() as buffer):
                    assert consumer in self.connected and self.credits[consumer] > 0
                    self.credits[consumer] -= 1
                    self.sent[consumer].append(buffer.rows[0])
                case Transmit(consumer, element):
                    assert consumer in self.connected
                    self.sent[consumer].append(element)
                case StoreChannels(checkpoint_id, channels):
                    assert checkpoint_id not in self.stored and checkpoint_id not in self.given_up
                    assert all(channels.values())
                    self.stored[checkpoint_id] = {
                        key.consumer: [each.rows[0] for each in found] for key, found in channels.items()
                    }
        self.machine.check()

    def check(self) -> None:
        """What is sent is what was emitted, in order; and each checkpoint has exactly what stood before its barrier."""
        for consumer in self.consumers:
            assert self.sent[consumer] == self.emitted[consumer][: len(self.sent[consumer])]
        for checkpoint_id, stored in self.stored.items():
            if checkpoint_id in self.given_up:
                continue  # after it was answered
            for consumer in self.consumers:
                at = self.sent_before[checkpoint_id].get(consumer)
                if at is None:  # it is to leave first, so that nothing can be sent before it
                    assert consumer not in self.connected
                    at = len(self.sent[consumer])
                promised = only_rows(self.emitted[consumer][: self.before[checkpoint_id][consumer]])
                assert only_rows(self.sent[consumer][:at]) + stored.get(consumer, []) == promised

    def drain(self) -> None:
        """Everybody connects and takes everything: all is sent, and every checkpoint is answered."""
        for consumer in self.consumers:
            if consumer not in self.connected:
                self.connect(consumer)
            self.grant(consumer, len(self.emitted[consumer]) + 1)
        assert self.sent == self.emitted
        assert set(self.stored) >= set(self.before) - self.given_up
        assert self.machine.queued_buffers == self.machine.queued_bytes == 0
        assert self.machine.next_time_ms() is None
        self.check()


def only_rows(elements: list[Any]) -> list[Any]:
    return [each for each in elements if isinstance(each, str)]


def run(model: Model, steps: list[tuple[str, int]]) -> None:
    newest = 0
    for name, number in steps:
        consumer = number % len(model.consumers)
        match name:
            case "rows":
                model.emit(consumer)
            case "event":
                model.emit_event()
            case "credit":
                model.grant(consumer, 1 + number % 3)
            case "connect":
                if consumer not in model.connected:
                    model.connect(consumer)
            case "time":
                model.pass_time(1 + number * 3)
            case "abort":
                model.give_up(max(0, newest - number % 2))
            case kind:
                newest += 1
                model.barrier(newest, kind)
        model.check()
    model.drain()


STEPS = ("rows", "event", "credit", "connect", "time", "abort", "aligned", "unaligned", "timed")


@pytest.mark.parametrize("supports_unaligned", [True, False])
def test_every_short_story_with_one_consumer(supports_unaligned: bool) -> None:
    """Exhaustive: each checkpoint stores exactly what stood before its barrier and was not sent before it."""
    names = [name for name in STEPS if supports_unaligned or name not in ("time", "timed")]
    for story in itertools.product(names, repeat=4):
        run(Model(1, supports_unaligned), [("rows", 0), ("rows", 0), *((name, 0) for name in story)])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from((*STEPS, "rows", "rows", "credit")), st.integers(0, 5)), max_size=40),
)
def test_long_stories_with_several_consumers(consumers: int, steps: list[tuple[str, int]]) -> None:
    """The same, with barriers of all kinds after one another, late consumers, timeouts and aborts."""
    run(Model(consumers, True), steps)
