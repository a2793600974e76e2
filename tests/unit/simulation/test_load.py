"""How fast a simulated load grows, and when it has grown so far."""

from __future__ import annotations

import random

import pytest

from headgate.simulation.load import Load, noisy
from headgate.simulation.scenario import Scenario
from headgate.simulation.topic import Topic


@pytest.mark.parametrize("seed", range(20))
def test_what_there_is_grows_and_is_reached_at_its_time_and_not_before(seed: int) -> None:
    draw = random.Random(seed)
    load = noisy(draw, ((500, 1000), (300, 4000), (400, 500)), noise=300, step_ms=draw.choice((7, 50, 500)))
    grown = [load.grown_ms(now_ms) for now_ms in range(2000)]
    assert grown == sorted(grown)
    for wanted in range(0, grown[-1], 37):
        at_ms = load.reached_ms(wanted)
        assert load.grown_ms(at_ms) >= wanted
        assert at_ms == 0 or load.grown_ms(at_ms - 1) < wanted


def test_without_noise_it_is_as_the_phases_say() -> None:
    load = noisy(random.Random(0), ((1000, 1000), (1000, 2000)), noise=0, step_ms=100)
    assert (load.grown_ms(500), load.grown_ms(1500), load.grown_ms(3000)) == (500, 2000, 5000)
    assert load == Load(tuple((at_ms, 1000 if at_ms < 1000 else 2000) for at_ms in range(0, 2000, 100)))


def test_a_topic_grows_with_its_load() -> None:
    (script,) = Scenario.of_load(3).sources
    now_ms = 0
    topic = Topic(script, lambda: now_ms)
    split = script.splits[0].split_id
    for position in (0, 5, 50, 100):
        next_ms = topic.next_row_ms(split, position)
        assert next_ms is not None
        now_ms = next_ms
        assert topic.rows(split) == position + 1
        now_ms = next_ms - 1
        assert topic.rows(split) == position
