"""From one Pulsar topic to another, exactly once: run it again and only what is new is copied.

./run pulsar --deduplication             (in another terminal: a broker that drops what producers repeat)
python examples/pulsar_windows.py        (writes the first topic)
python examples/pulsar_to_pulsar.py [SERVICE_URL [ADMIN_URL [FROM [TO [CHECKPOINT]]]]]
"""

import os
import sys

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
defaults = ["pulsar://127.0.0.1:6650", "http://127.0.0.1:8080", "rides", "large-rides", ".cache/large-rides-of-pulsar"]
service_url, admin_url, source, target, checkpoint = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
spark = SparkSession.builder.master("local[2]").appName("pulsar-to-pulsar").getOrCreate()

rides = (
    spark.readStream.format("headgate.pulsar")
    .option("service.url", service_url)
    .option("admin.url", admin_url)
    .option("topic", source)
    .option("startingOffsets", "earliest")
    .option("valueFormat", "json")
    .schema("driver string, amount long, __key binary")
    .load()
)

query = (
    rides.where("amount >= 40")
    .selectExpr("__key", "to_json(struct(driver, amount)) AS value")
    .writeStream.format("headgate.pulsar")
    .option("service.url", service_url)
    .option("admin.url", admin_url)  # asked whether the brokers deduplicate the topic
    .option("topic", target)
    .option("guarantee", "exactly-once")
    .option("checkpointLocation", checkpoint)  # rows are staged there until their micro-batch is complete
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

copied = (
    spark.read.format("headgate.pulsar")
    .option("service.url", service_url)
    .option("admin.url", admin_url)
    .option("topic", target)
    .option("startingOffsets", "earliest")
    .load()
)
print(f"{target} has {copied.count()} large rides")
spark.stop()
