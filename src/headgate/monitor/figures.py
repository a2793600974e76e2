"""Adds up what subtasks say they did: rows, time, positions, over deployments that start counting again at 0.

Never: read a clock; go back: no total ever falls, whatever comes late, twice or out of order.

Rows that are read again after a failure count again: they were read again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import msgspec

from headgate.protocol.messages import (
    RecoveryProgress,
    RestoreProgress,
    SplitEventTime,
    SubtaskId,
    SubtaskProgress,
    TimeSpent,
)
from headgate.source.metrics import NUM_BYTES_IN, Measurement, aggregated


class BusyOperator(msgspec.Struct, frozen=True, kw_only=True):
    """How busy an operator is, at the subtask where it is busiest.

    Parameters
    ----------
    uid, stage
        The operator, and the stage that it is part of.
    subtask
        Which subtask.
    share
        The part of the time, from 0 to 1, since the interval began.
    """

    uid: str
    stage: int
    subtask: int
    share: float


class StageRecovery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the subtasks of a stage have yet to recover, together: `headgate.protocol.messages.RecoveryProgress`.

    Parameters
    ----------
    stage, subtasks
        Which stage, and how many of its subtasks are not through.
    phase
        Of the one that has the most left.
    rows_to_read, rows_left, memory_bytes, disk_bytes
        Sums.
    """

    stage: int
    subtasks: int
    phase: str
    rows_to_read: int
    rows_left: int
    memory_bytes: int
    disk_bytes: int


class StageRestore(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far the subtasks of a stage are with their keyed state, together: `RestoreProgress` of each.

    Parameters
    ----------
    stage, subtasks
        Which stage, and how many of its subtasks are not through.
    bytes_to_read, bytes_left
        Sums.
    duration_ms
        Of the subtask that takes longest.
    """

    stage: int
    subtasks: int
    bytes_to_read: int
    bytes_left: int
    duration_ms: int


class TimeShares(msgspec.Struct, frozen=True, kw_only=True):
    """What the thread of a subtask did with its time, from 0 to 1.

    Parameters
    ----------
    busy, back_pressured, idle
        It worked; it waited for room in its outputs; it waited for rows. Together they are 1.
    paused
        Splits of its were paused by alignment, whatever the thread did meanwhile.
    """

    busy: float
    back_pressured: float
    idle: float
    paused: float


class SubtaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask reported last, and what it did by second in the last `WINDOW_MS`.

    Parameters
    ----------
    last
        Its newest message.
    rows_in_per_second, rows_out_per_second
        Rows by second, by the uid of the source and of the sink; None: there is but one message yet.
    busy
        By operator uid: the part of the time, from 0 to 1; None: there is but one message yet.
    time
        What its thread did with its time; None: there is but one message yet.
    bytes_in_per_second
        Bytes by second, by the uid of the source, of those that count them; None: there is but one message yet.
    received_per_second, sent_per_second
        Rows of exchanges by second; None: there is but one message yet.
    """

    last: SubtaskProgress
    rows_in_per_second: dict[str, float] | None
    rows_out_per_second: dict[str, float] | None
    busy: dict[str, float] | None
    time: TimeShares | None
    bytes_in_per_second: dict[str, float] | None
    received_per_second: float | None
    sent_per_second: float | None


WINDOW_MS = 5_000
"""Over how long rates and shares of the time are taken, in milliseconds."""
_PHASES = ("reading", "replaying", "processing")


class _Sample(msgspec.Struct, frozen=True):
    """The counts of a message: without positions, of which only the newest are kept."""

    at_ms: int
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    busy_ms: dict[str, int]
    time: TimeSpent | None
    exchanged: dict[str, int]


class _Subtask(msgspec.Struct):
    """The last message and when it came, the one that the interval began with, and the counts of the last seconds.

    ``bytes_in`` is by source and of those messages that had metrics.
    """

    last: SubtaskProgress
    last_ms: int
    first: SubtaskProgress
    first_ms: int
    window: deque[_Sample]
    bytes_in: deque[tuple[int, dict[str, int]]]

    def move_window(self) -> None:
        """Take the newest counts into the window, and leave out what is too old to begin it."""
        last, window = self.last, self.window
        window.append(_Sample(self.last_ms, last.rows_in, last.rows_out, last.busy_ms, last.time, _exchanged(last)))
        while len(window) > 2 and window[1].at_ms <= self.last_ms - WINDOW_MS:
            window.popleft()

    def take_bytes(self, metrics: Mapping[str, Mapping[str, Measurement]]) -> None:
        """Take the counts of bytes into their window."""
        counted = {uid: int(of[NUM_BYTES_IN].value) for uid, of in metrics.items() if NUM_BYTES_IN in of}
        if counted:
            self.bytes_in.append((self.last_ms, counted))
            while len(self.bytes_in) > 2 and self.bytes_in[1][0] <= self.last_ms - WINDOW_MS:
                self.bytes_in.popleft()

    def figures(self) -> SubtaskFigures:
        """Return what it did in the window."""
        first, last = self.window[0], self.window[-1]
        elapsed_ms = last.at_ms - first.at_ms
        if elapsed_ms <= 0:
            return SubtaskFigures(
                last=self.last, rows_in_per_second=None, rows_out_per_second=None, busy=None, time=None,
                bytes_in_per_second=None, received_per_second=None, sent_per_second=None,
            )  # fmt: skip
        rows_in = _per_ms(first.rows_in, last.rows_in, elapsed_ms)
        rows_out = _per_ms(first.rows_out, last.rows_out, elapsed_ms)
        exchanged = _per_ms(first.exchanged, last.exchanged, elapsed_ms)
        return SubtaskFigures(
            last=self.last,
            rows_in_per_second={uid: 1000 * rate for uid, rate in rows_in.items()},
            rows_out_per_second={uid: 1000 * rate for uid, rate in rows_out.items()},
            busy={uid: min(1.0, share) for uid, share in _per_ms(first.busy_ms, last.busy_ms, elapsed_ms).items()},
            time=_shares(next((each.time for each in self.window if each.time is not None), None), last.time),
            bytes_in_per_second=self._bytes_per_second(),
            received_per_second=1000 * exchanged["received"],
            sent_per_second=1000 * exchanged["sent"],
        )

    def _bytes_per_second(self) -> dict[str, float]:
        if not self.bytes_in:
            return {}
        (first_ms, first), (last_ms, last) = self.bytes_in[0], self.bytes_in[-1]
        if last_ms <= first_ms:
            return {}
        return {uid: 1000 * rate for uid, rate in _per_ms(first, last, last_ms - first_ms).items()}

    def shares(self) -> dict[str, float]:
        """Return by operator the part of the time that it took; nothing while there is but one message."""
        elapsed_ms = self.last_ms - self.first_ms
        if elapsed_ms <= 0:
            return {}
        return {
            uid: min(1.0, max(0, busy_ms - self.first.busy_ms.get(uid, 0)) / elapsed_ms)
            for uid, busy_ms in self.last.busy_ms.items()
        }


class Figures:
    """The sums of one query.

    Examples
    --------
    >>> figures = Figures()
    >>> figures.take(0, SubtaskProgress(stage=0, execution=1, rows_in={"kafka": 70}), 1000)
    >>> figures.take(0, SubtaskProgress(stage=0, execution=2, rows_in={"kafka": 5}), 2000)
    >>> figures.rows_in["kafka"]
    75
    """

    def __init__(self) -> None:
        self.rows_in: Counter[str] = Counter()
        """Rows read since the start, by source uid."""
        self.rows_out: Counter[str] = Counter()
        """Rows written since the start, by sink uid."""
        self.skipped = 0
        """Bad records skipped since the start."""
        self.late = 0
        """Rows that came after the watermark, since the start."""
        self.helper: Counter[str] = Counter()
        """What the Java process for expressions was asked: requests, rows, and busyMs, since the start."""
        self.lag: dict[str, dict[str, int]] = {}
        """The lag of sources that know it, by source uid; set from outside."""
        self._subtasks: dict[SubtaskId, _Subtask] = {}
        self._counted: dict[str, Counter[str]] = {}  # by source uid: what its connector counts, since the start
        self._enumerators: dict[str, tuple[int, Mapping[str, Measurement]]] = {}  # incarnation and its metrics

    def take(self, subtask: int, progress: SubtaskProgress, now_ms: int) -> None:
        """Take note of a message. One of an older deployment is ignored."""
        key, is_measured = SubtaskId(progress.stage, subtask), False
        known = self._subtasks.get(key)
        if known is not None and progress.execution < known.last.execution:
            return
        if known is not None and progress.execution == known.last.execution:
            before = known.last
            if not progress.splits:
                progress = msgspec.structs.replace(
                    progress, splits=before.splits, positions=before.positions, event_times=before.event_times
                )
            if not progress.metrics:
                progress = msgspec.structs.replace(
                    progress, metrics=before.metrics, pending_records=before.pending_records
                )
            else:
                is_measured = True
            known.last, known.last_ms = progress, max(now_ms, known.last_ms)
        else:
            before = SubtaskProgress(stage=progress.stage, execution=progress.execution)
            self._subtasks[key] = known = _Subtask(progress, now_ms, progress, now_ms, deque(), deque())
            is_measured = True
        known.move_window()
        if is_measured:
            known.take_bytes(progress.metrics)
            for uid, metrics in progress.metrics.items():
                self._count(uid, metrics, before.metrics.get(uid, {}))
        _add(self.rows_in, progress.rows_in, before.rows_in)
        _add(self.rows_out, progress.rows_out, before.rows_out)
        _add(self.helper, _used(progress), _used(before))
        self.skipped += max(0, progress.skipped - before.skipped)
        self.late += max(0, progress.late - before.late)

    def take_enumerator(self, source: str, incarnation: int, metrics: Mapping[str, Measurement]) -> None:
        """Take note of what a source's enumerator counts and measures; another one begins to count at 0."""
        known = self._enumerators.get(source)
        self._count(source, metrics, known[1] if known is not None and known[0] == incarnation else {})
        self._enumerators[source] = incarnation, metrics

    def _count(self, uid: str, now: Mapping[str, Measurement], before: Mapping[str, Measurement]) -> None:
        totals = self._counted.setdefault(uid, Counter())
        for name, each in now.items():
            if each.kind == "counter":
                totals[name] += int(max(0, each.value - (before[name].value if name in before else 0)))

    def metrics(self, source: str) -> dict[str, Measurement]:
        """Return what a source's connector counts and measures: of its readers together, and its enumerator's.

        Counts are since the start. If both have one of the same name, it is put together like those of readers.
        """
        of_all = [each.metrics[source] for each in self._messages() if source in each.metrics]
        if source in self._enumerators:
            of_all.append(dict(self._enumerators[source][1]))
        made = {name: each for name, each in aggregated(of_all).items() if each.kind == "gauge"}
        counted = {
            name: Measurement(kind="counter", value=count) for name, count in self._counted.get(source, {}).items()
        }
        return made | counted

    def forget_subtasks(self) -> None:
        """Forget who did it, not what was done: other subtasks begin."""
        self._subtasks.clear()
        self._enumerators.clear()

    def subtasks(self) -> dict[SubtaskId, SubtaskFigures]:
        """Return what each subtask reported, in order."""
        return {key: self._subtasks[key].figures() for key in sorted(self._subtasks)}

    def unpublished_ms(self) -> dict[str, int]:
        """Return how long the oldest rows of a complete checkpoint have waited to be published, by sink uid."""
        waits: dict[str, int] = {}
        for each in self._messages():
            for uid, waited in each.unpublished_ms.items():
                waits[uid] = max(waited, waits.get(uid, 0))
        return waits

    def troubles(self, source: str) -> list[str]:
        """Return what readers of a source wait for beside data, as sentences; empty: nothing."""
        return [trouble for each in self._messages() for trouble in each.troubles.get(source, ())]

    def begin_interval(self) -> None:
        """Let `busiest` cover the time from now on."""
        for each in self._subtasks.values():
            each.first, each.first_ms = each.last, each.last_ms

    def splits(self, source: str) -> int:
        """Return how many splits of a source are being read."""
        return sum(each.splits.get(source, 0) for each in self._messages())

    def are_positions_reported(self, source: str) -> bool:
        """Whether `positions` has all splits of a source: no subtask has too many of them to report."""
        return all(len(each.positions.get(source, ())) == each.splits.get(source, 0) for each in self._messages())

    def positions(self, source: str) -> dict[str, bytes]:
        """Return the positions of the splits of a source that are being read, by split id, as far as reported."""
        return {
            split_id: data for each in self._messages() for split_id, data in each.positions.get(source, {}).items()
        }

    def event_times(self, source: str) -> dict[str, SplitEventTime]:
        """Return how far the splits of a source are in event time, by split id, as far as it is reported."""
        return {split_id: at for each in self._messages() for split_id, at in each.event_times.get(source, {}).items()}

    def watermark_ms(self) -> int | None:
        """Return the lowest watermark among the subtasks that have one; None: none has, or one waits for a split.

        A subtask without splits, or with idle ones only, has none and holds nobody back; one whose split has not begun
        does.
        """
        messages = list(self._messages())
        if any(each.watermark_ms is None and _waits(each) for each in messages):
            return None
        return min((each.watermark_ms for each in messages if each.watermark_ms is not None), default=None)

    def busiest(self) -> list[BusyOperator]:
        """Return every operator at its busiest subtask, the busiest first."""
        busiest: dict[tuple[int, str], BusyOperator] = {}
        for key, subtask in sorted(self._subtasks.items()):
            for uid, share in subtask.shares().items():
                other = busiest.get((key.stage, uid))
                if other is None or share > other.share:
                    busy = BusyOperator(uid=uid, stage=key.stage, subtask=key.subtask, share=share)
                    busiest[key.stage, uid] = busy
        return sorted(busiest.values(), key=lambda each: (-each.share, each.stage, each.uid))

    def recovery(self) -> list[StageRecovery]:
        """Return the stages that have rows to recover, in the order of the data."""
        by_stage: dict[int, list[RecoveryProgress]] = {}
        for each in self._messages():
            if each.recovery is not None:
                by_stage.setdefault(each.stage, []).append(each.recovery)
        return [
            StageRecovery(
                stage=stage,
                subtasks=len(of),
                phase=min((each.phase for each in of), key=_PHASES.index),
                rows_to_read=sum(each.rows_to_read for each in of),
                rows_left=sum(each.rows_left for each in of),
                memory_bytes=sum(each.memory_bytes for each in of),
                disk_bytes=sum(each.disk_bytes for each in of),
            )
            for stage, of in sorted(by_stage.items())
        ]

    def restore(self) -> list[StageRestore]:
        """Return the stages that took on keyed state when they were deployed, or still do, in the order of the data."""
        by_stage: dict[int, list[RestoreProgress]] = {}
        for each in self._messages():
            if each.restore is not None:
                by_stage.setdefault(each.stage, []).append(each.restore)
        return [
            StageRestore(
                stage=stage,
                subtasks=sum(not each.is_over for each in of),
                bytes_to_read=sum(each.bytes_to_read for each in of),
                bytes_left=sum(each.bytes_left for each in of),
                duration_ms=max(each.duration_ms for each in of),
            )
            for stage, of in sorted(by_stage.items())
        ]

    def check(self) -> None:
        """Assert what always holds: a share is a share, and a total is at least what the last messages say."""
        assert all(0 <= each.share <= 1 for each in self.busiest())
        for uid in {uid for each in self._messages() for uid in each.rows_in}:
            assert self.rows_in[uid] >= sum(each.rows_in.get(uid, 0) for each in self._messages())

    def _messages(self) -> Iterator[SubtaskProgress]:
        """Yield the last message of each subtask, the latest of them last."""
        return (each.last for each in sorted(self._subtasks.values(), key=lambda each: each.last_ms))


def _add(totals: Counter[str], now: Mapping[str, int], before: Mapping[str, int]) -> None:
    for uid, rows in now.items():
        totals[uid] += max(0, rows - before.get(uid, 0))


def _per_ms(first: Mapping[str, int], last: Mapping[str, int], elapsed_ms: int) -> dict[str, float]:
    return {uid: max(0, count - first.get(uid, 0)) / elapsed_ms for uid, count in last.items()}


def _exchanged(of: SubtaskProgress) -> dict[str, int]:
    return {"received": of.rows_received, "sent": of.rows_sent}


def _used(of: SubtaskProgress) -> dict[str, int]:
    """Return what a subtask had the Java process for expressions do, by the snapshot's names."""
    return {} if of.helper is None else {
        "requests": of.helper.requests, "rows": of.helper.rows, "busyMs": of.helper.busy_ms,
    }  # fmt: skip


def _shares(first: TimeSpent | None, last: TimeSpent | None) -> TimeShares | None:
    """Return what was done between two messages, by the clock of the subtask: how long these took does not matter."""
    if first is None or last is None or last.elapsed_ms <= first.elapsed_ms:
        return None
    elapsed_ms = last.elapsed_ms - first.elapsed_ms
    back_pressured = min(1.0, max(0, last.back_pressured_ms - first.back_pressured_ms) / elapsed_ms)
    idle = min(1.0 - back_pressured, max(0, last.idle_ms - first.idle_ms) / elapsed_ms)
    return TimeShares(
        busy=1.0 - back_pressured - idle,
        back_pressured=back_pressured,
        idle=idle,
        paused=min(1.0, max(0, last.paused_ms - first.paused_ms) / elapsed_ms),
    )


def _waits(progress: SubtaskProgress) -> bool:
    splits = (split for of_source in progress.event_times.values() for split in of_source.values())
    return any(split.watermark_ms is None and not split.idle for split in splits)
