"""How far tests search: the first tier always alike, but for expressions, aggregates and keys over generated
columns, of which each commit tries others; ``--all`` other seeds with each commit, ``--exhaustive`` all.

A test that searches asserts the same of each seed, example and machine, in both runs. What failed once is in
`tests.seeds`, and runs every time.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

exhaustive = False
"""Whether this run searches everything: ``pytest --exhaustive``; set by ``conftest.py`` before tests are imported."""


@cache
def block() -> int:
    """Return which block of seeds an ordinary run tries: the number of the commit; 0 where there is no git."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        counted = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return 0
    return int(counted.stdout) if counted.returncode == 0 else 0


def rotating(size: int, of: int) -> range:
    """Return so many seeds of all: those of this commit."""
    first = block() * size % (of - of % size)
    return range(first, first + size)
