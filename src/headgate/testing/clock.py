"""A clock that moves only when a test moves it.

Never: look at the real time.
"""

from __future__ import annotations


class VirtualClock:
    """The time of a test, in milliseconds since 1970-01-01 UTC. Call it to read it.

    Examples
    --------
    >>> clock = VirtualClock(1000)
    >>> clock.advance(500)
    >>> clock()
    1500
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def __call__(self) -> int:
        """Return the time, in milliseconds."""
        return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move on by a time in milliseconds."""
        assert by_ms >= 0, f"time does not go back, but {by_ms} ms were asked for"
        self._now_ms += by_ms

    def advance_to(self, now_ms: int) -> None:
        """Move on to a time in milliseconds, unless it has passed."""
        self._now_ms = max(now_ms, self._now_ms)
