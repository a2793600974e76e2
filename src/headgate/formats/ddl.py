"""Columns written as Spark's DDL text, ``"user string, at timestamp"``, as Arrow's: for what runs without a JVM.

Never: guess: a type that is not known here is an error.
"""

from __future__ import annotations

import re

import pyarrow as pa

from headgate.errors import OptionError

_TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,\s*(\d+))?\))?", re.IGNORECASE)
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(r"(`(?:[^`]|``)+`|[^\s:`]+)\s*[\s:]\s*(.+?)(\s+not\s+null)?(\s+comment\s+'.*')?", re.I | re.DOTALL)


def parsed_schema(text: str) -> pa.Schema:
    """Return the columns of DDL text.

    Raises
    ------
    OptionError
        It is not understood.

    Examples
    --------
    >>> parsed_schema("user string NOT NULL, tags array<string>, price decimal(9,2)").names
    ['user', 'tags', 'price']
    """
    return pa.schema([_field(each, text) for each in _parts(text)])


def _field(part: str, text: str) -> pa.Field:
    match = _COLUMN.fullmatch(part)
    if match is None:
        raise _error(part, text)
    name = match[1][1:-1].replace("``", "`") if match[1].startswith("`") else match[1]
    return pa.field(name, _type(match[2].strip(), text), nullable=match[3] is None)


def _type(kind: str, text: str) -> pa.DataType:
    if kind.lower() in _TYPES:
        return _TYPES[kind.lower()]
    if match := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(match[1] or 10), int(match[2] or 0))
    match = _NESTED.fullmatch(kind)
    parts = _parts(match[2]) if match else []
    if match and match[1].lower() == "array" and len(parts) == 1:
        return pa.list_(_type(parts[0], text))
    if match and match[1].lower() == "map" and len(parts) == 2:
        return pa.map_(_type(parts[0], text), _type(parts[1], text))
    if match and match[1].lower() == "struct":
        return pa.struct([_field(each, text) for each in parts])
    raise _error(kind, text)


def _parts(text: str) -> list[str]:
    """Return what stands between the commas that are neither within brackets nor quoted."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'`":
            quote = sign
        else:
            depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [each.strip() for each in parts]


def _error(part: str, text: str) -> OptionError:
    return OptionError(
        f"The schema {text!r} is not understood at {part!r}. Write it as Spark does, like 'user string, at timestamp'.",
        option="schema", value=text,
    )  # fmt: skip
