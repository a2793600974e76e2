"""The short way of a few rows through a chain: rows, errors and figures are those of the long way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from random import Random

import pyarrow as pa
import pytest

from headgate.errors import UserFunctionError
from headgate.expressions.expressions import Column
from headgate.graph.plan import PlanNode
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.operator import Emit, Operator
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.runtime.chain import StageChain
from headgate.runtime.few_rows import FEW_ROWS
from tests.unit.expressions.nodes import N, call
from tests.unit.operators.collecting_sink import (
    NUMBERS,
    CollectingSink,
    CollectingWriter,
    Recording,
    WorkClock,
    chain_of,
    drain,
    numbers,
    source,
)

Batches = Iterator[pa.RecordBatch]


class Repeating(Operator):
    """Emits each number as often as it says, in batches of their own, so that order shows."""

    schema = NUMBERS

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        for number in batch.column(0).to_pylist():
            for _ in range(number % 4):
                emit(numbers(number), split_id)


def warmed(chain: StageChain, sink: CollectingSink) -> None:
    """Let a chain know what calls take."""
    for _ in range(8):
        chain.input("numbers").on_batch(numbers(*range(400)), "warm")
        drain(chain)
    sink.batches.clear()


def quickly(chain: StageChain) -> bool:
    """Take what waits through as an execution does; return whether all went the short way."""
    done = chain.process_few()
    drain(chain)
    return done


def program() -> PlanNode:
    start = source().then(Filter(NUMBERS, Column(call(">", N, 2)), "UTC")).then(Repeating())
    branch = start.then(Project(NUMBERS, [Column(call("negative", N), "n")], "UTC"))
    return PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(start, branch))


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_figures_are_those_of_the_long_way(seed: int) -> None:
    random = Random(seed)
    (short, of_short), (long, of_long) = chain_of(program()), chain_of(program())
    warmed(short, of_short)
    warmed(long, of_long)
    ways = set()
    for _ in range(20):
        of_short.batches.clear()
        of_long.batches.clear()
        for _ in range(random.randrange(1, 4)):
            batch = numbers(*(random.randrange(20) for _ in range(random.choice([0, 1, 5, 60]))))
            for chain in (short, long):
                chain.input("numbers").on_batch(batch, random.choice("ab"))
        ways.add(quickly(short))
        drain(long)
        assert of_short.rows == of_long.rows
    assert True in ways
    figures = short.figures()
    assert figures.rows_in == long.figures().rows_in and figures.rows_out == long.figures().rows_out
    assert {uid: (each.rows_in, each.rows_out) for uid, each in figures.operators.items()} == {
        uid: (each.rows_in, each.rows_out) for uid, each in long.figures().operators.items()
    }


def test_before_anything_is_known_rows_go_the_long_way() -> None:
    recording = Recording()
    chain, _ = chain_of(source().then(recording))
    (copied,) = chain._operators.values()
    chain.input("numbers").on_batch(numbers(*range(20)), "a")
    assert not chain.process_few() and chain.rows_in_flight("numbers") == {"a": [numbers(*range(20))]}
    assert isinstance(copied, Recording) and copied.sizes == []


def test_batches_of_several_splits_are_one() -> None:
    chain, _ = chain_of(source().then(Recording()))
    warmed(chain, CollectingSink())
    (recording,) = chain._operators.values()
    assert isinstance(recording, Recording)
    for _ in range(2):  # one in some goes the long way
        recording.sizes.clear()
        for number in range(10):
            chain.input("numbers").on_batch(numbers(number), f"split-{number}")
        if quickly(chain):
            break
    assert recording.sizes == [10]


def test_many_rows_go_the_long_way() -> None:
    chain, sink = chain_of(source().then(Recording()))
    warmed(chain, sink)
    chain.input("numbers").on_batch(numbers(*range(FEW_ROWS + 1)), "a")
    assert not chain.process_few() and sink.rows == []
    drain(chain)
    assert len(sink.rows) == FEW_ROWS + 1


def test_a_call_that_takes_long_is_made_the_long_way() -> None:
    """So that mail has its turn before it."""
    clock = WorkClock()
    chain, sink = chain_of(source().then(Recording(took=clock.takes(call_ms=30))), clock_ms=clock)
    warmed(chain, sink)
    for number in range(4):
        chain.input("numbers").on_batch(numbers(number), "a")
    assert not chain.process_few() and sink.rows == []
    drain(chain)
    assert [row["n"] for row in sink.rows] == [0, 1, 2, 3]


def test_what_calls_take_counts_though_nobody_looks_at_the_clock() -> None:
    clock = WorkClock()
    chain, sink = chain_of(source().then(Recording(took=clock.takes(row_ms=0.01))), clock_ms=clock)
    warmed(chain, sink)
    (uid,) = chain._operators
    before_ms = chain.figures().operators[uid].busy_ms
    for _ in range(64):
        chain.input("numbers").on_batch(numbers(*range(100)), "a")
        quickly(chain)
    assert chain.figures().operators[uid].busy_ms - before_ms == pytest.approx(64.0)


def test_batches_that_follow_wait_for_room_and_for_mail() -> None:
    clock = WorkClock()
    chain, sink = chain_of(source().then(Recording(took=clock.takes(call_ms=6))), clock_ms=clock)
    warmed(chain, sink)
    batches = 6 * [numbers(*range(400))]
    for batch in batches:
        chain.input("numbers").on_batch(batch, "a")
    assert not chain.process_few() and 0 < len(sink.rows) < 2400, "mail has its turn"
    drain(chain)
    sink.batches.clear()
    for batch in batches:
        chain.input("numbers").on_batch(batch, "a")
    sink.room = Future()
    assert not chain.process_few() and len(sink.rows) <= FEW_ROWS
    sink.room = None
    drain(chain)
    assert len(sink.rows) == 2400


def test_a_sink_that_says_later_how_long_rows_took_gets_them_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectingWriter, "waits_for_rows", True)
    chain, sink = chain_of(source().then(Recording()))
    warmed(chain, sink)
    for number in range(20):
        chain.input("numbers").on_batch(numbers(number), "a")
        assert not chain.process_few()
        drain(chain)
    assert len(sink.rows) == 20


def test_bad_records_are_left_out_wherever_they_are() -> None:
    def picky(batches: Batches) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            if 7 in batch.column(0).to_pylist():
                raise ZeroDivisionError("seven")
            yield batch

    bad = CollectingSink()
    chain, sink = chain_of(source().then(Recording()).then(MapInArrow(picky, NUMBERS)), handling="skip", bad=bad)
    for _ in range(8):
        chain.input("numbers").on_batch(numbers(*range(100, 500)), "warm")
        drain(chain)
    sink.batches.clear()
    for begin in (0, 5, 10):
        chain.input("numbers").on_batch(numbers(*range(begin, begin + 5)), f"split-{begin}")
        quickly(chain)
    assert [row["n"] for row in sink.rows] == [each for each in range(15) if each != 7]
    assert [row["split"] for row in bad.rows] == ["split-5"]
    assert chain.figures().skipped == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(3)])
def test_an_error_names_the_function_and_all_splits_that_rows_are_of(error: BaseException) -> None:
    fails: list[BaseException] = []

    def function(batches: Batches) -> Iterable[pa.RecordBatch]:
        if fails:
            raise fails[0]
        return batches

    chain, sink = chain_of(source().then(MapInArrow(function, NUMBERS)).named("parse"))
    warmed(chain, sink)
    fails.append(error)
    chain.input("numbers").on_batch(numbers(1), "a")
    chain.input("numbers").on_batch(numbers(2), "b")
    with pytest.raises(UserFunctionError) as raised:
        chain.process_few()
    assert raised.value.facts["operator"] == "parse" and raised.value.facts["split"] == "a, b"


def test_a_watermark_keeps_its_place() -> None:
    seen: list[int | list[int]] = []

    class Noting(Operator):
        schema = NUMBERS

        def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
            seen.append(batch.column(0).to_pylist())

        def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
            seen.append(timestamp_ms)

    chain, sink = chain_of(source().then(Noting()))
    warmed(chain, sink)
    seen.clear()
    for step in range(20):
        chain.input("numbers").on_batch(numbers(step), "a")
        chain.input("numbers").on_watermark(1000 + step)
        chain.input("numbers").on_batch(numbers(-step), "a")
        quickly(chain)
        drain(chain)
        assert seen == [[step], 1000 + step, [-step]]
        seen.clear()
