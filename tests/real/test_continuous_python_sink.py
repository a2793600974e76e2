"""Python data sources as sinks of continuous queries, found in a real session's registry."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headgate.errors import OptionError, UserFunctionError
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.compatibility import DataSourceStreamArrowWriter
from headgate.spark.continuous.python_data_source import MESSAGE_SERIALIZER, make_python_sink
from headgate.spark.kafka_sink import KafkaDataSource

SCHEMA = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", tz="UTC"), "tags": pa.list_(pa.string())})
BATCH = pa.record_batch(
    {
        "n": [1, None],
        "at": pa.array([0, 1_500_000], SCHEMA.field("at").type),
        "tags": [["a", None], None],
    },
    SCHEMA,
)
CONTEXT = OperatorContext(uid="sink", subtask=0, parallelism=1)


class Message(WriterCommitMessage):
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen


class RowWriter(DataSourceStreamWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.committed: list[Any] = []

    def write(self, iterator: Iterator[Row]) -> Message:
        return Message([(row.n, row.at, row["tags"]) for row in iterator] + [self.options["Suffix"]])

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.committed.append(([message.seen for message in messages], batchId))


class ArrowWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return Message(list(iterator))


class Writable(DataSource):
    @classmethod
    def name(cls) -> str:
        return "Tests.Writable"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        assert schema.fieldNames() == SCHEMA.names
        assert not overwrite
        if self.options.get("arrow") == "true":
            return ArrowWriter()
        if self.options.get("broken") == "true":
            raise ValueError("no such server")
        return RowWriter(self.options)  # type: ignore[arg-type]


class ReadOnly(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tests.readonly"


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    for each in (Writable, ReadOnly):
        spark.dataSource.register(each)


def test_rows_are_those_of_spark_s_own_worker_and_commits_come_to_the_driver(spark: SparkSession) -> None:
    """The sink travels to the slots as a pickle; the driver's writer commits."""
    sink = make_python_sink("tests.writable", {"suffix": "end"}, SCHEMA, spark)
    writer = pickle.loads(pickle.dumps(sink)).create_writer(CONTEXT, SCHEMA, [])
    writer.write(BATCH)
    state = writer.prepare_commit(1, final=True).result(60)
    writer.close()
    committer = sink.create_committer("")
    assert committer is not None
    assert committer.commit(state.committables, epoch=1, final=True) == ()
    expected = [tuple(row) for row in spark.createDataFrame(pa.table(BATCH)).collect()]
    assert isinstance(expected[0][1], datetime.datetime)
    assert sink._writer.committed == [([[*expected, "end"]], 0)]
    assert MESSAGE_SERIALIZER.deserialize(state.committables[0]).message_class == f"{__name__}.Message"


def test_arrow_writers_get_batches_with_the_session_s_time_zone(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        sink = make_python_sink("tests.writable", {"arrow": "true"}, SCHEMA, spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    writer = sink.create_writer(CONTEXT, SCHEMA, [])
    writer.write(BATCH)
    (stored,) = writer.prepare_commit(1, final=True).result(60).committables
    writer.close()
    (batch,) = pickle.loads(MESSAGE_SERIALIZER.deserialize(stored).pickled).seen
    assert batch.schema.field("at").type == pa.timestamp("us", tz="Asia/Tokyo")
    assert batch.column(1).cast(pa.int64()).to_pylist() == [0, 1_500_000]


def test_a_class_of_a_notebook_is_found_as_well(spark: SparkSession) -> None:
    """It is pickled with the query, by value."""

    class Local(Writable):
        @classmethod
        def name(cls) -> str:
            return "tests.local"

    spark.dataSource.register(Local)
    assert make_python_sink("tests.local", {"arrow": "true"}, SCHEMA, spark).name == "tests.local"


def test_a_source_that_spark_finds_by_itself_is_known(spark: SparkSession) -> None:
    from headgate.spark.continuous.python_data_source import registered_class

    assert issubclass(registered_class("headgate.kafka", spark), KafkaDataSource)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("tests.nothing", {}, OptionError, r"There is no sink 'tests\.nothing'.*spark\.dataSource\.register"),
        ("tests.readonly", {}, OptionError, "has no streamWriter"),
        ("parquet", {}, OptionError, "There is no sink 'parquet'"),
        ("tests.writable", {"broken": "true"}, UserFunctionError, r"Writable\.streamWriter failed: .*no such server"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession, name: str, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_python_sink(name, options, SCHEMA, spark)
