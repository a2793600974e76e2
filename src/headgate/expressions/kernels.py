"""The functions of expressions, by name: what each does to columns, as Spark's function of that name does.

Never: loop over rows in Python, or convert an argument: Spark's analyzer has put casts where types differ.

Follows Spark 4.3, "Built-in Functions", in ANSI mode: an overflow, a division by zero or a text that is not a
number is an error. A function is given arrays of equal length and its fixed parameters, and returns an array.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.expressions.casts import cast, local_time
from headgate.expressions.key_bytes import key_bytes, key_value

_SAMPLE, _FEW = 1024, 0.6
"""Of so many texts at most this part is different: they are worked on once each."""

Kernel = Callable[..., pa.Array]
"""Takes the arrays, then ``time_zone`` and the fixed parameters by name."""

KERNELS: dict[str, Kernel] = {}
"""By the name of the function."""


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Enter a function into the table."""

    def enter(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return enter


def _plain(name: str, function: Callable[..., pa.Array]) -> None:
    KERNELS[name] = lambda *arrays, time_zone, **parameters: function(*arrays, **parameters)


# Arithmetic.


def _calculate(name: str, checked: Callable[..., pa.Array], of_floats: Callable[..., pa.Array]) -> None:
    def run(left: pa.Array, right: pa.Array, *, time_zone: str) -> pa.Array:
        return (of_floats if pa.types.is_floating(left.type) else checked)(left, right)  # floats have no overflow

    KERNELS[name] = run


_calculate("+", pc.add_checked, pc.add)
_calculate("-", pc.subtract_checked, pc.subtract)
_calculate("*", pc.multiply_checked, pc.multiply)
_plain("/", pc.divide_checked)


@kernel("%")
def _remainder(left: pa.Array, right: pa.Array, *, time_zone: str) -> pa.Array:
    kind = left.type
    if pa.types.is_integer(kind) and len(left) and not left.null_count and not right.null_count:
        bounds = pc.min_max(right)
        if bounds["min"] == bounds["max"] and bounds["min"].as_py() > 0:
            return pa.array(remainder_by(np.asarray(left), np.asarray(right)[0]))
    valid = pc.and_(left.is_valid(), right.is_valid())
    if pc.any(pc.and_(valid, pc.equal(right, pa.scalar(0).cast(kind)))).as_py():
        raise pa.ArrowInvalid("remainder by zero")
    divisors = np.where(np.asarray(valid), np.asarray(right.fill_null(1)), 1).astype(kind.to_pandas_dtype())
    with np.errstate(invalid="ignore"):  # of infinity: NaN, as in Java
        remainders = np.fmod(np.asarray(left.fill_null(0)), divisors)
    return pa.array(remainders, kind, mask=~np.asarray(valid))


def remainder_by(values: Any, divisor: Any) -> Any:
    """Return the remainders by one positive number: several times faster than by numbers that may differ."""
    remainders = values // divisor
    remainders *= divisor
    np.subtract(values, remainders, out=remainders)
    # It has the dividend's sign; numpy rounds quotients down.
    remainders[(values < 0) & (remainders != 0)] -= divisor
    return remainders


_plain("negative", pc.negate_checked)
_plain("abs", pc.abs_checked)
_plain("sqrt", pc.sqrt)
_plain("signum", lambda doubles: pc.if_else(pc.equal(doubles, 0.0), doubles, pc.sign(doubles)))  # of -0.0 it is -0.0


def _to_long(name: str, function: Callable[[pa.Array], pa.Array]) -> None:
    def run(values: pa.Array, *, time_zone: str) -> pa.Array:
        if pa.types.is_integer(values.type):
            return values.cast(pa.int64())
        if not pa.types.is_floating(values.type):
            return function(values).cast(pa.int64())
        wholes = function(values).cast(pa.float64())
        return pc.if_else(pc.is_nan(wholes), 0.0, wholes).cast(pa.int64())  # NaN becomes zero, as in Java

    KERNELS[name] = run


_to_long("ceil", pc.ceil)
_to_long("floor", pc.floor)


@kernel("round")
def _round(values: pa.Array, *, time_zone: str, scale: int) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return pc.round(values, scale, round_mode="half_towards_infinity")
    numbers = np.asarray(values.fill_null(0)).astype(np.float64)
    unit, size = 10.0**scale, np.abs(numbers)
    with np.errstate(over="ignore"):  # as infinity it is a whole number
        scaled = size * unit
    below = np.floor(scaled)
    # Spark rounds the number as it is written: 2.675 is a half, though its nearest double is less.
    rounded = np.where((below + 0.5) / unit == size, below + 1, np.floor(scaled + 0.5)) / unit
    whole = ~np.isfinite(numbers) | (scaled >= 2.0**52)
    result = np.where(whole, numbers, np.copysign(rounded, numbers)) + 0.0  # no zero is negative
    return pa.array(result, pa.float64(), mask=np.asarray(values.is_null())).cast(values.type)


# Comparison and logic. Unlike Arrow, Spark says that NaN equals NaN and is greater than every number.


def _compare(name: str, function: Callable[[pa.Array, pa.Array], pa.Array]) -> None:
    def run(left: pa.Array, right: pa.Array, *, time_zone: str) -> pa.Array:
        found = function(left, right)
        if not pa.types.is_floating(left.type):
            return found
        left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
        both, either = pc.and_(left_nan, right_nan), pc.or_(left_nan, right_nan)
        with_nan = {
            "=": both, "<": pc.and_not(right_nan, left_nan), "<=": right_nan,
            ">": pc.and_not(left_nan, right_nan), ">=": left_nan,
        }[name]  # fmt: skip
        return pc.if_else(either, with_nan, found)

    KERNELS[name] = run


for _name, _function in {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}.items():  # fmt: skip
    _compare(_name, _function)


@kernel("<=>")
def _equal_null_safe(left: pa.Array, right: pa.Array, *, time_zone: str) -> pa.Array:
    equal = pc.fill_null(KERNELS["="](left, right, time_zone=time_zone), False)
    return pc.or_(equal, pc.and_(left.is_null(), right.is_null()))


_plain("or", pc.or_kleene)
_plain("not", pc.invert)
_plain("isnull", pc.is_null)
_plain("isnotnull", pc.is_valid)


_plain("isnan", lambda values: pc.fill_null(pc.is_nan(values), False))
_plain("coalesce", pc.coalesce)


@kernel("in")
def _in(values: pa.Array, *choices: pa.Array, time_zone: str) -> pa.Array:
    found = pa.array(np.zeros(len(values), bool))
    for choice in choices:
        found = pc.or_kleene(found, KERNELS["="](values, choice, time_zone=time_zone))
    return found


def _extreme(name: str, better: str) -> None:
    def run(*arrays: pa.Array, time_zone: str) -> pa.Array:
        best = arrays[0]
        for each in arrays[1:]:
            wins = pc.fill_null(KERNELS[better](each, best, time_zone=time_zone), False)
            best = pc.if_else(pc.or_(wins, best.is_null()), each, best)
        return best

    KERNELS[name] = run


_extreme("greatest", ">")
_extreme("least", "<")

# Texts.


@functools.cache
def _long_capitals() -> dict[str, str]:
    """Return the characters that are several in capitals, as ß, which Arrow leaves as they are."""
    capitals = {each: each.upper() for each in map(chr, range(128, 1 << 16))}
    return {each: upper for each, upper in capitals.items() if len(upper) > 1}


def _is_ascii(text: pa.Array) -> bool:
    """Return whether all characters of texts are, which is seen in their bytes twenty times as fast as by Arrow."""
    _, offsets, data = text.buffers()
    if data is None or len(text) == 0:
        return True
    first, last = np.frombuffer(offsets, np.int32)[[text.offset, text.offset + len(text)]]
    return bool(np.frombuffer(data, np.uint8)[first:last].max(initial=0) < 128)


def _upper(text: pa.Array) -> pa.Array:
    if _is_ascii(text):
        return pc.ascii_upper(text)
    for each, capitals in _long_capitals().items():
        if pc.any(pc.match_substring(text, each)).as_py():
            text = pc.replace_substring(text, each, capitals)
    return pc.utf8_upper(text)


def _lower(text: pa.Array) -> pa.Array:
    if _is_ascii(text):
        return pc.ascii_lower(text)
    lower = pc.utf8_lower(pc.replace_substring(text, "İ", "i̇"))
    sigma = pc.fill_null(pc.match_substring(text, "Σ"), False)  # ς or σ, by its place in the word: Greek texts only
    if pc.any(sigma, min_count=0).as_py():
        encoded = text.filter(sigma).dictionary_encode()
        made = pa.array([each.lower() for each in encoded.dictionary.to_pylist()], pa.string())
        lower = pc.replace_with_mask(lower, sigma, made.take(encoded.indices))
    return lower


def _by_text(name: str, function: Callable[..., pa.Array]) -> None:
    """Enter a function that costs much more for a text than to find equal ones."""

    def run(text: pa.Array, *, time_zone: str, **parameters: Any) -> pa.Array:
        sample = text.slice(0, _SAMPLE)
        if len(text) <= _SAMPLE or len(sample.unique()) > _FEW * _SAMPLE:
            return function(text, **parameters)
        encoded = text.dictionary_encode()
        return function(encoded.dictionary, **parameters).take(encoded.indices)

    KERNELS[name] = run


_plain("upper", _upper)
_plain("lower", _lower)
_plain("length", pc.utf8_length)
_plain("reverse", pc.utf8_reverse)
_plain("trim", lambda text: pc.utf8_trim(text, " "))
_plain("ltrim", lambda text: pc.utf8_ltrim(text, " "))
_plain("rtrim", lambda text: pc.utf8_rtrim(text, " "))
_plain("concat", lambda *texts: pc.binary_join_element_wise(*texts, ""))
_plain("contains", lambda text, *, pattern: pc.match_substring(text, pattern))
_plain("startswith", lambda text, *, pattern: pc.starts_with(text, pattern))
_plain("endswith", lambda text, *, pattern: pc.ends_with(text, pattern))
_by_text("rlike", lambda text, *, pattern: pc.match_substring_regex(text, pattern))
_plain("like", lambda text, *, pattern: pc.match_like(text, pattern))
_plain("replace", lambda text, *, search, replacement: pc.replace_substring(text, search, replacement))
_plain("repeat", lambda text, *, times: pc.binary_repeat(text, max(0, times)))
_plain("split", lambda text, *, pattern: pc.split_pattern_regex(text, pattern))


@kernel("concat_ws")
def _concat_ws(*texts: pa.Array, time_zone: str, separator: str) -> pa.Array:
    # Arrow 26 drops rows that are null in all columns: each gets an empty text, whose separator is taken away.
    joined = pc.binary_join_element_wise(pa.repeat("", len(texts[0])), *texts, separator, null_handling="skip")
    return pc.utf8_slice_codeunits(joined, len(separator))


@kernel("substring")
def _substring(text: pa.Array, *, time_zone: str, position: int, length: int) -> pa.Array:
    if length <= 0:
        return pc.if_else(text.is_valid(), "", pa.scalar(None, pa.string()))
    if position >= 0:
        start = max(position - 1, 0)
        return pc.utf8_slice_codeunits(text, start, start + length)
    # From the end: what lies before the beginning counts as taken.
    stop = position + length
    from_end = pc.utf8_slice_codeunits(text, position, None if stop >= 0 else stop)
    overhang = pc.subtract(-position, pc.utf8_length(text))
    if pc.any(pc.greater(overhang, 0)).as_py():
        numbers = np.asarray(pc.fill_null(overhang, 0))
        for missing in np.unique(numbers[numbers > 0]):
            cut = pc.utf8_slice_codeunits(text, 0, max(0, length - int(missing)))
            from_end = pc.if_else(pc.equal(overhang, pa.scalar(int(missing), pa.int32())), cut, from_end)
    return from_end


def _pad(name: str, function: Callable[..., pa.Array]) -> None:
    def run(text: pa.Array, *, time_zone: str, length: int, pad: str) -> pa.Array:
        width = max(length, 0)
        return pc.utf8_slice_codeunits(function(text, width=width, padding=pad), 0, width)

    KERNELS[name] = run


_pad("lpad", pc.utf8_lpad)
_pad("rpad", pc.utf8_rpad)


def _split_part(text: pa.Array, *, delimiter: str, number: int) -> pa.Array:
    """Return the part of a number, from 1; an empty text where there are fewer."""
    parts = pc.split_pattern(text, delimiter, max_splits=number)
    begin, end = (np.asarray(parts.offsets)[each] for each in (slice(-1), slice(1, None)))
    places = pa.array(begin + (number - 1), mask=begin + (number - 1) >= end)
    found = pc.fill_null(parts.values.take(places), "")
    return pc.if_else(text.is_valid(), found, pa.scalar(None, pa.string())) if text.null_count else found


_by_text("split_part", _split_part)


def _regexp_replace(text: pa.Array, *, pattern: str, replacement: str) -> pa.Array:
    # Java writes $1 where RE2 writes \1.
    return pc.replace_substring_regex(text, pattern, re.sub(r"\$(\d)", r"\\\1", replacement))


_by_text("regexp_replace", _regexp_replace)


def _regexp_extract(text: pa.Array, *, pattern: str, group: int) -> pa.Array:
    found = pc.struct_field(pc.extract_regex(text, _only_group(pattern, group)), "found")
    return pc.if_else(text.is_valid(), pc.fill_null(found, ""), pa.scalar(None, pa.string()))


_by_text("regexp_extract", _regexp_extract)


def _only_group(pattern: str, group: int) -> str:
    """Return a pattern in which one group has the name ``found``, and the others are none."""
    if group == 0:
        return f"(?P<found>{_only_group(pattern, -1)})"
    parts, number = [], 0
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\((?!\?)|.", pattern, re.DOTALL):
        if part == "(":
            number += 1
            part = "(?P<found>" if number == group else "(?:"
        parts.append(part)
    if group > number:
        raise OptionError(
            f"regexp_extract: the pattern {pattern!r} has {number} groups.", option="idx", value=str(group)
        )
    return "".join(parts)


# Dates and times.


def _time_field(name: str, function: Callable[[pa.Array], pa.Array]) -> None:
    def run(values: pa.Array, *, time_zone: str) -> pa.Array:
        return function(local_time(values, time_zone)).cast(pa.int32())

    KERNELS[name] = run


for _name, _function in {
    "year": pc.year, "quarter": pc.quarter, "month": pc.month, "dayofmonth": pc.day, "dayofyear": pc.day_of_year,
    "hour": pc.hour, "minute": pc.minute, "second": pc.second, "weekofyear": pc.iso_week,
    "weekday": lambda local: pc.day_of_week(local),
    "dayofweek": lambda local: pc.day_of_week(local, count_from_zero=False, week_start=7),
}.items():  # fmt: skip
    _time_field(_name, _function)


@kernel("date_format")
def _date_format(moment: pa.Array, *, time_zone: str, pattern: str, unit_us: int) -> pa.Array:
    """Write times by a pattern of C's, of which ``unit_us`` says the finest part: equal ones once."""
    micros = local_time(moment, time_zone).cast(pa.int64())
    units = np.floor_divide(np.asarray(micros.fill_null(0)), unit_us)
    encoded = pa.array(units, mask=np.asarray(micros.is_null())).dictionary_encode()
    seconds = np.asarray(encoded.dictionary) * unit_us // 1_000_000
    texts = pc.strftime(pa.array(seconds).cast(pa.timestamp("s")), pattern)
    return _far_years(texts, seconds, pattern).take(encoded.indices)


def _far_years(texts: pa.Array, seconds: Any, pattern: str) -> pa.Array:
    """Return written times in which years that do not have four digits are as Java writes them."""
    years = seconds.astype("M8[s]").astype("M8[Y]").astype(np.int64) + 1970
    far = (years < 0) | (years > 9999)
    if "%Y" not in pattern or not far.any():
        return texts
    rest = pc.strftime(pa.array(seconds[far]).cast(pa.timestamp("s")), pattern.replace("%Y", "{}")).to_pylist()
    written = [f"{year:+05}" for year in years[far].tolist()]
    return pc.replace_with_mask(texts, pa.array(far), pa.array(map(str.format, rest, written), pa.string()))


@kernel("add_micros")
def _add_micros(moment: pa.Array, *, time_zone: str, micros: int) -> pa.Array:
    """Add an interval that is as long everywhere."""
    return pc.add_checked(moment.cast(pa.int64()), micros).cast(moment.type)


_WITHIN_AN_OFFSET = ("hour", "minute", "second", "millisecond")


@kernel("date_trunc")
def _date_trunc(moment: pa.Array, *, time_zone: str, unit: str) -> pa.Array:
    local = local_time(moment, time_zone)
    floor = pc.floor_temporal(local, unit=unit, week_starts_monday=True)
    if unit in _WITHIN_AN_OFFSET:  # which of the two hours of the night when clocks are put back it is stays so
        since = pc.subtract(local.cast(pa.int64()), floor.cast(pa.int64()))
        kept = pc.subtract(moment.cast(pa.int64()), since).cast(moment.type)
        stays = pc.equal(local_time(kept, time_zone), floor).fill_null(True)
        if stays.true_count == len(stays):
            return kept
        return pc.if_else(stays, kept, cast(floor, moment.type, time_zone))  # clocks were moved by half an hour
    return cast(floor, moment.type, time_zone)


def _days(name: str, function: Callable[[pa.Array, pa.Array], pa.Array]) -> None:
    def run(dates: pa.Array, days: pa.Array, *, time_zone: str) -> pa.Array:
        return function(dates.cast(pa.int32()), days.cast(pa.int32())).cast(pa.date32())

    KERNELS[name] = run


_days("date_add", pc.add)  # as Spark: days that do not fit begin anew
_days("date_sub", pc.subtract)


_plain("datediff", lambda end, start: pc.subtract(end.cast(pa.int32()), start.cast(pa.int32())))


@kernel("unix_micros")
def _unix_micros(values: pa.Array, *, time_zone: str, per_unit: int) -> pa.Array:
    micros = values.cast(pa.int64())
    rounded_down = np.floor_divide(np.asarray(micros.fill_null(0)), per_unit)
    return pa.array(rounded_down, pa.int64(), mask=np.asarray(micros.is_null()))


@kernel("timestamp_micros")
def _timestamp_micros(values: pa.Array, *, time_zone: str, per_unit: int) -> pa.Array:
    return pc.multiply_checked(values.cast(pa.int64()), per_unit).cast(pa.timestamp("us", "UTC"))


# Structs and arrays.

_plain("getfield", lambda values, *, name: pc.struct_field(values, name))
_plain("key_bytes", key_bytes)
_plain("key_value", key_value)


@kernel("struct")
def _struct(*arrays: pa.Array, time_zone: str, names: tuple[str, ...]) -> pa.Array:
    return pa.StructArray.from_arrays(arrays, names=list(names))
