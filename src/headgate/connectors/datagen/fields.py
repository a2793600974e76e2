"""Which column gets which options: the user's ``fields.NAME.…`` matched with the columns of the schema.

Never: guess: a name that no column or more than one column has is an `OptionError`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError
from headgate.source.options import Options, OptionSpec, choice, integer, number, text

PARTS = ("kind", "min", "max", "length", "null-rate", "cardinality", "skew")
MAX_LENGTH = 65_536
MAX_TABLE = 1_000_000
"""The largest cardinality that needs a table in memory: that of texts, or with skew."""

FIELD_OPTIONS = (
    OptionSpec("fields.*.kind", choice("sequence", "random"), None, "how the column is made", False),
    OptionSpec("fields.*.min", text, None, "least value", False),
    OptionSpec("fields.*.max", text, None, "greatest value", False),
    OptionSpec("fields.*.length", integer(1, MAX_LENGTH), None, "characters or bytes of each value", False),
    OptionSpec("fields.*.null-rate", number(0.0, 1.0), None, "share of nulls, 0 to 1", False),
    OptionSpec("fields.*.cardinality", integer(1), None, "how many distinct values there are", False),
    OptionSpec("fields.*.skew", number(0.0, 10.0), None, "Zipf exponent over the cardinality", False),
)


class FieldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one column; None where the user set nothing.

    Parameters
    ----------
    column
        The column's name, as the schema writes it.
    options
        For errors.
    """

    column: str
    options: Options
    kind: str | None = None
    min: str | None = None
    max: str | None = None
    length: int | None = None
    null_rate: float | None = None
    cardinality: int | None = None
    skew: float | None = None

    def error(self, part: str, message: str) -> OptionError:
        """Return the error about one option of this column."""
        return self.options.error(f"fields.{self.column}.{part}", message)

    def refuse(self, why: str, *parts: str) -> None:
        """Raise if any of these options is set, because it means nothing here.

        Raises
        ------
        OptionError
            One of them is set.
        """
        for part in parts:
            if getattr(self, part.replace("-", "_")) is not None:
                raise self.error(part, f"has no meaning for {why}; leave it out.")

    def bound(self, part: str, parse: Callable[[str], Any], default: Any, allowed: str) -> Any:
        """Return ``min`` or ``max`` as a value of the column's type.

        Raises
        ------
        OptionError
            The text is not a value of that kind.
        """
        given = getattr(self, part)
        if given is None:
            return default
        try:
            return parse(given)
        except (ValueError, InvalidOperation):
            raise self.error(part, f"is {given!r}; it must be {allowed}.") from None


def match_fields(schema: pa.Schema, options: Options) -> dict[str, FieldSettings]:
    """Return the settings of every column, by its name.

    Raises
    ------
    OptionError
        An option names a column that is not there, or that is there more than once without regard to case, or is
        set twice in different spellings.
    """
    columns: dict[str, list[str]] = {}
    for name in schema.names:
        columns.setdefault(name.lower(), []).append(name)
    found: dict[str, dict[str, Any]] = {name: {} for name in schema.names}
    for part in PARTS:
        for given, value in options.matching(f"fields.*.{part}").items():
            matches = columns.get(given.lower(), [])
            option = f"fields.{given}.{part}"
            if not matches:
                raise options.error(option, f"names no column. The columns are: {', '.join(schema.names)}.")
            if len(matches) > 1:
                raise options.error(option, f"is ambiguous: the columns {', '.join(matches)} differ only in case.")
            settings = found[matches[0]]
            if part.replace("-", "_") in settings:
                raise options.error(option, "is set twice, in spellings that differ only in case.")
            settings[part.replace("-", "_")] = value
    return {name: FieldSettings(column=name, options=options, **settings) for name, settings in found.items()}


def parse_date(value: str) -> int:
    """Return an ISO date as days since 1970-01-01."""
    return (date.fromisoformat(value.strip()) - date(1970, 1, 1)).days


def parse_timestamp(value: str) -> int:
    """Return an ISO time stamp as microseconds since 1970-01-01; one without an offset is in UTC."""
    parsed = datetime.fromisoformat(value.strip())
    since = parsed.replace(tzinfo=parsed.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def decimal_parser(scale: int) -> Callable[[str], int]:
    """Return a parser of decimal numbers into whole numbers of the column's last digit."""

    def parse(value: str) -> int:
        scaled = Decimal(value.strip()).scaleb(scale)
        if not scaled.is_finite() or scaled != int(scaled):
            raise ValueError
        return int(scaled)

    return parse
