"""Which frame of a channel is legal when: the table, and two sides of a connection that talk."""

from __future__ import annotations

import itertools
import re

import pytest

from headgate.protocol import data_frames
from headgate.protocol.data_frames import CONSUMERS, GREETINGS, NEXT, ConnectionChannels, IllegalFrame, Kind, State


def test_the_table_in_the_docstring_is_the_one_that_decides() -> None:
    rows = re.findall(r"^    (\w+) +(\w+) (comes|goes) +(\w+)", data_frames.__doc__ or "", re.MULTILINE)
    assert {(state, way, kind, then) for state, kind, way, then in rows} == {
        (state.value, way, kind.name, then.value) for (state, way, kind), then in NEXT.items()
    }


def test_what_goes_at_one_end_may_come_at_the_other() -> None:
    """Every frame is one end's to send and the other's to receive; the ends' states correspond."""
    ends = {"consumer": (State.OPENING, State.RECEIVING), "producer": (State.WAITING, State.SERVING)}
    goes = {
        side: {(kind, ends[side].index(state)) for (state, way, kind) in NEXT if way == "goes" and state in ends[side]}
        for side in ends
    }
    comes = {
        side: {(kind, ends[side].index(state)) for (state, way, kind) in NEXT if way == "comes" and state in ends[side]}
        for side in ends
    }
    assert goes["consumer"] <= comes["producer"]
    assert goes["producer"] == comes["consumer"]


def both() -> tuple[ConnectionChannels, ConnectionChannels]:
    return ConnectionChannels(dialed=True), ConnectionChannels(dialed=False)


@pytest.mark.parametrize("dialed", [True, False])
def test_the_life_of_a_channel(dialed: bool) -> None:
    here, there = ConnectionChannels(dialed=dialed), ConnectionChannels(dialed=not dialed)
    number = here.open()
    assert there.comes(number, Kind.OPEN)
    for sender, receiver, kind in (
        (there, here, Kind.WELCOME), (here, there, Kind.CREDIT), (there, here, Kind.ROWS), (there, here, Kind.EVENT),
        (there, here, Kind.GOODBYE),
    ):  # fmt: skip
        assert sender.goes(number, kind)
        assert receiver.comes(number, kind)
    assert here.state(number) == there.state(number) == State.CLOSED
    assert not here.goes(number, Kind.CREDIT) and not there.goes(number, Kind.ROWS)
    assert not there.comes(number, Kind.CREDIT), "it was under way"


def test_numbers_of_the_two_sides_differ_and_none_comes_again() -> None:
    dialer, other = both()
    assert [dialer.open() for _ in range(3)] == [1, 3, 5]
    assert [other.open() for _ in range(3)] == [2, 4, 6]
    for number in (1, 3, 5):
        assert other.comes(number, Kind.OPEN)
    assert dialer.goes(1, Kind.CLOSE) and other.comes(1, Kind.CLOSE)
    assert dialer.open() == 7
    for number in (1, 5, 9, 2, 8, 0):
        with pytest.raises(IllegalFrame):
            other.comes(number, Kind.OPEN)
    assert other.comes(7, Kind.OPEN)


def test_every_frame_is_legal_ignored_or_refused_by_the_table() -> None:
    """In each state an end can be in."""
    for state, kind in itertools.product(State, Kind):
        if kind is Kind.OPEN:
            continue
        dialer, other = both()
        number = dialer.open()
        other.comes(number, Kind.OPEN)
        if state in (State.RECEIVING, State.SERVING, State.CLOSED):
            other.goes(number, Kind.WELCOME)
            dialer.comes(number, Kind.WELCOME)
        if state is State.CLOSED:
            dialer.goes(number, Kind.CLOSE)
        end = dialer if state in (State.OPENING, State.RECEIVING, State.CLOSED) else other
        assert end.state(number) is state
        if (state, "comes", kind) in NEXT:
            assert end.comes(number, kind)
            assert end.state(number) is NEXT[state, "comes", kind]
        elif state is State.CLOSED and kind not in GREETINGS | CONSUMERS:
            assert not end.comes(number, kind)
        else:
            with pytest.raises(IllegalFrame):
                end.comes(number, kind)
            assert end.state(number) is state
