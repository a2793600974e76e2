"""Session windows: what is one session, what is late, what a checkpoint stores, and how much memory it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.expressions.expressions import Bound
from headgate.operators.windows import sessions, windowed
from headgate.operators.windows.aggregates import accumulator_of
from headgate.operators.windows.assigner import SessionWindow
from headgate.operators.windows.windowed import Aggregated, Key
from headgate.state.part import PartByHash
from tests.unit.operators.windows.window_world import (
    EPOCH,
    SCHEMA,
    TIMESTAMP,
    Subtasks,
    batch,
    made,
    many,
    process,
)
from tests.unit.operators.windows.words import collect_list, count, first, last, session_window, sum

GAP = session_window("at", "5 seconds")
AGGREGATES = (sum("v"), count())


def seconds(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row with the bounds of its window in seconds."""
    window = row["session_window"]
    start, end = ((window[name] - EPOCH).total_seconds() for name in ("start", "end"))
    return (start, end, *(value for name, value in row.items() if name != "session_window"))


def subtasks(folder: Path, aggregates: Any = AGGREGATES, **options: Any) -> Subtasks:
    return Subtasks(lambda: made(SCHEMA, GAP, ["k"], aggregates), folder, **options)


def test_rows_without_a_gap_between_are_one_session(tmp_path: Path) -> None:
    """Those that just touch, too, whatever the order in which they come; of each key alone."""
    world = subtasks(tmp_path)
    world.process(batch((10, 1, 1), (0, 1, 2), (0, None, 3)))
    world.checkpoint()
    world.process(batch((5, 1, 4), (15.001, 1, 5)))
    assert sorted(map(seconds, world.finish()), key=repr) == [
        (0, 15, 1, 7, 3), (0, 5, None, 3, 1), (15.001, 20.001, 1, 5, 1),
    ]  # fmt: skip


def test_a_session_fires_once_when_the_watermark_is_at_its_end(tmp_path: Path) -> None:
    """A later row of the same key begins another, though it would have touched."""
    world = subtasks(tmp_path)
    world.process(batch((0, 1, 1), (4, 1, 2), (4, 2, 3)))
    world.watermark(8_999)
    assert world.rows() == []
    world.watermark(9_000)
    assert sorted(map(seconds, world.rows())) == [(0, 9, 1, 3, 2), (4, 9, 2, 3, 1)]
    states = world.checkpoint()
    world.restore(states, 2)
    world.process(batch((5, 1, 4)))
    assert [seconds(row) for row in world.finish()][2:] == [(5, 10, 1, 4, 1)]


def test_complete_emits_all_sessions_before_every_barrier(tmp_path: Path) -> None:
    """None ends, whatever the watermark is, and no row is late; before the end too, if others expect no rows after."""
    world = Subtasks(lambda: made(SCHEMA, GAP, ["k"], AGGREGATES, "complete"), tmp_path, memory_bytes=1)

    def taken() -> list[tuple[Any, ...]]:
        found = sorted(map(seconds, world.rows()), key=repr)
        world.emitted.clear()
        return found

    world.process(batch((0, 1, 1), (4, 1, 2), (4, None, 3), (20, 1, 5), (None, 1, 9)))
    world.watermark(60_000)
    assert taken() == []
    states = world.checkpoint()
    assert taken() == [(0, 9, 1, 3, 2), (20, 25, 1, 5, 1), (4, 9, None, 3, 1)]
    world.restore(states, 2)
    world.process(batch((9, 1, 1), (14, 1, 1), (19, 1, 1)))
    world.checkpoint()
    assert taken() == [(0, 25, 1, 11, 6), (4, 9, None, 3, 1)]
    assert world.late_rows == 0
    for operator in world.operators:
        operator.goes_on_elsewhere = True
        operator.end_input(world._emit)
    assert taken() == [(0, 25, 1, 11, 6), (4, 9, None, 3, 1)]
    world.checkpoint()
    assert taken() == []


def test_each_row_may_have_a_gap_of_its_own(tmp_path: Path) -> None:
    """A session lasts until the latest end of its rows; a row is late by its own."""
    schema = SCHEMA.append(pa.field("until", TIMESTAMP))

    def operator() -> sessions.SessionAggregate:
        counted = Aggregated("n", accumulator_of(count(), None), None)
        window = SessionWindow(Bound(0, "at"), 0, end=Bound(3, "until"))
        columns = ["session_window", "k", "n"]
        return sessions.SessionAggregate(
            schema, window, time="at", end="until", keys=[Key("k", "k")], aggregates=[counted], columns=columns
        )

    world = Subtasks(operator, tmp_path)

    def process(*rows: tuple[float, int, float]) -> None:
        given = batch(*((second, key, None) for second, key, _ in rows))
        ends = pa.array([round(end * 1e6) for _, _, end in rows]).cast(TIMESTAMP)
        world.process(pa.RecordBatch.from_arrays([*given.columns, ends], schema=schema))

    process((0, 1, 20), (3, 1, 4), (20, 1, 21), (21.5, 1, 30), (5, 2, 6))
    world.watermark(6_000)
    process((1, 3, 6), (2, 1, 6.5), (5.5, 2, 7))
    assert (world.late_rows, world.late[0].column("at")[0].value) == (1, 1_000_000)
    assert [seconds(row) for row in world.rows()] == [(5, 6, 2, 1)]
    assert sorted(map(seconds, world.finish()[1:])) == [(0, 21, 1, 4), (5.5, 7, 2, 1), (21.5, 30, 1, 1)]


def test_a_row_whose_own_window_has_ended_is_late_whatever_it_touches(tmp_path: Path) -> None:
    """As in Spark: its end is at the watermark or before. It neither begins a session nor grows one that is open."""
    world = subtasks(tmp_path)
    world.process(batch((10, 1, 1), (10, 2, 1), (7.0, None, 1)))
    world.watermark(11_999)
    rows = [(6.999, 1, 2), (7.001, 1, 3), (6.9, 1, 4), (2, 1, 8), (6.5, 3, 2), (9, 3, 5), (6, None, 6)]
    world.process(batch(*rows, (None, 1, 7)))
    late = [(6.999, 1, 2), (6.9, 1, 4), (2, 1, 8), (6.5, 3, 2), (6, None, 6)]
    assert [row for rows in world.late for row in rows.to_pylist()] == batch(*late).to_pylist()
    assert world.late_rows == len(late)
    world.restore(world.checkpoint(), 2)
    world.process(batch((6.999, 2, 9), (6.9995, 2, 10)))
    assert world.late_rows == 1, "also after a restore, and a microsecond decides"
    assert sorted(map(seconds, world.finish()), key=repr) == [
        (6.9995, 15, 2, 11, 2), (7, 12, None, 1, 1), (7.001, 15, 1, 4, 2), (9, 14, 3, 5, 1),
    ]  # fmt: skip


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.just("rows"), st.integers(0, 99))
        | st.tuples(st.sampled_from(["checkpoint", "restore"]), st.integers(1, 4)),
        max_size=25,
    ),
    memory_bytes=st.sampled_from([0, 500]),
)
def test_whatever_happens_the_result_is_that_of_an_undisturbed_run(
    steps: list[tuple[str, int]], memory_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """First and last are by time, across merges, restores, rescales and files."""
    aggregates = (*AGGREGATES, collect_list("v"), first("v"), last("v"))
    folder = tmp_path_factory.mktemp("state")
    world = subtasks(folder / "a", aggregates, memory_bytes=memory_bytes)
    calm = subtasks(folder / "b", aggregates)
    for number, (what, value) in enumerate(steps):
        match what:
            case "rows":
                time = number * 3
                rows = batch(*((time + n % 7 * 4, (value + n) % 5, number * 100 + n) for n in range(value // 3 + 1)))
                world.process(rows)
                calm.process(rows)
                world.watermark(number * 3000)
                calm.watermark(number * 3000)
            case "checkpoint":
                world.checkpoint()
            case _:
                world.restore(world.checkpoint(), value)
    ours, theirs = world.finish(), calm.finish()
    for row in (*ours, *theirs):
        row["collect_list(v)"].sort()
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)


def test_a_checkpoint_stores_what_came_since_the_last(tmp_path: Path) -> None:
    """With 1 % of the keys touched, or fired, at most 5 % of the state; after a restore, too."""
    world = subtasks(tmp_path)
    process(world, many(np.arange(100_000), 10))
    process(world, many(np.arange(100_000, 101_000), 1))
    world.checkpoint()
    process(world, many(np.arange(0, 100_000, 100), 11))
    world.restore(world.checkpoint(), 1)
    assert world.uploaded[-1] <= 0.05 * world.uploaded[0]
    world.watermark(6_000)
    assert len(world.rows()) == 1000
    world.restore(world.checkpoint(), 1)
    assert world.uploaded[-1] <= 0.05 * world.uploaded[0]
    rows = world.finish()
    assert int(np.sum([row["count(1)"] for row in rows])) == 102_000
    assert len(rows) == 101_000


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sessions_that_fired_do_not_come_back_under_other_names(tmp_path: Path, parallelism: int) -> None:
    """A query that starts from the savepoint of another gets its chunks under names that no chunk of its own has."""
    world = subtasks(tmp_path)
    world.process(batch(*((0 if key == 3 else 10, key, 1) for key in range(10))))
    world.watermark(8_000)
    (chunks,) = world.checkpoint()
    renamed = [msgspec.structs.replace(chunk, chunk_id=f"other.{chunk.chunk_id}") for chunk in chunks]
    world.files |= {f"other.{name}": data for name, data in world.files.items()}
    world.restore([renamed], parallelism)
    assert sorted(row["k"] for row in world.finish()) == list(range(10))


def test_state_beyond_the_limit_is_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At four times the limit: as much memory as at one, and the same result."""
    monkeypatch.setattr(sessions, "part_bytes", lambda _: 100_000)
    limit = 1 << 19
    bounded, free = subtasks(tmp_path / "a", memory_bytes=limit), subtasks(tmp_path / "b")
    operator = bounded.operators[0]
    spilled = 0
    for number in range(12):
        rows = many(np.arange(number, 60_000, 3), 1 + 10 * (number % 2))
        process(bounded, rows)
        process(free, rows)
        if number % 5 == 4:
            bounded.restore(bounded.checkpoint(), 1)
            operator = bounded.operators[0]
        assert operator.state_bytes[0] <= limit
        spilled = max(spilled, operator.state_bytes[1])
    assert spilled >= 3 * limit
    assert free.operators[0].state_bytes[0] >= 4 * limit
    for world in (bounded, free):
        world.watermark(10_000)
        world.watermark(2**63 - 1)
    tables = [pa.Table.from_batches(world.emitted).flatten() for world in (bounded, free)]
    order = [("session_window.start", "ascending"), ("k", "ascending")]
    assert tables[0].sort_by(order).equals(tables[1].sort_by(order))
    operator.close()
    assert not [path for path in (tmp_path / "a").rglob("*") if path.is_file()]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(-9, 9) | st.sampled_from([-(2**62), 2**62]), st.integers(0, 9)),
        min_size=1,
        max_size=30,
    )
)
def test_sessions_begin_where_no_one_before_reaches(rows: list[tuple[int, int, int]]) -> None:
    """Also with times so far apart that not all keys fit into one range of numbers."""
    rows.sort()
    keys, starts, ends = (np.array(each) for each in zip(*((key, start, start + long) for key, start, long in rows)))
    new_key = np.concatenate([[True], keys[1:] != keys[:-1]])
    expected, latest = [], 0
    for key_begins, start, end in zip(new_key, starts, ends):
        expected.append(bool(key_begins or start > latest))
        latest = end if key_begins else max(latest, end)
    assert sessions.session_begins(starts, ends, new_key).tolist() == expected


def test_equal_hashes_are_not_equal_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [many(np.arange(20), 1), many(np.arange(10, 30), 4), many(np.arange(20), 30)]
    emitted = []
    for hashed in (False, True):
        if hashed:
            monkeypatch.setattr(windowed, "key_hash", lambda keys: np.zeros(len(keys[0]), np.uint64))
        world = subtasks(tmp_path / f"{hashed}")
        for each in rows:
            process(world, each)
            world.watermark(3_500)
        emitted.append(sorted(map(seconds, world.finish())))
    assert emitted[0] == emitted[1] and len(emitted[0]) == 50


def test_what_ends_is_looked_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is that does not end, and in however many files."""
    world = subtasks(tmp_path, memory_bytes=1 << 17)
    process(world, many([7], 1))
    for number in range(6):
        process(world, many(np.arange(number, 60_000, 6), 100))
    assert world.operators[0].state_bytes[1] > 1 << 20
    searched = []
    find = PartByHash.find
    monkeypatch.setattr(PartByHash, "find", lambda part, hashes: searched.append(len(hashes)) or find(part, hashes))
    world.watermark(10_000)
    assert list(map(seconds, world.rows())) == [(1, 6, 7, 0, 1)]
    assert 0 < len(searched) <= 12
    world.watermark(2**63 - 1)
    assert len(world.rows()) == 60_001
