"""The order of Spark's values, where Arrow's is another one: of floating point numbers, and of structs.

Never: loop over rows in Python.

Spark has NaN after all other numbers, null before all values, and compares structs field by field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.expressions.casts import is_number


def is_ordered(kind: pa.DataType) -> bool:
    """Whether values of a type have a least and a greatest one here."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_plain(field.type) for field in kind)
    return _is_plain(kind)


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        is_number(kind) or types.is_boolean(kind) or types.is_string(kind) or types.is_binary(kind)
        or types.is_date(kind) or types.is_timestamp(kind)
    )  # fmt: skip


def as_integers(values: Any) -> Any:
    """Return integers that are in the order of floating point numbers, with NaN after all of them."""
    numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    bits = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return pa.array(bits, mask=None if values.null_count == 0 else values.is_null().to_numpy(zero_copy_only=False))


def from_integers(values: Any, kind: pa.DataType) -> Any:
    """Return the numbers of what `as_integers` made."""
    bits = values.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = (bits ^ ((bits >> 63) & np.int64(2**63 - 1))).view(np.float64)
    made = pa.array(numbers, mask=values.is_null().to_numpy(zero_copy_only=False), from_pandas=False)
    return made.cast(kind)


def order_of(structs: Any) -> Any:
    """Return the places of structs from the least to the greatest; where those of nulls are does not matter.

    Parameters
    ----------
    structs
        An array, or a column, of a type that `is_ordered`.
    """
    if isinstance(structs, pa.ChunkedArray):
        structs = structs.combine_chunks()
    keys = []
    for values in structs.flatten():
        if values.null_count:  # false is less than true
            keys.append(values.is_valid())
        keys.append(_comparable(values))
    table = pa.table(keys, names=[str(number) for number in range(len(keys))])
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()


def _comparable(values: Any) -> Any:
    """Return values whose order in Arrow is that of Spark, to which the two zeros are equal."""
    return as_integers(pc.add(values, 0.0)) if pa.types.is_floating(values.type) else values
