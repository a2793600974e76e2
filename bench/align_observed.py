"""What a continuous query did with each row and when: noted by an operator in the slots, put together afterwards.

Never: believe the query. `Observer` runs in ``mapInArrow`` and notes, for each call, the time of the machine's
monotonic clock (the same in all its processes), the partition and all event times; `measure` merges the notes of all
slots by time and replays them against the truth, which is every event time in the topic.

How exact it is: the operator follows the source, in the same thread. Rows of the slowest partition that have left
the source may not have been noted yet when another slot learns of them and reads on; so rows can seem to be too
early, by what lies between source and operator: one batch of a split at most. No row can seem in time that was not.
"""

from __future__ import annotations

import os
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.align_data import WINDOW_MS, EventTimes

_HEADER = "<qii"


class Observer:
    """A function for ``mapInArrow`` over the columns partition and timestamp of one split's rows.

    Parameters
    ----------
    folder
        Where each process writes its notes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self) -> None:
        """Begin a file of this process's own."""
        path = Path(self._folder) / f"{os.getpid()}-{time.monotonic_ns()}.notes"
        self._file = path.open("ab", buffering=0)  # a killed process has written what it noted

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Note the rows; nothing comes out."""
        for batch in batches:
            now_ns = time.monotonic_ns()
            times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
            header = struct.pack(_HEADER, now_ns, batch.column("partition")[0].as_py(), len(times))
            self._file.write(header + times.tobytes())
        return iter(())


class RowCounter(Observer):
    """Counts rows by window as well, one by one: what a user's function that looks at each row costs."""

    def open(self) -> None:
        """Begin without windows."""
        super().open()
        self._windows: dict[datetime, int] = {}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the rows, and note them."""
        for batch in batches:
            for at in batch.column("timestamp").to_pylist():
                window = at.replace(second=0, microsecond=0)
                self._windows[window] = self._windows.get(window, 0) + 1
            yield from super().__call__(iter((batch,)))


@dataclass(frozen=True)
class Note:
    """One call in one slot: when it was, in nanoseconds, and the rows, in milliseconds of event time."""

    at_ns: int
    slot: str
    partition: int
    times: EventTimes


def notes_in(folder: str) -> list[Note]:
    """Return the notes of all slots in the order of time."""
    found = []
    for path in Path(folder).glob("*.notes"):
        data, place = path.read_bytes(), 0
        while place < len(data):  # a note is written at once: there are whole ones only
            at_ns, partition, rows = struct.unpack_from(_HEADER, data, place)
            place += struct.calcsize(_HEADER)
            found.append(Note(at_ns, path.stem, partition, np.frombuffer(data, np.int64, rows, place)))
            place += rows * 8
    return sorted(found, key=lambda note: note.at_ns)


@dataclass
class Observed:
    """What the replay of the notes says about one run.

    Parameters
    ----------
    rows
        How many were processed.
    dropped
        How many came after their window had been closed, and how many never came.
    peak_windows
        The most windows held from one call to the next: they have rows, and are not yet passed by the lowest watermark
        of all partitions.
    peak_windows_in_slot
        The same of the slot with the most, each with its own rows and the lowest watermark of its own partitions.
    peak_windows_in_call
        As `peak_windows`, but before the watermark that follows from the call's own rows.
    overshoot_rows
        The most rows of one partition that were processed and beyond the slowest partition and the drift.
    overshoot_ms
        How far the furthest of them was beyond, in milliseconds of event time.
    largest_call
        The most rows of one partition in one call.
    seconds, waited_seconds
        From the first call to the last, except for the wait after the end of a partition; and that wait.
    total_seconds
        From the start of the query, which who ran it knows, to the last call, but for that wait.
    watermarks
        For each partition, how its watermark went: ``seconds`` by then, and milliseconds of event time.
    """

    rows: int = 0
    dropped: int = 0
    peak_windows: int = 0
    peak_windows_in_slot: int = 0
    peak_windows_in_call: int = 0
    overshoot_rows: int = 0
    overshoot_ms: int = 0
    largest_call: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    total_seconds: float = 0.0
    watermarks: list[list[tuple[float, int]]] = field(default_factory=list)


def measure(
    notes: Iterable[Note],
    truth: Sequence[EventTimes],
    delay_ms: int,
    max_drift_ms: int,
    reported: Iterable[tuple[int, int]] = (),
    idle_timeout_ms: int = 0,
) -> Observed:
    """Replay the notes.

    Parameters
    ----------
    notes
        In the order of time.
    truth
        The event times of each partition, in the order of offsets.
    delay_ms
        How far a partition's watermark lags its latest row, in milliseconds.
    max_drift_ms
        How far ahead of the slowest partition's watermark another's may be, in milliseconds.
    reported
        The query's own watermark: when it was heard of, in nanoseconds, and what it was, in milliseconds. It closes
        windows as well, so that a watermark that ran ahead of the rows shows as dropped rows.
    idle_timeout_ms
        About so long, in milliseconds, a query waits for more of a partition that has ended, because it cannot know of
        the end. That is not a time of reading.

    Raises
    ------
    ValueError
        The notes are not of these rows, in the order of each partition.
    """
    observed = Observed(watermarks=[[] for _ in truth])
    partitions = [_Partition(times, delay_ms) for times in truth]
    everything = _Windows(truth)
    notes, reported = list(notes), deque(reported)
    waits, waited_ns = _waits(notes, truth, max_drift_ms, idle_timeout_ms), 0
    # A slot's partitions are those it ever reads: it has them from the beginning, before their first rows.
    slots: dict[str, tuple[_Windows, set[int]]] = {}
    for note in notes:
        if note.slot not in slots:  # each looks at all of the truth
            slots[note.slot] = _Windows(truth), set()
        slots[note.slot][1].add(note.partition)
    for number, note in enumerate(notes):
        while reported and reported[0][0] <= note.at_ns:
            everything.close(reported.popleft()[1])
        partition = partitions[note.partition]
        partition.take(note.times)
        observed.rows += len(note.times)
        observed.largest_call = max(observed.largest_call, len(note.times))
        waited_ns += waits.get(number, 0)
        observed.seconds = (note.at_ns - notes[0].at_ns - waited_ns) / 1e9
        observed.watermarks[note.partition].append((observed.seconds, partition.watermark_ms))

        # Who is the slowest itself is ahead of nobody. The limit only grows: no row is further beyond it than now.
        others = (each.reach_ms for each in partitions if each is not partition and not each.finished)
        slowest_ms = min(others, default=None)
        rows, furthest_ms = partition.beyond(slowest_ms + max_drift_ms) if slowest_ms is not None else (0, 0)
        observed.overshoot_rows = max(observed.overshoot_rows, rows)
        observed.overshoot_ms = max(observed.overshoot_ms, furthest_ms)

        windows, own = slots[note.slot]
        observed.dropped += everything.add(note.times)
        windows.add(note.times)
        observed.peak_windows_in_call = max(observed.peak_windows_in_call, everything.open)
        everything.close(_lowest(partitions))
        windows.close(_lowest(partitions[each] for each in own))
        observed.peak_windows = max(observed.peak_windows, everything.open)
        observed.peak_windows_in_slot = max(observed.peak_windows_in_slot, windows.open)
    observed.waited_seconds = waited_ns / 1e9
    observed.dropped += sum(len(each.truth) - each.taken for each in partitions)
    return observed


def _waits(
    notes: Sequence[Note], truth: Sequence[EventTimes], max_drift_ms: int, idle_timeout_ms: int
) -> dict[int, int]:
    """Return the times in which nothing came because a partition had ended, in nanoseconds, by the note after them.

    They lie between its last row and the first one that is beyond it and the drift.
    """
    waits: dict[int, int] = {}
    taken = [0] * len(truth)
    ended: dict[int, int] = {}  # partitions that nobody has overtaken since, and their last event time
    still: dict[int, int] = {}
    for number, note in enumerate(notes):
        gap_ns = note.at_ns - notes[number - 1].at_ns if number else 0
        if ended and 10 * gap_ns >= idle_timeout_ms * 1_000_000:
            still[number] = gap_ns
        taken[note.partition] += len(note.times)
        overtaken = [each for each, at_ms in ended.items() if at_ms + max_drift_ms < int(note.times.max())]
        if overtaken:
            waits.update(still)
        if overtaken or taken[note.partition] == len(truth[note.partition]):
            still = {}
        for each in overtaken:
            del ended[each]
        if taken[note.partition] == len(truth[note.partition]):
            ended[note.partition] = int(truth[note.partition].max())
    return waits


def _lowest(partitions: Iterable[_Partition]) -> int | None:
    """Return the lowest watermark of those that are not finished, in milliseconds; None: all are."""
    return min((each.watermark_ms for each in partitions if not each.finished), default=None)


class _Partition:
    """How far one partition was read."""

    def __init__(self, truth: EventTimes, delay_ms: int) -> None:
        self.truth = truth
        self.taken = 0
        self._highest = np.maximum.accumulate(truth)
        self._delay_ms = delay_ms

    @property
    def finished(self) -> bool:
        """Whether all of it was read: it holds nobody back."""
        return self.taken == len(self.truth)

    @property
    def watermark_ms(self) -> int:
        """The highest event time, less the delay; before the first row what that row will make it."""
        return int(self._highest[max(0, self.taken - 1)]) - self._delay_ms

    @property
    def reach_ms(self) -> int:
        """What the next row will make of the watermark: where the partition is, be it before a gap."""
        return int(self._highest[min(self.taken, len(self._highest) - 1)]) - self._delay_ms

    def take(self, times: EventTimes) -> None:
        """Read on."""
        if not np.array_equal(self.truth[self.taken : self.taken + len(times)], times):
            raise ValueError(f"rows {self.taken} to {self.taken + len(times)} are others than those of the topic")
        self.taken += len(times)

    def beyond(self, limit_ms: int) -> tuple[int, int]:
        """Return how many rows that were read would raise the watermark beyond a limit, and by how much at most."""
        first = int(np.searchsorted(self._highest[: self.taken], limit_ms + self._delay_ms, side="right"))
        rows = np.count_nonzero(self.truth[first : self.taken] > limit_ms + self._delay_ms)
        return int(rows), max(0, self.watermark_ms - limit_ms) if rows else 0


class _Windows:
    """Windows of one minute: which have rows, and which are closed."""

    def __init__(self, truth: Sequence[EventTimes]) -> None:
        self._first = min(int(each.min()) for each in truth) // WINDOW_MS
        last = max(int(each.max()) for each in truth) // WINDOW_MS
        self._has_rows = np.zeros(last - self._first + 1, bool)
        self._closed = 0  # windows before this one

    @property
    def open(self) -> int:
        """How many have rows and are not closed."""
        return int(np.count_nonzero(self._has_rows[self._closed :]))

    def add(self, times: EventTimes) -> int:
        """Count rows, and return how many belong to a window that is closed."""
        windows = times // WINDOW_MS - self._first
        late = windows < self._closed
        self._has_rows[windows[~late]] = True
        return int(np.count_nonzero(late))

    def close(self, watermark_ms: int | None) -> None:
        """Close what a watermark has passed; None: it is the final one."""
        passed = len(self._has_rows) if watermark_ms is None else watermark_ms // WINDOW_MS - self._first
        self._closed = max(self._closed, min(passed, len(self._has_rows)))
