"""Makes rows fit the columns that were promised: by name, in order, cast where nothing is lost.

Never: drop or invent a column, or let a null through where there may be none.
"""

from __future__ import annotations

import pyarrow as pa


class MisfitError(ValueError):
    """A batch does not fit; the message says how. ``columns``: its columns are wrong, whatever their values are."""

    def __init__(self, message: str, *, columns: bool) -> None:
        super().__init__(message)
        self.columns = columns


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with exactly the columns of ``schema``.

    Raises
    ------
    MisfitError
        A column is missing, there is one too many, or a value cannot become what was promised.
    """
    if not batch.schema.equals(schema):
        batch = _cast(batch, schema)
    for index, field in enumerate(schema):
        # A batch may say of itself that a column has no nulls: Arrow does not check it.
        if not field.nullable and batch.column(index).null_count:
            raise MisfitError(f"the column {field.name!r} has nulls and is declared NOT NULL", columns=False)
    return batch


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    found, wanted = batch.schema.names, schema.names
    known, needed = set(found), set(wanted)
    missing = [name for name in wanted if name not in known]
    surplus = [name for name in found if name not in needed]
    if missing or surplus or len(found) != len(wanted):
        raise MisfitError(
            f"its columns are {', '.join(found) or 'none'}; they should be {', '.join(wanted)}"
            + (f" (missing: {', '.join(missing)})" if missing else "")
            + (f" (not declared: {', '.join(surplus)})" if surplus else ""),
            columns=True,
        )
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise MisfitError(
                f"the column {field.name!r} has the type {column.type}; it should be {field.type}", columns=True
            ) from error
        except pa.ArrowException as error:
            raise MisfitError(
                f"the column {field.name!r} has the type {column.type}, and a value does not fit {field.type}: {error}",
                columns=False,
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
