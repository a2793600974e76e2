"""The coordinator's end of the control plane: one FIFO stream of messages per connection, each way.

Never: decide who may speak for a slot (that is the session's), or block who sends. Streams end before the server does.

A connection has two threads. gRPC's own serves the stream: it writes what is queued, and returns last of all. Ours
reads, and makes all the calls for the connection; gRPC's runs no code of others, because Python keeps a record of
each foreign thread that asks for its name, as logging does. What is open when Python exits is killed first: Python
cuts off a thread wherever it is, which Arrow's code answers with an abort of the process.

    state    what happens                       next     why
    -------  ---------------------------------  -------  ---------------------------------------------------------
    open     message                            open     `on_message`
    open     no message, or a handler raises    leaving  logged; GOODBYE is queued after what is to be sent
    open     `close_connection`, `close`        leaving  GOODBYE is queued after what is to be sent
    open     the client ends, the stream fails  closed   `on_closed`
    leaving  message                            leaving  dropped: nobody listens any longer
    leaving  `goodbye_s` are over               leaving  the socket is broken: the client hangs, or is not ours
    leaving  the client ends, the stream fails  closed   `on_closed`

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headgate.errors import InternalError
from headgate.protocol.messages import Envelope, decode, encode
from headgate.transport.endpoint import Endpoint
from headgate.transport.frames import CONTROL, GOODBYE, WELCOME
from headgate.transport.options import TlsOptions

logger = logging.getLogger(__name__)

_THREAD_NAME = "headgate-control-server"


class _Connection:
    """One stream. ``outgoing`` ends with None, or with GOODBYE, whichever comes first."""

    def __init__(self, number: int, peer: str) -> None:
        self.number = number
        self.peer = peer
        self.outgoing: SimpleQueue[Envelope | bytes | None] = SimpleQueue()
        self.leaving = False
        self.thread: threading.Thread | None = None
        self.closed = threading.Event()
        self.patience: threading.Timer | None = None


class ControlServer:
    """Accepts slots and carries messages. Calls of one connection come from one thread, those of several from several.

    Parameters
    ----------
    secret
        The query's: a connection without it is refused and logged.
    host, port
        Where to listen. Port 0: any free one.
    tls
        With it, connections without TLS fail.
    on_opened
        A connection's number (from 1, never used again) and where it comes from. The first call for it.
    on_message
        A message came on a connection. Must not block: it holds up the connection. If it raises, that is logged and
        the connection is closed.
    on_closed
        The connection is gone, whoever closed it. The last call for it.
    goodbye_s
        How long a client may take to end a connection that is being closed, in seconds; then it is broken.

    Raises
    ------
    TransportError
        It cannot listen there.
    """

    def __init__(
        self,
        secret: str,
        host: str,
        port: int = 0,
        tls: TlsOptions | None = None,
        *,
        on_opened: Callable[[int, str], None],
        on_message: Callable[[int, Envelope], None],
        on_closed: Callable[[int], None],
        goodbye_s: float = 0.5,
    ) -> None:
        self._on_opened, self._on_message, self._on_closed = on_opened, on_message, on_closed
        self._goodbye_s = goodbye_s
        # Guards the fields below and the fields `leaving` and `patience` of each connection.
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._opened = 0
        self._closing = False
        self._endpoint = Endpoint(secret, host, port, tls, self._serve)
        atexit.register(self.kill)

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``."""
        return self._endpoint.address

    def send(self, connection: int, envelope: Envelope) -> None:
        """Queue a message. Does not block; what is queued for a connection that is gone or being closed is lost."""
        with self._lock:
            to = self._connections.get(connection)
        if to is not None:
            to.outgoing.put(envelope)

    def close_connection(self, connection: int) -> None:
        """Close a connection after what is queued for it. Does not block. Later messages of it are dropped."""
        with self._lock:
            leaving = self._connections.get(connection)
            if leaving is None or leaving.leaving:
                return
            self._say_goodbye_locked(leaving)
            leaving.patience = threading.Timer(self._goodbye_s, self._endpoint.break_peer, (leaving.peer,))
            leaving.patience.daemon = True
            leaving.patience.start()

    def close(self) -> None:
        """Close all connections, each after what is queued for it, and listen no more.

        Blocks, for ``goodbye_s`` at most where clients hang. No thread is left then.

        Raises
        ------
        InternalError
            A call for a connection makes this call.
        """
        self._end(self._goodbye_s)

    def kill(self) -> None:
        """Break all connections at once and listen no more, as the end of the process would. Raises like `close`."""
        self._end(0)

    def _end(self, goodbye_s: float) -> None:
        if threading.current_thread().name.startswith(_THREAD_NAME):
            raise InternalError("A control server cannot be closed from one of its threads: it would wait for that.")
        atexit.unregister(self.kill)
        deadline = time.monotonic() + goodbye_s
        with self._lock:
            self._closing = True
            leaving = list(self._connections.values())
            if goodbye_s:
                for connection in leaving:
                    self._say_goodbye_locked(connection)
        ended = [connection.closed.wait(max(0, deadline - time.monotonic())) for connection in leaving]
        if not all(ended):
            self._endpoint.break_all()
        self._endpoint.close()
        for connection in leaving:
            if connection.thread is not None:
                connection.thread.join()

    def _say_goodbye_locked(self, connection: _Connection) -> None:
        assert self._lock.locked()
        if not connection.leaving:
            connection.leaving = True
            connection.outgoing.put(GOODBYE)

    def _serve(
        self, peer: str, command: bytes, reader: fl.MetadataRecordBatchReader, writer: fl.MetadataRecordBatchWriter
    ) -> None:
        """Write what is queued until the stream ends. On a thread of gRPC's."""
        if command != CONTROL:
            raise fl.FlightUnavailableError("there is no such stream here: this is the coordinator's endpoint")
        with self._lock:
            if self._closing:
                raise fl.FlightUnavailableError("the endpoint is being closed")
            self._opened += 1
            connection = self._connections[self._opened] = _Connection(self._opened, peer)
            connection.thread = threading.Thread(
                target=self._receive, args=(connection, reader), name=f"{_THREAD_NAME}-{self._opened}", daemon=True
            )
        connection.thread.start()
        try:
            _write(connection, writer)
        finally:
            connection.closed.wait()  # the reader must not outlive the stream

    def _receive(self, connection: _Connection, reader: fl.MetadataRecordBatchReader) -> None:
        """Read until the stream ends, and make the calls. On a thread of our own."""
        try:
            self._call(connection, self._on_opened, connection.number, connection.peer)
            while (frame := _next_frame(reader)) is not None:
                if not connection.leaving:
                    self._take(connection, frame)
        finally:
            with self._lock:
                del self._connections[connection.number]
                if connection.patience is not None:
                    connection.patience.cancel()
            connection.outgoing.put(None)
            self._call(connection, self._on_closed, connection.number)
            connection.closed.set()

    def _take(self, connection: _Connection, frame: bytes) -> None:
        try:
            envelope = decode(frame)
        except msgspec.DecodeError as error:
            logger.warning(
                "Connection %d from %s sent %d bytes that are not a message (%s); closing it.",
                connection.number, connection.peer, len(frame), error,
            )  # fmt: skip
            self.close_connection(connection.number)
        else:
            self._call(connection, self._on_message, connection.number, envelope)

    def _call(self, connection: _Connection, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            logger.exception("Handling connection %d from %s failed; closing it.", connection.number, connection.peer)
            self.close_connection(connection.number)


def _write(connection: _Connection, writer: fl.MetadataRecordBatchWriter) -> None:
    """Write frames until there are no more, or it fails: then reading fails, too, and reports it."""
    try:
        writer.write_metadata(WELCOME)
        while (item := connection.outgoing.get()) is not None:
            if isinstance(item, bytes):
                writer.write_metadata(item)
                return
            writer.write_metadata(encode(item))
    except (pa.ArrowException, OSError):
        return


def _next_frame(reader: fl.MetadataRecordBatchReader) -> bytes | None:
    """Return the next frame; None: the stream ended, or broke, which is the same to the server."""
    try:
        metadata = reader.read_chunk().app_metadata
    except (StopIteration, pa.ArrowException, OSError):
        return None
    return b"" if metadata is None else metadata.to_pybytes()
