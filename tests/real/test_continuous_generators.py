"""``explode`` and its like in continuous queries: the same rows as in Spark's batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.real.running_queries import stop_all
from tests.real.test_continuous_dataframe import check


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


# Empty, null and with nulls in them.
LISTS = "CASE k WHEN 3 THEN NULL WHEN 4 THEN array() WHEN 5 THEN array(NULL) ELSE array(n, NULL, k) END AS list"
MAPS = "CASE WHEN k = 3 THEN NULL WHEN k = 4 THEN map() ELSE map('n', n, name, NULL) END AS map"
STRUCTS = "array(named_struct('a', n, 'b', name), if(k < 5, NULL, named_struct('a', k, 'b', NULL))) AS structs"
JSON = """CASE k WHEN 1 THEN NULL WHEN 2 THEN '{"a":' WHEN 3 THEN '[1]' WHEN 4 THEN ''
    WHEN 5 THEN '{"a": null, "b": {"c": [1, 2.50]}, "d.e": true}'
    ELSE concat('{"b": 1e3, "a": "', name, '", "a": 7}') END AS js"""

COLUMNS = {
    "explode": "explode(list)",
    "explode_outer": "explode_outer(list)",
    "posexplode": "posexplode(list)",
    "posexplode_outer": "posexplode_outer(list)",
    "explode of a map": "explode(map) AS (key, value)",
    "posexplode_outer of a map": "posexplode_outer(map) AS (place, key, value)",
    "inline": "inline(structs)",
    "inline_outer": "inline_outer(if(k < 3, NULL, structs))",
    "stack": "stack(3, n, name, k, upper(name), 7L) AS (number, text)",
    "of what Spark's code makes": "explode(split(name, '[a-m]')) AS n",
    "json_tuple": "json_tuple(js, 'a', 'b', 'no', 'd.e', 'a') AS (a, b, no, de, again)",
    "json_tuple of computed names": "json_tuple(lower(upper(js)), if(k < 3, 'a', 'b'), string(NULL)) AS (either, none)",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns(spark: SparkSession, name: str) -> None:
    def program(rows: DataFrame) -> DataFrame:
        return (
            rows.where("n < 500").selectExpr("*", LISTS, MAPS, STRUCTS, JSON).selectExpr("k", "n AS m", COLUMNS[name])
        )

    check(spark, program)


PROGRAMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "one after the other": lambda rows: rows.select("k", "n", F.explode(F.array("k", "n")).alias("x")).select(
        "*", F.posexplode(F.array("x", F.lit(0))).alias("place", "n2")
    ),
    "the same name": lambda rows: rows.select("n", F.explode(F.array("k", "n")).alias("n")).toDF("first", "second"),
    "the column itself is still there": lambda rows: rows.selectExpr("k", LISTS).select("list", F.explode("list")),
    "then a window": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .select("at", F.explode(F.array("k", "n")).alias("x"))
        .groupBy(F.window("at", "100 milliseconds"), "x")
        .count()
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(spark: SparkSession, name: str) -> None:
    check(spark, PROGRAMS[name])


def test_lateral_views(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rides")
        return spark.sql(
            """SELECT k, each, place, v.x, a, b FROM rides
               LATERAL VIEW OUTER explode(IF(k = 2, array(), array(n, k))) AS each
               LATERAL VIEW posexplode(array(name, upper(name))) v AS place, x
               LATERAL VIEW OUTER json_tuple(to_json(named_struct('a', n)), 'a', 'b') j AS a, b
               WHERE place > 0 OR each > 5"""
        )

    check(spark, program)
