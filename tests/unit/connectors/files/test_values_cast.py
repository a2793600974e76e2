import datetime
import decimal
import math
import zoneinfo

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.formats import values, values_datetime
from headgate.formats.values import cast_strings

UTC = pa.timestamp("us", "UTC")


def cast(to: pa.DataType, *texts: str | None, time_zone: str = "UTC", **options: object) -> tuple[list, list[int]]:
    """Return the values and the places of those that could not be converted."""
    array, bad = cast_strings(pa.array(texts, pa.string()), to, options, time_zone)
    assert array.type == to
    array.validate(full=True)
    return array.to_pylist(), [] if bad is None else [index for index, is_bad in enumerate(bad.to_pylist()) if is_bad]


def test_null_stays_null_and_is_not_bad():
    assert cast(pa.int32(), "1", None) == ([1, None], [])
    assert cast(pa.int32(), None, "x") == ([None, None], [1])


def test_chunked_and_empty_columns():
    array, bad = cast_strings(pa.chunked_array([["1"], ["x"]]), pa.int8(), {}, "UTC")
    assert (array.to_pylist(), bad.to_pylist()) == ([1, None], [False, True])
    assert cast(pa.int64()) == ([], [])


@pytest.mark.parametrize(
    ("to", "low", "high"),
    [
        (pa.int8(), -128, 127), (pa.int16(), -32768, 32767), (pa.int32(), -(2**31), 2**31 - 1),
        (pa.int64(), -(2**63), 2**63 - 1),
    ],
)  # fmt: skip
def test_whole_numbers_at_their_limits(to: pa.DataType, low: int, high: int):
    texts = (str(low), str(high), f"+{high}", str(low - 1), str(high + 1), "0" * 30 + "7")
    assert cast(to, *texts) == ([low, high, high, None, None, 7], [3, 4])


@pytest.mark.parametrize("to", [pa.int8(), pa.int32(), pa.int64()])
@pytest.mark.parametrize(
    "odd", ["", "-1", "+5", "0x10", "1 ", "1.0", "\u0661", "9" * 20, "0" * 30 + "7", "12", "/", ":"]
)
def test_digits_and_nothing_else_are_integers_at_once(to: pa.DataType, odd: str):
    """And what is beside them is what it is alone, or by a null, wherever the column begins."""
    texts = ["left out", "7", "0", "99", odd, "12", "also x"]
    column = pa.array(texts).slice(1, 5)
    found, bad = cast_strings(column, to, {}, "UTC")
    with_null, bad_with_null = cast_strings(pa.array([*texts[1:6], None]), to, {}, "UTC")
    assert [*found.to_pylist(), None] == with_null.to_pylist()
    assert (None if bad is None else [*bad.to_pylist(), False]) == (bad_with_null and bad_with_null.to_pylist())
    is_plain = odd.isascii() and odd.isdigit() and int(odd) < 128
    assert (values.cast_digits(column, to) is not None) == is_plain
    assert found.to_pylist()[:3] == [7, 0, 99]


def test_floats():
    values, bad = cast(pa.float64(), "1.5", "+1", "NaN", "Inf", "nan", "1d", "0x1p3", " 2 ", "1e999", "x")
    assert math.isnan(values[2])
    assert values[:2] + values[3:] == [1.5, 1, math.inf, None, 1, 8, 2, math.inf, None]
    assert bad == [4, 9]


def test_floats_are_rounded_once():
    text = "1.00000017881393432617187499"  # by way of a double it would become the next float
    assert cast(pa.float32(), text, text + "f")[0] == [1.0000001192092896, 1.0000001192092896]


def test_named_floats():
    options = {"nanValue": "none", "positiveInf": "up", "negativeInf": "down"}
    values, bad = cast(pa.float32(), "none", "up", "down", "Inf", **options)
    assert math.isnan(values[0])
    assert (values[1:], bad) == ([math.inf, -math.inf, None], [3])


def test_decimals():
    to = pa.decimal128(5, 2)
    values, bad = cast(to, "1.005", "-1.005", "999.994", "999.995", "1,0", "1e-1000000", "1e1000000", "1e2", "x")
    expected = ["1.01", "-1.01", "999.99", None, "10.00", "0.00", None, "100.00", None]
    assert values == [None if each is None else decimal.Decimal(each) for each in expected]
    assert bad == [3, 6, 8]


def test_dates():
    values, bad = cast(pa.date32(), "2023-01-15", "2023-1-5", "2023", "2023-01-15T10", "2023-02-29", "x")
    day = datetime.date
    assert values == [day(2023, 1, 15), day(2023, 1, 5), day(2023, 1, 1), day(2023, 1, 15), None, None]
    assert bad == [4, 5]


def test_one_impossible_date_does_not_spoil_the_others():
    assert cast(pa.date32(), "2024-02-29", "2023-02-29", "2023-02-28")[1] == [1]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("dd/MM/yyyy", "15/01/2023", (2023, 1, 15)),
        ("dd/MM/yyyy", "31/02/2023", None),
        ("d/M/yy", "1/2/99", (2099, 2, 1)),
        ("yyyyMMdd", "20230115", (2023, 1, 15)),
        ("d MMM yyyy", "5 jan 2023", (2023, 1, 5)),
        ("MMMM d, yyyy", "January 5, 2023", (2023, 1, 5)),
        ("yyyy-DDD", "2024-366", (2024, 12, 31)),
        ("yyyy-DDD", "2023-366", None),
        ("yyyy[-MM]", "2023", (2023, 1, 1)),
    ],
)
def test_patterns_of_dates(pattern: str, text: str, expected: tuple | None):
    assert cast(pa.date32(), text, dateFormat=pattern)[0] == [expected and datetime.date(*expected)]


def test_easy_and_hard_texts_of_a_pattern_agree():
    texts = [
        f"{day:02}.{month:02}.2023 {hour:02}:30" for day in (1, 28, 31) for month in (1, 2, 12) for hour in (0, 23, 24)
    ]
    pattern = "dd.MM.yyyy HH:mm"
    together = cast(pa.timestamp("us"), *texts, timestampNTZFormat=pattern)[0]
    singly = [cast(pa.timestamp("us"), text, timestampNTZFormat=pattern)[0][0] for text in texts]
    assert together == singly
    assert together.count(None) == 11


def test_a_pattern_excludes_other_forms_unless_the_fallback_is_on():
    pattern = "dd.MM.yyyy"
    assert cast(pa.date32(), "2023-01-15", dateFormat=pattern)[1] == [0]
    assert cast(pa.date32(), "2023-01-15", dateFormat=pattern, enableDateTimeParsingFallback=True)[1] == []


@pytest.mark.parametrize("pattern", ["yyyy ww", "z", "yyyy-MM-dd G", "yyyy[", "EEE", "yyyy yyyy"])
def test_patterns_that_cannot_be_translated(pattern: str):
    with pytest.raises(OptionError, match="dateFormat"):
        cast(pa.date32(), "x", dateFormat=pattern)


def test_timestamps_name_their_zone_or_have_the_given_one():
    texts = ("2023-01-15 10:00:00", "2023-01-15T10:00:00Z", "2023-01-15 10:00:00 Europe/Paris", "2023-01-15T10Z")
    values, bad = cast(UTC, *texts, time_zone="America/New_York")
    assert [value and value.hour for value in values] == [15, 10, 9, None]
    assert bad == [3]
    assert cast(pa.timestamp("us"), *texts)[1] == [1, 2, 3]


def test_time_without_a_date_is_bad():
    assert cast(UTC, "10:20:30", "T10:20:30")[1] == [0, 1]


def test_years_beyond_those_of_python():
    array, bad = cast_strings(pa.array(["+12023-01-01 00:00:00", "-0044-03-15 00:00:00"]), UTC, {}, "Europe/Berlin")
    assert bad is None
    seconds = [each // 1_000_000 for each in array.cast(pa.int64()).to_pylist()]
    assert seconds == [317_242_051_200 - 3600, -63_549_360_000 - 3208]


def test_unknown_zone():
    with pytest.raises(OptionError, match="Mars"):
        cast(UTC, "2023-01-15 10:00:00", timeZone="Mars/Base")


@pytest.mark.parametrize("name", ["America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca"])
def test_local_time_near_every_change_of_a_zone_is_that_of_zoneinfo(name: str):
    zone = values_datetime.zone_of(name)
    assert isinstance(zone, zoneinfo.ZoneInfo)
    changes = [at for year in range(1970, 2040) for at, _ in values_datetime._offsets_of_year(zone, year)]
    local = [at + delta * 1_000_000 for at in changes for delta in (-7200, -3600, -1800, -1, 0, 1, 1800, 3599, 3600)]
    found = values_datetime.local_to_utc(pa.array(local, pa.timestamp("us")), zone).cast(pa.int64()).to_pylist()
    assert len(changes) > 80
    assert found == [values_datetime.utc_micros(each, zone) for each in local]
