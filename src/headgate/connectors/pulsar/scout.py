"""Reads ahead on the driver, where a micro-batch may have only so many rows, or rows up to an event time.

Never: keep a message but the next one: only ids and times count. Nothing else in Pulsar says how many messages some
entries have, and it has no index of event times.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.connectors.pulsar.entries import is_encrypted
from headgate.connectors.pulsar.opening import PartitionReaders, release
from headgate.connectors.pulsar.position import Position, after_message
from headgate.connectors.pulsar.split import PulsarSplit
from headgate.errors import HeadgateError

TimeOf = Callable[[Any], int | None]
"""Returns the event time of a message, in milliseconds; None: it has none."""

_MOST_MESSAGES = 50_000
"""So many messages of a partition are read ahead for a plan, at most, where only their times are asked for."""
_THREADS = 8


class _Walk:
    """A reader of a partition, which was walked over up to ``position``."""

    def __init__(self, reader: Any, position: Position | None) -> None:
        self.reader = reader
        self.position = position
        self.following: Any = None  # the message after it, if it is there


class Scout:
    """Walks over partitions; one instance for a query, on the planner's thread.

    Parameters
    ----------
    readers
        Opens readers.
    time_of
        What the event time of a message is; None: it is not asked for.
    """

    def __init__(self, readers: PartitionReaders, time_of: TimeOf | None) -> None:
        self._readers = readers
        self._time_of = time_of or _no_time
        self._walks: dict[str, _Walk] = {}
        weakref.finalize(self, _close_all, self._walks)  # a source is never closed

    def next_times(self, splits: Sequence[PulsarSplit]) -> dict[str, int | None]:
        """Return the event time of each split's next message, by id; without those that have none."""
        with ThreadPoolExecutor(_THREADS) as pool:
            found = zip(splits, pool.map(self._next, splits), strict=True)
            return {split.split_id: self._time_of(message) for split, message in found if message is not None}

    def nearer(
        self, splits: Sequence[PulsarSplit], ends: Mapping[str, Position], most: int | None, before_ms: int | None
    ) -> dict[str, Position]:
        """Return ends that are so near that the ranges obey two limits; without ranges that hold no message then.

        Parameters
        ----------
        splits, ends
            The splits, and up to where they could be read, by id.
        most
            How many messages all ranges may have together; None: any number.
        before_ms
            Ranges end before a message of this event time or later; None: there is no such limit.
        """
        if before_ms is None:  # else some splits may be left out for now
            for gone in self._walks.keys() - {split.split_id for split in splits}:
                self._leave(gone)
        found: dict[str, Position] = {}
        waiting = [split for split in splits if split.split_id in ends]
        left = most
        for number, split in enumerate(waiting):
            share = _MOST_MESSAGES
            if left is not None:
                share = max(1, left // (len(waiting) - number)) if left > 0 else 0
            if not share:
                break
            try:
                reached, count = self._advance(split, ends[split.split_id], share, before_ms)
            except HeadgateError:  # how far the reader has come, if there is one, is no position of the split
                self._leave(split.split_id)
                raise
            if reached is not None:
                found[split.split_id] = reached
            if left is not None:
                left -= count
        return found

    def _advance(
        self, split: PulsarSplit, end: Position, most: int, before_ms: int | None
    ) -> tuple[Position | None, int]:
        """Walk over so many messages, to ``end`` at most; return where that ends, None: at once, and how many."""
        walk = self._walk(split)
        reached, last, count = None, None, 0
        while reached is None and count < most:
            message = self._following(walk, split)
            if message is None:
                reached = end  # what is left are no messages
                break
            at = _after(message) if message.message_id().ledger_id() >= end.ledger else None
            if at is not None and at > end:
                reached = end
                break
            if before_ms is not None and (time_ms := self._time_of(message)) is not None and time_ms >= before_ms:
                break
            last, walk.following = message, None
            if is_encrypted(message):  # the client does not ask again for all that the brokers counted
                release(walk.reader)
                walk.reader = self._readers.open(split, _after(message))
            count += 1
            reached = end if at == end else None
        if reached is None and last is not None:
            reached = _after(last)
        if reached is not None:
            walk.position = reached
        return reached, count

    def _next(self, split: PulsarSplit) -> Any:
        return self._following(self._walk(split), split)

    def _walk(self, split: PulsarSplit) -> _Walk:
        walk = self._walks.get(split.split_id)
        if walk is None or walk.position != split.position:
            self._leave(split.split_id)
            walk = _Walk(self._readers.open(split, split.position), split.position)
            self._walks[split.split_id] = walk
        return walk

    def _leave(self, split_id: str) -> None:
        walk = self._walks.pop(split_id, None)
        if walk is not None:
            release(walk.reader)

    def _following(self, walk: _Walk, split: PulsarSplit) -> Any:
        if walk.following is None:
            walk.following = self._readers.next_message(walk.reader, split)
        return walk.following


def _after(message: Any) -> Position:
    return after_message(message.message_id().serialize())


def _no_time(_: Any) -> None:
    return None


def _close_all(walks: dict[str, _Walk]) -> None:
    for walk in walks.values():
        release(walk.reader)
