"""The harnesses: steps happen when the test says so, and broken rules are found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest
from planted_bugs import EVENTS, SCHEMA, Events, Lasting, Numbers, Range, RangeReader

from headgate.connectors.simple import adapt
from headgate.errors import ConnectorContractError, SourceUnavailableError
from headgate.source import Boundedness, InputStatus, WatermarkAlignment, WatermarkStrategy
from headgate.source.simple import SimpleSource
from headgate.testing import (
    AsyncCall,
    EnumeratorHarness,
    ReaderHarness,
    SourceHarness,
    SplitReaderHarness,
    ThreadRule,
    VirtualClock,
    assert_same_rows,
    assert_single_threaded,
)
from tests.waiting import wait_until


def test_a_virtual_clock_moves_only_when_asked() -> None:
    clock = VirtualClock(5)
    clock.advance(10)
    clock.advance_to(3)
    assert clock() == 15
    clock.advance_to(20)
    assert clock() == 20
    with pytest.raises(AssertionError, match="time does not go back"):
        clock.advance(-1)


def test_metrics_are_read_from_both_harnesses() -> None:
    source = Numbers({})
    enumerator = EnumeratorHarness(source)
    enumerator.metric_group.counter("found").inc(2)
    assert enumerator.metrics() == {"found": 2}
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as harness:
        harness.add_splits(Range(split_id="from-0", position=0, stop=7))
        group = harness.reader.context.metric_group  # type: ignore[attr-defined]
        group.split("from-0").gauge("pendingRecords", lambda: 7)
        assert (harness.metrics(), harness.pending_records()) == ({"pendingRecords": 7}, {"from-0": 7})
        harness.run_to_end()
        assert (harness.metrics(), harness.pending_records()) == ({}, {}), "the split has ended"


def test_slow_work_runs_when_the_test_says_so() -> None:
    harness = EnumeratorHarness(Numbers({}))
    harness.start()
    harness.register_reader(0)
    harness.request_split(0)
    assert harness.assigned == {0: {}}
    assert harness.requests == {0}

    [call] = harness.calls
    call.run_work()
    assert harness.assigned == {0: {}}
    harness.finish_call(call)

    assert list(harness.assigned[0]) == ["from-0"]
    assert harness.requests == set()
    assert harness.outbox == [(0, [Range(split_id="from-0", position=0, stop=7)])]


def test_work_moves_the_clock_to_its_time_and_periodic_work_comes_again() -> None:
    harness = EnumeratorHarness(Numbers({}), boundedness=Boundedness.CONTINUOUS_UNBOUNDED)
    seen: list[object] = []
    context = harness.enumerator.context  # type: ignore[attr-defined]
    context.call_async(lambda: "once", lambda result, error: seen.append(result), initial_delay_ms=10)
    context.call_async(lambda: threading.current_thread().name, lambda result, error: seen.append(result), period_ms=7)

    assert harness.run_due_calls() == 1
    harness.run_next_call()
    harness.run_next_call()

    assert seen == ["headgate-harness-work", "headgate-harness-work", "once"]
    assert harness.clock() == 10
    assert [call.due_ms for call in harness.calls] == [14]


def test_work_can_be_made_to_fail() -> None:
    harness = EnumeratorHarness(Numbers({}))
    harness.start()

    with pytest.raises(SourceUnavailableError, match="no answer"):
        harness.fail_next_call(SourceUnavailableError("no answer"))


def test_an_enumerator_is_restored_by_way_of_bytes() -> None:
    harness = EnumeratorHarness(Numbers({}))
    harness.start()
    harness.register_reader(0)
    harness.request_split(0)
    harness.run_next_call()
    state = harness.snapshot()

    restored = EnumeratorHarness(Numbers({}), state=state)
    restored.start()
    restored.register_reader(0)
    restored.request_split(0)

    assert list(restored.assigned[0]) == ["from-7"]
    assert restored.calls == []


def test_splits_of_a_failed_reader_go_back() -> None:
    harness = EnumeratorHarness(Numbers({"count": "7"}), parallelism=2)
    harness.start()
    for subtask in range(2):
        harness.register_reader(subtask)
    harness.request_split(0)
    harness.run_next_call()
    assert list(harness.assigned[0]) == ["from-0"]

    harness.fail_reader(0)
    assert harness.readers.keys() == {1}
    harness.request_split(1)

    assert list(harness.assigned[1]) == ["from-0"]
    assert harness.outbox == [(1, [Range(split_id="from-0", position=0, stop=7)])]


def test_an_assignment_to_a_stranger_is_refused() -> None:
    harness = EnumeratorHarness(Numbers({}))
    split = Range(split_id="x", position=0, stop=1)

    with pytest.raises(ConnectorContractError, match="reader 5 is not registered"):
        harness.on_assign({5: [split]})


def test_an_assignment_after_the_last_one_is_refused() -> None:
    harness = EnumeratorHarness(Numbers({}))
    harness.register_reader(0)
    harness.on_no_more_splits(0)

    with pytest.raises(ConnectorContractError, match="promised no more splits"):
        harness.on_assign({0: [Range(split_id="x", position=0, stop=1)]})


def test_a_snapshot_with_a_split_that_a_reader_holds_is_refused() -> None:
    harness = EnumeratorHarness(Numbers({}))
    harness.start()
    harness.run_next_call()
    harness.register_reader(0)
    harness.on_assign({0: [Range(split_id="from-0", position=0, stop=7)]})

    with pytest.raises(AssertionError, match="in the enumerator's state though readers hold them"):
        harness.snapshot()


def test_a_split_reader_is_driven_fetch_by_fetch() -> None:
    with SplitReaderHarness(RangeReader()) as harness:
        harness.add_splits(Range(split_id="a", position=1, stop=5))
        harness.fetch()
        assert harness.rows() == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert harness.position("a") == {"split_id": "a", "position": 4, "stop": 5}
        assert harness.fetch_all() == [{"n": 4}]
        assert harness.finished == ["a"]


def test_a_split_reader_that_fetches_what_is_paused_is_found() -> None:
    with SplitReaderHarness(RangeReader("fetches what is paused")) as harness:
        harness.add_splits(Range(split_id="a", position=1, stop=5))
        harness.pause("a")
        with pytest.raises(AssertionError, match="which is paused"):
            harness.fetch()


def test_a_paused_split_reader_goes_on_when_resumed() -> None:
    with SplitReaderHarness(RangeReader(), timeout_ms=1) as harness:
        harness.add_splits(Range(split_id="a", position=1, stop=5))
        harness.pause("a")
        assert harness.fetch() == []
        harness.resume("a")
        assert len(harness.fetch_all()) == 4


def test_a_reader_is_driven_poll_by_poll() -> None:
    source = Numbers({})
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as harness:
        assert harness.step() is InputStatus.NOTHING_AVAILABLE
        assert harness.requests == 1
        harness.add_splits(Range(split_id="a", position=0, stop=5))
        harness.step()
        state = harness.snapshot()
        assert harness.rows() == [{"n": 0}, {"n": 1}, {"n": 2}]

    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA) as restored:
        restored.restore(state)
        assert restored.run_to_end() == [{"n": 3}, {"n": 4}]
        assert restored.finished == ["a"]
        assert restored.snapshot() == []


def test_a_split_that_brings_nothing_is_reported() -> None:
    source = Numbers({})
    with ReaderHarness(source.create_reader, source.split_serializer, SCHEMA, timeout_s=0.05) as harness:
        harness.add_splits(Range(split_id="a", position=0, stop=5))
        harness.pause_or_resume(["a"])
        with pytest.raises(AssertionError, match=r"nothing came within 0.05 s from splits \['a'\]"):
            harness.step()


def test_a_source_is_run_step_by_step_and_restored() -> None:
    with SourceHarness(Numbers({}), parallelism=2) as harness:
        while harness.row_count < 7:
            assert harness.step()
        snapshot = harness.snapshot()
        before = harness.rows()

    with SourceHarness(Numbers({}), parallelism=3, snapshot=snapshot) as restored:
        restored.run_to_end()
        assert_same_rows(before + restored.rows(), [{"n": n} for n in range(20)])


def test_rows_since_the_last_snapshot_of_a_failed_reader_do_not_count() -> None:
    with SourceHarness(Numbers({})) as harness:
        harness.run_until_rows(3)
        harness.snapshot()
        harness.run_until_rows(6)
        harness.fail_reader(0)
        assert harness.rows() == [{"n": 0}, {"n": 1}, {"n": 2}]
        harness.fail_reader(0)
        harness.run_to_end()
        assert_same_rows(harness.rows(), [{"n": n} for n in range(20)])


def test_a_source_that_does_not_go_on_is_reported() -> None:
    with SourceHarness(Numbers({"bug": "drops what comes back", "count": "5"}), parallelism=2) as harness:
        harness.run_until_rows(3)
        harness.fail_reader(0)
        harness.run_to_end()
        assert harness.rows() == []


def test_a_call_by_a_second_thread_is_found() -> None:
    rule = ThreadRule("reader")
    reader = assert_single_threaded(RangeReader(), rule=rule)
    reader.handle_splits_changes([])
    errors: list[BaseException] = []

    def other() -> None:
        reader.wake_up()
        try:
            reader.fetch(1)
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=other, name="other")
    thread.start()
    thread.join()

    assert "reader.fetch was called by thread 'other'" in str(errors[0])
    with pytest.raises(AssertionError, match=r"reader\.fetch"):
        rule.check()


def test_rows_are_compared_whatever_their_order_but_not_their_number() -> None:
    assert_same_rows([{"a": [1], "b": float("nan")}, {"a": 2}], [{"a": 2}, {"a": [1], "b": float("nan")}])
    with pytest.raises(AssertionError, match="too many 1"):
        assert_same_rows([{"a": 1}, {"a": 1}], [{"a": 1}])
    with pytest.raises(AssertionError, match="missing 1"):
        assert_same_rows([{"a": 1}], [{"a": 1}, {"a": 2}])


@pytest.mark.parametrize("seed", range(60))
def test_a_random_walk_of_pauses_failures_and_restores_reads_every_row_once(seed: int) -> None:
    random = Random(seed)
    count = random.randint(0, 60)
    source = Numbers({"count": str(count), "numbersPerSplit": str(random.randint(1, 20))})
    harness = SourceHarness(source, parallelism=random.randint(1, 3))
    harness.snapshot()
    rows = []
    for _ in range(30):
        match random.choice(["step", "step", "step", "pause", "snapshot", "fail", "restore"]):
            case "step":
                harness.step()
            case "pause":
                reader = random.choice(harness.readers)
                some = [split_id for split_id in reader.splits if random.random() < 0.6]
                reader.pause_or_resume(some)
                for _ in range(random.randint(0, 4)):
                    harness.poll()
                reader.pause_or_resume([], [*some, "unknown"])
            case "snapshot":
                harness.snapshot()
            case "fail":
                harness.fail_reader(random.randrange(len(harness.readers)))
            case "restore":
                snapshot = harness.snapshot()
                rows += harness.rows()
                harness.close()
                harness = SourceHarness(source, parallelism=random.randint(1, 3), snapshot=snapshot)
    harness.run_to_end()
    rows += harness.rows()
    harness.close()

    assert_same_rows(rows, [{"n": n} for n in range(count)], f"seed {seed}")


def test_an_unbounded_read_finds_new_splits_by_the_virtual_clock() -> None:
    found = ["a"]

    class Growing(SimpleSource):
        name = "growing"
        schema = "n long"

        def splits(self) -> list[str]:
            return list(found)

        def read(self, split_id: str, position: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
            for number in range(position or 0, 3):
                yield pa.record_batch({"n": pa.array([number], pa.int64())}), number + 1

    clock = VirtualClock()
    with SourceHarness(
        adapt(Growing)({"discovery.interval": "1 hour"}),
        schema=SCHEMA,
        boundedness=Boundedness.CONTINUOUS_UNBOUNDED,
        parallelism=2,
        clock=clock,
    ) as harness:
        harness.run_until_rows(3)
        found.append("b")
        harness.run_until_rows(6)

        assert clock() >= 3_600_000
        assert_same_rows(harness.rows(), [{"n": n} for n in (0, 1, 2)] * 2)
        assert sorted(split for reader in harness.readers for split in reader.splits) == ["a", "b"]


def test_alignment_pauses_a_reader_that_is_ahead() -> None:
    """A single split with its whole reader, several by themselves."""
    source = Events({})
    strategy = WatermarkStrategy(event_time_column="at", alignment=WatermarkAlignment(group="g", max_drift_ms=0))
    splits = [Lasting(split_id=f"from-{begin}", position=begin, stop=begin + 7) for begin in (0, 7)]
    with ReaderHarness(source.create_reader, source.split_serializer, EVENTS, strategy=strategy) as harness:
        harness.announce(4_000)
        harness.add_splits(splits[0])
        wait_until(lambda: harness.poll() is not None and harness.source_paused)
        assert harness.poll() is InputStatus.NOTHING_AVAILABLE
        assert [row["n"] for row in harness.rows()] == [0, 1, 2, 3, 4]
        harness.add_splits(splits[1])
        assert not harness.source_paused
        harness.announce(9_000)
        wait_until(lambda: harness.poll() is not None and len(harness.rows()) == 10)
        assert sorted(row["n"] for row in harness.rows()) == [*range(10)]


def test_a_source_is_run_without_waiting() -> None:
    with SourceHarness(Numbers({"count": "3"})) as harness:
        while not harness.ended:
            harness.try_step()
        assert harness.row_count == 3 and not harness.try_step()


def test_work_that_does_not_end_is_left_alone() -> None:
    ends = threading.Event()
    call = AsyncCall(ends.wait, lambda result, error: None, 0, None)
    assert not call.run_work(0.01)
    ends.set()
    assert call.run_work()
