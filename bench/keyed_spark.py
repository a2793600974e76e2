"""Structured Streaming as the peer of ``./run bench keyed``: the same windows, with either of its state stores.

Never: count what it does before its first batch is over, or the batch after the last row, which only emits.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

from bench.frame import CACHE
from bench.keyed_rows import BEGIN_MS, ROW_US, Answer, check, key_of, over_us
from local.kafka import Broker

_STATE = "org.apache.spark.sql.execution.streaming.state"
STORES = {"hdfs": f"{_STATE}.HDFSBackedStateStoreProvider", "rocksdb": f"{_STATE}.RocksDBStateStoreProvider"}
PATIENCE_S = 600


def generated(spark: SparkSession, rows: int, batch_rows: int, store: str, *, skewed: bool = False) -> float:
    """Return rows/s over rows that Spark's ``rate-micro-batch`` source counts."""
    if rows % batch_rows:
        raise SystemExit(f"{rows:,} rows are not a multiple of {batch_rows:,}")
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows).option("numPartitions", 2).load()
        .selectExpr(f"{key_of(skewed=skewed)} AS key", "value AS v", f"timestamp_micros(value * {ROW_US}) AS at")
    )  # fmt: skip
    # The generator has no end. The batch after the last row brings the watermark that closes the last window in the
    # next one.
    return _rate(spark, _windows(frame, over_us(rows)), rows, store, until=rows + 2 * batch_rows, skewed=skewed)


def kafka_json(spark: SparkSession, broker: Broker, topic: str, rows: int, batch_rows: int, store: str) -> float:
    """Return rows/s over records of a topic."""
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.plain).option("subscribe", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", batch_rows).load()
        .select(F.from_json(F.col("value").cast("string"), "key bigint, v bigint, at timestamp").alias("row"))
        .select("row.*")
    )  # fmt: skip
    return _rate(spark, _windows(frame, BEGIN_MS * 1000 + over_us(rows)), rows, store, until=None)


def _windows(frame: DataFrame, over: int) -> DataFrame:
    """Return the windows of rows; those that are over by a time, in microseconds, are counted as they are emitted."""
    windows = (
        frame.withWatermark("at", "0 seconds").groupBy(F.window("at", "10 seconds"), "key")
        .agg(F.sum("v").alias("total"), F.count(F.lit(1)).alias("n"))
    )  # fmt: skip
    in_time = windows.where(F.col("window.end") <= F.timestamp_micros(F.lit(over)))
    return in_time.observe("answer", F.count(F.lit(1)).alias("groups"), F.sum("total").alias("total"))


def _rate(
    spark: SparkSession, windows: DataFrame, rows: int, store: str, *, until: int | None, skewed: bool = False
) -> float:
    """Return rows/s; the query ends on its own, or is stopped when it has read ``until`` rows."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[store])
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
        writer: DataStreamWriter = windows.writeStream.format("noop").option("checkpointLocation", folder)
        query = (writer if until is not None else writer.trigger(availableNow=True)).start()
        deadline = time.monotonic() + PATIENCE_S
        while query.isActive and time.monotonic() < deadline and (until is None or sum(_rows_in(query)) < until):
            time.sleep(0.05)
        query.stop()
        if query.exception() is not None:
            raise SystemExit(f"structured streaming failed: {query.exception()}")
        progress = query.recentProgress
    answers = [each.observedMetrics["answer"] for each in progress if "answer" in each.observedMetrics]
    found = Answer(sum(each.groups or 0 for each in answers), sum(each.total or 0 for each in answers))
    check(f"structured streaming ({store})", rows, found, skewed=skewed)
    read, seconds, done = 0, 0.0, 0
    for number, each in enumerate(progress):
        if each.numInputRows and done < rows:
            done += each.numInputRows
            if number:  # the first batch plans and compiles
                read += each.numInputRows
                seconds += each.durationMs["triggerExecution"] / 1000
    return read / seconds


def _rows_in(query: Any) -> list[int]:
    return [each.numInputRows for each in query.recentProgress]
