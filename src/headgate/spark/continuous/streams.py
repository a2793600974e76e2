"""The public builder of continuous queries: ``headgate.continuous(spark)`` stands where ``spark`` stood.

Never: read a source, or do anything on executors: `ContinuousStreamWriter.start` hands a validated `QueryDefinition` to
who runs it. What can be wrong with a program is an `OptionError` in the line that is wrong.

The names are PySpark's: ``readStream``, ``select``, ``mapInArrow``, ``withWatermark``, ``writeStream``.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError
from headgate.operators import bad_records
from headgate.operators.expressions import Column, Name, index_of
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import ArrowFunction, MapInArrow
from headgate.operators.plan import PlanNode, source_column, stage_graph, with_strategy
from headgate.operators.project import Project
from headgate.operators.query_options import parse_query_options, split_options
from headgate.operators.row_condition import condition_of
from headgate.operators.sinks.registry import make_sink
from headgate.operators.stage_graph import BAD_RECORDS_UID, QueryDefinition, SourceDefinition
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.source import Boundedness, Source, WatermarkAlignment, WatermarkStrategy
from headgate.source.options import Options, duration_ms
from headgate.spark.continuous.formats import find_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headgate.spark.continuous.query import ContinuousQuery

_log = logging.getLogger(__name__)


def continuous(spark: SparkSession, parallelism: int | None = None) -> ContinuousStreams:
    """Begin a continuous query.

    Parameters
    ----------
    spark
        The session whose executors run it.
    parallelism
        How many slots, long Spark tasks, read and process side by side. The default is Spark's default parallelism,
        which is every core: other work in the session then waits for the query to end.

    Raises
    ------
    OptionError
        The parallelism is below 1, or the session is one of Spark Connect.

    Examples
    --------
    >>> streams = headgate.continuous(spark, parallelism=2)  # doctest: +SKIP
    >>> query = (
    ...     streams.readStream.format("headgate.datagen").option("rowsPerSecond", 10).schema("value long").load()
    ...     .filter("value >= 5").writeStream.format("console").start()
    ... )  # doctest: +SKIP
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise OptionError(
            "Continuous queries need a session with a SparkContext: Spark Connect has none. Run the program on the "
            "driver (spark-submit), or use spark.readStream.",
            option="spark", value=type(spark).__qualname__,
        )  # fmt: skip
    if parallelism is None:
        parallelism = spark.sparkContext.defaultParallelism
        _log.warning(
            "headgate.continuous: the query takes all %d cores for as long as it runs. Pass parallelism=... to leave "
            "some to other work.",
            parallelism,
        )
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise OptionError(
            f"The parallelism is {parallelism!r}; it must be a whole number from 1.",
            option="parallelism", value=parallelism,
        )  # fmt: skip
    return ContinuousStreams(spark, parallelism)


class ContinuousStreams:
    """Where streams are read. Made by `continuous`.

    Parameters
    ----------
    spark
        The session.
    parallelism
        How many slots.
    """

    def __init__(self, spark: SparkSession, parallelism: int) -> None:
        self._spark = spark
        self._parallelism = parallelism

    @property
    def readStream(self) -> ContinuousStreamReader:
        """Read for ever, what comes later included."""
        return ContinuousStreamReader(self._spark, self._parallelism, Boundedness.CONTINUOUS_UNBOUNDED)

    @property
    def read(self) -> ContinuousStreamReader:
        """Read what is there when the query starts; the query then ends behind a last checkpoint."""
        return ContinuousStreamReader(self._spark, self._parallelism, Boundedness.BOUNDED)


class ContinuousStreamReader:
    """Says what is to be read. Its methods are those of Spark's ``DataStreamReader``."""

    def __init__(self, spark: SparkSession, parallelism: int, boundedness: Boundedness) -> None:
        self._spark = spark
        self._parallelism = parallelism
        self._boundedness = boundedness
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._schema: pa.Schema | None = None

    def format(self, source: str) -> ContinuousStreamReader:
        """Name the source: ``headgate.kafka`` and the like, or one that `headgate.register` made known."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> ContinuousStreamReader:
        """Set an option of the source; None takes it back."""
        _set_option(self._options, key, value)
        return self

    def options(self, **options: Any) -> ContinuousStreamReader:
        """Set options of the source."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: str | StructType | pa.Schema) -> ContinuousStreamReader:
        """Give the columns: Spark's DDL text, a PySpark schema or a pyarrow one."""
        self._schema = arrow_schema(schema)
        return self

    def load(
        self,
        path: str | list[str] | None = None,
        format: str | None = None,
        schema: str | StructType | pa.Schema | None = None,
        **options: Any,
    ) -> ContinuousStream:
        """Return the stream of the source's rows.

        Parameters
        ----------
        path
            For files: a file, folder or glob, or a list of them.
        format, schema, options
            As the methods of these names.

        Raises
        ------
        OptionError
            There is no such format, an option is unknown or has a bad value, or the schema is missing or wrong.
        UnsupportedOperationError
            The source cannot be read in this way.
        """
        from headgate.spark.planner import check_supported

        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if path is not None:
            _set_option(
                self._options, *(("path", path) if isinstance(path, str) else ("paths", json.dumps(list(path))))
            )
        if self._format is None:
            raise OptionError("Name the source: readStream.format('headgate.kafka').", option="format", value=None)
        found = find_format(self._spark, self._format)
        source = found.make(found.with_defaults(self._options, session_defaults(self._spark)))
        columns = self._schema if self._schema is not None else arrow_schema(source.schema())
        boundedness = _boundedness_of(source.options, self._boundedness)
        check_supported(source, boundedness, "a continuous query")
        strategy = _strategy_of(source.options, columns)
        node = source_node(self._format, source, columns, boundedness, strategy)
        return ContinuousStream(self._spark, self._parallelism, node)


class ContinuousStream:
    """Rows on their way from sources to a sink. Its methods are those of Spark's ``DataFrame``."""

    def __init__(self, spark: SparkSession, parallelism: int, node: PlanNode) -> None:
        self._spark = spark
        self._parallelism = parallelism
        self._node = node

    @property
    def schema(self) -> StructType:
        """The columns, as PySpark's schema."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._node.schema)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._node.schema.names)

    def printSchema(self) -> None:
        """Print the columns as a tree."""
        print(self.schema.treeString())

    def __repr__(self) -> str:
        return f"ContinuousStream[{', '.join(f'{field.name}: {field.type}' for field in self._node.schema)}]"

    def select(self, *cols: str | Column | list[str | Column]) -> ContinuousStream:
        """Make columns of columns: names, ``"*"``, and expressions of `headgate.functions`."""
        wanted: Any = cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        made: list[Column] = []
        for each in wanted:
            if isinstance(each, str) and each == "*":
                made += self._all()
            else:
                made.append(_column(each))
        return self._project(made)

    def withColumn(self, colName: str, col: Column) -> ContinuousStream:
        """Add a column, or replace the one of this name."""
        if not isinstance(col, Column):
            raise OptionError(
                f"withColumn({colName!r}): the second argument is {col!r}; it must be a Column: col(...) or lit(...).",
                option="withColumn", value=repr(col),
            )  # fmt: skip
        names = [name.lower() for name in self.columns]
        made = self._all()
        if colName.lower() in names:
            made[names.index(colName.lower())] = col.alias(colName)
        else:
            made.append(col.alias(colName))
        return self._project(made)

    def drop(self, *cols: str | Column) -> ContinuousStream:
        """Leave out columns. Names that there are not are ignored, as in Spark."""
        dropped = {_column(each).name_in_output.lower() for each in cols}
        kept = [column for column in self._all() if column.name_in_output.lower() not in dropped]
        if not kept:
            raise OptionError("drop: no column is left.", option="drop", value=sorted(dropped))
        return self._project(kept)

    def filter(self, condition: Column | str) -> ContinuousStream:
        """Let rows through for which a condition is true: an expression, or a text like ``"amount >= 40"``.

        A text is comparisons with constants, joined by ``and``; for all else there is `headgate.functions`.
        """
        if isinstance(condition, str):
            condition = condition_of(condition)
        return self._then(Filter(self._node.schema, condition, self._time_zone))

    where = filter

    def mapInArrow(self, func: ArrowFunction, schema: str | StructType | pa.Schema) -> ContinuousStream:
        """Run a function over Arrow batches, with PySpark's signature.

        Parameters
        ----------
        func
            Takes an iterator of ``pyarrow.RecordBatch`` and returns or yields others. It is called with the batches at
            hand of one split, and its output is complete when it returns. An object with ``__call__`` may have
            ``open()`` and ``close()`` for costly set-up, which are called in every subtask.
        schema
            The columns of what it yields.

        Examples
        --------
        >>> def double(batches):
        ...     for batch in batches:
        ...         yield pa.RecordBatch.from_arrays([pc.multiply(batch.column("n"), 2)], names=["n"])
        >>> stream.mapInArrow(double, "n long")  # doctest: +SKIP
        """
        if not callable(func):
            raise OptionError(
                f"mapInArrow: {func!r} cannot be called; it must be a function of an iterator of batches.",
                option="func", value=repr(func),
            )  # fmt: skip
        return self._then(MapInArrow(func, arrow_schema(schema)))

    def union(self, other: ContinuousStream) -> ContinuousStream:
        """Add another stream's rows; columns are united by position and have this stream's names.

        A query's streams all end in one sink: this is how several sources are read by one query.
        """
        node = PlanNode(of=Union(self._node.schema, other._node.schema), inputs=(self._node, other._node))
        return ContinuousStream(self._spark, self._parallelism, node)

    def name(self, uid: str) -> ContinuousStream:
        """Name the source or operator that was made last: its state in checkpoints is found by this name.

        Without one the name is derived from the way from the source: it changes when an operator is put before it.
        """
        return ContinuousStream(self._spark, self._parallelism, self._node.named(uid))

    def withWatermark(self, eventTime: str, delayThreshold: str) -> ContinuousStream:
        """Say which column holds event time, and how much earlier than the latest seen of its split a row may be.

        A column that comes from a source as it is makes the watermark where the source is read, for each split, with
        the source's idle time-out. One that a function made does so behind that function.

        Parameters
        ----------
        eventTime
            A timestamp column.
        delayThreshold
            Spark's interval, like ``"10 seconds"``; ``"0 seconds"`` for none.
        """
        delay_ms = _interval_ms("withWatermark", delayThreshold)
        name = self.columns[index_of(self._node.schema, eventTime)]
        operator = WithWatermark(self._node.schema, name, delay_ms)
        column = source_column(self._node, name)
        if column is None:
            return self._then(operator)
        before = next(iter(self._node.sources())).watermark_strategy
        strategy = WatermarkStrategy(
            event_time_column=column,
            max_out_of_orderness_ms=delay_ms,
            idle_timeout_ms=_idle_timeout_ms(self._node),
            alignment=None if before is None else before.alignment,
        )
        return ContinuousStream(self._spark, self._parallelism, with_strategy(self._node, strategy))

    def withWatermarkAlignment(self, group: str, maxDrift: str, updateInterval: str = "1 second") -> ContinuousStream:
        """Read the splits of all sources of a group at about the same pace in event time.

        Wins over the source's options ``scan.watermark.alignment.*``. It follows ``load()`` and ``withWatermark``.

        Parameters
        ----------
        group
            Sources with the same group are aligned with one another.
        maxDrift
            How far a split may be read ahead of the slowest one.
        updateInterval
            How often a reader reports at most.
        """
        alignment = WatermarkAlignment(
            group=group,
            max_drift_ms=_interval_ms("withWatermarkAlignment", maxDrift),
            update_interval_ms=_interval_ms("withWatermarkAlignment", updateInterval),
        )
        sources = list(self._node.sources())
        before = sources[0].watermark_strategy
        if len(sources) != 1 or before is None:
            raise OptionError(
                "withWatermarkAlignment needs one source whose event time is known: call withWatermark(column, delay) "
                "behind load(), or set the option 'eventTimeColumn', and align each stream before a union.",
                option="withWatermarkAlignment", value=group,
            )  # fmt: skip
        strategy = msgspec.structs.replace(before, alignment=alignment)
        return ContinuousStream(self._spark, self._parallelism, with_strategy(self._node, strategy))

    @property
    def writeStream(self) -> ContinuousStreamWriter:
        """Say where the rows go."""
        return ContinuousStreamWriter(self._spark, self._parallelism, self._node)

    @property
    def _time_zone(self) -> str:
        return session_time_zone(self._spark)

    def _all(self) -> list[Column]:
        return [Column(Name(f"`{name}`")) for name in self.columns]

    def _project(self, columns: list[Column]) -> ContinuousStream:
        return self._then(Project(self._node.schema, columns, self._time_zone))

    def _then(self, operator: Any) -> ContinuousStream:
        return ContinuousStream(self._spark, self._parallelism, self._node.then(operator))


class ContinuousStreamWriter:
    """Says where rows go and how the query runs. Its methods are those of Spark's ``DataStreamWriter``."""

    def __init__(self, spark: SparkSession, parallelism: int, node: PlanNode) -> None:
        self._spark = spark
        self._parallelism = parallelism
        self._node = node
        self._format = "parquet"
        self._options: dict[str, str] = {}
        self._name: str | None = None
        self._interval_ms = 1000

    def format(self, source: str) -> ContinuousStreamWriter:
        """Name the sink: parquet (the default), json, csv, kafka, console, memory, noop, or a Python data source."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> ContinuousStreamWriter:
        """Set an option of the query or of its sink; None takes it back."""
        _set_option(self._options, key, value)
        return self

    def options(self, **options: Any) -> ContinuousStreamWriter:
        """Set options of the query or of its sink."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> ContinuousStreamWriter:
        """Set the output mode: ``append`` is the only one without an aggregation."""
        if outputMode.lower() != "append":
            raise OptionError(
                f"The output mode is {outputMode!r}; a query without an aggregation has only 'append'.",
                option="outputMode", value=outputMode,
            )  # fmt: skip
        return self

    def queryName(self, queryName: str) -> ContinuousStreamWriter:
        """Name the query; the name stands in Spark's UI and in logs."""
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
                "read what is there and end, use streams.read instead of streams.readStream.",
                option="trigger", value=sorted(others),
            )  # fmt: skip
        self._interval_ms = _interval_ms("trigger", continuous)
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
            A folder that ``query.stop(savepoint=...)`` or a savepoint wrote: the query goes on from there, at any
            parallelism. Else it goes on from the newest checkpoint at ``checkpointLocation``, if there is one.

        Raises
        ------
        OptionError
            An option of the query or the sink is unknown or has a bad value, names stand twice, or the session cannot
            run it.
        StoredStateError
            The checkpoint or savepoint cannot be used.
        """
        from headgate.spark.continuous.query import start_query

        if path is not None:
            _set_option(self._options, "path", path)
        return start_query(self._spark, self.definition(fromSavepoint))

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
        handling, bad_sink = self._bad_records(options)
        return QueryDefinition(
            name=self._name,
            graph=stage_graph(self._node),
            sink=make_sink(self._format, for_sink, self._node.schema, spark=self._spark),
            sink_format=self._format,
            options=options,
            parallelism=self._parallelism,
            checkpoint_location=self._location(options),
            checkpoint_interval_ms=self._interval_ms,
            from_savepoint=from_savepoint,
            bad_records=handling,
            bad_records_sink=bad_sink,
            time_zone=session_time_zone(self._spark),
        )

    def _bad_records(self, options: Options) -> tuple[str, Any]:
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

    def _location(self, options: Options) -> str | None:
        given: str | None = options["checkpointLocation"]
        root = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        return given if given is not None or not root else f"{root.rstrip('/')}/{self._name or uuid.uuid4()}"


def arrow_schema(schema: str | StructType | pa.Schema) -> pa.Schema:
    """Return columns as Arrow's schema, with the types that Spark gives them (timestamps in microseconds, UTC).

    Raises
    ------
    OptionError
        The text is no schema, a type is not one of Spark's, or a name stands twice.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        match schema:
            case str():
                columns: Any = StructType.fromDDL(schema)
            case pa.Schema():
                columns = from_arrow_schema(schema)
            case _:
                columns = schema
        arrow = to_arrow_schema(columns, timezone="UTC")
    except (PySparkException, AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"The schema is {str(schema)!r}, which cannot be used: {str(error).partition(chr(10))[0]}. "
            'Write it like "user string, amount long, at timestamp".',
            option="schema", value=str(schema),
        ) from error  # fmt: skip
    twice = sorted({name for name in arrow.names if arrow.names.count(name) > 1})
    if twice:
        raise OptionError(
            f"The schema names {', '.join(map(repr, twice))} more than once. Name each column once.",
            option="schema", value=twice,
        )  # fmt: skip
    return arrow


def session_defaults(spark: SparkSession) -> dict[str, str]:
    """Return the options that the session sets as ``spark.headgate.NAME``, by their names."""
    prefix = "spark.headgate."
    settings: Mapping[str, str] = spark.conf.getAll
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone in which the session reads and writes times without one."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def source_node(
    name: str,
    source: Source[Any, Any],
    schema: pa.Schema,
    boundedness: Boundedness,
    strategy: WatermarkStrategy | None,
) -> PlanNode:
    """Return the node of a source, called after its format until its uid is known."""
    return PlanNode(
        of=SourceDefinition(
            uid=name.lower().removeprefix("headgate."),
            source=source,
            schema=schema,
            boundedness=boundedness,
            watermark_strategy=strategy,
        )
    )


def _boundedness_of(options: Options, door: Boundedness) -> Boundedness:
    """Return how a source is read: an end that the user set is one, whatever the door."""
    ends = any(name.lower().startswith("ending") and options.is_set(name) for name in options)
    return Boundedness.BOUNDED if ends else door


def _strategy_of(options: Options, schema: pa.Schema) -> WatermarkStrategy | None:
    column = options["eventTimeColumn"]
    group = options["scan.watermark.alignment.group"]
    drift_ms = options["scan.watermark.alignment.max-drift"]
    if (group is None) != (drift_ms is None):
        name = "scan.watermark.alignment." + ("group" if group is None else "max-drift")
        raise options.error(name, "must be set too: an alignment has a group and a max-drift.")
    if column is None:
        if group is not None:
            raise options.error("scan.watermark.alignment.group", "needs 'eventTimeColumn' to be set.")
        return None
    field = schema.field(index_of(schema, column))
    if not pa.types.is_timestamp(field.type):
        raise options.error("eventTimeColumn", f"names a column of type {field.type}; it must be a timestamp.")
    alignment = None
    if group is not None:
        alignment = WatermarkAlignment(
            group=group,
            max_drift_ms=drift_ms,
            update_interval_ms=options["scan.watermark.alignment.update-interval"],
        )
    return WatermarkStrategy(
        event_time_column=field.name,
        idle_timeout_ms=options["scan.watermark.idle-timeout"],
        alignment=alignment,
    )


def _idle_timeout_ms(node: PlanNode) -> int | None:
    timeout_ms: int | None = next(iter(node.sources())).source.options["scan.watermark.idle-timeout"]
    return timeout_ms


def _interval_ms(what: str, value: str) -> int:
    try:
        return duration_ms(value)
    except (ValueError, AttributeError) as error:
        raise OptionError(
            f"{what}: {value!r} is no interval; write one like '10 seconds'.", option=what, value=value
        ) from error


def _column(value: str | Column) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(value, str):
        return Column(Name(value))
    raise OptionError(f"A column or its name is needed, not {value!r}.", option="column", value=repr(value))


def _set_option(options: dict[str, str], key: str, value: Any) -> None:
    """Set an option as Spark does: without regard to case, the last one counts, and values are texts."""
    for known in [name for name in options if name.lower() == key.lower()]:
        del options[known]
    if value is not None:
        options[key] = str(value).lower() if isinstance(value, bool) else str(value)
