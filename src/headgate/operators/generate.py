"""`Explode` and `Stack`: several rows of one.

Never: keep anything between two batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.state.arrays import numbers_from


class Explode(Operator):
    """A row for each element of a list, or each entry of a map.

    Parameters
    ----------
    schema
        The columns of its input.
    place
        The place of the list or the map; null is an empty one.
    kept
        The places of the columns that stay.
    fields
        The columns that are added: of an element, of a map's keys and its values, or of the fields of an element.
    outer
        Whether an empty one is a row too, of nulls.
    position
        Whether the first of ``fields`` is the element's number, from 0.
    inline
        Whether the elements are structs, and ``fields`` are theirs.
    """

    kind = "explode"

    def __init__(
        self,
        schema: pa.Schema,
        place: int,
        kept: Sequence[int],
        fields: Sequence[pa.Field],
        *,
        outer: bool = False,
        position: bool = False,
        inline: bool = False,
    ) -> None:
        self._place = place
        self._kept = list(kept)
        self._outer = outer
        self._position = position
        self._inline = inline
        self.function = f"explode({schema.names[place]})"
        self.schema = pa.schema([*(schema.field(each) for each in kept), *fields])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows of the elements, in order."""
        lists = batch.column(self._place)
        starts = lists.offsets.to_numpy()
        lengths = np.where(lists.is_valid().to_numpy(zero_copy_only=False), np.diff(starts), 0)
        rows = np.maximum(lengths, 1) if self._outer else lengths
        parents = np.repeat(np.arange(batch.num_rows), rows)
        numbers = numbers_from(np.zeros_like(rows), rows)
        none = numbers >= lengths[parents]
        places = pa.array(numbers + starts[parents], mask=none)
        columns = [batch.column(each).take(pa.array(parents)) for each in self._kept]
        if self._position:
            columns.append(pa.array(numbers.astype(np.int32), mask=none))
        columns += [each.take(places) for each in self._elements(lists)]
        columns = [each if each.type == kind else each.cast(kind) for each, kind in zip(columns, self.schema.types)]
        emit(pa.RecordBatch.from_arrays(columns, schema=self.schema), split_id)

    def _elements(self, lists: pa.Array) -> list[pa.Array]:
        if isinstance(lists, pa.MapArray):
            return [lists.keys, lists.items]
        return list(lists.values.flatten()) if self._inline else [lists.values]


class Stack(Operator):
    """So many rows of each, in the columns of values that are there.

    Parameters
    ----------
    schema
        The columns of its input.
    rows
        For each row that is made, the places of its values; where they end, nulls follow.
    kept
        The places of the columns that stay.
    fields
        The columns that are added.
    """

    kind = "stack"

    def __init__(
        self, schema: pa.Schema, rows: Sequence[Sequence[int]], kept: Sequence[int], fields: Sequence[pa.Field]
    ) -> None:
        self._rows = [list(each) for each in rows]
        self._kept = list(kept)
        self._fields = list(fields)
        self.function = f"stack({len(rows)})"
        self.schema = pa.schema([*(schema.field(each) for each in kept), *fields])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows of each, in order."""
        count, many = batch.num_rows, len(self._rows)
        parents = pa.array(np.repeat(np.arange(count), many))
        columns = [batch.column(each).take(parents) for each in self._kept]
        order = pa.array(np.arange(count * many).reshape(many, count).T.ravel())
        for number, field in enumerate(self._fields):
            of_rows = [
                batch.column(row[number]).cast(field.type) if number < len(row) else pa.nulls(count, field.type)
                for row in self._rows
            ]
            columns.append(pa.concat_arrays(of_rows).take(order))
        emit(pa.RecordBatch.from_arrays(columns, schema=self.schema), split_id)
