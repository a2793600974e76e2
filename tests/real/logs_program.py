"""A query whose function fails once, in a process of its own: its standard error is what a user has in the log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import headgate

folder = Path(sys.argv[1])


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not (folder / "failed").exists():
            (folder / "failed").touch()
            raise ValueError("this row\nis bad")
        yield batch


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 100).option("numRows", 50)
query = (
    headgate.continuous(numbers.schema("n long").load().mapInArrow(fail_once, "n long"), parallelism=1)
    .writeStream.queryName("numbers")
    .format("noop")
    .option("checkpointLocation", str(folder / "checkpoints"))
    .option("log.structuredLogging.enabled", True)
    .option("restart-strategy", "fixed-delay")
    .option("restart-strategy.delay", "10 milliseconds")
    .start()
)
query.awaitTermination()
spark.stop()
