"""Runs a program as a continuous query, with its faults, and as Spark's batch, and compares their rows.

Never: decide what a program is: `fuzz.programs` does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import headgate
from fuzz.random_programs import (
    Branch,
    Ending,
    Fault,
    Filter,
    Map,
    PartitionBy,
    Program,
    Project,
    Repartition,
    SourceKind,
    Verb,
)
from headgate import functions as headgate_functions
from headgate.errors import HeadgateError
from headgate.spark.continuous.query import ContinuousQuery
from headgate.spark.continuous.streams import ContinuousStream

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

WITHIN_S = 180.0
"""How long anything may take: after that it hangs."""
DISORDER_MS = 1_500
"""How far rows of a split are out of order; watermarks allow for it, so that no row is late."""
_ROWS = "n long, k long, v long"
_EVENTS = f"{_ROWS}, at timestamp"
_FAR_MS = 10**12  # of a timer that fires when the input ends

Change = Callable[[ContinuousStream], ContinuousStream]
"""What a test does to the continuous query alone: it plants a bug."""


class Differs(AssertionError):
    """The continuous query's rows are others than the batch's, or it fails or hangs."""


def run(program: Program, spark: SparkSession, folder: Path, change: Change = lambda stream: stream) -> None:
    """Run a program in an empty folder of its own.

    Raises
    ------
    Differs
        Something is wrong with it.
    """
    for number, branch in enumerate(program.branches):
        _write_files(branch, folder / f"input-{number}")
    running = _Running(program, spark, folder, change)
    try:
        running.start(program.parallelism)
        for fault in program.faults:
            time.sleep(fault.after_ms / 1000)
            running.meet(fault)
        (folder / "hurry").touch()
        if not running.query.awaitTermination(WITHIN_S):
            raise Differs(f"no end after {WITHIN_S:.0f} s: {running.query.status}")
    except HeadgateError as error:
        raise Differs(f"the query failed: {type(error).__name__}: {error}") from error
    finally:
        running.stop()
    _compare(program, spark, folder)


class _Running:
    """A query that is started again and again."""

    def __init__(self, program: Program, spark: SparkSession, folder: Path, change: Change) -> None:
        self.program, self.spark, self.folder, self.change = program, spark, folder, change
        self.locations = 0
        self.query: ContinuousQuery

    def start(self, parallelism: int, savepoint: str | None = None) -> None:
        headgate.register(self.spark, Events)
        streams = headgate.continuous(self.spark, parallelism=parallelism)
        made = [
            _after(
                _continuous_source(streams, branch, self.program, self.folder, number),
                branch.verbs,
                headgate_functions,
                number,
            )
            for number, branch in enumerate(self.program.branches)
        ]
        stream = made[0]
        for other in made[1:]:
            stream = stream.union(other)
        stream = self.change(_after(stream, self.program.verbs, headgate_functions, None))
        writer = (
            _ended(stream, self.program, headgate_functions).writeStream.format("parquet")
            .outputMode("update" if self.program.ending == Ending.UPDATES else "append")
            .option("path", str(self.folder / "out")).option("publishInterval", "1 second")
            .option("checkpointLocation", str(self.folder / f"checkpoints-{self.locations}"))
            .option("execution.checkpointing.unaligned.enabled", not self.program.aligned)
            .trigger(continuous=f"{self.program.interval_ms} milliseconds")
        )  # fmt: skip
        self.query = writer.start(fromSavepoint=savepoint)

    def meet(self, fault: Fault) -> None:
        """Let something happen; a checkpoint that fails is not a failure of the query."""
        self.wait_until_it_runs()
        match fault.kind:
            case "checkpoint":
                with contextlib.suppress(HeadgateError):
                    self.query.checkpoint(WITHIN_S)
            case "rescale":
                with contextlib.suppress(HeadgateError):
                    self.query.rescale(fault.parallelism, WITHIN_S)
            case "stop":
                self.query.stop()
                self.start(fault.parallelism)
            case "savepoint":
                savepoint = str(self.folder / f"savepoint-{self.locations}")
                try:
                    self.query.stop(savepoint=savepoint, timeout=WITHIN_S)
                except HeadgateError:
                    return  # the query goes on
                self.locations += 1
                self.start(fault.parallelism, savepoint)
            case _:
                pids = [slot["pid"] for slot in self.query.status.get("slots", ()) if slot["pid"]]
                if pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pids[fault.slot % len(pids)], signal.SIGKILL)

    def wait_until_it_runs(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while (status := self.query.status)["message"] != "running":
            if not self.query.isActive:
                raise self.query.exception() or Differs("the query ended before its input")
            if time.monotonic() > deadline:
                raise Differs(f"it does not run after {WITHIN_S:.0f} s: {status}")
            time.sleep(0.02)

    def stop(self) -> None:
        query = getattr(self, "query", None)
        if query is not None and query.isActive:
            with contextlib.suppress(HeadgateError):
                query.stop()


# -- sources ----------------------------------------------------------------------------------------------------------


def events(split: int, splits: int, rows: int, seed: int) -> pa.RecordBatch:
    """Return the rows of a split: numbers that no other split has, few keys, times that are out of order."""
    dice = np.random.default_rng((seed, split))
    n = np.arange(rows, dtype=np.int64)
    at_ms = 10_000 + n * 20 + dice.integers(-DISORDER_MS, 0, rows)
    k, v = (40 * dice.random(rows) ** 3).astype(np.int64), dice.integers(-1000, 1000, rows)
    at = pa.array(at_ms * 1000).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch({"n": n * splits + split, "k": k, "v": v, "at": at})


class Events(headgate.SimpleSource):
    """The rows of `events`, a few at a time; the last ones of each split only once there is a file ``hurry``."""

    name = "fuzz-events"
    schema = _EVENTS

    def splits(self) -> list[str]:
        """Return their numbers."""
        return [str(split) for split in range(int(self.options["splits"]))]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Yield rows and where they end."""
        hurry = Path(self.options["hurry"])
        rows = events(int(split_id), *(int(self.options[name]) for name in ("splits", "rows", "seed")))
        for begin in range(position or 0, rows.num_rows, 30):
            while begin + 30 >= rows.num_rows and not hurry.exists():
                time.sleep(0.02)
                yield rows.slice(0, 0), begin
            if not hurry.exists():
                time.sleep(0.02)
            yield rows.slice(begin, 30), begin + 30


def _write_files(branch: Branch, folder: Path) -> None:
    folder.mkdir(parents=True)
    if branch.kind is SourceKind.FILES:
        for split in range(branch.splits):
            rows = events(split, branch.splits, branch.rows, branch.seed).select(["n", "k", "v"])
            pq.write_table(pa.Table.from_batches([rows]), folder / f"{split}.parquet")


def _datagen(reader: Any, branch: Branch) -> Any:
    return (
        reader.format("headgate.datagen").option("numRows", branch.splits * branch.rows)
        .option("numPartitions", branch.splits).option("rowsPerSecond", 1_000_000).option("seed", branch.seed)
        .option("fields.n.kind", "sequence").option("fields.k.min", 0).option("fields.k.max", 20)
        .option("fields.v.min", -1000).option("fields.v.max", 1000).schema(_ROWS).load()
    )  # fmt: skip


def _continuous_source(streams: Any, branch: Branch, program: Program, folder: Path, number: int) -> ContinuousStream:
    if branch.kind is SourceKind.DATAGEN:
        stream = _datagen(streams.read, branch)
    elif branch.kind is SourceKind.FILES:
        stream = streams.read.format("headgate.files").option("path", str(folder / f"input-{number}"))
        stream = stream.option("fileFormat", "parquet").schema(_ROWS).load()
    else:
        stream = streams.read.format(Events.name).option("splits", branch.splits).option("rows", branch.rows)
        stream = stream.option("seed", branch.seed).option("hurry", str(folder / "hurry")).load()
    stream = stream.name(f"source-{number}")
    return stream.select("n", "k", "v") if program.ending is Ending.ROWS else stream.withWatermark("at", "2 seconds")


def _batch_source(spark: SparkSession, branch: Branch, program: Program, folder: Path, number: int) -> DataFrame:
    if branch.kind is SourceKind.DATAGEN:
        return _datagen(spark.read, branch)
    if branch.kind is SourceKind.FILES:
        return spark.read.schema(_ROWS).parquet(str(folder / f"input-{number}"))
    batches = [events(split, branch.splits, branch.rows, branch.seed) for split in range(branch.splits)]
    frame = spark.createDataFrame(pa.Table.from_batches(batches))
    return frame.select("n", "k", "v") if program.ending is Ending.ROWS else frame


# -- verbs, of both ---------------------------------------------------------------------------------------------------


class Times:
    """A user's function that multiplies ``v`` and takes its time over each batch."""

    def __init__(self, by: int, batch_ms: int) -> None:
        self.by, self.batch_ms = by, batch_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return what it makes of batches."""
        for batch in batches:
            time.sleep(self.batch_ms / 1000)
            place = batch.schema.get_field_index("v")
            yield batch.set_column(place, "v", pc.multiply(batch["v"], self.by))


class Spread:
    """A user's partitioner."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, batch: pa.RecordBatch, subtasks: int) -> pa.Array:
        """Return whose each row is."""
        return pa.array(batch["n"].to_numpy(zero_copy_only=False) // self.step % subtasks)


def _after(stream: Any, verbs: tuple[Verb, ...], F: Any, branch: int | None) -> Any:
    """Apply verbs to a stream or a frame; exchanges change nothing in a frame, whose parallelism is Spark's own."""
    is_frame = F is spark_functions
    schema = _EVENTS if "at" in stream.columns else _ROWS
    for number, verb in enumerate(verbs):
        uid = f"{'union' if branch is None else f'branch-{branch}'}-{number}"
        match verb:
            case Filter(modulus, rest):
                stream = stream.filter(F.col("n") % modulus != rest)
            case Project(add, keys):
                stream = stream.withColumn("v", F.col("v") + add).withColumn("k", F.col("k") % keys)
            case Map(by, batch_ms):
                stream = stream.mapInArrow(Times(by, 0 if is_frame else batch_ms), schema)
            case Repartition(to_one) if not is_frame:
                stream = stream.repartition(1) if to_one else stream.repartition()
            case PartitionBy(step) if not is_frame:
                stream = stream.partitionBy(Spread(step))
        if not is_frame:
            stream = stream.name(uid)
    return stream


class AddUp(StatefulProcessor):
    """Counts and sums by key; a timer that is due when the input ends says what came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.state = handle.getValueState("sums", "rows long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add rows."""
        known = self.state.get()
        count, total = known or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.v
        self.state.update((count, total))
        if known is None:
            self.handle.registerTimer(_FAR_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Say what came."""
        rows, total = self.state.get()
        yield Row(k=key[0], rows=rows, total=total)


def _ended(stream: Any, program: Program, F: Any) -> Any:
    """Apply the ending."""
    is_frame = F is spark_functions
    if program.ending is Ending.ROWS:
        return stream.select("n", "k", "v")
    totals = [F.count(F.lit(1)).alias("rows") if is_frame else F.count().alias("rows"), F.sum("v").alias("total")]
    if program.ending is Ending.STATE:
        if is_frame:
            return stream.groupBy("k").agg(*totals)
        return stream.groupBy("k").transformWithState(AddUp(), "k long, rows long, total long", "append", "EventTime")
    duration = f"{program.size_s} seconds"
    time_window = F.session_window("at", duration) if program.ending is Ending.SESSIONS else F.window("at", duration)
    return stream.groupBy(time_window, "k").agg(*totals)


def _compare(program: Program, spark: SparkSession, folder: Path) -> None:
    frames = [
        _after(_batch_source(spark, branch, program, folder, number), branch.verbs, spark_functions, number)
        for number, branch in enumerate(program.branches)
    ]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.union(other)
    expected = _ended(_after(frame, program.verbs, spark_functions, None), program, spark_functions).toArrow()
    out = folder / "out"
    found = spark.read.parquet(str(out)).toArrow() if any(out.glob("*.parquet")) else expected.slice(0, 0)
    ours, sparks = _counted(found.select(expected.column_names)), _counted(expected)
    if program.ending is Ending.UPDATES:
        newest: dict[Any, Any] = {}
        for *group, rows, total in ours:
            newest[tuple(group)] = max(newest.get(tuple(group), (0, 0)), (rows, total))
        ours = Counter((*group, *totals) for group, totals in newest.items())
    lost, more = sparks - ours, ours - sparks
    if lost or more:
        raise Differs(
            f"{lost.total()} of {sparks.total()} rows are lost, {more.total()} are too many: "
            f"{list(lost)[:3]}, {list(more)[:3]}"
        )


def _counted(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(map(_plain, row.values())) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    return tuple(value.values()) if isinstance(value, dict) else value


def run_in_new_folder(program: Program, spark: SparkSession, root: Path, change: Change = lambda stream: stream) -> str:
    """Run a program; return what is wrong with it, empty when nothing is."""
    folder = root / f"program-{program.seed}-{time.monotonic_ns()}"
    try:
        run(program, spark, folder, change)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""
