"""What a micro-batch reads is fixed in offsets, and every restart from one continues exactly there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from counting_source import CountingSource, RangeSplit, ReassigningSource, World
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import ConnectorContractError, CorruptStateError, OptionError, UnsupportedVersionError
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.state_store import StateStore
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.source import PlanLimits

NO_LIMITS = PlanLimits()


def planner(world: World, kind: type[CountingSource] = CountingSource, **options: str) -> StreamPlanner:
    source = kind(options, world)
    return StreamPlanner(source, source.schema())


def rows(tasks: list[list[RangeSplit]]) -> list[tuple[str, int]]:
    return [(split.split_id, n) for task in tasks for split in task for n in range(split.position, split.stop or 0)]


def everything(world: World) -> list[tuple[str, int]]:
    return sorted((name, n) for name, length in world.lengths.items() for n in range(length))


def through_the_log(offset: dict[str, Any]) -> dict[str, Any]:
    """Spark keeps offsets as JSON text."""
    return json.loads(json.dumps(offset))


def test_batches_follow_one_another_without_gap_or_overlap() -> None:
    world = World(a=5, b=3)
    plans = planner(world)
    first = plans.plan(INITIAL, NO_LIMITS, 0)
    world.lengths.update(a=9, c=2)
    second = plans.plan(first, NO_LIMITS, 2000)
    read = rows(plans.tasks(INITIAL, first, 2000)) + rows(plans.tasks(first, second, 2000))
    assert sorted(read) == everything(world)


def test_nothing_new_returns_the_start_unchanged_however_often() -> None:
    plans = planner(World(a=5))
    end = plans.plan(INITIAL, NO_LIMITS, 0)
    for now_ms in range(10, 60_000, 500):
        assert plans.plan(through_the_log(end), NO_LIMITS, now_ms) == end
    assert json.dumps(plans.plan(through_the_log(end), NO_LIMITS, 99_000)) == json.dumps(end)


def test_the_first_plan_records_resolved_splits_even_without_rows() -> None:
    """Otherwise a kill before batch 0 commits would resolve ``latest`` a second time."""
    world = World(a=0)
    end = planner(world).plan(INITIAL, NO_LIMITS, 0)
    assert end != INITIAL
    assert [each["split"]["split_id"] for each in end["splits"]] == ["a"]
    assert planner(world).plan(end, NO_LIMITS, 10) == end


def test_an_empty_world_makes_no_batch() -> None:
    plans = planner(World())
    assert plans.plan(INITIAL, NO_LIMITS, 0) == INITIAL
    assert plans.tasks(INITIAL, INITIAL, 0) == []


def test_a_replay_has_the_tasks_of_the_plan_whatever_machine_or_options_cut_it() -> None:
    """A sink that knows rows by their task must find them in the same one."""

    def group(splits: Sequence[RangeSplit], grouping: Mapping[str, int]) -> list[Sequence[RangeSplit]]:
        return [splits[: grouping["first"]], splits[grouping["first"] :]]

    world = World(a=5, b=3, c=2)
    source = CountingSource({}, world)
    end = StreamPlanner(source, source.schema(), group, {"first": 2}).plan(INITIAL, NO_LIMITS, 0)
    again = StreamPlanner(source, source.schema(), group, {"first": 1})
    assert [len(task) for task in again.tasks(INITIAL, through_the_log(end), 0)] == [2, 1]
    without = through_the_log(end)
    del without["grouping"]  # an offset of 0.1.0
    assert [len(task) for task in again.tasks(INITIAL, without, 0)] == [1, 2]


def test_a_small_plan_waits_for_more_rows_but_not_for_ever() -> None:
    world = World(a=5)
    plans = planner(world)
    limits = PlanLimits(min_rows=10, max_delay_ms=60_000)
    first = plans.plan(INITIAL, limits, 0)
    assert rows(plans.tasks(INITIAL, first, 0)) == everything(World(a=5))  # as in Spark, the first batch waits for none
    world.lengths["a"] = 14
    assert plans.plan(first, limits, 30_000) == first
    world.lengths["a"] = 15
    second = plans.plan(first, limits, 30_001)
    assert len(rows(plans.tasks(first, second, 30_001))) == 10
    world.lengths["a"] = 16
    assert plans.plan(second, limits, 90_000) == second
    third = plans.plan(second, limits, 90_001)
    assert len(rows(plans.tasks(second, third, 90_001))) == 1


def test_available_now_waits_for_no_minimum() -> None:
    """Else a query that should end would wait for rows that never come."""
    world = World(a=5)
    limits = PlanLimits(min_rows=10, max_rows=3)
    plans = planner(world)
    first = plans.plan(INITIAL, limits, 0)
    later = planner(world)
    later.freeze()
    second = later.plan(first, limits, 10)
    assert len(rows(later.tasks(first, second, 10))) == 2


def test_a_replay_in_a_new_process_reads_the_same_rows() -> None:
    world = World(a=5, b=3)
    end = planner(world).plan(INITIAL, PlanLimits(max_rows=6), 0)
    before = rows(planner(world).tasks(INITIAL, end, 0))
    world.lengths.update(a=100, z=7)
    assert rows(planner(world).tasks(dict(INITIAL), through_the_log(end), 5)) == before
    assert len(before) == 6


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_growth_limits_and_restarts_read_every_row_once(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([CountingSource, ReassigningSource]))
    options = {"pull": str(data.draw(st.booleans())).lower()}
    world = World()
    plans = planner(world, kind, **options)
    start, read, now_ms = dict(INITIAL), [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        now_ms += 1500
        name = data.draw(st.sampled_from("abcd"))
        world.lengths[name] = world.lengths.get(name, 0) + data.draw(st.integers(0, 9))
        if data.draw(st.booleans()):
            plans = planner(world, kind, **options)
        if data.draw(st.booleans()):
            plans.freeze()
        limits = PlanLimits(max_rows=data.draw(st.one_of(st.none(), st.integers(1, 7))))
        end = plans.plan(start, limits, now_ms)
        read += rows(planner(world, kind, **options).tasks(start, through_the_log(end), now_ms))
        start = through_the_log(end)
    plans = planner(world, kind, **options)
    while (end := plans.plan(start, NO_LIMITS, now_ms := now_ms + 1500)) != start:
        read += rows(plans.tasks(start, end, now_ms))
        start = end
    assert sorted(read) == everything(world)
    assert len(read) == len(set(read))


def test_available_now_ends_at_what_was_there_and_a_later_run_reads_the_rest() -> None:
    world = World(a=5, b=3)
    plans = planner(world)
    plans.freeze()
    first = plans.plan(INITIAL, PlanLimits(max_rows=4), 0)
    world.lengths.update(a=50, new=4)
    read = rows(plans.tasks(INITIAL, first, 0))
    start, now_ms = first, 5000
    while (end := plans.plan(start, PlanLimits(max_rows=4), now_ms)) != start:
        read += rows(plans.tasks(start, end, now_ms))
        start, now_ms = end, now_ms + 5000
    assert sorted(read) == everything(World(a=5, b=3))
    later = planner(world)
    end = later.plan(start, NO_LIMITS, now_ms)
    while (end := later.plan(start, NO_LIMITS, now_ms)) != start:
        read += rows(later.tasks(start, end, now_ms))
        start, now_ms = end, now_ms + 5000
    assert sorted(read) == everything(world)


def test_available_now_stopped_half_way_goes_on_after_its_stop() -> None:
    world = World(a=10)
    plans = planner(world)
    plans.freeze()
    half = plans.plan(INITIAL, PlanLimits(max_rows=4), 0)
    assert half["splits"][0]["then"]["position"] == 10
    world.lengths["a"] = 12
    later = planner(world)
    end = later.plan(through_the_log(half), NO_LIMITS, 10)
    last = later.plan(end, NO_LIMITS, 20)
    read = rows(later.tasks(half, end, 20)) + rows(later.tasks(end, last, 20))
    assert read == [("a", n) for n in range(4, 12)]


def test_available_now_after_one_that_was_stopped_half_way_reads_what_is_there_when_it_starts() -> None:
    world = World(a=10)
    plans = planner(world)
    plans.freeze()
    start = through_the_log(plans.plan(INITIAL, PlanLimits(max_rows=4), 0))
    world.lengths["a"] = 15
    later = planner(world)
    later.freeze()
    read, now_ms = [], 10
    while (end := later.plan(start, PlanLimits(max_rows=4), now_ms)) != start:
        world.lengths["a"] = 50
        read += rows(later.tasks(start, end, now_ms))
        start, now_ms = end, now_ms + 10
    assert read == [("a", n) for n in range(4, 15)]


def test_available_now_that_replays_a_batch_first_takes_its_end_from_then() -> None:
    world = World(a=5)
    end = planner(world).plan(INITIAL, NO_LIMITS, 0)
    world.lengths["a"] = 8
    plans = planner(world)
    plans.freeze()
    assert len(plans.tasks(INITIAL, end, 0)) == 1
    world.lengths["a"] = 100
    assert rows(plans.tasks(end, plans.plan(end, NO_LIMITS, 10), 10)) == [
        ("a", 5),
        ("a", 6),
        ("a", 7),
    ]


def test_limits_do_not_pull_more_than_a_batch_needs() -> None:
    world = World(**{f"s{n:02}": 10 for n in range(20)})
    plans = planner(world, pull="true", finite="true")
    end = plans.plan(INITIAL, PlanLimits(max_rows=25), 0)
    assert sum(1 for _ in rows(plans.tasks(INITIAL, end, 0))) == 25
    assert len(end["splits"]) == 1, "only what is read in part is in progress"
    assert len(end["enumerator"]["names"]) == 3


def test_finished_splits_leave_no_trace_in_the_offset() -> None:
    world = World(a=3)
    end = planner(world, finite="true").plan(INITIAL, NO_LIMITS, 0)
    assert end["splits"] == []


def test_an_option_that_may_not_change_is_refused_with_both_values() -> None:
    world = World(a=3)
    end = planner(world, seed="1").plan(INITIAL, NO_LIMITS, 0)
    with pytest.raises(OptionError, match=r"'seed' was 1 .* now it is 2") as caught:
        planner(world, seed="2").plan(end, NO_LIMITS, 0)
    assert caught.value.option == "seed"


def test_no_option_value_that_is_not_fixed_stands_in_the_offset() -> None:
    end = planner(World(a=3), password="geheim").plan(INITIAL, NO_LIMITS, 0)
    assert "geheim" not in json.dumps(end)


def test_another_sources_checkpoint_is_refused() -> None:
    end = planner(World(a=3)).plan(INITIAL, NO_LIMITS, 0)
    with pytest.raises(CorruptStateError, match=r"belongs to the source else"):
        planner(World(a=3)).plan({**end, "source": "else"}, NO_LIMITS, 0)


def test_an_offset_of_a_newer_version_is_refused() -> None:
    end = planner(World(a=3)).plan(INITIAL, NO_LIMITS, 0)
    with pytest.raises(UnsupportedVersionError, match="has version 99"):
        planner(World(a=3)).plan({**end, "v": 99}, NO_LIMITS, 0)


def test_an_offset_above_one_megabyte_names_state_location(tmp_path: Any) -> None:
    world = World(**{f"{n:0200}": 1 for n in range(5000)})
    with pytest.raises(OptionError, match="stateLocation"):
        planner(world).plan(INITIAL, NO_LIMITS, 0)
    plans = planner(world, stateLocation=str(tmp_path))
    end = plans.plan(INITIAL, NO_LIMITS, 0)
    assert len(json.dumps(end)) < 2000
    assert len(planner(world, stateLocation=str(tmp_path)).tasks(INITIAL, through_the_log(end), 0)) == 5000


def test_state_files_are_durable_before_the_offset_names_them_and_pruned_when_it_is_past(tmp_path: Any) -> None:
    world = World(**{f"{n:0200}": 1 for n in range(100)})
    plans = planner(world, stateLocation=str(tmp_path))
    first = plans.plan(INITIAL, NO_LIMITS, 0)
    files = {each.name for each in tmp_path.rglob("*") if each.is_file()}
    assert files
    world.lengths = dict.fromkeys(world.lengths, 2)
    second = plans.plan(first, NO_LIMITS, 1)
    plans.committed(first)
    assert files <= {each.name for each in tmp_path.rglob("*") if each.is_file()}, "a restart may need the first"
    world.lengths = dict.fromkeys(world.lengths, 3)
    plans.plan(second, NO_LIMITS, 2)
    plans.committed(second)
    assert len(plans.tasks(first, second, 3)) == 100
    left = {each.name for each in tmp_path.rglob("*") if each.is_file()}
    assert not files <= left


def test_a_lost_state_file_is_named(tmp_path: Any) -> None:
    world = World(**{f"{n:0200}": 1 for n in range(100)})
    end = planner(world, stateLocation=str(tmp_path)).plan(INITIAL, NO_LIMITS, 0)
    for each in tmp_path.rglob("*"):
        if each.is_file():
            each.write_bytes(b"[]")
    with pytest.raises(CorruptStateError, match="has changed since it was written"):
        planner(world, stateLocation=str(tmp_path)).plan(end, NO_LIMITS, 0)
    with pytest.raises(OptionError, match="stateLocation"):
        planner(world).plan(end, NO_LIMITS, 0)


def test_a_split_assigned_twice_is_the_connectors_error() -> None:
    plans = planner(World(a=3))
    end = plans.plan(INITIAL, NO_LIMITS, 0)
    context, _ = plans._running()
    context.assigned.append(RangeSplit(split_id="a"))
    with pytest.raises(ConnectorContractError, match="'a' although it is being read"):
        plans.plan(end, NO_LIMITS, 2000)


def test_splits_that_the_enumerator_no_longer_wants_are_dropped_on_restart() -> None:
    world = World(a=3, b=3)
    end = planner(world, ReassigningSource).plan(INITIAL, NO_LIMITS, 0)
    del world.lengths["b"]
    world.lengths["a"] = 5
    after = planner(world, ReassigningSource)
    assert rows(after.tasks(end, after.plan(end, NO_LIMITS, 0), 0)) == [("a", 3), ("a", 4)]


def test_discovery_keeps_its_period_however_often_spark_asks() -> None:
    world = World(a=1)
    plans = planner(world)
    end = plans.plan(INITIAL, NO_LIMITS, 0)
    for now_ms in range(0, 1000, 10):
        end = plans.plan(end, NO_LIMITS, now_ms)
    assert world.listings == 1
    plans.plan(end, NO_LIMITS, 1000)
    assert world.listings == 2


def test_long_texts_are_moved_out_wherever_they_stand_and_come_back(tmp_path: Any) -> None:
    store = StateStore(str(tmp_path), "query")
    value = {"segments": ("a" * 5000, "short", ["b" * 2000]), "n": 3}
    moved = store.move_out(value)
    assert len(json.dumps(moved)) < 300
    assert moved["segments"][1] == "short"
    assert store.bring_in(through_the_log(moved)) == {"segments": ["a" * 5000, "short", ["b" * 2000]], "n": 3}
    assert store.move_out({**value, "n": 4})["segments"] == moved["segments"], "what did not change keeps its file"


def test_the_event_times_of_many_splits_are_moved_out_and_come_back(tmp_path: Any) -> None:
    store = StateStore(str(tmp_path), "query")
    value = {"event_times": {f"in/{number}.parquet": number for number in range(20_000)}, "options": {"path": "in"}}
    moved = store.move_out(value)
    assert len(json.dumps(moved)) < 200
    assert moved["options"] == {"path": "in"}
    assert store.bring_in(through_the_log(moved)) == value
    store.prune([moved])
    assert store.bring_in(through_the_log(moved)) == value
