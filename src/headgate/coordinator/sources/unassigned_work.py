"""Decides when readers are notified how early unassigned splits are, so that no watermark passes those.

Never: know a reader, or a split (those that go back are in `headgate.coordinator.sources.splits_back`).

A reader hears of it when the enumerator has seen the reader, so that what it reported or is given on that occasion
comes first; its watermark is held until then. Unlike an assignment it is not logged: a restored enumerator reports it
again. While such a one has splits that readers have (*swallowed*), what it reports is too early, maybe for ever: then
what readers heard before it failed counts, until the enumerator reports something later. While a reader is away whose
splits the enumerator will hear of only when the reader reports them (FLIP-537), anything may be unassigned soon: the
others stay where they are, for such a split may come to any of them. With very many readers a rise
is sent a little later, at most `_MESSAGES_PER_MS` of them: else each split that is assigned would be a message to every
reader.
"""

from __future__ import annotations

from headgate.coordinator.sources.outbox import Unassigned
from headgate.source.watermark import MIN_WATERMARK_MS

_MESSAGES_PER_MS = 50
"""What readers are sent of unassigned work at most, unless somebody has to stop for it."""


class UnassignedWork:
    """The unassigned work of one source.

    Parameters
    ----------
    parallelism
        How many readers there are.

    Attributes
    ----------
    reported
        By the current enumerator; None: nothing yet.
    current
        What all hear that are admitted, now or when time has passed; None: nothing yet.
    unreported
        Readers that may have splits of which the enumerator has not heard.
    """

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self.reported: Unassigned | None = None
        self.current: Unassigned | None = None
        self.unreported: set[int] = set()
        self._before: Unassigned | None = None  # current when the enumerator failed
        self._is_late = False  # not all readers know
        self._quiet_until_ms = 0

    def lose_enumerator(self) -> None:
        """Wait for the report of another enumerator."""
        self.reported, self._before, self._is_late = None, self.current, False

    def close(self) -> None:
        """Send nothing any longer."""
        self._is_late = False

    def to_put(self, *, is_early: bool, has_rows: bool = False) -> Unassigned | None:
        """Return what readers are to hear.

        ``is_early``: the enumerator has splits that readers have. ``has_rows``: rows of unassigned splits are in
        flight, which come before the positions that the enumerator knows.
        """
        if (self.unreported or has_rows) and (self.reported or self.current) is not None:
            return Unassigned(MIN_WATERMARK_MS)
        if self.reported is None or not is_early or self._before is None:
            return self.reported
        return max(self.reported, self._before, key=_how_late)

    def take(self, what: Unassigned, now_ms: int) -> bool:
        """Make this current, and return whether all readers are to hear of it now."""
        rose = self.current is not None and _how_late(what) > _how_late(self.current)
        self.current, self._is_late = what, True
        return not rose or now_ms >= self._quiet_until_ms

    def all_hear(self, now_ms: int) -> None:
        """Note that all readers hear of it now."""
        self._is_late = False
        self._quiet_until_ms = now_ms + self._parallelism // _MESSAGES_PER_MS

    def next_time_ms(self) -> int | None:
        """Return when all readers are to hear of it, in milliseconds; None: they know."""
        return self._quiet_until_ms if self._is_late else None


def _how_late(unassigned: Unassigned) -> tuple[bool, int]:
    time_ms = unassigned.event_time_ms
    return time_ms is None, time_ms or 0
