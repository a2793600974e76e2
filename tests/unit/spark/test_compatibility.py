"""Which version of Spark can what: one table, which alone looks at the version; and what workers are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from pyspark.util import PythonEvalType

import headgate
from headgate.connectors.datagen.source import DatagenSource
from headgate.connectors.files.source import FilesSource
from headgate.connectors.kafka.source import KafkaSource
from headgate.errors import OptionError, UnsupportedOperationError
from headgate.spark import compatibility
from headgate.spark.compatibility import FEATURES, Call, check_stream_options, require, supports, worker_function

PACKAGE = Path(headgate.__file__).parent
CONF = {"spark.sql.session.timeZone": "UTC"}


@pytest.fixture
def on_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.0")


def test_nothing_else_compares_versions() -> None:
    """Others show PySpark's version at most."""
    looks = r"\bspark_version\(|(pyspark\.|(?<![\w.]))__version__(\.|\s*[<>]|\s*[!=]=)|\bspark\.version\b"
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(looks, line)
    }
    assert found == {"spark/compatibility.py"}


@pytest.mark.usefixtures("on_oldest")
def test_what_a_version_cannot_do_is_an_error_that_names_one_that_can() -> None:
    with pytest.raises(
        UnsupportedOperationError, match=r"needs Spark 4\.1 or later; this is Spark 4\.0\.0\. .*foreach"
    ):
        require("stream-arrow-writer")
    with pytest.raises(OptionError, match=r"'maxFilesPerTrigger' is not possible here\. .*needs Spark 4\.2 or later"):
        check_stream_options("headgate.files", {"maxFilesPerTrigger": 3})
    with pytest.raises(OptionError, match=r"'scan\.watermark\.alignment\.group' .*needs Spark 4\.2 or later"):
        check_stream_options("headgate.files", {"scan.watermark.alignment.group": "all"})


@pytest.mark.usefixtures("on_oldest")
def test_streams_without_limits_are_read_on_every_version() -> None:
    """Whatever their options' defaults are."""
    kafka = KafkaSource({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "rides"})
    for source in (kafka, FilesSource({"path": "in", "fileFormat": "text"}), DatagenSource({"numRows": "3"})):
        check_stream_options(source.name, source.options)


def test_the_newest_version_can_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    assert all(map(supports, FEATURES))
    check_stream_options("headgate.files", {"maxFilesPerTrigger": 3})


class Counter:
    """A reader as Headgate's: an offset is how much there is."""

    def __init__(self) -> None:
        self.there = 0
        self.asked: list[Any] = []

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        self.asked.append((start["n"], limit))
        return {"n": self.there}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return [(start["n"], end["n"])]


@pytest.mark.usefixtures("on_oldest")
def test_without_read_limits_a_micro_batch_begins_where_the_last_one_ended() -> None:
    """Spark 4.0 and 4.1 do not pass the start: it is what was planned last, also after a restart."""
    counter = Counter()
    reader: Any = compatibility.stream_reader(counter)
    reader.initialOffset()
    counter.there = 2
    assert reader.latestOffset() == {"n": 2}
    assert reader.partitions({"n": 0}, {"n": 2}) == [(0, 2)]
    counter.there = 5
    assert reader.latestOffset() == {"n": 5}

    restarted: Any = compatibility.stream_reader(counter)
    assert restarted.partitions({"n": 2}, {"n": 2}) == []  # how Spark reports where it was
    restarted.latestOffset()
    assert counter.asked == [(0, None), (2, None), (2, None)]


@pytest.mark.usefixtures("on_oldest")
def test_a_plan_made_before_spark_reports_where_it_was_is_refused() -> None:
    """It would be of all rows: so Spark's wrapper for Trigger.AvailableNow asks. At a first start the plan is right."""
    counter = Counter()
    counter.there = 5
    first: Any = compatibility.stream_reader(counter)
    assert first.latestOffset() == {"n": 5}
    assert first.partitions(first.initialOffset(), {"n": 5}) == [(0, 5)]

    again: Any = compatibility.stream_reader(counter)
    again.latestOffset()
    with pytest.raises(UnsupportedOperationError, match="triggerAvailableNowWrapper"):
        again.partitions({"n": 2}, {"n": 2})


def of(*columns: Any) -> Iterator[pa.RecordBatch]:
    arrays = [pa.array(each) for each in columns]
    return iter((pa.RecordBatch.from_arrays(arrays, [f"_{place}" for place in range(len(arrays))]),))


def test_python_functions_are_called_as_a_worker_calls_them() -> None:
    def shout(text: str, times: int = 1) -> str:
        return text.upper() * times

    def longer(text: str) -> str:
        return text + "!"

    calls = [
        Call([(shout, StringType())], [0], {"times": 1}),
        Call([(longer, StringType()), (longer, StringType())], [0], {}),
        Call([(lambda: 7, LongType())], [], {}),
    ]
    types = ['"string"', '"long"']
    function = worker_function(calls, PythonEvalType.SQL_ARROW_BATCHED_UDF, CONF, types)
    for _ in range(2):  # once for each batch
        (batch,) = function(0, of(["a", "b"], [2, 1]))
        assert [each.to_pylist() for each in batch.columns] == [["AA", "B"], ["a!!", "b!!"], [7, 7]]


def test_pandas_functions_are_called_as_a_worker_calls_them() -> None:
    def plus(left: pd.Series, right: pd.Series) -> pd.Series:
        return left + right

    def one_more(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for each in batches:
            yield each + 1

    types = ['"long"', '"long"']
    kind = PythonEvalType.SQL_SCALAR_PANDAS_UDF
    (batch,) = worker_function([Call([(plus, LongType())], [0, 1], {})], kind, CONF, types)(0, of([1, 2], [3, 4]))
    assert batch.column(0).to_pylist() == [4, 6]
    kind = PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF
    (batch,) = worker_function([Call([(one_more, LongType())], [1], {})], kind, CONF, types)(0, of([1], [3]))
    assert batch.column(0).to_pylist() == [4]


def test_a_function_of_frames_gets_them_one_by_one() -> None:
    """What it yields is there before the next batch is asked for."""
    done: list[str] = []

    def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(n=frame["n"] * 2)

    def given() -> Iterator[pa.RecordBatch]:
        for n in (1, 2):
            done.append(f"given {n}")
            rows = pa.record_batch({"n": [n]}).to_struct_array()
            yield pa.RecordBatch.from_arrays([rows], ["_0"])

    kind = StructType([StructField("n", LongType())])
    function = worker_function([Call([(doubled, kind)], [], {})], PythonEvalType.SQL_MAP_PANDAS_ITER_UDF, CONF, [])
    for batch in function(0, given()):
        done.append(f"made {batch.column(0).to_pylist()[0]['n']}")
    assert done == ["given 1", "made 2", "given 2", "made 4"]
