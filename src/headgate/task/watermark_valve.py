"""Decides the watermark of one exchange in a consuming subtask from those of its producers: their minimum.

Never: read a clock, look at a row. Nothing of it is stored: after a restart producers send their watermarks anew.

A producer is *active* (it has a vote: its watermark, or none yet, which holds all), *idle* (nobody waits for it),
*final* (its watermark is the final one; it holds nobody) or *ended* (the same, for ever). The final watermark passes
nobody else, idle or not: windows that fired by it would take no row of one that is heard of again. The states are those
of the exchange: *moving* when what was told is the minimum, *held* when nothing was told yet or an active producer is
behind it, *idle* when all that are not final are idle, *ended*.

    state         event            next    actions            why
    ------------  ---------------  ------  -----------------  ---------------------------------------------------------
    held          WatermarkPassed  same                       another one is behind it
    held          WatermarkPassed  moving  AdvanceWatermark?  the slowest one; none: it caught up with what was told
    moving        WatermarkPassed  same    AdvanceWatermark?  the slowest one; none: others hold the watermark
    moving        WatermarkPassed  held                       it was idle, and is behind what was told
    held, moving  WatermarkPassed  idle    MarkIdle           it is final, and those that are not are idle
    idle          WatermarkPassed  same                       the same
    idle          WatermarkPassed  held    MarkActive         it is behind what was told
    idle          WatermarkPassed  moving  MarkActive,
                                           AdvanceWatermark?
    held          ProducerIdle     same                       others hold the watermark
    held          ProducerIdle     moving  AdvanceWatermark?  it held the watermark
    moving        ProducerIdle     same    AdvanceWatermark?  the same
    held, moving  ProducerIdle     idle    MarkIdle           the last one with a vote
    idle          ProducerIdle     same
    held, moving  ProducerActive   same
    moving        ProducerActive   held                       it is behind what was told
    idle          ProducerActive   same                       it is final
    idle          ProducerActive   held    MarkActive         it is behind what was told
    idle          ProducerActive   moving  MarkActive,
                                           AdvanceWatermark?
    held          ProducerEnded    same                       others hold the watermark
    held          ProducerEnded    moving  AdvanceWatermark?  it held the watermark
    moving        ProducerEnded    same    AdvanceWatermark?  the same
    held, moving  ProducerEnded    idle    MarkIdle           those that are left are idle
    idle          ProducerEnded    same                       the same
    idle          ProducerEnded    held    MarkActive         idle together: the others are about to end
    idle          ProducerEnded    moving  MarkActive,        the same, or those that are left are final
                                           AdvanceWatermark?
    held          ProducerEnded    ended   AdvanceWatermark,  the last one: the final watermark, and nothing behind it
                                           EndInput
    moving        ProducerEnded    ended   AdvanceWatermark?, the same; the final one may be out
                                           EndInput
    idle          ProducerEnded    ended   MarkActive,
                                           AdvanceWatermark,
                                           EndInput

Producers that stand behind exchanges themselves are told the same, though not at the same time: they are idle
*together*. One that is idle before the others are, or for longer, may keep what is older than what they have sent, and
is waited for: only when all are idle the exchange is, and none is final (or else all are about to be).

The watermark that is told never goes back: a producer that becomes active behind it holds it where it is.

Follows Flink's StatusWatermarkValve, which, other than this one, does not wait for a producer that comes back behind,
nor keeps the final watermark behind idle ones.
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
    idle_together
        Whether none stays idle unless all do, since all are told the same.

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

    def __init__(self, exchange: str, producers: Iterable[int], *, idle_together: bool = False) -> None:
        self._exchange = exchange
        self._producers = {each: _Producer() for each in producers}  # those that have not ended
        self._idle_together = idle_together
        self._any_final = False
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
        return "moving" if MIN_WATERMARK_MS < self._told_ms == self._vote_ms() else "held"

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
        # Most watermarks change nothing: those of who was in front already.
        changes = self._idle or producer.idle or producer.watermark_ms <= self._told_ms
        match event.event:
            case WatermarkPassed(timestamp_ms):
                producer.watermark_ms = max(producer.watermark_ms, timestamp_ms)
                producer.idle = False
            case ProducerIdle():
                producer.idle = changes = True
            case ProducerActive():
                producer.idle = False
            case ProducerEnded():
                del self._producers[event.producer]
                self._any_final = changes = True
        if producer.watermark_ms == MAX_WATERMARK_MS:
            self._any_final = changes = True
        return self._look() if changes else []

    def check(self) -> None:
        """Assert what always holds: nothing that is due is left untold."""
        vote_ms = self._vote_ms()
        assert self._idle == (vote_ms is None)
        assert vote_ms is None or vote_ms <= self._told_ms
        assert self._told_ms < MAX_WATERMARK_MS or all(
            each.watermark_ms == MAX_WATERMARK_MS for each in self._producers.values()
        )

    def _look(self) -> list[Action]:
        """Tell what changed."""
        actions: list[Action] = []
        vote_ms = self._vote_ms()
        if (vote_ms is None) != self._idle:
            self._idle = vote_ms is None
            actions.append(MarkIdle(self._exchange) if self._idle else MarkActive(self._exchange))
        if vote_ms is not None and vote_ms > self._told_ms:
            self._told_ms = vote_ms
            actions.append(AdvanceWatermark(self._exchange, vote_ms))
        if not self._producers:
            actions.append(EndInput(self._exchange))
        return actions

    def _vote_ms(self) -> int | None:
        """Return the lowest watermark of those with a vote, in milliseconds; None: the exchange is idle."""
        left = [each for each in self._producers.values() if each.watermark_ms < MAX_WATERMARK_MS]
        if not left:
            return MAX_WATERMARK_MS
        awake = [each for each in left if not each.idle]
        if self._idle_together and (awake or self._any_final):
            awake = left
        return min((each.watermark_ms for each in awake), default=None)

    def _invalid(self, event: ProducerTold) -> InvalidTransitionError:
        history = told_before(self._history, event)
        return InvalidTransitionError(
            f"The watermark of exchange {self._exchange} cannot take {event!r}: the producer is not known, or has "
            f"ended. Producers: {sorted(self._producers)[:20]}. Before: {', '.join(history[-10:]) or 'nothing'}.",
            state=self.state,
            event=repr(event),
            history=history,
        )
