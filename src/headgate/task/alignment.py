"""Decides which splits of one reader are paused, and what it reports to its alignment group.

Never: read a clock, look at a batch, or pause what nobody has to wait for.

The bound is the lowest watermark of the group and the drift. Of it a reader knows its own part at any time and the
others' part by announcements: bound = min(own minimum, others' minimum) + drift, or what was announced, if that is
more. Until the first announcement the bound is not known: a split that has a watermark waits, so that none is more than
a batch ahead of it.

A split is *ahead* when its watermark is beyond the bound, or when its next row is known to be (it is *held*). With one
split the source is paused and resumed, with several exactly those ahead are (FLIP-217's policy). Idle splits have no
vote, and can be resumed. With `WatermarkAlignment.update_interval_ms` reports are at most that far apart, but a report
is made at once when the vote came or went, or when the minimum moved by a quarter of the drift since the last report.

Follows FLIP-182; FLIP-217, Proposed Changes; lessons, "Watermarks and alignment".
"""

from __future__ import annotations

import msgspec

from headgate.source.watermark import WatermarkAlignment


class SplitAdded(msgspec.Struct, frozen=True):
    """The reader has got the split."""

    split_id: str


class SplitFinished(msgspec.Struct, frozen=True):
    """The split left the reader. Unknown ones are ignored."""

    split_id: str


class SplitMoved(msgspec.Struct, frozen=True):
    """The split's vote is another: its watermark in milliseconds (None: none yet), and whether it is idle."""

    split_id: str
    watermark_ms: int | None
    idle: bool = False


class SplitHeld(msgspec.Struct, frozen=True):
    """The split's next row would raise its watermark to this, beyond the bound: it waits in the reader."""

    split_id: str
    next_watermark_ms: int


class AllowedAnnounced(msgspec.Struct, frozen=True):
    """The group moved: `headgate.protocol.messages.AlignmentAnnounced`."""

    max_watermark_ms: int
    others_ms: int


class InputEnded(msgspec.Struct, frozen=True):
    """The reader has nothing left: it has no vote any longer."""


class TimePassed(msgspec.Struct, frozen=True):
    """A report may be due."""


class PauseSource(msgspec.Struct, frozen=True):
    """Poll the reader no more: its only split is ahead."""

    split_id: str


class ResumeSource(msgspec.Struct, frozen=True):
    """Poll the reader again."""

    split_id: str


class PauseOrResumeSplits(msgspec.Struct, frozen=True):
    """Call `SourceReader.pause_or_resume_splits` with exactly these, and tell `SplitWatermarks`."""

    pause: tuple[str, ...]
    resume: tuple[str, ...]


class ReportWatermark(msgspec.Struct, frozen=True):
    """Send `headgate.protocol.messages.WatermarkReported`."""

    watermark_ms: int | None
    slowest: str


Event = SplitAdded | SplitFinished | SplitMoved | SplitHeld | AllowedAnnounced | InputEnded | TimePassed
Action = PauseSource | ResumeSource | PauseOrResumeSplits | ReportWatermark


class SplitAlignment:
    """The part of one reader in its alignment group.

    Parameters
    ----------
    alignment
        The group, the drift, how often to report.
    """

    def __init__(self, alignment: WatermarkAlignment) -> None:
        raise NotImplementedError

    @property
    def bound_ms(self) -> int | None:
        """How far any split may be read now, in milliseconds; None: not known yet."""
        raise NotImplementedError

    @property
    def paused(self) -> frozenset[str]:
        """The splits that are paused, be it with the whole source."""
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
