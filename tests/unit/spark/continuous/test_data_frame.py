"""What ``headgate.continuous`` is given: a DataFrame of this process, or a session."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

import headgate
from headgate.errors import OptionError
from headgate.spark.continuous.streams import ContinuousStreams
from tests.unit.spark.continuous.test_streams import Session


def test_a_session_begins_a_program_of_the_builder() -> None:
    assert isinstance(headgate.continuous(Session(), parallelism=2), ContinuousStreams)  # type: ignore[call-overload]


def test_a_data_frame_of_spark_connect_is_refused() -> None:
    connect = pytest.importorskip("pyspark.sql.connect.dataframe")
    frame = object.__new__(connect.DataFrame)
    assert isinstance(frame, DataFrame)
    with pytest.raises(OptionError, match=r"Spark Connect has none.*df\.writeStream"):
        headgate.continuous(frame, parallelism=2)
