"""Who has a split reader: the table is what the machine does, and rules that others rely on."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.readers import lending
from headgate.readers.lending import SMALL_FETCHES, Lending
from tests.machines import explore

ON_ITS_THREAD = ("resting", "settled", "taken back", "closing")
READ, UNDONE = lending.Turn(readable=True, undone=False), lending.Turn(readable=True, undone=True)


def events(machine: Lending) -> Iterator[lending.Event]:
    match machine.state:
        case "fetching" | "called":
            yield lending.Fetched(empty=True)
            yield lending.Fetched(empty=False)
            yield lending.Fetched(empty=False, little=False)
        case "asking" | "recalled":
            yield lending.PollingBegun(ready=True)
            yield lending.PollingBegun(ready=False)
        case "lent":
            yield lending.FirstPolled()
        case "polled":
            yield lending.FetchWanted()
        case "closing":
            yield lending.Fetched(empty=False)
            yield lending.PollingBegun(ready=False)
    if machine.state in ON_ITS_THREAD:
        yield from (READ, UNDONE, lending.Turn(readable=False, undone=False))
    yield lending.MailSent()
    yield lending.MailSent(wakes=False)
    yield lending.CloseRequested()
    yield lending.Broke()


def after_small_fetches(machine: Lending) -> Lending:
    for _ in range(SMALL_FETCHES):
        machine.handle(READ, 0)
        machine.handle(READ, 0)
        machine.handle(lending.Fetched(empty=False), 0)
    machine.handle(READ, 0)
    return machine


def test_the_table_is_what_the_machine_does() -> None:
    begin = [[READ, READ, lending.Fetched(empty=False)] * SMALL_FETCHES]
    explore(lambda: Lending(lends=True), events, depth=40, begin_with=begin)


def test_a_split_reader_is_lent_after_small_fetches_with_nothing_else_to_do() -> None:
    assert after_small_fetches(Lending(lends=True)).handle(READ, 0) == [lending.BeginPolling()]
    assert after_small_fetches(Lending(lends=True)).handle(UNDONE, 0) == [lending.Fetch()]
    assert after_small_fetches(Lending(lends=False)).handle(READ, 0) == [lending.Fetch()]


def test_a_large_fetch_begins_the_count_anew_and_an_empty_one_does_not() -> None:
    machine = Lending(lends=True)
    for number in range(SMALL_FETCHES):
        machine.handle(READ, 0)
        machine.handle(READ, 0)
        machine.handle(lending.Fetched(empty=False, little=number != SMALL_FETCHES - 1), 0)
    machine.handle(READ, 0)
    assert machine.handle(READ, 0) == [lending.Fetch()]
    machine = after_small_fetches(Lending(lends=True))
    machine.handle(UNDONE, 0)
    machine.handle(lending.Fetched(empty=True), 0)
    machine.handle(READ, 0)
    assert machine.handle(READ, 0) == [lending.BeginPolling()]


def test_a_mail_while_it_gets_ready_to_be_polled_keeps_it() -> None:
    machine = after_small_fetches(Lending(lends=True))
    assert machine.handle(READ, 0) == [lending.BeginPolling()]
    assert machine.handle(lending.MailSent(), 0) == []
    assert machine.handle(lending.PollingBegun(ready=True), 0) == [] and not machine.is_lent
    assert machine.handle(READ, 0) == [lending.EndPolling()]


def test_the_end_ends_polling_first() -> None:
    machine = after_small_fetches(Lending(lends=True))
    machine.handle(READ, 0)
    assert machine.handle(lending.PollingBegun(ready=True), 0) == [lending.Lend()]
    assert machine.handle(lending.CloseRequested(), 0) == [lending.WakeThread()]
    assert machine.handle(READ, 0) == [lending.EndPolling(), lending.Close()]


def test_a_rest_comes_after_two_empty_fetches_and_not_when_a_mail_waits() -> None:
    machine = Lending(lends=True)
    rested = []
    for mails in (0, 0, 1):
        machine.handle(READ, 0)
        machine.handle(READ, 0)
        for _ in range(mails):
            machine.handle(lending.MailSent(), 0)
        rested.append(machine.handle(lending.Fetched(empty=True), 0))
    assert rested == [[], [lending.Rest()], []]
