"""Finds where the messages of a time of events begin in a partition, by bisection. Blocks.

Never: read a partition through: of about twenty entries the first message is read, and the one found entry.

Pulsar has no index of event times. Like its own search by times of publication, this one takes them to rise.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headgate.connectors.pulsar.columns import is_time
from headgate.connectors.pulsar.ledgers import Ledgers
from headgate.connectors.pulsar.opening import PartitionReaders, release
from headgate.connectors.pulsar.options import LEAST_QUEUED
from headgate.connectors.pulsar.position import Position, after_message, before_message
from headgate.connectors.pulsar.split import PulsarSplit


def position_at(readers: PartitionReaders, split: PulsarSplit, ledgers: Ledgers, time_ms: int) -> Position:
    """Return the position before a partition's first message of an event time or later; if there is none, its end.

    A message without one, or whose one is not in milliseconds, counts with its time of publication.

    Raises
    ------
    SourceUnavailableError
        The brokers do not answer, or messages do not come.
    """

    def time_at(number: int) -> float:
        with _reader(readers, split, ledgers.before_entry(number)) as reader:
            message = readers.next_message(reader, split)
        return math.inf if message is None else _time_ms(message)

    place = bisect.bisect_left(range(ledgers.entries_after(None)), float(time_ms), key=time_at)
    end = ledgers.before_entry(place)
    if place == 0:
        return end
    # The batch before begins earlier, but need not end earlier.
    with _reader(readers, split, ledgers.before_entry(place - 1)) as reader:
        reached = None
        while reached is None or reached < end:
            message = readers.next_message(reader, split)
            if message is None:
                break
            message_id = message.message_id().serialize()
            if _time_ms(message) >= time_ms:
                return min(end, before_message(message_id))
            reached = after_message(message_id)
    return end


@contextmanager
def _reader(readers: PartitionReaders, split: PulsarSplit, position: Position) -> Iterator[Any]:
    reader = readers.open(split, position, receiver_queue_size=LEAST_QUEUED)
    try:
        yield reader
    finally:
        release(reader)


def _time_ms(message: Any) -> int:
    millis = int(message.event_timestamp())
    return millis if millis and is_time(millis) else int(message.publish_timestamp())
