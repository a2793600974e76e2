"""Aggregations without a window, built by PySpark, run continuously: what Spark's own batch gives of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.connectors.files.sink import writer
from headgate.errors import OptionError
from headgate.operators import complete_results
from headgate.spark.continuous import foreach_batch
from tests.real.running_queries import PATIENCE_S, held_numbers, stop_all, wait_until
from tests.real.test_continuous_dataframe import finished, generated, in_order

Program = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def by_city(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", (F.col("n") % 2).alias("odd")).agg(F.count("*").alias("rides"), F.sum("n"), F.max("name"))


def windows_of_cities(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "100 milliseconds").groupBy(F.window("at", "200 milliseconds"), "k").count()


def arrays(rows: DataFrame) -> DataFrame:
    """Join by arrays, leave duplicates out and group: by nulls, NaN and both zeros in arrays within structs."""
    numbers = F.when(F.col("n") % 5 > 0, F.expr("array(double('NaN'), -0.0D, 0.0D, double(k))[n % 5 - 1]"))
    keyed = rows.withColumn("a", F.when(F.col("k") > 3, F.array(numbers, F.col("k") % 2.0)))
    keyed = keyed.selectExpr(
        "a", "struct(if(k < 7, array(k % 4 > 1, NULL), NULL) AS x, if(k > 1, array(a), NULL) AS y) AS s"
    )
    known = [([float("nan"), 1.0], "x"), ([0.0, 0.0], "y"), ([None, 1.0], "z"), (None, "of no row")]
    table = rows.sparkSession.createDataFrame(known, "a array<double>, t string")
    return keyed.join(table, "a", "left").distinct().cube("a", "s").agg(F.count("*"), F.max("t"))


PROGRAMS: dict[str, Program] = {
    "keys": by_city,
    "no key": lambda rows: rows.agg(F.count("*"), F.avg("n"), (F.max("n") - F.min("n")).alias("spread")),
    "no rows and no key": lambda rows: rows.where("n < 0").agg(F.count("*"), F.sum("n"), F.collect_list("n")),
    "SQL": lambda rows: rows.sparkSession.sql(
        "SELECT k, count(*) AS rides FROM {rows} GROUP BY k HAVING sum(n) > 1000", rows=rows
    ),
    "rollup": lambda rows: rows.rollup("k", F.col("n") % 3).agg(F.count("*"), F.sum("n"), F.grouping_id()),
    "cube": lambda rows: rows.cube("k", F.length("name").alias("long")).agg(F.grouping("k"), F.max("n")),
    "grouping sets of a window": lambda rows: rows.withWatermark("at", "100 milliseconds").sparkSession.sql(
        """SELECT w.start, k, n % 2 AS odd, sum(n) AS n FROM (SELECT *, window(at, '100 milliseconds') AS w FROM {rows})
           GROUP BY w, GROUPING SETS ((k), (n % 2), ())""",
        rows=rows.withWatermark("at", "100 milliseconds"),
    ),
    "structs, some of which are null": lambda rows: rows.groupBy(
        F.when(F.col("n") % 3 > 0, F.struct("k", F.nullif(F.col("n") % 2, F.lit(1)).alias("even"))).alias("s"), "k"
    ).agg(F.sum("n")),
    "sessions, each row with a gap of its own, or none": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .groupBy(
            F.session_window("at", F.when(F.col("n") % 7 > 0, F.concat(F.col("n") % 5 - 1, F.lit(" milliseconds")))),
            "k",
        )
        .agg(F.count("*"), F.sum("n"))
    ),
    "sessions that last for months": lambda rows: (
        rows.withWatermark("at", "1 day").groupBy(F.session_window("at", "1 month"), "k").count()
    ),
    "a window in a rollup": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .rollup(F.window("at", "60 milliseconds", "20 milliseconds"), F.col("k") % 2)
        .count()
    ),
    "two windows of one row, put together": lambda rows: (
        rows.withColumn("w", F.window("at", "50 milliseconds"))
        .groupBy("w", F.window("at", "120 milliseconds", "60 milliseconds").alias("v"))
        .count()
        .repartition(3)
    ),
    "arrays and structs that have some": arrays,
    "the event time as a key": lambda rows: rows.withWatermark("at", "100 milliseconds").groupBy("at", "k").count(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_ends_gives_what_a_batch_gives(spark: SparkSession, name: str) -> None:
    """In append mode once, in complete mode as the last checkpoint's rows.

    What breaks it breaks
    `tests/real/test_continuous_aggregations.py::test_a_program_that_ends_gives_what_a_batch_gives[rollup]` too.
    """
    expected = in_order(PROGRAMS[name](generated(spark.read)).toArrow().to_pylist())
    assert expected
    for mode in ("append", "complete"):
        table = finished(PROGRAMS[name](generated(spark.read)), mode=mode).table()
        assert in_order(table.to_pylist()) == expected


def test_windows_of_an_earlier_aggregation_are_grouped_by(spark: SparkSession) -> None:
    def program(rows: DataFrame) -> DataFrame:
        return windows_of_cities(rows).groupBy("window").agg(F.count("*"), F.max("count").alias("most"))

    expected = in_order(program(generated(spark.read)).toArrow().to_pylist())
    assert in_order(finished(program(generated(spark.read))).table().to_pylist()) == expected


def test_updates_end_with_what_a_batch_gives(spark: SparkSession) -> None:
    found: dict[Any, dict[str, Any]] = {}
    for row in finished(by_city(generated(spark.readStream)), mode="update").table().to_pylist():
        if row["rides"] >= found.get((row["k"], row["odd"]), row)["rides"]:
            found[row["k"], row["odd"]] = row
    assert in_order(list(found.values())) == in_order(by_city(generated(spark.read)).toArrow().to_pylist())


def test_groups_of_the_event_time_are_complete_when_the_watermark_is_there(spark: SparkSession) -> None:
    """A stream that goes on emits them in append mode; so it does those of windows that were grouped by before."""
    rows = generated(spark.readStream, rows=10**9)
    counted = rows.withWatermark("at", "100 milliseconds").groupBy(F.col("at"), "k").count()
    again = windows_of_cities(rows).groupBy("window").agg(F.count("*").alias("cities"))
    running, of_windows = (
        headgate.continuous(each, parallelism=2).writeStream.format("memory").option("slots", "threads")
        .trigger(continuous="100 milliseconds").start()
        for each in (counted, again)
    )  # fmt: skip
    wait_until(lambda: running.table().num_rows > 500, running)
    assert set(running.table()["count"].to_pylist()) == {1}
    wait_until(lambda: of_windows.table().num_rows > 5, of_windows)
    windows = [each["window"]["start"] for each in of_windows.table().to_pylist()]
    assert len(set(windows)) == len(windows)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_state_goes_on_through_rescales_and_restarts(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """And is spilled: it is larger than its memory.

    What breaks it breaks
    `tests/real/test_continuous_aggregations.py::test_state_goes_on_through_rescales_and_restarts[update]` or
    `tests/unit/operators/windows/test_no_window.py` too.
    """

    def program(reader: Any) -> DataFrame:
        rows = generated(reader, rows=6000, rowsPerSecond=1000)
        grouped = rows.groupBy(F.col("n") * 10 + F.col("k") % 4)
        return grouped.agg(F.count("*"), F.sum("k"), F.max_by("k", "name"), F.percentile_approx("k", 0.5))

    def start(savepoint: str | None = None) -> headgate.ContinuousQuery:
        writer = headgate.continuous(program(spark.readStream), parallelism=2).writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", tmp_path / "checkpoints").option("state.memory", "50k")
        writer = writer.trigger(continuous="300 milliseconds").option("slots", "threads")
        return writer.format("memory").start(fromSavepoint=savepoint)

    query = start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.rescale(3)
    wait_until(lambda: query.status["rowsIn"] > 2500, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    rows = query.table().to_pylist()
    query = start(str(tmp_path / "savepoint"))
    assert query.awaitTermination(PATIENCE_S), query.status
    last = {next(iter(row.values())): row for row in [*rows, *query.table().to_pylist()]}
    found = list(last.values()) if mode == "update" else query.table().to_pylist()
    assert in_order(found) == in_order(program(spark.read).toArrow().to_pylist())


def test_groups_that_never_end_are_not_appended(spark: SparkSession) -> None:
    """As Spark refuses it; and files cannot take back what the checkpoint before wrote."""
    counted = by_city(generated(spark.readStream))
    with pytest.raises(OptionError, match="no group would ever be complete"):
        headgate.continuous(counted, parallelism=1).writeStream.format("noop").start()
    with pytest.raises(OptionError, match="only appends"):
        headgate.continuous(counted, parallelism=1).writeStream.outputMode("complete").format("json").start("out")


def test_a_result_is_sorted_and_cut_as_a_whole(spark: SparkSession) -> None:
    """Over several subtasks, whatever follows, and through a rescale: each result as it is shown, and the last one."""

    def program(rows: DataFrame) -> DataFrame:
        counted = by_city(rows.withColumn("k", F.nullif("k", F.lit(4))))
        most = counted.orderBy(F.desc("rides"), F.asc_nulls_last("k"), F.length("max(name)"), "odd").limit(15)
        return most.where("odd = 1").select("k", F.col("rides") * 2, F.sin("k"))

    rows = generated(spark.readStream, rows=6000, rowsPerSecond=2000)
    made = headgate.continuous(program(rows), parallelism=2).writeStream.format("memory").outputMode("complete")
    query = made.option("slots", "threads").trigger(continuous="50 milliseconds").start()
    seen: list[list[int]] = []

    def shown(rows: int) -> bool:
        seen.append(query.table().column(1).to_pylist())
        return bool(query.status["rowsIn"] > rows)

    wait_until(lambda: shown(1500), query)
    query.rescale(3)
    wait_until(lambda: shown(4000), query)
    assert query.awaitTermination(PATIENCE_S), query.status
    assert all(each == sorted(each, reverse=True) and len(each) <= 15 for each in seen)
    assert query.table().to_pylist() == program(generated(spark.read, rows=6000)).toArrow().to_pylist()


def test_a_limit_is_of_all_rows_that_there_ever_are(spark: SparkSession, tmp_path: Path) -> None:
    """Through a rescale and a restart, before and after a filter, in append mode; and before an aggregation."""
    may_end = tmp_path / "may-end"
    # Three of four splits, which is what is read before it may end, have fewer than the limit.
    rows = held_numbers(spark, may_end, rows=2000).limit(1990).where("value % 8 < 4").limit(900)

    def start(savepoint: str | None = None) -> headgate.ContinuousQuery:
        made = headgate.continuous(rows, parallelism=2).writeStream.format("memory").option("slots", "threads")
        made = made.option("checkpointLocation", tmp_path / "checkpoints").trigger(continuous="100 milliseconds")
        return made.start(fromSavepoint=savepoint)

    query = start()
    wait_until(lambda: query.table().num_rows > 200, query)
    query.rescale(3)
    wait_until(lambda: query.table().num_rows > 500, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    before = query.table()["value"].to_pylist()
    query = start(str(tmp_path / "savepoint"))
    may_end.touch()
    assert query.awaitTermination(PATIENCE_S), query.status
    # What the savepoint had may be in both tables.
    after = query.table()["value"].to_pylist()
    assert len(set(before)) == len(before) < 900 == len({*before, *after}) and len(set(after)) == len(after)
    counted = generated(spark.read).limit(321).agg(F.count("*").alias("n"))
    assert finished(counted, mode="complete").table().to_pylist() == [{"n": 321}]


def test_a_sorted_batch_of_foreach_batch_is_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was staged in several files, of which Spark reads the largest first."""
    monkeypatch.setattr(complete_results, "RESULT_ROWS", 3)
    monkeypatch.setattr(writer, "_HELD_BYTES", 1)
    monkeypatch.setattr(foreach_batch, "_TARGET_BYTES", 1)
    batches: list[tuple[int, list[Any]]] = []

    def take(batch: DataFrame, number: int) -> None:
        batches.append((len(batch.inputFiles()), [tuple(row) for row in batch.collect()]))

    frame = by_city(generated(spark.read)).orderBy(F.desc("sum(n)")).limit(19)
    made = headgate.continuous(frame, parallelism=2).writeStream.outputMode("complete").foreachBatch(take)
    query = made.option("slots", "threads").option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    files, rows = batches[-1]
    assert files > 4
    assert rows == [tuple(row) for row in frame.collect()]


AGGREGATES = (
    "stddev(n)", "stddev_pop(n)", "var_samp(n)", "var_pop(n)", "var_samp(if(n % 200 = k, n, NULL))",
    "stddev(1000 + n / 3)", "var_pop(if(n > 990, double('inf'), n))", "stddev_pop(n) FILTER (WHERE n < 0)",
    "skewness(n)", "kurtosis(n)",
    "covar_pop(n, k)", "covar_samp(n, k)", "max_by(k, struct(n, name))",
    "min_by(struct(n), n)", "approx_percentile(n, 0.5, 10000)", "approx_percentile(n, array(0.1, 0.9), 10000)",
    "percentile(n, 0.25)", "median(n)", "sort_array(collect_set(n % 7))", "count(n, nullif(k, 3))",
    "count(nullif(n % 2, 0), nullif(k, 3))", "try_sum(n)", "try_avg(n)", "try_sum(n * 9000000000000000)",
    "bit_xor(n)", "bit_and(n)", "bool_and(n >= 0)", "some(n > 990)", "every(n > 3)", "any_value(k)",
    "count_if(n % 3 = 0)", "first(nullif(k, k)) FILTER (WHERE n > 3)", "last(k) FILTER (WHERE n > 3)",
    "stddev(n) FILTER (WHERE n % 5 = 1)", "size(histogram_numeric(n, 3))", "max(struct(n, name))",
    "min(struct(nullif(n % 7, 0) / 2 AS half, name)) FILTER (WHERE n > 3)", "max(struct(struct(n), array(k)))",
    "hll_sketch_estimate(hll_sketch_agg(n))", "bitmap_count(bitmap_construct_agg(n))",
    "mean(n) + max(k)", "format_number(sum(n), 2)",
    "map_from_arrays(array('all'), array(count(*)))", "sum(cast(n AS decimal(10, 2)))",
)  # fmt: skip


def types(schema: pa.Schema) -> list[str]:
    """Return the types of columns, but for what may be null and how Arrow calls the elements of a list."""
    return [str(each).replace(" not null", "").replace("<element:", "<item:") for each in schema.types]


def many(rows: DataFrame, groups: str, aggregates: Sequence[str]) -> DataFrame:
    rows.withWatermark("at", "100 milliseconds").createOrReplaceTempView("rides")
    columns = ", ".join(f"{each} AS a{number}" for number, each in enumerate(aggregates))
    named = f"{groups} AS g, " if groups else ""
    return rows.sparkSession.sql(
        f"SELECT {named}k AS key, {columns} FROM rides GROUP BY {groups}{', ' * bool(groups)}k"
    )


@pytest.mark.parametrize(
    ("groups", "aggregates"),
    [
        ("", AGGREGATES),
        ("window(at, '100 milliseconds')", AGGREGATES),
        ("session_window(at, '500 microseconds')", AGGREGATES),
        pytest.param("", ("corr(n, k)", "regr_slope(n, k)"), marks=pytest.mark.spark_since("corr-of-constants")),
    ],
    ids=["groups", "windows", "sessions", "of constants"],
)
def test_every_aggregate_of_spark_s(spark: SparkSession, groups: str, aggregates: Sequence[str]) -> None:
    """What Arrow does not aggregate as Spark does is aggregated by Spark's own code.

    What breaks it breaks
    `tests/real/test_continuous_aggregations.py::test_every_aggregate_of_spark_s[sessions]` or
    `tests/real/test_windows_equal_spark.py` too.
    """
    expected = many(generated(spark.read), groups, aggregates).toArrow()
    ours = finished(many(generated(spark.read), groups, aggregates)).table()
    assert types(ours.schema) == types(expected.schema)

    def by_group(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {repr((row.get("g"), row["key"])): row for row in rows}

    found = by_group(ours.to_pylist())
    theirs = by_group(expected.to_pylist())
    assert found.keys() == theirs.keys()
    for group, row in theirs.items():
        for number, aggregate in enumerate(aggregates):
            mine, its = found[group][f"a{number}"], row[f"a{number}"]
            if isinstance(its, float):
                its = pytest.approx(its, rel=1e-9, abs=1e-9, nan_ok=True)
            assert mine == its, (group, aggregate)
