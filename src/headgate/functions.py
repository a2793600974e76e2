"""The functions of continuous queries, with the names and meanings of ``pyspark.sql.functions``.

Never: evaluate anything; they make expressions, which Arrow evaluates batch by batch
(`headgate.expressions.expressions`).

Types and errors are those of Spark's ANSI mode, the default of Spark 4: an overflow, a division by zero or a text that
is not a number fails the record. Regular expressions are RE2's. Names of columns have no case.

Examples
--------
>>> from headgate.functions import col, lit, upper, when
>>> upper(col("name"))
Column<upper(name)>
>>> when(col("n") > 0, "more").otherwise(lit("none")).alias("what")
Column<CASE WHEN (n > 0) THEN more ELSE none END AS what>
"""

from __future__ import annotations

from typing import Any

from headgate.errors import OptionError
from headgate.expressions.expressions import Branches, Column, Constant, Name, as_node, call
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.source.options import duration_ms

__all__ = [
    "Column",
    "abs",
    "approx_count_distinct",
    "atan",
    "avg",
    "ceil",
    "coalesce",
    "col",
    "collect_list",
    "column",
    "concat",
    "concat_ws",
    "contains",
    "cos",
    "count",
    "date_add",
    "date_diff",
    "date_sub",
    "date_trunc",
    "datediff",
    "day",
    "dayofmonth",
    "dayofweek",
    "dayofyear",
    "endswith",
    "exp",
    "first",
    "floor",
    "greatest",
    "hour",
    "ifnull",
    "isnan",
    "isnotnull",
    "isnull",
    "last",
    "least",
    "length",
    "like",
    "lit",
    "ln",
    "log2",
    "log10",
    "lower",
    "lpad",
    "ltrim",
    "max",
    "min",
    "minute",
    "month",
    "nullif",
    "nvl",
    "pow",
    "power",
    "quarter",
    "regexp_extract",
    "regexp_replace",
    "repeat",
    "replace",
    "reverse",
    "rlike",
    "round",
    "rpad",
    "rtrim",
    "second",
    "session_window",
    "signum",
    "sin",
    "split",
    "sqrt",
    "startswith",
    "struct",
    "substring",
    "sum",
    "tan",
    "timestamp_micros",
    "timestamp_millis",
    "timestamp_seconds",
    "to_date",
    "to_timestamp",
    "trim",
    "unix_micros",
    "unix_millis",
    "unix_seconds",
    "upper",
    "weekday",
    "weekofyear",
    "when",
    "window",
    "year",
]  # fmt: skip

ColumnOrName = Column | str


def _of(column: ColumnOrName) -> Column:
    """Return a column given by itself or by its name."""
    if isinstance(column, Column):
        return column
    if isinstance(column, str):
        return Column(Name(column))
    raise OptionError(
        f"A column or its name is needed, not {type(column).__name__} {column!r}. Put constants into lit(...).",
        option="col", value=repr(column),
    )  # fmt: skip


def col(col: str) -> Column:
    """Return a column by its name; ``a.b`` is the field ``b`` of the struct ``a``, `` `a.b` `` one name."""
    return Column(Name(col))


column = col


def lit(col: Any) -> Column:
    """Return a constant: None, bool, int, float, str, bytes, date, datetime or Decimal; a column stays itself."""
    return Column(as_node(col))


def when(condition: Column, value: Any) -> Column:
    """Return ``value`` where a condition is true; add ``.when(...)`` and ``.otherwise(...)``."""
    return Column(Branches(((as_node(condition), as_node(value)),)))


# Null and choice.


def isnull(col: ColumnOrName) -> Column:
    """Whether it is null."""
    return call("isnull", _of(col))


def isnotnull(col: ColumnOrName) -> Column:
    """Whether it is not null."""
    return call("isnotnull", _of(col))


def isnan(col: ColumnOrName) -> Column:
    """Whether it is NaN; false for null."""
    return call("isnan", _of(col))


def coalesce(*cols: ColumnOrName) -> Column:
    """Return the first that is not null. Unlike in Spark all of them are evaluated."""
    return call("coalesce", *map(_of, cols))


def ifnull(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """Return the second where the first is null."""
    return call("coalesce", _of(col1), _of(col2))


nvl = ifnull


def nullif(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """Return null where both are equal, else the first."""
    return call("nullif", _of(col1), _of(col2))


def greatest(*cols: ColumnOrName) -> Column:
    """Return the greatest that is not null; NaN is greater than any number."""
    return call("greatest", *map(_of, cols))


def least(*cols: ColumnOrName) -> Column:
    """Return the least that is not null."""
    return call("least", *map(_of, cols))


# Numbers.


def abs(col: ColumnOrName) -> Column:
    """Return the absolute value."""
    return call("abs", _of(col))


def ceil(col: ColumnOrName) -> Column:
    """Round up to a whole number."""
    return call("ceil", _of(col))


def floor(col: ColumnOrName) -> Column:
    """Round down to a whole number."""
    return call("floor", _of(col))


def round(col: ColumnOrName, scale: int = 0) -> Column:
    """Round to so many decimals, halves away from zero."""
    return call("round", _of(col), scale=scale)


def sqrt(col: ColumnOrName) -> Column:
    """Return the square root; NaN for negative numbers."""
    return call("sqrt", _of(col))


def exp(col: ColumnOrName) -> Column:
    """Return the exponential."""
    return call("exp", _of(col))


def ln(col: ColumnOrName) -> Column:
    """Return the natural logarithm; null if it is not defined."""
    return call("ln", _of(col))


def log10(col: ColumnOrName) -> Column:
    """Return the logarithm to base 10; null if it is not defined."""
    return call("log10", _of(col))


def log2(col: ColumnOrName) -> Column:
    """Return the logarithm to base 2; null if it is not defined."""
    return call("log2", _of(col))


def pow(col1: ColumnOrName | float, col2: ColumnOrName | float) -> Column:
    """Raise the first to the power of the second."""
    return call("pow", *(each if isinstance(each, int | float) else _of(each) for each in (col1, col2)))


power = pow


def signum(col: ColumnOrName) -> Column:
    """Return -1, 0 or 1 as a double."""
    return call("signum", _of(col))


def sin(col: ColumnOrName) -> Column:
    """Return the sine."""
    return call("sin", _of(col))


def cos(col: ColumnOrName) -> Column:
    """Return the cosine."""
    return call("cos", _of(col))


def tan(col: ColumnOrName) -> Column:
    """Return the tangent."""
    return call("tan", _of(col))


def atan(col: ColumnOrName) -> Column:
    """Return the inverse tangent."""
    return call("atan", _of(col))


# Texts.


def upper(col: ColumnOrName) -> Column:
    """Return it in upper case."""
    return call("upper", _of(col))


def lower(col: ColumnOrName) -> Column:
    """Return it in lower case."""
    return call("lower", _of(col))


def length(col: ColumnOrName) -> Column:
    """Return the number of characters."""
    return call("length", _of(col))


def reverse(col: ColumnOrName) -> Column:
    """Return it backwards."""
    return call("reverse", _of(col))


def trim(col: ColumnOrName) -> Column:
    """Take spaces away at both ends."""
    return call("trim", _of(col))


def ltrim(col: ColumnOrName) -> Column:
    """Take spaces away at the beginning."""
    return call("ltrim", _of(col))


def rtrim(col: ColumnOrName) -> Column:
    """Take spaces away at the end."""
    return call("rtrim", _of(col))


def lpad(col: ColumnOrName, len: int, pad: str) -> Column:
    """Fill up at the beginning with a character to a length; longer texts are cut."""
    return call("lpad", _of(col), length=len, pad=_one_character(pad))


def rpad(col: ColumnOrName, len: int, pad: str) -> Column:
    """Fill up at the end with a character to a length; longer texts are cut."""
    return call("rpad", _of(col), length=len, pad=_one_character(pad))


def repeat(col: ColumnOrName, n: int) -> Column:
    """Repeat a text."""
    return call("repeat", _of(col), times=n)


def concat(*cols: ColumnOrName) -> Column:
    """Join texts; null if one is."""
    return call("concat", *map(_of, cols))


def concat_ws(sep: str, *cols: ColumnOrName) -> Column:
    """Join the texts that are not null, with a separator."""
    return call("concat_ws", *map(_of, cols), separator=sep)


def substring(str: ColumnOrName, pos: int, len: int) -> Column:
    """Take a part; the first character has position 1, and negative positions count from the end."""
    return call("substring", _of(str), position=pos, length=len)


def contains(left: ColumnOrName, right: Column) -> Column:
    """Whether a text contains another, a constant in ``lit``."""
    return call("contains", _of(left), pattern=_constant("right", right))


def startswith(str: ColumnOrName, prefix: Column) -> Column:
    """Whether a text begins with another, a constant in ``lit``."""
    return call("startswith", _of(str), pattern=_constant("prefix", prefix))


def endswith(str: ColumnOrName, suffix: Column) -> Column:
    """Whether a text ends with another, a constant in ``lit``."""
    return call("endswith", _of(str), pattern=_constant("suffix", suffix))


def like(str: ColumnOrName, pattern: Column) -> Column:
    r"""Whether a text is like a pattern of SQL: ``%`` any text, ``_`` any character, ``\`` escapes."""
    return call("like", _of(str), pattern=_constant("pattern", pattern))


def rlike(str: ColumnOrName, regexp: Column) -> Column:
    """Whether a regular expression is found."""
    return call("rlike", _of(str), pattern=_constant("regexp", regexp))


def replace(src: ColumnOrName, search: Column, replace: Column | None = None) -> Column:
    """Replace a text wherever it is found; both are constants in ``lit``."""
    replacement = "" if replace is None else _constant("replace", replace)
    return call("replace", _of(src), search=_constant("search", search), replacement=replacement)


def regexp_replace(string: ColumnOrName, pattern: str, replacement: str) -> Column:
    """Replace what a regular expression finds; ``$1`` stands for its first group."""
    return call("regexp_replace", _of(string), pattern=pattern, replacement=replacement)


def regexp_extract(str: ColumnOrName, pattern: str, idx: int) -> Column:
    """Return a group of the first match (0: all of it); an empty text if there is no match."""
    return call("regexp_extract", _of(str), pattern=pattern, group=idx)


def split(str: ColumnOrName, pattern: str) -> Column:
    """Split at what a regular expression finds, into a list."""
    return call("split", _of(str), pattern=pattern)


# Dates and times, in the session's time zone.


def year(col: ColumnOrName) -> Column:
    """Return the year."""
    return call("year", _of(col))


def quarter(col: ColumnOrName) -> Column:
    """Return the quarter, 1 to 4."""
    return call("quarter", _of(col))


def month(col: ColumnOrName) -> Column:
    """Return the month, 1 to 12."""
    return call("month", _of(col))


def dayofmonth(col: ColumnOrName) -> Column:
    """Return the day of the month."""
    return call("dayofmonth", _of(col))


day = dayofmonth


def dayofweek(col: ColumnOrName) -> Column:
    """Return the day of the week, 1 (Sunday) to 7."""
    return call("dayofweek", _of(col))


def weekday(col: ColumnOrName) -> Column:
    """Return the day of the week, 0 (Monday) to 6."""
    return call("weekday", _of(col))


def dayofyear(col: ColumnOrName) -> Column:
    """Return the day of the year."""
    return call("dayofyear", _of(col))


def weekofyear(col: ColumnOrName) -> Column:
    """Return the week by ISO 8601."""
    return call("weekofyear", _of(col))


def hour(col: ColumnOrName) -> Column:
    """Return the hour."""
    return call("hour", _of(col))


def minute(col: ColumnOrName) -> Column:
    """Return the minute."""
    return call("minute", _of(col))


def second(col: ColumnOrName) -> Column:
    """Return the second."""
    return call("second", _of(col))


_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month",
    "mm": "month", "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip


def date_trunc(format: str, timestamp: ColumnOrName) -> Column:
    """Return the beginning of the unit (``"hour"``, ``"week"`` ...) in which a timestamp lies."""
    if format.lower() not in _UNITS:
        raise OptionError(
            f"date_trunc: there is no unit {format!r}; the units are {', '.join(_UNITS)}.",
            option="format", value=format,
        )  # fmt: skip
    return call("date_trunc", _of(timestamp), unit=_UNITS[format.lower()])


def date_add(start: ColumnOrName, days: ColumnOrName | int) -> Column:
    """Return the date so many days later."""
    return call("date_add", _of(start), days if isinstance(days, int) else _of(days))


def date_sub(start: ColumnOrName, days: ColumnOrName | int) -> Column:
    """Return the date so many days earlier."""
    return call("date_sub", _of(start), days if isinstance(days, int) else _of(days))


def datediff(end: ColumnOrName, start: ColumnOrName) -> Column:
    """Return the days from ``start`` to ``end``."""
    return call("datediff", _of(end), _of(start))


date_diff = datediff


def to_date(col: ColumnOrName) -> Column:
    """Convert to a date, as ``cast`` does."""
    return _of(col).cast("date")


def to_timestamp(col: ColumnOrName) -> Column:
    """Convert to a timestamp, as ``cast`` does; texts without a zone are in the session's."""
    return _of(col).cast("timestamp")


def unix_seconds(col: ColumnOrName) -> Column:
    """Return the whole seconds since 1970-01-01 UTC."""
    return call("unix_micros", _of(col), per_unit=1_000_000)


def unix_millis(col: ColumnOrName) -> Column:
    """Return the whole milliseconds since 1970-01-01 UTC."""
    return call("unix_micros", _of(col), per_unit=1000)


def unix_micros(col: ColumnOrName) -> Column:
    """Return the microseconds since 1970-01-01 UTC."""
    return call("unix_micros", _of(col), per_unit=1)


def timestamp_seconds(col: ColumnOrName) -> Column:
    """Return the timestamp so many whole seconds after 1970-01-01 UTC."""
    return call("timestamp_micros", _of(col), per_unit=1_000_000)


def timestamp_millis(col: ColumnOrName) -> Column:
    """Return the timestamp so many milliseconds after 1970-01-01 UTC."""
    return call("timestamp_micros", _of(col), per_unit=1000)


def timestamp_micros(col: ColumnOrName) -> Column:
    """Return the timestamp so many microseconds after 1970-01-01 UTC."""
    return call("timestamp_micros", _of(col), per_unit=1)


def struct(*cols: ColumnOrName) -> Column:
    """Make a struct of columns, with their names."""
    columns = [_of(each) for each in cols]
    return call("struct", *columns, names=tuple(each.name_in_output for each in columns))


# Windows, for ``groupBy``.


def window(
    timeColumn: ColumnOrName, windowDuration: str, slideDuration: str | None = None, startTime: str | None = None
) -> TimeWindow:
    """Return windows of a length, one after the other, or a new one every ``slideDuration``.

    Parameters
    ----------
    timeColumn
        A timestamp. A row without one is in no window.
    windowDuration, slideDuration
        Spark's intervals, like ``"10 seconds"``.
    startTime
        By how much windows begin later than those that begin at 1970-01-01 00:00:00 UTC.

    Examples
    --------
    >>> window("at", "10 seconds").alias("w").name
    'w'
    """
    size_us = _interval_us("window", windowDuration)
    slide_us = size_us if slideDuration is None else _interval_us("window", slideDuration)
    start_us = 0 if startTime is None else _interval_us("window", startTime)
    if not 0 < slide_us <= size_us:
        raise OptionError(
            f"window: the slide is {slideDuration or windowDuration!r}; it must be above zero, and not above the "
            f"window's {windowDuration!r}.",
            option="window", value=slideDuration,
        )  # fmt: skip
    if start_us >= slide_us:
        raise OptionError(
            f"window: the start time {startTime!r} must be below the slide {slideDuration or windowDuration!r}.",
            option="window", value=startTime,
        )  # fmt: skip
    return TimeWindow(_of(timeColumn).node, size_us, slide_us, start_us)


def session_window(timeColumn: ColumnOrName, gapDuration: str) -> SessionWindow:
    """Return windows that end when no row of their key came for so long.

    Parameters
    ----------
    timeColumn
        A timestamp. A row without one is in no window.
    gapDuration
        Spark's interval, like ``"5 minutes"``.
    """
    gap_us = _interval_us("session_window", gapDuration)
    if gap_us <= 0:
        raise OptionError(
            f"session_window: the gap is {gapDuration!r}; it must be above zero.",
            option="session_window", value=gapDuration,
        )  # fmt: skip
    return SessionWindow(_of(timeColumn).node, gap_us)


def _interval_us(what: str, value: str) -> int:
    try:
        return duration_ms(value) * 1000
    except (ValueError, AttributeError) as error:
        raise OptionError(
            f"{what}: {value!r} is not a valid interval; write one like '10 seconds'.", option=what, value=value
        ) from error


# Aggregates, for ``groupBy(...).agg(...)``.


def count(col: ColumnOrName = "*") -> Aggregate:
    """Count the rows, or those in which a column is not null."""
    node = None if isinstance(col, str) and col == "*" else _of(col).node
    if isinstance(node, Constant) and node.value is not None:
        node = None
    return Aggregate("count", node)


def sum(col: ColumnOrName) -> Aggregate:
    """Add up numbers; null if there is none. A sum of whole numbers is a long: one that does not fit is an error."""
    return Aggregate("sum", _of(col).node)


def min(col: ColumnOrName) -> Aggregate:
    """Return the least value; null if there is none. NaN is greater than any number."""
    return Aggregate("min", _of(col).node)


def max(col: ColumnOrName) -> Aggregate:
    """Return the greatest value; null if there is none. NaN is greater than any number."""
    return Aggregate("max", _of(col).node)


def avg(col: ColumnOrName) -> Aggregate:
    """Return the average of numbers; null if there is none."""
    return Aggregate("avg", _of(col).node)


def first(col: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """Return the value of the row that came first, or with ``ignorenulls`` of the first one that has a value.

    In a session window the row with the earliest event time is the first.
    """
    return Aggregate("first", _of(col).node, {"ignorenulls": bool(ignorenulls)})


def last(col: ColumnOrName, ignorenulls: bool = False) -> Aggregate:
    """Return the value of the row that came last, or with ``ignorenulls`` of the last one that has a value.

    In a session window the row with the latest event time is the last.
    """
    return Aggregate("last", _of(col).node, {"ignorenulls": bool(ignorenulls)})


def approx_count_distinct(col: ColumnOrName, rsd: float | None = None) -> Aggregate:
    """Return about how many different values there are, null not among them.

    Parameters
    ----------
    col
        The values.
    rsd
        The relative standard deviation of the estimate, 0.05 by default: two thirds of them are nearer than that.
    """
    wanted = 0.05 if rsd is None else float(rsd)
    if not 0.0011 <= wanted <= 0.39:
        raise OptionError(
            f"approx_count_distinct: rsd is {rsd!r}; it must be from 0.0011 to 0.39.", option="rsd", value=rsd
        )
    return Aggregate("approx_count_distinct", _of(col).node, {"rsd": wanted})


def collect_list(col: ColumnOrName) -> Aggregate:
    """Return the values that are not null as a list, in no certain order."""
    return Aggregate("collect_list", _of(col).node)


def _constant(argument: str, column: Column) -> str:
    """Return the text of a constant: a plain text would be the name of a column, as in PySpark."""
    if isinstance(column, Column) and isinstance(column.node, Constant) and isinstance(column.node.value, str):
        return column.node.value
    raise OptionError(
        f"The argument {argument!r} is {column!r}; it must be a constant: lit('...').",
        option=argument, value=repr(column),
    )  # fmt: skip


def _one_character(pad: str) -> str:
    if len(pad) != 1:
        raise OptionError(f"The padding is {pad!r}; it must be one character.", option="pad", value=pad)
    return pad
