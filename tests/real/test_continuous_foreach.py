"""``foreachBatch`` and ``foreach`` of continuous queries on real Spark."""

from __future__ import annotations

import datetime
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession

import headgate
from headgate.errors import OptionError, SinkError, UserFunctionError
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.continuous.foreach_batch import ForeachBatchSink
from local.kinesis import MotoServer
from tests.real.running_queries import PATIENCE_S, stop_all, wait_until
from tests.real.test_files_s3 import Bucket

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

SCHEMA = pa.schema({"n": pa.int64(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us", "UTC")})
AT = datetime.datetime(2024, 2, 29, 12, 30, 0, 123456)


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def generated(spark: SparkSession, rows: int = 3000) -> DataFrame:
    options = {"numRows": rows, "rowsPerSecond": 2000, "numPartitions": 3, "fields.n.kind": "sequence"}
    return spark.readStream.format("headgate.datagen").options(**options).schema("n long").load()


def started(writer: Any, location: Path, **options: str) -> headgate.ContinuousQuery:
    given = {"slots": "threads", "checkpointLocation": str(location), **options}
    query: headgate.ContinuousQuery = writer.options(**given).trigger(continuous="200 milliseconds").start()
    return query


def test_a_function_gets_each_row_once_in_numbered_batches(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []

    def take(batch: DataFrame, number: int) -> None:
        assert batch.sparkSession is spark and batch.columns == ["n"]
        seen.append((number, [row.n for row in batch.collect()]))

    query = started(headgate.continuous(generated(spark), 2).writeStream.foreachBatch(take), tmp_path)
    assert query.awaitTermination(PATIENCE_S), query.status
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers)) and len(numbers) > 2
    assert all(rows for _, rows in seen), "a batch without rows is none"
    assert sorted(n for _, rows in seen for n in rows) == list(range(3000))
    assert list((tmp_path / "foreach-batch" / "_staging").iterdir()) == []


def test_it_does_after_an_exchange_too(spark: SparkSession, tmp_path: Path) -> None:
    """There a barrier comes before its writer hears that the checkpoint before it is complete."""
    seen: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.extend(row.n for row in batch.collect())

    keyed = headgate.continuous(generated(spark, rows=1000).repartition("n"), 2)
    options = {"slots": "threads", "checkpointLocation": str(tmp_path)}
    query = keyed.writeStream.foreachBatch(take).options(**options).trigger(continuous="20 milliseconds").start()
    assert query.awaitTermination(PATIENCE_S), query.status
    assert sorted(seen) == list(range(1000))


def test_a_batch_whose_function_failed_comes_again_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    seen: dict[int, list[list[int]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        seen.setdefault(number, []).append(sorted(row.n for row in batch.collect()))
        if len(seen) == 3 and len(seen[number]) == 1:
            raise ConnectionError("the table's server is away")

    writer = headgate.continuous(generated(spark), 2).writeStream.foreachBatch(take)
    query = started(writer, tmp_path)
    assert query.awaitTermination(PATIENCE_S), query.status
    again = [each for each in seen.values() if len(each) == 2]
    assert len(again) == 1 and again[0][0] == again[0][1]
    assert sorted(n for each in seen.values() for n in each[0]) == list(range(3000))


def test_the_error_of_a_function_ends_the_query_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    def take(batch: DataFrame, number: int) -> None:
        raise ConnectionError("the table's server is away")

    writer = headgate.continuous(generated(spark), 2).writeStream.foreachBatch(take)
    query = started(writer, tmp_path, **{"restart-strategy": "none"})
    with pytest.raises(UserFunctionError, match="take failed with batch 0: ConnectionError: the table"):
        query.awaitTermination(PATIENCE_S)


def staging(
    spark: SparkSession,
    function: Any,
    location: str,
    execution: int = 1,
    output_mode: str = "append",
    schema: pa.Schema = SCHEMA,
) -> tuple[Any, Any]:
    """Return a writer and a committer, as a slot and the driver make them."""
    sink = ForeachBatchSink(spark, function, {}, schema)
    sink.output_mode = output_mode
    context = OperatorContext(
        uid="sink", subtask=0, parallelism=1, execution=execution, query_id="q",
        options={"checkpointLocation": location},
    )  # fmt: skip
    return sink.create_writer(context, schema, []), sink.create_committer(location)


def rows_of(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, "tags": ["a", None], "at": AT} for n in numbers], SCHEMA)


def test_a_crash_before_it_is_noted_that_a_function_returned_gives_it_the_batch_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[Row]]] = []

    def take(batch: DataFrame, number: int) -> None:
        seen.append((number, batch.collect()))
        if len(seen) == 1:
            raise KeyboardInterrupt  # as abrupt as an end of the process, for who called

    writer, committer = staging(spark, take, str(tmp_path))
    writer.write(rows_of(1, 2))
    state = writer.prepare_commit(1, final=False).result(PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        committer.commit(state.committables, epoch=1, final=False)
    for _ in range(2):  # the second time the staged rows are gone, and it is known why
        _, again = staging(spark, take, str(tmp_path))
        assert again.commit(state.committables, epoch=1, final=False) == ()
    assert [number for number, _ in seen] == [0, 0]
    assert seen[0][1] == seen[1][1] == [Row(n=n, tags=["a", None], at=seen[0][1][0].at) for n in (1, 2)]

    writer.notify_checkpoint_complete(1)
    writer.write(rows_of(3))
    later = writer.prepare_commit(2, final=True).result(PATIENCE_S)
    assert again.commit(later.committables, epoch=2, final=True) == ()
    assert [[row.n for row in rows] for _, rows in seen[2:]] == [[3]]
    assert {each.name for each in (tmp_path / "foreach-batch").iterdir()} == {"_staging", "committed-2"}
    writer.close()


def test_intervals_and_columns_of_no_type_are_what_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet has neither: also inside of others, null, and to the microsecond where numbers are large."""
    interval, nothing = pa.duration("us"), pa.null()
    inner = pa.struct({"void": nothing, "a.b": interval})
    schema = pa.schema(
        {"took`s": interval, "void": nothing, "deep": pa.map_(pa.string(), pa.list_(inner)), "n": pa.int64()}
    )
    day = 86_400_000_000
    micros = [0, None, -1, day - 1, 106_751_991 * day - 1, -106_751_991 * day + 1, 2**63 - 1, -(2**63)]
    deep = [None, [], [("a", None)], [("a", [])], [("a", [None, {"void": None, "a.b": None}])],
            *([("a", [{"void": None, "a.b": each}])] for each in (-1, 106_751_991 * day - 1, 2**63 - 1))]  # fmt: skip
    columns = [micros, [None] * 8, deep, range(8)]
    given = pa.record_batch([pa.array(each, kind) for each, kind in zip(columns, schema.types)], schema=schema)
    seen: list[pa.Table] = []
    writer, committer = staging(
        spark, lambda batch, _: seen.append((batch.dtypes, batch.toArrow())), str(tmp_path), schema=schema
    )
    writer.write(given)
    state = writer.prepare_commit(1, final=True).result(PATIENCE_S)
    committer.commit(state.committables, epoch=1, final=True)
    writer.close()
    ((types, rows),) = seen
    assert types == [
        ("took`s", "interval day to second"), ("void", "void"),
        ("deep", "map<string,array<struct<void:void,a.b:interval day to second>>>"), ("n", "bigint"),
    ]  # fmt: skip
    assert rows.cast(schema).to_batches()[0].equals(given)


@pytest.mark.parametrize(("output_mode", "expected"), [("append", [1, 2, 3]), ("complete", [2, 3])])
def test_what_a_failed_checkpoint_had_is_in_the_next_batch_unless_that_has_all_rows_anew(
    spark: SparkSession, tmp_path: Path, output_mode: str, expected: list[int]
) -> None:
    seen: list[int] = []
    writer, committer = staging(
        spark, lambda batch, _: seen.extend(row.n for row in batch.collect()), str(tmp_path), output_mode=output_mode
    )
    writer.write(rows_of(1))
    writer.prepare_commit(1, final=False).result(PATIENCE_S)
    if output_mode == "complete":
        writer.write(rows_of(2))
        writer.discard_rows()
    writer.write(rows_of(2, 3))
    state = writer.prepare_commit(2, final=False).result(PATIENCE_S)
    committer.commit(state.committables, epoch=1, final=False)
    assert sorted(seen) == expected
    writer.close()


def test_columns_whose_names_differ_in_case_are_two_where_the_session_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema({"n": pa.int64(), "N": pa.string()})
    with pytest.raises(OptionError, match=r"unless spark\.sql\.caseSensitive is true"):
        ForeachBatchSink(spark, lambda batch, number: None, {}, schema)
    seen: list[Any] = []
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        writer, committer = staging(spark, lambda batch, _: seen.extend(batch.collect()), str(tmp_path), schema=schema)
        writer.write(pa.record_batch([pa.array([1, None]), pa.array([None, "b"])], schema=schema))
        state = writer.prepare_commit(1, final=True).result(PATIENCE_S)
        committer.commit(state.committables, epoch=1, final=True)
        writer.close()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert [tuple(row) for row in seen] == [(1, None), (None, "b")]


def test_rows_that_somebody_deleted_are_an_error_and_a_dead_writer_s_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    dead, _ = staging(spark, print, str(tmp_path))
    dead.write(rows_of(1))
    dead.prepare_commit(1, final=False).result(PATIENCE_S)
    writer, committer = staging(spark, lambda *_: None, str(tmp_path), execution=2)
    writer.write(rows_of(1))
    first = writer.prepare_commit(1, final=False).result(PATIENCE_S)
    writer.notify_checkpoint_complete(1)
    folder = tmp_path / "foreach-batch" / "_staging"
    assert len(list(folder.iterdir())) == 2
    committer.commit(first.committables, epoch=1, final=False)
    assert list(folder.iterdir()) == []

    writer.write(rows_of(2))
    second = writer.prepare_commit(2, final=False).result(PATIENCE_S)
    (lost,) = folder.iterdir()
    lost.unlink()
    with pytest.raises(SinkError, match="are gone"):
        committer.commit(second.committables, epoch=2, final=False)
    dead.close()
    writer.close()


def test_a_query_that_starts_from_a_savepoint_elsewhere_gives_its_batch_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The savepoint's last batch is the function's already, or not yet, or nobody knows any more."""
    seen: list[int] = []
    old, new = str(tmp_path / "old"), str(tmp_path / "new")

    def take(batch: DataFrame, number: int) -> None:
        seen.extend(row.n for row in batch.collect())

    writer, committer = staging(spark, take, old)
    for number in (1, 2):
        writer.write(rows_of(number))
        state = writer.prepare_commit(number, final=False).result(PATIENCE_S)
        for each in [committer, staging(spark, take, new)[1]][number - 1 :]:
            each.commit(state.committables, epoch=number, final=False)
        writer.notify_checkpoint_complete(number)
        assert seen == list(range(1, number + 1))
    shutil.rmtree(old)
    staging(spark, take, new)[1].commit(state.committables, epoch=2, final=False)
    assert seen == [1, 2] and "is not there any more" in caplog.text
    writer.close()


def test_a_savepoint_s_batches_go_on_in_another_location(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[int] = []
    (tmp_path / "arriving").mkdir()

    def arrive(first: int) -> None:
        """Let 500 rows arrive in a file."""
        pq.write_table(pa.table({"n": range(first, first + 500)}), tmp_path / f"{first}.parquet")
        (tmp_path / f"{first}.parquet").rename(tmp_path / "arriving" / f"{first}.parquet")

    def start(location: str, savepoint: str | None = None) -> headgate.ContinuousQuery:
        frame = spark.readStream.format("headgate.files").option("fileFormat", "parquet")
        frame = frame.option("discovery.interval", "100 ms").schema("n long")
        writer = headgate.continuous(frame.load(str(tmp_path / "arriving")), parallelism=1).writeStream
        writer = writer.foreachBatch(lambda batch, _: seen.extend(row.n for row in batch.collect()))
        writer = writer.option("slots", "threads").option("checkpointLocation", str(tmp_path / location))
        return writer.trigger(continuous="1 hour").start(fromSavepoint=savepoint)  # the savepoint has all rows

    arrive(0)
    query = start("old")
    wait_until(lambda: query.status["rowsIn"] == 500, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert sorted(seen) == list(range(500))
    arrive(500)
    resumed = start("new", str(tmp_path / "savepoint"))
    wait_until(lambda: resumed.status["rowsIn"] == 500, resumed)
    resumed.stop(drain=True)
    assert sorted(seen) == list(range(1000))


def test_batches_of_checkpoints_in_an_object_store(spark: SparkSession, aws: MotoServer) -> None:
    seen: list[int] = []
    bucket = Bucket(aws).path("checkpoints")
    writer, committer = staging(spark, lambda batch, _: seen.extend(row.n for row in batch.collect()), bucket)
    writer.write(rows_of(1, 2))
    state = writer.prepare_commit(1, final=False).result(PATIENCE_S)
    committer.commit(state.committables, epoch=1, final=False)
    assert sorted(seen) == [1, 2]
    writer.close()


def test_what_foreach_batch_cannot_do_is_refused(spark: SparkSession) -> None:
    writer = headgate.continuous(generated(spark), 2).writeStream
    with pytest.raises(OptionError, match="'take' is no function"):
        writer.foreachBatch("take").definition()  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="foreachBatch has no option 'pth'"):
        writer.foreachBatch(print).option("pth", "out").definition()
    slots = spark.sparkContext.defaultParallelism
    with pytest.raises(OptionError, match=f"and one for the jobs of its sink, .* at most {slots - 1}"):
        headgate.continuous(generated(spark), slots).writeStream.foreachBatch(print).start()


class Collected:
    """Writes what it sees to files of its subtask and epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.epoch = self.folder / f"{partition_id}-{epoch_id}"
        self.rows: list[str] = []
        return partition_id < 2

    def process(self, row: Row) -> None:
        self.rows.append(str(row.n))

    def close(self, error: BaseException | None) -> None:
        if error is None:
            with self.epoch.open("x") as file:
                file.write("\n".join(self.rows))


def test_an_object_gets_each_row(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    writer = headgate.continuous(generated(spark), 2).writeStream.foreach(Collected(out))
    query = started(writer, tmp_path / "checkpoints")
    assert query.awaitTermination(PATIENCE_S), query.status
    files = list(out.iterdir())
    assert {each.name.partition("-")[0] for each in files} == {"0", "1"}
    assert sorted(int(n) for each in files for n in each.read_text().split()) == list(range(3000))


def test_an_error_in_foreach_is_the_user_s(spark: SparkSession, tmp_path: Path) -> None:
    def take(row: Row) -> None:
        raise ValueError(f"no room for {row.n}")

    writer = headgate.continuous(generated(spark), 1).writeStream.foreach(take)
    query = started(writer, tmp_path, **{"restart-strategy": "none"})
    with pytest.raises(UserFunctionError, match="ValueError: no room for"):
        query.awaitTermination(PATIENCE_S)


def test_what_foreach_cannot_take_is_refused(spark: SparkSession) -> None:
    writer = headgate.continuous(generated(spark), 2).writeStream
    with pytest.raises(OptionError, match="or an object with process"):
        writer.foreach(object()).definition()
    with pytest.raises(OptionError, match="cannot be pickled for the slots"):
        writer.foreach(lambda row: spark.createDataFrame([row]).show()).definition()
