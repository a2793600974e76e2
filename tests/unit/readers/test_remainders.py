"""Rows instead of batches: what alignment does not let through of a batch is the split's remainder."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from scripted_split_reader import ALL, MULTI_SPLIT, SCHEMA, Drive, Driven, Numbers, ReaderType

from headgate.errors import SourceError
from headgate.readers import (
    MultiplexedReader,
    ReaderOptions,
    SequentialReader,
)
from headgate.source import FetchedBatch, InputStatus


@pytest.fixture
def drive(drive: Drive) -> Drive:
    """Make driven readers whose batches have positions."""

    def make(*given: Any) -> Driven:
        driven = drive(*given)
        driven.script.has_positions = True
        return driven

    return make


def position(driven: Driven, split_id: str = "a") -> int:
    (found,) = [split.position for split in driven.reader.snapshot_state(1) if split.split_id == split_id]
    return found


@pytest.mark.parametrize("reader_type", ALL)
def test_as_many_rows_are_emitted_as_may_go_and_the_position_is_after_exactly_these(
    drive: Drive, reader_type: ReaderType
) -> None:
    driven = drive(reader_type)
    driven.output.bounds["a"] = 0
    driven.script.feed("a", [0, 1, 2, 3, 4], [5, 6])
    driven.add("a")
    driven.script.wait_for(lambda: not driven.script.fed["a"] and driven.script.waiting == 1)

    for bound, emitted in ((0, 0), (2, 2), (2, 2), (3, 3), (6, 6), (7, 7)):
        driven.output.bounds["a"] = bound
        while driven.poll() is InputStatus.MORE_AVAILABLE:
            pass
        assert driven.output.rows() == list(range(emitted))
        assert position(driven) == emitted


@pytest.mark.parametrize("reader_type", ALL)
def test_a_batch_without_positions_goes_as_a_whole(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.has_positions = False
    driven.output.bounds["a"] = 1
    driven.script.feed("a", [0, 1, 2])
    driven.add("a")
    driven.poll_until(lambda: driven.output.rows() == [0, 1, 2])
    assert driven.output.asked == 0


@pytest.mark.parametrize("reader_type", ALL)
def test_what_else_a_batch_says_counts_when_its_last_row_left(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.add("a")
    driven.output.bounds["a"] = 1
    last = FetchedBatch(
        split=Numbers(split_id="a", position=3),
        batch=pa.record_batch([[0, 1, 2]], schema=SCHEMA),
        position_at=lambda rows: Numbers(split_id="a", position=rows),
        watermark_ms=7,
        idle=True,
        finished=True,
    )
    driven.reader._queue.put(last)
    driven.reader.notify_no_more_splits()
    assert driven.poll() is InputStatus.NOTHING_AVAILABLE
    assert driven.output.log == [("a", [0])]
    assert position(driven) == 1
    driven.output.bounds["a"] = 2
    driven.poll()
    assert driven.output.log == [("a", [0]), ("a", [1])]
    del driven.output.bounds["a"]

    assert driven.poll() is InputStatus.END_OF_INPUT
    assert driven.output.log[2:] == [("a", [2]), ("a", ("watermark", 7)), ("a", "idle"), ("a", "released")]


@pytest.mark.parametrize("reader_type", ALL)
def test_a_reader_with_nothing_but_remainders_waits_until_one_is_resumed(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.output.bounds["a"] = 1
    driven.script.feed("a", [0, 1], [2])
    driven.add("a")
    driven.script.wait_for(lambda: not driven.script.fed["a"] and driven.script.waiting == 1)
    driven.poll()
    for paused in (False, True):
        if paused:
            driven.reader.pause_or_resume_splits(["a"], [])
        assert driven.poll() is InputStatus.NOTHING_AVAILABLE
        assert not driven.reader.available().done(), f"paused: {paused}"
    asked = driven.output.asked
    driven.poll()
    assert driven.output.asked == asked, "nobody asks for a split that is paused"
    waiting = driven.reader.available()
    driven.output.bounds["a"] = 3
    driven.reader.pause_or_resume_splits([], ["a"])
    assert waiting.done()
    driven.poll_until(lambda: driven.output.rows() == [0, 1, 2])


@pytest.mark.parametrize("pauses", [True, False])
@pytest.mark.parametrize("reader_type", MULTI_SPLIT)
def test_a_remainder_and_what_was_fetched_after_it_hold_up_no_other_split(
    drive: Drive, reader_type: ReaderType, pauses: bool
) -> None:
    driven = drive(reader_type, ReaderOptions(queue_bytes=1))  # a batch fills it
    driven.output.bounds["fast"] = 1
    driven.script.feed("fast", *([n, n + 1] for n in range(0, 10, 2)))
    driven.add("fast")
    driven.poll_until(lambda: driven.output.rows("fast") == [0])
    if pauses:
        driven.reader.pause_or_resume_splits(["fast"], [])
    driven.add("slow")
    driven.script.feed("slow", *([n] for n in range(20)))
    driven.poll_until(lambda: driven.output.rows("slow") == list(range(20)))

    assert driven.output.rows("fast") == [0]
    driven.output.bounds["fast"] = 10
    driven.reader.pause_or_resume_splits([], ["fast"])
    driven.poll_until(lambda: driven.output.rows("fast") == list(range(10)))


@pytest.mark.parametrize("reader_type", ALL)
def test_a_split_with_a_remainder_is_fetched_up_to_its_share_and_again_when_less_than_half_is_left(
    drive: Drive, reader_type: ReaderType
) -> None:
    driven = drive(reader_type, ReaderOptions(queue_bytes=300))  # eight batches of five rows are too many
    driven.output.bounds["a"] = 1
    driven.script.feed("a", *([*range(n, n + 5)] for n in range(0, 100, 5)))
    driven.add("a")
    driven.poll_until(lambda: driven.output.rows() == [0])
    split_reader = driven.script.made[0]
    driven.script.wait_for(lambda: split_reader.paused == {"a"})
    left = len(driven.script.fed["a"])
    assert 9 <= left <= 12, "one is the remainder, and eight of forty bytes are held aside"

    for rows in range(2, 22):  # a few rows at a time, as a bound moves
        driven.output.bounds["a"] = rows
        driven.reader.pause_or_resume_splits([], ["a"])
        driven.poll_until(lambda wanted=rows: driven.output.rows() == list(range(wanted)))  # type: ignore[misc]
        driven.reader.pause_or_resume_splits(["a"], [])
    if reader_type is not SequentialReader:  # whose fetcher hears of every pause: the next split may begin
        pauses = [call for call in split_reader.calls if call[0] == "pause"]
        assert len(pauses) <= 1, "it is not paused and resumed with every row"
    driven.output.bounds.clear()
    driven.reader.pause_or_resume_splits([], ["a"])
    driven.poll_until(lambda: driven.output.rows() == list(range(100)))
    assert split_reader.paused == set()


def test_splits_take_turns_though_one_goes_on_after_its_remainder(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    driven.output.bounds["a"] = 1
    driven.script.feed("a", *([2 * n, 2 * n + 1] for n in range(8)))
    driven.script.feed("b", *([n] for n in range(8)))
    driven.add("a", "b")
    driven.script.wait_for(lambda: not any(driven.script.fed.values()) and driven.script.waiting == 1)
    while driven.poll() is InputStatus.MORE_AVAILABLE and len(driven.output.rows("b")) < 5:
        pass
    driven.output.bounds["a"] = 1000
    begin = len(driven.output.log)
    for _ in range(20):
        driven.poll()

    assert {split_id for split_id, _ in driven.output.log[begin:]} == {"a", "b"}


def test_a_remainder_does_not_keep_a_much_larger_parent_alive(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    driven.output.bounds["a"] = 0
    driven.add("a")
    parent = pa.record_batch([list(range(100_000))], schema=SCHEMA)
    part = FetchedBatch(
        split=Numbers(split_id="a", position=3),
        batch=parent.slice(0, 3),
        position_at=lambda rows: Numbers(split_id="a", position=rows),
    )
    driven.reader._queue.put(part)
    driven.poll()
    ((kept, _),) = driven.reader._remainders.values()
    assert kept.batch is not None
    assert kept.batch.column(0).buffers()[1].size < 1000
    driven.output.bounds["a"] = 3
    driven.poll()
    assert driven.output.rows() == [0, 1, 2]


@pytest.mark.parametrize("reader_type", ALL)
def test_an_error_surfaces_though_there_is_nothing_but_a_remainder(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.output.bounds["a"] = 1
    driven.script.feed("a", [0, 1], OSError("gone"))
    driven.add("a")
    with pytest.raises(SourceError, match="gone"):
        driven.poll_until(lambda: False)


@pytest.mark.parametrize("reader_type", ALL)
@pytest.mark.parametrize("seed", range(12))
def test_rows_stay_complete_and_in_order_whatever_is_let_through_and_paused(
    drive: Drive, reader_type: ReaderType, seed: int
) -> None:
    random = Random(seed)
    driven = drive(reader_type, ReaderOptions(queue_bytes=random.choice([1, 200, 10_000])))
    ids = ["a", "b", "c"]
    for split_id in ids:
        numbers = list(range(90))
        while numbers:
            some = random.randint(1, 9)
            driven.script.feed(split_id, numbers[:some])
            del numbers[:some]
        driven.script.feed(split_id, "end")
    driven.output.bounds = dict.fromkeys(ids, 0)
    driven.add(*ids)
    paused: set[str] = set()
    for _ in range(200):
        some = {split_id for split_id in ids if random.random() < 0.3}
        others = {split_id for split_id in paused if random.random() < 0.5} - some
        driven.reader.pause_or_resume_splits(some, others)
        paused = (paused | some) - others
        moved = random.choice(ids)
        driven.output.bounds[moved] += random.randint(0, 5)
        emitted = len(driven.output.log)
        for _ in range(random.randint(0, 5)):
            driven.poll()
        assert {split_id for split_id, _ in driven.output.log[emitted:]} & paused == set()
        for split in driven.reader.snapshot_state(0):
            rows = driven.output.rows(split.split_id)
            assert rows == list(range(split.position))
            assert split.position <= driven.output.bounds[split.split_id]
    driven.output.bounds.clear()
    driven.reader.pause_or_resume_splits([], ids)
    driven.reader.notify_no_more_splits()
    driven.poll_to_end()

    assert all(driven.output.rows(split_id) == list(range(90)) for split_id in ids)
