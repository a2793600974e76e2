"""The source `headgate.files`: files in folders, as they are or as they come.

Never: open a file in the constructor, or keep one open.

Follows FLIP-27, "Core Public Interfaces"; Spark 4.3's file sources for what the options mean.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.compression import codec_of
from headgate.connectors.files.enumerator import STATE_SERIALIZER, EnumeratorSettings, FilesEnumerator, FilesState
from headgate.connectors.files.event_times import EventTimes
from headgate.connectors.files.file_cursor import FileReadSettings, Format
from headgate.connectors.files.inference import infer_data_schema
from headgate.connectors.files.lines import BLOCK_BYTES, can_be_cut
from headgate.connectors.files.listing import FileListing
from headgate.connectors.files.options import FORMAT_OPTIONS, GENERAL_OPTIONS, NAME, specs_for
from headgate.connectors.files.partitions import infer_partition_fields
from headgate.connectors.files.row_limits import plan_rows
from headgate.connectors.files.split import SPLIT_SERIALIZER, FileSplit
from headgate.connectors.files.split_reader import FileSplitReader
from headgate.errors import HeadgateError, OptionError
from headgate.formats.arrow_ipc import ArrowFormat
from headgate.formats.base import DocumentFormat, LineFormat
from headgate.formats.csv import CsvDocumentFormat, CsvFormat
from headgate.formats.file_systems import resolve_paths
from headgate.formats.json import JsonDocumentFormat, JsonFormat
from headgate.formats.names import Names
from headgate.formats.orc import OrcFormat
from headgate.formats.parquet import ParquetFormat
from headgate.formats.row_filter import RowFilter
from headgate.formats.text import TextDocumentFormat, TextFormat
from headgate.formats.values_datetime import tzinfo_of, zone_of
from headgate.readers import SequentialReader
from headgate.source.enumerator import Boundedness, SplitEnumeratorContext
from headgate.source.options import Options, OptionSpec
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import PlanLimits, PlannedRange, Source
from headgate.source.watermark import MAX_WATERMARK_MS

_ANY_COLUMN = pa.schema([pa.field("value", pa.string())])


def _all_specs() -> tuple[OptionSpec, ...]:
    by_name = {spec.name: spec for specs in (GENERAL_OPTIONS, *FORMAT_OPTIONS.values()) for spec in specs}
    return tuple(by_name.values())


class FilesSource(Source[FileSplit, FilesState]):
    """Reads text, CSV, JSON lines, Parquet, ORC and Arrow IPC files.

    Parameters
    ----------
    options
        See ``docs/files.md``.
    """

    name: ClassVar[str] = NAME
    option_specs: ClassVar[Sequence[OptionSpec]] = _all_specs()
    split_serializer: ClassVar[VersionedSerializer[FileSplit]] = SPLIT_SERIALIZER
    state_serializer: ClassVar[VersionedSerializer[FilesState]] = STATE_SERIALIZER
    block_bytes: ClassVar[int] = BLOCK_BYTES
    """How much of a file of lines becomes one batch, about."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = Options.parse(self.name, specs_for(options), options)
        if self.options["fileFormat"] is None:
            raise self.options.error("fileFormat", f"is required: one of {', '.join(FORMAT_OPTIONS)}.")
        if not self._paths():
            raise self.options.error("path", "is required: a file, a folder or a glob.")
        self._event_times: EventTimes | None = None
        self._folded = False  # whether other columns would be inferred if case counted

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what the planner knows of files."""
        return {**self.__dict__, "_event_times": None}

    def schema(self) -> pa.Schema:
        """Return the columns of the files and of their folders, as Spark would infer them. Reads files."""
        file_system, listing = self._listing(Boundedness.BOUNDED)
        files = listing.list_files()
        if not files:
            raise self.options.error(
                "path", f"names no file with content ({', '.join(listing.roots)}), so its columns are unknown. "
                "Give a schema."
            )  # fmt: skip
        fmt = self._format(_ANY_COLUMN, "UTC", None)
        names = self._names(None)
        line_format = fmt if isinstance(fmt, LineFormat) else None
        data = infer_data_schema(files, file_system, self.options, line_format, names)
        by_path = sorted(files, key=lambda each: each.path)
        folders = infer_partition_fields((each.partitions for each in by_path), self._time_zone() or "UTC", names)
        schema = _with_folders(data, folders, names)
        self._folded = names.folded
        if self.options["caseSensitive"] is not None:
            self.check_names(schema, None)  # else whoever reads them does, and knows the session
        return schema

    def create_enumerator(self, context: SplitEnumeratorContext[FileSplit]) -> FilesEnumerator:
        """Return an enumerator that has seen no file."""
        return self._enumerator(context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[FileSplit], state: FilesState) -> FilesEnumerator:
        """Return an enumerator that has seen the files of ``state``."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[FileSplit]:
        """Return a reader that pulls one split after the other."""
        time_zone = self._time_zone() or context.time_zone or "UTC"
        names = self._names(context.case_sensitive)
        self.check_names(context.schema, context.case_sensitive)
        row_filter = self._row_filter(context.schema, time_zone, names)
        file_system, _ = resolve_paths(self._paths(), "path")
        settings = FileReadSettings(
            file_system=file_system,
            schema=context.schema,
            time_zone=time_zone,
            row_filter=row_filter,
            names=names,
            block_bytes=self.block_bytes,
            ignore_missing_files=self.options["ignoreMissingFiles"],
            ignore_corrupt_files=self.options["ignoreCorruptFiles"],
        )

        @functools.lru_cache(maxsize=16)
        def format_for_folders(folders: frozenset[str]) -> Format:
            data = pa.schema([field for field in context.schema if names.key(field.name) not in folders])
            if not len(data) and self.options["fileFormat"] == "csv":
                raise self.options.error(
                    "schema", f"has only the folders' columns {sorted(folders)}. Add one of the files."
                )
            # Rows must be counted even where all columns that are wanted are folders.
            return self._format(data if len(data) else _ANY_COLUMN, time_zone, row_filter, names)

        def format_for(split: FileSplit) -> Format:
            if names.case_sensitive and self.options["caseSensitive"] is None:
                self._check_folders(split, context.schema)
            return format_for_folders(frozenset(map(names.key, split.partitions)))

        return SequentialReader(lambda: FileSplitReader(format_for, settings), context)

    def plan_ranges(
        self, splits: Sequence[FileSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[FileSplit]]:
        """Plan splits in their order until a limit is reached; at least one range. Reads files for ``max_rows``.

        A range that is to end before an event time ends before the first row group that begins there or later.
        """
        planned: list[PlannedRange[FileSplit]] = []
        files: set[str] = set()
        total_bytes = 0
        rows_left = limits.max_rows
        fmt = None if rows_left is None else self._format(_ANY_COLUMN, "UTC", None)
        file_system, _ = resolve_paths(self._paths(), "path")
        for whole, split in zip(splits, self._up_to(splits, limits.before_event_time_ms)):
            if split is None:
                continue
            files.add(split.path)
            total_bytes += split.remaining().bytes or 0
            over = (limits.max_files is not None and len(files) > limits.max_files) or (
                limits.max_bytes is not None and total_bytes > limits.max_bytes
            )
            if (over and planned) or (rows_left is not None and rows_left <= 0):
                break
            if rows_left is None or fmt is None:
                planned.append(_with_rest(PlannedRange(split=split), whole))
                continue
            try:
                each, rows = plan_rows(split, fmt, file_system, rows_left, first=not planned)
            except (HeadgateError, OSError, pa.ArrowException):
                # It is gone or damaged. The task that reads it says so, or passes over it, as the options say.
                each, rows = PlannedRange(split=split), 0
            if each is None:
                break
            planned.append(_with_rest(each, whole))
            rows_left -= rows
        return planned

    def next_event_times(self, splits: Sequence[FileSplit]) -> Mapping[str, int | None] | None:
        """Return a lower bound of the next rows of each split: of their row group, or that of their folder.

        None for files whose event times are unknown (see `EventTimes`). Reads footers, those that it has not read
        lately. Before the enumerator is made it can only be asked for no splits: whether there is an event-time column.
        """
        event_times = self._event_times
        if not splits:
            return None if self.options["eventTimeColumn"] is None else {}
        if event_times is None or not all(map(event_times.can_know, splits)):
            return None
        found = [times.next_ms(split) for split, times in zip(splits, event_times.look_at(splits))]
        return {
            split.split_id: None if next_ms == MAX_WATERMARK_MS else next_ms for split, next_ms in zip(splits, found)
        }

    def _up_to(self, splits: Sequence[FileSplit], event_time_ms: int | None) -> Sequence[FileSplit | None]:
        """Return the part of each split that is before an event time, as far as that is known."""
        event_times = self._event_times
        if event_time_ms is None or event_times is None or not all(map(event_times.can_know, splits)):
            return splits
        looked_at = event_times.look_at(splits)
        return [times.up_to(split, event_time_ms) for split, times in zip(splits, looked_at)]

    def lag(self, splits: Sequence[FileSplit], now_ms: int) -> Mapping[str, int]:
        """Return the files and bytes of splits that are not read yet."""
        return {
            "filesBehind": len({split.path for split in splits}),
            "bytesBehind": sum(split.remaining().bytes or 0 for split in splits),
        }

    def check_names(self, schema: pa.Schema, case_sensitive: bool | None) -> None:
        """Refuse columns that have another meaning in a session than where `schema` inferred them, or none.

        Parameters
        ----------
        schema
            The columns, of which nobody knows whether they are those that this source inferred.
        case_sensitive
            See `SourceReaderContext`.

        Raises
        ------
        OptionError
            It names the option ``caseSensitive``, or two of the columns.
        """
        if self._folded and case_sensitive and self.options["caseSensitive"] is None:
            raise self.options.error(
                "caseSensitive", "is not set, and spark.sql.caseSensitive is true: load() cannot see that, and took "
                "names that differ only in case for one. Set the option to true, or give a schema."
            )  # fmt: skip
        twins = self._names(case_sensitive).twins(schema)
        if twins is not None:
            raise OptionError(
                f"{self.name}: the columns {twins[0]!r} and {twins[1]!r} differ in nothing but case, and are one in "
                "Spark unless spark.sql.caseSensitive is true. Set that, or give a schema that has one of them.",
                source=self.name, option="schema", value=None,
            )  # fmt: skip

    def _paths(self) -> tuple[str, ...]:
        single: str | None = self.options["path"]
        return (*([single] if single else []), *(self.options["paths"] or ()))

    def _time_zone(self) -> str | None:
        zone: str | None = self.options.get("timeZone")
        return zone

    def _names(self, session: bool | None) -> Names:
        """Return which names are one: as the option says, else the session, which planners of Spark's do not know."""
        option: bool | None = self.options["caseSensitive"]
        return Names(bool(session) if option is None else option)

    def _check_folders(self, split: FileSplit, schema: pa.Schema) -> None:
        """Refuse a folder that the planner, which does not know the session, took for a column of another case."""
        by_lower = {name.lower(): name for name in schema.names}
        for folder in split.partitions:
            column = by_lower.get(folder.lower(), folder)
            if column != folder and folder not in schema.names:
                raise self.options.error(
                    "caseSensitive", f"is not set, spark.sql.caseSensitive is true, and {split.path} is in a folder "
                    f"{folder}=..., where the schema has {column!r}. Set the option, or name the column as the folder."
                )  # fmt: skip

    def _row_filter(self, schema: pa.Schema, time_zone: str, names: Names) -> RowFilter | None:
        comparisons = self.options["rowFilter"]
        return RowFilter(comparisons, schema, time_zone, names.case_sensitive) if comparisons else None

    def _listing(self, boundedness: Boundedness) -> tuple[pa_fs.FileSystem, FileListing]:
        base = self.options["basePath"]
        file_system, paths = resolve_paths([*self._paths(), *([base] if base else [])], "path")
        return file_system, FileListing(
            file_system=file_system,
            roots=paths[: len(self._paths())],
            base_path=paths[-1] if base else None,
            recursive=self.options["recursiveFileLookup"],
            name_filter=self.options["pathGlobFilter"],
            modified_after_ms=self._milliseconds(self.options["modifiedAfter"]),
            modified_before_ms=self._milliseconds(self.options["modifiedBefore"]),
            globs_may_be_empty=boundedness is Boundedness.CONTINUOUS_UNBOUNDED,
            case_sensitive=self._names(None).case_sensitive,
        )

    def _milliseconds(self, moment: datetime.datetime | None) -> int | None:
        if moment is None:
            return None
        zone = self._time_zone()
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=tzinfo_of(zone_of(zone)))
        return int(moment.timestamp() * 1000)  # without any zone: the machine's, which is Spark's default too

    def _enumerator(self, context: SplitEnumeratorContext[FileSplit], state: FilesState | None) -> FilesEnumerator:
        file_system, listing = self._listing(context.boundedness)
        fmt = self._format(_ANY_COLUMN, "UTC", None)
        latest_first = self.options["latestFirst"]
        settings = EnumeratorSettings(
            split_size=self.options["splitSize"],
            can_be_cut=functools.partial(_can_be_cut, fmt),
            discovery_interval_ms=self.options["discovery.interval"],
            # The old files come last, and would be taken for too old. Spark keeps the age if there are no limits.
            max_file_age_ms=None if latest_first else self.options["maxFileAge"],
            latest_first=latest_first,
            file_name_only=self.options["fileNameOnly"],
        )
        self._event_times = self._new_event_times(file_system, context.schema)
        return FilesEnumerator(context, listing, settings, state, None if latest_first else self._event_times)

    def _new_event_times(self, file_system: pa_fs.FileSystem, schema: pa.Schema) -> EventTimes | None:
        name: str | None = self.options["eventTimeColumn"]
        if name is None:
            return None
        names = self._names(None)
        fields = [field for field in schema if names.same(field.name, name)]
        if len(fields) != 1 or not pa.types.is_timestamp(fields[0].type):
            raise self.options.error("eventTimeColumn", f"is {name!r}; it must name one column, a timestamp.")
        has_footers = self.options["fileFormat"] == "parquet"
        return EventTimes(file_system, fields[0], has_footers=has_footers, time_zone=self._time_zone(), names=names)

    def _format(
        self, schema: pa.Schema, time_zone: str, row_filter: RowFilter | None, names: Names | None = None
    ) -> Format:
        options: Mapping[str, Any] = (
            self.options if names is None else self.options.replaced("caseSensitive", names.case_sensitive)
        )
        match options["fileFormat"]:
            case "text":
                return (TextDocumentFormat if options["wholetext"] else TextFormat)(schema, options, time_zone)
            case "csv":
                return (CsvDocumentFormat if options["multiLine"] else CsvFormat)(schema, options, time_zone)
            case "json":
                return (JsonDocumentFormat if options["multiLine"] else JsonFormat)(schema, options, time_zone)
            case "parquet":
                return ParquetFormat(schema, options, time_zone, row_filter)
            case "orc":
                return OrcFormat(schema, options, time_zone)
            case _:
                return ArrowFormat(schema, options, time_zone)


def _with_folders(data: pa.Schema, folders: Sequence[pa.Field], names: Names) -> pa.Schema:
    """Return the columns of files and folders: one that both have stands where the file has it, and is the folder's."""
    left, fields = list(folders), []
    for field in data:
        folder = next((each for each in left if names.same(each.name, field.name)), None)
        if folder is not None:
            left.remove(folder)
        fields.append(field if folder is None else folder)
    return pa.schema([field.with_nullable(True) for field in (*fields, *left)])


def _with_rest(planned: PlannedRange[FileSplit], whole: FileSplit) -> PlannedRange[FileSplit]:
    """Return a range of a part of a split as a range of the whole split."""
    if planned.rest is not None:
        rest = msgspec.structs.replace(planned.rest, end=whole.end)
    elif planned.split.end < whole.end:
        rest = msgspec.structs.replace(whole, start=planned.split.end, position=None, unit=None)
    else:
        return planned
    return PlannedRange(split=planned.split, rest=rest)


def _can_be_cut(file_format: Format, path: str) -> bool:
    """Return whether a file may be read in pieces."""
    if isinstance(file_format, LineFormat):
        return codec_of(path) is None and can_be_cut(file_format.line_separator)
    return not isinstance(file_format, DocumentFormat)
