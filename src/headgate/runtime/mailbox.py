"""The mailbox of a task: mails from any thread, handled one at a time on the task's own thread.

Never: run a mail on the thread that posted it. No lock is ever held while a mail runs.

The thread waits in one place only, for all of its mailboxes: for a pipe, into which a byte is written by a mail that
comes, and by any client of a reader's that has something to be polled (`Signal`). Whatever comes first wakes it.

Follows FLIP-27, "Reader Interface and Threading Model" (mailbox).
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from headgate.source import Signal

_MAIL, _READY = b"\0", b"\1"
_READ_BYTES = 4096


class Mail(msgspec.Struct, frozen=True):
    """Something to do on the task's thread.

    Parameters
    ----------
    run
        Does it.
    discard
        Called instead when the task ended before its turn came, on any thread; None: nobody needs to know.
    """

    run: Callable[[], None]
    discard: Callable[[], object] | None = None


class Mailbox:
    """Mails in the order in which they were posted, and timers.

    Parameters
    ----------
    now_ms
        Reads the clock, in milliseconds. A virtual one makes timers run when a test says so.
    pipe
        For which its thread waits; None: it never does.
    """

    def __init__(self, now_ms: Callable[[], int], pipe: Pipe | None = None) -> None:
        self._now_ms = now_ms
        self._pipe = pipe
        self._timers: list[tuple[int, int, Mail]] = []  # on the task's thread only: (due, number, mail)
        self._timer_count = 0
        self._signalled = False  # on the task's thread only
        self.on_ready: Callable[[], None] = lambda: None
        """Called with the mails once the signal was given."""
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._mails: deque[Mail] = deque()
        self._waits = False
        self._closed = False

    def post(self, mail: Mail) -> None:
        """Queue a mail; called by any thread. After `close` it is discarded."""
        with self._lock:
            if not self._closed:
                self._mails.append(mail)
                if self._waits and self._pipe is not None:
                    self._waits = False
                    self._pipe.write(_MAIL)
                return
        _discard(mail)

    def run_after(self, delay_ms: int, mail: Mail) -> None:
        """Run a mail once a time in milliseconds has passed; called on the task's thread."""
        self._timer_count += 1
        heapq.heappush(self._timers, (self._now_ms() + delay_ms, self._timer_count, mail))

    def run_mail(self, now_ms: int | None = None) -> int:
        """Run the mails that are there and the timers that are due; return how many. Does not wait.

        ``now_ms``: the time in milliseconds, if it is known. An error of a mail is raised; those after it stay.
        """
        if self._signalled:
            self._signalled = False
            self.on_ready()
        count, mails = 0, self._mails
        waiting = len(mails)  # those posted from here on have their turn next time: the reader's comes first
        while waiting > count:
            mails.popleft().run()  # nobody else takes any, so that this needs no lock
            count += 1
        if not self._timers:
            return count
        now_ms = self._now_ms() if now_ms is None else now_ms
        while self._timers and self._timers[0][0] <= now_ms:
            heapq.heappop(self._timers)[2].run()
            count += 1
        return count

    def due_ms(self) -> int | None:
        """Return when the next timer is due, in milliseconds; called on the task's thread."""
        return self._timers[0][0] if self._timers else None

    def is_due(self, now_ms: int) -> bool:
        """Return whether there is anything for `run_mail`; called on the task's thread."""
        timers = self._timers
        return self._signalled or bool(self._mails) or bool(timers and timers[0][0] <= now_ms)

    @property
    def has_mail(self) -> bool:
        """Whether there is a mail. Any thread."""
        return bool(self._mails)

    @property
    def signal(self) -> Signal:
        """What a client gives to have `on_ready` called; what it holds of it outlives the mailbox."""
        assert self._pipe is not None
        return self._pipe.signal

    def begin_wait(self) -> bool:
        """Have the next mail write into the pipe, unless there is one; return whether there is none."""
        with self._lock:
            self._waits = not self._mails
            return self._waits

    def end_wait(self, written: bytes) -> None:
        """Take note of what was written into the pipe; nothing: it was waited for long enough."""
        self._waits = False  # a mail that was posted meanwhile wrote a byte for nothing
        if _READY in written:
            self._signalled = True

    def close(self) -> None:
        """Discard all mails and timers, and those still to come; called on the task's thread."""
        with self._lock:
            self._closed = True
            self._waits = False
            mails = list(self._mails)
            self._mails.clear()
        for mail in mails:
            _discard(mail)
        for _, _, mail in self._timers:
            _discard(mail)
        self._timers.clear()


class Mailboxes:
    """The mailboxes of a thread, which waits for all of them in one place.

    Parameters
    ----------
    now_ms
        As for `Mailbox`.
    pipe
        For which the thread waits; None: one of its own.
    """

    def __init__(self, now_ms: Callable[[], int], pipe: Pipe | None = None) -> None:
        self._now_ms = now_ms
        self._pipe = pipe or Pipe()
        self._all: list[Mailbox] = []

    def new(self) -> Mailbox:
        """Return another one. Before the thread waits."""
        self._all.append(Mailbox(self._now_ms, self._pipe))
        return self._all[-1]

    def wait(self) -> None:
        """Wait until there is a mail in any, a signal is given or a timer is due; called on the thread."""
        due_ms = self.due_ms()
        timeout_ms = None if due_ms is None else max(0, due_ms - self._now_ms())
        self.end_wait(self._pipe.wait(timeout_ms if self.begin_wait() else 0))

    def look(self) -> None:
        """Look for signals without a wait: by a thread that has something to do."""
        self.end_wait(self._pipe.wait(0))

    def due_ms(self) -> int | None:
        """Return when the next timer of any is due, in milliseconds."""
        found: int | None = None
        for each in self._all:
            due_ms = each.due_ms()
            if due_ms is not None and (found is None or due_ms < found):
                found = due_ms
        return found

    def begin_wait(self) -> bool:
        """Have the next mail write into the pipe, unless there is one; return whether there is none."""
        waits = True
        for each in self._all:
            waits = each.begin_wait() and waits
        return waits

    def end_wait(self, written: bytes) -> None:
        """Take note of what was written into the pipe; nothing: it was waited for long enough."""
        for each in self._all:
            each.end_wait(written)

    def close(self) -> None:
        """Close all of them; called on the thread."""
        for each in self._all:
            each.close()
        self._pipe.close()


class Pipe:
    """Both ends of a pipe, neither of which blocks."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        for end in (self._read_end, self.write_end):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self._read_end, select.POLLIN)

    @property
    def signal(self) -> Signal:
        """What writes into it that there is something to be polled."""
        return Signal(self.write_end, _READY)

    def write(self, byte: bytes) -> None:
        """Write a byte, unless there are so many that the reader cannot miss them."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.write_end, byte)

    def wait(self, timeout_ms: int | None) -> bytes:
        """Return what was written, once anything was; nothing after a time in milliseconds (None: for ever)."""
        return os.read(self._read_end, _READ_BYTES) if self._poll.poll(timeout_ms) else b""

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read_end)
        os.close(self.write_end)


def _discard(mail: Mail) -> None:
    if mail.discard is not None:
        mail.discard()
