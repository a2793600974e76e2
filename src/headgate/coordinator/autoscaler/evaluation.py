"""Makes of a window of figures what the autoscaler compares: how much comes in, and how much could be processed.

Never: decide anything.

Flink's autoscaler computes a rate of its own for each vertex, and from the sources on what each vertex will be given
(FLIP-271). Here all stages have the same parallelism, so that one number decides for all of them: what the sources
read, divided by how busy the busiest subtask was with it, is what they could read (the true processing rate). How many
rows a stage makes of one cancels out. Each subtask is averaged before the busiest is chosen: the largest of many shares
of short times says more about their noise.

    read rate    rows that were read
    data rate    rows that came: the read rate, and what the lag grew by
    capacity     the read rate / the busy share of the busiest subtask; at most the read rate while the query lags all
                 the time: whatever it waited for, more did not go through
    required     lag / catch-up time + data rate * time of a rescale / catch-up time + data rate / utilisation
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import msgspec

from headgate.coordinator.autoscaler.figures import FiguresObserved
from headgate.coordinator.autoscaler.options import AutoscalerOptions

_LAGGING_S = 5.0
"""A lag of more than what is read in so many seconds is one: rows that are under way, or that were read after the lag
was asked for, are not. Flink's ``observed-true-processing-rate.lag-threshold``, with restarts of minutes, is 30 s."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What a window of figures amounts to; rates are in rows per second.

    Parameters
    ----------
    read_rate, data_rate
        What was read, and what came in.
    capacity
        What could be read with the slots that there are; infinite where nothing came. None: that is not known.
    lag_rows
        The last lag; None: unknown.
    is_lagging
        Whether the query lags now, and reads.
    busiest, busy
        The stage whose busiest subtask is the busiest of all, and the share of that; None: unknown.
    """

    read_rate: float
    data_rate: float
    capacity: float | None
    lag_rows: int | None
    is_lagging: bool
    busiest: str
    busy: float | None

    @property
    def utilization(self) -> float | None:
        """Which share of the capacity what comes in takes; more than 1: it does not suffice."""
        if self.capacity is None:
            return None
        return self.data_rate / self.capacity if self.capacity else math.inf

    def required(self, options: AutoscalerOptions, utilization: float, restart_ms: int = 0) -> float:
        """Return the capacity with which the query would be utilised so far, and catch up in time.

        Parameters
        ----------
        options
            The catch-up time is one of them.
        utilization
            From 0 to 1; with 0 no capacity is enough.
        restart_ms
            How long nothing is read while the query is rescaled; what comes meanwhile is to be caught up as well.
        """
        utilization = min(1.0, utilization)
        if utilization <= 0:
            return math.inf
        required = self.data_rate / utilization
        if options.catch_up_ms:
            missed = self.data_rate * restart_ms / 1000
            required += ((self.lag_rows or 0) + missed) / (options.catch_up_ms / 1000)
        return required


class _Point(msgspec.Struct, frozen=True):
    at_ms: int
    figures: FiguresObserved


class Window:
    """The figures of the last while.

    Parameters
    ----------
    length_ms
        How long that is, in milliseconds.
    """

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self._points: deque[_Point] = deque()

    def __len__(self) -> int:
        return len(self._points)

    def clear(self) -> None:
        """Forget all figures."""
        self._points.clear()

    def add(self, figures: FiguresObserved, now_ms: int) -> None:
        """Add figures, and forget those that are older than the window."""
        points = self._points
        points.append(_Point(now_ms, figures))
        while len(points) > 2 and now_ms - points[1].at_ms >= self._length_ms:
            points.popleft()

    @property
    def is_full(self) -> bool:
        """Whether it reaches back as far as it should."""
        return len(self._points) > 1 and self._points[-1].at_ms - self._points[0].at_ms >= self._length_ms

    def evaluated(self) -> Evaluation:
        """Return what it amounts to; only if it is full."""
        first, last = self._points[0], self._points[-1]
        seconds = (last.at_ms - first.at_ms) / 1000
        read_rate = (last.figures.rows_read - first.figures.rows_read) / seconds
        lags = [each.figures.lag_rows for each in self._points if each.figures.lag_rows is not None]
        grown = (lags[-1] - lags[0]) / seconds if lags else 0.0
        shares = self._shares()
        busiest = max(shares, key=lambda name: shares[name], default="")
        busy = shares.get(busiest)
        lagged = bool(lags) and min(lags) > _LAGGING_S * read_rate
        is_paused = any(each.figures.is_paused for each in self._points)
        return Evaluation(
            read_rate=read_rate,
            data_rate=max(0.0, read_rate + grown),
            capacity=_capacity(read_rate, busy, lagged=lagged and not is_paused, grows=grown > 0),
            lag_rows=lags[-1] if lags else None,
            is_lagging=bool(lags) and read_rate > 0 and lags[-1] > _LAGGING_S * read_rate,
            busiest=busiest,
            busy=busy,
        )

    def _shares(self) -> Mapping[str, float]:
        """Return for each stage the average over the window, of the subtask where that is largest."""
        shares: dict[tuple[str, int], list[float]] = {}
        for point in self._points:
            for each in point.figures.busy:
                shares.setdefault((each.stage, each.subtask), []).append(each.share)
        of_stages: dict[str, float] = {}
        for (stage, _), of_subtask in shares.items():
            of_stages[stage] = max(sum(of_subtask) / len(of_subtask), of_stages.get(stage, 0.0))
        return of_stages


def _capacity(read_rate: float, busy: float | None, *, lagged: bool, grows: bool) -> float | None:
    if read_rate <= 0:
        return 0.0 if grows else math.inf  # nothing comes: it is unknown until something does, and surely enough
    by_busy = None if busy is None else read_rate / busy if busy > 0 else math.inf
    if not lagged:
        return by_busy
    return read_rate if by_busy is None else min(read_rate, by_busy)
