"""The sink's settings, checked: its options, and which of the rows' columns are Kafka's.

Never: import pyspark, or connect to anything.

Follows Spark 4.2, ``KafkaWriter.validateQuery``, for columns and their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.client_limits import check_producer
from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.sink.columns import find_columns, is_text, is_text_or_bytes
from headgate.source.options import Options, OptionSpec, boolean, choice, text

NAME = "headgate.kafka"

SINK_OPTION_SPECS: tuple[OptionSpec, ...] = (
    *(spec for spec in OPTION_SPECS if spec.name.lower().startswith("kafka.")),
    OptionSpec("topic", text, None, "the topic of all rows; wins over the column 'topic'"),
    OptionSpec(
        "guarantee", choice("at-least-once", "exactly-once"), "at-least-once",
        "whether a streaming query's retries may repeat rows",
    ),
    OptionSpec(
        "profile", choice("throughput", "latency"), "throughput",
        "what rows are sent for: many a second, or each soon (kafka.linger.ms 0 and one request in flight)",
    ),
    OptionSpec("includeHeaders", boolean, False, "", status="no-op", why="A column 'headers' is always written."),
    OptionSpec("checkpointLocation", text, None, "", status="no-op", why="Spark's own."),
    OptionSpec("queryName", text, None, "", status="no-op", why="Spark's own."),
)  # fmt: skip
"""The options of the sink; ``kafka.*`` are those of the source, for a producer."""


@dataclass(frozen=True)
class RowColumns:
    """Where in a batch the columns are that Kafka knows; others are not written. None: there is no such column."""

    value: int
    key: int | None = None
    topic: int | None = None
    headers: int | None = None
    partition: int | None = None

    @classmethod
    def of(cls, schema: pa.Schema, topic: str | None) -> RowColumns:
        """Find the columns and check their types as Spark's ``kafka`` sink does. As `find_columns`."""
        return cls(**find_columns(NAME, schema, _COLUMN_TYPES, topic=topic, topic_column="topic"))


def _is_headers(data_type: pa.DataType) -> bool:
    if not pa.types.is_list(data_type) or not pa.types.is_struct(data_type.value_type):
        return False
    fields = {field.name: field.type for field in data_type.value_type}
    return list(fields) == ["key", "value"] and is_text(fields["key"]) and is_text_or_bytes(fields["value"])


_COLUMN_TYPES = {
    "key": (is_text_or_bytes, "a string or binary"),
    "value": (is_text_or_bytes, "a string or binary"),
    "topic": (is_text, "a string"),
    "headers": (_is_headers, "an array<struct<key: string, value: binary>>"),
    "partition": (pa.types.is_int32, "an int"),
}


@dataclass(frozen=True)
class KafkaSink:
    """What to write and where to, checked; it travels to the tasks.

    Parameters
    ----------
    client
        The brokers and how to talk to them.
    columns
        Where the records' parts are in a batch.
    topic
        The topic of all rows; None: the rows name theirs.
    exactly_once
        Whether epochs are written by transactions.
    low_latency
        Whether rows are sent in smaller requests so that each is sent soon.
    """

    client: ClientConfig
    columns: RowColumns
    topic: str | None
    exactly_once: bool
    low_latency: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, str], schema: pa.Schema) -> KafkaSink:
        """Validate the options and the columns.

        Raises
        ------
        OptionError
            An option is unknown or has a bad value; a column is missing or has the wrong type.
        """
        options = Options.parse(NAME, SINK_OPTION_SPECS, raw)
        client = ClientConfig.of(options)
        exactly_once = options["guarantee"] == "exactly-once"
        if "transactional.id" in client.producer():
            raise options.error(
                "kafka.transactional.id", "cannot be set: with guarantee exactly-once each task has its own."
            )
        check_producer(
            client.producer(), source=NAME, exactly_once=exactly_once, delivery_timeout_ms=client.delivery_timeout_ms
        )
        columns, low_latency = RowColumns.of(schema, options["topic"]), options["profile"] == "latency"
        return cls(client, columns, options["topic"], exactly_once, low_latency)
