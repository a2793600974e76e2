"""`KeptRows`: the rows that one side of a join keeps for those of the other, searched by hash, spilled and stored.

Never: change a run but for which of its rows are matched; give a row that has expired; keep an object per row.

What comes is a *run*: a table in the order of its hashes, which are searched by bisection, a batch at a time. Several
latest runs of about one size are made one, as in `headgate.operators.windows.sorted_runs`, so that there are few to
search, and a row is rewritten once each time that its run becomes four times as large. A run also knows the order in
which its rows expire, and how far that is: what expires is found without a look at the others. Rows that are over are
left out when runs are merged, and when they are half of one.

    of a run    in memory           spilled, beyond ``memory_bytes``
    ----------  ------------------  -------------------------------------------------------------------
    rows        a record batch      a file of record batches, read by mapping it into memory
    beside it   arrays              files, mapped: hashes, expiry, the order of it in each batch, what is matched
    is merged   at once             a range of hashes after the other

Which rows are matched changes while a stored run does not: it is stored apart from them, as bits.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headgate.operators.mapped_files import give_back, mapped_array, mapped_table
from headgate.operators.static_join import equal_values
from headgate.operators.windows.sorted_runs import FAN_IN, part_bytes, tier

HASH, EXPIRY, ROWS = 0, 1, 2
"""The places of a stored row's hash, of the watermark by which it is over, in microseconds, and of its columns."""
PAIRS = 1 << 16
"""So many pairs of rows are looked at together, at most."""
_MERGED_ROWS = 1 << 17
_FOREVER_US = (1 << 63) - 1
_BESIDE = {"hashes": np.uint64, "expiry": np.int64, "order": np.int64, "matched": np.bool_}


class Part(msgspec.Struct, frozen=True):
    """Neighbours in a run, which are stored together.

    Parameters
    ----------
    name
        Its name in checkpoints; rows of a name never change.
    table
        Returns the rows as they are stored: with their hash and their expiry. Any thread.
    matched
        Which of them are matched by now, as packed bits; empty: none.
    """

    name: str
    table: Callable[[], Any]
    matched: bytes


class Pairs(msgspec.Struct, frozen=True):
    """Pairs of rows that come and rows that are kept.

    Parameters
    ----------
    run
        Where those are that are kept.
    ours
        The places of those that come.
    places
        The places in the run.
    theirs
        The rows at these.
    """

    run: Run
    ours: Any
    places: Any
    theirs: pa.RecordBatch


class Run:
    """Rows in the order of their hashes. Made by `KeptRows`.

    Parameters
    ----------
    names
        Those of its parts.
    batches
        Its rows.
    beside
        By name, as in `_BESIDE`: the hash and the expiry of each, in each batch the places in the order of expiry, and
        whether it is matched.
    files
        Where all that is, if it is not in memory.
    """

    def __init__(
        self, names: Sequence[str], batches: Sequence[pa.RecordBatch], beside: dict[str, Any], files: Sequence[str] = ()
    ) -> None:
        self.names = list(names)
        self.batches = list(batches)
        self.hashes = beside["hashes"]
        self.expiry = beside["expiry"]
        self.order = beside["order"]
        self.matched = beside["matched"]
        self.files = tuple(files)
        self.starts = np.cumsum([0, *(each.num_rows for each in batches)])
        self.nbytes = sum(each.nbytes for each in [*batches, *beside.values()])
        self.many_matched = int(np.count_nonzero(self.matched))
        self._next = self.starts[:-1].copy()  # by batch: the first in the order of expiry that has not expired
        self._next_us = np.array([self._expiry_at(place) for place in self._next])

    @property
    def num_rows(self) -> int:
        """How many rows it has, also those that are over."""
        return int(self.starts[-1])

    @property
    def over(self) -> int:
        """How many rows have expired."""
        return int((self._next - self.starts[:-1]).sum())

    def take(self, places: Any) -> pa.RecordBatch:
        """Return some rows."""
        if len(self.batches) == 1:
            return self.batches[0].take(pa.array(places))
        order = np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], self.starts)
        pieces = [
            batch.take(pa.array(places[order[begin:end]] - start))
            for batch, start, begin, end in zip(self.batches, self.starts, cuts, cuts[1:])
            if begin < end
        ]
        if not pieces:
            return self.batches[0].slice(0, 0)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(pieces).take(pa.array(back))

    def expired(self, watermark_us: int) -> Any:
        """Return the places of the rows that expire by a watermark, and did not before."""
        found = []
        for batch in np.flatnonzero(self._next_us <= watermark_us):
            begin, end = int(self._next[batch]), int(self.starts[batch + 1])
            low, high = begin, end
            while low < high:  # bisection, which reads few places, also of a file
                middle = (low + high) // 2
                if self._expiry_at(middle) <= watermark_us:
                    low = middle + 1
                else:
                    high = middle
            found.append(np.array(self.order[begin:low]))
            self._next[batch] = low
            self._next_us[batch] = self._expiry_at(low) if low < end else _FOREVER_US
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _expiry_at(self, place: int) -> int:
        return int(self.expiry[self.order[place]])

    def match(self, places: Any) -> Any:
        """Note that rows are matched; return the places of those that were not, each once."""
        new = np.unique(places[~self.matched[places]])
        self.matched[new] = True
        self.many_matched += len(new)
        return new

    def parts(self) -> Iterator[Part]:
        """Yield its pieces."""
        step = -(-self.num_rows // len(self.names))
        for number, name in enumerate(self.names):
            begin, end = number * step, min((number + 1) * step, self.num_rows)
            matched = self.matched[begin:end]
            bits = np.packbits(matched).tobytes() if matched.any() else b""
            yield Part(name, lambda begin=begin, end=end: self.table(begin, end), bits)  # type: ignore[misc]

    def table(self, begin: int, end: int) -> Any:
        """Return some neighbours with what is beside them, but for what changes. Any thread."""
        rows = pa.Table.from_batches(self.batches).slice(begin, end - begin)
        rows = rows.add_column(0, "expiry", pa.array(np.array(self.expiry[begin:end])))
        return rows.add_column(0, "hash", pa.array(np.array(self.hashes[begin:end])))


class KeptRows:
    """The rows of one side. For one thread.

    Parameters
    ----------
    keys
        The places of the key's columns.
    name
        Returns a name for a new part.
    forgets_matched
        Whether a row that is matched is over.
    memory_bytes
        How much may be in memory; 0: any amount.
    spill_folder
        Where the rest goes.
    """

    def __init__(
        self,
        keys: Sequence[int],
        *,
        name: Callable[[], str],
        forgets_matched: bool = False,
        memory_bytes: int = 0,
        spill_folder: str = "",
    ) -> None:
        self._keys = list(keys)
        self._name = name
        self._forgets_matched = forgets_matched
        self._memory_bytes = memory_bytes
        self._folder = spill_folder
        self._files = 0
        self._expired_us = -_FOREVER_US
        self.runs: list[Run] = []

    @property
    def memory_bytes(self) -> int:
        """How many bytes are in memory."""
        return sum(run.nbytes for run in self.runs if not run.files)

    @property
    def spilled_bytes(self) -> int:
        """How many bytes are in local files."""
        return sum(run.nbytes for run in self.runs if run.files)

    @property
    def num_rows(self) -> int:
        """How many rows are held, some of which may be over."""
        return sum(run.num_rows for run in self.runs)

    def find(self, keys: Sequence[pa.Array], hashes: Any, wanted: Any, now_us: Any) -> Iterator[Pairs]:
        """Yield the pairs of rows that come and rows that are kept, of equal keys.

        Parameters
        ----------
        keys, hashes
            Of all rows that come.
        wanted
            The places of those whose keys are no nulls.
        now_us
            By when what is kept is over, of each of the rows that come.
        """
        in_order = wanted[np.argsort(hashes[wanted], kind="stable")]  # neighbours are found near each other
        for run in list(self.runs):
            begins = np.searchsorted(run.hashes, hashes[in_order], "left")
            ends = np.cumsum(np.searchsorted(run.hashes, hashes[in_order], "right") - begins)
            total = int(ends[-1]) if len(ends) else 0
            for first in range(0, total, PAIRS):
                pairs = np.arange(first, min(total, first + PAIRS))
                of = np.searchsorted(ends, pairs, "right")
                places = begins[of] + pairs - np.where(of > 0, ends[of - 1], 0)
                ours = in_order[of]
                kept = run.expiry[places] > now_us[ours]
                if self._forgets_matched:
                    kept &= ~run.matched[places]
                ours, places = ours[kept], places[kept]
                theirs = run.take(places)
                for column, key in zip(self._keys, keys):
                    same = equal_values(key.take(pa.array(ours)), theirs.column(column))
                    if not same.all():
                        ours, places, theirs = ours[same], places[same], theirs.filter(pa.array(same))
                if len(ours):
                    yield Pairs(run, ours, places, theirs)
            if run.files:
                give_back()

    def add(self, rows: pa.RecordBatch, hashes: Any, expiry: Any, matched: Any) -> None:
        """Take rows."""
        self.runs.append(self._made(rows, hashes, expiry, matched))
        while (many := self._alike()) >= FAN_IN:
            merged = self.runs[-many:]
            self.runs[-many:] = self._merged(merged)
            for run in merged:
                self._forget(run)
        self._spill()

    def adopt(self, name: str, table: Any, matched: Any, watermark_us: int) -> None:
        """Take a part that was stored; by a watermark what is over has been forgotten."""
        self._expired_us = watermark_us
        (batch,) = table.select(range(ROWS, table.num_columns)).combine_chunks().to_batches()
        expiry = table.column(EXPIRY).to_numpy()
        beside = {
            "hashes": table.column(HASH).to_numpy(),
            "expiry": expiry,
            "order": np.argsort(expiry, kind="stable"),
            "matched": matched,
        }
        self.runs.append(self._caught_up(Run([name], [batch], beside)))
        self._spill()

    def expire(self, watermark_us: int) -> Iterator[tuple[Run, Any]]:
        """Forget the rows that expire by a watermark; yield them, if they are not matched: their run and places."""
        self._expired_us = watermark_us
        for run in list(self.runs):
            places = run.expired(watermark_us)
            places = places[~run.matched[places]]
            for begin in range(0, len(places), PAIRS):
                yield run, places[begin : begin + PAIRS]
            if run.over * 2 > run.num_rows:
                self._replace(run, self._merged([run]) if run.over < run.num_rows else [])

    def shrink(self) -> None:
        """Rewrite runs most of whose rows are over because they are matched."""
        for run in list(self.runs) if self._forgets_matched else ():
            if run.many_matched * 2 > run.num_rows:
                self._replace(run, self._merged([run]))

    def parts(self) -> list[Part]:
        """Return all parts."""
        return [part for run in self.runs for part in run.parts()]

    def close(self) -> None:
        """Delete all files."""
        for run in self.runs:
            self._forget(run)
        self.runs = []

    def _replace(self, run: Run, by: list[Run]) -> None:
        place = self.runs.index(run)
        self.runs[place : place + 1] = by
        self._forget(run)

    def _alike(self) -> int:
        """Return how many of the latest runs are not larger than the last one, by its order of size."""
        sizes = [tier(run.num_rows) for run in self.runs]
        return next((many for many in range(1, len(sizes)) if sizes[-many - 1] > sizes[-1]), len(sizes))

    def _made(self, rows: pa.RecordBatch, hashes: Any, expiry: Any, matched: Any) -> Run:
        """Return a run in memory."""
        batch, beside = _in_order(rows, hashes, expiry, matched)
        run = Run([], [batch], beside)
        run.names = self._names(run.nbytes)
        return run

    def _names(self, size: int) -> list[str]:
        return [self._name() for _ in range(max(1, -(-size // part_bytes(self._memory_bytes))))]

    # Merging and spilling.

    def _merged(self, runs: Sequence[Run]) -> list[Run]:
        """Return one run of what is not over in several, or none."""
        size = sum(run.nbytes for run in runs)
        if self._memory_bytes == 0 or (size * 2 <= self._memory_bytes and not any(run.files for run in runs)):
            alive = self._alive([(run, 0, run.num_rows) for run in runs])
            return [self._caught_up(self._made(*alive))] if alive is not None else []
        rows = sum(run.num_rows for run in runs)
        per_slab = max(1, min(_MERGED_ROWS, rows * self._memory_bytes // (4 * size)))
        bounds = np.linspace(0, 2.0**64, -(-rows // per_slab), endpoint=False)[1:].astype(np.uint64)
        cuts = [[0, *np.searchsorted(run.hashes, bounds).tolist(), run.num_rows] for run in runs]

        def slabs() -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
            for slab in range(len(bounds) + 1):
                alive = self._alive([(run, cut[slab], cut[slab + 1]) for run, cut in zip(runs, cuts)])
                if alive is not None:
                    yield _in_order(*alive)
                give_back()

        made = self._written(slabs())
        return [self._caught_up(each) for each in made]

    def _alive(self, pieces: Sequence[tuple[Run, int, int]]) -> tuple[pa.RecordBatch, Any, Any, Any] | None:
        """Return the rows of pieces of runs that are not over, with what is beside them; None: there are none."""
        found = []
        for run, begin, end in pieces:
            kept = run.expiry[begin:end] > self._expired_us
            if self._forgets_matched:
                kept &= ~run.matched[begin:end]
            places = begin + np.flatnonzero(kept)
            if len(places):
                found.append((run.take(places), run.hashes[places], run.expiry[places], run.matched[places]))
        if not found:
            return None
        batches, *beside = zip(*found)
        return (pa.concat_batches(batches), *(np.concatenate(each) for each in beside))

    def _caught_up(self, run: Run) -> Run:
        run.expired(self._expired_us)
        return run

    def _spill(self) -> None:
        """Write the largest runs to files, if there is more in memory than may be."""
        while self._memory_bytes and self.memory_bytes > self._memory_bytes:
            run = max((run for run in self.runs if not run.files), key=lambda run: run.nbytes)
            beside = {name: getattr(run, name) for name in _BESIDE}
            (written,) = self._written(iter([(run.batches[0], beside)]), run.names)
            self.runs[self.runs.index(run)] = self._caught_up(written)

    def _written(
        self, slabs: Iterator[tuple[pa.RecordBatch, dict[str, Any]]], names: Sequence[str] | None = None
    ) -> list[Run]:
        """Return a run in files of batches in the order of their hashes; of none, none."""
        first = next(slabs, None)
        if first is None:
            return []
        self._files += 1
        os.makedirs(self._folder, exist_ok=True)
        path = os.path.join(self._folder, f"rows-{self._files}")
        files = {name: f"{path}.{name}" for name in _BESIDE}
        with pa.OSFile(f"{path}.arrow", "wb") as rows, pa.ipc.new_file(rows, first[0].schema) as writer:
            begin = 0
            for batch, beside in itertools.chain([first], slabs):
                writer.write_batch(batch)
                for name, file in files.items():
                    values = beside[name] + begin if name == "order" else beside[name]
                    with open(file, "ab") as to:
                        to.write(np.ascontiguousarray(values, _BESIDE[name]).tobytes())
                begin += batch.num_rows
        mapped = {
            name: mapped_array(file, _BESIDE[name], "r+" if name == "matched" else "r") for name, file in files.items()
        }
        batches = mapped_table(f"{path}.arrow").to_batches()
        run = Run([], batches, mapped, [f"{path}.arrow", *files.values()])
        run.names = list(names) if names is not None else self._names(run.nbytes)
        return [run]

    def _forget(self, run: Run) -> None:
        """Delete the files of a run; who still reads them has them mapped."""
        for path in run.files:
            os.unlink(path)


def _in_order(rows: pa.RecordBatch, hashes: Any, expiry: Any, matched: Any) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Return rows in the order of their hashes, and what is beside them."""
    order = np.argsort(hashes, kind="stable")
    expiry = expiry[order]
    beside = {
        "hashes": hashes[order],
        "expiry": expiry,
        "order": np.argsort(expiry, kind="stable"),
        "matched": matched[order],
    }
    return rows.take(pa.array(order)), beside
