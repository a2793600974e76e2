"""Reads JSON lines that all look like the first one, by the places of their quotes: three times as fast as a parser.

Never: accept a line that Spark would read differently; anything unexpected refuses the whole block.

Lines without a backslash alternate between what is outside and what is inside quotes. The first line says which of
that is the same on every line, and what is a value, a string or a number, between two such constants:

    {"id":7,"name":"x","flag":1}   ->   {"id":   7   ,"name":"   x   ","flag":   1   }

Every other line must have as many quotes, and the same bytes around its quotes; that gives the places of its values.
Numbers must be JSON's.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_OPEN = re.compile(rb"\{[ \t]*")
_COLON = re.compile(rb"[ \t]*:[ \t]*")
_NEXT = re.compile(rb"[ \t]*,[ \t]*")
_CLOSE = re.compile(rb"[ \t]*\}")
_PLAIN_VALUE = re.compile(rb"([ \t]*:[ \t]*)([-0-9.eE+]+|true|false|null)([ \t]*[,}][ \t]*)")
_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_MOST_COLUMNS = 400
_MOST_SKIPPED = 64
_MOST_BYTES = 1 << 30
_PIECE_BYTES = 64 * 1024


class _Constant(msgspec.Struct, frozen=True):
    """A piece that is the same on every line."""

    text: bytes


class _String(msgspec.Struct, frozen=True):
    """A piece that is the string value of a field."""

    name: str


class _Plain(msgspec.Struct, frozen=True):
    """A piece outside quotes that holds a field's number or boolean, between a prefix and a suffix."""

    name: str
    prefix: bytes
    suffix: bytes


_Piece = _Constant | _String | _Plain
_Places = npt.NDArray[np.int32]


class UniformLines:
    """Reads blocks of uniform lines; one instance reads many.

    Parameters
    ----------
    schema
        The columns to return: numbers, booleans and strings. Fields that lines lack are null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._skip = 0
        self._skipped = 0
        self._marks = _Marks()
        self._possible = not any(pa.types.is_nested(field.type) for field in schema)

    def read(self, lines: bytes) -> pa.RecordBatch | None:
        r"""Return the rows of lines, or None if they are not uniform.

        After a refusal some blocks are refused unseen, more with each refusal in a row, so that data of another kind
        is not searched in vain.

        Parameters
        ----------
        lines
            Lines with ``\n`` between them, in UTF-8.
        """
        if not self._possible:
            return None
        if self._skipped < self._skip:
            self._skipped += 1
            return None
        batch = self._read(lines)
        self._skipped = 0
        self._skip = 0 if batch is not None else min(2 * self._skip + 1, _MOST_SKIPPED)
        return batch

    def _read(self, lines: bytes) -> pa.RecordBatch | None:
        if b"\\" in lines or len(lines) > _MOST_BYTES or not _is_utf8(lines):
            return None
        end = lines.find(b"\n")
        pieces = _pieces(lines[: end if end >= 0 else len(lines)])
        if pieces is None:
            return None
        constants, fields = _layout(pieces)
        starts = _places(lines, constants, self._marks)
        if starts is None:
            return None
        columns: dict[str, pa.Array] = {}
        for index, field in enumerate(fields):
            wanted = self._type(field.name)
            if isinstance(field, _String):
                if wanted is None:
                    continue
                if not pa.types.is_string(wanted):
                    return None
            array = _slices(lines, starts[index] + len(constants[index]), starts[index + 1])
            if isinstance(field, _Plain):
                array = _plain_values(array, wanted)
                if array is None:
                    return None
            columns[field.name] = array
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(starts[0]), field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _type(self, name: str) -> pa.DataType | None:
        index = self._schema.get_field_index(name)
        return self._schema.field(index).type if index >= 0 else None


def _pieces(line: bytes) -> list[_Piece] | None:
    """Return what the pieces of a line are; None if its values nest, or it is not a JSON object at all."""
    texts = line.split(b'"')
    if len(texts) > _MOST_COLUMNS or len(texts) % 2 == 0 or not _OPEN.fullmatch(texts[0]):
        return None
    pieces: list[_Piece] = [_Constant(texts[0])]
    names = set()
    index = 1
    closed = False
    while index < len(texts) and not closed:
        name, after = texts[index], texts[index + 1]
        if name and min(name) < 0x20:
            return None
        names.add(name)
        pieces.append(_Constant(name))
        plain = _PLAIN_VALUE.fullmatch(after)
        if plain is not None:
            pieces.append(_Plain(name.decode("utf-8", "replace"), plain[1], plain[3]))
            closed = plain[3].strip() == b"}"
            index += 2
            continue
        if _COLON.fullmatch(after) is None or index + 3 >= len(texts):
            return None
        closed = _CLOSE.fullmatch(texts[index + 3]) is not None
        if not closed and _NEXT.fullmatch(texts[index + 3]) is None:
            return None
        pieces += [_Constant(after), _String(name.decode("utf-8", "replace")), _Constant(texts[index + 3])]
        index += 4
    if not closed or index != len(texts) or len(names) != sum(isinstance(p, _String | _Plain) for p in pieces):
        return None
    return pieces


def _layout(pieces: list[_Piece]) -> tuple[list[bytes], list[_String | _Plain]]:
    """Return what is the same on every line, and the values between: one fewer."""
    constants = [b""]
    fields: list[_String | _Plain] = []
    for index, piece in enumerate(pieces):
        if index:
            constants[-1] += b'"'
        if isinstance(piece, _Constant):
            constants[-1] += piece.text
            continue
        fields.append(piece)
        if isinstance(piece, _Plain):
            constants[-1] += piece.prefix
            constants.append(piece.suffix)
        else:
            constants.append(b"")
    return constants, fields


class _Marks:
    """Finds quotes and control characters, piece by piece into memory that is kept: new memory costs more than that."""

    def __init__(self) -> None:
        self._quotes = np.empty(0, np.int32)
        self._controls = np.empty(0, np.int32)

    def find(self, lines: bytes) -> tuple[_Places, _Places]:
        """Return the places of quotes and of characters below the space; they are valid until the next call."""
        if len(self._quotes) < len(lines):
            self._quotes = np.empty(len(lines), np.int32)
            self._controls = np.empty(len(lines), np.int32)
        data = np.frombuffer(lines, np.uint8)
        quotes = controls = 0
        for base in range(0, len(data), _PIECE_BYTES):
            piece = data[base : base + _PIECE_BYTES]
            found = np.flatnonzero(piece == ord('"'))
            np.add(found, base, out=self._quotes[quotes : quotes + len(found)], casting="unsafe")
            quotes += len(found)
            found = np.flatnonzero(piece < ord(" "))
            np.add(found, base, out=self._controls[controls : controls + len(found)], casting="unsafe")
            controls += len(found)
        return self._quotes[:quotes], self._controls[:controls]


def _places(lines: bytes, constants: list[bytes], marks: _Marks) -> list[_Places] | None:
    """Return where each constant starts, line by line; None if one is not there or anything else is."""
    quotes, breaks = marks.find(lines)
    quotes_a_line = sum(text.count(b'"') for text in constants)
    rows, remainder = divmod(len(quotes), quotes_a_line)
    if remainder or len(breaks) != rows - 1 or not bool(np.all(np.frombuffer(lines, np.uint8)[breaks] == ord("\n"))):
        return None
    ends = np.append(breaks, np.int32(len(lines)))
    by_line = quotes.reshape(rows, quotes_a_line)
    if not ((by_line[:, -1] < ends).all() and (by_line[1:, 0] > breaks).all()):
        return None
    starts: list[_Places] = []
    number = before = 0
    for text in constants:
        if b'"' in text:
            start = by_line[:, number] - text.index(b'"')
            number += text.count(b'"')
        else:
            start = ends - len(text)  # only the last one, after a number
        if starts and not np.all(starts[-1] + before <= start):
            return None
        if not _all_have(lines, start, text):
            return None
        starts.append(start)
        before = len(text)
    if (
        starts[0][0] != 0
        or not np.array_equal(starts[0][1:], breaks + 1)
        or not np.array_equal(start + len(text), ends)
    ):
        return None
    return starts


def _all_have(lines: bytes, starts: _Places, text: bytes) -> bool:
    """Whether a text is at each of some places: compared eight bytes at a time, but for the last place."""
    last = int(starts[-1])
    if lines[last : last + len(text)] != text:
        return False
    if len(starts) == 1:
        return True
    most = len(lines) - 8
    words = np.ndarray((most + 1,), np.dtype("<u8"), lines, strides=(1,))  # from each byte on
    for offset in range(0, len(text), 8):
        first = max(0, min(offset, len(text) - 8))
        part = text[first : first + 8]
        found = words[np.minimum(starts[:-1] + first, most)]
        if len(part) < 8:
            found &= np.uint64((1 << 8 * len(part)) - 1)
        if not (found == np.uint64(int.from_bytes(part, "little"))).all():
            return False
    return True


def _slices(lines: bytes, starts: _Places, stops: _Places) -> pa.StringArray:
    """Return the texts between ascending places: with the texts between them they are an Arrow array."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2] = starts
    offsets[1::2] = stops
    both = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(lines)])
    return both.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _all_equal(array: pa.Array, text: bytes) -> bool:
    """Whether every value is ``text``: all begin with it, and together they are no longer than that."""
    return array.total_values_length == len(text) * len(array) and _count(pc.starts_with(array, text)) == len(array)


def _count(mask: pa.BooleanArray) -> int:
    count: int = mask.true_count
    return count


def _plain_values(values: pa.Array, wanted: pa.DataType | None) -> pa.Array | None:
    """Return numbers or booleans of their texts; None if one is not JSON's or not of the wanted type."""
    rows = len(values)
    nulls = pc.starts_with(values, "n")
    if nulls.true_count:
        if not _all_equal(values.filter(nulls).view(pa.binary()), b"null"):
            return None
        values = pc.if_else(nulls, None, values)
    if values.null_count == rows:
        return values.cast(wanted or pa.string())
    if wanted is None:
        if _numbers(values, pa.int64()) is not None or _numbers(values, pa.float64()) is not None:
            return values
        return values if _count(pc.is_in(values, pa.array(["true", "false", None]))) == rows else None
    if pa.types.is_boolean(wanted):
        found = pc.index_in(values, pa.array(["false", "true"]))
        return found.cast(wanted) if found.null_count == values.null_count else None
    return _numbers(values, wanted)


def _numbers(values: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Cast texts to numbers; None if one is not a JSON number, for Arrow takes more than those."""
    if pa.types.is_string(wanted):
        return values if _all_match(values, _NUMBER) else None
    try:
        numbers = values.cast(wanted)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_integer(wanted):
        zeros = _count(pc.starts_with(values, "0")) + _count(pc.starts_with(values, "-0"))
        return numbers if zeros == 0 or _all_match(values, _INTEGER) else None
    if pa.types.is_floating(wanted):
        if _count(pc.is_finite(numbers)) != len(values) - values.null_count:
            return None
        text = values.buffers()[2].to_pybytes() if values.buffers()[2] is not None else b""
        plain = (
            b"e" not in text
            and b"E" not in text
            and _count(pc.starts_with(values, "0")) == _count(pc.starts_with(values, "0."))
            and _count(pc.starts_with(values, "-0")) == _count(pc.starts_with(values, "-0."))
            and not any(_count(pc.starts_with(values, begin)) for begin in (".", "-.", "+"))
            and not _count(pc.ends_with(values, "."))
        )
        return numbers if plain or _all_match(values, _NUMBER) else None
    return numbers if _all_match(values, _NUMBER) else None


def _all_match(values: pa.Array, regex: str) -> bool:
    return bool(_count(pc.match_substring_regex(values, regex)) == len(values) - values.null_count)
