"""Decides who has a split reader: its fetcher's thread, or the task's thread to which that one lends it.

Never: call a split reader, or wait for anything; `headgate.readers.fetcher` carries out what is ordered.

The fetcher's thread takes turns (`Turn`), each of which begins with what there is: mails, pauses and new splits are
settled, then it is decided what follows. While fetches bring little the split reader is lent. Any mail takes it back,
and so does a poll after which there is more to do than to read on. What came before the first poll has no signal: a
split reader that is lent and was not polled is available. No event comes of a poll that changes nothing.

Follows FLIP-27, "High-level Readers".
"""

from __future__ import annotations

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row

SMALL_FETCHES = 8
"""After so many fetches in a row that brought few rows, and few bytes, a split reader is lent."""

# What happened.


class Turn(msgspec.Struct, frozen=True):
    """The fetcher's thread has nothing to do.

    Parameters
    ----------
    readable
        Whether a split is to be read.
    undone
        Whether there is more to do than to read on: splits wait, are paused, or are ahead of others.
    """

    readable: bool
    undone: bool


class Fetched(msgspec.Struct, frozen=True):
    """A fetch returned.

    Parameters
    ----------
    empty
        Whether it brought nothing.
    little
        Whether it brought so little that one thread fetches and processes it sooner than two.
    """

    empty: bool
    little: bool = True


class PollingBegun(msgspec.Struct, frozen=True):
    """The split reader is ready to be polled, or is not."""

    ready: bool


class FirstPolled(msgspec.Struct, frozen=True):
    """The task's thread polls it, for the first time since it was lent."""


class FetchWanted(msgspec.Struct, frozen=True):
    """A poll brought much, or an end, or found that there is more to do than to read on."""


class MailSent(msgspec.Struct, frozen=True):
    """The task's thread wants something; ``wakes``: also of a fetch that is under way."""

    wakes: bool = True


class CloseRequested(msgspec.Struct, frozen=True):
    """The split reader is to be closed."""


class Broke(msgspec.Struct, frozen=True):
    """The fetcher's thread ends by an error."""


Event = Turn | Fetched | PollingBegun | FirstPolled | FetchWanted | MailSent | CloseRequested | Broke

# What is to be done: on the fetcher's thread, but for the last two, which are for whoever sent something.


class Settle(msgspec.Struct, frozen=True):
    """Apply mails, pause and resume splits, and begin those that wait."""


class Fetch(msgspec.Struct, frozen=True):
    """Fetch. Answered by `Fetched`."""


class Rest(msgspec.Struct, frozen=True):
    """Wait a moment: a split reader that returns empty-handed at once, again and again, would use up a core."""


class Sleep(msgspec.Struct, frozen=True):
    """Sleep until the state is another."""


class BeginPolling(msgspec.Struct, frozen=True):
    """Have the split reader get ready to be polled. Answered by `PollingBegun`."""


class Lend(msgspec.Struct, frozen=True):
    """Notify the task that it may poll, and sleep until the state is another."""


class EndPolling(msgspec.Struct, frozen=True):
    """Have the split reader give no signals any more."""


class Close(msgspec.Struct, frozen=True):
    """Close the split reader: no turn follows."""


class WakeThread(msgspec.Struct, frozen=True):
    """Wake the fetcher's thread, which may sleep."""


class WakeFetch(msgspec.Struct, frozen=True):
    """Have the fetch under way return soon."""


Action = (
    Settle | Fetch | Rest | Sleep | BeginPolling | Lend | EndPolling | Close | WakeThread | WakeFetch
)  # fmt: skip


class Lending(Machine):
    """Who has one split reader.

    *Called* and *recalled*: a mail came while it fetched, or got ready to be polled. *Lent*: the task's thread may poll
    it, and has not. *Taken back*: it may not any more, and gives signals until the fetcher's thread ends that.

    Parameters
    ----------
    lends
        Whether it is lent at all.

    Examples
    --------
    >>> lending = Lending(lends=True)
    >>> lending.handle(Turn(readable=True, undone=False), 0), lending.handle(Turn(readable=True, undone=False), 0)
    ([Settle()], [Fetch()])
    >>> lending.handle(MailSent(), 0)
    [WakeFetch()]
    """

    # fmt: off
    TRANSITIONS = (
        Row("resting",              Turn,           "settled", [Settle]),
        Row("settled",              Turn,           "sleeping", [Sleep], "no split is to be read"),
        Row("settled",              Turn,           "fetching", [Fetch], when="to read"),
        Row("settled",              Turn,           "asking", [BeginPolling], "little came, again and again",
            when="to lend"),
        Row("fetching",             Fetched,        "resting", [Maybe(Rest)]),
        Row("called",               Fetched,        "resting"),
        Row("asking",               PollingBegun,   "lent", [Lend]),
        Row("asking",               PollingBegun,   "fetching", [Fetch], when="refused"),
        Row("recalled",             PollingBegun,   "taken back"),
        Row("recalled",             PollingBegun,   "resting", when="refused"),
        Row("lent",                 FirstPolled,    "polled"),
        Row("polled",               FetchWanted,    "taken back", [WakeThread]),
        Row("taken back",           Turn,           "resting", [EndPolling]),
        Row("resting",              MailSent,       SAME, [WakeThread], "it may rest"),
        Row("settled",              MailSent,       "resting"),
        Row("sleeping",             MailSent,       "resting", [WakeThread]),
        Row("fetching",             MailSent,       "called", [Maybe(WakeFetch)]),
        Row("called",               MailSent,       SAME, [Maybe(WakeFetch)]),
        Row("asking",               MailSent,       "recalled"),
        Row("lent, polled",         MailSent,       "taken back", [WakeThread]),
        Row("recalled, taken back", MailSent,       SAME, IGNORED, "a turn follows"),
        Row("resting, settled, sleeping, asking, recalled, lent, polled, taken back",
            CloseRequested, "closing", [WakeThread]),
        Row("fetching, called",     CloseRequested, "closing", [WakeFetch], by="_on_close_in_fetch"),
        Row("closing",              Fetched,        SAME, IGNORED),
        Row("closing",              PollingBegun,   SAME),
        Row("closing",              Turn,           "closed", [Maybe(EndPolling), Close]),
        Row("closing, closed",      MailSent,       SAME, IGNORED, "nothing is read any more"),
        Row("closing, closed",      CloseRequested, SAME, IGNORED, "again"),
        Row("resting, settled, sleeping, fetching, called, asking, recalled, lent, polled, taken back, closing, closed",
            Broke, "closed"),
    )
    # fmt: on

    def __init__(self, *, lends: bool) -> None:
        super().__init__()
        self.state = "resting"
        self._lends = lends
        self._small = 0  # fetches in a row that brought little
        self._was_empty = False  # what was fetched last: a client may only have learnt that there is no more
        self._gives_signals = False

    @property
    def is_lent(self) -> bool:
        """Whether the task's thread may poll."""
        return self.state in ("lent", "polled")

    @property
    def sleeps(self) -> bool:
        """Whether the fetcher's thread has nothing to do until the state is another."""
        return self.state in ("sleeping", "lent", "polled")

    def check(self) -> None:
        """Assert what always holds."""
        assert self._gives_signals or not (self.is_lent or self.state == "taken back")
        assert not self._gives_signals or self.is_lent or self.state in ("taken back", "closing", "closed")
        assert self._lends or not self._gives_signals

    # What the fetcher's thread reports.

    def _on_turn(self, event: Turn, now_ms: int) -> list[Action]:
        match self.state:
            case "resting":
                self.state = "settled"
                return [Settle()]
            case "taken back":
                self.state, self._gives_signals = "resting", False
                return [EndPolling()]
            case "closing":
                self.state = "closed"
                ends, self._gives_signals = self._gives_signals, False
                return [EndPolling(), Close()] if ends else [Close()]
        if not event.readable:
            self.state = "sleeping"
            return [Sleep()]
        if self._lends and self._small >= SMALL_FETCHES and not event.undone:
            self.state, self._small = "asking", 0
            return [BeginPolling()]
        self.state = "fetching"
        return [Fetch()]

    def _on_fetched(self, event: Fetched, now_ms: int) -> list[Action]:
        rests = event.empty and self._was_empty and self.state == "fetching"
        self.state, self._was_empty = "resting", event.empty
        if not event.empty:
            self._small = self._small + 1 if event.little else 0
        return [Rest()] if rests else []

    def _on_polling_begun(self, event: PollingBegun, now_ms: int) -> list[Action]:
        self._gives_signals = event.ready
        match self.state, event.ready:
            case "asking", True:
                self.state = "lent"
                return [Lend()]
            case "asking", False:
                self.state = "fetching"
                return [Fetch()]
            case "recalled", _:
                self.state = "taken back" if event.ready else "resting"
        return []

    def _on_broke(self, event: Broke, now_ms: int) -> list[Action]:
        self.state = "closed"
        return []

    # What the task's thread does.

    def _on_first_polled(self, event: FirstPolled, now_ms: int) -> list[Action]:
        self.state = "polled"
        return []

    def _on_fetch_wanted(self, event: FetchWanted, now_ms: int) -> list[Action]:
        self.state = "taken back"
        return [WakeThread()]

    def _on_mail_sent(self, event: MailSent, now_ms: int) -> list[Action]:
        match self.state:
            case "fetching" | "called":
                self.state = "called"
                return [WakeFetch()] if event.wakes else []
            case "asking":
                self.state = "recalled"
                return []
            case "settled":
                self.state = "resting"
                return []
        self.state = "taken back" if self.is_lent else "resting"
        return [WakeThread()]

    def _on_close_requested(self, event: CloseRequested, now_ms: int) -> list[Action]:
        self.state = "closing"
        return [WakeThread()]

    def _on_close_in_fetch(self, event: CloseRequested, now_ms: int) -> list[Action]:
        self.state = "closing"
        return [WakeFetch()]
