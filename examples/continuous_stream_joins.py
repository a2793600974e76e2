"""Which orders were paid within a second, of two streams: a left outer join whose state the watermark bounds.

python examples/continuous_stream_joins.py
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate


def generated(seed: int) -> DataFrame:
    """Return 6,000 rows of a stream, over three seconds of event time."""
    return (
        spark.readStream.format("headgate.datagen")
        .option("numRows", 6_000)
        .option("rowsPerSecond", 2_000)
        .option("seed", seed)
        .option("fields.id.kind", "sequence")
        .option("fields.amount.min", 1)
        .option("fields.amount.max", 99)
        .schema("id long, amount long, at timestamp")
        .load()
    )


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[4]").appName("continuous-stream-joins")
        .config("spark.sql.session.timeZone", "UTC").getOrCreate()
    )  # fmt: skip

    orders = generated(1).withWatermark("at", "1 second").selectExpr("id AS order", "amount", "at AS ordered")
    payments = (
        generated(2)
        .where("id % 3 <> 0")  # one order of three is not paid
        .selectExpr("id AS paid_order", "timestamp_micros(unix_micros(at) + id % 13 * 100000) AS paid")
        .withWatermark("paid", "2 seconds")  # they are up to 1.2 seconds out of order
    )
    paid = orders.join(
        payments,
        F.expr("order = paid_order AND paid BETWEEN ordered AND ordered + interval 1 second"),
        "left",
    )
    headgate.continuous(paid, parallelism=2).explain()  # says until when rows of each side are kept
    counts = (
        paid.groupBy(F.window("ordered", "1 second"))
        .agg(F.count("*").alias("orders"), F.count("paid").alias("paid"))
        .selectExpr("window.start", "orders", "paid")
    )
    query = (
        headgate.continuous(counts, parallelism=2)
        .writeStream.queryName("paid")
        .format("memory")
        .trigger(continuous="1 second")
        .start()
    )
    query.awaitTermination()
    rows = query.table().to_pylist()
    for row in rows:
        print(f"{row['start']}: {row['orders']} orders, {row['paid']} paid within a second")
    print(f"{sum(row['orders'] for row in rows)} orders, {sum(row['paid'] for row in rows)} paid in time")
    spark.stop()
