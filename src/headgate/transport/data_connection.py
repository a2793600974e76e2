"""One connection between two slots: who is at its other end, and all channels between the two, both ways.

Never: answer a stranger's question, or allocate for it; send on a channel what is not legal there now
(`headgate.protocol.data_frames` decides); call back while a lock is held.

    state     what happens                      next
    --------  --------------------------------  --------------------------------------------------------------------
    greeting  ACCEPTED, or a HELLO that is ours  up: its reader trusts lengths
    greeting  a HELLO that is not ours          refused: DENIED goes, and nothing that comes is read any more
    greeting  a HELLO of a slot that is dialed  refused, with TWICE: of the two, that of the lower address stays
    greeting  DENIED                            over: all consumers are refused
    greeting  TWICE                             over: its consumers, none of which was heard, go to the other connection
    greeting  anything else, or nothing for     over: logged, if it came from outside
              `LOST_AFTER_S`
    any       the socket's end                  over: all ends of its channels learn it

Follows docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

import hmac
import logging
import ssl
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from headgate.errors import InternalError, TransportError
from headgate.protocol.channels import ChannelId
from headgate.protocol.data_frames import (
    ENCODER,
    GREETINGS,
    HELLOS,
    MAX_BODY,
    PREAMBLE,
    REQUESTS,
    ConnectionChannels,
    Hello,
    IllegalFrame,
    Kind,
    State,
    head,
)
from headgate.transport.channel_ends import Receiver, broken
from headgate.transport.far_link import FarConsumer, FarReceiver
from headgate.transport.frame_queue import LARGE, OutgoingFrame
from headgate.transport.frame_reader import Frame, OtherVersion
from headgate.transport.framed_socket import FramedSocket
from headgate.transport.sockets import NETWORK_OPTION

logger = logging.getLogger(__name__)

_ENDS = frozenset({Kind.CLOSE, Kind.REFUSED, Kind.GOODBYE})


class Host(Protocol):
    """The data plane, as its connections see it; called on the I/O thread."""

    address: str
    run: int
    secret: str

    def seek(self, receiver: Receiver) -> None:
        """Give a consumer its producer, refuse it, or let it wait."""

    def forget_waiting(self, receiver: Receiver) -> None:
        """It waits no more."""

    def has_dialed_first(self, address: str) -> bool:
        """Return whether a slot that dials here is to use the connection that this one dialed."""

    def on_accepted(self, connection: Connection) -> None:
        """A slot dialed: ``connection.peer`` is reached through it, too."""

    def on_twice(self, connection: Connection) -> None:
        """``connection.peer`` has dialed, too, and that connection stays."""

    def on_over(self, connection: Connection) -> None:
        """It is gone."""


class Connection:
    """A connection. It is the `Line` of its channels' ends, and the `SocketOwner`.

    Parameters
    ----------
    host
        The data plane.
    stream
        Its socket.
    peer
        The address of the other slot; of one that dialed: of its socket, until it has introduced itself.
    dialed
        This side did.
    """

    def __init__(self, host: Host, stream: FramedSocket, peer: str, *, dialed: bool) -> None:
        self.peer = peer
        self.stream = stream
        self.dialed = dialed
        self._host = host
        self._up = False  # changed on the I/O thread only, like the next
        self._refusal: str | None = None
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._over: Exception | str | None = None
        self._channels = ConnectionChannels(dialed=dialed)
        self._consumers: dict[int, FarConsumer] = {}
        self._receivers: dict[int, FarReceiver] = {}
        stream.put(0, OutgoingFrame(PREAMBLE))
        if dialed:
            self._greet(Kind.HELLO, ENCODER.encode(Hello(run=host.run, secret=host.secret, address=host.address)))

    # Any thread.

    def open(self, consumer: FarConsumer) -> bool:
        """Ask for a consumer's producer; `flush` must follow. Return whether the connection is still there."""
        request, schema = consumer.request()
        with self._lock:
            if self._over is not None:
                return False
            number = self._channels.open()
            self._consumers[number] = consumer
            self.stream.put(number, _outgoing(Kind.OPEN, number, request, (schema,)))
            wanted = consumer.opened(self, number)
        if not wanted:
            self.send(number, Kind.CLOSE)
        return True

    def send(self, number: int, kind: Kind, metadata: bytes = b"", body: Sequence[Any] = ()) -> None:
        """As in `Line`."""
        frame = _outgoing(kind, number, metadata, body)
        with self._lock:
            if self._channels.goes(number, kind):
                self.stream.put(number, frame)
                if kind in _ENDS:
                    self._forget_locked(number)

    def flush(self) -> None:
        """As in `Line`."""
        self.stream.flush()

    def error_for(self, channel: ChannelId) -> TransportError:
        """Return ours for a consumer on a connection that is over."""
        own, there = self._host.address, self.peer
        if self._refusal is not None:
            return broken(channel, self._refusal, address=there, reason="refused")
        cause = self._over
        if isinstance(cause, OtherVersion):
            return broken(channel, f"the slot at {there} is of another version of Headgate ({cause})", address=there,
                          reason="refused")  # fmt: skip
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            why = (
                f"TLS with the slot at {there} failed; is its certificate made for this host, and by the CA in "
                f"transport.tls.ca ({cause})"
            )
            error = broken(channel, why, address=there, reason="tls")
        elif isinstance(cause, Exception) and not isinstance(cause, OSError):
            why = f"{there} sent something that no slot of this version sends ({cause})"
            error = broken(channel, why, address=there, reason="failed")
        else:
            error = TransportError(
                f"The slot at {own} cannot reach the slot at {there}, or lost it: {cause}. Slots connect to one "
                f"another on any port, at the addresses from which they reach the driver; {NETWORK_OPTION} names "
                "another network.",
                address=there, own_address=own, reason="broken",
                producer=channel.producer, consumer=channel.consumer,
            )  # fmt: skip
        error.__cause__ = cause if isinstance(cause, Exception) else None
        return error

    def give_away(self) -> list[FarConsumer]:
        """Return its consumers, for another connection: this one opens none any more."""
        with self._lock:
            self._over = "there is another connection to that slot"
            consumers = list(self._consumers.values())
            self._consumers.clear()
        return consumers

    def close_consumers(self) -> None:
        """Close the links of all consumers on it."""
        with self._lock:
            consumers = list(self._consumers.values())
        for consumer in consumers:
            consumer.close()

    # On the I/O thread.

    def finish(self) -> None:
        """End it after what is queued; one that is not up at once."""
        if self._up:
            self.stream.finish()
        else:
            self.stream.abort()

    def lose_patience(self) -> None:
        """End it, unless it is up."""
        if not self._up:
            self.stream.end(TimeoutError("it did not introduce itself in time"))

    def on_frame(self, frame: Frame) -> None:
        """As in `SocketOwner`."""
        kind, number = frame.kind, frame.number
        if kind in GREETINGS:
            self._on_greeting(frame)
            return
        if not self._up:
            raise IllegalFrame(f"{kind.name} comes before any greeting")
        with self._lock:
            if not self._channels.comes(number, kind):
                return
            end = self._consumers.get(number) or self._receivers.get(number)
            if self._channels.state(number) is State.CLOSED:
                self._forget_locked(number)
                self.stream.discard(number)
        if kind is Kind.OPEN:
            self._on_open(frame)
        elif end is not None:
            end.on_frame(frame)

    def on_end(self, error: Exception | None) -> None:
        """As in `SocketOwner`."""
        with self._lock:
            self._over = "it ended the connection, or died" if error is None else error
            self._channels.clear()
            consumers, receivers = list(self._consumers.values()), list(self._receivers.values())
            self._consumers.clear()
            self._receivers.clear()
        if not self.dialed and not self._up and self._refusal is None:
            self._log_refusal("it left without a greeting" if error is None else str(error))
        self._host.on_over(self)
        for consumer in consumers:
            consumer.lost(self.error_for(consumer.channel))
        for receiver in receivers:
            receiver.leave()

    def _on_open(self, frame: Frame) -> None:
        request = REQUESTS.decode(frame.metadata)
        if frame.body is None:
            raise IllegalFrame("OPEN comes without a schema")
        receiver = FarReceiver(self, frame.number, request, pa.ipc.read_schema(frame.body), self._host.forget_waiting)
        with self._lock:
            self._receivers[frame.number] = receiver
        self._host.seek(receiver)

    def _on_greeting(self, frame: Frame) -> None:
        if self._up or (frame.kind is Kind.HELLO) == self.dialed:
            raise IllegalFrame(f"{frame.kind.name} comes from the wrong side, or again")
        if frame.kind is Kind.HELLO:
            self._on_hello(HELLOS.decode(frame.metadata))
        elif frame.kind is Kind.ACCEPTED:
            self._enter()
        elif frame.kind is Kind.TWICE:
            self._host.on_twice(self)
            self.stream.end(None)
        else:
            self._refusal = frame.metadata.decode()
            self.stream.end(None)

    def _on_hello(self, hello: Hello) -> None:
        here = self._host.address
        if not hmac.compare_digest(hello.secret.encode(), self._host.secret.encode()):
            self._deny(f"{here} refused the secret: it is another query's, or another start's of this one")
        elif hello.run != self._host.run:
            self._deny(f"{here} is of run {self._host.run}, not of run {hello.run}")
        elif self._host.has_dialed_first(hello.address):
            self.peer, self._refusal = hello.address, "there is another connection"
            self._greet(Kind.TWICE)
            self.stream.refuse()
        else:
            self.peer = hello.address
            self._enter()
            self._greet(Kind.ACCEPTED)
            self._host.on_accepted(self)

    def _enter(self) -> None:
        self._up = True
        self.stream.trust()

    def _deny(self, why: str) -> None:
        self._refusal = why
        self._log_refusal(why)
        self._greet(Kind.DENIED, why.encode())
        self.stream.refuse()

    def _greet(self, kind: Kind, metadata: bytes = b"") -> None:
        self.stream.put(0, _outgoing(kind, 0, metadata))
        self.stream.flush()

    def _log_refusal(self, why: str) -> None:
        logger.warning("Refused a connection from %s to the data plane at %s: %s.", self.peer, self._host.address, why)

    def _forget_locked(self, number: int) -> None:
        assert self._lock.locked()
        self._consumers.pop(number, None)
        self._receivers.pop(number, None)


def _outgoing(kind: Kind, number: int, metadata: bytes, body: Sequence[Any] = ()) -> OutgoingFrame:
    size = sum(map(len, body))
    if size > MAX_BODY:
        raise InternalError(f"A frame of {size} bytes cannot be sent: {kind.name}.")
    begin = head(kind, number, metadata, size)
    return OutgoingFrame(begin, body if size else (), len(begin) + size, kind is Kind.ROWS and size > LARGE)
