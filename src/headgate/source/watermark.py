"""How event time and watermarks are derived from the rows of a source, as a value.

Never: compute anything; outputs do (`headgate.task.watermarks`), one watermark per split.

Follows FLIP-27, "Per Split Event Time", and FLIP-217 for alignment.
"""

from __future__ import annotations

import msgspec

MAX_WATERMARK_MS = 2**63 - 1
"""The final watermark: nothing follows at all."""
MIN_WATERMARK_MS = -(2**63)
"""Arithmetic on event times stops here and at `MAX_WATERMARK_MS`: it saturates."""


def saturated_ms(milliseconds: int) -> int:
    """Return a sum of event times and durations, kept within what an event time can be."""
    return max(MIN_WATERMARK_MS, min(MAX_WATERMARK_MS, milliseconds))


class WatermarkAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """Reading of several splits and sources at about the same pace in event time.

    Parameters
    ----------
    group
        Sources with the same group are aligned with one another.
    max_drift_ms
        How far any split may be read ahead of the slowest one, in milliseconds of event time.
    update_interval_ms
        How often a reader reports its watermark at most, in milliseconds, unless somebody may wait for it: as soon as
        it moved by a good part of the drift it is reported at once, so that a backlog is read at full speed.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int = 1000


class WatermarkStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that makes watermarks: the highest event time seen in a split, less the disorder allowed in it.

    Parameters
    ----------
    event_time_column
        The column with the event time, a timestamp.
    max_out_of_orderness_ms
        How much earlier than the highest event time seen in its split a row may be, in milliseconds.
    idle_timeout_ms
        After this time without rows, in milliseconds, a split that could have been read holds nobody back; None:
        it always does.
    alignment
        The alignment group, or None to read at full speed.
    """

    event_time_column: str
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int | None = None
    alignment: WatermarkAlignment | None = None
