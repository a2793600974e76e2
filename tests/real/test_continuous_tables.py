"""``toTable`` of continuous queries: ``spark.table`` sees what is committed, and what Spark refuses is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate.errors import OptionError, UnsupportedOperationError
from headgate.spark.continuous.tables import TableSink, table_for
from tests.real.running_queries import PATIENCE_S, stop_all


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A name that no table has; it is dropped again, and so is its folder if the table is managed."""
    made = f"t{uuid.uuid4().hex[:12]}"
    yield made
    stop_all()
    spark.sql(f"DROP TABLE IF EXISTS {made}")


def counted(spark: SparkSession, rows: int = 200) -> DataFrame:
    options = {"numRows": rows, "rowsPerSecond": 1000, "fields.n.kind": "sequence"}
    made = spark.readStream.format("headgate.datagen").options(**options).schema("n long").load()
    return made.selectExpr("n", "concat('k', n % 3) AS k")


def writing(frame: DataFrame, location: Path) -> Any:
    options = {"slots": "threads", "checkpointLocation": str(location)}
    return headgate.continuous(frame, 1).writeStream.options(**options).trigger(continuous="200 milliseconds")


def rows(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(name).select("n", "k").collect())


EXPECTED = [(n, f"k{n % 3}") for n in range(200)]


def test_a_managed_table_is_created_and_appended_to(spark: SparkSession, tmp_path: Path, name: str) -> None:
    query = writing(counted(spark), tmp_path / "first").toTable(name, queryName=f"q-{name}")
    assert query.name == f"q-{name}"
    assert spark.table(name).schema.simpleString() == "struct<n:bigint,k:string>", "it is there at once"
    assert query.awaitTermination(PATIENCE_S)
    assert rows(spark, name) == EXPECTED
    provider = spark.sql(f"DESCRIBE EXTENDED {name}").where("col_name = 'Provider'").head()
    assert provider is not None and provider.data_type.lower() == "parquet"

    assert writing(counted(spark), tmp_path / "second").toTable(name).awaitTermination(PATIENCE_S)
    assert rows(spark, name) == sorted(EXPECTED * 2), "though this session had read the table before"


def test_a_partitioned_table_at_a_path(spark: SparkSession, tmp_path: Path, name: str) -> None:
    given = {"format": "csv", "partitionBy": "k", "path": str(tmp_path / "it's out"), "header": True}
    assert writing(counted(spark), tmp_path / "first").toTable(name, **given).awaitTermination(PATIENCE_S)
    assert rows(spark, name) == EXPECTED
    assert {each.name for each in (tmp_path / "it's out").glob("k=*")} == {"k=k0", "k=k1", "k=k2"}
    # A table that is there says by itself how it is partitioned and read.
    again = writing(counted(spark), tmp_path / "second").toTable(f"spark_catalog.default.{name}", format="csv")
    assert again.awaitTermination(PATIENCE_S)
    assert rows(spark, name) == sorted(EXPECTED * 2)


def test_what_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    frame = counted(spark)
    spark.sql(f"CREATE TABLE {name} (n bigint, k string) USING json LOCATION '{tmp_path / 'out'}'")
    spark.range(1).createOrReplaceTempView(f"view_{name}")
    spark.sql(f"CREATE VIEW {name}_view AS SELECT 1 AS n")

    def refused(error: type[Exception], message: str, table: str = name, of: DataFrame = frame, **given: Any) -> None:
        with pytest.raises(error, match=message):
            writing(of, tmp_path / "checkpoint").toTable(table, **given)

    try:
        refused(
            OptionError, rf"input source\(parquet\) is different from the table {name}'s data source provider\(json"
        )
        refused(OptionError, "partitioned by no column", format="json", partitionBy=["k"])
        refused(OptionError, "Select and cast", of=frame.selectExpr("string(n) AS n", "k"), format="json")
        refused(UnsupportedOperationError, "Temporary view view_.* doesn't support", table=f"view_{name}")
        refused(UnsupportedOperationError, "Streaming into views", table=f"{name}_view")
        refused(UnsupportedOperationError, "one of orc", table=f"{name}_2", format="orc")
        refused(UnsupportedOperationError, "Use foreachBatch", table=f"{name}.of.too.many.names")
        refused(OptionError, "Partition column x not found", table=f"{name}_2", partitionBy=["x"])
        assert not spark.catalog.tableExists(f"{name}_2"), "what is refused has created nothing"
        spark.sql(f"INSERT INTO {name} VALUES (1, 'k')")
        refused(OptionError, "once there is one, readers no longer see", format="json")
    finally:
        spark.sql(f"DROP VIEW {name}_view")
        spark.catalog.dropTempView(f"view_{name}")


def test_columns_whose_names_differ_in_case_are_two_where_the_session_says_so(spark: SparkSession, name: str) -> None:
    schema = pa.schema({"n": pa.int64(), "N": pa.string()})
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        table = table_for(spark, name, "json", schema, ["N"], {})
        assert spark.table(name).schema.simpleString() == "struct<n:bigint,N:string>"
        TableSink(spark, table, "json", {}, schema, "UTC")
        with pytest.raises(OptionError, match="partitioned by N"):
            table_for(spark, name, "json", schema, ["n"], {})
        with pytest.raises(OptionError, match="Select and cast"):
            table_for(spark, name, "json", pa.schema({"N": pa.int64(), "n": pa.string()}), (), {})
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    with pytest.raises(OptionError, match=r"unless spark\.sql\.caseSensitive is true"):
        TableSink(spark, msgspec.structs.replace(table, partition_by=()), "json", {}, schema, "UTC")
