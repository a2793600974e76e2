"""Which windows a row belongs to, by its event time: tumbling, sliding and session windows or none, as values.

Never: look at anything but event times.

Time is counted in microseconds since 1970-01-01 UTC, as Spark's timestamps are. A window has its start and not its end.
Rows are kept in *buckets*, each with the start of a window for its name:

    windows                                a bucket holds rows of   a row is in    a window is made of
    -------------------------------------  -----------------------  -------------  -------------------
    tumbling                               a window                 one bucket     one bucket
    sliding, of a whole number of slides   a slide                  one bucket     several buckets
    sliding, of any other size             a window                 several        one bucket
    none                                   everything               one bucket     one bucket
    none, and the event time is a key      an event time            one bucket     one bucket

In each case a row's last window, and a bucket's last one too, ends one window's size after the bucket's start: after
that it is late. Without a window everything ends with the last watermark, and an event time with one that is as late.

Follows Spark 4.3's ``TimeWindowing`` and ``SessionWindowing``.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headgate.expressions.expressions import Node, text_of
from headgate.state.arrays import numbers_from

Micros = npt.NDArray[np.int64]
"""Event times."""
MOST_US = 2**63 - 1


class TimeWindow(msgspec.Struct, frozen=True):
    """Tumbling or sliding windows.

    Parameters
    ----------
    time
        The event time, a timestamp.
    size_us, slide_us, start_us
        How long a window is, how long after another the next begins, and when one does, in microseconds.
    name
        The name of its column.
    made_by
        The id of the attribute of Spark's plan that these windows were made for; others may stand for them, too.
    """

    time: Node
    size_us: int
    slide_us: int
    start_us: int = 0
    name: str = "window"
    made_by: int = 0

    @property
    def text(self) -> str:
        """What it is, for people to read."""
        sizes = (f"{each / 1_000_000:g} s" for each in (self.size_us, self.slide_us, self.start_us))
        return f"window({', '.join((text_of(self.time), *sizes))})"

    def alias(self, name: str) -> TimeWindow:
        """Name its column."""
        return msgspec.structs.replace(self, name=name)

    def last_starts(self, times: Micros) -> Micros:
        """Return the start of the last window of each event time."""
        starts = times - self.start_us
        starts %= self.slide_us
        np.subtract(times, starts, out=starts)
        return starts

    def panes(self, times: Micros) -> Micros:
        """Return an event time for each: the same for all that are in the same windows, and in these windows itself.

        Where windows are no whole number of slides long, the first part of a slide is in one window more.
        """
        starts, rest = self.last_starts(times), self.size_us % self.slide_us
        if rest and self.slide_us < self.size_us:
            starts[times - starts >= rest] += rest
        return starts


class SessionWindow(msgspec.Struct, frozen=True):
    """Windows that end after a gap without a row of their key.

    Parameters
    ----------
    time
        The event time, a timestamp.
    gap_us
        How long a gap is, in microseconds, if it is the same for all rows.
    name
        The name of its column.
    end
        Where each row has a gap of its own: when that ends, a timestamp above ``time``.
    gap
        The expression of that gap, for people to read.
    """

    time: Node
    gap_us: int
    name: str = "session_window"
    end: Node | None = None
    gap: str = ""

    @property
    def text(self) -> str:
        """What it is, for people to read."""
        gap = f"{self.gap_us / 1_000_000:g} s" if self.end is None else f"by row: {self.gap}"
        return f"session_window({text_of(self.time)}, {gap})"

    def alias(self, name: str) -> SessionWindow:
        """Name its column."""
        return msgspec.structs.replace(self, name=name)


class NoWindow(msgspec.Struct, frozen=True):
    """No window: groups live as long as the query, or until the watermark is at the event time in their key.

    Parameters
    ----------
    time
        The event time, if it is a key; None: none of them is.
    """

    time: Node | None = None

    @property
    def text(self) -> str:
        """What it is, for people to read."""
        return "no window" if self.time is None else f"no window, until {text_of(self.time)}"


class Buckets:
    """Which buckets rows are in, and which windows are made of them.

    Parameters
    ----------
    window
        The windows.
    apart
        Whether every bucket is to be a window.
    """

    def __init__(self, window: TimeWindow | NoWindow, *, apart: bool = False) -> None:
        self._window = window
        self.slide_us, self.per_window, self.per_row = 0, 1, 1
        self.reach_us = 0
        """How long after a window's first bucket its last one begins."""
        if isinstance(window, NoWindow):
            self.size_us = MOST_US if window.time is None else 0
            return
        self.size_us, self.slide_us = window.size_us, window.slide_us
        whole, rest = divmod(window.size_us, window.slide_us)
        shared = rest == 0 and not apart
        self.per_window = whole if shared else 1
        """Of how many buckets a window is made."""
        self.per_row = 1 if shared else whole + (rest > 0)
        """In how many buckets a row is at most."""
        self.reach_us = (self.per_window - 1) * self.slide_us

    def of(self, times: Micros) -> Micros:
        """Return the last bucket of each event time; without a window, of 0 for each row, or of its key."""
        return times if isinstance(self._window, NoWindow) else self._window.last_starts(times)

    def all(self, last: Micros, times: Micros, horizon: Any) -> tuple[npt.NDArray[np.int64], Micros]:
        """Return the buckets of rows that have not ended by a horizon, as rows, in their order, and the bucket of each.

        Parameters
        ----------
        last
            The last bucket of each row, which has not ended.
        times
            Their event times.
        horizon
            In microseconds: for all rows, or for each.
        """
        rows, buckets = [np.arange(len(last))], [last]
        for number in range(1, self.per_row):
            starts = last - number * self.slide_us
            ends = starts + self.size_us
            (those,) = np.nonzero((ends > times) & (ends > horizon))
            rows.append(those)
            buckets.append(starts[those])
        order = np.argsort(np.concatenate(rows), kind="stable")
        return np.concatenate(rows)[order], np.concatenate(buckets)[order]

    def ended(self, buckets: Micros, before: int, horizon: int) -> Micros:
        """Return the starts, in order, of windows with rows in these buckets that end after one horizon, by the other.

        Parameters
        ----------
        buckets
            In order.
        before, horizon
            In microseconds.
        """
        if not len(buckets):
            return buckets
        # Windows are counted from the first that could have a row: what of an earlier bucket was counted is not again.
        numbers = (buckets - buckets[0]) // self.slide_us
        first = numbers - (self.per_window - 1)
        first[1:] = np.maximum(first[1:], numbers[:-1] + 1)
        base = int(buckets[0]) + self.size_us  # the end of window 0
        first = np.maximum(first, _ended_windows(base, self.slide_us, before) + 1)
        last = np.minimum(numbers, _ended_windows(base, self.slide_us, horizon))
        many = np.maximum(0, last - first + 1)
        found: Micros = numbers_from(first, many) * self.slide_us + buckets[0]
        return found


def _ended_windows(base_us: int, slide_us: int, horizon_us: int) -> int:
    """Return the number of the last window that ends by a horizon, if window 0 ends at ``base_us``."""
    return max(-(1 << 62), min(1 << 62, (horizon_us - base_us) // slide_us))
