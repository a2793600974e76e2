"""What is read in the driver's process: a slot's is its own, and nothing changes the program's classes."""

from __future__ import annotations

import enum
import gc
import types
import weakref
from typing import Any

import pytest

from headgate.spark.continuous.pickling import Copies, dumps, loads

NOTEBOOK = """
import enum

seen = []

class Colour(enum.Enum):
    RED = 1

class Counter:
    made = 0

    def __call__(self):
        type(self).made += 1
        seen.append(self.made)
        return list(seen)
"""


@pytest.fixture
def notebook() -> Any:
    """Return a module that cannot be imported: cloudpickle sends what it holds by value."""
    module = types.ModuleType("a_notebook")
    exec(NOTEBOOK, module.__dict__)
    return module


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


def test_a_class_of_the_program_stays_as_it_is_when_a_pickle_of_it_is_read(notebook: Any) -> None:
    data = dumps((notebook.Counter(), notebook.Colour.RED))
    ours = notebook.Counter.__call__
    notebook.Counter.made = 5
    counter, red = loads(data)

    assert type(counter) is notebook.Counter and red is notebook.Colour.RED
    assert notebook.Counter.made == 5 and notebook.Counter.__call__ is ours
    assert counter() == notebook.seen == [6]


def test_a_class_that_the_process_does_not_know_is_read_whole(notebook: Any) -> None:
    """As that of a commit message is after a restart of the program."""
    data = dumps(notebook.Counter)
    before = weakref.ref(notebook.Counter)
    del notebook.Counter
    gc.collect()
    assert before() is None

    counter = loads(data)
    assert counter()() == [1]
    assert loads(data) is counter and counter.made == 1
