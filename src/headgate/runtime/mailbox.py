"""The mailbox of a task: mails from any thread, handled one at a time on the task's own thread.

Never: run a mail on the thread that posted it. No lock is ever held while a mail runs.

Follows FLIP-27, "Reader Interface and Threading Model" (mailbox).
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable

import msgspec


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
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers: list[tuple[int, int, Mail]] = []  # on the task's thread only: (due, number, mail)
        self._timer_count = 0
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._posted = threading.Condition(self._lock)
        self._mails: deque[Mail] = deque()
        self._closed = False

    def post(self, mail: Mail) -> None:
        """Queue a mail; called by any thread. After `close` it is discarded."""
        with self._lock:
            if not self._closed:
                self._mails.append(mail)
                self._posted.notify()
                return
        _discard(mail)

    def run_after(self, delay_ms: int, mail: Mail) -> None:
        """Run a mail once a time in milliseconds has passed; called on the task's thread."""
        self._timer_count += 1
        heapq.heappush(self._timers, (self._now_ms() + delay_ms, self._timer_count, mail))

    def run_mail(self) -> int:
        """Run the mails that are there and the timers that are due; return how many. Does not wait.

        An error of a mail is raised; those after it stay.
        """
        count, mails = 0, self._mails
        waiting = len(mails)  # those posted from here on have their turn next time: the reader's comes first
        while waiting > count:
            mails.popleft().run()  # nobody else takes any, so that this needs no lock
            count += 1
        if not self._timers:
            return count
        now_ms = self._now_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            heapq.heappop(self._timers)[2].run()
            count += 1
        return count

    def due_ms(self) -> int | None:
        """Return when the next timer is due, in milliseconds; called on the task's thread."""
        return self._timers[0][0] if self._timers else None

    @property
    def has_mail(self) -> bool:
        """Whether there is a mail. Any thread."""
        return bool(self._mails)

    def wait(self) -> None:
        """Wait until there is a mail or a timer is due; called on the task's thread."""
        due_ms = self.due_ms()
        timeout_s = None if due_ms is None else max(0, due_ms - self._now_ms()) / 1000
        with self._lock:
            if not self._mails:
                self._posted.wait(timeout_s)

    def close(self) -> None:
        """Discard all mails and timers, and those still to come; called on the task's thread."""
        with self._lock:
            self._closed = True
            mails = list(self._mails)
            self._mails.clear()
        for mail in mails:
            _discard(mail)
        for _, _, mail in self._timers:
            _discard(mail)
        self._timers.clear()


def _discard(mail: Mail) -> None:
    if mail.discard is not None:
        mail.discard()
