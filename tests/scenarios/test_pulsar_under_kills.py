"""Pulsar in micro-batches, with SIGKILL of the driver at every point of a micro-batch: each message is read once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.pulsar_topics import Message, create_topic, produce
from tests.shared_broker import PulsarAddresses

pytestmark = pytest.mark.timeout(600)
POINTS = ("after the offset", "in a task", "between two tasks", "after the last task")

PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import pyarrow as pa

from headgate.connectors.pulsar.source import PulsarSource
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.microbatch.task import read_splits
from headgate.source import PlanLimits

service, admin, topic, folder, point, batches = sys.argv[1:]
folder, schema = Path(folder), pa.schema({"value": pa.binary()})
source = PulsarSource({"service.url": service, "admin.url": admin, "topic": topic, "startingOffsets": "earliest",
                       "predefinedSubscription": "ferry"})
planner, limits = StreamPlanner(source, schema), PlanLimits(max_rows=11)

def reach(here):
    if here == point and int(batches) == done:
        os.kill(os.getpid(), signal.SIGKILL)

def run(start, end, number):
    rows = []
    for task, splits in enumerate(planner.tasks(start, end, 0)):
        if task:
            reach("between two tasks")
        for batch in read_splits(source, schema, splits, task, "UTC"):
            rows += [int(value) for value in batch["value"].to_pylist()]
            reach("in a task")
    written = folder / f"rows-{number}.part"
    written.write_text(json.dumps(rows))
    written.rename(folder / f"rows-{number}")
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
    log.with_suffix(".part").write_text(json.dumps(end))
    log.with_suffix(".part").rename(log)
    reach("after the offset")
    run(start, end, number)
    planner.committed(end)
    start, number, done = end, number + 1, done + 1
planner.close()
"""


@pytest.mark.parametrize("kills", [len(POINTS), 10])
def test_each_message_is_read_once(pulsar: PulsarAddresses, topic_name: str, tmp_path: Path, kills: int) -> None:
    """The first batches are killed at each point once; with more kills also later ones.

    What breaks it breaks `tests/scenarios/test_pulsar_under_kills.py::test_each_message_is_read_once[4]` too.
    """
    create_topic(pulsar, topic_name, 2)
    sent, killed = 0, 0
    for attempt in range(kills + 1):
        produce(
            pulsar, topic_name,
            [Message(b"%d" % number, partition=number % 2) for number in range(sent, sent + 40)], batch=6,
        )  # fmt: skip
        sent += 40
        point = POINTS[attempt % len(POINTS)] if attempt < kills else "nowhere"
        arguments = [pulsar.service_url, pulsar.admin_url, topic_name, str(tmp_path), point, str(attempt % 3)]
        ended = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], timeout=600, capture_output=True, text=True)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        killed += ended.returncode != 0
    assert killed == kills
    rows = [row for each in tmp_path.glob("rows-*") for row in json.loads(each.read_text())]
    assert sorted(rows) == list(range(sent))
