"""Generated columns of every type that a continuous query has, with the values that are easily got wrong.

The same number of rows and the same seed give the same table. Types that Arrow lacks are made of these columns in a
program: ``collate(s, 'UTF8_LCASE')``, ``parse_json(js)``.

Never: ask the clock, or Spark.
"""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_US = 1_000_000
_ROW = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])
_DEEP = pa.struct([("x", pa.struct([("y", pa.float64()), ("z", pa.list_(_ROW))])), ("at", pa.timestamp("us", "UTC"))])
COLUMNS: dict[str, pa.DataType] = {
    "n": pa.int64(),  # the number of the row, never null
    "k": pa.string(),  # few different values
    "small": pa.int32(),  # -3 to 12
    "p": pa.bool_(), "q": pa.bool_(),
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "j32": pa.int32(), "i64": pa.int64(), "j64": pa.int64(),
    "f32": pa.float32(), "g32": pa.float32(), "f64": pa.float64(), "g64": pa.float64(),
    "d5": pa.decimal128(5, 0), "d9": pa.decimal128(9, 2), "d18": pa.decimal128(18, 6), "d38": pa.decimal128(38, 10),
    "d38b": pa.decimal128(38, 38),
    "s": pa.string(), "t": pa.string(), "cased": pa.string(), "ascii": pa.string(), "number": pa.string(),
    "moment": pa.string(), "js": pa.string(), "csv": pa.string(), "xml": pa.string(), "url": pa.string(),
    "b": pa.binary(), "c": pa.binary(),
    "day": pa.date32(), "day2": pa.date32(), "at": pa.timestamp("us", "UTC"), "at2": pa.timestamp("us", "UTC"),
    "ntz": pa.timestamp("us"), "ntz2": pa.timestamp("us"), "dt": pa.duration("us"), "dt2": pa.duration("us"),
    "ap": pa.list_(pa.bool_()), "ai": pa.list_(pa.int32()), "ai2": pa.list_(pa.int32()), "al": pa.list_(pa.int64()),
    "af": pa.list_(pa.float64()), "ad": pa.list_(pa.decimal128(18, 6)), "as": pa.list_(pa.string()),
    "as2": pa.list_(pa.string()), "ab": pa.list_(pa.binary()), "aday": pa.list_(pa.date32()),
    "aat": pa.list_(pa.timestamp("us", "UTC")), "adt": pa.list_(pa.duration("us")),
    "aai": pa.list_(pa.list_(pa.int32())), "arow": pa.list_(_ROW), "am": pa.list_(pa.map_(pa.string(), pa.int32())),
    "msi": pa.map_(pa.string(), pa.int32()), "mis": pa.map_(pa.int32(), pa.string()),
    "mfp": pa.map_(pa.float64(), pa.bool_()), "mda": pa.map_(pa.date32(), pa.list_(pa.string())),
    "mrow": pa.map_(pa.string(), _ROW), "mmm": pa.map_(pa.string(), pa.map_(pa.string(), pa.float64())),
    "row": _ROW, "row2": _ROW, "deep": _DEEP,
}  # fmt: skip
"""The columns. All but ``n`` have nulls, at every level."""

_NULLS = 0.12
_SPECIALS = 0.5
"""How often a value is null, and how often one of those below."""
_FLOATS = (
    0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308,
    -1.7976931348623157e308, 3.4028234663852886e38, 1.401298464324817e-45, 1.0, -1.0, 0.1, 0.5, 1.5, 2.5, -2.5, 2.675,
    1 / 3, 1e7, 1e-3, 123456789.98765, 2147483647.5, -2147483648.9, 9.2e18, -9.3e18, 1e15 + 0.5,
)  # fmt: skip
_TEXTS = (
    "", " ", "a", "A", "b", "abc", "ABC", "aBc ", " abc", "a.b.c", "a,b", "a%b", "a_b", "a\\b", "a\nb",
    "\ta\n", "a\xa0",
    "a\x00b", "Straße", "STRASSE", "ﬁn", "ﬄ", "İstanbul", "ıI", "ΑΣ", "ΣΑΣ Σ", "σας", "ǅ", "ŉ", "µ", "é", "e\u0301",
    "日本語", "😀x", "👩‍👩‍👧", "\ufffd", "\uffff", "\U0010ffff", "aaaaaaaa", "ab" * 40, "1", "NULL", "'", '"',
    "$1", "[a-c]",
)  # fmt: skip
_CASED = (
    "a", "A", "á", "Á", "a\u0301", "ä", "Ä", "ab", "AB", "aB", "Ab ", "ab  ", " ab", "é", "É", "e", "E",
    "ß", "ss", "SS",
    "ẞ", "İ", "i̇", "i", "I", "ı", "σ", "ς", "Σ", "ﬃ", "ffi", "ø", "o", "Ø", "", " ", "-", "a-b", "ab-",
    "ǆ", "ǅ", "Ǆ",
)  # fmt: skip
_ASCII = (
    "", "a", "abc", "Spark SQL", "  two  words ", "A,B,,C", "key=value&x=1", "537061726b", "U3Bhcms=",
    "Zm9v\nYmFy", "====",
    "100.5%", "a1b22c333", "Robert", "Rupert", "Tymczak", "Pfister", "0xFF", "http://a/b", "aaa", "(a|b)*", "x" * 33,
)  # fmt: skip
_NUMBERS = (
    "1", "-1", "+1", " 1 ", "1.5", "1.", "-.5", ".", "", "+", "1e5", "1E5", "1e", "0x10", "1_000",
    "1,000", "$1,234.56",
    "1\t", "1d", "1f", "1L", "NaN", "-inf", "Infinity", "127", "128", "-129", "32768", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "00012", "-0", "1e400", "4.9e-324",
    "1.9999999999999999999", "0.1", "true", "T", "f", "yes", "No", "0", "on", "--1",
    "99999999999999999999999999999999999999",
    "0.00000000000000000000000000000000000001", "١", "1e-40", "123456789.98765", "ff", "zz", "1010",
    "454", "-12,345.67",
)  # fmt: skip
_MOMENTS = (
    "2024-01-01", "2024-1-1", "2024", "2024-2", "2024-02-30", "02024-01-01", "12024-01-01",
    "-2024-01-01", "2024-01-01T",
    "2024-01-01T10", "2024-01-01 10:11", "2024-01-01 10:11:12.123456789", "2024-01-01T10:11:12Z",
    "2024-01-01T10:11:12+2",
    "2024-01-01 10:11:12 Europe/Berlin", "2024-01-01 24:00:00", "2024-01-01 1:2:3", "2024/01/01", "20240101", "epoch",
    "0001-01-01", "9999-12-31", "1582-10-10", "1900-01-01 00:00:00", "2024-03-10 02:30:00", "2024-11-03 01:30:00",
    "2024-01-01x", "99-01-01", "2024-01-01 10:11:12-0800", "\t2024-01-01\n", "", "12:34:56",
    "12:34:56.789", "23:59:60",
    "2024-12-31 23:59:59", "1970-01-01 00:00:00", "0000-01-01", "2024-06-30 12:00:00.5", "31/12/2024", "Jan 5, 2024",
    "1 02:03:04.5", "-1 02:03:04", "1 day 2 hours", "interval 3 days",
)  # fmt: skip
_JSON = (
    '{"a": 1, "b": "x"}', '{"a": null, "b": ""}', '{"a": 1.5, "b": [1, 2]}', "{}", "[]", "[1, 2, 3]", "null", "1",
    '{"a": {"b": [{"c": 1}, {"c": null}]}}', '[{"a": 1}, {"a": 2, "b": "y"}]', "true", "{", '{"a": 1', "", " ",
    '{"a": 9223372036854775808}', '{"a": "1"}', '{"A": 1}', '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e400}',
    '{"b": "2024-01-01", "t": "2024-03-10T02:30:00"}', '{"a": "é\\u00e9\\n"}', '{"a":[[1],[],[null]]}',
    '"x"', "no json", "{'a': 1}", '{"x.y": 1, "": 2}',
)  # fmt: skip
_CSV = ("1,x", "1", ",", "", "a,b,c", '"1","x y"', '1,"a""b"', "2.5,", " 7 , z ", "-1,\u00e9", "99999999999,x", '"open')
_XML = (
    "<p><a>1</a><b>x</b></p>", "<p><a>1</a><a>2</a></p>", "<p/>", "<p a='1'>t</p>", "<p><a/></p>", "<p>",
    "", "no xml",
    "<p><a>z</a><b>\u00e9&amp;</b></p>", "<p><a><c>1</c></a></p>", "<p xmlns:n='u'><n:a>1</n:a></p>",
)  # fmt: skip
_URLS = (
    "http://spark.apache.org/path?query=1&x=a%20b#Ref", "https://user:pw@example.com:8080/a/b.html?k=v",
    "ftp://h", "a b",
    "http://[::1]/x?y", "mailto:a@b", "//host/p", "http://h/%zz", "", "http://h?a=1&a=2",
    "http://h/p;x=1?q", "inva lid://x",
    "%41%42+c", "%", "100%25", "caf%C3%A9",
)  # fmt: skip
_BYTES = (
    b"", b"\x00", b"a", b"abc", b"\xff", b"\x80abc", b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80", b"a\x00b",
    b"\xff" * 9, bytes(range(256)), b"Spark SQL", b"U3Bhcms=", b"\x01\x02\x03\x04\x05\x06\x07\x08",
    b"\x89PNG\r\n", b"0" * 16,
)  # fmt: skip
_TEXTS_OF = {
    "k": ("a", "b", "B", "c", ""), "cased": _CASED, "ascii": _ASCII, "number": _NUMBERS,
    "moment": _MOMENTS, "js": _JSON,
    "csv": _CSV, "xml": _XML, "url": _URLS,
}  # fmt: skip
_CHARACTERS = "aAbBcCzZ019 .,-_%é ß日😀"
_DAYS = (
    0, 1, -1, -719162, -719161, 2932896, 2932895, -141428, -141427, -141437, -25567, -25568, 19782,
    19723, 10956, 11016,
    -135140, 36524, 19358, 19722, 20088, 365, -700000,
)  # fmt: skip
"""Of year 1 and of 9999, of the change to Gregory's calendar, of leap days and the ends of years, among others."""
_CHANGES = (
    1710054000, 1730613600,  # New York 2024
    1711846800, 1729990800,  # Berlin 2024
    1712415600, 1728142200,  # Lord Howe 2024: half an hour
    1325239200,  # Apia 2011: the day that never was
    -2717650800,  # New York 1883: from local mean time
    -1633276800, 1699167600,
)  # fmt: skip
"""Seconds since 1970 at which clocks changed."""
_SECONDS = (
    0, 1, -1, -62135596800, 253402300799, -12219292800, -2208988800, 951782400, 2147483647, 2147483648, 1719751825,
)  # fmt: skip
_DURATIONS = (
    0, 1, -1, _US, -_US, 86_400 * _US, -86_400 * _US, 2**63 - 1, -(2**63), 90_061_000_001,
    -90_061_000_001, 3_599_999_999,
    106_751_991 * 86_400 * _US,
)  # fmt: skip


def table(rows: int, seed: int) -> pa.Table:
    """Return so many rows of `COLUMNS`."""
    made = {}
    for name, kind in COLUMNS.items():
        draw = random.Random(f"{seed} {name}")  # a column more or less changes no other
        if name == "n":
            values: Sequence[Any] = range(rows)
        elif name == "small":
            values = [None if draw.random() < _NULLS else draw.randint(-3, 12) for _ in range(rows)]
        elif name in _TEXTS_OF:
            values = [None if draw.random() < _NULLS else draw.choice(_TEXTS_OF[name]) for _ in range(rows)]
        else:
            values = [_value(draw, kind) for _ in range(rows)]
        made[name] = pa.array(values, kind)
    return pa.table(made)


def _value(draw: random.Random, kind: pa.DataType, nulls: float = _NULLS) -> Any:
    """Return a value of a type in the form of which Arrow makes it; moments, days and durations are numbers."""
    if draw.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _value(draw, each.type) for each in kind}
    if pa.types.is_map(kind):
        keys = dict.fromkeys(_value(draw, kind.key_type, 0) for _ in range(_length(draw)))
        return [(each, _value(draw, kind.item_type)) for each in keys]
    if pa.types.is_list(kind):
        return [_value(draw, kind.value_type) for _ in range(_length(draw))]
    return _simple(draw, kind, special=draw.random() < _SPECIALS)


def _length(draw: random.Random) -> int:
    return draw.choice((0, 1, 1, 2, 3, 5))


def _simple(draw: random.Random, kind: pa.DataType, *, special: bool) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return draw.random() < 0.5
    if types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return draw.choice((0, 1, -1, 2, 7, 10, most - 1, -most)) if special else draw.randint(-20, 100)
    if types.is_floating(kind):
        return draw.choice(_FLOATS) if special else round(draw.uniform(-1000, 1000), draw.randint(0, 6))
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        digits = (0, 1, -1, 5, most, -most, 10**kind.scale % most) if special else [draw.randint(-most, most)]
        return decimal.Decimal(draw.choice(digits)).scaleb(-kind.scale, decimal.Context(prec=38))
    if types.is_string(kind):
        return draw.choice(_TEXTS) if special else "".join(draw.choices(_CHARACTERS, k=draw.randint(0, 8)))
    if types.is_binary(kind):
        return draw.choice(_BYTES) if special else draw.randbytes(draw.randint(0, 8))
    if types.is_date(kind):
        return draw.choice(_DAYS) if special else draw.randint(-719162, 2932896)
    if types.is_duration(kind):
        return draw.choice(_DURATIONS) if special else draw.randint(-(10**12), 10**12)
    return _moment(draw) if special else draw.randint(-62135596800, 253402300799) * _US + draw.randrange(_US)


def _moment(draw: random.Random) -> int:
    """Return microseconds since 1970: often a little before or after a change of the clock."""
    near = draw.choice(_CHANGES) + draw.choice((0, -1800, 1800, -3600, 3600, -5400))
    seconds = draw.choice((near, draw.choice(_SECONDS)))
    least, most = -62135596800 * _US, 253402300799 * _US + _US - 1
    return min(max(seconds * _US + draw.choice((0, 0, 1, -1, 999_999, 500_000)), least), most)
