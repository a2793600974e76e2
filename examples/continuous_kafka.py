"""Kafka to Kafka in milliseconds, each ride once; suspended on the way, and resumed with twice the slots.

python examples/kafka_windows.py [BROKER [TOPIC]]              (writes a topic of rides)
python examples/continuous_kafka.py [BROKER [TOPIC [TO]]]
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import headgate


def start(parallelism: int, savepoint: str | None = None) -> headgate.ContinuousQuery:
    """Start the query, afresh or from a savepoint. It takes so many cores until it is stopped."""
    rides = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .schema("driver string, amount long")
        .load()
        .alias("rides")  # its state is found by this name, however the program changes
    )
    large = rides.filter("amount >= 40").select(col("driver").alias("key"), col("amount").cast("string").alias("value"))
    return (
        headgate.continuous(large, parallelism=parallelism)
        .writeStream.queryName("large-rides")
        .format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("topic", target)
        .option("guarantee", "exactly-once")  # seen with the next checkpoint; "at-least-once": at once
        .trigger(continuous="1 second")
        .start(fromSavepoint=savepoint)
    )


def wait_until_caught_up(query: headgate.ContinuousQuery) -> None:
    """Wait until nothing is left to read; an error of the query's is raised here."""
    while not query.awaitTermination(0.5):
        progress = query.lastProgress
        if progress is not None and progress.sources[0].metrics.get("rowsBehind") == "0":
            return


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    defaults = ["127.0.0.1:9092", "rides", "large-rides-at-once"]
    broker, topic, target = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
    spark = SparkSession.builder.master("local[2]").appName("continuous-kafka").getOrCreate()

    with tempfile.TemporaryDirectory() as folder:
        query = start(parallelism=1)
        wait_until_caught_up(query)
        print(f"checkpoint {query.checkpoint()} is after {query.status['rowsIn']} rides")
        query.stop(savepoint=f"{folder}/savepoint")  # nothing is written after it

        query = start(parallelism=2, savepoint=f"{folder}/savepoint")
        wait_until_caught_up(query)
        print(f"resumed on {len(query.status['slots'])} slots; {query.status['rowsIn']} rides were new")
        query.stop(drain=True)  # what was read is written, then it ends

    copied = (
        spark.read.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", target)
        .load()
    )
    print(f"{target} has {copied.count()} large rides")
    spark.stop()
