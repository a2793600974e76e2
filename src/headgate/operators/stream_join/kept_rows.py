"""`KeptRows`: the rows that one side of a join keeps for those of the other, searched by the hashes of their keys.

Never: give a row that has expired.

They are in `headgate.state.sorted_runs`, with the watermark by which each is over. Which rows are matched changes while
what is stored does not: it is stored apart from them, as marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import equal_values, one_array
from headgate.state.part import HASH, MARKED, Layout, Marks, PartByHash
from headgate.state.sorted_runs import SortedRuns

EXPIRY = "expiry"
"""The watermark by which a row is over, in microseconds."""
ROWS = 2
"""The place of the first column of a row as it is stored: its hash and its expiry are before them."""


class Pairs(msgspec.Struct, frozen=True):
    """Pairs of rows that come and rows that are kept.

    Parameters
    ----------
    part
        Where those are that are kept.
    ours
        The places of those that come.
    places
        The places in the part.
    theirs
        The rows at these.
    """

    part: PartByHash
    ours: Any
    places: Any
    theirs: pa.RecordBatch


class KeptRows:
    """The rows of one side. For one thread.

    Parameters
    ----------
    schema
        The columns of the rows.
    keys
        The places of the key's.
    context
        Says where what does not fit into memory goes.
    number
        That of the side.
    name
        Returns a name for a new part.
    marks
        What it means that a row is matched (`headgate.state.part.Layout`).
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[int],
        context: OperatorContext,
        number: int,
        *,
        name: Callable[[], str],
        marks: Marks,
    ) -> None:
        self._schema = schema
        self._names = [f"column {place}" for place in range(len(schema))]  # the user's may be there twice
        self._keys = [self._names[place] for place in keys]
        self._marks = marks
        self.runs = SortedRuns(
            Layout((HASH, EXPIRY, *self._names), EXPIRY, marks=marks),
            name=name,
            memory_bytes=-(-context.memory_bytes // 2),
            spill_folder=f"{context.spill_folder}/{number}",
        )

    def find(self, keys: Sequence[pa.Array], hashes: Any, wanted: Any, now_us: Any) -> Iterator[Pairs]:
        """Yield the pairs of rows that come and rows that are kept, of equal keys.

        Parameters
        ----------
        keys, hashes
            Of all rows that come.
        wanted
            Which of them have keys that are no nulls.
        now_us
            By when what is kept is over, of each of the rows that come.
        """
        for part, ours, places in self.runs.find(hashes, wanted):
            kept = part.times[places] > now_us[ours]
            ours, places = ours[kept], places[kept]
            theirs = self.rows_at(part, places)
            for name, key in zip(self._keys, keys):
                same = equal_values(key.take(pa.array(ours)), theirs.column(self._names.index(name)))
                if not same.all():
                    ours, places, theirs = ours[same], places[same], theirs.filter(pa.array(same))
            if len(ours):
                yield Pairs(part, ours, places, theirs)

    def rows_at(self, part: PartByHash, places: Any) -> pa.RecordBatch:
        """Return some rows of a part."""
        taken = part.table.select(self._names).take(pa.array(places))
        return pa.RecordBatch.from_arrays([one_array(each) for each in taken.columns], schema=self._schema)

    def add(self, rows: pa.RecordBatch, hashes: Any, expiry: Any, matched: Any) -> None:
        """Take rows."""
        table = pa.table([pa.array(hashes), pa.array(expiry), *rows.columns], names=[HASH, EXPIRY, *self._names])
        self.runs.add(table if self._marks is None else table.append_column(MARKED, pa.array(matched)))

    def stored(self) -> Iterator[tuple[str, Any]]:
        """Yield the names of parts and their rows as they are stored."""
        for part in self.runs.parts:
            yield part.name, part.stored.rename_columns([HASH, EXPIRY, *self._schema.names])

    def adopt(self, name: str, table: Any, matched: Any, watermark_us: int) -> None:
        """Take a part that was stored; by a watermark what is over has been forgotten."""
        table = table.rename_columns([HASH, EXPIRY, *self._names])
        self.runs.adopt(name, table, None if self._marks is None else matched, over_us=watermark_us)
