"""Pieces of staged rows: numbered through, large ones in files, and none left of what no checkpoint has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headgate.sink import staging
from headgate.sink.staging import InlineRows, PieceWriter, RowsFile, StagingFolder

SCHEMA = pa.schema({"n": pa.int64()})


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def test_pieces_are_numbered_through_and_only_a_small_last_one_is_inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StagingFolder(str(tmp_path), "headgate.kafka")
    pieces = PieceWriter(folder, "staged/n/a-", SCHEMA, inline_bytes=100_000)
    assert pieces.take(1) == []
    monkeypatch.setattr(staging, "_PIECE_BYTES", 100)
    pieces.add(rows(*range(100)))
    monkeypatch.undo()
    pieces.add(rows(100))
    first = pieces.take(2)
    pieces.add(rows(101))
    second = pieces.take(3)
    assert [(each.number, each.checkpoint_id, type(each.rows)) for each in first + second] == [
        (0, 2, RowsFile), (1, 2, InlineRows), (2, 3, InlineRows),
    ]  # fmt: skip
    found = [number for each in first + second for number in folder.read(each.rows).read_all()["n"].to_pylist()]
    assert found == list(range(102))
    assert [each.name for each in tmp_path.rglob("*.*")] == ["a-0.arrow"]


def test_what_was_not_taken_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_PIECE_BYTES", 1)
    pieces = PieceWriter(StagingFolder(str(tmp_path), "headgate.kafka"), "staged/n/", SCHEMA)
    pieces.add(rows(1))
    (kept,) = pieces.take(1)
    pieces.add(rows(2))
    pieces.discard()
    assert [each.name for each in tmp_path.rglob("*.*")] == ["0.arrow"]
    assert kept.number == 0
