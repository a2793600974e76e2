"""The settings of Pulsar's sink, checked: its options, and which of the rows' columns are Pulsar's.

Never: import pyspark or pulsar, or connect to anything.

Follows StreamNative's Spark connector for names of options and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.options import OPTION_SPECS, topic
from headgate.sink.columns import find_columns, is_text, is_text_or_bytes
from headgate.source.options import Options, OptionSpec, Parser, choice, integer, text

_SHARED = ("service.url", "admin.url", "pulsar.client.*", "pulsar.admin.*")
_COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_PRODUCER: dict[str, tuple[str, Parser]] = {
    "sendTimeoutMs": ("send_timeout_millis", integer(1)),
    "compressionType": ("compression_type", choice(*_COMPRESSIONS)),
}
"""The properties of ``pulsar.producer.*`` that have an effect: Java's names, and the arguments of Pulsar's client."""
_WITHOUT_EFFECT = ("batchingEnabled", "batchingMaxMessages", "batchingMaxPublishDelayMicros", "maxPendingMessages")

SINK_OPTION_SPECS: tuple[OptionSpec, ...] = (
    *(spec for spec in OPTION_SPECS if spec.name in _SHARED),
    OptionSpec("topic", topic, None, "the topic of all rows; wins over the column '__topic'"),
    OptionSpec(
        "guarantee", choice("at-least-once", "exactly-once"), "at-least-once",
        "whether a streaming query's retries may repeat rows",
    ),
    OptionSpec("pulsar.producer.*", text, None, f"a property of producers: {', '.join(_PRODUCER)}"),
    OptionSpec(
        "pulsar.producer.producerName", text, status="rejected",
        why="the broker lets one producer of a name write to a topic: each task has its own.",
    ),
    OptionSpec("pulsar.producer.initialSequenceId", text, status="rejected", why="see the option 'guarantee'."),
    OptionSpec("pulsar.producer.chunkingEnabled", text, status="rejected", why="a row is a message."),
    OptionSpec("pulsar.producer.blockIfQueueFull", text, None, "", status="no-op", why="It always waits."),
    *(
        OptionSpec(f"pulsar.producer.{name}", text, None, "", status="no-op", why="Rows that are there are batched.")
        for name in _WITHOUT_EFFECT
    ),
    OptionSpec("pulsar.reader.*", text, None, "", status="no-op", why="It belongs to reading."),
    OptionSpec("checkpointLocation", text, None, "where exactly-once stages rows; the query's own"),
    OptionSpec("queryName", text, None, "", status="no-op", why="Spark's own."),
)  # fmt: skip
"""The options of the sink."""


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_int64(data_type))


def _is_properties(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_map(data_type)) and is_text(data_type.key_type) and is_text(data_type.item_type)


_COLUMN_TYPES = {
    "value": (is_text_or_bytes, "a string or binary"),
    "__key": (is_text_or_bytes, "a string or binary"),
    "__topic": (is_text, "a string"),
    "__eventTime": (_is_time, "a timestamp, or milliseconds as a bigint"),
    "__messageProperties": (_is_properties, "a map<string, string>"),
}


@dataclass(frozen=True)
class RowColumns:
    """Where in a batch the columns are that Pulsar knows; others are not written. None: there is no such column."""

    value: int
    key: int | None = None
    topic: int | None = None
    event_time: int | None = None
    properties: int | None = None

    @classmethod
    def of(cls, schema: pa.Schema, topic: str | None) -> RowColumns:
        """Find the columns and check their types. As `find_columns`."""
        found = find_columns(NAME, schema, _COLUMN_TYPES, topic=topic, topic_column="__topic")
        return cls(
            found["value"], found.get("__key"), found.get("__topic"), found.get("__eventTime"),
            found.get("__messageProperties"),
        )  # fmt: skip


@dataclass(frozen=True)
class PulsarSink:
    """What to write and where to, checked; it travels to the tasks.

    Parameters
    ----------
    client
        The brokers and how to talk to them.
    columns
        Where the messages' parts are in a batch.
    topic
        The topic of all rows; None: the rows name theirs.
    exactly_once
        Whether rows are staged, and published so that the brokers know a repetition.
    producer
        The user's properties of producers, as arguments of ``pulsar.Client.create_producer``.
    checkpoint_location
        Where rows are staged.
    """

    client: ClientConfig
    columns: RowColumns
    topic: str | None
    exactly_once: bool
    producer: tuple[tuple[str, Any], ...] = ()
    checkpoint_location: str | None = None

    @classmethod
    def of(cls, raw: Mapping[str, str], schema: pa.Schema) -> PulsarSink:
        """Validate the options and the columns.

        Raises
        ------
        OptionError
            An option is unknown or has a bad value; a column is missing or has the wrong type.
        """
        options = Options.parse(NAME, SINK_OPTION_SPECS, raw)
        client = ClientConfig.of(options)
        exactly_once = options["guarantee"] == "exactly-once"
        if exactly_once and client.admin_url is None:
            raise options.error(
                "admin.url",
                "must be set with guarantee exactly-once: the brokers' HTTP address, like 'http://broker1:8080'. It is "
                "asked whether the topic's brokers drop repeated messages.",
            )
        return cls(
            client, RowColumns.of(schema, options["topic"]), options["topic"], exactly_once,
            _producer(options), options["checkpointLocation"],
        )  # fmt: skip


def _producer(options: Options) -> tuple[tuple[str, Any], ...]:
    by_lower = {name.lower(): name for name in _PRODUCER}
    found = {}
    for given, value in options.matching("pulsar.producer.*").items():
        name = by_lower.get(given.lower())
        if name is None:
            raise options.error(
                f"pulsar.producer.{given}", f"is not one that has an effect. These have: {', '.join(_PRODUCER)}."
            )
        argument, parse = _PRODUCER[name]
        try:
            parsed = parse(value.upper() if name == "compressionType" else value)
        except ValueError as error:
            raise options.error(f"pulsar.producer.{name}", f"is {value!r}; it must be {error}.") from None
        found[argument] = parsed
    return tuple(sorted(found.items()))
