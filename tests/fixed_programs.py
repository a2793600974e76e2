"""The random programs that each run tries: together they have all that programs have, and each takes about two seconds.

Chosen among 4,000 seeds. When the generator changes, `tests/unit/test_search.py` says what they lack.
"""

from __future__ import annotations

from fuzz.random_programs import Ending, Program

CORES = 2
"""Of the session that all tests share."""
FIXED = (
    490, 550, 708, 866, 970, 1030, 1034, 1110, 1180, 1210, 1334, 1348, 1407, 1411, 1471, 1697, 1812, 1944, 1970, 2177,
    2871, 2924, 2957, 3037, 3123, 3137, 3195, 3416, 3459, 3629,
)  # fmt: skip


def program_of(seed: int) -> Program:
    """Return a program that fits the session: slots that are tasks need a core each, foreachBatch one."""
    made = Program.of(seed, CORES + 1)
    if made.slots == "threads":
        return made
    return Program.of(seed, CORES - 1 if made.ending in (Ending.UPDATES, Ending.GROUPS) else CORES)
