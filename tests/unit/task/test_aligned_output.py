"""The output of a reader that is aligned: which rows may go, who is paused, and what waits for late event times.

The machines that decide have tests of their own; here is what they receive, and what is done with what they order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from random import Random

import pyarrow as pa
import pytest

from headgate.protocol.messages import SplitEventTime
from headgate.source import WatermarkAlignment, WatermarkStrategy
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task import StreamingOutput
from tests.unit.task.output_world import Log, batch, let_pass, schema

DRIFT_MS = 100


class Task(Log):
    """Who gets rows, watermarks and orders, and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[object] = []
        self.reports: list[tuple[int | None, str]] = []
        self.waiting: deque[Callable[[], None]] = deque()

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        self.orders.append((tuple(splits_to_pause), tuple(splits_to_resume)))

    def on_source_paused(self, paused: bool) -> None:
        self.orders.append("pause" if paused else "resume")

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        self.reports.append((watermark_ms, slowest))

    def pass_rows(self) -> None:
        """Do what waits after rows that were handed on."""
        while self.waiting:
            self.waiting.popleft()()


def output_of(
    task: Task,
    *,
    unit: str = "us",
    disorder_ms: int = 0,
    idle_timeout_ms: int | None = None,
    after: bool = False,
    held: bool = False,
) -> StreamingOutput:
    strategy = WatermarkStrategy(
        event_time_column="at",
        max_out_of_orderness_ms=disorder_ms,
        idle_timeout_ms=idle_timeout_ms,
        alignment=WatermarkAlignment(group="g", max_drift_ms=DRIFT_MS),
    )
    columns = pa.schema([("n", pa.int64())]) if after else schema(unit)
    after_rows = task.waiting.append if after else None
    return StreamingOutput(columns, strategy, task, 0, control=task, held=held, after_rows=after_rows)


# Which rows may go.


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_rows_up_to_the_first_one_beyond_the_bound_may_go(unit: str) -> None:
    task = Task()
    output = output_of(task, unit=unit, disorder_ms=10)
    output.add_split("a")
    output.announce(0, 0)

    rows = batch(0, 110, None, 50, 111, None, 5, unit=unit)
    assert output.rows_allowed("a", rows) == 4, "110 less disorder is at the bound of 100, 111 is beyond it"
    assert task.orders == ["pause"]
    assert output.rows_allowed("a", batch(None, None, unit=unit)) == 2, "rows without event time never wait"
    assert output.rows_allowed("a", batch(unit=unit)) == 0


def test_event_times_in_whole_seconds_round_as_watermarks_do() -> None:
    output = output_of(Task(), unit="s")
    output.add_split("a")
    output.announce(1999, 1999 - DRIFT_MS)
    rows = pa.record_batch([[1, 2, 3], pa.array([-5, 1, 2], pa.timestamp("s", "UTC"))], names=["n", "at"])
    assert output.rows_allowed("a", rows) == 2


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_row_beyond_is_found_wherever_it_is(seed: int, nulls: bool) -> None:
    random = Random(seed)
    task = Task()
    output = output_of(task, disorder_ms=3)
    output.add_split("a")
    output.add_split("slow")  # it holds the bound where it is announced
    output.announce(0, 0)
    output.create_output_for_split("slow").emit_batch(batch(3))
    for _ in range(30):
        begin = random.choice([0, 1, 5, 1023, 1024, 1025])
        at_ms: list[int | None] = [random.randint(-50, 103) for _ in range(random.choice([2, 1030, 9000]))]
        if nulls:
            at_ms = [None if random.random() < 0.3 else each for each in at_ms]
        if random.random() < 0.8:
            at_ms[random.randrange(len(at_ms))] = random.randint(104, 200)
        rows = batch(*at_ms).slice(begin)
        left = at_ms[begin:]
        expected = next((n for n, each in enumerate(left) if each is not None and each - 3 > 100), len(left))
        assert output.rows_allowed("a", rows) == expected


def test_microseconds_below_a_millisecond_do_not_count() -> None:
    output = output_of(Task())
    output.add_split("a")
    output.announce(0, 0)
    at = pa.array([100_999, 101_000], pa.timestamp("us", "UTC"))
    assert output.rows_allowed("a", pa.record_batch([[1, 2], at], names=["n", "at"])) == 1


def test_nothing_goes_before_the_first_announcement_but_the_group_learns_where_the_split_is() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    assert task.reports == [(MIN_WATERMARK_MS, "a")]
    assert output.rows_allowed("a", batch(None, 500, 700)) == 1
    assert (task.orders, task.reports[-1]) == (["pause"], (500, "a"))

    output.announce(400, 300)
    assert task.orders == ["pause"]
    output.announce(600, 500)
    assert task.orders == ["pause", "resume"]
    assert output.rows_allowed("a", batch(None, 500, 700)) == 2


def test_a_reader_that_nobody_waits_for_goes_on_by_its_own_progress() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    rows = batch(*range(0, 1000, 7))
    assert output.rows_allowed("a", rows) == rows.num_rows
    assert task.orders == []


def test_the_extremes_of_time_overflow_nothing() -> None:
    output = output_of(Task(), disorder_ms=10)
    output.add_split("a")
    output.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS - DRIFT_MS)
    rows = pa.record_batch([[1, 2], pa.array([-(2**63) + 1, 2**63 - 1], pa.timestamp("us", "UTC"))], names=["n", "at"])
    assert output.rows_allowed("a", rows) == 2
    output.announce(MIN_WATERMARK_MS, MIN_WATERMARK_MS)
    assert output.rows_allowed("a", rows) == 0


def test_a_split_whose_source_makes_watermarks_goes_by_these_and_in_whole_batches() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.announce(0, 0)
    output.create_output_for_split("a").emit_watermark(50)
    assert output.rows_allowed("a", batch(500)) == 1
    output.create_output_for_split("a").emit_watermark(500)
    assert task.orders == ["pause"]


def test_without_alignment_all_rows_go() -> None:
    task = Task()
    output = StreamingOutput(schema(), WatermarkStrategy(event_time_column="at"), task, 0, control=task)
    output.add_split("a")
    assert output.rows_allowed("a", batch(1, 10**9)) == 2
    assert (task.orders, task.reports, output.due_ms) == ([], [], None)


# Who is paused.


def test_exactly_the_splits_ahead_are_paused_and_none_of_them_becomes_idle() -> None:
    task = Task()
    output = output_of(task, idle_timeout_ms=1000)
    for split_id in ("a", "b", "c"):
        output.add_split(split_id)
    output.announce(1000, 900)
    output.create_output_for_split("a").emit_batch(batch(300))
    output.create_output_for_split("b").emit_batch(batch(0))
    output.create_output_for_split("c").emit_batch(batch(50))
    # Each was ahead of those that had no rows yet; when b has, only a is.
    output.announce(1000, 900)
    paused = set()
    for to_pause, to_resume in task.orders:  # type: ignore[misc]
        paused = (paused | set(to_pause)) - set(to_resume)
    assert paused == {"a"}
    assert [split_id for split_id, each in output.event_times().items() if each.paused] == ["a"]

    let_pass(output, 1200)
    assert {split_id for split_id, each in output.event_times().items() if each.idle} == {"b", "c"}
    assert task.orders[-1] == ((), ("a",)), "nobody holds it back any longer"
    let_pass(output, 1900)
    assert not output.event_times()["a"].idle
    let_pass(output, 2300)
    assert output.event_times()["a"].idle


def test_a_paused_source_does_not_become_idle() -> None:
    task = Task()
    output = output_of(task, idle_timeout_ms=1000)
    output.add_split("a")
    output.announce(100, 0)
    output.create_output_for_split("a").emit_batch(batch(300))
    let_pass(output, 5000)
    assert task.orders == ["pause"]
    assert output.event_times() == {"a": SplitEventTime(watermark_ms=300, idle=False, paused=True)}


def test_a_reader_that_emits_by_itself_is_aligned_as_one_split() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.add_split("b")
    output.announce(100, 0)
    output.emit_batch(batch(50))
    assert task.events[-1] == 50, "splits without an output of their own hold nobody back"
    output.emit_batch(batch(300))
    output.add_split("c")
    assert task.events[-1] == 300
    assert task.orders == ["pause"]
    output.release_output_for_split("a")
    output.announce(400, 300)
    assert task.orders == ["pause", "resume"]


def test_a_reader_that_cannot_pause_splits_is_paused_when_all_of_them_are_ahead() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.add_split("b")
    output.read_splits_unaligned()
    output.announce(100, 0)
    output.create_output_for_split("a").emit_batch(batch(500))
    assert output.rows_allowed("b", batch(700)) == 1
    assert task.orders == []
    assert not output.event_times()["a"].paused
    output.create_output_for_split("b").emit_batch(batch(700))
    assert task.orders == ["pause"]
    output.announce(600, 500)
    assert task.orders == ["pause", "resume"]


@pytest.mark.parametrize("silent", ["is idle", "has ended", "is idle and can be paused"])
def test_a_reader_that_cannot_pause_splits_is_paused_though_another_split_is_silent(silent: str) -> None:
    task = Task()
    output = output_of(task, idle_timeout_ms=1000)
    for split_id in "ab":
        output.add_split(split_id)
    output.read_splits_unaligned(lambda split_id: split_id == "a" or "can" not in silent)
    output.announce(600, 500)
    output.create_output_for_split("b").emit_batch(batch(450))
    if silent == "has ended":
        output.release_output_for_split("b")
    else:
        let_pass(output, 3000)
        assert output.event_times()["b"].idle
    output.create_output_for_split("a").emit_batch(batch(590))
    task.orders.clear()
    output.create_output_for_split("a").emit_batch(batch(5000))
    assert task.orders == ["pause"]
    output.announce(6000, 5500)
    assert task.orders == ["pause", "resume"]
    if silent == "is idle":
        output.create_output_for_split("b").emit_batch(batch(460))
        output.create_output_for_split("a").emit_batch(batch(9000))
        assert task.orders == ["pause", "resume"], "it is the slowest again"


def test_a_reader_that_can_pause_the_splits_that_vote_is_read_for_the_idle_one() -> None:
    task = Task()
    output = output_of(task, idle_timeout_ms=1000)
    for split_id in "ab":
        output.add_split(split_id)
    output.read_splits_unaligned(lambda split_id: split_id == "b")
    output.announce(600, 500)
    output.create_output_for_split("b").emit_batch(batch(450))
    let_pass(output, 3000)
    output.create_output_for_split("a").emit_batch(batch(5000))
    assert output.event_times()["a"].paused and task.orders == [(("a",), ())]


def test_a_split_that_comes_to_a_reader_that_cannot_pause_splits_is_read_though_all_others_are_ahead() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.add_split("b")
    output.read_splits_unaligned()
    output.announce(100, 0)
    for split_id in ("a", "b"):
        output.create_output_for_split(split_id).emit_batch(batch(500))
    assert task.orders == ["pause"]
    output.add_split("c")
    assert task.orders == ["pause", "resume"]
    output.create_output_for_split("c").emit_batch(batch(500))
    assert task.orders == ["pause", "resume", "pause"]


def test_a_split_that_was_to_be_paused_when_its_reader_turned_out_unable_is_not() -> None:
    task = Task()
    output = output_of(task, idle_timeout_ms=1000)
    output.add_split("a")
    output.announce(100, 0)
    output.create_output_for_split("a").emit_batch(batch(500))
    output.add_split("b")
    output.read_splits_unaligned()
    assert not output.event_times()["a"].paused
    let_pass(output, 1500)
    assert output.event_times()["a"].idle


def test_the_end_takes_the_vote_back() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.announce(100, 0)
    output.end_input()
    assert task.reports[-1] == (None, "")
    assert task.events[-1] == MAX_WATERMARK_MS
    output.announce(1, 1)
    output.release_output_for_split("a")


def test_a_report_that_was_put_off_is_made_when_it_is_due() -> None:
    task = Task()
    output = output_of(task)
    output.add_split("a")
    output.announce(100, 0)
    output.create_output_for_split("a").emit_batch(batch(50))
    output.create_output_for_split("a").emit_batch(batch(51))
    assert (task.reports[-1], output.due_ms) == ((50, "a"), 1000)
    let_pass(output, 999)
    assert task.reports[-1] == (50, "a")
    let_pass(output, 1000)
    assert task.reports[-1] == (51, "a")


# What is not assigned.


def test_that_there_is_no_vote_is_reported_when_the_enumerator_has_seen_the_reader() -> None:
    """Before that, others would run ahead of splits that are on their way."""
    cases: list[tuple[Callable[[StreamingOutput], None], list[tuple[int | None, str]]]] = [
        (lambda output: output.set_unassigned(None), [(None, "")]),
        (lambda output: output.set_unassigned(7), [(7, ""), (None, "")]),
        (lambda output: output.set_unassigned(MIN_WATERMARK_MS), [(MIN_WATERMARK_MS, ""), (None, "")]),
        (lambda output: output.end_input(), [(None, "")]),
        (lambda output: output.add_split("a"), [(MIN_WATERMARK_MS, "a")]),
    ]
    for happens, reports in cases:
        task = Task()
        output = output_of(task, held=True)
        output.announce(DRIFT_MS, 0)
        assert not task.reports
        happens(output)
        assert task.reports == reports[:1]
        output.set_unassigned(None)
        assert task.reports == reports


def test_a_watermark_is_held_until_it_is_known_what_is_not_assigned() -> None:
    task = Task()
    output = output_of(task, held=True)
    output.add_split("a")
    output.create_output_for_split("a").emit_batch(batch(50))
    assert task.events == ["active", ("a", 1)]
    output.set_unassigned(20)
    assert task.events[-1] == 19
    output.set_unassigned(None)
    assert task.events[-1] == 50
    output.release_output_for_split("a")
    assert task.events[-1] == "idle"


def test_no_watermark_reaches_what_is_not_assigned() -> None:
    """A row of that time may come, and would be late; of a reader without a split it was the first watermark."""
    task = Task()
    output = output_of(task, held=True, disorder_ms=5)
    output.set_unassigned(20)
    assert task.events[-1] == 14


# Event times that an operator finds.


def test_event_times_after_an_operator_have_idleness_end_and_alignment() -> None:
    task = Task()
    output = output_of(task, after=True, idle_timeout_ms=1000)
    rows = pa.record_batch([[1, 2]], names=["n"])
    for split_id in ("a", "b"):
        output.add_split(split_id)
    output.announce(1000, 900)
    for split_id, at_ms in (("a", 70), ("b", 30)):
        assert output.rows_allowed(split_id, rows) == 2, "whole batches"
        output.create_output_for_split(split_id).emit_batch(rows)
        output.rows_passed(split_id, at_ms)
    task.pass_rows()
    assert task.events == ["active", ("a", 2), ("b", 2), 30]
    output.rows_passed("a", 400)
    assert task.orders[-1] == (("a",), ())
    let_pass(output, 1000)
    assert task.events[-1] == 400, "b is idle"
    assert task.orders[-1] == ((), ("a",))


def test_a_split_is_not_silent_while_the_operator_that_finds_its_event_times_has_rows_of_it() -> None:
    task = Task()
    output = output_of(task, after=True, idle_timeout_ms=1000)
    output.add_split("a")
    output.announce(1000, 900)
    for _ in range(2):
        output.create_output_for_split("a").emit_batch(pa.record_batch([[1, 2]], names=["n"]))
    let_pass(output, 5000)
    assert task.events[-1] != "idle"
    output.rows_passed("a", 70)
    task.waiting.popleft()()
    let_pass(output, 7000)
    assert task.events[-1] == 70, "the second batch is still on its way"
    output.rows_passed("a", 80)
    task.pass_rows()
    let_pass(output, 8000)
    assert task.events[-2:] == [80, "idle"]


def test_a_split_that_ended_votes_until_its_last_rows_have_passed() -> None:
    task = Task()
    output = output_of(task, after=True)
    rows = pa.record_batch([[1, 2]], names=["n"])
    output.add_split("a")
    output.add_split("b")
    output.rows_passed("b", 100)
    output.create_output_for_split("a").emit_batch(rows)
    output.release_output_for_split("a")
    assert task.events == ["active", ("a", 2)]
    output.rows_passed("a", 10)
    assert task.events[-1] == 10
    task.pass_rows()
    assert task.events[-1] == 100
    output.end_input()
    output.rows_passed("b", 200)
    assert task.events[-1] == 200
    task.pass_rows()
    assert task.events[-1] == MAX_WATERMARK_MS
    assert task.reports[-1] == (None, "")
