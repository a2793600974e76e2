"""Joins of continuous queries with rows that Spark collects when they start: the same rows as in Spark's batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import OptionError
from tests.real.running_queries import stop_all
from tests.real.test_continuous_dataframe import check, finished, generated, in_order


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


@pytest.fixture(scope="module")
def cities(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a table of Parquet: keys that are there twice, once, not at all and null."""
    rows = [(k, f"city {k}", k / 3) for k in (0, 1, 1, 2, 3, 5, 5, 5, 77)] + [(None, "nowhere", None)]
    path = str(tmp_path_factory.mktemp("cities"))
    spark.createDataFrame(rows, "k int, city string, size double").write.mode("overwrite").parquet(path)
    made = spark.read.parquet(path)
    made.createOrReplaceTempView("cities")
    return made


def some_null(rows: DataFrame) -> DataFrame:
    return rows.withColumn("k", F.when(F.col("k") == 9, None).otherwise(F.col("k")))


PROGRAMS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "inner": lambda rows, cities: some_null(rows).join(cities, "k"),
    "left": lambda rows, cities: some_null(rows).join(cities, "k", "left"),
    "semi": lambda rows, cities: some_null(rows).join(cities, "k", "left_semi"),
    "anti": lambda rows, cities: some_null(rows).join(cities, "k", "left_anti"),
    "right, the stream on the right": lambda rows, cities: cities.join(some_null(rows), "k", "right"),
    "inner, the stream on the right": lambda rows, cities: cities.join(some_null(rows), "k"),
    "null safe": lambda rows, cities: (
        (left := some_null(rows)).join(cities, left.k.eqNullSafe(cities.k), "left").select(left.k, "n", "city", "size")
    ),
    "null safe, by what has no type": lambda rows, cities: (
        (left := rows.withColumn("v", F.lit(None)))
        .join(right := cities.withColumn("w", F.lit(None)), left.v.eqNullSafe(right.w) & (left.k == right.k), "left")
        .select("n", right.k, "city", F.isnull("w"))
    ),
    "a further condition": lambda rows, cities: rows.join(
        cities, (rows.k == cities.k) & (rows.n > cities.size * 300)
    ).select("n", cities.k, "city"),
    "a further condition, left": lambda rows, cities: rows.join(
        cities, (rows.k == cities.k) & (rows.n > cities.size * 300), "left"
    ).select("n", rows.k, "city"),
    "a further condition, anti": lambda rows, cities: rows.join(
        cities, (rows.k == cities.k) & (rows.n > cities.size * 300), "left_anti"
    ),
    "what is computed of both": lambda rows, cities: rows.join(
        cities, F.concat(F.lit("city "), rows.k) == F.lower(cities.city)
    ).select("n", F.upper("city")),
    "two keys, of doubles": lambda rows, cities: rows.join(
        cities, (rows.k / 3 == cities.size) & (rows.k == cities.k)
    ).select(rows.k, "city", "n"),
    "what Spark makes of several tables": lambda rows, cities: rows.join(
        cities.groupBy("k").count().join(cities.select("k", "city").distinct(), "k"), "k"
    ),
    "of itself twice": lambda rows, cities: rows.join(cities.alias("a"), "k").join(
        cities.select("k", F.col("city").alias("again")).alias("b"), "k"
    ),
    "then a window": lambda rows, cities: (
        rows.withWatermark("at", "100 milliseconds")
        .join(cities, "k")
        .groupBy(F.window("at", "100 milliseconds"), "city")
        .count()
    ),
    "no row that is equal": lambda rows, cities: rows.join(cities.where("k < 0"), "k", "left"),
    "a range": lambda rows, cities: rows.join(rows.sparkSession.range(3, 6).toDF("k"), "k"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(spark: SparkSession, cities: DataFrame, name: str) -> None:
    check(spark, lambda rows: PROGRAMS[name](rows, cities))


@pytest.mark.usefixtures("cities")
def test_sql(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rides")
        return spark.sql(
            """SELECT upper(city) AS city, CASE WHEN n > 400 THEN 'big' ELSE 'small' END AS size, r.k
               FROM rides r JOIN cities USING (k) WHERE city NOT LIKE '%3' AND n % 7 < 5"""
        )

    check(spark, program)


def test_a_batch_program_and_slots_that_are_spark_s_tasks(spark: SparkSession, cities: DataFrame) -> None:
    frame = generated(spark.read).join(cities, "k", "left")
    query = headgate.continuous(frame, parallelism=2).writeStream.format("memory").start()
    assert query.awaitTermination(240)
    assert in_order(query.table().to_pylist()) == in_order(frame.toArrow().to_pylist())


def test_each_start_collects_the_table_anew(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for value in (1, 2):
        spark.createDataFrame([(value + 2, value)], "k long, v int").write.mode("append").json(path)
        frame = generated(spark.readStream).join(spark.read.schema("k long, v int").json(path), "k")
        for _ in range(2):
            assert set(finished(frame).table()["v"].to_pylist()) == set(range(1, value + 1))


def test_a_table_that_is_too_large_is_named(spark: SparkSession, cities: DataFrame) -> None:
    writer = headgate.continuous(generated(spark.readStream).join(cities, "k"), parallelism=1).writeStream
    with pytest.raises(OptionError, match=r"k#\d+.* has \d+ bytes; the option 'static.memory' allows 100"):
        writer.format("noop").option("static.memory", "100").start()
