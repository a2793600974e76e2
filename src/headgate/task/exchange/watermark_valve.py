"""Decides the watermark of one exchange in a consuming subtask from those of its producers: their minimum.

Never: read a clock, look at a row. Nothing of it is stored: after a restart producers send their watermarks anew.

A producer is *active* (it has a vote: its watermark, or none yet, which holds all), *idle* (nobody waits for it),
*final* (its watermark is the final one; it holds nobody) or *ended* (the same, for ever). The final watermark passes
nobody else, idle or not: windows that fired by it would take no row of one that is heard of again. The exchange is
*moving* when its watermark is the minimum, *held* when it has none yet or an active producer has not reached it, *idle*
when all that are not final are idle, *ended*.

Producers that come after exchanges themselves receive the same, though not at the same time: they are idle
*together*. One that is idle before the others are, or for longer, may keep what is older than what they have sent, and
is waited for: only when all are idle the exchange is, and none is final (or else all are about to be).

The watermark never goes back: a producer that becomes active below it holds it where it is.

One that feeds several exchanges of a consumer is idle in all of them or in none (`Idleness`): else what it sends in one
when it wakes up would be late by its own watermark, which came in another one before.

Follows Flink's StatusWatermarkValve, which, other than this one, does not wait for a producer that comes back late, nor
keeps the final watermark until idle ones have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol.channels import ProducerActive, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

# What happened.

ProducerEvent = WatermarkPassed | ProducerIdle | ProducerActive | ProducerEnded


class ProducerEventReceived(msgspec.Struct, frozen=True):
    """An event of a producer's was reached in its channel: everything that precedes it is processed."""

    producer: int
    event: ProducerEvent


class LastProducerEnded(msgspec.Struct, frozen=True):
    """Stands in the table for `ProducerEnded` of the only one that is left."""


# What is to be done.


class AdvanceWatermark(msgspec.Struct, frozen=True):
    """The watermark of an exchange is this, in milliseconds."""

    exchange: str
    timestamp_ms: int


class MarkIdle(msgspec.Struct, frozen=True):
    """Do not wait for an exchange's watermark."""

    exchange: str


class MarkActive(msgspec.Struct, frozen=True):
    """Wait for it again."""

    exchange: str


class EndInput(msgspec.Struct, frozen=True):
    """All producers of an exchange have ended."""

    exchange: str


Action = AdvanceWatermark | MarkIdle | MarkActive | EndInput


class ProducerWatermark(Machine):
    """How far one producer is."""

    # fmt: off
    TRANSITIONS = (
        Row("active, idle",        WatermarkPassed, "active", [], "it is heard of again"),
        Row("active, idle",        WatermarkPassed, "final", when="final"),
        Row("active, idle",        ProducerIdle,    "idle"),
        Row("active, idle",        ProducerActive,  "active"),
        Row("active, idle, final", ProducerEnded,   "ended"),
        Row("final",               WatermarkPassed, SAME, IGNORED, "nothing follows but its end"),
        Row("final",               ProducerIdle,    SAME, IGNORED),
        Row("final",               ProducerActive,  SAME, IGNORED),
    )
    # fmt: on

    def __init__(self) -> None:
        super().__init__()
        self.state = "active"
        self.watermark_ms = MIN_WATERMARK_MS  # this: none yet

    def handle(self, event: ProducerEvent, now_ms: int) -> list[Any]:
        """Take note of an event; nothing is to be done. `WatermarkValve` has the history and the errors."""
        handler = self._DISPATCH[self.state, type(event)]  # not the base's: every watermark comes here
        return [] if handler is None else handler(self, event, now_ms)

    def _on_watermark_passed(self, event: WatermarkPassed, now_ms: int) -> list[Any]:
        self.watermark_ms = max(self.watermark_ms, event.timestamp_ms)
        self.state = "active" if self.watermark_ms < MAX_WATERMARK_MS else "final"
        return []

    def _on_producer_idle(self, event: ProducerIdle, now_ms: int) -> list[Any]:
        self.state = "idle"
        return []

    def _on_producer_active(self, event: ProducerActive, now_ms: int) -> list[Any]:
        self.state = "active"
        return []

    def _on_producer_ended(self, event: ProducerEnded, now_ms: int) -> list[Any]:
        self.state = "ended"
        return []


class WatermarkValve(Machine):
    """The watermark of an exchange in one consumer.

    Parameters
    ----------
    exchange
        Its uid.
    producers
        The producing subtasks.
    idle_together
        Whether none stays idle unless all do, since all receive the same.

    Examples
    --------
    >>> valve = WatermarkValve("words", [0, 1])
    >>> valve.handle(ProducerEventReceived(0, WatermarkPassed(7)), 0)
    []
    >>> valve.handle(ProducerEventReceived(1, WatermarkPassed(5)), 0)
    [AdvanceWatermark(exchange='words', timestamp_ms=5)]
    >>> valve.handle(ProducerEventReceived(1, ProducerIdle()), 0)
    [AdvanceWatermark(exchange='words', timestamp_ms=7)]
    """

    # fmt: off
    TRANSITIONS = (
        Row("held",         WatermarkPassed,   SAME, [], "another one has not reached it"),
        Row("held",         WatermarkPassed,   "moving", [Maybe(AdvanceWatermark)],
            "the slowest one; none: it caught up with the watermark"),
        Row("moving",       WatermarkPassed,   SAME, [Maybe(AdvanceWatermark)],
            "the slowest one; none: others hold the watermark"),
        Row("moving",       WatermarkPassed,   "held", [], "it was idle, and is below the watermark"),
        Row("held, moving", WatermarkPassed,   "idle", [MarkIdle], "it is final, and those that are not are idle"),
        Row("idle",         WatermarkPassed,   SAME, [], "the same"),
        Row("idle",         WatermarkPassed,   "held", [MarkActive], "it is below the watermark"),
        Row("idle",         WatermarkPassed,   "moving", [MarkActive, Maybe(AdvanceWatermark)]),
        Row("held",         ProducerIdle,      SAME, [], "others hold the watermark"),
        Row("held",         ProducerIdle,      "moving", [Maybe(AdvanceWatermark)], "it held the watermark"),
        Row("moving",       ProducerIdle,      SAME, [Maybe(AdvanceWatermark)], "the same"),
        Row("held, moving", ProducerIdle,      "idle", [MarkIdle], "the last one with a vote"),
        Row("idle",         ProducerIdle,      SAME),
        Row("held, moving", ProducerActive,    SAME),
        Row("moving",       ProducerActive,    "held", [], "it is below the watermark"),
        Row("idle",         ProducerActive,    SAME, [], "it is final"),
        Row("idle",         ProducerActive,    "held", [MarkActive], "it is below the watermark"),
        Row("idle",         ProducerActive,    "moving", [MarkActive, Maybe(AdvanceWatermark)]),
        Row("held",         ProducerEnded,     SAME, [], "others hold the watermark"),
        Row("held",         ProducerEnded,     "moving", [Maybe(AdvanceWatermark)], "it held the watermark"),
        Row("moving",       ProducerEnded,     SAME, [Maybe(AdvanceWatermark)], "the same"),
        Row("held, moving", ProducerEnded,     "idle", [MarkIdle], "those that are left are idle"),
        Row("idle",         ProducerEnded,     SAME, [], "the same"),
        Row("idle",         ProducerEnded,     "held", [MarkActive], "idle together: the others are about to end"),
        Row("idle",         ProducerEnded,     "moving", [MarkActive, Maybe(AdvanceWatermark)],
            "the same, or those that are left are final"),
        Row("held",         LastProducerEnded, "ended", [AdvanceWatermark, EndInput],
            "the final watermark, and nothing after it"),
        Row("moving",       LastProducerEnded, "ended", [Maybe(AdvanceWatermark), EndInput],
            "the final one may have come before"),
        Row("idle",         LastProducerEnded, "ended", [MarkActive, AdvanceWatermark, EndInput]),
    )
    # fmt: on

    def __init__(self, exchange: str, producers: Iterable[int], *, idle_together: bool = False) -> None:
        super().__init__()
        self._exchange = exchange
        self._producers = {each: ProducerWatermark() for each in producers}  # those that have not ended
        self._count = len(self._producers)
        self._idle_together = idle_together
        self._watermark_ms = MIN_WATERMARK_MS  # this: none yet
        # The lowest watermark of those with a vote, and how many have it: kept, for there may be many producers.
        self._vote_ms: int | None = MIN_WATERMARK_MS
        self._slowest = self._count
        self.state = "held" if self._producers else "ended"

    def handle(self, event: ProducerEventReceived, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The producer is not known, or has ended.
        """
        # Not the base's: every watermark of every producer comes here, and most change nothing, nor are they history.
        if event.producer not in self._producers:
            raise self.invalid(event, "the producer is not known, or has ended")
        was, kind = self.state, type(event.event)
        if kind is ProducerEnded:
            kind = self.kind_of(event)
        handler = self._DISPATCH[was, kind]
        actions: list[Action] = [] if handler is None else handler(self, event, now_ms)
        if actions or self.state != was or kind is not WatermarkPassed:
            self._history.append((now_ms, was, self.brief(event, type(event)), self.state))
        return actions

    def has(self, producer: int) -> bool:
        """Return whether a producer feeds the exchange, and has not ended."""
        return producer in self._producers

    def kind_of(self, event: ProducerEventReceived) -> type:
        """Return the type under which the table has the event."""
        kind = type(event.event)
        return LastProducerEnded if kind is ProducerEnded and len(self._producers) == 1 else kind

    def brief(self, event: ProducerEventReceived, kind: type) -> str:
        """Return an event as the history shows it."""
        return f"{type(event.event).__name__} of {event.producer}"

    def check(self) -> None:
        """Assert what always holds: all that is due is ordered."""
        votes, vote_ms = self._votes(), self._vote_ms
        if self._producers:
            assert (vote_ms, self._slowest) == (
                min(votes, default=None),
                0 if vote_ms is None else votes.count(vote_ms),
            )
        assert self.state == self._state_at(vote_ms)
        assert vote_ms is None or vote_ms <= self._watermark_ms
        assert self._watermark_ms < MAX_WATERMARK_MS or all(each.state == "final" for each in self._producers.values())

    def __str__(self) -> str:
        return f"The watermark of exchange {self._exchange} (producers: {sorted(self._producers)[:20]})"

    def _on_watermark_passed(self, event: ProducerEventReceived, now_ms: int) -> list[Action]:
        producer = self._producers[event.producer]
        was, before_ms = producer.state, producer.watermark_ms
        producer.handle(event.event, now_ms)
        if not producer.state == was == "active" or self._vote_ms is None:
            in_front = producer.state == was and before_ms > self._watermark_ms
            return [] if in_front else self._look()
        if before_ms > self._vote_ms:
            return []  # others are slower
        if producer.watermark_ms > before_ms and self._slowest > 1:
            self._slowest -= 1
            return []  # others are as slow as it was
        return self._look()

    def _on_producer_idle(self, event: ProducerEventReceived, now_ms: int) -> list[Action]:
        self._producers[event.producer].handle(event.event, now_ms)
        return self._look()

    _on_producer_active = _on_producer_idle

    def _on_producer_ended(self, event: ProducerEventReceived, now_ms: int) -> list[Action]:
        self._producers.pop(event.producer).handle(event.event, now_ms)
        return self._look()

    def _on_last_producer_ended(self, event: ProducerEventReceived, now_ms: int) -> list[Action]:
        self._producers.pop(event.producer).handle(event.event, now_ms)
        return [*self._look(), EndInput(self._exchange)]

    def _look(self) -> list[Action]:
        """Find the minimum anew, and order what follows from it."""
        votes, was_idle = self._votes(), self.state == "idle"
        vote_ms = self._vote_ms = min(votes, default=None)
        self._slowest = 0 if vote_ms is None else votes.count(vote_ms)
        actions: list[Action] = []
        if (vote_ms is None) != was_idle:
            actions.append(MarkActive(self._exchange) if was_idle else MarkIdle(self._exchange))
        if vote_ms is not None and vote_ms > self._watermark_ms:
            self._watermark_ms = vote_ms
            actions.append(AdvanceWatermark(self._exchange, vote_ms))
        self.state = self._state_at(vote_ms)
        return actions

    def _state_at(self, vote_ms: int | None) -> str:
        if not self._producers:
            return "ended"
        if vote_ms is None:
            return "idle"
        return "moving" if MIN_WATERMARK_MS < self._watermark_ms == vote_ms else "held"

    def _votes(self) -> list[int]:
        """Return the watermarks of those with a vote, in milliseconds; none: the exchange is idle."""
        active = [each.watermark_ms for each in self._producers.values() if each.state == "active"]
        if active and not self._idle_together:
            return active
        idle = [each.watermark_ms for each in self._producers.values() if each.state == "idle"]
        if not active and not idle:
            return [MAX_WATERMARK_MS]
        any_final = len(active) + len(idle) < self._count
        return active + idle if self._idle_together and (active or any_final) else active


class Idleness:
    """What valves hear of producers that feed several exchanges of the consumer.

    Such a producer sends the same in all of them, but they are not equally fast. It is idle when it is in all, for the
    same time, and active as soon as it is in one.

    Parameters
    ----------
    stages
        By exchange: the stage of its producers.
    """

    def __init__(self, stages: Mapping[str, int]) -> None:
        self._others = {
            uid: tuple(other for other, of in stages.items() if of == stage and other != uid)
            for uid, stage in stages.items()
        }
        self._changes: dict[tuple[str, int], int] = {}  # of a producer in an exchange: odd where it is idle

    def notifications(
        self, exchange: str, received: ProducerEventReceived, valves: Mapping[str, WatermarkValve]
    ) -> list[tuple[str, ProducerEventReceived]]:
        """Return what follows from an event that came in an exchange: for which valves, in order."""
        producer = received.producer
        others = [uid for uid in self._others[exchange] if valves[uid].has(producer)]
        if not others:
            return [(exchange, received)]
        everywhere = [exchange, *others]
        changes, is_idle = self._changes.get((exchange, producer), 0), isinstance(received.event, ProducerIdle)
        was_idle = changes % 2 == 1
        was_idle_everywhere = was_idle and self._are_as_far(everywhere, producer)
        if is_idle != was_idle:
            self._changes[exchange, producer] = changes + 1
        if is_idle:
            return [(uid, received) for uid in everywhere] if self._are_as_far(everywhere, producer) else []
        wakes = ProducerEventReceived(producer, ProducerActive())
        return [*((uid, wakes) for uid in others if was_idle_everywhere), (exchange, received)]

    def _are_as_far(self, exchanges: Iterable[str], producer: int) -> bool:
        return len({self._changes.get((uid, producer), 0) for uid in exchanges}) == 1
