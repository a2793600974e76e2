"""``writeStream.foreachBatch``: a function of the user's gets the rows of each epoch as a DataFrame, on the driver.

Never: call the function with a number again but with the same rows; delete rows that it may be called with again.

Writers stage rows as Parquet in ``<checkpointLocation>/foreach-batch``. Once their checkpoint is complete the function
is called. When it has returned, ``committed-<epoch>`` says so, and the staged files are deleted. A crash between these
two calls it once more, with the same number and the same rows: who writes to a table notes the number with them.

Parquet has neither intervals nor columns of no type (``void``): they are staged as numbers of microseconds and as
booleans that are all null, and are what they were in the function's DataFrame.

Follows PySpark's ``DataStreamWriter.foreachBatch``, whose batches count from 0, where epochs count from 1.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.sink.durable_files import delete_if_there, write_at_once
from headgate.connectors.files.sink.encodings import ParquetEncoding
from headgate.connectors.files.sink.sink import check_columns
from headgate.connectors.files.sink.staged_files import (
    FOLDER,
    KnownWriters,
    StagedFile,
    StagedName,
    StagedNames,
    decode_staged,
    staged_path,
)
from headgate.connectors.files.sink.writer import FilesWriter, as_sink_error
from headgate.errors import HeadgateError, OptionError, SinkError, UserFunctionError
from headgate.formats.columns import with_leaves
from headgate.formats.file_systems import resolve_paths
from headgate.formats.names import Names
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import Sink, SinkCommitter
from headgate.source.options import Options, OptionSpec, text
from headgate.spark.continuous.settings import session_case_sensitive

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BatchFunction = Callable[["DataFrame", int], Any]
SINK_OPTION_SPECS = (OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),)

_log = logging.getLogger(__name__)
_MARK = re.compile(r"committed-(\d+)")
_TARGET_BYTES = 128 << 20


def _folder(checkpoint_location: str) -> tuple[pa_fs.FileSystem, str]:
    file_system, (location,) = resolve_paths([checkpoint_location], "checkpointLocation")
    return file_system, posixpath.join(location, "foreach-batch")


def _mark(folder: str, epoch: int) -> str:
    return posixpath.join(folder, f"committed-{epoch}")


class ForeachBatchSink(Sink):
    """See `Sink`.

    Parameters
    ----------
    spark
        The session of the DataFrames.
    function
        Gets a DataFrame and its batch's number.
    options
        What the user set.
    schema
        The rows' columns.

    Raises
    ------
    OptionError
        It is no function, a column's type cannot be staged, or there is an option, which it does not have.
    """

    name = "foreachBatch"
    commits_with_spark = True

    def __init__(
        self, spark: SparkSession, function: BatchFunction, options: dict[str, str], schema: pa.Schema
    ) -> None:
        if not callable(function):
            raise OptionError(
                f"foreachBatch: {function!r} is no function. It takes a DataFrame and the number of its batch.",
                option="foreachBatch", value=type(function).__name__,
            )  # fmt: skip
        Options.parse("The sink foreachBatch", SINK_OPTION_SPECS, options)
        self._encoding = ParquetEncoding("snappy")
        check_columns(self.name, self._encoding, _as_staged(schema), names=Names(session_case_sensitive(spark)))
        self._schema = schema
        self._spark: SparkSession | None = spark
        self._function: BatchFunction | None = function

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spark": None, "_function": None}  # they stay on the driver

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> FilesWriter:
        """See `Sink.create_writer`."""
        file_system, folder = _folder(context.options["checkpointLocation"])
        names = StagedNames(context, self._encoding.extension)
        replaces = self.output_mode == "complete"
        staged = _as_staged(schema)
        return FilesWriter(file_system, folder, self._encoding, staged, names, _TARGET_BYTES, replaces=replaces)

    def create_committer(self, checkpoint_location: str) -> ForeachBatchCommitter:
        """See `Sink.create_committer`."""
        assert self._spark is not None and self._function is not None
        return ForeachBatchCommitter(self._spark, self._function, self._schema, checkpoint_location)


class ForeachBatchCommitter(SinkCommitter):
    """Calls the function, batch by batch.

    Parameters
    ----------
    spark, function, schema
        See `ForeachBatchSink`.
    location
        Where the query's checkpoints are.
    """

    def __init__(self, spark: SparkSession, function: BatchFunction, schema: pa.Schema, location: str) -> None:
        self._spark = spark
        self._function = function
        self._schema = schema
        self._location = location
        self._fs, self._folder = _folder(location)
        self._writers = KnownWriters()

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """See `SinkCommitter.commit`. An epoch without rows is none of the function's batches.

        Raises
        ------
        UserFunctionError
            The function raised.
        SinkError
            Rows are gone, or storage fails.
        """
        staged = sorted(map(decode_staged, committables), key=lambda each: StagedName.parse(each.name))
        # A savepoint's rows are where the query that took it kept its checkpoints, and so is whether they were called.
        folder = staged[0].output if staged else self._folder
        with as_sink_error(folder, "read what is committed"):
            marks = self._marks(folder)
            is_removed = folder != self._folder and self._fs.get_file_info(folder).type == pa_fs.FileType.NotFound
        if is_removed:
            _log.warning(
                "foreachBatch: %s, where the query that took the savepoint kept its checkpoints, is not there any "
                "more: its function is taken to have had batch %d.", folder, epoch - 1,
            )  # fmt: skip
            return ()
        if staged and epoch > max(marks, default=0):
            self._call(folder, staged, epoch - 1)
            with as_sink_error(folder, "note what is committed"):
                write_at_once(self._fs, _mark(folder, epoch), iter([b""]))
        with as_sink_error(folder, "delete what is committed"):
            for mark in marks:
                if staged and mark < epoch:
                    delete_if_there(self._fs, _mark(folder, mark))
            for each in staged:
                delete_if_there(self._fs, staged_path(folder, each.name))
            if folder == self._folder and self._writers.note(staged):
                self._sweep()
        return ()

    def _marks(self, folder: str) -> list[int]:
        listed = self._fs.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True))
        return [int(match[1]) for each in listed if (match := _MARK.fullmatch(each.base_name))]

    def _call(self, folder: str, staged: Sequence[StagedFile], number: int) -> None:
        paths = [staged_path(folder, each.name) for each in staged]
        with as_sink_error(folder, "find staged rows"):
            gone = [each.path for each in self._fs.get_file_info(paths) if each.type != pa_fs.FileType.File]
        if gone:
            raise SinkError(
                f"foreachBatch: the staged rows in {gone[0]} are gone. If the query was started from an old "
                "checkpoint, its function had them long ago: give the query another checkpointLocation.",
                sink="foreachBatch", path=gone[0],
            )  # fmt: skip
        self.check_owner()
        frame = self._frame(paths)
        function = getattr(self._function, "__qualname__", repr(self._function))
        try:
            self._function(frame, number)
        except HeadgateError:
            raise
        except Exception as error:
            raise UserFunctionError(
                f"foreachBatch: {function} failed with batch {number}: {type(error).__name__}: {error}",
                function=function,
            ) from error  # fmt: skip

    def _frame(self, paths: Sequence[str]) -> DataFrame:
        """Return staged rows, in the types that they had."""
        from pyspark.sql import functions as f

        staged = _as_staged(self._schema)
        frame = self._read(paths, staged)
        if staged.equals(self._schema):
            return frame
        names = [each.replace("`", "``") for each in staged.names]
        columns = [f.col(f"`{name}`") for name in names]
        return frame.select(*(_restored(column, field.type).alias(field.name)
                              for column, field in zip(columns, self._schema, strict=True)))  # fmt: skip

    def _read(self, paths: Sequence[str], staged: pa.Schema) -> DataFrame:
        """Return staged rows. Spark reads local files itself; what else holds checkpoints it may not open."""
        from pyspark.sql import DataFrame

        from headgate.spark.compatibility import from_arrow_schema

        reader = self._spark.read.schema(from_arrow_schema(staged))
        if isinstance(self._fs, pa_fs.LocalFileSystem):
            if len({StagedName.parse(posixpath.basename(each)).subtask for each in paths}) > 1:
                return reader.parquet(*(f"file://{each}" for each in paths))
            # Rows that one subtask wrote stay in its order: of a result that is sorted this is all.
            return reduce(DataFrame.union, [reader.parquet(f"file://{each}") for each in paths])
        base, mark, parameters = self._location.partition("?")
        root = base.rstrip("/").removesuffix(posixpath.dirname(self._folder))
        return reader.format("headgate.files").option("fileFormat", "parquet").load(
            [f"{root}{each}{mark}{parameters}" for each in paths]
        )  # fmt: skip

    def _sweep(self) -> None:
        """Delete what writers staged that are no more, and that no checkpoint holds."""
        folder = posixpath.join(self._folder, FOLDER)
        for each in self._fs.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True)):
            name = StagedName.try_parse(each.base_name)
            if name is not None and self._writers.is_dead(name):
                delete_if_there(self._fs, each.path)


def _as_staged(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types in staged files."""
    return pa.schema([field.with_type(_staged_type(field.type)) for field in schema])


def _staged_type(kind: pa.DataType) -> pa.DataType:
    return with_leaves(kind, _staged_leaf)


def _staged_leaf(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_duration(kind):
        return pa.int64()
    return pa.bool_() if pa.types.is_null(kind) else kind


def _restored(staged: Column, kind: pa.DataType) -> Column:
    """Return a staged column as values of a type."""
    from pyspark.sql import functions as f

    if _staged_type(kind).equals(kind):
        return staged
    if pa.types.is_duration(kind):
        day, zero = f.expr("86400000000L"), f.lit(0)
        seconds = (staged % day).cast("decimal(20,0)") * f.expr("0.000001BD")
        days = f.call_function("div", staged, day).cast("int")  # `/` is of doubles, which have not as many digits
        return f.make_dt_interval(days, zero, zero, seconds.cast("decimal(18,6)"))
    if pa.types.is_struct(kind):
        fields = [_restored(staged.getField(field.name), field.type).alias(field.name) for field in kind]
        return f.when(staged.isNotNull(), f.struct(*fields))
    if pa.types.is_map(kind):
        keys = f.transform(f.map_keys(staged), lambda key: _restored(key, kind.key_type))
        return f.map_from_arrays(keys, f.transform(f.map_values(staged), lambda item: _restored(item, kind.item_type)))
    if pa.types.is_list(kind):
        return f.transform(staged, lambda item: _restored(item, kind.value_type))
    return f.lit(None)
