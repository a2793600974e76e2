"""Decides which splits of one reader are paused, and what it reports to its alignment group.

Never: read a clock, look at a batch, or pause what nobody has to wait for.

The bound is the lowest watermark of the group and the drift: ``min(own minimum, others' minimum) + drift``. The own
part is known at any time, so that the reader's own progress moves the bound at once; the others' part is announced.
Until the first announcement the bound is not known: a split that has a watermark waits, so that none is more than a
batch ahead of it.

A split is *ahead* when its watermark is beyond the bound, or when its next row is known to be (it is *held*). With one
split the source is paused and resumed, with several exactly those ahead are (FLIP-217's policy). Idle splits have no
vote, and are paused and resumed like others.

A held split votes with its next row: no earlier one follows save disorder, and only emitting it can move the split. So
the bound is the earliest next row and the drift wherever next rows are known, and a gap in event time, in
one split or in all of them, stops nobody. Only alignment counts so; the watermark that is emitted does not. Readers
that emit whole batches do not know next rows: there a split that jumped over a gap is ahead until the others followed.
In either way the slowest split of a group is never ahead.

A reader without a split votes with where the work begins that its enumerator has not assigned, which may be anywhere
while that still looks for it: it is about to read the next of that, and nobody may run ahead of it meanwhile. Where
nothing is left to assign: no split, no vote.

The first announcement, and the end, are answered by a report in any case, even that there is no vote: the group may
still count what the reader reported before it failed. After that a report is made at once when the vote came or went,
when the minimum fell, and when it rose by a quarter of the drift since the last report, so that nobody who catches up
waits for a clock; otherwise at most every `WatermarkAlignment.update_interval_ms`.

Follows FLIP-182; FLIP-217, Proposed Changes.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.source.watermark import MIN_WATERMARK_MS, WatermarkAlignment, saturated_ms

# What happened.


class SplitAdded(msgspec.Struct, frozen=True):
    """The reader has got the split, whose rows are yet to come. Adding one again changes nothing."""

    split_id: str


class SplitFinished(msgspec.Struct, frozen=True):
    """The split left the reader. Unknown ones are ignored."""

    split_id: str


class SplitMoved(msgspec.Struct, frozen=True):
    """The split's vote is another: its watermark in milliseconds (None: none yet), and whether it is idle."""

    split_id: str
    watermark_ms: int | None
    idle: bool = False


class SplitHeld(msgspec.Struct, frozen=True):
    """The split's next row would raise its watermark to this, beyond the bound: it waits in the reader.

    Reported before the rows that precede it are emitted, each time that the reader asks and may not emit all. It holds
    until the split's watermark has reached it, so only splits whose watermark follows from their rows are held: not
    those whose source emits watermarks itself. If the split is not paused thereupon, its vote has moved the bound, and
    the row may be emitted.
    """

    split_id: str
    next_watermark_ms: int


class AllowedAnnounced(msgspec.Struct, frozen=True):
    """The group moved: `headgate.protocol.messages.AlignmentAnnounced`.

    Only the others' part is used: ``max_watermark_ms`` is made of it and of what this reader reported, which may be
    older than what it knows of itself.
    """

    max_watermark_ms: int
    others_ms: int


class UnassignedChanged(msgspec.Struct, frozen=True):
    """The watermark of the first row that is not assigned, in milliseconds; None: nothing is, or it is not known."""

    watermark_ms: int | None


class InputEnded(msgspec.Struct, frozen=True):
    """The reader has nothing left, or reads nothing more: it has no vote any longer."""


class TimePassed(msgspec.Struct, frozen=True):
    """A report may be due."""


Event = (
    SplitAdded | SplitFinished | SplitMoved | SplitHeld | AllowedAnnounced | UnassignedChanged | InputEnded | TimePassed
)


class OneSplitLeft(msgspec.Struct, frozen=True):
    """Stands in the table for `SplitFinished` of one of two splits."""


class NoSplitChanged(msgspec.Struct, frozen=True):
    """Stands in the table for `SplitAdded` of a known split, and for `SplitFinished` of an unknown one."""


# What is to be done.


class PauseSource(msgspec.Struct, frozen=True):
    """Poll the reader no more: its only split is ahead. `SplitWatermarks` learns that it is paused."""

    split_id: str


class ResumeSource(msgspec.Struct, frozen=True):
    """Poll the reader again. `SplitWatermarks` learns that the split is resumed; it may have finished."""

    split_id: str


class PauseOrResumeSplits(msgspec.Struct, frozen=True):
    """Call `SourceReader.pause_or_resume_splits` with exactly these; `SplitWatermarks` learns of it.

    When a source's pause becomes that of its split, or the other way round, the resuming action comes first: whoever
    carries out one after the other ends with the split's idleness clock standing still.
    """

    pause: tuple[str, ...]
    resume: tuple[str, ...]


class ReportWatermark(msgspec.Struct, frozen=True):
    """Send `headgate.protocol.messages.WatermarkReported`."""

    watermark_ms: int | None
    slowest: str


Action = PauseSource | ResumeSource | PauseOrResumeSplits | ReportWatermark


class _SplitState(msgspec.Struct):
    """What is known of one split."""

    watermark_ms: int | None = None
    idle: bool = False
    next_watermark_ms: int | None = None  # while it is held: always more than its watermark

    @property
    def reach_ms(self) -> int | None:
        """How far it is for certain: its next row's watermark, or else its own; None: it has not begun."""
        return self.watermark_ms if self.next_watermark_ms is None else self.next_watermark_ms


_ANY = "without split, reading, source paused, all reading, splits paused"


class SplitAlignment(Machine):
    """The part of one reader in its alignment group. *reading*: its only split, *all reading*: several.

    Parameters
    ----------
    alignment
        The group, the drift, how often to report.

    Examples
    --------
    >>> machine = SplitAlignment(WatermarkAlignment(group="g", max_drift_ms=10))
    >>> machine.handle(SplitAdded("a"), 0)
    [ReportWatermark(watermark_ms=-9223372036854775808, slowest='a')]
    >>> machine.handle(AllowedAnnounced(30, 20), 0)
    []
    >>> machine.handle(SplitMoved("a", 31), 0)
    [PauseSource(split_id='a'), ReportWatermark(watermark_ms=31, slowest='a')]
    >>> machine.handle(AllowedAnnounced(41, 40), 0)
    [ResumeSource(split_id='a')]
    """

    # fmt: off
    TRANSITIONS = (
        Row("without split", SplitAdded,        "reading", [Maybe(ReportWatermark)]),
        Row("reading",       SplitAdded,        "all reading", [Maybe(ReportWatermark)], "nothing is ahead of it"),
        Row("reading",       SplitAdded,        "splits paused", [PauseOrResumeSplits, ReportWatermark],
            "it has no rows yet: nobody may run ahead of its first one"),
        Row("source paused", SplitAdded,        "splits paused", [ResumeSource, PauseOrResumeSplits, ReportWatermark],
            "two now: the first one is paused by itself"),
        Row("all reading",   SplitAdded,        SAME, [Maybe(ReportWatermark)]),
        Row("all reading",   SplitAdded,        "splits paused", [PauseOrResumeSplits, ReportWatermark], "the same"),
        Row("splits paused", SplitAdded,        SAME, [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)]),
        Row("reading",       SplitFinished,     "without split", [Maybe(ReportWatermark)]),
        Row("source paused", SplitFinished,     "without split", [ResumeSource, Maybe(ReportWatermark)],
            "the next one must be asked for"),
        Row("all reading",   SplitFinished,     SAME, [Maybe(ReportWatermark)]),
        Row("splits paused", SplitFinished,     SAME, [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)]),
        Row("splits paused", SplitFinished,     "all reading", [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)],
            "the only one that was paused, or the one that was waited for"),
        Row("all reading",   OneSplitLeft,      "reading", [Maybe(ReportWatermark)]),
        Row("splits paused", OneSplitLeft,      "reading", [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)]),
        Row("splits paused", OneSplitLeft,      "source paused",
            [PauseOrResumeSplits, PauseSource, Maybe(ReportWatermark)], "its source is paused instead"),
        Row("reading, source paused, all reading", SplitMoved, SAME, [Maybe(ReportWatermark)]),
        Row("reading",       SplitMoved,        "source paused", [PauseSource, Maybe(ReportWatermark)],
            "ahead: its watermark is beyond the bound"),
        Row("all reading",   SplitMoved,        "splits paused", [PauseOrResumeSplits, Maybe(ReportWatermark)]),
        Row("splits paused", SplitMoved,        SAME, [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)],
            "ahead, or the slowest one, which moves the bound"),
        Row("splits paused", SplitMoved,        "all reading", [PauseOrResumeSplits, Maybe(ReportWatermark)]),
        Row("reading, source paused, all reading", SplitHeld, SAME, [Maybe(ReportWatermark)],
            "its vote moved the bound, or it is known already"),
        Row("reading",       SplitHeld,         "source paused", [PauseSource, Maybe(ReportWatermark)],
            "ahead: its next row is beyond the bound"),
        Row("all reading",   SplitHeld,         "splits paused", [PauseOrResumeSplits, Maybe(ReportWatermark)]),
        Row("splits paused", SplitHeld,         SAME, [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)]),
        Row("splits paused", SplitHeld,         "all reading", [PauseOrResumeSplits, Maybe(ReportWatermark)],
            "a gap: all wait for the slowest one's next row"),
        Row("without split, reading, source paused, all reading", AllowedAnnounced, SAME, [Maybe(ReportWatermark)]),
        Row("reading",       AllowedAnnounced,  "source paused", [PauseSource, Maybe(ReportWatermark)],
            "back: somebody slow has come, or has come back"),
        Row("all reading",   AllowedAnnounced,  "splits paused", [PauseOrResumeSplits, Maybe(ReportWatermark)]),
        Row("source paused", AllowedAnnounced,  "reading", [ResumeSource, Maybe(ReportWatermark)], "idle or not"),
        Row("splits paused", AllowedAnnounced,  SAME, [Maybe(PauseOrResumeSplits), Maybe(ReportWatermark)]),
        Row("splits paused", AllowedAnnounced,  "all reading", [PauseOrResumeSplits, Maybe(ReportWatermark)]),
        Row(_ANY,            UnassignedChanged, SAME, [Maybe(ReportWatermark)], "what the next split begins with"),
        Row(_ANY,            NoSplitChanged,    SAME, [Maybe(ReportWatermark)], by="_on_nothing"),
        Row(_ANY,            TimePassed,        SAME, [Maybe(ReportWatermark)], by="_on_nothing"),
        Row(_ANY,            InputEnded,        "ended", [Maybe(ReportWatermark)], "nothing is read or resumed"),
        Row("ended",         UnassignedChanged, SAME, IGNORED, "late"),
        Row("ended",         AllowedAnnounced,  SAME, IGNORED, "late"),
        Row("ended",         NoSplitChanged,    SAME, IGNORED, "a drained split that is let go"),
        Row("ended",         TimePassed,        SAME, IGNORED),
    )
    # fmt: on

    def __init__(self, alignment: WatermarkAlignment) -> None:
        super().__init__()
        self.state = "without split"
        self._drift_ms = alignment.max_drift_ms
        self._interval_ms = alignment.update_interval_ms
        self._splits: dict[str, _SplitState] = {}
        self._minimum_ms: int | None = None  # of the splits that vote; None: there is none
        self._slowest: str | None = None
        self._unassigned_ms: int | None = None
        self._others_ms: int | None = None  # None: not announced yet
        self._bound_ms: int | None = None
        self._paused: set[str] = set()
        self._reported: ReportWatermark | None = None
        self._reported_at_ms = 0

    @property
    def bound_ms(self) -> int | None:
        """How far any split may be read now, in milliseconds; None: not known yet."""
        return self._bound_ms

    @property
    def paused(self) -> frozenset[str]:
        """The splits that are paused, be it with the whole source."""
        return frozenset(self._paused)

    @property
    def voting(self) -> frozenset[str]:
        """The splits that somebody waits for: those that are not idle."""
        return frozenset(split_id for split_id, split in self._splits.items() if not split.idle)

    def next_time_ms(self) -> int | None:
        """When `TimePassed` is due; None: not before another event."""
        news = self._reported is not None and self._vote() != self._reported
        return self._reported_at_ms + self._interval_ms if news else None

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        match event:
            case SplitAdded() if event.split_id in self._splits:
                return NoSplitChanged
            case SplitFinished() if event.split_id not in self._splits:
                return NoSplitChanged
            case SplitFinished() if len(self._splits) == 2:
                return OneSplitLeft
        return type(event)

    def refused(self, event: Event) -> str | None:
        """Return why an event cannot have happened: it is of a split that the reader has not."""
        unknown = isinstance(event, SplitMoved | SplitHeld) and event.split_id not in self._splits
        return "the split was not added, or has finished" if unknown else None

    def follow_up(self, event: Event, now_ms: int) -> list[Action]:
        """Return the report, if the group must know the vote now."""
        if not self._is_due(now_ms):
            return []
        self._reported, self._reported_at_ms = self._vote(), now_ms
        return [self._reported]

    def brief(self, event: Event, kind: type) -> str:
        """Return an event as the history shows it."""
        name = type(event).__name__
        return f"{name} {event.split_id}" if hasattr(event, "split_id") else name

    def __str__(self) -> str:
        return f"The alignment of a reader of splits {sorted(self._splits)[:20]}"

    def check(self) -> None:
        """Assert what always holds: exactly those ahead are paused, one by its source, and never the slowest of all."""
        votes = [_vote_of(split) for split in self._splits.values() if not split.idle]
        assert self._minimum_ms == (min(votes) if votes else None)
        assert self._bound_ms == self._find_bound()
        assert self._paused == {split_id for split_id in self._splits if self._is_ahead(split_id)}
        assert self.state == "ended" or self.state == self._state_at(len(self._splits))
        for split in self._splits.values():
            if split.next_watermark_ms is not None and split.watermark_ms is not None:
                assert split.next_watermark_ms > split.watermark_ms
        if self._slowest is not None:
            assert not self._splits[self._slowest].idle
            assert _vote_of(self._splits[self._slowest]) == self._minimum_ms
            if self._others_ms is not None and _vote_of(self._splits[self._slowest]) <= self._others_ms:
                assert self._slowest not in self.paused
        if self.state == "ended":
            assert not self._splits
            assert self._reported == ReportWatermark(None, "")

    def _on_split_added(self, event: SplitAdded, now_ms: int) -> list[Action]:
        self._splits[event.split_id] = _SplitState()
        return self._align(event.split_id)

    def _on_split_finished(self, event: SplitFinished, now_ms: int) -> list[Action]:
        del self._splits[event.split_id]
        if self.state == "splits paused":
            self._paused.discard(event.split_id)  # a split that is gone cannot be resumed; a source can, and must be
        return self._align(event.split_id)

    _on_one_split_left = _on_split_finished

    def _on_split_moved(self, event: SplitMoved, now_ms: int) -> list[Action]:
        split = self._splits[event.split_id]
        split.watermark_ms, split.idle = event.watermark_ms, event.idle
        next_ms = split.next_watermark_ms
        if next_ms is not None and event.watermark_ms is not None and event.watermark_ms >= next_ms:
            split.next_watermark_ms = None
        return self._align(event.split_id)

    def _on_split_held(self, event: SplitHeld, now_ms: int) -> list[Action]:
        split = self._splits[event.split_id]
        next_ms = saturated_ms(event.next_watermark_ms)
        if split.watermark_ms is not None and next_ms <= split.watermark_ms:
            return []  # the split is there already
        split.next_watermark_ms = next_ms
        return self._align(event.split_id)

    def _on_allowed_announced(self, event: AllowedAnnounced, now_ms: int) -> list[Action]:
        self._others_ms = event.others_ms
        return self._align()

    def _on_unassigned_changed(self, event: UnassignedChanged, now_ms: int) -> list[Action]:
        self._unassigned_ms = event.watermark_ms
        return []

    def _on_input_ended(self, event: InputEnded, now_ms: int) -> list[Action]:
        self.state = "ended"
        self._splits.clear()
        self._paused.clear()
        self._slowest = self._minimum_ms = None
        self._bound_ms = self._find_bound()
        return []

    def _on_nothing(self, event: Event, now_ms: int) -> list[Action]:
        return []

    def _count(self, split_id: str) -> None:
        """Keep the minimum, after a split changed, came or left. Looks at all of them only when the slowest moved."""
        split = self._splits.get(split_id)
        vote = None if split is None or split.idle else _vote_of(split)
        if self._minimum_ms is not None and split_id != self._slowest:
            if vote is not None and vote < self._minimum_ms:
                self._minimum_ms, self._slowest = vote, split_id
            return
        lowest: int | None = vote
        slowest = None if vote is None else split_id  # it stays the slowest while no other one is slower
        for each, other in self._splits.items():
            if not other.idle and (lowest is None or _vote_of(other) < lowest):
                lowest, slowest = _vote_of(other), each
        self._minimum_ms, self._slowest = lowest, slowest

    def _align(self, split_id: str | None = None) -> list[Action]:
        """Pause exactly those ahead, after a split changed. Looks at all of them only when the bound fell."""
        if split_id is not None:
            self._count(split_id)
        before, self._bound_ms = self._bound_ms, self._find_bound()
        looked_at: Collection[str] = () if split_id is None else (split_id,)
        if before != self._bound_ms:
            rose = before is not None and self._bound_ms is not None and before < self._bound_ms
            looked_at = {*self._paused, *looked_at} if rose else self._splits
        changed = [each for each in looked_at if self._is_ahead(each) != (each in self._paused)]
        return self._pause(self._paused.symmetric_difference(changed) if changed else self._paused)

    def _pause(self, ahead: set[str]) -> list[Action]:
        """Pause these and nothing else; what resumes comes first."""
        were, self._paused = self._paused, ahead
        was, self.state = self.state, self._state_at(len(self._splits))
        if ahead is were and (was == "source paused") == (self.state == "source paused"):
            return []
        were_source, were_splits = (were, set()) if was == "source paused" else (set(), were)
        source, splits = (ahead, set()) if self.state == "source paused" else (set(), ahead)
        actions: list[Action] = [ResumeSource(split_id) for split_id in were_source - source]
        if splits != were_splits:
            pause, resume = splits - were_splits, were_splits - splits
            actions.append(PauseOrResumeSplits(pause=tuple(sorted(pause)), resume=tuple(sorted(resume))))
        return [*actions, *(PauseSource(split_id) for split_id in source - were_source)]

    def _state_at(self, splits: int) -> str:
        if splits == 0:
            return "without split"
        if splits == 1:
            return "source paused" if self._paused else "reading"
        return "splits paused" if self._paused else "all reading"

    def _find_bound(self) -> int | None:
        if self._others_ms is None:
            return None
        lowest_ms = self._others_ms if self._minimum_ms is None else min(self._minimum_ms, self._others_ms)
        return saturated_ms(lowest_ms + self._drift_ms)

    def _is_ahead(self, split_id: str) -> bool:
        split = self._splits.get(split_id)
        reach_ms = None if split is None else split.reach_ms
        return reach_ms is not None and (self._bound_ms is None or reach_ms > self._bound_ms)

    @property
    def _vote_ms(self) -> int | None:
        return self._minimum_ms if self._splits or self.state == "ended" else self._unassigned_ms

    def _vote(self) -> ReportWatermark:
        return ReportWatermark(self._vote_ms, self._slowest or "")

    def _is_due(self, now_ms: int) -> bool:
        """Return whether the group must know the vote now."""
        vote, reported = self._vote_ms, self._reported
        if reported is None:
            return vote is not None or self._others_ms is not None or self.state == "ended"
        if vote is None or reported.watermark_ms is None:
            return vote != reported.watermark_ms
        moved_ms = vote - reported.watermark_ms
        if moved_ms == 0 and (self._slowest or "") == reported.slowest:
            return False
        much = moved_ms < 0 or (moved_ms > 0 and 4 * moved_ms >= self._drift_ms)
        return much or now_ms - self._reported_at_ms >= self._interval_ms


def _vote_of(split: _SplitState) -> int:
    """Return how far a split that is not idle counts as: nobody may overtake it before it began."""
    reach_ms = split.reach_ms
    return MIN_WATERMARK_MS if reach_ms is None else reach_ms
