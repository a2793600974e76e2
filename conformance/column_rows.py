"""Expressions over the rows of a table, as a continuous query evaluates them and by Spark: whether they are equal."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from conformance.column_values import table
from conformance.columns import Expression, Outcome
from conformance.evaluation import Evaluate, condition_of, evaluated_by, opened, operators_of, rows_of
from headgate.errors import ExpressionError, HeadgateError, UnsupportedOperationError
from headgate.java_texts import with_java_texts
from headgate.spark.analyzed.plan import project
from headgate.spark.analyzed.plan_copy import PlanCopy
from headgate.spark.analyzed.scala import class_of, data_frame, is_a, items, projection, sequence, singleton, sql_class
from headgate.spark.continuous.settings import session_time_zone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BEFORE = 3
"""So many rows precede those that are compared in our arrays, so that these have an offset."""
_ASKING = ("CodegenFallback", "HigherOrderFunction", "InvokeLike", "MapFromArrays", "StructsToXml")
_COMMON_PARTS = "spark.sql.subexpressionElimination.enabled"


@dataclass(frozen=True)
class Failed:
    """What an expression is on a row on which it fails; ``None``: with an error that has no condition."""

    condition: str | None


@dataclass(frozen=True)
class _Analyzed:
    """An expression as Spark's analyzer leaves it, named, and by what a continuous query evaluates it."""

    expression: Expression
    named: Any
    by: str

    @property
    def value(self) -> Any:
        return self.named.child() if class_of(self.named) == "Alias" else self.named


class ColumnRows:
    """The rows, for both sides, in the session's settings.

    Parameters
    ----------
    spark
        The session.
    rows, seed
        What `table` is given.
    ansi
        The setting, for outcomes.
    """

    def __init__(self, spark: SparkSession, rows: int, seed: int, ansi: bool) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._spark = spark
        self._ansi = ansi
        self._zone = session_time_zone(spark)
        made = table(_BEFORE + rows, seed).combine_chunks()
        self._batch = made.to_batches()[0].slice(_BEFORE)
        # Over a plan that is only a relation Spark's optimizer would evaluate expressions without generated code.
        kinds = from_arrow_schema(made.schema, prefer_timestamp_ntz=True)
        given = made.take(pa.array(range(_BEFORE, _BEFORE + rows)))  # PySpark takes no arrays that have an offset
        self._frame = spark.createDataFrame(given, kinds).coalesce(1)
        analyzed = self._frame._jdf.queryExecution().analyzed()
        self._places = {int(each.exprId().id()): place for place, each in enumerate(items(analyzed.output()))}

    def outcomes(self, expressions: Sequence[Expression]) -> list[Outcome]:
        """Return what became of expressions."""
        outcomes: list[Outcome] = []
        analyzed: list[_Analyzed] = []
        for each in expressions:
            try:
                (named,) = items(self._frame.selectExpr(each.text)._jdf.queryExecution().analyzed().projectList())
            except Exception as error:
                outcomes.append(Outcome(each, self._ansi, "unknown", 0, str(error).partition("SQLSTATE")[0]))
                continue
            try:
                analyzed.append(_Analyzed(each, named, evaluated_by(self._operators([named]))))
            except UnsupportedOperationError as error:
                outcomes.append(Outcome(each, self._ansi, "refused", 0, str(error)))
        theirs = self._by_spark(analyzed)
        ours = self._ours(analyzed, theirs)
        return outcomes + [self._outcome(*each) for each in zip(analyzed, ours, theirs, strict=True)]

    def _outcome(self, one: _Analyzed, ours: list[Any], theirs: list[Any]) -> Outcome:
        failed = _failed(ours)
        different = _differences(ours, theirs)
        if different and failed:
            theirs = self._row_by_row(one, failed, len(ours))
            different = _differences(ours, theirs)
        why = [f"row {place}: {ours[place]!r} / {theirs[place]!r}" for place in different[:3]]
        if not why and failed and ours[failed[0]].condition is not None:
            condition = self._condition(one)
            if condition != ours[failed[0]].condition:
                why = [f"row {failed[0]}: {ours[failed[0]].condition} / {condition}"]
        if why:
            text = f"{one.by}, {len(different)} rows: " + "; ".join(why)
            return Outcome(one.expression, self._ansi, "different", len(failed), text)
        return Outcome(one.expression, self._ansi, one.by, len(failed))

    # As a continuous query evaluates it.

    def _operators(self, named: Sequence[Any]) -> list[Any]:
        return operators_of(project(rows_of(self._spark, self._batch.schema, self._places), list(named)))

    def _ours(self, wanted: Sequence[_Analyzed], theirs: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the rows of each expression: all in few projections, but for those that fail."""
        together: dict[bool, list[int]] = {}
        for place, (one, rows) in enumerate(zip(wanted, theirs, strict=True)):
            if not _failed(rows):  # what asks for elements has all that is evaluated with it given copies of them
                together.setdefault(_asks_for_elements(one.value), []).append(place)
        found: dict[int, list[Any]] = {}
        for places in together.values():
            operators = self._operators([wanted[place].named for place in places])
            with suppress(HeadgateError, pa.ArrowException), opened(operators, self._zone) as evaluate:
                found |= zip(places, map(comparable, evaluate(self._batch).columns), strict=True)
        return [
            found[place] if place in found else self._alone(one, set(_failed(rows)))
            for place, (one, rows) in enumerate(zip(wanted, theirs, strict=True))
        ]

    def _alone(self, one: _Analyzed, failed: Set[int]) -> list[Any]:
        """Return the rows of an expression, of which some fail."""
        others = [place for place in range(self._batch.num_rows) if place not in failed]
        try:
            with opened(self._operators([one.named]), self._zone) as evaluate:
                found = dict(
                    zip(others, _halved(evaluate, self._batch.take(pa.array(others, pa.int64()))), strict=True)
                )
                for place in failed:
                    (found[place],) = _halved(evaluate, self._batch.slice(place, 1))
        except ExpressionError as error:  # Spark's code cannot be made for it
            return [Failed(error.condition)] * self._batch.num_rows
        return [found[place] for place in range(len(found))]

    # As Spark does.

    def _by_spark(self, wanted: Sequence[_Analyzed]) -> list[list[Any]]:
        """Return the rows of each expression."""
        if not wanted:
            return []
        try:
            return self._columns(self._frame, [each.value for each in wanted])
        except Exception:
            pass
        try:
            tried = self._tried(wanted)
        except Exception:  # it failed for good: of what has failed once, or in a way that is not caught
            if len(wanted) == 1:
                return [self._row_by_row(wanted[0], range(self._batch.num_rows), self._batch.num_rows)]
            return [self._by_spark([each])[0] for each in wanted]
        if len(wanted) == 1:
            return tried
        whole = [place for place, each in enumerate(tried) if not _failed(each)]
        if len(whole) < len(wanted):
            for place, rows in zip(whole, self._by_spark([wanted[place] for place in whole]), strict=True):
                tried[place] = rows
            return tried
        return [self._by_spark([each])[0] for each in wanted]

    def _tried(self, wanted: Sequence[_Analyzed]) -> list[list[Any]]:
        """Return the rows of each expression, some of which fail."""
        name = singleton("catalyst.expressions.Literal").apply("value")
        tried, struct, nullable = (
            sql_class(f"catalyst.expressions.{each}") for each in ("TryEval", "CreateNamedStruct", "KnownNullable")
        )
        structs = [tried(struct(sequence([name, nullable(each.value)]))) for each in wanted]
        before = self._spark.conf.get(_COMMON_PARTS)
        self._spark.conf.set(_COMMON_PARTS, "false")  # they would be evaluated where nothing is tried
        try:
            columns = self._columns(self._frame, structs)
        finally:
            self._spark.conf.set(_COMMON_PARTS, str(before))
        return [[Failed(None) if row is None else row[0] for row in each] for each in columns]

    def _columns(self, frame: DataFrame, values: Sequence[Any]) -> list[list[Any]]:
        """Return the rows of each expression over a frame, none of which fails."""
        kinds = [str(each.dataType().catalogString()) for each in values]
        variants = [place for place, kind in enumerate(kinds) if "variant" in kind]
        if variants and len(variants) < len(values):
            parts = {place: self._columns(frame, [values[place]])[0] for place in variants}
            others = iter(self._columns(frame, [each for place, each in enumerate(values) if place not in parts]))
            return [parts[place] if place in parts else next(others) for place in range(len(values))]
        selected = data_frame(self._spark, projection(values, frame._jdf.queryExecution().analyzed()))
        if variants:  # PySpark 4.3 makes no Arrow table of those that are null
            return [list(map(_collected, each)) for each in zip(*selected.collect())] or [[] for _ in values]
        return [comparable(_one(each)) for each in selected.toArrow().columns]

    def _row_by_row(self, one: _Analyzed, failed: Sequence[int], rows: int) -> list[Any]:
        """Return the rows of an expression: of those that may fail each by itself, of the others together.

        What has failed once may keep what it had begun with, in Spark, too (a map its keys).
        """
        found: list[Any] = [None] * rows
        others = [place for place in range(rows) if place not in set(failed)]
        try:
            (made,) = self._columns(self._only(others), [one.value])
            for place, value in zip(others, made, strict=True):
                found[place] = value
        except Exception as error:
            found = [Failed(condition_of(error))] * rows
        for place in failed:
            try:
                ((found[place],),) = self._columns(self._only([place]), [one.value])
            except Exception as error:
                found[place] = Failed(condition_of(error))
        return found

    def _only(self, places: Sequence[int]) -> DataFrame:
        numbers = [self._batch.column("n")[place].as_py() for place in places]
        return self._frame.filter(self._frame["n"].isin(numbers))

    def _condition(self, one: _Analyzed) -> str | None:
        try:
            self._columns(self._frame, [one.value])
        except Exception as error:
            return condition_of(error)
        return "none"


def _asks_for_elements(expression: Any) -> bool:
    """Return whether an expression, or a part of it, has rows copied for it in Evaluator.java."""
    left = [PlanCopy().of(expression)]
    while left:
        each = left.pop()
        if any(is_a(each, trait) for trait in _ASKING):
            return True
        left += items(each.children())
        if is_a(each, "RuntimeReplaceable"):
            left.append(each.replacement())
    return False


def _halved(evaluate: Evaluate, batch: pa.RecordBatch) -> list[Any]:
    """Return the rows of an expression: where it fails, on halves of them, down to a single one."""
    if not batch.num_rows:
        return []
    try:
        return comparable(evaluate(batch).column(0))
    except (HeadgateError, pa.ArrowException) as error:
        if batch.num_rows == 1:
            return [Failed(error.condition if isinstance(error, ExpressionError) else None)]
    half = batch.num_rows // 2
    return _halved(evaluate, batch.slice(0, half)) + _halved(evaluate, batch.slice(half))


def _failed(rows: Sequence[Any]) -> list[int]:
    return [place for place, each in enumerate(rows) if isinstance(each, Failed)]


def _differences(ours: Sequence[Any], theirs: Sequence[Any]) -> list[int]:
    """Return the places of different rows."""

    def key(value: Any) -> Any:
        return Failed if isinstance(value, Failed) else value

    return [place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if key(one) != key(other)]


def _collected(value: Any) -> Any:
    """Return a variant, or a struct of one, as `comparable` has it."""
    from pyspark.sql.types import VariantVal

    if isinstance(value, VariantVal):
        return bytes(value.value), bytes(value.metadata)
    return tuple(map(_collected, value)) if isinstance(value, tuple) else value


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def comparable(values: pa.Array) -> list[Any]:
    """Return values that are equal where Spark's are: moments as numbers, texts as bytes, floats by their bits."""
    return _comparable(with_java_texts(values))


def _comparable(values: pa.Array) -> list[Any]:
    kind, types = values.type, pa.types
    if types.is_struct(kind):
        fields = [_comparable(each) for each in values.flatten()]
        rows: list[Any] = list(zip(*fields)) if fields else [()] * len(values)
    elif types.is_map(kind):
        entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
        rows = _lists(values.offsets, _comparable(entries))
    elif types.is_list(kind):
        rows = _lists(values.offsets, _comparable(values.values))
    elif types.is_floating(kind):
        bits = pa.int32() if kind.bit_width == 32 else pa.int64()
        nan = pa.scalar(float("nan"), kind)
        rows = pc.if_else(pc.is_nan(values), nan, values).view(bits).to_pylist()
    elif types.is_string(kind):
        rows = values.view(pa.binary()).to_pylist()
    elif types.is_temporal(kind):
        rows = values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    else:
        rows = values.to_pylist()
    return [None if is_null else row for row, is_null in zip(rows, values.is_null().to_pylist(), strict=True)]


def _lists(offsets: pa.Array, elements: list[Any]) -> list[Any]:
    places = offsets.to_pylist()
    return [elements[first:last] for first, last in pairwise(places)]
