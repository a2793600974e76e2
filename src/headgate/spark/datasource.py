"""What Spark calls: a Headgate source as a Python data source, for batch and for Structured Streaming.

Never: do work in a constructor (an error in it is hidden by another one), or import at module level
anything but pyspark, the standard library and `headgate.spark.compatibility`: Spark imports this to find formats.

Spark makes these objects in short-lived Python processes, pickles them, and asks: the data source at ``load()``, its
reader in a planner process, and the reader's copy in every task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headgate.spark.compatibility import (
    SupportsTriggerAvailableNow,
    check_stream_options,
    is_unlimited,
    read_limit,
    stream_reader,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.microbatch.alignment.member import Member
    from headgate.microbatch.alignment.planning import AlignedPlans
    from headgate.microbatch.stream_plan import StreamPlanner
    from headgate.microbatch.task import Ordering, Reporting
    from headgate.source import PlanLimits, Source, Split, WatermarkStrategy


class HeadgateDataSource(DataSource):
    """A Headgate source as Spark sees it. Subclass it with the two attributes.

    Raises
    ------
    OptionError
        From the constructor, at ``load()``: an option is unknown or has a bad value.
    """

    format_name: ClassVar[str]
    """The name users give to ``format``."""
    source_class: ClassVar[Any]
    """The source's class, or where it is: ``"module:Class"``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._time_zone = local_time_zone()
        self._validate()

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    @cached_property
    def _source(self) -> Source[Any, Any]:
        source: Source[Any, Any] = resolve(self.source_class)(dict(self.options))
        return source

    def _validate(self) -> None:
        """Validate the options, by making the source: a format that can be written too does it later."""
        _ = self._source

    def schema(self) -> StructType | str:
        """Return the columns, where the user gave none."""
        from headgate.spark.compatibility import from_arrow_schema

        schema = self._source.schema()
        return schema if isinstance(schema, str) else from_arrow_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        It takes no filters from Spark, whatever the session says: Spark 4.3 keeps a filtered plan for the next query
        on the same DataFrame, which then misses rows (a test shows it). ``rowFilter`` skips rows instead.
        """
        return BatchReader(self._source, schema, self._time_zone)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream.

        Raises
        ------
        OptionError
            An option asks for what this Spark cannot do.
        """
        check_stream_options(self.format_name, self._source.options)
        return stream_reader(StreamReader(self._source, schema, self._time_zone))


class SplitsPartition(InputPartition):
    """What one task reads: its splits as bytes of the source's own format, and the driver's versions.

    With ``reporting`` it reports to the planner of an aligned query what event times it read; with ``ordering`` it
    gives its rows in the order of their event time.
    """

    def __init__(
        self,
        splits: list[bytes],
        number: int,
        reporting: Reporting | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        from headgate.versions import Versions

        super().__init__(number)
        self.splits = splits
        self.reporting = reporting
        self.ordering = ordering
        self.driver = Versions.here()


class _Reader:
    """What batches and micro-batches share: cutting splits into tasks, and reading in a task."""

    def __init__(self, source: Source[Any, Any], schema: StructType, time_zone: str) -> None:
        self._source = source
        self._schema = schema
        self._time_zone = time_zone

    def _arrow_schema(self) -> pa.Schema:
        from headgate.errors import OptionError
        from headgate.spark.compatibility import to_arrow_schema

        names = self._schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(
                f"{self._source.name}: the schema names {', '.join(map(repr, twice))} more than once. "
                "Name each column once.",
                option="schema",
                value=twice,
            )
        return to_arrow_schema(self._schema)

    def _grouping(self) -> dict[str, Any]:
        from headgate.source import SupportsTaskGroups

        return self._source.grouping() if isinstance(self._source, SupportsTaskGroups) else {"cores": os.cpu_count()}

    def _group(self, splits: Sequence[Split], grouping: Mapping[str, Any]) -> Sequence[Sequence[Split]]:
        from headgate.microbatch.packing import pack
        from headgate.source import SupportsTaskGroups

        if isinstance(self._source, SupportsTaskGroups):
            return self._source.group_splits(splits, grouping)
        return pack(splits, grouping["cores"] or 1)

    def _partitions(
        self,
        tasks: Sequence[Sequence[Split]],
        reporting: Reporting | None = None,
        ordering: Ordering | None = None,
    ) -> list[InputPartition]:
        serialize = self._source.split_serializer.serialize
        return [
            SplitsPartition([serialize(split) for split in task], number, reporting, ordering and ordering.of(task))
            for number, task in enumerate(tasks)
        ]

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headgate.microbatch.task import keep_modules, read_splits
        from headgate.versions import check_versions

        # Spark plans one empty partition where a source has none.
        if not isinstance(partition, SplitsPartition):
            return
        check_versions(partition.driver)
        splits = [self._source.split_serializer.deserialize(each) for each in partition.splits]
        context = TaskContext.get()
        time_zone = context.getLocalProperty("spark.sql.session.timeZone") if context is not None else None
        case_sensitive = context.getLocalProperty("spark.sql.caseSensitive") if context is not None else None
        yield from read_splits(
            self._source,
            self._arrow_schema(),
            splits,
            partition.value,
            time_zone or self._time_zone,
            partition.reporting,
            partition.ordering,
            None if case_sensitive is None else case_sensitive.lower() == "true",
        )
        if context is not None:
            keep_modules()


class BatchReader(_Reader, DataSourceReader):
    """Reads everything that is there when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """Run the enumerator to its end and cut its splits into tasks."""
        from headgate.microbatch.planner import plan_batch
        from headgate.microbatch.watermark_options import ordered_by

        column = ordered_by(self._source.options, self._arrow_schema())
        splits = plan_batch(self._source, self._arrow_schema(), _now_ms())
        ordering = None if column is None else self._ordering(column, splits)
        return self._partitions(self._group(splits, self._grouping()), ordering=ordering)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's splits."""
        return self._read(partition)

    def _ordering(self, column: str, splits: Sequence[Split]) -> Ordering:
        from headgate.microbatch.task import Ordering
        from headgate.source import SupportsEventTimeSeek, SupportsTaskGroups

        begins: Mapping[str, int | None] | None = None
        # A source that groups its splits itself may cut them, and has few of them in a task.
        if isinstance(self._source, SupportsEventTimeSeek) and not isinstance(self._source, SupportsTaskGroups):
            begins = self._source.next_event_times(splits)
        return Ordering(column, dict(begins or {}))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches. Lives in one planner process per query; its copies read in tasks."""

    def __init__(self, source: Source[Any, Any], schema: StructType, time_zone: str) -> None:
        super().__init__(source, schema, time_zone)
        self._planner: StreamPlanner | None = None
        self._member: Member | None = None
        self._strategy: WatermarkStrategy | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the constant that stands for "nothing read, nothing resolved"."""
        from headgate.microbatch.offsets import INITIAL

        return dict(INITIAL)

    def getDefaultReadLimit(self) -> Any:
        """Return one of the limits that are set; whichever Spark hands back, all of them are applied.

        Spark asks all sources of a query for it before it asks any for a plan: so this is where they join their
        alignment groups, and the first one does not read as if it were alone.
        """
        if self._source.options["scan.watermark.alignment.group"] is not None:
            self._planning()
        if self._member is not None:
            self._member.join()
        limits = self._limits()
        if limits.max_files is not None:
            return read_limit("MaxFiles", limits.max_files)
        if limits.max_bytes is not None:
            return read_limit("MaxBytes", limits.max_bytes)
        if limits.max_rows is not None:
            return read_limit("MaxRows", limits.max_rows)
        if limits.min_rows is not None:
            return read_limit("MinRows", limits.min_rows)
        return read_limit()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Plan a micro-batch after ``start``."""
        from headgate.source import PlanLimits

        limits = PlanLimits() if is_unlimited(limit) else self._limits()
        return self._planning().plan(start, limits, _now_ms())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut what ``end`` says into tasks."""
        tasks = self._planning().tasks(start, end, _now_ms())
        return self._partitions(tasks, self._reporting())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's ranges."""
        return self._read(partition)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, then end."""
        self._planning().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the query's lag: Spark shows it in ``lastProgress`` as ``latestOffset``."""
        return self._planning().lag(_now_ms())

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what only a restart before ``end`` would need."""
        self._planning().committed(end)

    def stop(self) -> None:
        """Close the enumerator, and leave the alignment group."""
        if self._planner is not None:
            self._planner.close()
        if self._member is not None:
            self._member.leave()

    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            from headgate.microbatch.stream_plan import StreamPlanner

            self._planner = StreamPlanner(
                self._source, self._arrow_schema(), self._group, self._grouping(), self._aligned_plans()
            )
        return self._planner

    def _aligned_plans(self) -> AlignedPlans | None:
        from headgate.microbatch.watermark_options import strategy_of

        self._strategy = strategy_of(self._source.options, self._arrow_schema())
        if self._strategy is None or self._strategy.alignment is None:
            return None
        from headgate.microbatch.alignment.host import folder_of_application
        from headgate.microbatch.alignment.member import Member
        from headgate.microbatch.alignment.planning import AlignedPlans

        alignment = self._strategy.alignment
        self._member = Member(alignment.group, folder_of_application())
        return AlignedPlans(self._source, alignment, self._strategy.idle_timeout_ms, self._member)

    def _reporting(self) -> Reporting | None:
        """Return where tasks report what they read; None where nothing is learned from it."""
        from headgate.microbatch.task import Reporting

        if self._member is None or self._strategy is None or not self._planning().learns:
            return None
        to = self._member.report_to
        return None if to is None else Reporting(to, self._strategy.event_time_column)

    def _limits(self) -> PlanLimits:
        from headgate.microbatch.stream_plan import FILES_PER_BATCH
        from headgate.source import PlanLimits

        options = self._source.options
        max_files = options.get("maxFilesPerTrigger")
        if max_files is None and "maxFilesPerTrigger" in options and options["stateLocation"] is None:
            max_files = FILES_PER_BATCH
        max_rows = [options["maxRowsPerTrigger"], options.get("maxOffsetsPerTrigger")]
        return PlanLimits(
            max_rows=min((each for each in max_rows if each is not None), default=None),
            max_bytes=options.get("maxBytesPerTrigger"),
            max_files=max_files,
            min_rows=options.get("minOffsetsPerTrigger"),
            max_delay_ms=options.get("maxTriggerDelay"),
        )


def local_time_zone() -> str:
    """Return the name of this machine's time zone, which is Spark's default for a session."""
    zone = os.environ.get("TZ", "").removeprefix(":")
    if not zone:
        _, found, zone = os.path.realpath("/etc/localtime").partition("zoneinfo/")
        zone = zone if found else "UTC"
    return zone


def import_source(where: Any) -> Any:
    """Return a source class given as ``"module:Class"``, or as itself."""
    if not isinstance(where, str):
        return where
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def resolve(where: Any) -> Callable[[Mapping[str, str]], Source[Any, Any]]:
    """Return what makes a source of options: a `Source` class, or a `SimpleSource` class in its adapter."""
    from headgate.source.simple import SimpleSource

    source = import_source(where)
    if issubclass(source, SimpleSource):
        from headgate.connectors.simple import adapt

        return adapt(source)
    made: type[Source[Any, Any]] = source
    return made
