"""Compares small random files and values, read by Headgate, with what Spark's own readers make of the same bytes.

A case is made of a seed and nothing else: its kind, schema, options and bytes. One that differs is made smaller for as
long as it still differs, and printed with its seed: ``--replay SEED`` runs it again. What docs/files-differences.md and
docs/kafka.md describe is not generated, or counts as equal (`same`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from headgate.connectors.files.source import FilesSource
from headgate.connectors.kafka.columns import KafkaColumns
from headgate.connectors.kafka.values import JSON_OPTIONS
from headgate.errors import HeadgateError
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits
from headgate.source.options import Options, OptionSpec, boolean, text
from local.records import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "America/New_York"
KINDS = ("values", "json", "csv", "parquet", "orc")
VALUE_SPECS = (*JSON_OPTIONS, OptionSpec("valueFormat", text, "json"), OptionSpec("includeHeaders", boolean, False))
CORRUPT = "_corrupt_record"
MOST_ATTEMPTS = 120
"""Smaller cases that are tried for one that differs."""


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
"""Types that files have; docs/files-differences.md tells of others that Spark refuses."""


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


# ---- reading cases


@dataclass(frozen=True)
class Outcome:
    """Types and rows, or an error's text."""

    types: tuple[tuple[str, str], ...] = ()
    rows: tuple[Any, ...] = ()
    error: str | None = None
    is_crash: bool = False


_TIME_ALONE = re.compile(rb"(?<![0-9][ T])(?<![0-9:])[0-9]{1,2}:[0-9]")


class Readers:
    """Reads cases with Spark and with Headgate, in a folder of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    def differ(self, case: Case) -> tuple[Outcome, Outcome] | None:
        """Return both outcomes, if they are not the same."""
        if case.kind == "csv" and any(map(_TIME_ALONE.search, case.parts)):
            return None  # "A time without a date is no timestamp"
        try:
            path = self._write(case)
        except (pa.ArrowException, TypeError) as error:  # the type cannot be written in this format
            if case.table is None:
                raise
            _ = error
            return None
        expected = self._spark(case, path)
        found = self._headgate(case, path)
        return None if same(case, expected, found) else (expected, found)

    def _write(self, case: Case) -> Path:
        path = self.folder / "input"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        if case.table is not None:
            buffer = io.BytesIO()
            (pq.write_table if case.kind == "parquet" else orc.write_table)(case.table, buffer)
            (path / f"a.{case.kind}").write_bytes(buffer.getvalue())
        elif case.kind != "values":
            end = b"\n" if case.kind == "json" else b""
            (path / f"a.{case.kind}").write_bytes(b"".join(part + end for part in case.parts))
        return path

    def _spark(self, case: Case, path: Path) -> Outcome:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        try:
            if case.kind == "values":
                frame = self.spark.createDataFrame(pa.table({"value": pa.array(case.parts, pa.binary())})).coalesce(1)
                options = {"columnNameOfCorruptRecord": CORRUPT} | case.options
                assert case.schema is not None
                frame = frame.select(F.from_json(F.col("value").cast("string"), case.schema, options).alias("j"))
                frame = frame.select("j.*")
            else:
                reader = self.spark.read.format(case.kind).options(**case.options)
                if case.schema is not None:
                    reader = reader.schema(case.schema)
                frame = reader.load(str(path))
            types = tuple((each.name, each.dataType.simpleString()) for each in frame.schema.fields)
            # A corrupt record may be no UTF-8, which Arrow does not take for a string.
            shown = [
                F.col(f"`{each}`").cast("binary").alias(each) if each == CORRUPT else f"`{each}`" for each, _ in types
            ]
            table = frame.select(*shown).toArrow()
        except (PySparkException, Py4JJavaError, pa.ArrowException) as error:
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}")
        return Outcome(types, _rows(table))

    def _headgate(self, case: Case, path: Path) -> Outcome:
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
        from pyspark.sql.types import StructType

        try:
            schema = None if case.schema is None else to_arrow_schema(StructType.fromDDL(case.schema), timezone="UTC")
            if case.kind == "values":
                assert schema is not None
                options = Options.parse("headgate.kafka", VALUE_SPECS, case.options)
                batch, _ = KafkaColumns(schema, options, ZONE).rows(records_of(case.parts))
                batches = [] if batch is None else [batch]
            else:
                source = FilesSource({**case.options, "path": str(path), "fileFormat": case.kind})
                if schema is None:
                    inferred = source.schema()
                    assert isinstance(inferred, pa.Schema)
                    schema = to_arrow_schema(from_arrow_schema(inferred), timezone="UTC")
                splits = plan_batch(source, schema, 0)
                batches = list(read_splits(source, schema, splits, 0, ZONE))
            for each in batches:
                each.validate(full=True)
            table = pa.Table.from_batches(batches, schema)
            types = tuple((each.name, each.dataType.simpleString()) for each in from_arrow_schema(schema).fields)
            return Outcome(types, _rows(table))
        except HeadgateError as error:
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}")
        except Exception as error:  # no error that a user should see, whatever Spark does
            return Outcome(error=f"{type(error).__name__}: {str(error)[:400]}", is_crash=True)


def _rows(table: pa.Table) -> tuple[Any, ...]:
    columns = [_plain(chunk) for column in table.columns for chunk in [column.combine_chunks()]]
    return tuple(zip(*columns, strict=True)) if columns else ()


def _plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values that can be compared: times as numbers, floats with their sign, strings as bytes."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in _plain(chunk)]
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [_plain(array.field(index)) for index in range(kind.num_fields)]
        rows = list(zip(*fields, strict=True)) if fields else [()] * len(array)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        is_map = pa.types.is_map(kind)
        values = list(zip(_plain(array.keys), _plain(array.items), strict=True)) if is_map else _plain(array.values)
        offsets = array.offsets.to_pylist()
        return [
            (tuple(sorted(values[start:stop], key=repr)) if is_map else tuple(values[start:stop])) if valid else None
            for start, stop, valid in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
        ]
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.binary())
    found: list[Any] = array.to_pylist()
    if pa.types.is_floating(kind):
        return [each if each is None else ("NaN" if math.isnan(each) else each + 0.0) for each in found]
    return found


def same(case: Case, expected: Outcome, found: Outcome) -> bool:
    """Whether two outcomes are the same, or differ in nothing but what the docs describe."""
    if case.kind == "orc" and "cannot be read as" in (found.error or ""):
        return True  # "ORC's columns are converted as Parquet's are"
    if expected.error is not None or found.error is not None:
        return expected.error is not None and found.error is not None and not found.is_crash
    if expected.types != found.types and case.columns is None:
        return False
    one, other = (list(each.rows) for each in (expected, found))
    if case.kind != "values":
        if Counter(map(repr, one)) == Counter(map(repr, other)):
            return True
        if len(one) != len(other):
            return False
    elif len(one) != len(other):
        return False
    return not any(True for _ in unequal(case, expected, found))


def unequal(case: Case, expected: Outcome, found: Outcome) -> Iterator[int]:
    """Yield the numbers of the rows that differ, of two outcomes with as many."""
    for number, (one, other) in enumerate(zip(expected.rows, found.rows, strict=True)):
        if not _same_value(one, other, case):
            yield number


def _same_value(expected: Any, found: Any, case: Case) -> bool:
    if expected == found:
        return True
    if isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        return all(_same_value(a, b, case) for a, b in zip(expected, found, strict=True))
    if not (isinstance(expected, bytes) and isinstance(found, bytes) and case.kind in ("values", "json")):
        return False
    a, b = expected.decode("utf-8", "replace"), found.decode("utf-8", "replace")
    # "shown with replacement characters"
    if "\ufffd" in b and [c for c in a if c != "\ufffd"] == [c for c in b if c != "\ufffd"]:
        return True
    if case.kind != "values":
        return False
    # "What is no string keeps its digits and spaces in a string column": Spark writes NaN in quotes, for one.
    with contextlib.suppress(ValueError):
        return repr(_unquoted(json.loads(a))) == repr(_unquoted(json.loads(b)))
    return False


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unquoted(each) for each in value]
    if isinstance(value, dict):
        return {name: _unquoted(each) for name, each in value.items()}
    names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    value = names.get(value, value) if isinstance(value, str) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases that have less than this one, the much smaller ones first."""
    for parts in _shorter(case.parts):
        if parts or case.table is not None:
            yield replace(case, parts=parts)
    for name in case.options:
        yield replace(case, options={key: value for key, value in case.options.items() if key != name})
    if case.table is not None:
        for rows in filter(None, _shorter(range(case.table.num_rows))):  # no rows is another kind
            yield replace(case, table=case.table.take(pa.array(list(rows), pa.int64())))
        if case.table.num_columns > 1:
            for name in case.table.column_names:
                yield replace(case, table=case.table.drop_columns([name]))
    if case.columns is not None and len(case.columns) > 1 and (case.kind != "csv"):
        for index in range(len(case.columns)):
            yield replace(case, columns=case.columns[:index] + case.columns[index + 1 :])
    if len(case.parts) <= 2:
        for index, part in enumerate(case.parts):
            for shorter in _shorter(part):
                yield replace(case, parts=(*case.parts[:index], bytes(shorter), *case.parts[index + 1 :]))


def _shorter(sequence: Any) -> Iterator[Any]:
    size = len(sequence) // 2
    while size:
        for start in range(0, len(sequence), size):
            kept = [*sequence[:start], *sequence[start + size :]]
            yield bytes(kept) if isinstance(sequence, bytes) else tuple(kept)
        size //= 2
    if len(sequence) == 1:
        yield b"" if isinstance(sequence, bytes) else ()


def minimized(case: Case, readers: Readers) -> Case:
    """Return the smallest case found that still differs."""
    if case.kind == "values":
        return _smallest_value(case, readers)
    attempts = MOST_ATTEMPTS
    progress = True
    while progress and attempts:
        progress = False
        for candidate in smaller(case):
            attempts -= 1
            if readers.differ(candidate) is not None:
                case, progress = candidate, True
                break
            if not attempts:
                break
    return case


def _smallest_value(case: Case, readers: Readers) -> Case:
    """Do the same for values: all that is shorter by one step goes through Spark at once."""
    candidates = case.parts
    while True:
        tried = replace(case, parts=candidates)
        outcomes = readers.differ(tried)
        if outcomes is None or outcomes[0].error is not None or outcomes[1].error is not None:
            return case
        case = replace(case, parts=(min((candidates[number] for number in unequal(tried, *outcomes)), key=len),))
        candidates = tuple(bytes(each) for each in _shorter(case.parts[0]))
        if not candidates:
            return case


def main(arguments: list[str]) -> int:
    """Run cases for a while; return 1 if some differ."""
    parser = argparse.ArgumentParser(prog="./run fuzz files", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument(
        "--seed", type=int, default=None, help="the first seed; the next ones follow it (default: random)"
    )
    parser.add_argument("--replay", type=int, help="only the case of this seed")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given again")
    parser.add_argument("--broken", action="store_true", help="JSON that is damaged, too")
    parser.add_argument("--exotic", action="store_true", help="options that few use, too")
    given = parser.parse_args(arguments)
    kinds = given.kind or KINDS
    first = given.replay if given.replay is not None else given.seed
    first = random.SystemRandom().randrange(10**9) if first is None else first
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("fuzz").config("spark.ui.enabled", "false")
    # Each case is a query of its own, so small that its code costs more to compile than to interpret.
    builder = builder.config("spark.sql.codegen.wholeStage", "false").config(
        "spark.sql.codegen.factoryMode", "NO_CODEGEN"
    )
    builder = builder.config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -Duser.timezone={ZONE}")
    builder = builder.config("spark.sql.session.timeZone", ZONE).config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="headgate-fuzz-"))
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    try:
        readers = Readers(spark, folder)
        end = time.monotonic() + 60 * given.minutes
        seed = first
        while time.monotonic() < end:
            case = make(seed, kinds, given.broken, given.exotic)
            counts[case.kind] += 1
            if readers.differ(case) is not None:
                failed[case.kind] += 1
                small = minimized(case, readers)
                outcomes = readers.differ(small)
                assert outcomes is not None
                print(f"\n--replay {seed}: {small.shown()}\n  Spark:    {_shown(outcomes[0])}\n"
                      f"  Headgate: {_shown(outcomes[1])}", flush=True)  # fmt: skip
            if given.replay is not None:
                break
            seed += 1
    finally:
        shutil.rmtree(folder)
    flags = "".join(f" --{name}" for name in ("broken", "exotic") if getattr(given, name))
    flags += "".join(f" --kind {kind}" for kind in given.kind or ())
    print(f"\nseeds {first} to {seed - 1}{flags}: {dict(counts)} compared, {dict(failed)} differ")
    spark.stop()
    return 1 if failed else 0


def _shown(outcome: Outcome) -> str:
    return outcome.error.replace("\n", " ") if outcome.error is not None else f"{outcome.types} {outcome.rows[:6]}"
