"""Queries whose slots are threads of this process: the same rows and failover as with tasks, and no Spark job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import running_queries
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming import StatefulProcessor
from running_queries import PATIENCE_S, happens, held_numbers, read_values, wait_until, written

import headgate
from tests.spark_java import SparkJava

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    running_queries.stop_all()
    wait_until(lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("headgate-s")])


def slot_jobs(spark: SparkSession, query: headgate.ContinuousQuery) -> list[int]:
    """Return the Spark jobs that ran for the slots of a query, in all its runs so far."""
    tracker = spark.sparkContext.statusTracker()
    numbers = [(run, submission) for run in range(5) for submission in range(5)]
    return [job for run, number in numbers for job in tracker.getJobIdsForGroup(f"headgate-{query.id}-{run}-{number}")]


def test_windows_downstream_of_an_exchange_are_what_spark_s_batch_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Files, exactly once; of a session whose two cores are fewer than the slots."""
    options = {"numRows": 20_000, "rowsPerSecond": 1000, "numPartitions": 3}
    options |= {"fields.k.min": 0, "fields.k.max": 9, "fields.n.min": 0, "fields.n.max": 99}
    reader = spark.read.format("headgate.datagen").schema("at timestamp, k long, n long").options(**options)
    out = tmp_path / "out"

    def counted(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy(f.window("at", "5 seconds").alias("w"), "k")
        return grouped.agg(f.count("*").alias("rows"), f.sum("n").alias("n"))

    timed = reader.option("eventTimeColumn", "at").load()
    writer = written(counted(timed), "parquet", 3, interval="200 milliseconds", slots="threads")
    query = writer.option("checkpointLocation", tmp_path / "checkpoints").start(str(out))
    assert query.awaitTermination(PATIENCE_S), query.status
    assert slot_jobs(spark, query) == []

    found = spark.read.parquet(str(out)).select("w", "k", "rows", "n")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, counted(timed).collect()))


class Moody:
    """A user's function that raises, or waits, once: when a file says so."""

    calls = 0

    def __init__(self, folder: Path, added: int) -> None:
        self.folder = folder
        self.added = added

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            type(self).calls += 1
            if happens(self.folder / "raises"):
                raise ValueError("a number that I do not like")
            if happens(self.folder / "waits"):
                wait_until((self.folder / "waited enough").exists)
            yield pa.record_batch({"value": pa.array([each + self.added for each in batch["value"].to_pylist()])})


def start(
    spark: SparkSession, folder: Path, rows: int, slots: str, parallelism: int = 2, **options: str
) -> headgate.ContinuousQuery:
    """Start a query of the numbers that `Moody` passes on, with 1000 added."""
    moody = Moody(folder, 1000)
    frame = held_numbers(spark, folder / "may-end", rows=rows).repartition(9).mapInArrow(moody, "value long")
    options = {"checkpointLocation": str(folder / "checkpoints"), "heartbeat.timeout": "60 seconds", **options}
    writer = written(frame, "parquet", parallelism, interval="200 milliseconds", slots=slots, **options)
    return writer.start(str(folder / "out"))


def assert_ends_with_all_rows(spark: SparkSession, query: headgate.ContinuousQuery, folder: Path, rows: int) -> None:
    (folder / "may-end").touch()
    assert query.awaitTermination(PATIENCE_S), query.status
    assert read_values(spark, folder / "out") == list(range(1000, 1000 + rows))


def executions(query: headgate.ContinuousQuery) -> set[int]:
    return {each["execution"] for each in query.status["subtasks"]}


def test_a_function_that_raises_once(spark: SparkSession, tmp_path: Path) -> None:
    """The subtasks restore in place, as in tasks; and the slots' class is not the program's."""
    query = start(spark, tmp_path, 4000, "threads")
    wait_until(lambda: query.status["rowsOut"], query)
    query.checkpoint()
    assert {(slot["pid"], slot["executor"]) for slot in query.status["slots"]} == {(os.getpid(), "driver")}
    (tmp_path / "raises").touch()
    wait_until(lambda: min(executions(query)) > 1 and query.status["message"] == "running", query)
    assert {slot["attempt"] for slot in query.status["slots"]} == {0}
    assert_ends_with_all_rows(spark, query, tmp_path, 4000)
    assert (slot_jobs(spark, query), Moody.calls) == ([], 0)


def test_a_function_that_hangs(spark: SparkSession, tmp_path: Path) -> None:
    """Its slot is given up with its thread, other threads take the place of all slots, and this process lives."""
    before = set(threading.enumerate())
    query = start(spark, tmp_path, 4000, "threads", **{"task.stuck.timeout": "3 seconds"})
    wait_until(lambda: query.status["rowsOut"], query)
    (tmp_path / "waits").touch()
    wait_until(lambda: min(slot["job"] for slot in query.status["slots"]) >= 1, query)
    wait_until(lambda: query.status["message"] == "running", query)
    assert_ends_with_all_rows(spark, query, tmp_path, 4000)
    assert slot_jobs(spark, query) == []
    (tmp_path / "waited enough").touch()  # the thread that was given up changes nothing any more, and ends
    own = [each for each in set(threading.enumerate()) - before if each.name.startswith("headgate-subtask")]
    wait_until(lambda: not any(each.is_alive() for each in own))
    assert read_values(spark, tmp_path / "out") == list(range(1000, 5000))


@pytest.mark.parametrize("kinds", [("spark", "threads"), ("threads", "spark")], ids=" then ".join)
def test_one_kind_of_slots_goes_on_from_the_other_s_checkpoint(
    spark: SparkSession, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    query = start(spark, tmp_path, 4000, kinds[0], parallelism=2)
    wait_until(lambda: query.status["rowsOut"], query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert bool(slot_jobs(spark, query)) == (kinds[0] == "spark")
    resumed = start(spark, tmp_path, 4000, kinds[1], parallelism=1)
    assert resumed.id == query.id
    jobs = slot_jobs(spark, query)
    wait_until(lambda: resumed.status["message"] == "running", resumed)
    if kinds[1] == "threads":
        resumed.rescale(4)  # there are two cores
        assert slot_jobs(spark, query) == jobs
    assert_ends_with_all_rows(spark, resumed, tmp_path, 4000)


class NotedSlowly(StatefulProcessor):  # type: ignore[misc]
    """Passes rows on with the time, and so slowly that others wait in the exchange, until a file says to hurry."""

    def __init__(self, hurry: Path) -> None:
        self.hurry = hurry

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        pause_s = 0 if self.hurry.exists() else 0.001
        for row in rows:
            time.sleep(pause_s)
            yield Row(n=row.n, k=row.k, at=time.monotonic_ns())  # the slots are threads of one process


@pytest.mark.spark_since("transform-with-state-rows")
def test_rows_of_a_key_stay_in_order_through_rescales(spark: SparkSession, tmp_path: Path) -> None:
    """With rows in flight, at parallelism 1, 2, 3, 1, 3 and a source that goes on: new rows wait for recovered ones."""
    rows = (
        spark.readStream.format("headgate.datagen")
        .option("numPartitions", 3).option("rowsPerSecond", 20_000).option("fields.n.kind", "sequence")
        .option("fields.k.min", 0).option("fields.k.max", 5).option("fields.pad.length", 400)
        .schema("n long, k long, pad string").load()
    )  # fmt: skip
    noted = rows.groupBy("k").transformWithState(
        NotedSlowly(tmp_path / "hurry"), "n long, k long, at long", "append", "None"
    )
    query = written(noted, "memory", 1, interval="30 seconds", slots="threads").start()
    for parallelism in (2, 3, 1, 3):
        wait_until(lambda: query.status["rowsIn"] > query.status["rowsOut"] + 2000, query)  # so many are in flight
        query.rescale(parallelism)
    read = query.status["rowsIn"]
    wait_until(lambda: query.status["rowsIn"] > read + 1000, query)
    (tmp_path / "hurry").touch()
    wait_until(lambda: query.checkpoint() and query.table().num_rows > read, query)
    query.stop()
    rows = query.table().to_pandas().sort_values("at")
    assert not rows["n"].duplicated().any()
    overtaken = rows["n"] < rows.groupby([rows["n"] % 3, "k"])["n"].cummax()
    assert not overtaken.any(), rows[overtaken]


class Running(StatefulProcessor):  # type: ignore[misc]
    """Emits each row with how many of its key have come."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "seen long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            seen = (self.seen.get()[0] if self.seen.exists() else 0) + 1
            self.seen.update((seen,))
            yield Row(k=row.k, seen=seen)


class Written(WriterCommitMessage):
    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self.rows = rows


class Ledger(DataSource):
    """Commits rows by writing them to a file for each batch, on the driver."""

    @classmethod
    def name(cls) -> str:
        return "tests.ledger"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return LedgerWriter(self.options["folder"])


class LedgerWriter(DataSourceStreamWriter):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def write(self, iterator: Iterator[Row]) -> Written:
        return Written([(row.k, row.seen) for row in iterator])

    def commit(self, messages: list[Any], batchId: int) -> None:
        assert all(isinstance(message, Written) for message in messages)
        rows = [row for message in messages for row in message.rows]
        (self.folder / f"{batchId}.json").write_text(json.dumps(rows))


@pytest.mark.spark_since("transform-with-state-rows")
def test_a_stateful_processor_and_a_python_data_source(spark: SparkSession, tmp_path: Path) -> None:
    """What a user pickles by value works in a thread as in a task; a query beside it in this process does not mind."""
    spark.dataSource.register(Ledger)
    (tmp_path / "ledger").mkdir()
    beside = start(spark, tmp_path, 4000, "threads", parallelism=1)
    reader = spark.read.format("headgate.datagen").schema("k long, n long").option("numRows", 3000)
    seen = reader.option("fields.k.max", 4).load().groupBy("k")
    seen = seen.transformWithState(Running(), "k long, seen long", "append", "None")
    writer = written(seen, "tests.ledger", interval="200 milliseconds", slots="threads", folder=tmp_path / "ledger")
    query = writer.option("checkpointLocation", tmp_path / "others").start()
    assert query.awaitTermination(PATIENCE_S), query.status
    assert slot_jobs(spark, query) == []
    found = [row for each in (tmp_path / "ledger").iterdir() for row in json.loads(each.read_text())]
    counts = Counter(k for k, _ in found)
    assert counts.total() == 3000
    assert sorted(map(tuple, found)) == [(k, seen) for k in sorted(counts) for seen in range(1, counts[k] + 1)]
    assert_ends_with_all_rows(spark, beside, tmp_path, 4000)


@pytest.mark.parametrize(
    ("end", "output"),
    [("", ""), ("spark.stop()\nprint(wait(query))", "DeploymentError: The Spark session was stopped")],
    ids=["without a word", "after its session"],
)
def test_a_program_that_ends_while_its_query_runs_ends_well(java: SparkJava, end: str, output: str) -> None:
    program = """
        import time
        from pyspark.sql import SparkSession
        import headgate

        def wait(query):
            try:
                return query.awaitTermination(60)
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        spark = SparkSession.builder.master("local[1]").getOrCreate()
        numbers = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 100_000).schema("value long")
        program = headgate.continuous(numbers.load().repartition(3), parallelism=3)
        query = program.writeStream.format("memory").option("slots", "threads").start()
        while not query.table().num_rows:
            time.sleep(0.01)
        print("rows came")
    """
    command = [sys.executable, "-c", textwrap.dedent(program) + end]
    ended = java.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert "rows came" in ended.stdout and output in ended.stdout
    assert "Fatal" not in ended.stderr and "terminate" not in ended.stderr
