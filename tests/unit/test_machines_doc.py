"""docs/machines.md shows the tables of all machines, which their docstrings show too."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row, steps_of, table_of
from tests.machines_doc import DOCUMENT, document, machines


def test_the_document_is_what_the_machines_say() -> None:
    assert DOCUMENT.read_text() == document(), "out of date: run  ./run docs"


@pytest.mark.parametrize("machine", machines(), ids=lambda each: each.__name__)
def test_a_machine_shows_its_table(machine: type[Machine]) -> None:
    assert table_of(machine.TRANSITIONS, indent="    ") in (machine.__doc__ or "")


MANY_OUTCOMES = {
    # Everything that a slot's silence leads to is found by time: see the docstring of `scheduler`.
    ("Scheduler", "submitted", "SchedulerTimePassed"),
    # FLIP-547's three processes begin and end here; their rows say which.
    ("ChannelRecovery", "phase 1", "ChannelRead"),
    ("ChannelRecovery", "phase 1", "RoomFound"),
    # The state afterwards is that before the snapshot, or another snapshot is due.
    ("TaskLoop", "snapshot prepared", "ChainEmpty"),
    ("TaskLoop", "snapshot due", "CheckpointGivenUp"),
    ("TaskLoop", "snapshot prepared", "CheckpointGivenUp"),
}
"""Pairs of a machine's state and an event with more than three outcomes, and why."""


def test_a_pair_has_few_outcomes() -> None:
    outcomes = Counter(
        (machine.__name__, step.state, step.event) for machine in machines() for step in steps_of(machine.TRANSITIONS)
    )
    assert {pair for pair, rows in outcomes.items() if rows > 3} == MANY_OUTCOMES


class Knocked:
    """Somebody is at the door."""


class Opened:
    """It is open."""


class Greet:
    """Say hello."""


def test_rows_name_their_handlers_and_a_table_is_shown() -> None:
    class Door(Machine):
        """A door."""

        TRANSITIONS = (
            Row("closed", Knocked, "open", [Greet, Maybe(Opened)], "somebody is there"),
            Row("open", Knocked, SAME, IGNORED),
        )

        def __init__(self) -> None:
            super().__init__()
            self.state = "closed"

        def _on_knocked(self, event: Knocked, now_ms: int) -> list[object]:
            self.state = "open"
            return [Greet()]

    door = Door()
    assert [type(each) for each in door.handle(Knocked(), 5)] == [Greet]
    assert door.handle(Knocked(), 6) == []
    assert door.history() == ("5 ms: closed Knocked -> open",)
    assert (Door.__doc__ or "").splitlines()[2:] == [
        "    state   event    next  actions         why",
        "    ------  -------  ----  --------------  " + "-" * 73,
        "    closed  Knocked  open  Greet, Opened?  somebody is there",
        "    open    Knocked  same",
        "    ",
    ]


def test_a_pair_has_one_handler() -> None:
    with pytest.raises(TypeError, match="the rows of closed, Knocked have several handlers"):
        type(
            "Door",
            (Machine,),
            {
                "TRANSITIONS": (Row("closed", Knocked, SAME, IGNORED), Row("closed", Knocked, "open", by="_on_it")),
                "_on_it": lambda self, event, now_ms: [],
            },
        )
