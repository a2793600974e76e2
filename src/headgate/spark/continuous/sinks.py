"""Finds the sink for the name that a user gave to ``format``.

Never: import a sink that is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.errors import OptionError
from headgate.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_FORMATS = ("parquet", "json", "csv")
BUILT_IN = ("console", "csv", "headgate.kafka", "headgate.pulsar", "json", "kafka", "memory", "noop", "parquet")


def make_sink(
    name: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    *,
    spark: SparkSession | None = None,
    partition_by: Sequence[str] = (),
    time_zone: str = "UTC",
    case_sensitive: bool = False,
) -> Sink:
    """Return the sink of a query. On the driver.

    Parameters
    ----------
    name, options, partition_by
        What the user gave to ``format``, ``option`` and ``partitionBy``.
    schema
        The columns that are written.
    spark
        The session whose registered Python data sources may be written to; None: only built-in sinks are known.
    time_zone
        In which the names of folders spell times.
    case_sensitive
        Whether columns whose names differ only in case are two.

    Raises
    ------
    OptionError
        There is no such sink, an option is unknown or has a bad value, or a column cannot be written or partition rows.
    """
    if partition_by and name.lower() not in FILE_FORMATS:
        raise OptionError(f"'{name}' does not support partitioning.", option="partitionBy", value=list(partition_by))
    match name.lower():
        case "parquet" | "json" | "csv" as file_format:
            from headgate.connectors.files.sink.sink import FilesSink

            return FilesSink(file_format, options, schema, partition_by, time_zone, case_sensitive)
        case "kafka" | "headgate.kafka":
            from headgate.connectors.kafka.sink.sink import make_kafka_sink

            return make_kafka_sink(options, schema)
        case "headgate.pulsar":
            from headgate.connectors.pulsar.sink.sink import make_pulsar_sink

            return make_pulsar_sink(options, schema)
        case "console" | "memory" | "noop" as debugging:
            return _debugging_sink(debugging, options, schema)
    if spark is not None:
        from headgate.spark.continuous.python_data_source import make_python_sink

        return make_python_sink(name, options, schema, spark)
    raise OptionError(
        f"There is no sink {name!r}. Built in are {', '.join(BUILT_IN)}; others are Python data sources that are "
        "registered with Spark.",
        option="format", value=name,
    )  # fmt: skip


def _debugging_sink(name: str, options: Mapping[str, str], schema: pa.Schema) -> Sink:
    match name:
        case "console":
            from headgate.connectors.debug.console import ConsoleSink

            return ConsoleSink(options)
        case "memory":
            from headgate.connectors.debug.memory import MemorySink

            return MemorySink(options, schema)
        case _:
            from headgate.connectors.debug.noop import NoopSink

            return NoopSink(options)
