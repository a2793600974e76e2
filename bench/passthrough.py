"""Continuous queries without work to do: what the machinery costs, and Kafka beside Structured Streaming.

overhead generates rows as fast as it can into the noop sink, with a checkpoint every second, beside the same generator
in a bare loop in as many processes: both for the same time, after the same warm-up. kafka reads a topic of JSON records
of about 90 bytes into the noop sink, beside Structured Streaming's own Kafka source with its default trigger: from the
start of the query until all records were read. The broker runs on the same two cores. small-batches is what a batch of
100 rows spends in a filter and four columns, in microseconds: a slow source gives many of them. from-json is how fast
one slot has three fields of a JSON text evaluated by Spark's own code in its Java; from-json-10 how long ten rows take.
elements is how fast it has the largest element of an array found, beside the same with an expression that has a lambda,
for which Evaluator.java copies each row. branches is how fast a union of two branches of the generated stream reads it,
beside the stream alone: what operators downstream get is two batches for each slice.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from bench import kafka as kafka_bench
from bench.frame import CACHE, CORES, Case, WorkerMemory, chosen, measure, report, session, wait_for
from headgate.graph.plan import stage_graph
from headgate.protocol.operator_context import OperatorContext
from local.jars import spark_kafka
from local.kafka import Broker, running_broker

SUMMARY = "continuous queries: the cost of the machinery, and Kafka to noop"
SCHEMA = "value bigint, user string, at timestamp"
OPTIONS = {
    "rowsPerSecond": "1000000000",
    "numPartitions": str(CORES),
    "seed": "7",
    "fields.user.cardinality": "1000",
}
WARM_UP_S = 3.0
SMALL_ROWS, REQUIRED_US = 100, 100.0
JSON_ROWS, REQUIRED_JSON_ROWS_S = 10_000, 0.5e6
FEW_ROWS, REQUIRED_FEW_MS = 10, 2.0
LAMBDA = "exists(array(1), x -> x > 1)"
SECONDS, QUICK_SECONDS = 10.0, 3.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _rows_in(query: Any) -> int:
    """Return how many rows the query has read since it started."""
    return int(query.status["rowsIn"])


def _query(spark: SparkSession, seconds: float, program: Callable[[DataFrame], DataFrame] = lambda rows: rows) -> float:
    """Return rows/s of a continuous query: of the rows that it reads."""
    rows = spark.readStream.format("headgate.datagen").options(**OPTIONS).schema(SCHEMA).load()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
        query = (
            headgate.continuous(program(rows), parallelism=CORES)
            .writeStream.format("noop").option("checkpointLocation", folder)
            .trigger(continuous="1 second").start()
        )  # fmt: skip
        wait_for(query, lambda: _rows_in(query) > 0)
        time.sleep(WARM_UP_S)
        before, begin = _rows_in(query), time.perf_counter()
        time.sleep(seconds)
        rate = (_rows_in(query) - before) / (time.perf_counter() - begin)
        query.stop()
    return rate


def _branches(rows: DataFrame) -> DataFrame:
    return rows.union(rows.where("value % 2 = 0"))


def _loop(partition: int, seconds: float, answers: Any) -> None:
    """Generate one partition's rows without anything around it; in a process of its own."""
    import pyarrow as pa

    from headgate.connectors.datagen.columns import RowGenerator
    from headgate.connectors.datagen.partitions import Pace, Partitions
    from headgate.connectors.datagen.source import DatagenSource
    from headgate.connectors.datagen.split import DatagenSplit
    from headgate.connectors.datagen.split_reader import DatagenSplitReader

    schema = pa.schema({"value": pa.int64(), "user": pa.string(), "at": pa.timestamp("us", tz="UTC")})
    pace = Pace(rows_per_second=int(OPTIONS["rowsPerSecond"]), ramp_up_ms=0)
    options = DatagenSource(OPTIONS).options
    reader = DatagenSplitReader(partial(RowGenerator, schema, options, pace), Partitions(CORES, 0.0), pace)
    now_ms = time.time_ns() // 1_000_000
    split = DatagenSplit(
        split_id=f"partition-{partition}", partition=partition, event_start_us=0, paced_since_ms=now_ms - 60_000
    )
    reader.handle_splits_changes([split])
    measured, begin, end = 0, time.perf_counter() + WARM_UP_S, time.perf_counter() + WARM_UP_S + seconds
    while (now := time.perf_counter()) < end:
        for fetched in reader.fetch(500):
            measured += fetched.batch.num_rows if fetched.batch is not None and now >= begin else 0
    answers.put(measured / seconds)


def _bare(seconds: float) -> float:
    """Return rows/s of the generator in a bare loop in as many processes as the query has slots."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    loops = [context.Process(target=_loop, args=(number, seconds, answers)) for number in range(CORES)]
    for loop in loops:
        loop.start()
    rate = sum(answers.get() for _ in loops)
    for loop in loops:
        loop.join()
    return float(rate)


def _topic_to_noop(spark: SparkSession, brokers: list[Broker], rows: int, peer: bool) -> int:
    (broker,) = brokers
    frame = (
        spark.readStream.format("kafka" if peer else "headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", kafka_bench.topic(broker, rows))
        .option("startingOffsets", "earliest")
        .load()
    )
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as checkpoint:
        program: Any = frame if peer else headgate.continuous(frame, parallelism=CORES)
        writer = program.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = (writer if peer else writer.trigger(continuous="1 second")).start()
        read, deadline = 0, time.monotonic() + 300
        while read < rows and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
            read = sum(each["numInputRows"] for each in query.recentProgress) if peer else _rows_in(query)
        query.stop()
    if read != rows:
        raise SystemExit(f"the {'peer' if peer else 'query'} read {read:,} records of {rows:,}: {query.exception()}")
    return read


def _small_batches(spark: SparkSession) -> float:
    """Return how many microseconds a small batch takes through the operators of a program."""
    rows = spark.readStream.format("headgate.datagen").schema("id bigint, name string, x double").load()
    program = rows.where("id % 7 > 2").selectExpr("id", "upper(name) AS name", "x * 2 AS twice", "id + 5 AS later")
    ids = range(SMALL_ROWS)
    batch = pa.record_batch([ids, [f"name {each}" for each in ids], [each / 3 for each in ids]], ["id", "name", "x"])
    return _seconds_of(program, batch) * 1e6


def _from_json(spark: SparkSession, rows: int) -> float:
    """Return the seconds that so many rows take through a slot's Java, which reads three fields of each."""
    texts = spark.readStream.format("headgate.datagen").schema("value string").load()
    fields = "user string, amount bigint, at timestamp"
    program = texts.select(F.from_json("value", fields).alias("r")).select("r.*")
    made = [f'{{"user": "user {n % 1000}", "amount": {n}, "at": "2026-01-01T00:00:{n % 60:02}"}}' for n in range(rows)]
    return _seconds_of(program, pa.record_batch([made], ["value"]), spark.sparkContext.applicationId or "")


def _elements(spark: SparkSession, *beside: str) -> float:
    """Return how many rows per second have the largest element of an array found, with other expressions beside it."""
    texts = spark.readStream.format("headgate.datagen").schema("value string").load()
    program = texts.selectExpr("split(value, ',') AS parts").selectExpr("array_max(parts)", *beside)
    batch = pa.record_batch([[",".join(str(n * each % 997) for each in range(8)) for n in range(JSON_ROWS)]], ["value"])
    return JSON_ROWS / _seconds_of(program, batch, spark.sparkContext.applicationId or "")


def _seconds_of(program: DataFrame, batch: pa.RecordBatch, application: str = "") -> float:
    """Return the seconds that a batch takes through the operators of a program: the median of two seconds of them."""
    graph = stage_graph(headgate.continuous(program, parallelism=1)._plan)
    operators = [each.operator for each in graph.operators]
    with contextlib.ExitStack() as stack:
        for number, operator in enumerate(operators):
            context = OperatorContext(uid=str(number), subtask=0, parallelism=1, application=application)
            for _ in operator.prepare(context):
                pass
            operator.open(context, [])
            stack.callback(operator.close)

        def process(batch: pa.RecordBatch, split_id: str, at: int = 0) -> None:
            if at < len(operators):
                operators[at].process(batch, split_id, lambda made, split_id: process(made, split_id, at + 1))

        times_s, start = [], time.perf_counter()
        while (begin := time.perf_counter()) < start + 3:
            process(batch, "split")
            if begin > start + 1:  # Java compiles what it runs often
                times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s)


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    rows = arguments.rows or (kafka_bench.QUICK_ROWS if arguments.quick else kafka_bench.ROWS)
    memory = WorkerMemory()
    rounds = 1 if arguments.quick else arguments.rounds
    spark = session("passthrough", jars=spark_kafka())
    brokers: list[Broker] = []
    overhead = Case("overhead", partial(_query, spark, seconds), partial(_bare, seconds), "bare loop", unit="rows/s")
    topic = Case("kafka", partial(_topic_to_noop, spark, brokers, rows, peer=False),
                 partial(_topic_to_noop, spark, brokers, rows, peer=True), "spark kafka", rows)  # fmt: skip
    small = Case("small-batches", partial(_small_batches, spark), lambda: REQUIRED_US, "required", unit="us")
    json = Case("from-json", lambda: JSON_ROWS / _from_json(spark, JSON_ROWS), lambda: REQUIRED_JSON_ROWS_S,
                "required", unit="rows/s")  # fmt: skip
    few = Case("from-json-10", lambda: _from_json(spark, FEW_ROWS) * 1e3, lambda: REQUIRED_FEW_MS, "required",
               unit="ms")  # fmt: skip
    elements = Case("elements", partial(_elements, spark), partial(_elements, spark, LAMBDA), "with a lambda",
                    unit="rows/s")  # fmt: skip
    branches = Case("branches", partial(_query, spark, seconds, _branches), partial(_query, spark, seconds), "alone",
                    unit="rows/s")  # fmt: skip
    results = []
    for case in chosen([overhead, topic, small, json, few, elements, branches], arguments.only):
        with contextlib.ExitStack() as stack:
            if case is topic:
                brokers.append(stack.enter_context(running_broker(CACHE / "kafka")))
            results.append(measure(case, rounds, memory, warm_up=case in (topic, elements)))
    spark.stop()
    report(
        "passthrough", results, memory,
        f"local[{CORES}], parallelism {CORES}, checkpoints every second in a local folder, noop sink. overhead: "
        f"{seconds:.0f} s after {WARM_UP_S:.0f} s of warm-up, columns {SCHEMA}. kafka: {rows:,} JSON records of about "
        f"90 bytes in 4 partitions, from start() until all are read. small-batches: {SMALL_ROWS} rows through a filter "
        f"and four columns. from-json and elements: {JSON_ROWS} rows a batch, one slot.",
    )  # fmt: skip
