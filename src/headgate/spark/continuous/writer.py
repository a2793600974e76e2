"""The end of a program's chain: where the rows of a continuous query go, and how it runs.

Never: start anything itself: `ContinuousStreamWriter.start` hands a validated `QueryDefinition` to who runs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headgate.errors import OptionError, UnsupportedOperationError
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options, split_options
from headgate.graph.results import check_complete, placed
from headgate.graph.stage_graph import BAD_RECORDS_UID, LATE_ROWS_UID, QueryDefinition, SourceDefinition, StageGraph
from headgate.graph.two_phase import AGG_PHASE_STRATEGY, with_two_phases
from headgate.operators import bad_records
from headgate.operators.operator import KeyedOperator
from headgate.operators.static_join import StaticJoin
from headgate.operators.stream_join.operator import StreamJoin
from headgate.operators.transform_with_state.apply_in_pandas_with_state import ApplyInPandasWithState
from headgate.operators.windows.sessions import SessionAggregate
from headgate.operators.windows.windowed import OutputMode, WindowedAggregate
from headgate.sink import Sink
from headgate.source import Boundedness, Options
from headgate.spark.continuous.foreach import make_foreach_sink
from headgate.spark.continuous.foreach_batch import ForeachBatchSink
from headgate.spark.continuous.settings import (
    interval_ms,
    session_case_sensitive,
    session_defaults,
    session_time_zone,
    set_option,
)
from headgate.spark.continuous.sinks import FILE_FORMATS, make_sink
from headgate.spark.continuous.tables import Table, TableSink, table_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headgate.spark.continuous.query import ContinuousQuery


class ContinuousStreamWriter:
    """Says where rows go and how the query runs. Its methods are those of Spark's ``DataStreamWriter``."""

    def __init__(
        self,
        spark: SparkSession,
        parallelism: int,
        plan: Callable[[], PlanNode],
        check_join: Callable[[str], None] = lambda output_mode: None,
    ) -> None:
        self._check_join = check_join
        self._spark = spark
        self._parallelism = parallelism
        self._plan = plan
        self._format = "parquet"
        self._foreach: Any = None
        self._options: dict[str, str] = {}
        self._name: str | None = None
        self._interval_ms = 1000
        self._output_mode: OutputMode = "append"
        self._partition_by: tuple[str, ...] = ()
        self._table: Table | None = None

    @property
    def _node(self) -> PlanNode:
        return self._plan()

    def format(self, source: str) -> ContinuousStreamWriter:
        """Name the sink: parquet (the default), json, csv, kafka, console, memory, noop, or a Python data source."""
        self._format, self._foreach = source, None
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> ContinuousStreamWriter:
        """Call a function on the driver with the rows of each checkpoint.

        Parameters
        ----------
        func
            Gets a DataFrame and its batch's number. Batches without rows are left out. After a crash the last batch may
            come again, with the same number and the same rows. The rows are there until the function returns; its Spark
            jobs need a core that no slot has.
        """
        return self._foreach_sink("foreachBatch", func)

    def foreach(self, f: Any) -> ContinuousStreamWriter:
        """Give each row to a function, or to an object with ``process(row)``, in the slots, at least once.

        Parameters
        ----------
        f
            A function of a ``Row``, or an object with ``process(row)`` and, if it likes, ``open(partition_id,
            epoch_id)`` and ``close(error)``. It is pickled. Each checkpoint ends an epoch; none has the number of
            another, even if rows come again after a failure.
        """
        return self._foreach_sink("foreach", f)

    def _foreach_sink(self, name: str, given: Any) -> ContinuousStreamWriter:
        self._format, self._foreach = name, given
        return self

    def option(self, key: str, value: Any) -> ContinuousStreamWriter:
        """Set an option of the query or of its sink; None takes it back."""
        set_option(self._options, key, value)
        return self

    def options(self, **options: Any) -> ContinuousStreamWriter:
        """Set options of the query or of its sink."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str | list[str]) -> ContinuousStreamWriter:
        """Write files into folders ``column=value``, whose columns are not in the files: parquet, json and csv.

        Parameters
        ----------
        *cols
            Names of columns, outermost folder first; or one list of them.
        """
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        self._partition_by = tuple(str(each) for each in names)
        return self

    def outputMode(self, outputMode: str) -> ContinuousStreamWriter:
        """Set the output mode.

        Parameters
        ----------
        outputMode
            ``append``, the default: a window's groups are emitted once, when it is over. ``update``: also before every
            checkpoint, those that changed. ``complete``: all groups before every checkpoint. Without an aggregation
            there is ``append`` only, but for ``transformWithState``: its processor says which rows there are, so
            ``update`` is the same; and for ``applyInPandasWithState``, whose own output mode the query has.
        """
        wanted = outputMode.lower()
        if not _keyed(self._node) and wanted != "append":
            raise OptionError(
                f"The output mode is {outputMode!r}; a query without an aggregation has only 'append'.",
                option="outputMode", value=outputMode,
            )  # fmt: skip
        if wanted not in ("append", "update", "complete") or (wanted == "complete" and not _aggregations(self._node)):
            raise OptionError(
                f"The output mode is {outputMode!r}; an aggregation has 'append', 'update' and 'complete', "
                "transformWithState the first two.",
                option="outputMode", value=outputMode,
            )  # fmt: skip
        if wanted == "update" and any(isinstance(each, SessionAggregate) for each in _aggregations(self._node)):
            raise UnsupportedOperationError(
                "Session windows cannot run continuously in the output mode 'update': they have 'append' and "
                "'complete' only, as in Spark, since rows written of a session that still grows cannot be retracted.",
                operation="outputMode",
            )  # fmt: skip
        if wanted != "append" and _is_counted_again(self._node):
            raise UnsupportedOperationError(
                f"The program cannot run continuously in the output mode {wanted!r}: there is an operator with state "
                "after an aggregation, which would count what the first one updates again. Use 'append'.",
                operation="outputMode",
            )  # fmt: skip
        self._output_mode = wanted  # type: ignore[assignment]
        return self

    def queryName(self, queryName: str) -> ContinuousStreamWriter:
        """Name the query; Spark's UI and logs show the name."""
        if not isinstance(queryName, str) or not queryName.strip():
            raise OptionError(
                f"The query's name is {queryName!r}; it must be a text that is not empty.",
                option="queryName", value=queryName,
            )  # fmt: skip
        self._name = queryName.strip()
        return self

    def trigger(self, *, continuous: str | None = None, **others: Any) -> ContinuousStreamWriter:
        """Set the time from one checkpoint to the next, like ``"1 second"``, which is the default.

        Rows do not wait for it: only a sink that publishes exactly once shows them with the checkpoint.
        """
        if continuous is None or others:
            raise OptionError(
                f"trigger({', '.join(others) or ''}): a continuous query has trigger(continuous='1 second') only. To "
                "read what is there and end, use spark.read instead of spark.readStream.",
                option="trigger", value=sorted(others),
            )  # fmt: skip
        self._interval_ms = interval_ms("trigger", continuous)
        if self._interval_ms < 1:
            raise OptionError(
                f"trigger(continuous={continuous!r}): the interval must be above zero.",
                option="trigger", value=continuous,
            )  # fmt: skip
        return self

    def start(self, path: str | None = None, *, fromSavepoint: str | None = None) -> ContinuousQuery:
        """Start the query; it runs until it ends, fails or is stopped.

        Parameters
        ----------
        path
            The option ``path`` of a sink of files.
        fromSavepoint
            A folder that ``query.stop(savepoint=...)`` or a savepoint wrote: the query resumes from there, at any
            parallelism. Otherwise it resumes from the newest checkpoint at ``checkpointLocation``, if there is one.

        Raises
        ------
        OptionError
            An option of the query or the sink is unknown or has a bad value, names are duplicate, or the session cannot
            run it.
        StoredStateError
            The checkpoint or savepoint cannot be used.
        """
        from headgate.spark.continuous.query import start_query

        if path is not None:
            set_option(self._options, "path", path)
        return start_query(self._spark, self.definition(fromSavepoint))

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        *,
        fromSavepoint: str | None = None,
        **options: Any,
    ) -> ContinuousQuery:
        """Start the query, which appends to a table; if there is none it is created.

        Parameters
        ----------
        tableName
            A table of parquet, json or csv in Spark's own catalog. Its folder must be empty, or have been written by
            such sinks.
        format
            Of the files. That of a table that is there must be the same.
        outputMode, partitionBy, queryName, options
            As the methods of these names.
        fromSavepoint
            See `start`.

        Raises
        ------
        UnsupportedOperationError
            The name is that of a view, or of a table of another kind.
        OptionError
            See `start`; also if the table has another format, other columns, or is partitioned by others.
        """
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        if self._foreach is not None:
            raise OptionError(
                f"'{self._format}' does not support writing to a table.", option="toTable", value=tableName
            )
        _, for_sink = split_options(self._options)
        self._table = table_for(
            self._spark, tableName, self._format.lower(), self._node.schema, self._partition_by, for_sink
        )
        return self.start(fromSavepoint=fromSavepoint)

    def definition(self, from_savepoint: str | None = None) -> QueryDefinition:
        """Return what `start` runs, validated. For tools; raises as `start`."""
        given, for_sink = split_options(self._options)
        options = parse_query_options(given, session_defaults(self._spark))
        most = options["max-parallelism"]
        if self._parallelism > most:
            raise OptionError(
                f"The parallelism is {self._parallelism}; the option 'max-parallelism' allows {most}. Set it higher "
                "before the query first runs: it cannot change later.",
                option="parallelism", value=self._parallelism,
            )  # fmt: skip
        if any(isinstance(each, StreamJoin) for each in _keyed(self._node)):
            self._check_join(self._output_mode)
        if self._output_mode == "append":
            _check_windows_end(self._node)
        _check_functions_fit(self._node, self._output_mode)
        if self._output_mode == "complete" and self._format.lower() in FILE_FORMATS:
            raise OptionError(
                f"The output mode is 'complete', and {self._format} only appends: each checkpoint would add all groups "
                "again. Use 'append', or foreachBatch, which can overwrite.",
                option="outputMode", value="complete",
            )  # fmt: skip
        handling, bad_sink = self._bad_records(options)
        graph = stage_graph(placed(self._node, self._output_mode))
        if self._output_mode == "complete":
            check_complete(graph)
        sink = self._sink(for_sink)
        for each in graph.operators:
            if isinstance(each.operator, WindowedAggregate):
                each.operator.output_mode = self._output_mode
                each.operator.emits_updates_at_once = sink.publishes_at_once
                each.operator.goes_on_elsewhere = len(graph.stages) > graph.stage_of(each.uid) + 1
            if isinstance(each.operator, StaticJoin):
                each.operator.table = each.operator.table.loaded(options["static.memory"])
        late_sink = self._late_rows_sink(options, graph)
        late_rows_of = None if late_sink is None or graph.late_rows_of is None else graph.late_rows_of[0]
        return QueryDefinition(
            name=self._name,
            graph=with_two_phases(graph, options[AGG_PHASE_STRATEGY], late_rows_of=late_rows_of),
            sink=sink,
            sink_format=self._format,
            options=options,
            parallelism=self._parallelism,
            checkpoint_location=self._location(options),
            checkpoint_interval_ms=self._interval_ms,
            from_savepoint=from_savepoint,
            bad_records=handling,
            bad_records_sink=bad_sink,
            late_rows_sink=late_sink,
            time_zone=session_time_zone(self._spark),
        )

    def _sink(self, options: dict[str, str]) -> Sink:
        if self._table is not None:
            time_zone = session_time_zone(self._spark)
            return TableSink(self._spark, self._table, self._format.lower(), options, self._node.schema, time_zone)
        if self._foreach is None:
            sink = make_sink(
                self._format, options, self._node.schema, spark=self._spark,
                partition_by=self._partition_by, time_zone=session_time_zone(self._spark),
                case_sensitive=session_case_sensitive(self._spark),
            )  # fmt: skip
            sink.output_mode = self._output_mode
            return sink
        if self._partition_by:
            raise OptionError(
                f"'{self._format}' does not support partitioning.", option="partitionBy", value=list(self._partition_by)
            )
        if self._format == "foreach":
            return make_foreach_sink(self._foreach, options, self._node.schema, self._spark)
        sink = ForeachBatchSink(self._spark, self._foreach, options, self._node.schema)
        sink.output_mode = self._output_mode
        return sink

    def _bad_records(self, options: Options) -> tuple[str, Sink | None]:
        handling: str = options["badRecords"]
        its_options = options.matching("badRecords.*")
        if handling.lower() in ("fail", "skip"):
            if its_options:
                raise options.error(
                    "badRecords", f"is {handling!r}, which has no options; {sorted(its_options)} are set."
                )
            return handling.lower(), None
        sink = make_sink(handling, its_options, bad_records.SCHEMA, spark=self._spark)
        sink.uid = BAD_RECORDS_UID
        return "sink", sink

    def _late_rows_sink(self, options: Options, graph: StageGraph) -> Sink | None:
        name, its_options, found = options["lateRows"], options.matching("lateRows.*"), graph.late_rows_of
        if name is None and its_options:
            raise options.error("lateRows", f"is not set, and options of it are: {sorted(its_options)}.")
        if name is None or (found is None and "laterows" not in map(str.lower, self._options)):
            return None  # a default of the session's is for queries that have late rows
        if found is None:
            raise options.error(
                "lateRows",
                f"is {name!r}, and the query has no windows, no dropDuplicates or transformWithState with event time, "
                "and no join of two streams: no row is late.",
            )
        case_sensitive = session_case_sensitive(self._spark)
        sink = make_sink(name, its_options, found[1], spark=self._spark, case_sensitive=case_sensitive)
        sink.uid = LATE_ROWS_UID
        return sink

    def _location(self, options: Options) -> str | None:
        given: str | None = options["checkpointLocation"]
        root = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        return given if given is not None or not root else f"{root.rstrip('/')}/{self._name or uuid.uuid4()}"


def _aggregations(node: PlanNode) -> list[WindowedAggregate]:
    """Return the aggregations that lead to a node, each once, in the order of the data."""
    return [each for each in _keyed(node) if isinstance(each, WindowedAggregate)]


def _keyed(node: PlanNode) -> list[KeyedOperator]:
    """Return the operators with keyed state that lead to a node, each once, in the order of the data."""
    return [each.of for each in _nodes(node) if isinstance(each.of, KeyedOperator)]


def _nodes(node: PlanNode) -> list[PlanNode]:
    """Return a node and those that lead to it, each once, in the order of the data."""
    found: dict[int, PlanNode] = {}

    def visit(each: PlanNode) -> None:
        for before in each.inputs:
            visit(before)
        found.setdefault(id(each.of), each)

    visit(node)
    return list(found.values())


def _is_counted_again(node: PlanNode) -> bool:
    """Return whether rows of an aggregation go to another operator with state."""
    stateful = (each for each in _nodes(node) if isinstance(each.of, KeyedOperator))
    return any(_aggregations(before) for each in stateful for before in each.inputs)


def _check_functions_fit(node: PlanNode, output_mode: str) -> None:
    """Refuse a function whose output mode is not the query's, as Spark does."""
    for each in _keyed(node):
        if isinstance(each, ApplyInPandasWithState) and each.output_mode != output_mode:
            raise OptionError(
                f"The output mode is {output_mode!r}, and that of applyInPandasWithState({each.function}) is "
                f"{each.output_mode!r}: they must be the same, as in Spark. Call outputMode({each.output_mode!r}).",
                option="outputMode", value=output_mode,
            )  # fmt: skip


def _check_windows_end(node: PlanNode) -> None:
    """Refuse an aggregation of which nothing would ever come."""
    for aggregation in _nodes(node):
        if not isinstance(aggregation.of, WindowedAggregate):
            continue
        sources = [each.of for each in _nodes(aggregation) if isinstance(each.of, SourceDefinition)]
        has_watermark = any(each.watermark_strategy is not None for each in sources)
        for source in sources:
            if source.boundedness is not Boundedness.CONTINUOUS_UNBOUNDED:
                continue
            if not aggregation.of.has_event_time:
                raise UnsupportedOperationError(
                    f"{aggregation.of.function} cannot run continuously in the output mode 'append': the watermark is "
                    "not of the times of its windows, so that none would end, as in Structured Streaming. It must be "
                    "of their column, and in a union the first rows must have one. Call withWatermark so, or "
                    "outputMode('update').",
                    operation="Aggregate", source=source.uid,
                )  # fmt: skip
            if aggregation.of.late_schema is None:
                raise OptionError(
                    f"{aggregation.of.function} in the output mode 'append' has neither a window nor the event time "
                    "among its keys: no group would ever be complete. Group by window(...), or call "
                    "outputMode('update') or outputMode('complete').",
                    option="outputMode", value="append", source=source.uid,
                )  # fmt: skip
            if not has_watermark:
                raise OptionError(
                    f"{aggregation.of.function} in the output mode 'append' needs a watermark, and the source "
                    f"{source.uid!r} has none: no window would ever end. Call withWatermark(column, delay) before "
                    "groupBy, or outputMode('update').",
                    option="outputMode", value="append", source=source.uid,
                )  # fmt: skip
