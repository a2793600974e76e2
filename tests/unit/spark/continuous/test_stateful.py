"""``transformWithState``: what becomes of its arguments, and which are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound, Column
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.project import Project
from headgate.operators.transform_with_state.transform_with_state import TransformWithState
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.source import Boundedness, WatermarkStrategy
from headgate.spark.compatibility import from_arrow_schema
from headgate.spark.continuous import stateful
from headgate.spark.continuous.stateful import event_time_of, stateful_node
from tests.unit.expressions.nodes import call

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
USER = Bound(0, "user")
OUTPUT = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])


class Nothing(StatefulProcessor):
    """Declares a state, and yields nothing."""

    closed = 0

    def init(self, handle: Any) -> None:
        """Declare a state."""
        self.state = handle.getValueState("n", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        """Yield nothing."""
        return iter(())


def rows(event_time: str | None = "at") -> PlanNode:
    """Return a source."""
    strategy = None if event_time is None else WatermarkStrategy(event_time_column=event_time)
    return PlanNode(
        of=SourceDefinition(
            uid="rows", source=None, schema=SCHEMA, boundedness=Boundedness.BOUNDED, watermark_strategy=strategy  # type: ignore[arg-type]
        )
    )  # fmt: skip


class Frame:
    """A batch DataFrame of Spark's."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self._table.schema)

    def toArrow(self) -> pa.Table:
        return self._table


def build(node: PlanNode | None = None, keys: Any = ("user",), **given: Any) -> PlanNode:
    """Return the node of a processor."""
    arguments = {
        "processor": Nothing(), "output": from_arrow_schema(OUTPUT), "output_mode": "append", "mode": "eventtime",
        "initial_state": None, "event_time_column": "", "pandas": False, "conf": {},
        **given,
    }  # fmt: skip
    return stateful_node(node or rows(), keys, **arguments)


def test_the_processor_is_downstream_of_an_exchange_by_its_keys() -> None:
    """With the columns of the rows as they are."""
    node = build(initial_state=Frame(pa.table({"user": ["a"], "n": [1]})))
    assert isinstance(node.of, TransformWithState) and node.schema == OUTPUT
    exchange = node.inputs[0].of
    assert isinstance(exchange, Exchange) and exchange.keys == ("user",) and exchange.schema == SCHEMA
    assert node.inputs[0].inputs[0].schema == SCHEMA


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"processor": Nothing}, "is not a StatefulProcessor"),
        ({"output_mode": "complete"}, "outputMode is 'complete'; it can be append or update"),
        ({"keys": ("user", "user")}, "duplicate key user"),
        ({"node": rows(None)}, "timeMode EventTime needs a watermark"),
        ({"event_time_column": "user"}, "it must be a timestamp of outputStructType"),
        ({"event_time_column": "at", "mode": "none"}, "eventTimeColumnName goes with timeMode EventTime"),
        ({"initial_state": Frame(pa.table({"n": [1]}))}, "initialState has no column 'user'"),
        ({"initial_state": Frame(pa.table({"user": [b"\xff"]}))}, "the key 'user' of initialState has the type binary"),
    ],
)
def test_wrong_arguments_are_refused(wrong: Any, says: str) -> None:
    """In the line that is wrong."""
    with pytest.raises(OptionError, match=says):
        build(**wrong)


def test_a_large_initial_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to every slot; the error says what to do instead."""
    monkeypatch.setattr(stateful, "MAX_INITIAL_STATE_BYTES", 10)
    with pytest.raises(OptionError, match=r"Read it as a source and union it with the stream"):
        build(initial_state=Frame(pa.table({"user": ["a long name"]})))


def test_the_event_time_is_found_where_it_went() -> None:
    """Through what only passes columns on; not through what makes them anew."""
    assert event_time_of(rows()) == "at" and event_time_of(rows(None)) is None
    node = rows().then(Filter(SCHEMA, Column(call("isnotnull", USER)), "UTC"))
    node = node.then(Project(SCHEMA, [Column(USER), Column(Bound(2, "at"), "seen")], "UTC"))
    assert event_time_of(node) == "seen"
    assert event_time_of(rows().then(Project(SCHEMA, [Column(USER)], "UTC"))) is None
    assert event_time_of(rows("other").then(WithWatermark(SCHEMA, "at"))) == "at"
    both = PlanNode(of=Union(SCHEMA, SCHEMA), inputs=(rows(), rows()))
    assert event_time_of(both) == "at"
    assert event_time_of(PlanNode(of=Union(SCHEMA, SCHEMA), inputs=(rows(), rows(None)))) is None
    assert event_time_of(build(event_time_column="at")) == "at" and event_time_of(build()) is None
