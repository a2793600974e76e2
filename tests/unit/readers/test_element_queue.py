"""The queue between fetchers and the task: its bound in bytes, its order, pausing, and no lost wake-up."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headgate.errors import SourceError
from headgate.readers import ElementQueue
from headgate.readers.element_queue import MOST_BATCHES
from headgate.source import FetchedBatch, Split


def fetched(split_id: str, rows: int = 0) -> FetchedBatch[Split]:
    """Return a batch of ``rows`` numbers of eight bytes each."""
    batch = pa.record_batch([pa.array(range(rows), pa.int64())], names=["n"]) if rows else None
    return FetchedBatch(split=Split(split_id=split_id), batch=batch)


class Putter:
    """A thread that puts batches one after the other and counts those that got through."""

    def __init__(self, queue: ElementQueue[Split], *batches: FetchedBatch[Split]) -> None:
        self.queue = queue
        self.batches = batches
        self.put = 0
        self.results: list[bool] = []
        self.moved = threading.Condition()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for each in self.batches:
            result = self.queue.put(each)
            with self.moved:
                self.results.append(result)
                self.moved.notify_all()

    def wait_for(self, count: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: len(self.results) >= count, 60)

    def is_blocked_at(self, count: int) -> bool:
        """Return whether the thread hangs in its next put; waits until it is inside it."""
        self.wait_for(count)
        while not self.queue._space._waiters and self.thread.is_alive():  # the thread is on its way into the wait
            threading.Event().wait(0.001)
        return len(self.results) == count and self.thread.is_alive()


def test_batches_come_out_in_the_order_they_went_in() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    batches = [fetched("a", 1), fetched("b", 1), fetched("a", 2)]
    for each in batches:
        queue.put(each)

    assert [queue.take() for _ in range(4)] == [
        (batches[0], True),
        (batches[1], True),
        (batches[2], False),
        (None, False),
    ]


def test_a_put_beyond_the_bound_waits_until_the_task_takes() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    putter = Putter(queue, fetched("a", 64), fetched("a", 64))  # 512 bytes each
    assert putter.is_blocked_at(1)

    queue.take()

    putter.wait_for(2)


def test_batches_are_few_however_small_they_are() -> None:
    """While the task is busy records are gathered where they come from: many small batches would take it longer."""
    queue: ElementQueue[Split] = ElementQueue(1 << 30)
    putter = Putter(queue, *(fetched("a", 1) for _ in range(MOST_BATCHES + 1)))
    assert putter.is_blocked_at(MOST_BATCHES)

    queue.take()

    putter.wait_for(MOST_BATCHES + 1)


def test_a_batch_larger_than_the_bound_passes_alone() -> None:
    queue: ElementQueue[Split] = ElementQueue(100)
    large = fetched("a", 1000)
    putter = Putter(queue, fetched("a", 1), large)
    assert putter.is_blocked_at(1)

    assert queue.take()[1] is False
    putter.wait_for(2)

    assert queue.take() == (large, False)


def test_a_slice_counts_with_the_parent_that_it_keeps_alive() -> None:
    queue: ElementQueue[Split] = ElementQueue(4096)
    parents = [pa.record_batch([pa.array(range(400), pa.int64())], names=["n"]) for _ in range(2)]
    slices = [FetchedBatch(split=Split(split_id="a"), batch=parent.slice(0, 1)) for parent in parents]

    putter = Putter(queue, *slices)

    assert putter.is_blocked_at(1)  # 8 bytes each by nbytes, 3200 bytes each in memory


def test_slices_of_one_parent_count_it_once() -> None:
    queue: ElementQueue[Split] = ElementQueue(4096)
    parent = pa.record_batch([pa.array(range(400), pa.int64())], names=["n"])

    for start in range(0, 400, 100):
        assert queue.put(FetchedBatch(split=Split(split_id="a"), batch=parent.slice(start, 100)))

    assert queue._bytes == 3200
    while queue.take()[0] is not None:
        pass
    assert queue._bytes == 0


def test_a_buffer_inside_a_larger_one_counts_as_the_larger_one() -> None:
    parent = pa.record_batch([pa.array(range(400), pa.int64())] * 2, names=["n", "m"])
    message = parent.serialize()
    received = pa.ipc.read_record_batch(message, parent.schema).select(["n"])
    queue: ElementQueue[Split] = ElementQueue(4096)

    queue.put(FetchedBatch(split=Split(split_id="a"), batch=received))

    assert queue._bytes >= 6400


def test_dictionaries_count() -> None:
    column = pa.array(["x" * 1000] * 3).dictionary_encode()
    queue: ElementQueue[Split] = ElementQueue(4096)

    queue.put(FetchedBatch(split=Split(split_id="a"), batch=pa.record_batch([column], names=["n"])))

    assert queue._bytes >= 1000


def test_a_paused_split_at_the_front_does_not_stop_the_others() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    first, second = fetched("fast", 100), fetched("slow", 100)
    queue.put(first)
    putter = Putter(queue, second)
    assert putter.is_blocked_at(0)

    queue.pause_or_resume(["fast"], [])

    putter.wait_for(1)
    assert queue.take() == (second, False)
    assert queue.take() == (None, False)


def test_a_put_of_a_paused_split_does_not_wait() -> None:
    queue: ElementQueue[Split] = ElementQueue(100)
    queue.put(fetched("slow", 10))
    putter = Putter(queue, fetched("fast", 100))
    assert putter.is_blocked_at(0)

    queue.pause_or_resume(["fast"], [])

    putter.wait_for(1)


def test_a_resumed_split_comes_out_complete_and_in_order() -> None:
    queue: ElementQueue[Split] = ElementQueue(10_000)
    batches = [fetched("a", rows) for rows in (1, 2, 3)]
    queue.put(batches[0])
    queue.put(fetched("b", 4))
    queue.pause_or_resume(["a"], [])
    queue.put(batches[1])
    queue.pause_or_resume(["a"], ["never heard of"])  # pausing twice changes nothing
    queue.pause_or_resume([], ["a"])
    queue.put(batches[2])

    taken = [queue.take()[0] for _ in range(4)]

    assert [each for each in taken if each is not None and each.split.split_id == "a"] == batches
    assert queue._bytes == 0


@pytest.mark.parametrize("paused_first", [True, False])
def test_a_held_slice_does_not_keep_its_parent_alive(paused_first: bool) -> None:
    queue: ElementQueue[Split] = ElementQueue(10**6)
    parent = pa.record_batch([pa.array(range(100_000), pa.int64())], names=["n"])
    part = FetchedBatch(split=Split(split_id="a"), batch=parent.slice(70, 3))
    for pausing in (paused_first, not paused_first):
        if pausing:
            queue.pause_or_resume(["a"], [])
        else:
            queue.put(part)
    queue.pause_or_resume([], ["a"])

    assert queue._bytes < 1000
    taken, _ = queue.take()
    assert taken is not None and taken.batch is not None
    assert taken.batch.column(0).to_pylist() == [70, 71, 72]


def test_available_is_done_when_something_is_ready_and_else_completed_by_the_next_put() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    waiting = queue.available()
    assert not waiting.done()
    assert queue.available() is waiting

    queue.put(fetched("a", 1))

    assert waiting.done()
    assert queue.available().done()
    queue.take()
    assert not queue.available().done()


def test_a_put_of_a_paused_split_does_not_call_the_task() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    queue.pause_or_resume(["a"], [])
    waiting = queue.available()

    queue.put(fetched("a", 1))
    assert not waiting.done()

    queue.pause_or_resume([], ["a"])
    assert waiting.done()


def test_a_cancelled_future_harms_nobody() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    queue.available().cancel()

    assert queue.put(fetched("a", 1))
    assert queue.available().done()


def test_no_wake_up_is_lost_between_threads() -> None:
    queue: ElementQueue[Split] = ElementQueue(100)
    count = 20_000
    putters = [Putter(queue, *([fetched(name)] * count)) for name in "ab"]
    taken = 0
    while taken < 2 * count:
        each, more = queue.take()
        taken += each is not None
        if not more:
            queue.available().result(60) if taken < 2 * count else None

    for putter in putters:
        putter.wait_for(count)


def test_the_first_error_is_raised_at_once_and_again() -> None:
    queue: ElementQueue[Split] = ElementQueue(1000)
    queue.put(fetched("a", 1))
    waiting = queue.available()
    queue.fail(SourceError("first"))
    queue.fail(SourceError("second"))

    assert waiting.done()
    for _ in range(2):
        with pytest.raises(SourceError, match="first"):
            queue.take()
    assert queue.available().done()


def test_closing_frees_a_blocked_put() -> None:
    queue: ElementQueue[Split] = ElementQueue(100)
    queue.put(fetched("a", 10))
    putter = Putter(queue, fetched("a", 100))
    assert putter.is_blocked_at(0)

    queue.close()

    putter.wait_for(1)
    assert putter.results == [False]
    assert queue.take() == (None, False)
