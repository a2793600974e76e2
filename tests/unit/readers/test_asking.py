"""What is known of silent splits from calls that serve one split each, or several."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate.readers import AskedInVain, MultiplexedReader, MultithreadedReader, ReaderOptions, SequentialReader
from headgate.source import FetchedBatch
from tests.unit.readers.scripted_split_reader import TIMEOUT_S, Driven, Numbers, Script, ScriptedSplitReader
from tests.waiting import wait_until

ROOMY = ReaderOptions(request_splits=False)
TIGHT = ReaderOptions(queue_bytes=1, request_splits=False)
"""One batch waits in the queue, and one in the fetcher."""


def test_a_split_is_asked_when_as_many_calls_returned_as_there_are_splits() -> None:
    asked = AskedInVain()
    for began_ms in (10, 20):
        asked.returned(began_ms=began_ms, splits=3, empty=False)
    assert asked.until_ms is None
    asked.returned(began_ms=30, splits=3, empty=False)
    assert asked.until_ms == 10, "what came later may have its turn in the next round"
    for began_ms in (40, 50, 60):
        asked.returned(began_ms=began_ms, splits=3, empty=False)
    assert asked.until_ms == 40


def test_a_call_that_returns_empty_handed_has_asked_all_splits() -> None:
    asked = AskedInVain()
    asked.returned(began_ms=10, splits=3, empty=False)
    asked.returned(began_ms=20, splits=3, empty=True)
    assert asked.until_ms == 20


def test_a_new_split_was_asked_by_none_of_the_calls_before() -> None:
    asked = AskedInVain()
    asked.returned(began_ms=10, splits=1, empty=True)
    asked.returned(began_ms=20, splits=2, empty=False)
    asked.forget()
    asked.returned(began_ms=30, splits=2, empty=False)
    assert asked.until_ms is None


class Answering(ScriptedSplitReader):
    """Returns when a test lets it, empty-handed where nothing was fed."""

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Numbers]]:
        script = self.script
        with script.changed:
            script.waiting += 1
            script.changed.notify_all()
            assert script.changed.wait_for(lambda: script.fetches > 0 or self.woken, TIMEOUT_S)
            script.fetches -= 0 if self.woken else 1
            self.woken = False
            return self._next()


def answer(script: Script) -> None:
    """Let one fetch return, and wait for the next to begin."""
    with script.changed:
        waiting = script.waiting
        script.fetches += 1
        script.changed.notify_all()
        assert script.changed.wait_for(lambda: script.waiting > waiting, TIMEOUT_S)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setattr(Script, "make", lambda script: Answering(script))
    return Driven(MultiplexedReader, ROOMY)


def begun(driven: Driven, *split_ids: str) -> None:
    driven.add(*split_ids)
    driven.script.wait_for(lambda: driven.script.waiting > 0)


def test_a_silent_split_is_asked_while_the_task_does_something_else(answering: Driven) -> None:
    begun(answering, "busy", "silent")
    answering.script.feed("busy", *([number] for number in range(6)))
    reader = answering.reader
    assert reader.asked_until_ms(1000) == {}, "a fetch is under way, nobody knows since when"
    answer(answering.script)
    assert reader.asked_until_ms(2000) == {}
    answer(answering.script)
    answer(answering.script)  # which began after the call at 2000, as the next one
    answer(answering.script)
    assert reader.asked_until_ms(3000) == {"silent": 2000}, "rows of the other one wait"
    answering.poll_until(lambda: answering.output.rows() == [0, 1, 2, 3])
    answering.reader.close()


def test_a_fetch_that_waits_has_asked_since_it_was_seen_to_wait(answering: Driven) -> None:
    begun(answering, "a")
    assert [answering.reader.asked_until_ms(now_ms) for now_ms in (1000, 2000, 3000)] == [{}, {"a": 1000}, {"a": 2000}]
    answer(answering.script)
    assert answering.reader.asked_until_ms(4000) == {}, "that one began before the first call"
    answering.reader.close()


def test_nobody_is_asked_while_the_queue_is_full() -> None:
    driven = Driven(MultiplexedReader, TIGHT)
    driven.script.feed("busy", [1], [2], [3])
    driven.add("busy", "silent")
    driven.script.wait_for(lambda: driven.script.fetches == 2)
    wait_until(lambda: driven.reader.stuck_since() is None)
    assert [driven.reader.asked_until_ms(now_ms) for now_ms in range(1000, 100_000, 1000)] == [{}] * 99
    driven.poll_until(lambda: driven.output.rows() == [1, 2, 3])
    wait_until(lambda: driven.reader.asked_until_ms(100_000) == {"busy": 100_000, "silent": 100_000})
    driven.reader.close()


@pytest.mark.parametrize("reader_type", [MultiplexedReader, MultithreadedReader])
def test_a_split_whose_rows_wait_to_be_emitted_is_not_silent(reader_type: type[MultiplexedReader[Numbers]]) -> None:
    driven = Driven(reader_type, ROOMY)
    driven.add("a", "b")
    driven.script.feed("a", [1])
    wait_until(lambda: driven.reader.asked_until_ms(1000) == {"b": 1000})
    driven.poll_until(lambda: driven.output.rows() == [1])
    wait_until(lambda: driven.reader.asked_until_ms(1000) == {"a": 1000, "b": 1000})
    driven.reader.close()


def test_a_split_that_waits_for_the_one_before_it_is_not_asked() -> None:
    driven = Driven(SequentialReader, ROOMY)
    driven.add("first", "second")
    wait_until(lambda: driven.reader.asked_until_ms(1000) == {"first": 1000})
    driven.script.feed("first", "end")
    driven.poll_until(lambda: ("first", "released") in driven.output.log)
    wait_until(lambda: driven.reader.asked_until_ms(9000) == {"second": 9000})
    driven.reader.close()
