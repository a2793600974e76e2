"""Groups of rows whose keys are integers close together: each is a place in an array, and no hash table is needed.

Never: change a result. What is anything but sums of integers and doubles, or least and greatest integers, by keys that
are integers or times without nulls, is left to Arrow's ``group_by``: `headgate.operators.windows.groups`.

    a key's column                                         is numbered by
    -----------------------------------------------------  ------------------------------------------
    values that lie close together                         the distance from the least
    the same, of which few are there, as of many slots     which of those that are there it is
    one value after the other, as those of buckets are     which of the few different ones it is

The numbers of all columns make one. Groups are in its order: by their buckets first. If there could be far more groups
than there are rows, nothing is done, nor of few rows, for which Arrow's calls cost less.

Arrays come from Arrow's memory, which keeps what is freed: what the C library gives back to the system at once costs
more than all that is computed here, in page faults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headgate.state.arrays import one_array

Reduction = Literal["sum", "min", "max"]
_BLOCK_ROWS = 1 << 13
"""What is computed of so many rows stays in the cache, and in memory that is kept."""
_LEAST_ROWS = 1 << 12
_PLACES_PER_ROW = 4
"""There may be so many places for each row."""
_ROWS_PER_RUN = 64
"""Values come one after the other if so many rows in a row have the same on average."""
_INTO: dict[Reduction, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_FIRST: dict[Reduction, int] = {"sum": 0, "min": 2**63 - 1, "max": -(2**63)}


def dense_groups(
    table: Any, keys: Sequence[str], wanted: Sequence[tuple[str, Reduction]]
) -> tuple[list[Any], list[Any]] | None:
    """Return the keys, and what was wanted, a value for each group; None: it cannot be done so.

    Parameters
    ----------
    table
        The rows.
    keys
        The columns whose equal values make a group.
    wanted
        Columns and what is wanted of their values; null if there is none.
    """
    rows, kinds = table.num_rows, {field.name: field.type for field in table.schema}
    if rows < _LEAST_ROWS or not all(_is_whole(kinds[name]) and not table.column(name).null_count for name in keys):
        return None
    if not all(_is_reduced(kinds[name], how) for name, how in wanted):
        return None
    numbered = _numbered([one_array(table.column(name)) for name in keys], _PLACES_PER_ROW * rows)
    if numbered is None:
        return None
    size = math.prod(each.size for each in numbered)
    reduced = [_Reduced(one_array(table.column(name)), how, size) for name, how in wanted]
    there = _filled(size, np.bool_, False)
    for begin in range(0, rows, _BLOCK_ROWS):
        places = _places(numbered, begin, begin + _BLOCK_ROWS)
        there[places] = True
        for each in reduced:
            each.add(places, begin)
    groups = _array(int(np.count_nonzero(there)), np.int64)
    np.compress(there, np.arange(size), out=groups)
    results = [each.result(groups) for each in reduced]
    found = []
    for key in reversed(numbered):
        if key is numbered[0]:
            found.append(key.values(groups))
        else:
            numbers = np.remainder(groups, key.size, out=_array(len(groups), np.int64))
            np.floor_divide(groups, key.size, out=groups)
            found.append(key.values(numbers))
    return found[::-1], results


def _array(size: int, dtype: Any) -> Any:
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)


def _filled(size: int, dtype: Any, value: Any) -> Any:
    made = _array(size, dtype)
    made.fill(value)
    return made


class _ByDistance:
    """A column as numbers from 0: how far values are from the least."""

    def __init__(self, column: Any) -> None:
        self._kind, self._values = column.type, _numbers(column)
        self._least = int(self._values.min())
        self.size = int(self._values.max()) - self._least + 1

    def in_runs(self) -> _ByRun | None:
        """Return it as numbers of its values, if these come one after the other."""
        found = [np.zeros(1, np.int64)]
        changes = 0
        for begin in range(0, len(self._values), _BLOCK_ROWS):
            block = self._values[begin : begin + _BLOCK_ROWS + 1]
            found.append(np.flatnonzero(block[1:] != block[:-1]) + (begin + 1))
            changes += len(found[-1])
            if changes * _ROWS_PER_RUN > len(self._values):
                return None
        return _ByRun(self._kind, self._values, np.concatenate(found))

    def of_those_there(self) -> _ByRank:
        """Return it as numbers of the values that are there: each subtask has its part of all keys."""
        there = _filled(self.size, np.bool_, False)
        for begin in range(0, len(self._values), _BLOCK_ROWS):
            there[self.of_rows(begin, begin + _BLOCK_ROWS)] = True
        return _ByRank(self, there)

    def of_rows(self, begin: int, end: int) -> Any:
        """Return the numbers of some rows, in an array that is the caller's."""
        found = self._values[begin:end].astype(np.int64)
        if self._least:
            found -= self._least
        return found

    def values(self, numbers: Any) -> Any:
        """Return what these stand for; they are no longer needed."""
        numbers = np.add(numbers, self._least, out=_array(len(numbers), np.int64))
        return _typed(pa.array(numbers), self._kind)


class _ByRank:
    """A column as numbers from 0: which of the values that are there it is, in their order."""

    def __init__(self, column: _ByDistance, there: Any) -> None:
        self._column = column
        self._distances = np.flatnonzero(there)
        self.size = len(self._distances)
        self._ranks = np.cumsum(there, out=_array(len(there), np.int64))
        self._ranks -= 1

    def of_rows(self, begin: int, end: int) -> Any:
        """Return the numbers of some rows, in an array that is the caller's."""
        return self._ranks[self._column.of_rows(begin, end)]

    def values(self, numbers: Any) -> Any:
        """Return what these stand for."""
        return self._column.values(self._distances[numbers])


class _ByRun:
    """A column as numbers from 0: which of few different values it is."""

    def __init__(self, kind: pa.DataType, values: Any, begins: Any) -> None:
        self._kind = kind
        self._begins = np.append(begins, len(values))
        self._different, self._which = np.unique(values[begins], return_inverse=True)
        self.size = len(self._different)

    def of_rows(self, begin: int, end: int) -> Any:
        """Return the numbers of some rows, in an array that is the caller's."""
        first, last = np.searchsorted(self._begins, [begin + 1, end])
        bounds = np.clip(self._begins[first - 1 : last + 1], begin, end)
        return np.repeat(self._which[first - 1 : last], np.diff(bounds))

    def values(self, numbers: Any) -> Any:
        """Return what these stand for."""
        return _typed(
            pa.array(np.take(self._different, numbers, out=_array(len(numbers), self._different.dtype))), self._kind
        )


_Numbered = _ByDistance | _ByRank | _ByRun


def _numbered(columns: Sequence[Any], most: int) -> list[_Numbered] | None:
    """Return the columns as numbers of which all together there are at most so many; None: there are more."""
    found: list[_Numbered] = []
    for each in map(_ByDistance, columns):
        made = each if each.size <= most else each.in_runs()
        if made is None:
            return None
        found.append(made)
    if math.prod(each.size for each in found) <= most:
        return found
    found = [each.of_those_there() if isinstance(each, _ByDistance) else each for each in found]
    return found if math.prod(each.size for each in found) <= most else None


def _places(keys: Sequence[_Numbered], begin: int, end: int) -> Any:
    """Return the numbers of the groups of some rows."""
    places = keys[0].of_rows(begin, end)
    for each in keys[1:]:
        places *= each.size
        places += each.of_rows(begin, end)
    return places


class _Reduced:
    """What a column's values come to, by group."""

    def __init__(self, values: Any, how: Reduction, size: int) -> None:
        self._kind = values.type
        self._at = _INTO[how].at
        self._valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
        self._seen = None if self._valid is None else _filled(size, np.bool_, False)
        self._values = _numbers(values if self._valid is None else values.fill_null(_typed(pa.scalar(0), self._kind)))
        self._found = _filled(size, np.float64 if pa.types.is_floating(self._kind) else np.int64, _FIRST[how])

    def add(self, places: Any, begin: int) -> None:
        """Take the values of some rows, whose groups these are."""
        values = self._values[begin : begin + len(places)]
        if self._seen is not None:
            assert self._valid is not None
            valid = self._valid[begin : begin + len(places)]
            places, values = places[valid], values[valid]
            self._seen[places] = True
        self._at(self._found, places, values)

    def result(self, groups: Any) -> Any:
        """Return the value of each group."""
        mask = None if self._seen is None else ~self._seen[groups]
        found = np.take(self._found, groups, out=_array(len(groups), self._found.dtype))
        return _typed(pa.array(found, mask=mask, from_pandas=False), self._kind)


def _is_whole(kind: pa.DataType) -> bool:
    """Return whether values are integers, or times, which are counted in such."""
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _is_reduced(kind: pa.DataType, how: Reduction) -> bool:
    return kind in (pa.int64(), pa.float64()) if how == "sum" else _is_whole(kind)


def _numbers(values: Any) -> Any:
    """Return the numbers of an array without nulls."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return values.to_numpy()


def _typed(numbers: Any, kind: pa.DataType) -> Any:
    """Return values of a type, of their numbers."""
    if pa.types.is_date32(kind):
        numbers = numbers.cast(pa.int32())
    return numbers if numbers.type == kind else numbers.cast(kind)
