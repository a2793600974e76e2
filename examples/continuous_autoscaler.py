"""A query that takes as many slots as its load needs: it is given more rows than one slot can process.

python examples/continuous_autoscaler.py
"""

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import headgate


def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take two milliseconds for each row, as a request to another system may: 500 rows a second in each slot."""
    for batch in batches:
        time.sleep(0.002 * batch.num_rows)
        yield batch


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").appName("continuous-autoscaler").getOrCreate()
    rides = (
        spark.readStream.format("headgate.datagen")
        .option("rowsPerSecond", 1000)
        .option("numPartitions", 8)
        .schema("ride long")
        .load()
    )
    query = (
        headgate.continuous(rides.mapInArrow(look_up, "ride long"), parallelism=1)
        .writeStream.queryName("rides")
        .format("noop")
        .option("slots", "threads")  # a test's; tasks of a cluster's executors else, as many as it has cores
        .option("autoscaler", "lag")
        .option("parallelism.max", 4)
        # Minutes by default: a rescale is a checkpoint and a new run. Here it is to be seen soon.
        .option("autoscaler.metrics.window", "4 seconds")
        .option("autoscaler.stabilization.interval", "1 second")
        .trigger(continuous="1 second")
        .start()
    )
    shown = 0
    while query.snapshot()["parallelism"] < 3 and not query.awaitTermination(0.5):
        decisions = query.snapshot()["autoscaler"]["decisions"]
        for decision in decisions[shown:]:
            changes = f"{decision['from']} to " if decision["from"] != decision["to"] else ""
            print(f"parallelism {changes}{decision['to']}: {decision['reason']}", flush=True)
        shown = len(decisions)
    print(f"rescaled to {query.snapshot()['parallelism']} slots")
    query.stop()
    spark.stop()
