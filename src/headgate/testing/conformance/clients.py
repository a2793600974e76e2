"""Promises about clients that are slow, fail or hang: what waits for them, what must not, and that no row is lost.

Never: compare a duration with another one of the source's: only with the bounds of the contract, and the quickest of
several counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headgate.errors import BadDataError, DataLossError, HeadgateError, OptionError, SourceUnavailableError
from headgate.source.enumerator import Boundedness
from headgate.source.split_reader import FetchedBatch, SplitReader
from headgate.testing.conformance.subject import (
    DoesNotApply,
    Rows,
    Subject,
    promise,
    pull_all,
    steps,
    try_to_pause,
    wrap_split_readers,
)
from headgate.testing.enumerator_harness import splits_in
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.rows import assert_same_rows
from headgate.testing.source_harness import SourceHarness

Result = TypeVar("Result")

CLOSE_S = 1.0
UNAVAILABLE_S = 2.0
"""How long the system is unavailable to a reader, in seconds of real time."""
_TRIES = 3
_PATIENCE_S = 30.0


@promise(
    name="slow-fetches-lose-nothing",
    sentence="A reader whose fetches are slow, and mostly return empty-handed, reads everything.",
    how="Delay each fetch, let two of three return nothing, and read to the end with two readers.",
    contract='docs/full-source.md, "The split reader"',
)
def slow_fetches_lose_nothing(subject: Subject) -> None:
    """Delay fetches."""
    subject.needs(Boundedness.BOUNDED)

    def slow(split_reader: SplitReader[Any]) -> SplitReader[Any]:
        fetch, number = split_reader.fetch, 0

        def slowly(timeout_ms: int) -> Sequence[FetchedBatch[Any]]:
            nonlocal number
            number += 1
            time.sleep(0.005)
            return fetch(timeout_ms) if number % 3 == 0 else []

        split_reader.fetch = slowly  # type: ignore[method-assign]
        return split_reader

    with subject.harness_of(wrap_split_readers(subject.make_source(), slow), parallelism=2) as harness:
        harness.run_to_end()
        assert_same_rows(harness.rows(), subject.rows, "rows of a slow read")


@promise(
    name="failed-fetch-loses-nothing",
    sentence="A fetch that raises fails its reader; nothing of the call counts, and what is restored reads it again.",
    how="Let a fetch raise after it has fetched, restore the reader from the checkpoint before, and read to the end.",
    contract='docs/full-source.md, "The split reader"',
)
def failed_fetch_loses_nothing(subject: Subject) -> None:
    """Let the first fetches raise, one in each read."""
    subject.needs(Boundedness.BOUNDED)
    for number in (1, 2, 3):
        subject.does(f"Let fetch number {number} raise.")
        fetches: list[int] = []
        source = wrap_split_readers(subject.make_source(), _failing(number, fetches))
        raised = False
        with subject.harness_of(source, timeout_s=_PATIENCE_S) as harness:
            goes_on, count = True, 0
            while goes_on:
                try:
                    goes_on = harness.step()
                except SourceUnavailableError:
                    raised = True
                    harness.fail_reader(0)
                count += 1
                if count % 2:
                    harness.snapshot()
            if len(fetches) < number:
                return
            assert raised, "the reader ended as if nothing had happened: it did not raise what a fetch had raised"
            assert_same_rows(harness.rows(), subject.rows, "rows of a read in which a fetch failed")


def _failing(number: int, fetches: list[int]) -> Callable[[SplitReader[Any]], SplitReader[Any]]:
    """Return what lets one of all fetches raise after it fetched."""

    def failing(split_reader: SplitReader[Any]) -> SplitReader[Any]:
        fetch = split_reader.fetch

        def fetch_or_fail(timeout_ms: int) -> Sequence[FetchedBatch[Any]]:
            fetched = fetch(timeout_ms)
            fetches.append(len(fetched))
            if len(fetches) == number:
                raise SourceUnavailableError("The kit let this fetch fail.")
            return fetched

        split_reader.fetch = fetch_or_fail  # type: ignore[method-assign]
        return split_reader

    return failing


@promise(
    name="failed-discovery-loses-nothing",
    sentence="Slow work of the enumerator that fails is repeated, or fails the enumerator: that is never the end.",
    how="Let the first work that is given to call_async fail, and look what the enumerator assigns in the end.",
    contract='docs/full-source.md, "The enumerator"',
)
def failed_discovery_loses_nothing(subject: Subject) -> None:
    """Let discovery fail, first and, in an unbounded read, later."""
    subject.needs(Boundedness.BOUNDED)
    expected = sorted(split.split_id for split in subject.splits())
    enumerator = subject.enumerator()
    enumerator.start()
    enumerator.register_reader(0)
    enumerator.request_split(0)
    if not enumerator.calls:
        enumerator.close()
        raise DoesNotApply("the enumerator gives no work to call_async")
    state = enumerator.snapshot()
    try:
        enumerator.fail_next_call(SourceUnavailableError("The kit let this work fail."))
    except Exception:  # it fails, and is restored
        enumerator.close()
        enumerator = subject.enumerator(state=state)
        enumerator.start()
        enumerator.register_reader(0)
    else:
        assert 0 not in enumerator.no_more_splits, "the first work failed, and the reader was promised no more splits"
        assert enumerator.calls or enumerator.assigned[0], "the first work failed; it neither raised nor is repeated"
    found = sorted(split.split_id for split in pull_all(enumerator))
    enumerator.close()
    assert found == expected, f"after the first work failed once, {found} were assigned instead of {expected}"
    if subject.make_source().supports(Boundedness.CONTINUOUS_UNBOUNDED):
        _fail_later_discovery(subject)


def _fail_later_discovery(subject: Subject) -> None:
    """Let work of an unbounded read fail after it succeeded: it changes nothing, and nothing is found twice then."""
    subject.does("Let work that is repeated in an unbounded read fail, after it succeeded, and run it again.")
    enumerator = subject.enumerator(boundedness=Boundedness.CONTINUOUS_UNBOUNDED)
    enumerator.start()
    enumerator.register_reader(0)
    enumerator.request_split(0)
    enumerator.run_due_calls()
    if enumerator.calls:
        before = list(map(repr, splits_in(enumerator.state())))
        try:
            enumerator.fail_next_call(SourceUnavailableError("The kit let this work fail."))
        except Exception:  # it fails, and is restored from what is checked elsewhere
            enumerator.close()
            return
        after = list(map(repr, splits_in(enumerator.state())))
        assert after == before, f"work failed, and the splits in the enumerator's state changed: {before}, then {after}"
        assert enumerator.run_next_call(), "work that was repeated failed once, and is not repeated any more"
        enumerator.snapshot()  # which finds splits that are in two places
    enumerator.close()


@promise(
    name="hanging-fetch-holds-up-nothing",
    sentence="While a fetch hangs, in spite of wake_up, the reader is polled, paused and checkpointed without waiting, "
    "and closes within a second.",
    how="Let the second fetch hang (or the first, if there is no other), call the reader, and restore its checkpoint.",
    contract='docs/full-source.md, "What you write"',
)
def hanging_fetch_holds_up_nothing(subject: Subject) -> None:
    """Let a fetch hang."""
    subject.needs(Boundedness.BOUNDED)
    splits = [split for split in subject.splits() if subject.split_rows[split.split_id]]
    if not splits:
        raise DoesNotApply("there are no rows")
    split = splits[0]
    for number in (2, 1):
        subject.does(f"Let fetch number {number} hang, poll, pause, take a checkpoint and close.")
        restored = _despite_others(lambda number=number: _call_while_it_hangs(subject, split, number))  # type: ignore[misc]
        if restored is None:
            continue
        rows, state = restored
        with subject.reader() as reader:
            reader.restore(state)
            rows += reader.run_to_end()
        assert_same_rows(rows, subject.split_rows[split.split_id], "rows before a fetch hung, and after a restore")
        return


class _TooSlow(Exception):
    """A call took longer than it may."""


def _despite_others(measure: Callable[[], Result]) -> Result:
    """Measure again what was too slow: others may have held the machine up."""
    for _ in range(_TRIES):
        try:
            return measure()
        except _TooSlow as error:
            slow = error
    raise AssertionError(str(slow)) from None


def _call_while_it_hangs(subject: Subject, split: Any, number: int) -> tuple[Rows, list[bytes]] | None:
    """Return the rows that came, and the checkpoint; None: there are not so many fetches."""
    hangs, released = threading.Event(), threading.Event()
    source = wrap_split_readers(subject.make_source(), _hanging(number, hangs, released))
    reader = ReaderHarness(source.create_reader, source.split_serializer, subject.schema)
    try:
        reader.add_splits(split)
        until = time.monotonic() + _PATIENCE_S
        while not hangs.is_set() and reader.splits:
            reader.poll()
            hangs.wait(0.002)
            assert time.monotonic() < until, f"there was no fetch number {number} within {_PATIENCE_S:g} s"
        if not hangs.is_set():
            return None
        calls: list[tuple[str, Callable[[], object]]] = [("poll_next", reader.poll)] * 3
        calls.append(("available", reader.reader.available))
        calls.append(("pause_or_resume_splits", lambda: _pause_and_resume(reader, split.split_id)))
        calls.append(("notify_no_more_splits", reader.reader.notify_no_more_splits))
        for name, call in calls:
            _in_a_second(name, call)
        state = _in_a_second("snapshot_state", reader.snapshot)
        return reader.rows(), state
    finally:
        began = time.monotonic()
        reader.close()
        took_s = time.monotonic() - began
        released.set()
        if took_s >= CLOSE_S:
            raise _TooSlow(f"close took {took_s:.1f} s while a fetch hung; it must return within a second")


def _in_a_second(name: str, call: Callable[[], Any]) -> Any:
    began = time.monotonic()
    result = call()
    took_s = time.monotonic() - began
    if took_s >= CLOSE_S:
        raise _TooSlow(f"{name} took {took_s:.1f} s while the client did not answer; it may not wait for that")
    return result


def _pause_and_resume(reader: ReaderHarness[Any], split_id: str) -> None:
    try:
        try_to_pause(reader, split_id)
    except DoesNotApply:
        return
    reader.pause_or_resume((), [split_id])


def _hanging(
    number: int, hangs: threading.Event, released: threading.Event
) -> Callable[[SplitReader[Any]], SplitReader[Any]]:
    """Return what lets one fetch hang until it is released."""

    def hanging(split_reader: SplitReader[Any]) -> SplitReader[Any]:
        fetch, fetches = split_reader.fetch, 0

        def fetch_or_hang(timeout_ms: int) -> Sequence[FetchedBatch[Any]]:
            nonlocal fetches
            fetches += 1
            if fetches == number:
                hangs.set()
                released.wait(_PATIENCE_S)
            return fetch(timeout_ms)

        split_reader.fetch = fetch_or_hang  # type: ignore[method-assign]
        return split_reader

    return hanging


@promise(
    name="unavailability-loses-nothing",
    sentence="While the system does not answer, discovery and readers wait, or raise an error that says so and can be "
    "retried; checkpoints and close go on without waiting, and afterwards every row comes once.",
    how="Make the system unavailable before a read, and in the middle of one; then restore from a checkpoint.",
    contract='docs/full-source.md, "The client"',
)
def unavailability_loses_nothing(subject: Subject) -> None:
    """Make the system unavailable."""
    subject.needs(Boundedness.BOUNDED)
    subject.unavailable()
    _despite_others(lambda: _read_unavailable(subject))


def _read_unavailable(subject: Subject) -> None:
    expected = subject.rows
    with subject.unavailable():
        subject.does("Begin to read while the system is not available.")
        harness = subject.harness()
        try:
            if _goes_to_the_end(harness):
                assert_same_rows(harness.rows(), expected, "rows of a read that ended while the system did not answer")
        finally:
            _close(harness)
    subject.does("Make the system unavailable after a third of the rows, and restore from a checkpoint afterwards.")
    harness = subject.harness()
    harness.run_until_rows(len(expected) // 3)
    snapshot, rows = harness.snapshot(), harness.rows()
    with subject.unavailable():
        _goes_to_the_end(harness)
        _close(harness)
    with subject.harness(snapshot=snapshot) as restored:
        restored.run_to_end()
        rows += restored.rows()
    assert_same_rows(rows, expected, "rows before the system was unavailable, and after a restore")


def _goes_to_the_end(harness: SourceHarness[Any, Any]) -> bool:
    """Step for some time; return whether the end was reached. False: it waits, or raised what may be retried."""
    until = time.monotonic() + UNAVAILABLE_S
    try:
        while not harness.ended and (left_s := until - time.monotonic()) > 0:
            if call := min(harness.enumerator.calls, key=lambda each: each.due_ms, default=None):
                harness.clock.advance_to(call.due_ms)
                if not call.run_work(left_s):
                    return False
                harness.enumerator.finish_call(call)
            if not harness.try_step():
                time.sleep(0.005)
            _in_a_second("a checkpoint", harness.snapshot)
    except (DataLossError, BadDataError, OptionError) as error:
        raise AssertionError(
            f"{type(error).__name__}, which ends the query, instead of SourceUnavailableError: {error}"
        ) from error
    except (AssertionError, _TooSlow):
        raise
    except HeadgateError:
        return False
    except Exception as error:
        raise AssertionError(
            f"{type(error).__name__} instead of SourceUnavailableError: {error}. Make the client's errors Headgate's"
        ) from error
    return harness.ended


def _close(harness: SourceHarness[Any, Any]) -> None:
    harness.close()
    took_s = max(reader.close_s for reader in harness.readers)
    if took_s >= CLOSE_S:
        raise _TooSlow(f"close took {took_s:.1f} s while the system was unavailable; it must return within a second")


@promise(
    name="close-is-quick",
    sentence="A reader closes within a second, whatever its fetchers are doing, and before it got a split, too.",
    how="Close readers after no step, one and three, of bounded and unbounded reads.",
    contract='docs/full-source.md, "What you write"',
)
def close_is_quick(subject: Subject) -> None:
    """Close readers and look at the time."""
    for boundedness in filter(subject.make_source().supports, Boundedness):
        for count in (0, 1, 3):
            subject.does(f"Close the reader of a {boundedness.value} read after {count} steps.")
            took_s = math.inf
            for _ in range(_TRIES):  # others may have held the machine up: the quickest time is the reader's own
                harness = subject.harness(boundedness=boundedness)
                steps(harness, count)
                harness.close()
                took_s = min(took_s, *(reader.close_s for reader in harness.readers))
                if took_s < CLOSE_S:
                    break
            assert took_s < CLOSE_S, f"close took {took_s:.1f} s; it must return within a second"


CHECKS = (
    slow_fetches_lose_nothing,
    failed_fetch_loses_nothing,
    failed_discovery_loses_nothing,
    hanging_fetch_holds_up_nothing,
    unavailability_loses_nothing,
    close_is_quick,
)
