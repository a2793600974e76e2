"""Record batches of records: Spark's columns in any order, or a clear error."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.kafka.columns import KafkaColumns, kafka_schema
from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.errors import BadDataError, OptionError
from headgate.formats.json_values import JSON_OPTIONS
from headgate.source.options import Options, OptionSpec, boolean, text
from local.records import records_of

SPECS = (
    *JSON_OPTIONS,
    OptionSpec("valueFormat", text, "binary"),
    OptionSpec("includeHeaders", boolean, False),
    OptionSpec("eventTimeColumn", text, None),
)
UTC = pa.timestamp("us", "UTC")


def make(schema: pa.Schema, **raw: str) -> KafkaColumns:
    return KafkaColumns(schema, Options.parse("headgate.kafka", SPECS, raw), "UTC")


def json_columns(*fields: tuple[str, pa.DataType], **raw: str) -> KafkaColumns:
    return make(pa.schema(list(fields)), valueFormat="json", **raw)


def test_all_columns_of_spark() -> None:
    schema = kafka_schema(include_headers=True)
    columns = make(schema, includeHeaders="true")
    assert columns.wanted == Wanted(headers=True)
    batch, _ = columns.rows(records_of([b"x", None, b""], lines=False, first_offset=6))
    batch.validate(full=True)
    assert batch.schema == schema
    second = datetime.datetime(1970, 1, 1, 0, 0, 7, tzinfo=datetime.UTC)
    assert batch.to_pylist()[1] == {
        "key": b"k7",
        "value": None,
        "topic": "flights",
        "partition": 3,
        "offset": 7,
        "timestamp": second,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"v"}, {"key": "", "value": None}],
    }
    assert batch.column("value").to_pylist() == [b"x", None, b""]
    assert batch.column("headers").to_pylist()[0] is None


def test_columns_may_be_left_out_and_stand_in_any_order() -> None:
    columns = make(pa.schema([("offset", pa.int64()), ("topic", pa.string())]))
    assert columns.wanted == Wanted(keys=False, values=False, timestamps=False)
    records = Records(TopicPartition("ü", 0), np.array([4, 9]))
    assert columns.rows(records)[0].to_pylist() == [{"offset": 4, "topic": "ü"}, {"offset": 9, "topic": "ü"}]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ("key", Wanted(True, False, False)),
        ("value", Wanted(False, True, False)),
        ("timestamp", Wanted(False, False, True)),
        ("timestampType", Wanted(False, False, True)),
    ],
)
def test_only_what_the_schema_has_is_wanted(column: str, wanted: Wanted) -> None:
    assert make(pa.schema([kafka_schema(False).field(column)])).wanted == wanted


def test_slices_of_records_give_slices_of_the_rows() -> None:
    columns = make(kafka_schema(include_headers=False))
    records = records_of([b"a", None, b"ccc", b"d"], lines=False)
    whole, _ = columns.rows(records)
    assert columns.rows(records.slice(1, 3))[0].equals(whole.slice(1, 2))
    assert columns.rows(records.slice(2, 2))[0] is None


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("user", pa.string(), ["'user'", "key BINARY", "timestampType INT", "valueFormat"]),
        ("Key", pa.binary(), ["'Key'", "key BINARY"]),
        ("headers", pa.string(), ["'headers'", "includeHeaders"]),
        ("key", pa.string(), ["'key'", "string", "BINARY", "cast"]),
        ("timestamp", pa.timestamp("us"), ["'timestamp'", "TIMESTAMP"]),
        ("offset", pa.int32(), ["'offset'", "int32", "BIGINT"]),
    ],
)
def test_other_columns_are_an_error_that_names_them(name: str, kind: pa.DataType, says: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        make(pa.schema([("topic", pa.string()), (name, kind)]))
    assert all(each in str(caught.value) for each in says), str(caught.value)
    assert caught.value.column == name


MICROSECONDS = 1_764_316_800_000_000
"""Since 1970-01-01, of 2025: in milliseconds of the year 57,879."""


def stamped(millis: int) -> Records:
    times, kinds = np.array([1000, millis]), np.zeros(2, np.int32)
    return Records(TopicPartition("t", 1), np.array([5, 9]), timestamps_ms=times, timestamp_types=kinds)


@pytest.mark.parametrize(
    ("millis", "raw", "instead"),
    [
        (1000 * MICROSECONDS, {}, "without the column timestamp"),
        (-(2**62), {}, "without the column timestamp"),
        (MICROSECONDS, {"eventTimeColumn": "Timestamp"}, "with another event time"),
    ],
)
def test_a_timestamp_that_is_not_in_milliseconds_is_an_error(millis: int, raw: dict[str, str], instead: str) -> None:
    says = rf"timestamp at offset 9 of partition 1 of the topic 't' is {millis}, .*; {instead} the record can be read"
    with pytest.raises(BadDataError, match=says) as caught:
        make(pa.schema([("timestamp", UTC)]), **raw).rows(stamped(millis))
    assert caught.value.facts == {"topic": "t", "partition": 1, "offset": 9}
    make(pa.schema([("timestampType", pa.int32())]), **raw).rows(stamped(millis))


@pytest.mark.parametrize("raw", [{}, {"valueFormat": "json", "eventTimeColumn": "at"}], ids=str)
def test_a_timestamp_that_moves_no_watermark_is_what_spark_shows(raw: dict[str, str]) -> None:
    name = "_timestamp" if raw else "timestamp"
    batch, _ = make(pa.schema([(name, UTC)]), **raw).rows(stamped(MICROSECONDS))
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1_000_000, 1000 * MICROSECONDS]


def test_fields_of_json_beside_kafkas_columns() -> None:
    columns = json_columns(
        ("_offset", pa.int64()),
        ("a", pa.int64()),
        ("_key", pa.binary()),
        ("_timestamp", UTC),
        ("_partition", pa.int32()),
        ("_topic", pa.string()),
        ("_timestampType", pa.int32()),
        ("_headers", kafka_schema(True).field("headers").type),
        ("_value", pa.string()),
        ("b", pa.string()),
    )
    assert columns.wanted == Wanted(headers=True, lines=True)
    batch, _ = columns.rows(records_of([b'{"a":1,"b":"x","_value":"y","_offset":77}', None], first_offset=4))
    batch.validate(full=True)
    assert [(row["_offset"], row["a"], row["_key"], row["_value"], row["b"]) for row in batch.to_pylist()] == [
        (4, 1, b"k4", "y", "x"),
        (5, None, b"k5", None, None),
    ]


def test_values_are_not_read_if_no_column_needs_them() -> None:
    schema = [("_offset", pa.int64())]
    columns = json_columns(*schema)
    assert columns.wanted == Wanted(False, False, False)
    assert columns.rows(Records(TopicPartition("t", 0), np.array([3])))[0].to_pylist() == [{"_offset": 3}]
    dropping = json_columns(*schema, mode="DROPMALFORMED")
    assert dropping.wanted == Wanted(False, True, False, lines=True)
    assert dropping.rows(records_of([b"bad", b'{"a":1}', b"bad"]))[0].to_pylist() == [{"_offset": 1}]


def test_a_kafka_column_of_another_type_is_an_error_with_json_too() -> None:
    with pytest.raises(OptionError, match=r"'_key'.*string.*BINARY"):
        json_columns(("_key", pa.string()), ("a", pa.int64()))


def test_dropped_records_leave_all_columns() -> None:
    columns = json_columns(("a", pa.int64()), ("_offset", pa.int64()), ("_key", pa.binary()), mode="DROPMALFORMED")
    values = [b"bad", b'{"a":1}', None, b'{"a":"x"}', b"", b"[]", b'{"a":2}']
    assert columns.rows(records_of(values))[0].to_pylist() == [
        {"a": 1, "_offset": 1, "_key": b"k1"},
        {"a": None, "_offset": 2, "_key": b"k2"},
        {"a": None, "_offset": 4, "_key": b"k4"},
        {"a": 2, "_offset": 6, "_key": b"k6"},
    ]
    assert columns.rows(records_of([b"bad", b"bad"]))[0] is None
