"""A continuous query over a folder of flights: long tasks, a checkpoint a second, and an end when all files are read.

python examples/continuous_flights.py [FLIGHTS_FOLDER [OUT]]
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import headgate

if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    defaults = [".cache/flights", ".cache/late-flights"]
    flights_folder, out = sys.argv[1:] + defaults[len(sys.argv) - 1 :]
    spark = SparkSession.builder.master("local[2]").appName("continuous-flights").getOrCreate()

    late = (
        spark.read.format("headgate.files")  # read: what is there now; readStream: what comes later as well
        .option("fileFormat", "csv")
        .option("header", True)
        .option("nullValue", "NA")
        .schema("carrier string, origin string, dep_delay double, time_hour timestamp")
        .load(flights_folder)
        .filter(col("dep_delay") > 0)
        .withColumn("minutes", col("dep_delay").cast("long"))
        .drop("dep_delay")
    )
    query = (
        headgate.continuous(late, parallelism=2)
        .writeStream.queryName("late-flights")
        .format("parquet")
        .option("path", out)
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(continuous="1 second")
        .start()
    )
    query.awaitTermination()
    print(f"of {query.status['rowsIn']} flights {query.status['rowsOut']} left late")

    spark.read.parquet(out).groupBy("origin").avg("minutes").orderBy("origin").show()
    spark.stop()
