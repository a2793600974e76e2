"""Batches have the columns of the schema, in its order and with its types."""

import datetime

import pyarrow as pa
import pytest

from headgate.connectors.kinesis.columns import KinesisColumns
from headgate.errors import OptionError

ARRIVED = datetime.datetime(2026, 1, 31, 12, 0, 0, 123000, datetime.timezone(datetime.timedelta(hours=2)))
RECORDS = [
    {"Data": b"\x00\xff", "PartitionKey": "ä", "SequenceNumber": "9" * 56, "ApproximateArrivalTimestamp": ARRIVED},
    {"Data": b"", "PartitionKey": "", "SequenceNumber": "1", "ApproximateArrivalTimestamp": ARRIVED},
]
TYPES = {
    "data": pa.binary(),
    "streamName": pa.string(),
    "partitionKey": pa.string(),
    "sequenceNumber": pa.string(),
    "shardId": pa.string(),
    "approximateArrivalTimestamp": pa.timestamp("us", "UTC"),
}
VALUES = {
    "data": [b"\x00\xff", b""],
    "streamName": ["rides", "rides"],
    "partitionKey": ["ä", ""],
    "sequenceNumber": ["9" * 56, "1"],
    "shardId": ["shardId-000000000007"] * 2,
    "approximateArrivalTimestamp": [ARRIVED, ARRIVED],
}


@pytest.mark.parametrize("names", [list(TYPES), ["shardId", "data"], ["approximateArrivalTimestamp"], []])
def test_columns_are_those_of_the_schema(names):
    schema = pa.schema([(name, TYPES[name]) for name in names])
    batch = KinesisColumns(schema, "rides").batch("shardId-000000000007", RECORDS)
    assert batch.schema == schema and batch.num_rows == 2
    assert batch.to_pydict() == {name: VALUES[name] for name in names}


def test_names_count_without_case():
    schema = pa.schema([("SHARDID", pa.string())])
    assert KinesisColumns(schema, "rides").batch("s", RECORDS).to_pydict() == {"SHARDID": ["s", "s"]}


@pytest.mark.parametrize(
    ("name", "data_type", "message"),
    [
        ("value", pa.binary(), "'value' of the schema is none of its columns.*parse 'data'"),
        ("data", pa.string(), "has the type string, not binary"),
        ("sequenceNumber", pa.int64(), "has the type int64, not string"),
        ("approximateArrivalTimestamp", pa.date32(), r"has the type date32\[day\], not timestamp"),
    ],
)
def test_other_columns_are_refused(name, data_type, message):
    with pytest.raises(OptionError, match=message):
        KinesisColumns(pa.schema([(name, data_type)]), "rides")
