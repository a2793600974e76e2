"""When a sink tries again to publish what it owes, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.errors import InvalidTransitionError
from headgate.sink import publication_retries as publication
from headgate.sink.publication_retries import (
    AGAIN_MS,
    AttemptFailed,
    AttemptSucceeded,
    BeginAttempt,
    GiveUp,
    Progressed,
    PublicationMachine,
    TimePassed,
    WorkOrdered,
)
from tests.machines import Later, explore

LIMIT_MS = 10_000
PASSING, FATAL = AttemptFailed(is_passing=True), AttemptFailed(is_passing=False)


def machine() -> PublicationMachine:
    return PublicationMachine(limit_ms=LIMIT_MS)


def events(of: PublicationMachine) -> Iterator[publication.Event | Later]:
    yield from (WorkOrdered(), Progressed(), AttemptSucceeded(), PASSING, FATAL, TimePassed())
    yield Later(TimePassed(), AGAIN_MS)
    yield Later(TimePassed(), LIMIT_MS)
    yield Later(PASSING, LIMIT_MS)


def test_the_table_is_what_the_machine_does() -> None:
    explore(machine, events, depth=6)


def test_an_attempt_that_failed_for_a_while_is_repeated_until_one_succeeds() -> None:
    made = machine()
    assert made.handle(WorkOrdered(), 0) == [BeginAttempt()]
    assert made.handle(WorkOrdered(), 50) == []
    for at_ms in (100, 1100, 2100):
        assert made.handle(PASSING, at_ms) == []
        assert made.next_time_ms() == at_ms + AGAIN_MS
        assert made.handle(TimePassed(), at_ms + AGAIN_MS - 1) == []
        assert made.handle(TimePassed(), at_ms + AGAIN_MS) == [BeginAttempt()]
    assert made.waiting_ms(3100) == 3100
    assert made.handle(AttemptSucceeded(), 3100) == [BeginAttempt()], "what was ordered meanwhile"
    assert made.waiting_ms(3100) == 3050
    assert made.handle(AttemptSucceeded(), 3200) == []
    assert made.waiting_ms(3200) == 0


def test_attempts_that_fail_for_as_long_as_may_be_are_an_error() -> None:
    made = machine()
    made.handle(WorkOrdered(), 0)
    made.handle(PASSING, 6000)
    made.handle(TimePassed(), 7000)
    assert made.handle(PASSING, 9999) == []
    made.handle(TimePassed(), 11_000)
    assert made.handle(PASSING, 11_001) == [GiveUp(11_001, is_stuck=False)]


def test_the_time_of_failures_begins_anew_after_a_success() -> None:
    made = machine()
    made.handle(WorkOrdered(), 0)
    made.handle(WorkOrdered(), 0)
    made.handle(PASSING, 9000)
    made.handle(TimePassed(), 10_000)
    made.handle(AttemptSucceeded(), 10_001)
    assert made.handle(PASSING, 11_000) == []


def test_an_attempt_in_which_nothing_moves_is_given_up_and_a_slow_one_is_not() -> None:
    made = machine()
    made.handle(WorkOrdered(), 0)
    for at_ms in range(9000, 90_000, 9000):
        made.handle(Progressed(), at_ms)
        assert made.handle(TimePassed(), at_ms + 8999) == []
    assert made.next_time_ms() == 91_000
    assert made.handle(TimePassed(), 91_000) == [GiveUp(91_000, is_stuck=True)]
    assert made.handle(AttemptSucceeded(), 92_000) == [], "it comes too late"
    assert made.handle(PASSING, 93_000) == [GiveUp(93_000, is_stuck=False)], "and is not repeated"


def test_nothing_fails_that_was_not_ordered() -> None:
    with pytest.raises(InvalidTransitionError, match="A publication is idle and cannot take AttemptFailed"):
        machine().handle(PASSING, 0)
