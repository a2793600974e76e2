"""CSV lines to record batches with the results of Spark's CSV reader.

Never: open a path, or look beyond the block at hand.

Follows Spark 4.3, "CSV Files", and ``docs/files-differences.md`` where it does not. A block goes the fast way through
Arrow (``csv_arrow``) if both parsers are known to agree on it, otherwise line by line (``csv_tokenizer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headgate.errors import BadDataError, InternalError
from headgate.formats import shared_options as shared
from headgate.formats.base import LineBlock, LineFormat
from headgate.formats.csv_arrow import ArrowReader, ArrowResult
from headgate.formats.csv_columns import header_names, map_columns
from headgate.formats.csv_document import CsvDocumentFormat
from headgate.formats.csv_infer import infer_csv_schema
from headgate.formats.csv_options import OPTIONS, CsvSettings, settings_of
from headgate.formats.csv_rows import FileColumns, RowBuilder
from headgate.formats.csv_tokenizer import Tokenizer, Tokens

__all__ = ["OPTIONS", "CsvDocumentFormat", "CsvFormat", "infer_csv_schema"]

_MARK = b"\xef\xbb\xbf"


class CsvFormat(LineFormat):
    """Decodes blocks of CSV lines.

    Parameters
    ----------
    schema
        The columns wanted, and the column of corrupt records if there is one.
    options
        Parsed options (``OPTIONS``); one that is absent has its default.
    time_zone
        The zone of timestamps that name none, unless the option ``timeZone`` is set.

    Raises
    ------
    OptionError
        Options contradict each other, or a pattern or a type cannot be used.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        settings = settings_of(options)
        self._settings = settings
        self._schema = schema
        self._tokenizer = Tokenizer(settings.dialect)
        self._rows = RowBuilder(schema, settings.mode, settings.corrupt_column, settings.values, time_zone)
        self._arrow = ArrowReader(schema, settings, time_zone)
        self.header = settings.header
        self.line_separator = settings.separator_bytes
        self._columns_of = lru_cache(maxsize=64)(self._map_columns)

    def is_header(self, line: bytes) -> bool:
        """Return whether a line can be the header: neither blank nor a comment. Spark skips such lines before it."""
        return not self._settings.dialect.is_skipped(line.decode(self._settings.encoding, "replace"))

    def _map_columns(self, header: bytes | None, path: str) -> FileColumns:
        names = None if header is None else header_names(header, self._settings, self._tokenizer)
        return map_columns(self._schema, self._rows.corrupt_index, names, self._settings, path)

    def decode(self, block: LineBlock) -> pa.RecordBatch:
        """See `LineFormat.decode`."""
        columns = self._columns_of(block.header, block.path)
        data = block.data if isinstance(block.data, bytes) else bytes(block.data)
        if block.byte_offset == 0 and block.header is None and _MARK in data and self._settings.encoding == "utf-8":
            data = _without_mark(data, self._settings)
        too_wide = columns.count > self._settings.dialect.max_columns
        plain = None if too_wide else self._arrow.normalised(data)
        batch = None
        if plain is not None:
            fast = self._arrow.read(plain, columns)
            batch = self._decode_mixed(plain, columns) if fast is None else self._from_arrow(fast)
        return self._decode_lines(data, block, columns) if batch is None else batch

    def _from_arrow(self, result: ArrowResult) -> pa.RecordBatch | None:
        """Return the batch; None if a record's place in the file must be known for it."""
        corrupt = None
        if result.bad is not None:
            if self._settings.mode == shared.FAILFAST:
                return None
            if self._rows.corrupt_index is not None:
                lines = result.lines()
                if len(lines) != result.num_rows:
                    return None
                is_bad = result.bad.to_pylist()
                corrupt = pa.array(
                    [line if bad else None for line, bad in zip(lines, is_bad, strict=True)], pa.string()
                )
        return self._rows.from_arrays(result.arrays, result.num_rows, result.bad, corrupt)

    def _decode_mixed(self, plain: bytes, columns: FileColumns) -> pa.RecordBatch | None:
        """Return the batch of a block of which a few lines are hard; None if all should go the slow way."""
        if self._settings.mode != shared.PERMISSIVE:
            return None  # which drops rows, or has to name the place of one
        easy, hard, order = self._arrow.separate(plain, columns)
        if len(hard) > len(easy):
            return None
        fast = self._arrow.read(b"\n".join(easy), columns)
        easy_batch = None if fast is None else self._from_arrow(fast)
        if easy_batch is None or easy_batch.num_rows != len(easy):
            return None
        lines = [line.decode("utf-8", "replace") for line in hard]
        try:
            tokens = [self._tokenizer.line(line) for line in lines]
        except BadDataError:
            return None  # the slow way raises it again, with its place in the file
        hard_batch = self._rows.from_tokens(tokens, columns, lines.__getitem__, _never_bad)
        return pa.concat_batches([easy_batch, hard_batch]).take(pa.array(order))

    def _decode_lines(self, data: bytes, block: LineBlock, columns: FileColumns) -> pa.RecordBatch:
        rows: list[Tokens] = []
        lines: list[tuple[int, str]] = []
        for offset, line in _lines(data, self._settings):
            if self._settings.dialect.is_skipped(line):
                continue
            try:
                tokens, line = self._tokenizer.cut_line(line, self._settings.line_separator)
            except BadDataError as error:
                raise _bad_record(block, block.byte_offset + offset, error.message) from error
            rows.append(tokens)
            lines.append((offset, line))
        return self._rows.from_tokens(
            rows,
            columns,
            lambda row: lines[row][1],
            lambda row, reason: _bad_record(block, block.byte_offset + lines[row][0], f"{reason}: {lines[row][1]!r}."),
        )


def _never_bad(row: int, reason: str) -> BadDataError:
    raise InternalError(f"a malformed record is an error in mode FAILFAST only: {reason}")


def _bad_record(block: LineBlock, byte_offset: int, reason: str) -> BadDataError:
    return BadDataError(
        f"{block.path} has a malformed CSV record at byte {byte_offset}: {reason} Correct the file or the schema, or "
        "read with mode PERMISSIVE or DROPMALFORMED.",
        path=block.path,
        byte_offset=byte_offset,
    )


def _without_mark(data: bytes, settings: CsvSettings) -> bytes:
    """Return a file's beginning without the byte order mark of its first record, which lines without any precede.

    As many blanks take its place in those, so that all that follows stays where it is.
    """
    for offset, line in _lines(data, settings):
        if settings.dialect.is_skipped(line):
            continue
        if offset == 0 or not line.startswith("\ufeff") or settings.dialect.is_skipped(line[1:]):
            return data
        before = data[:offset]
        separator = settings.separator_bytes
        end = len(before.rstrip(b"\r\n")) if separator is None else offset - len(separator)
        return before[:end] + b" " * len(_MARK) + before[end:] + data[offset + len(_MARK) :]
    return data


def _lines(data: bytes, settings: CsvSettings) -> Iterator[tuple[int, str]]:
    """Yield each line without its end, and its offset in bytes."""
    separator = settings.separator_bytes
    if separator is None:
        offset = 0
        for raw in data.splitlines(keepends=True):
            yield offset, raw.rstrip(b"\r\n").decode(settings.encoding, "replace")
            offset += len(raw)
        return
    offset = 0
    while offset < len(data):
        end = data.find(separator, offset)
        while end >= 0 and (end - offset) % len("\n".encode(settings.encoding)):
            end = data.find(separator, end + 1)
        stop = len(data) if end < 0 else end
        yield offset, data[offset:stop].decode(settings.encoding, "replace")
        offset = stop + len(separator)
