"""A thread that calls one `SplitReader` and hands what it fetches to the task's thread.

Never: busy-wait: without a split to read, or with all of them paused, it sleeps until a mail comes. The task's
thread never waits for it either, and abandons it (a daemon) when it does not end.

While fetches bring little, and nothing else is to be done, the split reader is *lent* to the task's thread, which
polls it (`SplitReader.poll`), and this thread sleeps: few rows get to the task without a thread between them and it.
Where much comes, two threads fetch and process at the same time. `headgate.readers.lending` decides it.

Mails go in by `add_splits`, `pause_or_resume`, `read_ahead` and `begin_close`; they are applied between two fetches.
A fetch that blocks meanwhile is woken by `SplitReader.wake_up`, which should be remembered by a reader that is only
about to block: if it is not, the mail waits for the fetch's time-out.

A split that is *ahead* has rows that alignment holds back, a few of which go again and again. It is fetched until the
queue holds enough of it aside, paused then, and resumed when less than half of that is left. To pause and resume it
with every few rows would throw away what its client has fetched.

Follows FLIP-27, "High-level Readers"; FLIP-217 for pausing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar, assert_never

import msgspec

from headgate.errors import ConnectorContractError, HeadgateError, SourceError
from headgate.event_log import describe
from headgate.readers import lending
from headgate.readers.asking import AskedInVain
from headgate.readers.element_queue import ElementQueue
from headgate.readers.lending import Lending
from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch, Signal, SplitReader

SplitT = TypeVar("SplitT", bound=Split)

_log = logging.getLogger(__name__)

_REST_AFTER_EMPTY_FETCHES_S = 0.005
"""Keeps a split reader that returns empty-handed at once, again and again, from using up a core."""
_FEW_ROWS, _FEW_BYTES = 1024, 256 * 1024
_POLLED_S = 1.0
"""How often a split reader that is lent is polled at least."""


class SplitFetcher(Generic[SplitT]):
    """Runs a split reader on its own daemon thread, from construction until `begin_close`.

    Parameters
    ----------
    name
        The thread's name.
    split_reader
        Called on the new thread only, save for ``wake_up`` and ``trouble``.
    queue
        Takes what is fetched, and the error that ended the fetcher.
    fetch_timeout_ms
        The longest a single fetch may wait for data, in milliseconds.
    one_at_a_time
        Give the split reader its next split only when it finished, or was to pause, the one before.
    signal
        How the task's thread is woken to poll; None: the split reader is never lent.
    """

    def __init__(
        self,
        name: str,
        split_reader: SplitReader[SplitT],
        queue: ElementQueue[SplitT],
        fetch_timeout_ms: int,
        *,
        one_at_a_time: bool = False,
        signal: Signal | None = None,
    ) -> None:
        self._split_reader = split_reader
        self._queue = queue
        self._fetch_timeout_ms = fetch_timeout_ms
        self._one_at_a_time = one_at_a_time
        self._signal = signal
        # On the fetcher's thread only. Positions are those after what was fetched.
        self._splits: dict[str, SplitT] = {}
        self._waiting: deque[SplitT] = deque()
        self._to_pause: set[str] = set()
        self._ahead: dict[str, int] = {}  # how many bytes are enough
        self._full: set[str] = set()  # of those ahead
        self._paused: set[str] = set()  # as the split reader knows, or will know
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._mail_came = threading.Condition(self._lock)
        self._mails: deque[Callable[[], None]] = deque()
        self._fetching_since_s: float | None = None
        self._fetches = 0
        self._asked = AskedInVain()
        self._begun: set[str] = set()  # splits that the split reader has
        self._looked_ms: int | None = None  # when the task last called `asked_until`
        self._looked_at: int | None = None  # the fetch that was under way then
        self._lending = Lending(lends=signal is not None)
        self.is_lent = False
        """Whether `poll` may be called, as `_lending` says. Read on the task's thread."""
        self.is_polled = False
        """Whether it was, since it was lent: of what came before that there is no signal. On the task's thread."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._start()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Read these splits too. Does not block."""
        self._send(lambda: self._waiting.extend(splits))

    def pause_or_resume(self, to_pause: Collection[str], to_resume: Collection[str]) -> None:
        """Stop and resume fetching of splits by id; those unknown here, or finished, are ignored. Does not block."""
        self._send(lambda: self._pause_or_resume(to_pause, to_resume))

    def read_ahead(self, split_id: str, enough_bytes: int | None) -> None:
        """Fetch a split until so many bytes of it are held aside, and look again how many are; None: without end.

        Does not block, and wakes a fetch only if the split may have to be resumed.
        """
        self._send(lambda: self._read_ahead(split_id, enough_bytes), only_for=split_id)

    @property
    def can_pause(self) -> bool:
        """Whether the split reader implements ``pause_or_resume_splits``."""
        return type(self._split_reader).pause_or_resume_splits is not SplitReader.pause_or_resume_splits

    def check_can_pause(self) -> None:
        """Raise `UnsupportedOperationError` if the split reader does not implement ``pause_or_resume_splits``."""
        if not self.can_pause:
            SplitReader.pause_or_resume_splits(self._split_reader, [], [])

    def begin_close(self) -> None:
        """Let the thread close the split reader and end. Does not block. On the task's thread."""
        try:
            self._decide(lending.CloseRequested())
        except Exception as error:
            _log.warning("%s: wake_up failed while closing: %s", self._thread.name, describe(error))

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end at most this long, in seconds; return whether it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def fetching_since_s(self) -> float | None:
        """When the fetch under way began, in seconds of ``time.monotonic``; None: there is none. For any thread."""
        with self._lock:
            return self._fetching_since_s

    def trouble(self) -> str | None:
        """Return what the split reader waits for beside data, as a sentence; None: nothing. For any thread."""
        return self._split_reader.trouble()

    def asked_until(self, now_ms: int) -> tuple[int | None, Collection[str]]:
        """Return until when splits without new rows were asked for them in vain, in milliseconds, and which these are.

        Called by the task again and again: its calls are the clock by which fetches are dated, so what it returns is
        one of the times that it was given, or None. Rows that were fetched before count once they are in the queue.
        """
        with self._lock:
            until_ms = self._asked.until_ms
            waits = self._fetching_since_s is not None or (self.is_lent and not self._split_reader.has_waiting())
            under_way = self._fetches if waits else None
            if under_way is not None and under_way == self._looked_at:  # it has waited since the last call, at least
                until_ms = self._looked_ms
            self._looked_ms, self._looked_at = now_ms, under_way
            return until_ms, set(self._begun)

    def poll(self) -> Sequence[FetchedBatch[SplitT]]:
        """Return what there is at once, while `is_lent`, on the task's thread: after all that is in the queue.

        Raises
        ------
        HeadgateError
            The split reader raised; the error has ``split`` and ``position``.
        """
        if not self.is_polled:
            self._decide(lending.FirstPolled())
        try:
            fetched = self._split_reader.poll()
            for each in fetched or ():
                self._note(each)
        except BaseException as error:
            described = self._describe(error)
            raise described from described.__cause__
        if fetched:
            with self._lock:
                self._fetches += 1
                self._asked.returned(began_ms=self._looked_ms, splits=len(self._begun), empty=False)
        if fetched is None or _rows_of(fetched) > _FEW_ROWS or any(each.finished for each in fetched):
            self._decide(lending.FetchWanted())
        return fetched or ()

    def _send(self, mail: Callable[[], None], *, only_for: str | None = None) -> None:
        with self._lock:
            self._mails.append(mail)
            # While the thread is in the fetch it leaves this set alone.
            actions = self._decided_locked(lending.MailSent(wakes=only_for is None or only_for in self._full))
        for action in actions:
            self._carry_out(action)

    def _decide(self, event: lending.Event) -> bool:
        """Carry out what an event leads to; return whether turns of the thread follow."""
        with self._lock:
            actions = self._decided_locked(event)
        return all(self._carry_out(action) for action in actions)

    def _decided_locked(self, event: lending.Event) -> list[lending.Action]:
        assert self._lock.locked()
        actions: list[lending.Action] = self._lending.handle(event, self._looked_ms or 0)
        self.is_lent, self.is_polled = self._lending.is_lent, self._lending.state == "polled"
        if lending.WakeThread() in actions:
            self._wake_locked()
        return actions

    def _carry_out(self, action: lending.Action) -> bool:
        match action:
            case lending.Settle():
                self._process_mail()
            case lending.Fetch():
                self._fetch()
            case lending.Rest():
                self._rest()
            case lending.Sleep():
                self._sleep()
            case lending.BeginPolling():
                assert self._signal is not None
                self._decide(lending.PollingBegun(self._split_reader.begin_polling(self._signal)))
            case lending.Lend():
                self._queue.notify()
                self._sleep()
            case lending.EndPolling():
                self._split_reader.end_polling()
            case lending.WakeFetch():
                self._split_reader.wake_up()
            case lending.WakeThread():
                pass  # it was, under the lock
            case lending.Close():
                return False
            case _:
                assert_never(action)
        return True

    def _start(self) -> None:
        self._thread.start()

    def _wake_locked(self) -> None:
        self._mail_came.notify_all()

    # From here on: on the fetcher's thread.

    def _run(self) -> None:
        try:
            try:
                while self._turn():
                    pass
            finally:
                self._split_reader.close()
        except BaseException as error:
            # Whatever it is: an error that stayed in this thread would be a task that waits for ever.
            _log.debug("%s ended by an error", self._thread.name, exc_info=True)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._decide(lending.Broke())
        self._queue.fail(self._describe(error))

    def _turn(self) -> bool:
        """Do what is next; return False when the split reader is to be closed."""
        return self._decide(lending.Turn(self._readable(), bool(self._waiting or self._ahead or self._paused)))

    def _sleep(self) -> None:
        """Sleep until there is a turn to be taken. What is looked at beside rows is looked at in silence, too."""
        with self._lock:
            while self._lending.sleeps:
                if not self._mail_came.wait(_POLLED_S if self.is_lent else None) and self._signal is not None:
                    self._signal.give()

    def _rest(self) -> None:
        with self._lock:
            if self._lending.state == "resting" and not self._mails:
                self._mail_came.wait(_REST_AFTER_EMPTY_FETCHES_S)

    def _readable(self) -> bool:
        return any(split_id not in self._paused for split_id in self._splits)

    def _process_mail(self) -> None:
        """Apply all mails, and what follows from them."""
        with self._lock:
            mails = list(self._mails)
            self._mails.clear()
        for mail in mails:
            mail()
        self._settle()
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Give the split reader the splits that it may read now."""
        if self._one_at_a_time:
            begun = [] if self._readable() else self._take_first_unpaused()
        else:
            begun = list(self._waiting)
            self._waiting.clear()
        if not begun:
            return
        self._splits.update((split.split_id, split) for split in begun)
        with self._lock:
            self._begun.update(split.split_id for split in begun)
            self._asked.forget()
        self._split_reader.handle_splits_changes(begun)
        paused = [split for split in begun if split.split_id in self._paused]
        if paused:
            self._split_reader.pause_or_resume_splits(paused, [])

    def _take_first_unpaused(self) -> list[SplitT]:
        for index, split in enumerate(self._waiting):
            if split.split_id not in self._paused:
                del self._waiting[index]
                return [split]
        return []

    def _pause_or_resume(self, to_pause: Collection[str], to_resume: Collection[str]) -> None:
        known = self._splits.keys() | {split.split_id for split in self._waiting}
        self._to_pause.update(split_id for split_id in to_pause if split_id in known)
        self._to_pause.difference_update(to_resume)

    def _read_ahead(self, split_id: str, enough_bytes: int | None) -> None:
        if enough_bytes is None:
            self._ahead.pop(split_id, None)
            self._full.discard(split_id)
        elif split_id in self._splits or any(split.split_id == split_id for split in self._waiting):
            self._ahead[split_id] = enough_bytes

    def _settle(self) -> None:
        """Have the split reader pause and resume."""
        for split_id, enough_bytes in self._ahead.items():
            held_bytes = self._queue.held_bytes(split_id)
            if held_bytes >= enough_bytes:
                self._full.add(split_id)
            elif held_bytes < enough_bytes / 2:
                self._full.discard(split_id)
        wanted = self._to_pause | self._full
        if wanted == self._paused:
            return
        pause = [self._splits[split_id] for split_id in wanted - self._paused if split_id in self._splits]
        resume = [self._splits[split_id] for split_id in self._paused - wanted if split_id in self._splits]
        self._paused = wanted
        if pause or resume:
            self._split_reader.pause_or_resume_splits(pause, resume)

    def _forget(self, split_id: str) -> None:
        del self._splits[split_id]
        with self._lock:
            self._begun.discard(split_id)
        self._ahead.pop(split_id, None)
        for each in (self._to_pause, self._full, self._paused):
            each.discard(split_id)

    def _fetch(self) -> None:
        with self._lock:
            self._fetching_since_s = time.monotonic()
            self._fetches += 1
            began_ms = self._looked_ms
            asked = len(self._begun)
        try:
            fetched = self._split_reader.fetch(self._fetch_timeout_ms)
        finally:
            with self._lock:
                self._fetching_since_s = None
        for each in fetched:
            self._note(each)
            if not self._queue.put(each):
                break
        with self._lock:
            if fetched or not self._mails:  # else it was woken up, and has not asked
                self._asked.returned(began_ms=began_ms, splits=asked, empty=not fetched)
        self._decide(lending.Fetched(empty=not fetched, little=_is_little(fetched)))

    def _note(self, fetched: FetchedBatch[SplitT]) -> None:
        split_id = fetched.split.split_id
        if split_id not in self._splits:
            raise ConnectorContractError(
                f"{type(self._split_reader).__name__}.fetch returned a batch of split {split_id!r}, which it was not "
                "given or has reported as finished. It must return batches of the splits at hand only.",
                connector=type(self._split_reader).__name__,
                method="fetch",
                split=split_id,
            )
        if fetched.finished:
            self._forget(split_id)
        else:
            self._splits[split_id] = fetched.split

    def _describe(self, error: BaseException) -> HeadgateError:
        """Return the error as ours, with the split and the position at which it happened."""
        facts = error.facts if isinstance(error, HeadgateError) else {}
        split_id = facts.get("split")
        if split_id is None:
            read = [each for each in self._splits if each not in self._paused] or list(self._splits)
            split_id = ", ".join(read)
        positions = {
            each: msgspec.to_builtins(self._splits[each]) for each in split_id.split(", ") if each in self._splits
        }
        position = next(iter(positions.values())) if len(positions) == 1 else positions
        if isinstance(error, HeadgateError):
            error.facts.setdefault("split", split_id)
            error.facts.setdefault("position", position)
            return error
        doing = f"to read split {split_id!r} at {str(position)[:500]}" if split_id else "while it held no split"
        described = SourceError(
            f"{type(self._split_reader).__name__} failed {doing}: {type(error).__name__}: {error}",
            split=split_id,
            position=position,
        )
        described.__cause__ = error
        return described


def _is_little(fetched: Sequence[FetchedBatch[SplitT]]) -> bool:
    """Return whether batches are fetched and processed sooner by one thread than by two."""
    return _rows_of(fetched) <= _FEW_ROWS and sum(each.batch.nbytes for each in fetched if each.batch) <= _FEW_BYTES


def _rows_of(fetched: Sequence[FetchedBatch[SplitT]]) -> int:
    rows = 0
    for each in fetched:
        if each.batch is not None:
            rows += each.batch.num_rows
    return rows
