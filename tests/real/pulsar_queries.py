"""What tests of Pulsar on Spark share: micro-batches of what is there, and what a continuous query has committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession


def options(broker: Any, topic: str, **more: Any) -> dict[str, Any]:
    """Return the options of a source."""
    return {"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": topic, **more}


def micro_batches(spark: SparkSession, checkpoint: Path, **chosen: Any) -> list[list[dict[str, Any]]]:
    """Read what is there now, in as many micro-batches as it takes; return the rows of each."""
    batches: dict[int, list[dict[str, Any]]] = {}
    frame = spark.readStream.format("headgate.pulsar").options(**chosen).load()

    def keep(rows: DataFrame, number: int) -> None:
        batches[number] = rows.toArrow().to_pylist()

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return list(batches.values())


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return what Spark would read in a folder, without Spark, whose cores the query has."""
    logs = [each for each in (folder / "_spark_metadata").glob("*") if each.name[0] != "."]
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    files = {entry["path"].removeprefix("file:") for entry in entries}
    return [row for file in files for row in pq.read_table(file).to_pylist()]
