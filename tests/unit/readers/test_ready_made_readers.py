"""What all three ready-made readers promise, each promise a test; driven by a split reader that the test feeds."""

from __future__ import annotations

import sys
import threading
import time
from random import Random

import msgspec
import pytest
from scripted_split_reader import ALL, MULTI_SPLIT, TIMEOUT_S, CannotPause, Drive, Driven, Numbers, ReaderType

from headgate.errors import BadDataError, ConnectorContractError, SourceError, UnsupportedOperationError
from headgate.readers import (
    MultiplexedReader,
    MultithreadedReader,
    ReaderOptions,
    SequentialReader,
)
from headgate.readers.fetcher import SplitFetcher
from headgate.source import FetchedBatch, InputStatus, SourceReaderContext

PATIENT = ReaderOptions(close_timeout_ms=TIMEOUT_S * 1000)
"""For readers that close without being cut short, however slow the machine is."""


def cpu_s(driven: Driven) -> float:
    """Return how much CPU its fetchers have used; in the process may be others that run on."""
    if sys.platform == "darwin":  # which has no such clocks
        return time.process_time()
    threads = [each._thread.ident for each in driven.reader._fetchers.values()]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(each)) for each in threads if each is not None)


@pytest.mark.parametrize("reader_type", ALL)
def test_all_rows_of_all_splits_arrive_and_the_input_ends(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1, 2], [3], "end")
    driven.script.feed("b", [4], "end")
    driven.add("a", "b")
    driven.reader.notify_no_more_splits()

    driven.poll_to_end()

    assert driven.output.rows("a") == [1, 2, 3]
    assert driven.output.rows("b") == [4]
    assert [each for each in driven.output.log if each[1] == "released"] in (
        [("a", "released"), ("b", "released")],
        [("b", "released"), ("a", "released")],
    )
    assert driven.reader.snapshot_state(1) == []
    assert driven.poll() is InputStatus.END_OF_INPUT


@pytest.mark.parametrize("reader_type", ALL)
def test_a_position_advances_only_with_batches_that_left_poll_next(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1, 2], [3])
    driven.add("a")
    driven.script.wait_for(lambda: not driven.script.fed["a"] and driven.script.fetches >= 3)  # all was read ahead

    assert driven.reader.snapshot_state(1) == [Numbers(split_id="a", position=0)]
    driven.poll()
    assert driven.reader.snapshot_state(2) == [Numbers(split_id="a", position=2)]
    driven.poll()
    assert driven.reader.snapshot_state(3) == [Numbers(split_id="a", position=3)]


@pytest.mark.parametrize("reader_type", ALL)
def test_every_split_is_in_the_snapshot_exactly_once_until_it_finished(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1], "end")
    driven.script.feed("b", [2])
    driven.add("a", "b")

    seen: list[list[str]] = []

    def look() -> bool:
        seen.append(sorted(split.split_id for split in driven.reader.snapshot_state(0)))
        return ("a", "released") in driven.output.log and driven.output.rows("b") == [2]

    driven.poll_until(look)

    assert all(ids in (["a", "b"], ["b"]) for ids in seen)
    assert seen[0] == ["a", "b"] and seen[-1] == ["b"]


@pytest.mark.parametrize("reader_type", ALL)
def test_an_error_in_a_fetcher_reaches_the_task_with_split_and_position(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    original = OSError("the disk is on fire")
    driven.script.feed("a", [1, 2])
    driven.add("a")
    driven.poll_until(lambda: driven.output.rows() == [1, 2])
    driven.script.feed("a", original)

    with pytest.raises(SourceError, match=r"'a'.*the disk is on fire") as raised:
        driven.poll_until(lambda: False)

    assert raised.value.split == "a"
    assert raised.value.position == {"split_id": "a", "position": 2}
    assert raised.value.__cause__ is original


@pytest.mark.parametrize("reader_type", ALL)
def test_an_error_of_ours_keeps_its_type_and_facts(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", BadDataError("bad line", path="x.csv", byte_offset=7))
    driven.add("a")

    with pytest.raises(BadDataError, match="bad line") as raised:
        driven.poll_until(lambda: False)

    assert (raised.value.path, raised.value.byte_offset) == ("x.csv", 7)
    assert (raised.value.split, raised.value.position) == ("a", {"split_id": "a", "position": 0})


def test_an_error_about_one_of_many_splits_names_the_candidates(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    driven.script.feed("a", OSError("gone"))
    driven.add("a", "b")

    with pytest.raises(SourceError) as raised:
        driven.poll_until(lambda: False)

    assert raised.value.split == "a, b"
    assert raised.value.position.keys() == {"a", "b"}


@pytest.mark.parametrize("reader_type", ALL)
def test_close_wakes_a_fetch_that_blocks_and_closes_the_split_readers(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type, PATIENT)
    driven.add("a")
    driven.script.wait_for(lambda: driven.script.waiting == 1)

    driven.reader.close()

    assert driven.script.closed == driven.script.made
    assert driven.script.wake_ups > 0


@pytest.mark.parametrize("reader_type", ALL)
def test_close_returns_within_a_second_though_a_fetch_ignores_wake_up(
    drive: Drive, reader_type: ReaderType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that it grants its fetchers: the machine may take longer."""
    granted_s: list[float] = []
    join = SplitFetcher.join

    def noting_join(fetcher: SplitFetcher[Numbers], timeout_s: float) -> bool:
        granted_s.append(timeout_s)
        return join(fetcher, timeout_s)

    monkeypatch.setattr(SplitFetcher, "join", noting_join)
    driven = drive(reader_type)
    driven.script.ignores_wake_up = True
    driven.add("a", "b")
    driven.script.wait_for(lambda: driven.script.waiting == len(driven.script.made))

    driven.reader.close()

    assert granted_s and sum(granted_s) < 1.0
    assert driven.script.closed == [], "the fetch goes on"
    fetchers = [each for each in threading.enumerate() if each.name.startswith("headgate-fetcher")]
    assert fetchers and all(each.daemon for each in fetchers)


@pytest.mark.parametrize("reader_type", ALL)
def test_close_returns_though_fetchers_wait_for_space_in_the_queue(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type, msgspec.structs.replace(PATIENT, queue_bytes=8))
    driven.script.feed("a", [1], [2], [3])
    driven.add("a")
    driven.script.wait_for(lambda: len(driven.script.fed["a"]) == 1)  # one queued, one on its way

    driven.reader.close()

    assert driven.script.closed == driven.script.made


@pytest.mark.parametrize("reader_type", ALL)
def test_a_reader_that_never_got_a_split_closes(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)

    driven.reader.close()

    assert driven.script.made == []


@pytest.mark.parametrize("reader_type", [SequentialReader, MultiplexedReader])
def test_a_fetcher_without_splits_does_not_fetch_and_costs_no_cpu(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1], "end")
    driven.add("a")
    driven.poll_until(lambda: ("a", "released") in driven.output.log)
    fetches = driven.script.fetches

    used_s = cpu_s(driven)
    threading.Event().wait(0.5)

    assert cpu_s(driven) - used_s < 0.1
    assert driven.script.fetches == fetches


@pytest.mark.parametrize("reader_type", ALL)
def test_a_fetcher_with_all_splits_paused_does_not_fetch_and_costs_no_cpu(
    drive: Drive, reader_type: ReaderType
) -> None:
    driven = drive(reader_type)
    driven.add("a")
    driven.script.wait_for(lambda: driven.script.waiting == 1)
    driven.reader.pause_or_resume_splits(["a"], [])
    driven.script.wait_for(lambda: driven.script.made[0].paused == {"a"})
    fetches = driven.script.fetches

    used_s = cpu_s(driven)
    threading.Event().wait(0.5)

    assert cpu_s(driven) - used_s < 0.1
    assert driven.script.fetches == fetches


def test_a_split_reader_that_returns_empty_handed_at_once_does_not_spin(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    made = driven.script.make
    fetched_at_s: list[float] = []
    enough = threading.Event()

    def impatient() -> object:
        split_reader = made()

        def fetch(timeout_ms: int) -> list[FetchedBatch[Numbers]]:
            fetched_at_s.append(time.monotonic())
            if len(fetched_at_s) == 20:
                enough.set()
            return []

        split_reader.fetch = fetch  # type: ignore[method-assign]
        return split_reader

    driven.reader.split_reader_factory = impatient  # type: ignore[assignment]
    driven.add("a")

    assert enough.wait(TIMEOUT_S)
    assert fetched_at_s[19] - fetched_at_s[0] > 19 * 0.002


@pytest.mark.parametrize("reader_type", ALL)
def test_a_paused_split_emits_nothing_and_resumes_where_it_was(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1], [2])
    driven.add("a")
    driven.script.wait_for(lambda: not driven.script.fed["a"] and driven.script.waiting == 1)  # both are queued
    assert driven.poll() is InputStatus.MORE_AVAILABLE

    driven.reader.pause_or_resume_splits(["a"], [])
    driven.script.feed("a", [3])

    assert driven.poll() is InputStatus.NOTHING_AVAILABLE
    assert not driven.reader.available().done()
    assert driven.reader.snapshot_state(1) == [Numbers(split_id="a", position=1)]
    driven.reader.pause_or_resume_splits([], ["a"])
    driven.poll_until(lambda: driven.output.rows() == [1, 2, 3])


@pytest.mark.parametrize("reader_type", MULTI_SPLIT)
def test_batches_queued_of_a_paused_split_do_not_block_the_others(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type, ReaderOptions(queue_bytes=8))
    driven.script.feed("fast", [1], [2], [3])
    driven.add("fast")
    driven.script.wait_for(lambda: len(driven.script.fed["fast"]) == 1)  # the queue is full, a fetcher waits for space

    driven.reader.pause_or_resume_splits(["fast"], [])
    driven.add("slow")
    driven.script.feed("slow", *([n] for n in range(10, 20)))
    driven.poll_until(lambda: driven.output.rows("slow") == list(range(10, 20)))

    assert driven.output.rows("fast") == []
    driven.reader.pause_or_resume_splits([], ["fast"])
    driven.poll_until(lambda: driven.output.rows("fast") == [1, 2, 3])


def test_a_sequential_reader_goes_on_with_the_next_split_while_one_is_paused(drive: Drive) -> None:
    driven = drive(SequentialReader)
    driven.script.feed("a", [1])
    driven.script.feed("b", [2], "end")
    driven.add("a", "b")
    driven.poll_until(lambda: driven.output.rows() == [1])

    driven.reader.pause_or_resume_splits(["a"], [])
    driven.poll_until(lambda: driven.output.rows("b") == [2])

    driven.reader.pause_or_resume_splits([], ["a"])
    driven.script.feed("a", [3], "end")
    driven.reader.notify_no_more_splits()
    driven.poll_to_end()
    assert driven.output.rows("a") == [1, 3]


@pytest.mark.parametrize("reader_type", ALL)
def test_pausing_unknown_or_finished_splits_does_nothing(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1], "end")
    driven.add("a")
    driven.reader.pause_or_resume_splits(["never heard of"], ["nor of this"])
    driven.poll_until(lambda: ("a", "released") in driven.output.log)

    driven.reader.pause_or_resume_splits(["a"], [])
    driven.reader.pause_or_resume_splits([], ["a"])

    assert [call for call in driven.script.made[0].calls if call[0] == "pause"] == []
    driven.script.feed("a", [2], "end")
    driven.add("a")  # the same split may come back; it is not paused
    driven.poll_until(lambda: driven.output.rows() == [1, 2])


@pytest.mark.parametrize("reader_type", ALL)
def test_a_pause_that_crosses_with_the_end_of_its_split_reaches_no_split_reader(
    drive: Drive, reader_type: ReaderType
) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1], "end")
    driven.add("a")
    driven.script.wait_for(lambda: not driven.script.fed["a"])  # fetched to its end, not yet emitted

    driven.reader.pause_or_resume_splits(["a"], [])
    assert driven.poll() is InputStatus.NOTHING_AVAILABLE
    driven.reader.pause_or_resume_splits([], ["a"])
    driven.reader.notify_no_more_splits()
    driven.poll_to_end()

    assert driven.output.rows() == [1]
    assert [call for call in driven.script.made[0].calls if call[0] == "pause"] == []


@pytest.mark.parametrize("reader_type", ALL)
def test_a_split_reader_that_cannot_pause_is_an_error_for_the_caller(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.reader.split_reader_factory = lambda: CannotPause(driven.script)
    driven.add("a")

    for named in (["a"], []):  # naming none is how a task asks whether it could
        with pytest.raises(UnsupportedOperationError, match="CannotPause does not support pausing"):
            driven.reader.pause_or_resume_splits(named, [])


def test_where_it_is_allowed_a_split_reader_that_cannot_pause_reads_on_while_the_others_pause(drive: Drive) -> None:
    driven = drive(MultithreadedReader, allow_unaligned_splits=True)
    driven.script.has_positions = True
    driven.add("a")
    driven.reader.split_reader_factory = lambda: CannotPause(driven.script)
    driven.add("b")
    driven.output.bounds = {"a": 2, "b": 2}
    driven.script.feed("a", [1, 2])
    driven.script.feed("b", [1, 2])
    driven.poll_until(lambda: driven.output.rows("a") == [1] and driven.output.rows("b") == [1, 2])

    driven.reader.pause_or_resume_splits((), ())
    driven.reader.pause_or_resume_splits(["a", "b"], [])
    driven.output.bounds.clear()
    driven.script.feed("b", [3])
    driven.poll_until(lambda: driven.output.rows("b") == [1, 2, 3])
    assert driven.output.rows("a") == [1]
    driven.reader.pause_or_resume_splits([], ["a", "b"])
    driven.poll_until(lambda: driven.output.rows("a") == [1, 2])


def test_each_fetcher_gets_its_own_splits(drive: Drive) -> None:
    driven = drive(MultithreadedReader)
    driven.add("a", "b", "c")
    driven.script.wait_for(lambda: driven.script.waiting == 3)
    reported = {next(iter(each.splits)): each.calls for each in driven.script.made}
    driven.reader.pause_or_resume_splits(["a", "b"], [])
    driven.script.wait_for(lambda: len(reported["a"]) == len(reported["b"]) == 2)
    driven.reader.pause_or_resume_splits(["c"], ["a"])
    driven.script.wait_for(lambda: len(reported["a"]) == 3 and len(reported["b"]) == 2 and len(reported["c"]) == 2)

    a, b, c = (Numbers(split_id=each) for each in "abc")
    assert reported["a"][1:] == [("pause", ([a], [])), ("pause", ([], [a]))]
    assert reported["b"][1:] == [("pause", ([b], []))]
    assert reported["c"][1:] == [("pause", ([c], []))]


@pytest.mark.parametrize("reader_type", ALL)
def test_a_reader_without_splits_asks_for_one_exactly_once_per_need(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    assert driven.reader.available().done()
    for _ in range(3):
        assert driven.poll() is InputStatus.NOTHING_AVAILABLE
    assert driven.requests == 1
    assert not driven.reader.available().done()

    driven.script.feed("a", [1], "end")
    driven.add("a")
    driven.poll_until(lambda: ("a", "released") in driven.output.log)
    for _ in range(3):
        driven.poll()
    assert driven.requests == 2

    driven.reader.notify_no_more_splits()
    assert driven.poll() is InputStatus.END_OF_INPUT
    assert driven.requests == 2


@pytest.mark.parametrize("reader_type", ALL)
def test_a_restored_reader_that_has_splits_asks_for_none(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.add("a")

    driven.poll()

    assert driven.requests == 0


def test_a_reader_configured_not_to_ask_does_not(drive: Drive) -> None:
    driven = drive(MultiplexedReader, ReaderOptions(request_splits=False))

    driven.poll()

    assert driven.requests == 0
    assert not driven.reader.available().done()


@pytest.mark.parametrize("reader_type", ALL)
def test_available_wakes_a_waiting_task_at_the_end(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.poll()
    waiting = driven.reader.available()
    assert not waiting.done()

    driven.reader.notify_no_more_splits()

    assert waiting.done()
    assert driven.poll() is InputStatus.END_OF_INPUT
    assert driven.reader.available().done()


@pytest.mark.parametrize("reader_type", ALL)
def test_a_restored_reader_goes_on_after_what_was_emitted(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1, 2], [3])
    driven.add("a")
    driven.poll_until(lambda: driven.output.rows() == [1, 2])
    state = driven.reader.snapshot_state(1)

    restored = drive(reader_type)
    restored.script.feed("a", [3], "end")
    restored.reader.add_splits(state)
    restored.poll_until(lambda: restored.output.rows() == [3])

    assert restored.reader.snapshot_state(2) == [Numbers(split_id="a", position=3)]


@pytest.mark.parametrize("reader_type", ALL)
def test_watermark_and_idleness_follow_the_batch(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [])
    driven.add("a")
    driven.poll_until(lambda: driven.reader.snapshot_state(0) == [Numbers(split_id="a", position=0)])
    driven.reader._emit(FetchedBatch(split=Numbers(split_id="a", position=1), watermark_ms=5, idle=True), driven.output)

    assert driven.output.log == [("a", ("watermark", 5)), ("a", "idle")]
    assert driven.reader.snapshot_state(1) == [Numbers(split_id="a", position=1)]


@pytest.mark.parametrize("reader_type", ALL)
def test_the_split_reader_is_called_on_its_fetcher_only(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.script.feed("a", [1])
    driven.add("a")
    driven.poll_until(lambda: driven.output.rows() == [1])
    driven.reader.pause_or_resume_splits(["a"], [])
    driven.script.wait_for(lambda: bool(driven.script.made[0].paused))
    driven.reader.close()

    assert len(driven.script.made[0].threads) == 1
    assert threading.current_thread().name not in driven.script.made[0].threads


@pytest.mark.parametrize("reader_type", ALL)
def test_a_split_given_twice_is_refused(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.add("a")

    with pytest.raises(ConnectorContractError, match="'a', which it is reading already"):
        driven.add("a")


@pytest.mark.parametrize("reader_type", ALL)
def test_a_split_after_no_more_splits_is_refused(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    driven.reader.notify_no_more_splits()

    with pytest.raises(ConnectorContractError, match="no more splits"):
        driven.add("a")


def test_a_batch_of_a_split_that_was_not_given_is_the_connectors_error(drive: Drive) -> None:
    driven = drive(SequentialReader)
    driven.add("a")
    driven.script.wait_for(lambda: driven.script.waiting == 1)
    driven.script.made[0].splits["b"] = Numbers(split_id="b")
    driven.script.feed("b", [1])

    with pytest.raises(ConnectorContractError, match="'b', which it was not given"):
        driven.poll_until(lambda: False)


def test_the_sequential_reader_gives_the_next_split_after_the_end_of_the_last(drive: Drive) -> None:
    driven = drive(SequentialReader)
    driven.add("a", "b", "c")
    driven.script.wait_for(lambda: driven.script.waiting == 1)
    assert driven.script.made[0].calls == [("add", ["a"])]

    driven.script.feed("a", "end")

    driven.script.wait_for(lambda: len(driven.script.made[0].calls) == 2)  # read ahead: nothing was polled yet
    assert driven.script.made[0].calls == [("add", ["a"]), ("add", ["b"])]


def test_the_multiplexed_reader_has_one_fetcher(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    driven.add("a", "b")
    driven.add("c")
    driven.script.wait_for(lambda: bool(driven.script.made) and len(driven.script.made[0].splits) == 3)

    assert len(driven.script.made) == 1


def test_the_multithreaded_reader_has_a_fetcher_per_split_that_ends_with_it(drive: Drive) -> None:
    driven = drive(MultithreadedReader)
    driven.add("a", "b")
    assert len(driven.script.made) == 2

    driven.script.feed("a", "end")
    driven.poll_until(lambda: ("a", "released") in driven.output.log)

    driven.script.wait_for(lambda: driven.script.closed == [driven.script.made[0]])


def test_a_rule_bounds_the_threads_of_the_multithreaded_reader(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    context = driven.reader.context
    assert isinstance(context, SourceReaderContext)
    reader = MultithreadedReader(driven.script.make, context, fetcher_for=lambda split: int(split.split_id) % 2)
    reader.add_splits([Numbers(split_id=str(n)) for n in range(6)])
    try:
        driven.script.wait_for(lambda: sum(len(each.splits) for each in driven.script.made) == 6)
        assert [sorted(each.splits) for each in driven.script.made] == [["0", "2", "4"], ["1", "3", "5"]]
    finally:
        reader.close()


@pytest.mark.parametrize("reader_type", ALL)
def test_an_error_on_closing_a_split_reader_is_not_lost(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    made = driven.script.make

    def fails_to_close() -> object:
        split_reader = made()

        def close() -> None:
            raise OSError("the socket is stuck")

        split_reader.close = close  # type: ignore[method-assign]
        return split_reader

    driven.reader.split_reader_factory = fails_to_close  # type: ignore[assignment]
    driven.script.feed("a", "end")
    driven.add("a")
    if reader_type is not MultithreadedReader:  # the others keep their fetcher until the reader closes
        driven.poll_until(lambda: ("a", "released") in driven.output.log)
        driven.reader.close()
        return
    with pytest.raises(SourceError, match="failed while it held no split: OSError: the socket is stuck"):
        driven.poll_until(lambda: False)


@pytest.mark.parametrize("reader_type", ALL)
@pytest.mark.parametrize("seed", range(8))
def test_rows_stay_complete_and_in_order_whatever_is_paused_meanwhile(
    drive: Drive, reader_type: ReaderType, seed: int
) -> None:
    random = Random(seed)
    driven = drive(reader_type, ReaderOptions(queue_bytes=random.choice([1, 64, 10_000])))
    ids = ["a", "b", "c"]
    for split_id in ids:
        driven.script.feed(split_id, *([n] for n in range(60)), "end")
    driven.add(*ids)
    paused: set[str] = set()
    for _ in range(150):
        some = {split_id for split_id in ids if random.random() < 0.3}
        others = {split_id for split_id in paused if random.random() < 0.5} - some
        driven.reader.pause_or_resume_splits(some, others)
        paused = (paused | some) - others
        emitted = len(driven.output.log)
        for _ in range(random.randint(0, 5)):
            driven.poll()
        assert {split_id for split_id, _ in driven.output.log[emitted:]} & paused == set()
        for split in driven.reader.snapshot_state(0):
            assert driven.output.rows(split.split_id) == list(range(split.position))
    driven.reader.pause_or_resume_splits([], ids)
    driven.reader.notify_no_more_splits()
    driven.poll_to_end()

    assert all(driven.output.rows(split_id) == list(range(60)) for split_id in ids)


def test_what_split_readers_wait_for_is_reported(drive: Drive) -> None:
    driven = drive(MultiplexedReader)
    assert driven.reader.troubles() == (), "there is none yet"
    driven.add("a")
    driven.script.wait_for(lambda: driven.script.waiting > 0)
    assert driven.reader.troubles() == ()
    driven.script.trouble = "No broker answers"
    assert driven.reader.troubles() == ("No broker answers",)


@pytest.mark.parametrize("reader_type", ALL)
def test_a_fetch_that_hangs_can_be_distinguished_from_one_that_does_not(drive: Drive, reader_type: ReaderType) -> None:
    driven = drive(reader_type)
    assert driven.reader.stuck_since() is None, "nothing to read, nothing to fetch"
    before_s = time.monotonic()
    driven.add("a")
    driven.script.wait_for(lambda: driven.script.waiting > 0)
    since_s = driven.reader.stuck_since()
    assert since_s is not None
    assert before_s <= since_s <= time.monotonic()
