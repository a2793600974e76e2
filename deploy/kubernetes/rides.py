"""The query of rides.yaml: generated rides to Parquet files, for ever. Its argument is a folder that all pods share."""

import sys

from pyspark.sql import SparkSession

import headgate

if __name__ == "__main__":
    folder = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    options = {"rowsPerSecond": 1000, "numPartitions": 4, "startTimestamp": "now"}
    rides = (
        spark.readStream.format("headgate.datagen")
        .options(**options)
        .schema("n long, fare double, at timestamp")
        .load()
    )
    query = (
        headgate.continuous(rides.where("fare > 0.5"), parallelism=4)  # two executors with two cores
        .writeStream.queryName("rides").format("parquet").option("path", f"{folder}/rides")
        .option("checkpointLocation", f"{folder}/checkpoint").trigger(continuous="10 seconds").start()
    )  # fmt: skip
    query.awaitTermination()
