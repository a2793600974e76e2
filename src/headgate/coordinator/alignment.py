"""Decides how far the readers of one alignment group may read: the lowest watermark of them all, and the drift.

Never: read a clock, or announce anything but when the minimum moved (to all readers) or a reader joined (to it).

A reader votes with what it reported last. One that failed keeps its vote until it is back and reports anew: what it
reads again is not to be overtaken meanwhile. Without any vote there is no bound (`MAX_WATERMARK_MS`). Sources of a group
may have different drifts. Other queries of the application take part through their minimum (`OthersMoved`).

Follows FLIP-182 (SourceCoordinator.announceCombinedWatermark); lessons, "Watermarks and alignment".
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ReaderJoined(msgspec.Struct, frozen=True):
    """A reader registered, new or again."""

    source: str
    subtask: int


class ReaderReported(msgspec.Struct, frozen=True):
    """A reader's `headgate.protocol.messages.WatermarkReported`."""

    source: str
    subtask: int
    watermark_ms: int | None
    slowest: str


class ReaderLost(msgspec.Struct, frozen=True):
    """A reader failed and will be deployed again."""

    source: str
    subtask: int


class OthersMoved(msgspec.Struct, frozen=True):
    """The minimum of the group's readers in other queries of the application is another; None: they have no vote."""

    watermark_ms: int | None


class TimePassed(msgspec.Struct, frozen=True):
    """Somebody may hold the group back for long."""


class Announce(msgspec.Struct, frozen=True):
    """Send a reader `headgate.protocol.messages.AlignmentAnnounced`."""

    source: str
    subtask: int
    max_watermark_ms: int
    others_ms: int


class ShareMinimum(msgspec.Struct, frozen=True):
    """Tell the application's other queries the minimum of this query's readers; None: they have no vote."""

    watermark_ms: int | None


class WarnOfHolder(msgspec.Struct, frozen=True):
    """A split has held the group back for a minute and others wait; empty source: it is in another query."""

    source: str
    subtask: int
    split_id: str
    held_ms: int


Event = ReaderJoined | ReaderReported | ReaderLost | OthersMoved | TimePassed
Action = Announce | ShareMinimum | WarnOfHolder


class AlignmentGroup:
    """One alignment group, as one query sees it.

    Parameters
    ----------
    group
        Its name.
    max_drift_ms
        By the uid of each source of this query in the group.
    """

    def __init__(self, group: str, max_drift_ms: Mapping[str, int]) -> None:
        raise NotImplementedError

    @property
    def minimum_ms(self) -> int | None:
        """The lowest watermark of the group, other queries included; None: nobody has a vote."""
        raise NotImplementedError

    def next_time_ms(self) -> int | None:
        """When `TimePassed` is due; None: not before another event."""
        raise NotImplementedError

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what always holds."""
        raise NotImplementedError
