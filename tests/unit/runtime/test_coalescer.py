"""The coalescer: when rows are sent, for any sequence of batches, and into which buffers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.runtime.coalescer import Coalescer, buffers_of


def rows(first: int, many: int) -> pa.RecordBatch:
    """Return rows of eight bytes."""
    return pa.record_batch({"v": pa.array(range(first, first + many), pa.int64())})


def taken(coalescer: Coalescer) -> list[int]:
    """Take what waits; return the rows."""
    batch = coalescer.take()
    return [] if batch is None else list(batch.column(0).to_pylist())


def test_small_batches_are_sent_together() -> None:
    """As soon as there is enough for all consumers; one that is enough by itself is not copied."""
    coalescer = Coalescer(channels=2, target_bytes=40)
    assert not coalescer.add(rows(0, 4), 10) and not coalescer.add(rows(4, 5), 12)
    assert coalescer.add(rows(9, 1), 13)
    assert taken(coalescer) == list(range(10))
    assert coalescer.take() is None and coalescer.due_ms() is None
    large = rows(0, 10)
    assert coalescer.add(large, 14) and coalescer.take() is large


def test_a_busy_producer_sends_full_buffers() -> None:
    """The first row that waits sets the time, which is many time-outs; later ones do not put it off."""
    coalescer = Coalescer(timeout_ms=5, target_bytes=80)
    coalescer.add(rows(0, 1), 10)
    for now_ms in range(11, 110):
        assert not coalescer.due(now_ms)
        if now_ms % 50 == 0:
            coalescer.add(rows(now_ms, 1), now_ms)
    assert coalescer.due_ms() == 110 and coalescer.due(110)
    assert taken(coalescer) == [0, 50, 100] and coalescer.due_ms() is None


@pytest.mark.parametrize(("channels", "patience_ms"), [(1, 100), (10, 100), (16, 160), (64, 640)])
def test_many_channels_take_more_patience(channels: int, patience_ms: int) -> None:
    """Each of them costs a buffer when it is over."""
    coalescer = Coalescer(timeout_ms=5, channels=channels)
    coalescer.add(rows(0, 1), 7)
    assert coalescer.due_ms() == 7 + patience_ms


def test_a_producer_that_has_nothing_else_to_do_sends_at_once() -> None:
    """But not again within the time-out, unless it is given rows until then; what follows rows leaves likewise."""
    coalescer = Coalescer(timeout_ms=5)
    assert not coalescer.rest(9)
    coalescer.add(rows(0, 1), 10)
    assert coalescer.rest(10) and taken(coalescer) == [0]
    coalescer.add(rows(1, 1), 11)
    assert not coalescer.rest(12) and coalescer.due_ms() == 15
    coalescer.add(rows(2, 1), 13)
    assert coalescer.due_ms() == 111 and not coalescer.due(15)
    assert not coalescer.rest(14) and coalescer.due(15)
    assert taken(coalescer) == [1, 2]
    coalescer.follow(16)
    coalescer.follow(17)
    assert coalescer.due_ms() == 116 and not coalescer.rest(18) and coalescer.due_ms() == 20
    assert coalescer.due(20) and coalescer.take() is None and not coalescer.rest(30)


def test_without_a_timeout_everything_is_sent_as_it_comes() -> None:
    """A timeout of 0 turns it off, also for rows that have no size."""
    assert Coalescer(timeout_ms=0).add(rows(0, 3), 7)
    assert Coalescer(timeout_ms=0).add(pa.record_batch({"n": pa.nulls(3)}), 7)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.sampled_from(["", "event", "rest"])), max_size=40),
    st.integers(0, 6), st.integers(8, 100),
)  # fmt: skip
def test_nothing_is_lost_reordered_or_late(
    batches: list[tuple[int, int, str]], timeout_ms: int, target_bytes: int
) -> None:
    """Rows leave in order; what waits is always due, and is never older than the patience."""
    coalescer = Coalescer(timeout_ms=timeout_ms, target_bytes=target_bytes)
    came_ms: list[int] = []  # by row
    sent: list[int] = []
    now_ms = 0
    for many, later_ms, what in batches:
        now_ms += later_ms
        if coalescer.due(now_ms) or what == "event" or (what == "rest" and coalescer.rest(now_ms)):
            sent += taken(coalescer)
            assert sent == list(range(len(came_ms)))
        if many and coalescer.add(rows(len(came_ms), many), now_ms):
            sent += taken(coalescer)
        came_ms += [now_ms] * (len(sent) - len(came_ms) if len(sent) > len(came_ms) else many)
        waiting = came_ms[len(sent) :]
        due_ms = coalescer.due_ms()
        assert (due_ms is not None) == bool(waiting)
        if due_ms is not None:
            assert now_ms <= due_ms <= waiting[0] + coalescer.patience_ms and len(waiting) * 8 < target_bytes
    sent += taken(coalescer)
    assert sent == list(range(len(came_ms)))


def test_what_is_too_large_is_cut_and_not_copied() -> None:
    """To equal parts that a buffer may hold."""
    large = rows(1, 24)
    buffers = buffers_of(large, 100)
    assert [buffer.rows.column(0).to_pylist() for buffer in buffers] == [list(range(1, 13)), list(range(13, 25))]
    assert [(buffer.num_rows, buffer.size_bytes) for buffer in buffers] == [(12, 96), (12, 96)]
    assert buffers[0].rows.column(0).buffers()[1].address == large.column(0).buffers()[1].address


def test_rows_that_differ_in_size_are_cut_until_they_fit() -> None:
    """A row that is too large by itself goes alone; no other shares its buffer."""
    texts = ["a"] * 50 + ["b" * 5000] + ["c"] * 50
    buffers = buffers_of(pa.record_batch({"s": texts}), 200)
    assert [text for buffer in buffers for text in buffer.rows.column(0).to_pylist()] == texts
    for buffer in buffers:
        assert buffer.size_bytes == buffer.rows.nbytes
        assert buffer.size_bytes <= 200 or buffer.num_rows == 1


def test_what_waits_for_a_slow_consumer_does_not_keep_the_rows_of_others() -> None:
    """Parts are slices of batches: what is accounted for is what is held."""
    before, slow = pa.total_allocated_bytes(), []
    for _ in range(20):
        batch = rows(0, 8_000)
        slow += buffers_of(batch.slice(1_500, 500), 1_000_000)
        del batch
    assert [(buffer.num_rows, buffer.size_bytes) for buffer in slow] == [(500, 4_000)] * 20
    assert pa.total_allocated_bytes() - before <= 2 * sum(buffer.size_bytes for buffer in slow)
