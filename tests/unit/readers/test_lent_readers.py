"""A split reader that is lent to the task's thread: polled there while it has little, taken back for all else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
from scripted_split_reader import TIMEOUT_S, Driven, Numbers, ScriptedSplitReader

from headgate.errors import BadDataError
from headgate.readers import MultiplexedReader, MultithreadedReader
from headgate.runtime.mailbox import Mail, Mailboxes
from headgate.source import FetchedBatch, InputStatus
from headgate.testing import VirtualClock

SOME = 20
"""More small fetches than it takes to be lent."""


class Polled(Driven):
    """Waits as a task does: for the signal, and for what its reader says."""

    def __init__(self) -> None:
        self.mailboxes = Mailboxes(VirtualClock())
        self.mailbox = self.mailboxes.new()
        super().__init__(MultiplexedReader, signal=self.mailbox.signal)
        self.script.can_be_polled = True
        self.fed: dict[str, int] = {}

    @property
    def split_reader(self) -> ScriptedSplitReader:
        (made,) = self.script.made
        return made

    def feed(self, split_id: str, count: int = 1) -> None:
        """Feed the next numbers of a split."""
        begin = self.fed.get(split_id, 0)
        self.fed[split_id] = begin + count
        self.script.feed(split_id, list(range(begin, begin + count)))

    def wait(self) -> None:
        self.reader.available().add_done_callback(lambda _: self.mailbox.post(Mail(lambda: None)))
        self.mailboxes.wait()
        self.mailbox.run_mail()

    def run_until(self, what: Callable[[], bool]) -> None:
        while not what():
            if self.poll() is InputStatus.NOTHING_AVAILABLE and not what():
                self.wait()

    def has_all(self) -> bool:
        return all(self.output.rows(split_id) == list(range(count)) for split_id, count in self.fed.items())

    @property
    def is_lent(self) -> bool:
        return any(each.is_lent for each in self.reader._fetchers.values())

    def lend(self, *split_ids: str) -> None:
        """Have splits read until the split reader is lent."""
        self.add(*split_ids)
        while not self.is_lent:
            self.feed(split_ids[0])
            self.run_until(self.has_all)

    def close(self) -> None:
        self.reader.close()
        self.mailboxes.close()


@pytest.fixture
def polled() -> Iterator[Polled]:
    made = Polled()
    yield made
    made.close()


def test_after_some_small_fetches_the_task_s_thread_fetches(polled: Polled) -> None:
    polled.lend("a", "b")
    fetches = polled.script.fetches
    for number in range(SOME):
        polled.feed("ab"[number % 2], 1 + number)
        polled.run_until(polled.has_all)
    assert polled.is_lent and polled.script.fetches == fetches
    assert threading.current_thread().name in polled.split_reader.threads


def test_positions_move_with_what_poll_next_emits(polled: Polled) -> None:
    polled.lend("a")
    polled.feed("a", 3)
    before = polled.reader.snapshot_state(1)
    assert before == [Numbers(split_id="a", position=polled.fed["a"] - 3)], "the rows are there, and nobody has them"
    polled.run_until(polled.has_all)
    assert polled.reader.snapshot_state(2) == [Numbers(split_id="a", position=polled.fed["a"])]


@pytest.mark.parametrize("mail", ["add", "pause", "read ahead"])
def test_every_mail_takes_it_back(polled: Polled, mail: str) -> None:
    polled.lend("a")
    (fetcher,) = polled.reader._fetchers.values()
    match mail:
        case "add":
            polled.add("b")
        case "pause":
            polled.reader.pause_or_resume_splits(["a"], [])
        case "read ahead":
            fetcher.read_ahead("a", 1)
    assert not polled.is_lent
    calls = polled.split_reader.calls
    polled.script.wait_for(
        lambda: calls[-1][0] in ("add", "pause") or (mail == "read ahead" and calls[-1][0] != "lend")
    )
    assert [name for name, _ in calls if name in ("lend", "take back")] == ["lend", "take back"]


def test_a_paused_split_is_not_polled_and_goes_on_when_it_is_resumed(polled: Polled) -> None:
    polled.lend("a", "b")
    polled.reader.pause_or_resume_splits(["a"], [])
    for _ in range(SOME):
        polled.feed("b")
        polled.run_until(lambda: polled.output.rows("b") == list(range(polled.fed["b"])))
        assert not polled.is_lent, "there is more to do than to read on"
    rows = len(polled.output.rows("a"))
    polled.feed("a", 5)
    polled.feed("b")
    polled.run_until(lambda: polled.output.rows("b") == list(range(polled.fed["b"])))
    assert len(polled.output.rows("a")) == rows
    polled.reader.pause_or_resume_splits([], ["a"])
    polled.run_until(polled.has_all)


def test_much_at_once_is_fetched_by_a_thread_of_its_own(polled: Polled) -> None:
    polled.lend("a")
    fetches = polled.script.fetches
    polled.feed("a", 5000)
    polled.run_until(polled.has_all)
    assert not polled.is_lent
    polled.feed("a", 5000)
    polled.run_until(polled.has_all)
    assert polled.script.fetches > fetches and not polled.is_lent


def test_what_takes_more_than_to_read_on_is_left_to_fetch(polled: Polled) -> None:
    polled.lend("a")
    fetches = polled.script.fetches
    polled.script.feed("a", "odd")
    polled.feed("a")
    polled.run_until(polled.has_all)
    assert polled.script.fetches > fetches


def test_what_a_poll_leaves_is_signalled(polled: Polled) -> None:
    polled.lend("a")
    polled.feed("a")
    polled.script.feed("a", "odd")
    polled.feed("a")
    polled.run_until(polled.has_all)


def test_an_error_names_the_split_and_where_it_is(polled: Polled) -> None:
    polled.lend("a")
    polled.script.feed("a", BadDataError("no number", split="a"))
    with pytest.raises(BadDataError) as raised:
        polled.run_until(lambda: False)
    assert raised.value.facts["position"] == {"split_id": "a", "position": polled.fed["a"]}


def test_a_split_that_ends_ends(polled: Polled) -> None:
    polled.lend("a", "b")
    polled.script.feed("a", "end")
    polled.run_until(lambda: ("a", "released") in polled.output.log)
    assert [split.split_id for split in polled.reader.snapshot_state(1)] == ["b"]
    polled.feed("b")
    polled.run_until(polled.has_all)


def test_rows_that_alignment_holds_take_it_back_and_come_before_those_that_follow(polled: Polled) -> None:
    polled.script.has_positions = True
    polled.lend("a", "b")
    bound = polled.fed["a"] + 2
    polled.output.bounds["a"] = bound
    for _ in range(3):
        polled.feed("a", 2)
    polled.feed("b")
    polled.run_until(lambda: not polled.is_lent)
    polled.run_until(lambda: polled.output.rows("b") == list(range(polled.fed["b"])))
    assert polled.output.rows("a") == list(range(bound))
    (of_a, _) = sorted(polled.reader.snapshot_state(1), key=lambda split: split.split_id)
    assert of_a.position == bound
    polled.output.bounds.clear()
    polled.reader._queue.notify()
    polled.run_until(polled.has_all)


def test_silence_is_known_while_the_task_s_thread_waits(polled: Polled) -> None:
    """Looked at again and again, as for idleness: nothing came since the last look."""
    polled.lend("a")
    (fetcher,) = polled.reader._fetchers.values()
    polled.run_until(polled.has_all)
    polled.poll()
    fetcher.asked_until(1000)
    assert fetcher.asked_until(2000) == (1000, {"a"})
    polled.feed("a")
    assert fetcher.asked_until(3000)[0] != 2000, "rows wait to be polled"
    polled.run_until(polled.has_all)
    assert fetcher.asked_until(4000)[0] == 3000, "a poll has asked all others since"
    assert fetcher.asked_until(5000)[0] == 4000


def test_what_was_queued_before_it_was_lent_comes_first(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task looks at the queue, the fetcher queues its last batch and lends, and the task sees that it is lent."""
    polled.lend("a")
    (fetcher,) = polled.reader._fetchers.values()
    queue, take = polled.reader._queue, polled.reader._queue.take
    last = FetchedBatch(split=fetcher._splits["a"])

    def take_too_early() -> tuple[FetchedBatch[Numbers] | None, bool]:
        taken = take()
        monkeypatch.setattr(queue, "take", take)
        queue.put(last)
        return taken

    monkeypatch.setattr(queue, "take", take_too_early)
    polled.feed("a")
    emitted = len(polled.output.log)
    assert polled.poll() is InputStatus.MORE_AVAILABLE and len(polled.output.log) == emitted
    polled.run_until(polled.has_all)
    assert not queue.has_ready()


def test_it_is_polled_in_silence_too(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then, for what there is to be looked at beside rows."""
    monkeypatch.setattr("headgate.readers.fetcher._POLLED_S", 0.01)
    polled.lend("a")
    polled.run_until(lambda: polled.poll() is InputStatus.NOTHING_AVAILABLE)
    ready: list[int] = []
    polled.mailbox.on_ready = lambda: ready.append(1)
    while len(ready) < 3:
        polled.wait()


def test_of_several_fetchers_none_lends() -> None:
    mailboxes = Mailboxes(VirtualClock())
    driven = Driven(MultithreadedReader, signal=mailboxes.new().signal)
    driven.script.can_be_polled = True
    driven.add("a", "b")
    while (count := len(driven.output.rows("a"))) < SOME:
        driven.script.feed("a", [count])
        driven.poll_until(lambda before=count: len(driven.output.rows("a")) > before)  # type: ignore[misc]
    assert not any(each.is_lent for each in driven.reader._fetchers.values())
    driven.reader.close()
    mailboxes.close()


def test_it_is_closed_on_its_own_thread(polled: Polled) -> None:
    polled.lend("a")
    polled.split_reader.threads.clear()
    polled.reader.close()
    polled.script.wait_for(lambda: bool(polled.script.closed))
    assert threading.current_thread().name not in polled.split_reader.threads
    assert polled.split_reader.calls[-1][0] == "take back"


def test_what_comes_while_it_is_lent_is_not_forgotten(polled: Polled) -> None:
    """A thread feeds at any time, also between the last fetch and the first poll, of which there is no signal."""
    polled.add("a")
    total = 3000
    random = Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "0"))

    def feed() -> None:
        done = 0
        while done < total:
            count = min(total - done, random.choice([1, 1, 1, 2, 40]))
            polled.script.feed("a", list(range(done, done + count)))
            done += count

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    polled.run_until(lambda: len(polled.output.rows("a")) == total)
    feeder.join(TIMEOUT_S)
    assert polled.output.rows("a") == list(range(total))


@pytest.mark.parametrize("seed", range(20))
def test_every_row_comes_once_and_in_order_whatever_happens(polled: Polled, seed: int) -> None:
    random = Random(seed)
    splits, paused = ["a"], set[str]()
    polled.add("a")
    for step in range(120):
        match random.randrange(12):
            case 0:
                splits.append(f"s{step}")
                polled.add(splits[-1])
            case 1:
                paused.add(random.choice(splits))
                polled.reader.pause_or_resume_splits(sorted(paused), [])
            case 2 | 3:
                polled.reader.pause_or_resume_splits([], sorted(paused))
                paused.clear()
            case 4:
                polled.script.feed(random.choice(splits), "odd")
            case 5:
                polled.feed(random.choice(splits), 1500)
            case _:
                polled.feed(random.choice(splits), random.randrange(1, 4))
        for _ in range(random.randrange(4)):
            polled.poll()
        emitted = {split_id: len(polled.output.rows(split_id)) for split_id in splits}
        assert {each.split_id: each.position for each in polled.reader.snapshot_state(0)} == emitted
    polled.reader.pause_or_resume_splits([], sorted(paused))
    polled.run_until(polled.has_all)
