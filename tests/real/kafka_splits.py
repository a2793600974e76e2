"""Readers of splits of real topics, and what they read as rows of partition, offset and value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kafka import split_reader
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.records import Records, Wanted
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.split_reader import KafkaSplitReader
from headgate.testing import SplitReaderHarness
from local.topics import Message

POLL_TIMEOUT_MS = 60_000


class OffsetsAndValues:
    wanted = Wanted(keys=False, timestamps=False)

    def rows(self, records: Records) -> tuple[pa.RecordBatch, None]:
        partitions = pa.array([records.source.partition] * len(records.offsets))
        return pa.record_batch({"partition": partitions, "offset": records.offsets, "value": records.values}), None


def client(address: str, **settings: str) -> ClientConfig:
    named = {"bootstrap.servers": address} | {name.replace("_", "."): value for name, value in settings.items()}
    return ClientConfig(tuple(sorted(named.items())))


def reader(config: ClientConfig, **options: Any) -> SplitReaderHarness[KafkaSplit]:
    settings = {"fail_on_data_loss": True, "poll_timeout_ms": POLL_TIMEOUT_MS, "buffered_bytes": 64 * 2**20} | options
    return SplitReaderHarness(KafkaSplitReader(config, OffsetsAndValues(), **settings), timeout_ms=500)


def silence_begins(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool] = lambda: True, ask_ms: int = 60_000
) -> None:
    """Let the poll time-out pass with each fetch, for readers' clocks, once ``when`` holds; before, no time passes.

    So a machine that stands still is not silence. Brokers may take ``ask_ms`` to say why nothing comes.
    """
    ticks = itertools.count(1)

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return next(ticks) * POLL_TIMEOUT_MS / 1000 if when() else 0.0

    monkeypatch.setattr(split_reader, "time", Clock)
    monkeypatch.setattr(split_reader, "_ASK_MS", ask_ms)


def split(topic: str, partition: int = 0, position: int = 0, stop: int | None = None) -> KafkaSplit:
    name = f"{topic}-{partition}@{position}"
    return KafkaSplit(split_id=name, topic=topic, partition=partition, position=position, stop=stop)


def offsets(rows: Sequence[dict[str, Any]], partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows if row["partition"] == partition]


def numbered(count: int, partition: int = 0) -> list[Message]:
    return [Message(b"%d" % number, partition=partition) for number in range(count)]


def fetch_until(harness: SplitReaderHarness[KafkaSplit], rows: int) -> list[dict[str, Any]]:
    """Fetch until there are so many rows, for a split that does not end."""
    for _ in range(200):
        if len(harness.rows()) >= rows:
            return harness.rows()
        harness.fetch()
    raise AssertionError(f"{len(harness.rows())} rows instead of {rows}")
