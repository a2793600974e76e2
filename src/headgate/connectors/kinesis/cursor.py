"""Reads one shard forward, one call at a time, and says when the next call may be made.

Never: sleep, or give up because Kinesis throttles. Threads belong to those who call: a split reader, the scout.

What a call meets, and what follows:

    an iterator that expired            a new one at the position
    throttling                          waiting with full jitter, for as long as it takes
    no answer, or an error of Kinesis'  likewise, up to a time; then `SourceUnavailableError`
    records                             the position moves; the same shard is asked again after 200 ms at the earliest
    nothing, at the tip                 asked again after half a second
    nothing, at the end                 the shard is read: it was split or merged
    other records than the position's   `DataLossError`, or a warning

That the position's own record is still there is how lost data is noticed: Kinesis itself goes on silently with the
oldest record that it has. So a cursor opens a shard *at* the last record read and drops it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headgate.connectors.kinesis.api import MAX_RECORDS, Got, KinesisApi, Trouble, TroubleKind
from headgate.connectors.kinesis.options import NAME
from headgate.connectors.kinesis.split import TRIM_HORIZON, KinesisSplit, at
from headgate.errors import DataLossError, HeadgateError

logger = logging.getLogger(__name__)

CALL_INTERVAL_MS = 200
"""Kinesis allows five calls of GetRecords a second and shard, to all who read it together."""
IDLE_INTERVAL_MS = 500
"""How often a reader looks whether something new has come to a shard."""
LOOKS_BEFORE_LOSS = 3
"""So often a record that was seen must be missing at the tip of a shard before it counts as lost."""
FIRST_WAIT_MS = 100
LONGEST_WAIT_MS = 10_000


def monotonic_ms() -> int:
    """Return a time that only moves forward, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def wait_ms(failures: int, draw: Callable[[], float]) -> int:
    """Return how long to wait after so many failures in a row: any time up to a bound that doubles ("full jitter").

    Parameters
    ----------
    failures
        At least 1.
    draw
        A number from 0 to 1.
    """
    bound = min(LONGEST_WAIT_MS, FIRST_WAIT_MS << min(failures - 1, 30))
    return int(draw() * bound)


class Patience:
    """Decides what follows a call that failed: when to try again, or that it has been long enough.

    Parameters
    ----------
    give_up_ms
        How long Kinesis may not answer, in milliseconds.
    draw
        A number from 0 to 1, for the jitter.
    """

    def __init__(self, give_up_ms: int, draw: Callable[[], float] = random.random) -> None:
        self._give_up_ms = give_up_ms
        self._draw = draw
        self._failures = 0
        self._silent_since: int | None = None

    def answered(self) -> None:
        """Note an answer."""
        self._failures, self._silent_since = 0, None

    def failed(self, trouble: Trouble, now_ms: int) -> int:
        """Return how long to wait, in milliseconds.

        Raises
        ------
        SourceUnavailableError
            Nothing was answered for the time given.
        """
        self._failures += 1
        if trouble.kind is not TroubleKind.UNAVAILABLE:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now_ms
        elif now_ms - self._silent_since >= self._give_up_ms:
            raise trouble.error
        wait = wait_ms(self._failures, self._draw)
        logger.log(
            logging.WARNING if self._failures % 10 == 0 else logging.INFO,
            "tried %d times, again in %d ms: %s", self._failures, wait, trouble.error,
        )  # fmt: skip
        return wait


class CursorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all cursors of a source have in common; see the options of the same names. Times in milliseconds."""

    fail_on_data_loss: bool
    give_up_ms: int
    call_interval_ms: int
    idle_interval_ms: int


class Answer(msgspec.Struct, frozen=True):
    """What a call brought.

    Parameters
    ----------
    records
        As boto3 returns them; those of the split only.
    at_tip
        Nothing more is there now.
    ended
        Nothing more will come of the split: it reached its stop, or the shard its end.
    answered_ms
        When Kinesis answered, by its own clock.
    lag_ms
        How far these lag the newest record, in milliseconds.
    """

    records: list[dict[str, Any]]
    at_tip: bool
    ended: bool
    answered_ms: int = 0
    lag_ms: int = 0


class ShardCursor:
    """Reads a split. One thread at a time may use it.

    Parameters
    ----------
    api
        Asks Kinesis.
    split
        Where to begin, and where to stop.
    settings
        See `CursorSettings`.
    clock_ms, draw
        The time, and the jitter of waits.

    Attributes
    ----------
    split
        The split after what was returned.
    due_ms
        When the next call may be made, on ``clock_ms``.
    lag_ms
        How far the last answer lagged the newest record, in milliseconds; None: there was none yet.
    throttled
        How many calls were throttled.
    """

    def __init__(
        self,
        api: KinesisApi,
        split: KinesisSplit,
        settings: CursorSettings,
        *,
        clock_ms: Callable[[], int] = monotonic_ms,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.split = split
        self.due_ms = 0
        self.lag_ms: int | None = None
        self.throttled = 0
        self._api = api
        self._settings = settings
        self._clock_ms = clock_ms
        self._patience = Patience(settings.give_up_ms, draw)
        self._iterator: str | None = None
        self._looks = 0
        # The record that must come first, because it was seen before; None: it has come.
        self._expected = split.position.sequence_number
        self._is_after_expected = split.position.kind == "AFTER_SEQUENCE_NUMBER"

    def call(self, limit: int = MAX_RECORDS) -> Answer | None:
        """Ask once for at most so many records. None: it brought nothing, try again when it is due.

        Raises
        ------
        SourceUnavailableError
            Kinesis has not answered for too long.
        DataLossError
            Records that were seen, or that follow those, have expired.
        """
        if self.split.is_read:
            return Answer([], at_tip=True, ended=True)
        try:
            if self._iterator is None:
                self._iterator = self._open()
                self._patience.answered()
            asked = min(MAX_RECORDS, limit + (self._expected is not None and self._is_after_expected))
            got = self._api.get_records(self.split.split_id, self._iterator, asked)
        except Trouble as trouble:
            return self._after_trouble(trouble)
        self._patience.answered()
        self.lag_ms = got.lag_ms
        self._iterator = got.next_iterator
        answer = self._taken(got, is_full=len(got.records) >= asked)
        wait = self._settings.idle_interval_ms if answer.at_tip else self._settings.call_interval_ms
        self.due_ms = self._clock_ms() + wait
        return answer

    def _open(self) -> str:
        position = self.split.position
        if self._expected is not None:
            position = at(self._expected)
        return self._api.shard_iterator(self.split.split_id, position)

    def _after_trouble(self, trouble: Trouble) -> Answer | None:
        if trouble.kind is TroubleKind.NO_SHARD:
            self._lost(f"the shard is gone ({trouble.error})", trouble.error)
            return Answer([], at_tip=True, ended=True)
        if trouble.kind is TroubleKind.NO_POSITION:
            if self._expected is None:
                raise trouble.error
            self._lost(f"Kinesis does not know that record ({trouble.error})", trouble.error)
            self._begin_anew()
            return None
        self.throttled += trouble.kind is TroubleKind.THROTTLED
        if trouble.kind is TroubleKind.EXPIRED:
            self._iterator = None
        self.due_ms = self._clock_ms() + self._patience.failed(trouble, self._clock_ms())
        return None

    def _taken(self, got: Got, is_full: bool) -> Answer:
        """Check and cut an answer, and move the position after it."""
        is_closed = got.next_iterator is None
        # Records of one millisecond may be on both sides of a limit.
        at_tip = is_closed or (got.lag_ms == 0 and not is_full)
        records = got.records
        if self._expected is not None and not self._met(records, at_tip, is_closed):
            return Answer([], at_tip=False, ended=False, answered_ms=got.answered_ms, lag_ms=got.lag_ms)
        if self._expected is not None:
            if self._is_after_expected:
                records = records[1:]
            self._expected, self._looks = None, 0
        last_is_stop = False
        if self.split.stop is not None:
            records, last_is_stop = self._cut(records, at_tip, is_closed)
        if records:
            self.split = self.split.read_up_to(records[-1]["SequenceNumber"], len(records))
        ended = is_closed or last_is_stop
        return Answer(records, at_tip or last_is_stop, ended, got.answered_ms, got.lag_ms)

    def _met(self, records: list[dict[str, Any]], at_tip: bool, is_closed: bool) -> bool:
        """Return whether reading goes on with ``records``: they begin with the record that was seen before."""
        if records:
            if records[0]["SequenceNumber"] != self._expected:
                self._lost(f"the oldest record is now {records[0]['SequenceNumber']}")
                self._is_after_expected = False
            return True
        if at_tip and self._is_missing_for_good(is_closed):
            self._lost("the shard has no record from there on")
            self._begin_anew()
        return False

    def _cut(self, records: list[dict[str, Any]], at_tip: bool, is_closed: bool) -> tuple[list[dict[str, Any]], bool]:
        """Return the records up to the stop, and whether they reach it."""
        stop = int(self.split.stop or 0)
        kept = [each for each in records if int(each["SequenceNumber"]) <= stop]
        if kept and int(kept[-1]["SequenceNumber"]) == stop:
            return kept, True
        is_beyond = len(kept) < len(records)
        if is_beyond or (at_tip and self._is_missing_for_good(is_closed)):
            self._lost(f"the last record of the range to read, {self.split.stop}, is not there")
            return kept, True
        return kept, False

    def _is_missing_for_good(self, is_closed: bool) -> bool:
        self._looks += 1
        return is_closed or self._looks >= LOOKS_BEFORE_LOSS

    def _begin_anew(self) -> None:
        """Go on with whatever there is, since what was seen is lost."""
        self._expected, self._iterator, self._looks = None, None, 0
        self.split = msgspec.structs.replace(self.split, position=TRIM_HORIZON)

    def _lost(self, found: str, cause: HeadgateError | None = None) -> None:
        split = self.split
        message = (
            f"{NAME}: {split.split_id} of {self._api.address} is to be read from {split.position} on, but {found}. "
            "Records expire after the stream's retention period; a stream that was deleted and made again has others. "
        )
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                message + "Start with a new 'checkpointLocation', or go on without what may be lost by the option "
                "failOnDataLoss=false. (For a shard without any newer record this may be a false alarm.)",
                source=NAME, split=split.split_id, position=str(split.position), stop=split.stop,
            ) from cause  # fmt: skip
        logger.warning("%sGoing on without them.", message)
