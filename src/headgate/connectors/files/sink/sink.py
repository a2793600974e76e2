"""The sinks ``parquet``, ``json`` and ``csv``: files that are published through Spark's own ``_spark_metadata`` log.

Never: touch a file on construction.

``spark.read`` and ``spark.readStream`` on the folder see exactly what is committed. Options are Spark's where Spark
has them; rows are published every ``publishInterval`` or ``publishSize``, whatever comes first, in few files. When a
query goes on from a savepoint into another folder, rows that were staged for the old one are published there, not here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from headgate.connectors.files.sink.committer import FilesCommitter, PublishingLimits
from headgate.connectors.files.sink.csv_lines import CsvDialect
from headgate.connectors.files.sink.encodings import (
    CsvEncoding,
    FileEncoding,
    JsonEncoding,
    ParquetEncoding,
    stored_schema,
)
from headgate.connectors.files.sink.partition_folders import PartitionFolders, partition_columns
from headgate.connectors.files.sink.staged_files import StagedNames
from headgate.connectors.files.sink.writer import FilesWriter
from headgate.errors import OptionError
from headgate.formats.file_systems import resolve_paths
from headgate.formats.names import Names
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import Sink
from headgate.source.options import Options, OptionSpec, boolean, choice, duration_ms, size_bytes, text

_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?:[^/?]*@)?(?P<rest>[^?]*)(?:\?.*)?")

_SPECS = (
    OptionSpec("path", text, None, "the folder"),
    OptionSpec("publishInterval", duration_ms, 10_000, "the least time between two publications"),
    OptionSpec("publishSize", size_bytes, 256 << 20, "so many staged bytes are published at once"),
    OptionSpec("targetFileSize", size_bytes, 128 << 20, "small staged files are merged up to about this size"),
    OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),
    OptionSpec(
        "partitionBy", text, None, "", status="rejected",
        why="columns are named by writeStream.partitionBy(...).",
    ),
)  # fmt: skip
_TEXT_SPECS = (
    *_SPECS,
    OptionSpec("compression", choice("none", "gzip"), "none", "of the files"),
    *(
        OptionSpec(
            name, text, None, "", status="rejected",
            why="times are written as ISO 8601 with microseconds, in UTC. Format them in a column of strings instead.",
        )
        for name in ("timestampFormat", "timestampNTZFormat", "dateFormat")
    ),
)  # fmt: skip
SINK_OPTION_SPECS: dict[str, tuple[OptionSpec, ...]] = {
    "parquet": (
        *_SPECS,
        OptionSpec("compression", choice("snappy", "zstd", "gzip", "none"), "snappy", "of the files"),
    ),
    "json": _TEXT_SPECS,
    "csv": (
        *_TEXT_SPECS,
        OptionSpec("header", boolean, False, "files begin with the columns' names"),
        OptionSpec("sep", text, ",", "what separates two values"),
        OptionSpec("nullValue", text, "", "what stands for null"),
    ),
}
"""The options of each format."""


class FilesSink(Sink):
    """See `Sink`.

    Parameters
    ----------
    name
        ``parquet``, ``json`` or ``csv``.
    options
        What the user set.
    schema
        The rows' columns.
    partition_by
        The columns whose values are folders and not in the files.
    time_zone
        The session's: in which the names of folders spell times.
    case_sensitive
        The session's: whether columns whose names differ only in case are two.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        time_zone: str = "UTC",
        case_sensitive: bool = False,
    ) -> None:
        self.name = name
        parsed = Options.parse(f"The sink {name}", SINK_OPTION_SPECS[name], options)
        path = parsed["path"]
        if not path:
            raise parsed.error("path", "is not set: which folder should the rows go to?")
        self._fs, (self._output,) = resolve_paths([path], "path")
        self._base_uri = _base_uri(path, self._output)
        self._encoding = _encoding(name, parsed)
        self._schema = schema
        self._limits = PublishingLimits(
            interval_ms=parsed["publishInterval"],
            size_bytes=parsed["publishSize"],
            file_bytes=parsed["targetFileSize"],
        )
        names = Names(case_sensitive)
        columns = partition_columns(name, partition_by, schema, names)
        self._folders = PartitionFolders(columns, time_zone) if columns else None
        in_files = pa.schema([each for each in schema if each.name not in columns])
        check_columns(name, self._encoding, in_files, header=name == "csv" and parsed["header"], names=names)

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> FilesWriter:
        """See `Sink.create_writer`."""
        names = StagedNames(context, self._encoding.extension)
        return FilesWriter(
            self._fs, self._output, self._encoding, schema, names, self._limits.file_bytes, self._folders
        )

    def create_committer(self, checkpoint_location: str) -> FilesCommitter:
        """See `Sink.create_committer`. Makes the folder ready: readers see nothing in it but what is published."""
        committer = FilesCommitter(
            self._fs, self._output, self._base_uri, self._encoding, self._schema, self._limits,
            partitioned=self._folders is not None,
        )  # fmt: skip
        committer.open()
        return committer


def _encoding(name: str, options: Options) -> FileEncoding:
    if name == "parquet":
        return ParquetEncoding(options["compression"])
    if name == "json":
        return JsonEncoding(options["compression"])
    if not options["sep"] or '"' in options["sep"] or "\n" in options["sep"]:
        raise options.error("sep", "must be one character or more, none of them a quote or a line end.")
    dialect = CsvDialect(separator=options["sep"], null=options["nullValue"], header=options["header"])
    return CsvEncoding(options["compression"], dialect)


def _base_uri(path: str, output: str) -> str:
    """Return how Spark spells the folder, without keys and parameters of pyarrow's."""
    match = _URI.fullmatch(path)
    if match is None or match["scheme"] == "file":
        return Path(output).as_uri()
    return f"{match['scheme']}://{quote(posixpath.normpath(match['rest']))}"


def check_columns(
    name: str, encoding: FileEncoding, schema: pa.Schema, *, header: bool = False, names: Names | None = None
) -> None:
    """Refuse columns that cannot be written, or not be read again.

    Raises
    ------
    OptionError
        There are none, two of one name, or one of a type that the encoding does not have.
    """
    if not schema.names:
        raise OptionError(f"The sink {name} needs at least one column.", option="format", value=name)
    seen: set[str] = set()
    key = (names or Names()).key
    for field in stored_schema(schema):
        if key(field.name) in seen:
            raise OptionError(
                f"The sink {name} cannot write two columns {field.name!r}: Spark reads names without regard to case, "
                "unless spark.sql.caseSensitive is true. Rename one.",
                option="format", value=name,
            )  # fmt: skip
        seen.add(key(field.name))
        if header and re.search("[\r\n]", field.name):
            raise OptionError(
                f"The sink {name} cannot write the column {field.name!r}: its name has a line end. Rename it, or leave "
                "the option 'header' out.",
                option="header", value="true",
            )  # fmt: skip
        if not encoding.check_type(field.type):
            raise OptionError(
                f"The sink {name} cannot write the column {field.name!r} of type {field.type}. Cast it, or drop it.",
                option="format", value=name,
            )  # fmt: skip
