"""`NewestGroups`: what each group comes to now, so that one that changed is emitted without a search in the state.

Never: take groups of two keys for one, or hold an object per group.

What is merged is appended to a log; a group's last row there counts. Rows that come are merged with the last rows of
their groups only, whatever else there is. The state proper is elsewhere (`headgate.state.sorted_runs`): this is beside
it, and can be made of it.

    a group's number   hash and bucket    found in sorted arrays: a large one, and one of those that are new
    its slot           0, 1, ...          in the order in which groups came
    its row            in the log         an array by slot
    the log            a large piece, one of what came later, and the latest: each is searched by itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.windows.changed_groups import numbers_of
from headgate.state.arrays import one_array, together

_PIECES = 16
"""Beyond so many pieces of the log those that are new are made one."""
_LEAST_ADDED = 1024
"""So many groups may be new, or a sixteenth of all, before they are put among the others."""
_NONE: Any = np.empty(0, np.int64)


class NewestGroups:
    """Holds the newest partial results of groups.

    Parameters
    ----------
    groups
        All groups there are, each once, in tables.
    bucket
        The name of the column with their buckets, in microseconds.
    hashes
        Returns the hashes of the keys of rows.
    merged
        Returns rows with one for each group, whose values are merged in their order.
    """

    def __init__(
        self, groups: Iterable[Any], bucket: str, hashes: Callable[[Any], Any], merged: Callable[[Any], Any]
    ) -> None:
        self._bucket = bucket
        self._hashes = hashes
        self._merged = merged
        self._changed: list[Any] = []  # slots
        self._latest: Any = None  # what the last change made, if it is the only one
        self._begin([each for each in groups if each.num_rows])

    def _begin(self, groups: list[Any]) -> None:
        """Take these groups for all."""
        self._log = [together(groups)] if groups else []
        self._log_bytes = sum(int(each.nbytes) for each in self._log)
        numbers = self._numbers(self._log[0]) if self._log else np.empty(0, np.uint64)
        self._buckets = self._buckets_of(self._log[0]) if self._log else _NONE
        self._slots = np.argsort(numbers)  # of the numbers in order
        self._sorted = numbers[self._slots]
        self.is_exact = not (self._sorted[1:] == self._sorted[:-1]).any()
        """Whether no two groups have one number: else it is of no use."""
        self._added, self._added_slots = self._sorted[:0], _NONE
        self._log_rows = self._count = len(numbers)
        self._rows = np.arange(self._count)

    @property
    def nbytes(self) -> int:
        """How much memory it takes, in bytes, about."""
        arrays = (self._buckets, self._slots, self._sorted, self._added, self._added_slots, self._rows, *self._changed)
        return self._log_bytes + sum(int(each.nbytes) for each in arrays)

    def update(self, rows: Any) -> None:
        """Merge rows into their groups, which have changed by that; if `is_exact` is false then, they were not."""
        if not self.is_exact:
            return
        numbers = np.unique(self._numbers(rows))
        slots = self._find(numbers)
        is_new = slots < 0
        known = slots[~is_new]
        merged = self._merged(together([*self._newest(known), rows]))
        if merged.num_rows != len(numbers):
            self.is_exact = False
            return
        order = np.argsort(self._numbers(merged))
        if len(known) < len(slots):
            slots[is_new] = self._add(numbers[is_new], self._buckets_of(merged)[order[is_new]])
        self._rows[slots] = self._log_rows + order
        self._log.append(merged)
        self._log_rows += merged.num_rows
        self._log_bytes += int(merged.nbytes)
        if len(self._log) > _PIECES:
            self._tidy()
        self._latest = None if self._changed else merged
        self._changed.append(slots)

    def take_changed(self) -> Any:
        """Return the groups that changed since the last time, as they are now; None: none did."""
        changed, latest, self._changed, self._latest = self._changed, self._latest, [], None
        if latest is not None or not changed:
            return latest
        return together(self._newest(np.unique(np.concatenate(changed))))

    @property
    def has_changed(self) -> bool:
        """Whether there are groups that changed."""
        return bool(self._changed)

    def forget(self, until_us: int) -> None:
        """Forget the groups of buckets up to this one, if most are. All that changed must have been taken."""
        (kept,) = np.nonzero(self._buckets[: self._count] > until_us)
        if self._count and 2 * len(kept) <= self._count:
            self._leave_out_all_but(kept)

    def _newest(self, slots: Any) -> list[Any]:
        """Return the newest rows of slots, in any order, in tables."""
        rows = np.sort(self._rows[slots])
        found, begin = [], 0
        # Arrow would put all pieces together to take rows of several.
        for pieces in (self._log[:1], self._log[1:2], self._log[2:]):
            end = begin + sum(each.num_rows for each in pieces)
            first, last = np.searchsorted(rows, [begin, end])
            if first < last:
                piece = pieces[0] if len(pieces) == 1 else together(pieces)
                found.append(piece.take(pa.array(rows[first:last] - begin)))
            begin = end
        return found

    def _buckets_of(self, rows: Any) -> Any:
        return one_array(rows.column(self._bucket)).to_numpy()

    def _numbers(self, rows: Any) -> Any:
        return numbers_of(self._buckets_of(rows), self._hashes(rows))

    def _find(self, numbers: Any) -> Any:
        """Return the slots of numbers; -1: there is none."""
        found = np.full(len(numbers), -1, np.int64)
        for there, slots in ((self._sorted, self._slots), (self._added, self._added_slots)):
            if len(there):
                places = np.searchsorted(there, numbers)
                hit = there.take(places, mode="clip") == numbers
                found[hit] = slots[places[hit]]
        return found

    def _add(self, numbers: Any, buckets: Any) -> Any:
        """Return new slots for numbers, which are in order."""
        before, self._count = self._count, self._count + len(numbers)
        slots = np.arange(before, self._count)
        if self._count > len(self._rows):
            spare = np.empty(max(self._count, _LEAST_ADDED), np.int64)
            self._rows, self._buckets = (np.concatenate([each, spare]) for each in (self._rows, self._buckets))
        self._buckets[before : self._count] = buckets
        self._added, self._added_slots = _with(self._added, self._added_slots, numbers, slots)
        if len(self._added) > max(_LEAST_ADDED, len(self._sorted) // 16):
            self._sorted, self._slots = _with(self._sorted, self._slots, self._added, self._added_slots)
            self._added, self._added_slots = self._added[:0], _NONE
        return slots

    def _tidy(self) -> None:
        """Make the pieces of the log few, and leave out rows that no longer count once they are half of it."""
        if self._log_rows > 2 * self._count:
            self._leave_out_all_but(np.arange(self._count))
        else:
            self._log[1:] = [together(self._log[1:])]

    def _leave_out_all_but(self, slots: Any) -> None:
        """Have no other groups, and no rows but their newest; all are in their order, and need not be sorted again."""
        counts = np.zeros(self._log_rows, np.bool_)
        counts[self._rows[slots]] = True
        self._log = [together(self._log).filter(pa.array(counts))]
        self._log_bytes = int(self._log[0].nbytes)
        self._rows = np.cumsum(counts)[self._rows[slots]] - 1
        self._buckets = self._buckets[slots]
        self._sorted, self._slots = _with(self._sorted, self._slots, self._added, self._added_slots)
        self._added, self._added_slots = self._added[:0], _NONE
        if len(slots) < self._count:
            there = np.zeros(self._count, np.bool_)
            there[slots] = True
            kept = there[self._slots]
            self._sorted, self._slots = self._sorted[kept], np.cumsum(there)[self._slots[kept]] - 1
        self._log_rows = self._count = len(slots)


def _with(sorted_numbers: Any, slots: Any, numbers: Any, their_slots: Any) -> tuple[Any, Any]:
    """Return numbers in order, and their slots, with others among them, which are in order, too."""
    places = np.searchsorted(sorted_numbers, numbers)
    return np.insert(sorted_numbers, places, numbers), np.insert(slots, places, their_slots)
