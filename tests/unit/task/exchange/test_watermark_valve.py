"""The watermark of an exchange: its table, and any history against the minimum of those that have a vote."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidTransitionError
from headgate.machine import steps_of
from headgate.protocol.channels import ProducerActive, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task.exchange import watermark_valve
from headgate.task.exchange.watermark_valve import (
    AdvanceWatermark,
    EndInput,
    Idleness,
    MarkActive,
    MarkIdle,
    ProducerEvent,
    ProducerEventReceived,
    ProducerWatermark,
    WatermarkValve,
)
from tests.machines import explore

EVENTS: tuple[ProducerEvent, ...] = (
    WatermarkPassed(1),
    WatermarkPassed(2),
    WatermarkPassed(MAX_WATERMARK_MS),
    ProducerIdle(),
    ProducerActive(),
    ProducerEnded(),
)


class Started(msgspec.Struct, frozen=True):
    """The valve is made."""

    idle_together: bool


class AnyValve:
    """A valve that is made by the first event."""

    def __init__(self) -> None:
        self.valve: WatermarkValve | None = None

    def handle(self, event: ProducerEventReceived | Started, now_ms: int) -> list[watermark_valve.Action]:
        if isinstance(event, Started):
            self.valve = WatermarkValve("x", (0, 1, 2), idle_together=event.idle_together)
            return []
        assert self.valve is not None
        return self.valve.handle(event, now_ms)

    def check(self) -> None:
        if self.valve is not None:
            self.valve.check()


def events(machine: AnyValve) -> Iterator[ProducerEventReceived | Started]:
    if machine.valve is None:
        yield from (Started(False), Started(True))
        return
    for producer in machine.valve._producers:
        for each in EVENTS:
            yield ProducerEventReceived(producer, each)


def test_the_table_is_what_the_valve_does() -> None:
    """Every step of three producers has its row, and every row happens."""
    explore(
        AnyValve,
        events,
        steps=steps_of(WatermarkValve.TRANSITIONS),
        state=lambda machine, _: None if machine.valve is None else machine.valve.state,
        name=lambda machine, reported: "" if machine.valve is None else machine.valve.kind_of(reported).__name__,
        depth=12,
    )


def test_the_table_of_a_producer_is_what_it_does() -> None:
    explore(ProducerWatermark, lambda producer: () if producer.state == "ended" else EVENTS)


def test_an_unknown_producer_is_refused_with_the_history() -> None:
    """Nobody reports anything after its end."""
    valve = WatermarkValve("x", [0, 1])
    valve.handle(ProducerEventReceived(0, ProducerEnded()), 5)
    with pytest.raises(InvalidTransitionError, match="has ended") as refused:
        valve.handle(ProducerEventReceived(0, ProducerIdle()), 6)
    assert refused.value.facts["history"]


def vote_of(watermarks: dict[int, int], idle: dict[int, bool], *, together: bool) -> int | None:
    """Return the lowest watermark of the four that count, in milliseconds; None: all are idle."""
    left = {each: at_ms for each, at_ms in watermarks.items() if at_ms < MAX_WATERMARK_MS}
    voting = [at_ms for each, at_ms in left.items() if not idle[each]]
    if together and (voting or len(left) < 4):
        voting = list(left.values())
    return min(voting, default=None if left else MAX_WATERMARK_MS)


@pytest.mark.parametrize("together", [False, True])
@given(reported=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(EVENTS)), max_size=30))
def test_the_watermark_is_the_minimum_of_those_that_vote(
    reported: list[tuple[int, ProducerEvent]], together: bool
) -> None:
    """In whatever order: what was reported is the highest minimum so far; idle and ended are reported once."""
    valve = WatermarkValve("x", range(4), idle_together=together)
    watermarks, idle = dict.fromkeys(range(4), MIN_WATERMARK_MS), dict.fromkeys(range(4), False)
    known, is_idle = MIN_WATERMARK_MS, False
    for producer, event in reported:
        if producer not in watermarks:
            continue
        actions = valve.handle(ProducerEventReceived(producer, event), 0)
        valve.check()
        if isinstance(event, ProducerEnded):
            del watermarks[producer], idle[producer]
        else:
            idle[producer] = isinstance(event, ProducerIdle)
            if isinstance(event, WatermarkPassed):
                watermarks[producer] = max(watermarks[producer], event.timestamp_ms)
        expected: list[watermark_valve.Action] = []
        vote = vote_of(watermarks, idle, together=together)
        if (vote is None) != is_idle:
            is_idle = vote is None
            expected.append(MarkIdle("x") if is_idle else MarkActive("x"))
        if vote is not None and vote > known:
            known = vote
            expected.append(AdvanceWatermark("x", known))
        if not watermarks:
            expected.append(EndInput("x"))
        assert actions == expected


def test_the_final_watermark_does_not_pass_an_idle_producer() -> None:
    """An idle one may be about to send the last of its windows: what fired by the final watermark would take none."""
    valve = WatermarkValve("x", [0, 1])
    valve.handle(ProducerEventReceived(1, WatermarkPassed(5)), 0)
    valve.handle(ProducerEventReceived(1, ProducerIdle()), 0)
    assert valve.handle(ProducerEventReceived(0, WatermarkPassed(7)), 0) == [AdvanceWatermark("x", 7)]
    assert valve.handle(ProducerEventReceived(0, WatermarkPassed(MAX_WATERMARK_MS)), 0) == [MarkIdle("x")]
    assert valve.handle(ProducerEventReceived(0, ProducerEnded()), 0) == []
    assert valve.handle(ProducerEventReceived(1, ProducerActive()), 0) == [MarkActive("x")]
    assert valve.handle(ProducerEventReceived(1, WatermarkPassed(MAX_WATERMARK_MS)), 0) == [
        AdvanceWatermark("x", MAX_WATERMARK_MS)
    ]
    assert valve.handle(ProducerEventReceived(1, ProducerEnded()), 0) == [EndInput("x")]


def test_one_that_is_idle_before_the_others_is_waited_for_if_they_are_idle_together() -> None:
    """Two downstream of one exchange: the one that wakes first must not let the other's windows come late."""
    valve = WatermarkValve("x", [0, 1], idle_together=True)
    for producer in (0, 1):
        valve.handle(ProducerEventReceived(producer, WatermarkPassed(5)), 0)
        valve.handle(ProducerEventReceived(producer, ProducerIdle()), 0)
    assert valve.state == "idle"
    assert valve.handle(ProducerEventReceived(0, WatermarkPassed(50)), 0) == [MarkActive("x")]
    assert valve.handle(ProducerEventReceived(1, WatermarkPassed(50)), 0) == [AdvanceWatermark("x", 50)]


IDLE, ACTIVE, ENDED = ProducerIdle(), ProducerActive(), ProducerEnded()


class Twice:
    """Two exchanges of the same producers, 0 and 1, and one of another stage, which has a producer 0, too."""

    def __init__(self) -> None:
        self.idleness = Idleness({"x": 3, "y": 3, "z": 4})
        self.valves = {
            "x": WatermarkValve("x", [0, 1]),
            "y": WatermarkValve("y", [0, 1]),
            "z": WatermarkValve("z", [0]),
        }

    def hear(self, exchange: str, producer: int, event: ProducerEvent) -> list[tuple[str, ProducerEvent]]:
        heard = self.idleness.notifications(exchange, ProducerEventReceived(producer, event), self.valves)
        for uid, each in heard:
            assert each.producer == producer
            self.valves[uid].handle(each, 0)
        return [(uid, each.event) for uid, each in heard]


def test_a_producer_of_two_exchanges_is_idle_in_both_or_in_none() -> None:
    made = Twice()
    assert made.hear("z", 0, IDLE) == [("z", IDLE)]
    assert made.hear("x", 0, IDLE) == []
    assert made.hear("y", 1, IDLE) == [], "it is another producer"
    assert made.hear("y", 0, IDLE) == [("y", IDLE), ("x", IDLE)]
    assert made.hear("y", 0, WatermarkPassed(5)) == [("x", ACTIVE), ("y", WatermarkPassed(5))]
    assert made.hear("x", 0, ACTIVE) == [("x", ACTIVE)]


def test_a_producer_is_not_idle_before_it_is_so_again_in_the_slower_exchange() -> None:
    made = Twice()
    for exchange in ("x", "y"):
        made.hear(exchange, 0, IDLE)
    assert made.hear("x", 0, ACTIVE) == [("y", ACTIVE), ("x", ACTIVE)]
    assert made.hear("x", 0, IDLE) == [], "what it sent in between may still be on its way in the other one"
    assert made.hear("y", 0, ACTIVE) == [("y", ACTIVE)]
    assert made.hear("y", 0, IDLE) == [("y", IDLE), ("x", IDLE)]


def test_a_producer_that_has_ended_in_one_exchange_wakes_up_in_the_other_until_it_ends_there() -> None:
    made = Twice()
    for exchange in ("x", "y"):
        made.hear(exchange, 0, IDLE)
    assert made.hear("x", 0, ENDED) == [("y", ACTIVE), ("x", ENDED)]
    assert made.hear("y", 0, ENDED) == [("y", ENDED)]


class CountingValve(WatermarkValve):
    """Counts how often it looks at all producers."""

    looked = 0

    def _look(self) -> list[watermark_valve.Action]:
        self.looked += 1
        return super()._look()


def test_many_producers_are_looked_at_once_for_each_watermark_of_theirs() -> None:
    """Not for each of its messages: that would be the square of their number."""
    valve, found = CountingValve("words", range(100)), list[watermark_valve.Action]()
    for timestamp_ms in (10, 20, 30):
        for producer in range(100):
            found += valve.handle(ProducerEventReceived(producer, WatermarkPassed(timestamp_ms)), 0)
            valve.check()
    assert found == [AdvanceWatermark("words", timestamp_ms) for timestamp_ms in (10, 20, 30)]
    assert valve.looked == 3
