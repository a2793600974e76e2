"""Programs that PySpark has built, run continuously on real Spark: the same rows as Spark's own batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from tests.real.running_queries import PATIENCE_S, stop_all

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

COLUMNS = "k long, n long, name string, at timestamp"
Program = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def generated(reader: Any, rows: int = 2000, **options: Any) -> DataFrame:
    """Return generated rows, the same whoever reads them."""
    given = {"numRows": rows, "rowsPerSecond": 1000, "numPartitions": 3, "fields.k.min": 0, "fields.k.max": 9}
    given |= {"fields.n.min": 0, "fields.n.max": 999}
    return reader.format("headgate.datagen").options(**given, **options).schema(COLUMNS).load()  # type: ignore[no-any-return]


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
