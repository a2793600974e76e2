"""Casts and moments, at the limits of what Arrow knows and of what a type holds."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from headgate.expressions.casts import TIMESTAMP, TIMESTAMP_NTZ, cast, local_time
from headgate.expressions.kernels import KERNELS


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


@pytest.mark.parametrize(
    ("moment", "hour"),
    [
        ("2024-10-05 15:29:59", "2024-10-05 14:30:00"),
        ("2024-10-05 15:45:00", "2024-10-05 15:30:00"),  # 2:45, and the clock was never at 2:00
        ("2024-04-06 14:59:59", "2024-04-06 14:00:00"),
        ("2024-04-06 15:20:00", "2024-04-06 14:00:00"),  # 1:50 for the second time, and 1:00 was once
        ("2024-04-06 15:30:00", "2024-04-06 15:30:00"),
        (None, None),
    ],
)
def test_hours_in_which_clocks_are_moved_by_half_an_hour(moment: str | None, hour: str | None) -> None:
    values, expected = (pa.array([each, "2030-01-01"]).cast(TIMESTAMP_NTZ).cast(TIMESTAMP) for each in (moment, hour))
    found = KERNELS["date_trunc"](values, time_zone="Australia/Lord_Howe", unit="hour")
    assert found[0] == expected[0] or (moment is None and not found[0].is_valid)


def test_seconds_that_are_no_moment_are_the_last_one() -> None:
    most, per_second = 2**63 - 1, 1_000_000
    seconds = [most, -most - 1, most // per_second, -(most // per_second), 1, None]
    micros = [most, -most - 1, most // per_second * per_second, -(most // per_second) * per_second, per_second, None]
    assert cast(pa.array(seconds), TIMESTAMP, "UTC").cast(pa.int64()).to_pylist() == micros


def test_a_time_without_a_date_is_of_today() -> None:
    before = dt.datetime.now(dt.UTC).date()
    (made,) = cast(pa.array(["T12:34:56.5"]), TIMESTAMP, "UTC").to_pylist()
    assert made.date() in (before, dt.datetime.now(dt.UTC).date()) and made.time() == dt.time(12, 34, 56, 500_000)


def test_days_that_do_not_fit_begin_anew() -> None:
    days, more = pa.array([2**31 - 1, 0, None], pa.int32()).cast(pa.date32()), pa.array([1, 1, 1], pa.int32())
    (first, *_) = KERNELS["date_add"](days, more, time_zone="UTC").cast(pa.int32()).to_pylist()
    assert first == -(2**31)
