"""Parts of sorted runs: neighbours, which are one chunk of a checkpoint and, where they are spilled, one file.

Never: change a row; which rows still count is beside them.

    part            its rows are in the order of       rows that are over
    --------------  ---------------------------------  ---------------------------------------------------------------
    `PartByHash`    the hashes of their keys, and so   those whose time has come, found by bisection of their order in
                    of their key groups                time; and those that are marked, if marks mean that
    `PartByTime`    their times; in files, and of one  the first ones
                    time, of their hashes

A part knows where the rows of a hash are, whatever its order: `Part.find`.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from headgate.state.arrays import in_one_piece, is_in_order, order_of, order_of_numbers, order_of_times
from headgate.state.hash_index import HashFilter, HashIndex
from headgate.state.watermarks import LEAST_US

HASH, ORDER, MARKED = "hash", "order", "marked"
"""Columns beside those of the rows: the hash of the key; the places in the order of time; whether it is marked."""
NEVER_US = (1 << 63) - 1
"""The time of rows that are never over."""
_SAMPLED_ROWS = 1001
_FILTERED_ROWS = 1 << 14
PAIRS = 1 << 16
"""So many rows are found together, at most."""
_NONE: Any = np.empty(0, np.int64)


Marks = Literal["over", "noted"] | None
"""What a mark of a row means: it is over, or something that is noted of it; None: no row is marked."""


class Layout(msgspec.Struct, frozen=True):
    """What the rows of an operator's state are.

    Parameters
    ----------
    columns
        Those that are stored. A column ``hash`` among them is that of the key, of type uint64.
    time
        The one with the watermark by which a row is over, in microseconds.
    hashes
        Returns the hashes of the keys of rows; None: a column has them.
    by_time
        Whether rows are in the order of their times first, and not of their hashes.
    combined
        Returns rows of which some have the same key, with one row for what is one; None: all rows stay.
    marks
        What a mark of a row means.
    """

    columns: tuple[str, ...]
    time: str
    hashes: Callable[[Any], Any] | None = None
    by_time: bool = False
    combined: Callable[[Any], Any] | None = None
    marks: Marks = None

    def hashes_of(self, table: Any) -> Any:
        """Return the hashes of the keys of rows that have no column of them."""
        assert self.hashes is not None
        return self.hashes(table)


class Part(ABC):
    """Neighbours in a run.

    Parameters
    ----------
    name
        Its name in checkpoints; rows of a name never change.
    table
        Its rows, at least one, in the order that its class says, with columns of one chunk.
    layout
        What they are.
    file
        Where they are, if they are not in memory.
    """

    marked: Any = None
    """Which rows are marked; None: none can be."""
    filter_bytes = 0
    """How much of memory what is asked before a search takes."""
    bounds: tuple[Any, Any] = np.uint64(0), np.uint64(2**64 - 1)
    """The least and the greatest hash of its rows, as far as they are known."""

    def __init__(self, name: str, table: Any, layout: Layout, file: str = "") -> None:
        self.name = name
        self.table = table
        self.layout = layout
        self.file = file
        self.nbytes = int(table.nbytes)
        self.times = self._numbers(layout.time)
        self.hashes = self._numbers(HASH) if HASH in table.column_names else None

    def _numbers(self, name: str) -> Any:
        return self.table.column(name).chunk(0).to_numpy()

    @property
    def wants_filter(self) -> bool:
        """Whether a search would gain by `PartByHash.filter_hashes`."""
        return False

    def follows(self, before: Part) -> bool:
        """Whether all its rows are after those of another."""
        return False

    @property
    @abstractmethod
    def over(self) -> int:
        """How many rows it holds in vain."""

    @property
    def stored(self) -> Any:
        """The rows as they are stored."""
        return self.table.select(self.layout.columns)

    @property
    def rows(self) -> int:
        """How many rows count."""
        return int(self.table.num_rows) - self.over

    @property
    @abstractmethod
    def first_us(self) -> int:
        """By when the next row is over, as far as is known: not later."""

    @abstractmethod
    def expire(self, until_us: int) -> None:
        """Take note that the rows whose time is this, or before, are over."""

    @abstractmethod
    def as_of(self, before: Any) -> None:
        """Take on which rows are over, of the part that this was in memory."""

    @abstractmethod
    def between(self, begin: int, end: int) -> Any:
        """Return the rows from one place to before another that count, with the columns that are stored."""

    def alive(self) -> Any:
        """Return the rows that count."""
        return self.between(0, self.table.num_rows)

    def take(self, places: Any) -> Any:
        """Return some rows, with the columns that are stored."""
        return self.stored.take(pa.array(places))

    @property
    def marks(self) -> bytes:
        """Which rows are marked, as packed bits; empty: none."""
        return b""

    @abstractmethod
    def find(self, hashes: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of hashes, which are in order: the place among these, and the place of the row.

        Some of them may be over by their time.
        """


class PartByHash(Part):
    """Neighbours in the order of the hashes of their keys. The other parameters are those of `Part`.

    Parameters
    ----------
    marked
        Which rows are marked; None: they cannot be.
    """

    hashes: Any

    def __init__(self, name: str, table: Any, layout: Layout, file: str = "", marked: Any = None) -> None:
        super().__init__(name, table, layout, file)
        self.bounds = self.hashes[0], self.hashes[-1]
        self._filter: HashFilter | None = None
        self.marked = marked
        self._marked_rows = 0 if marked is None else int(np.count_nonzero(marked))
        self._order = self._numbers(ORDER) if ORDER in table.column_names else None
        self._expired = 0  # so many in the order of time, as far as that is known
        self._over_us = LEAST_US
        self._first_us = int(self.times.min() if self._order is None else self.times[self._order[0]])

    def as_of(self, before: Any) -> None:
        """Take on which rows are over, of the part that this was in memory."""
        self._over_us, self._first_us = before._over_us, before._first_us
        if self._order is not None:
            self._expired = self._due_until(self._over_us)

    def follows(self, before: Part) -> bool:
        """Whether all its rows are after those of another."""
        return bool(before.hashes is not None and self.hashes[0] > before.hashes[-1])

    @property
    def over(self) -> int:
        """How many rows it holds in vain, as far as is known: more than half of them are."""
        return max(self._expired, self._marked_rows if self.layout.marks == "over" else 0)

    @property
    def first_us(self) -> int:
        """By when the next row is over, as far as is known: not later."""
        return self._first_us

    def expire(self, until_us: int) -> None:
        """Take note that the rows whose time is this, or before, are over."""
        if self._first_us > until_us:
            return
        self._over_us = until_us
        if self._order is None and self._half_us > until_us:
            self._first_us = until_us + 1
            return
        order = self._in_time()
        self._expired = self._due_until(until_us)
        self._first_us = int(self.times[order[self._expired]]) if self._expired < len(order) else NEVER_US

    @cached_property
    def _half_us(self) -> int:
        """By when about half of the rows are over: their times are in no order here."""
        places = np.linspace(0, len(self.times) - 1, min(len(self.times), _SAMPLED_ROWS)).astype(np.int64)
        return int(np.sort(self.times[places])[len(places) // 2])

    def due(self, until_us: int) -> Any:
        """Return the places of rows whose time is this, or before, that are not over."""
        if self._first_us > until_us:
            return _NONE
        order = self._in_time()
        found = np.array(order[self._expired : self._due_until(until_us)], np.int64)
        return found if self.marked is None else found[~self.marked[found]]

    def _due_until(self, until_us: int) -> int:
        order, times = self._in_time(), self.times
        return bisect.bisect_right(range(len(order)), until_us, self._expired, key=lambda place: times[order[place]])

    def _in_time(self) -> Any:
        if self._order is None:
            self._order = order_of_numbers(self.times).astype(np.int32)
            self.nbytes += self._order.nbytes
            self._expired = self._due_until(self._over_us)
        return self._order

    def mark(self, places: Any) -> Any:
        """Mark rows; return the places of those that were not, each once."""
        new = np.unique(places[~self.marked[places]])
        self.marked[new] = True
        self._marked_rows += len(new)
        return new

    @property
    def marks(self) -> bytes:
        """Which rows are marked, as packed bits; empty: none."""
        return np.packbits(self.marked).tobytes() if self._marked_rows else b""

    def between(self, begin: int, end: int) -> Any:
        """Return the rows from one place to before another that count, with their hashes and what is noted of them."""
        rows = self.table.slice(begin, end - begin).select(list(dict.fromkeys([*self.layout.columns, HASH])))
        if self.layout.marks == "noted":
            rows = rows.append_column(MARKED, pa.array(np.array(self.marked[begin:end])))
        by_mark = self.layout.marks == "over" and self._marked_rows
        if not by_mark and self._over_us == LEAST_US:
            return rows
        kept = self.times[begin:end] > self._over_us
        if by_mark:
            kept &= ~self.marked[begin:end]
        return rows if kept.all() else rows.filter(pa.array(kept))

    @property
    def wants_filter(self) -> bool:
        """Whether a search would gain by `filter_hashes`."""
        return self._filter is None and self.table.num_rows >= _FILTERED_ROWS

    def filter_hashes(self) -> None:
        """Hold what says of most hashes that are not among its own that they are not: a byte a row at most."""
        self._filter = HashFilter(self.hashes)
        self.filter_bytes = self._filter.nbytes
        self.nbytes += 0 if self.file else self.filter_bytes

    def find(self, hashes: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of hashes that are not over by a mark: some at a time, if there are many of one hash."""
        some = None
        if self._filter is not None:
            (some,) = np.nonzero(self._filter.may_have(hashes))
            hashes = hashes[some]
        begins = np.searchsorted(self.hashes, hashes)
        (hit,) = np.nonzero(self.hashes.take(begins, mode="clip") == hashes)
        begins = begins[hit]
        many = np.searchsorted(self.hashes, hashes[hit], "right") - begins
        ends = np.cumsum(many)
        hit, begins = hit if some is None else some[hit], begins - (ends - many)
        total = int(ends[-1]) if len(ends) else 0
        for first in range(0, total, PAIRS):
            last = min(total, first + PAIRS)
            low, high = np.searchsorted(ends, [first, last - 1], "right")
            until = np.minimum(ends[low : high + 1], last)
            of = np.repeat(np.arange(low, high + 1), np.diff(until, prepend=first))
            ours, places = hit[of], begins[of] + np.arange(first, last)
            if self.layout.marks == "over" and self._marked_rows:
                kept = ~self.marked[places]
                ours, places = ours[kept], places[kept]
            if len(ours):
                yield ours, places


class PartByTime(Part):
    """Neighbours in the order of their times; with a column of hashes, those of one time in the order of these."""

    def __init__(self, name: str, table: Any, layout: Layout, file: str = "") -> None:
        super().__init__(name, table, layout, file)
        (changes,) = np.nonzero(self.times[1:] != self.times[:-1])
        begins = np.concatenate([[0], changes + 1])
        self._times = self.times[begins]
        self._starts = np.concatenate([begins, [len(self.times)]])
        self._live = 0
        self._last_us = int(self._times[-1])

    def as_of(self, before: Any) -> None:
        """Take on which rows are over, of the part that this was in memory."""
        self._live = before._live

    @property
    def over(self) -> int:
        """How many rows it holds in vain."""
        return int(self._starts[self._live])

    @property
    def first_us(self) -> int:
        """By when the next row is over."""
        return int(self._times[self._live]) if self._live < len(self._times) else NEVER_US

    def rows_by_time(self, until_us: int = NEVER_US) -> tuple[Any, Any]:
        """Return the times up to one of rows that count, in order, and how many there are of each."""
        end = int(np.searchsorted(self._times, until_us, side="right"))
        return self._times[self._live : end], np.diff(self._starts[self._live : max(end, self._live) + 1])

    def expire(self, until_us: int) -> None:
        """Take note that the rows whose time is this, or before, are over."""
        self._live = max(self._live, int(np.searchsorted(self._times, until_us, side="right")))

    def between(self, begin: int, end: int) -> Any:
        """Return the rows from one place to before another that count, with the columns that are stored."""
        begin = max(begin, self.over)
        return self.table.slice(begin, max(0, end - begin)).select(self.layout.columns)

    def has(self, times: Any) -> bool:
        """Whether it has rows of any of these times, which are in order, that count."""
        return bool(np.isin(self._times[self._live :], times, assume_unique=True).any())

    def of(self, times: Any, low: Any = None, high: Any = None) -> Iterator[Any]:
        """Yield the rows of times, which are in order, that count: those of neighbours together.

        With the first and the last of hashes, only the rows of these, which come in the order of both then.
        """
        if times[0] > self._last_us or times[-1] < self.first_us:
            return
        first = max(self._live, int(np.searchsorted(self._times, times[0], side="left")))
        last = int(np.searchsorted(self._times, times[-1], side="right"))
        (wanted,) = np.nonzero(np.isin(self._times[first:last], times, assume_unique=True))
        if low is None:
            for stretch in np.split(wanted + first, np.flatnonzero(np.diff(wanted) > 1) + 1):
                if len(stretch):
                    yield self.between(int(self._starts[stretch[0]]), int(self._starts[stretch[-1] + 1]))
            return
        if self.hashes is None:
            self._sort()
        hashes: Any = self.hashes
        for number in (wanted + first).tolist():
            begin, end = int(self._starts[number]), int(self._starts[number + 1])
            left, right = cut(hashes[begin:end], low, high)
            yield self.between(begin + left, begin + right)

    def _sort(self) -> None:
        """Put the rows of each time into the order of their hashes."""
        self.table = ordered(self.table, self.layout, by_hash=True)
        self.hashes = self._numbers(HASH)
        self.__dict__.pop("_index", None)
        self.nbytes = int(self.table.nbytes)

    @cached_property
    def _index(self) -> HashIndex:
        index = HashIndex(self.layout.hashes_of(self.table))
        self.nbytes += index.nbytes
        return index

    def find(self, hashes: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of hashes that are not over."""
        places, ours = self._index.rows(hashes)
        kept = (places >= self.over) & (self.layout.hashes_of(self.table.take(pa.array(places))) == hashes[ours])
        yield ours[kept], places[kept]


def ordered(table: Any, layout: Layout, *, by_hash: bool = False) -> Any:
    """Return rows in the order of a layout, in one piece; ``by_hash``: also those of one time are in that of hashes."""
    return reordered(table, layout, by_hash=by_hash)[0]


def reordered(table: Any, layout: Layout, *, by_hash: bool = False) -> tuple[Any, bool]:
    """Return what `ordered` does, and whether the rows were in that order."""
    table = in_one_piece(table)
    times = table.column(layout.time).chunk(0).to_numpy()
    if layout.by_time and not by_hash:
        if is_in_order(times):
            return table, True
        order = np.argsort(times, kind="stable")
    else:
        if HASH not in table.column_names:
            table = table.append_column(HASH, pa.array(layout.hashes_of(table)))
        hashes = table.column(HASH).chunk(0).to_numpy()
        if not layout.by_time and is_in_order(hashes):
            return table, True
        order = order_of_times(times, hashes) if layout.by_time else order_of(hashes)
    return in_one_piece(table.take(pa.array(order))), False


def cut(hashes: Any, low: Any, high: Any) -> tuple[int, int]:
    """Return where hashes from one to another begin and end, both included, among such as are in order."""
    return int(np.searchsorted(hashes, low)), int(np.searchsorted(hashes, high, side="right"))


def marks_of(bits: bytes | None, rows: int) -> Any:
    """Return which rows are marked, of packed bits."""
    if not bits:
        return np.zeros(rows, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(np.bool_)
