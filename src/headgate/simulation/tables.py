"""Reads the tables of states, events and actions that stand in the docstrings of machines.

Never: run a machine. Tests compare what machines do with these rows; the simulator counts which of them it met.

A table has a heading of column names, a line of dashes that says where the columns are, and rows up to an empty line:

    state         event       next    actions         why
    ------------  ----------  ------  --------------  -----------------------------------------
    idle, paused  Asked late  same                    somebody else answers
    idle          Asked       busy    Answer, Tell?   what has a question mark is left out at times

A cell with several states stands for a row each, and ``same`` for the state itself. Words behind an event's name only
tell rows apart for readers. A line without an event goes on with the cells above it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import msgspec

_COLUMNS = ("state", "event", "next", "actions", "why")
_DASHES = re.compile(r"-{2,}")


class Row(msgspec.Struct, frozen=True):
    """One row for one state.

    Parameters
    ----------
    state, event, next
        From where, by what, to where.
    actions
        What is ordered every time, by name.
    optional
        What is ordered at times.
    """

    state: str
    event: str
    next: str
    actions: frozenset[str]
    optional: frozenset[str]

    def allows(self, ordered: frozenset[str]) -> bool:
        """Return whether these actions are what the row says."""
        return self.actions <= ordered <= self.actions | self.optional


def rows_of(text: str) -> list[Row]:
    """Return the rows of all tables in a docstring whose columns are state, event, next, actions and why."""
    return [row for cells in _cells_of(text) for row in _expand(cells)]


def _cells_of(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows as they are written, by the name of the column."""
    lines = text.splitlines()
    for above, (heading, dashes) in enumerate(itertools.pairwise(lines)):
        starts = [match.start() for match in _DASHES.finditer(dashes)]
        if set(dashes) - set("- ") or not starts:
            continue
        spans = list(zip(starts, [*starts[1:], None]))
        if tuple(heading[start:end].strip() for start, end in spans) != _COLUMNS:
            continue
        row: dict[str, str] = {}
        for line in lines[above + 2 :]:
            if not line.strip():
                break
            cells = {name: line[start:end].strip() for name, (start, end) in zip(_COLUMNS, spans)}
            if row and not cells["event"]:
                row = {name: f"{row[name]} {cells[name]}".strip() for name in _COLUMNS}
                continue
            if row:
                yield row
            row = cells
        if row:
            yield row


def _expand(cells: dict[str, str]) -> Iterator[Row]:
    actions = _listed(cells["actions"])
    for state in _listed(cells["state"]):
        yield Row(
            state=state,
            event=cells["event"].split()[0],
            next=state if cells["next"] == "same" else cells["next"],
            actions=frozenset(name for name in actions if not name.endswith("?")),
            optional=frozenset(name[:-1] for name in actions if name.endswith("?")),
        )


def _listed(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(",") if part.strip()]
