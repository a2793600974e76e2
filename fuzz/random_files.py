"""Makes small random files and values, with schemas and options, each from a seed and nothing else.

Never: what docs/files-differences.md and docs/kafka.md describe as different.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

CORRUPT = "_corrupt_record"
KINDS = ("values", "json", "csv", "parquet", "orc")


@dataclass(frozen=True)
class Case:
    """An input and how it is read; ``parts`` are values or lines, ``table`` is what a Parquet or ORC file holds."""

    kind: str
    columns: tuple[tuple[str, str], ...] | None
    options: dict[str, str] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()
    table: pa.Table | None = None

    @property
    def schema(self) -> str | None:
        """The columns as DDL, None to infer them."""
        return None if self.columns is None else ", ".join(f"`{name}` {kind}" for name, kind in self.columns)

    def shown(self) -> str:
        """Return all of it as text."""
        what = self.parts if self.table is None else f"{self.table.schema.to_string()}\n{self.table.to_pylist()}"
        return f"{self.kind} {self.schema} {self.options}\n{what}"


# ---- making cases


def make(seed: int, kinds: Sequence[str], broken: bool, exotic: bool) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    if kind in ("values", "json"):
        return _json_case(rng, kind, broken, exotic)
    return _csv_case(rng, exotic) if kind == "csv" else _columnar_case(rng, kind)


SCALARS = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "STRING", "STRING", "BOOLEAN", "DECIMAL(5,5)",
    "DECIMAL(10,2)", "DECIMAL(20,4)", "DECIMAL(38,0)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY",
)  # fmt: skip
TEXTS = (
    "", "x", "seven words and some", "é€😀", "a,b", "1", "1.5", "true", "null", "NaN", "2026-01-02",
    "2026-01-02 03:04:05", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678+02:00", "SGVsbG8=", "QQ==", " padded ",
    "quote\"s", "it's", "back\\s", "\u2028", "\x7f", "tab\t", "line\nbreak", "2026-13-01", "1e5", "{}", "[1]",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "7", "127", "128", "255", "256", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808", "0.5", "1.0", "1.005", "-0.1", "1e3", "1E-3", "1.5e300", "123456789012345678", "-0", "-0.0",
    "99999.995", "0.00001", "0.000005", "1e18", "1000000000000000000", "12345678901234567890.12345", "3.4e39",
)  # fmt: skip


def _type(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.6:
        return rng.choice(SCALARS)
    match rng.randrange(3):
        case 0:
            return f"ARRAY<{_type(rng, depth - 1)}>"
        case 1:
            return f"MAP<STRING,{_type(rng, depth - 1)}>"
    return f"STRUCT<{','.join(f'{name}:{_type(rng, depth - 1)}' for name in rng.sample('pqr', rng.randint(1, 3)))}>"


def _inner(kind: str) -> list[tuple[str, str]]:
    """Return the fields of a struct type, or the element of an array or map, of DDL that `_type` wrote."""
    parts, level, start = [], 0, kind.index("<") + 1
    for index in range(start, len(kind)):
        level += {"<": 1, "(": 1, ">": -1, ")": -1}.get(kind[index], 0)
        if (kind[index] == "," and level == 0) or level < 0:
            parts.append(kind[start:index])
            start = index + 1
            if level < 0:
                break
    if kind.startswith("STRUCT"):
        return [(name, rest) for name, _, rest in (part.partition(":") for part in parts)]
    return [("", parts[-1])]


class _Writer:
    """Writes JSON documents in one of many styles."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.comma = rng.choice((",", ", ", " ,", ",\t"))
        self.colon = rng.choice((":", ": ", " : "))
        self.escapes = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.odd = rng.choice((0.0, 0.05, 0.2))

    def value(self, kind: str) -> str:
        rng = self.rng
        if rng.random() < self.odd:
            return self.any(2)
        if rng.random() < 0.05:
            return "null"
        if kind.startswith("STRUCT"):
            return self.object([(name, self.value(each)) for name, each in _inner(kind) if rng.random() < 0.9])
        if kind.startswith("MAP"):
            names = rng.sample(("k", "l", "é", "m n", ""), rng.randint(0, 3))
            return self.object([(name, self.value(_inner(kind)[0][1])) for name in names])
        if kind.startswith("ARRAY"):
            return f"[{self.comma.join(self.value(_inner(kind)[0][1]) for _ in range(rng.randint(0, 3)))}]"
        if kind == "BOOLEAN":
            return rng.choice(("true", "false"))
        if kind in ("STRING", "BINARY"):
            return self.string(rng.choice(TEXTS))
        if kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
            return self.string(rng.choice([each for each in TEXTS if each.startswith("2026")]))
        if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
            return rng.choice(NUMBERS) if rng.random() < 0.8 else self.string(rng.choice(NUMBERS))
        return rng.choice([each for each in NUMBERS if each.lstrip("-").isdigit()])

    def any(self, depth: int) -> str:
        match self.rng.randrange(7 if depth else 5):
            case 0:
                return self.rng.choice(NUMBERS)
            case 1:
                return self.rng.choice(("true", "false", "null", "NaN", "-Infinity", "Infinity"))
            case 2 | 3 | 4:
                return self.string(self.rng.choice(TEXTS))
            case 5:
                return f"[{self.comma.join(self.any(depth - 1) for _ in range(self.rng.randint(0, 3)))}]"
        return self.object([(name, self.any(depth - 1)) for name in self.rng.sample("apxyz", self.rng.randint(0, 3))])

    def object(self, fields: Sequence[tuple[str, str]]) -> str:
        return f"{{{self.comma.join(f'{self.string(name)}{self.colon}{value}' for name, value in fields)}}}"

    def string(self, value: str) -> str:
        out = []
        for character in value:
            if character in '"\\' or character < " ":
                out.append(json.dumps(character)[1:-1])
            elif self.rng.random() < self.escapes:
                out.append(
                    "\\/"
                    if character == "/"
                    else json.dumps(character)[1:-1]
                    if character > "\x7e"
                    else f"\\u{ord(character):04{self.rng.choice('xX')}}"
                )
            else:
                out.append(character)
        if self.escapes and self.rng.random() < 0.05:
            out.insert(
                self.rng.randint(0, len(out)), self.rng.choice(("\\ud83d", "\\ude00", "\\u0000", "\\ud83d\\u0041"))
            )
        return f'"{"".join(out)}"'


def _mutated(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        start = rng.randint(0, len(data))
        stop = min(len(data), start + rng.choice((0, 1, 1, 2, 5)))
        new = rng.choice(
            (
                b"",
                b"",
                b"{",
                b"}",
                b"[",
                b"]",
                b",",
                b":",
                b'"',
                b"\\",
                b"x",
                b"0",
                b".",
                b"-",
                b" ",
                b"\t",
                b"null",
                b"undefined",
                b"\xff",
                b"\xed\xa0\x80",
                b"\\u12",
                b"'",
                b"e",
                data[stop : stop + 8],
            )
        )
        data = data[:start] + new + data[stop:]
    return data


def _json_case(rng: random.Random, kind: str, broken: bool, exotic: bool) -> Case:
    nested = rng.random() < 0.5
    names = rng.sample("abcdefgh", rng.randint(1, 5))
    columns = [(name, _type(rng, 2 if nested else 0)) for name in names]
    writer = _Writer(rng)
    parts = []
    for _ in range(200 if kind == "values" else rng.choice((1, 3, 40))):
        fields = [(name, writer.value(each)) for name, each in columns if rng.random() < 0.95]
        if rng.random() < 0.1:
            fields.append((rng.choice("axyz"), writer.any(2)))
        document = writer.object(fields).encode()
        parts.append(_mutated(rng, document) if broken and rng.random() < 0.5 else document)
    options = {}
    if rng.random() < 0.2:
        options["mode"] = rng.choice(("DROPMALFORMED", "PERMISSIVE") if kind == "json" else ("PERMISSIVE",))
    if exotic:
        for name in (
            "allowComments",
            "allowUnquotedFieldNames",
            "allowSingleQuotes",
            "allowNumericLeadingZeros",
            "allowNonNumericNumbers",
            "allowUnquotedControlChars",
            "allowBackslashEscapingAnyCharacter",
        ):
            if rng.random() < 0.2:
                options[name] = rng.choice(("true", "false"))
    if kind == "json" and rng.random() < 0.2:
        parts = [part.replace(b"\n", b" ").replace(b"\r", b" ") for part in parts]
        return Case(kind, None, options, tuple(parts))
    if rng.random() < 0.6:
        columns.append((CORRUPT, "STRING"))
    return Case(kind, tuple(columns), options, tuple(parts))


CELLS = (
    *TEXTS, *NUMBERS[:12], '"quoted"', '"a,b;c"', '"say ""hi"""', '""', '" x "', "'x'", '"open', 'mid"dle', "#c",
    "\\N", "NA",
    '"a\\"b"', "True", "2026-01-02 3:4", "01.02.2026", "Inf", "-Inf", "1d", "0x1p3", "1,000", "+5", "٣",
    "\ufeff", '"a\nb"',
)  # fmt: skip


def _csv_case(rng: random.Random, exotic: bool) -> Case:
    sep = rng.choice((",", ",", ",", ";", "|", "\t"))
    options = {} if sep == "," else {"sep": sep}
    ordinary = {
        "header": ("true",), "nullValue": ("NA", "\\N", "x"), "emptyValue": ("E",), "mode": ("DROPMALFORMED",
        "PERMISSIVE"),
        "ignoreLeadingWhiteSpace": ("true",), "ignoreTrailingWhiteSpace": ("true",), "quote": ("'",), "escape": ('"',),
        "dateFormat": ("dd.MM.yyyy",), "inferSchema": ("true",), "multiLine": ("true",),
    }  # fmt: skip
    unusual = {
        "comment": ("#",), "encoding": ("ISO-8859-1", "UTF-16LE"), "lineSep": ("\n", "\r\n", ";;"), "nanValue": ("NA",),
        "positiveInf": ("Inf",), "sep": ("::", "\x01"), "charToEscapeQuoteEscaping": ("\\",), "maxColumns": ("3",),
        "unescapedQuoteHandling": ("STOP_AT_CLOSING_QUOTE", "SKIP_VALUE", "RAISE_ERROR"), "enforceSchema": ("false",),
    }  # fmt: skip
    for name, choices in {**ordinary, **(unusual if exotic else {})}.items():
        if rng.random() < 0.15:
            options[name] = rng.choice(choices)
    width = rng.randint(1, 5)
    names = rng.sample("abcdefgh", width)
    end = "\r\n" if rng.random() < 0.2 else "\n"
    lines = [sep.join(names)] if "header" in options else []
    cells = rng.sample(CELLS, rng.randint(3, 12))
    for _ in range(rng.choice((1, 3, 30))):
        count = width if rng.random() < 0.9 else rng.randint(0, width + 1)
        lines.append(sep.join(rng.choice(cells) for _ in range(count)))
    encoding = options.get("encoding", "utf-8")
    parts = tuple((line + end).encode(encoding, "replace") for line in lines)
    if rng.random() < 0.3:
        return Case("csv", None, options, parts)
    columns = [(name, rng.choice(SCALARS)) for name in names]
    columns = [(name, "STRING" if kind == "BINARY" else kind) for name, kind in columns]
    return Case("csv", (*columns, (CORRUPT, "STRING")) if rng.random() < 0.4 else tuple(columns), options, parts)


ARROW_TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.binary(), pa.binary(4), pa.date32(), pa.timestamp("ms"), pa.timestamp("us"),
    pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.decimal128(5, 2), pa.decimal128(18, 4),
    pa.decimal128(38, 10), pa.dictionary(pa.int32(), pa.string()), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.time64("us"),
)  # fmt: skip
"""Types that files have; docs/files-differences.md lists others that Spark refuses."""


def _arrow_type(rng: random.Random, depth: int) -> pa.DataType:
    if depth and rng.random() < 0.3:
        inner = _arrow_type(rng, depth - 1)
        return rng.choice((
            pa.list_(inner), pa.struct([("p", inner), ("q", pa.string())]), pa.map_(pa.string(), inner),
            pa.large_list(inner),
        ))  # fmt: skip
    return rng.choice(ARROW_TYPES)


def _arrow_value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _arrow_value(rng, each.type) for each in kind.fields}
    if pa.types.is_map(kind):
        return [(key, _arrow_value(rng, kind.item_type)) for key in rng.sample("klm", rng.randint(0, 3))]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_arrow_value(rng, kind.value_type) for _ in range(rng.randint(0, 3))]
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return rng.choice(TEXTS)
    if pa.types.is_fixed_size_binary(kind):
        return rng.randbytes(kind.byte_width)
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randint(0, 5))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
        return rng.choice((0, 1, low, low + (1 << kind.bit_width) - 1, 7))
    if pa.types.is_floating(kind):
        return rng.choice((0.0, 1.5, -0.0, math.nan, math.inf, -2.25))
    if pa.types.is_decimal(kind):
        return rng.choice(("0.00", "1.25", "-999.99"))
    if pa.types.is_temporal(kind):
        day = pa.types.is_date32(kind) or pa.types.is_time(kind)
        return rng.choice((0, 1, 20_000, 40_000) if day else (0, 86_400_000_000, 864_000_000_000, -86_400_000_000))
    return None


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind) or pa.types.is_date64(kind):
        return pa.array(values, pa.string() if pa.types.is_decimal(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


DDL = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "string": "STRING", "bool": "BOOLEAN", "binary": "BINARY", "date32[day]": "DATE", "timestamp[us]": "TIMESTAMP_NTZ",
    "timestamp[us, tz=UTC]": "TIMESTAMP", "decimal128(5, 2)": "DECIMAL(5,2)", "decimal128(18, 4)": "DECIMAL(18,4)",
}  # fmt: skip


def _columnar_case(rng: random.Random, kind: str) -> Case:
    names = rng.sample("abcdefgh", rng.randint(1, 4))
    rows = rng.choice((1, 5, 40))
    arrays: list[pa.Array] = []
    for _ in names:
        while True:
            each = _arrow_type(rng, 2)
            try:
                arrays.append(_array([_arrow_value(rng, each) for _ in range(rows)], each))
                break
            except (pa.ArrowException, TypeError, OverflowError, ValueError):
                continue
    table = pa.table(dict(zip(names, arrays, strict=True)))
    if rng.random() < 0.6:
        return Case(kind, None, {}, table=table)
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        same = DDL.get(str(column.type), "STRING")
        is_same = kind == "orc" or rng.random() < 0.5  # ORC's conversions are documented
        columns.append((name, same if is_same else rng.choice(sorted(set(DDL.values())))))
    if rng.random() < 0.3:
        columns.append(("missing", "INT"))
    return Case(kind, tuple(columns), {}, table=table)
