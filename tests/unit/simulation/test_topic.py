"""What there is to read in a simulated source, and when there is more."""

from __future__ import annotations

import pytest

from headgate.simulation.scenario import Scenario
from headgate.simulation.topic import SourceScript, Topic

LAST_MS = 6_000
SCRIPTS = [source for seed in range(60) for source in Scenario.of(seed).sources]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0


def topic(script: SourceScript) -> tuple[Topic, Clock]:
    clock = Clock()
    return Topic(script, lambda: clock.now_ms), clock


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.uid)
def test_the_next_row_is_there_at_its_time_and_not_before(script: SourceScript) -> None:
    read, clock = topic(script)
    for split in script.splits:
        for position in (0, 1, 7, 30) if split.stop is None else range(0, split.stop, 5):
            clock.now_ms = 0
            next_ms = read.next_row_ms(split.split_id, position)
            assert next_ms is not None
            clock.now_ms = next_ms
            assert read.rows(split.split_id) > position
            clock.now_ms = next_ms - 1
            assert next_ms == 0 or read.rows(split.split_id) <= position


def test_a_split_that_is_frozen_has_no_next_row() -> None:
    script = next(each for each in SCRIPTS if each.splits[0].stop is None)
    read, clock = topic(script)
    clock.now_ms = read.frozen_ms = LAST_MS
    split_id = script.splits[0].split_id
    rows = read.rows(split_id)
    assert rows > 0
    assert read.next_row_ms(split_id, rows) is None
    assert (read.next_row_ms(split_id, rows - 1) or 0) <= LAST_MS


def test_the_end_of_a_split_needs_no_waiting_for() -> None:
    script = next(each for each in SCRIPTS if each.splits[0].stop is not None)
    read, _ = topic(script)
    split = script.splits[0]
    assert read.next_row_ms(split.split_id, split.stop or 0) == 0


@pytest.mark.parametrize("script", SCRIPTS[:10], ids=lambda script: script.uid)
def test_rows_of_a_key_are_counted(script: SourceScript) -> None:
    read, _ = topic(script)
    for key in range(script.keys):
        for first, last in ((0, 0), (3, 3), (70, 90), (0, 40), (20, 19)):
            assert read.rows_of_key(key, first, last) == sum(read.key(each) == key for each in range(first, last + 1))
