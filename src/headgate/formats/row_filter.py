"""The option ``rowFilter``: which rows are wanted, as a small SQL condition that files can be skipped by.

Never: widen the language. It is what statistics of row groups can answer: comparisons of a column with a literal,
joined by ``and``. Everything else belongs into Spark's ``filter``, which sees every row anyway.

It is an option because Spark 4.3 remembers pushed filters for later queries on the same DataFrame.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.formats.names import Names
from headgate.formats.values_datetime import tzinfo_of, zone_of


class Comparison(msgspec.Struct, frozen=True):
    """A column compared with a value. Rows where it is not true (false or null) are not wanted.

    Parameters
    ----------
    column
        The name of a top-level column.
    op
        One of ``= != < <= > >= in is_null is_not_null``.
    value
        A Python value; a tuple of them for ``in``; None for the last two.
    """

    column: str
    op: str
    value: Any


_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`[^`]+`) | (?P<text>'(?:[^']|'')*') | (?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    | (?P<op><=|>=|<>|!=|==|=|<|>) | (?P<mark>[(),]) | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE,
)
_ALLOWED = (
    "comparisons joined by 'and', like \"delay >= 60 and carrier in ('UA', 'AA') and day < date '2013-02-01' and "
    'tail is not null"'
)
_COMPUTE: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def parse_row_filter(text: str) -> tuple[Comparison, ...]:
    """Parse the option's value.

    Raises
    ------
    ValueError
        It is not a valid condition; the message says what is allowed.

    Examples
    --------
    >>> parse_row_filter("delay > 60 and carrier in ('UA', 'AA')")
    (Comparison(column='delay', op='>', value=60), Comparison(column='carrier', op='in', value=('UA', 'AA')))
    """
    return _Parser(text).conditions()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(_ALLOWED)
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def conditions(self) -> tuple[Comparison, ...]:
        found = [self._comparison()]
        while self._tokens:
            self._expect("and")
            found.append(self._comparison())
        return tuple(found)

    def _next(self) -> tuple[str, str]:
        if not self._tokens:
            raise ValueError(_ALLOWED)
        return self._tokens.pop(0)

    def _take(self, word: str) -> bool:
        if self._tokens and self._tokens[0][1].lower() == word and self._tokens[0][0] in ("word", "mark"):
            self._tokens.pop(0)
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise ValueError(_ALLOWED)

    def _comparison(self) -> Comparison:
        kind, column = self._next()
        if kind not in ("word", "quoted"):
            raise ValueError(_ALLOWED)
        column = column.strip("`")
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            return Comparison(column, "is_not_null" if negated else "is_null", None)
        if self._take("in"):
            self._expect("(")
            values = [self._literal()]
            while self._take(","):
                values.append(self._literal())
            self._expect(")")
            return Comparison(column, "in", tuple(values))
        kind, op = self._next()
        if kind != "op":
            raise ValueError(_ALLOWED)
        return Comparison(column, {"==": "=", "<>": "!="}.get(op, op), self._literal())

    def _literal(self) -> Any:
        kind, token = self._next()
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        if token.lower() in ("date", "timestamp"):
            kind, quoted = self._next()
            if kind == "text":
                parse = datetime.date if token.lower() == "date" else datetime.datetime
                try:
                    return parse.fromisoformat(quoted[1:-1])
                except ValueError:
                    pass
        raise ValueError(_ALLOWED)


class RowFilter:
    """The conditions for one schema.

    Parameters
    ----------
    comparisons
        What must be true of a row.
    schema
        The columns; every column named must be one of them.
    time_zone
        The zone of timestamps without one (an IANA name).
    case_sensitive
        Whether columns whose names differ only in case are two.

    Raises
    ------
    OptionError
        A column is unknown, or a value cannot become its type.
    """

    def __init__(
        self, comparisons: Sequence[Comparison], schema: pa.Schema, time_zone: str, case_sensitive: bool = False
    ) -> None:
        key = Names(case_sensitive).key
        by_key = {key(name): name for name in schema.names}
        self.comparisons: list[Comparison] = []
        for each in comparisons:
            name = by_key.get(key(each.column))
            if name is None:
                raise OptionError(
                    f"headgate.files: the option 'rowFilter' names the column {each.column!r}, which is not one of "
                    f"{schema.names}.",
                    option="rowFilter",
                    value=each.column,
                )
            to = schema.field(name).type
            if each.op == "in":
                value: Any = tuple(_scalar(one, to, name, time_zone) for one in each.value)
            else:
                value = None if each.value is None else _scalar(each.value, to, name, time_zone)
            self.comparisons.append(Comparison(name, each.op, value))

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of a batch."""
        masks = [_mask(batch.column(each.column), each) for each in self.comparisons]
        if not masks:
            return batch
        mask = masks[0]
        for each in masks[1:]:
            mask = pc.and_(mask, each)
        return batch.filter(mask)

    def may_match(self, column: str, lowest: Any, highest: Any, nulls: int | None, rows: int) -> bool:
        """Return whether any row of a row group may be wanted, by the statistics of one of its columns.

        Parameters
        ----------
        column
            The column's name, as in the schema.
        lowest, highest
            The least and the greatest value that is not null, or None when unknown.
        nulls
            How many values are null, or None when unknown.
        rows
            How many rows there are.
        """
        for each in self.comparisons:
            if each.column == column and not _possible(each, lowest, highest, nulls, rows):
                return False
        return True


def _scalar(value: Any, to: pa.DataType, column: str, time_zone: str) -> pa.Scalar:
    try:
        if pa.types.is_timestamp(to) and isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime) and value.tzinfo is None and pa.types.is_timestamp(to) and to.tz:
            value = value.replace(tzinfo=tzinfo_of(zone_of(time_zone)))
        return pa.scalar(value).cast(to)
    except (pa.ArrowException, ValueError) as error:
        raise OptionError(
            f"headgate.files: the option 'rowFilter' compares the column {column!r}, which is {to}, with {value!r}: "
            f"{error}.",
            option="rowFilter",
            value=value,
        ) from error


def _mask(column: pa.Array, comparison: Comparison) -> pa.Array:
    if comparison.op == "is_null":
        return column.is_null()
    if comparison.op == "is_not_null":
        return column.is_valid()
    if comparison.op == "in":
        return pc.is_in(column, value_set=pa.array([each.as_py() for each in comparison.value], column.type))
    return _COMPUTE[comparison.op](column, comparison.value)


def _possible(comparison: Comparison, lowest: Any, highest: Any, nulls: int | None, rows: int) -> bool:
    if comparison.op == "is_null":
        return nulls is None or nulls > 0
    if nulls == rows:
        return False
    if comparison.op == "is_not_null" or lowest is None or highest is None:
        return True
    values = comparison.value if comparison.op == "in" else (comparison.value,)
    return any(_in_range(comparison.op, each.as_py(), lowest, highest) for each in values)


def _in_range(op: str, value: Any, lowest: Any, highest: Any) -> bool:
    try:
        if op in ("=", "in"):
            return bool(lowest <= value <= highest)
        if op == "!=":
            # Statistics leave NaN out, and NaN differs from everything.
            return isinstance(value, float) or not (lowest == value == highest)
        bound = lowest if op in ("<", "<=") else highest
        compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[op]
        return bool(compare(bound, value))
    except TypeError:
        return True  # statistics of another type than the column: no help
