"""The data plane's ends: closed, killed, frozen, cut off, over TLS or out of reach; and that nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pyarrow.flight as fl
import pytest

from headgate.errors import InternalError
from headgate.protocol.channels import (
    ChannelId,
    Element,
    ProducerIdle,
)
from headgate.transport import data_plane
from headgate.transport.authentication import call_options
from headgate.transport.data_plane import ConsumerLink, DataPlane, ProducerLink
from headgate.transport.data_server import VERSION, ChannelRequest
from headgate.transport.endpoint import close_quietly, connect
from headgate.transport.frames import GOODBYE, WELCOME
from tests.real import data_plane_pair
from tests.real.data_plane_pair import (
    CHANNEL,
    SCHEMA,
    SECRET,
    Consumer,
    Pair,
    Producer,
    buffer,
    data_threads,
    hold_timers,
)
from tests.real.tls import tls_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from local.kafka import Certificates

far = data_plane_pair.far
no_thread_stays, patience = data_plane_pair.no_thread_stays, data_plane_pair.patience  # of every test


def test_closing_the_planes_ends_every_channel_and_thread(far: Pair) -> None:
    """Whoever closes is not notified; the others learn that it is broken."""
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
