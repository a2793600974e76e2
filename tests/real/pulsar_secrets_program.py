"""A Spark program with its UI on that reads and writes topics with secrets; all that it shows goes to one folder.

Run by test_pulsar_security.py, which says on standard input what to do: nobody sees that.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from spark_pages import save_pages

import headgate

given = json.load(sys.stdin)
out, topic, logins = Path(given["folder"]), given["topic"], given["logins"]
logging.basicConfig(level=logging.INFO)
logging.getLogger("headgate").setLevel(logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.WARNING)  # it prints each call
(out / "events").mkdir()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "true").config("spark.ui.port", "0").config("spark.sql.shuffle.partitions", "1")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", str(out / "events"))
    .config("spark.eventLog.compress", "false").getOrCreate()
)  # fmt: skip


def keep(name: str, *shown: Any) -> None:
    (out / f"{name}.txt").write_text("\n".join(map(str, shown)))


def wait_until(holds: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert query.isActive and time.monotonic() < deadline, query.exception()
        time.sleep(0.1)


def pulsar(maker: Any, login: dict[str, str], name: str = topic, **more: str) -> Any:
    """Return a reader or a writer of a topic."""
    return maker.format("headgate.pulsar").options(**login, topic=name, **more)


def stream(login: dict[str, str]) -> Any:
    return pulsar(spark.readStream, login, startingOffsets="earliest").schema("value binary").load()


five = spark.range(5).selectExpr("cast(id AS string) AS value")
for name, login in logins.items():
    pulsar(five.write.mode("append"), login).save()
    batch = pulsar(spark.read, login, startingOffsets="earliest").load()
    keep(f"batch-{name}", batch._jdf.queryExecution(), batch.count())
    batch.explain("formatted")

once = {"guarantee": "exactly-once", "pulsar.producer.compressionType": "ZSTD"}
writer = pulsar(stream(logins["token"]).writeStream, logins["file"], f"{topic}-copy", **once).queryName("copy")
query = writer.option("checkpointLocation", str(out / "checkpoint")).start()
wait_until(lambda: sum(each["numInputRows"] for each in query.recentProgress) >= 15, query)
keep("micro-batches", *(each.json for each in query.recentProgress), query.status)
query.explain(extended=True)
query.stop()


def copied() -> int:
    return int(pulsar(spark.read, logins["token"], f"{topic}-copy", startingOffsets="earliest").load().count())


frame = headgate.continuous(stream(logins["certificate"]), parallelism=1)
frame.explain()
writer = pulsar(frame.writeStream, logins["token"], f"{topic}-copy", **once).trigger(continuous="200 ms")
running = writer.option("checkpointLocation", str(out / "continuous")).start()
wait_until(lambda: copied() >= 30 and running.lastProgress is not None, running)
keep("copied", copied())
keep("continuous", *running.recentProgress, running.status, running.snapshot(), running.history())
running.stop()

save_pages(spark, out, 8)


def a_read(login: dict[str, str]) -> None:
    pulsar(spark.read, login, startingOffsets="earliest").schema("value binary").load().collect()


def a_write(login: dict[str, str]) -> None:
    pulsar(five.write.mode("append"), login).save()


def micro_batches(login: dict[str, str]) -> None:
    query = stream(login).writeStream.format("noop").start()
    try:
        assert query.awaitTermination(120)
    finally:
        keep("failed-micro-batches", query.status, query.exception())


def a_continuous_query(login: dict[str, str]) -> None:
    writer = headgate.continuous(stream(login), parallelism=1).writeStream.format("noop").trigger(continuous="1 second")
    query = writer.start()
    try:
        assert query.awaitTermination(120)
    finally:
        keep("failed-continuous", query.status, query.recentProgress, query.exception())


for number, (login, doings) in enumerate(given["wrong"]):
    for doing in (a_read, a_write, micro_batches, a_continuous_query):
        if doing.__name__ in doings:
            try:
                doing(login)
                keep(f"error-{number}-{doing.__name__}", "no error")
            except Exception as error:
                keep(f"error-{number}-{doing.__name__}", error)
spark.stop()
