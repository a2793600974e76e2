"""Columns of Arrow as the arrays that NumPy sees.

Never: copy what is in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROWS_OF_A_TIME = 256
"""If there are so many rows of each time, those of each are sorted apart."""


def one_array(column: Any) -> Any:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def in_one_piece(table: Any) -> Any:
    """Return a table whose columns have one chunk each."""
    return table if all(column.num_chunks == 1 for column in table.columns) else table.combine_chunks()


def together(tables: Sequence[Any]) -> Any:
    """Return the rows of tables as one whose columns have one chunk each."""
    return in_one_piece(pa.concat_tables(tables))


def numbers_from(first: Any, many: Any) -> Any:
    """Return so many whole numbers from each of some, one range after the other."""
    before = np.cumsum(many) - many
    return np.arange(int(many.sum())) + np.repeat(first - before, many)


def packed(hashes: Any) -> tuple[Any, np.uint64]:
    """Return numbers that are in the order of hashes, nearly, and of places: the places are what a mask leaves of each.

    The upper bits are those of a hash, as many as there is room for.
    """
    mask = np.uint64((1 << len(hashes).bit_length()) - 1)
    numbers = hashes & ~mask
    numbers |= np.arange(len(hashes), dtype=np.uint64)
    numbers.sort()
    return numbers, mask


def order_of(hashes: Any) -> Any:
    """Return the places of hashes in their order; those of equal ones in that of the array.

    One sort of numbers, of which each is the upper bits of a hash and its place, takes a tenth of what a stable one
    takes. The few whose lower bits make a difference are sorted once more.
    """
    numbers, mask = packed(hashes)
    order = (numbers & mask).view(np.int64)
    ordered = hashes[order]
    if not is_in_order(ordered):
        alike = np.zeros(len(order) + 1, np.bool_)
        alike[1:-1] = (ordered[1:] ^ ordered[:-1]) <= mask
        (few,) = np.nonzero(alike[1:] | alike[:-1])
        order[few] = order[few][np.argsort(ordered[few], kind="stable")]
    return order


def order_of_numbers(numbers: Any) -> Any:
    """Return the places of integers in their order; those of equal ones in that of the array."""
    if len(numbers) == 0:
        return np.empty(0, np.int64)
    least = int(numbers.min())
    spare = 64 - (int(numbers.max()) - least).bit_length()
    if spare < len(numbers).bit_length():
        return np.argsort(numbers, kind="stable")
    return order_of((numbers.view(np.uint64) - np.uint64(least % (1 << 64))) << np.uint64(min(spare, 63)))


def order_of_times(times: Any, hashes: Any) -> Any:
    """Return the places of rows in the order of their times, and those of one time in the order of their hashes."""
    (changes,) = np.nonzero(times[1:] != times[:-1])
    bounds = [0, *(changes + 1).tolist(), len(times)]
    if len(bounds) * _ROWS_OF_A_TIME <= len(times) and is_in_order(times):
        return np.concatenate([begin + order_of(hashes[begin:end]) for begin, end in pairwise(bounds)])
    order, different = order_of(hashes), np.unique(times)
    if len(different) < 1 << 16:  # sorted by their digits
        times = np.searchsorted(different, times).astype(np.uint16)
    return order[np.argsort(times[order], kind="stable")]


def distinct(hashes: Any) -> Any:
    """Return different hashes, in order."""
    ordered = np.sort(hashes)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def is_in_order(values: Any) -> bool:
    """Whether none is less than the one before."""
    return bool((values[1:] >= values[:-1]).all())


def equal_values(left: Any, right: Any) -> Any:
    """Return where two columns have the same value; null is null, and NaN is NaN."""
    if pa.types.is_null(left.type):  # which Arrow does not compare
        return np.ones(len(left), bool)
    equal = pc.equal(left, right).fill_null(False)
    equal = pc.or_(equal, pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):
        nan = pc.and_(pc.is_nan(left).fill_null(False), pc.is_nan(right).fill_null(False))
        equal = pc.or_(equal, nan)
    return equal.to_numpy(zero_copy_only=False)
