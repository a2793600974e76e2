"""Makes record batches of records: Spark's columns of Kafka, or with ``valueFormat`` ``json`` those of the values.

Never: look at one record at a time, or parse a value; `values` does that.

Follows Spark 4.3, "Structured Streaming + Kafka Integration Guide", "Reading Data from Kafka" (the schema), and its
``KafkaRecordToRowConverter``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.errors import BadDataError, OptionError
from headgate.formats.json_values import JsonValues
from headgate.formats.shared_options import PERMISSIVE
from headgate.source.event_time import LATEST_MS

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
_ANY_COLUMN = pa.schema([("", pa.string())])
"""What is parsed where only `mode` wants to know about values: a batch without columns would have no rows."""
_LARGEST_MS = (2**63 - 1) // 1000
"""The largest number of milliseconds that a timestamp of Spark's can have, and minus the smallest."""
_KEPT_ROWS, _KEPT_PARTITIONS = 256, 256
"""Columns that repeat one value are kept for so many rows, and of so many partitions at once."""
_SQL_TYPES = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def kafka_schema(include_headers: bool) -> pa.Schema:
    """Return the columns of Spark's ``kafka`` format, all nullable; ``headers`` only if they are included."""
    return pa.schema([(name, kind) for name, kind in _TYPES.items() if include_headers or name != "headers"])


class KafkaColumns:
    """The columns of a read; one instance makes many batches, on one thread.

    Parameters
    ----------
    schema
        The columns to return. With ``valueFormat`` ``binary`` some or all of `kafka_schema`, in any order; with
        ``json`` fields of the values, and of Kafka's own columns those that it names with an underscore before them
        (``_key``, ``_topic``, ``_partition``, ``_offset``, ``_timestamp``, ``_timestampType``, ``_headers``).
    options
        Parsed options of headgate.kafka.
    time_zone
        The session's time zone, for timestamps in values that name none; None: UTC.

    Raises
    ------
    OptionError
        A column has a name or a type that there is not, or an option of the values cannot be used.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str | None) -> None:
        self._schema = schema
        json = options["valueFormat"] == "json"
        own = _own_columns(schema, options["includeHeaders"], json)
        self._own = [(index, name) for index, name in enumerate(own) if name is not None]
        self._parsed = [index for index, name in enumerate(own) if name is None]
        self._values = None
        if json:
            parsed = pa.schema([schema.field(index) for index in self._parsed])
            if len(parsed) or options["mode"] != PERMISSIVE:
                self._values = JsonValues(parsed if len(parsed) else _ANY_COLUMN, options, time_zone or "UTC")
        names = {name for _, name in self._own}
        stamps = [schema.field(index).name.lower() for index, name in self._own if name == "timestamp"]
        is_event_time = str(options.get("eventTimeColumn")).lower() in stamps
        self._partitions: dict[tuple[str, TopicPartition], pa.Array] = {}  # their columns, for few records
        self._latest_ms = (LATEST_MS if is_event_time else _LARGEST_MS) if stamps else None
        parse = self._values is not None
        self.wanted = Wanted(
            keys="key" in names,
            values="value" in names or parse,
            timestamps=not names.isdisjoint(("timestamp", "timestampType")),
            headers="headers" in names,
            lines=parse,
        )

    def rows(self, records: Records) -> tuple[pa.RecordBatch | None, pa.BooleanArray | None]:
        """Return the rows of records: one each, in order, but for those that ``DROPMALFORMED`` drops.

        Parameters
        ----------
        records
            Records with what `wanted` wants.

        Returns
        -------
        batch
            None: there are no rows.
        kept
            Which of the records have a row; None: all have one.

        Raises
        ------
        BadDataError
            A value is malformed and ``mode`` is ``FAILFAST``, or a timestamp is not in milliseconds; with ``topic``,
            ``partition`` and ``offset``.
        """
        if not len(records.offsets):
            return None, None
        arrays: list[pa.Array] = [None] * len(self._schema)
        kept = None
        if self._values is not None:
            values, kept = self._values.decode(records.values, records.where)
            if not values.num_rows:
                return None, kept
            for index, array in zip(self._parsed, values.columns, strict=bool(self._parsed)):
                arrays[index] = array
        if self._latest_ms is not None:
            _check_times(records, self._latest_ms)
        for index, name in self._own:
            array = _COLUMNS[name](records) if name in _COLUMNS else self._repeated(name, records)
            arrays[index] = array if kept is None else array.filter(kept)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), kept

    def _repeated(self, name: str, records: Records) -> pa.Array:
        """Return the partition of records, or its topic, for each of them."""
        if records.parts:
            return pa.concat_arrays([self._repeated(name, each) for each in records.parts])
        rows = len(records.offsets)
        known = self._partitions.get((name, records.source))
        if known is None or len(known) < rows:
            value = records.source.topic if name == "topic" else records.source.partition
            known = pa.repeat(pa.scalar(value, _TYPES[name]), rows)
            if rows > _KEPT_ROWS:
                return known
            known = pa.repeat(pa.scalar(value, _TYPES[name]), _KEPT_ROWS)
            if len(self._partitions) >= _KEPT_PARTITIONS:
                self._partitions.clear()
            self._partitions[name, records.source] = known
        return known.slice(0, rows)


def _own_columns(schema: pa.Schema, include_headers: bool, json: bool) -> list[str | None]:
    """Return for each column which of Kafka's own it is, None if it is a field of the values."""
    prefix = "_" if json else ""
    allowed = [name for name in _TYPES if (json and name != "value") or (not json and name != "headers")]
    if not json and include_headers:
        allowed.append("headers")
    own: list[str | None] = []
    for field in schema:
        name = field.name.removeprefix(prefix) if field.name.startswith(prefix) else None
        if name not in allowed:
            if not json:
                raise _no_column(field, allowed, include_headers)
            name = None
        elif field.type != _TYPES[name]:
            raise OptionError(
                f"headgate.kafka: the column {field.name!r} of the schema is {field.type}, but Kafka's is "
                f"{_SQL_TYPES[name]}: give it that type, and cast the column afterwards.",
                option="schema", value=str(field.type), column=field.name,
            )  # fmt: skip
        own.append(name)
    return own


def _no_column(field: pa.Field, allowed: list[str], include_headers: bool) -> OptionError:
    columns = ", ".join(f"{name} {_SQL_TYPES[name]}" for name in allowed)
    hint = (
        "set includeHeaders to true to have it"
        if field.name == "headers" and not include_headers
        else "leave it out, or set valueFormat to json if it is a field of JSON values"
    )
    return OptionError(
        f"headgate.kafka has no column {field.name!r}: {hint}. The columns are: {columns}.",
        option="schema", value=str(field.type), column=field.name,
    )  # fmt: skip


def _check_times(records: Records, latest_ms: int) -> None:
    """Refuse what producers set that is no time in milliseconds: nobody has checked it."""
    millis = records.timestamps_ms
    assert millis is not None
    if np.maximum.reduce(millis) <= latest_ms and np.minimum.reduce(millis) >= -_LARGEST_MS:
        return
    wrong = (millis > latest_ms) | (millis < -_LARGEST_MS)
    place = int(wrong.argmax())
    name, facts = records.where(place)
    limit, instead = "that Spark can show", "without the column timestamp"
    if latest_ms == LATEST_MS:
        limit, instead = "of a year up to 9999, as event time has to be", "with another event time"
    raise BadDataError(
        f"The timestamp {name} is {millis[place]}, which is no time in milliseconds since 1970-01-01 {limit}. Correct "
        "what its producer sets, or set the topic's message.timestamp.type to LogAppendTime; "
        f"{instead} the record can be read.",
        **facts,
    )


def _of_numbers(numbers: Any, name: str) -> pa.Array:
    """Return what ``pa.array`` and a cast would, for less than what these take where there are few numbers."""
    return pa.Array.from_buffers(_TYPES[name], len(numbers), [None, pa.py_buffer(numbers)], 0)


def _timestamps(records: Records) -> pa.Array:
    assert records.timestamps_ms is not None
    return _of_numbers(1000 * records.timestamps_ms, "timestamp")


_COLUMNS: dict[str, Callable[[Records], pa.Array]] = {
    "key": lambda records: records.keys,
    "value": lambda records: records.values,
    "offset": lambda records: _of_numbers(records.offsets, "offset"),
    "timestamp": _timestamps,
    "timestampType": lambda records: _of_numbers(records.timestamp_types, "timestampType"),
    "headers": lambda records: records.headers.cast(_HEADERS) if records.headers is not None else None,
}
