"""The public builder of continuous queries: ``headgate.continuous(spark)`` stands where ``spark`` stood.

Never: read a source, or do anything on executors. What can be wrong with a program is an `OptionError` in the line that
is wrong.

The names are PySpark's: ``readStream``, ``select``, ``mapInArrow``, ``withWatermark``, ``writeStream``.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.expressions import Column, Name, index_of
from headgate.expressions.row_condition import condition_of
from headgate.graph.plan import PlanNode, watermarked, with_strategy
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange, Partition
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import ArrowFunction, MapInArrow
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.source import Boundedness, WatermarkAlignment, WatermarkStrategy
from headgate.spark.continuous.grouped import GroupedStream
from headgate.spark.continuous.manager import ContinuousQueryManager
from headgate.spark.continuous.settings import (
    arrow_schema,
    interval_ms,
    session_time_zone,
    set_option,
)
from headgate.spark.continuous.sources import source_node
from headgate.spark.continuous.writer import ContinuousStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


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
    return ContinuousStreams(spark, checked_parallelism(spark, parallelism))


def checked_parallelism(spark: SparkSession, parallelism: int | None) -> int:
    """Return how many slots a query has; None is Spark's default parallelism.

    Raises
    ------
    OptionError
        It is below 1.
    """
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
    return parallelism


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
        """Read what is there when the query starts; the query then ends with a last checkpoint."""
        return ContinuousStreamReader(self._spark, self._parallelism, Boundedness.BOUNDED)

    @property
    def streams(self) -> ContinuousQueryManager:
        """The live queries of this process, and who listens to them."""
        return ContinuousQueryManager()


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
        set_option(self._options, key, value)
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
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if path is not None:
            set_option(self._options, *(("path", path) if isinstance(path, str) else ("paths", json.dumps(list(path)))))
        if self._format is None:
            raise OptionError("Name the source: readStream.format('headgate.kafka').", option="format", value=None)
        node = source_node(self._spark, self._format, self._options, self._schema, self._boundedness)
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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A ContinuousStream has no {name!r}. It has select, filter, where, withColumn, drop, mapInArrow, union, "
            "name, withWatermark, withWatermarkAlignment, groupBy, repartition, broadcast, partitionBy, columns, "
            "schema, printSchema and writeStream; for more, use spark.readStream."
        )

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
            raise _no_column("withColumn", col)
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
        if not isinstance(condition, Column):
            raise _no_column("filter", condition)
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
        return self._of(node)

    def groupBy(self, *cols: str | Column | TimeWindow | SessionWindow | list[Any]) -> GroupedStream[ContinuousStream]:
        """Group rows by keys and a window: rows of a group meet in one subtask.

        Parameters
        ----------
        cols
            Names, expressions of `headgate.functions`, and for ``agg`` one ``window`` or ``session_window``. Rows
            whose key is null are a group, too.

        Examples
        --------
        >>> stream.groupBy(window("at", "10 seconds"), "user").agg(sum("amount"), count())  # doctest: +SKIP
        """
        wanted: Any = cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        by = [each if isinstance(each, TimeWindow | SessionWindow) else _column(each) for each in wanted]
        return GroupedStream(self._node, by, self._time_zone, self._of)

    groupby = groupBy

    def repartition(self, numPartitions: int | None = None) -> ContinuousStream:
        """Spread the rows evenly over subtasks, in turn.

        Parameters
        ----------
        numPartitions
            Over how many subtasks; None: all of them. More than there are is as many as there are.
        """
        whole = isinstance(numPartitions, int) and not isinstance(numPartitions, bool)
        if numPartitions is not None and not (whole and numPartitions >= 1):
            raise OptionError(
                f"repartition({numPartitions!r}): the number of partitions must be a whole number from 1.",
                option="repartition", value=numPartitions,
            )  # fmt: skip
        return self._then(Exchange(self._node.schema, "rebalance", targets=numPartitions))

    def broadcast(self) -> ContinuousStream:
        """Give every subtask all rows."""
        return self._then(Exchange(self._node.schema, "broadcast"))

    def partitionBy(self, func: Partition) -> ContinuousStream:
        """Let a function say which subtask gets which row.

        Parameters
        ----------
        func
            Takes a ``pyarrow.RecordBatch`` and the number of subtasks, and returns an integer array: for each row the
            number of its subtask, from 0. It must be deterministic: rows under way are given to it again when the query
            is rescaled.

        Examples
        --------
        >>> stream.partitionBy(lambda batch, n: pc.bit_wise_and(batch.column("id"), n - 1))  # doctest: +SKIP
        """
        if not callable(func):
            raise OptionError(
                f"partitionBy: {func!r} cannot be called; it must be a function of a batch and a number of subtasks.",
                option="partitionBy", value=repr(func),
            )  # fmt: skip
        return self._then(Exchange(self._node.schema, "custom", partition=func))

    def name(self, uid: str) -> ContinuousStream:
        """Name the source or operator that was made last: its state in checkpoints is found by this name.

        Without one the name is derived from the way from the source: it changes when an operator is put before it.
        """
        return self._of(self._node.named(uid))

    def withWatermark(self, eventTime: str, delayThreshold: str) -> ContinuousStream:
        """Say which column holds event time, and how much earlier than the latest seen of its split a row may be.

        Watermarks are kept for each split, with the source's idle time-out and alignment, whoever made the column. One
        that comes from a source as it is says where its rows are in event time before they are read on: with
        alignment, splits stop at the very row. One that a function made is known after that function: they stop
        after the batch.

        Parameters
        ----------
        eventTime
            A timestamp column.
        delayThreshold
            Spark's interval, like ``"10 seconds"``; ``"0 seconds"`` for none.
        """
        index = index_of(self._node.schema, eventTime)
        return self._of(watermarked(self._node, index, interval_ms("withWatermark", delayThreshold)))

    def withWatermarkAlignment(self, group: str, maxDrift: str, updateInterval: str = "1 second") -> ContinuousStream:
        """Read the splits of all sources of a group at about the same pace in event time.

        Wins over the source's options ``scan.watermark.alignment.*``. It follows ``load()`` and ``withWatermark``.
        After a union, all its sources join the group.

        Parameters
        ----------
        group
            Sources with the same group are aligned with one another, those of other queries of this application too.
        maxDrift
            How far a split may be read ahead of the slowest one.
        updateInterval
            How often a reader reports at most, unless somebody may wait for it.
        """
        alignment = WatermarkAlignment(
            group=group,
            max_drift_ms=interval_ms("withWatermarkAlignment", maxDrift),
            update_interval_ms=interval_ms("withWatermarkAlignment", updateInterval),
        )

        def aligned(source: SourceDefinition) -> WatermarkStrategy:
            if source.watermark_strategy is None:
                raise OptionError(
                    f"withWatermarkAlignment needs sources whose event time is known, and that of {source.uid!r} is "
                    "not: call withWatermark(column, delay) before it, or set the option 'eventTimeColumn'.",
                    option="withWatermarkAlignment", value=group,
                )  # fmt: skip
            return msgspec.structs.replace(source.watermark_strategy, alignment=alignment)

        return self._of(with_strategy(self._node, aligned))

    @property
    def writeStream(self) -> ContinuousStreamWriter:
        """Say where the rows go."""
        return ContinuousStreamWriter(self._spark, self._parallelism, lambda: self._node)

    @property
    def _time_zone(self) -> str:
        return session_time_zone(self._spark)

    def _all(self) -> list[Column]:
        return [Column(Name(f"`{name}`")) for name in self.columns]

    def _project(self, columns: list[Column]) -> ContinuousStream:
        return self._then(Project(self._node.schema, columns, self._time_zone))

    def _then(self, operator: Any) -> ContinuousStream:
        return self._of(self._node.then(operator))

    def _of(self, node: PlanNode) -> ContinuousStream:
        return ContinuousStream(self._spark, self._parallelism, node)


def _column(value: str | Column) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(value, str):
        return Column(Name(value))
    raise _no_column("select", value)


def _no_column(verb: str, value: object) -> OptionError:
    """Return the error for what is not a column of ours: most often it is PySpark's, by the import that all know."""
    if type(value).__module__.startswith("pyspark."):
        message = (
            f"{verb} takes columns of headgate.functions, not PySpark's ({value!r}). Write 'from headgate.functions "
            "import col, lit' in place of 'from pyspark.sql.functions import col, lit'."
        )
    else:
        message = f"A column or its name is needed in {verb}, not {value!r}."
    return OptionError(message, option=verb, value=repr(value))
