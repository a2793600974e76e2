"""A Pulsar topic as a continuous query into windows of ten seconds, each once. Writes the topic's messages first.

./run pulsar                             (in another terminal: a broker on 127.0.0.1:6650, its HTTP API on 8080)
python examples/pulsar_windows.py [SERVICE_URL [ADMIN_URL [TOPIC]]]
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, struct, sum, to_json, window

import headgate

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
defaults = ["pulsar://127.0.0.1:6650", "http://127.0.0.1:8080", "rides"]
service_url, admin_url, topic = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
spark = (
    SparkSession.builder.master("local[2]").appName("pulsar-windows")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC").getOrCreate()
)  # fmt: skip

# A minute of rides, ten a second. The broker makes the topic.
made = spark.range(600).selectExpr(
    "concat('driver-', id % 7) AS driver",
    "id % 50 AS amount",
    "timestamp_millis(1767225600000 + id * 100) AS at",
)
(
    made.coalesce(1)  # in the order of their time
    .select(col("driver").alias("__key"), to_json(struct("driver", "amount", "at")).alias("value"))
    .write.format("headgate.pulsar")
    .option("service.url", service_url)
    .option("admin.url", admin_url)
    .option("topic", topic)
    .mode("append")
    .save()
)

rides = (
    spark.readStream.format("headgate.pulsar")
    .option("service.url", service_url)
    .option("admin.url", admin_url)
    .option("topic", topic)
    .option("startingOffsets", "earliest")
    .option("endingOffsets", "latest")  # without it the query goes on for ever
    .option("valueFormat", "json")  # values become typed columns; without it: value, __key, __topic, __messageId ...
    .schema("driver string, amount long, at timestamp")
    .load()
)
windows = (
    rides.withWatermark("at", "5 seconds")
    .groupBy(window("at", "10 seconds"))
    .agg(count("*").alias("rides"), sum("amount").alias("total"))
    .select("window.start", "rides", "total")
)
query = headgate.continuous(windows, parallelism=2).writeStream.format("memory").start()
query.awaitTermination()

for start, rides_of, total in sorted(zip(*query.table().to_pydict().values(), strict=True)):
    print(f"{start:%H:%M:%S}  {rides_of} rides  {total}")
