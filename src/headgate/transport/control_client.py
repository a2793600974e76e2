"""A slot's end of the control plane: one connection to the coordinator.

Never: reconnect on its own: whoever owns it decides when and where to, and makes a new one.

It has two threads, one that connects, reads and makes all calls, and one that writes what is queued. When Python exits
they are ended first: it cuts off a thread wherever it is, which Arrow's code answers with an abort of the process.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headgate.errors import InternalError, TransportError
from headgate.protocol.messages import Envelope, decode, encode
from headgate.transport.authentication import call_options
from headgate.transport.endpoint import close_quietly, connect, transport_error
from headgate.transport.frames import CONTROL, GOODBYE, WELCOME
from headgate.transport.options import TlsOptions

logger = logging.getLogger(__name__)


class ControlClient:
    """A connection to a `ControlServer`. Blocks until it is open.

    Parameters
    ----------
    address
        ``host:port`` of the server.
    secret
        The query's.
    tls
        With it, the server must have a certificate by its CA, for that host.
    on_message
        Called with each message. Must not block: it would hold up the next ones. May be called before the constructor
        returns.
    on_closed
        The connection is gone: why, or None where one of both sides closed it. The last call; comes always, also after
        `close`, unless the constructor raised.
    timeout_s
        How long opening may take, in seconds.
    goodbye_s
        How long the server may take to end the connection when it is closed, in seconds; then it is broken.

    Raises
    ------
    TransportError
        Nobody answers there, or who does refuses the secret, or TLS failed.
    """

    def __init__(
        self,
        address: str,
        secret: str,
        tls: TlsOptions | None = None,
        *,
        on_message: Callable[[Envelope], None],
        on_closed: Callable[[TransportError | None], None],
        timeout_s: float = 10,
        goodbye_s: float = 0.5,
    ) -> None:
        self.address = address
        self._secret, self._tls = secret, tls
        self._on_message, self._on_closed = on_message, on_closed
        self._goodbye_s = goodbye_s
        self._outgoing: SimpleQueue[Envelope | None] = SimpleQueue()
        # Guards the fields below.
        self._lock = threading.Lock()
        self._reader: fl.FlightStreamReader | None = None
        self._welcome = False
        self._given_up = False
        self._failure: TransportError | None = None
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headgate-control-client-{address}", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        if not self._answered.wait(timeout_s) and self._give_up(unless_welcome=True):
            raise TransportError(
                f"The endpoint at {address} did not answer within {timeout_s} s. Is it running, and does a "
                "firewall let connections through?",
                address=address, reason="silent",
            )  # fmt: skip
        if not self._welcome:
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    def send(self, envelope: Envelope) -> None:
        """Queue a message. Does not block; what is queued for a connection that is gone is lost."""
        self._outgoing.put(envelope)

    def close(self) -> None:
        """Close the connection after what is queued.

        Blocks, for ``goodbye_s`` at most where the server hangs. No thread is left then.

        Raises
        ------
        InternalError
            ``on_message`` or ``on_closed`` makes this call.
        """
        if threading.current_thread() is self._thread:
            raise InternalError("A control client cannot be closed from its own thread: it would wait for itself.")
        atexit.unregister(self.close)
        self._outgoing.put(None)
        self._thread.join(self._goodbye_s)
        if self._thread.is_alive():
            self._give_up(unless_welcome=False)
            self._thread.join()

    def _give_up(self, *, unless_welcome: bool) -> bool:
        """Break the connection; return whether that was done."""
        with self._lock:
            if unless_welcome and self._welcome:
                return False
            self._given_up = True
            if self._reader is not None:
                self._reader.cancel()
        return True

    def _run(self) -> None:
        failure = self._talk()
        with self._lock:
            self._reader = None  # freed here and now: a thread must not be cut off in it when the process exits
            welcome = self._welcome
            self._failure = failure or self._bad("it was ended at once")
        self._answered.set()
        atexit.unregister(self.close)
        if not welcome:
            return
        try:
            self._on_closed(None if self._given_up else failure)
        except Exception:
            logger.exception("Handling the end of the connection to %s failed.", self.address)

    def _talk(self) -> TransportError | None:
        """Connect and read until the end; return why it ended."""
        client = writer = None
        try:
            client = connect(self.address, self._tls)
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(CONTROL), call_options(self._secret))
            with self._lock:
                self._reader = reader
                if self._given_up:
                    reader.cancel()
            self._converse(reader, writer)
        except TransportError as error:
            return error.with_traceback(None)  # which would hold the streams
        except (pa.ArrowException, OSError) as error:
            return transport_error(error.with_traceback(None), self.address)
        except Exception as error:
            logger.exception("Handling a message from %s failed; closing the connection.", self.address)
            return self._bad(f"a handler of messages failed ({type(error).__name__}: {error})")
        finally:
            close_quietly(*(end for end in (writer, client) if end is not None))
        return None

    def _converse(self, reader: fl.FlightStreamReader, writer: fl.FlightStreamWriter) -> None:
        """Deliver messages until the stream ends; raises whatever ends it otherwise."""
        if _next_frame(reader) != WELCOME:
            raise self._bad("the peer is not a Headgate coordinator")
        with self._lock:
            self._welcome = not self._given_up
        self._answered.set()
        writing = threading.Thread(target=self._write, args=(writer,), name=f"{self._thread.name}-writer", daemon=True)
        writing.start()
        try:
            while (frame := _next_frame(reader)) is not None:
                if frame == GOODBYE:
                    self._outgoing.put(None)
                else:
                    self._on_message(self._decoded(frame))
        finally:
            reader.cancel()  # nothing where the stream has ended; else the writer could wait for room for ever
            self._outgoing.put(None)
            writing.join()

    def _write(self, writer: fl.FlightStreamWriter) -> None:
        """Write what is queued until the end, or until it fails: then reading fails, too, and reports it."""
        try:
            while (envelope := self._outgoing.get()) is not None:
                writer.write_metadata(encode(envelope))
            writer.done_writing()
        except (pa.ArrowException, OSError):
            return

    def _decoded(self, frame: bytes) -> Envelope:
        try:
            return decode(frame)
        except msgspec.DecodeError as error:
            logger.warning("%s sent %d bytes that are not a message (%s); closing it.", self.address, len(frame), error)
            raise self._bad(f"it sent something that is not a message ({error})") from error

    def _bad(self, what: str) -> TransportError:
        return TransportError(f"The connection to {self.address} ended: {what}.", address=self.address, reason="failed")


def _next_frame(reader: fl.FlightStreamReader) -> bytes | None:
    """Return the next frame; None: the server ended the stream in good order."""
    try:
        metadata = reader.read_chunk().app_metadata
    except StopIteration:
        return None
    return b"" if metadata is None else metadata.to_pybytes()
