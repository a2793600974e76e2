"""The source keeps the promises of the contract, and Spark finds and reads it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headgate.testing.conformance import conformance_test, simple
from pyspark.sql import SparkSession

from own_connector import OwnConnector

FIRST_MS = 1_767_225_600_000  # 2026-01-01 00:00 UTC


def append(folder: Path, station: str, lines: int) -> None:
    """Append lines of two readings each."""
    path = folder / f"{station}.jsonl"
    there = path.read_text().count("\n") if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        for line in range(there, there + lines):
            at_ms = [FIRST_MS + 60_000 * reading for reading in (2 * line, 2 * line + 1)]
            readings = [{"station": station, "at": at, "degrees": line / 2} for at in at_ms]
            file.write(json.dumps(readings, ensure_ascii=False) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(tmp_path, "Graz", lines=3)
    append(tmp_path, "Zürich", lines=5)
    return tmp_path


def add_rows(folder: Path) -> None:
    append(folder, "Graz", lines=2)  # to a split that is known
    append(folder, "Bern", lines=1)  # and to one that has to be discovered


test_promise = conformance_test(lambda folder: simple(OwnConnector, {"path": str(folder)}), add_rows=add_rows)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield spark
    spark.stop()


def test_spark_finds_and_reads_it(spark: SparkSession, folder: Path) -> None:
    rows = spark.read.format("own_connector").option("path", str(folder)).load()
    assert rows.dtypes == [("station", "string"), ("at", "timestamp"), ("degrees", "double")]
    assert {row["station"]: row["count"] for row in rows.groupBy("station").count().collect()} == {
        "Graz": 6,
        "Zürich": 10,
    }
