"""Dates, timestamps and zones as Spark reads them from text: the forms of ``CAST`` and patterns of the user's.

Never: read a clock or the machine's zone.

Follows Spark 4.3, "Datetime Patterns for Formatting and Parsing" (java.time's patterns, resolved strictly) and the
forms that ``CAST(string AS DATE/TIMESTAMP)`` documents. Local time in a gap of its zone moves forward by the gap's
length, local time that exists twice is the earlier one, as in ``java.time.ZonedDateTime.of``.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Zone = int | zoneinfo.ZoneInfo
"""A fixed offset from UTC in seconds, or a region."""

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_DAYS_PER_400_YEARS = 146_097
_US_PER_DAY = 86_400_000_000
_US_PER_QUARTER = 900_000_000
_SHORT_IDS = {
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_OFFSET = re.compile(
    r"(?P<sign>[+-])(?:(?P<hour>\d)|(?P<hours>\d\d)(?:(?P<colon>:?)(?P<minutes>[0-5]\d)(?:(?P=colon)(?P<seconds>[0-5]\d))?)?)",
    re.ASCII,
)


@lru_cache(maxsize=256)
def zone_of(name: str) -> Zone:
    """Return the zone that a name or an offset stands for, by Spark's rules.

    Raises
    ------
    ValueError
        There is no such zone.
    """
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-]\d\d:)(\d)$", r"\g<1>0\2", name)
    name = _SHORT_IDS.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    offset = _OFFSET.fullmatch(re.sub(r"^(?:UTC|GMT|UT)(?=[+-])", "", name))
    if offset is not None:
        hours = int(offset["hour"] or offset["hours"])
        seconds = hours * 3600 + int(offset["minutes"] or 0) * 60 + int(offset["seconds"] or 0)
        if seconds > 18 * 3600:
            raise ValueError(f"the offset {name!r} is beyond 18 hours")
        return -seconds if offset["sign"] == "-" else seconds
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}") from None


def tzinfo_of(zone: Zone) -> datetime.tzinfo:
    """Return a zone as Python's own."""
    return datetime.timezone(datetime.timedelta(seconds=zone)) if isinstance(zone, int) else zone


def local_to_utc(local: pa.Array, zone: Zone) -> pa.Array:
    """Turn ``timestamp[us]`` without zone, local time of ``zone``, into ``timestamp[us, UTC]``, as Java does."""
    utc = pa.timestamp("us", "UTC")
    if isinstance(zone, int):
        shifted = local if zone == 0 else pc.subtract(local, pa.scalar(zone * 1_000_000, pa.duration("us")))
        return shifted.cast(utc)
    micros = np.asarray(local.cast(pa.int64()).fill_null(0))
    starts, offsets = [], []
    for year in np.unique(micros.astype("M8[us]").astype("M8[Y]")).astype(np.int64):
        for start_us, offset_us in _offsets_of_year(zone, int(year) + 1970):
            starts.append(start_us)
            offsets.append(offset_us)
    places = np.searchsorted(np.array(starts, np.int64), micros, side="right") - 1
    moved = pa.array(micros - np.array(offsets, np.int64)[places], mask=np.asarray(local.is_null()))
    return moved.cast(utc)


def utc_to_local(utc: pa.Array, zone: zoneinfo.ZoneInfo) -> pa.Array:
    """Turn ``timestamp[us, UTC]`` of a time of quarter hours' offsets into local time of ``zone``, as Java does."""
    micros = np.asarray(utc.cast(pa.int64()).fill_null(0))
    quarters, places = np.unique(micros // _US_PER_QUARTER, return_inverse=True)
    offsets = [_offset_at_utc(each * _US_PER_QUARTER, zone) for each in quarters.tolist()]
    local = micros + np.array(offsets, np.int64)[places]
    return pa.array(local, mask=np.asarray(utc.is_null())).cast(pa.timestamp("us"))


@lru_cache(maxsize=10_000)
def _offsets_of_year(zone: zoneinfo.ZoneInfo, year: int) -> list[tuple[int, int]]:
    """Return from which local time on in a year (microseconds) which offset of a zone (microseconds) counts."""
    start_us, end_us = days_of(year, 1, 1) * _US_PER_DAY, days_of(year + 1, 1, 1) * _US_PER_DAY
    before = offset_at_local(start_us, zone)
    result = [(start_us, before)]
    for day_us in range(start_us, end_us + _US_PER_DAY, _US_PER_DAY):
        after = _offset_at_utc(day_us, zone)
        if after == before:
            continue
        low, high = day_us - _US_PER_DAY, day_us
        while high - low > 1_000_000:
            middle = (low + high) // 2_000_000 * 1_000_000
            low, high = (middle, high) if _offset_at_utc(middle, zone) == before else (low, middle)
        # The offset before counts in a gap and in the first of two equal hours: until the later of both readings.
        from_us = high + max(before, after)
        if start_us < from_us < end_us:
            result.append((from_us, after))
        before = after
    return result


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date of any year; ValueError if there is no such date."""
    cycles, year_of_cycle = divmod(year - 1, 400)
    in_cycle = datetime.date(year_of_cycle + 1, month, day).toordinal()
    return in_cycle + cycles * _DAYS_PER_400_YEARS - _EPOCH


def utc_micros(local_us: int, zone: Zone) -> int:
    """Return the microseconds since the epoch in UTC of local time in a zone."""
    return local_us - (zone * 1_000_000 if isinstance(zone, int) else offset_at_local(local_us, zone))


def offset_at_local(local_us: int, zone: zoneinfo.ZoneInfo) -> int:
    """Return the offset in microseconds that local time in a zone has, the earlier one if there are two."""
    return _micros_of(_datetime_of(local_us).replace(tzinfo=zone).utcoffset())


def _offset_at_utc(utc_us: int, zone: zoneinfo.ZoneInfo) -> int:
    return _micros_of(_datetime_of(utc_us).replace(tzinfo=datetime.UTC).astimezone(zone).utcoffset())


def _micros_of(offset: datetime.timedelta | None) -> int:
    return (offset or datetime.timedelta()) // datetime.timedelta(microseconds=1)


def _datetime_of(micros: int) -> datetime.datetime:
    """Return a time as ``datetime``; beyond what that can hold, the same time in another cycle of 400 years."""
    days, in_day = divmod(micros, _US_PER_DAY)
    ordinal = days + _EPOCH
    if not 400 < ordinal < 3_600_000:
        ordinal = ordinal % _DAYS_PER_400_YEARS + (400 if ordinal <= 400 else 23 * _DAYS_PER_400_YEARS)
    return datetime.datetime.fromordinal(ordinal) + datetime.timedelta(microseconds=in_day)


_CAST_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CAST_TIMESTAMP = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(?P<zone>[^\d.].*)?)?)?))?)?)?",
    re.ASCII | re.DOTALL,
)
_WHITESPACE = "".join(map(chr, range(33))) + "\x7f"


def parse_cast_date(text: str) -> int:
    """Return the days of a date in one of the forms of ``CAST``; ValueError if it is none."""
    match = _CAST_DATE.fullmatch(text.strip(_WHITESPACE))
    if match is None:
        raise ValueError(text)
    year = int(match[2]) * (-1 if match[1] == "-" else 1)
    return days_of(year, int(match[3] or 1), int(match[4] or 1))


def parse_cast_timestamp(text: str) -> tuple[int, Zone | None]:
    """Return local microseconds, and the zone if the text names one, of a form of ``CAST``; else ValueError."""
    match = _CAST_TIMESTAMP.fullmatch(text.strip(_WHITESPACE))
    if match is None:
        raise ValueError(text)
    year = int(match[2]) * (-1 if match[1] == "-" else 1)
    days = days_of(year, int(match[3] or 1), int(match[4] or 1))
    hour, minute, second = int(match[5] or 0), int(match[6] or 0), int(match[7] or 0)
    fraction_us = int(((match[8] or "") + "000000")[:6])
    zone = None if match["zone"] is None else zone_of(match["zone"].strip(_WHITESPACE))
    return days * _US_PER_DAY + _micros_of_day(hour, minute, second, fraction_us), zone


def _micros_of_day(hour: int, minute: int, second: int, micros: int) -> int:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no such time of day")
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros


_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)


_NUMBERS = {"M": "mo", "L": "mo", "d": "d", "H": "h24", "h": "h12", "k": "k24", "K": "k12", "m": "mi", "s": "s"}


def _field(run: str) -> str:
    """Return the regular expression of one run of a pattern symbol; ValueError if it cannot be translated."""
    symbol, count = run[0], len(run)
    if symbol in _NUMBERS and count <= 2:
        return f"(?P<{_NUMBERS[symbol]}>" + (r"\d{2})" if count == 2 else r"\d{1,19})")
    if symbol in "yu" and count == 2:
        return r"(?P<y2>\d{2})"
    if symbol in "yu" and count == 4:
        return r"(?P<y>\d{4}|\+\d{5,19})"
    if symbol in "yu" and count in (1, 3):
        return rf"(?P<y>\d{{{count},19}})"
    if symbol in "ML" and count in (3, 4):
        names = _MONTHS if count == 4 else [name[:3] for name in _MONTHS]
        return "(?P<mon>" + "|".join(names) + ")"
    if symbol == "a" and count == 1:
        return "(?P<ap>am|pm)"
    if symbol == "D" and count <= 3:
        return r"(?P<doy>\d{3})" if count == 3 else r"(?P<doy>\d{1,3})"
    if symbol == "S" and count <= 9:
        return rf"(?P<f>\d{{1,{count}}})"
    return _zone_field(symbol, count)


def _is_of_any_width(run: str) -> bool:
    """Return whether a run of a symbol reads as many digits as there are, but for those of fixed fields after it."""
    return (run[0] in _NUMBERS and len(run) == 1) or (run[0] in "yu" and len(run) != 2)


def _is_fixed(run: str) -> bool:
    return (run[0] in _NUMBERS or run[0] in "yu") and len(run) == 2


def _zone_field(symbol: str, count: int) -> str:
    forms = {1: r"[+-]\d{2}(?:\d{2})?", 2: r"[+-]\d{4}", 3: r"[+-]\d{2}:\d{2}",
             4: r"[+-]\d{4}(?:\d{2})?", 5: r"[+-]\d{2}:\d{2}(?::\d{2})?"}  # fmt: skip
    if symbol in "Xx" and count in forms:
        return f"(?P<z>{'z|' if symbol == 'X' else ''}{forms[count]})"
    if symbol == "Z" and count <= 3:
        return r"(?P<z>[+-]\d{4})"
    if symbol == "V" and count == 2:
        return r"(?P<z>[A-Za-z][A-Za-z0-9_+/:~-]*|[+-]\d{1,2}(?::?\d{2}){0,2})"
    raise ValueError(f"{symbol * count!r} cannot be translated")


class DateTimePattern:
    """A pattern of java.time for reading.

    Raises
    ------
    ValueError
        The pattern has symbols that Headgate does not translate; the message names them.
    """

    def __init__(self, pattern: str) -> None:
        self._slices = _slices(pattern)
        parts: list[str] = []
        depth = 0
        greedy = False  # whether a field of any width and fixed ones after it were read last
        for match in _TOKEN.finditer(pattern):
            token = match[0]
            if greedy and not (match[2] is not None and _is_fixed(token)):
                parts.append(r"(?!\d)")
                greedy = False
            if match[1] is not None:
                parts.append(re.escape(match[1].replace("''", "'") or "'"))
            elif match[2] is not None:
                parts.append(_field(token))
                greedy = greedy or _is_of_any_width(token)
            elif token == "[":
                parts.append("(?:")
                depth += 1
            elif token == "]":
                parts.append(")?")
                depth -= 1
            elif token in "{}#":
                raise ValueError(f"{token!r} is reserved")
            else:
                parts.append(re.escape(token))
        if depth != 0:
            raise ValueError("its brackets do not match")
        try:
            self._regex = re.compile("".join(parts), re.IGNORECASE | re.ASCII)
        except re.error:
            raise ValueError("it has a field twice") from None

    def easy_way(self, to: pa.DataType) -> tuple[str, Callable[[pa.Array], pa.Array]] | None:
        """Return what finds texts of this pattern, and how Arrow casts them; None if its fields are of varying width.

        ``to`` is ``date32`` or ``timestamp[us]`` without zone.
        """
        if not self._slices or any(symbol not in self._slices for symbol in "yMd"):
            return None
        parts = [self._slices.get(symbol) for symbol in "yMdHms"]

        def cast(array: pa.Array) -> pa.Array:
            texts = [
                pa.scalar("00") if each is None else pc.utf8_slice_codeunits(array, each, each + (4 if i == 0 else 2))
                for i, each in enumerate(parts)
            ]
            date = pc.binary_join_element_wise(*texts[:3], "-")
            if pa.types.is_date32(to):
                return date.cast(to)
            return pc.binary_join_element_wise(date, pc.binary_join_element_wise(*texts[3:], ":"), " ").cast(to)

        return "^" + self._regex.pattern.replace("(?!\\d)", "").replace(r"|\+\d{5,19}", "") + "$", cast

    def parse(self, text: str) -> tuple[int, Zone | None]:
        """Return local microseconds, and the zone if the text has one; ValueError if it contradicts the pattern."""
        match = self._regex.fullmatch(text)
        if match is None:
            raise ValueError(text)
        fields = {name: value for name, value in match.groupdict().items() if value is not None}
        days = _date_of(fields)
        fraction_us = int((fields.get("f", "") + "000000")[:6])
        micros = _micros_of_day(_hour_of(fields), int(fields.get("mi", 0)), int(fields.get("s", 0)), fraction_us)
        zone = zone_of(match["z"].replace("z", "Z") if len(match["z"]) == 1 else match["z"]) if "z" in fields else None
        return days * _US_PER_DAY + micros, zone


def _slices(pattern: str) -> dict[str, int] | None:
    """Return where each field of a pattern of fixed width starts, by its symbol; None for other patterns."""
    places: dict[str, int] = {}
    at = 0
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if match[1] is not None:
            literal = match[1].replace("''", "'") or "'"
            if (not literal.isascii() or literal.lower() != literal.upper()) and literal != "T":
                return None  # literal text matches in any case, which needs the other way
            at += len(literal)
        elif match[2] is not None:
            if token not in ("yyyy", "uuuu", "MM", "dd", "HH", "mm", "ss") or token[0].replace("u", "y") in places:
                return None
            places[token[0].replace("u", "y")] = at
            at += len(token)
        elif token in "[]" or not token.isascii():
            return None
        else:
            at += 1
    return places


def _date_of(fields: dict[str, str]) -> int:
    year = int(fields["y"]) if "y" in fields else 2000 + int(fields["y2"]) if "y2" in fields else 1970
    if "doy" in fields:
        days = days_of(year, 1, 1) + int(fields["doy"]) - 1
        if not days_of(year, 1, 1) <= days < days_of(year + 1, 1, 1):
            raise ValueError("no such day of the year")
    else:
        month = int(fields.get("mo", 1))
        if "mon" in fields:
            month = [name[:3] for name in _MONTHS].index(fields["mon"].lower()[:3]) + 1
        days = days_of(year, month, int(fields.get("d", 1)))
    return days


def _hour_of(fields: dict[str, str]) -> int:
    if "h24" in fields:
        return int(fields["h24"])
    if "k24" in fields:
        if not 1 <= int(fields["k24"]) <= 24:
            raise ValueError("no such hour")
        return int(fields["k24"]) % 24
    if "h12" in fields or "k12" in fields:
        hour = int(fields["h12"]) if "h12" in fields else int(fields["k12"]) + 1
        if not 1 <= hour <= 12:
            raise ValueError("no such hour")
        hour = (hour if "h12" in fields else hour - 1) % 12
        return hour + (12 if fields.get("ap", "am").lower() == "pm" else 0)
    return 0


Parser = Callable[[str], tuple[int, Zone | None]]
