"""A program of DataFrames and SQL, as Spark runs it in a batch and as a continuous query: one line is different.

python examples/continuous_dataframe.py [OUT]
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate


def totals(rides: DataFrame) -> DataFrame:
    """Return the rides and amounts of each city in windows of a second, large rides apart."""
    rides.withWatermark("at", "500 milliseconds").createOrReplaceTempView("rides")
    sized = spark.sql(
        """SELECT at, concat('city-', city % 5) AS city, amount,
                  CASE WHEN amount > 40 THEN 'big' ELSE 'small' END AS size
           FROM rides WHERE amount BETWEEN 1 AND 49"""
    )
    return sized.groupBy(F.window("at", "1 second"), "city", "size").agg(
        F.count("*").alias("rides"), F.sum("amount").alias("total")
    )


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    out = sys.argv[1] if len(sys.argv) > 1 else ".cache/ride-totals"
    spark = (
        SparkSession.builder.master("local[3]").appName("continuous-dataframe")
        .config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )  # fmt: skip
    generated = {
        "numRows": 20_000, "rowsPerSecond": 5000, "numPartitions": 2, "fields.city.min": 0, "fields.amount.min": 0,
        "fields.amount.max": 99,
    }  # fmt: skip

    def read(reader: object) -> DataFrame:
        """Return generated rides, the same whoever reads them."""
        source = reader.format("headgate.datagen").options(**generated)  # type: ignore[attr-defined]
        rides: DataFrame = source.schema("city long, amount long, at timestamp").load()
        return rides

    program = headgate.continuous(totals(read(spark.readStream)), parallelism=2)  # in micro-batches: without this
    program.explain()
    query = (
        program.writeStream.queryName("ride-totals")
        .format("parquet")
        .option("path", out)
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(continuous="1 second")  # a checkpoint every second
        .start()
    )
    query.awaitTermination()  # the generator ends; what comes from Kafka does not

    expected = totals(read(spark.read))  # by Spark, in one batch
    found = spark.read.schema(expected.schema).parquet(out)
    print(f"{found.count()} totals, {found.exceptAll(expected).count()} of them other than in Spark's batch")
    found.groupBy("size").agg(F.sum("rides"), F.sum("total")).orderBy("size").show()
    spark.stop()
