"""The values of Pulsar's messages as columns: JSON, Avro, what a topic's schema says, and what it does not."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pulsar.schema import Array, AvroSchema, Double, Integer, Long, Record, String

from headgate.errors import BadDataError, OptionError
from local.pulsar_topics import Message, client_of, create_topic, full_name, produce, upload_schema
from tests.real.pulsar_reads import messages, numbers, read, source
from tests.shared_broker import PulsarAddresses


def test_json_values_as_typed_columns(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    values = [b'{"id": 1, "name": "a"}', b'{"id": 2}', b"bad", b"", b'{"name": "x\\ny", "id": 3, "more": []}']
    produce(pulsar, topic_name, [Message(value) for value in values])
    schema = pa.schema({"name": pa.string(), "id": pa.int64(), "__topic": pa.string()})
    rows = read(source(pulsar, topic_name, valueFormat="json"), schema)
    assert [(row["id"], row["name"]) for row in rows] == [(1, "a"), (2, None), (None, None), (None, None), (3, "x\ny")]
    assert len(read(source(pulsar, topic_name, valueFormat="json", mode="DROPMALFORMED"), schema)) == 4
    with pytest.raises(BadDataError, match=r"of the message \d+:0:2 of persistent://public/default/.* FAILFAST|bad"):
        read(source(pulsar, topic_name, valueFormat="json", mode="FAILFAST"), schema)
    with pytest.raises(OptionError, match=r"the values' fields must be given"):
        source(pulsar, topic_name, valueFormat="json").schema()


RECORD = {
    "type": "record", "name": "Ride",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "driver", "type": ["null", {"type": "record", "name": "Driver", "fields": [
            {"name": "name", "type": "string"}, {"name": "stars", "type": {"type": "array", "items": "int"}}]}]},
    ],
}  # fmt: skip


def test_a_json_schema_gives_the_fields(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "JSON", RECORD)
    produce(
        pulsar, topic_name, [Message(b'{"id": 7, "driver": {"name": "n", "stars": [5, 4]}}'), Message(b'{"id": 8}')]
    )
    rows = read(source(pulsar, topic_name))
    assert [(row["id"], row["driver"]) for row in rows] == [(7, {"name": "n", "stars": [5, 4]}), (8, None)]
    assert numbers([{"value": row["id"]} for row in rows]) == [7, 8]
    raw = read(source(pulsar, topic_name, allowDifferentTopicSchemas="true"))
    assert raw[1]["value"] == b'{"id": 8}'


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("STRING", "ü".encode(), "ü"),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\xff\xfe", -2),
        ("INT32", b"\0\0\1\0", 256),
        ("INT64", b"\xff" * 8, -1),
        ("FLOAT", b"\x3f\xc0\0\0", 1.5),
        ("DOUBLE", b"\xbf\xf8\0\0\0\0\0\0", -1.5),
        ("BYTES", b"\0\1", b"\0\1"),
    ],
)
def test_primitive_schemas(pulsar: PulsarAddresses, topic_name: str, kind: str, data: bytes, expected: Any) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, kind, "")
    produce(pulsar, topic_name, [Message(data)])
    assert [row["value"] for row in read(source(pulsar, topic_name))] == [expected]


def test_values_that_are_not_what_the_schema_says(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "INT32", "")
    produce(pulsar, topic_name, [Message(b"\0\0\0\1"), Message(b"no number")])
    with pytest.raises(BadDataError, match=r"of the message \d+:0.* has 9 bytes, not 4"):
        read(source(pulsar, topic_name))


def test_a_record_whose_only_field_is_called_value(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    record = {"type": "record", "name": "Ride", "fields": [{"name": "value", "type": "string"}]}
    upload_schema(pulsar, topic_name, "JSON", record)
    produce(pulsar, topic_name, [Message(b'{"value": "abc"}')])
    assert [row["value"] for row in read(source(pulsar, topic_name))] == ["abc"]


def test_topics_of_different_schemas(pulsar: PulsarAddresses, topic_name: str) -> None:
    for number, kind in enumerate(("INT32", "STRING")):
        create_topic(pulsar, f"{topic_name}-{number}")
        upload_schema(pulsar, f"{topic_name}-{number}", kind, "")
    both = f"{topic_name}-0,{topic_name}-1"
    with pytest.raises(OptionError, match=r"have different schemas. Set allowDifferentTopicSchemas to true"):
        source(pulsar, "", topics=both).schema()
    assert (
        source(pulsar, "", topics=both, allowDifferentTopicSchemas="true").schema().field("value").type == pa.binary()
    )


def test_a_schema_that_is_not_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "AVRO", {**RECORD, "fields": [{"name": "id", "type": ["int", "string"]}]})
    with pytest.raises(OptionError, match=r"has a type that is not read: .*Set valueFormat to binary"):
        source(pulsar, topic_name).schema()


class Ride(Record):  # type: ignore[misc]
    """What a producer of Pulsar's own client writes."""

    id = Long(required=True)
    driver = String()
    stars = Array(Integer())


class LaterRide(Record):  # type: ignore[misc]
    """The same a version later."""

    id = Long(required=True)
    tip = Double(required_default=True)
    driver = String()
    stars = Array(Integer())


LaterRide.__name__ = "Ride"  # of Avro's record


def test_avro_values_by_the_schema_of_each_message(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 1)
    with client_of(pulsar) as client:
        for ride in (Ride(id=1, driver="n", stars=[5, 4]), LaterRide(id=2, driver=None, stars=[], tip=2.5)):
            producer = client.create_producer(full_name(topic_name), schema=AvroSchema(type(ride)))
            producer.send(ride)
    rows = read(source(pulsar, topic_name))
    own = [
        {name: row[name] for name in ("id", "driver", "stars", "tip")} for row in sorted(rows, key=lambda r: r["id"])
    ]
    assert own == [
        {"id": 1, "driver": "n", "stars": [5, 4], "tip": None},
        {"id": 2, "driver": None, "stars": [], "tip": 2.5},
    ]
    some = read(source(pulsar, topic_name), pa.schema({"driver": pa.string(), "__topic": pa.string()}))
    assert {row["driver"] for row in some} == {"n", None}
    raw = read(source(pulsar, topic_name), pa.schema({"value": pa.binary()}))
    assert raw[0]["value"] == fastavro_bytes(1, "n", [5, 4])
    produce(pulsar, topic_name, [Message(b"\xff", partition=0)])
    with pytest.raises(BadDataError, match=r"of the message \d+:\d+ of .* is not what its Avro schema says"):
        read(source(pulsar, topic_name))


def fastavro_bytes(ride_id: int, driver: str, stars: list[int]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, Ride.schema(), {"id": ride_id, "driver": driver, "stars": stars})
    return written.getvalue()


def test_a_column_that_values_without_a_schema_do_not_have(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(2))
    with pytest.raises(OptionError, match=r"no column 'user' of type string.*Set valueFormat to json"):
        read(source(pulsar, topic_name), pa.schema({"user": pa.string()}))
