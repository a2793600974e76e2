"""What is read in the user's process is of the program's classes, and does not change them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from pyspark import cloudpickle

from headgate.errors import UserFunctionError
from headgate.pickling import dumps, loads
from headgate.protocol.error_reports import error_of, report_of


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


def test_pysparks_own_cloudpickle_is_used_where_it_is(notebook: Any) -> None:
    """By the other one nobody would know the classes that Spark sent."""
    assert dumps(notebook.Counter) == cloudpickle.dumps(notebook.Counter)  # type: ignore[no-untyped-call]


def test_the_cause_of_an_error_is_of_the_class_that_the_user_defined(notebook: Any) -> None:
    """Its report comes from a process that has a copy of the class."""
    from headgate.spark.continuous.copies import Copies

    notebook.Refused.times = 3
    refused = Copies().loads(dumps(notebook.Refused("no")))
    notebook.Refused.times = 4
    assert type(refused) is not notebook.Refused
    error = UserFunctionError("it failed", function="f")
    error.__cause__ = refused

    cause = error_of(report_of(error)).__cause__
    assert type(cause) is notebook.Refused and cause.args == ("no",)
    assert notebook.Refused.times == 4


class Collects(type):
    """What makes these classes lets the garbage collector run, as anything may."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        gc.collect()
        return super().__new__(cls, *arguments, **options)


def test_a_class_that_is_collected_while_it_is_looked_for_is_read_whole() -> None:
    """As one of `headgate.register` is, which only its cycles hold: Spark keeps the pickle."""
    gc.disable()
    try:
        data = dumps(Collects("Registered", (), {"__module__": "__main__", "source": 5}))
        assert loads(data).source == 5
    finally:
        gc.enable()
