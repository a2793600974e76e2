"""The watermark of an exchange: its table, and any history against the minimum of those that have a vote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import ProducerActive, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task import watermark_valve
from headgate.task.watermark_valve import (
    AdvanceWatermark,
    EndInput,
    MarkActive,
    MarkIdle,
    ProducerTold,
    Told,
    WatermarkValve,
)
from tests.machines import explore

TOLD: tuple[Told, ...] = (
    WatermarkPassed(1),
    WatermarkPassed(2),
    WatermarkPassed(MAX_WATERMARK_MS),
    ProducerIdle(),
    ProducerActive(),
    ProducerEnded(),
)


def events(valve: WatermarkValve) -> Iterator[ProducerTold]:
    for producer in (0, 1, 2):
        for each in TOLD:
            yield ProducerTold(producer, each)


def test_the_table_is_what_the_valve_does() -> None:
    """Every step of two and of three producers has its row, and every row happens."""
    explore(
        lambda: WatermarkValve("x", (0, 1, 2)),
        events,
        table=watermark_valve.__doc__,
        name=lambda _, told: type(told.event).__name__,
        depth=7,
    )


def test_an_unknown_producer_is_refused_with_the_history() -> None:
    """Nobody tells anything after its end."""
    valve = WatermarkValve("x", [0, 1])
    valve.handle(ProducerTold(0, ProducerEnded()), 5)
    with pytest.raises(InvalidTransitionError, match="has ended") as refused:
        valve.handle(ProducerTold(0, ProducerIdle()), 6)
    assert refused.value.facts["history"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TOLD)), max_size=30))
def test_the_watermark_is_the_minimum_of_those_that_vote(told: list[tuple[int, Told]]) -> None:
    """Whatever comes in whatever order: what was told is the highest minimum so far, idle and ended are told once."""
    valve = WatermarkValve("x", range(4))
    watermarks, idle = dict.fromkeys(range(4), MIN_WATERMARK_MS), dict.fromkeys(range(4), False)
    known, is_idle = MIN_WATERMARK_MS, False
    for producer, event in told:
        if producer not in watermarks:
            continue
        actions = valve.handle(ProducerTold(producer, event), 0)
        valve.check()
        if isinstance(event, ProducerEnded):
            del watermarks[producer], idle[producer]
        else:
            idle[producer] = isinstance(event, ProducerIdle)
            if isinstance(event, WatermarkPassed):
                watermarks[producer] = max(watermarks[producer], event.timestamp_ms)
        expected: list[watermark_valve.Action] = []
        if (now_idle := bool(idle) and all(idle.values())) != is_idle:
            is_idle = now_idle
            expected.append(MarkIdle("x") if is_idle else MarkActive("x"))
        minimum = min((watermarks[each] for each in watermarks if not idle[each]), default=MAX_WATERMARK_MS)
        if not is_idle and minimum > known:
            known = minimum
            expected.append(AdvanceWatermark("x", known))
        if not watermarks:
            expected.append(EndInput("x"))
        assert actions == expected
