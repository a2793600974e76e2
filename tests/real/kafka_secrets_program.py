"""A Spark program with its UI on that reads and writes a secured topic; everything that it shows goes to one folder.

Run by test_kafka_security.py: arguments are the broker, the CA, the topic, the folder, the user and the password.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from spark_pages import save_pages

broker, authority, topic, folder, user, password = sys.argv[1:]
out = Path(folder)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "true").config("spark.ui.port", "0").config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)  # fmt: skip
options = {
    "kafka.bootstrap.servers": broker,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{user}" password="{password}";',
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": authority,
}
spark.range(5).selectExpr("cast(id AS string) AS value").write.format("headgate.kafka").options(**options).option(
    "topic", topic
).mode("append").save()
batch = spark.read.format("headgate.kafka").options(**options).option("subscribe", topic).load()
(out / "rows.txt").write_text(str(batch.count()))
(out / "explain.txt").write_text(batch._jdf.queryExecution().toString())
query = (
    spark.readStream.format("headgate.kafka").options(**options).option("subscribe", topic)
    .option("startingOffsets", "earliest").load()
    .writeStream.format("headgate.kafka").options(**options).option("topic", f"{topic}-copy")
    .option("checkpointLocation", str(out / "checkpoint")).queryName("copy").start()
)  # fmt: skip
deadline = time.monotonic() + 120
while not any(progress["numInputRows"] for progress in query.recentProgress):
    assert query.isActive and time.monotonic() < deadline, query.exception()
    time.sleep(0.1)
(out / "progress.txt").write_text(json.dumps([each.json for each in query.recentProgress]) + str(query.status))
query.explain(extended=True)
save_pages(spark, out, 3)
query.stop()
for name, wrong in {
    "wrong-password": {"kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(password, f"{password}-no")},
    "wrong-topic": {"topic": ""},
}.items():
    try:
        reader = spark.read.format("headgate.kafka").options(**{**options, **wrong}).option("subscribe", topic)
        reader.load().collect()
        (out / f"{name}.txt").write_text("no error")
    except Exception as error:
        (out / f"{name}.txt").write_text(str(error))
spark.stop()
