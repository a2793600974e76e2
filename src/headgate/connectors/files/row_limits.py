"""Cuts a split after a number of rows, for ``maxRowsPerTrigger``.

Never: decode. Rows of text formats are counted as lines, so that blank lines and the like make a batch smaller, never
larger. Row groups, stripes and record batches, compressed files and documents are not cut: one of them is planned even
if it is larger than the limit.

Follows Spark's ``ReadMaxRows``; the range that is planned is a byte range like any other.
"""

from __future__ import annotations

import itertools
import re

import msgspec
import numpy as np
import pyarrow.fs as pa_fs

from headgate.connectors.files.compression import codec_of
from headgate.connectors.files.file_cursor import Format, open_lines, units_of
from headgate.connectors.files.lines import BLOCK_BYTES, MAX_LINE_BYTES, can_be_cut
from headgate.connectors.files.split import FileSplit
from headgate.formats.base import LineFormat, UnitFormat
from headgate.source.source import PlannedRange

_ANY_LINE_END = re.compile(rb"\r\n|\n|\r")


def plan_rows(
    split: FileSplit, fmt: Format, file_system: pa_fs.FileSystem, max_rows: int, *, first: bool
) -> tuple[PlannedRange[FileSplit] | None, int]:
    """Return the first ``max_rows`` rows of a split as a range, and how many rows it has at most. Reads the file.

    A file whose rows cannot be counted beforehand is planned as a whole and counts as ``max_rows``. The range is None
    where even the smallest possible has more rows, unless it is the ``first`` of a plan.
    """
    stop: int | None = None
    rows = max_rows
    if isinstance(fmt, LineFormat) and codec_of(split.path) is None and can_be_cut(fmt.line_separator):
        stop, rows = _stop_of_lines(split, fmt, file_system, max_rows)
    elif isinstance(fmt, UnitFormat):
        stop, rows = _stop_of_units(split, fmt, file_system, max_rows)
    if rows > max_rows and not first:
        return None, 0
    if stop is None or stop >= split.end:
        return PlannedRange(split=split), rows
    rest = msgspec.structs.replace(split, start=stop, position=None, unit=None)
    return PlannedRange(split=msgspec.structs.replace(split, end=stop), rest=rest), rows


def _stop_of_lines(
    split: FileSplit, fmt: LineFormat, file_system: pa_fs.FileSystem, max_rows: int
) -> tuple[int | None, int]:
    with file_system.open_input_file(split.path) as file:
        cutter, _, offset, stop = open_lines(split, file, fmt, BLOCK_BYTES, MAX_LINE_BYTES)
        rows = 0
        for data, end in cutter.blocks(offset, stop):
            ends = _line_ends(bytes(data), fmt.line_separator, max_rows - rows)
            rows += len(ends)
            if rows >= max_rows:
                return offset + ends[-1], rows
            offset = end
    return None, min(rows + 1, max_rows)  # the last line may have no end


def _line_ends(data: bytes, separator: bytes | None, most: int) -> list[int]:
    """Return the offsets after the first ``most`` lines of a block."""
    if separator is None and b"\r" in data:
        return [match.end() for match in itertools.islice(_ANY_LINE_END.finditer(data), most)]
    if separator is None or len(separator) == 1:
        found = np.flatnonzero(np.frombuffer(data, np.uint8) == (separator or b"\n")[0])[:most] + 1
        ends: list[int] = found.tolist()
        return ends
    return [match.end() for match in itertools.islice(re.finditer(re.escape(separator), data), most)]


def _stop_of_units(
    split: FileSplit, fmt: UnitFormat, file_system: pa_fs.FileSystem, max_rows: int
) -> tuple[int | None, int]:
    with file_system.open_input_file(split.path) as file:
        opened = fmt.open(file, split.path)
        try:
            count = opened.num_units
            rows = 0
            for unit in units_of(split, count):
                more = opened.rows_of_unit(unit) - ((split.position or 0) if unit == split.unit else 0)
                if rows and rows + more > max_rows:
                    return unit * split.size // count, rows
                rows += more
        finally:
            opened.close()
    return None, rows
