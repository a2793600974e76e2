"""How ``groupBy(...).transformWithState(...)`` becomes nodes of a plan: what Spark does not check is checked here.

Never: call a processor for a key: only a copy's ``init`` and ``close``, as Spark does on its driver, to learn of its
states.

Follows ``RelationalGroupedDataset.transformWithState`` of Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.key_hash import check_key_type
from headgate.operators.project import Project
from headgate.operators.transform_with_state.transform_with_state import (
    Definition,
    TimeMode,
    TransformWithState,
    pickled,
)
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.spark.continuous.copies import Copies
from headgate.spark.continuous.settings import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MAX_INITIAL_STATE_BYTES = 64 << 20
"""It goes to every slot with the query."""


def stateful_node(
    node: PlanNode,
    keys: Sequence[str],
    processor: Any,
    output: StructType,
    output_mode: str,
    mode: TimeMode,
    initial_state: DataFrame | None,
    event_time_column: str,
    *,
    pandas: bool,
    conf: Mapping[str, str],
    marked: str | None = None,
) -> PlanNode:
    """Return the node of a processor downstream of the exchange by its keys.

    ``marked`` is the column of the rows that Spark's analyzer knows as their event time.

    Raises
    ------
    OptionError
        An argument is wrong.
    """
    _check_processor(processor, output_mode)
    _check_keys(keys, node.schema)
    event_time = marked or event_time_of(node) if mode == "eventtime" else None
    if mode == "eventtime" and event_time is None:
        raise OptionError(
            "transformWithState: timeMode EventTime needs a watermark, and the rows' event time is not among their "
            "columns: call withWatermark(column, delay) before groupBy, and keep the column.",
            option="timeMode", value=mode,
        )  # fmt: skip
    columns = arrow_schema(output)
    definition = Definition(
        keys=tuple(keys),
        input=node.schema,
        output=columns,
        time_mode=mode,
        event_time=event_time,
        output_event_time=_output_event_time(columns, event_time_column, mode),
        pandas=pandas,
        initial_state=None if initial_state is None else _initial_state(initial_state, node.schema, keys),
        schemas=_schemas(processor, mode),
        conf=conf,
    )
    exchange = Exchange(node.schema, "hash", keys=tuple(keys))
    return node.then(exchange).then(TransformWithState(processor, definition))


def _check_processor(processor: Any, output_mode: Any) -> None:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if not isinstance(processor, StatefulProcessor):
        raise OptionError(
            f"transformWithState: {processor!r} is not a StatefulProcessor; derive it from "
            "pyspark.sql.streaming.StatefulProcessor.",
            option="statefulProcessor", value=repr(processor),
        )  # fmt: skip
    if output_mode.lower() not in ("append", "update"):
        raise OptionError(
            f"transformWithState: outputMode is {output_mode!r}; it can be append or update, which are the same here: "
            "the processor says which rows there are.",
            option="outputMode", value=output_mode,
        )  # fmt: skip


def event_time_of(node: PlanNode) -> str | None:
    """Return which column of a node's rows has the event time by which watermarks are made; None: there is none."""
    return next((name for name in node.schema.names if _is_event_time(node, name)), None)


def _is_event_time(node: PlanNode, name: str) -> bool:
    match node.of:
        case SourceDefinition(watermark_strategy=strategy):
            return strategy is not None and strategy.event_time_column == name
        case WithWatermark(column=column):
            return column == name
        case TransformWithState(event_time_column=column):
            return column == name
        case Project() as project:
            made_of = project.expression_of(name)
            before = node.inputs[0]
            return isinstance(made_of, Bound) and _is_event_time(before, before.schema.names[made_of.index])
        case Union():
            place = node.schema.names.index(name)
            return all(_is_event_time(each, each.schema.names[place]) for each in node.inputs)
        case Filter() | Exchange():
            return _is_event_time(node.inputs[0], name)
    return False


def _check_keys(keys: Sequence[str], schema: pa.Schema) -> None:
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise OptionError(f"groupBy: duplicate key {', '.join(twice)}.", option="groupBy", value=twice)
    for key in keys:
        check_key_type(repr(key), schema.field(key).type)


def _output_event_time(columns: pa.Schema, name: str, mode: TimeMode) -> str | None:
    if not name:
        return None
    if mode != "eventtime":
        raise OptionError(
            "transformWithState: eventTimeColumnName goes with timeMode EventTime.",
            option="eventTimeColumnName", value=name,
        )  # fmt: skip
    if name not in columns.names or not pa.types.is_timestamp(columns.field(name).type):
        raise OptionError(
            f"transformWithState: eventTimeColumnName is {name!r}; it must be a timestamp of outputStructType, which "
            f"has {', '.join(f'{field.name} {field.type}' for field in columns)}.",
            option="eventTimeColumnName", value=name,
        )  # fmt: skip
    return name


def _schemas(processor: Any, mode: TimeMode) -> dict[str, str]:
    """Return what the schemas mean that a processor's ``init`` gives as text, as Spark's JSON."""
    from pyspark.sql.types import StructType

    from headgate.operators.transform_with_state.handle import Handle

    found: dict[str, str] = {}

    def parse(text: str) -> StructType:
        schema = StructType.fromDDL(text)
        if not isinstance(schema, StructType):
            raise OptionError(
                f"transformWithState: the schema {text!r} of a state is not a row; write one like 'count long'.",
                option="schema", value=text,
            )  # fmt: skip
        found[text] = schema.json()
        return schema

    own = Copies().loads(pickled(processor))
    own.init(Handle(mode, parse))
    own.close()
    return found


def _initial_state(given: DataFrame, schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Return the initial state as a table, its keys with the types that they have in the stream."""
    from headgate.spark.compatibility import to_arrow_schema

    table = given.toArrow().cast(to_arrow_schema(given.schema))
    missing = [key for key in keys if key not in table.schema.names]
    if missing:
        raise OptionError(
            f"transformWithState: initialState has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(table.schema.names)}. Name its keys as those of the stream.",
            option="initialState", value=missing,
        )  # fmt: skip
    for key in keys:
        wanted = schema.field(key).type
        try:
            table = table.set_column(table.schema.get_field_index(key), key, table[key].cast(wanted))
        except pa.ArrowException as error:
            raise OptionError(
                f"transformWithState: the key {key!r} of initialState has the type {table[key].type}; that of the "
                f"stream is {wanted}: {error}.",
                option="initialState", value=key,
            ) from error  # fmt: skip
    if table.nbytes > MAX_INITIAL_STATE_BYTES:
        raise OptionError(
            f"transformWithState: initialState has {table.nbytes >> 20} MiB, and may have "
            f"{MAX_INITIAL_STATE_BYTES >> 20}: it goes to every slot. Read it as a source and union it with the "
            "stream, before groupBy.",
            option="initialState", value=table.nbytes,
        )  # fmt: skip
    return table
