"""Makes the data of the benches from a seed, once, and keeps it in ``.cache/bench``.

Five columns, the same in every format: key (100 different texts), id, amount (two decimals), at, note (8 to 24
characters). Never: use a clock or an unseeded generator.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from bench.frame import CACHE, console

SEED = 20130101
SCHEMA = "key string, id bigint, amount double, at timestamp, note string"
ROW_GROUP_ROWS = 262_144
CHUNK_ROWS = 250_000

_CHARACTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", dtype=np.uint8)


def _chunk(first_id: int, rows: int) -> pa.Table:
    """Return the rows from ``first_id`` on: the same whatever the sizes of files are."""
    random = np.random.default_rng((SEED, first_id))
    keys = pa.array([f"key-{number:02}" for number in range(100)])
    lengths = random.integers(8, 25, rows)
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    characters = _CHARACTERS[random.integers(0, len(_CHARACTERS), ends[-1])].copy()
    characters[ends[:-1]] = ord("n")  # neither empty nor with blanks at its ends, which CSV readers may treat otherwise
    characters[ends[1:] - 1] = ord("e")
    # A quarter of a second apart, from 2026-01-01 on.
    at = 1_767_225_600_000 + (np.arange(first_id, first_id + rows, dtype=np.int64) * 250)
    return pa.table({
        "key": keys.take(pa.array(random.integers(0, 100, rows))),
        "id": pa.array(np.arange(first_id, first_id + rows, dtype=np.int64)),
        "amount": pa.array(random.integers(0, 1_000_000, rows) / 100),
        "at": pa.array(at, pa.timestamp("ms", "UTC")),
        "note": pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(characters)),
    })  # fmt: skip


def _with_text_times(table: pa.Table) -> pa.Table:
    times = pc.strftime(table.column("at"), "%Y-%m-%dT%H:%M:%SZ")
    return table.set_column(3, "at", times)


def _chunks(first_id: int, rows: int) -> Iterator[pa.Table]:
    for begin in range(first_id, first_id + rows, CHUNK_ROWS):
        yield _chunk(begin, min(CHUNK_ROWS, first_id + rows - begin))


def _write_csv(path: Path, first_id: int, rows: int) -> None:
    # No value holds a separator, a quote or a line end, so nothing needs quotes.
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write(b"key,id,amount,at,note\n")
        for table in _chunks(first_id, rows):
            pa_csv.write_csv(_with_text_times(table), file, options)


def _write_json(path: Path, first_id: int, rows: int) -> None:
    with path.open("wb") as file:
        for table in _chunks(first_id, rows):
            table = _with_text_times(table)
            text = {name: pc.cast(table.column(name), pa.string()) for name in table.column_names}
            lines = pc.binary_join_element_wise(
                '{"key":"', text["key"], '","id":', text["id"], ',"amount":', text["amount"],
                ',"at":"', text["at"], '","note":"', text["note"], '"}\n', "",
            )  # fmt: skip
            for chunk in lines.chunks:
                _, ends, characters = chunk.buffers()
                file.write(characters.slice(0, int(np.frombuffer(ends, np.int32)[len(chunk)])))


def _write_parquet(path: Path, first_id: int, rows: int) -> None:
    with pq.ParquetWriter(path, pa.schema(_chunk(0, 1).schema)) as writer:
        table = pa.concat_tables(_chunks(first_id, rows))
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


_WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
}


def folder(file_format: str, rows: int, files: int) -> Path:
    """Return a folder with this data, made now if it is not there."""
    target = CACHE / f"{file_format}-{rows}-rows-{files}-files-seed-{SEED}"
    if target.exists():
        return target
    console.print(f"making {rows:,} rows of {file_format} in {files} files (kept in {target.parent})", soft_wrap=True)
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    each = math.ceil(rows / files)
    for number in range(files):
        first_id = number * each
        _WRITERS[file_format](unfinished / f"part-{number:05}.{file_format}", first_id, min(each, rows - first_id))
    unfinished.rename(target)
    return target
