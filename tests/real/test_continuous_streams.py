"""The builder with a real session: DDL, sources that are registered with Spark, the session's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import headgate
from headgate.errors import OptionError
from headgate.spark.continuous.streams import ContinuousStreams, continuous


class Ticks(headgate.SimpleSource):
    name = "builder-ticks"
    schema = "symbol string, price double, at timestamp"

    def splits(self) -> list[str]:
        return ["AAPL"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        return iter(())


class OnlySpark(DataSource):
    @classmethod
    def name(cls) -> str:
        return "only-spark"


@pytest.fixture
def streams(spark: SparkSession) -> ContinuousStreams:
    return continuous(spark, parallelism=1)


def test_a_registered_source(spark: SparkSession, streams: ContinuousStreams) -> None:
    headgate.register(spark, Ticks)
    stream = streams.readStream.format("builder-ticks").option("pollInterval", "50 ms").option("own", 1).load()
    assert stream.columns == ["symbol", "price", "at"]
    made = stream.withWatermark("at", "1 second").writeStream.format("memory").definition()
    assert made.sources["builder-ticks"].source.options["pollInterval"] == 50
    assert made.sources["builder-ticks"].schema.field("at").type == pa.timestamp("us", "UTC")


def test_formats_that_cannot_be_read(spark: SparkSession, streams: ContinuousStreams) -> None:
    with pytest.raises(OptionError, match=r"no source 'nowhere'.*headgate\.register"):
        streams.readStream.format("nowhere").load()
    with pytest.raises(OptionError, match=r"no source 'headgate\.nowhere'"):
        streams.readStream.format("headgate.nowhere").load()
    spark.dataSource.register(OnlySpark)
    with pytest.raises(OptionError, match=r"use spark\.readStream"):
        streams.readStream.format("only-spark").load()


def test_ddl(streams: ContinuousStreams) -> None:
    reader = streams.readStream.format("headgate.datagen").option("rowsPerSecond", 1)
    assert reader.schema("n bigint, at timestamp").load().columns == ["n", "at"]
    with pytest.raises(OptionError, match=r"The schema is 'n bigerint', which cannot be used: .*BIGERINT"):
        reader.schema("n bigerint")


def test_the_session_s_settings(spark: SparkSession, streams: ContinuousStreams) -> None:
    spark.conf.set("spark.headgate.rowsPerSecond", "3")
    spark.conf.set("spark.headgate.max-parallelism", "16")
    try:
        stream = streams.readStream.format("headgate.datagen").schema("n long").load()
        made = stream.writeStream.format("memory").definition()
    finally:
        spark.conf.unset("spark.headgate.rowsPerSecond")
        spark.conf.unset("spark.headgate.max-parallelism")
    assert made.sources["datagen"].source.options["rowsPerSecond"] == 3
    assert made.options["max-parallelism"] == 16
    assert made.time_zone == "UTC"
