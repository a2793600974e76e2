"""Shows how far each split is in event time, and how far ahead of the slowest of its alignment group.

Never: decide anything: who is paused, idle or slowest is reported by the readers, and only compared here.

A split's *drift* is its watermark less that of its group's slowest split. Idle splits have no vote, so they are never
the slowest; one that lagged before it became idle has a drift below 0. While some split of a group that has a vote
has no watermark yet, nobody knows how far the others are ahead. One that is paused before it has one is ahead itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headgate.protocol.messages import SplitEventTime


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
    """The split that an alignment group waits for, and its watermark in milliseconds; None: it has none yet."""

    source: str
    split: str
    watermark_ms: int | None


class EventTimes:
    """How far all splits of a query are.

    Parameters
    ----------
    splits
        By source uid and split id, for the sources with event time.
    groups
        The alignment group of each source that has one, by its uid.
    timestamp
        Writes a time in milliseconds.
    """

    def __init__(
        self,
        splits: Mapping[str, Mapping[str, SplitEventTime]],
        groups: Mapping[str, str],
        timestamp: Callable[[int], str],
    ) -> None:
        self._splits = splits
        self._groups = groups
        self._timestamp = timestamp
        self._slowest = {group: self._slowest_of(group) for group in sorted(set(groups.values()))}

    def watermarks_ms(self) -> list[int]:
        """Return the watermarks of all splits that have one, in milliseconds."""
        return [at.watermark_ms for of in self._splits.values() for at in of.values() if at.watermark_ms is not None]

    def by_source(self) -> dict[str, Any]:
        """Return of each source with event time its splits, how many of them are paused and idle, and the drift."""
        return {
            uid: {
                "alignmentGroup": self._groups.get(uid),
                "driftMs": self.largest_drift_ms([uid]),
                "pausedSplits": sum(at.paused for at in splits.values()),
                "idleSplits": sum(at.idle for at in splits.values()),
                "splits": {split_id: self._split(uid, splits[split_id]) for split_id in sorted(splits)},
            }
            for uid, splits in self._splits.items()
        }

    def by_group(self) -> dict[str, Any]:
        """Return of each alignment group who is slowest, how far another split is ahead, how many are paused."""
        return {group: self._group(group, slowest) for group, slowest in self._slowest.items()}

    def _group(self, group: str, slowest: Slowest | None) -> dict[str, Any]:
        sources = [uid for uid, of in self._groups.items() if of == group]
        splits = [at for uid in sources for at in self._splits.get(uid, {}).values()]
        return {
            "sources": sources,
            "watermark": None if slowest is None else self._written(slowest.watermark_ms),
            "slowest": None if slowest is None else {"source": slowest.source, "split": slowest.split},
            "driftMs": self.largest_drift_ms(sources),
            "pausedSplits": sum(at.paused for at in splits),
            "numSplits": len(splits),
        }

    def _split(self, uid: str, at: SplitEventTime) -> dict[str, Any]:
        return {
            "watermark": self._written(at.watermark_ms),
            "idle": at.idle,
            "paused": at.paused,
            "driftMs": self.drift_ms(uid, at),
        }

    def _slowest_of(self, group: str) -> Slowest | None:
        """Return whom a group waits for: first of all one without a watermark; None: nobody has a vote."""
        voting = [
            Slowest(source=uid, split=split_id, watermark_ms=at.watermark_ms)
            for uid, of in self._groups.items()
            if of == group
            for split_id, at in self._splits.get(uid, {}).items()
            if not at.idle and not (at.paused and at.watermark_ms is None)
        ]
        return min(
            voting,
            key=lambda each: (each.watermark_ms is not None, each.watermark_ms or 0, each.source, each.split),
            default=None,
        )

    @property
    def slowest(self) -> Mapping[str, Slowest | None]:
        """By alignment group the split that it waits for; None: nobody has a vote."""
        return self._slowest

    def drift_ms(self, uid: str, at: SplitEventTime) -> int | None:
        """Return how far a split of a source is ahead of its group's slowest, in milliseconds; None: nobody knows."""
        slowest = self._slowest[self._groups[uid]] if uid in self._groups else None
        if slowest is None or slowest.watermark_ms is None or at.watermark_ms is None:
            return None
        return at.watermark_ms - slowest.watermark_ms

    def largest_drift_ms(self, sources: list[str]) -> int | None:
        """Return the largest drift among the splits of these sources, in milliseconds; None: nobody knows."""
        drifts = [self.drift_ms(uid, at) for uid in sources for at in self._splits.get(uid, {}).values()]
        return max((each for each in drifts if each is not None), default=None)

    def _written(self, at_ms: int | None) -> str | None:
        return None if at_ms is None else self._timestamp(at_ms)
