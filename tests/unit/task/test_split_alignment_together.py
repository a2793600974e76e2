"""Several readers and a coordinator that talk by messages which take their time, over any event times.

The coordinator here is the plainest that keeps the group's contract: it announces when the minimum moved, to who joins,
and to whom it announced more of the others than holds. Everything that happens, and in which order, follows from a
seed.
"""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.source import WatermarkAlignment
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, saturated_ms
from headgate.task.split_alignment import (
    AllowedAnnounced,
    Event,
    PauseOrResumeSplits,
    PauseSource,
    ReportWatermark,
    ResumeSource,
    SplitAdded,
    SplitAlignment,
    SplitFinished,
    SplitHeld,
    SplitMoved,
    TimePassed,
)

INTERVAL = 1000
Batches = list[list[int]]


class Split:
    """Batches of rows, of which only the event times count, and how far they were read."""

    def __init__(self, name: str, batches: Batches) -> None:
        self.name = name
        self.batches = [list(batch) for batch in batches]
        self.left = deque(list(batch) for batch in batches)
        self.watermark_ms: int | None = None
        self.held_ms: int | None = None
        self.idle = False
        self.emitted: list[int] = []

    @property
    def vote_ms(self) -> int:
        """How far it is for certain."""
        known = [each for each in (self.watermark_ms, self.held_ms) if each is not None]
        return max(known, default=MIN_WATERMARK_MS)


class Reader:
    """A reader with its machine and what the machine's actions lead to."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        self.splits: dict[str, Split] = {}
        self.start()

    def start(self) -> None:
        """Begin anew, without a split and without a memory."""
        group = self.group
        self.machine = SplitAlignment(
            WatermarkAlignment(group="g", max_drift_ms=group.drift_ms, update_interval_ms=INTERVAL)
        )
        self.others_ms: int | None = None
        self.source_paused = False
        self.paused: set[str] = set()
        self.to_group: deque[int | None] = deque()
        self.to_reader: deque[AllowedAnnounced] = deque()

    def notify(self, event: Event) -> None:
        for action in self.machine.handle(event, self.group.now_ms):
            match action:
                case PauseSource():
                    self.source_paused = True
                case ResumeSource():
                    self.source_paused = False
                case PauseOrResumeSplits(pause, resume):
                    self.paused |= set(pause)
                    self.paused -= set(resume)
                case ReportWatermark(watermark_ms):
                    self.to_group.append(watermark_ms)
        self.machine.check()

    def add(self, split: Split) -> None:
        self.splits[split.name] = split
        self.notify(SplitAdded(split.name))

    def readable(self) -> list[Split]:
        return [] if self.source_paused else [each for each in self.splits.values() if each.name not in self.paused]

    def poll(self, split: Split) -> None:
        """Emit a batch, or of a batch what may go; a split that has nothing left finishes."""
        if not split.left:
            del self.splits[split.name]
            self.paused.discard(split.name)
            self.notify(SplitFinished(split.name))
            return
        batch = split.left[0]
        allowed = self.rows_allowed(split, batch) if self.group.by_rows else len(batch)
        if not self.group.by_rows:
            self.group.check_batch(self, split)
        for _ in range(allowed):
            event_time_ms = batch.pop(0)
            watermark_ms = event_time_ms - self.group.disorder_ms
            if self.group.by_rows:
                self.group.check_row(self, split, watermark_ms)
            split.emitted.append(event_time_ms)
            if split.watermark_ms is None or watermark_ms > split.watermark_ms:
                split.watermark_ms = watermark_ms
        if split.held_ms is not None and split.watermark_ms is not None and split.watermark_ms >= split.held_ms:
            split.held_ms = None
        if not batch:
            split.left.popleft()
        if allowed:
            split.idle = False
            self.notify(SplitMoved(split.name, split.watermark_ms))

    def rows_allowed(self, split: Split, batch: list[int]) -> int:
        """Return how many rows may go, and say what the next one is if that is not all."""
        while True:
            bound_ms = self.machine.bound_ms
            allowed = 0
            while allowed < len(batch) and bound_ms is not None and self.next_ms(batch[allowed]) <= bound_ms:
                allowed += 1
            if allowed == len(batch):
                return allowed
            split.held_ms = max(self.next_ms(batch[allowed]), split.vote_ms)
            self.notify(SplitHeld(split.name, split.held_ms))
            if split.name in self.machine.paused:
                return allowed

    def next_ms(self, event_time_ms: int) -> int:
        return event_time_ms - self.group.disorder_ms


class Group:
    """The readers, the coordinator and the messages between them."""

    def __init__(self, seed: int, splits: list[list[Batches]], drift_ms: int, disorder_ms: int, by_rows: bool) -> None:
        self.random = Random(seed)
        self.drift_ms, self.disorder_ms, self.by_rows = drift_ms, disorder_ms, by_rows
        self.now_ms = 0
        self.timers = 0
        self.strict = True
        self.votes: dict[int, int | None] = {}
        self.announced: dict[int, int] = {}
        self.minimum_ms: int | None = None
        self.readers = [Reader(self, number) for number in range(len(splits))]
        self.all_splits: list[Split] = []
        for reader, its_splits in zip(self.readers, splits):
            for batches in its_splits:
                split = Split(f"s{len(self.all_splits)}", batches)
                self.all_splits.append(split)
                reader.add(split)
        # All have joined before anything is announced to the first: nobody runs ahead of one that nobody knows.
        for reader in self.readers:
            self.votes[reader.number] = reader.to_group.popleft() if reader.to_group else None
        self.minimum_ms = self.lowest()
        for reader in self.readers:
            self.announce(reader)

    # The coordinator.

    def lowest(self, but: int | None = None) -> int | None:
        votes = [vote for number, vote in self.votes.items() if number != but and vote is not None]
        return min(votes, default=None)

    def others_of(self, reader: Reader) -> int:
        lowest = self.lowest(but=reader.number)
        return MAX_WATERMARK_MS if lowest is None else lowest

    def report(self, reader: Reader, watermark_ms: int | None) -> None:
        self.votes[reader.number] = watermark_ms
        before, self.minimum_ms = self.minimum_ms, self.lowest()
        for each in self.readers:
            if self.minimum_ms != before or self.others_of(each) < self.announced[each.number]:
                self.announce(each)

    def announce(self, reader: Reader) -> None:
        others_ms = self.announced[reader.number] = self.others_of(reader)
        lowest_ms = MAX_WATERMARK_MS if self.minimum_ms is None else self.minimum_ms
        reader.to_reader.append(AllowedAnnounced(saturated_ms(lowest_ms + self.drift_ms), others_ms))

    # What must hold.

    def bound_ms(self, reader: Reader) -> int:
        """Return the bound from what holds, or where votes may fall from what was announced to the reader of others."""
        own = [split.vote_ms for split in reader.splits.values() if not split.idle]
        if self.strict:
            others = [split.vote_ms for each in self.readers for split in each.splits.values()]
        else:
            assert reader.others_ms is not None, "read before anything was announced to it"
            others = [reader.others_ms]
        return min([*own, *others]) + self.drift_ms

    def check_row(self, reader: Reader, split: Split, watermark_ms: int) -> None:
        assert watermark_ms <= self.bound_ms(reader), f"{split.name} emits a row beyond the bound"

    def check_batch(self, reader: Reader, split: Split) -> None:
        if split.watermark_ms is not None:
            assert split.watermark_ms <= self.bound_ms(reader), f"{split.name} reads on beyond the bound"

    # What happens.

    def run(self, troubles: int = 0) -> None:
        """Let things happen in any order, so much trouble among them, until all is read."""
        rows = sum(len(batch) for split in self.all_splits for batch in split.batches)
        for _ in range(2000 + 200 * rows):
            steps = [("deliver", reader, None) for reader in self.readers if reader.to_reader]
            steps += [("collect", reader, None) for reader in self.readers if reader.to_group]
            steps += [("poll", reader, split) for reader in self.readers for split in reader.readable()]
            if troubles and (not steps or self.random.random() < 0.1):
                troubles -= 1
                self.make_trouble()
            elif steps:
                self.step(*self.random.choice(steps))
            elif not self.pass_time():
                break
            if not self.strict:
                self.now_ms += self.random.choice((0, 0, 0, 50, INTERVAL))
        for split in self.all_splits:
            assert split.emitted == [each for batch in split.batches for each in batch], f"{split.name} is not read"
        assert self.minimum_ms is None, "somebody has a vote without a split"

    def step(self, what: str, reader: Reader, split: Split | None) -> None:
        if what == "deliver":
            announced = reader.to_reader.popleft()
            reader.others_ms = announced.others_ms
            reader.notify(announced)
        elif what == "collect":
            self.report(reader, reader.to_group.popleft())
        else:
            assert split is not None
            reader.poll(split)

    def pass_time(self) -> bool:
        """Let the next timer ring; return whether there was one."""
        due = [(due_ms, each) for each in self.readers if (due_ms := each.machine.next_time_ms()) is not None]
        if not due:
            return False
        self.now_ms = max(self.now_ms, min(due_ms for due_ms, _ in due))
        self.timers += 1
        for due_ms, reader in due:
            if due_ms <= self.now_ms:
                reader.notify(TimePassed())
        return True

    def make_trouble(self) -> None:
        reader = self.random.choice(self.readers)
        kind = self.random.choice(("idle", "idle", "fail", "add"))
        if kind == "idle":
            for split in reader.splits.values():
                if split.name not in reader.machine.paused and not split.idle:
                    split.idle = True
                    reader.notify(SplitMoved(split.name, split.watermark_ms, idle=True))
                    return
        elif kind == "add" and len(self.all_splits) < 12:
            split = Split(f"s{len(self.all_splits)}", [[self.random.randrange(1000)]])
            self.all_splits.append(split)
            reader.add(split)
        elif kind == "fail":
            splits = list(reader.splits.values())
            reader.start()  # its vote stays until it reports anew
            reader.splits = {}
            for split in splits:
                split.left = deque(list(batch) for batch in split.batches)
                split.watermark_ms = split.held_ms = None
                split.idle = False
                split.emitted.clear()
                self.random.choice([reader, *self.readers]).add(split)  # restored, here or elsewhere
            self.announce(reader)


event_times = st.one_of(st.integers(0, 300), st.integers(0, 100_000), st.integers(-(10**12), 10**12))
some_batches = st.lists(st.lists(event_times, min_size=1, max_size=4), max_size=5)
some_splits = st.lists(st.lists(some_batches, max_size=3), min_size=1, max_size=4)
anything = given(
    seed=st.integers(0, 2**32), splits=some_splits, drift_ms=st.sampled_from([0, 1, 100, 5000]),
    disorder_ms=st.sampled_from([0, 7]),
)  # fmt: skip


@pytest.mark.parametrize("by_rows", [True, False], ids=["rows", "batches"])
@anything
@example(seed=1, splits=[[[[0], [10**6]]], [[[0], [10**6 + 10**5]]]], drift_ms=100, disorder_ms=0)  # a gap everywhere
@settings(max_examples=150)
def test_all_is_read_without_waiting_for_a_clock_and_nobody_reads_beyond_the_bound(
    by_rows: bool, seed: int, splits: list[list[Batches]], drift_ms: int, disorder_ms: int
) -> None:
    """Rows: none beyond the slowest and the drift. Batches: none is begun there, so that one may lie beyond."""
    group = Group(seed, splits, drift_ms, disorder_ms, by_rows)
    group.run()
    assert group.timers == 0


@pytest.mark.parametrize("by_rows", [True, False], ids=["rows", "batches"])
@anything
@settings(max_examples=150)
def test_all_is_read_though_splits_fall_silent_readers_fail_and_splits_come(
    by_rows: bool, seed: int, splits: list[list[Batches]], drift_ms: int, disorder_ms: int
) -> None:
    """Then a vote may fall that a reader knows of only later: it never passes what was announced to it."""
    group = Group(seed, splits, drift_ms, disorder_ms, by_rows)
    group.strict = False
    group.run(troubles=25)
