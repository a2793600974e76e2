"""Generated data: a hundred thousand rows as a batch, and the same rows as a stream that gets them second by second.

python examples/generated_data.py
"""

import os
import sys
import tempfile
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, sum, xxhash64

ROWS = 100_000
SCHEMA = "user string, amount decimal(10,2), at timestamp"
OPTIONS = {
    "numRows": str(ROWS),
    "rowsPerSecond": "50000",
    "numPartitions": "2",
    "seed": "42",
    "startTimestamp": "2026-01-01",
    "fields.user.cardinality": "1000",
    "fields.user.skew": "1.1",  # few users make most of the rows
    "fields.amount.min": "0.99",
    "fields.amount.max": "250.00",
    "fields.amount.null-rate": "0.01",
}


def fingerprint(rows: DataFrame) -> tuple[int, int, int]:
    """Return how many rows there are, how many amounts, and a number that any other row would change."""
    found = rows.agg(
        count("*"), count("amount"), sum((xxhash64("user", "amount", "at") % 1_000_003).cast("long"))
    ).first()
    assert found is not None
    return tuple(found)


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    batch = spark.read.format("headgate.datagen").options(**OPTIONS).schema(SCHEMA).load()
    batch.groupBy("user").count().orderBy("count", ascending=False).show(5)
    in_batch = fingerprint(batch)
    print("batch: ", in_batch)

    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("headgate.datagen").options(**OPTIONS).schema(SCHEMA).load()
            .writeStream.format("parquet").option("path", f"{folder}/rows")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(processingTime="1 second").start()
        )  # fmt: skip
        deadline, rows = time.monotonic() + 180, 0
        while rows < ROWS and query.isActive and time.monotonic() < deadline:
            time.sleep(0.5)
            rows = 0
            for progress in query.recentProgress:
                rows += progress.numInputRows
        query.stop()
        in_stream = fingerprint(spark.read.parquet(f"{folder}/rows"))
    print("stream:", in_stream, "in", len(query.recentProgress), "micro-batches")
    spark.stop()

    if in_batch != in_stream or in_batch[0] != ROWS:
        sys.exit("the stream and the batch differ")


if __name__ == "__main__":
    main()
