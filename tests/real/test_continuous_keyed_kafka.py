"""A windowed aggregation of a real broker's JSON records, skewed and out of step, equals Spark's through a kill."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from local.topics import Message, create_topic, produce
from tests.real.running_queries import is_running, stop_all, wait_until, written

if TYPE_CHECKING:
    from local.kafka import Broker

BEGIN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
COUNTS = (3000, 300, 100)
"""Rows of each partition; all of them are of the same two minutes."""


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def rides(partition: int) -> list[dict[str, Any]]:
    """Return the rows of a partition, out of order by less than a second."""
    dice = np.random.default_rng(partition)
    many = COUNTS[partition]
    seconds = np.arange(many) * 120 / many + dice.random(many)
    keys = (5 * dice.random(many) ** 2).astype(int)
    return [
        {"n": n, "k": f"key {k}", "at": (BEGIN + dt.timedelta(milliseconds=int(at * 1000))).isoformat()}
        for n, (at, k) in enumerate(zip(seconds.tolist(), keys.tolist()))
    ]


def test_json_windows_equal_spark(spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path) -> None:
    """One partition has most rows, and each is read at its own pace: none is late, and each counts once."""
    create_topic(kafka.plain, topic_name, len(COUNTS))
    rows = [rides(partition) for partition in range(len(COUNTS))]

    def send(half: int) -> None:
        for partition, own in enumerate(rows):
            middle = len(own) // (partition + 2)
            part = own[middle:] if half else own[:middle]
            produce(kafka.plain, topic_name, [Message(json.dumps(row).encode(), partition=partition) for row in part])

    def counted(rows: DataFrame) -> DataFrame:
        by = F.window("at", "10 seconds", "5 seconds").alias("window")
        return rows.groupBy(by, "k").agg(F.count("*").alias("rows"), F.sum("n").alias("total"))

    send(0)
    records = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", kafka.plain).option("subscribe", topic_name)
        .option("startingOffsets", "earliest").option("valueFormat", "json")
        .schema("n long, k string, at timestamp").load()
    )  # fmt: skip
    writer = written(counted(records.withWatermark("at", "1 second")), "parquet", interval="200 milliseconds")
    query = writer.option("checkpointLocation", tmp_path / "checkpoints").start(str(tmp_path / "out"))
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    before = query.status["subtasks"][0]["execution"], query.status["slots"][1]["pid"]
    os.kill(before[1], signal.SIGKILL)
    send(1)
    wait_until(lambda: is_running(query) and query.status["slots"][1]["pid"] not in (0, before[1]), query)
    ends = {f"{topic_name}-{partition}": many for partition, many in enumerate(COUNTS)}
    wait_until(lambda: query.lastProgress and json.loads(query.lastProgress.sources[0].endOffset) == ends, query)
    query.stop(drain=True)
    assert query.lastProgress is not None
    assert query.lastProgress["headgate"]["lateRows"] == 0

    sent = pa.Table.from_pylist([{**row, "at": dt.datetime.fromisoformat(row["at"])} for own in rows for row in own])
    expected = counted(spark.createDataFrame(sent))
    found = spark.read.parquet(str(tmp_path / "out")).select(expected.columns)
    assert found.collect()
    assert sorted(found.collect()) == sorted(expected.collect())
