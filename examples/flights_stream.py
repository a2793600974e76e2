"""The same folder as a stream: reads what is new since the last run, and ends. Run it twice.

python examples/flights_stream.py [FOLDER [OUT]]
"""

import os
import sys

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
folder = sys.argv[1] if len(sys.argv) > 1 else ".cache/flights"
out = sys.argv[2] if len(sys.argv) > 2 else ".cache/flights-out"
spark = SparkSession.builder.master("local[2]").appName("flights-stream").getOrCreate()

flights = (
    spark.readStream.format("headgate.files")
    .option("fileFormat", "csv")
    .option("header", True)
    .option("nullValue", "NA")
    .option("maxFilesPerTrigger", 12)
    .schema("carrier string, origin string, dep_delay double, time_hour timestamp")
    .load(folder)
)

query = (
    flights.writeStream.format("parquet")
    .option("path", f"{out}/table")
    .option("checkpointLocation", f"{out}/checkpoint")
    .trigger(availableNow=True)  # or processingTime="10 seconds", to go on for ever
    .start()
)
query.awaitTermination()

read = sum(batch["numInputRows"] for batch in query.recentProgress)
print(f"read {read} new flights; the table has {spark.read.parquet(f'{out}/table').count()}")

spark.stop()
