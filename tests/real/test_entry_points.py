"""Both DataFrame engines on real Spark: found automatically, own sources, errors, limits, restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import headgate
from conformance.spark import changed_settings
from tests.waiting import wait_until

# Workers cannot import a test module: its classes travel with the query, like those of a notebook.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Numbers(headgate.SimpleSource):
    """Lists of numbers in a folder: a file ``NAME`` holds how long the list is. One page is three numbers."""

    name = "numbers"
    schema = "list string, n bigint"

    def splits(self) -> list[str]:
        return sorted(each for each in os.listdir(self.options["folder"]) if not each.startswith("."))

    def latest(self, split_id: str) -> int | None:
        return int((Path(self.options["folder"]) / split_id).read_text()) or None

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        length, start = self.latest(split_id) or 0, position or 0
        while start < length:
            stop = min(start + 3, length)
            yield pa.record_batch({"list": [split_id] * (stop - start), "n": range(start, stop)}), stop
            start = stop


class Lists:
    """The folder that `Numbers` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def set(self, **lengths: int) -> None:
        for name, length in lengths.items():
            (self.folder / f".{name}").write_text(str(length))
            os.replace(self.folder / f".{name}", self.folder / name)


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return Lists(tmp_path / "lists")


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def numbers(**lengths: int) -> list[tuple[str, int]]:
    return sorted((name, n) for name, length in lengths.items() for n in range(length))


def run_available_now(frame: DataFrame, folder: Path) -> StreamingQuery:
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query did not end"
    return query


def test_formats_are_found_without_registration_in_sql_too(spark: SparkSession) -> None:
    frame = spark.read.format("headgate.datagen").option("numRows", 1000).option("numPartitions", 3).load()
    assert sorted(row.value for row in frame.collect()) == list(range(1000))
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW made USING headgate.datagen OPTIONS (numRows '10')")
    assert spark.sql("SELECT count(*) AS n FROM made").first().n == 10


def test_option_names_have_no_case(spark: SparkSession) -> None:
    """Spark passes them in lower case."""
    frame = (
        spark.read.format("headgate.datagen")
        .schema("userId bigint")
        .option("NUMROWS", 50)
        .option("fields.userId.kind", "random")
        .option("fields.userId.min", 5)
        .option("fields.userId.max", 6)
        .load()
    )
    assert {row.userId for row in frame.collect()} == {5, 6}


def test_an_own_source_is_read_as_a_batch(spark: SparkSession, lists: Lists) -> None:
    headgate.register(spark, Numbers)
    lists.set(a=10, b=0, c=7)
    frame = spark.read.format("numbers").option("folder", str(lists.folder)).load()
    assert rows(frame) == numbers(a=10, c=7)


def test_a_stream_restarts_after_what_it_committed(spark: SparkSession, lists: Lists, tmp_path: Path) -> None:
    headgate.register(spark, Numbers)
    lists.set(a=10, b=4)
    frame = spark.readStream.format("numbers").option("folder", str(lists.folder)).load()
    for growth in ({}, {"a": 15}, {"c": 8, "b": 5}):
        lists.set(**growth)
        run_available_now(frame, tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == numbers(a=15, b=5, c=8)


def test_a_running_stream_finds_new_splits_and_stays_silent_when_idle(
    spark: SparkSession, lists: Lists, tmp_path: Path
) -> None:
    headgate.register(spark, Numbers)
    lists.set(a=4)
    frame = (
        spark.readStream.format("numbers")
        .option("folder", str(lists.folder))
        .option("discovery.interval", "200 milliseconds")
        .load()
    )
    query = frame.writeStream.format("memory").queryName("running").start()
    try:
        wait_until(lambda: spark.table("running").count() == 4)
        lists.set(a=6, b=3)
        wait_until(lambda: spark.table("running").count() == 9)
        # Rows are seen before the progress of their batch; one without rows, which Spark shows now and then, has the
        # number of the batch that comes next.
        wait_until(lambda: sum(progress.numInputRows for progress in query.recentProgress) == 9)
        batches = query.lastProgress.batchId
        time.sleep(4)
        assert query.lastProgress.batchId <= batches + 1, "batches without data"
        assert rows(spark.table("running")) == numbers(a=6, b=3)
    finally:
        query.stop()


@pytest.mark.spark_since("read-limits")
def test_read_limits_bound_every_batch(spark: SparkSession, lists: Lists, tmp_path: Path) -> None:
    headgate.register(spark, Numbers)
    lists.set(a=20, b=9)
    frame = spark.readStream.format("numbers").option("folder", str(lists.folder)).option("maxRowsPerTrigger", 6).load()
    query = run_available_now(frame, tmp_path)
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert max(sizes) <= 6
    assert sum(sizes) == 29
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == numbers(a=20, b=9)


def test_a_filter_does_not_stay_for_the_next_query_on_a_frame(spark: SparkSession, lists: Lists) -> None:
    """Spark 4.3 keeps a pushed filter, so nothing is pushed whatever the session says."""
    headgate.register(spark, Numbers)
    lists.set(a=10)
    for pushdown in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        try:
            frame = spark.read.format("numbers").option("folder", str(lists.folder)).load()
            assert (frame.filter("n > 6").count(), frame.count(), frame.filter("n > 2").count()) == (3, 10, 7)
            frame = spark.read.format("numbers").option("folder", str(lists.folder)).load()
            assert (frame.count(), frame.filter("n > 6").count(), frame.count()) == (10, 3, 10)
            assert frame.filter("n > 6").union(frame).count() == 13
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark_since("lag-of-micro-batches")
def test_lag_is_visible_in_the_progress(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 100).load()
    query = frame.writeStream.format("noop").trigger(processingTime="500 milliseconds").start()
    try:
        wait_until(lambda: query.lastProgress is not None and query.lastProgress.numInputRows > 0)
        assert "rowsBehind" in json.loads(query.lastProgress.sources[0].latestOffset)
    finally:
        query.stop()


def test_an_unknown_option_fails_at_load_with_the_near_names(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"has no option 'numrow'. Did you mean 'numRows'"):
        spark.read.format("headgate.datagen").option("numrow", 5).load()


def test_an_option_that_may_not_change_fails_the_restart(spark: SparkSession, tmp_path: Path) -> None:
    for seed in (1, 2):
        frame = spark.readStream.format("headgate.datagen").option("seed", seed).option("rowsPerSecond", 500).load()
        query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop").start()
        try:
            if seed == 1:
                wait_until(lambda query=query: query.lastProgress is not None and query.lastProgress.batchId > 0)
            else:
                with pytest.raises(StreamingQueryException, match=r"OptionError: .*'seed' was 1 .* now it is 2"):
                    query.awaitTermination(60)
        finally:
            query.stop()


class Failing(headgate.SimpleSource):
    name = "failing"
    schema = "a bigint"
    finite_splits = True

    def splits(self) -> list[str]:
        return ["only"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        if position is None:
            yield pa.record_batch({"a": [1]}), 1
        if self.options["how"] == "raises":
            raise ValueError("the server refused")
        if self.options["how"] == "other columns":
            yield pa.record_batch({"b": [2]}), 2
        if self.options["how"] == "other type":
            yield pa.record_batch({"a": ["two"]}), 2
        if self.options["how"] == "no pair":
            yield pa.record_batch({"a": [2]})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"UserFunctionError: .*the server refused"),
        ("other columns", r"ConnectorContractError: .*columns are b; the schema declares a"),
        ("other type", r"ConnectorContractError: .*'?a'?"),
        ("no pair", r"ConnectorContractError: .*read"),
    ],
)
def test_an_own_source_that_breaks_its_promise_is_one_clear_error(spark: SparkSession, how: str, message: str) -> None:
    headgate.register(spark, Failing)
    with pytest.raises(Exception, match=message) as caught:
        spark.read.format("failing").option("how", how).load().collect()
    assert "split 'only'" in str(caught.value) or "'only'" in str(caught.value)


def test_the_sessions_time_zone_reaches_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("2013-07-01 12:00:00\n")
    frame = spark.read.format("headgate.files").option("fileFormat", "csv").schema("at timestamp").load(str(tmp_path))
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        assert frame.selectExpr("unix_seconds(at) AS s").first().s == 1372694400
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_sessions_case_of_names_reaches_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"b": [1, None], "B": [2, 3]}), tmp_path / "in" / "a.parquet")

    def read(reader: Any) -> DataFrame:
        frame = reader.format("headgate.files").option("fileFormat", "parquet").schema("B bigint, C bigint")
        return frame.load(str(tmp_path / "in")).selectExpr("B", "C IS NULL")  # type: ignore[no-any-return]

    with changed_settings(spark, {"spark.sql.caseSensitive": "true"}):
        assert sorted(read(spark.read).collect()) == [(2, True), (3, True)]
        writer = read(spark.readStream).writeStream.format("memory").queryName("case_of_names")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(60)
        assert sorted(spark.table("case_of_names").collect()) == [(2, True), (3, True)]
        inferred = spark.read.format("headgate.files").option("fileFormat", "parquet").load(str(tmp_path / "in"))
        assert set(inferred.collect()) == {(1, 2), (None, 3)}
    with pytest.raises(Exception, match=r"'B' could be any of \['b', 'B'\]"):
        read(spark.read).collect()
    with pytest.raises(Exception, match="'b' and 'B' differ in nothing but case"):
        inferred.collect()


@pytest.mark.spark_since("available-now")
def test_spark_connect(tmp_path: Path, lists: Lists) -> None:
    """A client of a Spark Connect server reads batches, streams and its own sources."""
    lists.set(a=5)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.csv").write_text("1,one\n2,two\n")
    program = textwrap.dedent(
        f"""
        from pyspark.sql import SparkSession
        import headgate, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import cloudpickle_numbers
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        print(type(spark).__module__)
        print(spark.read.format("headgate.datagen").option("numRows", 7).load().count())
        files = spark.read.format("headgate.files").option("fileFormat", "csv")
        print(files.schema("a int, b string").load({str(tmp_path / "in")!r}).collect())
        headgate.register(spark, cloudpickle_numbers.local_numbers())
        stream = spark.readStream.format("numbers").option("folder", {str(lists.folder)!r}).load()
        query = (stream.writeStream.format("parquet").option("path", {str(tmp_path / "out")!r})
                 .option("checkpointLocation", {str(tmp_path / "cp")!r}).trigger(availableNow=True).start())
        query.awaitTermination()
        print(sorted(row.n for row in spark.read.parquet({str(tmp_path / "out")!r}).collect()))
        spark.stop()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
        env=os.environ | {"SPARK_TESTING": "1"},  # PySpark's way to have its server listen on any free port
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.strip().splitlines()[-4:]
    assert lines == [
        "pyspark.sql.connect.session",
        "7",
        "[Row(a=1, b='one'), Row(a=2, b='two')]",
        "[0, 1, 2, 3, 4]",
    ]


def test_a_column_named_twice_is_an_error_that_names_it(spark: SparkSession) -> None:
    frame = spark.read.format("headgate.datagen").option("numRows", 3).schema("a int, b int, a int").load()
    with pytest.raises(Exception, match=r"OptionError: .*names 'a' more than once"):
        frame.collect()
