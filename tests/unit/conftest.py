"""What unit tests of several folders share."""

from __future__ import annotations

import types
from typing import Any

import pytest

NOTEBOOK = """
import enum

seen = []

class Colour(enum.Enum):
    RED = 1

class Refused(Exception):
    times = 0

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
