"""A consumer whose first record of a partition is the one at the position that it was assigned at.

Never: doubt a partition twice in a row, or one that was read from since it was assigned: gaps are allowed (records that
were compacted away, aborted, or are markers of transactions), and may begin where a split does.

A client on a busy machine once gave the second batch of a partition as its first, as if there were none before it. So
where the first record, or the end of the partition, comes later than the position, the partition is assigned again:

    partition is   first that comes     partition is then   what came is
    -------------  -------------------  ------------------  ---------------------------------------------------
    begun          at its position      read                given out
    begun          behind it            doubted             dropped: it comes again
    doubted        anything             read                given out: the client says twice that there is a gap
    read           anything             read                given out
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from headgate.connectors.kafka.consumers import PARTITION_EOF, Consumed, KafkaConsumer
from headgate.connectors.kafka.records import Wanted
from headgate.connectors.kafka.split import TopicPartition

_log = logging.getLogger(__name__)


class VerifiedConsumer:
    """See `KafkaConsumer`, of which it is one, and the module.

    Parameters
    ----------
    client
        Reads: a `bulk.BulkConsumer` or a `plain.PlainConsumer`.
    """

    def __init__(self, client: KafkaConsumer) -> None:
        self.client = client
        self._begun: dict[TopicPartition, int] = {}  # and where
        self._doubted: dict[TopicPartition, int] = {}  # and what came first of them

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `KafkaConsumer.assign`."""
        self._begun.update(positions)
        self.client.assign(positions)

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """See `KafkaConsumer.unassign`."""
        sources = list(sources)
        for source in sources:
            self._begun.pop(source, None)
            self._doubted.pop(source, None)
        self.client.unassign(sources)

    def consume(self, wanted: Wanted, at_most: int, timeout_ms: int) -> Consumed:
        """See `KafkaConsumer.consume`."""
        consumed = self.client.consume(wanted, at_most, timeout_ms)
        if not self._begun:
            return consumed
        again: dict[TopicPartition, int] = {}
        records = [each for each in consumed.records if self._is_right(each.source, int(each.offsets[0]), again)]
        events = [
            each
            for each in consumed.events
            if each.code != PARTITION_EOF or each.source is None or self._is_right(each.source, each.offset, again)
        ]
        if again:
            self.client.unassign(again)
            self.client.assign(again)
        return Consumed(records, events)

    def _is_right(self, source: TopicPartition, offset: int, again: dict[TopicPartition, int]) -> bool:
        """Return whether this may be the first that comes of a partition; if not, add it to those to assign again."""
        if source in again:
            return False
        position = self._begun.get(source)
        if position is None:
            return True
        before = self._doubted.pop(source, None)
        if before is None and offset > position:
            self._doubted[source] = offset
            again[source] = position
            return False
        del self._begun[source]
        if before is not None and offset < before:
            _log.warning(
                "The Kafka client gave %s from offset %d on instead of %d, and was asked again.", source, before, offset
            )
        return True

    def watermarks(self, source: TopicPartition, timeout_ms: int) -> tuple[int, int]:
        """See `KafkaConsumer.watermarks`."""
        return self.client.watermarks(source, timeout_ms)

    def partitions(self, timeout_ms: int) -> dict[str, int]:
        """See `KafkaConsumer.partitions`."""
        return self.client.partitions(timeout_ms)

    def wake_up(self) -> None:
        """See `KafkaConsumer.wake_up`."""
        self.client.wake_up()

    def close(self) -> None:
        """See `KafkaConsumer.close`."""
        self.client.close()
