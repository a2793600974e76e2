"""Makes record batches of messages: the columns of StreamNative's Spark connector.

Never: ask a broker. What a value means is an argument: the topic's schema, or that there is none.

Pulsar's client for Python has no call that returns the fields of many messages at once, so each is asked for its own,
and only for those that a column needs; what the values hold is parsed in bulk. Follows Pulsar's ``Schema`` for how
numbers are written (big endian).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.pulsar.avro import AvroSchema
from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.position import after_message
from headgate.connectors.pulsar.schemas import AvroValues, TopicSchemas
from headgate.errors import BadDataError, OptionError
from headgate.formats.json_values import JsonValues
from headgate.source.event_time import LATEST_MS

_PROPERTIES = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", "UTC")
METADATA: dict[str, pa.DataType] = {
    "__key": pa.binary(),
    "__topic": pa.string(),
    "__messageId": pa.binary(),
    "__publishTime": _TIME,
    "__eventTime": _TIME,
    "__messageProperties": _PROPERTIES,
}
"""The columns that every message has beside its value."""
_BY_LOWER = {name.lower(): name for name in METADATA}

_PRIMITIVES: dict[str, tuple[pa.DataType, str]] = {
    "BOOLEAN": (pa.bool_(), ">i1"),
    "INT8": (pa.int8(), ">i1"),
    "INT16": (pa.int16(), ">i2"),
    "INT32": (pa.int32(), ">i4"),
    "INT64": (pa.int64(), ">i8"),
    "FLOAT": (pa.float32(), ">f4"),
    "DOUBLE": (pa.float64(), ">f8"),
    "DATE": (pa.date32(), ">i8"),
    "TIMESTAMP": (_TIME, ">i8"),
    "INSTANT": (_TIME, ""),
}
_BYTES = ("NONE", "BYTES", "AUTO_CONSUME")
_RECORDS = ("JSON", "AVRO")
_DAY_MS = 86_400_000
_LARGEST = {"date": (2**31 - 1) * _DAY_MS, "timestamp": (2**63 - 1) // 1000}
"""The largest number of milliseconds that a column of this type can have, and minus the smallest."""


def value_fields(schema: Mapping[str, Any] | None, topic: str) -> list[pa.Field]:
    """Return the columns of a topic's values by its schema.

    Parameters
    ----------
    schema
        What the brokers' HTTP API says: ``type`` and ``data``; None: the topic has none.
    topic
        For errors.

    Raises
    ------
    OptionError
        The values cannot be read by this schema.
    """
    kind = "NONE" if schema is None else str(schema["type"])
    if kind in _BYTES:
        return [pa.field("value", pa.binary())]
    if kind == "STRING":
        return [pa.field("value", pa.string())]
    if kind in _PRIMITIVES and _PRIMITIVES[kind][1]:
        return [pa.field("value", _PRIMITIVES[kind][0])]
    if kind in _RECORDS:
        assert schema is not None
        found = AvroSchema(schema["data"], topic).columns(logical=kind == "AVRO")
        for field in found:
            if field.name.lower() in _BY_LOWER:
                raise OptionError(
                    f"{NAME}: the values of {topic} have a field {field.name!r}, and Pulsar's own columns have one of "
                    f"that name. Name those that you need: .schema('value struct<…>, {_BY_LOWER[field.name.lower()]} "
                    "…') has the fields of the values in one column.",
                    source=NAME, option="schema", column=field.name,
                )  # fmt: skip
        return found
    raise OptionError(
        f"{NAME}: the values of {topic} have a schema of type {kind}, which is not read. Set valueFormat to binary to "
        "have their bytes, and parse these.",
        source=NAME, option="valueFormat", value="schema",
    )  # fmt: skip


def schema_of(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return all columns of a read whose values have these."""
    return pa.schema([*fields, *METADATA.items()])


def time_of(column: str | None) -> Callable[[Any], int | None] | None:
    """Return what returns a column of a message that is a time, in milliseconds; None: the column is not Pulsar's."""
    return None if column is None else _TIMES.get(column.lower())


class PulsarColumns:
    """The columns of a read; one instance makes many batches, on one thread.

    Parameters
    ----------
    schema
        The columns to return: of `METADATA`, whose names are the same in any case as Spark's are, and ``value`` or
        fields of values that are records; a ``value`` that is a struct, all fields of one.
    options
        Parsed options of headgate.pulsar.
    time_zone
        The session's time zone, for timestamps in values that name none; None: UTC.
    schemas
        The topics' schemas, asked where ``valueFormat`` is ``schema``.

    Raises
    ------
    OptionError
        A column has a type that it cannot have, or an option of the values cannot be used.
    """

    def __init__(
        self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str | None, schemas: TopicSchemas
    ) -> None:
        self._schema = schema
        self._own = [_BY_LOWER.get(field.name.lower()) for field in schema]
        for field, own in zip(schema, self._own, strict=True):
            wanted = None if own is None else METADATA[own]
            if wanted is not None and field.type != wanted:
                raise OptionError(
                    f"{NAME}: the column {field.name} is {field.type}, but it can only be {wanted}: give it that type, "
                    "and cast the column afterwards.",
                    option="schema", value=str(field.type), column=field.name,
                )  # fmt: skip
        self._fields = [field for field, own in zip(schema, self._own, strict=True) if own is None]
        self._format = value_format(options)
        self._schemas = schemas
        self._options, self._time_zone = options, time_zone or "UTC"
        self._decoders: dict[str, JsonValues | AvroValues | None] = {}
        self._whole: set[str] = set()  # topics whose records are one column
        if self._format == "binary":
            for field in self._fields:
                if not _is_value(field) or field.type != pa.binary():
                    raise self._no_column(field)
        if self._format == "json" and self._fields:
            self._json()  # whether its options can be used

    def rows(
        self, topic: str, messages: Sequence[Any], of: str
    ) -> tuple[pa.RecordBatch | None, pa.BooleanArray | None]:
        """Return the rows of messages of one topic, and which have one; None: all. May ask for its schema.

        Parameters
        ----------
        topic, messages
            A topic, or one partition of it, and messages of it.
        of
            The whole topic.

        Raises
        ------
        BadDataError
            A value is not what the schema says; facts ``path`` and ``message_id``.
        """
        if not messages:
            return None, None
        kept: pa.BooleanArray | None = None
        parsed: list[pa.Array] = []
        where = _Where(topic, messages)
        self.look_at(of)
        decoder = self._decoders[of]
        if isinstance(decoder, JsonValues):
            batch, kept = decoder.decode(_lines(messages), where)
            parsed = batch.columns
            if kept is not None and not kept.true_count:
                return None, kept
        elif decoder is not None:
            parsed = decoder.decode(messages, where).columns
        elif self._fields:
            parsed = [_values(messages, self._fields[0].type, where)]
        if of in self._whole:
            parsed = [_struct(parsed, self._fields[0].type, messages, kept)]
        values = iter(parsed)
        arrays = []
        for own in self._own:
            if own is None:
                arrays.append(next(values))
            else:
                array = _COLUMNS[own](topic, messages)
                arrays.append(array if kept is None else array.filter(kept))
        if not arrays:
            count = len(messages) if kept is None else kept.true_count
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([]))), kept
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), kept

    def look_at(self, topic: str) -> None:
        """Find out how a topic's values are decoded. Blocks; any thread may call it before there are messages.

        Raises
        ------
        OptionError
            They have not the columns that are asked for.
        SourceUnavailableError
            The brokers do not answer.
        """
        if topic not in self._decoders:
            self._decoders[topic] = self._decoder(topic)

    def _decoder(self, topic: str) -> JsonValues | AvroValues | None:
        """Return what decodes the values of a topic; None: they are the column ``value``, or are not wanted."""
        if not self._fields or self._format == "binary":
            return None
        if self._format == "json":
            return self._json()
        is_value = len(self._fields) == 1 and _is_value(self._fields[0])
        schema = self._schemas.find(topic)
        if schema is not None and schema["type"] in _RECORDS and not (is_value and self._fields[0].type == pa.binary()):
            fields = self._fields
            if is_value and pa.types.is_struct(fields[0].type):
                names = AvroSchema(schema["data"], topic).names
                if fields[0].name.lower() not in (name.lower() for name in names):
                    self._whole.add(topic)
                    fields = list(fields[0].type)
            if schema["type"] == "JSON":
                return self._json(fields)
            return AvroValues(pa.schema(fields), self._schemas, topic)
        for field in self._fields:
            if not _is_value(field):
                raise self._no_column(field)
        return None

    def _json(self, fields: list[pa.Field] | None = None) -> JsonValues:
        return JsonValues(pa.schema(fields or self._fields), self._options, self._time_zone)

    def _no_column(self, field: pa.Field) -> OptionError:
        return OptionError(
            f"{NAME} has no column {field.name!r} of type {field.type}: values are not JSON or Avro by their topic's "
            f"schema. There are: value, {', '.join(METADATA)}. Set valueFormat to json if the values are JSON.",
            option="schema", value=str(field.type), column=field.name,
        )  # fmt: skip


def value_format(options: Mapping[str, Any]) -> str:
    """Return ``schema``, ``binary`` or ``json``."""
    return "binary" if options["allowDifferentTopicSchemas"] else str(options["valueFormat"])


def _is_value(field: pa.Field) -> bool:
    return str(field.name).lower() == "value"


def _struct(
    arrays: list[pa.Array], kind: pa.StructType, messages: Sequence[Any], kept: pa.BooleanArray | None
) -> pa.StructArray:
    """Return the fields of records as one column: null where a message has no value."""
    without = pa.array([not message.data() and message.has_null_value() for message in messages], pa.bool_())
    mask = without if kept is None else without.filter(kept)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


class _Where:
    """Says where a value is from."""

    def __init__(self, topic: str, messages: Sequence[Any]) -> None:
        self._topic = topic
        self._messages = messages

    def __call__(self, place: int) -> tuple[str, dict[str, Any]]:
        position = str(after_message(self._messages[place].message_id().serialize()))
        return f"of the message {position} of {self._topic}", {"path": self._topic, "message_id": position}


def _lines(messages: Sequence[Any]) -> pa.BinaryArray:
    """Return the values, each with a line break after it."""
    values = [message.data() for message in messages]
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) + 1 for value in values], out=ends[1:])
    values.append(b"")
    text = b"\n".join(values)
    nulls = [place for place, message in enumerate(messages) if not values[place] and message.has_null_value()]
    valid = None
    if nulls:
        bits = np.ones(len(messages), np.bool_)
        bits[nulls] = False
        valid = pa.py_buffer(np.packbits(bits, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(messages), [valid, pa.py_buffer(ends), pa.py_buffer(text)], len(nulls)
    )


def _values(messages: Sequence[Any], kind: pa.DataType, where: _Where) -> pa.Array:
    values: list[bytes | None] = [message.data() for message in messages]
    for place, value in enumerate(values):
        if not value and messages[place].has_null_value():
            values[place] = None
    if pa.types.is_binary(kind):
        return pa.array(values, pa.binary())
    if pa.types.is_string(kind):
        return _text(values, where)
    code = next((code for of, code in _PRIMITIVES.values() if of == kind and code), None)
    if code is None:
        raise OptionError(
            f"{NAME}: the column value cannot be {kind}. It is what the topic's schema says; leave .schema() out.",
            option="schema", value=str(kind), column="value",
        )  # fmt: skip
    return _numbers(values, kind, np.dtype(code), where)


def _text(values: Sequence[bytes | None], where: _Where) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for place, value in enumerate(values):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as error:
                name, facts = where(place)
                raise BadDataError(f"The value {name} is not text in UTF-8: {value!r:.80}.", **facts) from error
        raise


def _numbers(values: Sequence[bytes | None], kind: pa.DataType, code: np.dtype[Any], where: _Where) -> pa.Array:
    for place, value in enumerate(values):
        if value is not None and len(value) != code.itemsize:
            name, facts = where(place)
            raise BadDataError(f"The value {name} has {len(value)} bytes, not {code.itemsize}: {value!r:.80}.", **facts)
    zero = bytes(code.itemsize)
    found = np.frombuffer(b"".join([value or zero for value in values]), code).astype(code.newbyteorder("="))
    nulls = np.array([value is None for value in values])
    if pa.types.is_boolean(kind):
        return pa.array(found != 0, mask=nulls)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        most = _LARGEST["date" if pa.types.is_date(kind) else "timestamp"]
        for wrong in np.flatnonzero((found > most) | (found < -most)):
            name, facts = where(int(wrong))
            raise BadDataError(f"The value {name} is {found[wrong]} ms since 1970-01-01: no {kind} has that.", **facts)
    if pa.types.is_date(kind):
        return pa.array((found // _DAY_MS).astype(np.int32), pa.int32(), mask=nulls).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(found * 1000, pa.int64(), mask=nulls).cast(kind)
    return pa.array(found, kind, mask=nulls)


def event_time_ms(message: Any) -> int | None:
    """Return the event time of a message, in milliseconds; None: it has none.

    Raises
    ------
    BadDataError
        It is not in milliseconds: it would move a watermark beyond all others.
    """
    return _checked_ms(message, "__eventTime", message.event_timestamp()) or None


def is_time(millis: int) -> bool:
    """Return whether a time may be one in milliseconds: what producers set is not checked by anybody."""
    return millis <= LATEST_MS


def _publish_time_ms(message: Any) -> int:
    return _checked_ms(message, "__publishTime", message.publish_timestamp())


def _checked_ms(message: Any, column: str, millis: int) -> int:
    if is_time(millis):
        return millis
    place, topic = str(after_message(message.message_id().serialize())), message.topic_name()
    raise BadDataError(
        f"{NAME}: the {column} of the message {place} of {topic} is {millis}, which is not a time in milliseconds "
        "since 1970-01-01 (of a year up to 9999). Correct what its producer sets; without this column (give the others "
        "with .schema(…)) the message can be read.",
        path=topic, message_id=place, column=column,
    )  # fmt: skip


def _times(messages: Sequence[Any], millis: list[int], of: Callable[[Any], int | None]) -> pa.Array:
    if not is_time(max(millis)):
        for message in messages:
            of(message)
    found = np.fromiter(millis, np.int64, len(millis))
    return pa.array(found * 1000, pa.int64(), mask=found == 0 if of is event_time_ms else None).cast(_TIME)


_TIMES: dict[str, Callable[[Any], int | None]] = {"__eventtime": event_time_ms, "__publishtime": _publish_time_ms}

_COLUMNS: dict[str, Callable[[str, Sequence[Any]], pa.Array]] = {
    "__key": lambda _, messages: pa.array(
        [key.encode() if (key := each.partition_key()) else None for each in messages], pa.binary()
    ),
    "__topic": lambda topic, messages: pa.repeat(pa.scalar(topic), len(messages)),
    "__messageId": lambda _, messages: pa.array([each.message_id().serialize() for each in messages], pa.binary()),
    "__publishTime": lambda _, messages: _times(
        messages, [each.publish_timestamp() for each in messages], _publish_time_ms
    ),
    "__eventTime": lambda _, messages: _times(messages, [each.event_timestamp() for each in messages], event_time_ms),
    "__messageProperties": lambda _, messages: pa.array(
        [list(each.properties().items()) for each in messages], _PROPERTIES
    ),
}
