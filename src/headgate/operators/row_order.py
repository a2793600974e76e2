"""The order of rows by several columns, as Spark's ``ORDER BY`` has it.

Never: loop over rows in Python.

Each column becomes integers in the order of its values, of all types that have one in Spark: NaN comes after all other
numbers and the two zeros are equal, texts and bytes compare byte by byte, structs field by field, and lists element by
element, a list before those that it begins. Within structs and lists null comes before all values.

Follows Spark 4.3's ``SortOrder`` and ``PhysicalDataType``'s orderings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.windows.ordering import as_integers

Ranks = npt.NDArray[np.int64]


class SortKey(msgspec.Struct, frozen=True):
    """A column that rows are sorted by.

    Parameters
    ----------
    column
        Its name.
    descending
        Whether the greatest value comes first.
    nulls_first
        Whether rows without a value come before all others, or after them.
    """

    column: str
    descending: bool = False
    nulls_first: bool = True

    @property
    def text(self) -> str:
        """What it is, for people to read."""
        return f"{self.column} {'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


def is_orderable(kind: pa.DataType) -> bool:
    """Return whether rows can be sorted by values of a type."""
    if pa.types.is_struct(kind):
        return all(is_orderable(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return is_orderable(kind.value_type)
    return not pa.types.is_nested(kind) and not pa.types.is_interval(kind)


def order_of_rows(rows: pa.Table, keys: Sequence[SortKey]) -> Ranks:
    """Return the places of rows in order; rows that are equal stay as they are."""
    by: list[Any] = []
    for key in reversed(keys):  # the last one that NumPy is given counts first
        values = rows.column(key.column).combine_chunks()
        ranks, there = _ranks(values), values.is_valid().to_numpy(zero_copy_only=False)
        by.append(np.where(there, ~ranks if key.descending else ranks, 0))
        by.append(there if key.nulls_first else ~there)
    return np.lexsort(by)


def _ranks(values: Any) -> Ranks:
    """Return integers in the order of values; what stands for nulls does not matter."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pa.types.is_struct(kind):
        return _of_parts([_with_nulls_first(each) for each in values.flatten()], len(values))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(values)
    if pa.types.is_floating(kind):
        return _integers(as_integers(pc.add(values.cast(pa.float64()), 0.0)))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _integers(values.cast(pa.int64()))
    if pa.types.is_temporal(kind):
        return _integers(values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64()))
    return pc.rank(values, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _integers(values: Any) -> Ranks:
    return values.fill_null(0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _with_nulls_first(values: Any) -> Ranks:
    """Return ranks from 1, and 0 for null."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(there, _dense(_ranks(values)) + 1, 0)


def _dense(ranks: Ranks) -> Ranks:
    return np.unique(ranks, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _of_parts(parts: Sequence[Ranks], rows: int) -> Ranks:
    """Return the ranks of what has several parts, of which the first counts first."""
    ranks = np.zeros(rows, np.int64)
    for part in parts:
        ranks = _dense(ranks * (int(part.max(initial=0)) + 1) + part)
    return ranks


def _of_lists(values: Any) -> Ranks:
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = _with_nulls_first(values.flatten())  # without those below nulls
    begins = np.cumsum(lengths) - lengths
    ranks = np.zeros(len(values), np.int64)
    for place in range(int(lengths.max(initial=0))):
        (there,) = np.nonzero(lengths > place)
        part = np.zeros(len(values), np.int64)  # a list that is over comes before all that go on
        part[there] = elements[begins[there] + place] + 1
        ranks = _of_parts([ranks, part], len(values))
    return ranks
