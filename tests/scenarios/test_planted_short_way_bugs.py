"""Bugs in the short way of few rows, planted one at a time: in who is woken, what is written at once, what comes first.

Some seed finds each.

A bug is a subclass or a changed method of production, in this file only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest

from headgate.futures import done_with
from headgate.protocol.state import OperatorState, SplitState
from headgate.readers import SourceReaderBase, lending
from headgate.readers.element_queue import ElementQueue
from headgate.readers.lending import Lending
from headgate.runtime.few_rows import FewRows, Rows
from headgate.runtime.mailbox import Mailbox, Mailboxes
from headgate.runtime.snapshots import Snapshots
from headgate.runtime.source_input import SourceInput
from headgate.runtime.subtask import Subtask
from headgate.runtime.subtask_thread import TakesTurns
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_sink import ScriptedSender
from headgate.sink.broker_sink import AtLeastOnceWriter
from headgate.sink.writer_thread import WriterThread
from headgate.source import InputStatus, ReaderOutput
from headgate.task.task_loop import TaskLoop
from tests.scenarios.planted import first_found

LOST = r": \d+ rows of \S+ are missing|lost: "
TWICE = r"holds rows of \S+ twice|-\d+ rows of \S+ are missing"


# A mail, or a signal, that does not wake a subtask that waits.


def test_a_mail_that_comes_before_the_wait_and_does_not_end_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was posted since the mail was answered is not looked for again, under the lock."""

    def begin_wait(mailbox: Mailbox) -> bool:
        mailbox._waits = True
        return True

    monkeypatch.setattr(Mailbox, "begin_wait", begin_wait)
    first_found("a mail did not wake", 0)


class HearsItOnce(SourceInput):
    """A reader that has something again is not polled again: only its first future is waited for."""

    def _wait(self) -> None:
        if self._available is None:
            super()._wait()


def test_a_reader_that_is_not_polled_though_it_has_something_is_found() -> None:
    first_found("no end after", 0, {SourceInput: HearsItOnce})


def fetches(scenario: Scenario) -> bool:
    """Return whether readers have a fetcher, which lends its split reader."""
    return any(source.fetches for source in scenario.sources)


def test_rows_of_which_a_lent_split_reader_gave_no_signal_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came between the last fetch and the first poll is not looked for."""
    monkeypatch.setattr(SourceReaderBase, "available", lambda reader: reader._queue.available())
    first_found("no signal of rows", 68, of=fetches)


class ForgetsToNotify(ElementQueue[Any]):
    """The task does not learn that it may poll."""

    def notify(self) -> None:
        pass


def test_a_split_reader_that_is_lent_to_nobody_is_found() -> None:
    first_found("no signal of rows", 7, {ElementQueue: ForgetsToNotify}, of=fetches)


class KeepsTheThreadAsleep(Lending):
    """A mail does not take back what is lent: splits wait that nobody reads."""

    TRANSITIONS = Lending.TRANSITIONS

    def _on_mail_sent(self, event: lending.MailSent, now_ms: int) -> list[lending.Action]:
        return [] if self.is_lent else super()._on_mail_sent(event, now_ms)


class WakesNobody(Lending):
    """A mail takes it back, and the fetcher's thread sleeps on."""

    TRANSITIONS = Lending.TRANSITIONS

    def _on_mail_sent(self, event: lending.MailSent, now_ms: int) -> list[lending.Action]:
        return [each for each in super()._on_mail_sent(event, now_ms) if not isinstance(each, lending.WakeThread)]


class LendsWhatIsPaused(Lending):
    """A split reader is lent though there is more to do than to read on."""

    TRANSITIONS = Lending.TRANSITIONS

    def _on_turn(self, event: lending.Turn, now_ms: int) -> list[lending.Action]:
        return super()._on_turn(lending.Turn(event.readable, undone=False), now_ms)


class NeverTakenBack(Lending):
    """It is read on by the fetcher's thread while the client still gives signals for the task's."""

    TRANSITIONS = Lending.TRANSITIONS

    def _on_turn(self, event: lending.Turn, now_ms: int) -> list[lending.Action]:
        return [each for each in super()._on_turn(event, now_ms) if not isinstance(each, lending.EndPolling)]


@pytest.mark.parametrize(
    ("bug", "seed", "what"),
    [
        (KeepsTheThreadAsleep, 48, f"no end after|{LOST}"),
        (WakesNobody, 7, "no end after"),
        (LendsWhatIsPaused, 48, f"{LOST}|order: |copies: "),
        (NeverTakenBack, 3, "a split reader that is polled is to"),
    ],
)
def test_a_split_reader_in_the_wrong_hands_is_found(bug: type[Lending], seed: int, what: str) -> None:
    first_found(what, seed, {Lending: bug}, of=fetches)


def test_a_position_that_moves_before_rows_are_emitted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a poll brought is emitted by the next one: its split is after it already."""
    kept: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def poll_lent(reader: Any, output: ReaderOutput) -> bool:
        before = kept.pop(reader, [])
        for fetcher in reader._fetchers.values():
            if fetcher.is_lent and not reader._queue.has_ready():
                fetched = kept[reader] = list(fetcher.poll())
                for each in fetched:
                    reader._splits[each.split.split_id] = each.split
        for each in before:
            newest = reader._splits[each.split.split_id]
            reader._emit(each, output)
            if not each.finished:
                reader._splits[each.split.split_id] = newest
        return bool(before)

    monkeypatch.setattr(SourceReaderBase, "_poll_lent", poll_lent)
    first_found(LOST, 6, of=fetches)


# What the sink writes at once.


class FlushesOnlyItsThread(AtLeastOnceWriter):
    """A barrier does not wait for rows that were sent at once, and an error of their delivery is lost with them."""

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        if self._thread.is_idle:
            return done_with(OperatorState())
        return super().prepare_commit(checkpoint_id, final=final)


class HidesWhatBecame(AtLeastOnceWriter):
    """Rows are sent at once, whatever was reported of those before: the report is gone then."""

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            super().write(batch)
        except OSError:
            assert isinstance(self._sender, ScriptedSender)
            self._sender._has_lost = False


class LeavesTheRest(AtLeastOnceWriter):
    """What there is no room for at once is not left to the thread."""

    def write(self, batch: pa.RecordBatch) -> None:
        if self._thread.is_idle:
            self._raise_failure()
            self._thread.begin()
            self._sender.write_now(batch)
        else:
            super().write(batch)


class NeverBusy(WriterThread):
    """Rows are sent at once, though others, or a barrier's flush, wait for the thread."""

    is_idle = True  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("bug", "seed", "what"),
    [
        (FlushesOnlyItsThread, 0, LOST),
        (HidesWhatBecame, 15, LOST),
        (LeavesTheRest, 0, LOST),
        (NeverBusy, 0, TWICE),
    ],
)
def test_rows_that_are_written_at_once_and_lost_or_too_early_are_found(bug: type, seed: int, what: str) -> None:
    first_found(what, seed, {bug.__base__: bug})


# What comes first.


class ReadsWhileASnapshotIsDue(TaskLoop):
    """The short way is taken whether a snapshot is due or not: its rows are read before the barrier, or after it."""

    TRANSITIONS = TaskLoop.TRANSITIONS

    @property
    def reads_on(self) -> str | None:
        return self._among_others() if self._base == "reading" else None

    def _among_others(self) -> str | None:
        ready = [source for source, status in self._statuses.items() if status is InputStatus.MORE_AVAILABLE]
        return ready[0] if len(ready) == 1 and ready[0] not in self._paused else None


def test_rows_that_are_read_the_short_way_while_a_snapshot_is_due_are_found() -> None:
    first_found("is snapshot due and cannot take SourcePolled", 0, {TaskLoop: ReadsWhileASnapshotIsDue})


class ReadsOnAfterItsPosition(SourceInput):
    """What comes while a snapshot is taken goes the short way at once: its rows overtake the barrier."""

    def snapshot(self, checkpoint_id: int, snapshots: Snapshots) -> Future[tuple[SplitState, ...]]:
        found = super().snapshot(checkpoint_id, snapshots)
        if self.status is InputStatus.MORE_AVAILABLE and not self.output.ended:
            self.poll(self._context.now_ms())
            self._chain.process_few()
        return found


def test_few_rows_that_overtake_a_barrier_are_found() -> None:
    first_found(TWICE, 6, {SourceInput: ReadsOnAfterItsPosition})


class KeepsTheLast(FewRows):
    """Rows wait for more of them, so that calls are fewer: barriers pass them."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._kept: Callable[[], list[Rows]] = list

    def take(self, source: str, batch: pa.RecordBatch, split: str, now_ms: float) -> list[Rows]:
        before, take = self._kept, super().take
        self._kept = lambda: take(source, batch, split, now_ms)
        return before()


def test_few_rows_that_a_barrier_overtakes_are_found() -> None:
    first_found(LOST, 1, {FewRows: KeepsTheLast})


# Several stages on one thread.


def shares(scenario: Scenario) -> bool:
    """Whether stages after exchanges have turns beside that with the sources."""
    return scenario.shares_threads and scenario.is_keyed


def _first_that_is_busy(members: Iterable[TakesTurns]) -> bool:
    return any(each.turn() for each in members)


def test_a_subtask_that_has_no_turn_while_another_is_busy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.simulation.simulated_thread.take_turns", _first_that_is_busy)
    first_found("slow: ", 75, of=shares)


def test_a_subtask_that_is_forgotten_with_more_to_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subtask, "is_due", lambda subtask, now_ms: subtask._mailbox.is_due(now_ms))
    first_found("slow: ", 3, of=shares)


def test_a_signal_for_which_no_subtask_takes_a_turn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_due(mailbox: Mailbox, now_ms: int) -> bool:
        due_ms = mailbox.due_ms()
        return mailbox.has_mail or (due_ms is not None and now_ms >= due_ms)

    monkeypatch.setattr(Mailbox, "is_due", is_due)
    first_found("no signal of rows", 85, of=shares)


def test_a_mail_of_which_only_one_subtask_of_a_thread_hears_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for those of the first: any stops at the first mailbox that waits."""
    monkeypatch.setattr(Mailboxes, "begin_wait", lambda mailboxes: any(each.begin_wait() for each in mailboxes._all))
    first_found("a mail did not wake", 3, of=shares)
