"""One subtask's pipeline: order, bad records, errors, snapshots, watermarks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.errors import BadDataError, ConnectorContractError, OptionError, UserFunctionError
from headgate.expressions.expressions import Column
from headgate.graph.plan import PlanNode, stage_graph, watermarked
from headgate.operators import bad_records
from headgate.operators.exchange import Exchange, ExchangeKind
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.operator import Emit, Operator
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import InlineState, OperatorState
from headgate.runtime.slices import CALL_MS
from headgate.task.watermarks import MAX_WATERMARK_MS
from tests.unit.expressions.nodes import N, call, cast
from tests.unit.operators.collecting_sink import (
    NUMBERS,
    STAGED,
    CollectingSink,
    Recording,
    WorkClock,
    chain_of,
    drain,
    numbers,
    source,
)

Batches = Iterator[pa.RecordBatch]
TIMED = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def failing_on(*bad: int) -> Callable[[Batches], Iterable[pa.RecordBatch]]:
    """Return a function that yields each batch, and then raises if there is one of these numbers in it."""

    def poisoned(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            for number in bad:
                if number in batch.column("n").to_pylist():
                    raise ZeroDivisionError(f"no {number}")

    return poisoned


LARGE = Column(call(">", N, 1))


def test_rows_go_through_all_operators_in_order() -> None:
    doubled = source().then(Project(NUMBERS, [Column(call("*", N, 2), "n")], "UTC"))
    chain, sink = chain_of(doubled.then(Filter(NUMBERS, Column(call(">", N, 4)), "UTC")))
    chain.input("numbers").on_batch(numbers(1, 2, 3), "a")
    chain.input("numbers").on_batch(numbers(4, None), "b")
    assert sink.rows == []
    drain(chain)
    assert sink.rows == [{"n": 6}, {"n": 8}]


def test_small_batches_share_a_step() -> None:
    chain, sink = chain_of(source())
    for number in range(20):
        chain.input("numbers").on_batch(numbers(number), "a")
    assert chain.process_some()
    assert len(sink.rows) == 20
    assert not chain.process_some()


def test_no_more_is_written_while_the_sink_has_no_room() -> None:
    chain, sink = chain_of(source())
    sink.room = Future()
    chain.input("numbers").on_batch(numbers(1), "a")
    chain.input("numbers").on_batch(numbers(2), "a")
    assert chain.ready() is sink.room
    chain.process_some()
    assert sink.rows == [{"n": 1}]
    sink.room.set_result(None)
    assert chain.ready() is None
    drain(chain)
    assert sink.rows == [{"n": 1}, {"n": 2}]


def test_a_stream_may_be_united_with_a_branch_of_itself() -> None:
    start = source()
    branch = start.then(Project(NUMBERS, [Column(call("negative", N), "m")], "UTC"))
    both = PlanNode(of=Union(start.schema, branch.schema), inputs=(start, branch))
    chain, sink = chain_of(both)
    chain.input("numbers").on_batch(numbers(1, 2), "a")
    drain(chain)
    assert sorted(row["n"] for row in sink.rows) == [-2, -1, 1, 2]


# Errors.


def test_an_error_names_the_function_and_where() -> None:
    chain, _ = chain_of(source().then(MapInArrow(failing_on(3), NUMBERS)).named("parse"))
    chain.input("numbers").on_batch(numbers(3), "rides-7")
    with pytest.raises(UserFunctionError, match=r"poisoned raised ZeroDivisionError: no 3 .*'rides-7'") as raised:
        drain(chain)
    error = raised.value
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.facts == {
        "operator": "parse", "function": "failing_on.<locals>.poisoned", "subtask": 3, "source": "numbers",
        "split": "rides-7",
    }  # fmt: skip


def test_an_expression_fails_as_a_function_does() -> None:
    chain, _ = chain_of(source().then(Project(NUMBERS, [Column(call("/", 1, N), "x")], "UTC")))
    chain.input("numbers").on_batch(numbers(0), "a")
    with pytest.raises(UserFunctionError, match=r"\(1 / n\).* divide by zero"):
        drain(chain)


def test_errors_of_ours_stay_what_they_are() -> None:
    def function(batches: Batches) -> Iterable[pa.RecordBatch]:
        raise BadDataError("no such record", partition=1)

    chain, _ = chain_of(source().then(MapInArrow(function, NUMBERS)), handling="skip")
    chain.input("numbers").on_batch(numbers(1), "a")
    with pytest.raises(BadDataError, match="no such record") as raised:
        drain(chain)
    assert raised.value.facts["partition"] == 1
    assert raised.value.facts["operator"] == "numbers.1.map-in-arrow"


def test_open_that_raises() -> None:
    class Model:
        def open(self) -> None:
            raise FileNotFoundError("model")

        def __call__(self, batches: Batches) -> Iterable[pa.RecordBatch]:
            return batches

    with pytest.raises(UserFunctionError, match="FileNotFoundError: model"):
        chain_of(source().then(MapInArrow(Model(), NUMBERS)))


def test_rows_of_a_source_are_checked() -> None:
    chain, _ = chain_of(source())
    with pytest.raises(ConnectorContractError, match="missing: n"):
        chain.input("numbers").on_batch(pa.RecordBatch.from_pydict({"m": [1]}), "a")


def test_a_function_that_exits_is_one_that_fails() -> None:
    def function(batches: Batches) -> Iterable[pa.RecordBatch]:
        sys.exit(3)

    chain, _ = chain_of(source().then(MapInArrow(function, NUMBERS)), handling="skip")
    chain.input("numbers").on_batch(numbers(1), "a")
    with pytest.raises(UserFunctionError, match="raised SystemExit: 3"):
        drain(chain)


# Bad records.


@pytest.mark.parametrize("bad", [(), (0,), (99,), (16,), (15, 16), (3, 4, 5, 50, 51, 98)])
def test_skipping_leaves_out_exactly_the_bad_records(bad: tuple[int, ...]) -> None:
    chain, sink = chain_of(source().then(MapInArrow(failing_on(*bad), NUMBERS)), handling="skip")
    chain.input("numbers").on_batch(numbers(*range(100)), "a")
    drain(chain)
    assert [row["n"] for row in sink.rows] == [n for n in range(100) if n not in bad]
    assert chain.figures().skipped == len(bad)


def test_all_records_are_bad() -> None:
    chain, sink = chain_of(source().then(MapInArrow(failing_on(*range(40)), NUMBERS)), handling="skip")
    chain.input("numbers").on_batch(numbers(*range(40)), "a")
    drain(chain)
    assert sink.rows == []
    assert chain.figures().skipped == 40


def test_finding_a_bad_record_lets_messages_in_between() -> None:
    """Halves are slices like any: each has its own step when a call takes as long as it may."""
    clock = WorkClock()

    def slow(batches: Batches) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            clock.now_ms += CALL_MS
            if pc.any(pc.equal(batch.column("n"), 5)).as_py():
                raise ValueError("five")
            yield batch

    chain, _ = chain_of(source().then(MapInArrow(slow, NUMBERS)), handling="skip", clock_ms=clock)
    chain.input("numbers").on_batch(numbers(*range(16)), "a")
    while True:
        began_ms = clock.now_ms
        if not chain.process_some():
            break
        assert clock.now_ms - began_ms <= CALL_MS


def test_an_error_downstream_is_not_one_upstream() -> None:
    """What the first operator emitted is not made again because the second one fails on a part of it."""
    first = Recording()
    chain, sink = chain_of(source().then(first).then(MapInArrow(failing_on(2), NUMBERS)), handling="skip")
    chain.input("numbers").on_batch(numbers(1, 2, 3), "a")
    drain(chain)
    assert first.sizes == [1, 2]
    assert [row["n"] for row in sink.rows] == [1, 3]


def test_bad_records_go_to_their_sink() -> None:
    bad = CollectingSink()
    chain, sink = chain_of(source().then(MapInArrow(failing_on(2), NUMBERS)), handling="sink", bad=bad)
    chain.position_of = lambda uid, split: f"{uid}/{split}@17"
    chain.input("numbers").on_batch(numbers(1, 2, 3), "a")
    drain(chain)
    assert [row["n"] for row in sink.rows] == [1, 3]
    (row,) = bad.rows
    assert json.loads(row.pop("record")) == {"n": 2}
    assert row == {"error": "ZeroDivisionError: no 2", "source": "numbers", "split": "a", "position": "numbers/a@17"}
    assert bad.batches[0].schema == bad_records.SCHEMA
    assert chain.figures().rows_out == {"sink": 2, "bad-records": 1}


def test_a_program_that_cannot_work_is_not_skipped() -> None:
    chain, _ = chain_of(
        source().then(MapInArrow(lambda batches: [pa.RecordBatch.from_pydict({"m": [1]})], NUMBERS)), handling="skip"
    )
    chain.input("numbers").on_batch(numbers(1, 2), "a")
    with pytest.raises(OptionError, match="missing: n"):
        drain(chain)


# Snapshots and the end.


class Summing(Operator):
    """Keeps the sum, emits it at the end."""

    schema = NUMBERS

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        self.total = sum(int(item) for item in items)

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        self.total += pc.sum(batch.column(0)).as_py()

    def end_input(self, emit: Emit) -> None:
        emit(numbers(self.total), "")

    def snapshot(self, checkpoint_id: int) -> OperatorState:
        return OperatorState(items=(InlineState(str(self.total).encode()),))


def test_a_snapshot_waits_for_what_was_begun() -> None:
    chain, sink = chain_of(source().then(Recording()))
    sink.room = Future()
    chain.input("numbers").on_batch(numbers(1), "a")
    chain.process_some()  # the operator has seen it, and the sink has not
    with pytest.raises(AssertionError, match="1 slices were begun"):
        chain.snapshot(1, final=False)


def test_a_snapshot_has_the_state_of_operators_and_sinks() -> None:
    chain, sink = chain_of(source().then(Summing()).named("sum"), items={"sum": [b"5"], "sink": [b"old"]})
    assert sink.items == [b"old"]
    chain.input("numbers").on_batch(numbers(1, 2), "a")
    drain(chain)
    safe = chain.snapshot(7, final=False)
    assert not safe.done()
    sink.prepared[0].set_result(STAGED)
    assert safe.result(0) == {"sum": OperatorState(items=(InlineState(b"8"),)), "sink": STAGED}
    chain.notify_checkpoint_complete(7)
    chain.close()
    assert sink.calls == ["sink", ("prepare", 7, False), ("complete", 7), "close"]


@pytest.mark.parametrize(("output_mode", "expected"), [("complete", [7]), ("update", [7, 7])])
def test_a_complete_result_takes_the_place_of_one_whose_checkpoint_was_given_up(
    output_mode: str, expected: list[int]
) -> None:
    class Result(Recording):
        def prepare_snapshot(self, emit: Emit) -> None:
            emit(numbers(7), "")

    sink = CollectingSink()
    sink.output_mode = output_mode
    chain, _ = chain_of(source().then(Result()), sink=sink)
    for _ in range(2):  # no snapshot follows the first one
        chain.prepare_snapshot()
        drain(chain)
    assert [row["n"] for row in sink.rows] == expected


def test_a_snapshot_fails_with_the_first_sink_that_does() -> None:
    bad = CollectingSink()
    chain, sink = chain_of(source(), handling="sink", bad=bad)
    safe = chain.snapshot(1, final=True)
    bad.prepared[0].set_exception(OSError("disk full"))
    sink.prepared[0].set_exception(OSError("later"))
    with pytest.raises(OSError, match="disk full"):
        safe.result(0)


def test_finishing_waits_for_all_sinks_that_have_something_to_do() -> None:
    bad = CollectingSink()
    chain, sink = chain_of(source(), handling="sink", bad=bad)
    assert chain.finish() is None
    sink.finished = Future()
    finish = chain.finish()
    assert finish is not None
    assert not finish.done()
    sink.finished.set_result(None)
    assert finish.done()


def test_the_end_goes_through_the_operators_in_order() -> None:
    chain, sink = chain_of(source().then(Summing()).then(Summing()))
    chain.input("numbers").on_batch(numbers(1, 2), "a")
    chain.end_input()
    drain(chain)
    assert sink.rows == [{"n": 3}]


def test_the_end_comes_after_a_final_watermark_that_follows_only_from_the_rows_before_it() -> None:
    """The output of a source whose event times an operator finds ends when its rows have passed that operator."""
    recorded = Recording()
    chain, sink = chain_of(source().then(recorded))
    order: list[str] = []
    recorded_end, recorded_watermark = Recording.end_input, Recording.process_watermark
    operator = next(iter(chain._operators.values()))
    operator.end_input = lambda emit: (order.append("end"), recorded_end(operator, emit))[0]  # type: ignore[method-assign]
    operator.process_watermark = lambda at_ms, emit: (
        order.append("watermark"),
        recorded_watermark(operator, at_ms, emit),
    )[0]  # type: ignore[method-assign]
    entry = chain.input("numbers")
    entry.on_batch(numbers(1, 2), "a")
    entry.after_rows(lambda: entry.on_watermark(MAX_WATERMARK_MS))
    chain.end_input()
    drain(chain)
    assert order == ["watermark", "end"]
    assert len(sink.rows) == 2


def test_a_restart_begins_with_fresh_operators() -> None:
    plan = source().then(Summing())
    for _ in range(2):
        chain, sink = chain_of(plan)
        chain.input("numbers").on_batch(numbers(4), "a")
        chain.end_input()
        drain(chain)
        assert sink.rows == [{"n": 4}]


def test_close_goes_on_when_something_raises() -> None:
    class Stubborn(Recording):
        def close(self) -> None:
            raise OSError("no")

    chain, sink = chain_of(source().then(Stubborn()))
    chain.close()
    assert sink.calls[-1] == "close"


# Figures and watermarks.


def test_figures() -> None:
    clock = WorkClock()
    slow = Recording(took=clock.takes(30))
    chain, _ = chain_of(source().then(Filter(NUMBERS, LARGE, "UTC")).then(slow).named("slow"), clock_ms=clock)
    chain.input("numbers").on_batch(numbers(1, 2, 3), "a")
    drain(chain)
    figures = chain.figures()
    assert figures.rows_in == {"numbers": 3}
    assert figures.rows_out == {"sink": 2}
    assert figures.busy_ms == {"numbers.1.filter": 0, "slow": 60, "sink": 0}
    assert (figures.operators["numbers.1.filter"].rows_in, figures.operators["numbers.1.filter"].rows_out) == (3, 2)


def test_a_stage_without_a_sink_has_no_figures_of_one() -> None:
    chain, _ = chain_of(source().then(Exchange(NUMBERS, "rebalance")).named("exchange"), stage=0)
    assert "sink" not in chain.figures().busy_ms and "sink" not in chain.figures().rows_out


def test_a_watermark_arrives_after_the_rows_before_it() -> None:
    chain, sink = chain_of(source())
    chain.input("numbers").on_active()
    chain.input("numbers").on_batch(numbers(1), "a")
    chain.input("numbers").on_watermark(1000)
    assert chain.figures().watermark_ms is None
    drain(chain)
    assert (sink.rows, chain.figures().watermark_ms) == ([{"n": 1}], 1000)


def test_the_slowest_input_of_a_union_counts() -> None:
    left, right = source(uid="left"), source(uid="right")
    chain, _ = chain_of(PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(left, right)))

    def watermark() -> int | None:
        drain(chain)
        return chain.figures().watermark_ms

    for uid in ("left", "right"):
        chain.input(uid).on_active()
    chain.input("left").on_watermark(500)
    assert watermark() is None
    chain.input("right").on_watermark(300)
    assert watermark() == 300
    chain.input("right").on_idle()
    assert watermark() == 500
    chain.input("right").on_active()
    assert watermark() == 300
    chain.input("right").on_watermark(MAX_WATERMARK_MS)
    assert watermark() == 500


def test_the_final_watermark_passes_no_idle_input() -> None:
    """A bounded source that is read to its end must not fire the windows of a live one that is silent for a while."""
    left, right = source(uid="left"), source(uid="right")
    chain, _ = chain_of(PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(left, right)))
    flow = chain.watermarks
    for uid in ("left", "right"):
        chain.input(uid).on_active()
        chain.input(uid).on_watermark(300)
    chain.input("right").on_idle()
    chain.input("left").on_watermark(MAX_WATERMARK_MS)
    drain(chain)
    assert (flow.watermark_ms, flow.is_idle) == (None, True)
    chain.input("right").on_active()
    chain.input("right").on_watermark(400)
    drain(chain)
    assert (flow.watermark_ms, flow.is_idle) == (400, False)
    chain.input("right").on_watermark(MAX_WATERMARK_MS)
    drain(chain)
    assert (flow.watermark_ms, flow.is_idle) == (MAX_WATERMARK_MS, False)


def test_a_broadcast_exchange_is_not_idle_alone() -> None:
    """Another one from the same readers was heard of first, after a silence; a forward one may be idle alone."""

    def exchanged(kind: ExchangeKind) -> PlanNode:
        keys = ("n",) if kind == "hash" else ()
        return source().then(Exchange(NUMBERS, kind, keys=keys)).named(kind)

    def heard(other: ExchangeKind) -> tuple[int | None, bool]:
        union = PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(exchanged("hash"), exchanged(other)))
        chain, _ = chain_of(union, stage=1)
        for uid in ("hash", other):
            chain.input(uid).on_active()
            chain.input(uid).on_watermark(10)
            chain.input(uid).on_idle()
        chain.input("hash").on_active()
        chain.input("hash").on_watermark(500)
        drain(chain)
        return chain.watermarks.watermark_ms, chain.watermarks.is_idle

    assert heard("rebalance") == (10, False)
    assert heard("forward") == (500, False)


SECONDS = pa.schema([("at", pa.timestamp("us", "UTC"))])


def seconds(node: PlanNode) -> PlanNode:
    """Return the numbers as times, and where these are found."""
    timed = node.then(Project(node.schema, [Column(cast(N, SECONDS.types[0]), "at")], "UTC"))
    return timed.then(WithWatermark(SECONDS, "at"))


def test_event_times_that_an_operator_made_are_reported_of_the_split_and_source_of_the_rows() -> None:
    left, right = source(uid="left"), source(uid="right")
    chain, _ = chain_of(seconds(PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(left, right))))
    passed: list[object] = []
    chain.input("left").rows_passed = lambda split, at_ms: passed.append(("left", split, at_ms))
    chain.input("right").rows_passed = lambda split, at_ms: passed.append(("right", split, at_ms))

    chain.input("left").on_batch(numbers(10, 7), "a")
    chain.input("left").after_rows(lambda: passed.append("after"))
    chain.input("right").on_batch(numbers(5), "a")
    chain.input("left").on_batch(numbers(None), "b")
    assert passed == []
    drain(chain)

    assert passed == [
        ("left", "a", 10_000), ("left", "a", 7000), "after", ("right", "a", 5000), ("left", "b", None),
    ]  # fmt: skip


def test_a_watermark_that_follows_from_passing_rows_arrives_after_all_of_them() -> None:
    branch = source()
    both = PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(branch.then(Filter(NUMBERS, LARGE, "UTC")), branch))
    chain, sink = chain_of(seconds(both))
    entry = chain.input("numbers")
    seen: list[tuple[int, int | None]] = []

    def passed(split: str, at_ms: int | None) -> None:
        entry.on_watermark(at_ms or 0)
        entry.after_rows(lambda: seen.append((len(sink.rows), chain.figures().watermark_ms)))

    entry.rows_passed = passed
    entry.on_active()
    entry.on_batch(numbers(*range(2, 102)), "a")
    drain(chain)

    assert seen[0] == (200, 2000), "the other way of the same rows, and all slices, come first"
    assert seen[-1] == (200, 101_000)


def test_only_the_last_operator_counts_that_finds_event_times() -> None:
    chain, _ = chain_of(seconds(source()).then(WithWatermark(SECONDS, "at")))
    passed: list[int | None] = []
    chain.input("numbers").rows_passed = lambda split, at_ms: passed.append(at_ms)
    chain.input("numbers").on_batch(numbers(1), "a")
    drain(chain)

    assert passed == [1000]
    assert chain.event_time_operator("numbers") == "numbers.3.with-watermark"


def test_event_times_must_be_found_in_one_place() -> None:
    branch = source().then(Project(NUMBERS, [Column(cast(N, SECONDS.types[0]), "at")], "UTC"))
    found = branch.then(WithWatermark(SECONDS, "at"))
    with pytest.raises(OptionError, match="several ways with different withWatermark"):
        chain_of(PlanNode(of=Union(SECONDS, SECONDS), inputs=(found, branch)))


class Inputs(Recording):
    """Notes from which input rows are, and the watermarks that it is given."""

    watermark_delay_ms = 30

    def __init__(self, schema: pa.Schema = NUMBERS) -> None:
        super().__init__(schema)
        self.seen: list[object] = []

    def process_input(self, number: int, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        self.seen.append((number, batch.num_rows))
        emit(batch, split_id)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        self.seen.append(timestamp_ms)


def test_an_operator_learns_from_which_of_its_inputs_rows_are() -> None:
    operator = Inputs()
    left, right = source(uid="left"), source(uid="right")
    filtered = right.then(Filter(NUMBERS, Column(call(">", N, 1)), "UTC"))
    chain, sink = chain_of(PlanNode(of=operator, inputs=(left, filtered, left)))
    chain.input("right").on_batch(numbers(1, 2), "a")
    drain(chain)
    assert operator.seen == [(1, 1)]
    chain.input("left").on_batch(numbers(3, 4), "a")
    drain(chain)
    assert operator.seen == [(1, 1), (0, 2), (2, 2)]
    assert len(sink.rows) == 5


def test_the_watermark_after_an_operator_is_lower_by_what_it_says() -> None:
    """For what follows in the stage and for its exchanges; the last one is the same for all."""
    first, second, beside, last = Inputs(), Inputs(), Inputs(), Inputs()
    numbers_of = source()
    delayed = numbers_of.then(first).then(second)
    united = PlanNode(of=Union(NUMBERS, NUMBERS), inputs=(delayed, numbers_of.then(beside)))
    exchanged = united.then(Exchange(NUMBERS, "rebalance")).then(last)
    definition = stage_graph(exchanged)
    (exchange,) = definition.exchanges
    assert definition.watermark_delays_ms[exchange] == 60
    assert definition.watermark_delays_ms[definition.output] == 0, "what producers send is delayed already"
    chain, _ = chain_of(exchanged)
    sent: list[int] = []

    class Output:
        def ready(self) -> None:
            return None

        def on_watermark(self, timestamp_ms: int) -> None:
            sent.append(timestamp_ms)

    chain._outputs[exchange] = Output()  # type: ignore[assignment]
    for timestamp_ms in (1000, MAX_WATERMARK_MS):
        chain.input("numbers").on_watermark(timestamp_ms)
        drain(chain)
    assert first.seen == beside.seen == [1000, MAX_WATERMARK_MS]
    assert second.seen == [970, MAX_WATERMARK_MS]
    assert sent == [940, MAX_WATERMARK_MS]


def test_a_source_without_event_time_holds_only_the_final_watermark() -> None:
    """As in Spark, where the watermark is that of the streams that have one."""
    timed = watermarked(source(TIMED, "timed"), 1, 0)
    without = source(TIMED, "without")
    chain, _ = chain_of(PlanNode(of=Union(TIMED, TIMED), inputs=(timed, without)))
    chain.input("timed").on_watermark(500)
    drain(chain)
    assert chain.watermarks.watermark_ms == 500
    chain.input("timed").on_watermark(MAX_WATERMARK_MS)
    drain(chain)
    assert chain.watermarks.watermark_ms is None, "rows may follow"
    chain.input("without").on_watermark(MAX_WATERMARK_MS)
    drain(chain)
    assert chain.watermarks.watermark_ms == MAX_WATERMARK_MS


def test_each_operator_spills_to_a_folder_of_its_own(tmp_path: Path) -> None:
    class Spilling(Recording):
        def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
            folders.append(context.spill_folder)

    folders: list[str] = []
    first = PlanNode(of=Spilling(), inputs=(source(),))
    chain_of(PlanNode(of=Spilling(), inputs=(first,)), spill_folder=str(tmp_path))
    assert len(set(folders)) == 2 and all(each.startswith(f"{tmp_path}/operators/") for each in folders)
