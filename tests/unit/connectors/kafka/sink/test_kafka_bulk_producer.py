"""What a row costs in Python: nothing. Nobody listens at port 9."""

from __future__ import annotations

import sys
from types import FrameType

import pyarrow as pa
import pytest

from headgate.connectors.kafka.consumer_pool import bulk_is_possible
from headgate.connectors.kafka.sink.bulk_producer import BulkProducer
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter
from headgate.errors import SinkError

AUTHENTICATION = "sasl.oauthbearer.metadata.authentication.type"
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


def test_a_topic_that_c_would_cut_is_refused() -> None:
    batch = pa.record_batch({"topic": ["orders", "orders\0x"], "value": [b"1", b"2"]})
    sink = KafkaSink.of({"kafka.bootstrap.servers": "127.0.0.1:9"}, batch.schema)
    with KafkaWriter(sink) as writer, pytest.raises(SinkError, match=r"'orders.x00x'"):
        writer.write_now(batch)


def test_who_fetches_tokens_of_its_own_is_confluent_s_client() -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:9", "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.oauthbearer.method": "oidc",
        "kafka.sasl.oauthbearer.metadata.authentication.type": "aws_iam",
        "kafka.sasl.oauthbearer.config": "region=eu-west-1,audience=https://example.com",
    }  # fmt: skip
    settings = KafkaSink.of({**options, "topic": "t"}, rows(1, "value").schema).client.producer()
    assert not bulk_is_possible(settings) and bulk_is_possible({**settings, AUTHENTICATION: "none"})
