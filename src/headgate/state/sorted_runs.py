"""`SortedRuns`: the rows of an operator's state, in immutable sorted runs, which are merged as they grow and spilled.

Never: change a run, keep an object per key or per row, or rewrite much for the sake of little.

What comes is a run of its own. Runs are in the order of arrival, and only neighbours are merged, several of about the
same size at a time: a row is rewritten once each time that the run it is in becomes four times as large, and a large
run is left alone while small ones come. So a checkpoint stores what came since the one before, and what was merged
meanwhile; and there are few runs to search. A run is cut into parts (`headgate.state.part`).

    a run is    in memory                 spilled
    ----------  ------------------------  -----------------------------------------------------------------
    rows        tables                    files in the spill folder, read by mapping them into memory
    merged      with others, at once      with others, one range of times and hashes after the other
    scanned     a range of times at once  one range of times and hashes after the other
    over        forgotten at once, in the order of time, or when most rows of it are over, or when it is merged

Beyond ``memory_bytes`` the largest runs are spilled. A range is small enough that merging it takes a quarter of that.

Follows O'Neil et al., "The Log-Structured Merge-Tree".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.state.arrays import order_of, order_of_numbers
from headgate.state.mapped_files import give_back, mapped_array, mapped_table
from headgate.state.part import MARKED, NEVER_US, ORDER, Layout, Part, PartByHash, PartByTime, cut, ordered, reordered
from headgate.state.watermarks import LEAST_US

FAN_IN = 4
"""So many runs of about one size are merged."""
PART_BYTES = 32 << 20
"""The size of a part, at most, in bytes."""
RANGE_ROWS = 1 << 18
"""A range has so many rows, unless they are all of one time, and in memory."""
_SMALL_ROWS = 4096
_SMALLEST_PART_BYTES = 1 << 20

Run = list[Part]


class SortedRuns:
    """The runs of an operator's state. For one thread.

    Parameters
    ----------
    layout
        What its rows are.
    name
        Returns a name for a new part.
    memory_bytes
        How much may be in memory; 0: any amount.
    spill_folder
        Where the rest goes.
    """

    def __init__(
        self, layout: Layout, *, name: Callable[[], str], memory_bytes: int = 0, spill_folder: str = ""
    ) -> None:
        self.layout = layout
        self._name = name
        self.memory_bytes = memory_bytes
        """As above. Less may be set: what is too much then is spilled as rows come."""
        self._folder = spill_folder
        self._files = 0
        self._filter_bytes = 0  # of parts in files
        self.runs: list[Run] = []

    @property
    def parts(self) -> list[Part]:
        """All parts, those of the oldest run first."""
        return [part for run in self.runs for part in run]

    @property
    def bytes_held(self) -> tuple[int, int]:
        """How many bytes are in memory, and how many in local files."""
        spilled = _bytes(part for part in self.parts if part.file)
        return _bytes(self.parts) - spilled, spilled

    @property
    def rows(self) -> int:
        """How many rows count."""
        return sum(part.rows for part in self.parts)

    @property
    def first_us(self) -> int | None:
        """By when the next row is over, as far as is known: not later; None: there are no rows."""
        return min((part.first_us for part in self.parts), default=None)

    # What comes.

    def add(self, table: Any) -> None:
        """Take rows; where the layout combines rows, each key once."""
        if table.num_rows:
            self.runs.append(self._in_memory(table))
            self._compact()
            self._spill()

    def adopt(
        self, name: str, table: Any, marked: Any = None, *, over_us: int = LEAST_US, follows: bool = False
    ) -> bool:
        """Take a part of a checkpoint, which keeps its name; return whether any row of it counts.

        Rows that are to be in the order of their hashes get a new name if they are not: their marks are in that order.

        Parameters
        ----------
        name, table, marked
            Its name, its rows, and which of them are marked; None: none.
        over_us
            The rows whose time is this, or before, are over.
        follows
            Whether it is of the same run as the one before. Where no rows are combined it is, too, if its hashes come
            after that one's.
        """
        if not table.num_rows:
            return False
        table = pa.table(table.columns, names=table.column_names)  # any column may be null, as in what comes
        if marked is not None:
            table = table.append_column(MARKED, pa.array(marked))
        table, is_as_it_was = reordered(table, self.layout)
        part = self._part(name if is_as_it_was or self.layout.by_time else self._name(), table)
        part.expire(over_us)
        if not part.rows:
            return False
        if not follows and self.runs and self.layout.combined is None:  # no key need be in a run once
            follows = part.follows(self.runs[-1][-1])
        if not follows or not self.runs:
            self.runs.append([])
        self.runs[-1].append(part)
        if self.memory_bytes and self.bytes_held[0] > self.memory_bytes:
            self.runs[-1][-1] = self._in_file(part)
            self._spill()
        return True

    # What is there.

    def find(self, hashes: Any, wanted: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield rows of hashes: their part, the places among the hashes, and the places in the part.

        Rows that are over by their time may be among them.

        Parameters
        ----------
        hashes
            In any order.
        wanted
            Which of them are looked for. What is found may be taken out of it meanwhile.
        """
        in_order = order_of(hashes)  # neighbours are found near each other, which caches like
        ordered_hashes = hashes[in_order]
        for part in self.parts:
            begin, end = cut(ordered_hashes, *part.bounds)
            left = in_order[begin:end]
            left = left[wanted[left]]
            if not len(left):
                continue
            if part.wants_filter:
                self._filter(part)
            for ours, places in part.find(hashes[left]):
                yield part, left[ours], places
            if part.file:
                give_back()

    def _filter(self, part: Any) -> None:
        """Have a part filter hashes: those in files together while that takes an eighth of the memory."""
        if part.file and self._filter_bytes + part.table.num_rows > self.memory_bytes // 8:
            return
        part.filter_hashes()
        if part.file:
            self._filter_bytes += part.filter_bytes

    @property
    def range_rows(self) -> int:
        """How many rows are to be worked on together."""
        return self._rows_of_a_range(self.parts) if self.bytes_held[1] else RANGE_ROWS

    def rows_by_time(self) -> tuple[Any, Any]:
        """Return the times that there are rows of, in order, and how many there are of each."""
        return _rows_by_time(self.parts)

    def merged(self, times: Any = None) -> Iterator[Any]:
        """Yield the rows, those of each key, and time, in one table.

        ``times``: only those of these, an array in order, or of those up to this one; all, if rows are in the order of
        hashes.
        """
        for tables, runs in self._ranges(self.runs, times):
            yield self._combined(tables, runs)

    def of_times(self, times: Any, rows: int) -> Iterator[Any]:
        """Yield the rows of times, of which there are so many: those of each key in one table, and not combined."""
        parts = [(number, part) for number, run in enumerate(self.runs) for part in run]
        spilled = any(part.file and part.has(times) for _, part in parts)  # type: ignore[attr-defined]
        many = -(-rows // self._rows_of_a_range(self.parts)) if spilled else 1
        for tables, _ in self._of_times(parts, times, many):
            yield _together(tables)

    # What goes.

    def expire(self, until_us: int) -> None:
        """Forget the rows whose time is this, or before: at once, or when most of a part are over."""
        for part in self.parts:
            part.expire(until_us)
        self.shrink()

    def due(self, until_us: int) -> Iterator[tuple[PartByHash, Any]]:
        """Yield the rows that are over once `expire` is called, if they are not marked: their part and places."""
        for part in self.parts:
            assert isinstance(part, PartByHash)
            places = part.due(until_us)
            if len(places):
                yield part, places

    def shrink(self) -> None:
        """Forget parts that are over, and rewrite those that are for the most part."""
        self.runs = [run for run in ([kept for part in run for kept in self._shrunk(part)] for run in self.runs) if run]

    def _shrunk(self, part: Part) -> Run:
        if part.rows and (part.over <= part.rows or (part.file and self.layout.by_time)):
            return [part]
        made = self._rewritten(part) if part.rows else []
        self._forget([part])
        return made

    def close(self) -> None:
        """Delete all files."""
        self._forget(self.parts)
        self.runs = []

    # Merging.

    def _compact(self) -> None:
        """Merge the latest runs while there are several of about the same size."""
        while self.runs:
            sizes = [_tier(sum(part.rows for part in run)) for run in self.runs]
            many = next((many for many in range(1, len(sizes)) if sizes[-many - 1] > sizes[-1]), len(sizes))
            if many < FAN_IN:
                return
            merged = self.runs[-many:]
            self.runs[-many:] = [run for run in [self._one_run(merged)] if run]
            for run in merged:
                self._forget(run)

    def _one_run(self, runs: Sequence[Run]) -> Run:
        parts = [part for run in runs for part in run]
        size = _bytes(parts)
        if self.memory_bytes == 0 or (size * 2 <= self.memory_bytes and not any(part.file for part in parts)):
            return self._in_memory(self._combined([part.alive() for part in parts], len(runs)))
        return self._in_files(self._combined(*each) for each in self._ranges(runs, None, bounded=True))

    def _rewritten(self, part: Part) -> Run:
        """Return a part without the rows that are over."""
        alive = part.alive()
        return self._in_files(iter([alive])) if part.file else self._in_memory(_copied(alive))

    def _combined(self, tables: Sequence[Any], runs: int) -> Any:
        """Return the rows of so many runs, those of a key as one where the layout says how: in one run they are."""
        together = _together(tables)
        if self.layout.combined is None:
            return together
        return together.select(self.layout.columns) if runs == 1 else self.layout.combined(together)

    # Ranges.

    def _ranges(self, runs: Sequence[Run], times: Any, *, bounded: bool = False) -> Iterator[tuple[list[Any], int]]:
        """Yield the rows that count, range by range, and of how many runs they are.

        ``times``: only those of these; ``bounded``: a range fits a quarter of the memory, as it does if rows are in
        files.
        """
        parts = [(number, part) for number, run in enumerate(runs) for part in run]
        if not self.layout.by_time:
            bounded = bounded or any(part.file for _, part in parts)
            for low, high in _hash_ranges(self._hash_ranges_of(part for _, part in parts) if bounded else 1):
                there = [(number, part) for number, part in parts if part.bounds[0] <= high and low <= part.bounds[1]]
                yield from _in_range([(number, part.between(*cut(part.hashes, low, high))) for number, part in there])
            return
        there, rows = _rows_by_time((part for _, part in parts), times if isinstance(times, int) else NEVER_US)
        if isinstance(times, np.ndarray):
            wanted = np.isin(there, times, assume_unique=True)
            there, rows = there[wanted], rows[wanted]
        limit = self._rows_of_a_range(part for _, part in parts)
        spilled = bounded or any(part.file and part.has(there) for _, part in parts)  # type: ignore[attr-defined]
        for begin, end in stretches(rows, limit if spilled else RANGE_ROWS):
            many = -(-int(rows[begin:end].sum()) // limit) if spilled else 1
            yield from self._of_times(parts, there[begin:end], many)

    def _of_times(self, parts: Sequence[tuple[int, Any]], times: Any, many: int) -> Iterator[tuple[list[Any], int]]:
        """Yield the rows of times, those of each key in one of many ranges of hashes."""
        if many <= 1:
            yield from _in_range([(number, rows) for number, part in parts for rows in part.of(times)])
            return
        for low, high in _hash_ranges(many):
            yield from _in_range([(number, rows) for number, part in parts for rows in part.of(times, low, high)])

    def _rows_of_a_range(self, parts: Iterable[Part]) -> int:
        """Return how many rows fit a quarter of the memory."""
        held = list(parts)
        rows = sum(part.table.num_rows for part in held)
        return int(max(1, min(RANGE_ROWS, rows * self.memory_bytes // (4 * max(1, _bytes(held))))))

    def _hash_ranges_of(self, parts: Iterable[Part]) -> int:
        held = list(parts)
        return int(-(-sum(part.table.num_rows for part in held) // self._rows_of_a_range(held)))

    # Parts.

    def _part(self, name: str, table: Any, marked: Any = None, file: str = "") -> Part:
        if self.layout.by_time:
            return PartByTime(name, table, self.layout, file)
        if MARKED in table.column_names:
            marked, table = table.column(MARKED).to_numpy(), table.drop_columns([MARKED])
        if marked is None and self.layout.marks is not None:
            marked = np.zeros(table.num_rows, np.bool_)
        return PartByHash(name, table, self.layout, file, marked)

    def _in_memory(self, table: Any) -> Run:
        """Return a run of rows; of none, none."""
        if not table.num_rows:
            return []
        table = ordered(table, self.layout)
        step = -(-table.num_rows // max(1, -(-table.nbytes // part_bytes(self.memory_bytes))))
        pieces = [table.slice(begin, step) for begin in range(0, table.num_rows, step)]
        if len(pieces) > 1:  # each is forgotten alone
            pieces = list(map(_copied, pieces))
        return [self._part(self._name(), each) for each in pieces]

    def _spill(self) -> None:
        """Write the largest runs to files, if there is more in memory than may be."""
        while self.memory_bytes and self.bytes_held[0] > self.memory_bytes:
            largest = max(self.runs, key=lambda run: _bytes(part for part in run if not part.file))
            largest[:] = [part if part.file else self._in_file(part) for part in largest]

    def _in_file(self, part: Part) -> Part:
        table = ordered(part.table, self.layout, by_hash=True)
        made = self._written(part.name, table, part.marked)
        made.as_of(part)
        return made

    def _in_files(self, tables: Iterable[Any]) -> Run:
        """Return a run of tables, the later of which has the later times or hashes."""
        most = min(PART_BYTES, self.memory_bytes // 4)
        run: Run = []
        for each in _joined((each for each in tables if each.num_rows), most):
            table = ordered(each, self.layout, by_hash=True)
            step = -(-table.num_rows // max(1, table.nbytes // max(1, most)))
            run += [self._written(self._name(), table.slice(begin, step)) for begin in range(0, table.num_rows, step)]
        return run

    def _written(self, name: str, table: Any, marked: Any = None) -> Part:
        """Return rows, which are in order, as a part in a file."""
        if MARKED in table.column_names:
            marked, table = table.column(MARKED).to_numpy(), table.drop_columns([MARKED])
        if not self.layout.by_time:
            times = table.column(self.layout.time).to_numpy()
            if times.min() != times.max():
                order = order_of_numbers(times).astype(np.int32)
                table = table.append_column(ORDER, pa.array(order))
        self._files += 1
        os.makedirs(self._folder, exist_ok=True)
        path = os.path.join(self._folder, f"part-{self._files}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        if self.layout.marks is not None:
            with open(_marks_file(path), "wb") as file:
                file.write((np.zeros(table.num_rows, np.bool_) if marked is None else marked).tobytes())
            marked = mapped_array(_marks_file(path), np.bool_, "r+")
        return self._part(name, mapped_table(path), marked, path)

    def _forget(self, parts: Iterable[Part]) -> None:
        """Delete the files of parts; who still reads them has them mapped."""
        for part in parts:
            if part.file:
                self._filter_bytes -= part.filter_bytes
                os.unlink(part.file)
                if self.layout.marks is not None:
                    os.unlink(_marks_file(part.file))


def _marks_file(path: str) -> str:
    """Return where the marks of a spilled part are."""
    return f"{path}.marks"


def part_bytes(memory_bytes: int) -> int:
    """Return how large a chunk may be, where so much of the state may be in memory: four are uploaded at once.

    Examples
    --------
    >>> [part_bytes(mebibytes << 20) >> 20 for mebibytes in (0, 1, 16, 256)]
    [32, 1, 4, 32]
    """
    return max(_SMALLEST_PART_BYTES, min(PART_BYTES, memory_bytes // 4)) if memory_bytes else PART_BYTES


def _tier(rows: int) -> int:
    """Return how large a run is, in steps of four."""
    return max(0, (rows // _SMALL_ROWS).bit_length() + 1) // 2


def _bytes(parts: Iterable[Part]) -> int:
    return sum(part.nbytes for part in parts)


def _rows_by_time(parts: Iterable[Any], until_us: int = NEVER_US) -> tuple[Any, Any]:
    """Return the times up to one that there are rows of, in order, and how many there are of each."""
    counted = [part.rows_by_time(until_us) for part in parts]
    if not counted:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times, of = np.unique(np.concatenate([times for times, _ in counted]), return_inverse=True)
    rows = np.bincount(of, np.concatenate([many for _, many in counted]), len(times))
    return times, rows.astype(np.int64)


def stretches(rows: Any, limit: int) -> Iterator[tuple[int, int]]:
    """Yield where neighbours begin and end that have so many rows together, or are one."""
    ends, begin = np.cumsum(rows), 0
    while begin < len(rows):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield begin, end
        begin = end


def _hash_ranges(many: int) -> Iterator[tuple[Any, Any]]:
    """Yield the first and the last hash of ranges that are all hashes together."""
    bounds = [(number << 64) // many for number in range(many + 1)]
    for low, high in pairwise(bounds):
        yield np.uint64(low), np.uint64(high - 1)


def _in_range(found: Sequence[tuple[int, Any]]) -> Iterator[tuple[list[Any], int]]:
    """Yield tables with rows, and of how many runs they are, if there are any."""
    there = [(number, table) for number, table in found if table.num_rows]
    if there:
        yield [table for _, table in there], len({number for number, _ in there})
        give_back()


def _together(tables: Sequence[Any]) -> Any:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _copied(table: Any) -> Any:
    """Return rows that keep nothing else in memory."""
    return table.take(pa.array(np.arange(table.num_rows)))


def _joined(tables: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield tables together, until they have a size."""
    held: list[Any] = []
    held_bytes = 0
    for table in tables:
        held.append(table)
        held_bytes += table.nbytes
        if held_bytes >= size:
            yield _together(held)
            held, held_bytes = [], 0
    if held:
        yield _together(held)
