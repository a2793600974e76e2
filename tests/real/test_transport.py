"""The control plane over real sockets: order, secrets, TLS, ends of all kinds, and that no thread is left over."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from headgate.errors import InternalError, TransportError
from headgate.protocol.messages import Envelope, SlotHeartbeat, SplitRequested, encode
from headgate.transport.authentication import call_options
from headgate.transport.control_client import ControlClient
from headgate.transport.control_server import ControlServer
from headgate.transport.endpoint import close_quietly, connect
from headgate.transport.options import TlsOptions
from local.ports import free_ports
from tests.real.tls import tls_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from local.kafka import Certificates

SECRET = "a-secret-of-this-query"
LONG_S = 60.0
"""For what happens: a machine that others use as well may take long."""


def message(number: int, text: str = "kafka") -> Envelope:
    request = SplitRequested(stage=0, execution=1, source=text, host="here")
    return Envelope(run=1, slot=0, attempt=0, number=number, received=0, message=request)


_others: set[threading.Thread] = set()
"""Threads of other tests of this process."""


@pytest.fixture(autouse=True)
def others() -> None:
    """Note which threads were there before."""
    _others.clear()
    _others.update(threading.enumerate())


def own_threads() -> list[str]:
    """Return the names of all threads that Python knows of and that are the transport's."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in _others and thread.name.startswith(("headgate-control", "headgate-refusal", "Dummy", "Timer"))
    ]


class Driver:
    """A server with a record of its calls; it answers each message with the same message while ``echo`` is set.

    It does not break a connection because the machine is slow, unless ``goodbye_s`` is short.
    """

    def __init__(
        self, port: int = 0, *, secret: str = SECRET, tls: TlsOptions | None = None, goodbye_s: float = LONG_S
    ) -> None:
        self.opened: list[int] = []
        self.messages: list[tuple[int, Envelope]] = []
        self.closed: list[int] = []
        self.echo = True
        self.server = ControlServer(
            secret, "127.0.0.1", port, tls,
            on_opened=lambda number, peer: self.opened.append(number),
            on_message=self.on_message,
            on_closed=self.closed.append,
            goodbye_s=goodbye_s,
        )  # fmt: skip
        self.port = int(self.server.address.rpartition(":")[2])

    def on_message(self, connection: int, envelope: Envelope) -> None:
        if envelope.number < 0:
            raise ValueError("a message that the driver cannot take")
        self.messages.append((connection, envelope))
        if self.echo:
            self.server.send(connection, envelope)


class Slot:
    """A client with a record of its calls."""

    def __init__(self, driver: Driver, *, secret: str = SECRET, tls: TlsOptions | None = None) -> None:
        self.messages: list[Envelope] = []
        self.closed: list[TransportError | None] = []
        self.client = ControlClient(
            driver.server.address, secret, tls, on_message=self.messages.append, on_closed=self.closed.append,
            timeout_s=LONG_S, goodbye_s=LONG_S,
        )  # fmt: skip


@pytest.fixture
def goodbye_s() -> float:
    """Return how long the driver waits for a client that does not end its connection; a test may ask for another."""
    return LONG_S


@pytest.fixture
def driver(goodbye_s: float) -> Iterator[Driver]:
    made = Driver(goodbye_s=goodbye_s)
    yield made
    made.server.close()
    wait_until(lambda: not own_threads())


impatient = pytest.mark.parametrize("goodbye_s", [0.5], ids=["impatient"])


def test_messages_keep_their_order_both_ways(driver: Driver) -> None:
    """The driver sends the same messages back while more are coming: neither direction waits for the other."""
    slot = Slot(driver)
    sent = [message(number) for number in range(1, 10_001)]
    for envelope in sent:
        slot.client.send(envelope)
    wait_until(lambda: len(slot.messages) == len(sent))
    assert [envelope for _, envelope in driver.messages] == sent
    assert slot.messages == sent
    slot.client.close()


def test_a_message_of_many_megabytes_arrives(driver: Driver) -> None:
    """A subtask's state may be in its message."""
    slot = Slot(driver)
    large = message(1, "x" * 40_000_000)
    slot.client.send(large)
    wait_until(lambda: bool(slot.messages))
    assert slot.messages == [large]
    slot.client.close()


def test_connections_are_distinguished(driver: Driver) -> None:
    slots = [Slot(driver) for _ in range(3)]
    for number, slot in enumerate(slots, start=1):
        slot.client.send(message(number))
    wait_until(lambda: all(slot.messages for slot in slots))
    assert [slot.messages for slot in slots] == [[message(1)], [message(2)], [message(3)]]
    assert sorted(connection for connection, _ in driver.messages) == sorted(driver.opened) == [1, 2, 3]
    for slot in slots:
        slot.client.close()


def test_a_client_that_closes_sends_what_is_queued_first(driver: Driver) -> None:
    slot = Slot(driver)
    for number in range(1, 1001):
        slot.client.send(message(number))
    slot.client.close()
    wait_until(lambda: driver.closed == [1])
    assert [envelope.number for _, envelope in driver.messages] == list(range(1, 1001))
    assert slot.closed == [None]
    slot.client.close()  # a second time changes nothing


def test_a_connection_is_closed_after_what_was_queued_for_it(driver: Driver) -> None:
    slot = Slot(driver)
    wait_until(lambda: driver.opened == [1])
    for number in range(1, 1001):
        driver.server.send(1, message(number))
    driver.server.close_connection(1)
    driver.server.send(1, message(1001))
    wait_until(lambda: bool(slot.closed))
    assert [envelope.number for envelope in slot.messages] == list(range(1, 1001))
    assert slot.closed == [None]
    wait_until(lambda: driver.closed == [1])
    driver.server.send(1, message(1))
    driver.server.close_connection(1)  # it is gone: nothing happens


def test_closing_the_server_ends_all_streams_and_threads() -> None:
    driver = Driver()
    slots = [Slot(driver) for _ in range(4)]
    wait_until(lambda: len(driver.opened) == 4)
    driver.server.send(1, message(1))
    driver.server.close()
    assert sorted(driver.closed) == [1, 2, 3, 4], "all are notified before close returns"
    wait_until(lambda: all(slot.closed == [None] for slot in slots))
    assert sum(len(slot.messages) for slot in slots) == 1
    wait_until(lambda: not own_threads())
    with pytest.raises(TransportError):
        Slot(driver)
    wait_until(lambda: not own_threads())


def test_threads_do_not_add_up_over_many_servers() -> None:
    """Also not those that Python does not know of; gRPC keeps a few for the whole process."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    counts = []
    for _ in range(12):
        driver = Driver()
        slots = [Slot(driver) for _ in range(3)]
        for slot in slots:
            slot.client.close()
        driver.server.close()
        counts.append(threads())
    # gRPC lets go of threads that it needed when the machine was busy, only some time later.
    wait_until(lambda: threads() <= max(counts[:6]) + 4, 120)


def test_a_killed_server_starts_again_on_the_same_port() -> None:
    """A slot that loses the endpoint learns of it at once, and finds it again at its address."""
    first = Driver(*free_ports(1))  # which nobody else is given between the two
    slot = Slot(first)
    wait_until(lambda: first.opened == [1])
    first.server.kill()
    wait_until(lambda: bool(slot.closed))
    assert slot.closed[0] is not None and slot.closed[0].reason == "broken"
    assert first.closed == [1]
    slot.client.send(message(1))  # lost, like all that follows
    slot.client.close()
    second = Driver(first.port)
    again = Slot(second)
    again.client.send(message(2))
    wait_until(lambda: again.messages == [message(2)])
    again.client.close()
    second.server.close()
    wait_until(lambda: not own_threads())


@pytest.mark.parametrize("secret", ["", "another-query's", SECRET + "x", SECRET[:-1]])
def test_a_wrong_secret_is_refused_and_logged(driver: Driver, secret: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TransportError, match="refused the secret") as raised:
        Slot(driver, secret=secret)
    assert raised.value.reason == "refused"
    assert isinstance(raised.value.__cause__, fl.FlightUnauthenticatedError)
    wait_until(lambda: f"at {driver.server.address}: its secret is not that of this query" in caplog.text)
    assert SECRET not in caplog.text
    assert not driver.opened


def test_a_call_without_a_secret_is_refused_whatever_it_is(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(driver.server.address, None)
    with pytest.raises(fl.FlightUnauthenticatedError):
        list(client.list_flights())
    with pytest.raises(fl.FlightUnauthenticatedError):
        client.do_get(fl.Ticket(b"x"))
    with pytest.raises(fl.FlightUnauthenticatedError):
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b"control"))
        try:
            reader.read_chunk()
        finally:
            close_quietly(writer)
    client.close()
    wait_until(lambda: caplog.text.count("its secret is missing") == 3)


def raw_stream(driver: Driver) -> tuple[fl.FlightClient, fl.FlightStreamWriter, fl.FlightStreamReader]:
    """Return a stream without a `ControlClient` around it."""
    client = connect(driver.server.address, None)
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b"control"), call_options(SECRET))
    return client, writer, reader


@impatient
@pytest.mark.parametrize("frame", [b"nonsense", b"\xff" * 1000, encode(message(1))[:-3], b"\x81\xa3run\x01"])
def test_what_is_no_message_closes_the_connection(
    driver: Driver, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The client does not even say goodbye: its socket is broken after a while. Others go on."""
    other = Slot(driver)
    wait_until(lambda: driver.opened == [1])
    client, writer, _ = raw_stream(driver)
    writer.write_metadata(frame)
    with contextlib.suppress(pa.ArrowException, OSError):  # it may be broken already
        writer.write_metadata(encode(message(7)))
    wait_until(lambda: driver.closed == [2])
    assert "are not a message" in caplog.text
    assert not driver.messages, "nothing after it is read"
    other.client.send(message(1))
    wait_until(lambda: other.messages == [message(1)])
    other.client.close()
    close_quietly(writer, client)


def test_a_driver_that_cannot_take_a_message_closes_that_connection(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Slot(driver), Slot(driver)
    bad.client.send(message(-1))
    wait_until(lambda: bad.closed == [None])
    assert "a message that the driver cannot take" in caplog.text
    good.client.send(message(1))
    wait_until(lambda: good.messages == [message(1)])
    good.client.close()


def test_a_slot_that_cannot_take_a_message_loses_its_connection(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    def on_message(envelope: Envelope) -> None:
        raise ValueError("a message that the slot cannot take")

    closed: list[TransportError | None] = []
    client = ControlClient(
        driver.server.address, SECRET, on_message=on_message, on_closed=closed.append, timeout_s=LONG_S
    )
    client.send(message(1))
    wait_until(lambda: bool(closed))
    assert "a message that the slot cannot take" in str(closed[0])
    client.close()
    wait_until(lambda: driver.closed == [1])


def test_nobody_closes_an_end_from_its_own_thread() -> None:
    """It would wait for itself for ever."""
    errors: list[InternalError] = []

    def close(end: ControlServer | ControlClient) -> None:
        try:
            end.close()
        except InternalError as error:
            errors.append(error)

    def close_and_answer(connection: int, envelope: Envelope) -> None:
        close(server)
        server.send(connection, envelope)

    server = ControlServer(
        SECRET, "127.0.0.1",
        on_opened=lambda number, peer: None,
        on_message=close_and_answer,
        on_closed=lambda number: None,
    )  # fmt: skip
    client = ControlClient(
        server.address, SECRET, on_message=lambda envelope: close(client), on_closed=lambda error: None,
        timeout_s=LONG_S,
    )  # fmt: skip
    client.send(message(1))
    wait_until(lambda: len(errors) == 2)
    client.close()
    server.close()


@impatient
def test_a_client_that_does_not_read_holds_up_nobody_else(driver: Driver) -> None:
    """A full window blocks the writer of that connection only, and no sender; closing breaks it."""
    driver.echo = False
    client, writer, _ = raw_stream(driver)
    wait_until(lambda: driver.opened == [1])
    large = message(1, "x" * 1_000_000)
    for _ in range(100):
        driver.server.send(1, large)
    slot = Slot(driver)
    wait_until(lambda: driver.opened == [1, 2])
    driver.server.send(2, message(5))
    wait_until(lambda: slot.messages == [message(5)])
    driver.server.close_connection(1)
    wait_until(lambda: driver.closed == [1])
    slot.client.close()
    close_quietly(writer, client)


def test_a_slot_that_reads_slowly_gets_every_message(driver: Driver) -> None:
    messages: list[int] = []

    def on_message(envelope: Envelope) -> None:
        time.sleep(0.0005)
        messages.append(envelope.number)

    client = ControlClient(
        driver.server.address, SECRET, on_message=on_message, on_closed=lambda error: None, timeout_s=LONG_S
    )
    wait_until(lambda: driver.opened == [1])
    for number in range(1, 501):
        driver.server.send(1, message(number, "x" * 10_000))
    wait_until(lambda: len(messages) == 500)
    assert messages == list(range(1, 501))
    client.close()


FROZEN = """
import sys, time
from headgate.transport.control_client import ControlClient
ControlClient(sys.argv[1], sys.argv[2], on_message=print, on_closed=print, timeout_s=60)
print("open", flush=True)
time.sleep(300)
"""


def test_a_frozen_slot_does_not_keep_the_server_from_closing() -> None:
    """Its process is stopped: it answers nothing, and its connection stays open."""
    driver = Driver(goodbye_s=0.5)
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN, driver.server.address, SECRET], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGSTOP)
        driver.server.send(1, message(1))
        driver.server.close()
        assert driver.closed == [1]
        wait_until(lambda: not own_threads())
    finally:
        process.kill()
        process.wait()


def test_a_client_without_a_stream_does_not_keep_the_server_from_closing() -> None:
    """Its channel is open, because a call was refused."""
    driver = Driver()
    client = connect(driver.server.address, None)
    with pytest.raises(fl.FlightUnauthenticatedError):
        list(client.list_flights())
    driver.server.close()
    client.close()


UNCLOSED = """
import threading
from headgate.protocol.messages import Envelope, SlotHeartbeat
from headgate.transport.control_client import ControlClient
from headgate.transport.control_server import ControlServer
def back(connection, envelope): server.send(connection, envelope)
server = ControlServer("s", "127.0.0.1", on_opened=lambda *_: None, on_message=back, on_closed=lambda _: None)
busy = threading.Event()
def again(envelope): busy.set(); client.send(envelope)
client = ControlClient(server.address, "s", on_message=again, on_closed=lambda _: None, timeout_s=60)
for _ in range(100):
    client.send(Envelope(run=1, slot=0, attempt=0, number=0, received=0, message=SlotHeartbeat()))
busy.wait()
"""


def test_a_process_that_closes_nothing_exits_in_good_order() -> None:
    """Messages are under way in both directions when Python exits: it must not abort."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_slot_killed_by_a_signal_is_noticed() -> None:
    driver = Driver()
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN, driver.server.address, SECRET], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: driver.closed == [1])
    driver.server.close()


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    """A port that something else listens at, or a driver that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TransportError) as raised:
            ControlClient(address, SECRET, on_message=print, on_closed=print, timeout_s=0.2)
        assert raised.value.reason == "silent"
        assert address in str(raised.value)
    wait_until(lambda: not own_threads())


def test_nobody_at_the_address() -> None:
    with socket.socket() as deaf:  # it has the port, so that nobody else gets it, and does not listen
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(TransportError) as raised:
            ControlClient(address, SECRET, on_message=print, on_closed=print, timeout_s=LONG_S)
    assert (raised.value.reason, raised.value.address) == ("broken", address)


def test_a_port_that_is_taken(driver: Driver) -> None:
    with pytest.raises(TransportError, match="Cannot listen") as raised:
        Driver(driver.port)
    assert raised.value.reason == "listen"


def test_messages_over_tls(certificates: Certificates) -> None:
    tls = tls_of(certificates)
    driver = Driver(tls=tls)
    slot = Slot(driver, tls=tls)
    slot.client.send(message(1))
    wait_until(lambda: slot.messages == [message(1)])
    slot.client.close()
    with pytest.raises(TransportError) as refused:
        Slot(driver, tls=tls, secret="another")
    assert refused.value.reason == "refused"
    driver.server.close()
    wait_until(lambda: not own_threads())


def test_tls_refuses_plaintext_and_another_ca(certificates: Certificates) -> None:
    driver = Driver(tls=tls_of(certificates))
    with pytest.raises(TransportError) as plaintext:
        Slot(driver)
    assert plaintext.value.reason == "broken"
    assert "one side uses TLS and the other does not" in str(plaintext.value)
    with pytest.raises(TransportError) as wrong:
        Slot(driver, tls=tls_of(certificates, other_ca=True))
    assert wrong.value.reason == "tls"
    assert not driver.opened
    driver.server.close()


def test_a_tls_client_is_refused_by_a_server_without(driver: Driver, certificates: Certificates) -> None:
    with pytest.raises(TransportError):
        Slot(driver, tls=tls_of(certificates))
    assert not driver.opened


def test_a_certificate_without_its_key(certificates: Certificates) -> None:
    pem = certificates.ca.read_bytes()
    with pytest.raises(TransportError) as raised:
        Driver(tls=TlsOptions(certificate=pem, key=pem, ca=pem))
    assert raised.value.reason == "listen"


def test_logging_names_connections_not_messages(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """What is in messages (splits, states, errors) is not for the log."""
    with caplog.at_level(logging.DEBUG):
        slot = Slot(driver)
        heartbeat = Envelope(run=1, slot=0, attempt=0, number=0, received=0, message=SlotHeartbeat())
        slot.client.send(heartbeat)
        wait_until(lambda: slot.messages == [heartbeat])
        slot.client.close()
    assert "SlotHeartbeat" not in caplog.text
