"""The writer around PySpark's ``write``: one call for each epoch, and what it says of errors. Threads, but no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from headgate.errors import CorruptStateError, SinkError, UserFunctionError
from headgate.spark.continuous.python_data_source import (
    MESSAGE_SERIALIZER,
    PythonSinkCommitter,
    PythonSinkWriter,
    StoredMessage,
    _loaded,
)

SCHEMA = pa.schema({"n": pa.int64()})


class Wrote(WriterCommitMessage):
    """What one call wrote."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers


def collect(batches: Iterator[pa.RecordBatch]) -> Wrote:
    return Wrote([number for batch in batches for number in batch.column(0).to_pylist()])


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def writer(write: Callable[[Iterator[pa.RecordBatch]], Any]) -> PythonSinkWriter:
    return PythonSinkWriter(write, SCHEMA, "Broken.write", "sink-under-test")


def committed(to: PythonSinkWriter, checkpoint_id: int) -> list[list[int]]:
    state = to.prepare_commit(checkpoint_id, final=False).result(60)
    assert state.items == ()
    return [_loaded(each).numbers for each in state.committables]


def test_a_call_spans_an_epoch_and_rows_after_the_barrier_go_to_the_next() -> None:
    to = writer(collect)
    to.write(rows(1, 2))
    to.write(rows(3))
    first = to.prepare_commit(1, final=False)
    to.write(rows(4))
    assert [_loaded(each).numbers for each in first.result(60).committables] == [[1, 2, 3]]
    to.notify_checkpoint_complete(1)
    assert committed(to, 2) == [[4]]
    to.close()


def test_an_epoch_without_rows_is_a_call_too() -> None:
    to = writer(collect)
    assert committed(to, 1) == [[]]
    to.close()


def test_messages_are_carried_until_a_checkpoint_completes() -> None:
    to = writer(collect)
    to.write(rows(1))
    assert committed(to, 1) == [[1]]
    to.write(rows(2))
    assert committed(to, 2) == [[1], [2]]
    to.notify_checkpoint_complete(2)
    assert committed(to, 3) == [[]]
    to.close()


def test_an_error_surfaces_before_the_barrier() -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Wrote:
        next(batches)
        raise ValueError("no such table")

    to = writer(broken)
    to.write(rows(1))
    with pytest.raises(UserFunctionError, match=r"Broken\.write failed: ValueError: no such table") as caught:
        while True:
            to.ready()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(UserFunctionError):
        to.write(rows(2))
    to.close()


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_for_room_learns_of_it_or_of_the_error(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.spark.continuous.python_data_source._QUEUE_BYTES", 20)
    go_on = threading.Event()

    def slow(batches: Iterator[pa.RecordBatch]) -> Wrote:
        go_on.wait(60)
        if fails:
            raise ValueError("disk full")
        return collect(batches)

    to = writer(slow)
    assert to.ready() is None
    for number in range(5):
        to.write(rows(number))
    room = to.ready()
    assert room is not None
    assert not room.done()
    # Another epoch's rows wait after the first call as well, and their call may never come.
    barrier = to.prepare_commit(1, final=False)
    for number in range(5, 10):
        to.write(rows(number))
    second = to.ready()
    assert second is not None
    go_on.set()
    for each in (room, second, barrier):
        if fails:
            assert "disk full" in str(each.exception(60))
        else:
            each.result(60)
    to.close()


def test_rows_that_a_writer_leaves_are_dropped_as_by_spark() -> None:
    def first_only(batches: Iterator[pa.RecordBatch]) -> Wrote:
        return Wrote(next(batches).column(0).to_pylist())

    to = writer(first_only)
    for number in range(3):
        to.write(rows(number))
    assert committed(to, 1) == [[0]]
    to.close()


def test_closing_before_the_barrier_is_no_end_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.spark.continuous.python_data_source._CLOSE_S", 60)
    seen: list[BaseException | str] = []
    begun = threading.Event()

    def careless(batches: Iterator[pa.RecordBatch]) -> Wrote:
        begun.set()
        try:
            wrote = collect(batches)
        except BaseException as error:
            seen.append(error)
            return Wrote([])
        seen.append("ended as if complete")
        return wrote

    to = writer(careless)
    to.write(rows(1))
    assert begun.wait(60)
    to.close()
    assert isinstance(seen[0], SinkError)
    assert "before the barrier" in str(seen[0])
    assert not [each for each in threading.enumerate() if each.name == "sink-under-test"]


def test_another_thing_than_a_message_is_refused() -> None:
    to = writer(lambda batches: len(list(batches)))
    with pytest.raises(UserFunctionError, match=r"Broken\.write returned int"):
        to.prepare_commit(1, final=False).result(60)
    to.close()


def test_rows_have_the_types_that_spark_would_pass() -> None:
    seen: list[pa.Schema] = []
    to = writer(lambda batches: (seen.extend(batch.schema for batch in batches), Wrote([]))[1])
    to.write(pa.record_batch({"n": pa.array([1], pa.int64()).dictionary_encode()}))
    to.prepare_commit(1, final=False).result(60)
    assert seen == [SCHEMA]
    to.close()


class Recorder(DataSourceStreamWriter):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[list[int]], int]] = []

    def write(self, iterator: Any) -> WriterCommitMessage:
        raise AssertionError("not on the driver")

    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId == 7:
            raise KeyError("seven")
        self.calls.append(("commit", [each.numbers for each in messages], batchId))


def test_batches_are_counted_from_zero_and_errors_are_the_user_s() -> None:
    recorder = Recorder()
    committer = PythonSinkCommitter(recorder)
    to = writer(collect)
    to.write(rows(1))
    messages = to.prepare_commit(1, final=False).result(60).committables
    to.close()
    assert committer.commit(messages * 2, epoch=1, final=False) == ()
    assert recorder.calls == [("commit", [[1], [1]], 0)]
    with pytest.raises(UserFunctionError, match=r"Recorder\.commit failed: KeyError: 'seven'"):
        committer.commit(messages, epoch=8, final=True)


def test_bytes_of_version_1_are_read_and_written(repository: Path) -> None:
    golden = (repository / "tests/golden/python-sink-message-v1.json").read_bytes().strip()
    message = StoredMessage("shop.sinks.Written", "4.3.0", b"\x80\x05N.")
    assert MESSAGE_SERIALIZER.deserialize(golden) == message
    assert MESSAGE_SERIALIZER.serialize(message) == golden


def test_a_message_that_cannot_be_read_names_its_class_and_version() -> None:
    stored = MESSAGE_SERIALIZER.serialize(StoredMessage("shop.Orders", "4.2.1", b"no pickle"))
    with pytest.raises(CorruptStateError, match=r"shop\.Orders, pickled with PySpark 4\.2\.1"):
        PythonSinkCommitter(Recorder()).commit([stored], epoch=1, final=False)
