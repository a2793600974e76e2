"""A Kafka topic as a stream into a windowed aggregation of Spark's. Writes the topic's records first.

./run kafka                              (in another terminal: a broker on 127.0.0.1:9092)
python examples/kafka_windows.py [BROKER [TOPIC]]
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, struct, sum, to_json, window

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "rides"
spark = (
    SparkSession.builder.master("local[2]").appName("kafka-windows")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC").getOrCreate()
)  # fmt: skip

# A minute of rides, ten a second. The topic is made by the broker, or before with as many partitions as you like.
made = spark.range(600).selectExpr(
    "concat('driver-', id % 7) AS driver",
    "id % 50 AS amount",
    "timestamp_millis(1767225600000 + id * 100) AS at",
)
(
    made.select(col("driver").alias("key"), to_json(struct("driver", "amount", "at")).alias("value"))
    .write.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("topic", topic)
    .mode("append")
    .save()
)

rides = (
    spark.readStream.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 200)
    .option("valueFormat", "json")  # values become typed columns; without it: key, value, topic ... as in Spark
    .schema("driver string, amount long, at timestamp, _partition int, _offset long")
    .load()
)

with tempfile.TemporaryDirectory() as checkpoint:
    query = (
        rides.withWatermark("at", "5 seconds")
        .groupBy(window("at", "10 seconds"))
        .agg(count("*").alias("rides"), sum("amount").alias("total"))
        .writeStream.format("memory").queryName("windows").outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # or processingTime="1 second", to go on for ever
        .start()
    )  # fmt: skip
    query.awaitTermination()

spark.sql("SELECT window.start, rides, total FROM windows ORDER BY start").show(truncate=False)
spark.stop()
