"""Finds the columns of files when the user gave no schema.

Never: read more of text files than a sample; later content may contradict the inferred types.

Follows Spark 4.3: names and types of CSV and JSON from their content, of bulk formats from a footer, text is one
column ``value``; partition columns come last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.compression import codec_of, open_decompressed
from headgate.connectors.files.lines import LineCutter, Window, plain_reader
from headgate.connectors.files.listing import FileStatus
from headgate.errors import BadDataError
from headgate.formats.arrow_ipc import infer_arrow_schema
from headgate.formats.base import LineFormat
from headgate.formats.csv import infer_csv_schema
from headgate.formats.json_infer import infer_json_schema
from headgate.formats.names import Names
from headgate.formats.orc import infer_orc_schema
from headgate.formats.parquet import infer_parquet_schema
from headgate.source.options import Options

SAMPLE_BYTES = 1 << 20
_SAMPLE_BYTES_OF_FILE = 64 << 10

_FOOTERS: dict[str, Callable[[pa.NativeFile, str], pa.Schema]] = {
    "parquet": infer_parquet_schema,
    "orc": infer_orc_schema,
    "arrow": infer_arrow_schema,
}


def infer_data_schema(
    files: Sequence[FileStatus],
    file_system: pa_fs.FileSystem,
    options: Options,
    line_format: LineFormat | None,
    names: Names,
) -> pa.Schema:
    """Return the columns that the files themselves have.

    Parameters
    ----------
    files
        What was listed; at least one.
    file_system
        Where they are.
    options
        Of the source.
    line_format
        How lines are cut; None: the files are documents or made of units.
    names
        Which names are one.

    Raises
    ------
    BadDataError
        A file is damaged, or columns of two files have types that Spark does not merge (``mergeSchema``).
    """
    file_format = options["fileFormat"]
    if file_format == "text":
        return pa.schema([pa.field("value", pa.string())])
    footer = _FOOTERS.get(file_format)
    if footer is not None:
        looked_at = sorted(files, key=lambda each: each.path)[: None if options["mergeSchema"] else 1]
        return _merge(looked_at, (_with_file(file_system, each.path, footer) for each in looked_at), names)
    infer = infer_csv_schema if file_format == "csv" else infer_json_schema
    return infer(b"".join(_samples(files, file_system, line_format)), options, names)


def _with_file(file_system: pa_fs.FileSystem, path: str, look: Callable[[pa.NativeFile, str], pa.Schema]) -> pa.Schema:
    with file_system.open_input_file(path) as file:
        return look(file, path)


def _merge(files: Sequence[FileStatus], schemas: Iterable[pa.Schema], names: Names) -> pa.Schema:
    merged: list[pa.Field] = []
    for status, schema in zip(files, schemas):
        try:
            merged = names.merged_fields(merged, list(schema))
        except ValueError as error:
            raise BadDataError(
                f"headgate.files: the columns of {status.path} contradict those of files before it: {error}, which "
                "'mergeSchema' does not make one type. Give a schema, or leave 'mergeSchema' out.",
                path=status.path, byte_offset=0,
            ) from error  # fmt: skip
    return pa.schema(merged)


def _samples(
    files: Sequence[FileStatus], file_system: pa_fs.FileSystem, line_format: LineFormat | None
) -> Iterator[bytes]:
    """Yield the beginnings of files until the sample is large enough; headers of the first file only."""
    left = SAMPLE_BYTES
    for index, status in enumerate(files):
        if left <= 0 or (line_format is None and index > 0):
            return
        most = left if len(files) == 1 or line_format is None else min(left, _SAMPLE_BYTES_OF_FILE)
        with file_system.open_input_file(status.path) as file:
            if line_format is None:
                sample = open_decompressed(file, status.path).read(most)
                sample = sample.removeprefix(b"\xef\xbb\xbf")
            else:
                sample = _whole_lines(file, status, line_format, most, with_header=index == 0)
        left -= len(sample)
        yield sample


def _whole_lines(file: pa.NativeFile, status: FileStatus, fmt: LineFormat, most: int, with_header: bool) -> bytes:
    stream = codec_of(status.path) is not None
    read_at = Window(open_decompressed(file, status.path)).read_at if stream else plain_reader(file, status.size)
    cutter = LineCutter(read_at, status.path, fmt.line_separator, block_bytes=most)
    header = b""
    end = fmt.line_separator or b"\n"
    start = cutter.text_start()
    if fmt.header:
        line, start = cutter.first_line(fmt.is_header)
        header = line + end if with_header else b""
    for data, _end in itertools.islice(cutter.blocks(start, None if stream else status.size), 1):
        lines = bytes(data)
        return header + (lines if lines.endswith(end) else lines + end)
    return header
