"""Kinesis as a stream into counts by minute, each record once; over a local server instead of AWS.

python examples/kinesis_stream.py        (needs boto3, and moto's server: pip install boto3 "moto[server]")
"""

import json
import logging
import os
import sys
import tempfile
from collections import Counter

import boto3
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, window

CITIES = ["Basel", "Bern", "Chur", "Genf", "Zug"]


def ride(number: int) -> dict[str, str]:
    """Return a ride, a second after the one before."""
    return {"city": CITIES[number % len(CITIES)], "at": f"2026-01-01T08:{number // 60:02}:{number % 60:02}Z"}


def put(kinesis, numbers: range) -> None:
    """Put one record for each ride."""
    kinesis.put_records(
        StreamName="rides",
        Records=[{"PartitionKey": str(n), "Data": json.dumps(ride(n)).encode()} for n in numbers],
    )


def count_what_is_new(spark: SparkSession, options: dict[str, str], checkpoint: str) -> None:
    """Add all rides that came since the last call to the counts by minute and city, each once."""
    query = (
        spark.readStream.format("headgate.kinesis")
        .options(**options)
        .option("startingPosition", "trim_horizon")
        .load()
        .select(from_json(col("data").cast("string"), "city string, at timestamp").alias("ride"))
        .select("ride.*")
        .withWatermark("at", "30 seconds")
        .groupBy(window("at", "1 minute"), "city")
        .count()
        .writeStream.format("memory")
        .queryName("rides")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # or processingTime="1 second", to go on for ever
        .start()
    )
    query.awaitTermination()


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what this runs
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto's server would print each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "streamName": "rides",
        "region": "eu-central-1",
        "endpointUrl": f"http://{host}:{port}",
        "awsAccessKey": "anybody",  # with AWS leave both out: boto3 finds your role or profile
        "awsSecretKey": "anything",
    }
    session = boto3.session.Session("anybody", "anything", region_name=options["region"])
    kinesis = session.client("kinesis", endpoint_url=options["endpointUrl"])
    kinesis.create_stream(StreamName="rides", ShardCount=2)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    with tempfile.TemporaryDirectory() as checkpoint:
        put(kinesis, range(250))
        count_what_is_new(spark, options, checkpoint)
        put(kinesis, range(250, 400))
        count_what_is_new(spark, options, checkpoint)
    counts = spark.sql("SELECT window.start, city, count FROM rides ORDER BY start, city")
    counts.show(50, truncate=False)
    found = {(row.start.minute, row.city): row["count"] for row in counts.collect()}
    spark.stop()
    server.stop()
    if found != Counter((n // 60, CITIES[n % len(CITIES)]) for n in range(400)):
        sys.exit("rides are missing, or came twice")


if __name__ == "__main__":
    main()
