"""Runs a program as a batch, in micro-batches and continuously with its faults, and compares their rows.

Never: decide what a program is: `fuzz.programs` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import headgate
from fuzz.random_programs import (
    WITHOUT_TIME,
    Branch,
    Compute,
    Ending,
    Explode,
    Fault,
    Filter,
    Join,
    Map,
    Program,
    Repartition,
    SourceKind,
    Sql,
    Udf,
    Verb,
)
from headgate.errors import HeadgateError
from headgate.source.options import OptionSpec, integer, text
from headgate.spark.continuous.query import ContinuousQuery
from local.topics import Message, create_topic, produce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

WITHIN_S = 180.0
"""How long anything may take: after that it hangs."""
DISORDER_MS = 1_500
"""How far rows of a split are out of order; watermarks allow for it, so that no row is late."""
_ROWS = "n long, k long, v long"
_EVENTS = f"{_ROWS}, at timestamp"
_NEWEST = {Ending.GROUPS: "complete", Ending.UPDATES: "update"}
"""The output modes of what comes again, and replaces what came before."""
_FAR_MS = 10**12  # of a timer that fires when the input ends

Change = Callable[[DataFrame], DataFrame]
"""What a test does to the continuous query alone: it plants a bug."""


class Differs(AssertionError):
    """The continuous query's rows are others than the batch's, or it fails or hangs."""


def run(program: Program, spark: SparkSession, folder: Path, broker: str, change: Change = lambda frame: frame) -> None:
    """Run a program in an empty folder of its own, with topics of its own.

    Raises
    ------
    Differs
        Something is wrong with it.
    """
    headgate.register(spark, Events)
    sources = _Sources(program, spark, folder, broker)
    (folder / "hurry").touch()
    expected = _ended(program, sources.frame(Engine.BATCH), Engine.BATCH).toArrow()
    if program.ending is not Ending.PAIRS or program.how in ("inner", "left_semi"):
        _compare(program, expected, _in_micro_batches(program, sources, folder), "in micro-batches: ")
    # In micro-batches unmatched rows wait for a watermark that no last batch brings.
    (folder / "hurry").unlink()
    running = _Running(program, sources, folder, change)
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
    _compare(program, expected, running.rows(expected.schema), "")


class Engine(Enum):
    """How a program runs."""

    BATCH = "a batch"
    MICRO_BATCHES = "micro-batches"
    CONTINUOUS = "continuously"


def _in_micro_batches(program: Program, sources: _Sources, folder: Path) -> pa.Table:
    """Return what Structured Streaming gives; what it gives only once a watermark is there is complete instead."""
    frame = _ended(program, sources.frame(Engine.MICRO_BATCHES), Engine.MICRO_BATCHES)
    append = program.ending in (Ending.ROWS, Ending.DISTINCT, Ending.PAIRS)
    name = f"fuzz_{program.seed}_{time.monotonic_ns()}"
    writer = frame.writeStream.format("memory").queryName(name).outputMode("append" if append else "complete")
    writer = writer.option("checkpointLocation", str(folder / "micro-batches"))
    generated = any(branch.kind is SourceKind.DATAGEN for branch in program.branches)
    query = (writer if generated else writer.trigger(availableNow=True)).start()
    try:
        if generated:
            # No generated row is due when the query starts, which is when the first batch is planned; then all are.
            query.processAllAvailable()
            query.processAllAvailable()
        elif not query.awaitTermination(int(WITHIN_S)):
            raise Differs(f"in micro-batches: no end after {WITHIN_S:.0f} s: {query.status}")
        return frame.sparkSession.table(name).toArrow()
    except StreamingQueryException as error:
        raise Differs(f"in micro-batches: {error}") from error
    finally:
        query.stop()
        frame.sparkSession.catalog.dropTempView(name)


class _Running:
    """A continuous query that is started again and again."""

    def __init__(self, program: Program, sources: _Sources, folder: Path, change: Change) -> None:
        self.program, self.sources, self.folder, self.change = program, sources, folder, change
        self.locations = 0
        self.phases = program.phases.split(", then ")
        self.savepoint: str | None = None
        self.batches: dict[tuple[int, int], pa.Table] = {}
        self.query: ContinuousQuery

    def start(self, parallelism: int) -> None:
        frame = self.change(self.sources.frame(Engine.CONTINUOUS))
        ended = _ended(self.program, frame, Engine.CONTINUOUS)
        writer = (
            headgate.continuous(ended, parallelism=parallelism).writeStream
            .option("checkpointLocation", str(self.folder / f"checkpoints-{self.locations}"))
            .option("slots", self.program.slots)
            .option("execution.checkpointing.unaligned.enabled", not self.program.aligned)
            .option("table.optimizer.agg-phase-strategy", self.phases[0])
            .trigger(continuous=f"{self.program.interval_ms} milliseconds")
        )  # fmt: skip
        if self.program.ending in _NEWEST:
            location = self.locations

            def write(frame: DataFrame, epoch: int) -> None:
                self.batches[location, epoch] = frame.toArrow()

            writer = writer.outputMode(_NEWEST[self.program.ending]).foreachBatch(write)
        else:
            writer = (
                writer.format("parquet").option("path", str(self.folder / "out")).option("publishInterval", "1 second")
            )
        self.phases = self.phases[1:] or self.phases
        self.query = writer.start(fromSavepoint=self.savepoint)  # which only counts until there is a checkpoint

    def rows(self, schema: pa.Schema) -> pa.Table:
        """Return what came, without what later rows replace."""
        if self.program.ending not in _NEWEST:
            out, spark = self.folder / "out", self.sources.spark
            return spark.read.parquet(str(out)).toArrow() if any(out.glob("*.parquet")) else schema.empty_table()
        written = [self.batches[each] for each in sorted(self.batches)]
        if self.program.ending is Ending.GROUPS:
            return written[-1] if written else schema.empty_table()
        newest: dict[Any, dict[str, Any]] = {}
        for row in (row for table in written for row in table.to_pylist()):
            group = _plain(row["window"]), row["k"]
            if group not in newest or row["rows"] >= newest[group]["rows"]:
                newest[group] = row
        return pa.Table.from_pylist(list(newest.values()), written[0].schema) if newest else schema.empty_table()

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
                self.locations, self.savepoint = self.locations + 1, savepoint
                self.start(fault.parallelism)
            case "fail":
                failing = self.folder / "fail"
                failing.touch()
                self._wait_until(lambda: not failing.exists(), "no source fails")
            case _:
                pids = [slot["pid"] for slot in self.query.status.get("slots", ()) if slot["pid"]]
                if pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pids[fault.slot % len(pids)], signal.SIGKILL)

    def wait_until_it_runs(self) -> None:
        self._wait_until(lambda: self.query.status["message"] == "running", "it does not run")

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if not self.query.isActive:
                raise self.query.exception() or Differs("the query ended before its input")
            if time.monotonic() > deadline:
                raise Differs(f"{otherwise} after {WITHIN_S:.0f} s: {self.query.status}")
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
    """The rows of `events`, a few at a time; the last ones of each split only once there is a file ``hurry``.

    A file ``fail`` lets whichever reader finds it raise an error, once.
    """

    name = "fuzz-events"
    schema = _EVENTS
    option_specs = (
        *(OptionSpec(each, integer(0)) for each in ("splits", "rows", "seed")),
        *(OptionSpec(each, text) for each in ("hurry", "fail")),
        OptionSpec("ending", text),  # a continuous query over it ends by itself
    )

    def splits(self) -> list[str]:
        """Return their numbers."""
        return [str(split) for split in range(self.options["splits"])]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """Yield rows and where they end."""
        hurry = Path(self.options["hurry"])
        rows = events(int(split_id), *(self.options[name] for name in ("splits", "rows", "seed")))
        for begin in range(position or 0, rows.num_rows, 30):
            while begin + 30 >= rows.num_rows and not hurry.exists():
                time.sleep(0.02)
                yield rows.slice(0, 0), begin
                self._may_fail()
            if not hurry.exists():
                time.sleep(0.02)
            yield rows.slice(begin, 30), begin + 30
            self._may_fail()

    def _may_fail(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.options["fail"])
            raise OSError("this is to fail")


class _Sources:
    """What a program reads."""

    def __init__(self, program: Program, spark: SparkSession, folder: Path, broker: str) -> None:
        self.program, self.spark, self.folder, self.broker = program, spark, folder, broker
        self.topics = {
            number: _topic(broker, f"fuzz-{program.seed}-{time.monotonic_ns()}-{number}", branch)
            for number, branch in enumerate(program.branches)
            if branch.kind is SourceKind.KAFKA
        }

    def frame(self, engine: Engine) -> DataFrame:
        """Return the rows of all branches, with what is done with each, and with their union or join."""
        frames = [self._branch(number, branch, engine) for number, branch in enumerate(self.program.branches)]
        if self.program.ending is Ending.PAIRS:
            return _after(_paired(frames[0], _union(frames[1:]), self.program.how), self.program.verbs, "join", engine)
        frame = _union(frames)
        return _after(frame, self.program.verbs, "union", engine)

    def _branch(self, number: int, branch: Branch, engine: Engine) -> DataFrame:
        spark = self.spark
        reader = spark.read if engine is Engine.BATCH else spark.readStream
        if branch.kind is SourceKind.DATAGEN:
            options = {
                "numRows": branch.splits * branch.rows, "numPartitions": branch.splits, "rowsPerSecond": 10**9,
                "seed": branch.seed, "fields.n.kind": "sequence", "fields.k.min": 0, "fields.k.max": 20,
                "fields.v.min": -1000, "fields.v.max": 1000,
            }  # fmt: skip
            reader = reader.format("headgate.datagen").options(**options).schema(_ROWS)
        elif branch.kind is SourceKind.KAFKA:
            reader = reader.format("headgate.kafka").option("kafka.bootstrap.servers", self.broker)
            reader = reader.option("subscribe", self.topics[number]).option("startingOffsets", "earliest")
            reader = reader.option("valueFormat", "json").schema(_EVENTS)
            if engine is not Engine.MICRO_BATCHES:
                reader = reader.option("endingOffsets", "latest")
        else:
            options = {"splits": branch.splits, "rows": branch.rows, "seed": branch.seed}
            files = {each: str(self.folder / each) for each in ("hurry", "fail")}
            reader = reader.format(Events.name).options(**options, **files)
            reader = reader.option("ending", "after the last row")
        frame = reader.load().alias(f"source_{number}")
        if self.program.ending in WITHOUT_TIME:
            return _after(frame.select("n", "k", "v"), branch.verbs, f"branch_{number}", engine)
        return _after(frame.withWatermark("at", "2 seconds"), branch.verbs, f"branch_{number}", engine)


def _topic(broker: str, name: str, branch: Branch) -> str:
    create_topic(broker, name, branch.splits)
    messages = [
        Message(json.dumps({**row, "at": row["at"].isoformat()}).encode(), partition=split)
        for split in range(branch.splits)
        for row in events(split, branch.splits, branch.rows, branch.seed).to_pylist()
    ]
    produce(broker, name, messages)
    return name


# -- what is done with rows -------------------------------------------------------------------------------------------


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


def _union(frames: list[DataFrame]) -> DataFrame:
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.union(other)
    return frame


def _paired(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Return rows of one key and near in time; the event time of the left side stays that of the pair."""
    right = right.toDF("other", "key", "w", "then")
    near = "then BETWEEN at - interval 40 milliseconds AND at + interval 60 milliseconds"
    joined = left.join(right, F.expr(f"k = key AND {near} AND (v + w) % 3 <> 0"), how)
    return joined if how == "left_semi" else joined.select("n", "k", "v", "at", "other", "w")


def _after(frame: DataFrame, verbs: tuple[Verb, ...], where: str, engine: Engine) -> DataFrame:
    for number, verb in enumerate(verbs):
        frame = _with(frame, verb, engine).select(frame.columns).alias(f"{where}_{number}")
    return frame


def _with(frame: DataFrame, verb: Verb, engine: Engine) -> DataFrame:
    match verb:
        case Filter(condition):
            return frame.where(condition)
        case Compute(column, expression):
            return frame.withColumn(column, F.expr(expression))
        case Sql(query):
            return frame.sparkSession.sql(query, rows=frame)
        case Udf(kind, by):
            return frame.withColumn("v", _udf(kind, by)("v", "k"))
        case Map(by, batch_ms):
            schema = _EVENTS if "at" in frame.columns else _ROWS
            return frame.mapInArrow(Times(by, batch_ms if engine is Engine.CONTINUOUS else 0), schema)
        case Explode(at_most):
            return frame.withColumn("e", F.expr(f"explode(filter(array(0, 1, 2, 3), e -> e < n % {at_most + 1}))"))
        case Join(how, keys):
            static = frame.sparkSession.range(keys).select(F.col("id").alias("k"), (F.col("id") * 7).alias("seven"))
            joined = frame.join(static, "k", how)
            return joined.withColumn("v", F.expr("v + coalesce(seven, 1)")) if how in ("inner", "left") else joined
        case Repartition(subtasks, "turn"):
            return frame.repartition(subtasks)
        case Repartition(subtasks, "k"):
            return frame.repartition(subtasks, "k")
        case Repartition(subtasks):
            return frame.repartitionById(subtasks, F.expr(f"CAST(n % {subtasks} AS int)"))


def _udf(kind: str, by: int) -> Any:
    def of_columns(v: pd.Series, k: pd.Series) -> pd.Series:
        return v * by + k

    def of_arrays(v: pa.Array, k: pa.Array) -> pa.Array:
        return pc.add(pc.multiply(v, by), k)

    if kind == "python":
        return F.udf(lambda v, k: None if v is None or k is None else v * by + k, "long")  # after a full join
    return F.pandas_udf(of_columns, "long") if kind == "pandas" else F.arrow_udf(of_arrays, "long")


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
            count, total = count + 1, total + (row.v or 0)
        self.state.update((count, total))
        if known is None:
            self.handle.registerTimer(_FAR_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Say what came."""
        rows, total = self.state.get()
        yield Row(k=key[0], rows=rows, total=total)


def _ended(program: Program, frame: DataFrame, engine: Engine) -> DataFrame:
    """Apply the ending."""
    aggregates = [F.count("*").alias("rows")]
    aggregates += [F.expr(each).alias(f"a{number}") for number, each in enumerate(program.aggregates)]
    match program.ending:
        case Ending.ROWS:
            return frame.select("n", "k", "v")
        case Ending.PAIRS:
            return frame.drop("at")
        case Ending.DISTINCT:
            return frame.select("k", "v").distinct()
        case Ending.GROUPS:
            return frame.groupBy("k").agg(*aggregates)
        case Ending.STATE if engine is Engine.CONTINUOUS:
            return frame.groupBy("k").transformWithState(
                AddUp(), "k long, rows long, total long", "append", "EventTime"
            )
        case Ending.STATE:
            return frame.groupBy("k").agg(F.count("*").alias("rows"), F.sum("v").alias("total"))
        case Ending.SESSIONS:
            time_window = F.session_window("at", f"{program.size_s} seconds").alias("window")
        case _:
            slide = f"{int(1000 * program.slide_s)} milliseconds"
            time_window = F.window("at", f"{program.size_s} seconds", slide)
    return frame.groupBy(time_window, "k").agg(*aggregates)


def _compare(program: Program, expected: pa.Table, found: pa.Table, where: str) -> None:
    ours, sparks = _counted(found.select(expected.column_names)), _counted(expected)
    lost, more = sparks - ours, ours - sparks
    if lost or more:
        raise Differs(
            f"{where}{lost.total()} of {sparks.total()} rows are lost, {more.total()} are too many: "
            f"{list(lost)[:3]}, {list(more)[:3]}"
        )


def _counted(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(map(_plain, row.values())) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return tuple(value.values()) if isinstance(value, dict) else value


def run_in_new_folder(
    program: Program, spark: SparkSession, root: Path, broker: str, change: Change = lambda frame: frame
) -> str:
    """Run a program; return what is wrong with it, empty when nothing is."""
    folder = root / f"program-{program.seed}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        run(program, spark, folder, broker, change)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""
