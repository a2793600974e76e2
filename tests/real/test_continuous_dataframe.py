"""Programs that PySpark has built, run continuously on real Spark: the same rows as Spark's own batch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

import headgate
from headgate.errors import OptionError, UnsupportedOperationError
from headgate.source import Boundedness, WatermarkStrategy
from tests.real.running_queries import PATIENCE_S, Held, stop_all, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

COLUMNS = "k long, n long, name string, at timestamp"
Program = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def generated(reader: Any, rows: int = 2000, **options: Any) -> DataFrame:
    """Return generated rows, the same whoever reads them."""
    given = {"numRows": rows, "rowsPerSecond": 10_000, "numPartitions": 3, "fields.k.min": 0, "fields.k.max": 9}
    given |= {"fields.n.min": 0, "fields.n.max": 999, **options}
    return reader.format("headgate.datagen").options(**given).schema(COLUMNS).load()  # type: ignore[no-any-return]


def finished(frame: DataFrame, parallelism: int = 2, mode: str = "append") -> headgate.ContinuousQuery:
    """Run a program to its end, with slots that are threads."""
    writer = headgate.continuous(frame, parallelism=parallelism).writeStream.outputMode(mode).format("memory")
    query = writer.option("slots", "threads").start()
    assert query.awaitTermination(PATIENCE_S), query.status
    return query


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def check(spark: SparkSession, program: Program) -> headgate.ContinuousQuery:
    """Check that a program over a stream gives what it gives in a batch, in columns of the same names and types."""
    expected = program(generated(spark.read)).toArrow()
    query = finished(program(generated(spark.readStream)))
    assert query.table().schema.names == expected.schema.names
    assert in_order(query.table().to_pylist()) == in_order(expected.to_pylist())
    assert len(expected) > 0
    return query


def test_a_filter_and_columns_of_all_kinds(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        return (
            rows.alias("rides")
            .filter("n % 3 = 0 and n > 5")
            .withColumn("double", F.col("n") * 2)
            .withColumn("size", F.when(F.col("double") > 1000, "big").otherwise("small"))
            .selectExpr("k", "n", "n AS again", "upper(name) AS name", "double", "size", "hour(at) AS hour")
        )

    query = check(spark, program)
    assert query.status["sources"].keys() == {"rides"}


def test_a_batch_program_ends(spark: SparkSession) -> None:
    frame = generated(spark.read).where(F.col("k") == 3).drop("name")
    assert in_order(finished(frame).table().to_pylist()) == in_order(frame.toArrow().to_pylist())
    counted = frame.withWatermark("at", "100 milliseconds").groupBy(F.session_window("at", "1 millisecond")).count()
    assert in_order(finished(counted).table().to_pylist()) == in_order(counted.toArrow().to_pylist())


def test_sql_over_a_view_with_common_table_expressions(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rides")
        return spark.sql(
            """WITH large AS (SELECT k AS city, n, length(name) AS long FROM rides WHERE n >= 500)
               SELECT city, n, CASE WHEN n > 900 THEN 'big' ELSE 'small' END AS size FROM large WHERE long % 2 = 0
               UNION ALL SELECT city, -n, 'odd' FROM large WHERE long % 2 = 1
               UNION ALL SELECT k, n, concat('few ', cast(n AS string)) FROM rides WHERE n < 10 AND k IN (1, 2, 3)"""
        )

    query = check(spark, program)
    assert query.status["sources"].keys() == {"rides"}, "the view's name is the uid, and it is read once"


def test_two_columns_of_one_name_are_two(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        both = rows.select(rows.k.alias("x"), rows.n.alias("x"), "name")
        return both.filter(F.length("name") > 3).toDF("k", "n", "name").where("k < 5 and n > 300").drop("name")

    check(spark, program)


def test_a_union_of_two_sources_and_of_one_with_itself(spark: SparkSession) -> None:
    first = generated(spark.readStream).alias("first")
    second = generated(spark.readStream, rows=500, seed=7).alias("second").withColumn("n", F.col("n") + 1000)
    query = finished(first.select("n").union(second.select("n")).union(first.select(-F.col("n"))))
    one = [row.n for row in generated(spark.read).collect()]
    other = [row.n + 1000 for row in generated(spark.read, rows=500, seed=7).collect()]
    assert sorted(query.table()["n"].to_pylist()) == sorted([*one, *other, *(-n for n in one)])
    assert query.status["sources"].keys() == {"first", "second"}


WINDOWS = {
    "tumbling": lambda: F.window("at", "50 milliseconds"),
    "sliding": lambda: F.window("at", "60 milliseconds", "20 milliseconds"),
    "sliding, of no whole number of slides": lambda: F.window("at", "50 milliseconds", "20 milliseconds"),
    "begun later": lambda: F.window("at", "50 milliseconds", startTime="13 milliseconds"),
    "sessions": lambda: F.session_window("at", "500 microseconds"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(spark: SparkSession, name: str) -> None:
    def program(rows: DataFrame) -> DataFrame:
        return (
            rows.withWatermark("at", "10 milliseconds")
            .groupBy(WINDOWS[name](), F.when(F.col("k") < 5, "low").otherwise("high").alias("half"))
            .agg(F.sum("n").alias("n"), F.count("*").alias("rows"), (F.sum("n") / F.count("n")).alias("mean"))
        )

    query = check(spark, program)
    assert query.status["sources"].keys() == {"datagen"}


def test_windows_are_columns_where_they_are_used_as_such(spark: SparkSession) -> None:
    """A row that is in several comes several times, as in Spark, also if nothing of them is kept."""

    def program(rows: DataFrame) -> DataFrame:
        sliding = rows.withColumn("w", F.window("at", "60 milliseconds", "20 milliseconds"))
        window = F.window("at", "50 milliseconds")
        return (
            sliding.select("k", F.lit("nothing").alias("of"), F.lit(0).alias("n"))
            .union(sliding.where("n % 3 = 0").select("k", F.lit("values"), F.unix_millis("w.end")))
            .union(sliding.where("w.start < at - interval 45 milliseconds").select("k", F.lit("filter"), F.lit(0)))
            .union(rows.select("k", window.alias("w")).select("k", F.lit("whole"), F.hash("w")))
            .union(rows.withColumn("t", F.window_time(window)).select("k", F.lit("time"), F.unix_millis("t")))
        )

    check(spark, program)
    counted = generated(spark.read).withColumn("w", WINDOWS["sliding"]()).groupBy("k").agg(F.max("w.end"), F.count("*"))
    assert in_order(finished(counted).table().to_pylist()) == in_order(counted.toArrow().to_pylist())
    times = F.window_time(F.window("at", "50 milliseconds")).alias("at")
    check(
        spark,
        lambda rows: rows.select("k", times).withWatermark("at", "10 milliseconds").groupBy("at", "k").count(),
    )


def test_windows_of_a_union_end_by_the_watermark_that_it_has(spark: SparkSession) -> None:
    """Its other source has none, and more splits: subtasks that read of that only hold nobody."""
    first = generated(spark.readStream, rows=10**9, numPartitions=1).withWatermark("at", "10 milliseconds")
    second = generated(spark.readStream, rows=10**9, numPartitions=4).withColumn("k", F.col("k") - 100)
    counted = first.union(second).groupBy(F.window("at", "50 milliseconds"), F.col("k") < 0).count()
    query = headgate.continuous(counted, parallelism=2).writeStream.format("memory").option("slots", "threads")
    running = query.trigger(continuous="100 milliseconds").start()
    wait_until(lambda: {row["(k < 0)"] for row in running.table().to_pylist()} == {False, True}, running)


def test_aggregates_and_what_is_computed_of_them(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        rows.withWatermark("at", "100 milliseconds").createOrReplaceTempView("rides")
        return spark.sql(
            """SELECT k % 3 AS third, window.start AS start, max(n) - min(n) AS spread, avg(n) AS mean,
                      count(*) AS rows,
                      count(if(n > 500, n, NULL)) AS large, sum(n) FILTER (WHERE n < 100) AS small,
                      count(*) FILTER (WHERE n < 100) AS few, bool_and(n < 990) AS below,
                      bool_or(n > 990) AS above, count_if(n = 7) AS sevens,
                      sum(cast(n AS decimal(10, 2))) AS price, max(name) AS last
               FROM rides GROUP BY window(at, '100 milliseconds'), k % 3 HAVING count(*) > 10"""
        )

    check(spark, program)


def test_aggregates_that_depend_on_the_order_of_arrival(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        grouped = rows.withWatermark("at", "100 milliseconds").groupBy(
            F.window("at", "100 milliseconds").alias("w"), "k"
        )
        return grouped.agg(
            F.collect_list("n").alias("all"), F.first("n", True).alias("first"), F.last("n").alias("last"),
            F.any_value("n").alias("any"), F.approx_count_distinct("n").alias("about"),
        )  # fmt: skip

    rows = finished(program(generated(spark.readStream))).table().to_pylist()
    found = {(row["w"]["start"], row["k"]): row for row in rows}
    expected = program(generated(spark.read)).toArrow().to_pylist()
    assert len(expected) == len(found) > 10
    for row in expected:
        ours = found[row["w"]["start"], row["k"]]
        assert sorted(ours["all"]) == sorted(row["all"])
        assert {ours["first"], ours["last"], ours["any"]} <= set(row["all"])
        assert abs(ours["about"] - len(set(row["all"]))) <= 0.3 * len(row["all"])


def test_a_renamed_window_of_a_computed_time_without_a_key(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("at", "100 milliseconds").withColumn(
            "event", F.timestamp_millis(F.unix_millis("at"))
        )
        return timed.select(F.window("event", "25 milliseconds").alias("w"), "n").groupBy("w").agg(F.max("n"))

    check(spark, program)


def test_updates_of_windows(spark: SparkSession) -> None:
    rows = generated(spark.readStream).withWatermark("at", "100 milliseconds")
    counted = rows.groupBy(F.window("at", "100 milliseconds").alias("w"), "k").count()
    found: dict[tuple[Any, int], int] = {}
    for row in finished(counted, mode="update").table().to_pylist():
        found[row["w"]["start"], row["k"]] = row["count"]
    expected = generated(spark.read).groupBy(F.window("at", "100 milliseconds").alias("w"), "k").count()
    table = expected.toArrow().to_pylist()
    assert found == {(row["w"]["start"], row["k"]): row["count"] for row in table}


class Squares:
    """A function with set-up, over columns that the program has renamed."""

    def __init__(self) -> None:
        self.opened = False

    def open(self) -> None:
        self.opened = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.opened
        for batch in batches:
            assert batch.schema.names == ["number", "k"]
            square = pc.multiply(batch.column("number"), batch.column("number"))
            yield pa.record_batch({"square": square, "k": batch.column("k")})


def test_a_function_in_the_slot_and_partitions(spark: SparkSession) -> None:
    rows = generated(spark.readStream).select(F.col("n").alias("number"), "k")
    frame = (
        rows.repartition(2).mapInArrow(Squares(), "square long, k long").alias("squares")
        .repartition("k").repartition(3, F.col("k") % 4).coalesce(1).where("k > 2")
    )  # fmt: skip
    query = finished(frame, parallelism=3)
    expected = [(row.n**2, row.k) for row in generated(spark.read).collect() if row.k > 2]
    assert sorted(zip(*query.table().to_pydict().values())) == sorted(expected)


@pytest.mark.spark_since("repartition-by-id")
def test_rows_go_to_the_partition_that_they_name(spark: SparkSession) -> None:
    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            thread = pa.array([threading.current_thread().name] * batch.num_rows)
            yield pa.record_batch({"k": batch.column("k"), "thread": thread})

    frame = generated(spark.readStream).repartitionById(3, F.col("k").cast("int"))
    table = finished(frame.mapInArrow(numbered, "k long, thread string"), parallelism=3).table()
    threads = {(row["k"] % 3, row["thread"]) for row in table.to_pylist()}
    assert len(threads) == 3 == len({thread for _, thread in threads})


def test_sources_of_spark_itself_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for frame in (spark.readStream.format("rate").load(), spark.range(3), spark.createDataFrame([(1,)], "a int")):
        with pytest.raises((UnsupportedOperationError, OptionError), match=r"rate|Range|LogicalRDD"):
            headgate.continuous(frame, parallelism=1).writeStream.format("noop").start()


class OnlySpark(DataSource):
    """A Python data source that is none of Headgate's."""

    @classmethod
    def name(cls) -> str:
        return "only-spark"

    def schema(self) -> str:
        return "n long"


def test_python_sources_of_spark_alone_are_refused(spark: SparkSession) -> None:
    spark.dataSource.register(OnlySpark)
    frame = spark.read.format("only-spark").load()
    with pytest.raises(OptionError, match=r"use spark\.readStream"):
        headgate.continuous(frame, parallelism=1).explain()


def test_two_columns_of_one_name_have_no_sink(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="'n' appears more than once"):
        headgate.continuous(generated(spark.readStream).select("n", "n"), parallelism=1).explain()


def test_one_source_has_one_watermark(spark: SparkSession) -> None:
    rows = generated(spark.readStream)
    both = rows.withWatermark("at", "100 milliseconds").union(rows.withWatermark("at", "2 seconds"))
    with pytest.raises(UnsupportedOperationError, match="different watermarks"):
        headgate.continuous(both, parallelism=1).writeStream.format("noop").start()


def test_the_highest_of_several_watermarks_cannot_count(spark: SparkSession) -> None:
    setting = "spark.sql.streaming.multipleWatermarkPolicy"
    one = generated(spark.readStream).withWatermark("at", "1 second")
    other = generated(spark.readStream).withWatermark("at", "1 second")
    spark.conf.set(setting, "MAX")
    try:
        with pytest.raises(UnsupportedOperationError, match=r'none knows.*spark\.conf\.set\("' + setting) as raised:
            headgate.continuous(one.union(other), parallelism=1).writeStream.format("noop").start()
        assert raised.value.facts["setting"] == setting
        for harmless in (one.union(generated(spark.readStream)), one.union(one)):
            headgate.continuous(harmless, parallelism=1).explain()
    finally:
        spark.conf.unset(setting)
    headgate.continuous(one.union(other), parallelism=1).explain()


def test_options_of_the_source_and_defaults_of_the_session(spark: SparkSession) -> None:
    spark.conf.set("spark.headgate.scan.watermark.idle-timeout", "7 seconds")
    try:
        frame = generated(spark.readStream, EVENTTIMECOLUMN="at").alias("rides").where("n > 3")
        (source,) = headgate.continuous(frame, parallelism=1).writeStream.format("noop").definition().graph.sources
        delayed = frame.select(F.col("at").alias("moment"), "n").withWatermark("moment", "3 seconds")
        (later,) = headgate.continuous(delayed, parallelism=1).writeStream.format("noop").definition().graph.sources
    finally:
        spark.conf.unset("spark.headgate.scan.watermark.idle-timeout")
    assert (source.uid, source.boundedness) == ("rides", Boundedness.CONTINUOUS_UNBOUNDED)
    assert source.source.options["numRows"] == 2000
    assert source.watermark_strategy == WatermarkStrategy(event_time_column="at", idle_timeout_ms=7000)
    assert later.watermark_strategy == WatermarkStrategy(
        event_time_column="at", max_out_of_orderness_ms=3000, idle_timeout_ms=7000
    )


def test_files_that_are_there_and_a_source_of_one_s_own(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"part-{number}.csv").write_text("n;name\n" + "".join(f"{n};x{n}\n" for n in range(number + 1)))
    reader = spark.read.format("headgate.files").option("fileFormat", "csv").option("header", True).option("SEP", ";")
    files = reader.schema("n long, name string").load(str(tmp_path / "*.csv")).select("n", F.substring("name", 2, 1))
    assert sorted(finished(files).table()["n"].to_pylist()) == [0, 0, 0, 1, 1, 2]

    headgate.register(spark, Held)
    (tmp_path / "may end").touch()
    own = spark.read.format("held-numbers").option("mayEnd", tmp_path / "may end").option("rows", 50).load()
    query = finished(own.where("value % 2 = 1").alias("odd"))
    assert sorted(query.table()["value"].to_pylist()) == list(range(1, 50, 2))
    assert query.status["sources"].keys() == {"held-numbers"}


def test_a_program_that_is_built_again_goes_on_from_its_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives other ids to the columns; names of state, and what it is of, depend on the program only."""

    def program(reader: Any) -> DataFrame:
        rows = generated(reader, rows=6000, rowsPerSecond=1000).withWatermark("at", "100 milliseconds")
        sized = rows.withColumn("size", F.when(F.col("n") > 500, "big").otherwise("small"))
        return sized.groupBy(F.window("at", "2 seconds"), "size", (F.col("k") % 3).alias("k")).agg(
            F.sum("n"), F.avg("n")
        )

    def start(savepoint: str | None = None) -> headgate.ContinuousQuery:
        writer = headgate.continuous(program(spark.readStream), parallelism=2).writeStream.format("json")
        writer = writer.option("path", tmp_path / "out").option("checkpointLocation", tmp_path / "checkpoints")
        return writer.option("slots", "threads").start(fromSavepoint=savepoint)

    query = start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert query.status["rowsIn"] < 6000
    query = start(str(tmp_path / "savepoint"))
    assert query.awaitTermination(PATIENCE_S), query.status
    assert query.status["rowsIn"] < 6000
    expected = program(spark.read)
    found = spark.read.schema(expected.schema).json(str(tmp_path / "out"))
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))


def test_explain_shows_stages_exchanges_and_state(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = generated(spark.readStream).alias("rides").withWatermark("at", "5 seconds").filter("n % 3 = 0")
    counted = rows.groupBy(F.window("at", "10 seconds"), F.upper("name").alias("name")).agg(F.sum("n") + 1)
    headgate.continuous(counted, parallelism=2).explain()
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("Stage")] == ["Stage 0", "Stage 1"]
    assert "  rides: datagen, until the query is stopped; watermark: 5 s below the latest 'at'" in shown
    assert "  rides.1.filter: ((n % 3) = 0)  [Arrow]" in shown
    assert any(line.endswith("to stage 1 by the hash of name 2") for line in shown)
    assert any(line.startswith("    state by key: sum(n) of int64 in window(at, 10 s, 10 s, 0 s)") for line in shown)
    with pytest.raises(UnsupportedOperationError, match="Offset cannot run continuously"):
        headgate.continuous(counted.offset(1), parallelism=2).explain()
    headgate.continuous(counted.orderBy("name"), parallelism=2).explain()
    assert "  rides.10.sort: orderBy(name ASC NULLS FIRST)" in capsys.readouterr().out.splitlines()
