"""The random programs that are always the same: together they have all that programs have; each takes two seconds.

Chosen among 4,000 seeds. When the generator changes, `tests/unit/test_search.py` says what they lack.
"""

from __future__ import annotations

from fuzz.random_programs import Ending, Program

CORES = 2
"""Of the session that all tests share."""
FIRST = (1034, 1210, 1334, 1407, 1411, 3459)
"""Those of the first tier; what only the others have is in tests of its own, too."""
FURTHER = (
    490, 550, 708, 866, 970, 1030, 1110, 1180, 1348, 1471, 1697, 1812, 1944, 1970, 2177, 2871, 2924, 2957, 3037, 3123,
    3137, 3195, 3416, 3629,
)  # fmt: skip
FIXED = (*FIRST, *FURTHER)


def program_of(seed: int) -> Program:
    """Return a program that fits the session: slots that are tasks need a core each, foreachBatch one."""
    made = Program.of(seed, CORES + 1)
    if made.slots == "threads":
        return made
    return Program.of(seed, CORES - 1 if made.ending in (Ending.UPDATES, Ending.GROUPS) else CORES)
