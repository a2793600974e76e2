"""The sides of the bench latency: programs from Kafka to Kafka, and who runs them.

Never: give two sides that are compared different programs, or different settings of what both have.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import headgate
from bench.frame import CORES
from bench.latency_load import WINDOW_NS, BareLoop
from local.kafka import Broker

CLIENT_PROFILE: Mapping[str, Any] = {"linger.ms": 0, "max.in.flight.requests.per.connection": 1}
"""What a client of Kafka's is set to where milliseconds matter more than throughput."""
LATENCY_PROFILE: Mapping[str, Any] = {"profile": "latency"}
"""The options of Headgate's sink for it."""
KEYS = 100
TABLE_ROWS = 5_000
_STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}  # fmt: skip
"""Spark's transformWithState has no other state store."""


class RunningCount(StatefulProcessor):
    """Gives each row the number of rows that its key has had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a key."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Count rows, and give each back."""
        (count,) = self._count.get() or (0,)
        for row in rows:
            count += 1
            yield Row(value=f"{row.stamp} {count}")
        self._count.update((count,))

    def close(self) -> None:
        """Nothing is open."""


def _stamps(rows: DataFrame) -> DataFrame:
    """Return records' times as numbers, with a key."""
    return rows.select(F.col("value").cast("string").cast("long").alias("stamp")).withColumn(
        "key", F.expr(f"stamp % {KEYS}")
    )


def _python(rows: DataFrame) -> DataFrame:
    return rows.select(F.udf(lambda value: value, "binary")("value").alias("value"))


def _count(rows: DataFrame) -> DataFrame:
    newest = _stamps(rows).groupBy("key").agg(F.count("*").alias("n"), F.max("stamp").alias("s"))
    return newest.select(F.col("s").cast("string").alias("value"))


def _windows(rows: DataFrame) -> DataFrame:
    """Return a row for each key of each window: the window's end, and how many records there were."""
    timed = _stamps(rows).withColumn("at", F.expr("timestamp_micros(stamp div 1000)"))
    counts = (
        timed.withWatermark("at", "0 seconds")
        .groupBy(F.window("at", f"{WINDOW_NS // 1_000_000} milliseconds"), "key")
        .agg(F.count("*").alias("n"))
    )
    return counts.selectExpr("concat(1000 * unix_micros(window.end), ' ', n) AS value")


def _stateful(rows: DataFrame) -> DataFrame:
    return _stamps(rows).groupBy("key").transformWithState(RunningCount(), "value string", "update", "None")


def _joined(rows: DataFrame) -> DataFrame:
    """Return records with the name that a table has for them."""
    table = rows.sparkSession.range(TABLE_ROWS).selectExpr("id AS number", "concat('name of ', id) AS name")
    numbered = _stamps(rows).selectExpr("stamp", f"stamp % {TABLE_ROWS} AS number")
    return numbered.join(F.broadcast(table), "number").selectExpr("concat(stamp, ' ', name) AS value")


@dataclass(frozen=True)
class Program:
    """What is done with the values of records, which are texts of times; each row begins with a time again.

    Parameters
    ----------
    of
        Makes it of the records.
    output_mode
        None: as each engine has it, for rows that come once.
    rows
        How many come out in a second at least, given how many come in.
    row_for_row
        Whether one row comes out for each that comes in.
    windows
        Whether the times are ends of windows.
    settings
        Those of Spark without which it does not run there.
    """

    of: Callable[[DataFrame], DataFrame]
    output_mode: str | None = None
    rows: Callable[[int], float] = lambda rate: 0.9 * rate
    row_for_row: bool = True
    windows: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


COPY = Program(lambda rows: rows)
PYTHON = Program(_python)
COUNT = Program(_count, "update", lambda rate: 0.01 * rate, row_for_row=False)
WINDOWS = Program(_windows, "append", lambda _: 30 * 1e9 / WINDOW_NS, row_for_row=False, windows=True)
STATEFUL = Program(_stateful, "update", settings=_STATE_STORE)
JOINED = Program(_joined)
EXCHANGE = Program(lambda rows: rows.repartition("value"))  # every record's subtask is that of its own hash


@dataclass(frozen=True)
class Side:
    """Who runs a program.

    Parameters
    ----------
    name
        As in the table and in the JSON.
    engine
        ``headgate``, ``spark`` (micro-batches), ``real-time`` (Spark's real-time mode) or ``loop``, the bare loop.
    guarantee, interval, parallelism
        Of Headgate.
    options
        More options of the sink; of the bare loop's producer.
    """

    name: str
    engine: str = "headgate"
    program: Program = COPY
    guarantee: str = "at-least-once"
    interval: str = "1 second"
    parallelism: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


AT_LEAST_ONCE = Side("at-least-once")
AT_LEAST_ONCE_PROFILE = replace(AT_LEAST_ONCE, name="at-least-once-profile", options=LATENCY_PROFILE)
EXACTLY_ONCE = Side("exactly-once", guarantee="exactly-once")
EXACTLY_ONCE_100MS = replace(EXACTLY_ONCE, name="exactly-once-100ms", interval="100 milliseconds")
MICRO_BATCHES, REAL_TIME = Side("spark", "spark"), Side("real-time", "real-time")
FLOOR = Side("floor", "loop")
FLOOR_PROFILE = Side("floor-profile", "loop", options=CLIENT_PROFILE)
COALESCED = Side("exchange", program=EXCHANGE, parallelism=CORES)
AT_ONCE = replace(COALESCED, name="exchange-at-once", options={"exchange.buffer-timeout": "0 seconds"})
"""The last two are of the bench keyed."""


def start(spark: SparkSession, broker: Broker, topics: tuple[str, str], side: Side, folder: str) -> Any:
    """Start the query of one side."""
    if side.engine == "loop":
        return BareLoop(broker, topics, side.options)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots do not have this module
    ours, program = side.engine == "headgate", side.program
    stream = (
        spark.readStream.format("headgate.kafka" if ours else "kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topics[0])
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = program.of(stream.select("value"))
    written: Any = headgate.continuous(rows, parallelism=side.parallelism) if ours else rows
    writer = (
        written.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("topic", topics[1])
        .option("checkpointLocation", folder)
    )  # fmt: skip
    for name, value in side.options.items():
        writer = writer.option(name, value)
    mode = program.output_mode or ("update" if side.engine == "real-time" else None)  # it has no other mode
    if mode is not None:
        writer = writer.outputMode(mode)
    if side.engine == "real-time":
        writer = writer.trigger(realTime="5 minutes")
    elif ours:
        writer = writer.option("guarantee", side.guarantee).trigger(continuous=side.interval)
    with _settings(spark, {} if ours else program.settings):
        return writer.start()


@contextlib.contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings of a session while a query starts, which copies them."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
