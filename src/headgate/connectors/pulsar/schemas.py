"""What topics' schemas say of values, and the decoding of those in Avro.

Never: ask for a schema twice, or decode what is not Avro.

Avro is decoded by fastavro, one message at a time: it has no call for many. Each message is read by the schema that its
producer wrote it with, whose version it names.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.avro import AvroSchema
from headgate.errors import BadDataError
from headgate.formats.json_values import Where


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
                f"A value {name} or after it does not fit its column: {error}. Give the columns types with .schema(…) "
                "that all schemas of the topic fit.",
                **facts,
            ) from error

    def _writer(self, version: int) -> Any:
        if version not in self._parsed:
            from fastavro import parse_schema

            found = self._schemas.find(self._topic, version) if version >= 0 else None
            found = found or self._schemas.find(self._topic)
            assert found is not None, self._topic
            self._parsed[version] = parse_schema(AvroSchema(found["data"], self._topic).for_columns(self._schema))
        return self._parsed[version]
