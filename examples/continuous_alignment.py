"""Two sources in one continuous query, one much denser: how far the other is read ahead of it, aligned and not.

python examples/continuous_alignment.py
"""

import os
import sys
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate

SECONDS = 500
RIDES_A_SECOND = {"bus": 500, "car": 2000}  # a batch of buses spans four times as much time as one of cars
SPAN = "kind string, first timestamp, last timestamp"


def spans(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield of each batch its first and its last event time."""
    for batch in batches:
        times = pc.min_max(batch.column("at"))
        columns = [batch.column("kind")[:1], pa.array([times["min"]]), pa.array([times["max"]])]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", "first", "last"])


def span_table(spark: SparkSession, max_drift: str | None) -> pa.Table:
    """Read both sources, as fast as rides can be made; return the spans of their batches in the order of reading."""
    alignment = {"scan.watermark.alignment.group": "rides", "scan.watermark.alignment.max-drift": max_drift}
    frames = []
    for kind, rate in RIDES_A_SECOND.items():
        rides = (
            spark.read.format("headgate.datagen")
            .option("numRows", SECONDS * rate)
            .option("rowsPerSecond", rate)
            .option("fields.ticket.length", 200)
            .option("eventTimeColumn", "at")
            .options(**({} if max_drift is None else alignment))
            .schema("at timestamp, ticket string")
            .load()
            .alias(kind)
        )
        frames.append(rides.withColumn("kind", F.lit(kind)).mapInArrow(spans, SPAN))
    both = headgate.continuous(frames[0].union(frames[1]), parallelism=1)
    query = both.writeStream.format("memory").trigger(continuous="1 second").start()
    query.awaitTermination()
    return query.table()


def furthest_ahead(table: pa.Table) -> timedelta:
    """Return how far a source was read ahead of where the other one had come to."""
    reached: dict[str, object] = {}
    ahead = timedelta(0)
    for row in table.to_pylist():
        others = [at for kind, at in reached.items() if kind != row["kind"]]
        if others:
            ahead = max(ahead, row["last"] - min(others))
        reached[row["kind"]] = row["last"]
    return ahead


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    spark = SparkSession.builder.master("local[2]").appName("continuous-alignment").getOrCreate()
    for max_drift in (None, "30 seconds"):
        ahead = furthest_ahead(span_table(spark, max_drift))
        print(f"max-drift {max_drift}: a source was read up to {ahead.total_seconds():.0f} seconds ahead of the other")
    spark.stop()
