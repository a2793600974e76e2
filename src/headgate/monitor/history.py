"""Keeps bounded series of a query for the page: rows by second, watermarks of splits, how busy stages are.

Never: read a clock, or keep more than `MOST_POINTS` points of `MOST_SPLITS` splits of each source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

MOST_POINTS = 300
"""How many points are kept: five minutes of one a second."""
MOST_SPLITS = 64
"""Of how many splits of a source: one half the slowest, one half the fastest."""


class _Point(msgspec.Struct, frozen=True):
    at_ms: int
    rows_per_second: float
    watermarks: dict[str, dict[str, int]]
    busy: dict[int, float | None]


class History:
    """The series of one query.

    Examples
    --------
    >>> history = History()
    >>> history.add(1000, 7.0, {"kafka": {"rides-0": 500}}, {0: 0.25})
    >>> history.document()["watermarks"]
    {'kafka': {'rides-0': [500]}}
    """

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=MOST_POINTS)

    def add(
        self,
        now_ms: int,
        rows_per_second: float,
        watermarks: Mapping[str, Mapping[str, int]],
        busy: Mapping[int, float | None],
    ) -> None:
        """Add a point.

        Parameters
        ----------
        now_ms
            When, in milliseconds since 1970-01-01 UTC.
        rows_per_second
            Rows read.
        watermarks
            By source uid and split id, in milliseconds, of the splits that have one.
        busy
            By stage: the share of the time, from 0 to 1, that its busiest subtask works; None: nobody knows.
        """
        kept = {uid: {split: of[split] for split in _extremes(of)} for uid, of in watermarks.items() if of}
        self._points.append(_Point(now_ms, rows_per_second, kept, dict(busy)))

    def document(self) -> dict[str, Any]:
        """Return the series, each as long as ``points``: values as JSON has them, null where there is none."""
        points = list(self._points)
        stages = sorted({stage for point in points for stage in point.busy})
        return {
            "points": [point.at_ms for point in points],
            "inputRowsPerSecond": [round(point.rows_per_second, 1) for point in points],
            "watermarks": {
                uid: {split: [point.watermarks.get(uid, {}).get(split) for point in points] for split in splits}
                for uid, splits in self._shown_splits(points).items()
            },
            "busy": {str(stage): [_rounded(point.busy.get(stage)) for point in points] for stage in stages},
        }

    def _shown_splits(self, points: list[_Point]) -> dict[str, list[str]]:
        """Return the splits to show by source: of all that points have, chosen by the newest watermark of each."""
        newest: dict[str, dict[str, int]] = {}
        for point in points:
            for uid, of in point.watermarks.items():
                newest.setdefault(uid, {}).update(of)
        return {uid: sorted(_extremes(of)) for uid, of in sorted(newest.items())}


def _extremes(watermarks: Mapping[str, int]) -> list[str]:
    """Return the splits whose watermarks are lowest and highest, at most `MOST_SPLITS`."""
    if len(watermarks) <= MOST_SPLITS:
        return list(watermarks)
    ordered = sorted(watermarks, key=lambda split: (watermarks[split], split))
    half = MOST_SPLITS // 2
    return [*ordered[:half], *ordered[-half:]]


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
