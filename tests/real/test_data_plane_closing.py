"""The data plane's ends: closed, killed, frozen, cut off, over TLS or out of reach; and that nothing is left over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from headgate.errors import InternalError, TransportError
from headgate.protocol.channels import (
    ChannelId,
    Element,
    ProducerIdle,
)
from headgate.protocol.data_frames import PREAMBLE, Kind
from headgate.transport.data_plane import ConsumerLink, DataPlane, ProducerLink
from tests.real import data_plane_pair
from tests.real.data_plane_pair import (
    CHANNEL,
    SCHEMA,
    SECRET,
    Consumer,
    Pair,
    Producer,
    RawPeer,
    buffer,
)
from tests.real.tls import tls_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from local.kafka import Certificates

far = data_plane_pair.far
no_thread_stays = data_plane_pair.no_thread_stays  # of every test


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
        done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, "")


def open_files() -> set[str]:
    """Return what this process has open, each by a name that nothing else gets: for sockets, their number."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def alone(measure: Callable[[], None]) -> None:
    """Run something in a process where nobody else starts threads or opens files, as Spark's Java makes ours do."""
    program = f"from tests.real.test_data_plane_closing import {measure.__name__} as measure; measure()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_threads_and_files_do_not_add_up_over_many_channels() -> None:
    """Nor do they with those that are open: all share a connection and a thread."""
    alone(count_over_many_channels)


def count_over_many_channels() -> None:
    far = Pair(DataPlane(7, SECRET, "127.0.0.1"), DataPlane(7, SECRET, "127.0.0.1"))

    def added() -> tuple[set[str], set[str]]:
        return set(os.listdir("/proc/self/task")) - threads, open_files() - files

    far.both()
    threads, files = set(os.listdir("/proc/self/task")), open_files()
    for round_ in range(10):
        links: list[ProducerLink | ConsumerLink] = []
        ends = [Consumer() for _ in range(40)]
        for number, end in enumerate(ends):
            channel = ChannelId("x", number, 0)
            links.append(far.producing.offer(channel, round_, SCHEMA, Producer()))
            links.append(far.consuming.connect(far.producing.address, channel, round_, SCHEMA, end))
        wait_until(lambda ends=ends: all(end.connected for end in ends))
        assert added() == (set(), set())
        for link in links:
            link.close()
    wait_until(lambda: len(far.producing._offers) == 1)
    assert added() == (set(), set())
    far.consuming.close()
    far.producing.close()


def test_a_slot_has_one_connection_per_other_slot_and_threads_do_not_grow() -> None:
    """Seventeen slots, and three exchanges between all of them: 816 channels."""
    alone(count_with_many_slots)


def count_with_many_slots() -> None:
    planes = [DataPlane(7, SECRET, "127.0.0.1") for _ in range(17)]
    pairs = [(one, other) for one in range(17) for other in range(one)]
    ends: list[Consumer] = []

    def connect(exchange: str, producer: int, consumer: int) -> None:
        channel, end = ChannelId(exchange, producer, consumer), Consumer()
        planes[producer].offer(channel, 1, SCHEMA, Producer()).send(buffer(1))
        planes[consumer].connect(planes[producer].address, channel, 1, SCHEMA, end)
        ends.append(end)

    # Which ones, not how many: some may end meanwhile.
    threads = set(os.listdir("/proc/self/task"))
    for one, other in pairs:
        connect("first", one, other)
    wait_until(lambda: all(end.elements for end in ends))
    files = open_files()
    for exchange in ("second", "third", "fourth"):
        for one, other in pairs:
            if exchange != "fourth":
                connect(exchange, one, other)
            connect(exchange, other, one)
    wait_until(lambda: all(end.elements for end in ends))
    assert len(ends) == 816
    assert [len(plane._connections) for plane in planes] == [16] * 17
    assert set(os.listdir("/proc/self/task")) <= threads
    assert open_files() <= files
    for plane in planes:
        plane.kill()
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= len(threads) - 17)  # a little after they are joined


def test_a_slot_that_does_not_end_its_connection_is_cut_off() -> None:
    """It is another program, or hangs: who closes has sent all, and waits no longer than was agreed."""
    plane = DataPlane(7, SECRET, "127.0.0.1", goodbye_s=0.1)
    producing = Pair(plane, plane).offer()
    peer = RawPeer(plane.address)
    peer.greet()
    peer.open()
    assert peer.read(len(PREAMBLE)) == PREAMBLE
    assert [peer.receive()[:2] for _ in range(2)] == [(Kind.ACCEPTED, 0), (Kind.WELCOME, 1)]
    producing.send(ProducerIdle())
    plane.close()
    assert [peer.receive()[:2] for _ in range(2)] == [(Kind.EVENT, 1), (Kind.GOODBYE, 1)]
    peer.wait_until_cut_off()
    peer.close()


def test_all_that_was_sent_arrives_before_a_plane_is_closed() -> None:
    """Also what was queued when it was closed, and where the other side sends meanwhile."""
    planes = [DataPlane(7, SECRET, "127.0.0.1", goodbye_s=60) for _ in range(2)]
    pair = Pair(*planes)
    producing, consuming = pair.both()
    for number in range(50):
        producing.send(buffer(number, 50_000))
        consuming.grant(1)
    planes[0].close()
    wait_until(lambda: bool(pair.consumer.errors))
    assert len(pair.consumer.elements) == 50
    assert "its producer closed it" in str(pair.consumer.errors[0])
    planes[1].close()


FORK = """
import os, sys
import pyarrow as pa
from headgate.protocol.channels import ChannelId, ProducerIdle
from headgate.transport.data_plane import DataPlane
import threading
class End:
    def __init__(self): self.there, self.more = threading.Event(), threading.Event()
    def on_connected(self): self.there.set()
    def on_credit(self, credits): pass
    def on_element(self, element): self.more.set()
    def on_broken(self, error): pass
a, b = DataPlane(1, "s", "127.0.0.1"), DataPlane(1, "s", "127.0.0.1")
channel, schema = ChannelId("x", 0, 0), pa.schema([])
producing, end = a.offer(channel, 1, schema, End()), End()
consuming = b.connect(a.address, channel, 1, schema, end)
end.there.wait()
child = os.fork()
if child == 0:
    a.close()
    sys.exit(0)  # runs what is registered for the process' end
print(os.waitpid(child, 0)[1], flush=True)
producing.send(ProducerIdle())
end.more.wait()
a.close(), b.close()
print("passed", flush=True)
"""


def test_a_fork_of_a_process_with_a_plane_leaves_its_connections_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\npassed\n", "")


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


def test_a_slot_whose_certificate_is_not_trusted_is_an_error_of_tls(certificates: Certificates) -> None:
    """The scheduler must not take it for a host that cannot be reached."""
    producing = DataPlane(7, SECRET, "127.0.0.1", tls=tls_of(certificates))
    for settings in ({"tls": tls_of(certificates, other_ca=True)}, {"tls": tls_of(certificates), "certified": "other"}):
        consuming = DataPlane(7, SECRET, "127.0.0.1", **settings)  # type: ignore[arg-type]
        pair = Pair(producing, consuming)
        pair.connect()
        wait_until(lambda pair=pair: bool(pair.consumer.errors))
        assert pair.consumer.errors[0].reason == "tls"
        assert "transport.tls.ca" in str(pair.consumer.errors[0])
        consuming.close()
    producing.close()


def test_certificate_and_key_that_are_no_pair_are_an_error_of_listening(certificates: Certificates) -> None:
    tls = tls_of(certificates)
    with pytest.raises(TransportError, match="certificate and key not a pair") as caught:
        DataPlane(7, SECRET, "127.0.0.1", tls=msgspec.structs.replace(tls, key=tls.ca))
    assert caught.value.facts["reason"] == "listen"


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_channels_whose_senders_share_a_connection_keep_their_order(certificates: Certificates, with_tls: bool) -> None:
    """Eight threads send, small and large, and the other side grants on the same connection."""
    tls = tls_of(certificates) if with_tls else None
    producing, consuming = DataPlane(7, SECRET, "127.0.0.1", tls=tls), DataPlane(7, SECRET, "127.0.0.1", tls=tls)
    sent = [buffer(number, 60_000 if number % 7 == 0 else 3) for number in range(150)]
    ends, producers, senders = [], [], []
    for number in range(8):
        channel, end, producer = ChannelId("x", number, 0), Consumer(), Producer()
        link = producing.offer(channel, 1, SCHEMA, producer)
        back = consuming.connect(producing.address, channel, 1, SCHEMA, end)
        ends.append(end)
        producers.append(producer)
        senders.append(threading.Thread(target=lambda link=link: [link.send(each) for each in sent]))
        senders.append(threading.Thread(target=lambda back=back: [back.grant(1) for _ in range(300)]))
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    wait_until(lambda: all(len(end.elements) == 150 for end in ends))
    assert all(end.elements == sent for end in ends)
    wait_until(lambda: all(producer.credits == 300 for producer in producers))
    consuming.close()
    producing.close()


def test_a_plane_is_killed_while_many_threads_send() -> None:
    """Whoever writes then closes the socket: no error, and no file is left, nor one of somebody else's closed."""
    files = len(os.listdir("/proc/self/fd"))
    rows = buffer(0, 60_000)
    for _ in range(10):
        planes = [DataPlane(7, SECRET, "127.0.0.1") for _ in range(2)]
        ends = [Consumer() for _ in range(4)]
        links = [planes[0].offer(ChannelId("x", each, 0), 1, SCHEMA, Producer()) for each in range(4)]
        for number, end in enumerate(ends):
            planes[1].connect(planes[0].address, ChannelId("x", number, 0), 1, SCHEMA, end)
        raised: list[Exception] = []
        over = threading.Event()

        def send(
            link: ProducerLink, end: Consumer, raised: list[Exception] = raised, over: threading.Event = over
        ) -> None:
            sent = 0
            try:
                while not over.is_set():
                    if sent < len(end.elements) + 8:
                        link.send(rows)
                        sent += 1
                    else:
                        time.sleep(0)
            except Exception as error:
                raised.append(error)

        senders = [threading.Thread(target=send, args=each) for each in zip(links, ends, strict=True)]
        for sender in senders:
            sender.start()
        wait_until(lambda ends=ends: any(end.elements for end in ends))
        planes[0].kill()
        over.set()
        for sender in senders:
            sender.join()
        wait_until(lambda ends=ends: all(end.errors for end in ends))
        assert {end.errors[0].reason for end in ends} == {"broken"}
        planes[1].kill()
        assert not raised
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


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
