"""The public builder: what a program becomes, and errors in the line that is wrong. No Spark is started."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import LongType, StructField, StructType

from headgate.errors import OptionError, UnsupportedOperationError
from headgate.functions import col, lit
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol.operator_context import OperatorContext
from headgate.runtime.chain import StageChain
from headgate.source import Boundedness, WatermarkAlignment, WatermarkStrategy
from headgate.spark.continuous.streams import ContinuousStream, ContinuousStreams, continuous

TIMED = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


class Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {"spark.sql.session.timeZone": "Europe/Berlin", **settings}
        self._jconf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._settings.get(key, default)

    def getAll(self) -> Conf:
        return self

    def mkString(self, separator: str) -> str:
        return separator.join(f"{name} -> {value}" for name, value in self._settings.items())


class Session:
    """What the builder asks of a session."""

    class sparkContext:
        defaultParallelism = 6

    def __init__(self, **settings: str) -> None:
        self.conf = Conf({name.replace("__", "."): value for name, value in settings.items()})


def streams(**settings: str) -> ContinuousStreams:
    return continuous(Session(**settings), parallelism=2)  # type: ignore[arg-type]


def numbers(columns: pa.Schema = TIMED, **options: Any) -> ContinuousStream:
    return streams().readStream.format("headgate.datagen").options(rowsPerSecond=5, **options).schema(columns).load()


def definition(stream: ContinuousStream, **options: Any) -> QueryDefinition:
    return stream.writeStream.format("memory").options(**options).definition()


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_a_whole_program() -> None:
    stream = (
        numbers()
        .name("clicks")
        .filter("n >= 2")
        .withColumn("M", col("n") + 1)
        .withColumn("N", col("N") * 2)
        .select("*", lit("x").alias("tag"))
        .mapInArrow(doubled, pa.schema([("a", pa.int64()), ("b", pa.string())]))
        .name("parse")
        .where(col("a") > 1)
        .drop("b", "unknown")
    )
    assert stream.columns == ["a"]
    made = (
        stream.writeStream.format("memory")
        .queryName(" rides ")
        .outputMode("Append")
        .option("checkpointLocation", "/c")
        .trigger(continuous="2 seconds")
        .definition("/savepoint")
    )
    assert made.graph.uids == (
        "clicks", "clicks.1.filter", "clicks.2.select", "clicks.3.select", "clicks.4.select", "parse",
        "parse.1.filter", "parse.2.select", "sink",
    )  # fmt: skip
    assert (made.name, made.sink_format) == ("rides", "memory")
    assert (made.checkpoint_location, made.checkpoint_interval_ms, made.from_savepoint) == ("/c", 2000, "/savepoint")
    assert (made.parallelism, made.time_zone, made.sink.uid) == (2, "Europe/Berlin", "sink")


def test_a_definition_goes_to_the_slots_as_it_is() -> None:
    factor = 3

    def local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [factor * n for n in batch.column("n").to_pylist()]})

    made = definition(numbers().mapInArrow(local, pa.schema([("n", pa.int64())])))
    arrived: QueryDefinition = pickle.loads(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]
    assert arrived.graph.uids == made.graph.uids
    assert dict(arrived.options) == dict(made.options)
    out: list[Any] = []
    batch = pa.RecordBatch.from_pydict({"n": [1], "at": [None]}, schema=TIMED)
    arrived.graph.operators[0].operator.process(batch, "s", lambda rows, split: out.extend(rows.to_pylist()))
    assert out == [{"n": 3}]
    chain = StageChain(arrived, OperatorContext(uid="", subtask=0, parallelism=1), {})
    assert set(chain.figures().rows_in) == {"datagen"}


def test_columns() -> None:
    stream = numbers()
    assert stream.schema.simpleString() == "struct<n:bigint,at:timestamp>"
    assert repr(stream) == "ContinuousStream[n: int64, at: timestamp[us, tz=UTC]]"
    assert stream.select(["n", col("at")]).columns == ["n", "at"]
    assert stream.drop(col("AT")).columns == ["n"]
    assert stream.withColumn("N", lit(1)).columns == ["N", "at"]
    by_spark = numbers(StructType([StructField("n", LongType(), False)]))
    assert by_spark.columns == ["n"]


def test_print_schema(capsys: pytest.CaptureFixture[str]) -> None:
    numbers().printSchema()
    assert "|-- n: long" in capsys.readouterr().out


def test_how_a_source_is_read() -> None:
    def boundedness(reader: Any, **options: Any) -> Boundedness:
        stream = reader.format("headgate.kafka").option("kafka.bootstrap.servers", "h:1").option("subscribe", "t")
        return definition(stream.options(**options).load()).sources["kafka"].boundedness

    assert boundedness(streams().readStream) is Boundedness.CONTINUOUS_UNBOUNDED
    assert boundedness(streams().read) is Boundedness.BOUNDED
    assert boundedness(streams().readStream, endingOffsets="latest") is Boundedness.BOUNDED


def test_the_session_s_defaults_reach_sources_and_query_but_not_over_what_is_given() -> None:
    session = {
        "spark__headgate__rowsPerSecond": "7",
        "spark__headgate__seed": "3",
        "spark__headgate__topic": "not an option of the generator",
        "spark__headgate__heartbeat__timeout": "4 seconds",
    }
    reader = streams(**session).readStream.format("headgate.datagen").option("SEED", 5).schema(TIMED)
    made = definition(reader.load())
    assert made.sources["datagen"].source.options["rowsPerSecond"] == 7
    assert made.sources["datagen"].source.options["seed"] == 5
    assert made.options["heartbeat.timeout"] == 4000


def test_options_may_be_set_again_and_taken_back() -> None:
    reader = streams().readStream.format("headgate.datagen").option("rowsPerSecond", 1).option("ROWSPERSECOND", 2)
    made = definition(reader.option("numRows", 5).option("numRows", None).schema(TIMED).load())
    options = made.sources["datagen"].source.options
    assert (options["rowsPerSecond"], options.is_set("numRows")) == (2, False)


def test_files_have_a_path() -> None:
    def options(path: Any) -> Any:
        reader = streams().readStream.format("headgate.files").option("fileFormat", "csv").option("header", True)
        return definition(reader.load(path, schema=TIMED)).sources["files"].source.options

    assert options("in")["path"] == "in"
    assert options(["a", "b"])["paths"] == ("a", "b")


# Watermarks.


def test_a_watermark_on_a_source_s_own_column_is_the_source_s() -> None:
    stream = numbers(**{"scan.watermark.idle-timeout": "30 seconds"}).filter(col("n") > 1).select(col("at").alias("t"))
    made = definition(stream.withWatermark("T", "5 seconds"))
    assert made.sources["datagen"].watermark_strategy == WatermarkStrategy(
        event_time_column="at", max_out_of_orderness_ms=5000, idle_timeout_ms=30_000
    )
    assert len(made.graph.operators) == 2


def test_a_watermark_on_a_column_that_a_function_made_keeps_the_source_s_options() -> None:
    options = {
        "eventTimeColumn": "at", "scan.watermark.idle-timeout": "30 seconds",
        "scan.watermark.alignment.group": "g", "scan.watermark.alignment.max-drift": "1 minute",
    }  # fmt: skip
    made_columns = TIMED.append(pa.field("made", pa.timestamp("us", "UTC")))
    stream = numbers(**options).mapInArrow(doubled, made_columns).withWatermark("MADE", "5 seconds")
    made = definition(stream)
    assert made.sources["datagen"].watermark_strategy == WatermarkStrategy(
        event_time_column="made", max_out_of_orderness_ms=5000, idle_timeout_ms=30_000,
        alignment=WatermarkAlignment(group="g", max_drift_ms=60_000),
    )  # fmt: skip
    assert made.graph.event_time_operator("datagen") == made.graph.output == "datagen.2.with-watermark"


def test_alignment_joins_sources_by_branch_or_after_their_union() -> None:
    left, right = numbers().withWatermark("at", "1 second"), numbers(eventTimeColumn="at")
    function_made = numbers().mapInArrow(doubled, TIMED).withWatermark("at", "2 seconds")
    group = WatermarkAlignment(group="rides", max_drift_ms=60_000)
    apart = left.withWatermarkAlignment("rides", "1 minute").union(right)
    assert [each.watermark_strategy.alignment for each in definition(apart).graph.sources] == [group, None]  # type: ignore[union-attr]
    after = left.union(right).union(function_made).withWatermarkAlignment("rides", "1 minute")
    strategies = [each.watermark_strategy for each in definition(after).graph.sources]
    assert [each and each.alignment for each in strategies] == [group] * 3
    assert [each and each.max_out_of_orderness_ms for each in strategies] == [1000, 0, 2000]


def test_a_column_of_a_union_is_found_after_it_for_each_of_its_sources() -> None:
    idle = numbers(**{"scan.watermark.idle-timeout": "30 seconds"})
    made = definition(idle.union(numbers()).withWatermark("at", "1 second"))
    assert {made.graph.event_time_operator(uid) for uid in made.sources} == {made.graph.output}
    strategies = [each.watermark_strategy for each in made.graph.sources]
    assert [each and each.idle_timeout_ms for each in strategies] == [30_000, None]


def test_a_source_s_options_make_its_watermark() -> None:
    alignment = {"scan.watermark.alignment.group": "g", "scan.watermark.alignment.max-drift": "1 minute"}
    made = definition(numbers(eventTimeColumn="AT", **alignment))
    assert made.sources["datagen"].watermark_strategy == WatermarkStrategy(
        event_time_column="at", alignment=WatermarkAlignment(group="g", max_drift_ms=60_000)
    )


def test_alignment_wins_over_the_options() -> None:
    stream = numbers().withWatermark("at", "1 second").withWatermarkAlignment("rides", "1 minute", "100 ms")
    strategy = definition(stream.withWatermark("at", "2 seconds")).sources["datagen"].watermark_strategy
    assert strategy is not None
    assert strategy.alignment == WatermarkAlignment(group="rides", max_drift_ms=60_000, update_interval_ms=100)
    assert strategy.max_out_of_orderness_ms == 2000


# The writer.


def test_bad_records() -> None:
    assert definition(numbers()).bad_records == "fail"
    assert definition(numbers(), badRecords="Skip").bad_records == "skip"
    made = definition(numbers(), badRecords="memory")
    assert made.bad_records == "sink"
    assert made.bad_records_sink is not None
    assert made.bad_records_sink.uid == "bad-records"
    with pytest.raises(OptionError, match="which has no options"):
        definition(numbers(), **{"badRecords": "skip", "badRecords.path": "x"})


def test_the_session_s_checkpoint_location_is_a_default() -> None:
    session = streams(spark__sql__streaming__checkpointLocation="/root/")
    stream = session.readStream.format("headgate.datagen").option("rowsPerSecond", 1).schema(TIMED).load()
    writer = stream.writeStream.format("memory").queryName("rides")
    assert writer.definition().checkpoint_location == "/root/rides"
    assert writer.option("checkpointLocation", "/own").definition().checkpoint_location == "/own"
    assert definition(numbers()).checkpoint_location is None


def test_the_default_parallelism_takes_every_core(caplog: pytest.LogCaptureFixture) -> None:
    made = continuous(Session()).readStream  # type: ignore[arg-type]
    assert "takes all 6 cores" in caplog.text
    stream = made.format("headgate.datagen").option("rowsPerSecond", 1).schema(TIMED).load()
    assert definition(stream).parallelism == 6


def pyspark_column() -> Any:
    """Return what ``pyspark.sql.functions.col("n")`` returns where a session is."""

    class JavaColumn:
        def toString(self) -> str:
            return "n"

    return ClassicColumn(JavaColumn())  # type: ignore[arg-type]


WRONG: dict[str, tuple[str, Any]] = {
    "no format": ("Name the source", lambda: streams().readStream.load()),
    "option": ("no option 'rowsPerSecnd'.*rowsPerSecond", lambda: numbers(rowsPerSecnd=1)),
    "column": ("no column 'm'", lambda: numbers().select("m")),
    "select": ("needed in select, not 5", lambda: numbers().select(5)),  # type: ignore[arg-type]
    "select of PySpark's": (
        "select takes.*not PySpark's.*from headgate.functions import",
        lambda: numbers().select(pyspark_column()),
    ),
    "filter of PySpark's": ("filter takes.*not PySpark's", lambda: numbers().filter(pyspark_column())),
    "withColumn of PySpark's": ("not PySpark's", lambda: numbers().withColumn("m", pyspark_column())),
    "select nothing": ("at least one column", lambda: numbers().select()),
    "withColumn": ("A column or its name is needed in withColumn", lambda: numbers().withColumn("m", 5)),  # type: ignore[arg-type]
    "drop": ("no column is left", lambda: numbers().drop("n", "at")),
    "condition": ("for all else use headgate.functions", lambda: numbers().filter("n + 1 > 2")),
    "func": ("cannot be called", lambda: numbers().mapInArrow(5, TIMED)),  # type: ignore[arg-type]
    "schema twice": ("names 'n' more than once", lambda: numbers(pa.schema([("n", pa.int64()), ("n", pa.int64())]))),
    "schema": ("cannot be used", lambda: numbers().mapInArrow(doubled, 5)),
    "union": ("number and types must be the same", lambda: numbers().union(numbers().drop("n"))),
    "name": ("cannot be used", lambda: numbers().name("a/b")),
    "name twice": ("names 'x' more than once", lambda: definition(numbers().name("x").union(numbers().name("x")))),
    "watermark": ("must be a timestamp", lambda: numbers().withWatermark("n", "5 seconds")),
    "delay": ("'soon' is not a valid interval", lambda: numbers().withWatermark("at", "soon")),
    "alignment": ("needs sources whose event time", lambda: numbers().withWatermarkAlignment("g", "1 minute")),
    "alignment of a union": (
        "that of 'datagen' is not",
        lambda: numbers(eventTimeColumn="at").union(numbers()).withWatermarkAlignment("g", "1 minute"),
    ),
    "alignment option": ("max-drift' must be set", lambda: numbers(**{"scan.watermark.alignment.group": "g"})),
    "event time": ("must be a timestamp", lambda: numbers(eventTimeColumn="n")),
    "output mode": ("only 'append'", lambda: numbers().writeStream.outputMode("update")),
    "trigger": ("streams.read", lambda: numbers().writeStream.trigger(availableNow=True)),
    "trigger text": ("not a valid interval", lambda: numbers().writeStream.trigger(continuous="often")),
    "trigger zero": ("above zero", lambda: numbers().writeStream.trigger(continuous="0 seconds")),
    "query name": ("not empty", lambda: numbers().writeStream.queryName(" ")),
    "query option": ("did you mean|Did you mean", lambda: definition(numbers(), checkpointlocaton="x")),
    "sink": ("sink|Sink", lambda: definition(numbers(), nonsense="x")),
    "max": ("'max-parallelism' allows 1", lambda: definition(numbers(), **{"max-parallelism": 1})),
    "parallelism": ("whole number from 1", lambda: continuous(Session(), 0)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_where_it_stands(name: str) -> None:
    message, build = WRONG[name]
    with pytest.raises(OptionError, match=message):
        build()


def test_a_source_that_cannot_be_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.connectors.datagen.source import DatagenSource

    monkeypatch.setattr(DatagenSource, "supports", lambda self, boundedness: False)
    with pytest.raises(UnsupportedOperationError, match="cannot be read by a continuous query"):
        numbers()


def test_spark_connect_is_refused() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(OptionError, match="Spark Connect has none"):
        continuous(remote(), parallelism=1)
