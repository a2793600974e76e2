"""Makes the columns of generated rows: for each column a function from row indices to an Arrow array.

Never: touch a row by itself in Python, or look at anything but the row index, the seed and the options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headgate.connectors.datagen.draw import (
    Ranks,
    Rows,
    draw,
    draw_below,
    draw_bytes,
    draw_text,
    draw_unit,
    key_of,
)
from headgate.connectors.datagen.fields import (
    MAX_TABLE,
    FieldSettings,
    decimal_parser,
    match_fields,
    parse_date,
    parse_timestamp,
)
from headgate.connectors.datagen.partitions import Pace
from headgate.errors import OptionError
from headgate.source.options import Options

Column = Callable[[Rows], pa.Array]
Numbers = Callable[[Rows], npt.NDArray[np.int64]]

_INT64_MAX = (1 << 63) - 1
_DAY_US = 86_400_000_000
_DEFAULT_CHARACTERS = 12
_DEFAULT_BYTES = 8
_FAR_DAY = 24_836  # 2037-12-31: the default end of random dates and time stamps


class RowGenerator:
    """Makes batches of generated rows.

    Parameters
    ----------
    schema
        The columns. Their order, and which others there are, has no influence on the values of a column.
    options
        The options of `headgate.datagen`.
    pace
        Gives the event times.
    event_start_us
        The event time of row 0, in microseconds since 1970-01-01 UTC.

    Raises
    ------
    OptionError
        A column's type cannot be generated, or an option does not fit its column.
    """

    def __init__(self, schema: pa.Schema, options: Options, pace: Pace, event_start_us: int) -> None:
        self._schema = schema
        settings = match_fields(schema, options)
        seed = options["seed"]

        def event_us(rows: Rows) -> npt.NDArray[np.int64]:
            return pace.event_us(rows) + event_start_us

        self._columns: list[Column] = []
        self.row_bytes = 0
        for field in schema:
            column = settings[field.name]
            self.row_bytes += _width(field.type, column)
            self._columns.append(_with_nulls(field, column, seed, _column(field.type, column, seed, event_us)))

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """Return the rows with these row indices."""
        return pa.RecordBatch.from_arrays([column(rows) for column in self._columns], schema=self._schema)


def is_event_time(kind: str | None, data_type: pa.DataType) -> bool:
    """Return whether a column advances with the row index as event time does."""
    return kind != "random" and (pt.is_timestamp(data_type) or pt.is_date32(data_type))


def _width(data_type: pa.DataType, settings: FieldSettings) -> int:
    """Return about how many bytes a value takes."""
    if _is_text(data_type) or _is_bytes(data_type):
        return 4 + (settings.length or _DEFAULT_CHARACTERS)
    return 16 if pt.is_decimal128(data_type) else 8


def _column(data_type: pa.DataType, settings: FieldSettings, seed: int, event_us: Numbers) -> Column:
    """Return the maker of a column, without nulls."""
    column = settings.column
    if pt.is_null(data_type) or pt.is_nested(data_type) or _bounds(data_type, settings) is None:
        raise OptionError(
            f"headgate.datagen: the column {column!r} has the type {data_type}, which cannot be generated. Use "
            "boolean, whole and decimal numbers, float, double, string, binary, date, timestamp or timestamp_ntz.",
            option=f"fields.{column}.kind",
            value=str(data_type),
        )
    if not (_is_text(data_type) or _is_bytes(data_type)):
        settings.refuse(f"a column of type {data_type}", "length")
    if settings.skew and (settings.cardinality is None or _kind(data_type, settings) == "sequence"):
        raise settings.error("skew", "needs the kind 'random' and a cardinality over which values are skewed.")
    if is_event_time(settings.kind, data_type):
        settings.refuse("a time that advances with the rows", "min", "max", "cardinality")
        unit = 1 if pt.is_timestamp(data_type) else _DAY_US
        return lambda rows: _fixed_width(data_type, event_us(rows) // unit)
    if pt.is_boolean(data_type):
        return _boolean(settings, seed)
    if pt.is_floating(data_type):
        return _floating(data_type, settings, seed)
    if (_is_text(data_type) or _is_bytes(data_type)) and _kind(data_type, settings) == "random":
        return _random_text(data_type, settings, seed)
    numbers = _numbers(data_type, settings, seed)
    if _is_text(data_type):
        return _digits(data_type, settings, numbers)
    if _is_bytes(data_type):
        return _big_endian(data_type, settings, numbers)
    return lambda rows: _fixed_width(data_type, numbers(rows))


def _kind(data_type: pa.DataType, settings: FieldSettings) -> str:
    """Return how a column is made; as in Spark's ``rate`` source, a bigint named ``value`` counts rows by default."""
    counts = settings.column.lower() == "value" and pt.is_int64(data_type)
    return settings.kind or ("sequence" if counts else "random")


def _bounds(data_type: pa.DataType, settings: FieldSettings) -> tuple[int, int] | None:
    """Return the least and greatest whole number that a type can hold or a user would want; None: no such type."""
    if pt.is_signed_integer(data_type):
        half = 1 << (data_type.bit_width - 1)
        return -half, half - 1
    if pt.is_decimal128(data_type):
        most = 10 ** min(18, data_type.precision) - 1
        return -most, most
    if pt.is_date32(data_type):
        return -(1 << 31), (1 << 31) - 1
    if pt.is_timestamp(data_type):
        return (-(1 << 63), _INT64_MAX) if data_type.unit == "us" else None
    if _is_text(data_type):
        return 0, min(_INT64_MAX, 10 ** min(19, settings.length or 19) - 1)
    if _is_bytes(data_type):
        return 0, min(_INT64_MAX, 256 ** min(8, settings.length or 8) - 1)
    return (0, 1) if pt.is_boolean(data_type) or pt.is_float32(data_type) or pt.is_float64(data_type) else None


def _range(data_type: pa.DataType, settings: FieldSettings) -> tuple[int, int]:
    """Return the least and the greatest number of a column, as the user wants them."""
    bounds = _bounds(data_type, settings)
    assert bounds is not None, data_type
    least, most = bounds
    parse: Callable[[str], int] = int
    allowed = f"a whole number from {least} to {most}"
    default_least, default_most = least, most
    if pt.is_decimal128(data_type):
        parse = decimal_parser(data_type.scale)
        allowed = f"a number of at most {min(18, data_type.precision)} digits, {data_type.scale} after the point"
        default_least = 0
    elif pt.is_date32(data_type):
        parse, allowed, default_least, default_most = parse_date, "a date like 2026-01-31", 0, _FAR_DAY
    elif pt.is_timestamp(data_type):
        parse, allowed = parse_timestamp, "a time like 2026-01-31T12:00:00"
        default_least, default_most = 0, _FAR_DAY * _DAY_US
    elif _kind(data_type, settings) == "sequence" or settings.cardinality is not None:
        default_least = 0
    low = settings.bound("min", parse, default_least, allowed)
    high = settings.bound("max", parse, max(low, default_most), allowed)
    if low < least or low > most:
        raise settings.error("min", f"is {settings.min!r}; it must be {allowed}.")
    if high < low or high > most:
        raise settings.error("max", f"is {settings.max!r}; it must be {allowed}, and not below min.")
    return low, high


def _numbers(data_type: pa.DataType, settings: FieldSettings, seed: int) -> Numbers:
    """Return the maker of the whole numbers of a column."""
    low, high = _range(data_type, settings)
    span = high - low + 1
    cardinality = settings.cardinality
    if cardinality is not None:
        if cardinality > span:
            raise settings.error("cardinality", f"is {cardinality}, but min and max allow only {span} values.")
        span = cardinality
    # Sums wrap around in 64 bits and so come out right as signed numbers, whatever the span.
    offset = np.uint64(low & (1 << 64) - 1)
    if _kind(data_type, settings) == "sequence":
        return lambda rows: ((rows % span if span <= _INT64_MAX else rows).view(np.uint64) + offset).view(np.int64)
    key = key_of(seed, settings.column, "value")
    if settings.skew:
        ranks = _ranks(settings, settings.skew)
        return lambda rows: ranks.draw(key, rows) + low
    return lambda rows: (draw_below(key, rows, span) + offset).view(np.int64)


def _ranks(settings: FieldSettings, skew: float) -> Ranks:
    """Return the draws of a column's distinct values."""
    assert settings.cardinality is not None
    if settings.cardinality > MAX_TABLE:
        raise settings.error("cardinality", f"is {settings.cardinality}; with skew, or for texts, at most {MAX_TABLE}.")
    return Ranks(settings.cardinality, skew)


def _boolean(settings: FieldSettings, seed: int) -> Column:
    """Return the maker of a boolean column: alternating, or as a coin falls."""
    settings.refuse("a boolean column", "min", "max", "cardinality")
    if settings.kind == "sequence":
        return lambda rows: pa.array((rows & 1).astype(np.bool_))
    key = key_of(seed, settings.column, "value")
    return lambda rows: pa.array((draw(key, rows) >> np.uint64(63)).astype(np.bool_))


def _floating(data_type: pa.DataType, settings: FieldSettings, seed: int) -> Column:
    """Return the maker of a float or double column: counting from min, or between min and max."""
    dtype: Any = np.float64 if pt.is_float64(data_type) else np.float32
    low: float = settings.bound("min", float, 0.0, "a number")
    if settings.kind == "sequence":
        settings.refuse("a sequence of floating numbers", "max")
        step = settings.cardinality or _INT64_MAX
        return lambda rows: pa.array((rows % step + low).astype(dtype))
    high: float = settings.bound("max", float, low + 1.0, "a number")
    # Also false for nan; an infinite bound would make every value infinite.
    if not -np.inf < low <= high < np.inf:
        raise settings.error("max", f"is {high}; it must be a finite number, and not below min, which is {low}.")
    key = key_of(seed, settings.column, "value")
    if settings.cardinality is None:
        return lambda rows: pa.array((draw_unit(key, rows) * (high - low) + low).astype(dtype, copy=False))
    ranks = _ranks(settings, settings.skew or 0.0)
    step_width = (high - low) / settings.cardinality
    return lambda rows: pa.array((ranks.draw(key, rows) * step_width + low).astype(dtype, copy=False))


def _random_text(data_type: pa.DataType, settings: FieldSettings, seed: int) -> Column:
    """Return the maker of a string or binary column: random, or taken from a table of distinct random values."""
    settings.refuse("random texts and bytes", "min", "max")
    key = key_of(seed, settings.column, "value")
    length = settings.length or (_DEFAULT_CHARACTERS if _is_text(data_type) else _DEFAULT_BYTES)
    fill = draw_text if _is_text(data_type) else draw_bytes
    if settings.cardinality is None:
        return lambda rows: _variable_width(data_type, fill(key, rows, length))
    ranks = _ranks(settings, settings.skew or 0.0)
    cells = fill(key_of(seed, settings.column, "table"), np.arange(settings.cardinality, dtype=np.int64), length)
    # The last characters number the values, so that they are distinct.
    base, first = (26, ord("a")) if _is_text(data_type) else (256, 0)
    left = np.arange(settings.cardinality)
    for place in range(length - 1, -1, -1):
        if not left.any():
            break
        cells[:, place] = left % base + first
        left = left // base
    if left.any():
        raise settings.error("length", f"is {length}: too short for {settings.cardinality} distinct values.")
    table = _variable_width(data_type, cells)
    return lambda rows: table.take(pa.array(ranks.draw(key, rows)))


def _digits(data_type: pa.DataType, settings: FieldSettings, numbers: Numbers) -> Column:
    """Return the maker of texts that count: decimal digits, with zeros in front up to the length."""
    length = settings.length
    if length is None:
        return lambda rows: pa.array(numbers(rows)).cast(data_type)
    return lambda rows: pc.utf8_lpad(pa.array(numbers(rows)).cast(data_type), length, "0")


def _big_endian(data_type: pa.DataType, settings: FieldSettings, numbers: Numbers) -> Column:
    """Return the maker of bytes that count, the greatest byte first, so that they sort as the numbers do."""
    length = settings.length or _DEFAULT_BYTES

    def make(rows: Rows) -> pa.Array:
        cells = numbers(rows).astype(">i8").view(np.uint8).reshape(len(rows), 8)
        if length > 8:
            cells = np.concatenate([np.zeros((len(rows), length - 8), dtype=np.uint8), cells], axis=1)
        return _variable_width(data_type, np.ascontiguousarray(cells[:, -length:]))

    return make


def _fixed_width(data_type: pa.DataType, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return whole numbers as an array of a type that is stored as such."""
    if pt.is_decimal128(data_type):
        values: npt.NDArray[Any] = np.stack([numbers, numbers >> 63], axis=1)
    else:
        values = numbers.astype(f"i{data_type.bit_width // 8}", copy=False)
    return pa.Array.from_buffers(data_type, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _variable_width(data_type: pa.DataType, cells: npt.NDArray[np.uint8]) -> pa.Array:
    """Return an array of (rows, length) bytes as texts or binary values."""
    count, length = cells.shape
    wide = pt.is_large_string(data_type) or pt.is_large_binary(data_type)
    offsets = np.arange(count + 1, dtype=np.int64 if wide else np.int32) * length
    offsets = offsets.astype(np.int64 if wide else np.int32, copy=False)
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(offsets), pa.py_buffer(cells)])


def _with_nulls(field: pa.Field, settings: FieldSettings, seed: int, column: Column) -> Column:
    """Return the maker of a column with its share of nulls."""
    rate = settings.null_rate or 0.0
    if rate == 0:
        return column
    if not field.nullable:
        raise settings.error("null-rate", f"is {rate}, but the column is declared NOT NULL.")
    key = key_of(seed, settings.column, "null")

    def make(rows: Rows) -> pa.Array:
        values = column(rows)
        present = draw_unit(key, rows) >= rate
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.Array.from_buffers(values.type, len(values), [validity, *values.buffers()[1:]])

    return make


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pt.is_binary(data_type) or pt.is_large_binary(data_type))
