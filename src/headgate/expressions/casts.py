"""Casts by the rules of Spark's ANSI mode (the default of Spark 4).

Never: lose a value silently: one that does not fit is an error, as in Spark. Of bytes that are no UTF-8 the text has
U+FFFD, as Spark shows it (`headgate.java_texts`).

Follows Spark 4.3, "ANSI Compliance": ``CAST``.
"""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.formats.values import cast_digits, cast_strings, session_zone
from headgate.formats.values_datetime import local_to_utc, tzinfo_of, utc_to_local
from headgate.java_texts import java_texts

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_LAST_TABLED_US = 2_114_380_800_000_000
"""The beginning of 2037, the last year of which Arrow knows when clocks change."""
_MOST_DIGITS = 38
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_TIME_OF_DAY = r"^T?([0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]*)?)?)$"
"""A text that is a time without a date: of today."""
_SPACE = "".join(map(chr, range(33))) + "\x7f"


def is_number(kind: pa.DataType) -> bool:
    """Return whether one can calculate with values of a type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _as_decimal(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds all values of an integer type; of a decimal type itself."""
    return kind if pa.types.is_decimal(kind) else pa.decimal128(_DIGITS[kind], 0)


def cast(values: pa.Array, to: pa.DataType, time_zone: str) -> pa.Array:
    """Cast as Spark's ``CAST`` does.

    Parameters
    ----------
    values
        What to cast.
    to
        The type.
    time_zone
        The session's: in which timestamps are written, and dates begin.

    Raises
    ------
    pyarrow.ArrowInvalid
        A value does not fit.
    OptionError
        There is no such cast.
    """
    source = values.type
    if source == to:
        return values
    if pa.types.is_null(source):
        return pa.nulls(len(values), to)
    if pa.types.is_string(source) and not pa.types.is_binary(to):
        return _from_string(values, to, time_zone)
    if pa.types.is_string(to):
        return _to_string(values, time_zone)
    if pa.types.is_timestamp(source) or pa.types.is_date(source):
        return _from_time(values, to, time_zone)
    if pa.types.is_timestamp(to) and to.tz is not None and pa.types.is_integer(source):
        return _from_seconds(values.cast(pa.int64())).cast(to)
    if pa.types.is_integer(to) and (pa.types.is_floating(source) or pa.types.is_decimal(source)):
        if pa.types.is_decimal(source):
            return pc.trunc(_wide(values)).cast(pa.decimal128(38, 0)).cast(to)
        return pc.trunc(values).cast(to)
    if is_number(source) or pa.types.is_boolean(source):
        allowed = is_number(to) or pa.types.is_boolean(to)
        if allowed and not (pa.types.is_floating(source) and pa.types.is_decimal(to)):
            return _between_numbers(values, to)
    if pa.types.is_binary(to) and pa.types.is_string(source):
        return values.cast(to)
    raise OptionError(f"cast: there is no cast of {source} to {to}.", option="cast", value=str(to))


def _from_seconds(seconds: pa.Array) -> pa.Array:
    """Return microseconds; what does not fit is the first or the last moment there is."""
    most, per_second = (1 << 63) - 1, 1_000_000
    micros = pc.if_else(pc.greater(seconds, most // per_second), most, pc.multiply(seconds, per_second))
    return pc.if_else(pc.less(seconds, -(most // per_second)), -most - 1, micros)


def _between_numbers(values: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(to):
        return pc.not_equal(values, pa.scalar(0).cast(values.type))
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(to):
        return _to_decimal(values.cast(_as_decimal(values.type)), to)
    return values.cast(to, safe=not pa.types.is_floating(to))


def _to_decimal(values: pa.Array, to: pa.DataType) -> pa.Array:
    if to.scale < values.type.scale:
        return pc.round(_wide(values), to.scale, round_mode="half_towards_infinity").cast(to)
    if values.type.precision + to.scale - values.type.scale > _MOST_DIGITS:
        values = _wide(values)
    return values.cast(to)


def _wide(values: pa.Array) -> pa.Array:
    """Return decimals with room for a carry and for every scale: what 128 bits have no room for Arrow does not see."""
    return values.cast(pa.decimal256(2 * _MOST_DIGITS, values.type.scale))


def _from_string(values: pa.Array, to: pa.DataType, time_zone: str) -> pa.Array:
    plain = cast_digits(values, to)
    if plain is not None:
        return plain
    trimmed = pc.utf8_trim(values, _SPACE)
    if pa.types.is_boolean(to):
        lower = pc.utf8_lower(trimmed)
        true = pc.is_in(lower, pa.array(_TRUE))
        known = pc.or_(true, pc.is_in(lower, pa.array(_FALSE)))
        result = pc.if_else(pc.and_(known, values.is_valid()), true, pa.scalar(None, pa.bool_()))
        bad = pc.and_(pc.invert(known), values.is_valid())
    else:
        if pa.types.is_floating(to):
            for pattern, name in (
                (r"(?i)^\+?inf(inity)?$", "Inf"),
                (r"(?i)^-inf(inity)?$", "-Inf"),
                ("(?i)^nan$", "NaN"),
            ):
                trimmed = pc.replace_substring_regex(trimmed, pattern, name)
        if pa.types.is_integer(to):  # Python reads the digits of all scripts
            trimmed = pc.if_else(pc.string_is_ascii(trimmed), trimmed, "")
        if pa.types.is_decimal(to):  # commas are a file's, not a number's
            trimmed = pc.if_else(pc.match_substring(trimmed, ","), "", trimmed)
        if pa.types.is_timestamp(to) and pc.any(pc.match_substring_regex(trimmed, _TIME_OF_DAY)).as_py():
            today = datetime.datetime.now(tzinfo_of(session_zone({}, time_zone))).date()
            trimmed = pc.replace_substring_regex(trimmed, _TIME_OF_DAY, rf"{today}T\1")
        result, bad = cast_strings(trimmed, to, {}, time_zone)
    if bad is not None and pc.any(bad, min_count=0).as_py():
        example = values.filter(bad)[0].as_py()
        raise pa.ArrowInvalid(f"the value {example!r} of type string cannot be cast to {to}")
    return result


def _to_string(values: pa.Array, time_zone: str) -> pa.Array:
    if pa.types.is_date(values.type):
        return _signed_years(values.cast(pa.string()))
    if pa.types.is_binary(values.type):
        return java_texts(values)
    if not pa.types.is_timestamp(values.type):
        return values.cast(pa.string())
    local = local_time(values, time_zone) if values.type.tz is not None else values
    # Arrow writes six digits of the second, Spark none that are not needed.
    return _signed_years(pc.replace_substring_regex(local.cast(TIMESTAMP_NTZ).cast(pa.string()), r"\.?0+$", ""))


def _signed_years(texts: pa.Array) -> pa.Array:
    """Write a plus before years of more than four digits, as Spark does."""
    return pc.replace_substring_regex(texts, r"^(\d{5})", r"+\1")


def local_time(values: pa.Array, time_zone: str) -> pa.Array:
    """Return the wall clock's time of timestamps in a time zone, or that of dates at midnight."""
    latest = _checked_years(values)
    if not pa.types.is_timestamp(values.type) or values.type.tz is None or time_zone == "UTC":
        return values.cast(TIMESTAMP_NTZ)
    local = pc.local_timestamp(values.cast(pa.timestamp("us", time_zone)))
    zone = session_zone({}, time_zone)
    if latest < _LAST_TABLED_US or isinstance(zone, int):
        return local
    values = values.cast(TIMESTAMP)
    is_far = pc.fill_null(pc.greater_equal(values, pa.scalar(_LAST_TABLED_US, TIMESTAMP)), False)
    return pc.replace_with_mask(local, is_far, utc_to_local(values.filter(is_far), zone))


def _checked_years(values: pa.Array) -> int:
    """Return the latest time, as a number; refuse years beyond 32,000, which Arrow counts in 16 bits."""
    per_year = 365.2425 if pa.types.is_date(values.type) else 365.2425 * 86_400_000_000
    numbers = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if any(each is not None and abs(each) > 30_000 * per_year for each in bounds.values()):
        raise pa.ArrowInvalid("a time is more than 30,000 years from 1970")
    return bounds["max"] or 0


def _from_time(values: pa.Array, to: pa.DataType, time_zone: str) -> pa.Array:
    if pa.types.is_date(to):
        return pc.floor_temporal(local_time(values, time_zone), unit="day").cast(to)
    if to == TIMESTAMP_NTZ:
        return local_time(values, time_zone)
    if pa.types.is_timestamp(to):
        # Java's choice where the clock is turned: the earlier offset; a time that there is not is moved on.
        return local_to_utc(values.cast(TIMESTAMP_NTZ), session_zone({}, time_zone))
    if pa.types.is_timestamp(values.type) and values.type.tz is not None and to in (pa.int64(), pa.float64()):
        micros = values.cast(TIMESTAMP).cast(pa.int64())
        if to == pa.float64():
            return pc.divide(micros.cast(to, safe=False), 1e6)
        return pa.array(np.floor_divide(np.asarray(micros.fill_null(0)), 1_000_000), mask=np.asarray(micros.is_null()))
    raise OptionError(f"cast: there is no cast of {values.type} to {to}.", option="cast", value=str(to))
