"""CSV files whose records may span lines (``multiLine``): read from the start, in batches of bounded size.

Never: hold more of a file than a batch and the record at its end.

Follows Spark 4.3's ``UnivocityParser.parseStream``. The file's first line end decides what ends a line. Text is cut
where a line ends outside quotes; such a piece goes through Arrow if it can, else record by record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.base import DocumentFormat
from headgate.formats.csv_arrow import ArrowReader
from headgate.formats.csv_columns import map_columns, safe_names
from headgate.formats.csv_options import CsvSettings, settings_of
from headgate.formats.csv_rows import FileColumns, RowBuilder
from headgate.formats.csv_tokenizer import Tokenizer, Tokens

_CHUNK_BYTES = 1 << 20
_MAX_RECORD_CHARS = 64 << 20


class CsvDocumentFormat(DocumentFormat):
    """Reads whole CSV files in which quoted values may hold line ends. Parameters as of `CsvFormat`."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        self._settings = settings_of(options)
        self._schema = schema
        self._tokenizer = Tokenizer(self._settings.dialect)
        self._arrow = ArrowReader(schema, self._settings, time_zone)
        self._rows = RowBuilder(
            schema, self._settings.mode, self._settings.corrupt_column, self._settings.values, time_zone
        )

    def read(self, stream: pa.NativeFile, path: str) -> Iterator[pa.RecordBatch]:
        """See `DocumentFormat.read`."""
        document = _Document(stream, path, self._settings, self._tokenizer)
        names = None
        if self._settings.header:
            header = document.first_record()
            if header is None:
                return
            names = safe_names(header, self._settings)
        columns = map_columns(self._schema, self._rows.corrupt_index, names, self._settings, path)
        while document.has_more():
            batch = self._fast(document, columns)
            if batch is None:
                batch = self._slow(document, columns)
            if batch is not None and batch.num_rows:
                yield batch

    def _fast(self, document: _Document, columns: FileColumns) -> pa.RecordBatch | None:
        if columns.count > self._settings.dialect.max_columns:
            return None
        data = document.text.encode()
        read = self._arrow.read_document(data, columns, document.ended)
        if read is None:
            return None
        result, end = read
        if result.bad is not None and self._rows.needs_raw_records:
            return None
        document.skip(data, end)
        return self._rows.from_arrays(result.arrays, result.num_rows, result.bad)

    def _slow(self, document: _Document, columns: FileColumns) -> pa.RecordBatch | None:
        records = document.records()
        if not records:
            return None
        return self._rows.from_tokens(
            [record.tokens for record in records],
            columns,
            lambda row: records[row].text,
            lambda row, reason: document.bad_record(records[row].byte_offset, f"{reason}: {records[row].text!r}."),
        )


class _Record(msgspec.Struct, frozen=True):
    tokens: Tokens
    byte_offset: int
    text: str


class _Document:
    """One file being read: its text from the first record that was not yet returned."""

    def __init__(self, stream: pa.NativeFile, path: str, settings: CsvSettings, tokenizer: Tokenizer) -> None:
        self._stream = stream
        self._path = path
        self._settings = settings
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder(settings.encoding)("replace")
        self._line_end: str | None = settings.line_separator
        self._byte_offset = 0
        self._is_stuck = False
        self.text = ""
        self.ended = False

    def has_more(self) -> bool:
        """Make text available; False at the end of the file."""
        if not self.ended and (self._is_stuck or len(self.text) < _CHUNK_BYTES):
            self._fill()
            self._is_stuck = False
        return bool(self.text) or not self.ended

    def first_record(self) -> Tokens | None:
        """Return the first record's tokens; None: there is none."""
        while self.has_more():
            records = self.records(most=1)
            if records:
                return records[0].tokens
        return None

    def records(self, most: int | None = None) -> list[_Record]:
        """Return the records that the text at hand holds whole, but at most some."""
        records: list[_Record] = []
        at = 0
        while at < len(self.text) and len(records) != most:
            record = self._next_record(at)
            if record is None:
                self._is_stuck = True
                break
            tokens, end = record
            raw = self._raw(at, end)
            if tokens:
                records.append(_Record(tokens, self._byte_offset, raw.removesuffix("\n").removesuffix("\r")))
            self._byte_offset += len(raw.encode(self._settings.encoding, "replace"))
            at = end
        self.text = self.text[at:]
        return records

    def skip(self, data: bytes, end: int) -> None:
        """Drop the text up to a place in its UTF-8 bytes, which is after a line end."""
        text = data[:end].decode()
        self._byte_offset += len(text.encode(self._settings.encoding, "replace"))
        if self._line_end == "\r\n":
            self._byte_offset += text.count("\n")
        self.text = self.text[len(text) :]
        self._is_stuck = bool(self.text)

    def _next_record(self, at: int) -> tuple[Tokens, int] | None:
        """Return the record at an offset and where it ends; no tokens for a skipped line; None: more text is needed."""
        text = self.text
        comment = self._settings.dialect.comment
        if text[at] == "\n" or (comment is not None and text[at] == comment):
            end = text.find("\n", at)
            if end < 0 and not self.ended:
                return None
            return [], len(text) if end < 0 else end + 1
        try:
            tokens, end = self._tokenizer.record(text, at)
        except BadDataError as error:
            raise self.bad_record(self._byte_offset, error.message) from error
        if end >= len(text) and not self.ended:
            if len(text) - at > _MAX_RECORD_CHARS:
                raise self.bad_record(self._byte_offset, f"it is longer than {_MAX_RECORD_CHARS} characters.")
            return None
        return tokens, end

    def _fill(self) -> None:
        r"""Append the next chunk, with ``\n`` for the file's line end."""
        wanted = max(_CHUNK_BYTES, len(self.text))
        raw = self._stream.read(wanted)
        self.ended = not raw
        first = not self.text and self._byte_offset == 0
        text = self.text + self._decoder.decode(raw, final=self.ended)
        if first and text.startswith("\ufeff"):
            text = text[1:]
            self._byte_offset = len("\ufeff".encode(self._settings.encoding))
        if self._line_end is None and (self.ended or text.find("\r") != len(text) - 1):
            ends = [each for each in ("\r\n", "\n", "\r") if each in text]
            self._line_end = min(ends, key=text.index) if ends else None
        if self._line_end == "\r\n":
            text = text.replace("\r\n", "\n")
        elif self._line_end == "\r":
            text = text.replace("\r", "\n")
        self.text = text

    def _raw(self, start: int, end: int) -> str:
        text = self.text[start:end]
        return text.replace("\n", self._line_end) if self._line_end in ("\r\n", "\r") else text

    def bad_record(self, byte_offset: int, reason: str) -> BadDataError:
        """Return the error for the record at an offset."""
        return BadDataError(
            f"{self._path} has a malformed CSV record at byte {byte_offset}: {reason} Correct the file or the schema, "
            "or read with mode PERMISSIVE or DROPMALFORMED.",
            path=self._path,
            byte_offset=byte_offset,
        )
