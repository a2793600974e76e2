"""One row of expressions: with columns in the place of literals, evaluated as a continuous query does, and by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from conformance.evaluation import condition_of, evaluated_by, opened, operators_of, plain, rows_of
from conformance.spark import Outcome
from headgate.errors import ExpressionError, HeadgateError, UnsupportedOperationError
from headgate.spark.analyzed.generators import generated
from headgate.spark.analyzed.plan import project
from headgate.spark.analyzed.scala import (
    UnsupportedTypeError,
    arrow_type,
    attribute_of,
    class_of,
    data_frame,
    items,
    projection,
    sequence,
    sql_class,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NotOneRowError(Exception):
    """The query is not a projection of one row, or Spark refuses it."""


class SingleRow:
    """An example of a function.

    Parameters
    ----------
    spark
        The session.
    function, query
        Which it is.
    """

    def __init__(self, spark: SparkSession, function: str, query: str) -> None:
        self._spark = spark
        self._function = function
        self._query = query
        try:
            node = spark.sql(query)._jdf.queryExecution().analyzed()
        except Exception as error:
            raise NotOneRowError from error
        self._nodes: list[Any] = []
        while class_of(node) in ("Project", "Generate"):
            self._nodes.insert(0, node)
            node = node.child()
        if not self._nodes or class_of(node) != "OneRowRelation":
            raise NotOneRowError
        self._literals: list[tuple[Any, Any]] = []  # with the attribute that stands for each

    def outcome(self) -> Outcome:
        """Evaluate it twice and compare."""
        try:
            by, ours = self._evaluated(with_columns=True)
        except UnsupportedOperationError:
            self._literals = []
            try:
                by, ours = self._evaluated()
            except UnsupportedOperationError as error:
                return Outcome(self._function, self._query, "refused", str(error))
        theirs = self._by_spark()
        if self._literals and isinstance(ours, tuple) and not isinstance(theirs, tuple):
            self._literals = []  # Spark checks only later whether a function may have a column there
            by, ours = self._evaluated()
        equal = _equal(ours, theirs)
        if not equal and not _equal(theirs, self._by_spark()):  # the time, or what is drawn by chance
            equal = _shape(ours) == _shape(theirs)
        return Outcome(self._function, self._query, by if equal else "different", f"{ours} / {theirs}")

    # Columns for literals.

    def _with_columns(self, expression: Any) -> Any:
        """Return an expression in which literals are attributes, wherever it can be resolved so."""
        if class_of(expression) == "Literal":
            return self._attribute(expression)
        children = list(items(expression.children()))
        made = expression
        for index, child in enumerate(children):
            known = len(self._literals)
            replaced = self._with_columns(child)
            if replaced is child:
                continue
            try:
                candidate = made.withNewChildren(sequence([*children[:index], replaced, *children[index + 1 :]]))
                fits = candidate.resolved() and candidate.dataType().equals(expression.dataType())
            except (Py4JError, TypeError):
                fits = False
            if fits:
                made, children[index] = candidate, replaced
            else:
                del self._literals[known:]
        return made

    def _attribute(self, literal: Any) -> Any:
        try:
            arrow_type(literal.dataType())
        except UnsupportedTypeError:
            return literal
        if class_of(literal.dataType()) == "NullType":
            return literal
        made = attribute_of(literal, f"c{len(self._literals)}")
        self._literals.append((literal, made))
        return made

    def _batch(self) -> pa.RecordBatch:
        """Return a batch of one row with the literals."""
        if not self._literals:
            return pa.record_batch({"nothing": [0]})
        one_row = sql_class("catalyst.plans.logical.OneRowRelation")()
        table = data_frame(self._spark, projection([literal for literal, _ in self._literals], one_row)).toArrow()
        return table.combine_chunks().to_batches()[0]

    # The two sides.

    def _evaluated(self, *, with_columns: bool = False) -> tuple[str, Any]:
        lowest = self._nodes[0]
        named = list(items(lowest.projectList())) if class_of(lowest) == "Project" else []
        if with_columns:
            named = [self._with_columns(each) for each in named]
        batch = self._batch()
        kinds = [arrow_type(attribute.dataType()) for _, attribute in self._literals] or batch.schema.types
        batch = pa.RecordBatch.from_arrays(
            [each if each.type == kind else each.cast(kind) for each, kind in zip(batch.columns, kinds)],
            schema=pa.schema([pa.field(name, kind) for name, kind in zip(batch.schema.names, kinds)]),
        )
        places = {attribute.exprId().id(): place for place, (_, attribute) in enumerate(self._literals)}
        rows = rows_of(self._spark, batch.schema, places)
        for each in self._nodes:
            if class_of(each) == "Generate":
                rows = generated(rows, each)
            else:
                rows = project(rows, named if each is lowest else list(items(each.projectList())))
        operators = operators_of(rows)
        by = evaluated_by(operators)
        if by == "arrow" and not self._literals:
            by = "spark"
        return by, _result(operators, batch, rows.time_zone)

    def _by_spark(self) -> Any:
        from pyspark.sql.types import VariantVal

        try:
            frame = self._spark.sql(self._query)
            try:
                return [each.to_pylist() for each in frame.toArrow().columns]
            except pa.ArrowException:  # of a null variant, in Spark 4.3
                return [[vars(each) if isinstance(each, VariantVal) else each] for each in frame.collect()[0]]
        except Exception as error:
            return type(error).__name__, condition_of(error)


def _result(operators: list[Any], batch: pa.RecordBatch, zone: str) -> Any:
    """Return the columns that the operators give, or the error's condition."""
    try:
        with opened(operators, zone) as evaluate:
            return [each.to_pylist() for each in evaluate(batch).columns]
    except ExpressionError as error:
        return "error", error.condition
    except (HeadgateError, pa.ArrowException) as error:
        return "error", None, str(error)


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):  # errors, of which those on Arrow have no condition
        return ours[1] in (None, theirs[1])
    return bool(plain(ours) == plain(theirs))


def _shape(value: Any) -> Any:
    return [[type(each) for each in column] for column in value]
