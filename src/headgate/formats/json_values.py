"""Parses values of records that are JSON (``valueFormat`` ``json``) into typed columns: a row for each value.

Never: know the system or its own columns, or parse a value alone that can be read in bulk with those beside it.

The values of a batch go to the fastest reader that takes them; what it leaves goes on to the next:

    values                                        reader
    --------------------------------------------  -------------------------------------------------------------
    all, if each is one plain line                `JsonFormat.read_lines`, on the values' memory as it is
    objects, line breaks taken for other space    `JsonFormat.read_lines`, on halves where one is refused
    null, empty or nothing but space              none: the row is null
    all others                                    `JsonFormat.parse_record`, one by one; ``mode`` decides

Follows Spark 4.3's ``from_json(value.cast("string"), schema)`` (``JsonToStructs``), which differs from reading files:
an array is malformed, as is a byte order mark; a byte that is not UTF-8 is replaced; what is empty is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.json import OPTIONS, JsonFormat
from headgate.formats.shared_options import DROPMALFORMED, FAILFAST
from headgate.formats.values import check_type
from headgate.java_texts import java_text
from headgate.source.options import OptionSpec

_NOT_OF_VALUES = frozenset(
    ("lineSep", "encoding", "charset", "multiLine", "primitivesAsString", "prefersDecimal", "dropFieldIfAllNull",
     "inferTimestamp")
)  # fmt: skip
"""Options of JSON files that say how files are cut into records, or what types are when there is no schema."""

JSON_OPTIONS: tuple[OptionSpec, ...] = tuple(
    spec for spec in OPTIONS if spec.status == "supported" and spec.name not in _NOT_OF_VALUES
)
"""The options that apply to values that are JSON."""

_FEW_LINES = 16
"""Fewer lines than these are not worth a call of Arrow's reader."""
_MOST_LINES = 4096
"""Lines that are read at once where one of them is known to be bad."""
_MOST_SPACE = 16
"""White space around a value that a bulk reader is spared; values with more of it are parsed one by one."""
_NEWLINE, _RETURN, _TAB, _SPACE, _OPEN, _CLOSE = b"\n\r\t {}"
_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Where = Callable[[int], tuple[str, dict[str, Any]]]
"""Says where the value with this number is from ("at offset 3 of …"), and the facts of an error about it."""

_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


class JsonValues:
    """Parses values; one instance parses many batches, on one thread.

    Parameters
    ----------
    schema
        The columns to return, one at least: fields of the values, and the one named as ``columnNameOfCorruptRecord``.
    options
        Parsed values of `JSON_OPTIONS`, among others, by name.
    time_zone
        The session's time zone, for timestamps without one.

    Raises
    ------
    OptionError
        A time zone or a pattern cannot be used, or the column of corrupt records is not a string.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        given = {spec.name: spec.default for spec in OPTIONS} | {spec.name: options[spec.name] for spec in JSON_OPTIONS}
        self._format = JsonFormat(schema, given, time_zone, characters=True)
        for field in schema:
            if pa.types.is_temporal(field.type):
                check_type(field.type, given, time_zone)
        self._mode: str = given["mode"]

    def decode(self, values: pa.Array, where: Where) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Return the rows of the values, and which records they are of; None: of all, one each.

        Parameters
        ----------
        values
            The values as binary, each with a line break after it (a null has one, too).
        where
            Says where a value is from, for errors.

        Raises
        ------
        BadDataError
            A value is malformed and ``mode`` is ``FAILFAST``; facts as of ``where``.
        """
        count = len(values)
        ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
        lines = values.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0]) - 1).to_pybytes()
        if not values.null_count and b"\r" not in lines and lines.count(b"\n") == count - 1:
            batch = self._format.read_lines(lines)
            if batch is not None and batch.num_rows == count:
                return batch, None
        return _Mixed(self._format, self._mode, where, lines + b"\n", ends - ends[0]).decode()


class _Mixed:
    """One batch of values of which some have to be read one by one.

    ``_batches`` are the rows read so far, ``_order`` the numbers of their values; values that have no row in the end
    are null, unless they are in ``_dropped``.
    """

    def __init__(self, reader: JsonFormat, mode: str, where: Where, text: bytes, ends: npt.NDArray[np.int32]) -> None:
        self._format = reader
        self._mode = mode
        self._where = where
        self._text = text
        self._starts = ends[:-1].astype(np.int64)
        self._stops = ends[1:].astype(np.int64) - 1
        self._batches: list[pa.RecordBatch] = []
        self._order: list[_Places] = []
        self._dropped: list[int] = []
        self._worst: tuple[int, bytes, str] | None = None  # the first malformed value, for FAILFAST

    def decode(self) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        lines = _spaces_moved(self._text, self._starts, self._stops)
        objects = (self._stops - self._starts >= 2) & (lines[self._starts] == _OPEN)
        objects &= lines[self._stops - 1] == _CLOSE
        self._read_objects(lines, np.flatnonzero(objects))
        self._read_alone(np.flatnonzero(~objects & (self._stops > self._starts)))
        if self._worst is not None:
            raise self._malformed(*self._worst)
        return self._result()

    def _read_objects(self, lines: _Bytes, objects: _Places) -> None:
        """Read values that begin and end with a brace: in bulk, but for those that the bulk readers refuse."""
        text, stops = _joined(lines, self._starts, self._stops, objects)
        position, attempt, refused = 0, len(objects), 1
        bad = -1  # the next value that is known to be refused
        while position < len(objects):
            stop = min(position + attempt, len(objects))
            if stop - position >= _FEW_LINES and position != bad:
                start = stops[position - 1] + 1 if position else 0
                batch = self._format.read_lines(text[start : stops[stop - 1]])
                if batch is not None and batch.num_rows == stop - position:
                    self._batches.append(batch)
                    self._order.append(objects[position:stop])
                    position, attempt, refused = stop, min(2 * attempt, _MOST_LINES), 1
                    continue
                row = self._format.refused_row
                bad = -1 if row is None else position + row
                attempt = (stop - position) // 2 if row is None else min(row, stop - position - 1)
                if attempt >= _FEW_LINES:
                    continue
            self._read_alone(objects[position : position + refused])
            position, attempt, refused = position + refused, _MOST_LINES, min(2 * refused, _MOST_LINES)

    def _read_alone(self, places: _Places) -> None:
        """Read values one by one. What has no row, as an empty value, is left out: it becomes null."""
        rows: list[dict[str, Any]] = []
        raws: list[str | None] = []
        order: list[int] = []
        for place in places.tolist():
            raw = self._text[self._starts[place] : self._stops[place]]
            if not raw.strip(_BLANK):
                continue
            parsed, flaw = self._parse(raw)
            if flaw is not None and self._mode == DROPMALFORMED:
                self._dropped.append(place)
                continue
            if flaw is not None and self._mode == FAILFAST and (self._worst is None or place < self._worst[0]):
                self._worst = (place, raw, flaw)
            if parsed is not None:
                rows.append(parsed)
                raws.append(None if flaw is None else java_text(raw))
                order.append(place)
        if rows:
            self._batches.append(self._format.batch_of(rows, raws))
            self._order.append(np.array(order, np.int64))

    def _parse(self, raw: bytes) -> tuple[dict[str, Any] | None, str | None]:
        """Return the row of a value and what is wrong with it; no row if there is nothing but comments."""
        if raw.lstrip(_BLANK).startswith((b"[", _BYTE_ORDER_MARK)):
            return {}, "is not a JSON object"
        rows, flaw = self._format.parse_record(java_text(raw).encode())
        return (rows[0] if rows else None), flaw

    def _result(self) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Put the rows in the order of their values."""
        count = len(self._starts)
        found = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=self._format.schema), *self._batches])
        row_of = np.full(count, -1, np.int64)
        if self._order:
            row_of[np.concatenate(self._order)] = np.arange(found.num_rows)
        kept = None
        if self._dropped:
            keep = np.ones(count, np.bool_)
            keep[self._dropped] = False
            row_of, kept = row_of[keep], pa.array(keep)
        return found.take(pa.array(row_of, mask=row_of < 0)), kept

    def _malformed(self, place: int, raw: bytes, flaw: str) -> BadDataError:
        name, facts = self._where(place)
        return BadDataError(
            f"The value {name} {flaw}: {raw[:80].decode('utf-8', 'replace')!r}. Set mode to PERMISSIVE (nulls in place "
            "of what is bad) or DROPMALFORMED (without the record).",
            **facts,
        )


def _spaces_moved(text: bytes, starts: _Places, stops: _Places) -> _Bytes:
    """Return a copy of values in which none has line breaks, and space around an object is inside its braces.

    To JSON a line break is a space between its tokens and an error within a string, as a tab is; and a bulk reader's
    line ends only where a value does.
    """
    lines = np.frombuffer(text, np.uint8).copy()
    lines[(lines == _NEWLINE) | (lines == _RETURN)] = _TAB
    lines[stops] = _NEWLINE
    for first, step, brace in ((starts, 1, _OPEN), (stops - 1, -1, _CLOSE)):
        spaced = first[_is_space(lines[first])]
        places = spaced
        for _ in range(_MOST_SPACE):  # a step too far meets a line's end, which is not a space
            more = _is_space(lines[places])
            if not more.any():
                break
            places = places + step * more
        found = lines[places] == brace
        lines[places[found]] = _TAB
        lines[spaced[found]] = brace
    return lines


def _is_space(characters: _Bytes) -> npt.NDArray[np.bool_]:
    return np.equal(characters, _SPACE) | np.equal(characters, _TAB)


def _joined(lines: _Bytes, starts: _Places, stops: _Places, places: _Places) -> tuple[bytes, _Places]:
    """Return some of the lines, concatenated, and where each then stops."""
    offsets = np.append(starts, stops[-1] + 1).astype(np.int32)
    every = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(lines)])
    some = every if len(places) == len(starts) else every.take(pa.array(places))
    text = some.buffers()[2].to_pybytes() if len(some) else b""
    return text, np.frombuffer(some.buffers()[1], np.int32)[1 : len(some) + 1].astype(np.int64) - 1
