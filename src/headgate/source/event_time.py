"""Event times of Arrow's columns as milliseconds since 1970-01-01 UTC, rounded down.

Never: look at a time zone. Arrow keeps timestamps with one in UTC; those without are taken as they stand.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what a producer sets beyond it is in a smaller unit than milliseconds."""
UNITS_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of a timestamp type's units make a second, by the unit's name."""


def to_milliseconds(value: int, data_type: pa.TimestampType) -> int:
    """Return a number of a timestamp column as milliseconds, rounded down."""
    return value * 1000 // UNITS_PER_SECOND[data_type.unit]


def highest_event_time_ms(column: pa.Array) -> int | None:
    """Return the highest time in a column of timestamps, in milliseconds; None: there is none."""
    value: int | None = pc.max(column).value
    return None if value is None else to_milliseconds(value, column.type)
