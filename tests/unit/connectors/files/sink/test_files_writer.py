"""Staging: a file per checkpoint with rows, carried until one completes, and errors that surface."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from faulty_files import OUTPUT, DyingHandler, in_memory, listed, text
from faulty_files import writer as make_writer

from headgate.connectors.files.sink.encodings import ParquetEncoding
from headgate.connectors.files.sink.partition_folders import PartitionFolders
from headgate.connectors.files.sink.staged_files import StagedFile, StagedNames, decode_staged
from headgate.connectors.files.sink.writer import FilesWriter
from headgate.errors import SinkError
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema({"id": pa.int64()})
CONTEXT = OperatorContext(uid="sink", subtask=0, parallelism=1, run=1, execution=1, query_id="q")


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def writing(handler: DyingHandler, target_bytes: int = 1 << 20) -> FilesWriter:
    return make_writer(handler, StagedNames(CONTEXT, "json"), SCHEMA, target_bytes)


def prepared(writer: FilesWriter, checkpoint_id: int) -> list[StagedFile]:
    state = writer.prepare_commit(checkpoint_id, final=False).result(60)
    assert not state.items
    return [decode_staged(each) for each in state.committables]


def staged(files: Any) -> list[str]:
    return listed(files, f"{OUTPUT}/_staging")


def test_a_checkpoint_without_rows_stages_nothing() -> None:
    files = in_memory()
    writer = writing(DyingHandler(files))
    writer.write(rows())
    assert prepared(writer, 1) == [] and staged(files) == []
    writer.close()


def test_a_checkpoint_is_one_file_with_the_rows_before_it() -> None:
    files = in_memory()
    writer = writing(DyingHandler(files))
    writer.write(rows(1, 2))
    writer.write(rows(3))
    (file,) = prepared(writer, 1)
    content = text(files, f"{OUTPUT}/_staging/{file.name}")
    assert (file.output, file.rows, file.size) == (OUTPUT, 3, len(content))
    assert content.split() == ['{"id":1}', '{"id":2}', '{"id":3}']
    writer.close()
    assert staged(files) == [file.name], "a checkpoint names it"


def test_what_no_completed_checkpoint_holds_is_carried() -> None:
    """A failed checkpoint aborts nothing."""
    writer = writing(DyingHandler(in_memory()))
    counts = []
    for checkpoint_id in range(1, 5):
        writer.write(rows(*range(checkpoint_id)))
        counts.append([each.rows for each in prepared(writer, checkpoint_id)])
        if checkpoint_id == 3:
            writer.notify_checkpoint_complete(2)
    assert counts == [[1], [1, 2], [1, 2, 3], [3, 4]]
    writer.notify_checkpoint_complete(4)
    assert prepared(writer, 5) == []
    writer.close()


def test_large_checkpoints_are_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.writer._GROUP_BYTES", 64)
    files = in_memory()
    writer = writing(DyingHandler(files), target_bytes=128)
    for number in range(10):
        writer.write(rows(*range(8 * number, 8 * number + 8)))
    assert [each.rows for each in prepared(writer, 1)] == [16, 16, 16, 16, 16]
    writer.close()


def test_close_deletes_what_no_checkpoint_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.writer._GROUP_BYTES", 8)
    monkeypatch.setattr("headgate.connectors.files.sink.writer._CLOSE_TIMEOUT_S", 60)
    files = in_memory()
    writer = writing(DyingHandler(files), target_bytes=16)
    writer.write(rows(1))
    named = prepared(writer, 1)
    writer.write(rows(2, 3))  # a whole file
    writer.write(rows(4))  # one that is begun
    writer._thread.submit(lambda: None).result(60)
    assert len(staged(files)) == 3
    writer.close()
    assert staged(files) == [named[0].name]


def test_more_than_may_wait_asks_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.writer._QUEUE_BYTES", 64)
    writer = writing(DyingHandler(in_memory()))
    go_on = threading.Event()
    writer._thread.submit(lambda: go_on.wait(60))
    assert writer.ready() is None
    writer.write(rows(*range(9)))
    room = writer.ready()
    assert room is not None and not room.done()
    go_on.set()
    assert room.result(60) is None and writer.ready() is None
    writer.close()


@pytest.mark.parametrize("dies_at", [1, 2])
def test_an_error_of_the_file_system_surfaces_everywhere(dies_at: int) -> None:
    writer = writing(DyingHandler(in_memory(), dies_at))
    writer.write(rows(1))
    with pytest.raises(SinkError, match="could not stage rows in out"):
        writer.prepare_commit(1, final=False).result(60)
    writer._thread.stop(60)
    for call in (lambda: writer.write(rows(2)), writer.ready):
        with pytest.raises(SinkError):
            call()
    assert isinstance(writer.prepare_commit(2, final=True).exception(60), SinkError)
    writer.close()


def test_rows_that_do_not_fit_the_schema_are_an_error() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    writer = make_writer(DyingHandler(in_memory()), StagedNames(CONTEXT, "json"), schema)
    writer.write(pa.record_batch({"id": pa.array([None], pa.int64())}))
    assert isinstance(writer.prepare_commit(1, final=False).exception(60), SinkError)
    writer.close()


@pytest.mark.parametrize("batch", [pa.record_batch({"id": [2**40]}), pa.record_batch({"other": [1]})])
def test_rows_are_never_bent_to_the_schema(batch: pa.RecordBatch) -> None:
    schema = pa.schema({"id": pa.int32()})
    writer = make_writer(DyingHandler(in_memory()), StagedNames(CONTEXT, "json"), schema)
    writer.write(batch)
    assert isinstance(writer.prepare_commit(1, final=False).exception(60), SinkError)
    writer.close()


def test_types_that_files_do_not_have_become_ones_that_they_have(tmp_path: Any) -> None:
    arrays = {
        "word": pa.array(["a", None]).dictionary_encode(),
        "ns": pa.array([1_500, None], pa.timestamp("ns", "Europe/Paris")),
        "day": pa.array([86_400_000, None], pa.date64()),
        "view": pa.array(["v", None], pa.string_view()),
        "fixed": pa.array([b"ab", None], pa.binary(2)),
        "list": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        "nested": pa.array([{"ms": 1}, None], pa.struct([("ms", pa.timestamp("ms"))])),
    }
    batch = pa.record_batch(arrays)
    encoding = ParquetEncoding("none")
    files = pa_fs.LocalFileSystem()
    names = StagedNames(CONTEXT, encoding.extension)
    writer = FilesWriter(files, str(tmp_path), encoding, batch.schema, names, 1 << 20)
    writer.write(batch)
    (file,) = prepared(writer, 1)
    writer.close()
    table = pa.parquet.read_table(tmp_path / "_staging" / file.name)
    assert [str(each) for each in table.schema.types] == [
        "string", "timestamp[us, tz=UTC]", "date32[day]", "string", "binary", "list<element: int8>",
        "struct<ms: timestamp[us]>",
    ]  # fmt: skip
    assert table.column("ns").cast(pa.int64()).to_pylist() == [1, None]


def partitioned_rows(ids: list[int], by: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "by": pa.array(by, pa.string())})


def test_rows_are_staged_by_partition_without_its_columns() -> None:
    files = in_memory()
    schema = partitioned_rows([], []).schema
    names, folders = StagedNames(CONTEXT, "json"), PartitionFolders(["by"], "UTC")
    writer = make_writer(DyingHandler(files), names, schema, 1 << 20, folders)
    writer.write(partitioned_rows([1, 2, 3], ["a", None, "a"]))
    writer.write(partitioned_rows([4, 5], ["", "b"]))
    found = {each.folder: text(files, f"{OUTPUT}/_staging/{each.name}").split() for each in prepared(writer, 1)}
    writer.close()
    assert found == {
        "by=a": ['{"id":1}', '{"id":3}'], "by=b": ['{"id":5}'],
        "by=__HIVE_DEFAULT_PARTITION__": ['{"id":2}', '{"id":4}'],
    }  # fmt: skip


def test_what_partitions_hold_and_their_open_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.writer._HELD_BYTES", 20_000)
    monkeypatch.setattr("headgate.connectors.files.sink.writer._OPEN_FILES", 3)
    files = in_memory()
    schema = partitioned_rows([], []).schema
    names, folders = StagedNames(CONTEXT, "json"), PartitionFolders(["by"], "UTC")
    writer = make_writer(DyingHandler(files), names, schema, 1 << 20, folders)
    for number in range(100):
        writer.write(partitioned_rows([number, number], [f"p{number % 25}", "often"]))
        held, opened = writer._thread.submit(lambda: (writer._held_bytes, len(writer._files))).result(60)
        assert held < 20_000 and opened <= 3
    found = prepared(writer, 1)
    writer.close()
    rows_of = {f"by=p{number}": 4 for number in range(25)} | {"by=often": 100}
    assert {folder: sum(each.rows for each in found if each.folder == folder) for folder in rows_of} == rows_of
    assert len(found) > len(rows_of), "some partitions had several files, since few may be open"
    assert staged(files) == sorted(each.name for each in found)
