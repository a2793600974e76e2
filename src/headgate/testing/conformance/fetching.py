"""Promises about waiting for rows: a fetch ends in time and when it is woken, and a reader without rows sleeps.

Never: need rows that come while it looks. An unbounded read in which rows come all the time, or all splits end, has no
fetch that waits.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from headgate.readers import SequentialReader
from headgate.source.reader import SourceReaderContext
from headgate.source.source import Source
from headgate.source.split_reader import SplitReader
from headgate.testing.conformance.subject import DoesNotApply, Subject, promise, ready_made

FETCH_MS = 6_000
"""How long a fetch may wait that is woken up; it must return in half of that."""
IN_TIME_S = 5.0
"""How much longer than its time-out a fetch may take, in seconds, before it counts as one that never ends."""
_SHORT_MS = 50
_AWAKE_AT_MOST = 200
_RESTLESS_S = 5.0
"""After this time of rows in an unbounded read, in seconds, it counts as one that never waits for any."""


@promise(
    name="fetch-keeps-its-time-out",
    sentence="A fetch returns within its time-out, empty-handed if need be.",
    how=f"Fetch from splits of an unbounded read that have no more rows, with a time-out of {_SHORT_MS} ms.",
    contract='docs/full-source.md, "The split reader"',
)
def fetch_keeps_its_time_out(subject: Subject) -> None:
    """Fetch until nothing comes."""
    with _waiting_for_rows(subject):
        pass


@promise(
    name="fetch-returns-when-woken",
    sentence="A fetch that blocks returns soon after wake_up, which another thread calls, perhaps just before that.",
    how=f"Where no rows come, fetch with a time-out of {FETCH_MS / 1000:g} s, and call wake_up meanwhile, or before.",
    contract='docs/full-source.md, "The split reader"',
)
def fetch_returns_when_woken(subject: Subject) -> None:
    """Wake a fetch up, and one that is about to begin."""
    with _waiting_for_rows(subject) as (thread, split_reader):
        for during in (True, False):
            subject.does(f"Call wake_up {'while a fetch waits' if during else 'just before a fetch'}.")
            took_s = math.inf
            for _ in range(2):  # others may have held the machine up
                if not during:
                    split_reader.wake_up()
                fetch = thread.submit(lambda: split_reader.fetch(FETCH_MS))
                if during:
                    wait([fetch], 0.1)
                began = time.monotonic()
                if during:
                    split_reader.wake_up()  # which may not wait for the fetch, either
                thread.result(fetch, FETCH_MS / 1000 + IN_TIME_S, "fetch")
                took_s = time.monotonic() - began
                if took_s < FETCH_MS / 2000:
                    break
            assert took_s < FETCH_MS / 2000, (
                f"the fetch went on for {took_s:.1f} s after wake_up. Let it wait for something that remembers the "
                "call, like threading.Event"
            )


@promise(
    name="idle-readers-sleep",
    sentence="The future that SourceReader.available returns is done only when polling is worth it: a reader without "
    "rows does not keep its task busy.",
    how="Poll a reader of an unbounded read until no rows come, and see whether it says that polling is worth it.",
    contract='docs/full-source.md, "What you write"',
)
def idle_readers_sleep(subject: Subject) -> None:
    """Poll a reader that has nothing."""
    splits = subject.unbounded_splits()
    with subject.reader() as reader:
        reader.add_splits(*splits)
        until, in_vain, asleep = time.monotonic() + _RESTLESS_S, 0, 0
        while asleep < 3 and time.monotonic() < until:
            before = reader.progress
            reader.poll()
            done, _ = wait([reader.reader.available()], 0.03)
            asleep = 0 if done else asleep + 1
            in_vain = in_vain + 1 if done and reader.progress == before else 0
            assert in_vain < _AWAKE_AT_MOST, f"available was done {in_vain} times in a row, and polling gave nothing"
        if asleep < 3:
            raise DoesNotApply("rows come all the time")


class _FetchingThread:
    """A daemon thread that calls a split reader, as a fetcher does."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="headgate-conformance-fetches", daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Call it soon."""
        future: Future[Any] = Future()
        self._work.put((call, future))
        return future

    def result(self, future: Future[Any], timeout_s: float, what: str) -> Any:
        """Return what a call returned, or assert that it did in time."""
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            raise AssertionError(f"{what} did not return within {timeout_s:g} s") from None

    def end(self) -> None:
        """End after the calls that are under way."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, future = work
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


@contextmanager
def _waiting_for_rows(subject: Subject) -> Iterator[tuple[_FetchingThread, SplitReader[Any]]]:
    """Have a split reader with splits that have no more rows now, and the thread that calls it."""
    splits = subject.unbounded_splits()
    source: Source[Any, Any] = subject.make_source()
    context = SourceReaderContext(
        subtask=0, schema=subject.schema, host=None, request_split=lambda: None, send_event=lambda event: None
    )
    reader = ready_made(source.create_reader(context))
    given = splits[:1] if isinstance(reader, SequentialReader) else splits
    left = {split.split_id for split in given}
    split_reader = reader.split_reader_factory()
    thread = _FetchingThread()
    try:
        thread.result(
            thread.submit(lambda: split_reader.handle_splits_changes(given)), IN_TIME_S, "handle_splits_changes"
        )
        empty, until = 0, time.monotonic() + _RESTLESS_S
        while empty < 3:
            fetched = thread.result(thread.submit(lambda: split_reader.fetch(_SHORT_MS)), IN_TIME_S, "fetch")
            left -= {each.split.split_id for each in fetched if each.finished}
            empty = 0 if fetched else empty + 1
            if not left:
                raise DoesNotApply("the splits of an unbounded read end: no fetch waits for rows")
            if time.monotonic() > until:
                raise DoesNotApply("rows come all the time")
        yield thread, split_reader
    finally:
        thread.submit(split_reader.close)
        thread.end()
        reader.close()


CHECKS = (fetch_keeps_its_time_out, fetch_returns_when_woken, idle_readers_sleep)
