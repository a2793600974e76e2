"""Reads ahead of the tasks, to know where a range may end: at a sequence number that somebody has seen.

Never: keep data (sequence numbers only, and those only until they are planned), or ask Kinesis again while the last
answer was "nothing" and is less than a second old: Spark plans a hundred times a second when nothing comes.

What it costs: every record is read twice, once here and once by a task; both count towards the shard's 2 MB and five
calls a second. A time would not be a stop: asked again, Kinesis may have more records up to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from headgate.connectors.kinesis.api import MAX_RECORDS
from headgate.connectors.kinesis.cursor import Answer, ShardCursor, monotonic_ms
from headgate.connectors.kinesis.split import KinesisSplit, ShardPosition, after, at
from headgate.source.source import PlannedRange

REST_MS = 1000
"""How long a shard in which nothing was found is left alone by the planner."""


class Seen:
    """The records of one split that were seen and are not planned yet.

    Parameters
    ----------
    cursor
        At the split's position.

    Attributes
    ----------
    position
        The position before the first of them.
    count
        How many there are.
    at_tip, ended
        Whether there is nothing more now, or never will be, after the last of them.
    rested_ms
        When something may be there again, on the planner's clock.
    lag_ms
        How far the last of them lags the newest record, in milliseconds.
    """

    def __init__(self, cursor: ShardCursor) -> None:
        self.cursor = cursor
        self.position: ShardPosition = cursor.split.position
        self.count = 0
        self.at_tip = False
        self.ended = False
        self.rested_ms = 0
        self.lag_ms = 0
        self._first: str | None = None
        self._numbers: list[str] = []  # the last of all that were seen; all of them, if they are kept
        self._until_ms: int | None = None

    def begin(self) -> None:
        """Look again for what is there now."""
        self.at_tip, self._until_ms = False, None

    def add(self, answer: Answer, *, keep: bool) -> None:
        """Take what an answer brought; without ``keep`` all of it can only be planned together."""
        numbers = [each["SequenceNumber"] for each in answer.records]
        if numbers:
            self._first = self._first or numbers[0]
            self.count += len(numbers)
            self._numbers = [*self._numbers, *numbers] if keep else numbers[-1:]
            arrived = answer.records[-1]["ApproximateArrivalTimestamp"].timestamp() * 1000
            # On a busy shard the tip may never be reached: up to now is enough. Kinesis gives its time in seconds.
            self._until_ms = self._until_ms or answer.answered_ms + 1000
            self.at_tip = arrived >= self._until_ms
        self.lag_ms = answer.lag_ms
        self.ended = self.ended or answer.ended
        self.at_tip = self.at_tip or answer.at_tip or answer.ended

    def take(self, split: KinesisSplit, rows: int) -> PlannedRange[KinesisSplit] | None:
        """Return the range of the first ``rows`` records, which then are planned; None if there is nothing to read.

        A shard that ended is planned even without a record, so that its children may be read.
        """
        rows = min(rows, self.count)
        if rows == 0:
            return PlannedRange(split=msgspec.structs.replace(split, ended=True)) if self._is_over(0) else None
        assert self._first is not None
        last = self._numbers[-1 if rows == self.count else rows - 1]
        left = None if split.rows is None else max(0, split.rows - rows)
        planned = PlannedRange(
            split=msgspec.structs.replace(split, position=at(self._first), stop=last, rows=rows),
            rest=None if self._is_over(rows) else msgspec.structs.replace(split, position=after(last), rows=left),
        )
        self._numbers = self._numbers[rows:] if rows < self.count else []
        self._first = self._numbers[0] if self._numbers else None
        self.count -= rows
        self.position = after(last)
        return planned

    def _is_over(self, rows: int) -> bool:
        return self.ended and rows == self.count


class Scout:
    """Reads ahead in several splits at once. Lives in the planner's process; one thread calls it.

    Parameters
    ----------
    open_cursor
        Makes the cursor of a split.
    threads
        How many shards to ask at once.
    """

    def __init__(
        self,
        open_cursor: Callable[[KinesisSplit], ShardCursor],
        threads: int,
        *,
        records_per_call: int = MAX_RECORDS,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._open_cursor = open_cursor
        self._threads = threads
        self._records_per_call = records_per_call
        self._clock_ms = clock_ms
        self._seen: dict[str, Seen] = {}

    def seen(self, split: KinesisSplit) -> Seen:
        """Return what was seen after the split's position and is not planned yet."""
        seen = self._seen.get(split.split_id)
        if seen is None or seen.position != split.position or seen.cursor.split.stop != split.stop:
            seen = self._seen[split.split_id] = Seen(self._open_cursor(split))
        return seen

    def forget_others(self, splits: Sequence[KinesisSplit]) -> None:
        """Drop what was seen of splits that are no longer in progress."""
        ids = {split.split_id for split in splits}
        self._seen = {split_id: seen for split_id, seen in self._seen.items() if split_id in ids}

    def lag_ms(self) -> int:
        """Return the lag of the slowest shard as of the last answers, in milliseconds."""
        return max((seen.lag_ms for seen in self._seen.values()), default=0)

    def read_ahead(
        self,
        splits: Sequence[KinesisSplit],
        *,
        most: int | None,
        most_per_split: int | None,
        budget_ms: int | None,
        now_ms: int,
    ) -> dict[str, Seen]:
        """Look for records after the splits' positions, and return what was seen by split id.

        Parameters
        ----------
        most, most_per_split
            No need to look for more records than these, together or in each. None: for all that are there now.
        budget_ms
            Begin no call after so many milliseconds, and leave alone shards in which nothing was found a moment ago;
            None: take as long as it needs.
        now_ms
            The planner's time.
        """
        keep = most is not None or most_per_split is not None
        enough = min(most or 1 << 60, most_per_split or 1 << 60)
        all_seen = {split.split_id: self.seen(split) for split in splits}
        looked = [
            seen for seen in all_seen.values() if not seen.ended and (budget_ms is None or seen.rested_ms <= now_ms)
        ]
        for seen in looked:
            seen.begin()
        end_ms = None if budget_ms is None else self._clock_ms() + budget_ms
        while most is None or sum(seen.count for seen in all_seen.values()) < most:
            hungry = [seen for seen in looked if not seen.at_tip and seen.count < enough]
            if not hungry:
                break
            now = self._clock_ms()
            first_due = min(seen.cursor.due_ms for seen in hungry)
            if end_ms is not None and max(now, first_due) >= end_ms:
                break
            if first_due > now:
                time.sleep((first_due - now) / 1000)
                continue
            # Those that waited longest first: there may be more shards than there is time for.
            due = sorted((seen for seen in hungry if seen.cursor.due_ms <= now), key=lambda seen: seen.cursor.due_ms)
            calls = [(seen, min(self._records_per_call, enough - seen.count)) for seen in due]
            self._ask(calls, keep=keep, end_ms=end_ms)
        for seen in looked:
            if seen.at_tip and not seen.count:
                seen.rested_ms = now_ms + REST_MS
        return all_seen

    def _ask(self, calls: Sequence[tuple[Seen, int]], *, keep: bool, end_ms: int | None) -> None:
        """Make one call for each, in this order, on a few threads that end with it; begin none after ``end_ms``."""
        todo = list(reversed(calls))
        errors: list[BaseException] = []

        def work() -> None:
            while not errors:
                try:
                    seen, limit = todo.pop()  # atomic: a list is a stack to any number of threads
                except IndexError:
                    return
                try:
                    self._ask_one(seen, limit, keep)
                except BaseException as error:
                    errors.append(error)
                if end_ms is not None and self._clock_ms() >= end_ms:
                    return

        count = min(self._threads, len(calls))
        if count == 1:
            work()
        else:
            # Daemons: one that waits for Kinesis must not hold up the end of the process.
            threads = [
                threading.Thread(target=work, name=f"headgate-scout-{number}", daemon=True) for number in range(count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def _ask_one(self, seen: Seen, limit: int, keep: bool) -> None:
        answer = seen.cursor.call(limit)
        if answer is not None:
            seen.add(answer, keep=keep)


def shares(available: dict[str, int], most: int | None, most_each: int | None) -> dict[str, int]:
    """Share a limit fairly: those with few records get all of theirs, and what they leave goes to the others.

    Examples
    --------
    >>> shares({"a": 1, "b": 100, "c": 100}, 21, None)
    {'a': 1, 'b': 10, 'c': 10}
    """
    granted = {}
    left = most
    by_count = sorted(available.items(), key=lambda item: item[1])
    for number, (split_id, count) in enumerate(by_count):
        share = count if most_each is None else min(count, most_each)
        if left is not None:
            share = min(share, -(-left // (len(by_count) - number)))
            left -= share
        granted[split_id] = share
    return granted
