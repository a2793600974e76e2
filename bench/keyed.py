"""Keyed windows: Headgate beside Structured Streaming and, with --peer flink, Flink's SQL.

window generates rows with 10,000 keys, 170 microseconds apart, and counts and adds them up by key in windows of ten
seconds (10 million rows are 1.7 million groups), at parallelism 2, with a checkpoint every second, or a micro-batch of
a million rows, which takes about as long. json-window does the same with JSON records of Kafka. Structured Streaming
runs with the better of its two state stores. Groups and totals are checked on every run (Flink's on its first one).

Rows are counted from when an engine is running: for Headgate from when all its subtasks run to its last window, for
Structured Streaming from the end of its first micro-batch to the end of that with the last row. For Flink, whose jobs
are asked for their time, it is the whole job, in a Java that is warm.

checkpoints-100ms counts by key, in output mode update, with a checkpoint every 100 ms, beside one at the end only; with
-aligned barriers wait for 20 ms at most before they pass rows (aligned-checkpoint-timeout).

exchange-p99 is the time from produce to consume as in the bench latency, with an exchange between: beside the same with
exchange.buffer-timeout 0, that is without coalescing.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from bench import keyed_spark, latency
from bench.frame import CACHE, CORES, Case, WorkerMemory, console, measure, report, session
from bench.keyed_flink import Flink, running_flink
from bench.keyed_rows import BEGIN_MS, KEYS, PARTITIONS, ROW_US, Answer, check, key_of, over_us, topic
from bench.latency_load import Load
from bench.latency_sides import AT_ONCE, COALESCED
from local.jars import jars, spark_kafka
from local.kafka import Broker, running_broker

SUMMARY = "keyed windows, generated rows and Kafka JSON; what coalescing costs"
ROWS, QUICK_ROWS = 10_000_000, 2_000_000
JSON_ROWS, QUICK_JSON_ROWS = 2_000_000, 300_000
OFTEN = ("checkpoints-100ms", "checkpoints-100ms-aligned")
CASES = ("window", "json-window", *OFTEN, "exchange-p99")
BATCH_ROWS = 1_000_000
PATIENCE_S = 300
_NOTE = "<qqq"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the option that only this bench has."""
    command.add_argument("--peer", choices=("spark", "flink"), default="spark", help="flink: beside Flink's SQL, too")


class Tally:
    """Counts windows as they come, for ``mapInArrow``; nothing comes out.

    Parameters
    ----------
    folder
        Where each subtask writes its notes: the time of the machine's monotonic clock, groups, total.
    over
        Only windows count that end by this time, in microseconds since 1970-01-01 UTC.
    """

    def __init__(self, folder: str, over: int) -> None:
        self._folder = folder
        self._over = over

    def open(self) -> None:
        """Begin a file of this subtask's own."""
        self._file = tempfile.NamedTemporaryFile(dir=self._folder, buffering=0, delete=False)  # noqa: SIM115

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Note the windows of a call."""
        for batch in batches:
            ends = pc.struct_field(batch.column("window"), "end").cast(pa.int64())
            totals = batch.column("total").filter(pc.less_equal(ends, self._over))
            self._file.write(struct.pack(_NOTE, time.monotonic_ns(), len(totals), pc.sum(totals).as_py() or 0))
        return iter(())


def windows(rows: DataFrame) -> DataFrame:
    """Return the windows of a stream."""
    return (
        rows.withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "10 seconds"), "key")
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    )


def _numbered(spark: SparkSession, rows: int, *, skewed: bool = False) -> DataFrame:
    """Return generated rows with keys and event times."""
    return (
        spark.readStream.format("headgate.datagen")
        .option("numRows", rows).option("numPartitions", PARTITIONS).option("rowsPerSecond", 1_000_000_000)
        .schema("value bigint").load()
        .selectExpr(f"{key_of(skewed=skewed)} AS key", "value AS v", f"timestamp_micros(value * {ROW_US}) AS at")
    )  # fmt: skip


def _generated(spark: SparkSession, rows: int, *, skewed: bool = False) -> float:
    """Return rows/s of a continuous query over generated rows."""
    return _rate(windows(_numbered(spark, rows, skewed=skewed)), rows, over_us(rows), skewed=skewed)


def _updated(spark: SparkSession, rows: int, interval: str, aligned_ms: int = 0) -> float:
    """Return rows/s of a query that counts generated rows by key, with a checkpoint every so often."""
    counts = _numbered(spark, rows).groupBy("key").agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    writer = headgate.continuous(counts, parallelism=CORES).writeStream.format("noop").outputMode("update")
    writer = writer.option("execution.checkpointing.aligned-checkpoint-timeout", f"{aligned_ms} milliseconds")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as checkpoints:
        query = writer.option("checkpointLocation", checkpoints).trigger(continuous=interval).start()
        began_ns = _began_ns(query)
        _await_end(query)
    return rows / (time.monotonic_ns() - began_ns) * 1e9


def _kafka_json(spark: SparkSession, broker: Broker, name: str, rows: int) -> float:
    """Return rows/s of a continuous query over the records of a topic."""
    frame = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain).option("subscribe", name)
        .option("startingOffsets", "earliest").option("endingOffsets", "latest").option("valueFormat", "json")
        .schema("key bigint, v bigint, at timestamp").load()
    )  # fmt: skip
    return _rate(windows(frame), rows, BEGIN_MS * 1000 + over_us(rows))


def _rate(groups: DataFrame, rows: int, over: int, *, skewed: bool = False) -> float:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as checkpoints, \
            tempfile.TemporaryDirectory(dir=CACHE, prefix="notes-") as notes:  # fmt: skip
        program = headgate.continuous(groups.mapInArrow(Tally(notes, over), "groups long"), parallelism=CORES)
        writer = program.writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoints).trigger(continuous="1 second").start()
        began_ns = _began_ns(query)
        _await_end(query)
        found = [note for path in Path(notes).iterdir() for note in struct.iter_unpack(_NOTE, path.read_bytes())]
    answer = Answer(sum(note[1] for note in found), sum(note[2] for note in found))
    check("the continuous query", rows, answer, skewed=skewed)
    return rows / (max(note[0] for note in found) - began_ns) * 1e9


def _began_ns(query: headgate.ContinuousQuery) -> int:
    """Wait until a query runs; return the time of the machine's monotonic clock then."""
    while query.status["message"] == "starting":
        time.sleep(0.002)
    return time.monotonic_ns()


def _await_end(query: headgate.ContinuousQuery) -> None:
    ended = query.awaitTermination(PATIENCE_S)
    if not ended or query.exception() is not None:
        query.stop()
        raise SystemExit(f"the query {'failed' if ended else 'did not end'}: {query.exception()}")


def _better_store(run: Callable[[str], float]) -> str:
    """Return the state store with which Structured Streaming is faster."""
    run("hdfs")  # so that neither pays for the first compilation
    rates = {store: run(store) for store in keyed_spark.STORES}
    text = " and ".join(f"{rate / 1e6:.2f} M rows/s with {store}" for store, rate in rates.items())
    console.print(f"structured streaming, warming up: {text}", soft_wrap=True)
    return max(rates, key=lambda store: rates[store])


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    unknown = set(arguments.only or ()) - set(CASES)
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    # exchange-p99 takes its time: rows at an even pace, twice.
    wanted = arguments.only or (CASES[:2] if arguments.quick else CASES)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots do not have this module
    memory = WorkerMemory()
    results = []
    with contextlib.ExitStack() as stack:
        broker = None
        if set(wanted) - {"window", *OFTEN}:
            broker = stack.enter_context(running_broker(CACHE / "kafka"))
        flink = stack.enter_context(running_flink()) if arguments.peer == "flink" else None
        spark = session("keyed", jars=spark_kafka())
        stack.callback(spark.stop)
        for name in wanted:
            for case in _cases(name, arguments, spark, broker, flink):
                rounds = 1 if arguments.quick else arguments.rounds
                results.append(measure(case, rounds, memory))
    report(
        "keyed", results, memory,
        f"local[{CORES}], parallelism {CORES}, {KEYS:,} keys, windows of 10 s, a checkpoint every second in a local "
        "folder, noop sink; micro-batches of a million rows, or half of them. Kafka's broker beside it.",
    )  # fmt: skip


def window_case(name: str, spark: SparkSession, arguments: argparse.Namespace, *, skewed: bool = False) -> Case:
    """Return generated rows in windows beside Structured Streaming; skewed: one key has half of all rows."""
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else ROWS)
    few, parts = (rows // 4, 2) if arguments.quick else (rows // 2, 5)  # the stores differ once they are full
    theirs = partial(keyed_spark.generated, spark, skewed=skewed)
    store = _better_store(lambda store: theirs(few, few // parts, store))
    peer = partial(theirs, rows, min(rows // 2, BATCH_ROWS), store)
    ours = partial(_generated, spark, rows, skewed=skewed)
    return Case(name, ours, peer, f"spark, {store} state store", unit="rows/s")


def _cases(
    name: str, arguments: argparse.Namespace, spark: SparkSession, broker: Broker | None, flink: Flink | None
) -> list[Case]:
    """Return a case, and the same beside Flink."""
    quick = arguments.quick
    if name == "exchange-p99":
        assert broker is not None
        load = Load(seconds=latency.QUICK_SECONDS if quick else latency.SECONDS)
        with_it, without = (
            partial(latency.measure_latency, spark, broker, side, load, {}) for side in (COALESCED, AT_ONCE)
        )
        return [Case(name, with_it, without, "without coalescing", unit="ms")]
    if name in OFTEN:
        rows = 4 * (arguments.rows or (QUICK_ROWS if quick else ROWS))
        often = partial(_updated, spark, rows, "100 milliseconds", aligned_ms=0 if name == OFTEN[0] else 20)
        once = partial(_updated, spark, rows, "1 hour")
        return [Case(name, often, once, "a checkpoint at the end", unit="rows/s")]
    flinks = None
    if name == "window":
        case = window_case(name, spark, arguments)
        if flink is not None:
            flinks = partial(flink.rate, arguments.rows or (QUICK_ROWS if quick else ROWS))
    else:
        assert broker is not None
        rows = arguments.rows or (QUICK_JSON_ROWS if quick else JSON_ROWS)
        records = topic(broker, rows)
        ours = partial(_kafka_json, spark, broker, records, rows)
        batch = min(rows // 2, BATCH_ROWS)
        store = _better_store(lambda store: keyed_spark.kafka_json(spark, broker, records, rows, batch, store))
        peer = partial(keyed_spark.kafka_json, spark, broker, records, rows, batch, store)
        case = Case(name, ours, peer, f"spark, {store} state store", unit="rows/s")
        if flink is not None:
            flinks = partial(flink.rate, rows, servers=broker.plain, topic=records, jars=jars("flink-kafka"))
    if flinks is None:
        return [case]
    return [case, Case(f"{name}-flink", case.headgate, flinks, "flink sql", unit="rows/s")]
