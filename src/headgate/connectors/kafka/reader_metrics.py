"""What a reader of partitions counts and measures of itself.

Never: ask a broker, or look at a single record: a partition's end came with what was fetched.

    name                        kind     what
    --------------------------  -------  -------------------------------------------------------------------------------
    pendingRecords              gauge    of a partition: offsets between what was read and its end, as last fetched
    currentFetchEventTimeLag    gauge    from a record's time stamp until it was fetched, in ms, if time stamps are read
    numBytesIn                  counter  bytes of keys, values and headers, as far as they are read
    fetches                     counter  fetches that brought records
    commitsSucceeded            counter  commits of the group's offsets that brokers accepted
    commitsFailed               counter  those that failed, or were not answered

There are no rebalances to count: partitions are assigned by the enumerator, and no consumer joins a group.

Follows FLIP-33 and Flink's Kafka connector for names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from headgate.connectors.kafka.consumer import KafkaConsumer
from headgate.connectors.kafka.records import Records
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.source.metrics import CURRENT_FETCH_EVENT_TIME_LAG, NUM_BYTES_IN, PENDING_RECORDS, MetricGroup

_LOOK_S = 1.0
"""How often it is looked at what a fetch brought beside records."""


class ReaderMetrics:
    """The metrics of a reader and its consumer's thread.

    Parameters
    ----------
    group
        What takes them.
    """

    def __init__(self, group: MetricGroup) -> None:
        self._group = group
        self._bytes = group.counter(NUM_BYTES_IN)
        self._fetches = group.counter("fetches")
        self.commits_succeeded = group.counter("commitsSucceeded")
        self.commits_failed = group.counter("commitsFailed")
        group.gauge(CURRENT_FETCH_EVENT_TIME_LAG, lambda: self._lag_ms, "max")
        # Written by the consumer's thread, one item or attribute at a time:
        self._ends: dict[TopicPartition, int] = {}
        self._lag_ms: float | None = None
        self._look_s = 0.0

    # On the reader's thread.

    def add_split(self, split_id: str, splits: dict[str, KafkaSplit]) -> None:
        """Measure how many records are after a split's position, which ``splits`` has."""
        self._group.split(split_id).gauge(PENDING_RECORDS, partial(self._pending, split_id, splits))

    def _pending(self, split_id: str, splits: dict[str, KafkaSplit]) -> int | None:
        split = splits.get(split_id)
        end = None if split is None else self._ends.get(split.topic_partition)
        return None if split is None or end is None else max(0, end - split.position)

    # On the consumer's thread.

    def fetched(
        self, consumer: KafkaConsumer, records: list[Records], reading: Iterable[TopicPartition], now_s: float
    ) -> None:
        """Note a fetch, and once in a while what the client has learnt with it; ``now_s`` is of a monotonic clock."""
        if records:
            self._fetches.inc()
            for each in records:
                self._bytes.inc(each.data_bytes)
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for source in reading:
            end = consumer.known_end(source)
            if end is not None:
                self._ends[source] = end
        times_ms = [int(each.timestamps_ms[-1]) for each in records if each.timestamps_ms is not None]
        if times_ms:
            self._lag_ms = max(0.0, time.time() * 1000 - min(times_ms))
