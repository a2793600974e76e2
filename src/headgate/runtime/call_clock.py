"""How long calls take, without the time in which other threads had the processors.

Never: ask the system about short calls, which take less time than the answer does.

Of many slots on few cores each waits for a processor most of the time. Calls that this lengthens would get fewer rows
(`headgate.runtime.slices`), cost more a row, and so keep the processors from the others for longer. What a call itself
waits for, as a request over the network, counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

LONG_MS = 10.0
"""Of a call that takes longer, and of the next one of the same part, the system is asked."""


class ProcessorDelay:
    """How long the calling thread was ready to run, and did not, as Linux counts it. For one thread."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._is_known = True

    def ms(self) -> float:
        """Return it in milliseconds, since the thread began; 0 where the system does not say."""
        if self._file is None and self._is_known:
            with contextlib.suppress(OSError):
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._is_known = self._file is not None
        return 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) / 1e6

    def close(self) -> None:
        """Close its file."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._is_known = None, False


class CallClock:
    """Measures calls, one after the other.

    Parameters
    ----------
    clock_ms
        Reads the time, in milliseconds.
    delay_ms
        Returns how long the thread has waited for a processor, in milliseconds.

    Examples
    --------
    >>> times, delays = iter([0.0, 80.0, 100.0, 180.0]), iter([500.0, 560.0])
    >>> calls = CallClock(lambda: next(times), lambda: next(delays))
    >>> calls.begin("window"); calls.end()  # the first long one: nobody asked before it
    (80.0, 80.0)
    >>> calls.begin("window"); calls.end()
    (80.0, 20.0)
    """

    def __init__(self, clock_ms: Callable[[], float], delay_ms: Callable[[], float]) -> None:
        self._clock_ms, self._delay_ms = clock_ms, delay_ms
        self._part = ""
        self._before_ms: float | None = None
        self._long: set[str] = set()  # the parts whose last call was
        self.began_ms = 0.0
        """When the last call began."""

    def begin(self, part: str) -> None:
        """Take note that a call of a part begins."""
        self._part = part
        self._before_ms = self._delay_ms() if part in self._long else None
        self.began_ms = self._clock_ms()

    def end(self) -> tuple[float, float]:
        """Return how long it took, and how long without the thread's waiting for a processor, in milliseconds."""
        took_ms = self._clock_ms() - self.began_ms
        if took_ms < LONG_MS:
            self._long.discard(self._part)
            return took_ms, took_ms
        self._long.add(self._part)
        waited_ms = 0.0 if self._before_ms is None else self._delay_ms() - self._before_ms
        return took_ms, max(0.0, took_ms - waited_ms)
