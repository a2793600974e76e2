"""``bench/scale_driver.py`` in small: each case does what it says that it measures; never how fast."""

from __future__ import annotations

from bench import scale_driver
from bench.scale_driver import assign, checkpoint, manifest_of, messages, restart
from headgate.checkpoint.manifest import deserialize, serialize

SLOTS, FILLED = 8, 3


def test_a_checkpoint_is_what_subtasks_contributed() -> None:
    made = manifest_of(SLOTS, FILLED)
    assert deserialize(serialize(made), "m") == made
    pairs = [(each.producer, each.consumer, each.output) for each in made.channels]
    assert len(set(pairs)) == len(pairs) == 2 * SLOTS * FILLED
    assert all(0 <= number < SLOTS for pair in pairs for number in pair[:2])


def test_all_channel_state_is_taken_on() -> None:
    """By those whose key groups were the old consumer's: two, if they are not the same."""
    same = assign(SLOTS, FILLED, SLOTS)
    assert same["channels"] == same["taken on"] == 2 * SLOTS * FILLED
    fewer = assign(SLOTS, FILLED)
    assert fewer["channels"] == same["channels"] < fewer["taken on"] <= 2 * same["channels"]


def test_a_query_with_a_slot_less_is_deployed_with_what_it_takes_on() -> None:
    found = restart(SLOTS, FILLED)
    assert found["deployed"] == 2 * (SLOTS - 1)
    assert found["taken on"] == assign(SLOTS, FILLED)["taken on"]


def test_a_checkpoint_completes_and_everybody_hears_of_it() -> None:
    found, empty = checkpoint(SLOTS, FILLED), checkpoint(SLOTS, 0)
    assert found["completed"] == empty["completed"] == 2 * SLOTS
    assert (found["channels"], empty["channels"]) == (2 * SLOTS * FILLED, 0)
    assert found["manifest bytes"] > empty["manifest bytes"] > 1_000


def test_messages_are_heard() -> None:
    found = messages(SLOTS, 8 * SLOTS)
    assert (found["messages"], found["progress"]) == (8 * SLOTS, 2 * SLOTS)


def test_each_case_has_its_figures() -> None:
    found = scale_driver.run(SLOTS, FILLED)
    assert found.keys() == {"assign", "restart", "checkpoint", "messages"}
    assert all(value >= 0 for figures in found.values() for value in figures.values())
