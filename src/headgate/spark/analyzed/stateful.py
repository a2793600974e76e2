"""A ``TransformWithStateInPySpark`` of Spark's plan becomes an exchange by key, and the operator of a processor.

Never: check what the older builder checks: `headgate.spark.continuous.stateful` makes the node for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.expressions.expressions import Column, Name
from headgate.graph.plan import PlanNode
from headgate.spark.analyzed.functions import function_of
from headgate.spark.analyzed.rows import is_event_time
from headgate.spark.analyzed.scala import JavaObject, items
from headgate.spark.continuous.stateful import stateful_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def rows_of(node: JavaObject) -> JavaObject:
    """Return the node of the rows that a processor gets: the analyzer puts a projection with the keys above it."""
    return node.left().child()


def transformed(
    spark: SparkSession, before: PlanNode, node: JavaObject, output: StructType, time_zone: str, event_time: str
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
    time_zone
        The session's.
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
    mode = str(node.timeMode().toString())
    return stateful_node(
        before,
        [Column(Name(f"`{key}`")) for key in keys],
        time_zone,
        function.__self__._stateful_processor,
        output,
        str(node.outputMode().toString()),
        "None" if mode == "NoTime" else mode,
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
