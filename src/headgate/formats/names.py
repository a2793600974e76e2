"""Which names are one: Spark's setting ``spark.sql.caseSensitive`` says whether case counts.

Never: decide what the setting is.

Follows Spark 4.3's ``SchemaUtils.checkSchemaColumnNameDuplication`` and ``StructType.merge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa


class Names:
    """Compares names, and notes whether case ever decided.

    Parameters
    ----------
    case_sensitive
        Whether names that differ only in case are two.

    Attributes
    ----------
    folded
        Whether names were taken for one that are two where case counts.
    """

    def __init__(self, case_sensitive: bool = False) -> None:
        self.case_sensitive = case_sensitive
        self.folded = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Names:
        """Return what the parsed option ``caseSensitive`` asks for; without it case does not count."""
        return cls(bool(options.get("caseSensitive")))

    def key(self, name: str) -> str:
        """Return what names that are one have in common."""
        return name if self.case_sensitive else name.lower()

    def same(self, one: str, other: str) -> bool:
        """Return whether two names are one."""
        if one == other:
            return True
        if self.key(one) != self.key(other):
            return False
        self.folded = True
        return True

    def twins(self, fields: Iterable[pa.Field]) -> tuple[str, str] | None:
        """Return two columns, or two fields of a struct in one of them, whose names are one; None: there are none."""
        seen: dict[str, str] = {}
        for field in fields:
            twin = seen.setdefault(self.key(field.name), field.name)
            if twin != field.name:
                return twin, field.name
            inner = self.twins(_fields_of(field.type))
            if inner is not None:
                return inner
        return None

    def merged(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        """Return the type of a column that has two types in two files.

        Raises
        ------
        ValueError
            Spark merges neither of the two with the other: numbers are not widened, but decimals of one scale are.
        """
        if one == other or pa.types.is_null(other):
            return one
        if pa.types.is_null(one):
            return other
        if pa.types.is_struct(one) and pa.types.is_struct(other):
            return pa.struct(self.merged_fields(one.fields, other.fields))
        if pa.types.is_list(one) and pa.types.is_list(other):
            return pa.list_(self.merged(one.value_type, other.value_type))
        if pa.types.is_map(one) and pa.types.is_map(other):
            return pa.map_(self.merged(one.key_type, other.key_type), self.merged(one.item_type, other.item_type))
        if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
            return pa.decimal128(max(one.precision, other.precision), one.scale)
        raise ValueError(f"{one} and {other}")

    def merged_fields(self, fields: Sequence[pa.Field], others: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the fields of one file with the types that both files' have, and then what only the other has.

        Raises
        ------
        ValueError
            See `merged`; the text begins with the column.
        """
        left = list(others)
        merged = []
        for field in fields:
            twin = next((each for each in left if self.same(field.name, each.name)), None)
            if twin is not None:
                left.remove(twin)
                try:
                    field = field.with_type(self.merged(field.type, twin.type))
                except ValueError as error:
                    raise ValueError(f"{field.name!r} is {error}") from None
            merged.append(field)
        return [*merged, *left]


def _fields_of(data_type: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, wherever it is inside of lists and maps."""
    if pa.types.is_struct(data_type):
        return list(data_type.fields)
    if pa.types.is_map(data_type):
        return [*_fields_of(data_type.key_type), *_fields_of(data_type.item_type)]
    return _fields_of(data_type.value_type) if pa.types.is_list(data_type) else []
