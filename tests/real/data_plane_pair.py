"""Two slots' data planes over real sockets, and ends of a channel with a record of their calls."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from headgate.errors import TransportError
from headgate.protocol.channels import (
    Buffer,
    ChannelId,
    Element,
)
from headgate.protocol.data_frames import ENCODER, HEAD, PREAMBLE, ChannelRequest, Hello, Kind, head
from headgate.transport.data_plane import ConsumerLink, DataPlane, ProducerLink
from tests.waiting import wait_until

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


def hold_timers(plane: DataPlane, delay_s: float, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return a list that gets the timers of a plane with this delay: each is due when it is called."""
    held: list[Callable[[], None]] = []
    thread = plane._io
    do_after = thread.do_after

    def hold(after_s: float, work: Callable[[], None]) -> None:
        if after_s == delay_s:
            held.append(lambda: thread.do(work))
        else:
            do_after(after_s, work)

    monkeypatch.setattr(thread, "do_after", hold)
    return held


class RawPeer:
    """Whoever dials a data plane, by hand: bytes and frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, kind: Kind, number: int = 0, metadata: bytes = b"", body: bytes = b"") -> None:
        self.socket.sendall(head(kind, number, metadata, len(body)) + body)

    def greet(self, secret: str = SECRET, run: int = 7, address: str = "127.0.0.1:1") -> None:
        self.socket.sendall(PREAMBLE)
        self.send(Kind.HELLO, 0, ENCODER.encode(Hello(run=run, secret=secret, address=address)))

    def open(self, number: int = 1, channel: ChannelId = CHANNEL, generation: int = 1) -> None:
        request = ENCODER.encode(ChannelRequest(channel=channel, generation=generation))
        self.send(Kind.OPEN, number, request, SCHEMA.serialize().to_pybytes())

    def receive(self) -> tuple[Kind, int, bytes, bytes]:
        kind, number, metadata_size, body_size = HEAD.unpack(self.read(HEAD.size))
        return Kind(kind), number, self.read(metadata_size), self.read(body_size)

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise EOFError(found)
            found += more
        return found

    def wait_until_cut_off(self) -> None:
        """Whatever comes before. Raises `TimeoutError` if it is not."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass

    def close(self) -> None:
        self.socket.close()


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


@pytest.fixture(params=["local", "sockets"])
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
