"""Decides the watermark of one reader from those of its splits: their minimum, leaving out the idle ones.

Never: read a clock, look at a batch. Nothing of it is stored: after a restart watermarks are found anew from the rows.

A split is *waiting* (it has no watermark, and holds the reader's), *active* (it has one) or *idle* (it has no vote).
An *own* split is one whose source emits watermarks or idleness itself, which replaces the strategy for that split.
Pausing changes no state: the split keeps its vote, and its idleness clock stands still. An idle split can be resumed.
Silence is time in which a split was asked for rows and had none (``TimePassed.asked_ms``), however busy the task was.

    split state                event             next        why
    -------------------------  ----------------  ----------  ------------------------------------------------------
    unknown                    SplitAdded        waiting     it votes before it has rows: nobody may overtake them
    known                      SplitAdded        same        the reader asks for an output with every batch
    waiting, active, idle      RowsEmitted       active      highest event time less disorder; it never goes back
    waiting, active            RowsEmitted null  same        no event time in them, but the split is not silent
    idle                       RowsEmitted null  waiting     it has a vote again; it never had a watermark
    idle                       RowsEmitted null  active      it has a vote again, at the watermark it had
    own active, own idle       RowsEmitted       same        the source says what its watermark is
    own active, own idle       RowsEmitted null  same        the same
    known                      WatermarkEmitted  own active  "active again with the next watermark"
    known                      IdleMarked        own idle    nobody should wait for it
    waiting, active            TimePassed late   idle        asked in vain for the idle time-out
    idle, own active, own idle TimePassed late   same        the strategy has no say, or has had it
    known, unknown             TimePassed        same        not for long enough, or it was not asked
    known, unknown             SplitPaused       same        unknown: finishing and pausing may cross
    known, unknown             SplitResumed      same        the same
    known, unknown             SplitFinished     unknown     it holds nobody back any longer

    reader event       why
    -----------------  --------------------------------------------------------------------------------------------
    Blocked            no split can be read (back pressure): all idleness clocks stand still until Unblocked
    UnassignedChanged  what the enumerator has not assigned votes like a split that never is idle: nothing passes it
    InputEnded         the final watermark is emitted, though there never was a split, or work is left unassigned

Without a split that votes the reader is idle: no split, no vote. But while there is unassigned work it is not, so that
a reader that finished its split and waits for the next one keeps its place; one that was made ``held`` does so from
its first event on, until it is told of unassigned work. What is emitted never goes back, so that a split that starts
behind holds the watermark where it is.

Follows FLIP-27, "Per Split Event Time".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, cast

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.protocol.messages import SplitEventTime
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkStrategy, saturated_ms
from headgate.task.history import told_before

_HISTORY = 64


class SplitEvent(msgspec.Struct, frozen=True):
    """A fact about one split."""

    split_id: str


class SplitAdded(SplitEvent, frozen=True):
    """The reader has got the split. Adding one again changes nothing."""


class RowsEmitted(SplitEvent, frozen=True):
    """Rows were emitted; their highest event time in milliseconds, or None when all of them are null."""

    max_event_time_ms: int | None


class WatermarkEmitted(SplitEvent, frozen=True):
    """The source itself emitted a watermark, in milliseconds."""

    timestamp_ms: int


class IdleMarked(SplitEvent, frozen=True):
    """The source itself said that nobody should wait for the split."""


class SplitPaused(SplitEvent, frozen=True):
    """Alignment paused the split. Unknown splits are ignored: finishing and pausing may cross."""


class SplitResumed(SplitEvent, frozen=True):
    """Alignment resumed the split. Unknown splits are ignored."""


class SplitFinished(SplitEvent, frozen=True):
    """The split left the reader. Unknown splits are ignored."""


class UnassignedChanged(msgspec.Struct, frozen=True):
    """What the enumerator has not assigned begins at this event time, in milliseconds.

    `MIN_WATERMARK_MS`: at any time whatever, so that the reader's watermark stays where it is. None: nothing holds it.
    """

    event_time_ms: int | None


class TimePassed(msgspec.Struct, frozen=True):
    """Time went on.

    Parameters
    ----------
    asked_ms
        Until when splits were asked for rows in vain, by their ids, in milliseconds; None: all until now. A split that
        is missing was not asked since its last rows, or has rows that wait to be emitted.
    """

    asked_ms: Mapping[str, int] | None = None


class Blocked(msgspec.Struct, frozen=True):
    """Nothing can be emitted for a while."""


class Unblocked(msgspec.Struct, frozen=True):
    """It can again."""


class InputEnded(msgspec.Struct, frozen=True):
    """Nothing will ever come again."""


class EmitWatermark(msgspec.Struct, frozen=True):
    """Emit the reader's watermark, in milliseconds."""

    timestamp_ms: int


class EmitIdle(msgspec.Struct, frozen=True):
    """Say that nobody should wait for this reader."""


class EmitActive(msgspec.Struct, frozen=True):
    """Say that the reader is to be waited for again, at the watermark it emitted last."""


class SplitVoteChanged(msgspec.Struct, frozen=True):
    """Tell `SplitAlignment` where the split is: its watermark in milliseconds (None: none yet), and whether it is idle.

    Not ordered for a split that comes, which has neither, or that goes.
    """

    split_id: str
    watermark_ms: int | None
    idle: bool


Event = SplitEvent | UnassignedChanged | TimePassed | Blocked | Unblocked | InputEnded
Action = EmitWatermark | EmitIdle | EmitActive | SplitVoteChanged


class _SplitState(msgspec.Struct):
    """What is known of one split."""

    quiet_since_ms: int  # moved forward by the time in which the split was paused, or all were blocked
    watermark_ms: int | None = None
    idle: bool = False
    own: bool = False
    paused_at_ms: int | None = None

    def skip(self, from_ms: int, to_ms: int) -> None:
        """Leave a time out of its silence."""
        self.quiet_since_ms += max(0, to_ms - max(from_ms, self.quiet_since_ms))


class SplitWatermarks:
    """The watermark machine of one reader.

    Parameters
    ----------
    strategy
        The rule for splits whose source emits none; None: such splits have no watermark.
    held
        Whether the reader is waited for, without a watermark, until the first `UnassignedChanged`.
    bounded
        Whether the input ends by itself.
    tells_votes
        Whether `SplitVoteChanged` is ordered, behind everything else.

    Examples
    --------
    >>> machine = SplitWatermarks(WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=10))
    >>> machine.handle(SplitAdded("a"), 0), machine.handle(SplitAdded("b"), 0)
    ([EmitActive()], [])
    >>> machine.handle(RowsEmitted("a", 100), 0), machine.handle(RowsEmitted("b", 70), 0)
    ([], [EmitWatermark(timestamp_ms=60)])
    """

    def __init__(
        self,
        strategy: WatermarkStrategy | None,
        *,
        held: bool = False,
        bounded: bool = False,
        tells_votes: bool = False,
    ) -> None:
        self._strategy = strategy
        self._bounded = bounded
        self._tells_votes = tells_votes
        self._splits: dict[str, _SplitState] = {}
        self._emitted_ms: int | None = None
        self._idle = True
        self._holds = held  # whether unassigned work has a vote
        self._begins = held or bounded  # whether it is waited for, and nobody was told yet
        self._unassigned_ms: int | None = None  # where it begins; None: not known
        self._ended = False
        self._blocked_at_ms: int | None = None
        self._now_ms: int | None = None
        # For errors: (time, event) of what changed lately, without what comes with every batch.
        self._history: deque[tuple[int | None, Event]] = deque(maxlen=_HISTORY)
        self._moved: dict[str, _SplitState] = {}  # whose vote the event at hand has changed

    def split_ids(self) -> Collection[str]:
        """Return the splits that are known."""
        return self._splits.keys()

    def splits(self) -> dict[str, SplitEventTime]:
        """Return how far each split is."""
        return {
            split_id: SplitEventTime(
                watermark_ms=split.watermark_ms, idle=split.idle, paused=split.paused_at_ms is not None
            )
            for split_id, split in self._splits.items()
        }

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be emitted, in order.

        Raises
        ------
        InvalidTransitionError
            Rows, watermarks or idleness of a split that is not known; after the end also those of any other split, a
            new split, or another end. What else comes late then is ignored.
        """
        handler = self._HANDLERS[type(event)]
        if self._ended:
            if isinstance(event, RowsEmitted | WatermarkEmitted | IdleMarked | SplitAdded | InputEnded):
                raise self._invalid(event, "the input has ended")
            return []
        now_ms = self._now_ms = now_ms if self._now_ms is None else max(now_ms, self._now_ms)
        changed = handler(self, event, now_ms)
        if self._ended:
            return self._end()
        actions = self._combine() if changed or self._begins else []
        if self._moved:
            actions += [SplitVoteChanged(name, each.watermark_ms, each.idle) for name, each in self._moved.items()]
            self._moved.clear()
        return actions

    def check(self) -> None:
        """Assert what always holds: idle means that nobody votes, and the end is final."""
        assert not self._moved
        if self._ended:
            assert self._emitted_ms == MAX_WATERMARK_MS
        elif not self._begins:
            waits = self._holds or (self._bounded and not self._splits)
            assert self._idle == (not waits and all(split.idle for split in self._splits.values()))

    def _combine(self) -> list[Action]:
        """Find the minimum anew."""
        was_idle, self._begins = self._idle, False
        voting = [split.watermark_ms for split in self._splits.values() if not split.idle]
        if self._holds:
            voting.append(self._unassigned_ms)
        self._idle = not voting and not (self._bounded and not self._splits)
        if self._idle:
            return [] if was_idle else [EmitIdle()]
        actions: list[Action] = [EmitActive()] if was_idle else []
        if voting and None not in voting:
            lowest_ms = min(cast(list[int], voting))
            if self._emitted_ms is None or lowest_ms > self._emitted_ms:
                self._emitted_ms = lowest_ms
                actions.append(EmitWatermark(lowest_ms))
        return actions

    def _end(self) -> list[Action]:
        """Make the final watermark, though there was never a split."""
        actions: list[Action] = [EmitActive()] if self._idle else []
        if self._emitted_ms != MAX_WATERMARK_MS:
            self._emitted_ms = MAX_WATERMARK_MS
            actions.append(EmitWatermark(MAX_WATERMARK_MS))
        return actions

    # Handlers return whether the minimum may have changed.

    def _on_split_added(self, event: SplitAdded, now_ms: int) -> bool:
        if event.split_id in self._splits:
            return False
        self._splits[event.split_id] = _SplitState(quiet_since_ms=now_ms)
        self._note(event)
        return True

    def _on_rows_emitted(self, event: RowsEmitted, now_ms: int) -> bool:
        split = self._known(event)
        split.quiet_since_ms = now_ms
        if split.own:
            return False
        changed = split.idle and self._set_idle(event.split_id, split, False)
        if self._strategy is None or event.max_event_time_ms is None:
            return changed
        watermark_ms = event.max_event_time_ms - self._strategy.max_out_of_orderness_ms
        return self._raise_to(event.split_id, split, watermark_ms) or changed

    def _on_watermark_emitted(self, event: WatermarkEmitted, now_ms: int) -> bool:
        split = self._known(event)
        split.own = True
        changed = self._set_idle(event.split_id, split, False)
        return self._raise_to(event.split_id, split, event.timestamp_ms) or changed

    def _on_idle_marked(self, event: IdleMarked, now_ms: int) -> bool:
        split = self._known(event)
        split.own = True
        changed = self._set_idle(event.split_id, split, True)
        if changed:
            self._note(event)
        return changed

    def _on_split_paused(self, event: SplitPaused, now_ms: int) -> bool:
        split = self._splits.get(event.split_id)
        if split is not None and split.paused_at_ms is None:
            split.paused_at_ms = now_ms
            self._note(event)
        return False

    def _on_split_resumed(self, event: SplitResumed, now_ms: int) -> bool:
        split = self._splits.get(event.split_id)
        if split is not None and split.paused_at_ms is not None:
            # What lies behind the beginning of a block is left out when that ends.
            split.skip(split.paused_at_ms, now_ms if self._blocked_at_ms is None else self._blocked_at_ms)
            split.paused_at_ms = None
            self._note(event)
        return False

    def _on_split_finished(self, event: SplitFinished, now_ms: int) -> bool:
        known = self._splits.pop(event.split_id, None) is not None
        if known:
            self._note(event)
        return known

    def _on_time_passed(self, event: TimePassed, now_ms: int) -> bool:
        timeout_ms = self._strategy.idle_timeout_ms if self._strategy is not None else None
        if timeout_ms is None:
            return False
        latest_ms = now_ms if self._blocked_at_ms is None else self._blocked_at_ms
        changed = False
        for split_id, split in self._splits.items():
            asked_ms = now_ms if event.asked_ms is None else event.asked_ms.get(split_id)
            if asked_ms is None or split.own or split.paused_at_ms is not None:
                continue
            if min(asked_ms, latest_ms) - split.quiet_since_ms >= timeout_ms:
                changed = self._set_idle(split_id, split, True) or changed
        return changed

    def _on_unassigned_changed(self, event: UnassignedChanged, now_ms: int) -> bool:
        known = event.event_time_ms is not None and event.event_time_ms > MIN_WATERMARK_MS
        self._holds = event.event_time_ms is not None
        self._unassigned_ms = event.event_time_ms if known else None
        return True

    def _on_blocked(self, event: Blocked, now_ms: int) -> bool:
        if self._blocked_at_ms is None:
            self._blocked_at_ms = now_ms
        return False

    def _on_unblocked(self, event: Unblocked, now_ms: int) -> bool:
        blocked_at_ms, self._blocked_at_ms = self._blocked_at_ms, None
        if blocked_at_ms is not None:
            for split in self._splits.values():
                split.skip(blocked_at_ms, now_ms if split.paused_at_ms is None else split.paused_at_ms)
        return False

    def _on_input_ended(self, event: InputEnded, now_ms: int) -> bool:
        self._ended = True
        self._note(event)
        return True

    def _set_idle(self, split_id: str, split: _SplitState, idle: bool) -> bool:
        """Take a split's vote or give it back; return whether it was otherwise."""
        if split.idle == idle:
            return False
        split.idle = idle
        if self._tells_votes:
            self._moved[split_id] = split
        return True

    def _raise_to(self, split_id: str, split: _SplitState, watermark_ms: int) -> bool:
        """Raise a split's watermark; return whether the minimum may have moved with it."""
        watermark_ms = saturated_ms(watermark_ms)
        before = split.watermark_ms
        if before is not None and watermark_ms <= before:
            return False
        split.watermark_ms = watermark_ms
        if self._tells_votes:
            self._moved[split_id] = split
        return before is None or self._emitted_ms is None or before <= self._emitted_ms

    def _known(self, event: SplitEvent) -> _SplitState:
        split = self._splits.get(event.split_id)
        if split is None:
            raise self._invalid(event, "the split was not added, or has finished")
        return split

    def _note(self, event: Event) -> None:
        self._history.append((self._now_ms, event))

    def _invalid(self, event: Event, why: str) -> InvalidTransitionError:
        """Make the error, with the history of the event's split and, for any, the end of the input."""
        history = told_before(self._history, event)
        return InvalidTransitionError(
            f"The watermarks of a reader cannot take {event!r}: {why}. Splits: {sorted(self._splits)[:20]}. "
            f"Before: {', '.join(history[-10:]) or 'nothing'}.",
            state="ended" if self._ended else "running",
            event=repr(event),
            history=history,
        )

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, int], bool]]] = {
        SplitAdded: _on_split_added,
        RowsEmitted: _on_rows_emitted,
        WatermarkEmitted: _on_watermark_emitted,
        IdleMarked: _on_idle_marked,
        SplitPaused: _on_split_paused,
        SplitResumed: _on_split_resumed,
        SplitFinished: _on_split_finished,
        UnassignedChanged: _on_unassigned_changed,
        TimePassed: _on_time_passed,
        Blocked: _on_blocked,
        Unblocked: _on_unblocked,
        InputEnded: _on_input_ended,
    }
