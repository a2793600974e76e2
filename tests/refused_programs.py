"""Programs that a continuous query refuses: the list in docs/engines.md is made of them, and a test runs into each.

Never: leave out a reason for which the translation refuses a program: `tests/real/test_refused_programs.py` looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

InSpark = Literal["runs", "refuses", "fails when it runs", "never emits a row"]


@dataclass(frozen=True)
class Refused:
    """A program.

    Parameters
    ----------
    text
        It, for people to read.
    program
        Makes it of a stream.
    why
        What the error says; ``…`` is anything.
    in_spark
        What Structured Streaming does with it.
    mode
        Its output mode.
    """

    text: str
    program: Callable[[DataFrame], DataFrame]
    why: str
    in_spark: InSpark = "runs"
    mode: str = "append"


def rides(spark: SparkSession, reader: Any = None) -> DataFrame:
    """Return a stream, another one each time."""
    made = (reader or spark.readStream).format("headgate.datagen").option("rowsPerSecond", 5)
    return made.schema("k long, n long, name string, at timestamp, other timestamp").load()  # type: ignore[no-any-return]


def timed(rows: DataFrame) -> DataFrame:
    """Return rows with a watermark."""
    return rows.withWatermark("at", "1 second")


def windows(rows: DataFrame) -> DataFrame:
    """Return groups of windows."""
    return timed(rows).groupBy(F.window("at", "1 second"), "k").count()


def another(rows: DataFrame) -> DataFrame:
    """Return a second stream."""
    return timed(rides(rows.sparkSession)).toDF("k2", "n2", "name2", "at2", "other2")


def ending(rows: DataFrame) -> DataFrame:
    """Return rows that Spark has."""
    return rows.sparkSession.range(3).select(F.col("id").alias("k"), F.struct("id").alias("s"))


def in_sql(rows: DataFrame, text: str) -> DataFrame:
    """Return a program in SQL of a view ``rides`` and of one that ends, ``ending``."""
    rows.createOrReplaceTempView("rides")
    ending(rows).createOrReplaceTempView("ending")
    return rows.sparkSession.sql(text)


def collated(rows: DataFrame) -> DataFrame:
    """Return rows with a text that is equal to others in another case."""
    return rows.withColumn("c", F.expr("collate(name, 'UTF8_LCASE')"))


def unchanged(batches: Any) -> Any:
    """Return batches as they are."""
    yield from batches


def total(numbers: pd.Series) -> float:
    """Return a sum."""
    return float(numbers.sum())


def whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a group as it is."""
    return rows


def broadcast(rows: DataFrame) -> DataFrame:
    """Return rows of a function that uses a broadcast variable."""
    value = rows.sparkSession.sparkContext.broadcast([1])

    def using(batches: Any) -> Any:
        assert value.value
        yield from batches

    return rows.mapInArrow(using, rows.schema)


SORT = "rows are sorted only after an aggregation, in the output mode 'complete'"
UNKNOWN = "it is not supported yet"
BYTES = "rows are put together by the bytes of a key, which texts that are equal by a collation need not share"
PROGRAMS = (
    # Results.
    Refused(
        "`orderBy` before an aggregation, or in another output mode than `complete`",
        lambda rows: windows(rows).orderBy("k"),
        SORT,
        "refuses",
    ),
    Refused("the same", lambda rows: rows.orderBy("k"), SORT, "refuses"),
    Refused(
        "`limit` in `update`", lambda rows: windows(rows).limit(3), "in the output mode 'update'", "refuses", "update"
    ),
    Refused("`offset`", lambda rows: windows(rows).offset(3), UNKNOWN, "refuses", "complete"),
    Refused(
        "a union of results that are sorted or limited, and of others",
        lambda rows: windows(rows).limit(3).union(windows(rides(rows.sparkSession))),
        "rows of an aggregation are united with results that are sorted or limited",
        mode="complete",
    ),
    Refused(
        "the same, sorted or limited",
        lambda rows: windows(rows).limit(3).union(windows(rows)).limit(2),
        "it follows a union of rows that are sorted or limited and of rows that are not",
        mode="complete",
    ),
    Refused(
        "an operator with state after an aggregation, but in `append`",
        lambda rows: rows.groupBy("k").count().distinct(),
        "there is an operator with state after an aggregation",
        mode="complete",
    ),
    Refused(
        "session windows in `update`",
        lambda rows: timed(rows).groupBy(F.session_window("at", "1 second"), "k").count(),
        "Session windows cannot run continuously in the output mode 'update'",
        "refuses",
        "update",
    ),
    # Windows and watermarks.
    Refused(
        "a session window as a column",
        lambda rows: rows.select(F.session_window("at", "1 second")),
        "… is there when rows are grouped by it",
    ),
    Refused(
        "windows of another column than the watermark's, in `append`",
        lambda rows: timed(rows).groupBy(F.window("other", "1 second")).count(),
        "the watermark is not of the times of its windows, so that none would end",
        "refuses",
    ),
    Refused(
        "a union whose first rows have no watermark, grouped by windows in `append`",
        lambda rows: rows.union(timed(rides(rows.sparkSession))).groupBy(F.window("at", "1 second")).count(),
        "the watermark is not of the times of its windows, so that none would end",
        "refuses",
    ),
    Refused(
        "`withWatermark` of a window",
        lambda rows: rows.select(F.window("at", "1 second").alias("w")).withWatermark("w", "1 second"),
        "the event time is a window, of which Spark reads no time: name its window_time()",
        "never emits a row",
    ),
    Refused(
        "`withWatermark` after an aggregation",
        lambda rows: (
            windows(rows)
            .select(F.window_time("window").alias("t"))
            .withWatermark("t", "1 second")
            .groupBy(F.window("t", "2 seconds"))
            .count()
        ),
        "rows before it come by a watermark, which in Spark waits for this one: nothing ends",
        "never emits a row",
    ),
    Refused(
        "`withWatermark` twice",
        lambda rows: timed(rows).where("k > 0").withWatermark("at", "2 seconds"),
        "Redefining watermark is disallowed: call withWatermark once",
        "fails when it runs",
    ),
    # Duplicates.
    Refused(
        "`dropDuplicates` of rows with several event times",
        lambda rows: timed(rows).withColumn("w", F.window("at", "1 second")).distinct(),
        "its rows have several event times, …: keep one, as in Spark",
        "fails when it runs",
    ),
    Refused(
        "`dropDuplicatesWithinWatermark` without a watermark",
        lambda rows: rows.dropDuplicatesWithinWatermark(["k"]),
        "there is no watermark; call withWatermark before",
        "refuses",
    ),
    # Aggregates and expressions.
    Refused(
        "aggregates of distinct values",
        lambda rows: rows.groupBy("k").agg(F.countDistinct("n")),
        "distinct values of a stream are not aggregated, in Spark's streaming neither",
        "refuses",
        "update",
    ),
    Refused(
        "aggregates with an order",
        lambda rows: rows.groupBy("k").agg(F.expr("listagg(name) WITHIN GROUP (ORDER BY n)")),
        "values of a group are aggregated in the order of arrival, not in another",
        mode="complete",
    ),
    Refused("`input_file_name`", lambda rows: rows.where(F.input_file_name() != ""), "rows of a stream are of no file"),
    Refused(
        "`monotonically_increasing_id`",
        lambda rows: rows.select(F.monotonically_increasing_id()),
        "a stream has none, in Spark neither",
        "refuses",
    ),
    Refused(
        "pandas UDFs that aggregate",
        lambda rows: rows.groupBy("k").agg(F.pandas_udf(total, "double", 202)("n")),
        "pandas functions that aggregate are those of batches, in Spark's streaming too",
        "fails when it runs",
        "update",
    ),
    Refused(
        "groups by several windows of a time with a watermark",
        lambda rows: (
            timed(rows).withColumn("w", F.window("at", "1 second")).groupBy("w", F.window("at", "1 minute")).count()
        ),
        "an aggregation by several windows has no end",
        "fails when it runs",
    ),
    Refused(
        "window functions", lambda rows: rows.selectExpr("rank() OVER (PARTITION BY k ORDER BY n)"), UNKNOWN, "refuses"
    ),
    Refused(
        "`LATERAL` with a table function",
        lambda rows: in_sql(rows, "SELECT * FROM rides, LATERAL sql_keywords()"),
        UNKNOWN,
    ),
    # Keys.
    Refused(
        "a key that is a map: in groups",
        lambda rows: rows.groupBy(F.create_map("name", "k")).count(),
        "its type is …, and no key is or contains a map; array_sort(map_entries(...)) of it can be one",
        mode="complete",
    ),
    Refused(
        "a key that is a text with a collation: in groups",
        lambda rows: collated(rows).groupBy("c").count(),
        BYTES,
        "fails when it runs",
        "complete",
    ),
    Refused(
        "the same in a struct",
        lambda rows: collated(rows).groupBy(F.struct("c", "k")).count(),
        BYTES,
        "fails when it runs",
        "complete",
    ),
    Refused(
        "the same in an array",
        lambda rows: collated(rows).groupBy(F.array("c")).count(),
        BYTES,
        "fails when it runs",
        "complete",
    ),
    Refused(
        "the same in `dropDuplicates`",
        lambda rows: collated(rows).dropDuplicates(["c"]),
        BYTES,
        "fails when it runs",
    ),
    Refused("the same in `repartition`", lambda rows: collated(rows).repartition(2, "c"), BYTES),
    Refused(
        "the same in a join with rows that end",
        lambda rows: collated(rows).join(collated(ending(rows).selectExpr("k AS e", "'x' AS name")).alias("e"), "c"),
        BYTES,
    ),
    Refused(
        "the same in a join of two streams",
        lambda rows: collated(timed(rows)).join(collated(another(rows).withColumnRenamed("name2", "name")), "c"),
        BYTES,
    ),
    Refused(
        "the same in `applyInPandasWithState`",
        lambda rows: (
            collated(rows).groupBy("c").applyInPandasWithState(whole, "k long", "n long", "append", "NoTimeout")
        ),
        BYTES,
    ),
    # Functions.
    Refused(
        "UDFs without Arrow",
        lambda rows: rows.select(F.udf(lambda n: n, "long", useArrow=False)("n")),
        "a UDF that is called with pickled rows is not supported: make it with useArrow=True",
    ),
    Refused(
        "functions with broadcast variables",
        broadcast,
        "its function uses a broadcast variable, or is as large as one (1 MiB)",
    ),
    Refused(
        "`mapInArrow`, `mapInPandas` with `barrier` or a profile",
        lambda rows: rows.mapInArrow(unchanged, rows.schema, barrier=True),
        "barrier mode and resource profiles are those of Spark's own stages",
    ),
    Refused("`groupBy(...).applyInPandas`", lambda rows: rows.groupBy("k").applyInPandas(whole, rows.schema), UNKNOWN),
    # Other operators.
    Refused("`sample`", lambda rows: rows.sample(0.5), UNKNOWN, "refuses"),
    Refused("`observe`", lambda rows: rows.observe("seen", F.count("*").alias("n")), UNKNOWN),
    Refused(
        "`repartitionByRange`",
        lambda rows: rows.repartitionByRange(2, "k"),
        "a stream has no ranges; repartition by the columns themselves",
    ),
    Refused(
        "`intersect`, `exceptAll`",
        lambda rows: rows.select("k").intersect(ending(rows).select("k")),
        UNKNOWN,
        "refuses",
    ),
    Refused(
        "a union with rows that end",
        lambda rows: rows.union(rides(rows.sparkSession, rows.sparkSession.read)),
        "rows that end beside a stream that does not are not supported yet",
        "refuses",
    ),
    Refused(
        "streams that Spark reads itself",
        lambda rows: rows.sparkSession.readStream.schema("k long").json(str(Path(__file__).with_name("golden"))),
        UNKNOWN,
    ),
    Refused(
        "joins without a stream",
        lambda rows: ending(rows).join(ending(rows), "k"),
        "there is no stream in it",
        "refuses",
    ),
    # Joins.
    Refused(
        "joins that keep all rows of the side that ends",
        lambda rows: rows.join(ending(rows), "k", "right"),
        "… is of all rows of the side that ends, and the stream goes on",
        "refuses",
    ),
    Refused(
        "joins with rows that end, without equal columns",
        lambda rows: rows.join(ending(rows), F.expr("n > s.id")),
        "it has no condition that columns of the two sides are equal",
    ),
    Refused(
        "the same with a common table expression",
        lambda rows: in_sql(rows, "WITH e AS (SELECT k FROM ending) SELECT * FROM rides JOIN e USING (k)"),
        "the side that ends is a common table expression; make it a temporary view",
    ),
    Refused(
        "joins of streams without equal columns",
        lambda rows: timed(rows).join(another(rows), F.expr("at = at2 + interval 1 hour or k > k2")),
        "it has no condition that columns of the two streams are equal, as Spark's needs one",
        "fails when it runs",
    ),
    Refused(
        "anti joins of streams, outer joins of them without a bound",
        lambda rows: timed(rows).join(another(rows), F.expr("k = k2"), "left"),
        "Spark does not run this in a stream",
        "refuses",
    ),
)
