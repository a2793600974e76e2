"""A stage's watermark: the minimum of its inputs, without those that nobody should wait for."""

from __future__ import annotations

from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.watermark_flow import WatermarkFlow


def output_of(flow: WatermarkFlow) -> tuple[int | None, bool]:
    return flow.watermark_ms, flow.is_idle


def test_a_broadcast_input_is_not_idle_alone() -> None:
    """It wakes with the others, though it may be heard of last: its rows would be late."""
    flow = WatermarkFlow(["a", "b"], broadcast=["a", "b"])
    for uid in ("a", "b"):
        flow.on_watermark(uid, 10)
        flow.on_idle(uid)
    assert output_of(flow) == (None, True)
    flow.on_active("a")
    flow.on_watermark("a", 500)
    assert output_of(flow) == (10, False)
    flow.on_active("b")
    flow.on_watermark("b", 500)
    assert output_of(flow) == (500, False)


def test_nor_does_it_stay_idle_when_another_broadcast_one_has_ended() -> None:
    """All readers have, then: it is about to."""
    flow = WatermarkFlow(["a", "b"], broadcast=["a", "b"])
    flow.on_watermark("b", 10)
    flow.on_idle("b")
    flow.on_watermark("a", MAX_WATERMARK_MS)
    assert output_of(flow) == (10, False)
    flow.on_watermark("b", MAX_WATERMARK_MS)
    assert output_of(flow) == (MAX_WATERMARK_MS, False)


def test_what_only_one_producer_sends_may_be_idle_alone() -> None:
    """Its reader has nothing to read, and others have."""
    flow = WatermarkFlow(["all", "own"], broadcast=["all"])
    flow.on_watermark("all", 10)
    flow.on_watermark("own", 5)
    assert output_of(flow) == (5, False)
    flow.on_idle("own")
    assert output_of(flow) == (10, False)
    flow.on_idle("all")
    assert output_of(flow) == (None, True)
    flow.on_active("own")
    flow.on_watermark("own", 50)
    assert output_of(flow) == (10, False)
    flow.on_active("all")
    flow.on_watermark("all", 70)
    assert output_of(flow) == (50, False)
    flow.on_watermark("own", MAX_WATERMARK_MS)
    assert output_of(flow) == (70, False)
    flow.on_idle("all")
    assert output_of(flow) == (None, True)


def test_an_input_that_has_sent_nothing_holds_the_others() -> None:
    flow = WatermarkFlow(["a", "b"])
    flow.on_active("a")
    flow.on_watermark("a", 10)
    assert output_of(flow) == (None, False)
    flow.on_idle("b")
    assert output_of(flow) == (10, False)


def test_an_input_without_event_time_is_waited_for_at_its_end_only() -> None:
    flow = WatermarkFlow(["a", "b"], timeless=["b"])
    flow.on_watermark("a", 10)
    assert output_of(flow) == (10, False)
    flow.on_watermark("a", MAX_WATERMARK_MS)
    assert output_of(flow) == (None, True)
    flow.on_watermark("b", MAX_WATERMARK_MS)
    assert output_of(flow) == (MAX_WATERMARK_MS, False)


def test_a_subtask_that_reads_only_what_has_no_event_time_holds_nobody() -> None:
    """The source that has one may have fewer splits than there are subtasks."""
    flow = WatermarkFlow(["a", "b"], timeless=["b"])
    assert output_of(flow) == (None, False)
    flow.on_idle("a")
    assert output_of(flow) == (None, True)
    flow.on_idle("b")
    assert output_of(flow) == (None, True)
    flow.on_active("b")
    flow.on_active("a")
    flow.on_watermark("a", 10)
    assert output_of(flow) == (10, False)


def test_an_input_that_was_heard_of_has_event_time_whatever_was_expected() -> None:
    flow = WatermarkFlow(["a", "b"], timeless=["b"])
    flow.on_watermark("b", 5)
    flow.on_watermark("a", 10)
    assert output_of(flow) == (5, False)
