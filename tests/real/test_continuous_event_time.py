"""Event time and alignment of continuous queries on real Spark and Kafka: who reads how far, whatever others do.

Where a split that holds others back has nothing more for now, all is still, and who has read what is compared exactly.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

import headgate
from headgate.connectors.simple.source import SimpleSourceAdapter
from headgate.connectors.simple.split import SimpleSplit
from headgate.connectors.simple.split_reader import SimpleSplitReader
from headgate.errors import HeadgateError
from headgate.readers import MultiplexedReader
from headgate.source import SourceReader, SourceReaderContext, SplitReader
from local.topics import Message, create_topic, produce
from tests.real.aligned_rows import (
    DRIFT_S,
    SCHEMA,
    START,
    AlignedRows,
    Rows,
    check,
    most,
    pid_of,
    read,
    settle,
)
from tests.real.running_queries import PATIENCE_S, stop_all, wait_until, written
from tests.spark_java import SparkJava

if TYPE_CHECKING:
    from local.kafka import Broker

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

FAST = 60
"""So many rows has a split that waits: more than it may read."""


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


# Kafka: positions of single rows are known.

PARTITIONS = 4
BEGIN_MS = 1_767_225_600_000
STEP_MS, HOUR_MS = 10_000, 3_600_000
KAFKA_DRIFT_MS = 45_000
Truth = list[list[int]]
"""The event times of each partition, in milliseconds, in the order of offsets."""


class Notes:
    """A user's function that notes when which rows passed; each process has a file of its own.

    A batch may have rows of several partitions, in the order in which they were read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = batch["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
            rows = zip(batch["partition"].to_pylist(), times)
            for partition, of_it in itertools.groupby(rows, lambda row: row[0]):
                note = {"at_ns": time.monotonic_ns(), "partition": partition, "times": [at_ms for _, at_ms in of_it]}
                with (self.folder / f"{os.getpid()}.notes").open("a") as file:
                    file.write(json.dumps(note) + "\n")
            yield batch


class Topic:
    """A topic of four partitions, and a query that notes how they are read."""

    def __init__(self, spark: SparkSession, kafka: Broker, topic: str, folder: Path) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.topic = create_topic(kafka.plain, topic, PARTITIONS)
        self.truth: Truth = [[] for _ in range(PARTITIONS)]

    def write(self, partition: int, begin_ms: int, end_ms: int, step_ms: int = STEP_MS) -> None:
        times = [BEGIN_MS + each for each in range(begin_ms, end_ms, step_ms)]
        produce(
            self.kafka.plain, self.topic,
            [Message(b"x", partition=partition, timestamp_ms=at_ms) for at_ms in times],
        )  # fmt: skip
        self.truth[partition] += times

    def start(self, parallelism: int, *, aligned: bool = True) -> headgate.ContinuousQuery:
        reader = (
            self.spark.readStream.format("headgate.kafka")
            .option("kafka.bootstrap.servers", self.kafka.plain)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("eventTimeColumn", "timestamp")
        )
        if aligned:
            group = {"group": self.topic, "max-drift": f"{KAFKA_DRIFT_MS} ms"}
            reader = reader.options(**{f"scan.watermark.alignment.{name}": value for name, value in group.items()})
        rows = reader.load().select("partition", "timestamp").withWatermark("timestamp", "0 seconds")
        noted = rows.mapInArrow(Notes(self.folder), "partition int, timestamp timestamp")
        return written(noted, "noop", parallelism, interval="200 milliseconds").start()

    def notes(self) -> list[tuple[int, list[int]]]:
        """Return the partition and the event times of each call, in the order of time."""
        lines = [
            line
            for path in self.folder.glob("*.notes")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        notes = sorted(map(json.loads, lines), key=lambda note: int(note["at_ns"]))
        return [(note["partition"], note["times"]) for note in notes]

    def read(self) -> Truth:
        """Return what was read of each partition, in the order in which it was."""
        found: Truth = [[] for _ in range(PARTITIONS)]
        for partition, times in self.notes():
            found[partition] += times
        return found

    def settle(self, query: headgate.ContinuousQuery, expected: Truth) -> None:
        """Wait until this was read; a checkpoint later nothing else was, and each row once and in its order."""
        wait_until(lambda: all(len(has) >= len(shall) for has, shall in zip(self.read(), expected)), query)
        query.checkpoint()
        assert [len(each) for each in self.read()] == [len(each) for each in expected]
        assert self.read() == expected

    def before(self, limit_ms: int) -> Truth:
        """Return the rows that may be read while the slowest partition is at a time."""
        return [[at_ms for at_ms in times if at_ms <= limit_ms + KAFKA_DRIFT_MS] for times in self.truth]

    def overshoot(self) -> int:
        """Return how many rows were read beyond the drift and the next row of each other partition; for one slot."""
        taken, beyond = [0] * PARTITIONS, 0
        for partition, times in self.notes():
            assert self.truth[partition][taken[partition] :][: len(times)] == times
            taken[partition] += len(times)
            others = [
                rows[done]
                for each, (rows, done) in enumerate(zip(self.truth, taken))
                if each != partition and done < len(rows)
            ]
            if others:
                beyond += sum(at_ms > min(others) + KAFKA_DRIFT_MS for at_ms in times)
        return beyond


@pytest.mark.parametrize("aligned", [True, False])
def test_no_partition_is_read_a_row_too_far(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path, aligned: bool
) -> None:
    """One is two hours late. One slot reads all, so what is noted is in the order in which it was read."""
    topic = Topic(spark, kafka, topic_name, tmp_path)
    topic.write(0, 0, 3 * HOUR_MS)
    for partition in range(1, PARTITIONS):
        topic.write(partition, 2 * HOUR_MS, 3 * HOUR_MS)
    query = topic.start(1, aligned=aligned)
    topic.settle(query, topic.truth)
    assert topic.overshoot() == 0 if aligned else topic.overshoot() > FAST


def test_partitions_of_two_slots_wait_at_the_very_row(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """A producer is two hours late; it catches up in two steps, the second of which leaps over an hour."""
    topic = Topic(spark, kafka, topic_name, tmp_path)
    topic.write(0, 0, HOUR_MS)
    for partition in range(1, PARTITIONS):
        topic.write(partition, 0, 3 * HOUR_MS)
    query = topic.start(2)
    topic.settle(query, topic.before(topic.truth[0][-1]))
    topic.write(0, HOUR_MS, HOUR_MS + 20 * STEP_MS)
    topic.settle(query, topic.before(topic.truth[0][-1]))
    topic.write(0, 3 * HOUR_MS - 5 * STEP_MS, 3 * HOUR_MS)
    topic.settle(query, topic.truth)
    query.stop()


# Several sources and queries.


def test_two_sources_of_a_query_are_one_group(spark: SparkSession, tmp_path: Path) -> None:
    slow, fast = Rows(spark, tmp_path / "slow", slow=10), Rows(spark, tmp_path / "fast", fast=FAST)
    query = slow.start(slow.aligned().alias("slow").union(fast.aligned().alias("fast")), 1)
    settle(query, slow=10, fast=most(10))
    slow.set_rows("slow", 20)
    settle(query, slow=20, fast=most(20))
    slow.set_rows("slow", 21, finished=True)
    settle(query, slow=21, fast=FAST)


def test_two_queries_are_one_group_until_one_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    slow, fast = Rows(spark, tmp_path / "slow", slow=10), Rows(spark, tmp_path / "fast", fast=FAST)
    first = slow.start(slow.aligned(), 1)
    settle(first, slow=10)
    second = fast.start(fast.aligned(), 1)
    settle(second, fast=most(10))
    slow.set_rows("slow", 20)
    settle(second, fast=most(20))
    settle(first, slow=20)
    first.stop()
    settle(second, fast=FAST)


def test_a_query_that_is_rescaled_holds_the_others_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    slow, fast = Rows(spark, tmp_path / "slow", slow=10), Rows(spark, tmp_path / "fast", fast=6000)
    first = slow.start(slow.aligned(), 1)
    settle(first, slow=10)
    second = fast.start(fast.aligned(), 1)
    settle(second, fast=most(10))
    first.rescale(2)
    settle(second, fast=most(10))
    slow.set_rows("slow", 20)
    settle(first, slow=20)
    settle(second, fast=most(20))


# A split that waits goes on, whatever happens to the one it waits for.


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_goes_on_when_the_slow_one_finishes(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(), parallelism)
    settle(query, slow=10, fast=most(10))
    rows.set_rows("slow", 12, finished=True)
    settle(query, slow=12, fast=FAST)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_goes_on_when_the_slow_one_is_idle(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    """The idle one is read on when it has rows again, though it lags far."""
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(**{"scan.watermark.idle-timeout": "700 ms"}), parallelism)
    settle(query, slow=10, fast=FAST)
    rows.set_rows("slow", 20)
    settle(query, slow=20, fast=FAST)
    rows.set_rows("fast", FAST + 10)
    settle(query, slow=20, fast=FAST + 10)


def test_a_split_goes_on_when_the_slow_one_s_subtask_fails(spark: SparkSession, tmp_path: Path) -> None:
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(), 2, {"restart-strategy.initial-backoff": "100 ms"})
    settle(query, slow=10, fast=most(10))
    (tmp_path / "raises").write_text("slow")
    rows.set_rows("slow", 20)
    wait_until(lambda: not (tmp_path / "raises").exists(), query)
    settle(query, slow=20, fast=most(20))
    assert sorted(each["execution"] for each in query.status["subtasks"]) == [1, 2]
    rows.set_rows("slow", 30, finished=True)
    settle(query, slow=30, fast=FAST)


@pytest.mark.parametrize("victim", ["slow", "fast"])
def test_a_split_goes_on_when_a_worker_is_killed(spark: SparkSession, tmp_path: Path, victim: str) -> None:
    """Be it that of the slow one, or its own; without retries Spark gives up on both tasks."""
    kill_a_worker(spark, tmp_path, victim, executions=[2, 2])


@pytest.mark.timeout(PATIENCE_S * 5)
def test_a_split_goes_on_when_a_worker_alone_is_retried(java: SparkJava, repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.real.aligned_with_retries", str(tmp_path)]
    ended = java.run(command, cwd=repository, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S * 4)
    assert ended.returncode == 0, ended.stderr[-10_000:]


def kill_a_worker(spark: SparkSession, folder: Path, victim: str, *, executions: list[int]) -> None:
    """Kill the process that reads a split; afterwards the subtasks have been deployed so often."""
    rows = Rows(spark, folder, slow=10, fast=FAST)
    query = rows.start(rows.aligned(), 2, {"slots": "spark"})
    settle(query, slow=10, fast=most(10))
    os.kill(pid_of(query, victim), signal.SIGKILL)
    rows.set_rows("slow", 20)
    settle(query, slow=20, fast=most(20))
    assert sorted(each["execution"] for each in query.status["subtasks"]) == executions
    rows.set_rows("slow", 30, finished=True)
    settle(query, slow=30, fast=FAST)
    query.stop()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_split_that_waits_in_a_savepoint_goes_on_at_another_parallelism(
    spark: SparkSession, tmp_path: Path, before: int, after: int
) -> None:
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(), before)
    settle(query, slow=10, fast=most(10))
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert query.exception() is None
    had = read(query)

    rows.set_rows("slow", 20)
    query = rows.start(rows.aligned(), after, savepoint=tmp_path / "savepoint")
    wait_until(lambda: len(read(query).get("slow", ())) == 10, query)
    wait_until(lambda: len(read(query).get("fast", ())) >= most(20) - most(10), query)
    query.checkpoint()
    check({split: had[split] + numbers for split, numbers in read(query).items()}, slow=20, fast=most(20))
    rows.set_rows("slow", 21, finished=True)
    wait_until(lambda: len(read(query)["fast"]) == FAST - most(10), query)


def test_a_query_whose_split_waits_can_be_drained(spark: SparkSession, tmp_path: Path) -> None:
    """What is not read yet is read by the next query from the same place."""
    rows = Rows(spark, tmp_path / "rows", slow=10, fast=FAST)
    place = {"checkpointLocation": str(tmp_path / "checkpoints")}
    query = rows.start(rows.aligned(), 2, place)
    settle(query, slow=10, fast=most(10))
    query.stop(drain=True)
    assert query.exception() is None
    had = read(query)
    check(had, slow=10, fast=most(10))
    rows.set_rows("slow", 20, finished=True)
    rows.set_rows("fast", FAST, finished=True)
    query = rows.start(rows.aligned(), 2, place)
    wait_until(lambda: sum(map(len, read(query).values())) >= FAST + 20 - 10 - most(10), query)
    query.stop(drain=True)
    check({split: had[split] + numbers for split, numbers in read(query).items()}, slow=20, fast=FAST)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_aligned_query_with_an_end_ends(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    rows = Rows(spark, tmp_path)
    for split, end in (("a", 10), ("b", FAST), ("c", 30)):
        rows.set_rows(split, end, finished=True)
    query = rows.start(rows.aligned(bounded=True), parallelism)
    assert query.awaitTermination(PATIENCE_S)
    check(read(query), a=10, b=FAST, c=30)


# What a function made, and what is shown.


def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make a column of event time that the source does not have."""
    for batch in batches:
        yield batch.rename_columns(["split", "n", "made_at", "pid"])


def shown(query: headgate.ContinuousQuery) -> dict[str, Any]:
    """Return what the last progress shows of the splits, once it has both of them."""

    def of_both() -> dict[str, Any] | None:
        progress = query.lastProgress
        event_times = None if progress is None else progress["headgate"]["eventTimes"].get(AlignedRows.name)
        return event_times if event_times is not None and len(event_times["splits"]) == 2 else None

    return wait_until(of_both, query)  # type: ignore[no-any-return]


def time_of(row: int) -> str:
    """Return the time of a row as progress has it."""
    return f"{START + datetime.timedelta(seconds=row):%Y-%m-%dT%H:%M:%S}.000Z"


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_column_that_a_function_made_has_a_watermark_for_each_split(
    spark: SparkSession, tmp_path: Path, parallelism: int
) -> None:
    """The minimum counts; aligned, the fast split waits after the batch that went too far."""
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)

    def start(frame: DataFrame) -> headgate.ContinuousQuery:
        made = frame.mapInArrow(renamed, SCHEMA.replace("at timestamp", "made_at timestamp"))
        timed = made.withWatermark("made_at", "2 seconds")
        return written(timed, "memory", parallelism, interval="100 ms", slots="threads").start()

    query = start(rows.load())
    settle(query, slow=10, fast=FAST)
    wait_until(lambda: shown(query)["splits"]["fast"]["watermark"] == time_of(FAST - 3), query)
    wait_until(lambda: query.lastProgress.eventTime.get("watermark") == time_of(7), query)
    wait_until(lambda: shown(query)["splits"]["slow"]["watermark"] == time_of(7), query)  # reported less often
    query.stop()

    query = start(rows.aligned())
    settle(query, slow=10, fast=most(10))
    rows.set_rows("slow", 12, finished=True)
    settle(query, slow=12, fast=FAST)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_progress_shows_who_waits_and_how_far_ahead(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(), parallelism)
    settle(query, slow=10, fast=most(10))
    wait_until(lambda: shown(query)["splits"]["fast"]["watermark"] == time_of(most(10) - 1), query)
    wait_until(lambda: shown(query)["splits"]["slow"]["watermark"] == time_of(9), query)
    wait_until(lambda: shown(query)["splits"]["fast"]["paused"], query)  # may be reported after the watermark
    wait_until(lambda: {query.lastProgress.eventTime.get(each) for each in ("watermark", "min")} == {time_of(9)}, query)
    progress = query.lastProgress
    assert isinstance(progress, StreamingQueryProgress)
    drift_ms = (DRIFT_S + 1) * 1000
    assert progress["headgate"]["eventTimes"][AlignedRows.name] == {
        "alignmentGroup": "seconds", "driftMs": drift_ms, "pausedSplits": 1, "idleSplits": 0,
        "splits": {
            "fast": {"watermark": time_of(most(10) - 1), "idle": False, "paused": True, "driftMs": drift_ms},
            "slow": {"watermark": time_of(9), "idle": False, "paused": False, "driftMs": 0},
        },
    }  # fmt: skip
    group = progress["headgate"]["alignmentGroups"]["seconds"]
    assert group["slowest"] == {"source": AlignedRows.name, "split": "slow"}
    assert (group["driftMs"], group["pausedSplits"], group["numSplits"]) == (drift_ms, 1, 2)
    assert progress.eventTime["watermark"] == progress.eventTime["min"] == time_of(9)
    again = StreamingQueryProgress.fromJson(json.loads(progress.json))
    assert again.eventTime == progress.eventTime
    assert json.loads(progress.json)["headgate"] == progress["headgate"]


# Sources that cannot pause splits.


class OneClientReader(SplitReader[SimpleSplit]):
    """A split reader of before FLIP-217."""

    def __init__(self, inner: SimpleSplitReader) -> None:
        self._inner = inner

    def fetch(self, timeout_ms: int) -> Any:
        return self._inner.fetch(timeout_ms)

    def handle_splits_changes(self, added: Any) -> None:
        self._inner.handle_splits_changes(added)

    def wake_up(self) -> None:
        self._inner.wake_up()

    def close(self) -> None:
        self._inner.close()


class CannotPause(SimpleSourceAdapter):
    name: ClassVar[str] = "cannot-pause"

    def __init__(self, options: Any) -> None:
        super().__init__(AlignedRows, options)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[SimpleSplit]:
        made = super().create_reader(context)
        assert isinstance(made, MultiplexedReader)
        factory: Callable[[], Any] = made.split_reader_factory
        return MultiplexedReader(lambda: OneClientReader(factory()), context)


ALLOW = "pipeline.watermark-alignment.allow-unaligned-source-splits"


def test_a_source_that_cannot_pause_splits(spark: SparkSession, tmp_path: Path) -> None:
    """One split a reader is aligned as any; several are an error that names the option; with it they are read."""
    headgate.register(spark, CannotPause)
    rows = Rows(spark, tmp_path, slow=10, fast=FAST)
    query = rows.start(rows.aligned(format="cannot-pause"), 2)
    settle(query, slow=10, fast=most(10))
    query.stop()

    query = rows.start(rows.aligned(format="cannot-pause"), 1)
    with pytest.raises(HeadgateError, match=ALLOW):
        query.awaitTermination(PATIENCE_S)

    query = rows.start(rows.aligned(format="cannot-pause"), 1, {ALLOW: "true"})
    settle(query, slow=10, fast=FAST)
