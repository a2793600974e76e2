"""What queries with exchanges go through on real Spark, one function each: rescaled, killed, restored; and counted.

Used by test_continuous_keyed.py, in a session with many slots (scenario_program.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from running_queries import happens

import headgate
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import OptionError
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import key_groups
from headgate.operators.map_in_arrow import MapInArrow
from headgate.protocol.channels import ChannelId
from headgate.protocol.state import InlineState
from headgate.source.options import OptionSpec, integer, text
from headgate.spark.analyzed.plan import plan_of
from headgate.spark.continuous.query import ContinuousQuery
from headgate.spark.continuous.writer import ContinuousStreamWriter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

WITHIN_S = 300.0
"""How long anything may take. None of it is a measurement: machines are slow at times."""
DOWNSTREAM = "execution.checkpointing.unaligned.recover-output-on-downstream.enabled"
DURING = "execution.checkpointing.unaligned.during-recovery.enabled"
UNALIGNED = "execution.checkpointing.unaligned.enabled"
ALL = 24
"""As many partitions as there are slots, or more: rows go to all of them."""


class Slowly:
    """A user's function that takes its time over each row, until a file says that it need not any more."""

    def __init__(self, folder: Path, row_ms: float = 2.0) -> None:
        self.folder = folder
        self.row_ms = row_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if happens(self.folder / "function-raises"):
                raise ValueError("a row that I do not like")
            if not (self.folder / "hurry").exists():
                time.sleep(self.row_ms / 1000 * batch.num_rows)
            pids = pa.array([os.getpid()] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch["n"], pids], names=["n", "pid"])


def numbers(spark: SparkSession, rows: int) -> DataFrame:
    """Return the numbers from 0 in the column ``n``, and keys in ``k``.

    The rows are wide, so that a batch has few of them: a slow function is done with one in time for a barrier, and yet
    has so many rows before it that a slow machine does not get to their end before the test has seen what it wants to.
    """
    return (
        spark.readStream.format("headgate.datagen")
        .option("numRows", rows).option("rowsPerSecond", 1_000_000).option("numPartitions", 3)
        .option("fields.n.kind", "sequence").option("fields.k.min", 0).option("fields.k.max", 99)
        .option("fields.pad.length", 400).schema("n long, k long, pad string").load()
    )  # fmt: skip


def written(frame: DataFrame, parallelism: int, folder: Path) -> ContinuousStreamWriter:
    """Return the writer of a query that takes a checkpoint when it is asked to, and seldom by itself."""
    return _seldom(headgate.continuous(frame, parallelism=parallelism).writeStream, folder)


def _seldom(writer: ContinuousStreamWriter, folder: Path) -> ContinuousStreamWriter:
    folder.mkdir(parents=True, exist_ok=True)
    writer = writer.queryName(folder.name).format("memory").trigger(continuous="30 seconds")
    writer = writer.option("heartbeat.timeout", "60 seconds")  # nobody is lost who was only held up
    return writer.option("checkpointLocation", folder / "checkpoints")


def start(
    frame: DataFrame, parallelism: int, folder: Path, options: Mapping[str, Any] = MappingProxyType({})
) -> ContinuousQuery:
    """Start such a query into memory."""
    return written(frame, parallelism, folder).options(**options).start()


def wait_until(condition: Callable[[], Any], query: ContinuousQuery | None = None) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (value := condition()):
        if query is not None and not query.isActive:
            raise query.exception() or AssertionError("the query ended")
        assert time.monotonic() < deadline, f"it did not happen in time: {query and query.status}"
        time.sleep(0.05)
    return value


def newest(folder: Path) -> Manifest:
    found = CheckpointStorage(str(folder / "checkpoints")).load_newest()
    assert found is not None
    return found


def rows_read(manifest: Manifest) -> int:
    """Return how many of `numbers` were read when a checkpoint was taken: processed, or under way."""
    readers = [reader for each in manifest.subtasks[0] for reader in each.readers.values()]
    return sum(json.loads(split.data)["position"] for reader in readers for split in reader.splits)


def finish(query: ContinuousQuery, folder: Path, rows: int, each: int = 1) -> pa.Table:
    """Let the function hurry, wait for the end, and check that each number came so often."""
    (folder / "hurry").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    table = query.table()
    counts = Counter(table["n"].to_pylist())
    assert set(counts) == set(range(rows)), f"{rows - len(counts)} numbers are lost"
    wrong = {n: times for n, times in counts.items() if times != each}
    assert not wrong, f"numbers that did not come {each} times: {dict(list(wrong.items())[:10])}"
    return table


def stop_what_is_left(folder: Path) -> None:
    """Stop the query of a scenario that went wrong: others need its cores."""
    for query in headgate.streams.active:
        if query.name == folder.name:
            query.stop()


def _rescaled_with_rows_under_way(
    spark: SparkSession,
    folder: Path,
    exchange: Callable[[DataFrame], DataFrame],
    parallelisms: Sequence[int] = (3, 1, 4),
) -> None:
    rows = 60_000
    folder.mkdir(parents=True)
    frame = exchange(numbers(spark, rows)).mapInArrow(Slowly(folder), "n long, pid long")
    query = start(frame, 2, folder)
    under_way = []
    for parallelism in parallelisms:
        wait_until(lambda: query.status["rowsOut"] > 0 and query.status["message"] == "running", query)
        query.checkpoint()
        query.rescale(parallelism)
        under_way.append(sum(state.rows for state in newest(folder).channels))
    query.checkpoint()
    assert min(under_way) > 0, f"there was nothing under way: {under_way}"
    finish(query, folder, rows)


def repartition(spark: SparkSession, folder: Path) -> None:
    """Rows that a slow function has not seen are stored, moved and processed once, at any parallelism."""
    _rescaled_with_rows_under_way(spark, folder, lambda frame: frame.repartition(ALL), (3, 1, 4, 2))


def repartition_to_one(spark: SparkSession, folder: Path) -> None:
    """Most subtasks have no state at all (FLINK-38483)."""
    _rescaled_with_rows_under_way(spark, folder, lambda frame: frame.repartition(1))


def partition_by(spark: SparkSession, folder: Path) -> None:
    """An expression says again whose the recovered rows are (FLINK-35351)."""
    _rescaled_with_rows_under_way(
        spark, folder, lambda frame: frame.repartitionById(ALL, (F.col("n") % ALL).cast("int"))
    )


def two_exchanges(spark: SparkSession, folder: Path) -> None:
    """A stage between two exchanges has input and output state."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def build(frame: DataFrame) -> DataFrame:
        return frame.repartition(ALL).mapInArrow(pass_on, "n long, k long, pad string").repartition(ALL)

    _rescaled_with_rows_under_way(spark, folder, build)


def union_of_stages(spark: SparkSession, folder: Path) -> None:
    """A branch without an exchange meets one with an exchange: its connection is never unaligned (FLINK-37870)."""
    rows = 20_000
    folder.mkdir(parents=True)
    source = numbers(spark, rows)
    frame = source.repartition(ALL).union(source).mapInArrow(Slowly(folder, 0.5), "n long, pid long")
    query = start(frame, 2, folder)
    wait_until(lambda: query.status["rowsOut"] > 0 and query.status["message"] == "running", query)
    query.rescale(3)
    assert {state.exchange for state in newest(folder).channels} <= {"datagen.1.repartition"}
    finish(query, folder, rows, each=2)


def union_before_an_exchange(spark: SparkSession, folder: Path) -> None:
    """A rescale stops consumers; rows before a barrier that stays aligned are processed without their room."""
    rows = 50_000
    fast = folder / "fast"
    fast.mkdir(parents=True)
    (fast / "hurry").touch()
    source = ticks(spark, fast, rows)
    frame = source.repartition(ALL).union(source).repartition(1).mapInArrow(Slowly(folder, 0.3), "n long, pid long")
    query = start(frame, 2, folder)
    wait_until(lambda: query.status["rowsOut"] > 0 and query.status["message"] == "running", query)
    time.sleep(2)  # all queues are full
    query.checkpoint()
    for parallelism in (3, 1, 2):
        query.rescale(parallelism, timeout=WITHIN_S)
        wait_until(lambda: query.status["message"] == "running", query)
    finish(query, folder, rows, each=6)


def union_of_far_stages(spark: SparkSession, folder: Path) -> None:
    """A branch without an exchange goes through every stage that another one has."""
    rows = 10_000
    folder.mkdir(parents=True)
    source = ticks(spark, folder, rows)
    far = source.repartition(ALL).repartition(ALL)
    query = start(far.union(source).mapInArrow(Slowly(folder, 0.2), "n long, pid long"), 2, folder)
    for parallelism in (3, 1):
        wait_until(lambda: query.status["rowsOut"] > 0 and query.status["message"] == "running", query)
        query.rescale(parallelism)
    finish(query, folder, rows, each=6)


def broadcast(spark: SparkSession, folder: Path) -> None:
    """Every subtask gets each row once, through a failure with rows under way."""
    rows = 20_000
    folder.mkdir(parents=True)
    plan = plan_of(numbers(spark, rows))  # PySpark has no word for it
    slow = MapInArrow(Slowly(folder), pa.schema({"n": pa.int64(), "pid": pa.int64()}))
    plan = plan.then(Exchange(plan.schema, "broadcast")).then(slow)
    query = _seldom(ContinuousStreamWriter(spark, 3, lambda: plan), folder).start()
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.checkpoint()
    assert sum(state.rows for state in newest(folder).channels) > 0
    (folder / "function-raises").touch()
    wait_until(lambda: not (folder / "function-raises").exists(), query)
    finish(query, folder, rows, each=3)


def a_function_that_raises_once(spark: SparkSession, folder: Path) -> None:
    """The region restores in place: every subtask, from the last checkpoint; the slots' processes stay."""
    rows = 60_000
    folder.mkdir(parents=True)
    query = start(numbers(spark, rows).repartition(ALL).mapInArrow(Slowly(folder), "n long, pid long"), 3, folder)
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.checkpoint()
    before = query.status
    (folder / "function-raises").touch()
    wait_until(lambda: query.status["subtasks"][0]["execution"] > before["subtasks"][0]["execution"], query)
    wait_until(lambda: query.status["message"] == "running", query)
    after = query.status
    assert [slot["pid"] for slot in after["slots"]] == [slot["pid"] for slot in before["slots"]]
    assert {each["execution"] for each in after["subtasks"]} == {2}
    finish(query, folder, rows)


def a_killed_worker(spark: SparkSession, folder: Path) -> None:
    """Spark retries the task alone; the other slots' processes stay, and all subtasks restore."""
    rows = 60_000
    folder.mkdir(parents=True)
    query = start(numbers(spark, rows).repartition(ALL).mapInArrow(Slowly(folder), "n long, pid long"), 3, folder)
    for _ in range(2):
        wait_until(lambda: query.status["rowsOut"] > 0 and query.status["message"] == "running", query)
        query.checkpoint()
        before = wait_until(lambda: all(pids := [slot["pid"] for slot in query.status["slots"]]) and pids, query)
        os.kill(before[1], signal.SIGKILL)
        gone = (0, before[1])
        wait_until(lambda gone=gone: query.status["slots"][1]["pid"] not in gone, query)
        wait_until(lambda: query.status["message"] == "running", query)
        after = [slot["pid"] for slot in query.status["slots"]]
        assert (after[0], after[2]) == (before[0], before[2])
    finish(query, folder, rows)


def savepoint_and_back(spark: SparkSession, folder: Path) -> None:
    """A savepoint is aligned: it holds no rows under way, and needs nothing outside its folder."""
    rows = 3_000
    folder.mkdir(parents=True)

    def begin(parallelism: int, checkpoints: str, savepoint: str | None = None) -> ContinuousQuery:
        frame = ticks(spark, folder, rows).repartition(ALL).mapInArrow(Slowly(folder, 0.5), "n long, pid long")
        writer = written(frame, parallelism, folder).format("parquet").option("path", folder / "out")
        return writer.option("checkpointLocation", folder / checkpoints).start(fromSavepoint=savepoint)

    savepoint = str(folder / "savepoint")
    query = begin(2, "checkpoints")
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.stop(savepoint=savepoint)
    assert CheckpointStorage(savepoint).load_savepoint().channels == ()
    (folder / "hurry").touch()
    resumed = begin(3, "elsewhere", savepoint)
    assert resumed.awaitTermination(WITHIN_S)
    found = [row.n for row in spark.read.parquet(str(folder / "out")).collect()]
    assert sorted(found) == sorted(3 * list(range(rows))), f"{len(found)} rows, {len(set(found))} numbers of {rows}"


def old_behaviour(spark: SparkSession, folder: Path) -> None:
    """Both switches off: output is recovered upstream, and no checkpoint completes until all that is processed."""
    rows = 15_000
    folder.mkdir(parents=True)
    frame = numbers(spark, rows).repartition(ALL).mapInArrow(Slowly(folder, 1.0), "n long, pid long")
    query = start(frame, 2, folder, {DOWNSTREAM: False})
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.checkpoint()
    query.rescale(3)
    rescaled = newest(folder)
    assert sum(state.rows for state in rescaled.channels) > 0
    query.checkpoint()
    assert query.status["rowsOut"] >= rows_read(rescaled), "a checkpoint completed during recovery"
    finish(query, folder, rows)


def no_checkpoint_during_recovery(spark: SparkSession, folder: Path) -> None:
    """With output recovered downstream alone, a checkpoint still waits for the end of recovery."""
    rows = 15_000
    folder.mkdir(parents=True)
    frame = numbers(spark, rows).repartition(ALL).mapInArrow(Slowly(folder, 1.0), "n long, pid long")
    query = start(frame, 2, folder, {DURING: False})
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.rescale(3)
    rescaled = newest(folder)
    assert sum(state.rows for state in rescaled.channels) > 0
    query.checkpoint()
    assert query.status["rowsOut"] >= rows_read(rescaled)
    finish(query, folder, rows)


def switches_that_contradict(spark: SparkSession, folder: Path) -> None:
    """Checkpoints during recovery need output to be recovered downstream: an error that names both."""
    try:
        start(numbers(spark, 10).repartition(ALL), 1, folder, {DOWNSTREAM: False, DURING: True})
    except OptionError as error:
        assert DURING in str(error) and DOWNSTREAM in str(error)
    else:
        raise AssertionError("it started")


def aligned_only(spark: SparkSession, folder: Path) -> None:
    """Without unaligned checkpoints there is no channel state, and rescaling waits for what is under way."""
    rows = 1_500
    folder.mkdir(parents=True)
    frame = ticks(spark, folder, rows).repartition(ALL).mapInArrow(Slowly(folder, 0.5), "n long, pid long")
    query = start(frame, 2, folder, {UNALIGNED: False})
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    query.rescale(3)
    assert newest(folder).channels == ()
    finish(query, folder, rows, each=3)


class Keyed(headgate.SimpleSource):
    """Slow rows of every key group, and after them one buffer of a hundred: one row of each key group."""

    name = "keyed-example"
    schema = "k bigint, n bigint"

    def splits(self) -> list[str]:
        return ["all"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        keys = [int(each) for each in self.options["keys"].split(",")]
        if position is None:
            slow = keys * 30
            yield (
                pa.record_batch({"k": pa.array(slow, pa.int64()), "n": pa.array([-1] * len(slow), pa.int64())}),
                "slow",
            )
        if position in (None, "slow"):
            time.sleep(0.5)
            batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "n": pa.array(range(100), pa.int64())})
            yield batch, "all"


def the_documents_example(spark: SparkSession, folder: Path) -> None:
    """FLIP-547, 2.1: one buffer of 100 records of 100 key groups, from 1 task to 10 and back, twice: it stays one."""
    folder.mkdir(parents=True)
    headgate.register(spark, Keyed)
    found: dict[int, int] = {}
    groups = key_groups([pa.array(range(5000), pa.int64())], 100).to_pylist()
    for key, group in enumerate(groups):
        found.setdefault(group, key)
    assert len(found) == 100
    keys = ",".join(str(found[group]) for group in range(100))
    grouped = spark.readStream.format(Keyed.name).option("keys", keys).load().groupBy("k")
    patient = grouped.transformWithState(_patient(folder), "k long, n long", "Append", "None")
    query = start(patient, 1, folder, {"max-parallelism": 100})
    wait_until(lambda: (folder / "begun").exists(), query)

    def hundred() -> tuple[int, int, int]:
        """Return how many of the hundred rows are under way, in how many buffers, and their bytes."""
        manifest = newest(folder)
        storage = CheckpointStorage(str(folder / "checkpoints"))
        rows = buffers = size = 0
        for state in manifest.channels:
            handle = state.handle
            data = handle.data if isinstance(handle, InlineState) else storage.read_state(handle)
            for batch in read(data, state):
                kept = batch.filter(pc.greater_equal(batch["n"], 0))
                rows += kept.num_rows
                size += kept.nbytes
                buffers += kept.num_rows > 0
        return rows, buffers, size

    def read(data: bytes, state: Any) -> Iterator[pa.RecordBatch]:
        from headgate.checkpoint.channel_bytes import read_channel

        return read_channel(data, ChannelId(state.exchange, state.producer, state.consumer), output=state.output)

    def all_under_way() -> bool:
        query.checkpoint()
        return hundred()[0] == 100

    wait_until(all_under_way, query)
    first = hundred()
    for _ in range(2):
        query.rescale(10)
        query.checkpoint()
        assert hundred()[0] == 100, hundred()
        assert hundred()[1] == 10, "each task has its own ten records"
        query.rescale(1)
        query.checkpoint()
        assert hundred() == first, (hundred(), first)
    (folder / "hurry").touch()
    query.stop(drain=True)
    rows = sorted(n for n in query.table()["n"].to_pylist() if n >= 0)
    assert rows == list(range(100))


def _patient(folder: Path) -> Any:
    """Return a processor that takes its time over the slow rows, until it is asked to hurry."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Patient(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in rows:
                (folder / "begun").touch()
                if row.n < 0 and not (folder / "hurry").exists():
                    time.sleep(0.1)
                yield Row(k=row.k, n=row.n)

        def close(self) -> None:
            pass

    return Patient()


AT = pa.timestamp("us", "UTC")
ENDING = (
    OptionSpec("folder", text, None, "where files say what happens"),
    OptionSpec("endingRow", integer(1), None, "how many rows a split has"),
)


class Ticks(headgate.SimpleSource):
    """Numbers with keys and times, a few at a time until a file says that it can hurry; the last ones not before.

    In a hurry it has ten times as many at a time: what follows the last thing that happens only has to be right. It
    ends, also in a stream, which has a watermark: an option says where.
    """

    name = "keyed-ticks"
    schema = "n bigint, k bigint, at timestamp"
    option_specs = ENDING

    def splits(self) -> list[str]:
        return ["0", "1", "2"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder, rows, begin = Path(self.options["folder"]), self.options["endingRow"], position or 0
        while begin < rows:
            hurry = (folder / "hurry").exists()
            end = min(begin + (1000 if hurry else 100), rows)
            if not hurry:
                time.sleep(0.05)
                end = begin if end == rows else end
            n = pa.array(range(begin, end), pa.int64())
            k = pa.array([(each * 7 + int(split_id)) % 50 for each in range(begin, end)], pa.int64())
            at = pc.cast(pc.multiply(n, 1000), AT)
            begin = end
            yield pa.RecordBatch.from_arrays([n, k, at], names=["n", "k", "at"]), begin


def ticks(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Return the numbers of three splits of `Ticks`, each of so many rows."""
    headgate.register(spark, Ticks)
    return spark.readStream.format(Ticks.name).option("endingRow", rows).option("folder", folder).load()


def windows_through_rescales(spark: SparkSession, folder: Path) -> None:
    """A windowed aggregation that is rescaled, killed and restored gives what an undisturbed one gives."""
    folder.mkdir(parents=True)
    rows = 30_000
    grouped = ticks(spark, folder, rows).withWatermark("at", "2 seconds").groupBy(F.window("at", "5 seconds"), "k")
    query = start(grouped.agg(F.sum("n").alias("total"), F.count("*").alias("rows")), 2, folder)
    for parallelism in (3, 1, 2):
        wait_until(lambda: query.status["message"] == "running" and query.status["rowsIn"] > 0, query)
        query.checkpoint()
        time.sleep(0.3)
        query.rescale(parallelism)
    wait_until(lambda: query.status["message"] == "running", query)
    query.checkpoint()
    os.kill(wait_until(lambda: query.status["slots"][1]["pid"], query), signal.SIGKILL)
    (folder / "hurry").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    table = query.table()
    keys = list(zip(table["window"].to_pylist(), table["k"].to_pylist()))
    assert len({(each["start"], key) for each, key in keys}) == len(keys), "a window fired twice"
    assert pc.sum(table["rows"]).as_py() == 3 * rows
    assert pc.sum(table["total"]).as_py() == 3 * rows * (rows - 1) // 2
