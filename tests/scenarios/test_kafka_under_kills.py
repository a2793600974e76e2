"""Kafka to Kafka, exactly once, with SIGKILL at every point of a micro-batch: each committed value arrives once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.task_writer import write_epoch
from local.kafka import Broker, running_broker
from local.topics import Message, create_topic, produce
from tests.unit.runtime.toy_query import wait_until

pytestmark = pytest.mark.timeout(900)  # the first test of each kind starts the broker and Spark as well
POINTS = ("after the offset", "in a transaction", "between two tasks", "after the last task")

PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import pyarrow as pa

from headgate.connectors.kafka.sink.task_writer import write_epoch
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.source import KafkaSource
from headgate.source import PlanLimits
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.microbatch.task import read_splits

address, topic, name, folder, rows, point, batches = sys.argv[1:]
folder, schema = Path(folder), pa.schema({"value": pa.binary()})
brokers = {"kafka.bootstrap.servers": address}
source = KafkaSource(brokers | {
    "subscribe": f"{topic}-in", "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"})
sink = KafkaSink.of(brokers | {"topic": f"{topic}-out", "guarantee": "exactly-once"}, schema)
planner, limits = StreamPlanner(source, schema), PlanLimits(max_rows=int(rows))

def reach(here):
    if here == point and int(batches) == done:
        os.kill(os.getpid(), signal.SIGKILL)

def in_transaction(rows):
    for batch in rows:
        yield batch
        reach("in a transaction")

def run(start, end, number):
    for task, splits in enumerate(planner.tasks(start, end, 0)):
        if task:
            reach("between two tasks")
        write_epoch(sink, f"{name}-{task}", number, in_transaction(read_splits(source, schema, splits, task, "UTC")))
    reach("after the last task")
    (folder / f"commit-{number}").touch()

done, number, start = 0, 0, dict(INITIAL)
planner.freeze()
while (log := folder / f"offset-{number}").exists():
    end = json.loads(log.read_text())
    if not (folder / f"commit-{number}").exists():
        run(start, end, number)
    start, number = end, number + 1
while (end := planner.plan(start, limits, number * 1000)) != start:
    log = folder / f"offset-{number}"
    log.write_text(json.dumps(end))
    reach("after the offset")
    run(start, end, number)
    start, number, done = end, number + 1, done + 1
planner.close()
"""


def read(kafka: Broker, topic: str) -> list[int]:
    """Return the values of a topic that are committed."""
    settings = {"bootstrap.servers": kafka.plain, "group.id": "none", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    partitions = list(consumer.list_topics(topic, 60).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    found: list[int] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(60)
        assert message is not None, "the broker did not answer"
        error = message.error()
        if error is None:
            found.append(int(message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()
    return sorted(found)


def send_in_transactions(kafka: Broker, topic: str, values: range, partitions: int) -> None:
    """Write values fifty at a time, with other ones that are aborted between them."""
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic})
    producer.init_transactions(60)
    for begin in range(values.start, values.stop, 50):
        for wanted in (False, True):
            producer.begin_transaction()
            for value in range(begin, begin + 50):
                producer.produce(topic, b"%d" % (value if wanted else -1 - value), partition=value % partitions)
            producer.flush(60)
            (producer.commit_transaction if wanted else producer.abort_transaction)(60)


def add_partitions(kafka: Broker, topic: str, count: int) -> None:
    """Let a topic have so many partitions, and wait until the broker has heard of them from the controller."""
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(60)

    def are_there() -> bool:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=60)[topic].result(60)
        return sum(each.leader is not None and each.leader.id >= 0 for each in described.partitions) == count

    wait_until(are_there)


def test_a_process_killed_at_any_point_of_a_batch_goes_on_from_its_log(
    kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """Without Spark: the planner, the reader and the sink between a log of offsets and one of commits."""
    create_topic(kafka.plain, f"{topic_name}-in", 2)
    create_topic(kafka.plain, f"{topic_name}-out", 2)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(rows: int, point: str, batches: int) -> int:
        arguments = [kafka.plain, topic_name, topic_name, str(tmp_path), str(rows), point, str(batches)]
        ended = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        return ended.returncode

    sent = 0
    for number, point in enumerate(POINTS):
        if number == 2:
            add_partitions(kafka, f"{topic_name}-in", 4)
        send_in_transactions(kafka, f"{topic_name}-in", range(sent, sent + 100), 2 if number < 2 else 4)
        sent += 100
        assert run(40 + 10 * number, point, number % 2) == -signal.SIGKILL, "it was not killed"
    assert run(1000, "nowhere", 0) == 0
    assert read(kafka, f"{topic_name}-out") == list(range(sent))


def test_an_epoch_is_written_right_after_the_brokers_start(tmp_path: Path) -> None:
    """They do not know the group's offsets yet: the first time they make the topic for them, then they load it."""
    values = pa.schema({"value": pa.string()})
    with running_broker(tmp_path / "broker") as broker:
        create_topic(broker.plain, "out")
        sink = KafkaSink.of(
            {"kafka.bootstrap.servers": broker.plain, "guarantee": "exactly-once", "topic": "out"}, values
        )
        for epoch in (0, 1):
            for _ in range(2):
                write_epoch(sink, "task", epoch, [pa.record_batch({"value": [str(epoch)]})])
            if epoch == 0:
                broker.kill()
                broker.start()
        assert read(broker, "out") == [0, 1]


def workers(spark: SparkSession, imported: Path) -> Iterator[int]:
    """Find the Python workers of a session's tasks: processes that the daemon has forked."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    for daemon in psutil.Process(gateway.proc.pid).children():
        fork = imported / str(daemon.pid)
        with contextlib.suppress(psutil.NoSuchProcess):  # another process of Spark's that has ended
            # It is named a moment after the daemon was started.
            if "pyspark.worker" in daemon.cmdline() and fork.exists():
                yield from (each.pid for each in psutil.Process(int(fork.read_text())).children())


@pytest.mark.spark_since("read-limits")
def test_a_stream_whose_workers_are_killed_writes_each_value_once(
    spark: SparkSession, imported: Path, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    create_topic(kafka.plain, f"{topic_name}-in", 3)
    create_topic(kafka.plain, f"{topic_name}-out", 3)
    # So many that it reads on until a worker is killed, whenever this thread comes to that.
    messages = [Message(json.dumps({"n": number}).encode(), partition=number % 3) for number in range(3000)]
    produce(kafka.plain, f"{topic_name}-in", messages)

    def start(rows: int) -> StreamingQuery:
        source = spark.readStream.format("headgate.kafka").schema("n BIGINT").options(
            **{"kafka.bootstrap.servers": kafka.plain, "subscribe": f"{topic_name}-in", "valueFormat": "json",
               "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(rows)}
        )  # fmt: skip
        sink = source.load().selectExpr("string(n) AS value").writeStream.format("headgate.kafka").options(
            **{"kafka.bootstrap.servers": kafka.plain, "topic": f"{topic_name}-out", "guarantee": "exactly-once",
               "checkpointLocation": str(tmp_path / "checkpoint")}
        )  # fmt: skip
        return sink.trigger(availableNow=True).start()

    query = start(20)
    # The other two: of a worker that Spark had asked for, and that has not registered yet, or was not even there.
    gone = r"Python worker|SocketAuthHelper\.authToServer|PythonWorkerFactory\.createWorker"
    with pytest.raises(StreamingQueryException, match=gone):
        while query.isActive:
            for process in workers(spark, imported) if (tmp_path / "checkpoint" / "offsets" / "1").exists() else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        query.awaitTermination()
    start(3000).awaitTermination()
    assert read(kafka, f"{topic_name}-out") == list(range(3000))
