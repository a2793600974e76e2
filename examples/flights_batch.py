"""A folder of CSV files as a DataFrame: mean delay by carrier.

python examples/flights_batch.py [FOLDER]      (the demo leaves the flights in .cache/flights)
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
folder = sys.argv[1] if len(sys.argv) > 1 else ".cache/flights"
spark = SparkSession.builder.master("local[2]").appName("flights-batch").getOrCreate()

flights = (
    spark.read.format("headgate.files")
    .option("fileFormat", "csv")
    .option("header", True)
    .option("nullValue", "NA")
    .schema("carrier string, origin string, dep_delay double, time_hour timestamp")  # reads only these columns
    .load(folder)
)

flights.groupBy("carrier").agg(F.count("*").alias("flights"), F.mean("dep_delay").alias("delay")).orderBy(
    F.desc("delay")
).show()

spark.stop()
