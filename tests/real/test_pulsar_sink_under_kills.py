"""Micro-batches from Pulsar into Pulsar; the driver is killed at every point of a commit: each row is there once.

What breaks it breaks
`tests/real/test_pulsar_sink_on_spark.py::test_a_micro_batch_that_spark_replays_with_other_tasks_is_written_once_or_again`
and `tests/real/test_pulsar_sink_on_spark.py::test_a_commit_that_failed_half_way_goes_on_by_its_manifest` too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local.pulsar_topics import Message, create_topic, produce, read_topic
from tests.shared_broker import PulsarAddresses
from tests.spark_java import forked_from, micro_batches

PROGRAM = Path(__file__).with_name("pulsar_sink_program.py")
ROWS = 25_000
"""In a micro-batch: more than its two producers may have under way when the first row is acknowledged."""
POINTS = (
    ("before all tasks have staged", 0, "writer", range(1)),
    ("after the manifest", 1, "writer", range(1)),
    ("at the first acknowledgement", 2, "writer", range(1, ROWS)),
    ("at the first acknowledgement", 2, "nobody", range(1, ROWS + 1)),  # in the replay; what it had begun may go on
    ("after the last row", 3, "writer", range(ROWS, ROWS + 1)),
    ("after the mark", 3, "writer", range(ROWS, ROWS + 1)),
)
"""Where the driver is killed in which micro-batch, who with it, and how many rows of that are in the topic then."""


@pytest.mark.timeout(1800)
@pytest.mark.spark_since("stream-arrow-writer")
def test_each_row_is_there_once(pulsar: PulsarAddresses, imported: Path, topic_name: str, tmp_path: Path) -> None:
    origin = create_topic(pulsar, f"{topic_name}-origin", 2)
    target = create_topic(pulsar, f"persistent://public/once/{topic_name}", 2)
    settings = " ".join(f"--conf {name}={value}" for name, value in micro_batches().items())

    def run(point: str, batch: int, killed: str) -> int:
        """Return how the program ended; it is of a session of its own, with its Java."""
        arguments = [pulsar.service_url, pulsar.admin_url, origin, target, str(tmp_path), point, str(batch), killed]
        with forked_from(imported):
            ended = subprocess.run(
                [sys.executable, str(PROGRAM), *arguments],
                env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"},
                capture_output=True, start_new_session=True,
            )  # fmt: skip
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr.decode()[-4000:]
        return ended.returncode

    def values() -> list[str]:
        return [message.data().decode() for message in read_topic(pulsar, target)]

    sent: list[str] = []
    for point, batch, killed, expected in POINTS:
        if len(sent) == batch * ROWS:
            lines = [f"{batch}-{n}" for n in range(ROWS)]
            produce(pulsar, origin, [Message(line.encode()) for line in lines])
            sent += lines
        assert run(point, batch, killed) == -signal.SIGKILL, f"it was not killed {point}"
        assert sum(value.startswith(f"{batch}-") for value in values()) in expected, f"it was killed {point}"
    assert run("nowhere", 0, "nobody") == 0
    assert sorted(values()) == sorted(sent)
