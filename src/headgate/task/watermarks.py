"""Decides the watermark of one reader from those of its splits: their minimum, leaving out the idle ones.

Never: read a clock, look at a batch. Nothing of it is stored: after a restart watermarks are found anew from the rows.

A split is *waiting* (it has no watermark, and holds the reader's), *active* (it has one) or *idle* (it has no vote).
An *own* split is one whose source emits watermarks or idleness itself, which replaces the strategy for that split.
Pausing changes no state: the split keeps its vote, and its idleness clock stands still, as those of all splits do while
nothing can be read (back pressure). An idle split can be resumed. Silence is time in which a split was asked for rows
and had none (``TimePassed.asked_ms``), however busy the task was.

Without a split that votes the reader is idle: no split, no vote. But while there is unassigned work it is not, so that
a reader that finished its split and waits for the next one keeps its place; one that was made ``held`` does so from
its first event on, until it learns of unassigned work. What the enumerator has not assigned votes like a split that is
never idle: nothing passes it. What is emitted never goes back, so that a split that starts below it holds the watermark
where it is.

Follows FLIP-27, "Per Split Event Time".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol.messages import SplitEventTime
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkStrategy, saturated_ms

# What happened.


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
    """The source itself marked the split as idle: nobody should wait for it."""


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


Event = SplitEvent | UnassignedChanged | TimePassed | Blocked | Unblocked | InputEnded

# What is to be done.


class EmitWatermark(msgspec.Struct, frozen=True):
    """Emit the reader's watermark, in milliseconds."""

    timestamp_ms: int


class EmitIdle(msgspec.Struct, frozen=True):
    """Say that nobody should wait for this reader."""


class EmitActive(msgspec.Struct, frozen=True):
    """Say that the reader is to be waited for again, at the watermark it emitted last."""


class SplitVoteChanged(msgspec.Struct, frozen=True):
    """Let `SplitAlignment` know where the split is: its watermark in milliseconds, and whether it is idle.

    None: it has no watermark yet. Not ordered for a split that comes, which has neither, or that goes.
    """

    split_id: str
    watermark_ms: int | None
    idle: bool


Action = EmitWatermark | EmitIdle | EmitActive | SplitVoteChanged


class _Reader(msgspec.Struct):
    """What all splits of a reader share, in milliseconds. ``disorder_ms`` None: there is no strategy."""

    disorder_ms: int | None
    idle_timeout_ms: int | None
    blocked_at_ms: int | None = None


_ALL = "waiting, active, idle, own active, own idle"
_SILENT = frozenset({"idle", "own idle"})


class SplitVote(Machine):
    """What one split lets the watermark of its reader be."""

    # fmt: off
    TRANSITIONS = (
        Row("waiting, idle",           RowsEmitted,      "active", [SplitVoteChanged],
            "highest event time less disorder"),
        Row("active",                  RowsEmitted,      SAME, [Maybe(SplitVoteChanged)], "it never goes back",
            by="_on_rows_active"),
        Row("waiting",                 RowsEmitted,      SAME, [], "no event time in them, but it is not silent",
            when="null"),
        Row("idle",                    RowsEmitted,      "waiting", [SplitVoteChanged], "it never had a watermark",
            when="null"),
        Row("own active, own idle",    RowsEmitted,      SAME, IGNORED, "the source says what its watermark is"),
        Row("waiting, idle, own idle", WatermarkEmitted, "own active", [SplitVoteChanged]),
        Row("active, own active",      WatermarkEmitted, "own active", [Maybe(SplitVoteChanged)],
            "left out where it is not higher"),
        Row("waiting, active, own active", IdleMarked,   "own idle", [SplitVoteChanged], "nobody should wait for it"),
        Row("idle",                    IdleMarked,       "own idle", [], "until its source emits a watermark"),
        Row("own idle",                IdleMarked,       SAME, IGNORED),
        Row("waiting, active",         TimePassed,       "idle", [SplitVoteChanged],
            "asked in vain for the idle time-out", when="late"),
        Row("waiting, active",         TimePassed,       SAME, [], "not for long enough, not asked, or paused"),
        Row("idle, own active, own idle", TimePassed,    SAME, IGNORED, "the strategy has no say, or has had it"),
        Row(_ALL,                      SplitPaused,      SAME, [], "its idleness clock stands still"),
        Row(_ALL,                      SplitResumed,     SAME),
        Row(_ALL,                      Unblocked,        SAME, [], "the time since `Blocked` was not silence"),
    )
    # fmt: on

    def __init__(self, split_id: str, reader: _Reader, now_ms: int) -> None:
        super().__init__()
        self.state = "waiting"
        self.watermark_ms: int | None = None
        self.paused_at_ms: int | None = None
        self._split_id, self._reader = split_id, reader
        self.quiet_since_ms = now_ms  # moved forward by the time in which it was paused, or all were blocked

    def handle(self, event: Event, now_ms: int) -> list[SplitVoteChanged]:
        """Take note of an event at a time in milliseconds, and return how the vote changed."""
        # Not the base's: every batch comes here. Its hooks do nothing here, and `SplitWatermarks` has the history.
        handler = self._DISPATCH[self.state, type(event)]
        return [] if handler is None else handler(self, event, now_ms)

    def check(self) -> None:
        """Assert what always holds: who is active has a watermark, who waits has none."""
        assert self.state in _SILENT or (self.state == "waiting") == (self.watermark_ms is None)

    def __str__(self) -> str:
        return f"The watermark of split {self._split_id!r}"

    def _on_rows_emitted(self, event: RowsEmitted, now_ms: int) -> list[SplitVoteChanged]:
        self.quiet_since_ms = now_ms
        was, disorder_ms = self.state, self._reader.disorder_ms
        if event.max_event_time_ms is not None and disorder_ms is not None:
            self._raise_to(event.max_event_time_ms - disorder_ms)
        self.state = "waiting" if self.watermark_ms is None else "active"
        return [] if self.state == was else [self._vote()]

    def _on_rows_active(self, event: RowsEmitted, now_ms: int) -> list[SplitVoteChanged]:
        self.quiet_since_ms = now_ms
        event_time_ms, disorder_ms = event.max_event_time_ms, self._reader.disorder_ms
        if event_time_ms is None or disorder_ms is None or not self._raise_to(event_time_ms - disorder_ms):
            return []
        return [SplitVoteChanged(self._split_id, self.watermark_ms, False)]

    def _on_watermark_emitted(self, event: WatermarkEmitted, now_ms: int) -> list[SplitVoteChanged]:
        was, self.state = self.state, "own active"
        return [self._vote()] if self._raise_to(event.timestamp_ms) or was in _SILENT else []

    def _on_idle_marked(self, event: IdleMarked, now_ms: int) -> list[SplitVoteChanged]:
        was, self.state = self.state, "own idle"
        return [] if was == "idle" else [self._vote()]

    def _on_time_passed(self, event: TimePassed, now_ms: int) -> list[SplitVoteChanged]:
        asked_ms = now_ms if event.asked_ms is None else event.asked_ms.get(self._split_id)
        blocked_at_ms, timeout_ms = self._reader.blocked_at_ms, self._reader.idle_timeout_ms
        if asked_ms is None or timeout_ms is None or self.paused_at_ms is not None:
            return []
        silent_until_ms = min(asked_ms, now_ms if blocked_at_ms is None else blocked_at_ms)
        if silent_until_ms - self.quiet_since_ms < timeout_ms:
            return []
        self.state = "idle"
        return [self._vote()]

    def _on_split_paused(self, event: SplitPaused, now_ms: int) -> list[SplitVoteChanged]:
        if self.paused_at_ms is None:
            self.paused_at_ms = now_ms
        return []

    def _on_split_resumed(self, event: SplitResumed, now_ms: int) -> list[SplitVoteChanged]:
        if self.paused_at_ms is not None:
            # What follows the beginning of a block is left out when that ends.
            blocked_at_ms = self._reader.blocked_at_ms
            self._skip(self.paused_at_ms, now_ms if blocked_at_ms is None else blocked_at_ms)
            self.paused_at_ms = None
        return []

    def _on_unblocked(self, event: Unblocked, now_ms: int) -> list[SplitVoteChanged]:
        if self._reader.blocked_at_ms is not None:
            self._skip(self._reader.blocked_at_ms, now_ms if self.paused_at_ms is None else self.paused_at_ms)
        return []

    def _skip(self, from_ms: int, to_ms: int) -> None:
        """Leave a time out of its silence."""
        self.quiet_since_ms += max(0, to_ms - max(from_ms, self.quiet_since_ms))

    def _raise_to(self, watermark_ms: int) -> bool:
        """Raise the watermark; return whether this is higher."""
        if not MIN_WATERMARK_MS <= watermark_ms <= MAX_WATERMARK_MS:
            watermark_ms = saturated_ms(watermark_ms)
        if self.watermark_ms is not None and watermark_ms <= self.watermark_ms:
            return False
        self.watermark_ms = watermark_ms
        return True

    def _vote(self) -> SplitVoteChanged:
        return SplitVoteChanged(self._split_id, self.watermark_ms, self.state in _SILENT)


_WITH_EVERY_BATCH = frozenset({SplitAdded, RowsEmitted, WatermarkEmitted, TimePassed})


class SplitWatermarks(Machine):
    """The watermark machine of one reader: *new* until its first event, if it is waited for from then on.

    Parameters
    ----------
    strategy
        The rule for splits whose source emits none; None: such splits have no watermark.
    held
        Whether the reader is waited for, without a watermark, until the first `UnassignedChanged`.
    bounded
        Whether the input ends on its own.
    reports_votes
        Whether `SplitVoteChanged` is ordered, after everything else.

    Examples
    --------
    >>> machine = SplitWatermarks(WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=10))
    >>> machine.handle(SplitAdded("a"), 0), machine.handle(SplitAdded("b"), 0)
    ([EmitActive()], [])
    >>> machine.handle(RowsEmitted("a", 100), 0), machine.handle(RowsEmitted("b", 70), 0)
    ([], [EmitWatermark(timestamp_ms=60)])
    """

    # fmt: off
    TRANSITIONS = (
        Row("new, idle",    SplitAdded,        "active", [EmitActive],
            "it votes before it has rows: nobody may overtake them"),
        Row("idle",         SplitAdded,        SAME, [], "the reader asks for an output again", when="known"),
        Row("active",       SplitAdded,        SAME),
        Row("active",       RowsEmitted,       SAME, [Maybe(EmitWatermark), Maybe(SplitVoteChanged)],
            by="_on_read"),
        Row("idle",         RowsEmitted,       "active", [EmitActive, Maybe(EmitWatermark), Maybe(SplitVoteChanged)],
            by="_on_read"),
        Row("idle",         RowsEmitted,       SAME, [], "its source says whether it is idle", when="own",
            by="_on_read"),
        Row("active",       WatermarkEmitted,  SAME, [Maybe(EmitWatermark), Maybe(SplitVoteChanged)],
            by="_on_read"),
        Row("idle",         WatermarkEmitted,  "active", [EmitActive, Maybe(EmitWatermark), Maybe(SplitVoteChanged)],
            by="_on_read"),
        Row("active",       IdleMarked,        SAME, [Maybe(EmitWatermark), Maybe(SplitVoteChanged)], by="_on_read"),
        Row("active",       IdleMarked,        "idle", [EmitIdle, Maybe(SplitVoteChanged)], "the last one that voted",
            by="_on_read"),
        Row("idle",         IdleMarked,        SAME, by="_on_read"),
        Row("active",       SplitFinished,     SAME, [Maybe(EmitWatermark)], "it holds nobody back any longer"),
        Row("active",       SplitFinished,     "idle", [EmitIdle], "the last one that voted"),
        Row("idle",         SplitFinished,     "active", [EmitActive], "the last one: a bounded reader keeps its place",
            when="bounded"),
        Row("idle",         SplitFinished,     SAME),
        Row("active",       TimePassed,        SAME, [Maybe(EmitWatermark), Maybe(SplitVoteChanged)]),
        Row("active",       TimePassed,        "idle", [EmitIdle, Maybe(SplitVoteChanged)], "all are silent"),
        Row("idle",         TimePassed,        SAME, IGNORED, "all splits are idle"),
        Row("active, idle", SplitPaused,       SAME, [], "unknown ones are ignored: finishing and pausing may cross",
            by="_on_paused_or_resumed"),
        Row("active, idle", SplitResumed,      SAME, by="_on_paused_or_resumed"),
        Row("active, idle", Blocked,           SAME, [], "all idleness clocks stand still until Unblocked"),
        Row("active, idle", Unblocked,         SAME),
        Row("active",       UnassignedChanged, SAME, [Maybe(EmitWatermark)]),
        Row("active",       UnassignedChanged, "idle", [EmitIdle], "nothing is left, and no split votes"),
        Row("new, idle",    UnassignedChanged, "active", [EmitActive, Maybe(EmitWatermark)]),
        Row("new",          UnassignedChanged, "idle", [], "nothing is left to wait for: nobody has waited yet"),
        Row("idle",         UnassignedChanged, SAME),
        Row("new",          SplitFinished,     "active", [EmitActive], "an unknown one", by="_on_first"),
        Row("new",          SplitPaused,       "active", [EmitActive], "the same", by="_on_first"),
        Row("new",          SplitResumed,      "active", [EmitActive], "the same", by="_on_first"),
        Row("new",          TimePassed,        "active", [EmitActive], by="_on_first"),
        Row("new",          Blocked,           "active", [EmitActive]),
        Row("new",          Unblocked,         "active", [EmitActive], by="_on_first"),
        Row("new",          InputEnded,        "ended", [EmitActive, EmitWatermark],
            "the final watermark, though there never was a split"),
        Row("idle",         InputEnded,        "ended", [EmitActive, Maybe(EmitWatermark)]),
        Row("active",       InputEnded,        "ended", [Maybe(EmitWatermark)],
            "though work is left unassigned; a split may have had the final one"),
        Row("ended",        UnassignedChanged, SAME, IGNORED, "late"),
        Row("ended",        SplitPaused,       SAME, IGNORED, "late"),
        Row("ended",        SplitResumed,      SAME, IGNORED, "late"),
        Row("ended",        SplitFinished,     SAME, IGNORED, "late"),
        Row("ended",        Blocked,           SAME, IGNORED, "late"),
        Row("ended",        Unblocked,         SAME, IGNORED, "late"),
        Row("ended",        TimePassed,        SAME, IGNORED),
    )
    # fmt: on

    def __init__(
        self,
        strategy: WatermarkStrategy | None,
        *,
        held: bool = False,
        bounded: bool = False,
        reports_votes: bool = False,
    ) -> None:
        super().__init__()
        self.state = "new" if held or bounded else "idle"
        self._reader = (
            _Reader(None, None)
            if strategy is None
            else _Reader(strategy.max_out_of_orderness_ms, strategy.idle_timeout_ms)
        )
        self._bounded = bounded
        self._reports_votes = reports_votes
        self._splits: dict[str, SplitVote] = {}
        self._voting: dict[str, int | None] = {}  # the watermarks of those that are not idle
        self._emitted_ms: int | None = None
        self._holds = held  # whether unassigned work has a vote
        self._unassigned_ms: int | None = None  # where it begins; None: not known
        self._now_ms: int | None = None

    def split_ids(self) -> Collection[str]:
        """Return the splits that are known."""
        return self._splits.keys()

    def splits(self) -> dict[str, SplitEventTime]:
        """Return how far each split is."""
        return {
            split_id: SplitEventTime(
                watermark_ms=split.watermark_ms, idle=split.state in _SILENT, paused=split.paused_at_ms is not None
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
        # The base's without its hooks: every batch comes here. The history would hold nothing else.
        kind, was, known = type(event), self.state, len(self._splits)
        try:
            handler = self._DISPATCH[was, kind]
        except KeyError:
            raise self.invalid(event) from None
        if self._now_ms is not None and self._now_ms > now_ms:
            now_ms = self._now_ms
        actions = [] if handler is None else handler(self, event, now_ms)
        self._now_ms = now_ms
        if kind not in _WITH_EVERY_BATCH or self.state != was or len(self._splits) != known:
            self._history.append((now_ms, was, self.brief(event, type(event)), self.state))
        return actions

    def brief(self, event: Event, kind: type) -> str:
        """Return an event as the history shows it."""
        name = type(event).__name__
        return f"{name} {event.split_id}" if isinstance(event, SplitEvent) else name

    def check(self) -> None:
        """Assert what always holds: idle means that nobody votes, and the end is final."""
        for split in self._splits.values():
            split.check()
        silent = {split_id for split_id, split in self._splits.items() if split.state in _SILENT}
        assert self._voting == {name: each.watermark_ms for name, each in self._splits.items() if name not in silent}
        if self.state == "ended":
            assert self._emitted_ms == MAX_WATERMARK_MS
        elif self.state != "new":
            waits = self._holds or (self._bounded and not self._splits)
            assert (self.state == "idle") == (not waits and not self._voting)

    def __str__(self) -> str:
        return f"The watermark of a reader of splits {sorted(self._splits)[:20]}"

    def _on_first(self, event: Event, now_ms: int) -> list[Action]:
        return self._combine()

    def _on_split_added(self, event: SplitAdded, now_ms: int) -> list[Action]:
        if event.split_id in self._splits:
            return []
        self._splits[event.split_id] = SplitVote(event.split_id, self._reader, now_ms)
        self._voting[event.split_id] = None
        return self._combine()

    def _on_read(self, event: RowsEmitted | WatermarkEmitted | IdleMarked, now_ms: int) -> list[Action]:
        split = self._splits.get(event.split_id)
        if split is None:
            raise self.invalid(event, "the split was not added, or has finished")
        before_ms, was, emitted_ms = split.watermark_ms, split.state, self._emitted_ms
        votes = split.handle(event, now_ms)
        if not votes:
            return []
        self._count(votes[0])
        if before_ms is not None and emitted_ms is not None and before_ms > emitted_ms and split.state == was:
            actions = []  # it was not the slowest, so that the minimum is what it was
        else:
            actions = self._combine()
        return [*actions, *votes] if self._reports_votes else actions

    def _on_split_finished(self, event: SplitFinished, now_ms: int) -> list[Action]:
        if self._splits.pop(event.split_id, None) is None:
            return []
        self._voting.pop(event.split_id, None)
        return self._combine()

    def _on_time_passed(self, event: TimePassed, now_ms: int) -> list[Action]:
        timeout_ms = self._reader.idle_timeout_ms
        if timeout_ms is None:
            return []
        votes: list[SplitVoteChanged] = []
        for split in self._splits.values():
            if now_ms - split.quiet_since_ms >= timeout_ms:  # most had rows lately, whenever they were asked
                votes += split.handle(event, now_ms)
        for vote in votes:
            self._count(vote)
        actions = self._combine() if votes else []
        return [*actions, *votes] if self._reports_votes else actions

    def _on_paused_or_resumed(self, event: SplitPaused | SplitResumed, now_ms: int) -> list[Action]:
        split = self._splits.get(event.split_id)
        if split is not None:
            split.handle(event, now_ms)
        return []

    def _on_blocked(self, event: Blocked, now_ms: int) -> list[Action]:
        if self._reader.blocked_at_ms is None:
            self._reader.blocked_at_ms = now_ms
        return self._combine()

    def _on_unblocked(self, event: Unblocked, now_ms: int) -> list[Action]:
        for split in self._splits.values():
            split.handle(event, now_ms)
        self._reader.blocked_at_ms = None
        return []

    def _on_unassigned_changed(self, event: UnassignedChanged, now_ms: int) -> list[Action]:
        known = event.event_time_ms is not None and event.event_time_ms > MIN_WATERMARK_MS
        self._holds = event.event_time_ms is not None
        self._unassigned_ms = event.event_time_ms if known else None
        return self._combine()

    def _on_input_ended(self, event: InputEnded, now_ms: int) -> list[Action]:
        actions: list[Action] = [] if self.state == "active" else [EmitActive()]
        self.state = "ended"
        if self._emitted_ms != MAX_WATERMARK_MS:
            self._emitted_ms = MAX_WATERMARK_MS
            actions.append(EmitWatermark(MAX_WATERMARK_MS))
        return actions

    def _count(self, vote: SplitVoteChanged) -> None:
        if vote.idle:
            self._voting.pop(vote.split_id, None)
        else:
            self._voting[vote.split_id] = vote.watermark_ms

    def _combine(self) -> list[Action]:
        """Find the minimum anew."""
        was_active = self.state == "active"
        if not (self._voting or self._holds or (self._bounded and not self._splits)):
            self.state = "idle"
            return [EmitIdle()] if was_active else []
        self.state = "active"
        actions: list[Action] = [] if was_active else [EmitActive()]
        votes = [*self._voting.values(), self._unassigned_ms] if self._holds else self._voting.values()
        if votes and None not in votes:
            lowest_ms = min(cast(Collection[int], votes))
            if self._emitted_ms is None or lowest_ms > self._emitted_ms:
                self._emitted_ms = lowest_ms
                actions.append(EmitWatermark(lowest_ms))
        return actions
