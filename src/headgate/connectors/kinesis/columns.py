"""Makes Arrow batches of the records of one answer, a column at a time.

Never: make a column that nobody asked for. boto3 returns one dict a record, so that a column is a list of its
values; a shard gives 2 MB a second at most, which this outruns by far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.connectors.kinesis.options import NAME
from headgate.errors import OptionError

_Values = Callable[[str, str, Sequence[dict[str, Any]]], list[Any]]

_COLUMNS: dict[str, tuple[Callable[[pa.DataType], bool], str, _Values]] = {
    "data": (pt.is_binary, "binary", lambda stream, shard, records: [each["Data"] for each in records]),
    "streamName": (pt.is_string, "string", lambda stream, shard, records: [stream] * len(records)),
    "partitionKey": (pt.is_string, "string", lambda stream, shard, records: [each["PartitionKey"] for each in records]),
    "sequenceNumber": (
        pt.is_string, "string", lambda stream, shard, records: [each["SequenceNumber"] for each in records],
    ),
    "shardId": (pt.is_string, "string", lambda stream, shard, records: [shard] * len(records)),
    "approximateArrivalTimestamp": (
        pt.is_timestamp, "timestamp",
        lambda stream, shard, records: [each["ApproximateArrivalTimestamp"] for each in records],
    ),
}  # fmt: skip

SCHEMA = ", ".join(f"{name} {type_name}" for name, (_, type_name, _) in _COLUMNS.items())
"""All columns, as Spark's DDL text."""


class KinesisColumns:
    """Makes batches with the columns of a schema: any of `SCHEMA`, in any order.

    Raises
    ------
    OptionError
        The schema has another column, or another type of one.
    """

    def __init__(self, schema: pa.Schema, stream_name: str) -> None:
        self._schema = schema
        self._stream_name = stream_name
        self._values: list[_Values] = []
        by_lower = {name.lower(): name for name in _COLUMNS}
        for field in schema:
            known = by_lower.get(field.name.lower())
            is_type, type_name, values = _COLUMNS[known] if known else (None, "", None)
            if is_type is None or values is None or not is_type(field.type):
                what = f"has the type {field.type}, not {type_name}" if known else "is none of its columns"
                raise OptionError(
                    f"{NAME}: the column {field.name!r} of the schema {what}. The columns are: {SCHEMA}; name any of "
                    "them, and parse 'data' with Spark's functions.",
                    source=NAME, option="schema", value=field.name,
                )  # fmt: skip
            self._values.append(values)

    def batch(self, shard_id: str, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Return the rows of records of one shard."""
        if not self._values:  # no column, but rows to count
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
        columns = [
            pa.array(values(self._stream_name, shard_id, records), field.type)
            for field, values in zip(self._schema, self._values)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
