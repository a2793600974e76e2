"""Sorted runs hold what a list would, whatever is merged, spilled, marked, over, stored and restored meanwhile."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.key_hash import key_hash
from headgate.state import part as part_module
from headgate.state import sorted_runs
from headgate.state.part import HASH, MARKED, NEVER_US, Layout, Marks, PartByHash, marks_of
from headgate.state.sorted_runs import FAN_IN, SortedRuns, stretches

KEYS = 40


def hashes_of(table: Any) -> Any:
    """Return hashes of which some keys have the same one."""
    return (table.column("key").to_numpy() % 37).astype(np.uint64) << np.uint64(58)


def summed(table: Any) -> Any:
    """Return one row for each key and time."""
    made = table.select(["time", "key", "value"]).group_by(["time", "key"]).aggregate([("value", "sum")])
    return made.rename_columns(["time", "key", "value"])


def rows(keys: Any, times: Any, values: Any) -> Any:
    return pa.table({"time": pa.array(times, pa.int64()), "key": pa.array(keys, pa.int64()), "value": values})


def listed(tables: Any) -> Counter[tuple[int, int, int]]:
    return Counter(
        (row["time"], row["key"], row["value"]) for table in tables for row in table.select(COLUMNS).to_pylist()
    )


COLUMNS = ["time", "key", "value"]


class World:
    """Runs, and what they are to hold."""

    def __init__(self, folder: Path, memory_bytes: int, *, by_time: bool, marks: Marks, combined: bool) -> None:
        self.layout = Layout(
            tuple(COLUMNS), "time", hashes_of, by_time=by_time, combined=summed if combined else None, marks=marks
        )
        self._folder, self._memory = folder, memory_bytes
        self._deployments = itertools.count()
        self._names = (f"{number}" for number in itertools.count())
        self.expected: Counter[tuple[int, int, int]] = Counter()
        self.stored: dict[str, Any] = {}
        self.runs = self.opened()

    def opened(self) -> SortedRuns:
        folder = self._folder / f"{next(self._deployments)}"
        return SortedRuns(
            self.layout, name=lambda: next(self._names), memory_bytes=self._memory, spill_folder=str(folder)
        )

    def add(self, table: Any) -> None:
        if self.layout.combined:
            table = summed(table)
        self.expected += listed([table])
        if self.layout.marks:
            table = table.append_column(MARKED, pa.array(np.zeros(table.num_rows, bool)))
        self.runs.add(table)
        assert not self._memory or self.runs.bytes_held[0] <= self._memory

    def expire(self, until: int) -> None:
        due = listed([rows([], [], pa.array([], pa.int64()))])
        if not self.layout.by_time:
            due = listed(part.take(places) for part, places in self.runs.due(until))
            marked = Counter() if self.layout.marks != "noted" else self.marked
            over = Counter({row: many for row, many in self.expected.items() if row[0] <= until})
            if not self.layout.combined:
                assert due == over - marked
        self.runs.expire(until)
        self.expected = Counter({row: many for row, many in self.expected.items() if row[0] > until})

    @property
    def marked(self) -> Counter[tuple[int, int, int]]:
        parts = [part for part in self.runs.parts if isinstance(part, PartByHash)]
        return listed(part.take(np.flatnonzero(part.marked)) for part in parts)

    def found(self, keys: list[int], *, mark: bool = False) -> Counter[tuple[int, int, int]]:
        """Return the rows of keys that count, and perhaps mark them."""
        wanted = rows(keys, [0] * len(keys), pa.array([0] * len(keys), pa.int64()))
        found: Counter[tuple[int, int, int]] = Counter()
        for part, ours, places in self.runs.find(hashes_of(wanted), np.ones(len(keys), bool)):
            kept = part.table.column("key").to_numpy()[places] == np.array(keys)[ours]
            kept &= part.times[places] > self.until
            found += listed([part.take(places[kept])])
            if mark:
                part.mark(places[kept])
        return found

    until = -NEVER_US

    def restore(self) -> None:
        """Store what is new, and begin again with what is stored."""
        runs = [[(part.name, part.marks) for part in run] for run in self.runs.runs]
        for part in self.runs.parts:
            before = self.stored.get(part.name)
            stored = part.stored
            # What has a name does not change, but for its order where marks are not by place.
            if before is not None and not self.layout.by_time:
                assert before.equals(stored)
            self.stored[part.name] = stored
        marked = self.marked if self.layout.marks == "noted" else None
        self.runs.close()
        self.runs = self.opened()
        for run in runs:
            follows = False
            for name, bits in run:
                table = self.stored[name]
                marks = marks_of(bits, table.num_rows) if self.layout.marks else None
                follows = self.runs.adopt(name, table, marks, over_us=self.until, follows=follows) or follows
        assert marked is None or self.marked == marked

    def check(self) -> None:
        merged = listed(self.runs.merged())
        assert (merged if not self.layout.combined else folded(merged)) == (
            self.expected if not self.layout.combined else folded(self.expected)
        )


def folded(found: Counter[tuple[int, int, int]]) -> Counter[tuple[int, int]]:
    """Return the sums of keys and times."""
    sums: Counter[tuple[int, int]] = Counter()
    for (time, key, value), many in found.items():
        sums[time, key] += value * many
    return sums


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2**31), st.integers(1, 60)),
        st.tuples(st.just("find"), st.lists(st.integers(0, KEYS), max_size=5, unique=True), st.booleans()),
        st.tuples(st.just("expire"), st.integers(0, 12), st.none()),
        st.tuples(st.just("restore"), st.none(), st.none()),
    ),
    min_size=4,
    max_size=24,
)


@pytest.mark.parametrize("memory_bytes", [0, 1500])
@pytest.mark.parametrize(
    ("by_time", "marks", "combined"),
    [(True, None, True), (False, None, False), (False, "noted", False), (False, "over", False)],
)
@given(steps=steps)
def test_what_is_there_is_what_came_and_is_not_over(
    tmp_path_factory: pytest.TempPathFactory,
    memory_bytes: int,
    by_time: bool,
    marks: Marks,
    combined: bool,
    steps: list[tuple[str, Any, Any]],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_runs, "_SMALL_ROWS", 16)
        patched.setattr(sorted_runs, "_SMALLEST_PART_BYTES", 400)
        patched.setattr(sorted_runs, "RANGE_ROWS", 32)
        world = World(tmp_path_factory.mktemp("runs"), memory_bytes, by_time=by_time, marks=marks, combined=combined)
        for step, what, more in steps:
            if step == "add":
                draw = np.random.default_rng(what)
                times = draw.integers(world.until + 1 if world.until >= 0 else 0, 14, more)
                world.add(rows(draw.integers(0, KEYS, more), times, pa.array(draw.integers(0, 9, more))))
            elif step == "find":
                found = world.found(what, mark=more and marks is not None)
                expected = Counter({row: many for row, many in world.expected.items() if row[1] in what})
                assert folded(found) == folded(expected) if combined else found == expected
                if more and marks == "over":
                    world.expected -= found
            elif step == "expire" and what > world.until:
                world.expire(what)
                world.until = what
            elif step == "restore":
                world.restore()
            world.check()
        world.runs.close()


def test_there_are_few_runs_and_a_row_is_rewritten_seldom(tmp_path: Path) -> None:
    """Of any size of state: a rewrite makes four runs one."""
    written = 0

    def name() -> str:
        nonlocal written
        written += 1
        return f"{written}"

    layout = Layout(("time", "key", "value"), "time", hashes_of)
    runs = SortedRuns(layout, name=name)
    for begin in range(0, 400 * 5_000, 5_000):
        keys = np.arange(begin, begin + 5_000)
        runs.add(rows(keys, np.full(5_000, NEVER_US), pa.array(keys)))
        assert len(runs.runs) <= 4 * FAN_IN
    assert runs.rows == 400 * 5_000
    assert written < 400 * 2


def test_work_on_many_times_is_not_that_on_their_product_with_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of windows of a few rows each are scanned range by range."""
    runs = SortedRuns(Layout(tuple(COLUMNS), "time", hashes_of, by_time=True, combined=summed), name=lambda: "x")
    for begin in range(7):
        times = np.arange(begin, 20_000, 7)
        runs.add(rows(times % KEYS, times, pa.array(times)))
    calls = 0
    combined = runs._combined

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return combined(*given)

    monkeypatch.setattr(runs, "_combined", counted)
    assert sum(table.num_rows for table in runs.merged()) == 20_000
    assert calls == 1


def test_ranges_of_rows_are_neighbours_that_are_small_or_alone() -> None:
    assert list(stretches(np.array([3, 4, 9, 1, 1, 20, 2]), 8)) == [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]
    assert list(stretches(np.array([], np.int64), 8)) == []


def test_equal_keys_of_all_runs_are_found_in_the_order_in_which_they_came() -> None:
    runs = SortedRuns(Layout(tuple(COLUMNS), "time", hashes_of), name=lambda: "x")
    for number in range(3 * FAN_IN):
        runs.add(rows([1, 2, 1], [NEVER_US] * 3, pa.array([number * 2, 0, number * 2 + 1])))
    found = [
        part.take(places).column("value").to_pylist()
        for part, _, places in runs.find(hashes_of(rows([1], [0], pa.array([0]))), np.ones(1, bool))
    ]
    assert list(itertools.chain(*found)) == list(range(6 * FAN_IN))


def test_the_hash_of_a_stored_row_is_what_it_is_ordered_by() -> None:
    """State with a column of that name is not hashed anew."""
    layout = Layout((HASH, "time", "key"), "time", lambda table: 1 / 0)
    runs = SortedRuns(layout, name=lambda: "x")
    hashes = np.array([5, 3, 4], np.uint64)
    runs.add(pa.table({HASH: pa.array(hashes), "time": [NEVER_US] * 3, "key": [5, 3, 4]}))
    assert runs.parts[0].stored.column("key").to_pylist() == [3, 4, 5]


def world_of_parts(folder: Path, keys: int = 40_000, **layout: Any) -> SortedRuns:
    """Return one run of many parts in files."""
    made = Layout(tuple(COLUMNS), "time", lambda table: key_hash([table.column("key").chunk(0)]), **layout)
    runs = SortedRuns(made, name=lambda: "x", memory_bytes=1 << 16, spill_folder=str(folder))
    for begin in range(0, keys, keys // FAN_IN):
        more = np.arange(begin, begin + keys // FAN_IN)
        runs.add(rows(more, np.full(len(more), NEVER_US), pa.array(more)))
    (run,) = runs.runs
    assert len(run) > 20 and all(part.file for part in run)
    return runs


def test_a_part_is_searched_only_for_hashes_that_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch costs what it is, however many parts there are."""
    runs = world_of_parts(tmp_path)
    searched = []
    find = PartByHash.find
    monkeypatch.setattr(PartByHash, "find", lambda part, hashes: searched.append(len(hashes)) or find(part, hashes))
    hashes = key_hash([pa.array(np.arange(0, 40_000, 400))])
    found = [(place, part.take(places).column("key")[0].as_py()) for part, (place,), places in runs_of(runs, hashes)]
    assert sorted(found) == [(place, place * 400) for place in range(100)]
    assert np.sum(searched) == 100


def runs_of(runs: SortedRuns, hashes: Any) -> Any:
    """Yield what is found of each hash."""
    for part, ours, places in runs.find(hashes, np.ones(len(hashes), bool)):
        for our, place in zip(ours.tolist(), places.tolist()):
            yield part, (our,), np.array([place])


def test_rows_that_are_never_over_take_no_memory_for_their_order(tmp_path: Path) -> None:
    runs = world_of_parts(tmp_path)
    runs.expire(5)
    assert all(part._order is None for part in runs.parts)  # type: ignore[attr-defined]


def test_a_key_of_many_rows_is_in_several_parts(tmp_path: Path) -> None:
    """So that none of them is larger than others."""
    runs = SortedRuns(
        Layout(tuple(COLUMNS), "time", hashes_of), name=lambda: "x", memory_bytes=1 << 16, spill_folder=str(tmp_path)
    )
    for _ in range(FAN_IN):
        runs.add(rows(np.zeros(10_000), np.full(10_000, NEVER_US), pa.array(np.arange(10_000))))
    assert max(part.nbytes for part in runs.parts) <= 1 << 16
    assert [part.rows for part in runs.parts if part.rows] and runs.rows == FAN_IN * 10_000


def test_what_is_forgotten_of_a_run_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although other parts of it stay."""
    monkeypatch.setattr(sorted_runs, "PART_BYTES", 1 << 16)
    before = pa.total_allocated_bytes()
    runs = SortedRuns(Layout(tuple(COLUMNS), "time", hashes_of, by_time=True), name=lambda: "x")
    times = np.arange(100_000)
    runs.add(rows(times, times, pa.array(times)))
    runs.expire(98_000)
    gc.collect()
    assert pa.total_allocated_bytes() - before <= 3 << 16


def test_columns_that_could_hold_no_null_are_merged_with_others() -> None:
    """As an earlier version stored them."""
    runs = SortedRuns(Layout(tuple(COLUMNS), "time", hashes_of), name=lambda: "x")
    table = rows([1, 2], [NEVER_US] * 2, pa.array([1, 2]))
    strict = pa.schema([field.with_nullable(False) for field in table.schema])
    for _ in range(FAN_IN):
        runs.adopt("x", table.cast(strict))
        runs.add(table)
    assert runs.rows == 4 * FAN_IN and len(runs.runs) < 2 * FAN_IN


def test_with_the_last_time_all_is_over(tmp_path: Path) -> None:
    """Also what is never over, and in files."""
    runs = world_of_parts(tmp_path)
    runs.expire(NEVER_US - 1)
    assert runs.rows == 40_000
    runs.expire(NEVER_US)
    assert runs.runs == [] and not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_parts_in_the_order_of_an_earlier_version_are_no_run_with_those_of_another() -> None:
    """Although their hashes come after those of the last one: a key may be in the first one, too."""
    runs = SortedRuns(Layout(tuple(COLUMNS), "time", hashes_of, combined=summed), name=lambda: "x")
    for number, (keys, follows) in enumerate([([1, 9], False), ([2, 3], True), ([8, 9], False)]):
        table = rows(keys, [NEVER_US] * 2, pa.array([1, 1]))
        runs.adopt(f"{number}", table, follows=follows)
    assert sorted(row["key"] for table in runs.merged() for row in table.to_pylist()) == [1, 2, 3, 8, 9]


def test_filters_of_parts_in_files_take_an_eighth_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forgotten gives its share back."""
    monkeypatch.setattr(part_module, "_FILTERED_ROWS", 1)
    for keys in (20_000, 40_000, 80_000):
        runs = world_of_parts(tmp_path / f"{keys}", keys)
        hashes = key_hash([pa.array(np.arange(keys))])
        assert len(list(runs_of(runs, hashes))) == keys
        held = sum(part.filter_bytes for part in runs.parts)
        assert 0 < held == runs._filter_bytes <= (1 << 16) // 8
        runs.close()
        assert runs._filter_bytes == 0
