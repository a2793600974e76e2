"""Which expressions of Spark's have an Arrow kernel with the same result: the rules beyond those of every program.

Never: take a kernel that differs from Spark in any result, a double's last digit included: ``exp``, ``sin`` and the
like do, as do texts made of doubles and most regular expressions.

Each kernel is compared with Spark in ``tests/real/test_analyzed_expressions.py``.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from py4j.java_gateway import get_field  # type: ignore[import-untyped]

from headgate.expressions.casts import is_number
from headgate.expressions.expressions import CastTo, Constant, Node
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, rule
from headgate.spark.analyzed.scala import class_of, items
from headgate.spark.compatibility import ceil_fails

# One kernel, all arguments.

_PLAIN = {
    "Not": "not", "IsNaN": "isnan",
    "EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "EqualNullSafe": "<=>", "Greatest": "greatest", "Least": "least",
    "Sqrt": "sqrt", "Signum": "signum",
    "Year": "year", "Quarter": "quarter", "Month": "month", "DayOfMonth": "dayofmonth", "DayOfYear": "dayofyear",
    "DayOfWeek": "dayofweek", "WeekDay": "weekday", "WeekOfYear": "weekofyear",
    "DateAdd": "date_add", "DateSub": "date_sub", "DateDiff": "datediff",
}  # fmt: skip


@rule(*_PLAIN)
def _plain(own: Expressions, expression: Any) -> Node:
    return own.call(expression, _PLAIN[class_of(expression)], *items(expression.children()))


@rule("IsNull", "IsNotNull")
def _is_null(own: Expressions, expression: Any) -> Node:
    if not expression.child().nullable():  # Spark does not evaluate it, so that it cannot fail
        return Constant(class_of(expression) == "IsNotNull", pa.bool_())
    return own.call(expression, class_of(expression).lower(), expression.child())


# Arithmetic, in ANSI mode: what does not fit is an error.

_ARITHMETIC = {"Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Remainder": "%"}


@rule(*_ARITHMETIC)
def _arithmetic(own: Expressions, expression: Any) -> Node:
    name = class_of(expression)
    never_fails = pa.types.is_floating(own.kind(expression)) and name in ("Add", "Subtract", "Multiply")
    if not never_fails:
        _check_ansi(expression, str(expression.evalMode().toString()) == "ANSI")
    if not is_number(own.kind(expression)) or (
        name in ("Divide", "Remainder") and pa.types.is_decimal(own.kind(expression))
    ):
        raise NotOnArrowError(expression, f"it computes {own.kind(expression)}")
    return own.call(expression, _ARITHMETIC[name], expression.left(), expression.right())


@rule("UnaryMinus", "Abs")
def _sign(own: Expressions, expression: Any) -> Node:
    kind = own.kind(expression)
    if pa.types.is_decimal(kind) and kind.precision > 34:
        raise NotOnArrowError(expression, "Spark rounds it to 34 digits")
    if not pa.types.is_floating(kind):
        _check_ansi(expression, expression.failOnError())
    return own.call(expression, "abs" if class_of(expression) == "Abs" else "negative", expression.child())


@rule("Ceil", "Floor")
def _whole_number(own: Expressions, expression: Any) -> Node:
    if pa.types.is_floating(own.kind(expression.child())):
        _check_ansi(expression, ceil_fails(expression))
    return own.call(expression, class_of(expression).lower(), expression.child())


@rule("Round")
def _round(own: Expressions, expression: Any) -> Node:
    if pa.types.is_integer(own.kind(expression)):
        _check_ansi(expression, expression.ansiEnabled())
    elif pa.types.is_decimal(own.kind(expression)):
        raise NotOnArrowError(expression, "it rounds a decimal")
    return own.call(expression, "round", expression.child(), scale=own.fixed(expression.scale()))


def _check_ansi(expression: Any, ansi: bool) -> None:
    if not ansi:
        raise NotOnArrowError(expression, "it is not in ANSI mode (spark.sql.ansi.enabled), or a try_ function")


# Casts.


@rule("Cast")
def _cast(own: Expressions, expression: Any) -> Node:
    child = expression.child()
    node, source, to = own.node(child), own.kind(child), own.kind(expression)
    if source == to:
        return node
    if not _is_widened(source, to):
        _check_ansi(expression, str(expression.evalMode().toString()) == "ANSI")
        _check_cast(expression, source, to)
        if pa.types.is_temporal(source) or pa.types.is_temporal(to):
            own.check_zone(expression)
    return own.checked(expression, lambda given: CastTo(given[0], to, str(to)), [node], [source])


def _is_widened(source: pa.DataType, to: pa.DataType) -> bool:
    """Return whether every value fits, so that there is no error in any mode."""
    types = pa.types
    if types.is_null(source):
        return True
    if types.is_integer(source):
        wider = types.is_integer(to) and to.bit_width >= source.bit_width
        return bool(wider or types.is_floating(to) or types.is_string(to))
    wider = types.is_floating(source) and types.is_float64(to)
    return bool(wider or (types.is_boolean(source) and types.is_string(to)))


def _check_cast(expression: Any, source: pa.DataType, to: pa.DataType) -> None:
    """Check that a cast is one whose results are Spark's to the last digit."""
    types = pa.types
    inexact = (
        (types.is_floating(source) and types.is_string(to))  # Java writes other digits than anybody else
        or (types.is_decimal(source) and types.is_floating(to))  # Arrow rounds twice
        or (types.is_decimal(source) and types.is_string(to) and source.scale > 6)  # Arrow writes 1E-7
        or (types.is_string(source) and types.is_timestamp(to) and to.tz is None)  # Spark takes zones, and ignores them
        or types.is_nested(source)
        or types.is_nested(to)
    )
    if inexact:
        raise NotOnArrowError(expression, f"Arrow's cast of {source} to {to} is not proven to give Spark's result")


# Texts.

_TEXTS = {
    "Upper": "upper", "Lower": "lower", "Length": "length", "Reverse": "reverse", "StringTrim": "trim",
    "StringTrimLeft": "ltrim", "StringTrimRight": "rtrim", "Concat": "concat",
}  # fmt: skip
_CASE = ("Upper", "Lower")
_MATCHES = {
    "Contains": "contains",
    "StartsWith": "startswith",
    "EndsWith": "endswith",
    "Like": "like",
    "RLike": "rlike",
}


@rule(*_TEXTS)
def _text(own: Expressions, expression: Any) -> Node:
    name, given = class_of(expression), list(items(expression.children()))
    while name in _CASE and class_of(given[0]) in _CASE:  # Spark's optimizer says that only the last one counts
        given = [given[0].child()]
    _check_texts(own, expression, given)
    if name.startswith("StringTrim") and len(given) > 1:
        raise NotOnArrowError(expression, "it trims other characters than blanks")
    return own.call(expression, _TEXTS[name], *given)


@rule(*_MATCHES)
def _match(own: Expressions, expression: Any) -> Node:
    name = class_of(expression)
    _check_texts(own, expression, [expression.left()])
    pattern = own.fixed(expression.right())
    if pattern is None or (name == "Like" and str(expression.escapeChar()) != "\\"):
        raise NotOnArrowError(expression, "its pattern is null, or has an escape character of its own")
    if name == "RLike":
        _check_regex(own, expression, pattern)
    return own.call(expression, _MATCHES[name], expression.left(), pattern=pattern)


@rule("StringReplace")
def _replace(own: Expressions, expression: Any) -> Node:
    text, search, replacement = items(expression.children())
    fixed = {"search": own.fixed(search), "replacement": own.fixed(replacement)}
    if not fixed["search"] or fixed["replacement"] is None:
        raise NotOnArrowError(expression, "what it searches for is empty or null")
    _check_texts(own, expression, [text])
    return own.call(expression, "replace", text, **fixed)


@rule("StringRepeat")
def _repeat(own: Expressions, expression: Any) -> Node:
    text, times = items(expression.children())
    return own.call(expression, "repeat", text, times=_whole(own, times))


@rule("Substring")
def _substring(own: Expressions, expression: Any) -> Node:
    text, position, length = items(expression.children())
    _check_texts(own, expression, [text])
    return own.call(expression, "substring", text, position=_whole(own, position), length=_whole(own, length))


@rule("StringLPad", "StringRPad")
def _pad(own: Expressions, expression: Any) -> Node:
    text, length, pad = items(expression.children())
    _check_texts(own, expression, [text])
    fixed = own.fixed(pad)
    if not isinstance(fixed, str) or len(fixed) != 1:
        raise NotOnArrowError(expression, "it pads with something else than one character")
    kernel = "lpad" if class_of(expression) == "StringLPad" else "rpad"
    return own.call(expression, kernel, text, length=_whole(own, length), pad=fixed)


@rule("ConcatWs")
def _concat_ws(own: Expressions, expression: Any) -> Node:
    separator, *texts = items(expression.children())
    fixed = own.fixed(separator)
    if fixed is None or not texts:
        raise NotOnArrowError(expression, "its separator is null, or it joins nothing")
    _check_texts(own, expression, texts)
    return own.call(expression, "concat_ws", *texts, separator=fixed)


@rule("SplitPart")
def _split_part(own: Expressions, expression: Any) -> Node:
    text, delimiter, number = items(expression.children())
    _check_texts(own, expression, [text])
    by = own.fixed(delimiter)
    if not by or _whole(own, number) < 1:
        raise NotOnArrowError(expression, "its delimiter is empty or null, or it counts from the end")
    own.taken_over = True
    return own.call(expression, "split_part", text, delimiter=by, number=_whole(own, number))


@rule("RegExpExtract")
def _regexp_extract(own: Expressions, expression: Any) -> Node:
    text, pattern, group = items(expression.children())
    fixed = own.fixed(pattern)
    _check_regex(own, expression, fixed)
    return own.call(expression, "regexp_extract", text, pattern=fixed, group=_whole(own, group))


@rule("RegExpReplace")
def _regexp_replace(own: Expressions, expression: Any) -> Node:
    text, pattern, replacement, position = items(expression.children())
    fixed, by = own.fixed(pattern), own.fixed(replacement)
    _check_regex(own, expression, fixed)
    if own.fixed(position) != 1 or by is None or re.search(r"\\|\$(?!\d(?!\d))", by) or re.search("[*?{|^]", fixed):
        raise NotOnArrowError(expression, "its pattern or its replacement is not proven to mean the same to Arrow")
    return own.call(expression, "regexp_replace", text, pattern=fixed, replacement=by)


@rule("StringSplit")
def _split(own: Expressions, expression: Any) -> Node:
    text, pattern, limit = items(expression.children())
    fixed = own.fixed(pattern)
    _check_regex(own, expression, fixed)
    if own.fixed(limit) != -1 or not fixed or re.search("[*?{|^(]", fixed):
        raise NotOnArrowError(expression, "its pattern is not proven to mean the same to Arrow, or it has a limit")
    return own.call(expression, "split", text, pattern=fixed)


# Java and RE2 agree on these: characters, escaped signs, classes of plain characters, groups, repetitions. They differ
# on what `.`, `$`, `\s` and `\b` match.
_SAME_REGEX = re.compile(
    r"(?:[\w ,:;=@/%#!~<>'\"&-]|\\[.\\+*?()\[\]{}|^$/-]|\[\^?(?:[\w .,:;=@/+*]|-|&(?!&))+\]|[+*?|^()]"
    r"|\{\d+(?:,\d*)?\})*",
    re.ASCII,
)


def _check_regex(own: Expressions, expression: Any, pattern: Any) -> None:
    plain = isinstance(pattern, str) and _SAME_REGEX.fullmatch(pattern) is not None
    if not plain or re.search(r"\(\?|[+*?}][+?]|\)[+*?{]", pattern):
        raise NotOnArrowError(
            expression, f"the regular expression {pattern!r} is not proven to mean the same to Arrow as to Java"
        )
    if re.search(r"\[[^\]]*&", pattern):
        own.taken_over = True


def _check_texts(own: Expressions, expression: Any, given: list[Any]) -> None:
    for each in given:
        if not pa.types.is_string(own.kind(each)):
            raise NotOnArrowError(expression, f"its Arrow kernel takes texts, not {own.kind(each)}")


def _whole(own: Expressions, expression: Any) -> int:
    value = own.fixed(expression)
    if not isinstance(value, int):
        raise NotOnArrowError(expression, "it is null")
    return value


# Dates and times.

_OF_DAY = {"Hour": "hour", "Minute": "minute", "Second": "second"}
_TO_MICROS = {"UnixMicros": 1, "UnixMillis": 1_000, "UnixSeconds": 1_000_000}
_FROM_MICROS = {"MicrosToTimestamp": 1, "MillisToTimestamp": 1_000, "SecondsToTimestamp": 1_000_000}
_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond",
}  # fmt: skip


@rule(*_OF_DAY)
def _of_day(own: Expressions, expression: Any) -> Node:
    own.check_zone(expression)
    return own.call(expression, _OF_DAY[class_of(expression)], expression.child())


@rule(*_TO_MICROS)
def _to_micros(own: Expressions, expression: Any) -> Node:
    return own.call(expression, "unix_micros", expression.child(), per_unit=_TO_MICROS[class_of(expression)])


@rule(*_FROM_MICROS)
def _from_micros(own: Expressions, expression: Any) -> Node:
    if not pa.types.is_integer(own.kind(expression.child())):
        raise NotOnArrowError(expression, "it is of a number with digits after the point")
    per_unit = _FROM_MICROS[class_of(expression)]
    return own.call(expression, "timestamp_micros", expression.child(), per_unit=per_unit)


@rule("TruncTimestamp")
def _trunc(own: Expressions, expression: Any) -> Node:
    unit, timestamp = items(expression.children())
    own.check_zone(expression)
    fixed = own.fixed(unit)
    if not isinstance(fixed, str) or fixed.lower() not in _UNITS:
        raise NotOnArrowError(expression, f"it has the unit {fixed!r}")
    return own.call(expression, "date_trunc", timestamp, unit=_UNITS[fixed.lower()])


DAY_US = 86_400_000_000
WITHOUT_TURNED_CLOCKS = ("UTC", "Etc/UTC", "Z")
_WRITTEN = {
    "yyyy": ("%Y", 86_400), "MM": ("%m", 86_400), "dd": ("%d", 86_400),
    "HH": ("%H", 3_600), "mm": ("%M", 60), "ss": ("%S", 1),
}  # fmt: skip
"""Of a pattern of times: as C has it, and how many seconds it is the same for at least."""
_PATTERN = re.compile("yyyy|MM|dd|HH|mm|ss|[-/:., _]")


@rule("DateFormatClass")
def _date_format(own: Expressions, expression: Any) -> Node:
    timestamp, pattern = items(expression.children())
    own.check_zone(expression)
    fixed = own.fixed(pattern)
    parts = _PATTERN.findall(fixed) if isinstance(fixed, str) else []
    fields = [each for each in parts if each in _WRITTEN]
    if "".join(parts) != fixed or not fields or own.legacy_times:
        raise NotOnArrowError(expression, f"its pattern is {fixed!r}, or spark.sql.legacy.timeParserPolicy is LEGACY")
    own.taken_over = True
    written = "".join(_WRITTEN[each][0] if each in _WRITTEN else each for each in parts)
    unit_us = min(_WRITTEN[each][1] for each in fields) * 1_000_000
    return own.call(expression, "date_format", timestamp, pattern=written, unit_us=unit_us)


@rule("TimeAdd", "TimestampAddInterval")
def _time_add(own: Expressions, expression: Any) -> Node:
    timestamp, interval = items(expression.children())
    own.check_zone(expression)
    micros = fixed_interval_us(interval, own.time_zone)
    days = micros is not None and abs(micros) >= DAY_US and own.kind(timestamp).tz is not None
    if micros is None or (days and own.time_zone not in WITHOUT_TURNED_CLOCKS):
        raise NotOnArrowError(expression, "how long its interval is depends on the row, or on when it is")
    own.taken_over = True
    return own.call(expression, "add_micros", timestamp, micros=micros)


def fixed_interval_us(interval: Any, time_zone: str) -> int | None:
    """Return how long an interval is, in microseconds; None: it depends on the row, or on when it is, or is null."""
    value = interval.eval(None) if interval.foldable() else None
    if value is None or isinstance(value, int):  # of an interval of days to seconds
        return value
    months, days = get_field(value, "months"), get_field(value, "days")
    if months or (days and time_zone not in WITHOUT_TURNED_CLOCKS):
        return None
    return int(get_field(value, "microseconds")) + int(days) * DAY_US


# Structs.


@rule("GetStructField")
def _field(own: Expressions, expression: Any) -> Node:
    child = expression.child()
    kind = own.kind(child)
    name = kind.field(expression.ordinal()).name
    if kind.get_field_index(name) < 0:
        raise NotOnArrowError(expression, f"there are several fields {name!r}")
    return own.call(expression, "getfield", child, name=name)


@rule("CreateNamedStruct")
def _struct(own: Expressions, expression: Any) -> Node:
    given = list(items(expression.children()))
    names = [node.value for node in map(own.node, given[0::2]) if isinstance(node, Constant)]
    return own.call(expression, "struct", *given[1::2], names=tuple(names))
