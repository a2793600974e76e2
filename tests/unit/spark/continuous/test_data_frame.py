"""What ``headgate.continuous`` is given: a DataFrame of this process, and how many slots."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

import headgate
from headgate.errors import OptionError
from tests.unit.spark.continuous.programs import Session


def frame() -> Any:
    """Return a DataFrame of which nothing is known but its session."""
    return object.__new__(type("Frame", (DataFrame,), {"sparkSession": Session()}))


def test_a_session_was_what_the_older_builder_took() -> None:
    with pytest.raises(OptionError, match=r"takes a DataFrame, not Session: .*headgate\.continuous\(df\)\.writeStream"):
        headgate.continuous(Session(), parallelism=2)  # type: ignore[arg-type]


def test_a_data_frame_of_spark_connect_is_refused() -> None:
    connect = pytest.importorskip("pyspark.sql.connect.dataframe")
    with pytest.raises(OptionError, match=r"Spark Connect has none.*df\.writeStream"):
        headgate.continuous(object.__new__(connect.DataFrame), parallelism=2)


@pytest.mark.parametrize("parallelism", [0, -1, True, 1.5])
def test_the_parallelism_is_a_whole_number_from_1(parallelism: Any) -> None:
    with pytest.raises(OptionError, match="whole number from 1"):
        headgate.continuous(frame(), parallelism)


def test_the_default_parallelism_takes_every_core(caplog: pytest.LogCaptureFixture) -> None:
    assert headgate.continuous(frame())._parallelism == 6
    assert "takes all 6 cores" in caplog.text
