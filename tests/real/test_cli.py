"""The command line on what real queries leave: checkpoints, savepoints that are mended, state as tables, sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.monitor.endpoint import of_process
from local.kinesis import SECRET_KEY, Stream
from local.ports import free_ports
from local.topics import Message, create_topic, produce
from tests.real.running_queries import numbers, stop_all, wait_until, written
from tests.real.test_checkpoint_storage import Bucket
from tests.real.test_continuous_stateful import OUTPUT, Counting
from tests.real.test_kinesis_kit import options as kinesis_options
from tests.unit.cli.stored_query import run, run_json

if TYPE_CHECKING:
    from local.kafka import Broker
    from local.kinesis import MotoServer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def without_poison(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A user's function that fails at a row that it does not expect."""
    for batch in batches:
        values = [bytes(each.as_py()) for each in batch["value"]]
        yield pa.record_batch({"n": pa.array([int(each) for each in values], pa.int64())})


class Rides:
    """A query of a topic of two partitions, whose function does not like all that may be in it."""

    def __init__(self, spark: SparkSession, kafka: Broker, topic_name: str, folder: Path) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.topic = create_topic(kafka.plain, topic_name, 2)

    def send(self, partition: int, *values: object) -> None:
        produce(self.kafka.plain, self.topic, [Message(str(each).encode(), partition=partition) for each in values])

    def start(self, name: str, savepoint: Path | None = None, **options: str) -> headgate.ContinuousQuery:
        frame = (
            self.spark.readStream.format("headgate.kafka")
            .option("kafka.bootstrap.servers", self.kafka.plain)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        frame = frame.select("value").mapInArrow(without_poison, "n long")
        writer = written(frame, checkpointLocation=str(self.folder / name), slots="threads", interval="200 ms")
        return writer.options(**options).start(fromSavepoint=None if savepoint is None else str(savepoint))


def rows(query: headgate.ContinuousQuery) -> list[int]:
    return sorted(query.table()["n"].to_pylist())


def test_a_poisonous_record_is_skipped_and_a_partition_read_again(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    rides = Rides(spark, kafka, topic_name, tmp_path)
    rides.send(0, *range(10))
    rides.send(1, *range(10, 20))
    query = rides.start("first")
    wait_until(lambda: rows(query) == list(range(20)), query)
    query.stop(savepoint=str(tmp_path / "saved"))
    rides.send(0, "poison", 20, 21)
    query = rides.start("as-before", tmp_path / "saved", **{"restart-strategy": "none"})
    wait_until(lambda: not query.isActive)
    assert "poison" in str(query.exception())

    shown = run_json("positions", "show", tmp_path / "saved")["splits"]
    assert {each["split"]: each["position"] for each in shown} == {f"{rides.topic}-0": 10, f"{rides.topic}-1": 10}
    arguments = ("--set", f"{rides.topic}-0=+1", "--set", f"{rides.topic}-1=5", "--to", tmp_path / "mended")
    found = run_json("positions", "set", tmp_path / "saved", *arguments)
    assert {each["after"] for each in found["moves"]} == {11, 5}

    query = rides.start("second", tmp_path / "mended")
    wait_until(lambda: rows(query) == [*range(15, 20), 20, 21], query)
    rides.send(1, 22)
    wait_until(lambda: rows(query)[-1] == 22, query)
    query.stop()
    assert run("checkpoints", "verify", tmp_path / "second").exit_code == 0


def windows(frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("timestamp", "0 seconds").groupBy(F.window("timestamp", "100 milliseconds"), "value")
    return grouped.agg(F.count("*").alias("many"), F.avg("value").alias("average"))


def rate(spark: SparkSession) -> DataFrame:
    """Return rows with four values, without an end; their event time goes as fast as the clock."""
    return (
        spark.readStream.format("headgate.datagen").option("rowsPerSecond", 5000).option("numPartitions", 2)
        .option("fields.value.min", 0).option("fields.value.max", 3)
        .schema("timestamp timestamp, value long").load()
    )  # fmt: skip


def rows_read(location: Path) -> int:
    return sum(each["position"] for each in run_json("positions", "show", location)["splits"])


def test_state_of_windows_and_what_was_emitted_are_all_rows_that_were_read(spark: SparkSession, tmp_path: Path) -> None:
    query = written(windows(rate(spark)), checkpointLocation=str(tmp_path / "checkpoints"), slots="threads").start()
    wait_until(lambda: query.table().num_rows > 20, query)
    query.checkpoint()
    query.stop(savepoint=str(tmp_path / "saved"))
    emitted = query.table()
    (operator,) = run_json("state", "read", tmp_path / "saved")
    assert operator["signature"].startswith("count(1), avg(value)")
    output = tmp_path / "windows.parquet"
    assert (
        run("state", "read", tmp_path / "saved", "--operator", operator["operator"], "--output", output).exit_code == 0
    )
    state = pq.read_table(output)
    assert sum(state["count(1)"].to_pylist()) + sum(emitted["many"].to_pylist()) == rows_read(tmp_path / "saved")
    assert all(row["avg(value)"] == row["value"] for row in state.to_pylist()), "it is of rows of one value"
    groups = [{(row["window"]["start"], row["value"]) for row in table.to_pylist()} for table in (emitted, state)]
    assert not groups[0] & groups[1], "what was emitted is not there any more"


@pytest.mark.spark_since("transform-with-state-rows")
def test_state_variables_of_a_processor(spark: SparkSession, tmp_path: Path) -> None:
    frame = numbers(spark, rate=5000).selectExpr("value % 10 AS k", "value AS n").groupBy("k")
    frame = frame.transformWithState(Counting(), OUTPUT, "Append", "None")
    query = written(frame, checkpointLocation=str(tmp_path / "checkpoints"), slots="threads").start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.checkpoint()
    wait_until(lambda: query.status["rowsIn"] > 2000, query)
    query.stop(savepoint=str(tmp_path / "saved"))
    (operator,) = run_json("state", "read", tmp_path / "saved")
    tables = run_json("state", "read", tmp_path / "saved", "--operator", operator["operator"])["tables"]
    assert tables["seen"]["schema"] == {"k": "int64", "n": "int64", "expires": "timestamp[ms, tz=UTC]"}
    seen = {each["k"]: each["n"] for each in tables["seen"]["first"]}
    assert len(seen) == 10 and sum(seen.values()) == rows_read(tmp_path / "saved")


def test_checkpoints_of_a_running_query_and_one_that_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    location = tmp_path / "checkpoints"
    writer = written(windows(rate(spark)), checkpointLocation=str(location), slots="threads", interval="1 hour")
    query = writer.start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.checkpoint()
    query.stop(savepoint=str(tmp_path / "one"))
    again = written(windows(rate(spark)), checkpointLocation=str(tmp_path / "more"), slots="threads", interval="1 hour")
    query = again.start(fromSavepoint=str(tmp_path / "one"))
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.stop(savepoint=str(tmp_path / "two"))

    shown = run_json("checkpoints", "show", tmp_path / "one")
    assert shown["kind"] == "suspend" and [each["format"] for each in shown["sources"]] == ["headgate.datagen"]
    found = run_json("checkpoints", "diff", tmp_path / "one", tmp_path / "two")
    assert len(found["splits"]) == 2 and all(each["change"] > 0 for each in found["splits"])
    for place in (location, tmp_path / "one", tmp_path / "two"):
        assert run("checkpoints", "verify", place).exit_code == 0
    assert run_json("checkpoints", "list", location)[0]["problem"] is None
    largest = max(
        (each for each in (tmp_path / "two").rglob("*") if each.is_file()), key=lambda each: each.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:-1])
    result = run("checkpoints", "verify", tmp_path / "two")
    assert result.exit_code == 1 and str(largest) in result.output


def test_a_savepoint_is_copied_to_s3_and_started_from(spark: SparkSession, aws: MotoServer, tmp_path: Path) -> None:
    bucket = Bucket(aws)

    def started(name: str, savepoint: str | None = None) -> headgate.ContinuousQuery:
        frame = windows(rate(spark))
        return written(frame, checkpointLocation=str(tmp_path / name), slots="threads").start(fromSavepoint=savepoint)

    query = started("first")
    wait_until(lambda: query.table().num_rows > 0, query)
    query.stop(savepoint=str(tmp_path / "saved"))
    emitted = query.table()
    result = run("savepoint", "copy", tmp_path / "saved", bucket.address("saved"))
    assert result.exit_code == 0, result.output
    assert run("checkpoints", "verify", bucket.address("saved")).exit_code == 0
    assert run_json("checkpoints", "diff", tmp_path / "saved", bucket.address("saved"))["splits"] == []
    back = run("savepoint", "copy", bucket.address("saved"), tmp_path / "back")
    assert back.exit_code == 0, back.output
    for path in (tmp_path / "saved").rglob("*"):
        if path.is_file():
            path.unlink()

    query = started("second", bucket.address("saved"))
    wait_until(lambda: query.table().num_rows > 8, query)
    again = query.table()
    query.stop()
    groups: dict[tuple[Any, int], int] = {}
    for row in [*emitted.to_pylist(), *again.to_pylist()]:
        # A savepoint's own epoch is published once more by who starts from it: those rows are the same.
        assert groups.setdefault((row["window"]["start"], row["value"]), row["many"]) == row["many"]
    whole: dict[Any, list[int]] = {}
    for (start, _), many in groups.items():
        whole.setdefault(start, []).append(many)
    assert {sum(many) for many in whole.values() if len(many) == 4} == {500}, "no row lost or twice: 5000 a second"


@pytest.fixture
def own_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An endpoint of this test's queries alone: that of the process may be open, and its file elsewhere."""
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "home"))
    of_process.close()
    yield
    of_process.close()


def test_a_running_query_is_asked_and_mended(spark: SparkSession, tmp_path: Path, own_endpoint: None) -> None:
    writer = written(windows(rate(spark)), checkpointLocation=str(tmp_path / "checkpoints"), slots="threads")
    query = writer.queryName("rides-asked").start()
    wait_until(lambda: query.table().num_rows > 0, query)
    listed = [each for each in run_json("query", "list") if each["name"] == "rides-asked"]
    assert [(each["id"], each["state"]) for each in listed] == [(query.id, "running")]
    status = run_json("query", "status", "rides-asked")
    assert status["parallelism"] == 2 and status["why"]
    assert f"rides-asked ({query.id}" in run("query", "status", query.id[:13]).output
    taken = run_json("query", "checkpoint", "rides-asked")["checkpointId"]
    assert taken <= run_json("checkpoints", "list", tmp_path / "checkpoints")[0]["id"]
    assert run("query", "savepoint", tmp_path / "saved", "rides-asked").exit_code == 0
    assert run("checkpoints", "verify", tmp_path / "saved").exit_code == 0
    again = run("query", "savepoint", tmp_path / "saved", "rides-asked")
    assert again.exit_code == 1 and "never overwritten" in again.stderr and query.isActive
    assert run("query", "rescale", 1, "rides-asked").exit_code == 0
    wait_until(lambda: run_json("query", "status", "rides-asked")["parallelism"] == 1, query)
    assert run("query", "rescale", 100_000, "rides-asked").exit_code == 2
    assert run("query", "stop", "rides-asked", "--savepoint", tmp_path / "last").exit_code == 0
    assert not query.isActive and query.exception() is None
    assert run_json("checkpoints", "show", tmp_path / "last")["parallelism"] == 1
    assert run("query", "stop", "rides-asked").exit_code in (1, 2, 3), "it has ended"


def test_a_bucket_that_is_not_there_and_a_store_that_does_not_answer(aws: MotoServer) -> None:
    bucket = Bucket(aws)
    assert run("checkpoints", "list", bucket.address("nothing")).exit_code == 2
    address = f"s3://a:b@bucket/x?region=us-east-1&endpoint_override=http://127.0.0.1:{free_ports(1)[0]}"
    result = run("checkpoints", "list", address)
    assert result.exit_code == 3 and "a:b" not in result.stderr


def check(format_name: str, *options: str, exit_code: int = 0) -> Any:
    arguments = [each for option in options for each in ("-o", option)]
    return run_json("sources", "check", format_name, *arguments, exit_code=exit_code)


def test_a_topic_is_checked(kafka: Broker, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name, 3)
    produce(kafka.plain, topic, [Message(b"hello", partition=1)])
    servers = f"kafka.bootstrap.servers={kafka.plain}"
    found = check("headgate.kafka", servers, f"subscribe={topic}")
    assert found["numSplits"] == 3 and bytes.fromhex(found["row"]["value"][2:]) == b"hello"
    found = check("headgate.kafka", servers, f"subscribe={topic}", "startingOffsets=latest")
    assert found["numSplits"] == 3 and found["row"] is None and found["steps"][-1]["state"] == "warning"
    missing = check("headgate.kafka", servers, f"subscribe={topic}-missing", exit_code=1)
    assert f"{topic}-missing" in missing["steps"][-1]["text"]


def test_a_broker_that_is_not_there(kafka: Broker) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = (f"kafka.bootstrap.servers={address}", "subscribe=rides", "kafka.default.api.timeout.ms=2000")
    found = check("headgate.kafka", *options, exit_code=3)
    assert found["steps"][-1]["state"] == "problem" and address in found["steps"][-1]["text"]


def test_a_stream_of_kinesis_is_checked(aws: MotoServer) -> None:
    stream = Stream(aws, "cli-checked", 2)
    stream.put(["hello"])
    options = [f"{name}={value}" for name, value in kinesis_options(aws, "cli-checked").items()]
    found = check("headgate.kinesis", *options, "startingPosition=trim_horizon")  # the other shard is empty
    assert found["numSplits"] == 1 and bytes.fromhex(found["row"]["data"][2:]) == b"hello"
    missing = [f"{name}={value}" for name, value in kinesis_options(aws, "cli-missing").items()]
    assert "cli-missing" in check("headgate.kinesis", *missing, exit_code=1)["steps"][-1]["text"]
    assert SECRET_KEY not in run("sources", "check", "headgate.kinesis", *(f"-o{each}" for each in missing)).output
