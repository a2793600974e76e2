"""What a row costs in Python: nothing. Nobody listens at port 9."""

from __future__ import annotations

import sys
from types import FrameType

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink.bulk_producer import BulkProducer
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def rows(count: int, *columns: str) -> pa.RecordBatch:
    every = {
        "value": pa.array([b"x" * 100] * count),
        "key": pa.array(["k"] * count, pa.large_string()),
        "partition": pa.array([None] * count, pa.int32()),
        "headers": pa.array([[{"key": "h", "value": b"v"}]] * count, HEADERS),
        "topic": pa.array(["t"] * count),
    }
    return pa.record_batch({name: every[name] for name in columns})


def calls_of(writer: KafkaWriter, batch: pa.RecordBatch) -> int:
    """Return how many calls of Python it takes to put rows into the queue."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        written = writer._adder(batch)()
    finally:
        sys.setprofile(None)
    assert written == batch.num_rows
    return calls


@pytest.mark.parametrize("columns", [("value",), ("value", "key", "partition", "headers", "topic")])
def test_many_rows_take_as_many_calls_of_python_as_one(columns: tuple[str, ...]) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}
    if "topic" in columns:
        del options["topic"]
    with KafkaWriter(KafkaSink.of(options, rows(1, *columns).schema)) as writer:
        assert isinstance(writer._producer, BulkProducer)
        calls_of(writer, rows(1, *columns))  # the topic is new
        assert calls_of(writer, rows(10_000, *columns)) == calls_of(writer, rows(1, *columns))
