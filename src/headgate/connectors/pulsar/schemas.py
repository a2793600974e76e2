"""What topics' schemas say of values, and the decoding of those in Avro.

Never: ask for a schema twice, or decode what is not Avro.

Avro is decoded by fastavro, one message at a time: it has no call for many. Each message is read by the schema that its
producer wrote it with, whose version it names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import NAME
from headgate.errors import BadDataError, OptionError
from headgate.formats.json_values import Where

_FIELDS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_TIME = pa.timestamp("us", "UTC")
_LOGICAL: dict[str, pa.DataType] = {
    "timestamp-millis": _TIME,
    "timestamp-micros": _TIME,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
    "uuid": pa.string(),
}


class TopicSchemas:
    """The schemas of topics, each asked for once. May be used on one thread.

    Parameters
    ----------
    admin
        Knows them.
    """

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin
        self._known: dict[tuple[str, int | None], dict[str, Any] | None] = {}

    def kind(self, topic: str) -> str:
        """Return the type of a topic's newest schema, as Pulsar names it; ``NONE``: it has none. Blocks."""
        found = self.find(topic)
        return "NONE" if found is None else str(found["type"])

    def find(self, topic: str, version: int | None = None) -> dict[str, Any] | None:
        """Return a schema of a topic: ``type`` and ``data``; the newest without a version. Blocks.

        Raises
        ------
        SourceUnavailableError
            The brokers do not answer.
        """
        if (topic, version) not in self._known:
            self._known[topic, version] = self._admin.schema(topic, version)
        return self._known[topic, version]


class AvroValues:
    """Decodes the values of a topic.

    Parameters
    ----------
    schema
        The columns to return; those that a value does not have are null.
    schemas, topic
        Where the writers' schemas come from.
    """

    def __init__(self, schema: pa.Schema, schemas: TopicSchemas, topic: str) -> None:
        self._schema = schema
        self._schemas = schemas
        self._topic = topic
        self._parsed: dict[int, Any] = {}

    def decode(self, messages: Sequence[Any], where: Where) -> pa.RecordBatch:
        """Return a row for each message; one without a value has nulls.

        Raises
        ------
        BadDataError
            A value is not what its schema says, or has another type than the column; facts as of ``where``.
        """
        from fastavro import schemaless_reader

        rows: list[Any] = []
        for place, message in enumerate(messages):
            data = message.data()
            if not data and message.has_null_value():
                rows.append({})
                continue
            writer = self._writer(message.int_schema_version())
            try:
                rows.append(schemaless_reader(io.BytesIO(data), writer, None))
            except Exception as error:  # whatever bytes that are not Avro lead to
                name, facts = where(place)
                raise BadDataError(f"The value {name} is not what its Avro schema says: {error!r}.", **facts) from error
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            name, facts = where(0)
            raise BadDataError(
                f"A value {name} or after it does not fit its column: {error}. The topic's schema has changed: give "
                "the columns another type with .schema(…).",
                **facts,
            ) from error

    def _writer(self, version: int) -> Any:
        if version not in self._parsed:
            from fastavro import parse_schema

            found = self._schemas.find(self._topic, version) if version >= 0 else None
            found = found or self._schemas.find(self._topic)
            assert found is not None, self._topic
            self._parsed[version] = parse_schema(json.loads(found["data"]))
        return self._parsed[version]


def record_fields(data: str, topic: str, *, avro: bool) -> list[pa.Field]:
    """Return the columns of a record that an Avro schema describes: JSON schemas of Pulsar are written so, too.

    Raises
    ------
    OptionError
        It has a type that is not read, or describes no record.
    """
    described = json.loads(data)
    if not isinstance(described, dict) or described.get("type") != "record":
        raise _not_read(described, topic)
    return list(_arrow_type(described, topic, {}, _LOGICAL if avro else {}))


def _arrow_type(
    described: Any, topic: str, named: dict[str, pa.DataType], logical: dict[str, pa.DataType]
) -> pa.DataType:
    """Return the type that an Avro schema describes; logical ones are numbers and texts in JSON."""

    def inner(of: Any) -> pa.DataType:
        return _arrow_type(of, topic, named, logical)

    if isinstance(described, list):  # a union
        others = [each for each in described if each != "null"]
        if len(others) == 1:
            return inner(others[0])
    elif isinstance(described, str):
        found = _FIELDS.get(described) or named.get(described)
        if found is not None:
            return found
    elif described.get("logicalType") in logical:
        return logical[described["logicalType"]]
    elif described.get("logicalType") == "decimal" and logical:
        return pa.decimal128(described["precision"], described.get("scale", 0))
    else:
        match described.get("type"):
            case "record":
                named[described["name"]] = pa.struct(
                    [(each["name"], inner(each["type"])) for each in described["fields"]]
                )
                return named[described["name"]]
            case "array":
                return pa.list_(pa.field("element", inner(described["items"])))
            case "map":
                return pa.map_(pa.string(), inner(described["values"]))
            case "enum" | "fixed" as kind:
                named[described["name"]] = pa.string() if kind == "enum" else pa.binary()
                return named[described["name"]]
            case other if other is not None and other != described:
                return inner(other)
    raise _not_read(described, topic)


def _not_read(described: Any, topic: str) -> OptionError:
    return OptionError(
        f"{NAME}: the schema of {topic} has a type that is not read: {described!r:.80}. Set valueFormat to binary to "
        "have the values' bytes, or, if they are JSON, to json and give the fields that you need.",
        source=NAME, option="valueFormat", value="schema",
    )  # fmt: skip
