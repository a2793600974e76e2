"""The outputs of a task: batch collects and nothing more, streaming keeps watermarks."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.source import WatermarkStrategy
from headgate.task import MAX_WATERMARK_MS, BatchOutput, StreamingOutput
from tests.unit.task.output_world import Log, batch, let_pass, schema

STRATEGY = WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=1000, idle_timeout_ms=1000)


def test_batch_output_gives_back_what_it_got_and_does_no_watermark_work() -> None:
    output = BatchOutput()
    first, second = batch(1), batch(2, 3)
    split = output.create_output_for_split("a")
    split.emit_batch(first)
    split.emit_watermark(5)
    split.mark_idle()
    output.emit_batch(second)
    output.release_output_for_split("a")
    output.end_input()

    assert [output.take(), output.take(), output.take()] == [first, second, None]
    assert output.timer_period_ms is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_watermark_follows_the_rows_in_any_unit(unit: str) -> None:
    log = Log()
    output = StreamingOutput(schema(unit), STRATEGY, log, 0)

    output.create_output_for_split("a").emit_batch(batch(5000, 3000, None, unit=unit))

    assert log.events == ["active", ("a", 3), 4000]


def test_event_times_before_1970_round_down() -> None:
    log = Log()
    output = StreamingOutput(schema(), WatermarkStrategy(event_time_column="AT"), log, 0)
    early = pa.record_batch([pa.array([1], pa.int64()), pa.array([-1500], pa.timestamp("us", "UTC"))], schema=schema())

    output.create_output_for_split("a").emit_batch(early)

    assert log.events[-1] == -2


def test_rows_without_event_time_have_no_watermark() -> None:
    log = Log()
    output = StreamingOutput(schema(), STRATEGY, log, 0)

    output.create_output_for_split("a").emit_batch(batch(None))

    assert log.events == ["active", ("a", 1)]


def test_a_split_has_one_output_until_it_is_released() -> None:
    output = StreamingOutput(schema(), STRATEGY, Log(), 0)
    first = output.create_output_for_split("a")

    assert output.create_output_for_split("a") is first
    output.release_output_for_split("a")
    output.release_output_for_split("never heard of")
    assert output.create_output_for_split("a") is not first


def test_a_reader_may_emit_without_outputs_per_split() -> None:
    log = Log()
    output = StreamingOutput(schema(), STRATEGY, log, 0)
    output.emit_batch(batch(5000))
    output.emit_watermark(7000)
    output.mark_idle()

    assert log.events == ["active", ("", 1), 4000, 7000, "idle"]


def test_silence_is_found_by_the_time_that_the_task_passes() -> None:
    log = Log()
    output = StreamingOutput(schema(), STRATEGY, log, 50_000)
    assert output.timer_period_ms == 250
    output.create_output_for_split("a").emit_batch(batch(5000))
    let_pass(output, 50_999)
    assert log.events[-1] == 4000

    let_pass(output, 51_300)

    assert log.events[-1] == "idle"


def test_time_in_which_the_task_stood_still_is_no_silence() -> None:
    """A process that was stopped, a long message: what arrived meanwhile has not been asked for yet."""
    log = Log()
    output = StreamingOutput(schema(), STRATEGY, log, 0)
    output.create_output_for_split("a").emit_batch(batch(5000))
    output.advance_time(60_000)
    assert log.events[-1] == 4000
    let_pass(output, 60_999)
    assert log.events[-1] == 4000
    let_pass(output, 61_300)
    assert log.events[-1] == "idle"


def test_neither_pausing_nor_back_pressure_is_silence() -> None:
    log = Log()
    output = StreamingOutput(schema(), STRATEGY, log, 0)
    output.create_output_for_split("a").emit_batch(batch(5000))
    output.pause_or_resume_splits(["a"], [])
    let_pass(output, 5000)
    output.pause_or_resume_splits([], ["a"])
    output.block(5000)
    let_pass(output, 10_000)
    output.unblock(10_000)
    let_pass(output, 10_500)
    assert log.events[-1] == 4000

    let_pass(output, 11_000)

    assert log.events[-1] == "idle"


def test_the_end_has_a_final_watermark() -> None:
    log = Log()
    output = StreamingOutput(schema(), None, log, 0)
    output.end_input()

    assert log.events == ["active", MAX_WATERMARK_MS]


@pytest.mark.parametrize(("column", "what"), [("missing", "exactly one of the columns"), ("n", "must be a timestamp")])
def test_a_wrong_event_time_column_is_an_option_error(column: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        StreamingOutput(schema(), WatermarkStrategy(event_time_column=column), Log(), 0)


def test_an_ambiguous_event_time_column_is_an_option_error() -> None:
    ambiguous = pa.schema([("at", pa.timestamp("us")), ("AT", pa.timestamp("us"))])
    with pytest.raises(OptionError, match="exactly one"):
        StreamingOutput(ambiguous, STRATEGY, Log(), 0)
