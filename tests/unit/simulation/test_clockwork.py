"""Virtual time: order, death, frost."""

from __future__ import annotations

from headgate.simulation.clockwork import Clockwork, Process


def run(clock: Clockwork) -> None:
    while clock.step():
        pass


def test_things_happen_in_the_order_of_their_times_and_then_of_their_planning() -> None:
    clock, process, done = Clockwork(), Process("p"), []
    clock.at(20, process, done.append, "late")
    clock.at(10, process, done.append, "first")
    clock.after(10, process, done.append, "second")

    run(clock)
    assert done == ["first", "second", "late"]
    assert (clock.now_ms, clock.steps) == (20, 3)


def test_nothing_happens_to_the_dead() -> None:
    clock, process, done = Clockwork(), Process("p"), []
    clock.at(10, process, done.append, "never")
    process.alive = False

    assert not clock.step()
    assert done == []


def test_what_was_to_happen_to_the_frozen_happens_later_and_in_order() -> None:
    clock, frozen, other, done = Clockwork(), Process("f"), Process("o"), []
    frozen.freeze(100)
    frozen.freeze(50)  # the longer one counts
    for number, time_ms in enumerate((10, 20, 30)):
        clock.at(time_ms, frozen, done.append, number)
    clock.at(60, other, done.append, "other")

    run(clock)
    assert done == ["other", 0, 1, 2]
    assert clock.now_ms == 100
