"""Reads JSON lines that all look like the first one, by splitting them at their quotes: twice as fast as a JSON parser.

Never: accept a line that Spark would read differently; anything unexpected refuses the whole block.

Lines without a backslash alternate between what is outside and what is inside quotes. Arrow's CSV reader, given the
quote as its separator, puts each of these pieces into a column:

    {"id":7,"name":"x","flag":1}   ->   {   id   :7,   name   :   x   ,   flag   :1}

The first line says what is outside each pair of quotes (a key's colon, a number with what is around it) and which keys
there are. Every other line must have the same pieces but for strings and numbers, and numbers must be JSON's.
"""

from __future__ import annotations

import re

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

_OPEN = re.compile(rb"\{[ \t]*")
_COLON = re.compile(rb"[ \t]*:[ \t]*")
_NEXT = re.compile(rb"[ \t]*,[ \t]*")
_CLOSE = re.compile(rb"[ \t]*\}")
_PLAIN_VALUE = re.compile(rb"([ \t]*:[ \t]*)([-0-9.eE+]+|true|false|null)([ \t]*[,}][ \t]*)")
_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_MOST_COLUMNS = 400
_MOST_SKIPPED = 64


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
        if b"\\" in lines:
            return None
        end = lines.find(b"\n")
        pieces = _pieces(lines[: end if end >= 0 else len(lines)])
        if pieces is None:
            return None
        table = _split(lines, pieces)
        if table is None:
            return None
        columns: dict[str, pa.Array] = {}
        for piece, column in zip(pieces, table.columns, strict=True):
            array = column.chunk(0)
            if isinstance(piece, _Constant):
                if not _all_equal(array, piece.text):
                    return None
                continue
            wanted = self._type(piece.name)
            if isinstance(piece, _Plain):
                array = _plain_values(array, piece, wanted)
                if array is None:
                    return None
            elif _has_control_characters(array) or not (wanted is None or pa.types.is_string(wanted)):
                return None
            columns[piece.name] = array.view(pa.string()) if isinstance(piece, _String) else array
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(table.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _type(self, name: str) -> pa.DataType | None:
        index = self._schema.get_field_index(name)
        return self._schema.field(index).type if index >= 0 else None


def _pieces(line: bytes) -> list[_Piece] | None:
    """Return what the pieces of a line are; None if its values nest, or it is no JSON object at all."""
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


def _split(lines: bytes, pieces: list[_Piece]) -> pa.Table | None:
    """Split lines at their quotes, a column for each piece; None if a line has more or fewer."""
    names = [str(index) for index in range(len(pieces))]
    types = dict.fromkeys(names, pa.binary())
    if b"\r" in lines or not _is_utf8(lines):
        return None
    try:
        table = pacsv.read_csv(
            pa.BufferReader(lines),
            read_options=pacsv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names),
            parse_options=pacsv.ParseOptions(
                delimiter='"', quote_char=False, escape_char=False, double_quote=False, ignore_empty_lines=False
            ),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=False, check_utf8=False),
        )
    except pa.ArrowInvalid:
        return None
    return table if all(column.num_chunks == 1 for column in table.columns) else None


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_control_characters(array: pa.BinaryArray) -> bool:
    """Whether a string has a byte below the space, which JSON wants escaped."""
    size = array.total_values_length
    assert array.offset == 0
    values = pa.Array.from_buffers(pa.uint8(), size, [None, array.buffers()[2]])
    return bool(size > 0 and pc.min(values).as_py() < 0x20)


def _all_equal(array: pa.Array, text: bytes) -> bool:
    """Whether every value is ``text``: all begin with it, and together they are no longer than that."""
    return array.total_values_length == len(text) * len(array) and _count(pc.starts_with(array, text)) == len(array)


def _count(mask: pa.BooleanArray) -> int:
    count: int = mask.true_count
    return count


def _plain_values(array: pa.Array, piece: _Plain, wanted: pa.DataType | None) -> pa.Array | None:
    """Take the numbers or booleans out of their pieces; None if one is not JSON's or not of the wanted type."""
    rows = len(array)
    if _count(pc.starts_with(array, piece.prefix)) != rows or _count(pc.ends_with(array, piece.suffix)) != rows:
        return None
    values = pc.binary_slice(array, len(piece.prefix), -len(piece.suffix)).view(pa.string())
    nulls = pc.starts_with(values, "n")
    if nulls.true_count:
        if not _all_equal(values.filter(nulls).view(pa.binary()), b"null"):
            return None
        values = pc.if_else(nulls, None, values)
    if values.null_count == rows:
        return values.cast(wanted or pa.string())
    if wanted is None:
        if _numbers(values, pa.float64()) is not None:
            return values
        return values if _count(pc.is_in(values, pa.array(["true", "false", None]))) == rows else None
    if pa.types.is_boolean(wanted):
        found = pc.index_in(values, pa.array(["false", "true"]))
        return found.cast(wanted) if found.null_count == values.null_count else None
    return _numbers(values, wanted)


def _numbers(values: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Cast texts to numbers; None if one is no JSON number, for Arrow takes more than those."""
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
