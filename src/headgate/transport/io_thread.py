"""The one thread on which a data plane waits for its sockets, however many there are: asyncio's event loop.

Never: start before the process needs it, or keep that from ending; run what blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from headgate.transport.frame_reader import SHARED_BYTES

logger = logging.getLogger(__name__)


class IoThread:
    """A daemon thread with a loop.

    Parameters
    ----------
    name
        The thread's.
    """

    def __init__(self, name: str) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        """For the bytes that whoever runs on it reads."""
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_exception_handler(_log_failure)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread

    def do(self, function: Callable[..., object], *arguments: object) -> None:
        """Run this soon, in order; never after `close`. Any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def do_after(self, delay_s: float, function: Callable[[], None]) -> None:
        """Run this in so many seconds, unless it is closed before. Any thread."""
        if self.is_current:
            self._loop.call_later(delay_s, function)
        else:
            self.do(self._loop.call_later, delay_s, function)

    def close(self) -> None:
        """Run what was asked for until now, and end the thread. Waits for it: not for the thread itself to call."""
        self.do(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the thread.

    def when_readable(self, watched: socket.socket, function: Callable[[], None]) -> None:
        """Call this whenever there is something to read, until `forget`."""
        self._loop.add_reader(watched, function)

    def when_writable(self, watched: socket.socket, function: Callable[[], None]) -> None:
        """Call this whenever there is room to write, until `cease_writing`."""
        self._loop.add_writer(watched, function)

    def cease_writing(self, watched: socket.socket) -> None:
        """Do not call for it any more when there is room."""
        self._loop.remove_writer(watched)

    def forget(self, watched: socket.socket) -> None:
        """Do not call for it any more. Before it is closed."""
        self._loop.remove_reader(watched)
        self._loop.remove_writer(watched)


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.error("A data plane's thread failed: %s", context["message"], exc_info=context.get("exception"))
