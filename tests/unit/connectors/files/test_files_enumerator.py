import logging
import os

import pytest
from files_cases import SCHEMA

from headgate.connectors.files.enumerator import STATE_SERIALIZER
from headgate.connectors.files.source import FilesSource
from headgate.errors import OptionError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.testing import EnumeratorHarness

DAY_S = 86_400


@pytest.fixture
def put(tmp_path):
    def write(name, modified=1_000_000, content="id,name\n1,a\n"):
        target = tmp_path / "in" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        os.utime(target, (modified, modified))
        return str(target)

    (tmp_path / "in").mkdir()
    return write


@pytest.fixture
def harness_of(tmp_path):
    def make(bounded=False, state=None, parallelism=2, **options):
        raw = {"path": str(tmp_path / "in"), "fileFormat": "csv", "header": "true"}
        source = FilesSource({**raw, **{name.replace("_", "."): value for name, value in options.items()}})
        harness = EnumeratorHarness(
            source,
            schema=SCHEMA,
            boundedness=Boundedness.BOUNDED if bounded else Boundedness.CONTINUOUS_UNBOUNDED,
            parallelism=parallelism,
            state=state,
        )
        harness.start()
        for subtask in range(parallelism):
            harness.register_reader(subtask)
        return harness

    return make


def held(harness, subtask=0):
    return [os.path.basename(split.path) for split in harness.assigned[subtask].values()]


def test_a_bounded_read_lists_once_and_ends(put, harness_of):
    put("a", 1)
    put("b", 2)
    harness = harness_of(bounded=True)
    harness.request_split(0)
    assert held(harness) == []
    assert harness.run_next_call()
    assert held(harness) == ["a"]
    put("late", 3)
    assert not harness.run_next_call()
    harness.request_split(1)
    harness.request_split(0)
    harness.request_split(1)
    assert held(harness, 1) == ["b"]
    assert harness.no_more_splits == {0, 1}


def test_a_bounded_read_of_nothing_ends_at_once_also_after_a_restore(put, harness_of):
    harness = harness_of(bounded=True)
    harness.request_split(0)
    harness.run_next_call()
    assert harness.no_more_splits == {0}
    again = harness_of(bounded=True, state=harness.snapshot())
    again.request_split(0)
    again.run_next_call()
    assert again.no_more_splits == {0}


def test_waiting_readers_are_served_when_files_come(put, harness_of):
    harness = harness_of()
    harness.request_split(0)
    harness.request_split(1)
    harness.run_next_call()
    assert harness.requests == {0, 1}
    put("a")
    put("b")
    harness.run_next_call()
    assert [held(harness, 0), held(harness, 1)] == [["a"], ["b"]]


def test_one_request_gives_one_split_in_order_of_time(put, harness_of):
    for name, modified in (("c", 3), ("a", 1), ("b", 2)):
        put(name, modified)
    harness = harness_of()
    harness.run_next_call()
    for _ in range(3):
        harness.request_split(0)
    assert held(harness) == ["a", "b", "c"]


def test_latest_first_reverses_the_order(put, harness_of):
    for name, modified in (("c", 3), ("a", 1), ("b", 2)):
        put(name, modified)
    harness = harness_of(latestFirst="true")
    harness.run_next_call()
    for _ in range(3):
        harness.request_split(0)
    assert held(harness) == ["c", "b", "a"]


def test_latest_first_never_takes_old_files_for_too_old(put, harness_of):
    put("old", 1)
    put("new", 30 * DAY_S)
    harness = harness_of(latestFirst="true")
    harness.run_next_call()
    harness.request_split(0)
    again = harness_of(latestFirst="true", state=harness.snapshot())
    again.run_next_call()
    again.request_split(0)
    assert held(again) == ["old"]


def test_a_file_moved_in_with_an_old_time_is_found(put, harness_of):
    put("new", 10 * DAY_S)
    harness = harness_of()
    harness.request_split(0)
    harness.run_next_call()
    harness.snapshot()
    put("moved", 4 * DAY_S)
    put("too-old", 2 * DAY_S)
    harness.request_split(0)
    harness.run_next_call()
    harness.request_split(0)
    assert held(harness) == ["new", "moved"]


def test_seen_files_stay_seen_over_restores_and_purging(put, harness_of):
    for day in range(30):
        put(f"{day:02}", day * DAY_S)
    state, seen = None, []
    for _ in range(6):
        harness = harness_of(state=state)
        harness.run_next_call()
        for _ in range(7):
            harness.request_split(0)
        seen += held(harness)
        state = harness.snapshot()
    assert seen == [f"{day:02}" for day in range(30)]


def test_the_first_listing_takes_files_of_any_age(put, harness_of):
    put("ancient", 1)
    put("new", 400 * DAY_S)
    harness = harness_of()
    harness.run_next_call()
    harness.request_split(0)
    harness.request_split(0)
    assert held(harness) == ["ancient", "new"]


def test_a_large_file_is_cut_and_its_rest_is_state(put, harness_of):
    put("a", content="id,name\n" + "1,aaaa\n" * 100)
    harness = harness_of(splitSize="300")
    harness.run_next_call()
    harness.request_split(0)
    (first,) = harness.assigned[0].values()
    assert (first.start, first.end, first.size) == (0, 300, 708)
    (rest,) = STATE_SERIALIZER.deserialize(harness.snapshot()).pending
    assert (rest.start, rest.end) == (300, 708)
    again = harness_of(splitSize="300", state=harness.snapshot())
    again.run_next_call()
    for _ in range(3):
        again.request_split(1)
    assert [(split.start, split.end) for split in again.assigned[1].values()] == [(300, 600), (600, 708)]


def test_files_not_begun_are_not_state(put, harness_of):
    for name in "abc":
        put(name)
    harness = harness_of()
    harness.run_next_call()
    before = harness.snapshot()
    harness.request_split(0)
    state = STATE_SERIALIZER.deserialize(harness.snapshot())
    assert STATE_SERIALIZER.deserialize(before).seen.segments == ()
    assert state.pending == ()
    assert len(state.seen.segments) == 1


def test_idle_discovery_does_not_change_the_state(put, harness_of):
    put("a")
    harness = harness_of()
    harness.request_split(0)
    harness.run_next_call()
    before = harness.snapshot()
    for _ in range(5):
        harness.run_next_call()
    assert harness.snapshot() == before


def test_splits_that_come_back_go_to_a_waiting_reader(put, harness_of):
    put("a")
    harness = harness_of()
    harness.request_split(0)
    harness.run_next_call()
    harness.request_split(1)
    assert held(harness, 1) == []
    harness.fail_reader(0)
    assert held(harness, 1) == ["a"]


def test_a_request_of_a_reader_that_is_gone_takes_no_split(put, harness_of):
    harness = harness_of()
    harness.request_split(0)
    harness.fail_reader(0)
    put("a")
    harness.run_next_call()
    harness.request_split(1)
    assert held(harness, 1) == ["a"]


def test_a_file_that_changed_after_it_was_assigned_is_not_read_twice(put, harness_of, caplog):
    put("a", 1)
    harness = harness_of()
    harness.request_split(0)
    harness.run_next_call()
    put("a", 9, "id,name\n1,a\n2,b\n")
    harness.request_split(0)
    with caplog.at_level(logging.WARNING):
        harness.run_next_call()
        harness.run_next_call()
    assert harness.requests == {0}
    assert [record.message for record in caplog.records if "is not read again" in record.message] == [
        f"headgate.files: {next(iter(harness.assigned[0].values())).path} was modified after it was read (or while it "
        "was). It is not read again. Move files into the folder when they are complete."
    ]


def test_a_file_that_changed_before_its_turn_is_read_as_it_is(put, harness_of):
    put("a", 1)
    harness = harness_of()
    harness.run_next_call()
    put("a", 5, "id,name\n1,a\n2,b\n")
    harness.run_next_call()
    harness.request_split(0)
    (split,) = harness.assigned[0].values()
    assert (split.size, split.modified_ms) == (16, 5000)


def test_file_name_only_takes_a_name_once(put, harness_of):
    put("x=1/a", 1)
    put("x=2/a", 2)
    harness = harness_of(fileNameOnly="true")
    harness.run_next_call()
    harness.request_split(0)
    harness.request_split(0)
    assert len(harness.assigned[0]) == 1


def test_backlog_counts_what_is_not_assigned(put, harness_of):
    put("a", 1, "id,name\n" + "1,aaaa\n" * 100)
    put("b", 2)
    harness = harness_of(splitSize="300")
    harness.run_next_call()
    assert harness.enumerator.backlog() == {"filesBehind": 2, "bytesBehind": 720}
    harness.request_split(0)
    assert harness.enumerator.backlog() == {"filesBehind": 2, "bytesBehind": 420}


def test_a_listing_that_fails_fails_the_enumerator(harness_of, put):
    harness = harness_of()
    with pytest.raises(SourceUnavailableError):
        harness.fail_next_call(SourceUnavailableError("gone"))


def test_a_folder_that_does_not_exist_is_named(harness_of):
    harness = harness_of(path="/nowhere/at/all")
    with pytest.raises(OptionError, match="/nowhere/at/all"):
        harness.run_next_call()


def test_plans_stay_within_limits_but_hold_one_split(put, harness_of):
    for name in "abc":
        put(name)
    harness = harness_of()
    harness.run_next_call()
    for _ in range(3):
        harness.request_split(0)
    splits = list(harness.assigned[0].values())
    plan = harness.source.plan_ranges
    assert [len(plan(splits, PlanLimits(max_files=n), 0)) for n in (1, 2, 9)] == [1, 2, 3]
    assert [len(plan(splits, PlanLimits(max_bytes=n), 0)) for n in (1, 24, 25, 36)] == [1, 2, 2, 3]
    assert plan([], PlanLimits(), 0) == []
    assert harness.source.lag(splits, 0) == {"filesBehind": 3, "bytesBehind": 36}
