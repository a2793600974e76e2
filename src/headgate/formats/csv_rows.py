"""Tokens of records to a record batch: types, null values, and what ``mode`` says about malformed records.

Never: cut text.

Follows Spark 4.3's ``UnivocityParser.convert`` and ``FailureSafeParser``: a record is malformed if it has not as many
tokens as the file has columns, or a token is not a value of its column's type. What can be converted is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import BadDataError
from headgate.formats import shared_options as shared
from headgate.formats.csv_tokenizer import Tokens
from headgate.formats.values import cast_strings, check_type


class FileColumns(msgspec.Struct, frozen=True):
    """Where the columns of a schema are in the lines of a file.

    Parameters
    ----------
    count
        How many tokens a line has.
    indexes
        For each column of the schema its place in a line; None for the column of corrupt records.
    """

    count: int
    indexes: tuple[int | None, ...]


class RowBuilder:
    """Makes batches of one schema."""

    def __init__(
        self, schema: pa.Schema, mode: str, corrupt_column: str, options: Mapping[str, Any], time_zone: str
    ) -> None:
        self.schema = schema
        self.mode = mode
        self.corrupt_index: int | None = schema.get_field_index(corrupt_column)
        if self.corrupt_index < 0:
            self.corrupt_index = None
        self.needs_raw_records = mode == shared.FAILFAST or (
            mode == shared.PERMISSIVE and self.corrupt_index is not None
        )
        for index, field in enumerate(schema):
            if index != self.corrupt_index:
                check_type(field.type, options, time_zone)
        self._null_value = options["nullValue"]
        self._options = options
        self._time_zone = time_zone

    def from_tokens(
        self,
        rows: Sequence[Tokens],
        columns: FileColumns,
        raw_record: Callable[[int], str],
        bad_record: Callable[[int, str], BadDataError],
    ) -> pa.RecordBatch:
        """Return the batch of some records.

        Parameters
        ----------
        raw_record
            Returns the text of a row as it stood in the file.
        bad_record
            Returns the error for a row, given what is wrong with it.
        """
        null_value = self._null_value
        short = [len(row) != columns.count for row in rows]
        bad = pa.array(short, pa.bool_()) if any(short) else None
        by_column = None if bad is not None else list(zip(*rows, strict=True))
        reason = "it has {found} columns where {expected} are expected"
        arrays: list[pa.Array | None] = []
        for field, index in zip(self.schema, columns.indexes, strict=True):
            if index is None:
                arrays.append(None)
                continue
            texts = by_column[index] if by_column else [row[index] if index < len(row) else None for row in rows]
            cells = pa.array(texts, pa.string())
            cells = pc.if_else(pc.equal(cells, null_value), pa.scalar(None, pa.string()), cells)
            array, bad_cells = cast_strings(cells, field.type, self._options, self._time_zone)
            arrays.append(array)
            if bad_cells is not None:
                bad = bad_cells if bad is None else pc.or_(bad, bad_cells)
                first = pc.index(bad_cells, True).as_py()
                reason = (
                    reason if any(short) else f"{texts[first]!r} in column {field.name!r} is not a valid {field.type}"
                )
        if bad is not None and self.mode == shared.FAILFAST:
            first = pc.index(bad, True).as_py()
            raise bad_record(first, reason.format(found=len(rows[first]), expected=columns.count))
        corrupt = None
        if bad is not None and self.corrupt_index is not None:
            texts = [raw_record(row) if is_bad else None for row, is_bad in enumerate(bad.to_pylist())]
            corrupt = pa.array(texts, pa.string())
        return self.from_arrays(arrays, len(rows), bad, corrupt)

    def from_arrays(
        self, arrays: Sequence[pa.Array | None], count: int, bad: pa.Array | None, corrupt: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Return the batch of typed columns; malformed rows are dropped if ``mode`` says so."""
        if not len(self.schema):
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        else:
            whole = [
                each if each is not None else corrupt if corrupt is not None else pa.nulls(count, field.type)
                for field, each in zip(self.schema, arrays, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(whole, schema=self.schema)
        if bad is not None and self.mode == shared.DROPMALFORMED:
            batch = batch.filter(pc.invert(bad))
        return batch
