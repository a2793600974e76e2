"""Both ends of a channel in one slot, without a socket: their calls, in which order, and what never follows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from headgate.errors import InternalError, TransportError
from headgate.protocol.channels import Buffer, ChannelId, Element, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.transport.channel_ends import OfferedChannel, OrderedCalls
from headgate.transport.local_link import LocalConsumer

CHANNEL = ChannelId("key-by-1", 0, 3)
SCHEMA = pa.schema([("number", pa.int64())])


class Ends:
    """Both ends of a channel, with one record of the calls of both. ``on_call`` may answer one."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.on_call: Callable[[object], None] = lambda call: None
        self.over = 0
        self.offered = OfferedChannel(CHANNEL, 1, SCHEMA, _Producer(self), self._on_over)
        self.consumer = LocalConsumer(CHANNEL, 1, SCHEMA, _Consumer(self), self._on_over)

    def _on_over(self, end: object) -> None:
        self.over += 1

    def note(self, call: object) -> None:
        self.calls.append(call)
        self.on_call(call)


class _Producer:
    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def on_connected(self) -> None:
        self._ends.note("producer connected")

    def on_credit(self, credits: int) -> None:
        self._ends.note(credits)

    def on_broken(self, error: TransportError) -> None:
        self._ends.note(("producer broken", error.reason))


class _Consumer:
    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def on_connected(self) -> None:
        self._ends.note("consumer connected")

    def on_element(self, element: Element) -> None:
        self._ends.note(element)

    def on_broken(self, error: TransportError) -> None:
        self._ends.note(("consumer broken", error.reason))


def test_calls_made_from_a_call_wait_for_its_end() -> None:
    """A deep chain of answers is not a deep stack, and order is that of queueing."""
    made: list[int] = []
    calls = OrderedCalls(lambda error: None)

    def call(number: int) -> None:
        if number < 5000:
            calls.queue(call, number + 1)
            calls.make()
        made.append(number)

    calls.queue(call, 0)
    calls.make()
    assert made == list(range(5001))


def test_nothing_follows_the_last_call_a_stop_or_a_failure() -> None:
    failures: list[Exception] = []
    made: list[int] = []

    def fail() -> None:
        raise ValueError("a call that fails")

    for end in ("last", "stop", "failure"):
        calls = OrderedCalls(failures.append)
        calls.queue(made.append, 1)
        if end == "last":
            calls.queue(made.append, 2, last=True)
        elif end == "stop":
            calls.make()
            calls.stop()
        else:
            calls.queue(fail)
        calls.queue(made.append, 3)
        calls.make()
        calls.make()
    assert made == [1, 2, 1, 1]
    assert [str(each) for each in failures] == ["a call that fails"]


def test_early_elements_and_credits_follow_the_connection() -> None:
    ends = Ends()
    ends.offered.send(WatermarkPassed(1))
    ends.consumer.grant(2)
    ends.consumer.grant(3)
    ends.offered.send(ProducerIdle())
    assert not ends.calls
    assert ends.offered.attach(ends.consumer) is None
    assert ends.calls == ["producer connected", 5, "consumer connected", WatermarkPassed(1), ProducerIdle()]


def test_an_answer_to_an_element_reaches_the_producer_and_its_answer_the_consumer() -> None:
    """A consumer that grants for each row, and a producer that sends one for each credit, take turns."""
    ends = Ends()
    rows = Buffer(pa.record_batch([pa.array([1])], schema=SCHEMA), 1, 8)
    left = 2000

    def answer(call: object) -> None:
        nonlocal left
        if call is rows:
            ends.consumer.grant(1)
        elif call == 1 and left:
            left -= 1
            ends.offered.send(rows)

    ends.on_call = answer
    ends.offered.attach(ends.consumer)
    ends.consumer.grant(1)
    assert ends.calls[2:] == [1, rows] * 2000 + [1]


def test_whoever_closes_is_not_notified() -> None:
    producer_closes, consumer_closes = Ends(), Ends()
    for ends in (producer_closes, consumer_closes):
        ends.offered.attach(ends.consumer)
        ends.calls.clear()
    producer_closes.offered.send(ProducerEnded())
    producer_closes.offered.close()
    producer_closes.offered.send(ProducerIdle())
    producer_closes.consumer.grant(1)
    producer_closes.consumer.close()
    assert producer_closes.calls == [ProducerEnded(), ("consumer broken", "broken")]
    consumer_closes.consumer.close()
    consumer_closes.offered.send(ProducerIdle())
    consumer_closes.consumer.grant(1)
    consumer_closes.offered.close()
    assert consumer_closes.calls == [("producer broken", "broken")]
    assert producer_closes.over >= 2 and consumer_closes.over >= 2, "each end says that it is over"


def test_a_channel_has_one_consumer_and_none_when_it_is_over() -> None:
    ends = Ends()
    ends.offered.attach(ends.consumer)
    assert ends.offered.attach(Ends().consumer) == "it has a consumer"
    ends.offered.close()
    assert ends.offered.attach(Ends().consumer) == "it has ended"
    other = LocalConsumer(CHANNEL, 1, pa.schema([("text", pa.string())]), _Consumer(ends), lambda end: None)
    assert "its schema is number: int64" in (ends.offered.attach(other) or "")


def test_a_consumer_that_leaves_while_it_gets_its_producer() -> None:
    """The producer is connected to nobody for a moment, and notified of it."""
    for leave in (LocalConsumer.close, lambda consumer: consumer.give_up("too late")):
        ends = Ends()
        leave(ends.consumer)
        ends.calls.clear()
        assert ends.offered.attach(ends.consumer) is None
        assert ends.calls == ["producer connected", ("producer broken", "broken")]
        assert ends.offered.attach(Ends().consumer) == "it has ended"


def test_giving_up_is_for_those_who_wait() -> None:
    waiting, connected = Ends(), Ends()
    connected.offered.attach(connected.consumer)
    connected.calls.clear()
    for ends in (waiting, connected):
        ends.consumer.give_up("too late")
        ends.consumer.give_up("too late")
    assert waiting.calls == [("consumer broken", "silent")]
    assert not connected.calls


def test_an_end_that_fails_is_not_notified_again_and_the_other_is() -> None:
    for failing, expected in ((ProducerIdle(), ("producer broken", "broken")), (7, ("consumer broken", "broken"))):
        ends = Ends()
        ends.offered.attach(ends.consumer)
        ends.calls.clear()

        def fail(call: object, failing: object = failing) -> None:
            if call == failing:
                raise ValueError("an end that fails")

        ends.on_call = fail
        if failing == 7:
            ends.consumer.grant(7)
        else:
            ends.offered.send(ProducerIdle())
        assert ends.calls == [failing, expected]


def test_a_replaced_channel_is_broken_for_both() -> None:
    ends = Ends()
    ends.offered.attach(ends.consumer)
    ends.calls.clear()
    ends.offered.replace("generation 2 replaces it")
    assert sorted(map(str, ends.calls)) == ["('consumer broken', 'broken')", "('producer broken', 'broken')"]


def test_rows_of_another_schema_are_our_bug() -> None:
    ends = Ends()
    with pytest.raises(InternalError, match="key-by-1"):
        ends.offered.send(Buffer(pa.record_batch({"other": pa.array([1])}), 1, 8))
