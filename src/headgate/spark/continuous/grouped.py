"""What ``ContinuousStream.groupBy(...)`` returns: rows grouped by keys, before anything is computed of the groups.

Never: start anything: it adds nodes to the plan, and what is wrong is an `OptionError` in the line that is wrong.

The names are PySpark's: ``agg``, ``count`` ..., ``transformWithState``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from headgate import functions
from headgate.errors import OptionError
from headgate.expressions.expressions import Bound, Column, Constant, Name, Node, index_of, split_path, text_of
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
from headgate.spark.continuous.stateful import stateful_node

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

Stream = TypeVar("Stream")


class GroupedStream(Generic[Stream]):
    """Rows grouped by keys. Made by `ContinuousStream.groupBy`.

    Parameters
    ----------
    node
        The rows' node in the plan.
    by
        Keys, and at most one window, or how long groups live without one.
    time_zone
        The session's.
    stream_of
        Makes the stream of what becomes of the groups.
    """

    def __init__(
        self,
        node: PlanNode,
        by: Sequence[Column | TimeWindow | SessionWindow | NoWindow],
        time_zone: str,
        stream_of: Callable[[PlanNode], Stream],
    ) -> None:
        self._stream_of = stream_of
        self._node = node
        self._by = tuple(each for each in by if not isinstance(each, NoWindow))
        self._windows = [each for each in by if not isinstance(each, Column)]
        self._time_zone = time_zone

    def __repr__(self) -> str:
        return f"GroupedStream[{', '.join(_name(each) for each in self._by)}]"

    def agg(self, *exprs: Aggregate) -> Stream:
        """Aggregate each group, and forget it when its window is over; without a window never.

        One subtask has all rows of a group. In output mode ``append`` a group is emitted once, when the watermark is at
        the end of its window; in ``update`` also before every checkpoint, if it changed; in ``complete`` all groups are
        emitted before every checkpoint, and none is forgotten.

        Parameters
        ----------
        exprs
            Aggregates of `headgate.functions`: ``sum("amount").alias("total")``.

        Raises
        ------
        OptionError
            There are several windows among what is grouped by, a column is missing or has the wrong type, two columns
            of the output have the same name, or the window's times are not those of the watermark.
        """
        window = self._window()
        _check_aggregates(exprs)
        names = [*map(_name, self._by), *(each.name_in_output for each in exprs)]
        _check_once("agg", names)
        columns = _Columns(self._node.schema)
        keys = [
            Key(columns.take(each.node, each.name_in_output), each.name_in_output)
            for each in self._by
            if isinstance(each, Column)
        ]
        time = None if window.time is None else columns.take(window.time)
        taken = [None if each.argument is None else columns.take(each.argument) for each in exprs]
        # Without a key all rows are of one group: they have a constant in common.
        keyed_by = keys or [Key(columns.take(Constant(0, pa.int32()), "all"), None)]
        node = columns.project(self._node, self._time_zone)
        types = {field.name: field.type for field in node.schema}
        for key in keyed_by:
            check_key_type(repr(key.column), types[key.column])
            _check_grouped(key.column, types[key.column])
        if time is not None and not isinstance(window, NoWindow):
            self._check_is_event_time(window, types[time])
        kinds = [None if column is None else types[column] for column in taken]
        aggregates = [
            Aggregated(each.name_in_output, accumulator_of(each, kind), column)
            for each, kind, column in zip(exprs, kinds, taken)
        ]
        operator: WindowedAggregate
        if isinstance(window, SessionWindow):
            assert time is not None
            operator = SessionAggregate(
                node.schema, window, time=time, keys=keyed_by, aggregates=aggregates, columns=names
            )
        else:
            operator = WindowAggregate(
                node.schema, window, time=time, keys=keyed_by, aggregates=aggregates, columns=names
            )
        kept = ", ".join(each.state_text(kind) for each, kind in zip(exprs, kinds))
        texts = [text_of(each.node) for each in self._by if isinstance(each, Column)] or ["all"]
        by = ", ".join(f"{text} {types[key.column]}" for text, key in zip(texts, keyed_by))
        operator.signature = f"{kept} in {window.text} by {by}"
        exchanged = node.then(Exchange(node.schema, "hash", keys=tuple(key.column for key in keyed_by)))
        return self._stream_of(exchanged.then(operator))

    def count(self) -> Stream:
        """Count the rows of each group, as the column ``count``: see `agg`."""
        return self.agg(functions.count().alias("count"))

    def sum(self, *cols: str) -> Stream:
        """Add up columns for each group, as ``sum(NAME)``: see `agg`."""
        return self.agg(*map(functions.sum, cols))

    def avg(self, *cols: str) -> Stream:
        """Average columns for each group, as ``avg(NAME)``: see `agg`."""
        return self.agg(*map(functions.avg, cols))

    def min(self, *cols: str) -> Stream:
        """Find the least value of columns for each group, as ``min(NAME)``: see `agg`."""
        return self.agg(*map(functions.min, cols))

    def max(self, *cols: str) -> Stream:
        """Find the greatest value of columns for each group, as ``max(NAME)``: see `agg`."""
        return self.agg(*map(functions.max, cols))

    def _window(self) -> TimeWindow | SessionWindow | NoWindow:
        """Return the one window among what is grouped by."""
        windows = self._windows or [NoWindow()]
        if len(windows) != 1:
            raise OptionError(
                f"groupBy has {len(windows)} windows; an aggregation has one at most: "
                'groupBy(window("at", "10 seconds"), ...) or session_window("at", "5 minutes").',
                option="groupBy", value=len(windows),
            )  # fmt: skip
        return windows[0]

    def _check_is_event_time(self, window: TimeWindow | SessionWindow, kind: pa.DataType) -> None:
        """Check that a window's times are timestamps, and no other column of the source than its watermarks are of."""
        if not pa.types.is_timestamp(kind):
            raise OptionError(
                f"{window.name}: {text_of(window.time)} has the type {kind}; it must be a timestamp.",
                option="groupBy", value=text_of(window.time),
            )  # fmt: skip
        node = self._node
        column = None
        if isinstance(window.time, Bound):
            column = source_column(node, window.time.index)
        elif isinstance(window.time, Name) and len(path := split_path(window.time.path)) == 1:
            column = source_column(node, index_of(node.schema, path[0]))
        if column is None:
            return  # an operator made it; who made it knows
        while node.inputs:
            node = node.inputs[0]
        assert isinstance(node.of, SourceDefinition)
        strategy = node.of.watermark_strategy
        if strategy is not None and strategy.event_time_column.lower() != column.lower():
            raise OptionError(
                f"groupBy: the windows are of {column!r}, and the watermark is of {strategy.event_time_column!r}, "
                f"which says nothing about when they end. Call withWatermark({column!r}, ...), or group by windows of "
                f"{strategy.event_time_column!r}.",
                option="groupBy", value=column,
            )  # fmt: skip

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str | pa.Schema,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> Stream:
        """Call a processor of the user's for each key; it keeps state and timers.

        One subtask has all rows of a key. State and timers are part of every checkpoint.

        Parameters
        ----------
        statefulProcessor
            A `pyspark.sql.streaming.StatefulProcessor` that takes and yields `Row` objects. Each subtask has a copy.
        outputStructType
            The columns of what it yields.
        outputMode
            ``append`` or ``update``: the processor decides which rows are emitted, so both mean the same.
        timeMode
            ``None``, ``ProcessingTime`` or ``EventTime``: which timers there are.
        initialState
            For ``handleInitialState``, once, when the query first starts: a batch DataFrame, also grouped by the same
            keys, a pandas DataFrame, a ``pyarrow.Table`` or a list of rows; at most 64 MiB.
        eventTimeColumnName
            The column of the output that has the event time for what follows.

        Raises
        ------
        OptionError
            An argument is wrong.

        Examples
        --------
        >>> stream.groupBy("user").transformWithState(  # doctest: +SKIP
        ...     Sessions(), "user string, rides long", "append", "EventTime"
        ... )
        """
        return self._stateful(
            statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName, pandas=False
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str | pa.Schema,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> Stream:
        """Do as `transformWithState` does, with a processor that takes and yields ``pandas.DataFrame`` objects."""
        return self._stateful(
            statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName, pandas=True
        )

    def _stateful(self, *arguments: Any, pandas: bool) -> Stream:
        return self._stream_of(stateful_node(self._node, self._by, self._time_zone, *arguments, pandas=pandas))


def _name(by: Column | TimeWindow | SessionWindow) -> str:
    return by.name_in_output if isinstance(by, Column) else by.name


def _check_aggregates(exprs: Sequence[Aggregate]) -> None:
    for each in exprs:
        if not isinstance(each, Aggregate):
            raise OptionError(
                f"agg: {each!r} is not an aggregate; write one like sum('amount') of headgate.functions.",
                option="agg", value=repr(each),
            )  # fmt: skip
    if not exprs:
        raise OptionError("agg: it needs at least one aggregate.", option="agg", value=None)


def _check_once(what: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(
            f"{what}: {', '.join(map(repr, twice))} appears more than once among the columns. Use alias().",
            option=what, value=twice,
        )  # fmt: skip


def _check_grouped(name: str, kind: pa.DataType) -> None:
    """Check that Arrow can group by a column."""
    if pa.types.is_nested(kind):
        raise OptionError(
            f"groupBy: {name!r} has the type {kind}; a key is neither a struct nor a list. Group by its parts.",
            option="groupBy", value=name,
        )  # fmt: skip


class _Columns:
    """The columns that an operator needs, each once: those of the rows as they are, others computed before."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names: dict[str, str] = {}
        self._made: list[Column] = []

    def take(self, node: Node, name: str | None = None) -> str:
        """Return the name of a column with the value of an expression; ``name`` is what it is called if it is made."""
        if isinstance(node, Name) and "." not in node.path.replace("`", ""):
            name = self._schema.names[index_of(self._schema, node.path.replace("`", ""))]
            node = Name(f"`{name}`")
            free = name
        elif isinstance(node, Bound):
            free = self._schema.names[node.index]
        else:
            wanted = free = name or text_of(node)
            number = 1
            while free in self._schema.names or free in self._names.values():
                number += 1
                free = f"{wanted} {number}"
        if repr(node) not in self._names:
            self._names[repr(node)] = free
            self._made.append(Column(node, free))
        return self._names[repr(node)]

    def project(self, before: PlanNode, time_zone: str) -> PlanNode:
        """Return a node with these columns only."""
        if list(before.schema.names) == [each.name_in_output for each in self._made]:
            return before
        return before.then(Project(before.schema, self._made, time_zone))
