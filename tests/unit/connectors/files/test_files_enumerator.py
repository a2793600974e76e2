import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_cases import SCHEMA

from headgate.connectors.files.enumerator import STATE_SERIALIZER
from headgate.connectors.files.source import FilesSource
from headgate.errors import BadDataError, OptionError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.source.watermark import MIN_WATERMARK_MS
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
    def make(bounded=False, state=None, parallelism=2, schema=SCHEMA, **options):
        raw = {"path": str(tmp_path / "in"), "fileFormat": "csv"}
        raw |= {} if options.get("fileFormat") == "parquet" else {"header": "true"}
        source = FilesSource({**raw, **{name.replace("_", "."): value for name, value in options.items()}})
        harness = EnumeratorHarness(
            source,
            schema=schema,
            boundedness=Boundedness.BOUNDED if bounded else Boundedness.CONTINUOUS_UNBOUNDED,
            parallelism=parallelism,
            state=state,
        )
        harness.start()
        for subtask in range(parallelism):
            harness.register_reader(subtask)
        return harness

    return make


@pytest.fixture
def put_times(tmp_path):
    """Write a Parquet file with row groups that begin at these seconds."""

    def write(name, *seconds, modified=1_000_000, **options):
        target = tmp_path / "in" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        times = pa.array([each * 1_000_000 for each in seconds], pa.timestamp("us", "UTC"))
        data = pa.table({"at": times, "id": pa.array(range(len(seconds)), pa.int64())})
        pq.write_table(data, target, row_group_size=1, **options)
        os.utime(target, (modified, modified))
        return str(target)

    (tmp_path / "in").mkdir()
    return write


TIMES = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
IN_TIME = {"fileFormat": "parquet", "eventTimeColumn": "at", "schema": TIMES}


def unassigned_s(harness):
    """Return from which second on rows are unassigned: None, "any", or a number."""
    event_time_ms = harness.enumerator.unassigned_event_time_ms()
    if event_time_ms is None:
        return None
    return "any" if event_time_ms == MIN_WATERMARK_MS else event_time_ms // 1000


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


def test_files_are_discovered_once_and_wait_until_they_are_assigned(put, harness_of):
    for name, modified in (("a", 1), ("b", 2), ("c", 3)):
        put(name, modified)
    harness = harness_of()
    assert harness.metrics() == {"filesMatched": 0, "filesDiscovered": 0, "filesWaiting": 0, "bytesWaiting": 0}
    harness.run_next_call()
    harness.request_split(0)
    assert (harness.metrics()["filesDiscovered"], harness.metrics()["filesWaiting"]) == (3, 2)
    put("d", 4)
    harness.run_next_call()
    assert (harness.metrics()["filesDiscovered"], harness.metrics()["filesWaiting"]) == (4, 3)


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
    assert harness.enumerator.backlog() == {"filesBehind": 2, "bytesBehind": 720, "filesMatched": 2}
    harness.request_split(0)
    assert harness.enumerator.backlog() == {"filesBehind": 2, "bytesBehind": 420, "filesMatched": 2}


def test_a_stream_without_any_file_says_so_once_and_in_its_figures(tmp_path, put, harness_of, caplog):
    path = str(tmp_path / "in" / "{a}.csv")  # of {a}.csv it is a pattern that does not match
    put("{a}.csv")
    harness = harness_of(path=path)
    assert harness.enumerator.backlog() == {"filesBehind": 0, "bytesBehind": 0}  # not known yet
    with caplog.at_level(logging.WARNING):
        harness.run_next_call()
        harness.run_next_call()
        harness_of(path=path, state=harness.snapshot()).run_next_call()
    (record,) = caplog.records
    assert f"{path}: no file with content is there yet" in record.getMessage()
    assert harness.enumerator.backlog() == {"filesBehind": 0, "bytesBehind": 0, "filesMatched": 0}
    put("a.csv")
    harness.run_next_call()
    assert harness.metrics()["filesMatched"] == 1


def test_a_listing_that_fails_fails_the_enumerator(harness_of, put):
    harness = harness_of()
    with pytest.raises(SourceUnavailableError):
        harness.fail_next_call(SourceUnavailableError("gone"))


def test_a_listing_that_fails_is_tried_again_once_there_was_one_and_what_is_found_is_handed_out(harness_of, put):
    put("a", 1)
    harness = harness_of()
    harness.run_next_call()
    put("b", 2)
    harness.fail_next_call(SourceUnavailableError("away"))
    harness.request_split(0)
    assert held(harness) == ["a"]
    harness.run_next_call()
    harness.request_split(0)
    assert held(harness) == ["a", "b"]


def test_a_folder_that_is_gone_for_a_while_is_listed_when_it_is_back(harness_of, put, tmp_path, caplog):
    put("a", 1)
    harness = harness_of()
    harness.run_next_call()
    (tmp_path / "in").rename(tmp_path / "away")
    harness.run_next_call()
    assert "It does not exist" in caplog.text and "is retried" in caplog.text
    (tmp_path / "away").rename(tmp_path / "in")
    harness.run_next_call()
    harness.request_split(0)
    assert held(harness) == ["a"]


def test_the_listing_of_a_restored_bounded_read_is_tried_again(harness_of, put):
    put("a", 1)
    before = harness_of(bounded=True)
    before.run_next_call()
    harness = harness_of(bounded=True, state=before.snapshot())
    harness.fail_next_call(SourceUnavailableError("away"))
    harness.request_split(0)
    assert held(harness) == [] and not harness.no_more_splits
    harness.run_next_call()
    assert held(harness) == ["a"]


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


# -- in the order of event time ---------------------------------------------------------------------------------------


def test_files_go_out_in_the_order_of_event_time_and_what_is_left_is_never_passed(put_times, harness_of):
    for modified, (name, second) in enumerate([("c", 300), ("a", 100), ("d", 400), ("b", 200)]):
        put_times(name, second, second + 50, modified=modified + 1)
    harness = harness_of(bounded=True, **IN_TIME)
    assert unassigned_s(harness) == "any"
    harness.run_next_call()
    assert (unassigned_s(harness), held(harness)) == ("any", []), "the footers are not read yet"
    harness.run_next_call()
    reported = []
    for subtask in (0, 1, 0, 1):
        reported.append(unassigned_s(harness))
        harness.request_split(subtask)
    assert reported == [100, 200, 300, 400]
    assert unassigned_s(harness) is None
    assert [held(harness, 0), held(harness, 1)] == [["a", "c"], ["b", "d"]]
    harness.request_split(0)
    assert harness.no_more_splits == {0}


def test_a_bounded_read_does_not_end_before_its_footers_are_read(put_times, harness_of):
    put_times("a", 100)
    harness = harness_of(bounded=True, **IN_TIME)
    harness.request_split(0)
    harness.run_next_call()
    assert harness.requests == {0} and not harness.no_more_splits
    harness.run_next_call()
    assert held(harness) == ["a"]


def test_files_of_unknown_times_go_first_and_those_without_event_times_hold_nobody(put_times, harness_of):
    put_times("early", 100)
    put_times("unknown", 900, write_statistics=False)
    harness = harness_of(bounded=True, **IN_TIME)
    harness.run_next_call()
    harness.run_next_call()
    assert unassigned_s(harness) == "any"
    harness.request_split(0)
    assert (held(harness), unassigned_s(harness)) == (["unknown"], 100)


def test_pieces_of_a_file_go_out_in_their_own_time(put_times, harness_of):
    size = os.path.getsize(put_times("day", 0, 1, 2, 3, 600, 600, 600, 600))
    put_times("noon", 300)
    harness = harness_of(bounded=True, splitSize=str((size + 1) // 2), **IN_TIME)
    harness.run_next_call()
    harness.run_next_call()
    reported = []
    for _ in range(3):
        reported.append(unassigned_s(harness))
        harness.request_split(0)
    assert reported == [0, 300, 600]
    assert held(harness) == ["day", "noon", "day"]
    assert unassigned_s(harness) is None


def test_a_restored_rest_of_a_file_is_looked_at_before_its_turn(put_times, harness_of):
    size = os.path.getsize(put_times("day", 0, 1, 2, 3, 600, 600, 600, 600))
    put_times("noon", 300)
    options = {"splitSize": str((size + 1) // 2), **IN_TIME}
    harness = harness_of(**options)
    harness.run_next_call()
    harness.run_next_call()
    harness.request_split(0)
    again = harness_of(state=harness.snapshot(), **options)
    assert unassigned_s(again) == "any"
    again.run_due_calls()
    again.run_due_calls()
    assert unassigned_s(again) == 300
    again.request_split(0)
    again.request_split(0)
    assert held(again) == ["noon", "day"]


def test_what_comes_back_goes_first_and_holds_all_until_then(put_times, harness_of):
    put_times("a", 100)
    put_times("b", 200)
    harness = harness_of(**IN_TIME)
    harness.run_next_call()
    harness.run_next_call()
    harness.request_split(0)
    harness.run_next_call()
    assert unassigned_s(harness) == 200
    harness.fail_reader(0)
    assert unassigned_s(harness) == "any"
    harness.request_split(1)
    assert (held(harness, 1), unassigned_s(harness)) == (["a"], 200)


def test_files_that_come_later_hold_all_while_they_are_looked_at(put_times, harness_of):
    put_times("b", 200)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    harness.run_due_calls()
    put_times("a", 100)
    harness.run_next_call()
    assert unassigned_s(harness) == "any"
    harness.run_due_calls()
    assert unassigned_s(harness) == 100
    harness.request_split(0)
    assert (held(harness), unassigned_s(harness)) == (["a"], 200)


def test_a_file_that_changed_before_its_turn_is_looked_at_again(put_times, harness_of):
    put_times("a", 100)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    harness.run_due_calls()
    put_times("a", 700, 800, modified=2_000_000)
    harness.run_next_call()
    harness.run_due_calls()
    assert unassigned_s(harness) == 700


def test_a_file_assigned_while_others_are_looked_at_is_not_assigned_twice(put_times, harness_of):
    put_times("b", 200)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    harness.run_due_calls()
    put_times("a", 100)
    harness.run_next_call()
    (look,) = [call for call in harness.calls if call.period_ms is None]
    look.run_work()
    harness.request_split(0)
    harness.finish_call(look)
    harness.request_split(0)
    harness.request_split(0)
    assert held(harness) == ["b", "a"]
    assert unassigned_s(harness) is None


def test_files_that_wait_for_their_event_time_never_become_too_old(put_times, harness_of):
    """Their modification times may be in any order: the newest file of all may have the earliest rows."""
    for day in range(30):
        put_times(f"{day:02}", 1000 - day, modified=(day + 1) * DAY_S)
    state, seen = None, []
    for _ in range(6):
        harness = harness_of(state=state, **IN_TIME)
        harness.run_due_calls()
        harness.run_due_calls()
        for _ in range(7):
            harness.request_split(0)
        seen += held(harness)
        state = harness.snapshot()
    assert seen == [f"{day:02}" for day in reversed(range(30))]


def test_a_look_that_fails_is_tried_again_and_holds_all_until_then(put_times, harness_of):
    put_times("a", 100)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    (look,) = [call for call in harness.calls if call.period_ms is None]
    look.fail(SourceUnavailableError("gone"))
    harness.finish_call(look)
    assert unassigned_s(harness) == "any"
    harness.run_next_call()
    harness.run_due_calls()
    assert unassigned_s(harness) == 100


def test_a_look_that_cannot_succeed_fails_the_enumerator(put_times, harness_of):
    put_times("a", 100)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    (look,) = [call for call in harness.calls if call.period_ms is None]
    look.fail(BadDataError("not ours"))
    with pytest.raises(BadDataError):
        harness.finish_call(look)


def test_files_with_unknown_times_go_out_as_ever_and_hold_nobody(put, harness_of):
    put("b", 1)
    put("a", 2)
    schema = pa.schema([("id", pa.timestamp("us")), ("name", pa.string())])
    harness = harness_of(eventTimeColumn="id", schema=schema)
    assert unassigned_s(harness) == "any"
    harness.run_next_call()
    assert unassigned_s(harness) is None
    harness.request_split(0)
    assert held(harness) == ["b"]


def test_folders_of_times_order_files_of_any_format(put, harness_of):
    put("day=1970-01-03/a", 1)
    put("day=1970-01-02/b", 2)
    schema = pa.schema([*SCHEMA, ("day", pa.timestamp("us"))])
    harness = harness_of(eventTimeColumn="day", schema=schema)
    harness.run_due_calls()
    harness.run_due_calls()
    assert unassigned_s(harness) == DAY_S
    harness.request_split(0)
    assert (held(harness), unassigned_s(harness)) == (["b"], 2 * DAY_S)


def test_latest_first_keeps_its_order_and_holds_nobody(put_times, harness_of):
    put_times("a", 100, modified=1)
    put_times("b", 200, modified=2)
    harness = harness_of(latestFirst="true", **IN_TIME)
    harness.run_next_call()
    assert unassigned_s(harness) is None
    harness.request_split(0)
    assert held(harness) == ["b"]


@pytest.mark.parametrize("column", ["nowhere", "id"])
def test_an_event_time_column_must_be_a_time(put_times, harness_of, column):
    with pytest.raises(OptionError, match="must name one column, a timestamp"):
        harness_of(**{**IN_TIME, "eventTimeColumn": column})


def test_a_closed_enumerator_reads_no_more_footers(put_times, harness_of):
    for name in "abc":
        put_times(name, 100)
    harness = harness_of(**IN_TIME)
    harness.run_due_calls()
    (look,) = [call for call in harness.calls if call.period_ms is None]
    harness.close()
    looked_at = look.work()
    assert [each.by_unit for each in looked_at] == [False] * 3
