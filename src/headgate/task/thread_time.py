"""Adds up what the thread of a subtask does with its time: it is busy, waits for rows, or waits for room.

Never: read a clock; count an instant twice, or not at all: what is not waited is busy, so that the three add up.

A subtask also waits while others have the thread that it shares.

A thread that waits while its outputs lack room is back-pressured, whether it has rows at hand or not: it may not ask.
That splits are paused, since others of their alignment group lag, is counted beside it: the thread may do other work.

Follows Flink's busyTimeMsPerSecond, backPressuredTimeMsPerSecond and idleTimeMsPerSecond (FLINK-14814).
"""

from __future__ import annotations

from headgate.protocol.messages import TimeSpent


class ThreadTime:
    """What one execution's thread did since its deployment.

    Parameters
    ----------
    now_ms
        When that began. This and all times are of one monotonic clock, in milliseconds.

    Examples
    --------
    >>> time = ThreadTime(0)
    >>> time.rest(10, for_room=True)
    >>> time.go_on(70)
    >>> time.spent(100)
    TimeSpent(elapsed_ms=100, back_pressured_ms=60, idle_ms=0, paused_ms=0)
    """

    def __init__(self, now_ms: float) -> None:
        self._began_ms = now_ms
        self._rests_since_ms = now_ms
        self.rests = False
        """Whether the thread waits."""
        self._for_room = False
        self._idle_ms = self._back_pressured_ms = self._paused_ms = 0.0
        self._paused: set[str] = set()  # sources with paused splits
        self._paused_since_ms = 0.0

    def rest(self, now_ms: float, *, for_room: bool) -> None:
        """The thread begins to wait, for room in its outputs or else for rows and messages."""
        assert not self.rests
        self.rests, self._rests_since_ms, self._for_room = True, now_ms, for_room

    def go_on(self, now_ms: float) -> None:
        """The thread waits no more; ignored if it did not."""
        if not self.rests:
            return
        self.rests = False
        waited_ms = max(0.0, now_ms - self._rests_since_ms)
        if self._for_room:
            self._back_pressured_ms += waited_ms
        else:
            self._idle_ms += waited_ms

    def set_paused(self, source: str, paused: bool, now_ms: float) -> None:
        """Alignment has paused splits of a source, or it has no paused ones any more."""
        if paused == (source in self._paused):
            return
        if paused:
            if not self._paused:
                self._paused_since_ms = now_ms
            self._paused.add(source)
        else:
            self._paused.remove(source)
            if not self._paused:
                self._paused_ms += max(0.0, now_ms - self._paused_since_ms)

    def spent(self, now_ms: float) -> TimeSpent:
        """Return the sums, while the thread does not wait."""
        assert not self.rests
        paused_ms = self._paused_ms + (max(0.0, now_ms - self._paused_since_ms) if self._paused else 0.0)
        waited_ms = self._idle_ms + self._back_pressured_ms
        return TimeSpent(
            elapsed_ms=round(max(now_ms - self._began_ms, waited_ms)),
            back_pressured_ms=round(self._back_pressured_ms),
            idle_ms=round(self._idle_ms),
            paused_ms=round(paused_ms),
        )
