"""docs/machines.md shows the tables that stand in the machines' docstrings."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import headgate
from headgate.simulation.tables import rows_of
from tests.machines_doc import DOCUMENT, MACHINES, document


def test_the_document_is_what_the_docstrings_say() -> None:
    assert DOCUMENT.read_text() == document(), "out of date: run  python -m tests.machines_doc"


def test_no_machine_with_a_table_is_missing() -> None:
    """A module whose docstring has such a table stands in the document; the one that explains the form is none."""
    names = {each.name for each in pkgutil.walk_packages(headgate.__path__, "headgate.") if _is_pure(each.name)}
    with_table = {name for name in names if rows_of(inspect.getdoc(import_module(name)) or "")}
    assert with_table <= {module.__name__ for module in MACHINES.values()}


def _is_pure(name: str) -> bool:
    return name.startswith(("headgate.coordinator.", "headgate.checkpoint.", "headgate.task."))
