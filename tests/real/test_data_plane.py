"""The data plane over real sockets: order, credits, offers, refusals, and rows as they were."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from decimal import Decimal
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.errors import InternalError
from headgate.protocol.channels import (
    Barrier,
    Buffer,
    ChannelId,
    Element,
    ProducerActive,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.protocol.data_frames import PREAMBLE, Kind, head
from headgate.protocol.messages import CheckpointKind
from headgate.transport.data_plane import ConsumerLink, DataPlane, ProducerLink
from headgate.transport.sockets import LOST_AFTER_S
from tests.real import data_plane_pair
from tests.real.data_plane_pair import CHANNEL, SCHEMA, SECRET, Consumer, Pair, Producer, RawPeer, buffer, hold_timers
from tests.waiting import wait_until

far, pair = data_plane_pair.far, data_plane_pair.pair
no_thread_stays = data_plane_pair.no_thread_stays  # of every test


def test_every_kind_of_element_arrives_as_it_was_in_order(pair: Pair) -> None:
    """Events keep their place among rows, and a stream may begin with either."""
    events: list[Element] = [
        WatermarkPassed(-1), ProducerIdle(), ProducerActive(), ProducerRecovered(), WatermarkPassed(2**62),
        Barrier(checkpoint_id=1),
        Barrier(
            checkpoint_id=2**40, kind=CheckpointKind.SAVEPOINT, location="s3://ö", unaligned=True,
            alignment_timeout_ms=5,
        ),
        ProducerEnded(),
    ]  # fmt: skip
    sent: list[Element] = []
    for number, event in enumerate(events):
        sent += [event, buffer(number), buffer(number, 0), buffer(number, unfiltered=True)]
    producing, _ = pair.both()
    for element in sent:
        producing.send(element)
    wait_until(lambda: len(pair.consumer.elements) == len(sent))
    assert pair.consumer.elements == sent


def test_what_is_sent_before_the_consumer_comes_is_not_lost(pair: Pair) -> None:
    producing = pair.offer()
    sent = [buffer(number) for number in range(50)]
    for each in sent:
        producing.send(each)
    pair.connect()
    wait_until(lambda: len(pair.consumer.elements) == len(sent))
    assert pair.consumer.elements == sent


def test_a_consumer_waits_for_the_offer_and_holds_up_no_other(pair: Pair) -> None:
    """Twenty wait; one whose producer is there already gets its rows."""
    early = [Consumer() for _ in range(20)]
    for number, end in enumerate(early):
        pair.consuming.connect(pair.producing.address, ChannelId("late", number, 0), 1, SCHEMA, end)
    producing, _ = pair.both()
    producing.send(buffer(1))
    wait_until(lambda: pair.consumer.elements == [buffer(1)])
    assert not any(end.connected or end.errors for end in early)
    for number in range(20):
        pair.producing.offer(ChannelId("late", number, 0), 1, SCHEMA, Producer()).send(buffer(number))
    wait_until(lambda: all(end.elements for end in early))
    assert [end.elements for end in early] == [[buffer(number)] for number in range(20)]


def test_credits_arrive_those_granted_before_the_connection_too(pair: Pair) -> None:
    consuming = pair.connect()
    consuming.grant(2)
    consuming.grant(3)
    pair.offer()
    wait_until(lambda: pair.producer.credits == 5)
    assert pair.producer.calls[0] == "connected"
    for _ in range(100):
        consuming.grant(1)
    wait_until(lambda: pair.producer.credits == 105)


def test_order_is_kept_when_the_consumer_connects_while_rows_are_sent(pair: Pair) -> None:
    for round_ in range(20):
        channel = ChannelId("x", round_, 0)
        consumer = Consumer()
        producing = pair.producing.offer(channel, 1, SCHEMA, Producer())
        started = threading.Event()

        def send(link: ProducerLink = producing, started: threading.Event = started) -> None:
            for number in range(300):
                link.send(WatermarkPassed(number))
                if number == 20:
                    started.set()

        sender = threading.Thread(target=send)
        sender.start()
        started.wait()
        pair.consuming.connect(pair.producing.address, channel, 1, SCHEMA, consumer)
        sender.join()
        wait_until(lambda consumer=consumer: len(consumer.elements) == 300)
        assert consumer.elements == [WatermarkPassed(number) for number in range(300)]


def test_own_slot_gets_the_same_batch_on_the_senders_thread() -> None:
    """No copy, no thread in between."""
    plane = DataPlane(7, SECRET, "127.0.0.1")
    pair = Pair(plane, plane)
    producing, _ = pair.both()
    sent = buffer(1)
    sender = threading.Thread(target=producing.send, args=(sent,), name="the-sender")
    sender.start()
    sender.join()
    assert pair.consumer.elements[0] is sent
    assert pair.consumer.threads == {"the-sender"}
    plane.close()


def test_a_slow_consumer_bounds_what_is_under_way(pair: Pair) -> None:
    """A producer that sends within credit never has more buffers out than were granted; all come, in order."""
    allowed: SimpleQueue[int] = SimpleQueue()
    sent = processed = 0
    most = 0
    pair.producer = Producer()
    pair.producer.on_credit = allowed.put  # type: ignore[method-assign]
    producing = pair.producing.offer(CHANNEL, 1, SCHEMA, pair.producer)
    consuming = pair.connect()
    consuming.grant(4)

    def produce() -> None:
        nonlocal sent, most
        credit = 0
        while sent < 200:
            while not credit:
                credit += allowed.get()
            credit -= 1
            producing.send(buffer(sent))
            sent += 1
            most = max(most, sent - processed)

    thread = threading.Thread(target=produce)
    thread.start()
    while processed < 200:
        wait_until(lambda so_far=processed: len(pair.consumer.elements) > so_far)
        processed += 1
        consuming.grant(1)
    thread.join()
    assert most <= 5, "four, and the one that is processed"
    assert pair.consumer.elements == [buffer(number) for number in range(200)]


def test_a_consumer_that_closes_is_not_notified_and_its_producer_is(pair: Pair) -> None:
    _, consuming = pair.both()
    consuming.close()
    wait_until(lambda: bool(pair.producer.errors))
    assert pair.producer.errors[0].reason == "broken"
    assert "key-by-1" in str(pair.producer.errors[0])
    consuming.close()
    consuming.grant(1)  # nothing happens
    assert not pair.consumer.errors


def test_a_producer_that_closes_is_not_notified_and_its_consumer_is(pair: Pair) -> None:
    """After all that was sent."""
    producing, consuming = pair.both()
    for number in range(100):
        producing.send(buffer(number))
    producing.send(ProducerEnded())
    producing.close()
    producing.send(buffer(1))  # lost
    wait_until(lambda: bool(pair.consumer.errors))
    assert pair.consumer.elements == [*(buffer(number) for number in range(100)), ProducerEnded()]
    assert pair.consumer.errors[0].reason == "broken"
    assert "its producer closed it" in str(pair.consumer.errors[0])
    producing.close()
    consuming.close()
    assert not pair.producer.errors


def test_both_close_and_nobody_is_notified(pair: Pair) -> None:
    for number in range(50):
        channel = ChannelId("x", 0, number)
        producer, consumer = Producer(), Consumer()
        producing = pair.producing.offer(channel, 1, SCHEMA, producer)
        consuming = pair.consuming.connect(pair.producing.address, channel, 1, SCHEMA, consumer)
        wait_until(lambda consumer=consumer: consumer.connected == 1)
        consumer.on_broken = producer.on_broken = lambda error: None  # type: ignore[method-assign]
        producing.close()
        consuming.close()
    pair.consuming.close()
    pair.producing.close()


def test_an_older_generation_is_refused(pair: Pair) -> None:
    pair.offer(generation=5)
    pair.connect(generation=4)
    wait_until(lambda: bool(pair.consumer.errors))
    error = pair.consumer.errors[0]
    assert error.reason == "refused"
    assert "generation 4 is over, its producer is of 5" in str(error)
    assert not pair.producer.calls and not pair.producer.errors


def test_a_newer_generation_waits_for_its_offer_and_older_ones_that_wait_are_refused(pair: Pair) -> None:
    pair.offer(generation=4)
    older = Consumer()
    pair.connect(generation=6)
    pair.consuming.connect(pair.producing.address, CHANNEL, 5, SCHEMA, older)
    time.sleep(0.05)
    assert not pair.consumer.connected and not older.connected
    pair.offer(generation=6).send(buffer(1))
    wait_until(lambda: pair.consumer.elements == [buffer(1)] and bool(older.errors))
    assert "generation 5 is over" in str(older.errors[0])


def test_a_newer_offer_replaces_the_older_one(pair: Pair) -> None:
    """Both ends of the older one are notified; the newer generation's consumer gets the newer one's rows only."""
    old_link, _ = pair.both()
    old_producer, old_consumer = pair.producer, pair.consumer
    new_link = pair.offer(generation=2)
    pair.connect(generation=2)
    old_link.send(buffer(1))
    new_link.send(buffer(2))
    wait_until(lambda: pair.consumer.elements == [buffer(2)] and bool(old_consumer.errors and old_producer.errors))
    assert "generation 2 replaces it" in str(old_consumer.errors[0])
    assert not old_consumer.elements
    late = Producer()
    pair.producing.offer(CHANNEL, 1, SCHEMA, late)
    assert [error.reason for error in late.errors] == ["broken"]
    new_link.send(buffer(3))
    wait_until(lambda: pair.consumer.elements == [buffer(2), buffer(3)])


def test_a_second_consumer_and_one_that_comes_when_it_is_over_are_refused(pair: Pair) -> None:
    producing, _ = pair.both()
    first = pair.consumer
    pair.connect()
    wait_until(lambda: bool(pair.consumer.errors))
    assert "it has a consumer" in str(pair.consumer.errors[0])
    producing.close()
    wait_until(lambda: bool(first.errors))
    pair.connect()
    wait_until(lambda: bool(pair.consumer.errors))
    assert "it has ended" in str(pair.consumer.errors[0])


def test_a_producer_that_never_comes_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = hold_timers(pair.consuming, 0.05, monkeypatch)
    pair.connect(timeout_s=0.05)
    wait_until(lambda: bool(pair.producing._waiting))  # or it might still be on its way when it is given up
    timers.pop()()
    wait_until(lambda: bool(pair.consumer.errors))
    assert pair.consumer.errors[0].reason == "silent"
    assert "within 0.05 s" in str(pair.consumer.errors[0])
    wait_until(lambda: not pair.producing._waiting)  # the other slot hears of it later
    pair.offer()
    assert not pair.producer.calls, "nobody waits for it any longer"
    second = Consumer()
    pair.consuming.connect(pair.producing.address, CHANNEL, 1, SCHEMA, second, timeout_s=0.05)
    wait_until(lambda: second.connected == 1)
    timers.pop()()
    time.sleep(0.1)
    assert not second.errors, "its time is for connecting"


def test_a_consumer_that_no_longer_waits_gets_nothing(pair: Pair) -> None:
    pair.connect().close()
    waited = pair.consumer
    pair.offer(generation=2)
    pair.connect(generation=2)
    wait_until(lambda: pair.consumer.connected == 1)
    assert not waited.connected and not waited.errors


def test_another_schema_is_refused_and_rows_of_another_schema_are_our_bug(pair: Pair) -> None:
    other = pa.schema([("number", pa.int32())])
    producing = pair.offer()
    pair.connect(schema=other)
    wait_until(lambda: bool(pair.consumer.errors))
    assert "its schema is number: int64" in str(pair.consumer.errors[0])
    with pytest.raises(InternalError, match="have the schema number: int32"):
        producing.send(Buffer(pa.record_batch({"number": pa.array([1], pa.int32())}), 1, 4))


@pytest.mark.parametrize(
    "type_", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))]
)
def test_dictionaries_are_our_bug(far: Pair, type_: pa.DataType) -> None:
    with pytest.raises(InternalError, match="dictionaries"):
        far.offer(schema=pa.schema([("a", type_)]))
    with pytest.raises(InternalError, match="dictionaries"):
        far.connect(schema=pa.schema([("a", type_)]))


def test_an_end_that_fails_ends_its_channel(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The other end is notified; other channels go on."""

    def fail(element: Element) -> None:
        raise ValueError("an element that the consumer cannot take")

    producing = pair.offer()
    producer = pair.producer
    failing = Consumer()
    failing.on_element = fail  # type: ignore[method-assign]
    pair.consuming.connect(pair.producing.address, CHANNEL, 1, SCHEMA, failing)
    producing.send(buffer(1))
    wait_until(lambda: bool(producer.errors))
    assert "an element that the consumer cannot take" in caplog.text


def test_another_run_is_refused(far: Pair) -> None:
    stranger = DataPlane(8, SECRET, "127.0.0.1")
    end = Consumer()
    far.offer()
    stranger.connect(far.producing.address, CHANNEL, 1, SCHEMA, end)
    wait_until(lambda: bool(end.errors))
    assert end.errors[0].reason == "refused"
    assert "is of run 7, not of run 8" in str(end.errors[0])
    stranger.close()


def test_a_wrong_secret_is_refused(far: Pair) -> None:
    stranger = DataPlane(7, "another", "127.0.0.1")
    end = Consumer()
    far.offer()
    stranger.connect(far.producing.address, CHANNEL, 1, SCHEMA, end)
    wait_until(lambda: bool(end.errors))
    assert end.errors[0].reason == "refused"
    assert not far.producer.calls
    stranger.close()


def test_nobody_at_the_address(far: Pair) -> None:
    end = Consumer()
    with socket.socket() as deaf:  # it has the port, so that nobody else gets it, and does not listen
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        far.consuming.connect(address, CHANNEL, 1, SCHEMA, end)
        wait_until(lambda: bool(end.errors))
    assert (end.errors[0].reason, end.errors[0].address) == ("broken", address)


def test_received_batches_are_aligned_and_pin_no_other(far: Pair) -> None:
    """Each has a buffer of its own, no larger than the batch, in which values lie as Arrow wants them."""
    producing, _ = far.both()
    large = buffer(0, 20_000)
    few = Buffer(large.rows.slice(5_001, 10), 10, 100)
    for each in (large, few, buffer(1, 1)):
        producing.send(each)
    wait_until(lambda: len(far.consumer.elements) == 3)
    received = [element.rows for element in far.consumer.elements if isinstance(element, Buffer)]
    assert received == [large.rows, few.rows, buffer(1, 1).rows]
    messages = set()
    for rows in received:
        buffers = [each for column in rows.columns for each in column.buffers() if each is not None]
        assert all(each.address % 8 == 0 for each in buffers)
        parents = {(each.parent.address, each.parent.size) for each in buffers if each.parent is not None}
        assert len(parents) == 1, "all columns of a batch came in one message"
        assert next(iter(parents))[1] <= rows.nbytes + 1000, "with nothing else in it"
        messages |= parents
    assert len(messages) == 3
    assert pc.sum(received[0]["number"]).as_py() == sum(range(20_000))


NESTED = pa.schema(
    {
        "list": pa.list_(pa.struct({"a": pa.int8(), "b": pa.string()})),
        "map": pa.map_(pa.string(), pa.float64()),
        "flag": pa.bool_(),
        "money": pa.decimal128(20, 4),
        "nothing": pa.null(),
        "bytes": pa.binary(),
        "day": pa.date32(),
    }
)


def test_nested_columns_and_slices_arrive_as_they_were(pair: Pair) -> None:
    rows = [
        {
            "list": None if number % 7 == 0 else [{"a": number % 100, "b": "é" * (number % 3)}] * (number % 4),
            "map": [("k", number / 2)],
            "flag": number % 3 == 0,
            "money": None,
            "nothing": None,
            "bytes": bytes([number % 256]) * (number % 5),
            "day": number,
        }
        for number in range(500)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=NESTED)
    producing = pair.offer(schema=NESTED)
    pair.connect(schema=NESTED)
    for part in (batch, batch.slice(3, 77), batch.slice(499), batch.slice(0, 0)):
        producing.send(Buffer(part, part.num_rows, part.nbytes))
    wait_until(lambda: len(pair.consumer.elements) == 4)
    received = [element.rows for element in pair.consumer.elements if isinstance(element, Buffer)]
    for part, rows_received in zip(
        (batch, batch.slice(3, 77), batch.slice(499), batch.slice(0, 0)), received, strict=True
    ):
        rows_received.validate(full=True)
        assert rows_received.equals(part)


def test_a_batch_of_many_megabytes_arrives(far: Pair) -> None:
    """There is no limit at 4 MiB, as gRPC has by default."""
    schema = pa.schema([("bytes", pa.binary())])
    producing = far.offer(schema=schema)
    far.connect(schema=schema)
    batch = pa.record_batch([pa.array([b"x" * 48_000_000])], schema=schema)
    producing.send(Buffer(batch, 1, batch.nbytes))
    wait_until(lambda: bool(far.consumer.elements))
    assert far.consumer.elements == [Buffer(batch, 1, batch.nbytes)]


def test_a_consumer_without_credit_holds_up_no_other_channel(far: Pair) -> None:
    """Both use one connection: what one producer may not send yet stays there, and the others' rows pass."""
    slow, fast = Consumer(), Consumer()
    slow_producer, fast_producer = Pacer(10), Pacer(200)
    for name, end, pacer in (("slow", slow, slow_producer), ("fast", fast, fast_producer)):
        channel = ChannelId(name, 0, 0)
        pacer.link = far.producing.offer(channel, 1, SCHEMA, pacer)
        pacer.back = far.consuming.connect(far.producing.address, channel, 1, SCHEMA, end)
        pacer.back.grant(4)
    taken = 0
    while taken < 200:
        wait_until(lambda taken=taken: len(fast.elements) > taken)
        more = len(fast.elements) - taken
        fast_producer.back.grant(more)
        taken += more
    assert len(slow.elements) == 4
    slow_producer.back.grant(6)
    wait_until(lambda: len(slow.elements) == 10)


class Pacer(Producer):
    """A producer that sends large buffers as credit allows."""

    link: ProducerLink
    back: ConsumerLink

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def on_credit(self, credits: int) -> None:
        for _ in range(min(credits, self.left)):
            self.left -= 1
            self.link.send(buffer(self.left, 50_000))


def test_what_is_small_arrives_at_once_after_what_is_large(far: Pair) -> None:
    """While a large body comes the thread sleeps until much of it is there; not when it was the last one."""
    producing, consuming = far.both()
    for rows in (10, 3_000, 10_000, 60_000, 61_000, 200_000):
        taken = len(far.consumer.elements)
        producing.send(buffer(0, rows))
        wait_until(lambda taken=taken: len(far.consumer.elements) == taken + 1)
        producing.send(ProducerIdle())
        wait_until(lambda taken=taken: len(far.consumer.elements) == taken + 2)
        consuming.grant(1)
        wait_until(lambda taken=taken: far.producer.credits == taken / 2 + 1)


def test_events_do_not_wait_for_the_rows_of_other_channels(far: Pair) -> None:
    """Two hundred megabytes of one channel are queued on the connection when an event of another is sent."""
    bulk, other = Consumer(), Consumer()
    bulk_link = far.producing.offer(ChannelId("bulk", 0, 0), 1, SCHEMA, Producer())
    link = far.producing.offer(ChannelId("other", 0, 0), 1, SCHEMA, Producer())
    far.consuming.connect(far.producing.address, ChannelId("bulk", 0, 0), 1, SCHEMA, bulk)
    far.consuming.connect(far.producing.address, ChannelId("other", 0, 0), 1, SCHEMA, other)
    wait_until(lambda: bool(bulk.connected and other.connected))
    before: list[int] = []
    other.on_element = lambda element: before.append(len(bulk.elements))  # type: ignore[method-assign]
    large = buffer(0, 100_000)
    for _ in range(200):
        bulk_link.send(large)
    link.send(ProducerIdle())
    wait_until(lambda: len(bulk.elements) == 200 and bool(before))
    assert before[0] < 100


def test_one_connection_carries_all_channels_of_two_slots_both_ways(far: Pair) -> None:
    """The slot that was dialed first reaches the other through the same connection."""
    connected = []
    for number in range(20):
        for producing, consuming in ((far.producing, far.consuming), (far.consuming, far.producing)):
            channel, end = ChannelId("x", number, 0), Consumer()
            producing.offer(channel, 1, SCHEMA, Producer()).send(buffer(number))
            consuming.connect(producing.address, channel, 1, SCHEMA, end)
            wait_until(lambda end=end: bool(end.elements))
            connected.append(end)
    assert len(far.producing._connections) == len(far.consuming._connections) == 1
    assert [end.elements for end in connected] == [[buffer(number // 2)] for number in range(40)]


def both_ways(far: Pair, exchange: str, count: int = 40) -> list[Consumer]:
    """Connect channels both ways, in turn."""
    ends = [Consumer() for _ in range(count)]
    for number, end in enumerate(ends):
        producing, consuming = (far.producing, far.consuming)[:: 1 if number % 2 else -1]
        channel = ChannelId(exchange, number, 0)
        producing.offer(channel, 1, SCHEMA, Producer()).send(buffer(number))
        consuming.connect(producing.address, channel, 1, SCHEMA, end)
    return ends


def sole_connections(far: Pair) -> bool:
    """Whether both slots have one connection, and the same."""
    found = [list(plane._connections) for plane in (far.producing, far.consuming)]
    return [len(each) for each in found] == [1, 1] and {each[0].dialed for each in found} == {True, False}


def hold(plane: DataPlane) -> threading.Event:
    """Hold a plane's thread up, after what it is to do until now, until the event is set."""
    release = threading.Event()
    plane._io.do(release.wait)
    return release


def test_two_slots_that_dial_each_other_at_once_keep_one_connection(far: Pair) -> None:
    releases = [hold(plane) for plane in (far.producing, far.consuming)]
    ends = both_ways(far, "x")
    for release in releases:
        release.set()
    wait_until(lambda: all(end.elements for end in ends))
    wait_until(lambda: sole_connections(far))
    more = both_ways(far, "y")
    wait_until(lambda: all(end.elements for end in more))
    assert sole_connections(far)
    assert [end.elements for end in ends] == [[buffer(number)] for number in range(40)]
    assert not [end.errors for end in (*ends, *more) if end.errors]


@pytest.mark.parametrize("lower_hears_first", [True, False])
def test_of_two_connections_that_cross_that_of_the_lower_address_is_kept(far: Pair, lower_hears_first: bool) -> None:
    """Both are there before either slot hears of the other's. What was asked for on one is asked for on the other."""
    planes = sorted((far.producing, far.consuming), key=lambda plane: plane.address)
    undialed = [hold(plane) for plane in planes]
    ends = both_ways(far, "x")
    unwanted = Consumer()
    closed = [plane.connect(other.address, CHANNEL, 1, SCHEMA, unwanted) for plane, other in (planes, planes[::-1])]
    dialed = [hold(plane) for plane in planes]
    for release in undialed:
        release.set()
    wait_until(lambda: all(connection.stream.is_connected for plane in planes for connection in plane._connections))
    own = list(planes[0]._connections)
    for link in closed:
        link.close()
    for release in dialed if lower_hears_first else reversed(dialed):
        release.set()
    wait_until(lambda: all(end.elements for end in ends))
    wait_until(lambda: sole_connections(far))
    assert list(planes[0]._connections) == own
    assert not planes[0]._moved and not planes[1]._moved
    assert not planes[0]._waiting and not planes[1]._waiting, "a consumer that was closed is not asked for"
    assert not [end.errors for end in (*ends, unwanted) if end.errors]


def test_a_slot_that_is_refused_for_a_connection_that_never_comes_dials_again(
    far: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that was to stay may break on its way."""
    due = hold_timers(far.consuming, LOST_AFTER_S, monkeypatch)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    far.consuming.connect(address, CHANNEL, 1, SCHEMA, far.consumer)
    accepted, _ = listener.accept()
    accepted.sendall(PREAMBLE + head(Kind.TWICE, 0))
    wait_until(lambda: address in far.consuming._moved)
    late = Consumer()
    far.consuming.connect(address, ChannelId("late", 0, 0), 1, SCHEMA, late)
    for each in list(due):
        each()
    again, _ = listener.accept()
    peer = RawPeer.__new__(RawPeer)
    peer.socket = again
    assert peer.read(len(PREAMBLE)) == PREAMBLE
    assert [peer.receive()[0] for _ in range(3)] == [Kind.HELLO, Kind.OPEN, Kind.OPEN]
    for each in (accepted, again, listener):
        each.close()
    wait_until(lambda: bool(far.consumer.errors and late.errors))


NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), []),
    (pa.bool_(), [True, False]),
    *((each, [0, 1, 100]) for each in INTEGERS),
    *((each, [1.5, -2.0]) for each in (pa.float32(), pa.float64())),
    *((each, [NOON.date()]) for each in (pa.date32(), pa.date64())),
    *((each, [NOON.time()]) for each in (pa.time32("ms"), pa.time64("ns"))),
    *((each, [NOON]) for each in (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns", "UTC"))),
    (pa.duration("s"), [datetime.timedelta(days=2)]),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3])]),
    *((each, [Decimal("1.500"), Decimal("-7")]) for each in (pa.decimal128(38, 10), pa.decimal256(50, 3))),
    *((each, ["", "ä", "long enough to be out of line"]) for each in TEXTS),
    (pa.binary(7), [b"1234567"]),
    (pa.list_(pa.int16()), [[], [1, None, 2]]),
    (pa.large_list(pa.string()), [["a", "b"], [None]]),
    (pa.list_(pa.float32(), 3), [[1.0, None, 3.0]]),
    (pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]),
    (pa.map_(pa.string(), pa.struct({"x": pa.binary()})), [[("k", {"x": b"1"}), ("l", None)], []]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_rows_of_all_types_with_nulls_and_slices_arrive_as_they_were(
    far: Pair, type_: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("value", type_), ("number", pa.int64())])
    column = pa.array([*values, None, *values] * 3000, type_)
    rows = pa.record_batch([column, pa.array(range(len(column)), pa.int64())], schema=schema)
    link = far.offer(schema=schema)
    far.connect(schema=schema)
    sent = [rows, rows.slice(3, 5), rows.slice(1, 2000), rows.slice(len(column) - 1), rows.slice(0, 0)]
    for each in sent:
        link.send(Buffer(each, each.num_rows, each.nbytes))
    wait_until(lambda: len(far.consumer.elements) == len(sent))
    for each, received in zip(sent, far.consumer.elements, strict=True):
        assert isinstance(received, Buffer)
        received.rows.validate(full=True)
        assert received.rows.equals(each)


@pytest.mark.parametrize("num_rows", [0, 1, 70_000])
def test_rows_without_columns_keep_their_number(far: Pair, num_rows: int) -> None:
    schema = pa.schema([])
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
    assert rows.num_rows == num_rows
    link = far.offer(schema=schema)
    far.connect(schema=schema)
    link.send(Buffer(rows, num_rows, 1 << 20))
    wait_until(lambda: bool(far.consumer.elements))
    received = far.consumer.elements[0]
    assert isinstance(received, Buffer) and received.rows.num_rows == received.num_rows == num_rows
