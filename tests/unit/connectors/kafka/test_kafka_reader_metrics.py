"""What a reader of Kafka counts with each fetch, and what it looks at once a second."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.consumer import HEADERS, KafkaConsumer
from headgate.connectors.kafka.reader_metrics import ReaderMetrics
from headgate.connectors.kafka.records import Records
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.source import MetricGroup

SOURCE = TopicPartition("rides", 3)


class Ends:
    """Knows where a partition ends, and how often that was looked for."""

    def __init__(self) -> None:
        self.end: int | None = None
        self.looks = 0

    def known_end(self, source: TopicPartition) -> int | None:
        self.looks += 1
        return self.end


def values(group: MetricGroup, *split_ids: str) -> dict[str, float]:
    return {name: each.value for name, each in group.collect(split_ids).metrics.items()}


def test_bytes_are_those_of_keys_values_and_headers_alone() -> None:
    group = MetricGroup()
    metrics = ReaderMetrics(group)
    headers = pa.array([[{"key": "host", "value": b"abc"}], None], HEADERS)
    keys, data = pa.array([None, None], pa.binary()), pa.array([b"12345", None], pa.binary())
    records = [Records(SOURCE, np.arange(2), keys, data, headers=headers), Records(SOURCE, np.arange(1))]
    metrics.fetched(cast(KafkaConsumer, Ends()), records, [], 0.0)
    metrics.fetched(cast(KafkaConsumer, Ends()), [], [], 0.0)
    found = values(group)
    assert (found["numBytesIn"], found["fetches"]) == (5 + 4 + 3, 1)


def test_ends_and_times_are_looked_at_once_a_second() -> None:
    group, ends = MetricGroup(), Ends()
    metrics = ReaderMetrics(group)
    splits: dict[str, Any] = {"s": KafkaSplit(split_id="s", topic="rides", partition=3, position=7)}
    metrics.add_split("s", splits)
    consumer = cast(KafkaConsumer, ends)
    metrics.fetched(consumer, [], [SOURCE], 50.0)
    assert group.collect(["s"]).pending_records == {}, "nothing was fetched yet"
    ends.end = 10
    old = Records(SOURCE, np.arange(1), timestamps_ms=np.array([1000]))
    metrics.fetched(consumer, [old], [SOURCE], 50.9)
    assert ends.looks == 1 and "currentFetchEventTimeLag" not in values(group, "s")
    metrics.fetched(consumer, [old], [SOURCE], 51.0)
    assert group.collect(["s"]).pending_records == {"s": 3}
    assert values(group, "s")["currentFetchEventTimeLag"] > 1_000_000_000_000
    splits["s"] = KafkaSplit(split_id="s", topic="rides", partition=3, position=12)
    assert group.collect(["s"]).pending_records == {"s": 0}, "what was read since then is not known to have an end"
