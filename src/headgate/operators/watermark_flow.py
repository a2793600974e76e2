"""Decides the sink's watermark from those of the sources: their minimum, leaving out the idle ones.

Never: read a clock or look at a row. Nothing of it is stored.

Each source has one watermark in a subtask, made where the source is read, also if its event times are found behind an
operator (`headgate.operators.with_watermark`). All sources lead to the one sink.

Follows FLIP-27, "Per Split Event Time"; lessons, "Watermarks and alignment".
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.source.watermark import MAX_WATERMARK_MS


class WatermarkFlow:
    """The watermarks of one subtask's stage.

    Parameters
    ----------
    sources
        The uids of its sources.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self._sources: dict[str, int | None] = dict.fromkeys(sources)
        self._idle = set(self._sources)  # no split, no vote

    @property
    def watermark_ms(self) -> int | None:
        """The sink's watermark, in milliseconds; None while one that is waited for has none."""
        votes = [vote for source, vote in self._sources.items() if source not in self._idle]
        known = [vote for vote in votes if vote is not None]
        return min(known) if known and len(known) == len(votes) else None

    def on_watermark(self, source: str, timestamp_ms: int) -> None:
        """Take a source's watermark, in milliseconds."""
        self._sources[source] = timestamp_ms
        if timestamp_ms == MAX_WATERMARK_MS:
            self._idle.discard(source)

    def on_idle(self, source: str) -> None:
        """Wait no longer for a source."""
        self._idle.add(source)

    def on_active(self, source: str) -> None:
        """Wait for a source again."""
        self._idle.discard(source)
