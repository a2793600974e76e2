"""One data source for reading and writing Kafka: what it checks when. Nobody listens at port 9."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headgate.errors import InternalError, OptionError
from headgate.spark.broker_sink import query_batch_and_task
from headgate.spark.kafka_sink import KafkaDataSource, whole

WRITTEN = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "rides"}
VALUES = StructType().add("value", "string")


@pytest.mark.spark_since("stream-arrow-writer")
def test_options_of_a_sink_are_no_error_before_it_is_known_whether_it_reads() -> None:
    KafkaDataSource(dict(WRITTEN)).streamWriter(VALUES, overwrite=True)
    with pytest.raises(OptionError, match="topic"):
        KafkaDataSource(dict(WRITTEN)).schema()


@pytest.mark.parametrize("name", ["subscribe", "assign", "subscribePattern"])
def test_options_of_a_source_are_checked_at_once(name: str) -> None:
    with pytest.raises(OptionError, match="startingOfsets"):
        KafkaDataSource({"startingOfsets": "earliest", "kafka.bootstrap.servers": "127.0.0.1:9", name: "rides"})


@pytest.mark.spark_since("stream-arrow-writer")
def test_writers_travel() -> None:
    source = KafkaDataSource(dict(WRITTEN))
    for writer in (source.writer(VALUES, overwrite=False), source.streamWriter(VALUES, overwrite=False)):
        assert type(pickle.loads(pickle.dumps(writer))) is type(writer)


def test_outside_of_spark_s_worker_nothing_is_written_exactly_once() -> None:
    """Without the end of Spark's rows, a part of a task could be committed; without a batch's number, one twice."""
    with pytest.raises(InternalError, match="must see the end of Spark's rows"):
        next(whole(iter([pa.record_batch({"value": ["a"]})])))
    with pytest.raises(InternalError, match="not part of a streaming query"):
        query_batch_and_task("headgate.kafka")
