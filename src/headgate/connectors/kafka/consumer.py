"""A connected client of Kafka, and what it gives: the contract of `bulk.BulkConsumer` and `plain.PlainConsumer`.

Never: connect.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.source import Signal

# Numbers of librdkafka (negative) and Kafka.
PARTITION_EOF = -191
ALL_BROKERS_DOWN = -187
OUT_OF_RANGE = frozenset({-140, 1})
GONE = frozenset({-190, -188, 3, 100})
REFUSED = frozenset({-169, 31, 33, 34, 58})
SSL = -181
TOPIC_REFUSED = 29
DAMAGED = frozenset({-199, -198, -155, 2, 10})
FATAL = -150


class ClientLog:
    """Takes what librdkafka would print to stderr, as news: what matters of it arrives as errors."""

    _log = logging.getLogger("headgate.kafka.librdkafka")

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log at no more than INFO. The arguments are those of `logging.Logger.log`."""
        self._log.log(min(level, logging.INFO), message, *arguments)


client_log = ClientLog()

_SPACING_S, _SPACING_OF_MANY_S = 0.001, 0.01
_MANY = 256
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The type of `Records.headers`."""


@dataclass(frozen=True)
class ClientEvent:
    """What a client reported besides records: an error, or that a partition has nothing more for now.

    Parameters
    ----------
    code
        librdkafka's number: negative ones are the client's own, positive ones Kafka's.
    text
        What librdkafka says about it.
    source
        The partition that it is about, if it is about one.
    offset
        The offset that it is about; for the end of a partition, the offset of its next record.
    """

    code: int
    text: str
    source: TopicPartition | None = None
    offset: int = -1


class Consumed(msgspec.Struct, frozen=True):
    """What one call of `KafkaConsumer.consume` brought.

    Parameters
    ----------
    records
        In the order of each partition; a partition may stand here more than once.
    events
        In the order in which they came. The end of a partition comes with or after the records before it.
    together
        All records, if they are few of several partitions, which have `records` as parts; else None.
    """

    records: list[Records]
    events: list[ClientEvent]
    together: Records | None = None


class Pace:
    """Decides how long a batch that has records waits for more: each costs the engine half a millisecond or so.

    A record that comes after some silence does not wait. Those that go on coming are given out 1,000 times a second,
    or 100 times where they are many: a batch of those is large enough only then.
    """

    def __init__(self) -> None:
        self._last_s = -math.inf
        self._spacing_s = _SPACING_S

    def linger_s(self, now_s: float) -> float:
        """Return how long to wait, in seconds, at a time of any clock."""
        return max(0.0, self._last_s + self._spacing_s - now_s)

    def given_out(self, records: int, now_s: float) -> None:
        """Note that a batch of so many records ends at a time."""
        self._last_s = now_s
        self._spacing_s = _SPACING_S if records < _MANY else _SPACING_OF_MANY_S


class KafkaConsumer(Protocol):
    """A connected client. Its methods are called by one thread at a time, save for `wake_up`."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well, from these offsets on. Waits half a second for brokers at most."""

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """Read these partitions no longer: nothing of them comes from here on."""

    def consume(self, wanted: Wanted, at_most: int, timeout_ms: int) -> Consumed:
        """Return up to ``at_most`` messages; blocks until the first comes, or nothing does within the time."""

    def begin_signals(self, signal: Signal) -> bool:
        """Signal from now on that there is something to consume where there was nothing; return whether it can."""

    def signal_what_waits(self) -> None:
        """Signal that there is something to consume, if there is."""

    def end_signals(self) -> None:
        """Give no signals any more."""

    def has_waiting(self) -> bool:
        """Whether there is something to consume."""

    def watermarks(self, source: TopicPartition, timeout_ms: int) -> tuple[int, int]:
        """Ask the partition's leader for its first and its next offset. Raises ConnectionError with the reason."""

    def known_end(self, source: TopicPartition) -> int | None:
        """Return a partition's next offset as it came with the last fetch; None: none did yet. Asks nobody."""

    def partitions(self, timeout_ms: int) -> dict[str, int]:
        """Ask for all topics: the number of partitions of each. Raises ConnectionError with the reason."""

    def wake_up(self) -> None:
        """Make a `consume` that blocks, or the next one, return at once. Called from any thread."""

    def close(self) -> None:
        """Disconnect."""
