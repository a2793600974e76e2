"""What looks right in Spark 4.3's Python data sources and is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.datagen.split import DatagenSplit
from headgate.connectors.files.source import FilesSource
from headgate.connectors.simple import adapt
from headgate.errors import ConnectorContractError, OptionError, UserFunctionError
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.microbatch.task import read_splits
from headgate.readers import MultiplexedReader
from headgate.source import (
    FetchedBatch,
    PlanLimits,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitReader,
)
from headgate.source.simple import SimpleSource
from headgate.spark.compatibility import supports
from headgate.spark.datasource import StreamReader
from headgate.spark.registration import data_source_for
from headgate.testing import VirtualClock

if supports("read-limits"):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

COLUMNS = StructType([StructField("n", LongType())])
ROWS = pa.schema([("n", pa.int64())])


def folder_of(tmp_path: Path, files: int) -> dict[str, str]:
    """Make files of two rows and four bytes each; return the options that read them."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:04}.csv").write_text("1\n2\n")
    return {"path": str(folder), "fileFormat": "csv"}


def stream_reader(source: Any, options: dict[str, str]) -> StreamReader:
    reader = data_source_for(source)(options).streamReader(COLUMNS)
    assert isinstance(reader, StreamReader)
    return reader


def planned(reader: StreamReader, limit: ReadLimit) -> int:
    return len(reader.latestOffset(reader.initialOffset(), limit)["plan"])


# -- 2: what does not fit into an offset -------------------------------------------------------------------------


@pytest.mark.spark_since("read-limits")
def test_a_batch_holds_a_thousand_files_unless_there_is_a_place_for_more(tmp_path: Path) -> None:
    """The plan stands in the offset, which must stay small where ``stateLocation`` is not set."""
    options = folder_of(tmp_path, 1001)
    reader = stream_reader(FilesSource, options)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert len(end["plan"]) == 1000
    assert len(json.dumps(end)) < 1_000_000
    assert len(reader.latestOffset(end, reader.getDefaultReadLimit())["plan"]) == 1
    roomy = stream_reader(FilesSource, {**options, "stateLocation": str(tmp_path / "state")})
    start, limit = roomy.initialOffset(), roomy.getDefaultReadLimit()
    assert sum(len(each.splits) for each in roomy.partitions(start, roomy.latestOffset(start, limit))) == 1001


# -- 3: offsets are compared as text -----------------------------------------------------------------------------


class Alphabet(SimpleSource):
    name = "alphabet"
    schema = "n bigint"

    def splits(self) -> list[str]:
        return ["b", "a"]

    def latest(self, split_id: str) -> int:
        return 3

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        for n in range(position or 0, 3):
            yield pa.record_batch({"n": [n]}), n + 1


def quiet_source(kind: str, tmp_path: Path) -> Source[Any, Any]:
    if kind == "files":
        return FilesSource(folder_of(tmp_path, 3))
    return DatagenSource({"numRows": "3"}, VirtualClock(0)) if kind == "generated" else adapt(Alphabet)({})


def backwards(value: Any) -> Any:
    """Return a JSON value whose objects have their keys the other way round."""
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    return [backwards(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["files", "generated", "simple"])
def test_a_quiet_minute_makes_no_batch(kind: str, tmp_path: Path) -> None:
    """A clock, a counter or another order of keys in an offset would make empty batches without end."""
    source = quiet_source(kind, tmp_path)
    planner = StreamPlanner(source, ROWS)
    start, now_ms = dict(INITIAL), 10_000
    for _ in range(3):
        start, now_ms = planner.plan(start, PlanLimits(), now_ms), now_ms + 1000
    assert start != INITIAL
    text = json.dumps(start)
    assert text == json.dumps(start, sort_keys=True)
    for later_ms in range(now_ms, now_ms + 60_000, 500):
        assert json.dumps(planner.plan(json.loads(text), PlanLimits(), later_ms)) == text
        assert planner.plan(backwards(start), PlanLimits(), later_ms) == start
    restarted = StreamPlanner(source, ROWS)
    assert json.dumps(restarted.plan(json.loads(text), PlanLimits(), now_ms + 60_000)) == text


# -- 7: Spark imports every module named pyspark_* ---------------------------------------------------------------


def test_finding_our_formats_loads_nothing_but_spark_and_the_standard_library() -> None:
    """A shim that fails to import, for want of some client, would hide every format there is."""
    program = """
import sys
import pyspark.sql.datasource, pyspark.sql.streaming
before = set(sys.modules)
from importlib import import_module
names = ["pyspark_headgate_" + name for name in ("datagen", "files", "kafka", "kinesis")]
shims = [import_module(name) for name in names]
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(tops - {"headgate", "pyspark", *names} - set(sys.stdlib_module_names)))
print(*(shim.DefaultSource.name() for shim in shims))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [
        "[]",
        "headgate.datagen headgate.files headgate.kafka headgate.kinesis",
    ], done.stderr


# -- 1 and 8: constructors do nothing ----------------------------------------------------------------------------


class Untouchable(SimpleSource):
    """Its author's code fails wherever it is called, as it does while its system is down."""

    name = "untouchable"
    schema = "n bigint"

    def __init__(self, options: Any) -> None:
        raise ConnectionError("the system is down")

    def splits(self) -> list[str]:
        raise AssertionError("unreachable")

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        raise AssertionError("unreachable")


def test_making_and_sending_readers_calls_nothing_of_the_source() -> None:
    """Spark hides an error there with another, and the first offset is asked for often."""
    source = data_source_for(Untouchable)({})
    source.schema()
    batch, stream = source.reader(COLUMNS), source.streamReader(COLUMNS)
    for reader in (batch, stream, cloudpickle.loads(cloudpickle.dumps(batch))):
        cloudpickle.dumps(reader)
    for _ in range(3):
        assert stream.initialOffset() == INITIAL
        assert source.streamReader(COLUMNS).initialOffset() == INITIAL
    arguments: tuple[Any, ...] = ()
    if supports("read-limits"):
        assert stream.getDefaultReadLimit() == ReadAllAvailable()
        arguments = (stream.initialOffset(), ReadAllAvailable())
    stream.stop()
    with pytest.raises(UserFunctionError, match="the system is down"):
        batch.partitions()
    with pytest.raises(UserFunctionError, match="the system is down"):
        stream.latestOffset(*arguments)


@pytest.mark.parametrize("options", [{}, {"path": "x", "fileFormat": "csv", "hedaer": "true"}])
def test_options_are_checked_where_spark_shows_the_error(options: dict[str, str]) -> None:
    """At load, in the data source's constructor, and in no reader's."""
    with pytest.raises(OptionError):
        data_source_for(FilesSource)(options)


# -- 9: Spark checks the first batch only ------------------------------------------------------------------------


class Script(SplitReader[DatagenSplit]):
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches = list(batches)
        self.splits: list[DatagenSplit] = []

    def handle_splits_changes(self, added: Sequence[DatagenSplit]) -> None:
        self.splits += added

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[DatagenSplit]]:
        batch = self.batches.pop(0) if self.batches else None
        return [FetchedBatch(split=self.splits[0], batch=batch, finished=batch is None)]

    def wake_up(self) -> None:
        """Nothing blocks."""

    def close(self) -> None:
        """Nothing is open."""


class Scripted(DatagenSource):
    """A source whose reader emits what a test wrote down."""

    batches: ClassVar[Sequence[pa.RecordBatch]] = ()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[DatagenSplit]:
        return MultiplexedReader(lambda: Script(self.batches), context)


PROMISED = pa.schema(
    [pa.field("n", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())]
)
GOOD = pa.record_batch(
    [pa.array([1], pa.int64()), pa.array([5], PROMISED.field("at").type), pa.array(["x"])], schema=PROMISED
)


def emitted(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    source = type("Scripted", (Scripted,), {"batches": batches})({"numRows": "1"})
    return read_splits(source, PROMISED, [DatagenSplit(split_id="s", partition=0, stop=1)], 0, "UTC")


def test_a_later_batch_is_brought_into_the_promised_columns() -> None:
    """Spark reads it by position and trusts its types, so that columns would change places."""
    other = pa.record_batch(
        {
            "name": pa.array(["y"]).dictionary_encode(),
            "extra": [None],
            "at": pa.array([7], pa.timestamp("ms", "Europe/Paris")),
            "n": pa.array([2], pa.int16()),
        }
    )
    batches = list(emitted(GOOD, other, GOOD))
    assert [batch.schema for batch in batches] == [PROMISED] * 3
    assert [batch["n"][0].as_py() for batch in batches] == [1, 2, 1]
    assert batches[1]["at"].cast(pa.int64()).to_pylist() == [7000]
    assert batches[1]["name"].to_pylist() == ["y"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD.select(["n", "at"]), "'name' should be string"),
        (GOOD.set_column(0, "n", pa.array(["one"])), "'n' should be int64"),
        (GOOD.set_column(0, "n", pa.array([None], pa.int64())), "'n' should be int64, but it has nulls"),
        (
            pa.record_batch([pa.array([None], pa.int64()), GOOD["at"], GOOD["name"]], schema=PROMISED),
            "'n' should be int64, but it has nulls",
        ),
    ],
    ids=["missing", "type", "nulls", "nulls though its schema says there are none"],
)
def test_a_later_batch_that_does_not_fit_is_an_error_and_never_reaches_spark(bad: pa.RecordBatch, message: str) -> None:
    """Spark checks the first batch only: later ones reach the JVM as they are."""
    batches = emitted(GOOD, bad, GOOD)
    assert next(batches) == GOOD
    with pytest.raises(ConnectorContractError, match=message):
        next(batches)


# -- 10: one built-in limit at a time ----------------------------------------------------------------------------

HANDED_BACK = [ReadMaxFiles(10_000), ReadMaxBytes(10**9), ReadMaxRows(10**9)] if supports("read-limits") else []


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        ({"maxFilesPerTrigger": "3", "maxBytesPerTrigger": "60"}, 3),
        ({"maxFilesPerTrigger": "9", "maxBytesPerTrigger": "17"}, 4),
        ({"maxFilesPerTrigger": "9", "maxBytesPerTrigger": "17", "maxRowsPerTrigger": "4"}, 2),
        ({"maxRowsPerTrigger": "5"}, 2),
    ],
    ids=["files", "bytes", "rows", "rows alone"],
)
@pytest.mark.parametrize("available_now", [False, True], ids=["running", "available now"])
@pytest.mark.spark_since("read-limits")
def test_the_smallest_of_all_limits_counts_whichever_spark_hands_back(
    limits: dict[str, str], files: int, available_now: bool, tmp_path: Path
) -> None:
    """Spark knows one limit at a time; the others must not be forgotten."""
    options = folder_of(tmp_path, 12)
    for handed_back in (None, *HANDED_BACK):
        reader = stream_reader(FilesSource, {**options, **limits})
        if available_now:
            reader.prepareForTriggerAvailableNow()
        assert planned(reader, handed_back or reader.getDefaultReadLimit()) == files, handed_back
    assert planned(stream_reader(FilesSource, {**options, **limits}), ReadAllAvailable()) == 12


def test_without_their_clients_formats_are_found_and_say_what_is_missing() -> None:
    """A module ``pyspark_*`` that fails to import hides all formats, those that need no client too."""
    program = """
import sys
sys.modules.update(dict.fromkeys(("confluent_kafka", "numba", "boto3", "botocore"), None))  # as if not installed
import pyspark_headgate_files, pyspark_headgate_kafka, pyspark_headgate_kinesis
from pyspark.sql.types import StructType
from headgate.errors import DeploymentError

pyspark_headgate_files.DefaultSource({"path": "/tmp", "fileFormat": "csv"})
kafka = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
kinesis = {"streamName": "s", "region": "us-east-1", "endpointUrl": "http://127.0.0.1:1"}
for module, options, column in ((pyspark_headgate_kafka, kafka, "value"), (pyspark_headgate_kinesis, kinesis, "data")):
    reader = module.DefaultSource(options).reader(StructType().add(column, "binary"))
    try:
        reader.partitions()
    except DeploymentError as error:
        print(error)
sink = pyspark_headgate_kafka.DefaultSource({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
try:
    sink.writer(StructType().add("value", "binary"), False)
except DeploymentError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.count("pip install 'headgate[kafka]'") for line in lines] == [1, 0, 1]
    assert [line.count("pip install 'headgate[kinesis]'") for line in lines] == [0, 1, 0]
