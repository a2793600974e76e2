"""A continuous query whose rows Spark's own writer stores, a batch for each checkpoint, each row once.

python examples/continuous_foreach_batch.py [OUT]
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate


def store(batch: DataFrame, number: int) -> None:
    """Write a batch. After a crash the last one may come again, as it was: then it is overwritten by itself."""
    batch.write.mode("overwrite").parquet(f"{out}/batch={number}")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    out = sys.argv[1] if len(sys.argv) > 1 else ".cache/ride-batches"
    spark = SparkSession.builder.master("local[3]").appName("continuous-foreach-batch").getOrCreate()
    rides = (
        spark.readStream.format("headgate.datagen")
        .options(**{"numRows": 5000, "rowsPerSecond": 2000, "numPartitions": 2, "fields.ride.kind": "sequence"})
        .schema("ride long, city long, at timestamp")
        .load()
    )
    query = (
        headgate.continuous(rides.withColumn("city", F.abs("city") % 5), parallelism=2)  # a core is left for `store`
        .writeStream.queryName("ride-batches")
        .foreachBatch(store)
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(continuous="1 second")  # a batch every second
        .start()
    )
    query.awaitTermination()  # the generator ends; what comes from Kafka does not

    found = spark.read.parquet(out).agg(F.count("ride"), F.countDistinct("ride"), F.countDistinct("batch")).head()
    print("{} rides, {} of them different, in {} batches".format(*found))
