"""The driver programs of the cluster's tests: one query each, which says how it is in lines of JSON.

usage: program.py QUERY FOLDER MASTER HOST [NAME=VALUE ...]

Commands on stdin: ``rescale N``. Each line of stdout is an object: ``state``, ``rowsIn``, ``checkpoint`` (the last
complete one) and ``hosts`` (of the slots), or ``rescaled``, or at last ``result`` or ``error``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

_LOOK_S = 0.1
_RIDES_A_SECOND = {"bus": 200, "car": 800}
_RIDE_SECONDS = 500
_SPAN = "kind string, first double, last double, at double"


def generated(reader: Any, rows: int, rate: int) -> Any:
    """Return rows that are the same whoever makes them, as a stream or a batch."""
    options = {
        "numRows": rows, "rowsPerSecond": rate, "numPartitions": 6, "seed": 7, "fields.user.cardinality": 200,
        "fields.n.kind": "sequence", "eventTimeColumn": "at",
    }  # fmt: skip
    reader = reader.format("headgate.datagen").schema("n long, user string, at timestamp")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def counted(rows: Any) -> Any:
    """Return the windows of rows, in a query or in a batch."""
    return rows.groupBy(F.window("at", "5 seconds"), "user").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


def expected_windows(reader: Any, rows: int, rate: int) -> Any:
    """Return the windows of `windows` as Spark's own batch makes them."""
    return counted(generated(reader, rows, rate))


def windows(spark: SparkSession, folder: str, settings: dict[str, str]) -> Any:
    """Count and sum generated rows by key and window, into Parquet files."""
    rows = generated(spark.readStream, int(settings["rows"]), int(settings["rate"])).withWatermark("at", "2 seconds")
    program = headgate.continuous(counted(rows), parallelism=int(settings.get("parallelism", "3")))
    return program.writeStream.format("parquet").option("path", f"{folder}/out").option("publishInterval", "2 seconds")


def topics(spark: SparkSession, folder: str, settings: dict[str, str]) -> Any:
    """Read a topic, spread its rows over all slots, and write them into another, exactly once."""
    reader: Any = spark.read if settings.get("bounded") else spark.readStream
    records = (
        reader.format("headgate.kafka").option("kafka.bootstrap.servers", settings["broker"])
        .option("subscribe", settings["from"]).option("startingOffsets", "earliest").load()
    )  # fmt: skip
    program = headgate.continuous(records.select("value").repartition(3), parallelism=3)
    return (
        program.writeStream.format("kafka").option("guarantee", "exactly-once")
        .option("kafka.bootstrap.servers", settings["broker"]).option("topic", settings["to"])
    )  # fmt: skip


def fill(settings: dict[str, str]) -> None:
    """Make both topics, and the records to read."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    servers = {"bootstrap.servers": settings["broker"]}
    admin = AdminClient(servers)  # it lives until the topics do
    made = admin.create_topics([NewTopic(settings[each], 3, 1) for each in ("from", "to")])
    for each in made.values():
        each.result(60)
    producer = Producer(servers)
    for n in range(int(settings["rows"])):
        producer.produce(settings["from"], value=str(n), partition=n % 3)
        producer.poll(0)
    assert producer.flush(60) == 0


def committed(settings: dict[str, str]) -> dict[str, int]:
    """Return how many records of the second topic are committed, and how many of them differ."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": settings["broker"], "group.id": "nobody", "isolation.level": "read_committed",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition(settings["to"], each, OFFSET_BEGINNING) for each in range(3)])
    found: list[bytes] = []
    ended = set()
    while len(ended) < 3:
        message = consumer.poll(60)
        assert message is not None, "the broker does not answer"
        if message.error() is None:
            found.append(message.value())
        else:
            ended.add(message.partition())
    consumer.close()
    return {"records": len(found), "different": len(set(found))}


def spans(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield of each batch its first and its last event time, and when that was, in seconds."""
    for batch in batches:
        times = pc.min_max(batch.column("at"))
        ends = [times[each].as_py().timestamp() for each in ("min", "max")]
        columns = [[batch.column("kind")[0].as_py()], *([each] for each in (*ends, time.time()))]
        yield pa.record_batch(columns, names=["kind", "first", "last", "at"])


def rides(spark: SparkSession, folder: str, settings: dict[str, str]) -> Any:
    """Read two sources, one much denser, aligned with one another in a continuous query."""
    frames = []
    for kind, rate in _RIDES_A_SECOND.items():
        source = (
            spark.read.format("headgate.datagen").option("numPartitions", 3)
            .option("numRows", _RIDE_SECONDS * rate).option("rowsPerSecond", rate).option("fields.ticket.length", 200)
            .option("eventTimeColumn", "at").option("scan.watermark.alignment.group", "rides")
            .option("scan.watermark.alignment.max-drift", "30 seconds")
            .schema("at timestamp, ticket string").load().alias(kind)
        )  # fmt: skip
        frames.append(source.withColumn("kind", F.lit(kind)).mapInArrow(spans, _SPAN))
    return headgate.continuous(frames[0].union(frames[1]), parallelism=3).writeStream.format("memory")


def furthest_ahead(table: pa.Table) -> float:
    """Return how many seconds a source was read ahead of where the other one had come to."""
    reached: dict[str, float] = {}
    ahead = 0.0
    for row in sorted(table.to_pylist(), key=lambda row: row["at"]):
        others = [last for kind, last in reached.items() if kind != row["kind"]]
        ahead = max([ahead, *(row["last"] - other for other in others)])
        reached[row["kind"]] = max(row["last"], reached.get(row["kind"], 0.0))
    return ahead


class Sensors(headgate.SimpleSource):
    """Two splits with steps of 100 and of 400 ms; nobody knows of a row's time before a task has read it."""

    name = "sensors"
    schema = "at timestamp"

    def splits(self) -> list[str]:
        return ["100", "400"]

    def latest(self, split_id: str) -> int:
        return 100

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        for start in range(position or 0, 100, 20):
            times = pa.array([n * int(split_id) for n in range(start, start + 20)], pa.timestamp("ms", "UTC"))
            yield pa.record_batch({"at": times.cast(pa.timestamp("us", "UTC"))}), start + 20


def sensors(spark: SparkSession, folder: str, settings: dict[str, str]) -> int:
    """Count the rows of 200 that come in time for their windows, in micro-batches aligned by what tasks report."""
    headgate.register(spark, Sensors)
    rows = (
        spark.readStream.format("sensors").option("maxRowsPerTrigger", 20).option("eventTimeColumn", "at")
        .option("scan.watermark.alignment.group", "g").option("scan.watermark.alignment.max-drift", "2 seconds")
        .load().withWatermark("at", "10 seconds")
    )  # fmt: skip
    query = (
        rows.groupBy(F.window("at", "1 second")).count().writeStream.format("memory").queryName("sensors")
        .option("checkpointLocation", f"{folder}/checkpoints").outputMode("update").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    latest = spark.table("sensors").groupBy("window").agg(F.max("count").alias("rows"))
    found = latest.agg(F.sum("rows")).first()
    assert found is not None
    return int(found[0])


def say(**what: Any) -> None:
    """Print a line for the test."""
    print(json.dumps(what), flush=True)


def obey(query: Any) -> None:
    """Carry out what stdin says; on a thread of its own."""
    for line in sys.stdin:
        match line.split():
            case ["rescale", number]:
                query.rescale(int(number))
                say(rescaled=int(number))


def run(writer: Any, what: str, folder: str, settings: dict[str, str]) -> Any:
    """Run a continuous query to its end, saying how it is; return it."""
    for name, value in settings.items():
        if "." in name:
            writer = writer.option(name, value)
    writer = writer.queryName(what).option("checkpointLocation", f"{folder}/checkpoints")
    query = writer.trigger(continuous="1 second").start()
    threading.Thread(target=obey, args=(query,), daemon=True).start()
    while not query.awaitTermination(_LOOK_S):
        status = query.status
        say(
            state=status["message"],
            rowsIn=status["rowsIn"],
            checkpoint=status.get("completed_checkpoint") or 0,
            hosts=[slot["host"].partition("-")[0] for slot in status.get("slots", ())],
        )
        if "until" in settings and committed(settings)["records"] >= int(settings["until"]):
            query.stop()
    return query


def main() -> None:
    """Run what is asked for."""
    what, folder, master, host, *given = sys.argv[1:]
    settings = dict(each.split("=", 1) for each in given)
    os.makedirs(folder, exist_ok=True)
    spark = (
        SparkSession.builder.master(master).appName(what)
        .config("spark.driver.host", host).config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m").config("spark.executor.cores", "2")
        .config("spark.sql.shuffle.partitions", "3").config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false").getOrCreate()
    )  # fmt: skip
    try:
        if what == "sensors":
            result: Any = sensors(spark, folder, settings)
        else:
            if what == "topics" and not os.path.exists(f"{folder}/checkpoints"):
                fill(settings)
            query = run(
                {"windows": windows, "topics": topics, "rides": rides}[what](spark, folder, settings),
                what,
                folder,
                settings,
            )
            result = {"topics": lambda: committed(settings), "rides": lambda: furthest_ahead(query.table())}.get(
                what, dict
            )()
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        os._exit(1)
    say(result=result)
    spark.stop()


if __name__ == "__main__":
    main()
