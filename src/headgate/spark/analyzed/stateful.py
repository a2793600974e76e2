"""``transformWithState`` and ``applyInPandasWithState`` of Spark's plan: an exchange by key, and the operator of state.

Never: check an argument of a processor: `headgate.spark.continuous.stateful` does, and makes the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.errors import OptionError
from headgate.graph.plan import PlanNode
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.operators.transform_with_state.apply_in_pandas_with_state import ApplyInPandasWithState
from headgate.operators.transform_with_state.group_function import GroupFunction
from headgate.operators.transform_with_state.transform_with_state import Definition, TimeMode
from headgate.spark.analyzed.expressions import check_keys
from headgate.spark.analyzed.functions import function_of, worker_conf
from headgate.spark.analyzed.rows import Session, is_event_time
from headgate.spark.analyzed.scala import JavaObject, class_of, data_frame, items
from headgate.spark.compatibility import is_of_frames, stateful_processor
from headgate.spark.continuous.stateful import stateful_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TIME_MODES: dict[str, TimeMode] = {
    "NoTime": "none",
    "NoTimeout": "none",
    "ProcessingTime": "processingtime",
    "ProcessingTimeTimeout": "processingtime",
    "EventTime": "eventtime",
    "EventTimeTimeout": "eventtime",
}


def rows_of(node: JavaObject) -> JavaObject:
    """Return the node of the rows that a processor gets: the analyzer puts a projection with the keys above it."""
    return node.left().child()


def transformed(
    spark: SparkSession, before: PlanNode, node: JavaObject, output: StructType, event_time: str
) -> PlanNode:
    """Return the node of a processor.

    Parameters
    ----------
    spark
        The session.
    before
        The rows that it gets, in columns of the names that the program knows.
    node
        Spark's node.
    output
        The columns of what it yields.
    event_time
        Which of them has the event time for what follows; empty: none.

    Raises
    ------
    OptionError
        An argument of ``transformWithState`` is wrong.
    UnsupportedOperationError
        The processor uses a broadcast variable.
    """
    function, _ = function_of(node, node.functionExpr().func())
    by = list(items(node.left().output()))[: node.groupingAttributesLen()]
    check_keys(by)
    keys = [str(each.name()) for each in by]
    return stateful_node(
        before,
        keys,
        stateful_processor(function),
        output,
        str(node.outputMode().toString()),
        _TIME_MODES[str(node.timeMode().toString())],
        data_frame(spark, node.right().child()) if node.hasInitialState() else None,
        event_time,
        marked=_event_time(before, rows_of(node)),
        pandas=is_of_frames(node, class_of(node)),
        conf=worker_conf(spark),
    )


def applied(session: Session, before: PlanNode, node: JavaObject, output: pa.Schema) -> PlanNode:
    """Return the node of a function of ``applyInPandasWithState``.

    Parameters
    ----------
    session
        What the program is run in.
    before
        The rows that it gets, in columns of the names that the program knows.
    node
        Spark's node.
    output
        The columns of what it yields.

    Raises
    ------
    OptionError
        It has time-outs of the event time, and its rows have none.
    UnsupportedOperationError
        The function uses a broadcast variable.
    """
    function, _ = function_of(node, node.functionExpr().func())
    timeout = str(node.timeout().toString())
    event_time = _event_time(before, node.child())
    if timeout == "EventTimeTimeout" and event_time is None:
        raise OptionError(
            "applyInPandasWithState: EventTimeTimeout needs a watermark, and the rows' event time is not among their "
            "columns: call withWatermark(column, delay) before groupBy, and keep the column.",
            option="timeoutConf", value=timeout,
        )  # fmt: skip
    by = list(items(node.groupingAttributes()))
    check_keys(by)
    keys = tuple(str(each.name()) for each in by)
    for key in keys:
        check_key_type(repr(key), before.schema.field(key).type)
    definition = Definition(
        keys=keys,
        input=before.schema,
        output=output,
        time_mode=_TIME_MODES[timeout],
        event_time=event_time if timeout == "EventTimeTimeout" else None,
        conf=worker_conf(session.spark),
    )
    given = GroupFunction(
        function=function,
        state=str(node.stateType().json()),
        timeout=timeout,
        output_mode=str(node.outputMode().toString()).lower(),
        has_watermark=event_time is not None,
    )
    exchange = Exchange(before.schema, "hash", keys=keys)
    return before.then(exchange).then(ApplyInPandasWithState(given, definition))


def _event_time(rows: PlanNode, node: JavaObject) -> str | None:
    known = (str(each.name()) for each in items(node.output()) if is_event_time(each))
    return next((each for each in known if pa.types.is_timestamp(rows.schema.field(each).type)), None)
