"""The nodes of a plan for groups of rows: what is computed before, the exchange by key, and the operator of the groups.

Never: start anything, or compute an aggregate: the operators of `headgate.operators.windows` do.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.expressions.compiled import type_in
from headgate.expressions.expressions import Bound, Call, Column, Constant, Node, text_of
from headgate.graph.plan import PlanNode, source_column
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.operators.project import Project
from headgate.operators.windows.aggregates import Aggregate, accumulator_of
from headgate.operators.windows.assigner import NoWindow, SessionWindow, TimeWindow
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.sessions import SessionAggregate
from headgate.operators.windows.windowed import Aggregated, Key, WindowedAggregate
from headgate.protocol.state_schema import StateColumn, StateSchema


def grouped(
    before: PlanNode,
    by: Sequence[Column | TimeWindow | SessionWindow],
    window: TimeWindow | SessionWindow | NoWindow,
    aggregates: Sequence[Aggregate],
    time_zone: str,
) -> PlanNode:
    """Return the node of the aggregates of groups.

    Parameters
    ----------
    before
        The rows.
    by
        Keys, and the window, in the order of the output.
    window
        The window among them, or how long groups live without one.
    aggregates
        What is computed of each group.
    time_zone
        The session's.

    Raises
    ------
    OptionError
        A key has a type that rows cannot be grouped by.
    """
    columns = _Columns(before.schema)
    stood_for = [_stood_for(each.node) for each in by if isinstance(each, Column)]
    kinds_of = [type_in(each, before.schema, time_zone) for each in stood_for]
    keys = [
        Key(columns.take(each.node, _name(each)), _name(each), None if of is each.node else kind)
        for each, of, kind in zip((each for each in by if isinstance(each, Column)), stood_for, kinds_of)
    ]
    time = None if window.time is None else columns.take(window.time)
    end = columns.take(window.end) if isinstance(window, SessionWindow) and window.end is not None else None
    taken = [None if each.argument is None else columns.take(each.argument) for each in aggregates]
    # Without a key all rows are of one group: they have a constant in common.
    keyed_by = keys or [Key(columns.take(Constant(0, pa.int32()), "all"), None)]
    node = columns.project(before, time_zone)
    types = {field.name: field.type for field in node.schema}
    for key in keyed_by:
        check_key_type(repr(key.column), types[key.column])
    kinds = [None if column is None else types[column] for column in taken]
    made = [
        Aggregated(each.name_in_output, accumulator_of(each, kind), column)
        for each, kind, column in zip(aggregates, kinds, taken)
    ]
    names = [*map(_name, by), *(each.name_in_output for each in aggregates)]
    operator = _operator(node.schema, window, (time, end), keyed_by, made, names)
    operator.has_event_time = isinstance(window, NoWindow) or _is_event_time(before, window)
    kept = ", ".join(each.state_text(kind) for each, kind in zip(aggregates, kinds))
    texts = list(map(text_of, stood_for)) or ["all"]
    key_types = list(map(str, kinds_of)) or [str(types[keyed_by[0].column])]
    text = ", ".join(f"{text} {kind}" for text, kind in zip(texts, key_types))
    operator.signature = f"{kept} in {window.text} by {text}"
    key_columns = tuple(StateColumn(name=text, kind=kind) for text, kind in zip(texts, key_types))
    kept_columns = tuple(each.state_column(kind) for each, kind in zip(aggregates, kinds))
    operator.state_schema = StateSchema(window=window.text, keys=key_columns, aggregates=kept_columns)
    return node.then(Exchange(node.schema, "hash", keys=tuple(key.column for key in keyed_by))).then(operator)


def _stood_for(node: Node) -> Node:
    """Return what a key is: of the bytes of what is nested, that."""
    return node.arguments[0] if isinstance(node, Call) and node.function == "key_bytes" else node


def _name(by: Column | TimeWindow | SessionWindow) -> str:
    return by.name_in_output if isinstance(by, Column) else by.name


def _is_event_time(node: PlanNode, window: TimeWindow | SessionWindow) -> bool:
    """Return whether a window's times are no other column of the source than its watermarks are of."""
    column = source_column(node, window.time.index) if isinstance(window.time, Bound) else None
    if column is None:
        return True  # an operator made it; who made it knows
    while node.inputs:
        node = node.inputs[0]
    assert isinstance(node.of, SourceDefinition)
    strategy = node.of.watermark_strategy
    return strategy is None or strategy.event_time_column.lower() == column.lower()


def _operator(
    schema: pa.Schema,
    window: TimeWindow | SessionWindow | NoWindow,
    times: tuple[str | None, str | None],
    keys: Sequence[Key],
    aggregates: Sequence[Aggregated],
    columns: Sequence[str],
) -> WindowedAggregate:
    time, end = times
    if isinstance(window, SessionWindow):
        assert time is not None
        return SessionAggregate(schema, window, time=time, end=end, keys=keys, aggregates=aggregates, columns=columns)
    return WindowAggregate(schema, window, time=time, keys=keys, aggregates=aggregates, columns=columns)


class _Columns:
    """The columns that an operator needs, each once: those of the rows as they are, others computed before."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._taken = set(schema.names)
        self._names: dict[str, str] = {}
        self._made: list[Column] = []

    def take(self, node: Node, name: str | None = None) -> str:
        """Return the name of a column with the value of an expression; ``name`` is what it is called if it is made."""
        if isinstance(node, Bound):
            free = self._schema.field(node.index).name
        else:
            wanted = free = name or text_of(node)
            number = 1
            while free in self._taken:
                number += 1
                free = f"{wanted} {number}"
        known = repr(node)
        if known not in self._names:
            self._taken.add(free)
            self._names[known] = free
            self._made.append(Column(node, free))
        return self._names[known]

    def project(self, before: PlanNode, time_zone: str) -> PlanNode:
        """Return a node with these columns only."""
        if list(before.schema.names) == [each.name_in_output for each in self._made]:
            return before
        return before.then(Project(before.schema, self._made, time_zone))
