"""``writeStream.toTable``: the table of Spark's catalog whose files a continuous query writes.

Never: change a table that is there, or write to one whose files Spark would read otherwise than they are written.

Follows ``DataStreamWriter.toTable`` of Spark 4.3. Spark reads a table of files by ``_spark_metadata`` too if its folder
has one, so that what the sinks of files publish is what the table holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headgate.connectors.files.sink.committer import FilesCommitter
from headgate.connectors.files.sink.partition_folders import partition_columns
from headgate.connectors.files.sink.sink import FilesSink
from headgate.errors import OptionError, UnsupportedOperationError
from headgate.formats.names import Names
from headgate.spark.analyzed.scala import class_named
from headgate.spark.continuous.settings import session_case_sensitive
from headgate.spark.continuous.sinks import FILE_FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_THE_TABLE = ("path", "serialization.format")
_READ_BY = ("header", "sep", "nullValue")


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of files.

    Parameters
    ----------
    name
        As the user wrote it.
    location
        Its folder.
    partition_by
        Its partition columns.
    options
        With which Spark reads it.
    """

    name: str
    location: str
    partition_by: tuple[str, ...]
    options: dict[str, str]


def table_for(
    spark: SparkSession,
    name: str,
    file_format: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    options: dict[str, str],
) -> Table:
    """Return the table that rows are appended to, and create it if there is none.

    Raises
    ------
    UnsupportedOperationError
        It is a view, or not one of files, or in a catalog that is not Spark's own.
    OptionError
        Its format, columns or partition columns are others than those of the query.
    """
    catalog: Any = spark._jsparkSession.sessionState().catalog()
    names = Names(session_case_sensitive(spark))
    identifier = _identifier(spark, name)
    if catalog.isTempView(identifier):
        raise _unsupported(name, f"Temporary view {name} doesn't support streaming write.")
    if not catalog.tableExists(identifier):
        if file_format not in FILE_FORMATS:
            raise _unsupported(name, _only_files(name, file_format))
        partition_columns(file_format, partition_by, schema, names)
        _create(spark, name, file_format, schema, partition_by, options)
    metadata = catalog.getTableMetadata(identifier)
    if metadata.tableType().name() == "VIEW":
        raise _unsupported(name, f"Streaming into views {name} is not supported.")
    provider = metadata.provider().get().lower() if metadata.provider().isDefined() else "hive"
    if provider != file_format:
        raise OptionError(
            f"The input source({file_format}) is different from the table {name}'s data source provider({provider}).",
            option="format", value=file_format,
        )  # fmt: skip
    if provider not in FILE_FORMATS:
        raise _unsupported(name, _only_files(name, provider))
    collections = class_named("scala.jdk.javaapi.CollectionConverters")
    columns = tuple(collections.asJava(metadata.partitionColumnNames()))
    if partition_by and list(map(names.key, partition_by)) != list(map(names.key, columns)):
        raise OptionError(
            f"partitionBy names {', '.join(partition_by)}, and the table {name} is partitioned by "
            f"{', '.join(columns) or 'no column'}.",
            option="partitionBy", value=list(partition_by),
        )  # fmt: skip
    _check_columns(name, json.loads(metadata.schema().json()), schema, columns, names, by_place=provider == "csv")
    stored = dict(collections.asJava(metadata.storage().properties()))
    given = {key: value for key, value in stored.items() if key.lower() not in _OF_THE_TABLE}
    return Table(name=name, location=_path(metadata.location()), partition_by=columns, options=given)


def _path(uri: Any) -> str:
    """Return a folder as users write it: nothing in it is escaped."""
    if uri.getScheme() in (None, "file"):
        return str(uri.getPath())
    return str(class_named("org.apache.hadoop.fs.Path")(uri).toString())


def _identifier(spark: SparkSession, name: str) -> Any:
    session: Any = spark._jsparkSession
    state = session.sessionState()
    parts = state.sqlParser().parseMultipartIdentifier(name)
    manager = state.catalogManager()
    first = parts.apply(0)
    if parts.size() > 1 and manager.isCatalogRegistered(first):
        catalog, parts = first, parts.tail()
    else:
        catalog = manager.currentCatalog().name()
    if catalog != "spark_catalog" or parts.size() > 2:
        raise _unsupported(name, _only_files(name, f"the catalog {catalog}"))
    return state.sqlParser().parseTableIdentifier(".".join(f"`{each.replace('`', '``')}`" for each in _texts(parts)))


def _texts(parts: Any) -> list[str]:
    return [parts.apply(each) for each in range(parts.size())]


def _create(
    spark: SparkSession,
    name: str,
    file_format: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    options: dict[str, str],
) -> None:
    from headgate.spark.compatibility import from_arrow_schema

    session: Any = spark._jsparkSession
    columns = session.parseDataType(from_arrow_schema(schema).json()).asNullable().toDDL()
    clauses = [f"CREATE TABLE {name} ({columns}) USING {file_format}"]
    lowered = {key.lower(): value for key, value in options.items()}
    read_by = [f"{key} {_quoted(lowered[key.lower()])}" for key in _READ_BY if key.lower() in lowered]
    if read_by:
        clauses.append(f"OPTIONS ({', '.join(read_by)})")
    if partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(f'`{each}`' for each in partition_by)})")
    if "path" in lowered:
        clauses.append(f"LOCATION {_quoted(lowered['path'])}")
    spark.sql(" ".join(clauses))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _check_columns(
    name: str,
    stored: dict[str, Any],
    schema: pa.Schema,
    partition_by: Sequence[str],
    names: Names,
    *,
    by_place: bool,
) -> None:
    from pyspark.sql.types import StructType

    from headgate.spark.compatibility import from_arrow_schema

    partitions = set(map(names.key, partition_by))

    def spelled(columns: StructType) -> list[str]:
        of_files = [each for each in columns if names.key(each.name) not in partitions]
        of_folders = [each for each in columns if names.key(each.name) in partitions]
        texts = [f"{names.key(each.name)} {each.dataType.simpleString()}" for each in of_files]
        return [*(texts if by_place else sorted(texts)), *sorted(names.key(each.name) for each in of_folders)]

    wanted, found = StructType.fromJson(stored), from_arrow_schema(schema)
    if spelled(wanted) != spelled(found):
        raise OptionError(
            f"The rows have the columns {found.simpleString()}, the table {name} has {wanted.simpleString()}. Select "
            "and cast them.",
            option="toTable", value=name,
        )  # fmt: skip


def _only_files(name: str, of: str) -> str:
    return (
        f"toTable writes to tables of files in spark_catalog ({', '.join(FILE_FORMATS)}); {name} is one of {of}. Use "
        "foreachBatch, whose function appends a batch: note the batch's number with its rows, since the last batch may "
        "come again."
    )


def _unsupported(name: str, message: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(message, source=name, operation="toTable")


class TableSink(FilesSink):
    """A sink of files after whose publications this session reads the table anew.

    Parameters
    ----------
    spark, table
        The session and its table.
    name, options, schema, time_zone
        See `FilesSink`.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: Table,
        name: str,
        options: dict[str, str],
        schema: pa.Schema,
        time_zone: str,
    ) -> None:
        super().__init__(
            name, {**table.options, **options, "path": table.location}, schema, table.partition_by, time_zone,
            session_case_sensitive(spark),
        )  # fmt: skip
        self._spark: SparkSession | None = spark
        self._table = table.name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spark": None}  # it stays on the driver

    def create_committer(self, checkpoint_location: str) -> FilesCommitter:
        """See `Sink.create_committer`."""
        spark, table = self._spark, self._table
        assert spark is not None
        session: Any = spark._jsparkSession
        identifier = _identifier(spark, table)
        committer = super().create_committer(checkpoint_location)

        def forget() -> None:
            session.sessionState().catalog().refreshTable(identifier)

        committer.when_published = forget
        forget()
        return committer
