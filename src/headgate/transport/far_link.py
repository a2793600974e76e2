"""The two ends of a channel between slots: each a number on the connection that all their channels share.

Never: run on another thread than the connection's what is a call for a consumer; keep a batch in a message with others.

Follows docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headgate.errors import TransportError
from headgate.protocol.channels import Buffer, ChannelId, Element, decode_event, encode_event
from headgate.protocol.data_frames import (
    CREDITS,
    ENCODER,
    ROWS_FRAMES,
    ChannelRequest,
    Kind,
    RowsFrame,
)
from headgate.transport.channel_ends import ConsumerEnd, OfferedChannel, broken, channel_name
from headgate.transport.frame_reader import Frame
from headgate.transport.row_messages import RowMessages

logger = logging.getLogger(__name__)

_GONE = "its consumer closed it, or the connection broke"


class Line(Protocol):
    """The connection, as the ends of its channels see it. Any thread."""

    def send(self, number: int, kind: Kind, metadata: bytes = b"", body: Sequence[Any] = ()) -> None:
        """Queue a frame, its body in parts; `flush` must follow. Dropped where the end is closed: it is not legal."""

    def flush(self) -> None:
        """Write what is queued. Does not block."""


class FarConsumer:
    """A consumer whose producer is in another slot. It is the consumer's `ConsumerLink`.

    Parameters
    ----------
    address
        Of the producer's slot.
    """

    def __init__(
        self, address: str, channel: ChannelId, generation: int, schema: pa.Schema, end: ConsumerEnd
    ) -> None:  # fmt: skip
        self.channel, self.generation, self.schema = channel, generation, schema
        self._address = address
        self._end = end
        self._number = 0
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._line: Line | None = None
        self._connected = False
        self._over = False
        self._owed = 0  # credits that were granted before it was connected

    def request(self) -> tuple[bytes, pa.Buffer]:
        """Return metadata and body of OPEN."""
        request = ChannelRequest(channel=self.channel, generation=self.generation)
        return ENCODER.encode(request), self.schema.serialize()

    def opened(self, line: Line, number: int) -> bool:
        """Take note of its number on a connection, where OPEN goes next; return whether it is to: it may be closed."""
        with self._lock:
            self._line, self._number = line, number
            return not self._over

    def grant(self, credits: int) -> None:
        """As in `ConsumerLink`."""
        with self._lock:
            line = self._line
            if self._over or line is None or not self._connected:
                self._owed += credits
                return
        line.send(self._number, Kind.CREDIT, ENCODER.encode(credits))
        line.flush()

    def close(self) -> None:
        """As in `ConsumerLink`."""
        with self._lock:
            if self._over:
                return
            self._over = True
            line = self._line
        if line is not None:
            line.send(self._number, Kind.CLOSE)
            line.flush()

    # On the I/O thread.

    def give_up(self, why: str) -> None:
        """Stop waiting for the producer; nothing if it is there."""
        if not self._connected and not self._over:
            self.close()
            self._call(self._end.on_broken, broken(self.channel, why, address=self._address, reason="silent"))

    def lost(self, error: TransportError) -> None:
        """Take note of the connection's end."""
        self._finish(error)

    def on_frame(self, frame: Frame) -> None:
        """Take what came.

        Raises
        ------
        ValueError
            It is not what it should be.
        """
        if self._over:
            return
        match frame.kind:
            case Kind.ROWS:
                self._call(self._end.on_element, self._buffer(frame))
            case Kind.EVENT:
                self._call(self._end.on_element, decode_event(frame.metadata))
            case Kind.WELCOME:
                self._on_welcome()
            case Kind.REFUSED | Kind.GOODBYE:
                reason = "refused" if frame.kind is Kind.REFUSED else "broken"
                why = b"" if frame.body is None else frame.body.to_pybytes()
                self._finish(broken(self.channel, why.decode(), address=self._address, reason=reason))
            case _:
                raise AssertionError(frame.kind)

    def _buffer(self, frame: Frame) -> Buffer:
        about = ROWS_FRAMES.decode(frame.metadata)
        rows = pa.ipc.read_record_batch(frame.body, self.schema)
        return Buffer(rows=rows, num_rows=about.num_rows, size_bytes=about.size_bytes, unfiltered=about.unfiltered)

    def _on_welcome(self) -> None:
        with self._lock:
            self._connected = True
            owed, self._owed = self._owed, 0
        if owed:
            assert self._line is not None
            self._line.send(self._number, Kind.CREDIT, ENCODER.encode(owed))
            self._line.flush()
        self._call(self._end.on_connected)

    def _finish(self, error: TransportError) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._call(self._end.on_broken, error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            logger.exception("Handling what came on %s failed; closing it.", channel_name(self.channel))
            self.close()


class FarReceiver:
    """A consumer in another slot, as a `Receiver` of its producer's.

    Parameters
    ----------
    line, number
        The connection, and the channel's number there.
    request, schema
        What it asks for.
    on_over
        Called on the I/O thread when it is gone.
    """

    def __init__(
        self, line: Line, number: int, request: ChannelRequest, schema: pa.Schema,
        on_over: Callable[[FarReceiver], None],
    ) -> None:  # fmt: skip
        self.channel, self.generation, self.schema = request.channel, request.generation, schema
        self._line, self._number = line, number
        self._on_over = on_over
        self._packing = threading.Lock()  # of whoever uses _messages
        self._messages = RowMessages(schema)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._offered: OfferedChannel | None = None
        self._gone = False

    def welcome(self, offered: OfferedChannel) -> None:
        """As in `Receiver`."""
        with self._lock:
            self._offered = offered
        self._line.send(self._number, Kind.WELCOME)

    def pack(self, element: Element) -> Any:
        """As in `Receiver`: as a frame."""
        if not isinstance(element, Buffer):
            return Kind.EVENT, encode_event(element)
        about = RowsFrame(element.num_rows, element.size_bytes, element.unfiltered)
        with self._packing:
            return Kind.ROWS, ENCODER.encode(about), self._messages.parts(element.rows, element.size_bytes)

    def put(self, packed: Any) -> None:
        """As in `Receiver`."""
        self._line.send(self._number, *packed)

    def finish(self, why: str) -> None:
        """As in `Receiver`."""
        self._line.send(self._number, Kind.GOODBYE, body=(why.encode(),))

    def refuse(self, why: str) -> None:
        """As in `Receiver`."""
        self._line.send(self._number, Kind.REFUSED, body=(why.encode(),))

    def deliver(self) -> None:
        """As in `Receiver`."""
        self._line.flush()
        with self._lock:
            offered = self._offered if self._gone else None
        if offered is not None:
            offered.consumer_gone(_GONE)  # it left while it got its producer

    # On the I/O thread.

    def on_frame(self, frame: Frame) -> None:
        """Take what came.

        Raises
        ------
        ValueError
            It is not what it should be.
        """
        match frame.kind:
            case Kind.CREDIT:
                offered = self._offered
                if offered is not None:
                    offered.queue_credit(CREDITS.decode(frame.metadata))
                    offered.make_calls()
            case Kind.CLOSE:
                self.leave()
            case _:
                raise AssertionError(frame.kind)

    def leave(self) -> None:
        """Take note that the consumer wants nothing any more, or that the connection is gone."""
        with self._lock:
            self._gone = True
            offered, self._offered = self._offered, None
        self._on_over(self)
        if offered is not None:
            offered.consumer_gone(_GONE)
