"""``headgate state``: the keyed state of a checkpoint as tables, for people or as Parquet.

Never: hold the state of more than one subtask at a time, or show bytes where the checkpoint says what they mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.app import (
    AsJson,
    CheckpointId,
    Location,
    bytes_text,
    command_group,
    epilog,
    plain,
    write_json,
    write_lines,
    write_table,
)
from headgate.cli.stored import Stored, stored
from headgate.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.checkpoint.manifest import Manifest

app = command_group(
    "Look at the state by key of a checkpoint.",
    "headgate state read /data/checkpoints/rides --operator window --output windows.parquet",
)


@app.callback()
def _group() -> None:
    """Look at the state by key of a checkpoint."""


@app.command(
    "read",
    epilog=epilog(
        """
        headgate state read /data/checkpoints/rides

        headgate state read /data/checkpoints/rides --operator window --limit 100

        headgate state read s3://bucket/savepoints/rides --operator totals --table visits --output visits.parquet
        """
    ),
)
def read(
    location: Location,
    operator: Annotated[str | None, typer.Option(help="The uid of an operator; without it those with state.")] = None,
    table: Annotated[
        str | None, typer.Option(help="Which table of the operator: a state variable, timers, left, right ...")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write all rows of one table to this Parquet file.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many rows of each table are shown at most.")] = 20,
    checkpoint_id: CheckpointId = None,
    as_json: AsJson = False,
) -> None:
    """Show windows, known keys, kept rows of joins and state variables; or which operators have any."""
    found = stored(location, checkpoint_id)
    manifest, _ = found.written()
    if operator is None:
        if table is not None or output is not None:
            raise OptionError("--table and --output need --operator: say whose state.", option="--operator", value=None)
        _write_operators(manifest, as_json)
        return
    _check_operator(manifest, operator)
    tables = _read(found, manifest, operator)
    if table is not None:
        tables = ((name, rows) for name, rows in tables if name == table)
    if output is not None:
        rows_written = _write_parquet(tables, operator, table, output)
        if as_json:
            write_json({"operator": operator, "output": output, "rows": rows_written})
        else:
            write_lines(f"{rows_written} rows of {operator!r} in {output}")
        return
    shown, counts = _first_rows(tables, limit)
    if table is not None and table not in counts:
        raise _no_table(operator, table)
    if as_json:
        documents = {
            name: {"rows": counts[name], "schema": {field.name: str(field.type) for field in rows.schema},
                   "first": [{key: plain(value) for key, value in row.items()} for row in rows.to_pylist()]}
            for name, rows in shown.items()
        }  # fmt: skip
        write_json({"operator": operator, "tables": documents})
        return
    if not shown:
        write_lines(f"{operator!r} has no state in {found.name}")
    for name, rows in shown.items():
        more = f", the first {rows.num_rows} are shown" if rows.num_rows < counts[name] else ""
        write_lines(f"{name}: {counts[name]} rows{more}")
        write_table(rows.column_names, [[_cell(value) for value in row.values()] for row in rows.to_pylist()])
        write_lines("")


def _write_operators(manifest: Manifest, as_json: bool) -> None:
    from headgate.protocol.state import InlineState

    found: list[dict[str, Any]] = []
    for uids, subtasks in zip(manifest.stages, manifest.subtasks):
        for uid in uids:
            chunks = [chunk for each in subtasks if uid in each.keyed for chunk in each.keyed[uid].chunks]
            if chunks:
                handles = [chunk.handle for chunk in chunks]
                sizes = [len(each.data) if isinstance(each, InlineState) else each.size_bytes for each in handles]
                found.append({"operator": uid, "stateBytes": sum(sizes), "signature": manifest.signatures.get(uid, "")})
    if as_json:
        write_json(found)
        return
    write_table(
        ["operator", "state", "of"],
        [[each["operator"], bytes_text(each["stateBytes"]), each["signature"]] for each in found],
    )


def _check_operator(manifest: Manifest, operator: str) -> None:
    keyed = sorted({uid for stage in manifest.subtasks for each in stage for uid in each.keyed})
    if operator not in keyed:
        raise OptionError(
            f"There is no state by key of {operator!r}: the checkpoint has that of "
            f"{', '.join(map(repr, keyed)) or 'no operator'}.",
            option="--operator", value=operator,
        )  # fmt: skip


def _no_table(operator: str, table: str) -> OptionError:
    return OptionError(
        f"The state of {operator!r} has no table {table!r}. Leave --table out to see which ones it has.",
        option="--table", value=table,
    )  # fmt: skip


def _read(found: Stored, manifest: Manifest, uid: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables of all subtasks, one subtask after the other."""
    from functools import partial

    import pyarrow as pa

    from headgate.operators.stored_state import stored_state
    from headgate.protocol.operator_context import OperatorContext
    from headgate.state.chunks import RestoredChunk

    subtasks = next(states for uids, states in zip(manifest.stages, manifest.subtasks) if uid in uids)
    for number, subtask in enumerate(subtasks):
        if uid not in subtask.keyed:
            continue
        chunks = [
            RestoredChunk(each.chunk_id, True, partial(found.storage.read_state, each.handle))
            for each in subtask.keyed[uid].chunks
        ]
        context = OperatorContext(
            uid=uid, subtask=number, parallelism=len(subtasks), max_parallelism=manifest.max_parallelism
        )
        tables = stored_state(
            manifest.signatures.get(uid, ""), manifest.state_schemas.get(uid), context, chunks, manifest.created_ms
        )
        for name, rows in tables:
            yield name, pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def _first_rows(tables: Iterator[tuple[str, pa.Table]], limit: int) -> tuple[dict[str, pa.Table], dict[str, int]]:
    """Return the first rows of each table, and how many it has."""
    import pyarrow as pa

    shown: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name, rows in tables:
        counts[name] = counts.get(name, 0) + rows.num_rows
        if name not in shown:
            shown[name] = rows.slice(0, limit)
        elif shown[name].num_rows < limit:
            shown[name] = pa.concat_tables([shown[name], rows.slice(0, limit - shown[name].num_rows)])
    return shown, counts


def _write_parquet(tables: Iterator[tuple[str, pa.Table]], operator: str, table: str | None, output: str) -> int:
    """Write one table, and return how many rows it has. The file is there whole, or not at all."""
    import pyarrow.parquet as pq

    writer, written, rows_written = None, table, 0
    temporary = f"{output}.part"
    try:
        for name, rows in tables:
            if written is None:
                written = name
            if name != written:
                raise OptionError(
                    f"The state of {operator!r} has several tables, such as {written!r} and {name!r}: say with --table "
                    "which one to write.",
                    option="--table", value=None,
                )  # fmt: skip
            if writer is None:
                writer = pq.ParquetWriter(temporary, rows.schema)
            writer.write_table(rows)
            rows_written += rows.num_rows
    except OSError as error:
        raise OptionError(f"{output} cannot be written: {error}.", option="--output", value=output) from error
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise _no_table(operator, table or "with rows")
    os.replace(temporary, output)
    return rows_written


def _cell(value: Any) -> Any:
    """Return a value as it stands in a table: a window as its start and its end."""
    value = plain(value)
    is_window = isinstance(value, dict) and set(value) == {"start", "end"}
    return f"{value['start']} to {value['end']}" if is_window else value
