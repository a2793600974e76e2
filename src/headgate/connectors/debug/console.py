"""The sink ``console``: prints the first rows of every checkpoint on the driver, as Spark's ``show()`` does.

Never: carry more than ``numRows`` rows of a subtask and checkpoint to the driver, or print a checkpoint without rows.
"""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import pyarrow as pa

from headgate.connectors.debug.carried_rows import CarryingWriter, CommittedNumbers
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import Sink, SinkCommitter
from headgate.source.options import Options, OptionSpec, integer, text

_TRUNCATED = 20


def _truncate(value: str) -> int:
    """Parse ``true`` (20), ``false`` (0) or a number of characters."""
    lower = value.strip().lower()
    if lower in ("true", "false"):
        return _TRUNCATED if lower == "true" else 0
    try:
        return max(0, int(lower))
    except ValueError:
        raise ValueError("true, false or a number of characters") from None


SINK_OPTION_SPECS = (
    OptionSpec("numRows", integer(1, 10_000), 20, "the most rows printed per checkpoint"),
    OptionSpec("truncate", _truncate, _TRUNCATED, "the most characters of a value; false: all"),
    OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),
)


class ConsoleSink(Sink):
    """See `Sink`.

    Parameters
    ----------
    options
        What the user set.
    """

    name = "console"

    def __init__(self, options: Mapping[str, str]) -> None:
        parsed = Options.parse("The sink console", SINK_OPTION_SPECS, options)
        self._most_rows: int = parsed["numRows"]
        self._truncate: int = parsed["truncate"]

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> CarryingWriter:
        """See `Sink.create_writer`."""
        return CarryingWriter(context, schema, self._most_rows)

    def create_committer(self, checkpoint_location: str) -> ConsoleCommitter:
        """See `Sink.create_committer`."""
        return ConsoleCommitter(self._most_rows, self._truncate)


class ConsoleCommitter(SinkCommitter):
    """Prints. What was printed before the driver died may be printed again.

    Parameters
    ----------
    most_rows
        How many rows to print per checkpoint.
    truncate
        How many characters of a value; 0: all.
    out
        Where to; None: the standard output of the moment.
    """

    def __init__(self, most_rows: int, truncate: int, out: TextIO | None = None) -> None:
        self._most_rows = most_rows
        self._truncate = truncate
        self._out = out
        self._numbers = CommittedNumbers()

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """See `SinkCommitter.commit`."""
        new = self._numbers.take_new(committables)
        if new:
            table = pa.concat_tables([rows.table for rows in new], promote_options="default")
            total = sum(rows.total for rows in new)
            line = "-" * 43
            shown = show(table.slice(0, self._most_rows), total=total, truncate=self._truncate)
            print(f"{line}\nBatch: {epoch}\n{line}\n{shown}", file=self._out or sys.stdout, flush=True)
        return ()


def show(table: pa.Table, *, total: int, truncate: int) -> str:
    """Return a table as Spark's ``show()`` prints it.

    Parameters
    ----------
    table
        The rows to show.
    total
        How many there are.
    truncate
        The most characters of a value; 0: all, left-aligned.

    Examples
    --------
    >>> print(show(pa.table({"id": [1, 22], "name": ["a", None]}), total=3, truncate=20))
    +---+----+
    | id|name|
    +---+----+
    |  1|   a|
    | 22|NULL|
    +---+----+
    only showing top 2 rows
    <BLANKLINE>
    """
    values = [[_cell(each) for each in column.to_pylist()] for column in _plain(table).columns]
    rows = [list(table.schema.names), *(list(row) for row in zip(*values))]
    cut = [[_cut(cell, truncate) for cell in row] for row in rows]
    widths = [max(3, *(len(row[each]) for row in cut)) for each in range(len(cut[0]))]
    line = "+" + "+".join("-" * width for width in widths) + "+"
    lines = [
        "|" + "|".join(f"{cell:>{width}}" if truncate else f"{cell:<{width}}" for cell, width in zip(row, widths)) + "|"
        for row in cut
    ]
    more = (
        f"only showing top {table.num_rows} row{'' if table.num_rows == 1 else 's'}\n" if total > table.num_rows else ""
    )
    return "\n".join([line, lines[0], line, *lines[1:], line, more])


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with its times as Python can hold them: microseconds, in UTC."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            wanted = pa.timestamp("us", None if field.type.tz is None else "UTC")
            table = table.set_column(index, field.name, table.column(index).cast(wanted, safe=False))
    return table


def _cut(cell: str, most: int) -> str:
    cell = cell.translate({10: "\\n", 13: "\\r", 9: "\\t"})
    if not most or len(cell) <= most:
        return cell
    return cell[:most] if most < 4 else cell[: most - 3] + "..."


def _cell(value: Any) -> str:
    """Return a value as Spark casts it to text."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case float():
            return _float(value)
        case decimal.Decimal():
            return f"{value:f}"
        case datetime.datetime():
            shown = value.strftime("%Y-%m-%d %H:%M:%S")
            return shown + (f".{value.microsecond:06d}".rstrip("0") if value.microsecond else "")
        case bytes():
            return "[" + " ".join(f"{byte:02X}" for byte in value) + "]"
        case dict():
            return "{" + ", ".join(map(_cell, value.values())) + "}"
        case list() if value and all(isinstance(each, tuple) for each in value):
            return "{" + ", ".join(f"{_cell(key)} -> {_cell(item)}" for key, item in value) + "}"
        case list():
            return "[" + ", ".join(map(_cell, value)) + "]"
    return str(value)


def _float(value: float) -> str:
    """Return a number as Java writes it."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{decimal.Decimal(repr(value)):f}"
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    shown = "".join(map(str, digits))
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{int(exponent) + len(digits) - 1}"
