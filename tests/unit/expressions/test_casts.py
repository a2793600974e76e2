"""Casts and moments, at the limits of what Arrow knows and of what a type holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.expressions.casts import TIMESTAMP, TIMESTAMP_NTZ, cast, local_time


@pytest.mark.parametrize(
    ("utc", "local"),
    [
        ("2036-07-01 12:00:00", "2036-07-01 14:00:00"),
        ("2037-12-01 12:00:00", "2037-12-01 13:00:00"),
        ("2038-07-01 12:00:00", "2038-07-01 14:00:00"),
        ("2050-03-27 00:59:59", "2050-03-27 01:59:59"),
        ("2050-03-27 01:00:00", "2050-03-27 03:00:00"),
        ("9999-07-01 12:00:00.000001", "9999-07-01 14:00:00.000001"),
        ("1893-03-31 23:06:31", "1893-03-31 23:59:59"),  # local mean time
        (None, None),
    ],
)
def test_clocks_change_after_2037_too(utc: str | None, local: str | None) -> None:
    values, expected = (pa.array([each, "2030-01-01"]).cast(TIMESTAMP_NTZ) for each in (utc, local))
    values = values.cast(TIMESTAMP)
    assert local_time(values, "Europe/Berlin")[0] == expected[0]
    assert cast(cast(values, TIMESTAMP_NTZ, "Europe/Berlin"), TIMESTAMP, "Europe/Berlin") == values
