"""Numbers the records of a source's write-ahead log, and knows which are durable and which segments miss some.

Never: write or read a log: `write_ahead_log` does, when it is ordered to.

A segment begins with a snapshot or a start and is named after its checkpoint. Numbers go on over all segments and are
not used twice. One write is under way at a time; what comes meanwhile goes into the next one, as far as it is of the
same segment: a file has records of one segment.

Follows FLIP-27, "Where to run the enumerator" (write-ahead log).
"""

from __future__ import annotations

from collections import deque

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import LogRecord


class LogSegments:
    """The log of one source.

    Attributes
    ----------
    segment
        The current segment.
    number
        Of the last record.
    durable
        Up to which number all is written, or never will be.
    """

    def __init__(self) -> None:
        self.number = 0
        self.begin(0)

    def begin(self, checkpoint_id: int) -> None:
        """Begin a new log; what is still heard of an older one does not count."""
        self.segment = checkpoint_id
        self.durable = self._ordered = self.number  # a write is under way while these two differ
        self._first_number = self.number + 1
        self._broken_segment: int | None = None  # the last one that misses records
        self._waiting: deque[tuple[int, list[LogRecord]]] = deque()  # by segment

    def begin_segment(self, checkpoint_id: int) -> None:
        """Write what follows into the segment of this checkpoint."""
        self.segment = checkpoint_id

    def append(self, *records: LogRecord) -> list[src.AppendLog]:
        """Add records, unless their segment is not whole anyway; return what is to be written now."""
        if not records or self.is_broken:
            return []
        self.number += len(records)
        if not self._waiting or self._waiting[-1][0] != self.segment:
            self._waiting.append((self.segment, []))
        self._waiting[-1][1].extend(records)
        return self._next_write()

    def appended(self, number: int) -> list[src.AppendLog]:
        """Note that all up to this number is durable; return what is to be written now."""
        self.durable = max(self.durable, number)
        return self._next_write()

    def write_all(self) -> list[src.AppendLog]:
        """Return all that waits, to be written before the log is read."""
        return [self._write() for _ in range(len(self._waiting))]

    def go_on_without(self) -> None:
        """Wait for no record any longer: it matters only if the enumerator fails before the next checkpoint."""
        self._broken_segment = self.segment
        self.durable = self._ordered = self.number
        self._waiting.clear()

    def _next_write(self) -> list[src.AppendLog]:
        return [self._write()] if self._waiting and self.durable == self._ordered else []

    def _write(self) -> src.AppendLog:
        segment, records = self._waiting.popleft()
        self._ordered += len(records)
        return src.AppendLog(segment, self._ordered, tuple(records))

    def is_older(self, number: int) -> bool:
        """Return whether a record is of a log that was dropped."""
        return number < self._first_number

    @property
    def is_broken(self) -> bool:
        """Whether the current segment misses records."""
        return self.segment == self._broken_segment

    def is_whole_since(self, checkpoint_id: int) -> bool:
        """Return whether no segment from this one on misses records."""
        return self._broken_segment is None or self._broken_segment < checkpoint_id

    def check(self) -> None:
        """Assert what always holds."""
        assert self.durable <= self._ordered == self.number - sum(len(records) for _, records in self._waiting)
        assert self.durable < self._ordered or not self._waiting, "records wait, and nothing is being written"
