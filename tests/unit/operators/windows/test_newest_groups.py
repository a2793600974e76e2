"""Updates that go at once, from the newest values of groups: beside those of an operator that has only its state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.expressions.expressions import Bound
from headgate.operators.windows import newest_groups
from headgate.operators.windows.assigner import NoWindow
from headgate.operators.windows.newest_groups import NewestGroups
from headgate.operators.windows.operator import WindowAggregate
from tests.unit.operators.windows.window_world import SCHEMA, Subtasks, at_once, batch, made, many
from tests.unit.operators.windows.words import (
    approx_count_distinct,
    avg,
    collect_list,
    count,
    first,
    last,
    max,
    min,
    sum,
    window,
)

AGGREGATES = (
    count(), count("v"), sum("v"), avg("v"), min("v"), max("v"), first("v"), last("v", True), collect_list("v"),
    approx_count_distinct("v"),
)  # fmt: skip
WINDOWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "none": (NoWindow(), ("k",)),
    "tumbling": (window("at", "10 seconds"), ("k",)),
    "sliding": (window("at", "10 seconds", "5 seconds"), ("k",)),
    "by time": (NoWindow(Bound(0, "at")), ("at", "k")),
}


class Pair:
    """The same rows, watermarks, checkpoints and rescales for an operator that emits at once and one that waits."""

    def __init__(self, window: str, folder: Path, memory_bytes: int) -> None:
        kind, keys = WINDOWS[window]
        self._parts = len(keys) + (window in ("tumbling", "sliding"))

        def make() -> Any:
            return made(SCHEMA, kind, keys, AGGREGATES, "update")

        self.now = Subtasks(lambda: at_once(make()), folder / "now", memory_bytes=memory_bytes)
        self.later = Subtasks(make, folder / "later", memory_bytes=memory_bytes)
        self._newest: dict[bool, dict[str, Any]] = {True: {}, False: {}}
        self._clock_ms = 0

    def newest(self, *, now: bool) -> dict[str, Any]:
        """Return the newest value that each group was emitted with."""
        world = self.now if now else self.later
        for row in world.rows():
            values = list(row.values())
            self._newest[now][repr(values[: self._parts])] = values[self._parts :]
        world.emitted.clear()
        return self._newest[now]

    def emit(self) -> None:
        """Let what is due be emitted, which is what came since; no group stands there twice."""
        self._clock_ms += 10_000
        self.newest(now=True)
        for operator in self.now.operators:
            assert isinstance(operator, WindowAggregate)
            operator.process_time(self._clock_ms, self.now._emit)
            assert operator.due_ms() is None
        groups = [repr(list(row.values())[: self._parts]) for row in self.now.rows()]
        assert len(groups) == len(set(groups))

    def checkpoint(self, parallelism: int | None) -> None:
        """Take a checkpoint, and perhaps go on from it; both have emitted the same by then."""
        states = [world.checkpoint() for world in (self.now, self.later)]
        assert self.newest(now=True) == self.newest(now=False)
        if parallelism is not None:
            self.now.restore(states[0], parallelism)
            self.later.restore(states[1], parallelism)


@pytest.mark.parametrize("memory_bytes", [0, 20_000])
@given(seed=st.integers(0, 2**31), window=st.sampled_from([*WINDOWS]))
def test_what_is_emitted_at_once_comes_to_what_the_state_has(
    seed: int, window: str, memory_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where the state outgrows what the newest values may take, and after restores and rescales."""
    _run(random.Random(seed), Pair(window, tmp_path_factory.mktemp("state"), memory_bytes))


@given(seed=st.integers(0, 2**31), window=st.sampled_from([*WINDOWS]))
def test_keys_that_have_one_number_stay_apart(seed: int, window: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_groups, "numbers_of", lambda buckets, hashes: (hashes % np.uint64(5)) ^ buckets.view("u8"))
        _run(random.Random(seed), Pair(window, tmp_path_factory.mktemp("state"), 0))


def _run(dice: random.Random, pair: Pair) -> None:
    second = 0
    for _ in range(dice.randint(5, 25)):
        action = dice.choice(["rows"] * 4 + ["emit"] * 3 + ["watermark", "checkpoint", "restore"])
        if action == "rows":
            rows = batch(
                *(
                    (second + dice.randint(-4, 12), dice.choice([None, *range(20)]), dice.choice([None, 1, 5, -3]))
                    for _ in range(dice.choice([1, 3, 60]))
                )
            )
            for world in (pair.now, pair.later):
                world.process(rows)
        elif action == "emit":
            pair.emit()
        elif action == "watermark":
            second += dice.randint(1, 15)
            for world in (pair.now, pair.later):
                world.watermark(second * 1000)
        else:
            pair.checkpoint(dice.randint(1, 3) if action == "restore" else None)
    pair.checkpoint(None)


def test_many_groups_come_and_go(tmp_path: Path) -> None:
    """The log is tidied, new groups are put among the others, and groups of windows that ended are forgotten."""
    operator = Subtasks(lambda: made(SCHEMA, NoWindow(), ["k"], [count(), sum("v")], "update"), tmp_path).operators[0]
    assert isinstance(operator, WindowAggregate)
    dice, sums = np.random.default_rng(1), {}

    def rows(bucket: int, keys: Any) -> Any:
        lifted = operator._lifted(many(keys, 0))
        return pa.Table.from_arrays([pa.array(np.full(len(keys), bucket)), *lifted], names=operator._stored_columns)

    groups = NewestGroups([], "bucket", operator._hashes, operator._merged)
    for step in range(120):
        bucket = step // 40
        keys = dice.integers(0, 50 + 100 * step, 400)
        groups.update(rows(bucket, keys))
        changed = set()
        for key in keys.tolist():
            had = sums.get((bucket, key), (0, 0))
            sums[bucket, key] = had[0] + 1, had[1] + key % 7
            changed.add((bucket, key))
        if step % 3 == 0:
            continue  # two changes at once
        if step % 3 == 1:
            last_step = rows(bucket, keys[:10])
            groups.update(last_step)
            for key in keys[:10].tolist():
                had = sums[bucket, key]
                sums[bucket, key] = had[0] + 1, had[1] + key % 7
        assert groups.has_changed
        table = groups.take_changed()
        found = {(each[0], each[1]): tuple(each[2:]) for each in zip(*(table.column(n).to_pylist() for n in range(4)))}
        assert changed <= found.keys()
        assert found == {each: sums[each] for each in found}
        assert not groups.has_changed and groups.take_changed() is None
        if step == 100:
            before = groups.nbytes
            groups.forget(1)
            assert 0 < groups.nbytes < before
    groups.forget(2)
    assert groups.nbytes == 0


def test_groups_that_were_emitted_are_not_emitted_again_once_there_are_too_many(tmp_path: Path) -> None:
    """And their memory counts as soon as they come."""
    world = Subtasks(
        lambda: at_once(made(SCHEMA, NoWindow(), ["k"], [count()], "update")), tmp_path, memory_bytes=200_000
    )
    (operator,) = world.operators
    assert isinstance(operator, WindowAggregate)
    for step in range(40):
        begin, before = 100 * step, operator.state_bytes[0]
        world.process(many(np.arange(begin, begin + 100), 0))
        operator.process_time(10_000 * step, world._emit)
        assert sorted(row["k"] for row in world.rows()) == [*range(begin, begin + 100)]
        world.emitted.clear()
        if operator._newest is None:
            break
        assert operator.state_bytes[0] >= before + 100 * 24
    assert operator._newest is None and before <= 50_000
    world.process(many(np.arange(50), 0))
    world.checkpoint()
    assert {row["k"]: row["count(1)"] for row in world.rows()} == dict.fromkeys(range(50), 2)


def test_few_tables_wait_for_a_barrier(tmp_path: Path) -> None:
    """Each takes some kilobytes, however few rows it has."""
    world = Subtasks(lambda: at_once(made(SCHEMA, NoWindow(), ["k"], AGGREGATES, "update")), tmp_path)
    (operator,) = world.operators
    assert isinstance(operator, WindowAggregate)
    for step in range(1000):
        world.process(batch((1, step % 7, step % 5)))
        operator.process_time(10_000 * step, world._emit)
    assert len(operator._waiting) == len(operator._waiting_buckets) < 100
    assert operator._waiting_rows == np.sum([table.num_rows for table in operator._waiting])
    assert operator._waiting_bytes == np.sum([table.nbytes for table in operator._waiting])
    newest = {row["k"]: row for row in world.rows()}
    world.restore(world.checkpoint(), 1)
    world.emitted.clear()
    world.process(batch(*((1, key, None) for key in range(7))))
    world.checkpoint()
    for row in world.rows():
        assert row["count(1)"] == newest[row["k"]]["count(1)"] + 1
        assert row["collect_list(v)"] == newest[row["k"]]["collect_list(v)"]
