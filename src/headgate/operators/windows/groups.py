"""Groups of rows with equal keys, and what is made of each: by `dense_groups`, or by Arrow's ``group_by``.

Never: loop over rows or groups in Python, or change the order of arrival within a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.windows.dense_groups import Reduction, dense_groups
from headgate.state.arrays import one_array

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
        self._wanted: list[tuple[str, Any]] = []
        self._places: dict[str, int] = {}
        self._picked: list[tuple[str, str | None, Any]] = []
        self._gathered: list[str] = []
        self._folded: dict[str, Callable[[Any, Any], Any]] = {}

    def reduce(self, name: str, function: Reduction) -> None:
        """Want the sum, the least or the greatest of a column's values; null if there is none."""
        self._want(name, name, function)

    def pick(self, name: str, *, last: bool, valid: bool, by: str | None = None, order: Any = None) -> None:
        """Want a column's first or last value; ``valid``: of those that are not null.

        In the order of rows; with ``by`` in the order of that column, which is then wanted of the same row; with
        ``order`` in that order of their places.
        """
        place = f"{_ROW}{name}"
        ranks = np.arange(self._table.num_rows)
        if by is not None:
            order = np.argsort(self._table.column(by).to_numpy(), kind="stable")
        if order is not None:
            ranks[order] = np.arange(len(order))
        rows = pa.array(ranks)
        if valid:
            rows = pc.if_else(one_array(self._table.column(name).is_valid()), rows, None)
        self._table = self._table.append_column(place, rows)
        self._want(name, place, "max" if last else "min")
        self._picked.append((name, by, order))

    def gather(self, name: str) -> None:
        """Want the concatenation of a column's lists, in the order of rows."""
        self._gathered.append(name)

    def fold(self, name: str, function: Callable[[Any, Any], Any]) -> None:
        """Want what a function makes of a column's values, given with the number of the group of each, in its order."""
        self._folded[name] = function

    def result(self) -> dict[str, Any]:
        """Return the keys and what was wanted, by name, a value for each group."""
        if self._gathered or self._folded:
            self._table = self._table.append_column(_ROW, self._rows())
            self._want(_ROW, _ROW, "list")
        keys, reduced = self._reduced()
        found = dict(zip(self._keys, keys, strict=True))
        found |= {name: reduced[place] for name, place in self._places.items()}
        for name, by, order in self._picked:
            rows = found[name] if order is None else pa.array(order).take(one_array(found[name]))
            found[name] = self._table.column(name).take(rows)
            if by is not None:
                found[by] = self._table.column(by).take(rows)
        if self._gathered or self._folded:
            lists = found.pop(_ROW).combine_chunks()
            for name in self._gathered:
                found[name] = _concatenated(self._table.column(name), lists)
            groups = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
            for name, function in self._folded.items():
                found[name] = function(one_array(self._table.column(name).take(lists.flatten())), groups)
        return found

    def _reduced(self) -> tuple[list[Any], list[Any]]:
        """Return the keys and what is wanted of columns, a value for each group."""
        if not self._folded and not self._gathered:
            dense = dense_groups(self._table, self._keys, self._wanted)
            if dense is not None:
                return dense
        # Threads would change the order within groups, and the other core has work of its own.
        made = self._table.group_by(self._keys, use_threads=False).aggregate(self._wanted)
        return made.columns[: len(self._keys)], made.columns[len(self._keys) :]

    def _rows(self) -> Any:
        return pa.array(np.arange(self._table.num_rows))

    def _want(self, name: str, column: str, function: Reduction | Literal["list"]) -> None:
        self._places[name] = len(self._wanted)
        self._wanted.append((column, function))


def _concatenated(column: Any, rows: Any) -> Any:
    """Return, for lists of rows, the concatenation of the lists that are in those rows."""
    taken = one_array(column.take(rows.flatten()))
    inner = np.zeros(len(taken) + 1, np.int64)
    np.cumsum(pc.list_value_length(taken).to_numpy(zero_copy_only=False), out=inner[1:])
    outer = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(pc.list_value_length(rows).to_numpy(zero_copy_only=False), out=outer[1:])
    offsets = inner[outer].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), taken.flatten())
