"""Kinesis as a stream: what is new is appended to a table, each record once; over a local server instead of AWS.

python examples/kinesis_stream.py        (needs boto3, and moto's server: pip install boto3 "moto[server]")
"""

import json
import logging
import os
import sys
import tempfile

import boto3
from moto.server import ThreadedMotoServer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

CITIES = ["Basel", "Bern", "Chur", "Genf", "Zug"]


def put(kinesis, numbers: range) -> None:
    """Put one record for each ride."""
    kinesis.put_records(
        StreamName="rides",
        Records=[
            {"PartitionKey": str(n), "Data": json.dumps({"ride": n, "city": CITIES[n % len(CITIES)]}).encode()}
            for n in numbers
        ],
    )


def read_what_is_new(spark: SparkSession, options: dict[str, str], folder: str) -> None:
    """Append all rides that came since the last call to a table, each once."""
    query = (
        spark.readStream.format("headgate.kinesis")
        .options(**options)
        .option("startingPosition", "trim_horizon")
        .schema("data binary, shardId string")
        .load()
        .select(from_json(col("data").cast("string"), "ride long, city string").alias("ride"), "shardId")
        .select("ride.*", "shardId")
        .writeStream.format("parquet")
        .option("path", f"{folder}/rides")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # or processingTime="1 second", to go on for ever
        .start()
    )
    query.awaitTermination()


def counts(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.parquet(f"{folder}/rides").groupBy("city").count().orderBy("city")


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

    with tempfile.TemporaryDirectory() as folder:
        put(kinesis, range(250))
        read_what_is_new(spark, options, folder)
        put(kinesis, range(250, 400))
        read_what_is_new(spark, options, folder)
        counts(spark, folder).show()
        rides = [row.ride for row in spark.read.parquet(f"{folder}/rides").collect()]
    spark.stop()
    server.stop()
    if sorted(rides) != list(range(400)):
        sys.exit("rides are missing, or came twice")


if __name__ == "__main__":
    main()
