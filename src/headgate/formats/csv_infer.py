"""Names and types of the columns of CSV files, from a sample.

Never: read more than the sample it is given.

Follows Spark 4.3's ``CSVInferSchema``. The type of a column starts as nothing and is widened value by value:

    int, bigint, decimal (whole numbers only), double, date, timestamp, boolean, string

where a value is tried from the type so far on, and two types that have nothing in common make a string.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from headgate.formats.csv_columns import distinct_names
from headgate.formats.csv_options import CsvSettings, settings_of
from headgate.formats.csv_tokenizer import Tokenizer, Tokens
from headgate.formats.names import Names
from headgate.formats.values import cast_strings

_ORDER = ("int", "bigint", "decimal", "double", "date", "timestamp", "boolean", "string")
_ARROW = {
    "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "boolean": pa.bool_(), "string": pa.string(),
}  # fmt: skip
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_CUT_SAMPLE_CHARS = 32 << 10
"""A sample as long as this may have been cut inside its last record, which then does not count."""
_DATES_THAT_ARE_TIMESTAMPS = (None, "yyyy-MM-dd", "yyyy-M-d", "yyyy-M-dd", "yyyy-MM-d", "yyyy-MM", "yyyy-M", "yyyy")
_DIGITS_OF_WHOLE = {"int": 10, "bigint": 20}


def infer_csv_schema(sample: bytes, options: Mapping[str, Any], names: Names | None = None) -> pa.Schema:
    """Return the schema that Spark would infer if the sample were all there is.

    Parameters
    ----------
    sample
        Whole lines from the start of a file, without a byte order mark.
    options
        Parsed options of CSV.
    names
        Which names are one; None: those that differ only in case.

    Raises
    ------
    OptionError
        Options contradict each other.
    BadDataError
        The sample cannot be cut into tokens.
    """
    settings = settings_of(options)
    records = iter(_records(sample, settings))
    first = next(records, None)
    if first is None:
        return pa.schema([])
    columns = distinct_names(first, settings, names or Names())
    if not settings.values["inferSchema"]:
        return pa.schema([pa.field(name, pa.string()) for name in columns])
    rows = list(records) if settings.header else [first, *records]
    probes = _probes(settings)
    fields = []
    for index, name in enumerate(columns):
        values = dict.fromkeys(row[index] for row in rows if index < len(row))
        fields.append(pa.field(name, _type_of(values, probes, settings)))
    return pa.schema(fields)


def _records(sample: bytes, settings: CsvSettings) -> Iterable[Tokens]:
    tokenizer = Tokenizer(settings.dialect)
    text = sample.decode(settings.encoding, "replace").removeprefix("\ufeff")
    if settings.values["multiLine"]:
        yield from _documents_records(text.replace("\r\n", "\n"), settings, tokenizer)
        return
    separator = settings.line_separator
    lines = re.split("\r\n|\n|\r", text) if separator is None else text.split(separator)
    kept = (line for line in lines if not settings.dialect.is_skipped(line))
    for number, line in enumerate(kept):
        yield tokenizer.cut_line(line if number else line.removeprefix("\ufeff"), separator)[0]


def _documents_records(text: str, settings: CsvSettings, tokenizer: Tokenizer) -> Iterable[Tokens]:
    comment = settings.dialect.comment
    at = 0
    while at < len(text):
        if text[at] == "\n" or text[at] == comment:
            at = text.find("\n", at) + 1 or len(text)
            continue
        tokens, at = tokenizer.record(text, at)
        if at < len(text) or text.endswith("\n") or len(text) < _CUT_SAMPLE_CHARS:
            yield tokens


def _type_of(
    values: Iterable[str | None], probes: Mapping[str, Callable[[str], bool]], settings: CsvSettings
) -> pa.DataType:
    so_far: str | None = None
    precision = 0
    for value in values:
        if not value or value == settings.dialect.null_value:
            continue
        found = _probe(value, so_far or "int", probes)
        if found == "decimal":
            digits = _whole_digits(value) or 0
            precision = max(precision, digits, _DIGITS_OF_WHOLE.get(so_far or "", 0))
        so_far = _wider(so_far, found, settings)
        if so_far == "string":
            break
    if so_far == "decimal":
        return pa.decimal128(precision, 0) if precision <= 38 else pa.float64()
    return _ARROW[so_far or "string"]


def _probe(value: str, start: str, probes: Mapping[str, Callable[[str], bool]]) -> str:
    """Return the first type, from ``start`` on, that the value has."""
    for kind in _ORDER[_ORDER.index(start) :]:
        if kind == "string" or probes[kind](value):
            return kind
    return "string"


def _wider(so_far: str | None, found: str, settings: CsvSettings) -> str:
    if so_far is None or so_far == found:
        return found
    if {so_far, found} == {"date", "timestamp"} and settings.values["timestampFormat"] is None:
        return "timestamp" if settings.values["dateFormat"] in _DATES_THAT_ARE_TIMESTAMPS else "string"
    numbers = _ORDER[:4]
    if so_far in numbers and found in numbers:
        return max(so_far, found, key=numbers.index)
    return "string"


def _whole_digits(value: str) -> int | None:
    """Return how many digits a whole number has that fits a decimal; None if it is none."""
    if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", value) is None:
        return None
    parts = decimal.Decimal(value).as_tuple()
    if parts.exponent != 0 or len(parts.digits) > 38:
        return None
    return len(parts.digits)


def _probes(settings: CsvSettings) -> Mapping[str, Callable[[str], bool]]:
    values = settings.values

    def casts(kind: str) -> Callable[[str], bool]:
        return lambda value: cast_strings(pa.array([value]), _ARROW[kind], values, "UTC")[1] is None

    prefer_date = values["preferDate"]
    date = casts("date")
    if values["dateFormat"] is None:
        iso = date
        date = lambda value: _ISO_DATE.fullmatch(value) is not None and iso(value)  # noqa: E731
    return {
        "int": casts("int"),
        "bigint": casts("bigint"),
        "decimal": lambda value: _whole_digits(value) is not None,
        "double": casts("double"),
        "date": date if prefer_date else lambda value: False,
        "timestamp": casts("timestamp"),
        "boolean": lambda value: value.lower() in ("true", "false"),
    }
