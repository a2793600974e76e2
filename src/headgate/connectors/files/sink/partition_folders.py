"""Sorts rows by their partition columns into the folders ``column=value`` of Spark's writers.

Never: spell a value per row: only different ones are.

Follows Spark 4.3's ``ExternalCatalogUtils``: values are cast to texts in the session's time zone, null and the empty
text are ``__HIVE_DEFAULT_PARTITION__``, and characters that a path cannot have are ``%`` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.files.sink.csv_lines import check_csv_type
from headgate.errors import OptionError
from headgate.expressions.casts import cast
from headgate.formats.names import Names

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_MUST_ESCAPE = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")


class PartitionFolders:
    """Knows the folder of each row. Pickled to every slot.

    Parameters
    ----------
    columns
        The partition columns, outermost first.
    time_zone
        In which times are spelled.
    """

    def __init__(self, columns: Sequence[str], time_zone: str) -> None:
        self.columns = tuple(columns)
        self._time_zone = time_zone

    def split(self, table: pa.Table) -> list[tuple[str, pa.Table]]:
        """Return the rows of each folder in their order, without the partition columns and with buffers of their own.

        Examples
        --------
        >>> table = pa.table({"n": [1, 2, 3], "p": ["x/y", None, "x/y"]})
        >>> [(folder, rows.to_pydict()) for folder, rows in PartitionFolders(["p"], "UTC").split(table)]
        [('p=x%2Fy', {'n': [1, 3]}), ('p=__HIVE_DEFAULT_PARTITION__', {'n': [2]})]
        """
        folders, codes = [""], np.zeros(table.num_rows, np.int64)
        for name in self.columns:
            column = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
            spelled = [f"{_escaped(name)}={text}" for text in self._texts(column.dictionary)]
            pairs, codes = np.unique(codes * len(spelled) + np.asarray(column.indices), return_inverse=True)
            folders = [f"{folders[each // len(spelled)]}/{spelled[each % len(spelled)]}" for each in pairs]
        # Different values may be spelled alike: null and the empty text.
        numbers = {folder: number for number, folder in enumerate(dict.fromkeys(folders))}
        codes = np.array([numbers[folder] for folder in folders], np.int64)[codes]
        rows = table.drop_columns(list(self.columns))
        if len(numbers) == 1:
            return [(next(iter(numbers))[1:], rows)]
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(numbers) + 1))
        return [(each[1:], rows.take(order[bounds[code] : bounds[code + 1]])) for each, code in numbers.items()]

    def _texts(self, values: pa.Array) -> list[str]:
        if pa.types.is_decimal(values.type):  # Arrow's own cast writes 0E-8
            texts = [None if each is None else f"{each:f}" for each in values.to_pylist()]
        elif pa.types.is_floating(values.type):
            numbers = values.fill_null(0).to_numpy()
            texts = [
                _java_text(number) if known else None for number, known in zip(numbers, values.is_valid().to_pylist())
            ]
        else:
            texts = cast(values, pa.string(), self._time_zone).to_pylist()
        return [_escaped(each) if each else _HIVE_NULL for each in texts]


def _java_text(number: np.floating[Any]) -> str:
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, unique=True, trim="0")
    mantissa, _, exponent = np.format_float_scientific(number, unique=True, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"


def _escaped(text: str) -> str:
    return _MUST_ESCAPE.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_columns(
    name: str, wanted: Sequence[str], schema: pa.Schema, names: Names | None = None
) -> tuple[str, ...]:
    """Return partition columns as the schema spells them.

    Raises
    ------
    OptionError
        There is no such column, one comes twice, its type cannot be the name of a folder, or no other column is left.
    """
    found: list[str] = []
    key = (names or Names()).key
    for each in wanted:
        matching = [column for column in schema.names if key(column) == key(each)]
        if not matching:
            raise _refused(
                f"Partition column {each} not found in existing columns ({', '.join(schema.names)}).", wanted
            )
        if len(matching) > 1:
            raise _refused(
                f"[COLUMN_ALREADY_EXISTS] partitionBy names `{each}`, which is both `{matching[0]}` and "
                f"`{matching[1]}`: case counts only where spark.sql.caseSensitive is true. Rename one.", wanted,
            )  # fmt: skip
        if matching[0] in found:
            raise _refused(f"[COLUMN_ALREADY_EXISTS] partitionBy names the column `{matching[0]}` twice.", wanted)
        found.append(matching[0])
        its_type = schema.field(matching[0]).type
        if not check_csv_type(its_type.value_type if pa.types.is_dictionary(its_type) else its_type):
            raise _refused(
                f"[INVALID_PARTITION_COLUMN_DATA_TYPE] The sink {name} cannot use the column `{matching[0]}` of type "
                f"{its_type} for partition column. Cast it to a text.", wanted,
            )  # fmt: skip
    if found and len(found) == len(schema.names):
        raise _refused("[ALL_PARTITION_COLUMNS_NOT_ALLOWED] Cannot use all columns for partition columns.", wanted)
    return tuple(found)


def _refused(message: str, wanted: Sequence[str]) -> OptionError:
    return OptionError(message, option="partitionBy", value=list(wanted))
