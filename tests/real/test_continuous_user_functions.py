"""Users' functions in the expressions of continuous queries, and ``mapInPandas``: the same rows as in Spark's batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import UnsupportedOperationError, UserFunctionError
from headgate.spark.compatibility import supports
from tests.real.running_queries import stop_all
from tests.real.test_continuous_dataframe import check, finished, generated, in_order

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def shout(text: Any, times: int = 1) -> Any:
    return None if text is None else str(text).upper() * times


def twice(n: Any) -> Any:
    return None if n is None else n * 2


def parts(at: Any, n: int) -> Any:
    return at.year, at, [n, None, n + 1]


def seven() -> float:
    return 7.0


def plus(left: pd.Series, right: pd.Series) -> pd.Series:
    return left + right


def local_hour(at: pd.Series) -> pd.Series:
    return at.dt.strftime("%d %H:%M")


def counted(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for each in batches:
        yield each + 1


def both(numbers: pd.Series, names: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"a": numbers, "b": names.str.upper()})


def negated(numbers: pa.Array) -> pa.Array:
    return pc.negate(numbers)


def negated_all(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for each in batches:
        yield pc.negate(each)


ARROW = supports("arrow-udf")


def functions() -> SimpleNamespace:
    """Return them as what Spark calls, which needs a session."""
    return SimpleNamespace(
        shout=F.udf(shout, "string"),
        twice=F.udf(twice, "long"),
        parts=F.udf(parts, "struct<year: int, at: timestamp, all: array<long>>"),
        seven=F.udf(seven, "double"),
        plus=F.pandas_udf(plus, "long"),
        local_hour=F.pandas_udf(local_hour, "string"),
        counted=F.pandas_udf(counted, "long"),
        both=F.pandas_udf(both, "a long, b string"),
        **({"negated": F.arrow_udf(negated, "long"), "negated_all": F.arrow_udf(negated_all, "long")} if ARROW else {}),
    )


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "python": lambda u: u.shout("name"),
    "by name": lambda u: u.shout(times=F.lit(2), text=F.col("name")),
    "struct, moments in the local time": lambda u: u.parts("at", "n"),
    "field of a result": lambda u: u.parts("at", "n").all,
    "without an argument": lambda u: u.seven(),
    "pandas": lambda u: u.plus("n", F.col("k") * 10),
    "pandas, in the session's time zone": lambda u: u.local_hour("at"),
    "pandas, an iterator": lambda u: u.counted("n"),
    "pandas, a struct": lambda u: u.both("n", "name"),
    "arrow": lambda u: u.negated("n"),
    "arrow, an iterator": lambda u: u.negated_all(F.col("n") + 1),
    "one on the other": lambda u: u.twice(u.twice(u.twice("n"))),
    "of three kinds": lambda u: u.twice(u.plus(u.twice("n"), u.negated("k"))),
    "an argument that Spark's code evaluates": lambda u: u.shout(F.sha2("name", 256)),
    "a result that Spark's code gets": lambda u: F.sha2(u.shout("name"), 256),
    "in a branch": lambda u: F.when(F.col("n") > 500, u.twice("n")).otherwise(u.twice("k")) + 1,
    "of another function's window of columns": lambda u: F.concat(u.shout(F.initcap(u.shout("name"))), F.lit("!")),
}
if not ARROW:
    for each in ("arrow", "arrow, an iterator", "of three kinds"):
        del COLUMNS[each]


@pytest.fixture
def in_kolkata(spark: SparkSession) -> Iterator[None]:
    """Have a time zone that is not that of the process."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.usefixtures("in_kolkata")
def test_columns(spark: SparkSession) -> None:
    """All of them in one projection."""
    u = functions()
    expected, found = (
        frame.select("n", *(made(u).alias(name) for name, made in COLUMNS.items()))
        for frame in (generated(spark.read), generated(spark.readStream))
    )
    theirs, ours = expected.toArrow(), finished(found).table()
    assert ours.schema.names == theirs.schema.names and ours.num_rows == theirs.num_rows > 0
    theirs = theirs.cast(ours.schema)
    for name in COLUMNS:
        assert in_order(ours.select(["n", name]).to_pylist()) == in_order(theirs.select(["n", name]).to_pylist()), name


@pytest.mark.usefixtures("in_kolkata")
def test_moments_are_of_the_session_s_time_zone_in_batches(spark: SparkSession) -> None:
    check(spark, lambda rows: rows.mapInArrow(hours, "n long, hour string"))


PROGRAMS: dict[str, Callable[[DataFrame, Any], DataFrame]] = {
    "a filter": lambda rows, u: rows.where(
        (u.twice("n") % 3 == 0) & (F.col("k") > 2) & F.sha2(u.shout("name"), 256).isNotNull()
    ),
    "a filter by text, of a registered function": lambda rows, u: rows.where("registered(n) > 1000"),
    "used twice": lambda rows, u: (
        rows.withColumn("m", u.twice("n")).where("m > 10").select("m", -F.col("m"), u.twice("m"))
    ),
    "a key": lambda rows, u: (
        rows.withWatermark("at", "100 milliseconds")
        .groupBy(F.window("at", "100 milliseconds"), u.shout("name"))
        .count()
    ),
    "an aggregate's argument": lambda rows, u: (
        rows.withWatermark("at", "100 milliseconds")
        .groupBy(F.window("at", "100 milliseconds"))
        .agg(F.sum(u.twice("n")).alias("n"))
    ),
    "mapInPandas": lambda rows, u: rows.mapInPandas(doubled, "n long, at timestamp, name string"),
}


def hours(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        yield pa.RecordBatch.from_arrays([each["n"], pc.strftime(each["at"], "%H %Z")], ["n", "hour"])


def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["name", "at", "n"]].assign(n=frame["n"] * 2)
        yield frame[frame["k"] == 3][["n", "name", "at"]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(spark: SparkSession, name: str) -> None:
    u = functions()
    spark.udf.register("registered", u.twice)
    check(spark, lambda rows: PROGRAMS[name](rows, u))


def test_a_row_is_not_given_to_a_function_that_another_condition_leaves_out(spark: SparkSession) -> None:
    inverse = F.udf(lambda n: 1 / n, "double")

    def program(rows: DataFrame) -> DataFrame:
        return rows.where((inverse(F.col("n") % 5) > 0.3) & (F.col("n") % 5 != 0))

    check(spark, program)


def test_what_a_function_raises_is_raised_with_its_traceback(spark: SparkSession) -> None:
    @F.udf("long")
    def unlucky(n: int) -> int:
        return n // (n % 100)

    frame = generated(spark.readStream).select(unlucky("n"))
    query = headgate.continuous(frame, parallelism=2).writeStream.format("memory").option("restart-strategy", "none")
    with pytest.raises(UserFunctionError, match=r"unlucky\(n\).* raised ZeroDivisionError") as raised:
        query.option("slots", "threads").start().awaitTermination(120)
    assert "n // (n % 100)" in "".join(map(str, (raised.value, *getattr(raised.value, "__notes__", ())))) or (
        raised.value.__cause__ is not None
    )


def test_records_on_which_a_function_fails_can_be_skipped(spark: SparkSession) -> None:
    @F.udf("long")
    def unlucky(n: int) -> int:
        return n // (n % 100)

    writer = headgate.continuous(generated(spark.readStream).select(unlucky("n").alias("n")), parallelism=2).writeStream
    query = writer.format("memory").option("slots", "threads").option("badRecords", "skip").start()
    assert query.awaitTermination(120)
    expected = generated(spark.read).where("n % 100 != 0").select(unlucky("n").alias("n"))
    assert in_order(query.table().to_pylist()) == in_order(expected.toArrow().to_pylist())


def test_in_slots_that_are_spark_s_tasks(spark: SparkSession) -> None:
    u = functions()
    frame = generated(spark.readStream).select(u.twice(u.plus("n", "k")).alias("n"), u.shout("name").alias("name"))
    query = headgate.continuous(frame, parallelism=2).writeStream.format("memory").start()
    assert query.awaitTermination(120)
    expected = generated(spark.read).selectExpr("(n + k) * 2 AS n", "upper(name) AS name")
    assert in_order(query.table().to_pylist()) == in_order(expected.toArrow().to_pylist())


def test_what_cannot_be_called_is_named(spark: SparkSession) -> None:
    shared = spark.sparkContext.broadcast([1, 2, 3])
    rows = generated(spark.readStream)
    with pytest.raises(UnsupportedOperationError, match="broadcast variable"):
        finished(rows.select(F.udf(lambda n: shared.value[n % 3], "long")("n")))
    with pytest.raises(UnsupportedOperationError, match="useArrow"):
        finished(rows.select(F.udf(lambda n: n, "long", useArrow=False)("n")))
