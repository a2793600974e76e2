"""Rides per user in windows of ten seconds, from Kafka to a table; suspended on the way, resumed with twice the slots.

./run kafka                              (in another terminal: a broker on 127.0.0.1:9092)
python examples/continuous_windows.py [BROKER [TOPIC [OUT]]]
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate


def make_rides(minute: int) -> None:
    """Write a minute of rides, ten a second, of seven users; the topic is made by the broker."""
    made = spark.range(600).selectExpr(
        "concat('user-', id % 7) AS user",
        "id % 50 AS amount",
        f"timestamp_millis(1767225600000 + {minute} * 60000 + id * 100) AS at",
    )
    (
        made.coalesce(1)  # in the order of their time
        .select(F.to_json(F.struct("user", "amount", "at")).alias("value"))
        .write.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("topic", topic)
        .mode("append")
        .save()
    )


def start(parallelism: int, savepoint: str | None = None) -> headgate.ContinuousQuery:
    """Start the query, afresh or from a savepoint."""
    rides = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .schema("user string, amount long, at timestamp")
        .load()
    )
    totals = (
        rides.withWatermark("at", "5 seconds")
        .groupBy(F.window("at", "10 seconds"), "user")
        .agg(F.sum("amount").alias("total"), F.count("*").alias("rides"))
    )
    return (
        headgate.continuous(totals, parallelism=parallelism)
        .writeStream.queryName("rides")
        .format("parquet")
        .option("path", out)
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(continuous="1 second")  # a checkpoint every second
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
    defaults = ["127.0.0.1:9092", "user-rides", ".cache/user-rides"]
    broker, topic, out = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
    spark = (
        SparkSession.builder.master("local[4]").appName("continuous-windows")
        .config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )  # fmt: skip

    make_rides(minute=0)
    query = start(parallelism=1)
    wait_until_caught_up(query)
    print(f"checkpoint {query.checkpoint()} of {query.name} is after {query.status['rowsIn']} rides")
    print(f"its watermark is {query.lastProgress.eventTime['watermark']}")
    query.stop(savepoint=f"{out}-savepoint")  # nothing is emitted after it, and windows stay open
    print(f"suspended after {len(query.recentProgress)} reports; active: {query.isActive}, error: {query.exception()}")

    make_rides(minute=1)
    query = start(parallelism=2, savepoint=f"{out}-savepoint")
    wait_until_caught_up(query)
    print(f"resumed on {len(query.status['slots'])} slots; {query.status['rowsIn']} rides were new")
    query.stop(drain=True)  # the input ends here: all windows are over

    table = spark.read.parquet(out)
    table.groupBy("window.start").agg(F.count("user"), F.sum("rides"), F.sum("total")).orderBy("start").show()
    spark.stop()
