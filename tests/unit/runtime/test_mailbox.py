"""The mailbox: mails in order on one thread, timers by the clock, nothing lost at the end."""

from __future__ import annotations

import os
import threading

import pytest

from headgate.runtime.mailbox import Mail, Mailbox, Mailboxes
from headgate.testing import VirtualClock


def test_mails_run_in_order_on_the_thread_that_asks() -> None:
    mailbox = Mailbox(VirtualClock())
    seen: list[tuple[int, threading.Thread]] = []
    for number in range(3):
        poster = threading.Thread(
            target=mailbox.post, args=[Mail(lambda number=number: seen.append((number, threading.current_thread())))]
        )
        poster.start()
        poster.join()

    assert mailbox.run_mail() == 3
    assert seen == [(number, threading.current_thread()) for number in range(3)]


def test_a_mail_posted_by_a_mail_has_its_turn_next_time() -> None:
    mailbox = Mailbox(VirtualClock())
    seen: list[str] = []
    mailbox.post(Mail(lambda: mailbox.post(Mail(lambda: seen.append("second")))))

    assert mailbox.run_mail() == 1
    assert seen == []
    assert mailbox.run_mail() == 1
    assert seen == ["second"]


def test_timers_run_when_they_are_due_in_order_of_their_time() -> None:
    clock = VirtualClock(1000)
    mailbox = Mailbox(clock)
    seen: list[str] = []
    mailbox.run_after(20, Mail(lambda: seen.append("late")))
    mailbox.run_after(10, Mail(lambda: seen.append("early")))
    mailbox.run_after(10, Mail(lambda: seen.append("early, too")))

    clock.advance(9)
    assert mailbox.run_mail() == 0
    clock.advance(11)
    assert mailbox.run_mail() == 3
    assert seen == ["early", "early, too", "late"]


def test_waiting_ends_with_a_mail_of_another_thread() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    seen: list[int] = []
    waiting = threading.Event()

    def run() -> None:
        waiting.set()
        while not seen:
            mailboxes.wait()
            mailbox.run_mail()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waiting.wait(60)
    mailbox.post(Mail(lambda: seen.append(1)))
    thread.join(60)

    assert seen == [1]


def test_waiting_ends_when_a_timer_is_due() -> None:
    clock = VirtualClock()
    mailboxes = Mailboxes(clock)
    mailbox = mailboxes.new()
    seen: list[int] = []
    mailbox.run_after(5, Mail(lambda: seen.append(1)))
    mailboxes.wait()  # five real milliseconds
    clock.advance(5)

    assert mailbox.run_mail() == 1


def test_mails_that_were_not_run_are_discarded_at_the_end() -> None:
    mailbox = Mailbox(VirtualClock())
    discarded: list[str] = []
    mailbox.post(Mail(lambda: None, lambda: discarded.append("waiting")))
    mailbox.run_after(5, Mail(lambda: None, lambda: discarded.append("timer")))
    mailbox.close()
    mailbox.post(Mail(lambda: None, lambda: discarded.append("late")))

    assert discarded == ["waiting", "timer", "late"]
    assert mailbox.run_mail() == 0


def test_an_error_of_a_mail_is_raised_and_those_after_it_stay() -> None:
    mailbox = Mailbox(VirtualClock())
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("from a mail")

    mailbox.post(Mail(fail))
    mailbox.post(Mail(lambda: seen.append(1)))

    with pytest.raises(ValueError, match="from a mail"):
        mailbox.run_mail()
    assert mailbox.run_mail() == 1
    assert seen == [1]


def test_a_signal_wakes_whoever_waits_and_is_not_lost_while_nobody_does() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    ready: list[threading.Thread] = []
    mailbox.on_ready = lambda: ready.append(threading.current_thread())
    signal = mailbox.signal
    os.write(*signal)
    mailboxes.wait()
    assert mailbox.is_due(0) and mailbox.run_mail() == 0
    assert ready == [threading.current_thread()], "it was given before"

    giver = threading.Timer(0.05, lambda: os.write(*signal))
    giver.start()
    while len(ready) < 2:
        mailboxes.wait()
        mailbox.run_mail()
    mailboxes.close()


def test_a_thread_that_is_busy_looks_for_the_signal() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    mailboxes.look()
    assert not mailbox.is_due(0)
    os.write(*mailbox.signal)
    mailboxes.look()
    mailboxes.look()
    assert (mailbox.run_mail(), ready) == (0, [1])
    assert (mailbox.run_mail(), ready) == (0, [1])
    mailboxes.close()


def test_a_mail_wakes_without_a_signal() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    poster = threading.Timer(0.05, lambda: mailbox.post(Mail(lambda: None)))
    poster.start()
    while not mailbox.has_mail:
        mailboxes.wait()
    assert (mailbox.run_mail(), ready) == (1, [])
    mailboxes.close()


def test_signals_that_nobody_reads_do_not_block_and_count_once() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    signal = mailbox.signal
    with pytest.raises(BlockingIOError):
        while True:
            os.write(*signal)
    mailbox.post(Mail(lambda: None))  # there is no room for its byte either
    mailboxes.wait()
    assert mailbox.run_mail() == 1
    mailboxes.wait()
    mailbox.run_mail()
    assert ready
    mailboxes.close()


def test_a_thread_waits_for_each_of_its_mailboxes() -> None:
    """For mails, for timers, and for nothing if one has a mail; a signal is for who has a reader."""
    clock = VirtualClock()
    mailboxes = Mailboxes(clock)
    both = [mailboxes.new(), mailboxes.new()]
    seen: list[str] = []
    for number, mailbox in enumerate(both):
        poster = threading.Timer(0.05, mailbox.post, [Mail(lambda number=number: seen.append(f"mail {number}"))])
        poster.start()
        while not any(each.is_due(clock()) for each in both):
            mailboxes.wait()
        assert [each.run_mail() for each in both] == [number == 0, number == 1]
    both[1].run_after(5, Mail(lambda: seen.append("timer")))
    both[0].run_after(60_000_000, Mail(lambda: seen.append("too late")))
    mailboxes.wait()  # five real milliseconds, and not those that the mails wrote bytes for
    clock.advance(5)
    assert [each.is_due(clock()) for each in both] == [False, True]
    assert both[1].run_mail() == 1
    both[1].post(Mail(lambda: seen.append("waits")))
    mailboxes.wait()
    assert both[1].run_mail() == 1
    both[0].on_ready = lambda: seen.append("ready")
    os.write(*both[0].signal)
    mailboxes.wait()
    assert both[0].is_due(clock())
    assert [each.run_mail() for each in both] == [0, 0]
    mailboxes.close()
    assert seen == ["mail 0", "mail 1", "timer", "waits", "ready"]


def test_a_duplicate_of_its_signal_outlives_it() -> None:
    mailboxes = Mailboxes(VirtualClock())
    mailbox = mailboxes.new()
    kept = mailbox.signal._replace(fd=os.dup(mailbox.signal.fd))
    mailboxes.close()
    with pytest.raises(BrokenPipeError):
        os.write(*kept)  # and nobody else's file is written to
    os.close(kept.fd)
