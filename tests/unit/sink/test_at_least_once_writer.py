"""An at-least-once writer: rows are sent where that takes no wait, in their order, and a barrier waits for all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headgate.errors import SinkError
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.broker_sink import AtLeastOnceWriter
from tests.waiting import wait_until

HERE = threading.current_thread().name


class Sender:
    """A client that notes who gave it which rows, and that a test stops.

    Takes ``room`` rows at once before the next call of `write`.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int]]] = []
        self.flushed: list[list[int]] = []
        self.room = 1 << 30
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: SinkError | None = None
        self.dropped = self.closed = False

    @property
    def numbers(self) -> list[int]:
        return [number for _, rows in self.sent for number in rows]

    def write(self, batch: pa.RecordBatch) -> None:
        assert self.may_write.wait(60)
        self._send(batch)
        self.room = 1 << 30

    def write_now(self, batch: pa.RecordBatch) -> int:
        taken = min(self.room, batch.num_rows)
        self.room -= taken
        if taken:
            self._send(batch.slice(0, taken))
        return int(taken)

    def _send(self, batch: pa.RecordBatch) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append((threading.current_thread().name, batch.column(0).to_pylist()))

    def flush(self) -> None:
        assert self.may_write.wait(60)
        self.flushed.append(self.numbers)

    def serve(self) -> None:
        if self.error is not None:
            raise self.error

    def drop_rows(self) -> None:
        self.dropped = True
        self.may_write.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def writer(sender: Sender) -> Iterator[AtLeastOnceWriter]:
    made = AtLeastOnceWriter("test", OperatorContext(uid="", subtask=0, parallelism=1), sender, None)
    yield made
    sender.error = None
    made.close()
    assert sender.closed


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)})


def test_a_few_rows_are_sent_at_once(writer: AtLeastOnceWriter, sender: Sender) -> None:
    writer.write(rows(1, 2))
    writer.write(rows())
    writer.write(rows(3))
    assert sender.sent == [(HERE, [1, 2]), (HERE, [3])]


def test_many_are_sent_by_the_thread_and_nothing_overtakes_them(writer: AtLeastOnceWriter, sender: Sender) -> None:
    sender.may_write.clear()
    writer.write(rows(*range(5000)))
    writer.write(rows(5000))
    assert sender.sent == []
    sender.may_write.set()
    wait_until(lambda: sender.numbers == list(range(5001)))
    assert all(name != HERE for name, _ in sender.sent)
    wait_until(lambda: writer._thread.is_idle)
    writer.write(rows(5001))
    assert sender.sent[-1] == (HERE, [5001]), "the thread has nothing to do again"


def test_what_has_no_room_waits_on_the_thread(writer: AtLeastOnceWriter, sender: Sender) -> None:
    sender.room = 2
    sender.may_write.clear()
    writer.write(rows(1, 2, 3))
    writer.write(rows(4))
    assert sender.sent == [(HERE, [1, 2])]
    sender.may_write.set()
    wait_until(lambda: sender.numbers == [1, 2, 3, 4])


def test_a_barrier_waits_on_the_thread_for_the_rows_before_it_and_no_others(
    writer: AtLeastOnceWriter, sender: Sender
) -> None:
    sender.may_write.clear()
    writer.write(rows(1))
    safe = writer.prepare_commit(1, final=False)
    writer.write(rows(2))
    assert sender.numbers == [1] and not safe.done(), "rows after the barrier do not overtake it"
    sender.may_write.set()
    safe.result(60)
    assert sender.flushed == [[1]]
    wait_until(lambda: sender.numbers == [1, 2])


def test_an_error_of_a_row_that_was_sent_at_once_is_raised_at_once(writer: AtLeastOnceWriter, sender: Sender) -> None:
    sender.error = SinkError("no")
    with pytest.raises(SinkError, match="no"):
        writer.write(rows(1))


def test_an_error_that_comes_later_is_found_while_nothing_is_written(writer: AtLeastOnceWriter, sender: Sender) -> None:
    """Of rows that were sent at once, too: the thread looks, though it never had any."""
    writer.write(rows(1))
    sender.error = SinkError("not delivered")

    def failed() -> bool:
        try:
            writer.ready()
        except SinkError:
            return True
        return False

    wait_until(failed)
    with pytest.raises(SinkError, match="not delivered"):
        writer.prepare_commit(1, final=False)
