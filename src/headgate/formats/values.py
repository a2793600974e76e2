"""Texts to typed columns by the rules of Spark's CSV reader.

Never: decide what is null; a null text stays null, and the caller says which texts are (``nullValue``).

Follows Spark 4.3, "CSV Files" (``nanValue``, ``positiveInf``, ``dateFormat`` ...) and, for numbers, what the Java
classes that Spark uses accept: ``Integer.parseInt``, ``Double.parseDouble``, ``BigDecimal``. Each column is cast in
three steps: what a regular expression shows to mean the same to Arrow is cast by Arrow, the rest one by one, and what
is still not a value of the type then is null and marked.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.formats import values_datetime as dt

Caster = Callable[[pa.Array], pa.Array]
_EasyWay = tuple[str, Caster]


def cast_strings(
    values: pa.Array | pa.ChunkedArray, to: pa.DataType, options: Mapping[str, Any], time_zone: str
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return the typed column, and which of its cells could not be converted (None: all could).

    Parameters
    ----------
    values
        Texts; null ones stay null and are not marked.
    to
        The type, one that Spark's CSV source can read.
    options
        Parsed options of CSV or JSON; only those of dates, timestamps and float names are used.
    time_zone
        The zone of timestamps that name none, unless the option ``timeZone`` is set.

    Raises
    ------
    OptionError
        A pattern or a time zone cannot be used.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_string(to):
        return array, None
    if pa.types.is_binary(to) or pa.types.is_large_string(to):
        return array.cast(to), None
    if pa.types.is_timestamp(to):
        alike = _cast_like_timestamps(array, to, options, time_zone)
        if alike is not None:
            return alike, None
    plain = cast_digits(array, to)
    if plain is not None:
        return plain, None
    ways, parse, storage = _rules(to, options, time_zone)
    return _cast(array, to, ways, parse, storage)


def cast_digits(array: pa.Array, to: pa.DataType) -> pa.Array | None:
    """Return texts as integers where each has digits and nothing else; None: some has not, or it is another type.

    A regular expression says the same, but is made anew in every call, which costs more than few rows do.
    """
    if not len(array) or array.null_count or not pa.types.is_integer(to) or not pa.types.is_string(array.type):
        return None
    _, ends, data = array.buffers()
    bounds = np.frombuffer(ends, np.int32, len(array) + 1, 4 * array.offset)
    begin, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    if not (bounds[1:] > bounds[:-1]).all() or (np.frombuffer(data, np.uint8, size, begin) - _ZERO > 9).any():
        return None
    try:
        return array.cast(to)
    except pa.ArrowInvalid:
        return None  # one does not fit


def check_type(to: pa.DataType, options: Mapping[str, Any], time_zone: str) -> None:
    """Raise the `OptionError` that casting to a type would raise, before there is anything to cast."""
    cast_strings(pa.nulls(0, pa.string()), to, options, time_zone)


def _cast(
    array: pa.Array, to: pa.DataType, ways: Sequence[_EasyWay], parse: Callable[[str], Any], storage: pa.DataType
) -> tuple[pa.Array, pa.BooleanArray | None]:
    typed = pa.nulls(len(array), to)
    todo = array.is_valid()
    for regex, caster in ways:
        easy = pc.and_(todo, pc.fill_null(pc.match_substring_regex(array, regex), False))
        if not pc.any(easy, min_count=0).as_py():
            continue
        all_easy = pc.all(easy, min_count=0).as_py()
        try:
            cast = caster(array if all_easy else pc.if_else(easy, array, pa.scalar(None, array.type)))
        except pa.ArrowInvalid:
            continue  # one of them is not a value after all, like 2023-02-30: they are parsed one by one
        typed = cast if all_easy else pc.if_else(easy, cast, typed)
        todo = pc.and_not(todo, easy)
    if not pc.any(todo, min_count=0).as_py():
        return typed, None
    known: dict[str, Any] = {}
    parsed = []
    for text in array.filter(todo).to_pylist():
        if text not in known:
            try:
                known[text] = parse(text)
            except (ValueError, ArithmeticError):
                known[text] = None
        parsed.append(known[text])
    typed = pc.replace_with_mask(typed, todo, pa.array(parsed, storage).cast(to))
    bad = pc.and_(todo, typed.is_null())
    return typed, bad if pc.any(bad, min_count=0).as_py() else None


def _rules(
    to: pa.DataType, options: Mapping[str, Any], time_zone: str
) -> tuple[Sequence[_EasyWay], Callable[[str], Any], pa.DataType]:
    """Return the easy ways of a type, how one text is parsed, and the type of what that returns."""
    if pa.types.is_integer(to):
        digits = {8: 2, 16: 4, 32: 9, 64: 18}[to.bit_width]
        return [(rf"^-?[0-9]{{1,{digits}}}$", _plain(to))], _integer(to.bit_width), to
    if pa.types.is_floating(to):
        return [(r"^-?[0-9]{1,30}(\.[0-9]{1,30})?$", _plain(to))], _floating(to, options), to
    if pa.types.is_boolean(to):
        return [(r"^(?i:true|false)$", _booleans)], _reject, to
    if pa.types.is_decimal(to):
        whole, scale = to.precision - to.scale, to.scale
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
        ways = [(rf"^-?[0-9]{{1,{whole}}}{fraction}$", _plain(to))] if whole else []
        return ways, _decimal(to.precision, scale), to
    if pa.types.is_date32(to):
        return _date_rules(options)
    if pa.types.is_timestamp(to):
        return _timestamp_rules(to, options, time_zone)
    raise OptionError(
        f"CSV cannot hold the type {to}. Give the column a number, string, binary, boolean, date or timestamp type.",
        option="schema", value=str(to),
    )  # fmt: skip


def _plain(to: pa.DataType) -> Caster:
    return lambda array: array.cast(to)


def _booleans(array: pa.Array) -> pa.Array:
    return pc.equal(pc.utf8_lower(array), "true")


def _reject(text: str) -> Any:
    raise ValueError(text)


_ZERO = np.uint8(ord("0"))
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_CONTROL_AND_SPACE = "".join(map(chr, range(33)))


def _integer(bits: int) -> Callable[[str], int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text) is None or not low <= (number := int(text)) <= high:
            raise ValueError(text)
        return number

    return parse


def _floating(to: pa.DataType, options: Mapping[str, Any]) -> Callable[[str], Any]:
    names = {
        options.get("nanValue", "NaN"): float("nan"),
        options.get("negativeInf", "-Inf"): float("-inf"),
        options.get("positiveInf", "Inf"): float("inf"),
    }

    def parse(text: str) -> Any:
        if text in names:
            return names[text]
        text = text.strip(_CONTROL_AND_SPACE)
        match = _DOUBLE.fullmatch(text)
        if match is None:
            raise ValueError(text)
        if match["hex"] is not None:
            number = float.fromhex(text.rstrip("fFdD") if text[-1] in "fFdD" and "p" in text.lower() else text)
        else:
            number = float(text.rstrip("fFdD") if match["number"] is not None else text)
        if pa.types.is_float32(to) and match["number"] is not None:
            return pa.scalar(text.rstrip("fFdD")).cast(to).as_py()  # rounds once, not by way of a double
        return number

    return parse


def _decimal(precision: int, scale: int) -> Callable[[str], decimal.Decimal]:
    context = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
    unit = decimal.Decimal(1).scaleb(-scale, context)

    def parse(text: str) -> decimal.Decimal:
        text = text.replace(",", "")
        if _DECIMAL.fullmatch(text) is None:
            raise ValueError(text)
        number = decimal.Decimal(text)
        if number.adjusted() < -scale - 1:
            return decimal.Decimal(0)
        if number.adjusted() >= precision - scale and number != 0:
            raise ValueError(text)
        rounded = number.quantize(unit, context=context)
        if rounded.adjusted() >= precision - scale and rounded != 0:
            raise ValueError(text)
        return rounded

    return parse


def _pattern(options: Mapping[str, Any], name: str) -> dt.DateTimePattern | None:
    pattern = options.get(name)
    if pattern is None:
        return None
    try:
        return dt.DateTimePattern(pattern)
    except ValueError as error:
        raise OptionError(
            f"The option {name!r} is {pattern!r}, which Headgate cannot use: {error}. Use the symbols y, M, d, D, "
            "H, h, k, K, m, s, S, a, X, x, Z, VV, or read the column as a string and convert it with to_timestamp().",
            option=name, value=pattern,
        ) from error  # fmt: skip


def session_zone(options: Mapping[str, Any], time_zone: str) -> dt.Zone:
    """Return the zone of timestamps that name none.

    Raises
    ------
    OptionError
        There is no such zone.
    """
    name = options.get("timeZone") or time_zone
    try:
        return dt.zone_of(name)
    except ValueError as error:
        raise OptionError(
            f"The time zone is {name!r}: {error}. Use a region like 'Europe/Berlin' or an offset like '+01:00'.",
            option="timeZone", value=name,
        ) from error  # fmt: skip


def _date_rules(options: Mapping[str, Any]) -> tuple[Sequence[_EasyWay], Callable[[str], int], pa.DataType]:
    pattern = _pattern(options, "dateFormat")
    fallback = options.get("enableDateTimeParsingFallback")

    def read(text: str) -> int:
        if pattern is not None:
            try:
                return pattern.parse(text)[0] // 86_400_000_000
            except ValueError:
                if not fallback:
                    raise
        return dt.parse_cast_date(text)

    def parse(text: str) -> int:
        days = read(text)
        if not -(1 << 31) <= days < 1 << 31:
            raise ValueError(text)
        return days

    if pattern is None:
        return [(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", _plain(pa.date32()))], parse, pa.int32()
    way = pattern.easy_way(pa.date32())
    ways = [] if way is None else [way]
    return ways, parse, pa.int32()


def _cast_like_timestamps(
    array: pa.Array, to: pa.DataType, options: Mapping[str, Any], time_zone: str
) -> pa.Array | None:
    """Cast ``2026-01-31 12:00:00`` (or ``T``, a fraction, ``Z``) without a look at each; None if one is not like it.

    A text of this length that Arrow accepts has a date and a time up to seconds at least, and means the same to Spark.
    """
    zoned = to.tz is not None
    if _pattern(options, "timestampFormat" if zoned else "timestampNTZFormat") is not None:
        return None
    shortest = pc.min(pc.binary_length(array)).as_py()
    zulu = pc.ends_with(array, "Z").true_count
    if shortest is None or shortest < 19 or zulu not in (0, len(array) - array.null_count if zoned else 0):
        return None
    try:
        if zulu:
            return array.cast(pa.timestamp("us", "UTC")).cast(to)
        local = array.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    return dt.local_to_utc(local, session_zone(options, time_zone)).cast(to) if zoned else local.cast(to)


def _timestamp_rules(
    to: pa.DataType, options: Mapping[str, Any], time_zone: str
) -> tuple[Sequence[_EasyWay], Callable[[str], int], pa.DataType]:
    zoned = to.tz is not None
    pattern = _pattern(options, "timestampFormat" if zoned else "timestampNTZFormat")
    fallback = options.get("enableDateTimeParsingFallback")
    here = session_zone(options, time_zone)

    def read(text: str) -> tuple[int, dt.Zone | None]:
        if pattern is not None:
            try:
                return pattern.parse(text)
            except ValueError:
                if not (fallback and zoned):
                    raise
        return dt.parse_cast_timestamp(text)

    def parse(text: str) -> int:
        micros, zone = read(text)
        if zoned:
            micros = dt.utc_micros(micros, here if zone is None else zone)
        elif zone is not None:
            raise ValueError(text)
        if not -(1 << 63) <= micros < 1 << 63:
            raise ValueError(text)
        return micros

    ways: list[_EasyWay] = []
    naive = pa.timestamp("us")
    if pattern is not None:
        way = pattern.easy_way(naive)
        if way is not None:
            regex, cast = way
            ways.append((regex, lambda array: dt.local_to_utc(cast(array), here).cast(to)) if zoned else way)
    else:
        clock = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
        if zoned:
            ways.append((clock + "$", lambda array: dt.local_to_utc(array.cast(naive), here).cast(to)))
            offset = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
            ways.append((clock + offset, lambda array: array.cast(pa.timestamp("us", "UTC")).cast(to)))
        else:
            ways.append((clock + "$", _plain(naive)))
    return ways, parse, pa.int64()
