"""Two phases give what one gives, of the same rows, whatever crosses the exchange as what."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound
from headgate.operators.exchange import Exchange
from headgate.operators.windows import repetition
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import NoWindow
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.partial import PartialAggregate, Partials
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn, StateSchema
from tests.unit.operators.windows import words
from tests.unit.operators.windows.window_world import SCHEMA, TIMESTAMP, Subtasks, TwoPhases, batch, made, two_phases

WIDE = pa.schema(
    [
        ("at", TIMESTAMP), ("k", pa.int64()), ("v", pa.int64()), ("name", pa.string()), ("f", pa.float64()),
        ("d", pa.decimal128(12, 2)), ("w", pa.decimal128(38, 4)), ("t", TIMESTAMP),
    ]
)  # fmt: skip
AGGREGATES = (
    words.sum("v"), words.count(), words.count("v"), words.avg("v"), words.min("v"), words.max("v"), words.sum("d"),
    words.avg("d"), words.sum("w"), words.min("d"), words.max("f"), words.min("name"), words.max("t"),
    words.approx_count_distinct("name"), Aggregate("var_samp", Bound(0, "f")),
)  # fmt: skip
BY_TIME = NoWindow(Bound(0, "at"))
WINDOWS: dict[str, Any] = {
    "tumbling": words.window("at", "10 seconds"),
    "from a start": words.window("at", "10 seconds", "10 seconds", "3 seconds"),
    "sliding": words.window("at", "10 seconds", "5 seconds"),
    "sliding unevenly": words.window("at", "10 seconds", "4 seconds", "1 second"),
    "none": NoWindow(),
    "by time": BY_TIME,
}


def rows(dice: random.Random, many: int, least_s: int) -> pa.RecordBatch:
    """Return rows of which any value may be missing, from a second on."""

    def column(name: str, value: Any) -> pa.Array:
        kind = WIDE.field(name).type
        return pa.array([None if dice.random() < 0.1 else value() for _ in range(many)], kind)

    return pa.RecordBatch.from_arrays(
        [
            column("at", lambda: dice.randrange(least_s * 1_000_000, (least_s + 30) * 1_000_000, 250_000)),
            column("k", lambda: dice.randrange(4)),
            column("v", lambda: dice.randrange(-(2**50), 2**50)),
            column("name", lambda: dice.choice(["a", "b", "", "\u00e4"])),
            column("f", lambda: dice.choice([0.5, 1.0, 2.0, -4.0, float("nan")])),
            column("d", lambda: dice.randrange(10_000)),
            column("w", lambda: dice.randrange(10_000)),
            column("t", lambda: dice.randrange(2**40)),
        ],
        schema=WIDE,
    )


def results(world: Subtasks) -> list[str]:
    """Return what was emitted; sums of doubles are rounded as they are added."""
    found = ([f"{value:.9g}" if isinstance(value, float) else value for value in row.values()] for row in world.rows())
    return sorted(map(repr, found))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), window=st.sampled_from([*WINDOWS]), mode=st.sampled_from(["append", "update"]))
def test_two_phases_give_what_one_gives(
    seed: int, window: str, mode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of all aggregates that have two, with late rows, checkpoints and rescales; late rows are counted as rows."""
    dice, folder = random.Random(seed), tmp_path_factory.mktemp("state")
    keys = [["at", "k"], ["at", "name", "f"]] if window == "by time" else [["k"], ["name", "f"], ["t"], []]
    by = dice.choice(keys)

    def make() -> Any:
        return made(WIDE, WINDOWS[window], by, AGGREGATES, mode)

    one = Subtasks(make, folder / "one", parallelism=2)
    two = TwoPhases(make, folder / "two", grouped=lambda: dice.random() < 0.7, parallelism=2)
    late, watermark = [0, 0], 0
    for number in range(dice.randrange(1, 6)):
        given_rows = rows(dice, dice.randrange(1, 60), number * 8)
        for world in (one, two):
            world.process(given_rows)
        if dice.random() < 0.7:
            watermark = max(watermark, dice.randrange(number * 8_000 + 20_000))
            for world in (one, two):
                world.watermark(watermark)
        if dice.random() < 0.5:
            many = dice.randrange(1, 4)
            for place, world in enumerate((one, two)):
                late[place] += world.late_rows
                world.restore(world.checkpoint(), many)
    assert late[0] + one.late_rows == late[1] + two.late_rows
    assert two.late == []
    one.finish()
    two.finish()
    assert results(one) == results(two)


def test_rows_of_a_key_cross_as_one(tmp_path: Path) -> None:
    two = TwoPhases(lambda: made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.sum("v")]), tmp_path)
    two.process(batch((1, 1, 5), (2, 1, 6), (11, 1, 7), (3, 2, None), (None, 2, 1)))
    assert two.crossed == 3
    assert [(row["k"], row["sum(v)"]) for row in two.finish()] == [(1, 11), (2, None), (1, 7)]


def test_a_group_that_is_late_counts_as_all_its_rows(tmp_path: Path) -> None:
    two = TwoPhases(lambda: made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.sum("v")]), tmp_path)
    two.watermark(10_000)
    two.process(batch((1, 1, 5), (2, 1, 6), (3, 2, 1), (11, 1, 7)))
    assert (two.late_rows, two.operators[0].late_schema) == (3, None)
    assert [row["sum(v)"] for row in two.finish()] == [7]


@pytest.mark.parametrize("slide, crossed", [("5 seconds", 2), ("4 seconds", 3)])
def test_a_row_of_a_sliding_window_crosses_once(slide: str, crossed: int, tmp_path: Path) -> None:
    """Rows of one slide are one group; where windows end within a slide, those before and after are two."""
    two = TwoPhases(
        lambda: made(SCHEMA, words.window("at", "10 seconds", slide), ["k"], [words.count()], "update"), tmp_path
    )
    two.process(batch(*((20 + tenth / 10, 1, 1) for tenth in range(100 if slide == "5 seconds" else 60))))
    assert two.crossed == crossed


@pytest.mark.parametrize("aggregate", [words.first("v"), words.last("v"), words.collect_list("v")])
def test_what_depends_on_the_order_of_rows_has_one_phase(aggregate: Aggregate) -> None:
    """And all that is computed beside it."""
    operator = made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.count(), aggregate])
    assert isinstance(operator, WindowAggregate)
    assert operator.two_phases(always=True) is None


def opened(operator: WindowAggregate, *, always: bool = False) -> PartialAggregate:
    phases = operator.two_phases(always=always)
    assert phases is not None
    phases[0].open(OperatorContext(uid="partial", subtask=0, parallelism=1), [])
    return phases[0]


def emitted(first: PartialAggregate, keys: Any) -> int:
    """Return how many rows become of rows with these keys."""
    found: list[pa.RecordBatch] = []
    times = pa.array(np.zeros(len(keys), np.int64)).cast(TIMESTAMP)
    given_rows = pa.RecordBatch.from_arrays([times, pa.array(keys), pa.array(keys)], schema=SCHEMA)
    first.process(given_rows, "s", lambda made, split: found.append(made))
    (made_of,) = found
    assert made_of.schema == first.schema
    return made_of.num_rows


def test_where_keys_hardly_repeat_rows_pass() -> None:
    operator = made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.count()])
    assert isinstance(operator, WindowAggregate)
    first = opened(operator)
    rows_of_all = np.arange(repetition.PROBED_ROWS)
    assert emitted(first, rows_of_all % 100) == 100
    assert emitted(first, rows_of_all) == emitted(first, rows_of_all % 100) == len(rows_of_all)
    assert emitted(opened(operator), np.zeros(10, np.int64)) == 10
    assert emitted(opened(operator, always=True), np.zeros(10, np.int64)) == 1


def test_a_sum_that_is_too_large_for_a_while_is_an_error_only_if_it_stays_so(tmp_path: Path) -> None:
    """The last phase decides, as it does alone."""
    operator = made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.sum("v")])
    assert isinstance(operator, WindowAggregate)
    first = opened(operator, always=True)
    world = TwoPhases(lambda: made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.sum("v")]), tmp_path)
    for values in ((2**63 - 1, 5), (-5, -1)):
        first.process(batch(*((1, 1, value) for value in values)), "s", lambda made, _: Subtasks.process(world, made))
    assert [row["sum(v)"] for row in world.finish()] == [2**63 - 2]
    world.restore([], 1)
    first.process(batch((1, 1, 2**63 - 1), (1, 1, 5)), "s", lambda made, _: Subtasks.process(world, made))
    with pytest.raises(OptionError, match="does not fit into int64"):
        world.finish()


# What checkpoints hold of it.


def partials_of(*aggregates: Aggregate) -> Partials:
    operator = made(WIDE, WINDOWS["tumbling"], ["k"], aggregates)
    operator.state_schema = StateSchema(
        window="w",
        keys=(StateColumn(name="k", kind="int64"),),
        aggregates=tuple(each.state_column(pa.int64()) for each in aggregates),
    )
    return two_phases(operator)[0]


ROWS = rows(random.Random(1), 20, 0)


def test_stored_partial_results_are_found_by_what_they_are() -> None:
    """Aggregates in another order, and fewer; of those that are new there is what no rows have, but for counts."""
    before, now = partials_of(words.sum("v"), words.max("f")), partials_of(words.max("f"), words.sum("v"))
    stored = before.merged(before.lifted(ROWS))
    assert now.of_now(stored).equals(now.merged(now.lifted(ROWS)))
    assert (
        partials_of(words.max("f"))
        .of_now(stored)
        .equals(partials_of(words.max("f")).merged(partials_of(words.max("f")).lifted(ROWS)))
    )
    more = partials_of(words.count("v"), words.sum("v"), words.count(), words.approx_count_distinct("name"))
    counted, total, registers, many = more.of_now(stored).columns[2:]
    assert set(counted.to_pylist()) == {0} and set(map(tuple, registers.to_pylist())) == {()}
    assert total.equals(stored.column(2)) and many.equals(stored.columns[-1])


def test_the_same_aggregate_twice_is_two_columns() -> None:
    twice = partials_of(words.sum("v"), words.sum("v"))
    assert len(set(twice.schema.names)) == twice.lifted(ROWS).num_columns == 5


def test_rows_and_partial_results_differ_in_their_columns() -> None:
    assert Partials.are_in(partials_of(words.count()).schema)
    assert not Partials.are_in(WIDE)


def test_rows_on_their_way_are_taken_on_and_partial_results_are_no_rows() -> None:
    """By the descriptions that checkpoints have of them."""
    operator = made(SCHEMA, WINDOWS["tumbling"], ["k"], [words.sum("v")])
    operator.state_schema = StateSchema(
        window="w",
        keys=(StateColumn(name="k", kind="int64"),),
        aggregates=(words.sum("v").state_column(pa.int64()),),
    )
    assert isinstance(operator, WindowAggregate)
    phases = operator.two_phases(always=False)
    assert phases is not None
    now, of_rows = phases[1], Exchange(SCHEMA, "hash", keys=("k",))
    window = "window(at, 10 s, 10 s, 0 s)"
    assert now.signature == f"partial results in {window} of sum(v) as int64, int64, int64, int64 by k int64"
    assert now.state_schema is not None and of_rows.state_schema is not None
    assert now.state_schema.takes_on(of_rows.state_schema) and now.state_schema.takes_on(now.state_schema)
    assert not of_rows.state_schema.takes_on(now.state_schema)
