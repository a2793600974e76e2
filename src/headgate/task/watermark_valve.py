"""Decides the watermark of one exchange in a consuming subtask from those of its producers: their minimum.

Never: read a clock, look at a row. Nothing of it is stored: after a restart producers send their watermarks anew.

A producer is *active* (it has a vote: its watermark, or none yet, which holds all), *idle* (nobody waits for it) or
*ended* (the same, for ever). The states are those of the exchange: *moving* when what was told is the minimum, *held*
when nothing was told yet or an active producer is behind it, *idle* when all that have not ended are idle, *ended*.

    state         event            next    actions            why
    ------------  ---------------  ------  -----------------  ---------------------------------------------------------
    held, moving  WatermarkPassed  same                       another one is behind it
    held          WatermarkPassed  moving  AdvanceWatermark?  the slowest one; none: it caught up with what was told
    moving        WatermarkPassed  same    AdvanceWatermark   the slowest one
    moving        WatermarkPassed  held                       it was idle, and is behind what was told
    idle          WatermarkPassed  held    MarkActive         the same
    idle          WatermarkPassed  moving  MarkActive,
                                           AdvanceWatermark?
    held, moving  ProducerIdle     same                       others hold the watermark
    held          ProducerIdle     moving  AdvanceWatermark?  it held the watermark
    moving        ProducerIdle     same    AdvanceWatermark   the same
    held, moving  ProducerIdle     idle    MarkIdle           the last one with a vote
    idle          ProducerIdle     same
    held, moving  ProducerActive   same
    moving        ProducerActive   held                       it is behind what was told
    idle          ProducerActive   held    MarkActive         the same
    idle          ProducerActive   moving  MarkActive,
                                           AdvanceWatermark?
    held, moving  ProducerEnded    same                       others hold the watermark
    held          ProducerEnded    moving  AdvanceWatermark?  it held the watermark
    moving        ProducerEnded    same    AdvanceWatermark   the same
    held, moving  ProducerEnded    idle    MarkIdle           those that are left are idle
    idle          ProducerEnded    same                       the same
    held, moving  ProducerEnded    ended   AdvanceWatermark?, the last one; the final watermark, if it is not out yet,
                                           EndInput           and nothing behind it
    idle          ProducerEnded    ended   MarkActive,
                                           AdvanceWatermark?,
                                           EndInput

The watermark that is told never goes back: a producer that becomes active behind it holds it where it is.

Follows Flink's StatusWatermarkValve, which, other than this one, does not wait for a producer that comes back behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import ProducerActive, ProducerEnded, ProducerIdle, WatermarkPassed
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task.history import told_before

_HISTORY = 64

Told = WatermarkPassed | ProducerIdle | ProducerActive | ProducerEnded


class ProducerTold(msgspec.Struct, frozen=True):
    """An event of a producer's was reached in its channel: everything that stands before it is processed."""

    producer: int
    event: Told


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


class _Producer:
    def __init__(self) -> None:
        self.watermark_ms = MIN_WATERMARK_MS
        self.idle = False


class WatermarkValve:
    """The watermark of an exchange in one consumer.

    Parameters
    ----------
    exchange
        Its uid.
    producers
        The producing subtasks.

    Examples
    --------
    >>> valve = WatermarkValve("words", [0, 1])
    >>> valve.handle(ProducerTold(0, WatermarkPassed(7)), 0)
    []
    >>> valve.handle(ProducerTold(1, WatermarkPassed(5)), 0)
    [AdvanceWatermark(exchange='words', timestamp_ms=5)]
    >>> valve.handle(ProducerTold(1, ProducerIdle()), 0)
    [AdvanceWatermark(exchange='words', timestamp_ms=7)]
    """

    def __init__(self, exchange: str, producers: Iterable[int]) -> None:
        self._exchange = exchange
        self._producers = {each: _Producer() for each in producers}  # those that have not ended
        self._told_ms = MIN_WATERMARK_MS  # this: nothing
        self._idle = False
        self._history: deque[tuple[int | None, ProducerTold]] = deque(maxlen=_HISTORY)

    @property
    def state(self) -> str:
        """What the exchange is, as in the module's table."""
        if not self._producers:
            return "ended"
        if self._idle:
            return "idle"
        return "moving" if MIN_WATERMARK_MS < self._told_ms == self._minimum_ms() else "held"

    def handle(self, event: ProducerTold, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The producer is not known, or has ended.
        """
        producer = self._producers.get(event.producer)
        if producer is None:
            raise self._invalid(event)
        self._history.append((now_ms, event))
        held = not producer.idle and producer.watermark_ms <= self._told_ms
        match event.event:
            case WatermarkPassed(timestamp_ms):
                producer.watermark_ms = max(producer.watermark_ms, timestamp_ms)
                producer.idle = False
            case ProducerIdle():
                producer.idle = True
            case ProducerActive():
                producer.idle = False
            case ProducerEnded():
                del self._producers[event.producer]
        return self._look() if held or self._idle or not self._producers else []

    def check(self) -> None:
        """Assert what always holds: nothing that is due is left untold."""
        if self._producers:
            assert self._idle == all(each.idle for each in self._producers.values())
            assert self._idle or self._minimum_ms() <= self._told_ms
        else:
            assert self._told_ms == MAX_WATERMARK_MS
            assert not self._idle

    def _look(self) -> list[Action]:
        """Tell what changed, after a producer that held the exchange moved."""
        actions: list[Action] = []
        idle = bool(self._producers) and all(each.idle for each in self._producers.values())
        if idle != self._idle:
            self._idle = idle
            actions.append(MarkIdle(self._exchange) if idle else MarkActive(self._exchange))
        if not idle and self._minimum_ms() > self._told_ms:
            self._told_ms = self._minimum_ms()
            actions.append(AdvanceWatermark(self._exchange, self._told_ms))
        if not self._producers:
            actions.append(EndInput(self._exchange))
        return actions

    def _minimum_ms(self) -> int:
        return min((each.watermark_ms for each in self._producers.values() if not each.idle), default=MAX_WATERMARK_MS)

    def _invalid(self, event: ProducerTold) -> InvalidTransitionError:
        history = told_before(self._history, event)
        return InvalidTransitionError(
            f"The watermark of exchange {self._exchange} cannot take {event!r}: the producer is not known, or has "
            f"ended. Producers: {sorted(self._producers)[:20]}. Before: {', '.join(history[-10:]) or 'nothing'}.",
            state=self.state,
            event=repr(event),
            history=history,
        )
