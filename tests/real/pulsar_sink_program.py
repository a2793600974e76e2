"""Copies a topic of Pulsar to another exactly once; the driver is killed at a point of one of its micro-batches.

Arguments: the brokers' addresses, the two topics, a folder for checkpoints, the point and number of the micro-batch,
and who is killed with the driver, which is this process and its Java: ``writer``, or ``nobody``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage

from headgate.connectors.pulsar.sink import micro_batch
from headgate.connectors.pulsar.sink.producer import MessageWriter
from headgate.spark.broker_sink import query_batch_and_task
from headgate.spark.pulsar_sink import PulsarDataSource, StreamWriter

service_url, admin_url, origin, target, folder, point, batch, killed = sys.argv[1:]
where = {"service.url": service_url, "admin.url": admin_url}
driver = os.getpid()  # of a session of its own; the processes of writers are of others


def reach(here: str, of: int) -> None:
    if (here, str(of)) == (point, batch):
        os.killpg(driver, signal.SIGKILL)
        if killed == "writer":
            os.kill(os.getpid(), signal.SIGKILL)


class KilledWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        _, number, task = query_batch_and_task("tests")
        if task == 1:
            reach("before all tasks have staged", number)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        class KilledMessages(MessageWriter):
            def __init__(self, *arguments: Any) -> None:
                reach("after the manifest", batchId)
                super().__init__(*arguments)

            def _on_sent(self, *arguments: Any) -> None:
                reach("at the first acknowledgement", batchId)
                super()._on_sent(*arguments)

            def __exit__(self, *error: object) -> None:
                reach("after the last row", batchId)
                super().__exit__(*error)

        micro_batch.MessageWriter = KilledMessages  # type: ignore[misc]
        super().commit(messages, batchId)
        reach("after the mark", batchId)


class KilledSource(PulsarDataSource):
    format_name = "tests.killed"
    stream_writer = KilledWriter


spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(KilledSource)
reader = spark.readStream.format("headgate.pulsar").options(**where, topic=origin, startingOffsets="earliest")
values = reader.schema("value binary").load().repartition(2, "value")
query = values.writeStream.format("tests.killed").options(
    **where, topic=target, guarantee="exactly-once", checkpointLocation=folder
)
# Before Spark 4.2 AvailableNow ends after the micro-batch that is replayed.
trigger = {"availableNow": True} if point == "nowhere" else {"processingTime": "0 seconds"}
query.trigger(**trigger).start().awaitTermination(240)
