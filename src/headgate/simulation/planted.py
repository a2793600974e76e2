"""Plants bugs into production code: a class or a function stands wherever another one is named.

Never: wrap or copy a machine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

Bugs = Mapping[Any, Any]
"""By class or function of production: what takes its place; a subclass with a bug, mostly."""


@contextlib.contextmanager
def planted(bugs: Bugs) -> Iterator[None]:
    """Have production code, and the simulator, use what has the bug instead, meanwhile."""
    modules = [module for name, module in sys.modules.items() if bugs and name.startswith("headgate.")]
    places = [
        (module, name, found)
        for module in modules
        for name, found in vars(module).items()
        if isinstance(found, type | FunctionType) and found in bugs
    ]
    for module, name, found in places:
        setattr(module, name, bugs[found])
    try:
        yield
    finally:
        for module, name, found in places:
            setattr(module, name, found)
