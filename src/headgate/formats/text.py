"""Decodes text: a row per line, or per file (``wholetext``).

Never: interpret a line; also blank lines are rows.

Follows Spark 4.3, "Text Files".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.formats.base import DocumentFormat, LineBlock, LineFormat, read_document
from headgate.formats.shared_options import COMPRESSION, ENCODING, LINE_SEP
from headgate.java_texts import java_text, java_texts
from headgate.source.options import OptionSpec, boolean

__all__ = ["OPTIONS", "TextDocumentFormat", "TextFormat"]

OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("wholetext", boolean, False, "a row per file, not per line; such files are not split", False),
    LINE_SEP,
    ENCODING,
    COMPRESSION,
)
"""Every option of Spark 4.3's text source. ``encoding`` is that of ``lineSep`` only, as in Spark: values are UTF-8."""


def _check_schema(schema: pa.Schema) -> pa.Schema:
    if len(schema) != 1 or not pa.types.is_string(schema.field(0).type):
        raise OptionError(
            f"Text files have one column of type string, but the schema is {schema.names!r} with the types "
            f"{[str(field.type) for field in schema]}: leave the schema out or give it one string column.",
            option="schema", value=str(schema),
        )  # fmt: skip
    return schema


class TextFormat(LineFormat):
    """Lines as they are, without their ends. Bytes that are not UTF-8 become U+FFFD.

    Parameters
    ----------
    schema
        One string column.
    options
        Parsed values of `OPTIONS`, by name.
    time_zone
        Not used.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        self.schema = _check_schema(schema)
        if options["lineSep"] is not None:
            self.line_separator = options["lineSep"].encode(options["encoding"])

    def decode(self, block: LineBlock) -> pa.RecordBatch:
        """Return the lines of a block; see `LineFormat`."""
        data = bytes(block.data)
        separator = self.line_separator or b"\n"
        if self.line_separator is None and b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        data = data.removesuffix(separator)
        offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
        whole = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)])
        lines = pc.split_pattern(whole, separator).values
        return pa.RecordBatch.from_arrays([_to_strings(lines, data.isascii())], schema=self.schema)


def _to_strings(values: pa.BinaryArray, ascii_only: bool) -> pa.StringArray:
    return values.view(pa.string()) if ascii_only else java_texts(values)


class TextDocumentFormat(DocumentFormat):
    """Each file is one row.

    Parameters
    ----------
    schema, options, time_zone
        See `TextFormat`.
    max_document_bytes
        The largest file that is read, for it is one value.
    """

    def __init__(
        self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str, max_document_bytes: int = 64 << 20
    ) -> None:
        self.schema = _check_schema(schema)
        self._max_document_bytes = max_document_bytes

    def read(self, stream: pa.NativeFile, path: str) -> Iterator[pa.RecordBatch]:
        """Yield a file's only row, none for an empty file; see `DocumentFormat`."""
        advice = "the most that wholetext reads: read it without wholetext, line by line."
        data = read_document(stream, path, self._max_document_bytes, advice)
        if data:
            values = pa.array([java_text(data)], pa.string())
            yield pa.RecordBatch.from_arrays([values], schema=self.schema)
