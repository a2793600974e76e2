"""Evaluates rows as a continuous query does: with the operators of a projection, Arrow's kernels and Spark's own code.

Never: start a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from headgate.connectors.datagen.source import DatagenSource
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.catalyst_project import CatalystProject
from headgate.protocol.operator_context import OperatorContext
from headgate.source import Boundedness
from headgate.spark.analyzed.rows import Rows, Session
from headgate.spark.continuous.settings import session_time_zone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]


def rows_of(spark: SparkSession, schema: pa.Schema, places: Mapping[int, int]) -> Rows:
    """Return rows of a source, for what follows them; by the id of an attribute, where it is among the columns."""
    source = DatagenSource({"rowsPerSecond": "1"})
    definition = SourceDefinition(uid="rows", source=source, schema=schema, boundedness=Boundedness.BOUNDED)
    session = Session(spark, session_time_zone(spark), False)
    return Rows(node=PlanNode(of=definition), places=dict(places), windows={}, session=session)


def operators_of(rows: Rows) -> list[Any]:
    """Return the operators between a source and the rows."""
    node, operators = rows.node, []
    while not isinstance(node.of, SourceDefinition):
        operators.insert(0, node.of)
        (node,) = node.inputs
    return operators


def evaluated_by(operators: Sequence[Any]) -> str:
    """Return whether Spark's own code is among what evaluates: ``catalyst``, or else ``arrow``."""
    return "catalyst" if any(isinstance(each, CatalystProject) for each in operators) else "arrow"


@contextmanager
def opened(operators: Sequence[Any], time_zone: str) -> Iterator[Evaluate]:
    """Yield what the operators make of a batch."""
    context = OperatorContext(uid="rows", subtask=0, parallelism=1, time_zone=time_zone)

    def evaluate(batch: pa.RecordBatch) -> pa.RecordBatch:
        for each in operators:
            made: list[pa.RecordBatch] = []
            each.process(batch, "split", lambda rows, _, made=made: made.append(rows))
            (batch,) = made
        return batch

    with ExitStack() as opening:
        for each in operators:
            each.open(context, [])
            opening.callback(each.close)
        yield evaluate


def plain(value: Any) -> Any:
    """Make NaN equal to itself, and 0 another value than -0."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
        case list() | tuple():
            return [plain(each) for each in value]
        case dict():
            return {key: plain(each) for key, each in value.items()}
    return value


def condition_of(error: Any) -> str | None:
    """Return the condition of an error of Spark's, wherever it is wrapped; or the beginning of what it says."""
    if hasattr(error, "getCondition"):
        return error.getCondition()
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        with suppress(Py4JError, TypeError):
            if (condition := cause.getCondition()) is not None:
                return str(condition)
        cause = cause.getCause()
    return str(error)[:100]
