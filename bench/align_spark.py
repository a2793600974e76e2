"""Counts rows by window with Structured Streaming: Spark's own Kafka source, and Headgate with and without alignment.

Never: time anything. Queries of several topics run side by side: what a micro-batch reads does not depend on it.

Dropped rows are the topic's rows less those that were counted: in the windows that came out, and in those that are
still open, which the state store has. Spark's own figure, ``numRowsDroppedByWatermark``, is counted after the partial
aggregation: it is kept to be shown beside.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.progress import Progress

from bench.align_data import MAX_DRIFT_MS, WATERMARK_MS, WINDOW_MS, Topic
from bench.frame import CACHE, console
from local.kafka import Broker

Side = Literal["spark", "unaligned", "aligned"]
MOST_OPEN_WINDOWS = -(-(MAX_DRIFT_MS + WATERMARK_MS + WINDOW_MS) // WINDOW_MS)
"""Windows that span drift, watermark and one window, without a key: what the state may hold when aligned."""
_KEPT_PROGRESSES = 100_000


@dataclass(frozen=True)
class Windows:
    """What one query made of its topic.

    Parameters
    ----------
    dropped
        Rows that no window counted.
    reported
        What Spark says of them.
    state_rows
        The most rows in the state store after a micro-batch.
    batches
        How many micro-batches there were.
    """

    dropped: int
    reported: int
    state_rows: int
    batches: int


def count_windows(
    spark: SparkSession, broker: Broker, topics: Sequence[Topic], side: Side, max_offsets: int
) -> dict[str, Windows]:
    """Read topics to their ends, and return what came of it by shape.

    Parameters
    ----------
    side
        Who reads.
    max_offsets
        ``maxOffsetsPerTrigger`` of the sides without alignment, which plans its micro-batches by event time.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _KEPT_PROGRESSES)
    spark.conf.set("spark.sql.shuffle.partitions", 1)  # one state store: there are hundreds of small micro-batches
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
        queries = [_start(spark, broker, each, side, max_offsets, Path(folder) / each.shape) for each in topics]
        _wait(queries, topics, side, max_offsets)
        return {
            topic.shape: _outcome(spark, query, topic, Path(folder) / topic.shape)
            for topic, query in zip(topics, queries)
        }


def _start(spark: SparkSession, broker: Broker, topic: Topic, side: Side, max_offsets: int, folder: Path) -> Any:
    reader = (
        spark.readStream.format("kafka" if side == "spark" else "headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topic.fill(broker))
        .option("startingOffsets", "earliest")
    )
    if side != "spark":
        reader = reader.option("scan.parallelism", 1)  # a micro-batch of a few thousand rows is one task's work
    if side == "aligned":
        reader = (
            reader.option("eventTimeColumn", "timestamp")
            .option("scan.watermark.alignment.group", topic.shape)
            .option("scan.watermark.alignment.max-drift", f"{MAX_DRIFT_MS} ms")
        )
    else:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    return (
        reader.load()
        .withWatermark("timestamp", f"{WATERMARK_MS} milliseconds")
        .groupBy(F.window("timestamp", f"{WINDOW_MS} milliseconds")).count()
        .writeStream.format("memory").queryName(f"windows_{uuid.uuid4().hex}").outputMode("append")
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip


def _wait(queries: Sequence[Any], topics: Sequence[Topic], side: Side, max_offsets: int) -> None:
    """Wait for the ends, and show how far the queries are."""
    with Progress(console=console, transient=True) as progress:
        bars = []
        for topic in topics:
            batches = topic.covers_ms / MAX_DRIFT_MS if side == "aligned" else topic.rows / max_offsets
            bars.append(progress.add_task(f"{topic.shape}, {side}: micro-batches", total=round(batches) + 1))
        while any(query.isActive for query in queries):
            for bar, query in zip(bars, queries):
                last = query.lastProgress
                progress.update(bar, completed=0 if last is None else last["batchId"] + 1)
            time.sleep(0.5)
    for query in queries:
        query.awaitTermination()  # which raises the error that ended it


def _outcome(spark: SparkSession, query: Any, topic: Topic, folder: Path) -> Windows:
    came_out = spark.table(query.name).agg(F.sum("count")).first()[0] or 0
    still_open = spark.read.format("statestore").load(str(folder)).agg(F.sum("value.count")).first()[0] or 0
    operators = [operator for progress in query.recentProgress for operator in progress["stateOperators"]]
    spark.catalog.dropTempView(query.name)
    return Windows(
        dropped=topic.rows - came_out - still_open,
        reported=sum(each["numRowsDroppedByWatermark"] for each in operators),
        state_rows=max(each["numRowsTotal"] for each in operators),
        batches=len(query.recentProgress),
    )
