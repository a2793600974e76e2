"""The streaming query of the demo, in a process of its own so that it can be killed: a program as a user writes it.

python -m demo.query INPUT CHECKPOINT SINK
"""

from __future__ import annotations

import signal
import sys
import threading

from pyspark.sql import SparkSession

SCHEMA = "time_hour timestamp, carrier string, flight int, origin string, dest string, dep_delay double, distance int"


def session(name: str) -> SparkSession:
    """Return a Spark session on two cores of this machine."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    folder, checkpoint, sink = sys.argv[1:]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = session("demo-stream")

    flights = (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "csv")
        .option("header", True)
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", 3)
        .option("discovery.interval", "200 milliseconds")
        .schema(SCHEMA)
        .load(folder)
    )
    query = (
        flights.writeStream.format("parquet")
        .option("path", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    while not stopping.is_set():
        query.awaitTermination(1)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
