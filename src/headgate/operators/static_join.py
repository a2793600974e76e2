"""`StaticJoin`: joins rows with a table that was collected when the query started.

Never: change the table, or keep anything between two batches.

The table is searched by the hash of its keys, in whose order it is, a batch at a time; pairs of one hash are compared
by key. As in Spark 4.3 null is equal to nothing but, with ``<=>``, to null; NaN is NaN, and -0.0 is 0.0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.compiled import Run, compiled
from headgate.expressions.expressions import Node
from headgate.operators.key_hash import key_hash
from headgate.operators.operator import Emit, Operator
from headgate.operators.windows.windowed import comparable_key
from headgate.state.arrays import equal_values, numbers_from, one_array

JoinKind = Literal["inner", "left", "semi", "anti"]
_indexing = threading.Lock()


class StaticTable:
    """A table beside a stream. All subtasks of a process share it.

    Parameters
    ----------
    name
        What it is, for messages.
    schema
        Its columns; the keys are the last ones.
    null_safe
        For each key whether null is equal to null.
    collect
        Returns its rows. Called on the driver, when the query starts.
    """

    def __init__(
        self, name: str, schema: pa.Schema, null_safe: Sequence[bool], collect: Callable[[], pa.Table]
    ) -> None:
        self.name = name
        self.schema = schema
        self.null_safe = tuple(null_safe)
        self._collect: Callable[[], pa.Table] | None = collect
        self._table: Any = None
        self._index: tuple[Any, Any, list[pa.Array]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_collect": None, "_index": None}

    def loaded(self, limit_bytes: int) -> StaticTable:
        """Return it with the rows that it has now.

        Raises
        ------
        OptionError
            It is larger than it may be.
        """
        assert self._collect is not None
        table = self._collect().cast(self.schema)
        if table.nbytes > limit_bytes:
            raise OptionError(
                f"The static side of a join, {self.name}, has {table.nbytes} bytes; the option 'static.memory' allows "
                f"{limit_bytes}, which each process of slots needs for it. Select fewer rows and columns of it, or set "
                "the option higher.",
                option="static.memory", value=limit_bytes, table=self.name, size=table.nbytes,
            )  # fmt: skip
        made = StaticTable(self.name, self.schema, self.null_safe, self._collect)
        made._table = table
        return made

    def index(self) -> tuple[Any, Any, list[pa.Array]]:
        """Return the rows that can be equal to others in the order of their keys' hashes, these, and the keys."""
        with _indexing:
            if self._index is None:
                self._index = self._indexed()
            return self._index

    def _indexed(self) -> tuple[Any, Any, list[pa.Array]]:
        many = len(self.null_safe)
        keys = [comparable_key(one_array(each)) for each in self._table.columns[-many:]]
        kept = np.flatnonzero(matchable(keys, self.null_safe))
        hashes = key_hash(keys)[kept]
        order = np.argsort(hashes, kind="stable")
        places = pa.array(kept[order])
        rows = self._table.select(range(len(self.schema) - many)).take(places).combine_chunks()
        return rows, hashes[order], [each.take(places) for each in keys]


def matchable(keys: Sequence[pa.Array], null_safe: Sequence[bool]) -> Any:
    """Return which rows have no null among the keys where null is equal to nothing."""
    found = np.ones(len(keys[0]), np.bool_)
    for key, safe in zip(keys, null_safe, strict=True):
        if not safe and key.null_count:
            found &= key.is_valid().to_numpy(zero_copy_only=False)
    return found


class StaticJoin(Operator):
    """Joins each row with the rows of a table that have equal keys, and for which a condition is true.

    Parameters
    ----------
    schema
        The columns of its input.
    keys
        The places of the keys.
    table
        The other side.
    kind
        ``inner``; ``left``: rows that are equal to none have nulls; ``semi`` and ``anti``: only the input's columns, of
        rows that are equal to some or none.
    fields
        The columns of the table, under the names that they have among those of the input.
    condition
        What is to be true of both; over the columns of the input and ``fields``; None: nothing.
    time_zone
        The session's.
    """

    kind = "join"

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[int],
        table: StaticTable,
        kind: JoinKind,
        fields: Sequence[pa.Field],
        condition: Node | None,
        time_zone: str,
    ) -> None:
        self._keys = list(keys)
        self.table = table
        self._join = kind
        self._both = pa.schema([*schema, *fields])
        self._condition = condition
        self._time_zone = time_zone
        self.function = f"{kind} join with {table.name}"
        self.schema = self._both if kind in ("inner", "left") else schema

    @cached_property
    def _is_true(self) -> Run | None:
        return None if self._condition is None else compiled(self._condition, self._both, self._time_zone).run

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows that this batch gives."""
        ours, theirs = self._pairs(batch)
        if self._is_true is not None:
            true = self._is_true(self._joined(batch, ours, theirs)).fill_null(False).to_numpy(zero_copy_only=False)
            ours, theirs = ours[true], theirs[true]
        if self._join == "inner":
            emit(self._joined(batch, ours, theirs), split_id)
            return
        equal = np.zeros(batch.num_rows, np.bool_)
        equal[ours] = True
        if self._join != "left":
            emit(batch.filter(pa.array(equal if self._join == "semi" else ~equal)), split_id)
            return
        (none,) = np.nonzero(~equal)
        all_ours, all_theirs = np.concatenate([ours, none]), np.concatenate([theirs, np.full(len(none), -1)])
        order = np.argsort(all_ours, kind="stable")
        emit(self._joined(batch, all_ours[order], all_theirs[order]), split_id)

    def _pairs(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """Return the places of equal rows here and in the table, in the order of those here."""
        _, hashes, of_table = self.table.index()
        keys = [comparable_key(batch.column(each)) for each in self._keys]
        wanted = key_hash(keys)
        begin = np.searchsorted(hashes, wanted, "left")
        counts = np.searchsorted(hashes, wanted, "right") - begin
        counts[~matchable(keys, self.table.null_safe)] = 0
        ours = np.repeat(np.arange(batch.num_rows), counts)
        theirs = numbers_from(begin, counts)
        same = np.ones(len(ours), np.bool_)
        for left, right in zip(keys, of_table, strict=True):
            same &= equal_values(left.take(pa.array(ours)), right.take(pa.array(theirs)))
        return ours[same], theirs[same]

    def _joined(self, batch: pa.RecordBatch, ours: Any, theirs: Any) -> pa.RecordBatch:
        """Return pairs of rows; ``theirs`` is -1 where there is none."""
        rows, _, _ = self.table.index()
        places = pa.array(theirs, mask=theirs < 0)
        columns = [each.take(pa.array(ours)) for each in batch.columns]
        for each, field in zip(rows.columns, list(self._both)[batch.num_columns :], strict=True):
            whole = each.chunk(0) if each.num_chunks else pa.nulls(0, field.type)
            columns.append(whole.take(places))
        return pa.RecordBatch.from_arrays(columns, schema=self._both)
