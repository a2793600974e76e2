"""What ``writeStream`` makes of a program, and errors in the line that is wrong. No Spark is started."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor

from headgate.errors import OptionError, UnsupportedOperationError
from headgate.expressions.expressions import Bound, Column
from headgate.graph.plan import PlanNode, watermarked
from headgate.graph.stage_graph import QueryDefinition
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.union import Union
from headgate.operators.windows.operator import WindowAggregate
from headgate.protocol.operator_context import OperatorContext
from headgate.runtime.chain import StageChain
from headgate.source import Boundedness, WatermarkAlignment, WatermarkStrategy
from headgate.spark.continuous.stateful import stateful_node
from tests.unit.spark.continuous.programs import (
    AMOUNT,
    AT,
    LOCAL,
    RIDES,
    SESSIONS,
    TEN,
    USER,
    Build,
    Session,
    counted,
    definition,
    read,
    timed,
    unchanged,
    writer,
)

BY_USER = counted(timed(), TEN, Column(USER))


def test_what_a_query_is_called_and_when_it_takes_checkpoints() -> None:
    made = (
        writer(read().named("rides"))
        .queryName(" rides ")
        .outputMode("Append")
        .option("checkpointLocation", "/c")
        .trigger(continuous="2 seconds")
        .definition("/savepoint")
    )
    assert (made.name, made.sink_format, made.graph.uids) == ("rides", "memory", ("rides", "sink"))
    assert (made.checkpoint_location, made.checkpoint_interval_ms, made.from_savepoint) == ("/c", 2000, "/savepoint")
    assert (made.parallelism, made.time_zone, made.sink.uid) == (2, "Europe/Berlin", "sink")


def test_a_definition_goes_to_the_slots_as_it_is() -> None:
    factor = 3

    def local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [factor * n for n in batch.column("amount").to_pylist()]})

    made = definition(read().then(MapInArrow(local, pa.schema([("n", pa.int64())]))))
    arrived: QueryDefinition = pickle.loads(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]
    assert arrived.graph.uids == made.graph.uids
    assert dict(arrived.options) == dict(made.options)
    out: list[Any] = []
    batch = pa.RecordBatch.from_pylist([{**dict.fromkeys(RIDES.names), "amount": 1}], schema=RIDES)
    arrived.graph.operators[0].operator.process(batch, "s", lambda rows, split: out.extend(rows.to_pylist()))
    assert out == [{"n": 3}]
    chain = StageChain(arrived, OperatorContext(uid="", subtask=0, parallelism=1), {})
    assert set(chain.figures().rows_in) == {"datagen"}


# Sources.


def test_how_a_source_is_read() -> None:
    def boundedness(**options: Any) -> Boundedness:
        kafka = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
        return definition(read("headgate.kafka", **kafka, **options)).sources["kafka"].boundedness

    assert boundedness() is Boundedness.CONTINUOUS_UNBOUNDED
    assert boundedness(bounded=True) is Boundedness.BOUNDED
    assert boundedness(endingOffsets="latest") is Boundedness.BOUNDED


def test_the_session_s_defaults_reach_sources_and_query_but_not_over_what_is_given() -> None:
    session = Session(
        spark__headgate__numRows="7", spark__headgate__seed="3", spark__headgate__heartbeat__timeout="4 seconds",
        spark__headgate__topic="not an option of the generator", spark__headgate__lateRows="noop",
    )  # fmt: skip
    made = writer(read(session=session, SEED=5), session).definition()
    options = made.sources["datagen"].source.options
    assert (options["numRows"], options["seed"], made.options["heartbeat.timeout"]) == (7, 5, 4000)
    assert made.late_rows is None, "no row of it is late"
    assert writer(BY_USER, session).definition().late_rows is not None


def test_a_source_that_cannot_be_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.connectors.datagen.source import DatagenSource

    monkeypatch.setattr(DatagenSource, "supports", lambda self, boundedness: False)
    with pytest.raises(UnsupportedOperationError, match="cannot be read by a continuous query"):
        read()


# Watermarks.

ALIGNED = {"scan.watermark.alignment.group": "g", "scan.watermark.alignment.max-drift": "1 minute"}
GROUP = WatermarkAlignment(group="g", max_drift_ms=60_000)


def test_a_source_s_options_make_its_watermark_and_its_alignment() -> None:
    made = definition(read(eventTimeColumn="AT", **ALIGNED))
    assert made.sources["datagen"].watermark_strategy == WatermarkStrategy(event_time_column="at", alignment=GROUP)


def test_a_watermark_on_a_column_that_a_function_made_keeps_the_source_s_options() -> None:
    options = {"eventTimeColumn": "at", "scan.watermark.idle-timeout": "30 seconds", **ALIGNED}
    columns = RIDES.append(pa.field("made", pa.timestamp("us", "UTC")))
    made = definition(watermarked(read(**options).then(MapInArrow(unchanged, columns)), len(RIDES), 5000))
    assert made.sources["datagen"].watermark_strategy == WatermarkStrategy(
        event_time_column="made", max_out_of_orderness_ms=5000, idle_timeout_ms=30_000, alignment=GROUP
    )
    assert made.graph.event_time_operator("datagen") == made.graph.output == "datagen.2.with-watermark"


def test_a_column_of_a_union_is_found_after_it_for_each_of_its_sources() -> None:
    idle = read(**{"scan.watermark.idle-timeout": "30 seconds"})
    made = definition(watermarked(PlanNode(of=Union(RIDES, RIDES), inputs=(idle, read())), AT.index, 1000))
    assert {made.graph.event_time_operator(uid) for uid in made.sources} == {made.graph.output}
    strategies = [each.watermark_strategy for each in made.graph.sources]
    assert [each and each.idle_timeout_ms for each in strategies] == [30_000, None]


# The writer.


def test_bad_records() -> None:
    assert definition(read()).bad_records == "fail"
    assert definition(read(), badRecords="Skip").bad_records == "skip"
    made = definition(read(), badRecords="memory")
    assert made.bad_records == "sink"
    assert made.bad_records_sink is not None
    assert made.bad_records_sink.uid == "bad-records"


def test_the_session_s_checkpoint_location_is_a_default() -> None:
    session = Session(spark__sql__streaming__checkpointLocation="/root/")
    made = writer(read(), session).queryName("rides")
    assert made.definition().checkpoint_location == "/root/rides"
    assert made.option("checkpointLocation", "/own").definition().checkpoint_location == "/own"
    assert definition(read()).checkpoint_location is None


def test_output_modes_and_late_rows() -> None:
    """They are the writer's, and reach the operator in the slots."""

    def mode_of(made: QueryDefinition) -> str:
        operator = made.graph.operators[-1].operator
        assert isinstance(operator, WindowAggregate)
        return operator.output_mode

    made = writer(BY_USER).outputMode("Update").option("LATEROWS", "noop").definition()
    assert (mode_of(made), mode_of(definition(BY_USER))) == ("update", "append")
    assert made.late_rows is not None and definition(BY_USER).late_rows is None
    assert (made.late_rows.uid, made.late_rows.sink.uid) == ("datagen.3.window", "late-rows")
    assert made.late_rows.schema.names == ["user", "at"]


def test_windows_without_a_watermark_have_updates_only() -> None:
    """As in Spark: a changed group is emitted, and no window ends."""
    made = writer(counted(read(), TEN)).outputMode("update").definition()
    assert [each.uid for each in made.sources.values()] == ["datagen"]


class Silent(StatefulProcessor):  # type: ignore[misc]
    """Keeps and says nothing."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from ()

    def close(self) -> None:
        pass


def silent(mode: Any) -> PlanNode:
    return stateful_node(timed(), ["user"], Silent(), RIDES, "update", mode, None, "", pandas=False, conf={})


def test_late_rows_of_a_processor() -> None:
    """With event time there are some; without, those of the windows after it are kept."""
    made = writer(silent("eventtime")).outputMode("update").option("lateRows", "noop").definition()
    assert made.late_rows is not None
    assert (made.late_rows.uid, made.late_rows.schema.names) == (made.graph.operators[-1].uid, RIDES.names)
    after = definition(counted(silent("none"), TEN), lateRows="noop")
    assert after.late_rows is not None
    assert after.late_rows.uid == after.graph.operators[-1].uid


def test_windows_of_a_union_end_by_the_watermark_of_the_source_that_has_one() -> None:
    both = PlanNode(of=Union(RIDES, RIDES), inputs=(timed(), read()))
    assert definition(counted(both, TEN)).late_rows is None
    lost = counted(PlanNode(of=Union(RIDES, RIDES), inputs=(read(), timed())), TEN)
    assert isinstance(lost.of, WindowAggregate)
    lost.of.has_event_time = False
    with pytest.raises(UnsupportedOperationError, match="in a union the first rows must have one"):
        definition(lost)
    assert writer(lost).outputMode("update").definition()


TWICE = counted(BY_USER, Column(Bound(1, "user")))
WRONG: dict[str, tuple[str, Build]] = {
    "output mode": ("only 'append'", lambda: writer(read()).outputMode("update")),
    "no mode": ("has 'append', 'update' and 'compl", lambda: writer(BY_USER).outputMode("overwrite")),
    "trigger": (r"use spark\.read", lambda: writer(read()).trigger(availableNow=True)),
    "trigger text": ("not a valid interval", lambda: writer(read()).trigger(continuous="often")),
    "trigger zero": ("above zero", lambda: writer(read()).trigger(continuous="0 seconds")),
    "query name": ("not empty", lambda: writer(read()).queryName(" ")),
    "query option": ("did you mean|Did you mean", lambda: definition(read(), checkpointlocaton="x")),
    "sink": ("sink|Sink", lambda: definition(read(), nonsense="x")),
    "max": ("'max-parallelism' allows 1", lambda: definition(read(), **{"max-parallelism": 1})),
    "bad records' options": (
        "which has no options", lambda: definition(read(), **{"badRecords": "skip", "badRecords.path": "x"}),
    ),
    "no window": ("no group would ever be complete", lambda: definition(counted(timed(), Column(USER)))),
    "no watermark": ("needs a watermark, and the source 'datagen'", lambda: definition(counted(read(), TEN))),
    "complete files": (
        "only appends",
        lambda: writer(counted(timed(), TEN)).outputMode("complete").format("json").option("path", "x").definition(),
    ),
    "update of sessions": ("Session windows", lambda: writer(counted(timed(), SESSIONS)).outputMode("update")),
    "update twice": ("after an aggregation", lambda: writer(TWICE).outputMode("update")),
    "late rows of none": ("no row is late", lambda: definition(timed(), lateRows="noop")),
    "late rows of a processor without event time": (
        "no row is late", lambda: definition(silent("none"), lateRows="noop"),
    ),
    "late rows' sink": ("'path'", lambda: definition(BY_USER, lateRows="parquet")),
    "late rows' options": ("'lateRows' is not set", lambda: definition(BY_USER, **{"lateRows.path": "x"})),
    "name twice": (
        "names 'x' more than once",
        lambda: definition(PlanNode(of=Union(RIDES, RIDES), inputs=(read().named("x"), read().named("x")))),
    ),
    "option": ("no option 'rowsPerSecnd'.*rowsPerSecond", lambda: read(rowsPerSecnd=1)),
    "watermark": ("must be a timestamp", lambda: watermarked(read(), AMOUNT.index, 0)),
    "alignment option": ("max-drift' must be set", lambda: read(**{"scan.watermark.alignment.group": "g"})),
    "event time": ("must be a timestamp", lambda: read(eventTimeColumn="user")),
    "another column than the watermark's": (
        "the watermark is not of the times of its windows",
        lambda: definition(counted(watermarked(read(), LOCAL.index, 0), TEN)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_where_it_stands(name: str) -> None:
    message, build = WRONG[name]
    with pytest.raises((OptionError, UnsupportedOperationError), match=message):
        build()
