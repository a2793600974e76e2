"""A task's memory is bounded by ``maxBufferedBytes``, not by how much there is to read."""

from __future__ import annotations

import random
import subprocess
import sys

from local.kafka import Broker
from local.topics import Message, create_topic, produce

READ = """
import resource, sys
from headgate.connectors.kafka.columns import kafka_schema
from headgate.connectors.kafka.source import KafkaSource
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits

address, topic = sys.argv[1:]
source = KafkaSource({"kafka.bootstrap.servers": address, "subscribe": topic, "maxBufferedBytes": "8m"})
splits = plan_batch(source, kafka_schema(False), 0)
rows = 0
for batch in read_splits(source, kafka_schema(False), splits, 0, "UTC"):
    rows += batch.num_rows
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def peak_bytes(kafka: Broker, topic: str, rows: int) -> int:
    done = subprocess.run([sys.executable, "-c", READ, kafka.plain, topic], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found, peak = map(int, done.stdout.split())
    assert found == rows
    return peak


def test_ten_times_the_topic_takes_no_more_memory(kafka: Broker, topic_name: str) -> None:
    value = random.Random(1).randbytes(10_000)
    small, large = (create_topic(kafka.plain, f"{topic_name}-{each}", 4) for each in ("small", "large"))
    for topic, rows in ((small, 1000), (large, 10_000)):
        produce(kafka.plain, topic, (Message(value, partition=number % 4) for number in range(rows)))
    peak_bytes(kafka, small, 1000)  # compiles, should that be needed
    growth = peak_bytes(kafka, large, 10_000) - peak_bytes(kafka, small, 1000)
    assert growth < 40 << 20, f"90 MB more to read took {growth >> 20} MiB more"
