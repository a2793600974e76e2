"""Groups of rows with equal keys, and what Arrow makes of each: the one place that calls its ``group_by``.

Never: loop over rows or groups in Python, or change the order of arrival within a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROW = "\0row"


class Groups:
    """Collects what is wanted of the groups of a table, and computes it in one go.

    Parameters
    ----------
    table
        The rows.
    keys
        The columns whose equal values make a group; null is a value.
    """

    def __init__(self, table: Any, keys: Sequence[str]) -> None:
        self._table = table
        self._keys = list(keys)
        self._wanted: list[tuple[str, str]] = []
        self._places: dict[str, int] = {}
        self._picked: list[str] = []
        self._gathered: list[str] = []

    def reduce(self, name: str, function: Literal["sum", "min", "max"]) -> None:
        """Want the sum, the least or the greatest of a column's values; null if there is none."""
        self._want(name, name, function)

    def pick(self, name: str, *, last: bool, valid: bool) -> None:
        """Want a column's first or last value, in the order of rows; ``valid``: of those that are not null."""
        place = f"{_ROW}{name}"
        rows = self._rows()
        if valid:
            there = self._table.column(name).is_valid()
            rows = pc.if_else(there, rows, None)
        self._table = self._table.append_column(place, rows)
        self._want(name, place, "max" if last else "min")
        self._picked.append(name)

    def gather(self, name: str) -> None:
        """Want the concatenation of a column's lists, in the order of rows."""
        self._gathered.append(name)

    def result(self) -> dict[str, Any]:
        """Return the keys and what was wanted, by name, a value for each group."""
        if self._gathered:
            self._table = self._table.append_column(_ROW, self._rows())
            self._want(_ROW, _ROW, "list")
        # Threads would change the order within groups, and the other core has work of its own.
        made = self._table.group_by(self._keys, use_threads=False).aggregate(self._wanted)
        found = {name: made.column(index) for index, name in enumerate(self._keys)}
        found |= {name: made.column(len(self._keys) + place) for name, place in self._places.items()}
        for name in self._picked:
            found[name] = self._table.column(name).take(found[name])
        if self._gathered:
            lists = found.pop(_ROW).combine_chunks()
            for name in self._gathered:
                found[name] = _concatenated(self._table.column(name), lists)
        return found

    def _rows(self) -> Any:
        return pa.array(np.arange(self._table.num_rows))

    def _want(self, name: str, column: str, function: str) -> None:
        self._places[name] = len(self._wanted)
        self._wanted.append((column, function))


def _concatenated(column: Any, rows: Any) -> Any:
    """Return, for lists of rows, the concatenation of the lists that stand in those rows."""
    taken = column.take(rows.flatten())
    taken = taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
    inner = np.zeros(len(taken) + 1, np.int64)
    np.cumsum(pc.list_value_length(taken).to_numpy(zero_copy_only=False), out=inner[1:])
    outer = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(pc.list_value_length(rows).to_numpy(zero_copy_only=False), out=outer[1:])
    offsets = inner[outer].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), taken.flatten())
