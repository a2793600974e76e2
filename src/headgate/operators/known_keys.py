"""`KnownKeys`: a set of keys in columns, which is searched by hash, spilled and stored in checkpoints.

Never: change a run; take two keys for one because their hashes are equal; keep an object per key.

What comes is a run: a table in the order of its hashes, which are searched by bisection, a batch at a time. Several
latest runs of about one size are made one, as in `headgate.operators.windows.sorted_runs`, so that there are few to
search, and a key is rewritten once each time that its run becomes four times as large. Keys that have expired are left
out then, and also when half of a run has. Beyond ``memory_bytes`` the largest runs are in files, which are mapped into
memory, and are merged a range of hashes after the other.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.mapped_files import give_back, mapped_array, mapped_table
from headgate.operators.windows.sorted_runs import FAN_IN, part_bytes, tier

HASH = "hash"
EXPIRY = "expiry"
"""By when a key is forgotten, in microseconds since 1970-01-01 UTC."""
NEVER_US = (1 << 63) - 1
_MERGED_ROWS = 1 << 18
_SAMPLED_ROWS = 1001
"""Of so many keys of a run is found out by when half of them have expired; their hashes are random."""


class _Run:
    """Keys in the order of their hashes, in memory or, with ``files``, there."""

    def __init__(self, names: Sequence[str], table: Any, hashes: Any, files: tuple[str, ...] = ()) -> None:
        self.table = table
        self.hashes = hashes
        self.files = files
        self.names = list(names)
        self.nbytes = int(table.nbytes)
        expiry = table.column(EXPIRY)
        self.last_us = int(pc.max(expiry).as_py())
        sample = np.linspace(0, len(expiry) - 1, min(len(expiry), _SAMPLED_ROWS)).astype(np.int64)
        self.half_us = int(np.median(expiry.take(pa.array(sample)).to_numpy()))

    @property
    def parts(self) -> Iterator[tuple[str, Any]]:
        """The names of its pieces, and these."""
        step = -(-self.table.num_rows // len(self.names))
        for number, name in enumerate(self.names):
            yield name, self.table.slice(number * step, step)


class KnownKeys:
    """Keys, and when they are forgotten. For one thread.

    Parameters
    ----------
    columns
        The names of the key's columns.
    name
        Returns a name for a new part.
    memory_bytes
        How much may be in memory; 0: any amount.
    spill_folder
        Where the rest goes.
    """

    def __init__(
        self, columns: Sequence[str], *, name: Callable[[], str], memory_bytes: int = 0, spill_folder: str = ""
    ) -> None:
        self._columns = list(columns)
        self._name = name
        self._memory_bytes = memory_bytes
        self._folder = spill_folder
        self._files = 0
        self._expired_us = -NEVER_US
        self._runs: list[_Run] = []

    @property
    def memory_bytes(self) -> int:
        """How many bytes are in memory."""
        return sum(run.nbytes for run in self._runs if not run.files)

    @property
    def spilled_bytes(self) -> int:
        """How many bytes are in local files."""
        return sum(run.nbytes for run in self._runs if run.files)

    def contain(self, keys: Any, hashes: Any, now_us: Any) -> Any:
        """Return which keys are known and expire after ``now_us``, which each of them has its own of.

        Parameters
        ----------
        keys
            A table of the key's columns, each key once.
        hashes
            Theirs.
        now_us
            By when what is known has expired, of each.
        """
        known = np.zeros(len(hashes), np.bool_)
        in_order = np.argsort(hashes)  # neighbours are found near each other, which caches like
        for run in self._runs:
            left = in_order[~known[in_order]]
            at = np.searchsorted(run.hashes, hashes[left])
            while len(left):  # once, unless two keys of a run have the same hash
                there = at < len(run.hashes)
                there[there] = run.hashes[at[there]] == hashes[left[there]]
                left, at = left[there], at[there]
                if len(left) == 0:
                    break
                found = run.table.take(pa.array(at))
                same = _same(found.select(self._columns), keys.take(pa.array(left)))
                same &= found.column(EXPIRY).to_numpy() > now_us[left]
                known[left[same]] = True
                left, at = left[~same], at[~same] + 1
            if run.files:
                give_back()
        return known

    def add(self, keys: Any) -> None:
        """Take keys that are not known, with their hashes and their expiry."""
        self._runs.append(self._made([keys]))
        while (many := self._alike()) >= FAN_IN:
            merged = self._runs[-many:]
            self._runs[-many:] = self._merged(merged)
            for run in merged:
                self._forget(run)
        self._spill()

    def adopt(self, name: str, keys: Any) -> None:
        """Take a part that was stored."""
        if keys.num_rows:
            self._runs.append(_Run([name], keys, keys.column(HASH).to_numpy()))
            self._spill()

    def expire(self, now_us: int) -> None:
        """Forget keys that expire by now: at once where most of a run does, else when it is merged."""
        self._expired_us = now_us
        kept = []
        for run in self._runs:
            if run.half_us > now_us:
                kept.append(run)
                continue
            if run.last_us > now_us:
                kept += self._merged([run])
            self._forget(run)
        self._runs = kept

    def parts(self) -> list[tuple[str, Any]]:
        """Return the names of all parts, and these; a part of a name never changes."""
        return [part for run in self._runs for part in run.parts]

    def close(self) -> None:
        """Delete all files."""
        for run in self._runs:
            self._forget(run)
        self._runs = []

    def _alike(self) -> int:
        """Return how many of the latest runs are not larger than the last one, by its order of size."""
        sizes = [tier(run.table.num_rows) for run in self._runs]
        return next((many for many in range(1, len(sizes)) if sizes[-many - 1] > sizes[-1]), len(sizes))

    def _made(self, tables: Sequence[Any]) -> _Run:
        """Return a run in memory."""
        table = _in_order(pa.concat_tables(tables))
        return _Run(self._names(table), table, table.column(HASH).to_numpy())

    def _names(self, table: Any) -> list[str]:
        return [self._name() for _ in range(max(1, -(-table.nbytes // part_bytes(self._memory_bytes))))]

    def _merged(self, runs: Sequence[_Run]) -> list[_Run]:
        """Return one run of what has not expired in several, or none."""
        size = sum(run.nbytes for run in runs)
        if self._memory_bytes == 0 or (size * 2 <= self._memory_bytes and not any(run.files for run in runs)):
            alive = [self._alive(run.table) for run in runs]
            return [self._made(alive)] if any(each.num_rows for each in alive) else []
        rows = sum(run.table.num_rows for run in runs)
        per_slab = max(1, min(_MERGED_ROWS, rows * self._memory_bytes // (4 * size)))
        bounds = np.linspace(0, 2.0**64, -(-rows // per_slab), endpoint=False)[1:].astype(np.uint64)
        cuts = [[0, *np.searchsorted(run.hashes, bounds).tolist(), run.table.num_rows] for run in runs]

        def slabs() -> Iterator[Any]:
            for slab in range(len(bounds) + 1):
                pieces = [run.table.slice(cut[slab], cut[slab + 1] - cut[slab]) for run, cut in zip(runs, cuts)]
                alive = [each for each in map(self._alive, pieces) if each.num_rows]
                if alive:
                    yield _in_order(pa.concat_tables(alive))
                give_back()

        return self._written(slabs())

    def _alive(self, table: Any) -> Any:
        """Return the keys that have not expired."""
        return table.filter(pc.greater(table.column(EXPIRY), self._expired_us))

    def _spill(self) -> None:
        """Write the largest runs to files, if there is more in memory than may be."""
        while self._memory_bytes and self.memory_bytes > self._memory_bytes:
            place = max(
                (place for place, run in enumerate(self._runs) if not run.files),
                key=lambda place: self._runs[place].nbytes,
            )
            run = self._runs[place]
            (self._runs[place],) = self._written(iter([run.table]), run.names)

    def _written(self, tables: Iterator[Any], names: Sequence[str] | None = None) -> list[_Run]:
        """Return a run in files of tables in the order of their hashes; of none, none."""
        first = next(tables, None)
        if first is None:
            return []
        self._files += 1
        os.makedirs(self._folder, exist_ok=True)
        rows, hashes = (os.path.join(self._folder, f"keys-{self._files}.{kind}") for kind in ("arrow", "hashes"))
        with (
            pa.OSFile(rows, "wb") as file,
            pa.ipc.new_file(file, first.schema) as writer,
            open(hashes, "wb") as of_hashes,
        ):
            for table in itertools.chain([first], tables):
                writer.write_table(table)
                of_hashes.write(table.column(HASH).to_numpy())
        table = mapped_table(rows)
        return [_Run(names or self._names(table), table, mapped_array(hashes, np.uint64), (rows, hashes))]

    def _forget(self, run: _Run) -> None:
        """Delete the files of a run; who still reads them has them mapped."""
        for path in run.files:
            os.unlink(path)


def _in_order(table: Any) -> Any:
    """Return keys in the order of their hashes."""
    return table.take(pa.array(np.argsort(table.column(HASH).to_numpy(), kind="stable"))).combine_chunks()


def _same(left: Any, right: Any) -> Any:
    """Return in which rows two tables have the same key; null is null."""
    places = pa.array(np.arange(left.num_rows))
    both = pa.concat_tables([each.append_column("place", places) for each in (left, right)])
    counts = both.group_by(both.column_names, use_threads=False).aggregate([([], "count_all")])
    same = np.zeros(left.num_rows, np.bool_)
    same[counts.filter(pc.equal(counts.column("count_all"), 2)).column("place").to_numpy()] = True
    return same
