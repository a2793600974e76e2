"""``groupBy`` of the builder: the plan that it makes, and what is refused in the line that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor

from headgate.errors import OptionError
from headgate.functions import (
    approx_count_distinct,
    avg,
    col,
    collect_list,
    count,
    lit,
    session_window,
    struct,
    sum,
    upper,
    when,
    window,
)
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.windowed import WindowedAggregate
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.continuous.streams import ContinuousStream
from tests.unit.spark.continuous.test_streams import definition, numbers

RIDES = pa.schema(
    [
        ("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("note", pa.string()),
        ("local", pa.timestamp("us")),
    ]
)  # fmt: skip
TEN = window("at", "10 seconds")


def rides() -> ContinuousStream:
    return numbers(RIDES).withWatermark("at", "5 seconds")


def plan(stream: ContinuousStream) -> list[tuple[str, list[str]]]:
    """Return the operators after the source, and their columns."""
    return [(node.uid, list(node.operator.schema.names)) for node in definition(stream).graph.operators]


def aggregate_of(stream: ContinuousStream) -> WindowedAggregate:
    operator = definition(stream).graph.operators[-1].operator
    assert isinstance(operator, WindowedAggregate)
    return operator


def test_the_program_of_the_manual() -> None:
    """Only the columns that are needed go through the exchange, by key."""
    stream = rides().groupBy(TEN, "user").agg(sum("amount").alias("total"), count().alias("rides"))
    assert stream.columns == ["window", "user", "total", "rides"]
    assert stream.schema.simpleString() == (
        "struct<window:struct<start:timestamp,end:timestamp>,user:string,total:bigint,rides:bigint>"
    )
    assert plan(stream) == [
        ("datagen.1.select", ["user", "at", "amount"]),
        ("datagen.2.key-by", ["user", "at", "amount"]),
        ("datagen.3.window", ["window", "user", "total", "rides"]),
    ]
    graph = definition(stream).graph
    assert graph.exchanges["datagen.2.key-by"].keys == ("user",)
    assert [stage.number for stage in graph.stages] == [0, 1]


def test_columns_are_in_the_order_of_the_program() -> None:
    """Expressions are computed before the exchange, each once; an alias names the column."""
    stream = (
        rides()
        .groupBy([upper("user").alias("name"), TEN.alias("w"), col("AMOUNT").alias("a")])
        .agg(sum(col("amount") + 1), count(col("amount") + 1), avg("amount"))
    )
    assert stream.columns == ["name", "w", "a", "sum((amount + 1))", "count((amount + 1))", "avg(amount)"]
    assert plan(stream)[0][1] == ["name", "amount", "at", "(amount + 1)"]
    operator = aggregate_of(stream)
    assert [(key.column, key.name) for key in operator._keys] == [("name", "name"), ("amount", "a")]


def test_a_made_key_with_the_name_of_a_column_does_not_hide_it() -> None:
    """Both are there."""
    stream = rides().groupBy(TEN, upper("user").alias("user")).agg(count("user"))
    assert plan(stream)[0][1] == ["user 2", "at", "user"]
    assert stream.columns == ["window", "user", "count(user)"]


def test_without_keys_all_rows_meet_in_one_subtask() -> None:
    """They have a constant in common, which is not in the output."""
    stream = rides().groupBy(TEN).agg(count())
    assert stream.columns == ["window", "count(1)"]
    assert plan(stream)[1] == ("datagen.2.key-by", ["at", "all"])
    out: list[dict[str, Any]] = []
    operator = aggregate_of(stream)
    operator.open(OperatorContext(uid="w", subtask=0, parallelism=1), [])
    operator.restore_keyed([])  # type: ignore[attr-defined]
    batch = pa.RecordBatch.from_pydict({"at": [0, 1, 2], "all": [0, 0, 0]}, schema=operator.input_schema)
    operator.process(batch, "s", lambda rows, split: None)
    operator.process_watermark(10_000, lambda rows, split: out.extend(rows.to_pylist()))
    assert [row["count(1)"] for row in out] == [3]


def test_columns_that_are_all_needed_are_not_copied() -> None:
    """No projection is made."""
    stream = rides().select("user", "at", "amount").groupBy(TEN, "user").agg(sum("amount"))
    assert [uid for uid, _ in plan(stream)] == ["datagen.1.select", "datagen.2.key-by", "datagen.3.window"]


def test_sessions_and_local_times() -> None:
    """The window's bounds have the type of the event time."""
    stream = rides().groupBy("user", session_window("at", "1 minute")).agg(collect_list("note"))
    assert stream.columns == ["user", "session_window", "collect_list(note)"]
    local = numbers(RIDES).withWatermark("local", "5 seconds").groupBy(window("local", "1 hour")).agg(count())
    assert local.schema["window"].dataType.simpleString() == "struct<start:timestamp_ntz,end:timestamp_ntz>"


def test_output_modes_and_late_rows() -> None:
    """They are the writer's, and reach the operator in the slots."""
    stream = rides().groupBy(TEN, "user").agg(count())
    assert aggregate_of(stream).output_mode == "append"
    made = stream.writeStream.format("memory").outputMode("Update").lateRows("noop").definition()
    operator = made.graph.operators[-1].operator
    assert isinstance(operator, WindowAggregate)
    assert operator.output_mode == "update"
    assert aggregate_of(stream).output_mode == "append"
    assert made.late_rows is not None
    assert (made.late_rows.uid, made.late_rows.sink.uid) == ("datagen.3.window", "late-rows")
    assert made.late_rows.schema.names == ["user", "at"]
    assert definition(stream).late_rows is None


def test_windows_without_a_watermark_have_updates_only() -> None:
    """As in Spark: a changed group is emitted, and no window ends."""
    stream = numbers(RIDES).groupBy(TEN).agg(count())
    made = stream.writeStream.format("memory").outputMode("update").definition()
    assert [each.uid for each in made.sources.values()] == ["datagen"]


class Silent(StatefulProcessor):  # type: ignore[misc]
    """Keeps and says nothing."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from ()

    def close(self) -> None:
        pass


def test_late_rows_of_a_processor() -> None:
    """With event time there are some; without, those of the windows after it are kept."""

    def silent(mode: str) -> ContinuousStream:
        schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
        return rides().groupBy("user").transformWithState(Silent(), schema, "update", mode)

    made = silent("EventTime").writeStream.format("memory").outputMode("update").lateRows("noop").definition()
    assert made.late_rows is not None
    assert (made.late_rows.uid, made.late_rows.schema.names) == (made.graph.operators[-1].uid, list(rides().columns))
    with pytest.raises(OptionError, match="no row is late"):
        late(silent("None")).lateRows("noop")
    after = silent("None").groupBy(TEN).agg(count()).writeStream.format("memory").lateRows("noop").definition()
    assert after.late_rows is not None
    assert after.late_rows.uid == after.graph.operators[-1].uid


def late(stream: ContinuousStream, mode: str = "append") -> Any:
    return stream.writeStream.outputMode(mode)


TWICE = rides().groupBy(TEN, "user").agg(count().alias("n")).select("user", "n", col("window.start").alias("at"))
WRONG: dict[str, tuple[str, Any]] = {
    "no window": (
        "no group would ever be complete",
        lambda: rides().groupBy("user").agg(count()).writeStream.format("noop").definition(),
    ),
    "two windows": ("groupBy has 2 windows", lambda: rides().groupBy(TEN, TEN.alias("w")).agg(count())),
    "nothing to compute": ("at least one aggregate", lambda: rides().groupBy(TEN).agg()),
    "no aggregate": ("is not an aggregate", lambda: rides().groupBy(TEN).agg(col("amount"))),  # type: ignore[arg-type]
    "key": ("no column 'usr'", lambda: rides().groupBy(TEN, "usr").agg(count())),
    "argument": ("no column 'x'", lambda: rides().groupBy(TEN).agg(sum("x"))),
    "no column": ("A column or its name", lambda: rides().groupBy(TEN, 5)),  # type: ignore[arg-type]
    "event time": ("must be a timestamp", lambda: rides().groupBy(window("user", "1 hour")).agg(count())),
    "sum of texts": ("there is no sum of string", lambda: rides().groupBy(TEN).agg(sum("user"))),
    "names": ("'user' appears more than once", lambda: rides().groupBy(TEN, "user").agg(count().alias("user"))),
    "key of a struct": ("neither a struct nor", lambda: rides().groupBy(TEN, struct("user").alias("s")).agg(count())),
    "aggregate elsewhere": ("A column or its name", lambda: rides().select(sum("amount"))),  # type: ignore[arg-type]
    "no mode": ("has 'append', 'update' and 'compl", lambda: late(rides().groupBy(TEN).agg(count()), "overwrite")),
    "complete files": (
        "only appends",
        lambda: late(rides().groupBy(TEN).agg(count()), "complete").format("json").option("path", "x").definition(),
    ),
    "complete elsewhere": (
        "a repartition after", lambda: late(rides().groupBy("user").agg(count()).repartition(), "complete"),
    ),
    "update of sessions": (
        "session windows", lambda: late(rides().groupBy(session_window("at", "1 hour")).agg(count()), "update"),
    ),
    "update twice": ("after an aggregation", lambda: late(TWICE.groupBy(TEN).agg(sum("n")), "update")),
    "late rows of none": ("has no windows and no transform", lambda: late(rides()).lateRows("noop")),
    "late rows without a window": (
        "has no windows and no", lambda: late(rides().groupBy("user").count()).lateRows("noop"),
    ),
    "late rows' sink": ("'path'", lambda: late(TWICE).lateRows("parquet").format("memory").definition()),
    "no watermark": (
        "needs a watermark, and the source 'datagen'", lambda: definition(numbers(RIDES).groupBy(TEN).agg(count())),
    ),
    "another column than the watermark's": (
        "the windows are of 'at', and the watermark is of 'local'",
        lambda: (
            numbers(RIDES).withWatermark("local", "5 seconds").select(col("at").alias("when"))
            .groupBy(window("when", "1 hour")).agg(count())
        ),
    ),
    "constant": ("must be a timestamp", lambda: rides().groupBy(window(lit(1), "1 hour")).agg(count())),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_where_it_stands(name: str) -> None:
    """With a message that says what to do."""
    message, build = WRONG[name]
    with pytest.raises(OptionError, match=message):
        build()


def test_who_is_downstream_of_exchanges_is_idle_together_with_its_neighbours() -> None:
    """Except after only a forward exchange of a source: each consumer has the state of one reader."""
    rows = rides()
    first = rows.groupBy(TEN, "user").agg(count().alias("rides"))
    second = first.groupBy(window("window.end", "1 hour").alias("hour")).agg(count().alias("users"))
    graph = definition(second).graph
    assert [graph.idles_together(stage.number) for stage in graph.stages] == [False, True, True]
    assert all(map(graph.is_broadcast, graph.exchanges))

    both = rows.select("user").union(rows.select("user").repartition()).repartition()
    graph = definition(both).graph
    assert [graph.idles_together(stage.number) for stage in graph.stages] == [False, True, True]
    assert [each.exchange_kind for uid, each in graph.exchanges.items() if not graph.is_broadcast(uid)] == ["forward"]


def test_the_short_forms_of_spark() -> None:
    """Their columns are called as in Spark."""
    grouped = rides().groupBy(TEN, "user")
    assert grouped.count().columns == ["window", "user", "count"]
    assert grouped.sum("amount").columns == ["window", "user", "sum(amount)"]
    assert grouped.avg("amount").columns == ["window", "user", "avg(amount)"]
    assert grouped.min("amount", "at").columns == ["window", "user", "min(amount)", "min(at)"]
    assert grouped.max("note").schema["max(note)"].dataType.simpleString() == "string"
    with pytest.raises(OptionError, match="at least one aggregate"):
        grouped.sum()


def test_what_the_state_is_of_is_recorded_for_checkpoints() -> None:
    """Names of the output say nothing of it; everything else does."""
    amounts = rides().groupBy(TEN, "user").agg(sum("amount"), approx_count_distinct("note", rsd=0.1))
    keyed, of = "by user string", "sum(amount) of int64, approx_count_distinct(note) of string, rsd=0.1"
    assert definition(amounts).graph.signatures == {
        "datagen.2.key-by": keyed,
        "datagen.3.window": f"{of} in window(at, 10 s, 10 s, 0 s) {keyed}",
    }
    aliased = rides().groupBy(TEN, col("user").alias("who")).agg(sum("amount").alias("a"))
    sessions = rides().groupBy(session_window("at", "5 seconds")).agg(count())
    state = rides().groupBy("user").transformWithState(Silent(), RIDES, "update", "None")
    assert [list(definition(each).graph.signatures.values())[-1] for each in (aliased, sessions, state)] == [
        "sum(amount) of int64 in window(at, 10 s, 10 s, 0 s) by user string",
        "count(1) in session_window(at, 5 s) by all int32",
        "transformWithState by user string in time mode none",
    ]
    assert definition(rides().repartition(2)).graph.signatures == {}


def test_rows_that_skip_several_stages_are_forwarded_through_each() -> None:
    """Once, however often they are used there."""
    rows = rides().select("user")
    far = rows.repartition().repartition()
    graph = definition(far.union(rows).union(rows).union(rows.repartition())).graph
    kinds = Counter((each.exchange_kind, graph.stage_of(uid)) for uid, each in graph.exchanges.items())
    assert kinds == {("rebalance", 0): 2, ("rebalance", 1): 1, ("forward", 0): 2, ("forward", 1): 3}
    assert [len(stage.inputs) for stage in graph.stages] == [0, 4, 4]
    last = graph.stages[-1]
    twice = far.union(rows.union(rows))
    assert len(definition(twice).graph.stages) == len(graph.stages) == last.number + 1 == 3


def test_windows_of_the_watermark_s_column_however_it_is_written() -> None:
    """After operators that leave it alone, too, and of what an operator made, which is its own affair."""
    nested = pa.schema([("at", pa.timestamp("us")), ("p", pa.struct([("at", pa.timestamp("us"))]))])
    timed = numbers(nested).withWatermark("at", "5 seconds")
    twice = rides().groupBy(TEN, "user").agg(count()).select("window", "user")
    for stream, time in (
        (rides().withColumn("z", lit(1)), "at"),
        (rides().select("*").drop("user"), "AT"),
        (rides(), "`at`"),
        (timed, "p.at"),
        (timed.select("p", "at"), "p.at"),
        (timed.select(col("p.at").alias("t")), "t"),
        (twice, "window.end"),
        (numbers(RIDES).withColumn("z", lit(1)).withWatermark("at", "5 seconds").drop("z"), "at"),
    ):
        definition(stream.groupBy(window(time, "1 hour")).count())


def test_a_watermark_after_other_operators_is_of_the_source_s_column() -> None:
    """Or of what an operator made of it."""
    after = numbers(RIDES).withColumn("z", lit(1)).drop("user").withWatermark("at", "5 seconds")
    (source,) = definition(after).graph.sources
    assert source.watermark_strategy is not None and source.watermark_strategy.event_time_column == "at"
    made = numbers(RIDES).withColumn("at", col("local").cast("timestamp")).withWatermark("at", "5 seconds")
    assert definition(made).graph.event_time_operator("datagen") is not None


def test_a_set_of_values_has_one_text_in_every_run() -> None:
    """It may be part of a column's name, and of what checkpoints know of state."""
    names = {"d", "b", "a", "c"}
    sums = [sum(when(col("user").isin(each), 1)) for each in (names, frozenset(names), ["a", "b", "c", "d"])]
    assert len({each.text for each in sums}) == 1 and "user, a, b, c, d" in sums[0].text
