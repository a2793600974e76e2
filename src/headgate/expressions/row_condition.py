"""Reads the conditions that ``filter`` takes as text: comparisons with constants, joined by ``and``.

Never: widen the language: it is that of the option ``rowFilter``; for all else there are expressions.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from headgate.errors import OptionError
from headgate.expressions.expressions import Column, Name, call
from headgate.formats.row_filter import Comparison, parse_row_filter


def condition_of(text: str) -> Column:
    """Return a condition as an expression.

    Raises
    ------
    OptionError
        It is not a valid condition.

    Examples
    --------
    >>> condition_of("amount >= 40 and kind in ('a', 'b')")
    Column<((amount >= 40) AND in(kind, a, b))>
    """
    try:
        comparisons = parse_row_filter(text)
    except ValueError as error:
        raise OptionError(
            f"filter: {text!r} cannot be read. Write {error}; for all else use headgate.functions: "
            "filter((col('a') > 1) | col('b').isNull()).",
            option="filter", value=text,
        ) from error  # fmt: skip
    return reduce(and_, map(_expression_of, comparisons))


def _expression_of(comparison: Comparison) -> Column:
    column = Column(Name(f"`{comparison.column}`"))
    match comparison.op:
        case "is_null":
            return column.isNull()
        case "is_not_null":
            return column.isNotNull()
        case "in":
            return column.isin(*comparison.value)
    return call(comparison.op, column, comparison.value)
