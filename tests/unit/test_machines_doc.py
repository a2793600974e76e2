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
    # Rows that a reader emitted come first, or belong to the snapshot.
    ("TaskLoop", "reading", "ChainEmpty"),
    ("TaskLoop", "snapshot due", "ChainEmpty"),
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


class CoinInserted:
    """Somebody paid."""


class Unlocked:
    """It is unlocked."""


class Unlock:
    """Let one pass."""


def test_rows_name_their_handlers_and_a_table_is_shown() -> None:
    class Turnstile(Machine):
        """A turnstile."""

        TRANSITIONS = (
            Row("locked", CoinInserted, "unlocked", [Unlock, Maybe(Unlocked)], "somebody paid"),
            Row("unlocked", CoinInserted, SAME, IGNORED),
        )

        def __init__(self) -> None:
            super().__init__()
            self.state = "locked"

        def _on_coin_inserted(self, event: CoinInserted, now_ms: int) -> list[object]:
            self.state = "unlocked"
            return [Unlock()]

    turnstile = Turnstile()
    assert [type(each) for each in turnstile.handle(CoinInserted(), 5)] == [Unlock]
    assert turnstile.handle(CoinInserted(), 6) == []
    assert turnstile.history() == ("5 ms: locked CoinInserted -> unlocked",)
    assert (Turnstile.__doc__ or "").splitlines()[2:] == [
        "    state     event         next      actions            why",
        "    --------  ------------  --------  -----------------  " + "-" * 59,
        "    locked    CoinInserted  unlocked  Unlock, Unlocked?  somebody paid",
        "    unlocked  CoinInserted  same",
        "    ",
    ]


def test_a_pair_has_one_handler() -> None:
    with pytest.raises(TypeError, match="the rows of locked, CoinInserted have several handlers"):
        type(
            "Turnstile",
            (Machine,),
            {
                "TRANSITIONS": (
                    Row("locked", CoinInserted, SAME, IGNORED),
                    Row("locked", CoinInserted, "unlocked", by="_on_it"),
                ),
                "_on_it": lambda self, event, now_ms: [],
            },
        )
