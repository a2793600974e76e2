"""What the nodes of groups are, without Spark: columns, keys, and what checkpoints record of the state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headgate.expressions.expressions import Call, Column, Constant
from headgate.expressions.key_bytes import key_bytes
from headgate.graph.plan import PlanNode, watermarked
from headgate.graph.stage_graph import StageGraph
from headgate.graph.two_phase import AGG_PHASE_STRATEGY
from headgate.operators.project import Project
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import TimeWindow
from headgate.operators.windows.windowed import WindowedAggregate
from headgate.protocol.operator_context import OperatorContext
from tests.unit.spark.continuous.programs import (
    AMOUNT,
    AT,
    COUNT,
    LOCAL,
    SESSIONS,
    TEN,
    TOTAL,
    USER,
    counted,
    definition,
    read,
    timed,
)

UPPER = Call("upper", (USER,))


def one_phase(node: PlanNode) -> StageGraph:
    """Return what would run, if rows were aggregated after the exchange only."""
    return definition(node, **{AGG_PHASE_STRATEGY: "ONE_PHASE"}).graph


def plan(node: PlanNode) -> list[tuple[str, list[str]]]:
    """Return the operators after the source, and their columns."""
    return [(each.uid, list(each.operator.schema.names)) for each in one_phase(node).operators]


def aggregate_of(node: PlanNode) -> WindowedAggregate:
    operator = one_phase(node).operators[-1].operator
    assert isinstance(operator, WindowedAggregate)
    return operator


def test_only_the_columns_that_are_needed_go_through_the_exchange() -> None:
    node = counted(timed(), TEN, Column(USER), aggregates=(TOTAL, COUNT))
    assert plan(node) == [
        ("datagen.1.select", ["user", "at", "amount"]),
        ("datagen.2.key-by", ["user", "at", "amount"]),
        ("datagen.3.window", ["window", "user", "total", "rides"]),
    ]
    graph = one_phase(node)
    assert graph.exchanges["datagen.2.key-by"].keys == ("user",)
    assert [stage.number for stage in graph.stages] == [0, 1]


def test_columns_are_in_the_order_of_the_program() -> None:
    """Expressions are computed before the exchange, each once."""
    more = Call("+", (AMOUNT, Constant(1, pa.int64())))
    by = (Column(UPPER, "name"), TEN.alias("w"), Column(AMOUNT, "a"))
    node = counted(timed(), *by, aggregates=(Aggregate("sum", more, name="s"), Aggregate("count", more, name="c")))
    assert node.schema.names == ["name", "w", "a", "s", "c"]
    assert plan(node)[0][1] == ["name", "amount", "at", "(amount + 1)"]
    assert [(key.column, key.name) for key in aggregate_of(node)._keys] == [("name", "name"), ("amount", "a")]


def test_a_made_key_with_the_name_of_a_column_does_not_hide_it() -> None:
    node = counted(timed(), TEN, Column(UPPER, "user"), aggregates=(Aggregate("count", USER, name="users"),))
    assert plan(node)[0][1] == ["user 2", "at", "user"]
    assert node.schema.names == ["window", "user", "users"]


def test_without_keys_all_rows_meet_in_one_subtask() -> None:
    """They have a constant in common, which is not in the output."""
    node = counted(timed(), TEN)
    assert node.schema.names == ["window", "rides"]
    assert plan(node)[1] == ("datagen.2.key-by", ["at", "all"])
    out: list[dict[str, Any]] = []
    operator = aggregate_of(node)
    operator.open(OperatorContext(uid="w", subtask=0, parallelism=1), [])
    operator.restore_keyed([])  # type: ignore[attr-defined]
    batch = pa.RecordBatch.from_pydict({"at": [0, 1, 2], "all": [0, 0, 0]}, schema=operator.input_schema)
    operator.process(batch, "s", lambda rows, split: None)
    operator.process_watermark(10_000, lambda rows, split: out.extend(rows.to_pylist()))
    assert [row["rides"] for row in out] == [3]


def test_columns_that_are_all_needed_are_not_copied() -> None:
    rows = timed()
    rows = rows.then(Project(rows.schema, [Column(USER), Column(AT), Column(AMOUNT)], "UTC"))
    place = {name: index for index, name in enumerate(rows.schema.names)}
    user, at, amount = (type(each)(place[each.name], each.name) for each in (USER, AT, AMOUNT))
    window = TimeWindow(at, 10, 10)
    node = counted(rows, window, Column(user), aggregates=(Aggregate("sum", amount, name="total"),))
    assert [uid for uid, _ in plan(node)] == ["datagen.1.select", "datagen.2.key-by", "datagen.3.window"]


def test_a_window_s_bounds_have_the_type_of_the_event_time() -> None:
    local = counted(watermarked(read(), LOCAL.index, 5000), TimeWindow(LOCAL, 10, 10))
    assert local.schema.field("window").type == pa.struct({"start": LOCAL_TYPE, "end": LOCAL_TYPE})


LOCAL_TYPE = pa.timestamp("us")


def test_a_key_that_is_there_as_bytes_is_shown_and_described() -> None:
    """In groups, in late rows, and in what checkpoints record."""
    struct = Call("struct", (USER,), {"names": ("user",)})
    operator = aggregate_of(counted(timed(), TEN, Column(Call("key_bytes", (struct,)), "s")))
    kind = pa.struct([("user", pa.string())])
    assert (operator.input_schema.field("s").type, operator.schema.field("s").type) == (pa.binary(), kind)
    late: list[pa.RecordBatch] = []
    operator.on_late = late.append
    operator.open(OperatorContext(uid="w", subtask=0, parallelism=1), [])
    operator.restore_keyed([])  # type: ignore[attr-defined]
    operator.process_watermark(20_000, lambda rows, split: None)
    users = key_bytes(pa.array([{"user": "a"}, None], kind))
    batch = pa.RecordBatch.from_pydict({"s": users, "at": [0, 1]}, schema=operator.input_schema)
    operator.process(batch, "s", lambda rows, split: None)
    assert [each["s"] for rows in late for each in rows.to_pylist()] == [{"user": "a"}, None]
    assert [rows.schema for rows in late] == [operator.late_schema]
    assert operator.state_schema is not None
    assert [each.kind for each in operator.state_schema.keys] == ["struct<user: string>"]
    assert operator.signature.endswith(" by struct(user, ('user',)) struct<user: string>")


def test_what_the_state_is_of_is_recorded_for_checkpoints() -> None:
    """Names of the output say nothing of it; everything else does."""
    few = Aggregate("approx_count_distinct", LOCAL, {"rsd": 0.1}, name="few")
    keyed, of = "by user string", "sum(amount) of int64, approx_count_distinct(local) of timestamp[us], rsd=0.1"
    assert one_phase(counted(timed(), TEN, Column(USER), aggregates=(TOTAL, few))).signatures == {
        "datagen.2.key-by": keyed,
        "datagen.3.window": f"{of} in window(at, 10 s, 10 s, 0 s) {keyed}",
    }
    aliased = counted(timed(), TEN, Column(USER, "who"), aggregates=(TOTAL.alias("a"),))
    assert [list(definition(each).graph.signatures.values())[-1] for each in (aliased, counted(timed(), SESSIONS))] == [
        "sum(amount) of int64 in window(at, 10 s, 10 s, 0 s) by user string",
        "count(1) in session_window(at, 60 s) by all int32",
    ]
