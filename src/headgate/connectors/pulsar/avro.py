"""What Avro schemas say: which columns a record has, and what fastavro needs to decode one into them. Pure.

Never: decode a value. Follows Avro 1.12, "Schema Declaration", "Names" and "Logical Types": one for which Spark has no
type of old, as a time of day or a UUID, is ignored, and the value is of the type beneath.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headgate.connectors.pulsar.client import NAME
from headgate.errors import OptionError

_PRIMITIVES: dict[str, pa.DataType | None] = {
    "null": None,
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_TIME = pa.timestamp("us", "UTC")
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("timestamp-millis", "long"): _TIME,
    ("timestamp-micros", "long"): _TIME,
    ("local-timestamp-millis", "long"): pa.timestamp("us"),
    ("local-timestamp-micros", "long"): pa.timestamp("us"),
    ("date", "int"): pa.date32(),
}
_MOST_DIGITS = 38
"""Of a decimal of Spark's."""


class AvroSchema:
    """A schema of a topic: Pulsar writes its schemas of JSON so, too.

    Names of types are resolved here: each use of a named type is a definition of its own, under another name, as names
    mean nothing for bytes. Only a type within itself stays a name.

    Parameters
    ----------
    data
        What the brokers have, JSON.
    topic
        For errors.

    Raises
    ------
    OptionError
        A type is used that is not defined.
    """

    def __init__(self, data: str, topic: str) -> None:
        self._topic = topic
        self._defined: dict[str, tuple[dict[str, Any], str]] = {}  # with the namespace around
        self._numbers = itertools.count()
        self._root = self._expanded(json.loads(data), "", {})

    @property
    def names(self) -> list[str]:
        """The names of the record's fields; empty: it describes no record."""
        return [each["name"] for each in self._root["fields"]] if _is_record(self._root) else []

    def columns(self, *, logical: bool) -> list[pa.Field]:
        """Return the columns of a record; logical types are numbers and texts in JSON.

        Raises
        ------
        OptionError
            It has a type that is not read, or describes no record.
        """
        if not _is_record(self._root):
            raise self._not_read(self._root)
        return list(self._type_of(self._root, logical))

    def for_columns(self, schema: pa.Schema) -> Any:
        """Return the schema for fastavro, whose fields have the names of columns: Spark's are the same in any case.

        Raises
        ------
        OptionError
            A column's name is that of several fields.
        """
        return self._named(self._root, pa.struct(list(schema)))

    def _expanded(self, described: Any, namespace: str, within: dict[str, str]) -> Any:
        """Return a description without names of types but those it is within, and what is not read of it left out."""
        if isinstance(described, list):
            return [self._expanded(each, namespace, within) for each in described]
        if isinstance(described, str):
            if described in _PRIMITIVES:
                return described
            name = next((each for each in _full_names(described, namespace) if each in self._defined), None)
            if name is None:
                raise self._not_read(described)
            return within.get(name) or self._definition(*self._defined[name], within)
        if not isinstance(described, dict) or "type" not in described:
            raise self._not_read(described)
        if described["type"] in ("record", "enum", "fixed"):
            return self._definition(described, namespace, within)
        match described["type"]:
            case "array":
                return {"type": "array", "items": self._expanded(described["items"], namespace, within)}
            case "map":
                return {"type": "map", "values": self._expanded(described["values"], namespace, within)}
            case str(primitive) if primitive in _PRIMITIVES:
                return {"type": primitive} | _logical(described)
            case other:
                return self._expanded(other, namespace, within)

    def _definition(self, described: dict[str, Any], namespace: str, within: dict[str, str]) -> dict[str, Any]:
        full = next(_full_names(described["name"], described.get("namespace", namespace)))
        self._defined[full] = described, namespace
        kind, name = described["type"], f"type{next(self._numbers)}"
        if kind == "enum":
            return {"type": kind, "name": name, "symbols": described["symbols"]}
        if kind == "fixed":
            return {"type": kind, "name": name, "size": described["size"]} | _logical(described)
        inner, deeper = full.rpartition(".")[0], {**within, full: name}
        fields = [
            {"name": each["name"], "type": self._expanded(each["type"], inner, deeper)} for each in described["fields"]
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _type_of(self, described: Any, logical: bool) -> pa.DataType:
        if isinstance(described, list):
            others = [each for each in described if each not in ("null", {"type": "null"})]
            if len(others) == 1:
                return self._type_of(others[0], logical)
        elif isinstance(described, str):
            if (found := _PRIMITIVES.get(described)) is not None:
                return found
        elif logical and "logicalType" in described:
            if described["logicalType"] != "decimal":
                return _LOGICAL[described["logicalType"], described["type"]]
            if described["precision"] <= _MOST_DIGITS:
                return pa.decimal128(described["precision"], described.get("scale", 0))
        else:
            match described["type"]:
                case "record":
                    return pa.struct(
                        [(each["name"], self._type_of(each["type"], logical)) for each in described["fields"]]
                    )
                case "array":
                    return pa.list_(pa.field("element", self._type_of(described["items"], logical)))
                case "map":
                    return pa.map_(pa.string(), self._type_of(described["values"], logical))
                case "enum":
                    return pa.string()
                case "fixed":
                    return pa.binary()
                case primitive:
                    return self._type_of(primitive, logical)
        raise self._not_read(described)

    def _named(self, described: Any, kind: pa.DataType | None) -> Any:
        """Return a description with fields that have the names of those of a type."""
        if isinstance(described, list):
            return [self._named(each, kind) for each in described]
        if isinstance(described, str):
            return described
        match described["type"]:
            case "array":
                inner = kind.value_type if kind is not None and pa.types.is_list(kind) else None
                return described | {"items": self._named(described["items"], inner)}
            case "map":
                inner = kind.item_type if kind is not None and pa.types.is_map(kind) else None
                return described | {"values": self._named(described["values"], inner)}
            case "record":
                columns = {} if kind is None or not pa.types.is_struct(kind) else self._fields_of(described, kind)
                fields = []
                for each in described["fields"]:
                    column = columns.get(each["name"])
                    inner = None if column is None else column.type
                    name = each["name"] if column is None else column.name
                    fields.append({"name": name, "type": self._named(each["type"], inner)})
                return described | {"fields": fields}
        return described

    def _fields_of(self, described: dict[str, Any], kind: pa.StructType) -> dict[str, pa.Field]:
        """Return the columns of the fields that have one, by the fields' names."""
        names = [each["name"] for each in described["fields"]]
        found = {}
        for column in kind:
            same = [name for name in names if name.lower() == column.name.lower()]
            exact = [name for name in same if name == column.name]
            if len(same) > 1 and not exact:
                raise OptionError(
                    f"{NAME}: the column {column.name!r} may be any of the fields {', '.join(map(repr, same))} of "
                    f"{self._topic}. Name it as the field is written.",
                    source=NAME, option="schema", value=column.name, column=column.name,
                )  # fmt: skip
            for name in exact or same:
                found[name] = column
        return found

    def _not_read(self, described: Any) -> OptionError:
        return OptionError(
            f"{NAME}: the schema of {self._topic} has a type that is not read: {described!r:.80}. Set valueFormat to "
            "binary to have the values' bytes, or, if they are JSON, to json and give the fields that you need.",
            source=NAME, option="valueFormat", value="schema",
        )  # fmt: skip


def _is_record(described: Any) -> bool:
    return isinstance(described, dict) and described["type"] == "record"


def _full_names(name: str, namespace: str) -> Iterator[str]:
    """Yield the whole names that a name may stand for, the likeliest first."""
    if "." not in name and namespace:
        yield f"{namespace}.{name}"
    yield name


def _logical(described: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a description one of a logical type that is read; of others Avro says to ignore it."""
    logical, beneath = described.get("logicalType"), described["type"]
    if (logical, beneath) in _LOGICAL:
        return {"logicalType": logical}
    if logical != "decimal" or beneath not in ("bytes", "fixed"):
        return {}
    precision, scale = described.get("precision"), described.get("scale", 0)
    is_valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
    return {"logicalType": logical, "precision": precision, "scale": scale} if is_valid else {}
