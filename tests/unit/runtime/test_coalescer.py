"""The coalescer: what is sent when, for any sequence of pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.runtime.coalescer import Coalescer, Sent


def rows(first: int, many: int) -> pa.RecordBatch:
    """Return rows of eight bytes."""
    return pa.record_batch({"v": pa.array(range(first, first + many), pa.int64())})


def add(coalescer: Coalescer, consumer: int, batch: pa.RecordBatch, now_ms: int) -> Sent:
    """Give rows for one consumer."""
    return coalescer.add([(consumer, batch)] if batch.num_rows else [], batch.nbytes / max(1, batch.num_rows), now_ms)


def values(sent: Sent, consumer: int = 0) -> list[list[int]]:
    """Return the rows of each buffer for a consumer."""
    return [buffer.rows.column(0).to_pylist() for to, buffer in sent if to == consumer]


def test_small_pieces_are_sent_together() -> None:
    """As soon as they are large enough, as one buffer with its true size."""
    coalescer = Coalescer(target_bytes=80, max_bytes=800)
    assert add(coalescer, 1, rows(0, 4), 10) == []
    assert add(coalescer, 0, rows(50, 4), 11) == []
    assert add(coalescer, 1, rows(4, 5), 12) == []
    sent = add(coalescer, 1, rows(9, 1), 13)
    assert values(sent, 1) == [list(range(10))]
    assert [(buffer.num_rows, buffer.size_bytes) for _, buffer in sent] == [(10, 80)]
    assert values(coalescer.flush()) == [[50, 51, 52, 53]]
    assert coalescer.flush() == [] and coalescer.due_ms() is None


@pytest.mark.parametrize("target_bytes", [4_000, 1_000_000], ids=["large pieces", "small pieces"])
def test_what_waits_for_a_slow_consumer_does_not_keep_the_rows_of_others(target_bytes: int) -> None:
    """Pieces are slices of batches: what is accounted for is what is held."""
    coalescer = Coalescer(target_bytes=target_bytes, max_bytes=1_000_000)
    before, slow = pa.total_allocated_bytes(), []
    for _ in range(20):
        batch = rows(0, 8_000)
        for consumer in range(16):
            sent = [*add(coalescer, consumer, batch.slice(500 * consumer, 500), 0), *coalescer.flush()]
            slow += [buffer for to, buffer in sent if to == 3]
    del batch, sent
    assert pa.total_allocated_bytes() - before <= 2 * sum(buffer.size_bytes for buffer in slow)


def test_a_busy_producer_sends_full_buffers() -> None:
    """The first row that waits sets the time, which is many time-outs; later ones do not put it off."""
    coalescer = Coalescer(timeout_ms=5, target_bytes=80, max_bytes=800)
    add(coalescer, 0, rows(0, 1), 10)
    add(coalescer, 1, rows(0, 1), 12)
    for now_ms in range(13, 109):
        assert not coalescer.due(now_ms)
    assert coalescer.due_ms() == 110 and coalescer.due(110)
    assert values(coalescer.flush()) == [[0]] and coalescer.due_ms() is None


@pytest.mark.parametrize(("channels", "patience_ms"), [(1, 100), (10, 100), (16, 160), (64, 640)])
def test_many_channels_take_more_patience(channels: int, patience_ms: int) -> None:
    """Each of them costs a buffer when it is over."""
    coalescer = Coalescer(timeout_ms=5, channels=channels)
    add(coalescer, 0, rows(0, 1), 7)
    assert coalescer.due_ms() == 7 + patience_ms


def test_a_producer_that_has_nothing_else_to_do_sends_at_once() -> None:
    """But not again within the time-out, unless it is given rows until then; what follows rows leaves likewise."""
    coalescer = Coalescer(timeout_ms=5)
    assert not coalescer.rest(9)
    add(coalescer, 0, rows(0, 1), 10)
    assert coalescer.rest(10) and values(coalescer.flush()) == [[0]]
    add(coalescer, 0, rows(1, 1), 11)
    assert not coalescer.rest(12) and coalescer.due_ms() == 15
    add(coalescer, 0, rows(2, 1), 13)
    assert coalescer.due_ms() == 111 and not coalescer.due(15)
    assert not coalescer.rest(14) and coalescer.due(15)
    assert values(coalescer.flush()) == [[1, 2]]
    coalescer.follow(16)
    coalescer.follow(17)
    assert coalescer.due_ms() == 116 and not coalescer.rest(18) and coalescer.due_ms() == 20
    assert coalescer.due(20) and coalescer.flush() == [] and not coalescer.rest(30)


def test_a_small_piece_does_not_keep_large_batches_for_long() -> None:
    """What comes for others after it is bounded in bytes, too: it is a slice of one of these batches."""
    coalescer = Coalescer(memory_bytes=1_600, target_bytes=80, max_bytes=80)
    sent = coalescer.add([(0, rows(0, 1)), (1, rows(1, 10))], 8, 0)
    for first in range(10, 100, 10):
        sent += coalescer.add([(1, rows(first, 10))], 8, 0)
        assert values(sent, 0) == []
    assert values(coalescer.add([(1, rows(100, 10))], 8, 0), 0) == [[0]]


def test_without_a_timeout_everything_is_sent_as_it_comes() -> None:
    """A timeout of 0 turns it off."""
    assert values(add(Coalescer(timeout_ms=0), 0, rows(0, 3), 7)) == [[0, 1, 2]]


def test_a_large_piece_is_not_copied() -> None:
    """What waited goes before it; the piece itself lies where it lay, and is cut to what a buffer may hold."""
    coalescer = Coalescer(target_bytes=80, max_bytes=100)
    large = rows(1, 24)
    add(coalescer, 0, rows(0, 1), 0)
    sent = add(coalescer, 0, large, 1)
    assert values(sent) == [[0], list(range(1, 13)), list(range(13, 25))]
    assert [buffer.size_bytes for _, buffer in sent] == [8, 96, 96]
    assert sent[1][1].rows.column(0).buffers()[1].address == large.column(0).buffers()[1].address


def test_rows_that_differ_in_size_are_cut_until_they_fit() -> None:
    """A row that is too large by itself goes alone; no other shares its buffer."""
    texts = ["a"] * 50 + ["b" * 5000] + ["c"] * 50
    batch = pa.record_batch({"s": texts})
    sent = add(Coalescer(target_bytes=100, max_bytes=200), 0, batch, 0)
    assert [text for part in values(sent) for text in part] == texts
    for _, buffer in sent:
        assert buffer.size_bytes == buffer.rows.nbytes
        assert buffer.size_bytes <= 200 or buffer.num_rows == 1


def test_the_size_of_a_slice_is_its_own() -> None:
    """Not that of the batch that it is a part of."""
    coalescer = Coalescer(timeout_ms=0)
    ((_, buffer),) = add(coalescer, 0, rows(0, 100_000).slice(70_000, 3), 0)
    assert (buffer.num_rows, buffer.size_bytes) == (3, 24)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 4), st.booleans()), max_size=40),
    st.integers(0, 6), st.integers(8, 100), st.integers(0, 100),
)  # fmt: skip
def test_nothing_is_lost_reordered_or_late(
    pieces: list[tuple[int, int, int, bool]], timeout_ms: int, target_bytes: int, beyond: int
) -> None:
    """Every consumer gets its rows in order, in buffers of allowed size; what waits is always due."""
    coalescer = Coalescer(timeout_ms=timeout_ms, target_bytes=target_bytes, max_bytes=target_bytes + beyond)
    patience_ms = coalescer.patience_ms
    given_rows: dict[int, list[int]] = {0: [], 1: [], 2: []}
    sent_rows: dict[int, list[int]] = {0: [], 1: [], 2: []}
    came_ms: dict[int, int] = {}
    now_ms = count = 0

    def take(sent: Sent) -> None:
        for consumer, buffer in sent:
            assert buffer.size_bytes <= target_bytes + beyond or buffer.num_rows == 1
            assert buffer.num_rows == buffer.rows.num_rows > 0
            sent_rows[consumer] += buffer.rows.column(0).to_pylist()

    for consumer, many, later_ms, event in pieces:
        now_ms += later_ms
        if coalescer.due(now_ms) or event:
            take(coalescer.flush())
            assert sent_rows == given_rows
        for value in range(count, count + many):
            given_rows[consumer].append(value)
            came_ms[value] = now_ms
        take(add(coalescer, consumer, rows(count, many), now_ms))
        count += many
        waiting = [came_ms[each] for to in given_rows for each in given_rows[to][len(sent_rows[to]) :]]
        assert coalescer.due_ms() == (min(waiting) + patience_ms if waiting else None)
        assert not waiting or now_ms < min(waiting) + patience_ms
    take(coalescer.flush())
    assert sent_rows == given_rows
