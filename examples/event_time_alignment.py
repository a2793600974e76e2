"""Two folders read at different speeds into one window: what Spark drops without alignment, and nothing with it.

python examples/event_time_alignment.py
"""

import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import max, sum, window
from pyspark.sql.streaming import StreamingQuery

HOURS, ROWS_AN_HOUR = 12, 3600
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "region string, at timestamp"
ALIGNMENT = {
    "eventTimeColumn": "at",
    "scan.watermark.alignment.group": "regions",
    "scan.watermark.alignment.max-drift": "1 hour",
}


def write_hours(folder: str, region: str) -> None:
    """Write a file for each hour, with a row for each second."""
    os.makedirs(f"{folder}/{region}")
    for hour in range(HOURS):
        times = [BEGIN + timedelta(hours=hour, seconds=second) for second in range(ROWS_AN_HOUR)]
        rows = pa.table({"region": [region] * len(times), "at": pa.array(times, pa.timestamp("us", "UTC"))})
        pq.write_table(rows, f"{folder}/{region}/{hour:02}.parquet")


def stream(spark: SparkSession, folder: str, region: str, files_a_batch: int, options: dict[str, str]) -> DataFrame:
    """Return one region's rows as a stream."""
    return (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "parquet")
        .option("maxFilesPerTrigger", files_a_batch)
        .options(**options)
        .schema(SCHEMA)
        .load(f"{folder}/{region}")
    )


def rows_in_windows(spark: SparkSession, folder: str, name: str, options: dict[str, str]) -> int:
    """Count the rows of both regions by the hour, and return how many rows the windows have got."""
    north = stream(spark, folder, "north", 6, options)  # three times as fast as the south
    south = stream(spark, folder, "south", 2, options)
    query = (
        north.union(south)
        .withWatermark("at", "2 hours")  # at least max-drift, and the disorder inside a split
        .groupBy(window("at", "1 hour"), "region").count()
        .writeStream.format("memory").queryName(name).outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint-{name}")
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    counted = spark.table(name).groupBy("window", "region").agg(max("count").alias("rows")).agg(sum("rows")).first()
    assert counted is not None
    print(f"{name}: {len(query.recentProgress)} micro-batches; the watermark ended at {watermark_of(query)}")
    rows: int = counted[0]
    return rows


def watermark_of(query: StreamingQuery) -> str:
    """Return the watermark of the last micro-batch."""
    progress = query.lastProgress
    return "" if progress is None else progress.eventTime["watermark"]


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = (
        SparkSession.builder.master("local[2]").appName("event-time-alignment")
        .config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false").getOrCreate()
    )  # fmt: skip
    written = 2 * HOURS * ROWS_AN_HOUR
    with tempfile.TemporaryDirectory() as folder:
        for region in ("north", "south"):
            write_hours(folder, region)
        for name, options in (("unaligned", {}), ("aligned", ALIGNMENT)):
            counted = rows_in_windows(spark, folder, name, options)
            print(f"{name}: {counted:,} of {written:,} rows are in the windows; {written - counted:,} came too late")
    spark.stop()


if __name__ == "__main__":
    main()
