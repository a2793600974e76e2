"""What a slot of the driver's process loads is its own, as in another process."""

from __future__ import annotations

import enum
from typing import Any

from headgate.pickling import dumps, loads
from headgate.spark.continuous.copies import Copies


def test_slots_share_no_class_and_no_global(notebook: Any) -> None:
    data = dumps(notebook.Counter())
    ours = notebook.Counter.__call__
    first, second = Copies().loads(data), Copies().loads(data)

    assert (first(), first(), second()) == ([1], [1, 2], [1])
    assert len({type(first), type(second), notebook.Counter}) == 3
    assert (notebook.seen, notebook.Counter.made) == ([], 0)
    assert notebook.Counter.__call__ is ours, "cloudpickle would write over the program's own class"
    assert notebook.Counter()() == [1]


def test_a_slot_has_one_class_in_all_that_it_loads(notebook: Any) -> None:
    copies = Copies()
    one, other = copies.loads(dumps(notebook.Counter())), copies.loads(dumps(notebook.Counter))
    assert type(one) is other
    assert one() == [1]


def test_an_enum_is_the_slot_s_own(notebook: Any) -> None:
    red, colours = Copies().loads(dumps((notebook.Colour.RED, notebook.Colour)))
    assert isinstance(red, enum.Enum) and red is colours.RED
    assert colours is not notebook.Colour


def test_the_driver_knows_what_a_slot_sends_of_its_class(notebook: Any) -> None:
    """As it does of a worker's: commit messages of a user's data source come back so."""
    copied = Copies().loads(dumps(notebook.Counter()))
    assert type(loads(dumps(copied))) is notebook.Counter


def test_what_can_be_imported_is_everybody_s() -> None:
    assert Copies().loads(dumps(Copies)) is Copies
