"""A user's function in Spark's plan is called in the slot itself: rows never cross to a JVM.

Never: call it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.graph.plan import PlanNode
from headgate.operators.map_in_arrow import MapInArrow
from headgate.spark.analyzed.rows import unsupported
from headgate.spark.analyzed.scala import JavaObject, option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mapped_in_arrow(spark: SparkSession, before: PlanNode, node: JavaObject, schema: pa.Schema) -> PlanNode:
    """Return the node of a ``MapInArrow``.

    Parameters
    ----------
    spark
        The session.
    before
        The rows that the function gets, in columns of the names that the program knows.
    node
        Spark's node.
    schema
        The columns of what it yields.

    Raises
    ------
    UnsupportedOperationError
        It asks for what only Spark's own tasks have.
    """
    if node.isBarrier() or option(node.profile()) is not None:
        raise unsupported(node, "barrier mode and resource profiles are those of Spark's own stages")
    return before.then(MapInArrow(function_of(spark, node, node.functionExpr().func()), schema))


def function_of(spark: SparkSession, node: JavaObject, pickled: JavaObject) -> Any:
    """Return a function as it was pickled for Spark.

    Raises
    ------
    UnsupportedOperationError
        It uses a broadcast variable.
    """
    from pyspark.serializers import CPickleSerializer

    if pickled.broadcastVars().size():
        raise unsupported(node, "its function uses a broadcast variable, or is as large as one (1 MiB)")
    jvm: Any = spark._jvm
    command = bytes(pickled.command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    function, _ = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    return function
