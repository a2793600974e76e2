"""Cuts micro-batches: up to which message of each partition the next one reads. Pure.

Never: ask a broker, or cut within a message's entry where bytes are the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headgate.connectors.pulsar.ledgers import Ledgers
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.split import PulsarSplit
from headgate.source.source import PlannedRange


def ends_now(splits: Sequence[PulsarSplit], ledgers: Mapping[str, Ledgers]) -> dict[str, Position]:
    """Return after which message each split ends now, by id; without those that have nothing to read."""
    ends = {}
    for split in splits:
        of = ledgers[split.split_id]
        last = None if of.end is None else of.last_entry(of.end)
        if split.stop is not None:
            last = split.stop if last is None or split.stop < last else last
        if (
            last is not None
            and (split.position is None or last > split.position)
            and of.has_entries_after(split.position)
        ):
            ends[split.split_id] = last
    return ends


def within_bytes(
    splits: Sequence[PulsarSplit], ends: Mapping[str, Position], ledgers: Mapping[str, Ledgers], most: int
) -> dict[str, Position]:
    """Return ends that are so near that all ranges together have about so many bytes at most; at least one range.

    Partitions have even shares, and what one does not need is for those after it. One whose next entry is larger than
    what is left has no range: the caller begins with another split each time.
    """
    waiting = [split for split in splits if split.split_id in ends]
    nearer: dict[str, Position] = {}
    left = most
    for number, split in enumerate(waiting):
        of, end = ledgers[split.split_id], ends[split.split_id]
        reached = of.advance(split.position, max(1, left // (len(waiting) - number)))
        end = end if reached is None else min(end, reached)
        size = of.bytes_between(split.position, end)
        if size <= left or not nearer:
            nearer[split.split_id] = end
            left -= size
    return nearer


def planned(
    splits: Sequence[PulsarSplit], ends: Mapping[str, Position], ledgers: Mapping[str, Ledgers]
) -> list[PlannedRange[PulsarSplit]]:
    """Return the ranges up to these ends, in the order of the splits."""
    ranges: list[PlannedRange[PulsarSplit]] = []
    for split in splits:
        end = ends.get(split.split_id)
        if end is None:
            if split.stop is not None and split.position is not None and split.position >= split.stop:
                ranges.append(PlannedRange(split=split))
            continue
        rest = None if split.stop is not None and end >= split.stop else msgspec.structs.replace(split, position=end)
        size = ledgers[split.split_id].bytes_between(split.position, end)
        ranges.append(PlannedRange(split=msgspec.structs.replace(split, stop=end, backlog_bytes=size), rest=rest))
    return ranges
