"""From one Kafka topic to another, exactly once: run it again and only what is new is copied.

python examples/kafka_to_kafka.py [BROKER [FROM [TO [CHECKPOINT]]]]
"""

import os
import sys

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
defaults = ["127.0.0.1:9092", "rides", "large-rides", ".cache/large-rides"]
broker, source, target, checkpoint = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
spark = SparkSession.builder.master("local[2]").appName("kafka-to-kafka").getOrCreate()

rides = (
    spark.readStream.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("valueFormat", "json")
    .schema("driver string, amount long, _key binary")
    .load()
)

query = (
    rides.where("amount >= 40")
    .selectExpr("_key AS key", "to_json(struct(driver, amount)) AS value")
    .writeStream.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("topic", target)
    .option("guarantee", "exactly-once")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

copied = (
    spark.read.format("headgate.kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("kafka.isolation.level", "read_committed")  # without it rows of aborted transactions are seen as well
    .option("subscribe", target)
    .load()
)
print(f"{target} has {copied.count()} large rides")
spark.stop()
