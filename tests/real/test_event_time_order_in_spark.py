"""``eventTimeOrder`` through Spark: rows leave each task by event time, from generated data and from files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, monotonically_increasing_id, spark_partition_id

import headgate
from headgate.errors import OptionError
from local.kafka import Broker
from local.topics import Message, create_topic, produce

Rows = dict[int, list[Any]]


def by_task(frame: DataFrame) -> Rows:
    """Return the rows of each task in the order in which it gave them."""
    found: Rows = {}
    numbered = frame.select("*", spark_partition_id().alias("task"), monotonically_increasing_id().alias("number"))
    for row in sorted(numbered.collect(), key=lambda row: row.number):
        found.setdefault(row.task, []).append(row)
    return found


def is_ordered(values: Sequence[Any]) -> bool:
    return all(earlier <= later for earlier, later in pairwise(values))


def test_generated_data(spark: SparkSession) -> None:
    """Five partitions of unequal size in two tasks."""
    reader = (
        spark.read.format("headgate.datagen")
        .option("numRows", 200_000).option("numPartitions", 5).option("partitionSkew", 1).option("rowsPerSecond", 1000)
        .schema("at timestamp, value bigint, text string")
        .option("eventTimeColumn", "AT")
    )  # fmt: skip
    plain, ordered = by_task(reader.load()), by_task(reader.option("eventTimeOrder", True).load())
    assert len(ordered) == len(plain) > 1
    assert not any(is_ordered([row.at for row in rows]) for rows in plain.values()), "the option has something to do"
    assert all(is_ordered([row.at for row in rows]) for rows in ordered.values())
    for task, rows in ordered.items():
        assert sorted(row[:3] for row in rows) == sorted(row[:3] for row in plain[task])
        values = [row.value for row in rows]
        assert is_ordered(values), "rows are numbered in the order of their event times"


def write_files(folder: Path) -> None:
    """Write files whose times overlap; every third has disorder and rows without a time."""
    for number in range(30):
        minutes: list[int | None] = list(range(20 * number, 20 * number + 100))
        if number % 3 == 0:
            minutes[10:13] = [minutes[12], None, minutes[10]]
        times = [None if minute is None else 60_000_000 * minute for minute in minutes]
        table = pa.table(
            {
                "file": pa.array([number] * len(times), pa.int64()),
                "place": pa.array(range(len(times)), pa.int64()),
                "at": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{(7 * number) % 30:02}.parquet", row_group_size=30)


def test_files_with_disorder_and_without_event_times(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path)
    reader = (
        spark.read.format("headgate.files").option("fileFormat", "parquet").option("eventTimeColumn", "at")
        .schema("file long, place long, at timestamp")
    )  # fmt: skip
    frame = reader.option("eventTimeOrder", True).load(str(tmp_path))
    found = by_task(frame)
    assert sorted((row.file, row.place) for rows in found.values() for row in rows) == [
        (number, place) for number in range(30) for place in range(100)
    ]
    for rows in found.values():
        assert len({row.file for row in rows}) > 10
        highest: dict[int, float] = {}
        keys = []
        for before, row in pairwise([rows[0], *rows]):
            at = float("-inf") if row.at is None else row.at.timestamp()
            if row.at is None:
                assert (before.file, before.place) == (row.file, row.place - 1), "directly after its predecessor"
            highest[row.file] = max(at, highest.get(row.file, at))
            keys.append(highest[row.file])
        assert is_ordered(keys)
        for number in highest:
            assert is_ordered([row.place for row in rows if row.file == number]), "a file keeps its own order"


def test_a_topic_in_one_total_order(spark: SparkSession, kafka: Broker, topic_name: str) -> None:
    """``scan.parallelism`` 1: all partitions in one task, each with enough records to be paused again and again."""
    create_topic(kafka.plain, topic_name, 4)
    at = [1_767_225_600_000 + 10 * n for n in range(40_000)]
    messages = [Message(b"%050d" % n, partition=(n // 1000) % 4, timestamp_ms=at[n]) for n in range(40_000)]
    produce(kafka.plain, topic_name, messages)
    reader = (
        spark.read.format("headgate.kafka")
        .option("kafka.bootstrap.servers", kafka.plain).option("subscribe", topic_name)
        .option("eventTimeColumn", "timestamp").option("eventTimeOrder", True).option("scan.parallelism", 1)
    )  # fmt: skip
    (rows,) = by_task(reader.load().select("value", "partition")).values()
    assert [bytes(row.value) for row in rows] == [each.value for each in messages]


def test_sql_and_filters_see_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW events USING headgate.files OPTIONS (fileFormat 'parquet', "
        f"eventTimeColumn 'at', eventTimeOrder 'true', path '{tmp_path}')"
    )
    assert spark.table("events").where(col("at").isNull()).count() == 10
    assert spark.sql("SELECT at FROM events").count() == 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eventTimeOrder": "true"}, "'eventTimeOrder' needs 'eventTimeColumn'"),
        ({"eventTimeOrder": "yes", "eventTimeColumn": "at"}, "'eventTimeOrder' is 'yes'; it must be true or false"),
        ({"eventTimeOrder": "true", "eventTimeColumn": "when"}, "when"),
        ({"eventTimeOrder": "true", "eventTimeColumn": "value"}, "'eventTimeColumn' names a column of type int64"),
    ],
)
def test_what_is_wrong_is_reported(spark: SparkSession, options: dict[str, str], message: str) -> None:
    reader = spark.read.format("headgate.datagen").option("numRows", 10).schema("at timestamp, value bigint")
    with pytest.raises(AnalysisException) as raised:
        reader.options(**options).load().collect()
    assert message in str(raised.value)


def test_in_streams_it_is_an_error_that_names_alignment(spark: SparkSession, tmp_path: Path) -> None:
    options = {"eventTimeColumn": "timestamp", "eventTimeOrder": "true"}
    query = (
        spark.readStream.format("headgate.datagen").options(**options).load()
        .writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    with pytest.raises(StreamingQueryException, match=r"scan\.watermark\.alignment\.group"):
        query.awaitTermination(60)
    for reader in (spark.readStream, spark.read):
        frame = reader.format("headgate.datagen").options(numRows=1, **options).load()
        with pytest.raises(OptionError, match=r"scan\.watermark\.alignment\.group"):
            headgate.continuous(frame, parallelism=1).explain()
