"""A ``TransformWithStateInPySpark`` of Spark's plan becomes an exchange by key, and the operator of a processor.

Never: check an argument: `headgate.spark.continuous.stateful` does, and makes the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.graph.plan import PlanNode
from headgate.operators.transform_with_state.transform_with_state import TimeMode
from headgate.spark.analyzed.functions import function_of
from headgate.spark.analyzed.rows import is_event_time
from headgate.spark.analyzed.scala import JavaObject, items
from headgate.spark.continuous.stateful import stateful_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TIME_MODES: dict[str, TimeMode] = {
    "NoTime": "none",
    "ProcessingTime": "processingtime",
    "EventTime": "eventtime",
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
    function, _ = function_of(spark, node, node.functionExpr().func())
    keys = [str(each.name()) for each in items(node.left().output())][: node.groupingAttributesLen()]
    return stateful_node(
        before,
        keys,
        function.__self__._stateful_processor,
        output,
        str(node.outputMode().toString()),
        _TIME_MODES[str(node.timeMode().toString())],
        _initial_state(spark, node.right().child()) if node.hasInitialState() else None,
        event_time,
        marked=_event_time(before, rows_of(node)),
        pandas=str(node.userFacingDataType().toString()) == "pandas",
    )


def _event_time(rows: PlanNode, node: JavaObject) -> str | None:
    known = (str(each.name()) for each in items(node.output()) if is_event_time(each))
    return next((each for each in known if pa.types.is_timestamp(rows.schema.field(each).type)), None)


def _initial_state(spark: SparkSession, node: JavaObject) -> Any:
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, node), spark)
