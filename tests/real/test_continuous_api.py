"""What users' programs say and ask on real Spark: operators, sinks, errors, progress, the end."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress
from pyspark.sql.types import StructType

import headgate
from headgate.errors import BadDataError, OptionError, TransportError, UserFunctionError
from headgate.spark.compatibility import DataSourceStreamArrowWriter
from headgate.spark.continuous import driver
from headgate.transport.control_client import ControlClient
from local.ports import free_ports
from tests.real.running_queries import is_running, numbers, read_values, stop_all, wait_until, written

if TYPE_CHECKING:
    from local.kafka import Certificates

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


class AddOne:
    """A function with costly set-up."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            more = pc.add(batch.column("value"), self.opened)
            yield pa.RecordBatch.from_arrays([more, batch.column("square")], names=["value", "square"])


# What is in between.


def test_every_operator(spark: SparkSession) -> None:
    frame = (
        numbers(spark, rows=1000)
        .withColumn("square", F.col("value") * F.col("value"))
        .mapInArrow(AddOne(), "value long, square long")
        .withColumn("half", (F.col("value") / F.lit(2)).cast("long"))
        .filter(F.col("value") > F.lit(900))
        .filter("value <= 1000")
        .drop("square")
        .select("value", F.col("half").alias("rounded"))
    )
    query = written(frame).start()
    assert query.awaitTermination(90)
    rows = sorted(query.table().to_pylist(), key=lambda row: row["value"])
    assert rows == [{"value": n, "rounded": n // 2} for n in range(901, 1001)]


# Where rows go.


@pytest.mark.parametrize("sink", ["parquet", "json", "csv"])
def test_sinks_of_files(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    """What `spark.read` sees is what was committed."""
    writer = written(numbers(spark, rows=1000), sink, checkpointLocation=tmp_path / "cp", slots="threads")
    assert writer.start(str(tmp_path / "out")).awaitTermination(90)
    assert read_values(spark, tmp_path / "out", sink) == list(range(1000))


def test_the_sinks_console_and_noop(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert written(numbers(spark, rows=5, partitions=1), "console").start().awaitTermination(90)
    shown = capfd.readouterr().out
    assert all(f"|{n}" in shown.replace(" ", "") for n in range(5)), shown
    query = written(numbers(spark, rows=100), "noop").start()
    assert query.awaitTermination(90)
    assert (query.status["rowsIn"], query.status["rowsOut"]) == (100, 100)
    with pytest.raises(OptionError, match=r"table\(\) is for the sink 'memory'; this query writes to 'noop'"):
        query.table()


class Written(WriterCommitMessage):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class CountingWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Written(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        (Path(self.path) / f"{batchId}").write_text(str(sum(message.rows for message in messages)))


class Counting(DataSource):
    """A sink that writes how many rows an epoch had."""

    @classmethod
    def name(cls) -> str:
        return "tests.counting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingWriter:
        return CountingWriter(str(self.options["path"]))


def test_a_registered_python_data_source_is_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Epochs are contiguous from 0."""
    spark.dataSource.register(Counting)
    query = written(numbers(spark), "tests.counting", interval="200 milliseconds").start(str(tmp_path))
    wait_until(lambda: len(list(tmp_path.iterdir())) >= 2, query)
    query.stop(drain=True)
    epochs = {int(path.name): int(path.read_text()) for path in tmp_path.iterdir()}
    assert sum(epochs.values()) == query.status["rowsIn"]
    assert sorted(epochs) == list(range(len(epochs))) and len(epochs) >= 2


# The end.


def listening_sockets() -> set[str]:
    """Return the addresses at which this process listens."""
    mine = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            mine.add(path.readlink().name)
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {fields[1] for fields in lines if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine}


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headgate")}


def active_jobs(spark: SparkSession) -> int:
    """Return how many jobs run, as Spark's store has it: it hears of a job's begin and end a moment later."""
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.mark.parametrize("end", ["input", "stop", "drain", "failure"])
def test_a_query_that_ends_leaves_nothing(spark: SparkSession, tmp_path: Path, end: str) -> None:
    """After its last checkpoint: no thread, no port, no job of Spark's. A dashboard shows for a while how it ended."""
    threads, sockets = own_threads(), listening_sockets()
    function = broken if end == "failure" else unchanged
    frame = numbers(spark, rows=1000 if end == "input" else None).mapInArrow(function, "value long")
    writer = written(frame, checkpointLocation=tmp_path / "cp").option("dashboard.enabled", False)
    query = writer.option("restart-strategy", "none").start()
    match end:
        case "input":
            assert query.awaitTermination(90)
            assert len(query.table()) == 1000
        case "stop":
            wait_until(lambda: query.status["rowsIn"] > 0, query)
            assert own_threads() - threads and listening_sockets() - sockets
            query.stop()
        case "drain":
            wait_until(lambda: query.status["rowsIn"] > 0, query)
            query.stop(drain=True)
        case "failure":
            with pytest.raises(UserFunctionError):
                query.awaitTermination(90)
    assert not query.isActive and (query.exception() is not None) == (end == "failure")
    wait_until(lambda: own_threads() <= threads and listening_sockets() <= sockets)
    wait_until(lambda: not active_jobs(spark))


# Errors, as a user meets them.


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if 7 in batch.column(0).to_pylist():
            raise ValueError("seven is not allowed")
        yield batch


def test_a_function_that_raises_ends_the_query_and_is_reported(spark: SparkSession) -> None:
    restarts = {"": "fixed-delay", ".attempts": 1, ".delay": "0"}
    options = {f"restart-strategy{name}": value for name, value in restarts.items()}
    query = written(numbers(spark, rows=500).mapInArrow(broken, "value long"), **options).start()
    with pytest.raises(UserFunctionError, match="seven is not allowed") as failed:
        query.awaitTermination(90)
    error = failed.value
    assert query.exception() is error and isinstance(error.__cause__, ValueError)
    assert (error.stage, error.function, error.source) == (0, "broken", "datagen")
    assert error.subtask in (0, 1) and error.split and error.position
    text = str(error)
    assert 'raise ValueError("seven is not allowed")' in text and "badRecords" in text
    assert text.count("broken raised ValueError: seven is not allowed") == 1, text


def test_data_that_a_restart_would_meet_again_ends_the_query_at_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1, but no more of it")
    files = spark.readStream.format("headgate.files").schema("n long").option("fileFormat", "parquet")
    query = written(files.load(str(tmp_path)), "noop", 1).start()
    with pytest.raises(BadDataError, match=r"broken\.parquet"):
        query.awaitTermination(90)
    assert "restart from the last completed checkpoint" not in caplog.text


@pytest.mark.parametrize("handling", ["skip", "sink"])
def test_bad_records(spark: SparkSession, tmp_path: Path, handling: str) -> None:
    query = (
        written(numbers(spark, rows=500).mapInArrow(broken, "value long"), slots="threads")
        .option("badRecords", "skip" if handling == "skip" else "json")
        .option("badRecords.path", str(tmp_path / "bad") if handling == "sink" else None)
        .start()
    )  # fmt: skip
    assert query.awaitTermination(90)
    assert sorted(query.table()["value"].to_pylist()) == [n for n in range(500) if n != 7]
    progress = query.lastProgress
    assert progress is not None and progress["headgate"]["skippedRecords"] == 1
    if handling == "sink":
        (bad,) = [row.asDict() for row in spark.read.json(str(tmp_path / "bad")).collect()]
        assert bad["error"] == "ValueError: seven is not allowed" and json.loads(bad["record"]) == {"value": 7}
        assert bad["source"] == "datagen" and bad["split"] and json.loads(bad["position"])


@pytest.mark.parametrize(("parallelism", "error"), [(1, None), (2, "Only [01] of the 2 slots .* got a core")])
def test_cores_that_other_work_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, error: str | None
) -> None:
    """A query whose slots get no core ends; one whose slots have theirs, and are slow to come, does not."""
    monkeypatch.setattr(driver, "_SLOTS_COME_MS", 1)
    begun, ends = tmp_path / "begun", tmp_path / "ends"
    wait_until(lambda: not active_jobs(spark))  # of queries before this one

    def wait(rows: Iterator[int]) -> Iterator[int]:
        begun.touch()
        while not ends.exists():
            time.sleep(0.05)
        yield from rows

    other = threading.Thread(target=spark.sparkContext.parallelize([1], 1).mapPartitions(wait).count)
    other.start()
    try:
        wait_until(lambda: begun.exists() and active_jobs(spark) == 1)
        query = written(numbers(spark), "noop", parallelism).start()
        if error is None:
            wait_until(lambda: is_running(query), query)
        else:
            with pytest.raises(OptionError, match=error):
                query.awaitTermination(90)
    finally:
        ends.touch()
        other.join()


def test_too_few_cores(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match=r"parallelism 5 needs 5 cores for its slots, but local\[2\] has 2") as few:
        written(numbers(spark), "noop", 5).start()
    assert (few.value.value, few.value.cores) == (5, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spark.speculation": "true"}, "spark.speculation is true.*second attempt of every slot"),
        (
            {
                "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "60",
                "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
            },
            "idleTimeoutSeconds is 60 .*Set it to 0",
        ),
    ],
)
def test_settings_of_spark_s_that_end_slots(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    conf = spark.sparkContext.getConf().setAll(list(settings.items()))
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    with pytest.raises(OptionError, match=message):
        written(numbers(spark), "noop").start()


# Beside a query.


def test_other_work_runs_beside_a_query(spark: SparkSession) -> None:
    query = written(numbers(spark), "noop", 1).start()
    wait_until(lambda: query.status["rowsIn"] > 0, query)
    assert spark.range(1000).selectExpr("sum(id)").first()[0] == 499_500  # type: ignore[index]
    assert query.isActive


def test_the_name_stands_where_spark_shows_jobs(spark: SparkSession) -> None:
    query = written(numbers(spark), "noop", 1).queryName("large-rides").start()
    wait_until(lambda: is_running(query), query)
    context: Any = spark.sparkContext
    store = context._jsc.sc().statusStore()

    def shown() -> list[str]:
        jobs = store.jobsList(None)
        descriptions = [jobs.apply(n).description() for n in range(jobs.size())]
        return [each.get() for each in descriptions if each.isDefined()]

    wait_until(lambda: any(each.startswith("large-rides<br/>") for each in shown()), query)  # a moment later
    assert query.name == "large-rides"


# Progress.


class Recorder(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)


def test_progress_and_listeners(spark: SparkSession) -> None:
    # A query before this one may still report its end.
    wait_until(lambda: not any(name.startswith("headgate-listeners") for name in own_threads()))
    recorder = Recorder()
    headgate.streams.addListener(recorder)
    try:
        query = written(numbers(spark), "noop", interval="200 milliseconds").queryName("shown").start()
        assert recorder.events[0].name == "shown", "it is called before start() returns"
        assert headgate.streams.active == [query] and headgate.streams.get(query.id) is query
        progress = wait_until(
            lambda: next((each for each in query.recentProgress if each.batchId > 0 and each.numInputRows), None), query
        )
        assert isinstance(progress, StreamingQueryProgress)
        assert (str(progress.id), str(progress.runId), progress.name) == (query.id, query.runId, "shown")
        assert progress.inputRowsPerSecond > 0 and progress.batchDuration >= 0
        (source,) = progress.sources
        assert source.numInputRows == progress.numInputRows and len(json.loads(source.endOffset)) == 4
        assert progress.sink.description == "noop"
        assert progress["headgate"]["checkpoint"]["id"] == progress.batchId
        json.loads(progress.json)
        wait_until(lambda: len(recorder.events) > 2, query)
        query.stop()
        assert headgate.streams.active == [] and headgate.streams.get(query.id) is None
        wait_until(lambda: type(recorder.events[-1]).__name__ == "QueryTerminatedEvent")
    finally:
        headgate.streams.removeListener(recorder)
    kinds = [type(event).__name__ for event in recorder.events]
    assert kinds == ["QueryStartedEvent", *["QueryProgressEvent"] * (len(kinds) - 2), "QueryTerminatedEvent"]
    assert recorder.events[-1].exception is None


# The endpoint.


def test_tls_and_secrets_of_a_running_query(
    spark: SparkSession, tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """A slot's messages come through TLS; who has no certificate of ours, or not the query's secret, is refused."""
    query = (
        written(numbers(spark), "noop", checkpointLocation=tmp_path / "cp")
        .option("transport.tls.enabled", True)
        .option("transport.tls.cert", str(certificates.broker)).option("transport.tls.key", str(certificates.broker))
        .option("transport.tls.ca", str(certificates.ca)).start()
    )  # fmt: skip
    wait_until(lambda: query.status["rowsIn"] > 0, query)
    settings = query._driver._settings.slot  # type: ignore[union-attr]
    address = query._driver._server.address  # type: ignore[union-attr]
    assert address.startswith("127.0.0.1:"), "only loopback in local mode"

    def knock(secret: str, tls: Any) -> None:
        ControlClient(address, secret, tls, on_message=lambda _: None, on_closed=lambda _: None, timeout_s=60)

    with caplog.at_level(logging.WARNING), pytest.raises(TransportError) as refused:
        knock("a secret of another query", settings.tls)
    assert refused.value.reason == "refused"
    wait_until(lambda: any("secret" in record.getMessage() for record in caplog.records), query)  # another thread logs
    assert settings.secret not in caplog.text and settings.secret not in repr(query.status)
    with pytest.raises(TransportError):
        knock(settings.secret, None)
    rows = query.status["rowsIn"]
    wait_until(lambda: query.status["rowsIn"] > rows, query)


def test_a_certificate_that_clients_do_not_trust(spark: SparkSession, certificates: Certificates) -> None:
    """Slots cannot come, and the error says why."""
    with pytest.raises(OptionError, match=r"TLS needs the option 'transport\.tls\.cert'"):
        written(numbers(spark), "noop").option("transport.tls.enabled", True).start()


def test_the_port_can_be_chosen(spark: SparkSession) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(TransportError, match=str(port)):
        written(numbers(spark), "noop").option("transport.port", port).start()
    query = written(numbers(spark), "noop").option("transport.port", port).start()
    wait_until(lambda: query.status["rowsIn"] > 0, query)
