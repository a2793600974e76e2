"""How ``groupBy(...).transformWithState(...)`` becomes nodes of a plan: the arguments are checked here.

Never: call a processor for a key: only a copy's ``init`` and ``close``, as Spark does on its driver, to learn of its
states.

Follows ``RelationalGroupedDataset.transformWithState`` of Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound, Column, Name, index_of
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
    from pyspark.sql.types import StructType

MAX_INITIAL_STATE_BYTES = 64 << 20
"""It goes to every slot with the query."""
_TIME_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


def stateful_node(
    node: PlanNode,
    by: Sequence[Any],
    time_zone: str,
    processor: Any,
    output: StructType | str | pa.Schema,
    output_mode: str,
    time_mode: str,
    initial_state: Any,
    event_time_column: str,
    *,
    pandas: bool,
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
    mode = time_mode.lower() if isinstance(time_mode, str) else ""
    if mode not in _TIME_MODES:
        raise OptionError(
            f"transformWithState: timeMode is {time_mode!r}; it can be {', '.join(_TIME_MODES.values())}.",
            option="timeMode", value=time_mode,
        )  # fmt: skip
    node, keys = _with_keys(node, by, time_zone)
    event_time = marked or event_time_of(node) if mode == "eventtime" else None
    if mode == "eventtime" and event_time is None:
        raise OptionError(
            "transformWithState: timeMode EventTime needs a watermark, and the rows' event time is not among their "
            "columns: call withWatermark(column, delay) before groupBy, and keep the column.",
            option="timeMode", value=time_mode,
        )  # fmt: skip
    columns = arrow_schema(output)
    definition = Definition(
        keys=keys,
        input=node.schema,
        output=columns,
        time_mode=cast(TimeMode, mode),
        event_time=event_time,
        output_event_time=_output_event_time(columns, event_time_column, mode),
        pandas=pandas,
        initial_state=None if initial_state is None else _initial_state(initial_state, node.schema, keys),
        schemas=_schemas(processor, mode),
    )
    exchange = Exchange(node.schema, "hash", keys=keys)
    return node.then(exchange).then(TransformWithState(processor, definition))


def _check_processor(processor: Any, output_mode: Any) -> None:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if not isinstance(processor, StatefulProcessor):
        raise OptionError(
            f"transformWithState: {processor!r} is not a StatefulProcessor; derive it from "
            "pyspark.sql.streaming.StatefulProcessor.",
            option="statefulProcessor", value=repr(processor),
        )  # fmt: skip
    if not isinstance(output_mode, str) or output_mode.lower() not in ("append", "update"):
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
        case TransformWithState() as before:
            return before.event_time_column == name
        case Project() as project:
            made_of = project.expression_of(name)
            if isinstance(made_of, Bound):
                return _is_event_time(node.inputs[0], node.inputs[0].schema.names[made_of.index])
            return isinstance(made_of, Name) and _is_event_time(node.inputs[0], made_of.path.replace("`", ""))
        case Union():
            place = node.schema.names.index(name)
            return all(_is_event_time(each, each.schema.names[place]) for each in node.inputs)
        case Filter() | Exchange():
            return _is_event_time(node.inputs[0], name)
    return False


def _with_keys(node: PlanNode, by: Sequence[Any], time_zone: str) -> tuple[PlanNode, tuple[str, ...]]:
    """Return a node with the columns of the key among its own, and their names."""
    if not by or not all(isinstance(each, Column) for each in by):
        raise OptionError(
            "transformWithState: group by one or more columns; windows are for agg, a processor keeps its own.",
            option="groupBy", value=[repr(each) for each in by],
        )  # fmt: skip
    keys, made = [], []
    for column in by:
        path = column.node.path.replace("`", "") if isinstance(column.node, Name) else None
        name = column.name_in_output
        if path is not None and path == name and "." not in path:
            keys.append(node.schema.names[index_of(node.schema, path)])
        else:
            keys.append(name)
            made.append(column)
    if made:
        own = [Column(Name(f"`{name}`")) for name in node.schema.names]
        node = node.then(Project(node.schema, [*made, *own], time_zone))
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise OptionError(f"groupBy: duplicate key {', '.join(twice)}.", option="groupBy", value=twice)
    for key in keys:
        check_key_type(repr(key), node.schema.field(key).type)
    return node, tuple(keys)


def _output_event_time(columns: pa.Schema, name: str, mode: str) -> str | None:
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


def _schemas(processor: Any, mode: str) -> dict[str, str]:
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
    own.init(Handle(cast(TimeMode, mode), parse))
    own.close()
    return found


def _initial_state(given: Any, schema: pa.Schema, keys: tuple[str, ...]) -> pa.Table:
    """Return the initial state as a table, its keys with the types that they have in the stream."""
    table = _collected(given)
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


def _collected(given: Any) -> pa.Table:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if isinstance(given, pa.Table):
        return given.cast(to_arrow_schema(from_arrow_schema(given.schema), timezone="UTC"))
    try:
        frame = getattr(given, "_df", given)  # of what Spark's groupBy returns
        if not hasattr(frame, "toArrow"):
            frame = SparkSession.active().createDataFrame(frame)
        table: pa.Table = frame.toArrow()
    except (PySparkException, TypeError, ValueError) as error:
        raise OptionError(
            f"transformWithState: initialState is {type(given).__name__}, which cannot be read: {error}. Give a batch "
            "DataFrame, also grouped by the same keys, a pandas DataFrame, a pyarrow.Table or a list of Rows.",
            option="initialState", value=type(given).__name__,
        ) from error  # fmt: skip
    return table.cast(to_arrow_schema(frame.schema, timezone="UTC"))
