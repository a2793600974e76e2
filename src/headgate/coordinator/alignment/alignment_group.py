"""Decides how far the readers of one alignment group may read: the lowest watermark of them all, and the drift.

Never: read a clock, or announce anything but when the minimum moved (to all readers), a reader joined (to it), or the
others of the reader that holds the minimum fell (to it: it goes by itself and would run ahead of them).

`headgate.task.split_alignment` pauses the splits of a reader that are beyond that.

A reader votes with what it reported last. Each execution of a reader reports once in any case, be it that it has no
vote; until all readers of the query have, those that have not hold the group as if they had a split without a
watermark. One that failed keeps its vote until it is back and reports anew: what it reads again is not to be overtaken
meanwhile. Without any vote there is no bound (`MAX_WATERMARK_MS`). Sources of a group may have different drifts. Other
queries of the application take part through their minimum (`OthersMoved`), and wait for this one where it stood last
while it is restarted or rescaled; but not longer than `_GONE_MS`, while no reader is there: then it counts as gone.

The group is *awaiting* from the first reader that comes until all have reported. Afterwards the minimum is *announced*,
or that is *put off*. What comes of a reader that failed, or has never come, is *stale*.

With very many readers a minimum that rises is announced a little later, so that the driver sends at most
`_ANNOUNCEMENTS_PER_MS`; one that falls at once. Until then nobody learns of the rise, not even a reader that joins: a
minimum that falls again, to no less than what was announced, is announced to nobody. A minimum that has not moved for a
minute while somebody waits is warned of, again every minute.

Follows FLIP-182 (SourceCoordinator.announceCombinedWatermark).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from headgate.machine import SAME, Machine, Maybe, Row
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, saturated_ms

_ANNOUNCEMENTS_PER_MS = 50
_HELD_MS = 60_000
"""How long the minimum stands still before it is looked who waits, and between two warnings."""
_LOOK_AGAIN_MS = 10_000
"""After this time, if nobody waited so far."""
_GONE_MS = 300_000
"""How long other queries wait for one without a reader."""

# What happened.


class ReaderJoined(msgspec.Struct, frozen=True):
    """A reader registered, new or again: a new execution of it."""

    source: str
    subtask: int


class ReaderReported(msgspec.Struct, frozen=True):
    """A reader's `headgate.protocol.messages.WatermarkReported`."""

    source: str
    subtask: int
    watermark_ms: int | None
    slowest: str


class ReaderPaused(msgspec.Struct, frozen=True):
    """Whether some of a reader's splits are paused."""

    source: str
    subtask: int
    paused: bool


class ReaderLost(msgspec.Struct, frozen=True):
    """A reader failed and will be deployed again."""

    source: str
    subtask: int


class OthersMoved(msgspec.Struct, frozen=True):
    """The minimum of the group's readers in other queries of the application is another; None: they have no vote."""

    watermark_ms: int | None


class TimePassed(msgspec.Struct, frozen=True):
    """Somebody may hold the group back for long, or be gone for long; comes first when the query starts."""


Event = ReaderJoined | ReaderReported | ReaderPaused | ReaderLost | OthersMoved | TimePassed


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for what comes of an execution that is over, or of a reader that never came."""


# What is to be done.


class Announce(msgspec.Struct, frozen=True):
    """Send a reader `headgate.protocol.messages.AlignmentAnnounced`."""

    source: str
    subtask: int
    max_watermark_ms: int
    others_ms: int


class ShareMinimum(msgspec.Struct, frozen=True):
    """Send the application's other queries the minimum of this query's readers; None: they have no vote."""

    watermark_ms: int | None


class WarnOfAbsence(msgspec.Struct, frozen=True):
    """The query has had no reader for so long that other queries wait for it no longer."""

    absent_ms: int


class WarnOfHolder(msgspec.Struct, frozen=True):
    """A split has held the group back for a minute and others wait.

    Empty source: it is in another query. Empty split: the reader has not reported at all, or waits for its next split.
    """

    source: str
    subtask: int
    split_id: str
    held_ms: int


Action = Announce | ShareMinimum | WarnOfAbsence | WarnOfHolder


_Key = tuple[str, int]


class _Reader(msgspec.Struct):
    """What is known of one reader."""

    watermark_ms: int | None = None
    slowest: str = ""
    is_here: bool = False
    has_paused: bool = False
    announced: tuple[int, int] | None = None  # bound and others, in this execution


class AlignmentGroup(Machine):
    """One alignment group, as one query sees it.

    Parameters
    ----------
    group
        Its name.
    max_drift_ms
        By the uid of each source of this query in the group.
    parallelism
        How many readers each source has.

    Examples
    --------
    >>> group = AlignmentGroup("clicks", {"a": 10}, parallelism=1)
    >>> group.handle(ReaderJoined("a", 0), 0)[0] == Announce("a", 0, MIN_WATERMARK_MS + 10, MAX_WATERMARK_MS)
    True
    >>> group.handle(ReaderReported("a", 0, 500, "rides-3"), 0) == [
    ...     Announce("a", 0, 510, MAX_WATERMARK_MS), ShareMinimum(500)]
    True
    """

    # fmt: off
    TRANSITIONS = (
        Row("new",                 ReaderJoined,   "awaiting", [Announce, ShareMinimum], "all others are awaited"),
        Row("awaiting, announced", ReaderJoined,   SAME, [Announce, Maybe(ShareMinimum), Maybe(WarnOfHolder)],
            "new or again: its vote stays what it was, and counts again"),
        Row("put off",             ReaderJoined,   SAME, [Announce]),
        Row("put off",             ReaderJoined,   "announced", [Announce, Maybe(WarnOfHolder)], when="due"),
        Row("awaiting",            ReaderReported, SAME, [Maybe(Announce), Maybe(WarnOfHolder)],
            "others have not reported; the last of them must know of a fall"),
        Row("awaiting",            ReaderReported, "announced",
            [Maybe(Announce), Maybe(ShareMinimum), Maybe(WarnOfHolder)], "the last one"),
        Row("awaiting",            ReaderReported, "put off", [ShareMinimum], "the last of very many"),
        Row("announced",           ReaderReported, SAME,
            [Maybe(Announce), Maybe(ShareMinimum), Maybe(WarnOfHolder)]),
        Row("announced",           ReaderReported, "put off", [ShareMinimum], "the minimum rose"),
        Row("put off",             ReaderReported, SAME, [Maybe(Announce), Maybe(ShareMinimum)]),
        Row("put off",             ReaderReported, "announced",
            [Maybe(Announce), Maybe(ShareMinimum), Maybe(WarnOfHolder)], "due, or the minimum fell"),
        Row("awaiting, announced", ReaderPaused,   SAME, [Maybe(WarnOfHolder)], "somebody waits inside of it"),
        Row("put off",             ReaderPaused,   SAME),
        Row("put off",             ReaderPaused,   "announced", [Maybe(Announce), Maybe(WarnOfHolder)], when="due"),
        Row("awaiting, announced", ReaderLost,     SAME, [Maybe(WarnOfHolder)],
            "its vote stays, and nothing is announced to it"),
        Row("put off",             ReaderLost,     SAME),
        Row("put off",             ReaderLost,     "announced", [Maybe(Announce), Maybe(WarnOfHolder)], when="due"),
        Row("new",                 OthersMoved,    SAME, [], "nobody is here to wait for them"),
        Row("awaiting",            OthersMoved,    SAME, [Maybe(Announce), Maybe(WarnOfHolder)],
            "to the last one, if they fell"),
        Row("announced",           OthersMoved,    SAME, [Maybe(Announce), Maybe(WarnOfHolder)]),
        Row("announced",           OthersMoved,    "put off", [], "the minimum rose"),
        Row("put off",             OthersMoved,    SAME, [Maybe(Announce)]),
        Row("put off",             OthersMoved,    "announced", [Maybe(Announce), Maybe(WarnOfHolder)],
            "due, or the minimum fell"),
        Row("new",                 TimePassed,     SAME, [Maybe(ShareMinimum), Maybe(WarnOfAbsence)],
            "who was there in an earlier run"),
        Row("awaiting, announced", TimePassed,     SAME,
            [Maybe(ShareMinimum), Maybe(WarnOfAbsence), Maybe(WarnOfHolder)], "nobody has been here for long"),
        Row("put off",             TimePassed,     SAME),
        Row("put off",             TimePassed,     "announced",
            [Maybe(ShareMinimum), Maybe(WarnOfAbsence), Maybe(Announce), Maybe(WarnOfHolder)], when="due"),
        Row("new",                 Stale,          SAME, by="_on_nothing"),
        Row("awaiting, announced", Stale,          SAME, [Maybe(WarnOfHolder)], by="_on_nothing"),
        Row("put off",             Stale,          SAME, by="_on_nothing"),
        Row("put off",             Stale,          "announced", [Maybe(Announce), Maybe(WarnOfHolder)], when="due",
            by="_on_nothing"),
    )
    # fmt: on

    def __init__(self, group: str, max_drift_ms: Mapping[str, int], *, parallelism: int) -> None:
        super().__init__()
        self.state = "new"
        self.group = group
        self._drift_ms = dict(max_drift_ms)
        self._readers: dict[_Key, _Reader] = {}
        # Who has not reported since the query started; they hold the group as soon as one of them has come.
        self._awaited = {(source, subtask) for source in max_drift_ms for subtask in range(parallelism)}
        self._heap: list[tuple[int, _Key]] = []  # all votes, and some that were
        self._leader: _Key | None = None  # who got the others' minimum, beyond the announced one: it held that alone
        self._others_ms: int | None = None  # of other queries
        self._minimum_ms: int | None = None
        self._moved_at_ms = 0
        self._look_at_ms = 0
        self._announced_ms: int | None = None  # the minimum
        self._quiet_until_ms = 0
        self._own_ms: int | None = None  # the minimum of this query's readers
        self._shared_ms: int | None = None
        self._here = 0  # how many readers are
        self._gone_at_ms: int | None = None  # when the query counts as gone; None: somebody is here, or it is
        self._is_gone = False

    @property
    def minimum_ms(self) -> int | None:
        """The lowest watermark of the group, other queries included; None: nobody has a vote."""
        return self._minimum_ms

    def next_time_ms(self) -> int | None:
        """When `TimePassed` is due; None: not before another event."""
        times = [] if self._minimum_ms is None else [self._look_at_ms]
        if self._announced_ms != self._minimum_ms:
            times.append(self._quiet_until_ms)
        if self._gone_at_ms is not None:
            times.append(self._gone_at_ms)
        return min(times, default=None)

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        if isinstance(event, ReaderReported | ReaderPaused | ReaderLost):
            reader = self._readers.get((event.source, event.subtask))
            if reader is None or (isinstance(event, ReaderReported) and not reader.is_here):
                return Stale
        return type(event)

    def refused(self, event: Event) -> str | None:
        """Return why an event cannot have happened: it is of a source that is not in the group."""
        foreign = isinstance(event, ReaderJoined) and event.source not in self._drift_ms
        return "the source is not in the group" if foreign else None

    def follow_up(self, event: Event, now_ms: int) -> list[Action]:
        """Return what is to be announced, shared and warned of where the votes are now."""
        self._note_minimum(now_ms)
        if self._here:
            self._gone_at_ms, self._is_gone = None, False
        elif self._gone_at_ms is None and not self._is_gone:
            self._gone_at_ms = now_ms + _GONE_MS
        joined = (event.source, event.subtask) if isinstance(event, ReaderJoined) else None
        actions = [*self._announce(joined, now_ms), *self._share(), *self._warn(now_ms)]
        if self._readers:
            announced = self._announced_ms == self._minimum_ms
            self.state = "awaiting" if self._awaited else "announced" if announced else "put off"
        return actions

    def __str__(self) -> str:
        return f"Alignment group {self.group}"

    def check(self) -> None:
        """Assert what always holds: the minimum is that of all votes, and nobody was sent more than it allows."""
        assert (self.state == "new") == (not self._readers)
        assert (self.state == "put off") == (self._announced_ms != self._minimum_ms)
        assert (self.state == "awaiting") == self._is_awaiting
        votes = [reader.watermark_ms for reader in self._readers.values() if reader.watermark_ms is not None]
        if self._is_awaiting:
            votes.append(MIN_WATERMARK_MS)
        own_ms = min(votes, default=None)
        assert self._shared_ms == (None if self._is_gone else own_ms)
        assert self._here == sum(reader.is_here for reader in self._readers.values())
        assert not (self._is_gone and self._here)
        assert self._minimum_ms == min(votes if self._others_ms is None else [*votes, self._others_ms], default=None)
        assert len(self._heap) <= 2 * len(self._readers) + 2
        lowest = self._two_lowest()
        for key, reader in self._readers.items():
            assert (reader.announced is not None) or not reader.is_here
            if reader.is_here and reader.announced is not None:
                bound_ms, others_ms = self._bound_ms(key[0]), self._others_of(key, lowest)
                assert reader.announced[0] == bound_ms, f"{key} may read on to {reader.announced[0]}, not {bound_ms}"
                assert reader.announced[1] <= others_ms, (
                    f"{key} takes the others for {reader.announced[1]}, not {others_ms}"
                )
        assert self._minimum_ms is None or (self._announced_ms is not None and self._announced_ms <= self._minimum_ms)

    # Votes.

    def _on_reader_joined(self, event: ReaderJoined, now_ms: int) -> list[Action]:
        reader = self._readers.setdefault((event.source, event.subtask), _Reader())
        self._here += not reader.is_here
        reader.is_here, reader.has_paused, reader.announced = True, False, None
        return []

    def _on_reader_reported(self, event: ReaderReported, now_ms: int) -> list[Action]:
        key = event.source, event.subtask
        reader = self._readers[key]
        self._awaited.discard(key)
        if event.watermark_ms is not None and event.watermark_ms != reader.watermark_ms:
            heapq.heappush(self._heap, (event.watermark_ms, key))
        reader.watermark_ms, reader.slowest = event.watermark_ms, event.slowest
        if len(self._heap) > 2 * len(self._readers):
            self._heap = [
                (reader.watermark_ms, each) for each, reader in self._readers.items() if reader.watermark_ms is not None
            ]
            heapq.heapify(self._heap)
        return []

    def _on_reader_paused(self, event: ReaderPaused, now_ms: int) -> list[Action]:
        self._readers[event.source, event.subtask].has_paused = event.paused
        return []

    def _on_reader_lost(self, event: ReaderLost, now_ms: int) -> list[Action]:
        reader = self._readers[event.source, event.subtask]
        self._here -= reader.is_here
        reader.is_here = False
        return []

    def _on_others_moved(self, event: OthersMoved, now_ms: int) -> list[Action]:
        self._others_ms = event.watermark_ms
        return []

    def _on_time_passed(self, event: TimePassed, now_ms: int) -> list[Action]:
        if self._gone_at_ms is None or now_ms < self._gone_at_ms:
            return []
        self._gone_at_ms, self._is_gone, self._shared_ms = None, True, None
        return [ShareMinimum(None), WarnOfAbsence(_GONE_MS)]  # whatever an earlier run shared

    def _on_nothing(self, event: Event, now_ms: int) -> list[Action]:
        return []

    @property
    def _is_awaiting(self) -> bool:
        """Whether the group is held because readers have not reported yet; before the first one came nobody is."""
        return bool(self._awaited) and bool(self._readers)

    def _two_lowest(self) -> list[tuple[int, _Key]]:
        """Return the lowest vote and the next one of another reader, as far as there are any."""
        heap = self._heap
        while heap and self._readers[heap[0][1]].watermark_ms != heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            return []
        lowest = heapq.heappop(heap)
        while heap and (heap[0][1] == lowest[1] or self._readers[heap[0][1]].watermark_ms != heap[0][0]):
            heapq.heappop(heap)
        found = [lowest, *heap[:1]]
        heapq.heappush(heap, lowest)
        return found

    def _note_minimum(self, now_ms: int) -> None:
        lowest = self._two_lowest()
        own_ms = MIN_WATERMARK_MS if self._is_awaiting else lowest[0][0] if lowest else None
        votes = [vote for vote in (own_ms, self._others_ms) if vote is not None]
        minimum_ms = min(votes, default=None)
        if minimum_ms != self._minimum_ms:
            self._minimum_ms, self._moved_at_ms, self._look_at_ms = minimum_ms, now_ms, now_ms + _HELD_MS
        self._own_ms = own_ms

    # What is announced.

    def _bound_ms(self, source: str) -> int:
        """Return how far readers of a source may read by the minimum that was announced."""
        if self._announced_ms is None:
            return MAX_WATERMARK_MS
        return saturated_ms(self._announced_ms + self._drift_ms[source])

    def _others_of(self, key: _Key, lowest: list[tuple[int, _Key]]) -> int:
        if self._is_awaiting and self._awaited != {key}:
            return MIN_WATERMARK_MS
        others = [vote for vote, each in lowest if each != key]
        if self._others_ms is not None:
            others.append(self._others_ms)
        return min(others, default=MAX_WATERMARK_MS)

    def _announce(self, joined: _Key | None, now_ms: int) -> list[Action]:
        if self._minimum_ms != self._announced_ms and (now_ms >= self._quiet_until_ms or self._fell()):
            self._announced_ms, self._leader = self._minimum_ms, None
            actions = self._announce_to(self._readers)
            self._quiet_until_ms = now_ms + len(actions) // _ANNOUNCEMENTS_PER_MS
            return actions
        if joined is not None:
            return self._announce_to([joined])
        # A rise of the others is heard of with the next move; of a fall only the leader can be ignorant.
        known = None if self._leader is None else self._readers[self._leader].announced
        if self._leader is None or known is None or known[1] <= self._others_of(self._leader, self._two_lowest()):
            return []
        return self._announce_to([self._leader])

    def _fell(self) -> bool:
        """Return whether readers may run ahead of the minimum by what was announced to them."""
        return self._minimum_ms is not None and (self._announced_ms is None or self._minimum_ms < self._announced_ms)

    def _announce_to(self, keys: Iterable[_Key]) -> list[Action]:
        """Announce to readers that are there how far they may read, unless they know."""
        is_put_off = self._announced_ms != self._minimum_ms
        announced_ms = MAX_WATERMARK_MS if self._announced_ms is None else self._announced_ms
        actions: list[Action] = []
        lowest = self._two_lowest()
        bounds = {source: self._bound_ms(source) for source in self._drift_ms}
        for key in keys:
            reader = self._readers[key]
            others_ms = announced_ms if is_put_off else self._others_of(key, lowest)
            view = bounds[key[0]], others_ms
            if reader.is_here and reader.announced != view:
                if others_ms > announced_ms:
                    self._leader = key
                reader.announced = view
                actions.append(Announce(*key, *view))
        return actions

    def _share(self) -> list[Action]:
        if self._own_ms == self._shared_ms or self._is_gone:
            return []
        self._shared_ms = self._own_ms
        return [ShareMinimum(self._own_ms)]

    # Who holds the group back.

    def _warn(self, now_ms: int) -> list[Action]:
        if self._minimum_ms is None or now_ms < self._look_at_ms:
            return []
        if self._is_gone:  # it holds nobody
            self._look_at_ms = now_ms + _HELD_MS
            return []
        holder = self._holder()
        is_waited_for = self._is_waited_for(holder)
        self._look_at_ms = now_ms + (_HELD_MS if is_waited_for else _LOOK_AGAIN_MS)
        if not is_waited_for:
            return []
        held_ms = now_ms - self._moved_at_ms
        if holder is None:
            return [WarnOfHolder("", 0, "", held_ms)]
        reader = self._readers.get(holder)
        is_awaited = reader is None or holder in self._awaited
        return [WarnOfHolder(*holder, "" if reader is None or is_awaited else reader.slowest, held_ms)]

    def _holder(self) -> _Key | None:
        """Return the reader that the minimum is of; None: it is another query's."""
        if self._own_ms != self._minimum_ms:
            return None
        return min(self._awaited) if self._is_awaiting else self._two_lowest()[0][1]

    def _is_waited_for(self, holder: _Key | None) -> bool:
        assert self._minimum_ms is not None
        far_ms = saturated_ms(self._minimum_ms + min(self._drift_ms.values()))
        if self._others_ms is not None and self._others_ms >= far_ms and holder is not None:
            return True
        return any(
            (reader.is_here and reader.has_paused)
            or (key != holder and reader.watermark_ms is not None and reader.watermark_ms >= self._bound_ms(key[0]))
            for key, reader in self._readers.items()
        )
