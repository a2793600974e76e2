"""The mailbox: mails in order on one thread, timers by the clock, nothing lost at the end."""

from __future__ import annotations

import os
import threading

import pytest

from headgate.runtime.mailbox import Mail, Mailbox
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
    mailbox = Mailbox(VirtualClock())
    seen: list[int] = []
    waiting = threading.Event()

    def run() -> None:
        waiting.set()
        while not seen:
            mailbox.wait()
            mailbox.run_mail()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waiting.wait(60)
    mailbox.post(Mail(lambda: seen.append(1)))
    thread.join(60)

    assert seen == [1]


def test_waiting_ends_when_a_timer_is_due() -> None:
    clock = VirtualClock()
    mailbox = Mailbox(clock)
    seen: list[int] = []
    mailbox.run_after(5, Mail(lambda: seen.append(1)))
    mailbox.wait()  # five real milliseconds
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
    mailbox = Mailbox(VirtualClock())
    ready: list[threading.Thread] = []
    mailbox.on_ready = lambda: ready.append(threading.current_thread())
    signal = mailbox.signal
    os.write(*signal)
    mailbox.wait()
    assert ready == [threading.current_thread()], "it was given before"

    giver = threading.Timer(0.05, lambda: os.write(*signal))
    giver.start()
    while len(ready) < 2:
        mailbox.wait()
    assert mailbox.run_mail() == 0
    mailbox.close()


def test_a_thread_that_is_busy_looks_for_the_signal() -> None:
    mailbox = Mailbox(VirtualClock())
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    mailbox.look()
    os.write(*mailbox.signal)
    mailbox.look()
    mailbox.look()
    assert ready == [1]
    mailbox.close()


def test_a_mail_wakes_without_a_signal() -> None:
    mailbox = Mailbox(VirtualClock())
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    poster = threading.Timer(0.05, lambda: mailbox.post(Mail(lambda: None)))
    poster.start()
    while not mailbox.has_mail:
        mailbox.wait()
    assert (mailbox.run_mail(), ready) == (1, [])
    mailbox.close()


def test_signals_that_nobody_reads_do_not_block_and_count_once() -> None:
    mailbox = Mailbox(VirtualClock())
    ready: list[int] = []
    mailbox.on_ready = lambda: ready.append(1)
    signal = mailbox.signal
    with pytest.raises(BlockingIOError):
        while True:
            os.write(*signal)
    mailbox.post(Mail(lambda: None))  # there is no room for its byte either
    mailbox.wait()
    assert mailbox.run_mail() == 1
    mailbox.wait()
    assert ready
    mailbox.close()


def test_a_duplicate_of_its_signal_outlives_it() -> None:
    mailbox = Mailbox(VirtualClock())
    kept = mailbox.signal._replace(fd=os.dup(mailbox.signal.fd))
    mailbox.close()
    with pytest.raises(BrokenPipeError):
        os.write(*kept)  # and nobody else's file is written to
    os.close(kept.fd)
