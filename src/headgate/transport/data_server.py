"""The producer's side of a channel over Flight: one stream, on which rows and events go out and credits come in.

Never: run code of others on a thread of gRPC's, or let our thread outlive the stream.

A stream has two threads. gRPC's own writes what is queued, and returns last of all; ours reads, and makes the calls.

    from the consumer                   to the consumer
    ----------------------------------  -------------------------------------------------------------------
    descriptor: `ChannelRequest`        REFUSED and why, or WELCOME
    metadata: credits, in MessagePack   rows with metadata `RowsFrame`; metadata: an event, in MessagePack
    the end of the stream               GOODBYE and why

Follows docs/architecture.md, "Stages and exchanges".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headgate.protocol.channels import Buffer, ChannelId, Element, encode_event
from headgate.transport.channel_ends import OfferedChannel
from headgate.transport.frames import GOODBYE, REFUSED, WELCOME

THREAD_NAME = "headgate-data"
"""What the names of all threads of data planes begin with."""
VERSION = 1
"""Of what passes a stream. Slots of one query run one version; anybody else is refused."""


class ChannelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer asks for: the command of its stream's descriptor.

    Parameters
    ----------
    version
        `VERSION`.
    run, generation, channel
        Of whom.
    schema
        Of the rows that it expects: an Arrow IPC message.
    """

    version: int
    run: int
    generation: int
    channel: ChannelId
    schema: bytes


class RowsFrame(msgspec.Struct, frozen=True, array_like=True):
    """The metadata of rows: what else a `Buffer` has."""

    num_rows: int
    size_bytes: int
    unfiltered: bool


ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(ChannelRequest)
_CREDITS = msgspec.msgpack.Decoder(int)


class ServedChannel:
    """A stream. It is the `Receiver` of a consumer in another slot.

    Parameters
    ----------
    peer
        Where it comes from.
    request
        What it asks for.
    seek, on_over
        Ask for its producer, and say that it is gone; called on our thread.
    on_leaving
        Called when the consumer is to end the stream; must only queue.
    """

    def __init__(
        self,
        peer: str,
        request: ChannelRequest,
        seek: Callable[[ServedChannel], None],
        on_leaving: Callable[[ServedChannel], None],
        on_over: Callable[[ServedChannel], None],
    ) -> None:
        self.peer = peer
        self.channel, self.generation = request.channel, request.generation
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(request.schema))
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None
        self._seek, self._on_leaving, self._on_over = seek, on_leaving, on_over
        self._outgoing: SimpleQueue[Element | bytes | None] = SimpleQueue()
        self._offered: OfferedChannel | None = None  # set once, before WELCOME is queued
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._gone = False

    def welcome(self, offered: OfferedChannel) -> None:
        """As in `Receiver`."""
        with self._lock:
            self._offered = offered
        self._outgoing.put(WELCOME)

    def put(self, element: Element) -> None:
        """As in `Receiver`."""
        self._outgoing.put(element)

    def finish(self, why: str) -> None:
        """As in `Receiver`."""
        self._outgoing.put(GOODBYE + why.encode())
        self._on_leaving(self)

    def refuse(self, why: str) -> None:
        """As in `Receiver`."""
        self._outgoing.put(REFUSED + why.encode())
        self._on_leaving(self)

    def deliver(self) -> None:
        """As in `Receiver`."""
        if self._gone and self._offered is not None:
            self._offered.consumer_gone(_GONE)  # it left while it got its producer

    def serve(self, reader: fl.MetadataRecordBatchReader, writer: fl.MetadataRecordBatchWriter, name: str) -> None:
        """Write what is queued until the stream ends. On a thread of gRPC's."""
        self.thread = threading.Thread(target=self._receive, args=(reader,), name=name, daemon=True)
        self.thread.start()
        try:
            self._write(writer)
        except (pa.ArrowException, OSError):
            self._on_leaving(self)  # reading fails, too; if it does not, the connection is broken
        finally:
            self.closed.wait()  # the reader must not outlive the stream

    def _write(self, writer: fl.MetadataRecordBatchWriter) -> None:
        begun = False
        while (item := self._outgoing.get()) is not None:
            if self._gone:
                return
            if isinstance(item, Buffer):
                if not begun:
                    writer.begin(self.schema)
                    begun = True
                frame = RowsFrame(item.num_rows, item.size_bytes, item.unfiltered)
                writer.write_with_metadata(item.rows, ENCODER.encode(frame))
            elif isinstance(item, bytes):
                writer.write_metadata(item)
                if item != WELCOME:
                    return
            else:
                writer.write_metadata(encode_event(item))

    def _receive(self, reader: fl.MetadataRecordBatchReader) -> None:
        """Read until the stream ends, and make the calls. On a thread of our own."""
        try:
            self._seek(self)
            while (credits := _next_credits(reader)) is not None:
                offered = self._offered
                if offered is not None:
                    offered.queue_credit(credits)
                    offered.make_calls()
        finally:
            with self._lock:
                self._gone = True
                offered = self._offered
            self._outgoing.put(None)
            self._on_over(self)
            if offered is not None:
                offered.consumer_gone(_GONE)
            self._offered = None  # whose end would live as long as the patience with this stream
            self.closed.set()


_GONE = "its consumer closed it, or the connection broke"


def decode_request(command: bytes) -> ChannelRequest | None:
    """Return what a stream asks for; None: it is not of this version's data plane."""
    try:
        request = _REQUESTS.decode(command)
    except msgspec.DecodeError:
        return None
    return request if request.version == VERSION else None


def _next_credits(reader: fl.MetadataRecordBatchReader) -> int | None:
    """Return what is granted next; None: the stream ended, broke, or is not ours."""
    try:
        metadata = reader.read_chunk().app_metadata
        return None if metadata is None else _CREDITS.decode(metadata)
    except (StopIteration, pa.ArrowException, OSError, msgspec.DecodeError):
        return None
