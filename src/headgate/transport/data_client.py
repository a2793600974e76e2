"""The consumer's side of a channel over Flight: the stream that `headgate.transport.data_server` describes.

Never: keep a batch in its message, which it pins, and where its buffers lie as they come: Arrow wants them aligned and
writes a line for each that is not. Copying costs a tenth of what receiving does.

A stream has one thread, which connects, reads and makes all calls. Credits are written by the data plane's executor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headgate.errors import TransportError
from headgate.protocol.channels import Buffer, ChannelId, Element, decode_event
from headgate.serial_executor import SerialExecutor
from headgate.transport.authentication import call_options
from headgate.transport.channel_ends import ConsumerEnd, OrderedCalls, broken
from headgate.transport.data_server import ENCODER, VERSION, ChannelRequest, RowsFrame
from headgate.transport.endpoint import close_quietly, connect, host_of, port_of, transport_error
from headgate.transport.frames import GOODBYE, REFUSED, WELCOME
from headgate.transport.options import TlsOptions
from headgate.transport.sockets import NETWORK_OPTION, break_when_lost

_ROWS = msgspec.msgpack.Decoder(RowsFrame)


class Clients:
    """Clients for other slots: one connection to each, however many channels use it."""

    def __init__(self, secret: str, tls: TlsOptions | None, certified: str | None) -> None:
        self.call_options = call_options(secret)
        self._tls, self._certified = tls, certified
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._clients: dict[str, fl.FlightClient] = {}
        self._users: dict[int, int] = {}  # by the client's `id`
        self._noticed: set[str] = set()  # addresses whose connection breaks when it is lost

    def take(self, address: str) -> fl.FlightClient:
        """Return a client; `give_back` must follow."""
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = connect(address, self._tls, self._certified)
            self._users[id(client)] = self._users.get(id(client), 0) + 1
        return client

    def notice_losses(self, address: str) -> None:
        """Let connections to a slot break when its host is gone without a word."""
        with self._lock:
            known = address in self._noticed
            self._noticed.add(address)
        if not known:
            break_when_lost(lambda _, peer: peer == (host_of(address), port_of(address)))

    def give_back(self, address: str, client: fl.FlightClient, *, lost: bool) -> None:
        """Take one back. One that lost its connection is not lent again: it would wait before it connects again."""
        with self._lock:
            self._users[id(client)] -= 1
            unused = not self._users[id(client)]
            if unused:
                del self._users[id(client)]
            if (unused or lost) and self._clients.get(address) is client:
                del self._clients[address]
                self._noticed.discard(address)
        if unused:
            close_quietly(client)


class FlightConsumer:
    """A stream. It is the consumer's `ConsumerLink`.

    Parameters
    ----------
    own, address
        Of the consumer's slot, for errors, and of the producer's.
    on_over
        Called when it is over, on its thread, whose last call it is.
    """

    def __init__(
        self,
        own: str,
        address: str,
        run: int,
        channel: ChannelId,
        generation: int,
        schema: pa.Schema,
        end: ConsumerEnd,
        clients: Clients,
        executor: SerialExecutor,
        on_over: Callable[[FlightConsumer], None],
        thread_name: str,
    ) -> None:
        self.channel = channel
        self._own, self._address = own, address
        self._command = ENCODER.encode(
            ChannelRequest(
                version=VERSION, run=run, generation=generation, channel=channel,
                schema=schema.serialize().to_pybytes(),
            )
        )  # fmt: skip
        self._end = end
        self._clients, self._executor = clients, executor
        self._on_over = on_over
        self._calls = OrderedCalls(lambda error: self.close())
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._reader: fl.FlightStreamReader | None = None
        self._writer: fl.FlightStreamWriter | None = None
        self._connected = False
        self._left: str | None = None  # why
        self._owed = 0  # credits that are not written yet
        self.thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def grant(self, credits: int) -> None:
        """As in `ConsumerLink`."""
        with self._lock:
            written_soon = self._owed > 0 or not self._connected
            self._owed += credits
        if not written_soon:
            self._executor.do(self._write_credits)

    def close(self) -> None:
        """As in `ConsumerLink`."""
        self._calls.stop()
        self._leave("it is closed", unless_connected=False)

    def give_up(self, why: str) -> None:
        """Stop waiting for the producer; nothing if it is there."""
        self._leave(why, unless_connected=True)

    def _leave(self, why: str, *, unless_connected: bool) -> None:
        with self._lock:
            if self._left is None and not (unless_connected and self._connected):
                self._left = why
                if self._reader is not None:
                    self._reader.cancel()

    def _run(self) -> None:
        client = self._clients.take(self._address)
        failure = self._talk(client)
        with self._lock:
            self._reader = None  # freed here and now: a thread must not be cut off in it when the process exits
            if self._left is not None:
                failure = self._bad(self._left, "silent")
        lost = isinstance(failure.__cause__, fl.FlightUnavailableError)
        self._executor.do(lambda: self._free(client, lost=lost))
        self._calls.queue(self._end.on_broken, failure, last=True)
        self._calls.make()
        self._on_over(self)

    def _talk(self, client: fl.FlightClient) -> TransportError:
        """Connect and read until the end; return why it ended."""
        try:
            writer, reader = client.do_exchange(
                fl.FlightDescriptor.for_command(self._command), self._clients.call_options
            )
            with self._lock:
                self._reader, self._writer = reader, writer
                if self._left is not None:
                    reader.cancel()
            try:
                return self._converse(reader)
            finally:
                reader.cancel()  # so that closing the writer waits for nothing
        except msgspec.DecodeError as error:
            return self._bad(f"{self._address} sent something that is not an event ({error})", "failed")
        except (pa.ArrowException, OSError) as error:
            return self._error(error.with_traceback(None))

    def _converse(self, reader: fl.FlightStreamReader) -> TransportError:
        """Deliver elements until the stream ends; return why it ended."""
        chunk = _next_chunk(reader)
        first = b"" if chunk is None else _metadata(chunk)
        if first.startswith(REFUSED):
            return self._bad(first.removeprefix(REFUSED).decode(), "refused")
        if first != WELCOME:
            return self._bad(f"the peer at {self._address} is not a Headgate data plane", "failed")
        self._clients.notice_losses(self._address)
        self._calls.queue(self._end.on_connected)
        with self._lock:
            self._connected = True
            owed = self._owed
        if owed:
            self._executor.do(self._write_credits)
        self._calls.make()
        while (chunk := _next_chunk(reader)) is not None:
            metadata = _metadata(chunk)
            if chunk.data is None and metadata.startswith(GOODBYE):
                return self._bad(metadata.removeprefix(GOODBYE).decode(), "broken")
            self._calls.queue(self._end.on_element, _element(chunk.data, metadata))
            del chunk
            self._calls.make()
        return self._bad(f"{self._address} ended it", "broken")

    def _write_credits(self) -> None:
        """Write what is owed, unless the stream is over. On the executor's thread."""
        with self._lock:
            credits, self._owed = self._owed, 0
            writer = self._writer
        if writer is not None and credits:
            try:
                writer.write_metadata(ENCODER.encode(credits))
            except (pa.ArrowException, OSError):
                return  # reading fails, too, and reports it

    def _free(self, client: fl.FlightClient, *, lost: bool) -> None:
        """Close what is left of the stream. On the executor's thread, which writes."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            close_quietly(writer)
        self._clients.give_back(self._address, client, lost=lost)

    def _error(self, error: Exception) -> TransportError:
        """Return ours for an error of the stream; one of the network names both ends."""
        ours = transport_error(error, self._address)
        if ours.facts["reason"] != "broken":
            return ours
        between = TransportError(
            f"The slot at {self._own} cannot reach the slot at {self._address}, or lost it: {ours} Slots connect to "
            f"one another on any port, at the addresses from which they reach the driver; {NETWORK_OPTION} names "
            "another network.",
            address=self._address, own_address=self._own, reason="broken",
            producer=self.channel.producer, consumer=self.channel.consumer,
        )  # fmt: skip
        between.__cause__ = error
        return between

    def _bad(self, why: str, reason: str) -> TransportError:
        return broken(self.channel, why, address=self._address, reason=reason)


def _next_chunk(reader: fl.FlightStreamReader) -> fl.FlightStreamChunk | None:
    """Return what comes next; None: the stream has ended."""
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


def _metadata(chunk: fl.FlightStreamChunk) -> bytes:
    return b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()


def _element(rows: pa.RecordBatch | None, metadata: bytes) -> Element:
    if rows is None:
        return decode_event(metadata)
    frame = _ROWS.decode(metadata)
    own = rows.copy_to(pa.default_cpu_memory_manager())
    return Buffer(rows=own, num_rows=frame.num_rows, size_bytes=frame.size_bytes, unfiltered=frame.unfiltered)
