"""What the sink accepts, and what it decides without a broker. Nobody listens at port 9."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink.options import KafkaSink, RowColumns
from headgate.connectors.kafka.sink.producer import KafkaWriter, sink_error
from headgate.connectors.kafka.sink.task_writer import write_epoch
from headgate.connectors.kafka.sink.transactions import MARKER_SERIALIZER, Marker
from headgate.errors import OptionError, SinkError

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9"}
VALUES = pa.schema({"value": pa.binary()})
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def test_columns_are_found_by_name_and_others_are_ignored() -> None:
    schema = pa.schema(
        {
            "when": pa.duration("us"), "partition": pa.int32(), "value": pa.string(), "topic": pa.string(),
            "key": pa.binary(), "headers": HEADERS, "value2": pa.float64(),
        }
    )  # fmt: skip
    assert RowColumns.of(schema, None) == RowColumns(value=2, key=4, topic=3, headers=5, partition=1)
    assert RowColumns.of(schema, "rides").topic is None, "the option wins"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.string()}, "no column 'value'"),
        ({"Value": pa.string()}, "no column 'value'"),
        ({"value": pa.int64()}, "'value' must be a string or binary, not int64"),
        ({"value": pa.string(), "key": pa.float64()}, "'key' must be a string or binary, not double"),
        ({"value": pa.string(), "partition": pa.int64()}, "'partition' must be an int, not int64"),
        ({"value": pa.string(), "headers": pa.string()}, "'headers' must be an array<struct<key: string, value: bin"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, pa.DataType], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaSink.of(BROKER | {"topic": "rides"}, pa.schema(columns))


def test_a_topic_is_needed_and_must_be_text() -> None:
    with pytest.raises(OptionError, match="Set the option 'topic', or add a column 'topic'"):
        KafkaSink.of(BROKER, VALUES)
    with pytest.raises(OptionError, match="'topic' must be a string, not int32"):
        KafkaSink.of(BROKER, pa.schema({"value": pa.binary(), "topic": pa.int32()}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guarantee": "twice"}, "'guarantee' is 'twice'; it must be one of at-least-once, exactly-once"),
        ({"guarante": "exactly-once"}, "no option 'guarante'. Did you mean 'guarantee'"),
        ({"subscribe": "rides"}, "no option 'subscribe'"),
        ({"kafka.transactional.id": "mine"}, "'kafka.transactional.id' cannot be set: .* its own"),
        ({"guarantee": "exactly-once", "kafka.enable.idempotence": "false"}, "'kafka.enable.idempotence' cannot be"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaSink.of(BROKER | {"topic": "rides"} | options, VALUES)


def test_what_spark_adds_to_the_options_is_accepted() -> None:
    given = BROKER | {"topic": "rides", "checkpointlocation": "/tmp/c", "queryname": "q", "includeheaders": "true"}
    assert not KafkaSink.of(given, VALUES).exactly_once


def test_a_sink_travels_and_equal_ones_share_a_producer() -> None:
    given = BROKER | {"topic": "rides", "guarantee": "exactly-once"}
    sink = KafkaSink.of(given, VALUES)
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert hash(KafkaSink.of(given, VALUES)) == hash(sink)


def test_a_task_without_rows_asks_nobody() -> None:
    """Nobody listens at the address: a question would raise."""
    sink = KafkaSink.of(BROKER | {"topic": "rides", "guarantee": "exactly-once"}, VALUES)
    write_epoch(sink, "headgate-q-0", 3, iter([pa.record_batch({"value": pa.array([], pa.binary())})]))


def test_the_marker_reads_as_it_was_first_written() -> None:
    """Golden bytes: markers of version 1 stay in the brokers' groups."""
    golden = (Path(__file__).parents[4] / "golden" / "kafka-sink-marker-v1.json").read_bytes().strip()
    assert MARKER_SERIALIZER.deserialize(golden) == Marker(epoch=41, rows=90_000)
    assert MARKER_SERIALIZER.serialize(Marker(epoch=41, rows=90_000)) == golden


def test_an_error_holds_no_secret() -> None:
    from confluent_kafka import KafkaError

    secrets = {"kafka.sasl.username": "ferry", "kafka.sasl.password": "s3cret"}
    client = KafkaSink.of(BROKER | secrets | {"topic": "rides"}, VALUES).client
    for code in (KafkaError._SSL, KafkaError._TRANSPORT, KafkaError.UNKNOWN):
        error = sink_error(KafkaError(code, "s3cret was refused"), client, "rides", 1, "s3cret again")
        assert isinstance(error, SinkError)
        assert "s3cret" not in str(error) + repr(error.facts)
        assert "***" in str(error)


@pytest.mark.parametrize(
    ("given", "linger_ms", "in_flight"),
    [
        ({}, 50, None),
        ({"profile": "throughput"}, 50, None),
        ({"profile": "latency"}, 0, 1),
        ({"profile": "latency", "kafka.linger.ms": "7"}, "7", 1),
        ({"profile": "latency", "kafka.max.in.flight.requests.per.connection": "3"}, 0, "3"),
    ],
)
def test_a_profile_gives_way_to_what_the_user_set(given: dict[str, str], linger_ms: object, in_flight: object) -> None:
    with KafkaWriter(KafkaSink.of(BROKER | {"topic": "rides"} | given, VALUES)) as writer:  # librdkafka accepts it, too
        settings = writer._settings()
    assert settings["linger.ms"] == linger_ms
    assert settings.get("max.in.flight.requests.per.connection") == in_flight
    assert settings["enable.idempotence"]
