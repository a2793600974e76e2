"""The data plane over real sockets: order, credits, refusals, ends of all kinds, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

from headgate.errors import InternalError, TransportError
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
from headgate.protocol.messages import CheckpointKind
from headgate.transport import data_plane
from headgate.transport.authentication import call_options
from headgate.transport.data_plane import ConsumerLink, DataPlane, ProducerLink
from headgate.transport.data_server import VERSION, ChannelRequest
from headgate.transport.endpoint import close_quietly, connect
from headgate.transport.frames import GOODBYE, WELCOME
from headgate.transport.options import TlsOptions, transport_options
from tests.waiting import wait_until

if TYPE_CHECKING:
    from local.kafka import Certificates

SECRET = "a-secret-of-this-query"
CHANNEL = ChannelId("key-by-1", 0, 3)
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us"))])


def buffer(number: int, rows: int = 3, *, unfiltered: bool = False) -> Buffer:
    columns = [
        pa.array(range(number, number + rows), pa.int64()),
        pa.array(["x" * (each % 5) for each in range(rows)]),
        pa.nulls(rows, pa.timestamp("us")),
    ]
    batch = pa.record_batch(columns, schema=SCHEMA)
    return Buffer(batch, rows, batch.nbytes, unfiltered)


def data_threads() -> list[str]:
    """Return the names of all threads that Python knows of and that a data plane may have left."""
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("headgate-data", "Dummy", "Timer"))
    ]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Every test leaves as many threads as it found."""
    before = data_threads()
    yield
    wait_until(lambda: len(data_threads()) <= len(before))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are over are not broken because the machine is slow: what they carry would be lost."""
    monkeypatch.setattr(data_plane, "_PATIENCE_S", 300)


def hold_timers(plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return a list that gets the timers of a plane: each begins to run when it is called."""
    held: list[Callable[[], None]] = []
    errands = plane._errands
    do_after = errands.do_after
    monkeypatch.setattr(errands, "do_after", lambda delay_s, work: held.append(lambda: do_after(delay_s, work)))
    return held


class Producer:
    """An end with a record of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.credits = 0
        self.errors: list[TransportError] = []

    def on_connected(self) -> None:
        assert not self.calls
        self.calls.append("connected")

    def on_credit(self, credits: int) -> None:
        assert self.calls and not self.errors
        self.calls.append("credit")
        self.credits += credits

    def on_broken(self, error: TransportError) -> None:
        assert not self.errors
        self.errors.append(error)


class Consumer:
    """An end with a record of its calls."""

    def __init__(self) -> None:
        self.connected = 0
        self.elements: list[Element] = []
        self.threads: set[str] = set()
        self.errors: list[TransportError] = []

    def on_connected(self) -> None:
        assert not self.elements and not self.errors
        self.connected += 1

    def on_element(self, element: Element) -> None:
        assert self.connected == 1 and not self.errors
        self.threads.add(threading.current_thread().name)
        self.elements.append(element)

    def on_broken(self, error: TransportError) -> None:
        assert not self.errors
        self.errors.append(error)


class Pair:
    """The two ends of a channel: the producer's in one slot, the consumer's in the same or another."""

    def __init__(self, producing: DataPlane, consuming: DataPlane) -> None:
        self.producing, self.consuming = producing, consuming
        self.producer, self.consumer = Producer(), Consumer()

    def offer(self, generation: int = 1, schema: pa.Schema = SCHEMA) -> ProducerLink:
        self.producer = Producer()
        return self.producing.offer(CHANNEL, generation, schema, self.producer)

    def connect(self, generation: int = 1, schema: pa.Schema = SCHEMA, timeout_s: float = 60) -> ConsumerLink:
        self.consumer = Consumer()
        return self.consuming.connect(
            self.producing.address, CHANNEL, generation, schema, self.consumer, timeout_s=timeout_s
        )

    def both(self) -> tuple[ProducerLink, ConsumerLink]:
        links = self.offer(), self.connect()
        wait_until(lambda: self.consumer.connected == 1 and bool(self.producer.calls))
        return links

    @property
    def is_local(self) -> bool:
        return self.producing is self.consuming


@pytest.fixture(params=["local", "flight"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    producing = DataPlane(7, SECRET, "127.0.0.1")
    consuming = producing if request.param == "local" else DataPlane(7, SECRET, "127.0.0.1")
    yield Pair(producing, consuming)
    consuming.close()
    producing.close()


@pytest.fixture
def far() -> Iterator[Pair]:
    producing, consuming = DataPlane(7, SECRET, "127.0.0.1"), DataPlane(7, SECRET, "127.0.0.1")
    yield Pair(producing, consuming)
    consuming.close()
    producing.close()


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


def test_a_consumer_that_closes_is_told_nothing_and_its_producer_is(pair: Pair) -> None:
    _, consuming = pair.both()
    consuming.close()
    wait_until(lambda: bool(pair.producer.errors))
    assert pair.producer.errors[0].reason == "broken"
    assert "key-by-1" in str(pair.producer.errors[0])
    consuming.close()
    consuming.grant(1)  # nothing happens
    assert not pair.consumer.errors


def test_a_producer_that_closes_is_told_nothing_and_its_consumer_is(pair: Pair) -> None:
    """Behind all that was sent."""
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


def test_both_close_and_nobody_is_told(pair: Pair) -> None:
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
    """Both ends of the older one are told; the newer generation's consumer gets the newer one's rows only."""
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
    timers = hold_timers(pair.consuming, monkeypatch)
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
    """The other end is told; other channels go on."""

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


@pytest.mark.parametrize("command", [b"control", b"", b"\x80", b"\xff" * 100])
def test_what_is_no_request_is_refused(far: Pair, command: bytes) -> None:
    client = connect(far.producing.address, None)
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(command), call_options(SECRET))
    assert reader.read_chunk().app_metadata.to_pybytes().startswith(b"refused")
    close_quietly(writer, client)


def test_nobody_at_the_address(far: Pair) -> None:
    end = Consumer()
    with socket.socket() as deaf:  # it has the port, so that nobody else gets it, and does not listen
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        far.consuming.connect(address, CHANNEL, 1, SCHEMA, end)
        wait_until(lambda: bool(end.errors))
    assert (end.errors[0].reason, end.errors[0].address) == ("broken", address)


def test_received_batches_are_aligned_and_pin_nothing(far: Pair) -> None:
    """Arrow wants buffers at multiples of 64 bytes; each is as large as its data, and no slice of a message."""
    producing, _ = far.both()
    large = buffer(0, 20_000)
    few = Buffer(large.rows.slice(5_001, 10), 10, 100)
    for each in (large, few, buffer(1, 1)):
        producing.send(each)
    wait_until(lambda: len(far.consumer.elements) == 3)
    received = [element.rows for element in far.consumer.elements if isinstance(element, Buffer)]
    assert received == [large.rows, few.rows, buffer(1, 1).rows]
    for rows in received:
        buffers = [each for column in rows.columns for each in column.buffers() if each is not None]
        assert all(each.address % 64 == 0 and each.parent is None for each in buffers)
    assert received[1].get_total_buffer_size() < 1000
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


def test_a_consumer_that_takes_its_time_holds_up_no_other_channel(far: Pair) -> None:
    """Both use one connection; a slow end only holds up its own stream, and no sender."""
    go_on = threading.Event()
    slow, fast = Consumer(), Consumer()

    def take_time() -> None:
        slow.connected = 1
        assert go_on.wait(120)

    slow.on_connected = take_time  # type: ignore[method-assign]
    slow_link = far.producing.offer(ChannelId("slow", 0, 0), 1, SCHEMA, Producer())
    fast_link = far.producing.offer(ChannelId("fast", 0, 0), 1, SCHEMA, Producer())
    far.consuming.connect(far.producing.address, ChannelId("slow", 0, 0), 1, SCHEMA, slow)
    far.consuming.connect(far.producing.address, ChannelId("fast", 0, 0), 1, SCHEMA, fast)
    for number in range(30):
        slow_link.send(buffer(number, 50_000))
        fast_link.send(buffer(number, 50_000))
    wait_until(lambda: len(fast.elements) == 30)
    assert not slow.elements
    go_on.set()
    wait_until(lambda: len(slow.elements) == 30)


def test_closing_the_planes_ends_every_channel_and_thread(far: Pair) -> None:
    """Who closes is told nothing; the others are told that it is broken."""
    producers, consumers = [], []
    for number in range(10):
        channel = ChannelId("x", number, 0)
        producers.append(Producer())
        consumers.append(Consumer())
        far.producing.offer(channel, 1, SCHEMA, producers[-1])
        far.consuming.connect(far.producing.address, channel, 1, SCHEMA, consumers[-1])
    waiting = Consumer()
    far.consuming.connect(far.producing.address, CHANNEL, 1, SCHEMA, waiting)
    wait_until(lambda: all(end.connected for end in consumers))
    far.producing.close()
    wait_until(lambda: all(end.errors for end in (*consumers, waiting)))
    assert not any(end.errors for end in producers)
    late = Producer()
    far.producing.offer(CHANNEL, 9, SCHEMA, late)
    assert late.errors
    far.consuming.close()
    after = Consumer()
    far.consuming.connect("127.0.0.1:1", CHANNEL, 1, SCHEMA, after)
    far.consuming.connect(far.consuming.address, CHANNEL, 1, SCHEMA, after2 := Consumer())
    assert after.errors and after2.errors
    far.consuming.close()


def test_no_end_closes_the_plane_from_its_threads(far: Pair) -> None:
    """It would wait for itself for ever."""
    errors: list[InternalError] = []

    def close(element: Element) -> None:
        try:
            far.consuming.close()
        except InternalError as error:
            errors.append(error)

    producing = far.offer()
    end = Consumer()
    end.on_element = close  # type: ignore[method-assign]
    far.consuming.connect(far.producing.address, CHANNEL, 1, SCHEMA, end)
    producing.send(ProducerIdle())
    wait_until(lambda: bool(errors))


PEER = """
import sys, time
import pyarrow as pa
from headgate.protocol.channels import ChannelId, WatermarkPassed
from headgate.transport.data_plane import DataPlane
class End:
    def on_connected(self): print("connected", flush=True)
    def on_credit(self, credits): pass
    def on_element(self, element): pass
    def on_broken(self, error): print(error, flush=True)
schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us"))])
plane = DataPlane(7, sys.argv[1], "127.0.0.1")
channel = ChannelId("key-by-1", 0, 3)
if sys.argv[2] == "offer":
    print(plane.address, flush=True)
    link = plane.offer(channel, 1, schema, End())
else:
    link = plane.connect(sys.argv[2], channel, 1, schema, End())
time.sleep(300)
"""


class Peer:
    """A slot in a process of its own."""

    def __init__(self, what: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PEER, SECRET, what], stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def test_a_consumer_killed_by_a_signal_is_noticed(far: Pair) -> None:
    producing = far.offer()
    peer = Peer(far.producing.address)
    assert peer.line() == "connected"
    wait_until(lambda: bool(far.producer.calls))
    peer.end()
    wait_until(lambda: bool(far.producer.errors))
    producing.send(buffer(1))
    producing.close()


def test_a_producer_killed_by_a_signal_is_noticed(far: Pair) -> None:
    peer = Peer("offer")
    consumer = Consumer()
    link = far.consuming.connect(peer.line(), CHANNEL, 1, SCHEMA, consumer)
    wait_until(lambda: consumer.connected == 1)
    peer.end()
    wait_until(lambda: bool(consumer.errors))
    assert consumer.errors[0].reason == "broken"
    link.grant(1)
    link.close()


def test_a_frozen_consumer_does_not_keep_the_plane_from_closing() -> None:
    """Its process is stopped, and more rows are under way than the sockets take."""
    plane = DataPlane(7, SECRET, "127.0.0.1")
    pair = Pair(plane, plane)
    producing = pair.offer()
    peer = Peer(plane.address)
    try:
        assert peer.line() == "connected"
        wait_until(lambda: bool(pair.producer.calls))
        peer.end(signal.SIGSTOP)
        for number in range(20):
            producing.send(buffer(number, 100_000))
        plane.close()
    finally:
        peer.end()


def test_a_frozen_producer_does_not_keep_the_plane_from_closing() -> None:
    plane = DataPlane(7, SECRET, "127.0.0.1")
    peer = Peer("offer")
    try:
        consumer = Consumer()
        link = plane.connect(peer.line(), CHANNEL, 1, SCHEMA, consumer)
        wait_until(lambda: consumer.connected == 1)
        peer.end(signal.SIGSTOP)
        link.grant(5)
        plane.close()
        assert not consumer.errors
    finally:
        peer.end()


UNCLOSED = """
import threading
import pyarrow as pa
from headgate.protocol.channels import Buffer, ChannelId
from headgate.transport.data_plane import DataPlane
schema = pa.schema([("a", pa.int64())])
rows = pa.record_batch([pa.array(range(1000))], schema=schema)
busy = threading.Event()
class Producer:
    def on_connected(self): pass
    def on_credit(self, credits): producing.send(Buffer(rows, 1000, 8000))
    def on_broken(self, error): pass
class Consumer:
    def on_connected(self): pass
    def on_element(self, element): busy.set(); consuming.grant(1)
    def on_broken(self, error): pass
a, b = DataPlane(1, "s", "127.0.0.1"), DataPlane(1, "s", "127.0.0.1")
channel = ChannelId("x", 0, 0)
producing = a.offer(channel, 1, schema, Producer())
consuming = b.connect(a.address, channel, 1, schema, Consumer())
b.connect(a.address, ChannelId("x", 0, 1), 1, schema, Consumer())
consuming.grant(1)
busy.wait()
"""


def test_a_process_that_closes_nothing_exits_in_good_order() -> None:
    """Rows and credits are under way when Python exits: it must not abort."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_threads_and_files_do_not_add_up_over_many_channels(far: Pair) -> None:
    """Also not those that Python does not know of; gRPC keeps a few for the whole process."""

    def threads_and_files() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    counts = []
    before = len(data_threads()) + 2  # what other tests left; each plane's own begins with its first channel
    for round_ in range(10):
        links: list[ProducerLink | ConsumerLink] = []
        ends = [Consumer() for _ in range(40)]
        for number, end in enumerate(ends):
            channel = ChannelId("x", number, 0)
            links.append(far.producing.offer(channel, round_, SCHEMA, Producer()))
            links.append(far.consuming.connect(far.producing.address, channel, round_, SCHEMA, end))
        wait_until(lambda ends=ends: all(end.connected for end in ends))
        for link in links:
            link.close()
        wait_until(lambda: len(data_threads()) <= before)
        counts.append(threads_and_files())
    threads, files = map(max, zip(*counts[:5], strict=True))
    # gRPC lets go of threads that it needed when the machine was busy, only some time later.
    wait_until(
        lambda: all(now <= early + 4 for now, early in zip(threads_and_files(), (threads, files), strict=True)), 120
    )


def test_a_consumer_that_does_not_end_its_stream_is_cut_off(far: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another program, or hangs: its producer has ended the channel, and waits no longer."""
    monkeypatch.setattr(data_plane, "_PATIENCE_S", 0.1)
    timers = hold_timers(far.producing, monkeypatch)
    request = ChannelRequest(
        version=VERSION, run=7, generation=1, channel=CHANNEL, schema=SCHEMA.serialize().to_pybytes()
    )
    producing = far.offer()
    client = connect(far.producing.address, None)
    descriptor = fl.FlightDescriptor.for_command(msgspec.msgpack.encode(request))
    writer, reader = client.do_exchange(descriptor, call_options(SECRET))
    assert reader.read_chunk().app_metadata.to_pybytes() == WELCOME
    producing.close()
    assert reader.read_chunk().app_metadata.to_pybytes().startswith(GOODBYE)
    timers.pop()()
    with pytest.raises(fl.FlightUnavailableError):
        reader.read_chunk()
    close_quietly(writer, client)


def tls_of(certificates: Certificates) -> TlsOptions:
    tls = transport_options(
        {
            "transport.host": None,
            "transport.port": 0,
            "transport.tls.enabled": True,
            "transport.tls.cert": str(certificates.broker),
            "transport.tls.key": str(certificates.broker),
            "transport.tls.ca": str(certificates.ca),
        }
    ).tls
    assert tls is not None
    return tls


def test_channels_over_tls(certificates: Certificates) -> None:
    tls = tls_of(certificates)
    producing, consuming = DataPlane(7, SECRET, "127.0.0.1", tls=tls), DataPlane(7, SECRET, "127.0.0.1", tls=tls)
    pair = Pair(producing, consuming)
    link, back = pair.both()
    link.send(buffer(1, 100_000))
    back.grant(3)
    wait_until(lambda: pair.consumer.elements == [buffer(1, 100_000)] and pair.producer.credits == 3)
    plain = DataPlane(7, SECRET, "127.0.0.1")
    refused = Consumer()
    plain.connect(producing.address, CHANNEL, 1, SCHEMA, refused)
    wait_until(lambda: bool(refused.errors))
    for plane in (plain, consuming, producing):
        plane.close()


def test_over_tls_slots_show_the_certificate_of_the_drivers_host_wherever_they_are(certificates: Certificates) -> None:
    tls, here, other = tls_of(certificates), "127.0.0.1", "127.0.0.2"  # the certificate does not name the other
    consuming = DataPlane(7, SECRET, here, tls=tls, certified=here)
    producing = DataPlane(7, SECRET, other, tls=tls, certified=here)
    pair = Pair(producing, consuming)
    link, _ = pair.both()
    link.send(buffer(1, 10))
    wait_until(lambda: pair.consumer.elements == [buffer(1, 10)])
    for plane in (consuming, producing):
        plane.close()


def test_a_slot_that_cannot_be_reached_is_an_error_with_both_addresses_and_the_option() -> None:
    gone, plane = DataPlane(7, SECRET, "127.0.0.1"), DataPlane(7, SECRET, "127.0.0.1")
    gone.close()
    consumer = Consumer()
    plane.connect(gone.address, CHANNEL, 1, SCHEMA, consumer)
    wait_until(lambda: bool(consumer.errors))
    assert f"The slot at {plane.address} cannot reach the slot at {gone.address}" in str(consumer.errors[0])
    assert "transport.slots.network" in str(consumer.errors[0])
    assert consumer.errors[0].facts["own_address"] == plane.address
    plane.close()
