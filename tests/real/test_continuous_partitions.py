"""``partitionBy`` of continuous queries: folders and rows as Spark's own writer makes them, and each row once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import OptionError
from tests.real.running_queries import PATIENCE_S, stop_all

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

VALUES = """
    (1, 'a/b=c', 1.5D, 2.5BD, date'2024-02-29', timestamp'2024-02-29 12:30:00', timestamp_ntz'2024-02-29 12:30:00.25', true),
    (2, null, 1e10D, 0BD, null, timestamp'1999-12-31 23:59:59.5', null, false),
    (3, '', null, null, date'0999-01-01', null, timestamp_ntz'2000-01-01 00:00:00', null),
    (4, 'x y{}', -0.0D, -1.0BD, date'2024-02-29', timestamp'2024-02-29 12:30:00', timestamp_ntz'2024-02-29 12:30:00.25', true)
"""  # noqa: E501
COLUMNS = "n, text, real, exact, day, at, local, yes"


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """Return rows to be read, by a query that ends."""
    spark.sql(f"SELECT * FROM VALUES {VALUES} AS t ({COLUMNS})").coalesce(1).write.parquet(str(folder))
    stored = spark.read.parquet(str(folder))
    reader = spark.read.format("headgate.files").option("fileFormat", "parquet").schema(stored.schema)
    return reader.load(str(folder))


def run(writer: Any, location: Path, **options: str) -> None:
    given = {"checkpointLocation": str(location), **options}
    query = writer.options(**given).trigger(continuous="200 milliseconds").start()
    assert query.awaitTermination(PATIENCE_S), query.status


def folders(out: Path) -> set[str]:
    """Return the folders that have files, but for those that no reader lists."""
    found = {each.parent.relative_to(out).as_posix() for each in out.rglob("*") if each.is_file()}
    return {each for each in found if not each.startswith(("_", ".")) or "=" in each}


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("parquet", ["text"]), ("parquet", ["real", "yes"]), ("parquet", ["exact", "day"]),
        ("parquet", ["at", "local"]),
        ("json", ["text", "yes"]), ("csv", ["at", "n"]),
    ],
)  # fmt: skip
def test_folders_and_rows_are_those_of_spark(spark: SparkSession, tmp_path: Path, name: str, by: list[str]) -> None:
    rows = read(spark, tmp_path / "in")
    ours, spark_s = tmp_path / "out", tmp_path / "spark"
    rows.coalesce(1).write.partitionBy(*by).format(name).save(str(spark_s))
    writer = headgate.continuous(rows, 1).writeStream.partitionBy(*by).format(name).option("path", str(ours))
    run(writer, tmp_path / "checkpoint", slots="threads")
    assert folders(ours) == folders(spark_s) - {"."}

    reader = spark.read.format(name)
    if name != "parquet":
        in_files = [each for each in rows.schema if each.name not in by]
        reader = reader.schema(", ".join(f"{each.name} {each.dataType.simpleString()}" for each in in_files))
    found, expected = reader.load(str(ours)), reader.load(str(spark_s))
    assert found.schema == expected.schema
    assert set(map(str, found.collect())) == set(map(str, expected.collect())) and found.count() == 4

    # Spark prunes by the folders that the log names.
    column = found.columns[-1]
    value = next(each[column] for each in expected.collect() if each[column] is not None)
    chosen = found.where(F.col(column) == F.lit(value))
    assert set(map(str, chosen.collect())) == set(map(str, expected.where(F.col(column) == F.lit(value)).collect()))
    scan = chosen._jdf.queryExecution().executedPlan().toString()
    assert f"PartitionFilters: [isnotnull({column}" in scan, scan


def test_a_stream_reads_what_is_published(spark: SparkSession, tmp_path: Path) -> None:
    """And a second query goes on in the same folder."""
    ours = tmp_path / "out"
    rows = read(spark, tmp_path / "in").select("n", "text")
    for number in range(2):
        writer = headgate.continuous(rows, 1).writeStream.partitionBy(["text"]).format("parquet")
        run(writer, tmp_path / f"checkpoint-{number}", slots="threads", path=str(ours))
    seen: list[tuple[int, str | None]] = []
    stream = spark.readStream.schema("n int, text string").parquet(str(ours))
    copying = stream.writeStream.foreachBatch(lambda batch, _: seen.extend(map(tuple, batch.collect())))
    copying.option("checkpointLocation", str(tmp_path / "stream")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen, key=str) == sorted([(1, "a/b=c"), (2, None), (3, None), (4, "x y{}")] * 2, key=str)


def test_each_row_is_there_once_though_workers_die(spark: SparkSession, tmp_path: Path) -> None:
    ours, dead = tmp_path / "out", tmp_path / "dead"
    generated = spark.readStream.format("headgate.datagen").schema("n long").options(
        **{"numRows": 6000, "rowsPerSecond": 1500, "numPartitions": 2, "fields.n.kind": "sequence"}
    ).load()  # fmt: skip

    @F.udf("string")
    def fatal(n: int) -> str:
        """Kill the worker the first time that each of three rows is seen."""
        if n in (1500, 3000, 4500) and not (dead.with_suffix(f".{n}")).exists():
            dead.with_suffix(f".{n}").touch()
            os._exit(9)
        return f"k{n % 7}"

    keyed = generated.withColumn("k", fatal("n")).withColumn("tens", F.col("n") % 10)
    run(headgate.continuous(keyed, 2).writeStream.partitionBy("k", "tens").format("parquet"),
        tmp_path / "checkpoint", path=str(ours), publishInterval="0 seconds")  # fmt: skip
    assert len(list(tmp_path.glob("dead.*"))) == 3
    found = spark.read.parquet(str(ours)).select("n", "k", "tens").collect()
    assert sorted((row.n, row.k, row.tens) for row in found) == [(n, f"k{n % 7}", n % 10) for n in range(6000)]


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        (lambda writer: writer.partitionBy("x").format("parquet"), r"Partition column x not found in existing columns"),
        (lambda writer: writer.partitionBy("n").format("memory"), "'memory' does not support partitioning"),
        (lambda writer: writer.partitionBy("n").foreachBatch(print), "'foreachBatch' does not support partitioning"),
    ],
)
def test_what_is_refused_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, writes: Any, message: str
) -> None:
    rows = spark.readStream.format("headgate.datagen").schema("n long, m long").load()
    with pytest.raises(OptionError, match=message):
        writes(headgate.continuous(rows, 1).writeStream).option("checkpointLocation", str(tmp_path)).start("out")
