"""How long a slice takes with all that comes of it: by the decisions alone, and by the chain that makes the calls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest

from headgate.expressions.expressions import Column
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import SINK_UID
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.union import Union
from headgate.runtime.chain import MAIL_MS, StageChain
from headgate.runtime.chain_slices import ChainSlices
from headgate.runtime.slices import CALL_MS
from tests.unit.expressions.nodes import N, call
from tests.unit.operators.collecting_sink import NUMBERS, Recording, WorkClock, chain_of, drain, numbers, source

Batches = Iterator[pa.RecordBatch]

MANY = 20_000
FEEDS = {"in": ["first"], "first": ["second"]}


def slices(
    batches: Callable[[random.Random, int, int], list[int]], call_ms: float, row_ms: float, count: int, seed: int = 0
) -> list[tuple[int, float]]:
    """Take so many slices, each as large as allowed; return their rows and how long they took.

    ``batches``: how many rows each batch has that a first operator makes of so many, in the slice of this number; a
    second one takes them, on a machine whose times vary.
    """
    choose, chain = random.Random(seed), ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    taken = []
    for number in range(count):
        rows, spent_ms = min(MANY, chain.entry_rows("in")), 0.0
        chain.take("in", rows)
        chain.took("first", rows, 0.001, "in")
        for left in batches(choose, rows, number):
            while left:
                part = min(left, chain.call_rows("second"))
                took_ms = (call_ms + part * row_ms) * choose.uniform(0.9, 1.3)
                chain.took("second", part, took_ms, "in")
                spent_ms, left = spent_ms + took_ms, left - part
        chain.went_through()
        taken.append((rows, spent_ms))
    return taken


def some(choose: random.Random, rows: int, share: float) -> int:
    return sum(choose.random() < share for _ in range(rows))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "call_ms"), [(0.1, 15.0), (0.5, 15.0), (0.5, 45.0), (0.9, 30.0), (0.9, 100.0)])
def test_a_branch_that_takes_some_of_the_rows_does_not_keep_slices_small(
    share: float, call_ms: float, seed: int
) -> None:
    taken = slices(lambda choose, rows, _: [rows, some(choose, rows, share)], call_ms, 0.001, 300, seed)
    assert sum(rows for rows, _ in taken) > 20_000


@pytest.mark.parametrize("shares", [(0.01, 1.0), (1.0, 0.01)])
def test_one_slice_is_long_at_most_when_more_rows_than_before_pass_a_filter(shares: tuple[float, float]) -> None:
    taken = slices(lambda choose, rows, number: [some(choose, rows, shares[number >= 150])], 0.0, 0.02, 300)
    assert sum(spent_ms > 2.2 * CALL_MS for _, spent_ms in taken) <= 1
    assert sum(spent_ms for _, spent_ms in taken[-100:]) > 5 * CALL_MS


@pytest.mark.parametrize(("least", "most", "call_ms"), [(1, 1, 5.0), (10, 40, 5.0), (1, 3, 20.0)])
def test_batches_of_each_row_are_no_more_calls_than_fit(least: int, most: int, call_ms: float) -> None:
    taken = slices(lambda choose, rows, _: [choose.randint(least, most) for _ in range(rows)], call_ms, 0.01, 300)
    assert sum(spent_ms > 2 * CALL_MS for _, spent_ms in taken) <= 10
    assert max(spent_ms for _, spent_ms in taken) <= 8 * CALL_MS


def test_what_a_watermark_brings_is_of_no_slice() -> None:
    chain = ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    for _ in range(20):
        rows = chain.entry_rows("in")
        chain.take("in", rows)
        for uid in ("first", "second"):
            chain.took(uid, rows, 0.001, "in")
        chain.went_through()
    before = chain.entry_rows("in")
    for _ in range(100):
        chain.took("second", 1, 0.1, "")
    chain.went_through()
    assert chain.entry_rows("in") == before


def test_a_call_that_failed_counts_for_its_slice() -> None:
    chain = ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    for _ in range(20):
        rows = chain.entry_rows("in")
        chain.take("in", rows)
        chain.took("first", rows, 0.001, "in")
        chain.failed("second", 50.0, "in")
        chain.took("second", rows, 0.001, "in")
        chain.went_through()
    assert chain.expected_ms("in", rows) > CALL_MS


def exploding(batches: list[int], rows: int, sizes: list[int]) -> Callable[[Batches], Iterable[pa.RecordBatch]]:
    """Return a function that yields each row so many times, in so many batches for each row, by turns.

    It notes how many rows it got.
    """

    def exploded(given: Batches) -> Iterator[pa.RecordBatch]:
        for batch in given:
            sizes.append(batch.num_rows)
            for n in batch.column("n").to_pylist():
                for _ in range(batches[n % len(batches)]):
                    yield numbers(*[n] * rows)

    return exploded


def waits_of_barriers(chain: StageChain, clock: WorkClock) -> list[float]:
    """Process what waits at the entry; return how long a barrier would have waited each time that rows were begun."""
    waited = []
    while chain.entry_waits:
        began_ms = clock.now_ms
        chain.process_some()
        while chain.waits:
            chain.process_some(entry=False)
        waited.append(clock.now_ms - began_ms)
    return waited


def test_slices_of_a_large_batch_stay_in_order_through_two_operators() -> None:
    first, second = Recording(), Recording()
    chain, sink = chain_of(source().then(first).then(second))
    chain.input("numbers").on_batch(numbers(*range(1000)), "a")
    chain.input("numbers").on_batch(numbers(1000), "a")
    drain(chain)
    assert [row["n"] for row in sink.rows] == list(range(1001))
    assert first.sizes[:3] == [1, 8, 64]


def test_a_step_is_no_longer_than_a_slow_slice() -> None:
    """Messages get their turn between two steps, however large a batch is and however slow a function."""
    clock = WorkClock()
    slow = Recording(took=clock.takes(row_ms=5.0))
    chain, sink = chain_of(source().then(slow), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(500)), "a")
    steps = []
    while True:
        began_ms = clock.now_ms
        if not chain.process_some():
            break
        steps.append(clock.now_ms - began_ms)
    assert [row["n"] for row in sink.rows] == list(range(500))
    assert max(steps) <= MAIL_MS + CALL_MS


@pytest.mark.parametrize("share", [1, 20])
def test_what_an_exchange_gives_is_a_slice_of_a_slow_operator_after_a_fast_one_too(share: int) -> None:
    """A snapshot waits for what the chain has taken; a filter before a slow function lets it take more rows."""
    clock = WorkClock()
    exchanged = source().then(Exchange(NUMBERS, "rebalance")).named("exchange")
    filtered = exchanged.then(Filter(NUMBERS, Column(call("=", call("%", N, share), 0)), "UTC"))
    slow = Recording(took=clock.takes(row_ms=5.0))
    chain, sink = chain_of(filtered.then(slow), stage=1, clock_ms=clock)
    taken, waited = [0], []
    while taken[-1] < 4_000:
        rows = range(taken[-1], taken[-1] + chain.entry_rows("exchange"))
        taken.append(rows.stop)
        chain.take_rows("exchange", numbers(*rows), "")
        began_ms = clock.now_ms
        drain(chain)
        waited.append(clock.now_ms - began_ms)
    assert [row["n"] for row in sink.rows] == list(range(0, taken[-1], share))
    assert max(waited) <= 2 * CALL_MS
    assert max(slow.sizes) > 4


@pytest.mark.parametrize("share", [1, 20, 100_000])
def test_what_a_source_emits_is_begun_in_slices_of_a_slow_function_downstream(share: int) -> None:
    """However large the batch is, and however few of its rows reach the function at first."""
    clock = WorkClock()
    filtered = source().then(Filter(NUMBERS, Column(call("=", call("%", call("+", N, 1), share), 0)), "UTC"))
    slow = Recording(took=clock.takes(row_ms=5.0))
    chain, sink = chain_of(filtered.then(slow), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(200_000 if share > 1 else 2_000)), "a")
    waited = waits_of_barriers(chain, clock)
    assert len(sink.rows) == (200_000 // share if share > 1 else 2_000)
    assert max(waited) <= MAIL_MS + 2 * CALL_MS
    assert share > 1 or chain.figures().rows_in == {"numbers": 2_000}


@pytest.mark.parametrize(("call_ms", "row_ms"), [(0.0, 0.001), (0.0, 5.0), (5.0, 0.001), (45.0, 0.001)])
@pytest.mark.parametrize(
    ("batches", "rows"), [([1], 5), ([1], 100), ([3], 3), ([30], 1), ([0, 1, 100], 1), ([1, 2, 3], 2)]
)
def test_what_makes_many_rows_of_one_makes_slices_neither_small_nor_long(
    batches: list[int], rows: int, call_ms: float, row_ms: float
) -> None:
    """In one batch or, as windows and unions with branches of one stream do, in many; and a slow function is held."""
    sizes: list[int] = []
    clock = WorkClock()
    function = Recording(took=clock.takes(call_ms, row_ms))
    exploded = MapInArrow(exploding(batches, rows, sizes), NUMBERS)
    chain, sink = chain_of(source().then(exploded).then(function), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(600)), "a")
    waited = waits_of_barriers(chain, clock)
    assert len(sink.rows) == sum(batches[n % len(batches)] for n in range(600)) * rows
    largest_ms = max(batches) * (call_ms + rows * row_ms)  # of one row
    assert max(waited[4:], default=0) <= MAIL_MS + 2 * max(CALL_MS, largest_ms), "once something is known"
    if not call_ms and row_ms < 1:
        assert len(sizes) <= 11, "one row, two, four, and so on"


def test_what_waits_at_the_entry_is_known_by_split_and_how_long_it_takes() -> None:
    clock = WorkClock()
    slow = Recording(took=clock.takes(row_ms=5.0))
    chain, sink = chain_of(source().then(slow), clock_ms=clock)
    assert chain.entry_ms() == 0.0
    chain.input("numbers").on_batch(numbers(*range(100)), "a")
    chain.input("numbers").on_batch(numbers(100, 101), "b")
    assert chain.entry_ms() == math.inf, "nothing is known of the function"
    chain.process_some()
    while chain.waits:
        chain.process_some(entry=False)
    done = len(sink.rows)
    assert 0 < done < 20
    in_flight = chain.rows_in_flight("numbers")
    assert list(in_flight) == ["a", "b"]
    assert [n for batch in in_flight["a"] for n in batch.column(0).to_pylist()] == list(range(done, 100))
    assert [n for batch in in_flight["b"] for n in batch.column(0).to_pylist()] == [100, 101]
    assert chain.entry_ms() == pytest.approx((102 - done) * 5.0, rel=0.2)
    assert chain.figures().rows_in == {"numbers": done}, "rows count when they are begun"
    drain(chain)
    assert [row["n"] for row in sink.rows] == list(range(102))
    assert chain.rows_in_flight("numbers") == {}


def test_an_input_of_a_union_with_few_rows_does_not_make_the_slices_of_the_other_small() -> None:
    many, few = source(uid="many"), source(uid="few")
    united = PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(many, few))
    function = Recording()
    chain, sink = chain_of(united.then(function))
    for begin in range(0, 200_000, 20_000):
        chain.input("few").on_batch(numbers(-begin - 1), "f")
        chain.input("many").on_batch(numbers(*range(begin, begin + 20_000)), "m")
        drain(chain)
    assert len(sink.rows) == 200_010
    assert len(function.sizes) < 50, "as few calls as there are batches, but for the first"


def test_a_sink_that_waits_for_its_rows_gets_as_many_as_it_takes_in_a_short_time() -> None:
    clock = WorkClock()
    chain, sink = chain_of(source(), clock_ms=clock)
    chain._writers[SINK_UID].waits_for_rows = True  # as a sink does whose rows a function of the user's takes
    written: list[int] = []
    chain.input("numbers").on_batch(numbers(*range(300)), "a")
    while chain.entry_waits or chain.waits:
        sink.room = Future()  # asked for after the rows were written
        before = len(sink.rows)
        chain.process_some()
        written.append(len(sink.rows) - before)
        clock.now_ms += written[-1] * 20.0
        sink.room.set_result(None)
        chain.ready()
    assert sum(written) == 300
    assert max(written) <= 64 and max(written[5:]) <= 4, written


def test_a_sink_that_waits_for_rows_of_many_batches_does_not_keep_slices_small() -> None:
    sizes: list[int] = []
    chain, sink = chain_of(source().then(MapInArrow(exploding([30], 1, sizes), NUMBERS)), clock_ms=WorkClock())
    chain._writers[SINK_UID].waits_for_rows = True
    chain.input("numbers").on_batch(numbers(*range(200)), "a")
    while chain.entry_waits or chain.waits:
        sink.room = Future()
        chain.process_some()
        sink.room.set_result(None)
        chain.ready()
    assert len(sink.rows) == 200 * 30
    assert len(sizes) <= 8


def test_a_function_with_a_fixed_cost_gets_many_rows_at_a_time() -> None:
    """A model, a request over the network: smaller calls would take as long, one by one."""
    clock = WorkClock()
    model = Recording(took=clock.takes(45))
    chain, sink = chain_of(source().then(model), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(10_000)), "a")
    drain(chain)
    assert len(sink.rows) == 10_000
    assert len(model.sizes) <= 10


@pytest.mark.parametrize(("branches", "call_ms"), [(2, 9), (2, 12), (2, 18), (2, 45), (3, 9), (3, 14), (4, 8)])
def test_several_calls_with_a_fixed_cost_for_each_slice_do_not_keep_slices_small(branches: int, call_ms: int) -> None:
    clock = WorkClock()
    model = Recording(took=clock.takes(call_ms))
    united = PlanNode(of=Union(*[NUMBERS] * branches), inputs=(source(),) * branches)
    chain, sink = chain_of(united.then(model), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(10_000)), "a")
    drain(chain)
    assert len(sink.rows) == 10_000 * branches
    assert len(model.sizes) <= 40 * branches


@pytest.mark.parametrize("times", [2, 10, 120])
def test_rows_that_become_many_later_make_one_slice_long_at_most(times: int) -> None:
    clock = WorkClock()
    function = Recording(took=clock.takes(row_ms=0.4))
    exploded = MapInArrow(exploding([1] * 3000 + [times] * 7000, 1, []), NUMBERS)
    chain, sink = chain_of(source().then(exploded).then(function), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(4000)), "a")
    waited = waits_of_barriers(chain, clock)
    assert len(sink.rows) == 3000 + 1000 * times
    long = [each for each in waited if each > 3 * CALL_MS]
    assert len(long) <= 1 and max(waited) <= times * CALL_MS + MAIL_MS
