"""Kafka to Kafka in milliseconds; suspended with a savepoint, and resumed from it with twice the slots.

python examples/continuous_kafka.py [BROKER [FROM [TO [SAVEPOINT]]]]
"""

import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import headgate

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs


def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn ``user,amount`` into a column of each: PySpark's signature of mapInArrow."""
    for batch in batches:
        parts = pc.split_pattern(batch.column("value").cast(pa.string()), ",")
        user, amount = pc.list_element(parts, 0), pc.list_element(parts, 1).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([user, amount, batch.column("timestamp")], names=["user", "amount", "at"])


def start(parallelism: int, savepoint: str | None = None) -> headgate.ContinuousQuery:
    """Start the query, afresh or from a savepoint."""
    return (
        headgate.continuous(spark, parallelism=parallelism)
        .readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .name("rides")
        .mapInArrow(parse, "user string, amount long, at timestamp")
        .filter("amount >= 40")
        .select("user")
        .withColumn("value", headgate.functions.col("user"))
        .drop("user")
        .writeStream.queryName("large-rides")
        .format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("topic", target)
        .option("guarantee", "exactly-once")
        .trigger(continuous="500 milliseconds")
        .start(fromSavepoint=savepoint)
    )


defaults = ["127.0.0.1:9092", "rides", "large-rides", ".cache/large-rides-savepoint"]
broker, source, target, savepoint_folder = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
spark = SparkSession.builder.master("local[2]").appName("continuous-kafka").getOrCreate()

query = start(parallelism=1)
print("checkpoint", query.checkpoint())
query.stop(savepoint=savepoint_folder)

query = start(parallelism=2, savepoint=savepoint_folder)
time.sleep(2)
print("status:", query.status["message"])
query.stop(drain=True)

copied = (
    spark.read.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", target)
    .load()
)
print(f"{target} has {copied.count()} large rides")
spark.stop()
