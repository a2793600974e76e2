"""Tables in docstrings, as rows."""

from __future__ import annotations

from headgate.simulation import tables
from headgate.simulation.tables import Row, rows_of

TABLE = """Decides something.

    state       event        next  actions    why
    ----------  -----------  ----  ---------  ----------------
    idle, busy  Asked twice  same  Answer,    it goes on
                                   Tell?      below
    idle        Stopped      over             nothing is open

    another table
    -------------
"""


def test_a_row_stands_for_each_of_its_states_and_goes_on_in_the_next_line() -> None:
    answers = {"actions": frozenset({"Answer"}), "optional": frozenset({"Tell"})}
    assert rows_of(TABLE) == [
        Row(state="idle", event="Asked", next="idle", **answers),
        Row(state="busy", event="Asked", next="busy", **answers),
        Row(state="idle", event="Stopped", next="over", actions=frozenset(), optional=frozenset()),
    ]


def test_what_has_a_question_mark_may_be_left_out_and_nothing_else_may() -> None:
    row = rows_of(TABLE)[0]
    assert row.allows(frozenset({"Answer"}))
    assert row.allows(frozenset({"Answer", "Tell"}))
    assert not row.allows(frozenset({"Tell"}))
    assert not row.allows(frozenset({"Answer", "Other"}))


def test_the_table_that_explains_the_form_is_one() -> None:
    assert {row.event for row in rows_of(tables.__doc__ or "")} == {"Asked"}
