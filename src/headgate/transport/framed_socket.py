"""A socket between two slots, over TLS or not, from dialing it to its end: frames in, frames out.

Never: block; look into a frame; call back while a lock is held, or on another thread than the I/O thread.

Frames are written by one thread at a time, which takes that role when there is something to write and nobody has it:

    whoever puts a frame   a round: what is queued, as far as the system takes it. Spares a change of threads
    the I/O thread         the rest, or what others queued meanwhile: it is woken once, however much that is

Over TLS only the I/O thread writes: OpenSSL's connections belong to one thread.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headgate.transport.frame_queue import FrameQueue, OutgoingFrame
from headgate.transport.frame_reader import Frame, FrameReader
from headgate.transport.io_thread import IoThread
from headgate.transport.sockets import break_when_lost

_ROUND_BYTES = 128 << 10
_ROUND_FRAMES = 64
_MOST_PARTS = 512
"""Of a call of the system; Linux and macOS take 1024."""
_ROUNDS = 8
"""How often the I/O thread reads or writes before it turns to other connections."""
_MOST_UNSENT_BYTES = 256 << 10
"""What the system takes before it can be sent: an event does not wait for more than that and the buffer in progress."""
_RECORD_BYTES = 16 << 10
"""What a record of TLS holds."""
_MANY_BYTES = 64 << 10
_MOST_WAITED_FOR = 1 << 20
"""Of a large body the thread reads so much at a time: each time it may have to wait for Python's global lock."""
_CONNECT_S = 5.0
"""How long a host may take to answer at all."""


class _Writer(enum.Enum):
    """Who writes, and nobody else."""

    SENDER = "whoever put a frame"
    IO_THREAD = "the I/O thread"


Wrap = Callable[[socket.socket], ssl.SSLSocket]


class SocketOwner(Protocol):
    """What the user of a `FramedSocket` learns, on the I/O thread. An error that it raises ends the socket."""

    def on_frame(self, frame: Frame) -> None:
        """Take what came."""

    def on_end(self, error: Exception | None) -> None:
        """Nothing comes any more: the other side ended it (None), or why. The last call, unless it was `abort`."""


class FramedSocket:
    """A socket.

    Parameters
    ----------
    io
        The thread that waits for it.
    unread_s
        How long the other side may read nothing, in seconds; then it is broken.
    """

    def __init__(self, io: IoThread, unread_s: float) -> None:
        self.closed = threading.Event()
        self._io = io
        self._unread_s = unread_s
        self._socket: socket.socket  # once there is one
        self._has_socket = False
        self._wrap: Wrap | None = None
        self._owner: SocketOwner | None = None
        self._reader = FrameReader(io.shared)
        self._connected = False
        self._waited_for = 1
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._queue = FrameQueue()
        self._writer: _Writer | None = _Writer.IO_THREAD  # which begins when it is connected
        self._finishing = False
        self._over = False  # changed on the I/O thread only
        # Of the writer:
        self._outgoing: list[Any] = []  # bytes and buffers of Arrow's

    # Any thread.

    def put(self, number: int, frame: OutgoingFrame) -> None:
        """Queue a frame of a channel; `flush` must follow. Dropped when it is over."""
        with self._lock:
            if not self._over and not self._finishing:
                self._queue.put(number, frame)

    def discard(self, number: int) -> None:
        """Drop the frames of a channel that are not written yet."""
        with self._lock:
            self._queue.discard(number)

    def flush(self) -> None:
        """Write what is queued, or leave it to who writes already. Does not block."""
        with self._lock:
            if self._writer is not None or self._over or not self._queue:
                return
            self._writer = _Writer.SENDER if self._wrap is None else _Writer.IO_THREAD
        if self._wrap is not None:
            self._io.do(self._write_on_thread)
            return
        if self._write(1):
            return
        with self._lock:
            over = self._over
            if not over:
                self._writer = _Writer.IO_THREAD
        if over:
            self._close()  # `abort` left it to this thread
        else:
            self._io.do(self._write_on_thread)

    def finish(self) -> None:
        """Write what is queued, then nothing more. It is over when the other side does the same."""
        with self._lock:
            self._finishing = True
            if self._writer is None and not self._over:
                self._end_writing()

    # On the I/O thread.

    @property
    def has_begun(self) -> bool:
        """Whether it is dialed, or was accepted."""
        return self._has_socket

    @property
    def is_connected(self) -> bool:
        """Whether the other host has answered, noticed here or not."""
        if self._over or not self._has_socket:
            return False
        with contextlib.suppress(OSError):
            return bool(self._socket.getpeername())
        return False

    def trust(self) -> None:
        """Take any frames from now on."""
        self._reader.trusted = True

    def refuse(self) -> None:
        """Write what is queued, and take nothing any more. Closed at once, the socket would lose what is written."""
        self._reader.is_deaf = True
        self.finish()

    def dial(self, owner: SocketOwner, host: str, port: int, wrap: Wrap | None) -> None:
        """Connect to another slot. Its host is a number: a name would be looked up while all connections wait.

        With ``wrap`` it uses TLS. Nothing if it is over.
        """
        if self._over:
            return
        self._owner, self._wrap = owner, wrap
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind)
            self._has_socket = True
            self._socket.setblocking(False)
            self._socket.connect(address)
        except BlockingIOError:
            self._io.when_writable(self._socket, self._on_answer)
            self._io.do_after(_CONNECT_S, self._lose_patience)
        except OSError as error:
            self.end(error)
        else:
            self._begin()

    def begin(self, owner: SocketOwner, accepted: socket.socket, wrap: Wrap | None) -> None:
        """Use a socket that is connected, and does not block. With ``wrap`` it uses TLS."""
        self._owner, self._wrap = owner, wrap
        self._socket = accepted
        self._has_socket = True
        self._begin()

    def _begin(self) -> None:
        self._connected = True
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not everywhere
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
            break_when_lost(self._socket, self._unread_s)
            if self._wrap is not None:
                self._socket = self._wrap(self._socket)
        except OSError as error:
            self.end(error)
        else:
            self._shake_hands()

    def end(self, error: Exception | None) -> None:
        """Close the socket, whatever waits. `SocketOwner.on_end` follows at once."""
        if not self._over:
            self.abort()
            if self._owner is not None:
                self._owner.on_end(error)

    def abort(self) -> None:
        """Close the socket, whatever waits, without a call."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._queue.clear()
            in_use = self._writer is _Writer.SENDER
        if self._has_socket:
            self._io.forget(self._socket)
        if in_use:  # that thread closes it: another file must not get its number before
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self._close()

    def _on_answer(self) -> None:
        self._io.forget(self._socket)
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self.end(OSError(number, os.strerror(number)))
        else:
            self._begin()

    def _lose_patience(self) -> None:
        if not self._connected:
            self.end(TimeoutError(f"it did not answer within {_CONNECT_S:.0f} s"))

    def _shake_hands(self) -> None:
        self._io.forget(self._socket)
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._io.when_readable(self._socket, self._shake_hands)
        except ssl.SSLWantWriteError:
            self._io.when_writable(self._socket, self._shake_hands)
        except (OSError, ValueError) as error:
            self.end(error)
        else:
            self._io.when_readable(self._socket, self._on_readable)
            self._write_on_thread()
            self._on_readable()

    def _on_readable(self) -> None:
        if self._over:
            return
        drained = True
        try:
            drained = self._read()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Exception as error:
            self.end(error)
        if self._over:
            return
        if self._wrap is None:
            self._wait_for(min(self._reader.missing, _MOST_WAITED_FOR))
        elif not drained:
            self._io.do(self._on_readable)  # what OpenSSL holds makes no socket readable

    def _wait_for(self, size: int) -> None:
        """Let the socket be readable when so many bytes came, if they are many."""
        wanted = size if size > _MANY_BYTES else 1
        if wanted != self._waited_for:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._waited_for = wanted

    def _read(self) -> bool:
        """Read a few times; return whether that was all."""
        assert self._owner is not None
        for _ in range(_ROUNDS):
            room = self._reader.room()
            size = self._socket.recv_into(room)
            if not size:
                self.end(None)
                return True
            for frame in self._reader.take(size):
                self._owner.on_frame(frame)
                if self._over:
                    return True
            if size < len(room) and self._wrap is None:
                return True
        return False

    def _write_on_thread(self) -> None:
        """Write what is left, when there is room for it."""
        if not self._over and not self._write(_ROUNDS):
            self._io.when_writable(self._socket, self._on_writable)

    def _on_writable(self) -> None:
        if not self._over and self._write(_ROUNDS):
            self._io.cease_writing(self._socket)

    # The writer.

    def _write(self, rounds: int) -> bool:
        """Write; return whether nothing is left, and nobody the writer. Else this thread still is."""
        try:
            while self._outgoing or self._take():
                if not rounds:
                    return False
                rounds -= 1
                self._skip(self._send())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self._io.do(self.end, error)
            return False
        return True

    def _take(self) -> bool:
        """Take frames to write; if there are none, be the writer no longer."""
        with self._lock:
            if self._over:
                raise BrokenPipeError("it is over")
            for frame in self._queue.take(_ROUND_BYTES, _ROUND_FRAMES):
                self._outgoing.append(frame.head)
                self._outgoing += frame.body
            if self._outgoing:
                return True
            self._writer = None
            if self._finishing:
                self._end_writing()
        return False

    def _end_writing(self) -> None:
        with contextlib.suppress(OSError):
            # Not that of `ssl.SSLSocket`, which would go on to read what is encrypted as if it were not.
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def _close(self) -> None:
        self._outgoing.clear()
        if self._has_socket:
            self._socket.close()
        self.closed.set()

    def _send(self) -> int:
        if self._wrap is None:
            few = len(self._outgoing) <= _MOST_PARTS
            return self._socket.sendmsg(self._outgoing if few else self._outgoing[:_MOST_PARTS])
        return self._socket.send(_joined(self._outgoing))

    def _skip(self, size: int) -> None:
        """Remove so many bytes, which are written."""
        done = 0
        for part in self._outgoing:
            if len(part) > size:
                break
            size -= len(part)
            done += 1
        del self._outgoing[:done]
        if size:
            self._outgoing[0] = memoryview(self._outgoing[0])[size:]


def _joined(parts: Sequence[Any]) -> Any:
    """Return the small parts at the beginning together, so that TLS makes one record of them; or the large one."""
    size = count = 0
    for part in parts:
        if size + len(part) > _RECORD_BYTES:
            break
        size += len(part)
        count += 1
    return parts[0] if count < 2 else b"".join(parts[:count])
