"""Tumbling and sliding windows: what fires when, what is late, what is stored, and how much memory it takes."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import CorruptStateError, OptionError, UnsupportedVersionError
from headgate.operators.windows import operator as operator_module
from headgate.operators.windows.aggregates import merge
from headgate.operators.windows.assigner import NoWindow
from headgate.operators.windows.operator import WindowAggregate
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn, StateSchema
from headgate.state import sorted_runs
from headgate.state.chunks import RestoredChunk
from tests.unit.operators.windows.window_world import EPOCH, SCHEMA, Subtasks, batch, made, many, process
from tests.unit.operators.windows.words import avg, collect_list, count, first, last, session_window, sum, window

TEN = window("at", "10 seconds")
AGGREGATES = (sum("v"), count())


def seconds(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row with the start of its window in seconds."""
    start: dt.datetime = row["window"]["start"]
    return (start - EPOCH).total_seconds(), *(value for name, value in row.items() if name != "window")


def subtasks(folder: Path, windows: Any = TEN, aggregates: Any = AGGREGATES, **options: Any) -> Subtasks:
    mode = options.pop("mode", "append")
    return Subtasks(lambda: made(SCHEMA, windows, ["k"], aggregates, mode), folder, **options)


def test_a_window_fires_once_when_the_watermark_is_at_its_end(tmp_path: Path) -> None:
    """Not before, in the order of their ends, and never again."""
    world = subtasks(tmp_path)
    world.process(batch((1, 1, 5), (12, 1, 7), (9.999, 1, None), (3, None, 2)))
    world.watermark(9_999)
    assert world.rows() == []
    world.watermark(10_000)
    assert sorted(map(seconds, world.rows()), key=repr) == [(0, 1, 5, 2), (0, None, 2, 1)]
    world.watermark(10_000)
    assert [seconds(row) for row in world.finish()][2:] == [(10, 1, 7, 1)]


def test_a_row_without_a_time_is_in_no_window(tmp_path: Path) -> None:
    """As in Spark; nor is it late."""
    world = subtasks(tmp_path)
    world.process(batch((None, 1, 5)))
    world.process(batch((None, 1, 5), (1, 1, 2)))
    assert list(map(seconds, world.finish())) == [(0, 1, 2, 1)]
    assert world.late_rows == 0


def test_late_rows_are_counted_and_handed_over(tmp_path: Path) -> None:
    """With all columns of the input; the others of the batch are taken."""
    world = subtasks(tmp_path)
    world.watermark(10_000)
    world.process(batch((9, 1, 5), (10, 1, 6), (None, 1, 7), (2, 2, 8)))
    assert world.late_rows == 2
    assert [rows.to_pylist() for rows in world.late] == [batch((9, 1, 5), (2, 2, 8)).to_pylist()]
    assert list(map(seconds, world.finish())) == [(10, 1, 6, 1)]


@pytest.mark.parametrize("windows", [window("at", "10 seconds", "5 seconds"), window("at", "10 seconds", "4 seconds")])
def test_a_row_of_a_sliding_window_counts_to_those_that_have_not_ended(windows: Any, tmp_path: Path) -> None:
    """It is late only when the last one has."""
    world = subtasks(tmp_path, windows)
    slide = windows.slide_us // 1_000_000
    world.process(batch((11, 1, 1)))
    start = 11 // slide * slide
    world.watermark((start - slide + 10) * 1000)
    world.process(batch((11, 1, 2)))
    world.watermark((start + 10) * 1000)
    world.process(batch((11, 1, 4)))
    assert world.late_rows == 1
    found = {seconds(row)[0]: row["sum(v)"] for row in world.finish()}
    assert found == {each: 3 if each == start else 1 for each in range(start, 1, -slide)}


def test_update_emits_what_changed_before_each_barrier_and_when_it_fires(tmp_path: Path) -> None:
    """And nothing that did not change since."""
    world = subtasks(tmp_path, mode="update")

    def emitted() -> list[Any]:
        found = sorted(map(seconds, world.rows()))
        world.emitted.clear()
        return found

    world.process(batch((1, 1, 5), (1, 2, 6), (11, 1, 7)))
    states = world.checkpoint()
    assert emitted() == [(0, 1, 5, 1), (0, 2, 6, 1), (10, 1, 7, 1)]
    world.checkpoint()
    assert emitted() == []
    world.restore(states, 2)
    world.process(batch((2, 2, 1)))
    world.watermark(10_000)
    assert emitted() == [(0, 2, 7, 2)]
    world.process(batch((12, 1, 1)))
    world.checkpoint()
    assert emitted() == [(10, 1, 8, 2)]
    world.finish()
    assert emitted() == []


def test_update_of_sliding_windows(tmp_path: Path) -> None:
    """Every window with a row that came is reported."""
    world = subtasks(tmp_path, window("at", "10 seconds", "5 seconds"), mode="update")
    world.process(batch((7, 1, 1)))
    world.checkpoint()
    assert sorted(map(seconds, world.rows())) == [(0, 1, 1, 1), (5, 1, 1, 1)]


# Restores.


def test_a_row_that_was_late_is_late_after_a_rescale(tmp_path: Path) -> None:
    """Each key group keeps how far it has fired; no window fires twice, and no row in time is dropped."""
    keys = range(20)
    world = subtasks(tmp_path, parallelism=2)
    world.process(batch(*((1, key, 1) for key in keys)))
    world.watermark(10_000, subtask=0)  # the barrier comes when one subtask's watermark lags the other's
    fired = {row["k"] for row in world.rows()}
    assert 0 < len(fired) < len(keys)
    world.restore(world.checkpoint(), 1)
    world.process(batch(*((2, key, 1) for key in keys)))
    assert {row["k"] for rows in world.late for row in rows.to_pylist()} == fired
    world.restore(world.checkpoint(), 3)
    world.process(batch(*((3, key, 1) for key in keys)))
    assert world.late_rows == len(fired)
    rows = world.finish()
    assert sorted((row["k"], row["sum(v)"]) for row in rows) == [(key, 1 if key in fired else 3) for key in keys]


def test_parts_from_before_a_rescale_are_of_fewer_key_groups(tmp_path: Path) -> None:
    """They are named by a head of more key groups, and given only to subtasks that they concern."""
    keys = range(40)
    world = subtasks(tmp_path, parallelism=3)
    world.process(batch(*((1, key, 1) for key in keys)))
    for parallelism in (1, 2, 4, 1, 3):
        world.restore(world.checkpoint(), parallelism)
    assert sorted((row["k"], row["sum(v)"]) for row in world.finish()) == [(key, 1) for key in keys]


def test_sliding_windows_fire_once_after_a_rescale(tmp_path: Path) -> None:
    """Rows that windows share are still there when some of these have fired for some of the keys."""
    keys = range(20)
    world = subtasks(tmp_path, window("at", "10 seconds", "5 seconds"), parallelism=2)
    world.process(batch(*((7, key, 1) for key in keys)))
    world.watermark(10_000, subtask=1)
    world.restore(world.checkpoint(), 1)
    world.restore(world.checkpoint(), 1)
    rows = sorted((seconds(row)[0], row["k"], row["sum(v)"]) for row in world.finish())
    assert rows == [(start, key, 1) for start in (0, 5) for key in keys]


Step = tuple[str, int]


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.just("rows"), st.integers(0, 99))
        | st.tuples(st.sampled_from(["checkpoint", "restore"]), st.integers(1, 4)),
        max_size=25,
    ),
    memory_bytes=st.sampled_from([0, 500]),
    slide=st.sampled_from(["10 seconds", "5 seconds", "3 seconds"]),
)
def test_whatever_happens_the_result_is_that_of_an_undisturbed_run(
    steps: list[Step], memory_bytes: int, slide: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also the order of arrival is kept, across merges, restores, rescales and files."""
    aggregates = (*AGGREGATES, collect_list("v"), first("v"), last("v"))
    windows = window("at", "10 seconds", slide)
    folder = tmp_path_factory.mktemp("state")
    world = subtasks(folder / "a", windows, aggregates, memory_bytes=memory_bytes)
    calm = subtasks(folder / "b", windows, aggregates)
    for number, (what, value) in enumerate(steps):
        match what:
            case "rows":
                rows = batch(*((value % 31 + n % 7, (value + n) % 5, number * 100 + n) for n in range(value // 3 + 1)))
                world.process(rows)
                calm.process(rows)
            case "checkpoint":
                world.checkpoint()
            case _:
                world.restore(world.checkpoint(), value)
    ours, theirs = world.finish(), calm.finish()
    if slide != "10 seconds":  # values of several slides come in the order of slides
        for row in (*ours, *theirs):
            row["collect_list(v)"].sort()
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)


# What a checkpoint stores.


def test_a_checkpoint_stores_what_came_since_the_last(tmp_path: Path) -> None:
    """With 1 % of the keys touched, at most 5 % of the state; after a restore, too."""
    world = subtasks(tmp_path)
    process(world, many(np.arange(50_000), 1))
    world.checkpoint()
    assert world.uploaded[-1] > 125_000
    for number in range(3):
        process(world, many(np.arange(number, 50_000, 100), 2))
        world.restore(world.checkpoint(), 1)
        assert world.uploaded[-1] <= 0.05 * world.uploaded[0]
    assert sum_of(world.finish(), "count(1)") == 51_500


def sum_of(rows: list[dict[str, Any]], name: str) -> int:
    return int(np.sum([row[name] for row in rows]))


def test_what_has_fired_is_not_stored_again(tmp_path: Path) -> None:
    """The state of windows that are open stays what it is."""
    world = subtasks(tmp_path)
    process(world, many(np.arange(50_000), 1))
    process(world, many(np.arange(50_000), 11))
    world.checkpoint()
    world.watermark(10_000)
    world.checkpoint()
    assert world.uploaded[-1] < 0.6 * world.uploaded[0]
    names = {chunk.chunk_id for state in world.checkpoint() for chunk in state}
    assert np.sum([len(world.files[name]) for name in names]) < 0.6 * world.uploaded[0]


def test_large_state_is_stored_in_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none of them needs much memory."""
    monkeypatch.setattr(sorted_runs, "part_bytes", lambda _: 100_000)
    monkeypatch.setattr(sorted_runs, "PART_BYTES", 100_000)
    world = subtasks(tmp_path)
    process(world, many(np.arange(50_000), 1))
    states = world.checkpoint()
    assert len(states[0]) > 5
    world.restore(states, 3)
    assert len(world.finish()) == 50_000


def test_stored_state_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Never an empty window."""
    operator = made(SCHEMA, TEN, ["k"], AGGREGATES)
    operator.open(OperatorContext(uid="window", subtask=0, parallelism=1), [])
    with pytest.raises(CorruptStateError, match="'x' cannot be read"):
        operator.restore_keyed([RestoredChunk(chunk_id="x", whole=True, read=lambda: b"nonsense")])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("head", pa.binary())], {"version": "9"})):
        pass
    with pytest.raises(UnsupportedVersionError, match="version 9"):
        operator.restore_keyed([RestoredChunk(chunk_id="x", whole=True, read=lambda: bytes(sink.getvalue()))])


# Memory.


def table_of(world: Subtasks) -> pa.Table:
    """Return what was emitted, in one order."""
    return pa.Table.from_batches(world.emitted).flatten().sort_by([("window.start", "ascending"), ("k", "ascending")])


def fill(world: Subtasks, rounds: int, keys: int, watch: Callable[[], None]) -> None:
    for number in range(rounds):
        process(world, many(np.arange(number, keys, 3), 1 + 10 * (number % 2)))
        watch()
        if number % 7 == 3:
            world.checkpoint()
            watch()


@pytest.mark.parametrize("slide", ["10 seconds", "5 seconds"])
def test_state_beyond_the_limit_is_in_files(slide: str, tmp_path: Path) -> None:
    """At four times the limit and more: as much memory as at one, and the same result."""
    limit = 1 << 19
    windows = window("at", "10 seconds", slide)
    aggregates = (*AGGREGATES, avg("v"))
    bounded = subtasks(tmp_path / "a", windows, aggregates, memory_bytes=limit)
    free = subtasks(tmp_path / "b", windows, aggregates)
    operator = bounded.operators[0]
    assert isinstance(operator, WindowAggregate)
    highest = [0, 0]

    def watch() -> None:
        for number, size in enumerate(operator.state_bytes):
            highest[number] = max(highest[number], size)

    fill(bounded, 14, 60_000, watch)
    fill(free, 14, 60_000, lambda: None)
    assert highest[0] <= limit
    assert highest[1] >= 3 * limit
    assert free.operators[0].state_bytes[0] >= 4 * limit
    bounded.emitted.clear()
    before, most = pa.total_allocated_bytes(), 0
    sizes: list[int] = []

    def emit(rows: pa.RecordBatch, split: str) -> None:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - before - int(np.sum(sizes)))
        sizes.append(rows.nbytes)
        bounded.emitted.append(rows)

    operator.process_watermark(2**63 - 1, emit)
    assert most <= 2 * limit
    free.watermark(2**63 - 1)
    assert table_of(bounded).equals(table_of(free))
    bounded.operators[0].close()
    assert not [path for path in (tmp_path / "a").rglob("*") if path.is_file()]


def test_a_thousand_overlaps_cost_what_rows_and_windows_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second each millisecond: windows fire together, and each has its rows."""
    calls = 0

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return merge(*given)

    monkeypatch.setattr(operator_module, "merge", counted)
    world = subtasks(tmp_path, window("at", "1 second", "1 millisecond"))
    for number in range(134):
        process(world, many([number % 7], number * 0.02))
    world.watermark(1_500)
    counts = Counter((number * 20 - back, number % 7) for number in range(134) for back in range(1000))
    found = {(round(start * 1000), key): rows for start, key, _, rows in map(seconds, world.finish())}
    assert found == counts and len(found) == len(world.rows())
    assert calls < 2 * 134


def test_rows_of_windows_that_have_not_ended_wait_on_for_others(tmp_path: Path) -> None:
    """Of many producers one lags: a window ends at a time, and of most rows none is merged for that."""
    for window_of, per_key in ((window("at", "1 second"), 1), (window("at", "2 seconds", "1 second"), 2)):
        world = subtasks(tmp_path / str(per_key), window_of)
        for second in range(20):
            process(world, many(range(8), second + 0.5))
        held = []
        for second in range(1, 6):
            world.watermark(1000 * second)
            held += [each._runs.rows for each in world.operators if isinstance(each, WindowAggregate)]
        assert max(held) <= 8 * per_key, "the rows of the next window, if they are of this one, too"
        found = Counter((start, key) for start, key, *_ in map(seconds, world.finish()))
        begins = range(20) if per_key == 1 else range(-1, 20)
        assert found == Counter({(start, key): 1 for start in begins for key in range(8)})


def test_a_restore_spills_what_does_not_fit(tmp_path: Path) -> None:
    """State of any size is restored within the limit."""
    free = subtasks(tmp_path / "b")
    fill(free, 6, 60_000, lambda: None)
    bounded = subtasks(tmp_path / "a", memory_bytes=1 << 18)
    states = free.checkpoint()
    bounded.files = free.files
    bounded.restore(states, 1)
    assert bounded.operators[0].state_bytes[0] <= 1 << 18 < bounded.operators[0].state_bytes[1]
    bounded.watermark(2**63 - 1)
    free.watermark(2**63 - 1)
    assert table_of(bounded).equals(table_of(free))


def test_a_sum_that_overflows_while_it_is_merged_is_an_error(tmp_path: Path) -> None:
    """Never a wrong number; one that stays within a long is right, however near it comes."""
    world = subtasks(tmp_path)
    world.process(batch((1, 1, 2**63 - 1), (1, 1, -5), (1, 2, -(2**63)), (1, 2, 3)))
    world.checkpoint()
    world.process(batch((1, 1, 5), (1, 2, -3)))
    assert sorted(map(seconds, world.finish())) == [(0, 1, 2**63 - 1, 3), (0, 2, -(2**63), 3)]
    world = subtasks(tmp_path)
    world.process(batch((1, 1, 2**63 - 1)))
    world.checkpoint()
    world.process(batch((1, 1, 1)))
    with pytest.raises(OptionError, match=r"sum\(v\): a result does not fit into int64"):
        world.finish()


@pytest.mark.parametrize(
    "windows", [TEN, window("at", "10 seconds", "4 seconds"), session_window("at", "5 seconds"), NoWindow()]
)
@pytest.mark.parametrize("kept", [[0], [4, 2], [3, 1], []])
def test_aggregates_that_are_dropped_leave_the_others_as_if_they_had_been_alone(
    tmp_path: Path, windows: Any, kept: list[int]
) -> None:
    all_of_them = [count(), collect_list("v"), last("v"), avg("v"), sum("v")]
    rows = batch((1, 1, 5), (2, 1, None), (2, None, 7), (3, 2, 9)), batch((3, 1, 11), (4, 3, None)), batch((4, None, 1))

    def ended(before: list[Any], now: list[Any]) -> list[dict[str, Any]]:
        wanted = before

        def make() -> Any:
            operator = made(SCHEMA, windows, ["k"], wanted, "update" if isinstance(windows, NoWindow) else "append")
            operator.state_schema = StateSchema(
                window=windows.text,
                keys=(StateColumn(name="k", kind="int64"),),
                aggregates=tuple(each.state_column(None if each.argument is None else pa.int64()) for each in wanted),
            )
            return operator

        world = Subtasks(make, tmp_path / f"{len(before)}", parallelism=2)
        world.process(rows[0])
        world.checkpoint()
        world.process(rows[1])
        states, wanted = world.checkpoint(), now
        world.emitted.clear()
        for parallelism in (3, 2):
            world.restore(states, parallelism)
            states = world.checkpoint()
        world.process(rows[2])
        return sorted(world.finish(), key=str)

    now = [all_of_them[place] for place in kept]
    assert ended(all_of_them, now) == ended(now, now) != []
