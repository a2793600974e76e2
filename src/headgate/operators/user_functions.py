"""`UserFunctions`: calls Python, pandas and Arrow UDFs on columns; `MapInPandas`: a function over the rows at hand.

Never: convert a value, or check what a function returns: PySpark's own worker code does, here without a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.protocol.operator_context import OperatorContext


class UserFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A UDF, or several that are called one on the result of the other.

    Parameters
    ----------
    functions
        What was pickled for Spark: functions with the types of their results, the first one first.
    arguments, named
        The places of its arguments among those of the operator; the latter by the parameter's name.
    """

    functions: tuple[tuple[Any, Any], ...]
    arguments: tuple[int, ...] = ()
    named: Mapping[str, int] = {}


class UserFunctions(Operator):
    """Adds a column for each function to its input's.

    Parameters
    ----------
    schema
        The columns of its input.
    arguments
        The places of those that the functions are called on.
    argument_types
        The types of these, as Spark's JSON.
    fields
        The columns that are added.
    functions
        The functions, all of one kind.
    eval_type
        Which kind: one of ``pyspark.util.PythonEvalType``.
    conf
        The session's settings that Spark gives to its Python workers.
    texts
        The calls, as Spark writes them.
    """

    kind = "select"

    blocks = True

    def __init__(
        self,
        schema: pa.Schema,
        arguments: Sequence[int],
        argument_types: Sequence[str],
        fields: Sequence[pa.Field],
        functions: Sequence[UserFunction],
        eval_type: int,
        conf: Mapping[str, str],
        texts: Sequence[str],
    ) -> None:
        self._arguments = list(arguments)
        self._input = pa.schema([schema.field(each).with_name(f"_{n}") for n, each in enumerate(arguments)])
        self._types = list(argument_types)
        self._functions = list(functions)
        self._eval_type = eval_type
        self._conf = dict(conf)
        self.function = ", ".join(texts)
        self.schema = pa.schema([*schema, *fields])

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Let PySpark make of the functions what it calls in a worker."""
        from headgate.spark.compatibility import Call, worker_function

        calls = [Call(each.functions, each.arguments, each.named) for each in self._functions]
        self._call = worker_function(calls, self._eval_type, self._conf, self._types)
        self._given = in_zone(self._input, self._conf["spark.sql.session.timeZone"])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows with the results; what a function raises is raised."""
        if self._arguments:
            given = [batch.column(each) for each in self._arguments]
            arguments = pa.RecordBatch.from_arrays(given, schema=self._input).cast(self._given)
        else:
            arguments = pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        made = pa.Table.from_batches(list(self._call(0, iter((arguments,))))).combine_chunks()
        columns = list(batch.columns)
        for column, field in zip(made.columns, list(self.schema)[batch.num_columns :], strict=True):
            array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            columns.append(array if array.type == field.type else array.cast(field.type))
        emit(pa.RecordBatch.from_arrays(columns, schema=self.schema), split_id)


class MapInPandas:
    """A function of ``mapInPandas`` as one of ``mapInArrow``.

    Parameters
    ----------
    function
        The function, with the type of what it yields.
    conf
        The session's settings that Spark gives to its Python workers.
    """

    def __init__(self, function: tuple[Any, Any], conf: Mapping[str, str]) -> None:
        self._function = function
        self._conf = dict(conf)
        self.__qualname__ = str(getattr(function[0], "__qualname__", type(function[0]).__qualname__))

    def open(self) -> None:
        """Let PySpark make of the function what it calls in a worker."""
        from pyspark.util import PythonEvalType

        from headgate.spark.compatibility import Call, worker_function

        kind = PythonEvalType.SQL_MAP_PANDAS_ITER_UDF
        self._call = worker_function([Call((self._function,), (), {})], kind, self._conf, [])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield what the function does."""
        return map(_out_of_a_struct, self._call(0, map(_as_a_struct, batches)))


def in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """Return columns whose moments are of the session's time zone, as in batches that Spark sends to Python."""
    return pa.schema([each.with_type(_in_zone(each.type, zone)) for each in schema])


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    if pa.types.is_map(kind):
        key, item = (each.with_type(_in_zone(each.type, zone)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_zone(each.type, zone)) for each in kind])
    return kind


def _as_a_struct(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch as the one column that Spark sends for a whole row."""
    return pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"])


def _out_of_a_struct(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(batch.column(0))
